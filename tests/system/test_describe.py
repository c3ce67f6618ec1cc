"""The command `describe`, run on a node or against an exporter: what it says and returns."""

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.rig.hardware import GIB
from tests.rig.holder import process_state
from tests.rig.rig import Rig
from tests.rig.workloads import Pod, Process
from tests.system import findings, observe
from tests.system.observe import eventually

NOTHING_WRONG, WRONG, NOT_STARTED, NOT_SEEN = 0, 1, 2, 3
PATIENCE = 60.0
ESCAPE = "\x1b"
TOP = {"verdict", "node", "origin", "at", "seen", "devices", "problems", "doubts", "gaps", "simulated"}
DEVICE = {
    *("place", "index", "product", "used", "total", "attributed", "unattributed", "allocated", "given"),
    *("holders", "problems", "lost", "listed"),
}
HOLDER = {
    *("pid", "comm", "owner", "namespace", "pod", "container", "pod_uid", "memory", "visibility", "state"),
    "given",
}
PROBLEM = {
    *("finding", "kind", "severity", "summary", "meaning", "remedy", "evidence", "namespace", "pod"),
    *("container", "pid", "comm", "memory", "explained_by", "undetermined", "age", "since", "active"),
}
pytestmark = pytest.mark.timeout(180)


@dataclass(frozen=True, slots=True)
class Said:
    """What a run printed and returned."""

    code: int
    out: str
    errors: str

    @property
    def document(self) -> dict[str, Any]:
        """Its JSON."""
        parsed: dict[str, Any] = json.loads(self.out)
        return parsed


@pytest.fixture(name="rig")
def one_gpu_rig() -> Iterator[Rig]:
    with Rig() as rig:
        findings.add_gpu(rig)
        observe.aged(rig)
        yield rig


@pytest.fixture(name="pod")
def tenant(rig: Rig) -> Pod:
    return findings.add_pod(rig, "train-0", [rig.gpus[0]])


