"""Recordings of nodes, replayed through the parsers: they give what the agent saw, and who is where."""

from __future__ import annotations

import base64
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter import cgroups
from exporter.diagnosis import RULES
from exporter.model import (
    DeviceNode,
    Kubelet,
    Missed,
    Off,
    Policy,
    Process,
    ProcessId,
    ProcessTable,
    Report,
    Seen,
    Snapshot,
    value,
)
from exporter.recording import FORMAT, RecordingError, load, masked, save
from exporter.recording.files import Look
from exporter.report import advance
from exporter.sources.device_files import Majors
from exporter.sources.kubelet import KubeletSource
from exporter.sources.node import NodeSource
from exporter.sources.pod_names import PodNamesSource
from exporter.sources.pods import PodsSource
from exporter.sources.procfs import O_PATH_FLAG, parse_stat, parse_status
from exporter.text import COMM_LIMIT, printable
from tests.rig import kubelet as rig

FOLDER = Path(__file__).parents[1] / "recordings"
RECORDINGS = sorted(FOLDER.glob("*.json.gz"))


@pytest.fixture(params=RECORDINGS, ids=lambda path: path.name.split(".")[0])
def recording(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


# --- the raw material through the parsers -------------------------------------------------------------------


def kubelet_of(raw: dict[str, str]) -> Kubelet:
    """The recorded replies by way of a socket, as the agent gets them."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, rig.Kubelet(Path(folder)) as kubelet:
        for method, text in raw.items():
            kubelet.set_raw(method, base64.b64decode(text))
        if "GetAllocatableResources" not in raw:
            kubelet.disable("GetAllocatableResources")
        return KubeletSource(kubelet.socket).read()[0]


class Recorded:
    """An API server that knows one object."""

    def __init__(self, kept: Any) -> None:
        self._kept = kept

    def get(
        self,
        path: str,
        query: dict[str, str] | None = None,
        hook: Callable[[dict[str, Any]], object] | None = None,
    ) -> Any:
        return json.loads(json.dumps(self._kept), object_hook=hook)


def process_of(pid: str, texts: dict[str, Any], majors: Majors, seen: Process) -> Process:
    """A process from its texts; what moves between a scan and the reading of them is as the scan saw it."""
    stat = parse_stat(texts["stat"].encode("latin-1"))
    status = parse_status(texts["status"].encode("latin-1"))
    place = texts["cgroup"].encode("latin-1").decode("utf-8", "replace")
    return replace(
        seen,
        id=ProcessId(int(pid), stat.start),
        parent=stat.parent,
        comm=printable(stat.comm, COMM_LIMIT),
        cgroup=cgroups.parse(place),
        threads=stat.threads,
        exiting=stat.exiting,
        kill_pending=status.kill_pending,
        dumping=status.dumping,
    )


def held(texts: dict[str, Any], majors: Majors) -> dict[DeviceNode, int]:
    """How many descriptors of each device file are open."""
    found: dict[DeviceNode, int] = {}
    for one in texts.get("descriptors", ()):
        node = majors.node(tuple(one["number"]))
        assert node is not None
        if not int(one["flags"], 8) & O_PATH_FLAG:
            found[node] = found.get(node, 0) + 1
    return found


def table_of(raw: dict[str, Any], table: ProcessTable) -> ProcessTable:
    """The table again, its processes as their texts have them."""
    majors = Majors(raw["devices"])
    seen = {str(process.id.pid): process for process in table.processes}
    parsed = {pid: process_of(pid, texts, majors, seen[pid]) for pid, texts in raw["processes"].items()}
    for pid, texts in raw["processes"].items():
        if seen[pid].state != "Z":  # the descriptors of a zombie leader are its threads'
            assert held(texts, majors) == {
                hold.node: hold.descriptors for hold in seen[pid].holds if hold.descriptors
            }
    return replace(table, processes=tuple(parsed.get(str(one.id.pid), one) for one in table.processes))


def replayed(look: Look, folder: Path) -> Snapshot:
    """The Snapshot of a look, with all in it that can be parsed anew parsed anew."""
    snapshot, raw = look.snapshot, look.raw
    parsed: dict[str, Any] = {}
    if isinstance(snapshot.kubelet, Seen):
        parsed["kubelet"] = kubelet_of(raw["kubelet"])
    if isinstance(snapshot.pods, Seen):
        parsed["pods"] = PodsSource(Recorded(raw["pods"]), snapshot.node_name).read(False)[0]
    if isinstance(snapshot.node, Seen):
        parsed["node"] = NodeSource(Recorded(raw["node"]), snapshot.node_name).read()[0]
    if isinstance(snapshot.pod_names, Seen):
        for name, containers in raw["pod_names"].items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            for container in containers:
                (folder / name / container).mkdir(exist_ok=True)
        parsed["pod_names"] = PodNamesSource(folder).read()[0]
    if isinstance(snapshot.processes, Seen) and raw["proc"] is not None:
        parsed["processes"] = table_of(raw["proc"], snapshot.processes.value)
    readings = {name: replace(getattr(snapshot, name), value=found) for name, found in parsed.items()}
    return replace(snapshot, **readings)


def alike(record: Any) -> Any:
    """A record whose tuples are sets: pseudonyms sort otherwise than names."""
    if isinstance(record, tuple):
        return frozenset(map(alike, record))
    fields = getattr(type(record), "__slots__", ())
    is_record = hasattr(type(record), "__dataclass_fields__")
    return (
        (type(record).__name__, *(alike(getattr(record, name)) for name in fields)) if is_record else record
    )


def test_the_parsers_give_what_the_agent_saw(recording: Path, tmp_path: Path) -> None:
    """Each source's raw material is enough for its records."""
    for number, look in enumerate(load(recording)):
        again = replayed(look, tmp_path / str(number))
        for source in ("kubelet", "pods", "node", "pod_names", "processes"):
            found, seen = value(getattr(again, source)), value(getattr(look.snapshot, source))
            assert alike(found) == alike(seen), f"look {number}: {source}"


# --- who is where -------------------------------------------------------------------------------------------


def told(report: Report) -> Iterator[str]:
    """GPU, owner, workload and by whom it is seen, of each process on it."""
    index = {gpu.uuid: gpu.index for gpu in report.snapshot.nvml.value.gpus}  # type: ignore[union-attr]
    for use in report.attribution.uses:
        place = f"{index[use.device.uuid]}" + (f" gi {use.device.gi}" if use.device.gi is not None else "")
        workload = "/".join(filter(None, (use.workload.namespace, use.workload.pod, use.workload.container)))
        yield " ".join(filter(None, (f"gpu {place}:", use.owner, workload, use.visibility)))


def found(report: Report) -> Iterator[str]:
    index = {gpu.uuid: gpu.index for gpu in report.snapshot.nvml.value.gpus}  # type: ignore[union-attr]
    for finding in report.diagnosis.findings:
        if finding.active:
            device = finding.holds.subject.device
            yield (
                f"gpu {index[device.uuid]}: {finding.holds.subject.finding}"
                if device
                else str(finding.holds.subject.finding)
            )


def test_who_is_where(recording: Path, tmp_path: Path) -> None:
    """The last look, judged without waiting, says what is written beside the recording."""
    ages = tuple((f"{rule.finding}.{kind.name}", 0.0) for rule in RULES for kind in rule.kinds)
    report: Report | None = None
    for number, look in enumerate(load(recording)):
        report = advance(Policy(interval=2.0, ages=ages), report, replayed(look, tmp_path / str(number)))
    assert report is not None
    expected = yaml.safe_load(recording.with_name(recording.name.replace(".json.gz", ".yaml")).read_text())
    assert sorted(told(report)) == sorted(expected["processes"])
    assert sorted(set(found(report))) == sorted(expected["findings"])


def test_no_name_is_in_a_masked_recording(recording: Path) -> None:
    """Neither the rig's names nor its UUIDs, nor those of where it ran."""
    text = gzip.decompress(recording.read_bytes()).decode()
    replies = [base64.b64decode(reply) for look in load(recording) for reply in look.raw["kubelet"].values()]
    for name in (
        "team-",
        "train",
        "left-0",
        "infer",
        "notebook",
        "rogue",
        "rig-node",
        "python",
        "gpurig",
        "-1111-4222-",
    ):
        assert name not in text
        assert not any(name.encode() in reply for reply in replies)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "--output: 'text' is no file; give --output=NAME.json.gz"),
        (
            ["--output=x.json"],
            "--output: 'x.json' is not known; give one of text, json, or for record a NAME.json.gz",
        ),
    ],
)
def test_the_command_wants_a_file(flags: list[str], said: str) -> None:
    """One flag names a form for describe, and a file for record."""
    result = command(*flags)
    assert (result.returncode, result.stderr.strip()) == (2, f"kubegpu-exporter: {said}")


