"""The status page as a document: what it says, and that nothing in it is markup that others chose."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from exporter.model import Owner, Policy, ProcessTable, Reading, Reason, Report
from exporter.status_page import page
from exporter.status_page.bar import Part, parts
from exporter.view import Device, Holder, Place
from tests import builders as b
from tests.unit.reports import troubled

MIB = 2**20
PLACE = Place(b.gpu_uuid(0))
VOID = ("meta",)


class Page(HTMLParser):
    """Tags, link targets and text of a page; every tag must be closed."""

    def __init__(self, html: bytes) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str | None] = []
        self.anchors: set[str | None] = set()
        self.text = ""
        self.feed(html.decode())
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.links += [target for name, target in attrs if name in ("href", "src")]
        self.anchors |= {target for name, target in attrs if name == "id"}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def shown(report: Report | None, **more: bool) -> Page:
    return Page(page(report, "/metrics", "0.1.0", **more))


def test_it_shows_sources_and_gpus() -> None:
    """Each source with the reason for which it is missing, each GPU with its UUID; no dead links."""
    looked = b.snapshot(processes=b.missed(Reason.DENIED, detail="ptrace"), nvml=b.nvml(b.gpu(), b.gpu(1)))
    found = shown(b.report(looked))
    for expected in ("0.1.0", "node-1", "denied: ptrace", "container_dev", b.gpu_uuid(0), b.gpu_uuid(1)):
        assert expected in found.text
    assert "Simulated" not in found.text
    assert "script" not in found.tags
    inside = {link for link in found.links if link and link.startswith("#")}
    assert {link[1:] for link in inside if link} <= found.anchors
    assert {"/metrics", "/", "/?refresh=off"} == set(found.links) - inside


def test_before_the_first_cycle() -> None:
    """It says so, and nothing else."""
    found = shown(None)
    assert "first cycle" in found.text
    assert "GPU 0" not in found.text


def test_a_report_that_is_too_old_says_nothing_of_the_node() -> None:
    """Unknown is not clear: of a stalled agent's last look only its age is told."""
    found = shown(b.report(b.snapshot(nvml=b.nvml(b.gpu()))), stale=True)
    assert "too old" in found.text
    assert b.gpu_uuid(0) not in found.text
    assert "Nothing is wrong" not in found.text


def test_it_says_that_data_is_simulated() -> None:
    """In words, at the top."""
    assert "Simulated data" in shown(b.report(policy=Policy(simulated=True))).text


def test_it_does_not_take_unknown_gpus_for_none() -> None:
    """Without NVML there is no clean bill."""
    found = shown(b.report(b.snapshot(nvml=b.missed())))
    assert "NVML did not answer" in found.text
    assert "no clean bill" in found.text


@pytest.mark.parametrize(
    ("scan", "said"),
    [
        (b.seen(b.process_table()), "No process is on it."),
        (b.seen(b.process_table(), complete=False), "No process was seen on it"),
        (b.missed(), "No process was seen on it"),
    ],
)
def test_nobody_is_on_a_gpu_only_where_all_was_looked_at(scan: Reading[ProcessTable], said: str) -> None:
    """NVML's empty list says nothing of those that merely hold the device's file."""
    found = shown(b.report(b.snapshot(nvml=b.nvml(b.gpu()), processes=scan)))
    assert said in found.text
    assert ("No process is on it." in found.text) == (said == "No process is on it.")


def test_what_may_yet_be_wrong_is_no_clean_bill_without_nvml() -> None:
    """A finding that does not count yet does not hide that the GPUs were not seen."""
    report = troubled()
    pending = tuple(replace(one, active=False) for one in report.diagnosis.findings)
    blind = replace(
        report,
        snapshot=replace(report.snapshot, nvml=b.missed()),
        diagnosis=replace(report.diagnosis, findings=pending),
    )
    assert "no clean bill" in shown(blind).text


def test_it_escapes_what_others_chose() -> None:
    """Product names, error texts, node names and paths are text."""
    evil = "<script>alert('1')</script>\"&\ud800"
    looked = b.snapshot(
        nvml=b.nvml(b.gpu(product=evil, lost=evil)), pods=b.missed(detail=evil), node_name=evil
    )
    found = Page(page(b.report(looked), '/"><script>', evil))
    assert "script" not in found.tags
    assert found.text.count("<script>alert('1')</script>\"&?") == 6
    assert '/"><script>' in found.links


def holder(memory: int | None, owner: Owner = Owner.POD, pod: str = "a") -> Holder:
    return Holder(1, "python", owner.value, "team", pod, "main", "uid", memory, "both", "running", True)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        pytest.param(Device(PLACE, "0", "", used=5), (), id="no total"),
        pytest.param(
            Device(PLACE, "0", "", used=0, total=100, unattributed=0), (Part("free", 100, "free"),), id="idle"
        ),
        pytest.param(
            Device(PLACE, "0", "", used=70, total=100, unattributed=20, holders=(holder(30), holder(10))),
            (
                Part("team/a", 40, "pod0"),
                Part("no process", 20, "unattributed"),
                Part("driver and others", 10, "rest"),
                Part("free", 30, "free"),
            ),
            id="two processes of a pod",
        ),
        pytest.param(
            Device(PLACE, "0", "", used=70, total=100, holders=(holder(30), holder(None, Owner.ORPHAN, "b"))),
            (Part("team/a", 30, "pod0"), Part("not known by whom", 40, "unknown"), Part("free", 30, "free")),
            id="a figure is missing",
        ),
    ],
)
def test_the_bar_names_whose_memory_it_is(device: Device, expected: tuple[Part, ...]) -> None:
    """What nobody can name is never free, and 0 bytes are no part."""
    assert parts(device) == expected
    assert sum(part.memory for part in parts(device)) in (0, device.total)
