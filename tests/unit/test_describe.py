"""What `describe` makes of a look at the node: text, JSON and verdict."""

import json
from dataclasses import replace

import pytest

from exporter import describe
from exporter.diagnosis import RULES
from exporter.exposition import Format, expose
from exporter.model import (
    Attribution,
    DeviceKey,
    Diagnosis,
    FindingName,
    InFlight,
    Missed,
    Nvml,
    Policy,
    Reason,
    Report,
    Seen,
    Snapshot,
    Workload,
)
from exporter.view import Given, Place, is_given
from tests import builders as b
from tests.builders import GIB, NOW
from tests.unit.reports import mig_report, troubled, with_sources

STUCK = FindingName.STUCK_PROCESS


def text(report: Report) -> str:
    return describe.as_text(describe.of_report(report))


# --- from a look --------------------------------------------------------------------------------------------


def test_a_gpu_is_told_with_who_holds_it_and_what_is_wrong() -> None:
    """All that the on-call needs stands in the text, in the words of the table of rules."""
    rule = next(rule for rule in RULES if rule.finding is STUCK)
    shown = text(troubled())
    for expected in (
        f"GPU 0  {b.gpu_uuid(0)}  NVIDIA H100 80GB HBM3",
        "Given to   team-a/train-0 main (nvidia.com/gpu)",
        "4.0 GiB of 80.0 GiB used; 3.0 GiB is accounted for by processes; 1.0 GiB is not accounted for",
        "WRONG: stuck_process (kill_pending, critical)",
        f"{rule.summary} {rule.kind('kill_pending').meaning}",
        "team-a/train-0 main, pid 4000 (python), 1.0 GiB",
        "- somebody looked",
        f"What to do: {rule.remedy}",
        "Explained by stuck_process.",
        "pods: denied (403 Forbidden)",
        "2 things are wrong.",
    ):
        assert expected in shown


def test_each_process_says_whether_its_pod_was_given_the_device() -> None:
    """Given, not given, and no pod that could have been; the largest memory stands first."""
    rows = [line.split() for line in text(troubled()).splitlines() if line.strip().startswith("400")]
    assert [(row[0], row[-1]) for row in rows] == [("4001", "NO"), ("4000", "yes"), ("4002", "-")]
    assert "team-b/rogue-0" in rows[0]
    assert "open files" in " ".join(rows[2])


def test_a_single_look_never_claims_an_age() -> None:
    """It has none: what it finds holds now, even where the record calls it active."""
    report = troubled()
    active = tuple(replace(one, active=True) for one in report.diagnosis.findings)
    shown = text(replace(report, diagnosis=replace(report.diagnosis, findings=active)))
    assert "Holds now; a running exporter counts it once it has lasted 2m." in shown
    slow = replace(report, policy=Policy(ages=(("stuck_process.kill_pending", 600.0),)))
    assert "once it has lasted 10m." in text(slow)
    assert "Active" not in shown
    assert "first seen" not in shown


def test_what_could_not_be_judged_is_one_line_for_each_reason_and_device() -> None:
    """In words where the reason is missing evidence."""
    shown = text(troubled()).splitlines()
    pods = "the API server's pods missing, denied: "
    assert (
        f"  {pods}orphan_process (pod_gone, pod_terminal); node_capacity_mismatch (allocation_stale)" in shown
    )
    assert f"  thread_id on {b.gpu_uuid(0)}: phantom_process (held)" in shown


def test_a_quiet_node_has_nothing_wrong() -> None:
    """And says so only when everything was judged."""
    view = describe.of_report(b.report())
    assert view.verdict is describe.Verdict.NOTHING_WRONG
    assert describe.as_text(view).endswith("\nNothing is wrong.\n")
    assert "No process on it was seen." in describe.as_text(view)
    blind = describe.of_report(b.report(b.snapshot(pods=b.missed())))
    assert blind.verdict is describe.Verdict.NOTHING_WRONG
    assert describe.as_text(blind).endswith("\nNothing wrong was found in what could be judged.\n")