def test_a_machine_without_anything_can_be_recorded(tmp_path: Path) -> None:
    """What does not answer is in the recording as such."""
    path = tmp_path / "node.json.gz"
    nothing = [f"--path.sysfs={tmp_path}", f"--path.pod-logs={tmp_path}/no", f"--kubelet.root-dir={tmp_path}"]
    flags = [*nothing, f"--nvml.library={tmp_path}/none", "--kubernetes.enabled=false"]
    result = command(f"--output={path}", "--mask", *flags)
    assert result.returncode == 0, result.stderr
    looks = load(path)
    assert len(looks) == 3
    for look in looks:
        assert isinstance(look.snapshot.nvml, Missed)
        assert isinstance(look.snapshot.kubelet, Missed)
        assert isinstance(look.snapshot.pods, Off)
        assert (look.raw["kubelet"], look.raw["pods"], look.raw["node"]) == ({}, None, None)


def command(*flags: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("kubegpu-exporter")
    return subprocess.run([program, "record", *flags], capture_output=True, text=True, check=False)


# --- files --------------------------------------------------------------------------------------------------


def test_masking_twice_changes_nothing_but_the_numbers() -> None:
    """A document stays one that can be read."""
    document = json.loads(gzip.decompress(RECORDINGS[0].read_bytes()))
    again = masked(document)
    assert again["masked"] is True
    assert len(again["looks"]) == len(document["looks"])


def whole() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress(RECORDINGS[0].read_bytes()))
    return document


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    """And one that is written again is the same file."""
    first, second = tmp_path / "a.json.gz", tmp_path / "b.json.gz"
    save(first, whole())
    save(second, whole())
    assert load(first) == load(RECORDINGS[0])
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": FORMAT + 1}, f"has format {FORMAT + 1}, and this version reads format {FORMAT}"),
        ({"format": None}, "has format null"),
        ({"looks": []}, "has no look in it"),
        ({"looks": [{}]}, "is damaged (looks[0]: no look)"),
        ({"looks": None}, "is no recording"),
        ({"looks": [{"snapshot": {"at": "now"}, "raw": {}}]}, "is damaged (looks[0].raw: not of kubelet"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    """With one line that names the file, and says what to do."""
    path = tmp_path / "x.json.gz"
    save(path, {**whole(), **change})
    with pytest.raises(RecordingError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: {said}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"", b"no gzip", RECORDINGS[0].read_bytes()[:-20]], ids=["empty", "text", "cut"]
)
def test_a_damaged_file_is_refused(tmp_path: Path, data: bytes) -> None:
    """Whatever it is, the exit code is 2 and there is one line."""
    path = tmp_path / "x.json.gz"
    path.write_bytes(data)
    result = subprocess.run(
        [sys.executable, "-m", "exporter.recording", str(path)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stderr.startswith(f"{path}: ")
    assert len(result.stderr.splitlines()) == 1
