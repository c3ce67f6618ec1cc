"""Recordings of a real cluster (tests/cluster/stories.py), replayed look by look through parsers and rules.

Beside each recording a YAML file says what is true in each look, written by hand from the story.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter.diagnosis import RULES
from exporter.model import DeviceKey, Missed, Policy, Report, Seen, value
from exporter.recording import load
from exporter.report import advance
from tests.cluster.stories import STORIES
from tests.sources import test_recordings as replay

FOLDER = Path(__file__).with_name("cluster")
RECORDINGS = sorted(FOLDER.glob("*.json.gz"))
AT_ONCE = tuple((f"{rule.finding}.{kind.name}", 0.0) for rule in RULES for kind in rule.kinds)
NAMES = (
    "team-",
    "train",
    "infer",
    "notebook",
    "hung",
    "warmer",
    "worker",
    "python",
    "cluster-node",
    "-1111-4222-",
)
PARTS = ("sources", "allocations", "devices", "processes", "findings", "unknown")


@pytest.fixture(params=RECORDINGS, ids=lambda path: path.name.split(".")[0])
def recording(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture
def reports(recording: Path, tmp_path: Path) -> list[Report]:
    """What the exporter makes of each look, with every age at zero."""
    found: list[Report] = []
    for number, look in enumerate(load(recording)):
        snapshot = replay.replayed(look, tmp_path / str(number))
        found.append(advance(Policy(interval=2.0, ages=AT_ONCE), found[-1] if found else None, snapshot))
    return found


class Words:
    """A report in words. Pods of one name are told apart by the order in which their processes began."""

    def __init__(self, report: Report, uids: list[str]) -> None:
        self._report = report
        self._uids = uids
        nvml = value(report.snapshot.nvml)
        self._index = {gpu.uuid: gpu.index for gpu in nvml.gpus} if nvml else {}

    def sources(self) -> Iterator[str]:
        """Those that did not answer, or not with everything."""
        for name in ("nvml", "processes", "container_dev", "kubelet", "pods", "node", "pod_names", "pci"):
            reading = getattr(self._report.snapshot, name)
            if isinstance(reading, Missed):
                yield f"{name}: {reading.reason}"
            elif isinstance(reading, Seen) and not reading.complete:
                yield f"{name}: incomplete"

    def allocations(self) -> Iterator[str]:
        """What was given to whom, and what is only remembered to have been."""
        for grant in self._report.attribution.grants:
            remembered = "" if grant.current else " (remembered)"
            shared = " shared" if grant.shared else ""
            yield f"{self._device(grant.device)}: {_name(grant.workload)}{shared}{remembered}"

    def devices(self) -> Iterator[str]:
        """Whether each is allocated, and the workload that has it for itself."""
        words = {True: "allocated", False: "free", None: "not known"}
        for use in self._report.attribution.devices:
            yield f"{self._device(use.device)}: {words[use.allocated]} {_name(use.owner)}".rstrip()

    def processes(self) -> Iterator[str]:
        """Who is on what."""
        for use in self._report.attribution.uses:
            place = f"{_name(use.workload)}{self._which(use.pod_uid)}"
            yield f"{self._device(use.device)}: {use.owner} {place} {use.visibility} {use.state}".rstrip()

    def findings(self) -> Iterator[str]:
        """What is wrong, and with which pod; `once` where it has not been so for as often as it takes."""
        for finding in self._report.diagnosis.findings:
            holds = finding.holds
            told = [f"{self._device(holds.subject.device)}: {holds.subject.finding} {holds.kind}"]
            told += [_name(holds.workload) + self._which(holds.pod_uid)] if holds.workload.pod else []
            told += [f"explained by {finding.explained_by}"] if finding.explained_by else []
            told += [f"unknown since: {finding.undetermined}"] if finding.undetermined else []
            told += [] if finding.active else ["once"]
            yield ", ".join(told)

    def unknown(self) -> Iterator[str]:
        """What could not be judged, and why, on whatever device."""
        yield from {f"{one.finding}: {one.reason}" for one in self._report.diagnosis.undetermined}

    def _device(self, key: DeviceKey | None) -> str:
        if key is None:
            return "node"
        return f"gpu {self._index[key.uuid]}" + (f" gi {key.gi}" if key.gi is not None else "")

    def _which(self, uid: str) -> str:
        return f" ({self._uids.index(uid) + 1})" if uid in self._uids else ""


def _name(workload: Any) -> str:
    return "/".join(filter(None, (workload.namespace, workload.pod, workload.container)))


def same_named(reports: list[Report]) -> list[str]:
    """UIDs of pods that share their name with another one, by when their processes began."""
    began: dict[tuple[str, str], dict[str, int]] = {}
    for report in reports:
        for use in report.attribution.uses:
            if use.process is not None:
                uids = began.setdefault((use.workload.namespace, use.workload.pod), {})
                uids[use.pod_uid] = min(use.process.start, uids.get(use.pod_uid, use.process.start))
    return [uid for uids in began.values() if len(uids) > 1 for uid in sorted(uids, key=uids.__getitem__)]


def test_each_look_says_what_the_story_says(recording: Path, reports: list[Report]) -> None:
    """Who is where, what was given, what is wrong, and what is not known: at every look."""
    written = yaml.safe_load(recording.with_name(recording.name.replace(".json.gz", ".yaml")).read_text())
    assert len(written["looks"]) == len(reports) == 3
    uids = same_named(reports)
    for number, (report, expected) in enumerate(zip(reports, written["looks"], strict=True)):
        words = Words(report, uids)
        assert set(expected) == set(PARTS), f"look {number} must say something of each part"
        for part in PARTS:
            told = sorted(getattr(words, part)())
            assert told == sorted(expected[part]), f"look {number}: {part}"


def test_an_exporter_that_starts_after_the_kubelet_calls_no_device_free(tmp_path: Path) -> None:
    """It has never heard of the pods that are not listed: it must not say that they have nothing."""
    report: Report | None = None
    for number, look in enumerate(load(FOLDER / "kubelet-restarts-without-api.json.gz")[1:]):
        report = advance(
            Policy(interval=2.0, ages=AT_ONCE), report, replay.replayed(look, tmp_path / str(number))
        )
        allocated = {use.allocated for use in report.attribution.devices}
        assert allocated == {True, None}, f"look {number + 1}"
        assert not report.diagnosis.findings


def test_the_parsers_give_what_the_agent_saw(recording: Path, tmp_path: Path) -> None:
    """Each source's raw material is enough for its records: those of a real kubelet and API server, too."""
    for number, look in enumerate(load(recording)):
        again = replay.replayed(look, tmp_path / str(number))
        for source in ("kubelet", "pods", "node", "pod_names", "processes"):
            found, seen = value(getattr(again, source)), value(getattr(look.snapshot, source))
            assert replay.alike(found) == replay.alike(seen), f"look {number}: {source}"


def test_every_story_is_recorded_and_told() -> None:
    """A story without recording, or a recording without a text beside it, would test nothing."""
    assert {path.name.split(".")[0] for path in RECORDINGS} == set(STORIES)
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(STORIES)


def test_no_name_is_in_a_masked_recording(recording: Path) -> None:
    """Neither the names of the stories nor the UUIDs of the cluster, nor those of where it ran."""
    text = gzip.decompress(recording.read_bytes()).decode()
    replies = [base64.b64decode(reply) for look in load(recording) for reply in look.raw["kubelet"].values()]
    for name in NAMES:
        assert name not in text
        assert not any(name.encode() in reply for reply in replies)