def test_without_nvml_the_gpus_were_not_seen() -> None:
    """Holders alone are worth telling, and no clean bill for GPUs that nobody looked at."""
    for missing, seen in ((("nvml", "processes"), False), (("nvml",), False), (("processes",), True)):
        report = b.report(with_sources(b.snapshot(), b.missed(), *missing))
        assert describe.of_report(report).seen is seen
    report = b.report(with_sources(b.snapshot(), b.missed()))
    assert describe.of_report(report).verdict is describe.Verdict.NOT_SEEN
    assert "The GPUs could not be seen" in text(report)


def test_processes_that_could_not_be_read_are_told_with_the_remedy() -> None:
    """Without root the look is a part of one."""
    table = b.seen(b.process_table(unreadable=(1, 2, 3)), complete=False)
    assert "processes: incomplete (3 of 200 processes could not be read; root can)" in text(
        b.report(b.snapshot(processes=table))
    )
    cut = b.seen(b.process_table(truncated=2), complete=False)
    assert "2 processes have more descriptors than are looked at" in text(b.report(b.snapshot(processes=cut)))


@pytest.mark.parametrize("reading", [b.missed(), b.seen(b.nvml(), complete=False)])
def test_a_call_of_the_driver_that_has_not_returned_is_named(reading: Missed | Seen[Nvml]) -> None:
    """The same words whether the node is looked at or its exporter is asked."""
    call = InFlight("nvmlDeviceGetMemoryInfo_v2", 3, b.gpu_uuid(3), NOW - 5)
    report = b.report(b.snapshot(nvml=reading, in_flight=call))
    words = "nvmlDeviceGetMemoryInfo_v2 has not returned for GPU 3"
    assert words in text(report)
    assert words in describe.as_text(describe.of_metrics(expose(report, Format.TEXT).decode(), "x"))


def test_a_gpu_in_mig_mode_is_told_by_its_devices() -> None:
    """The parent has no owner and no processes to speak of; shared memory says that it is shared."""
    report = mig_report((1, 0), (1, 1), (2, 0), owners={(2, 0): b.TRAINER})
    use = b.use(device=b.key(0, 2, 0))
    attribution = replace(report.attribution, uses=(use,), grants=(b.grant(b.key(0, 2, 0)),))
    shown = text(replace(report, attribution=attribution))
    assert "Cut into   3 MIG devices, below" in shown
    assert shown.count("(of the instance, which 2 MIG devices share)") == 2
    assert f"MIG device {b.mig_uuid(0, 2)}, instance 2 of {b.gpu_uuid(0)}  1g.10gb" in shown
    assert shown.count("No process on it was seen.") == 2


def test_a_lost_gpu_says_what_became_of_it() -> None:
    """Its memory of an earlier cycle is no memory of now."""
    shown = text(b.report(b.snapshot(nvml=b.nvml(b.gpu(lost="GPU is lost", used=GIB)))))
    assert "LOST" in shown
    assert "Does not answer: GPU is lost" in shown
    assert "Memory     not known" in shown


def test_holders_are_told_while_nvml_is_silent() -> None:
    """A device that only a process shows has its own section."""
    report = b.report(b.snapshot(nvml=b.missed(Reason.BUSY)), Attribution(uses=(b.use(used=None),)))
    shown = text(report)
    assert b.gpu_uuid(0) in shown
    assert "4000" in shown
    assert "nvml: busy" in shown


def test_findings_without_a_device_that_is_shown_are_the_nodes() -> None:
    """No finding is left out because its device is not known any more."""
    gone = b.finding(device=DeviceKey("GPU-gone"))
    node = b.finding(FindingName.NODE_CAPACITY_MISMATCH, "nvml_lt_pci", of_node=True, pid=0)
    view = describe.of_report(b.report(diagnosis=Diagnosis(findings=(gone, node))))
    assert [one.kind for one in view.problems] == ["kill_pending", "nvml_lt_pci"]
    assert view.verdict is describe.Verdict.WRONG