def describe(command: Sequence[str], *args: str, **environment: str) -> Said:
    """Run the command to its end, with its output in a pipe."""
    done = subprocess.run(
        [*command, "describe", *args],
        env={"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    return Said(done.returncode, done.stdout.decode(), done.stderr.decode())


def on_node(command: Sequence[str], rig: Rig, *args: str) -> Said:
    return describe(command, *rig.agent_args(), *args)


def broken(rig: Rig, pod: Pod, **more: Any) -> Process:
    """A process whose leader has ended and whose threads have not."""
    process = findings.work(
        rig, pod, rig.gpus[0], more=lambda orders: orders.threads(1).leader_exits(), **more
    )
    while process_state(process.pid) != "Z":
        time.sleep(0.01)
    return process


def test_a_healthy_node(rig: Rig, pod: Pod, command: Sequence[str]) -> None:
    """Who is on which GPU, by whose leave; exit code 0, and no colour where no terminal is."""
    gpu = rig.gpus[0]
    process = findings.work(rig, pod, gpu, memory=4 * GIB)
    said = on_node(command, rig)
    assert said.code == NOTHING_WRONG, said.out + said.errors
    assert said.out.startswith("Node rig-node: this node, looked at once")
    assert said.out.endswith("\nNothing is wrong.\n")
    for expected in (
        gpu.uuid,
        gpu.name,
        "Given to   team-a/train-0 main (nvidia.com/gpu)",
        "4.0 GiB of 40.0 GiB",
    ):
        assert expected in said.out
    (line,) = [line.split() for line in said.out.splitlines() if line.split()[:1] == [str(process.pid)]]
    assert line[1:5] == ["python3", "pod", "team-a/train-0", "main"]
    assert line[-1] == "yes"
    assert ESCAPE not in said.out
    assert said.errors == ""


def test_a_broken_node(rig: Rig, pod: Pod, command: Sequence[str]) -> None:
    """Pod, pid, evidence and remedy stand there; exit code 1."""
    process = broken(rig, pod)
    said = on_node(command, rig)
    assert said.code == WRONG, said.out + said.errors
    for expected in (
        "WRONG: stuck_process (zombie_leader, critical)",
        f"team-a/train-0 main, pid {process.pid} (python3), 1.0 GiB",
        f"- /proc/{process.pid}/status: State Z, and 1 of its threads live",
        "- NVML lists it on the device",
        "What to do: Cordon the node",
        "a running exporter counts it once it has lasted 1m.",
    ):
        assert expected in said.out
    assert said.out.endswith("\n1 thing is wrong.\n")


def test_json_keeps_its_form(rig: Rig, pod: Pod, command: Sequence[str]) -> None:
    """One document in ASCII with the same fields, healthy or not; numbers are numbers."""
    worker = findings.work(rig, pod, rig.gpus[0])
    healthy = on_node(command, rig, "--output=json")
    rig.end(worker)
    process = broken(rig, pod)
    said = on_node(command, rig, "--output=json")
    assert (healthy.code, said.code) == (NOTHING_WRONG, WRONG)
    for one in (healthy, said):
        assert one.out.isascii()
        assert set(one.document) == TOP
    (device,) = said.document["devices"]
    assert set(device) == DEVICE
    assert device["place"] == {"uuid": rig.gpus[0].uuid, "gi": "", "mig_uuid": ""}
    assert (device["used"], device["allocated"]) == (GIB, True)
    held = [holder for holder in device["holders"] if holder["pid"] == process.pid]
    assert [set(holder) for holder in held] == [HOLDER]
    (problem,) = device["problems"]
    assert set(problem) == PROBLEM
    assert (problem["finding"], problem["kind"], problem["pid"]) == (
        "stuck_process",
        "zombie_leader",
        process.pid,
    )
    assert problem["evidence"]
    assert problem["since"] is None
    assert (said.document["verdict"], healthy.document["verdict"]) == ("wrong", "nothing_wrong")


def test_a_running_exporter_tells_the_same(rig: Rig, pod: Pod, command: Sequence[str]) -> None:
    """From its metrics: active, and since when. Where nobody answers, the last line says what to do."""
    process = broken(rig, pod)
    with rig.agent(*findings.AT_ONCE, command=command) as agent:
        url = f"http://127.0.0.1:{agent.port}"
        stuck = findings.row("stuck_process", "zombie_leader", rig.gpus[0], process)
        eventually(agent, findings.told, {stuck}, 40)
        said = describe(command, f"--url={url}")
        assert said.code == WRONG, said.out + said.errors
        assert f"Node rig-node: the exporter at {url}" in said.out
        assert f"team-a/train-0 main, pid {process.pid} (python3), 1.0 GiB" in said.out
        assert "Active; first seen " in said.out
        assert "What to do: Cordon the node" in said.out
        (device,) = describe(command, f"--url={url}", "--output=json").document["devices"]
        assert set(device) == DEVICE
        assert device["problems"][0]["since"] > 0
    said = describe(command, f"--url={url}")
    assert (said.code, said.out) == (NOT_SEEN, "")
    assert said.errors.splitlines()[-1].startswith("kubegpu-exporter: --url:")
    assert "see whether the exporter runs there" in said.errors


def test_without_nvml(rig: Rig, pod: Pod, command: Sequence[str]) -> None:
    """Holders are still told, and what could not be seen is too: it is not called healthy."""
    process = findings.work(rig, pod, rig.gpus[0])
    said = on_node(command, rig, "--nvml.library=/nowhere/libnvidia-ml.so.1")
    assert said.code == NOT_SEEN, said.out + said.errors
    assert "\n  nvml: unavailable" in said.out
    assert "Could not be judged" in said.out
    assert "phantom_process" in said.out
    assert str(process.pid) in said.out
    assert "The GPUs could not be seen" in said.out
    blind = on_node(command, rig, "--nvml.library=/nowhere/libnvidia-ml.so.1", "--path.procfs=/nowhere")
    assert blind.code == NOT_SEEN, blind.out + blind.errors
    assert "The GPUs could not be seen" in blind.out


@pytest.mark.parametrize("comm", [b"\x1b[2Jgone", b"a\nWRONG: x", b"\xff\xfe\x9b31m", b'"}],"x":1'])
def test_a_hostile_name_stays_in_its_place(rig: Rig, pod: Pod, command: Sequence[str], comm: bytes) -> None:
    """It moves no cursor, makes no line and breaks no document."""
    process = broken(rig, pod, comm=comm)
    said = on_node(command, rig)
    assert said.code == WRONG
    assert all(char.isprintable() or char == "\n" for char in said.out)
    assert not any(line.startswith("WRONG: x") for line in said.out.splitlines())
    document = on_node(command, rig, "--output=json")
    assert document.out.isascii()
    assert [one["pid"] for one in document.document["devices"][0]["problems"]] == [process.pid]