@pytest.mark.parametrize(
    ("place", "known", "expected"),
    [
        (Place("GPU-a"), True, True),
        (Place("GPU-a"), False, True),
        (Place("GPU-b"), True, False),
        (Place("GPU-b"), False, None),
        (Place("GPU-a", "1", "MIG-1"), True, True),  # a part of what it was given
        (Place("GPU-c"), True, True),  # given a part of it
        (Place("GPU-c", "1", "MIG-1"), True, True),
        (Place("GPU-c", "1", ""), True, True),
        (Place("GPU-c", "1", "MIG-2"), True, False),
        (Place("GPU-c", "2", "MIG-3"), True, False),
    ],
)
def test_given_is_known_only_with_the_kubelets_list(
    place: Place, *, known: bool, expected: bool | None
) -> None:
    """What was given is given; what was not is so only where the list is whole."""
    given = [Given(one, "ns", "pod", "main", "gpu") for one in (Place("GPU-a"), Place("GPU-c", "1", "MIG-1"))]
    assert is_given(place, "ns", "pod", given, known=known) is expected
    assert is_given(place, "", "", given, known=known) is None
    unread = [*given, Given(None, "ns", "pod", "main", "gpu")]
    assert is_given(place, "ns", "pod", unread, known=known) is (expected or None)


def test_a_carried_grant_leaves_open_what_was_given() -> None:
    """After a restart of the kubelet a pod that is not listed yet has lost nothing."""
    attribution = Attribution(
        uses=(b.use(),), grants=(b.grant(b.key(1), current=False),), devices=(b.device_use(),)
    )
    view = describe.of_report(b.report(b.snapshot(), attribution))
    assert view.devices[0].holders[0].given is None


# --- forms --------------------------------------------------------------------------------------------------


def test_no_control_character_reaches_the_terminal() -> None:
    """Whoever chose a text; and colours are the only escape sequences."""
    evil = "x\x1b[31m\n\u202e\ud800"
    report = troubled()
    uses = tuple(
        replace(use, comm=evil, workload=Workload(evil, evil, evil)) for use in report.attribution.uses
    )
    holds = replace(report.diagnosis.findings[0].holds, comm=evil, evidence=(evil,))
    report = replace(
        report,
        snapshot=replace(report.snapshot, node_name=evil, pods=b.missed(detail=evil)),
        attribution=replace(report.attribution, uses=uses),
        diagnosis=replace(report.diagnosis, findings=(replace(report.diagnosis.findings[0], holds=holds),)),
    )
    plain = text(report)
    assert all(char.isprintable() or char == "\n" for char in plain)
    assert len(plain.splitlines()) == len(plain.split("\n")) - 1
    assert describe.as_json(describe.of_report(report)).isascii()


def test_colour_changes_nothing_but_colour() -> None:
    """Without the sequences it is the plain text."""
    view = describe.of_report(troubled())
    coloured = describe.as_text(view, colour=True)
    assert "\x1b[1;31m" in coloured
    for code in ("1", "1;31", "33", "2", "0"):
        coloured = coloured.replace(f"\x1b[{code}m", "")
    assert coloured == describe.as_text(view)


def test_json_has_everything_and_the_verdict() -> None:
    """For programs: the records of the view, as they are."""
    document = json.loads(describe.as_json(describe.of_report(troubled())))
    assert document["verdict"] == "wrong"
    [gpu] = document["devices"]
    assert gpu["place"] == {"uuid": b.gpu_uuid(0), "gi": "", "mig_uuid": ""}
    assert [one["given"] for one in gpu["holders"]] == [False, True, None]
    assert gpu["problems"][0]["evidence"] == ["somebody looked"]
    assert document["gaps"] == [{"source": "pods", "reason": "denied", "detail": "403 Forbidden"}]


# --- looking ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("looked", "times"),
    [
        (b.snapshot(), 1),
        (b.snapshot(pods=b.missed(Reason.UNAVAILABLE)), 1),
        (b.snapshot(nvml=b.missed(Reason.TIMEOUT)), 2),
        (b.snapshot(kubelet=b.missed(Reason.BUSY)), 2),
    ],
)
def test_a_second_look_is_taken_only_for_what_another_moment_shows(looked: Snapshot, times: int) -> None:
    """A source that is late may answer; one that is not there will not."""
    slept: list[float] = []
    asked: list[Report | None] = []

    def gather(previous: Report | None) -> Snapshot:
        asked.append(previous)
        return replace(looked, monotonic=looked.monotonic + len(asked))

    describe.look(Policy(), gather, slept.append)
    assert len(asked) == times
    assert len(slept) == times - 1
    assert asked[0] is None
