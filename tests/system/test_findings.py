"""Findings about processes, on real ones: each is told with its evidence, alone, and ends with its cause."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.rig.agent import Agent, Samples
from tests.rig.errors import RigError
from tests.rig.hardware import GIB, Gpu, Row
from tests.rig.holder import process_state
from tests.rig.rig import Rig
from tests.rig.workloads import Pod, Process
from tests.sources.fuse import DeadMount
from tests.system import findings, observe
from tests.system.findings import expect, orphaned, row, told
from tests.system.observe import NVML_CHILD, eventually, series, steady, up

pytestmark = pytest.mark.timeout(180)
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


@pytest.fixture(name="rig", scope="module")
def one_gpu_rig() -> Iterator[Rig]:
    with Rig() as rig:
        findings.add_gpu(rig)
        observe.aged(rig)
        yield rig


@pytest.fixture(name="gpu", scope="module")
def the_gpu(rig: Rig) -> Gpu:
    return rig.gpus[0]


@pytest.fixture(name="pod", scope="module")
def tenant(rig: Rig, gpu: Gpu) -> Pod:
    return findings.add_pod(rig, "train-0", [gpu])


@pytest.fixture(name="agent", scope="module")
def watching_agent(rig: Rig, pod: Pod, command: Sequence[str]) -> Iterator[Agent]:
    with rig.agent(*findings.AT_ONCE, command=command) as agent:
        observe.settled(agent)
        yield agent


@pytest.fixture(autouse=True)
def a_node_without_findings(agent: Agent) -> Iterator[None]:
    """Each test finds nothing wrong, and leaves nothing wrong."""
    expect(agent)
    yield
    expect(agent)


def wait_for_state(pid: int, state: str) -> None:
    deadline = time.monotonic() + 5
    while process_state(pid) != state:
        assert time.monotonic() < deadline, f"{pid} is {process_state(pid)}, not {state}"
        time.sleep(0.01)


def test_healthy_work_is_silent(rig: Rig, gpu: Gpu, pod: Pod, agent: Agent) -> None:
    """Threads that NVML lists for their process, workers that inherited everything, and a monitor."""
    process = findings.work(rig, pod, gpu, listed=False, more=lambda orders: orders.fork(2).threads(2))
    gpu.rows.extend(Row(tid, GIB) for tid in process.holder.tids)
    rig.sync()
    monitor = findings.work(rig, pod, gpu, listed=False, uvm=False, comm=b"nvidia-smi")
    eventually(agent, lambda samples: bool(series(samples, "process_info", pid=str(monitor.pid))), True)
    steady(agent, told, set(), 4)
    gpu.rows.clear()
    rig.end(monitor)
    rig.end(process)


# ---------------------------------------------------------------- stuck


def test_a_zombie_leader(rig: Rig, gpu: Gpu, pod: Pod, agent: Agent) -> None:
    process = findings.work(rig, pod, gpu, more=lambda orders: orders.threads(1).leader_exits())
    wait_for_state(process.pid, "Z")
    expect(agent, row("stuck_process", "zombie_leader", gpu, process))
    rig.end(process)


def test_a_zombie_counts_while_nvml_lists_it(rig: Rig, gpu: Gpu, pod: Pod, agent: Agent) -> None:
    process = findings.work(rig, pod, gpu)
    eventually(agent, lambda samples: bool(series(samples, "process_info", pid=str(process.pid))), True)
    process.holder.kill(reap=False)
    expect(agent, row("stuck_process", "zombie", gpu, process))
    rig.unlist(process)
    expect(agent)  # a plain zombie, which holds nothing
    rig.end(process)


def test_a_sleep_that_does_not_move_outlasts_nvml(rig: Rig, gpu: Gpu, pod: Pod, agent: Agent) -> None:
    """With NVML hung it is told as before: once, since the same time, and it does not end."""
    process = findings.work(rig, pod, gpu, more=lambda orders: orders.uninterruptible())
    wait_for_state(process.pid, "D")
    stuck = row("stuck_process", "uninterruptible_other", gpu, process)
    began = findings.since(expect(agent, stuck))
    child = observe.child(agent, NVML_CHILD)
    os.kill(child, signal.SIGSTOP)
    try:
        eventually(agent, lambda samples: up(samples, "nvml"), 0.0)
        steady(agent, told, {stuck}, 3)
        samples = agent.samples()
        assert findings.since(samples) == began
        assert not series(samples, "gpu_memory_orphaned_bytes")
        assert series(samples, "finding_undetermined", finding="phantom_process")
        # No list, no verdict: 0 would say that nothing is wrong.
        assert not series(samples, "findings", finding="phantom_process", kind="")
    finally:
        os.kill(child, signal.SIGCONT)
    observe.settled(agent)
    assert findings.since(expect(agent, stuck)) == began
    rig.end(process)


def test_a_kill_that_is_not_taken(rig: Rig, gpu: Gpu, pod: Pod, agent: Agent) -> None:
    """A frozen process is well; one that is frozen and killed is stuck (version 1 of the freezer)."""
    process = findings.work(rig, pod, gpu)
    frozen = rig.groups.make("rig-frozen")
    freezer = next((path for path in frozen.procs if "/freezer/" in str(path)), None)
    if freezer is None:  # version 2 lets SIGKILL through: there is nothing to show
        rig.end(process)
        pytest.skip("needs the freezer of cgroup v1: that of v2 lets SIGKILL through")
    freezer.write_text(str(process.pid))
    assert frozen.freeze() == "v1"
    try:
        wait_for_state(process.pid, "D")
        eventually(agent, lambda samples: bool(series(samples, "process_info", pid=str(process.pid))), True)
        steady(agent, told, set(), 4)
        process.holder.signal(signal.SIGKILL)
        expect(agent, row("stuck_process", "kill_pending", gpu, process))
    finally:
        frozen.freeze(False)
    rig.end(process)


def test_an_end_that_does_not_come(rig: Rig, gpu: Gpu, pod: Pod, agent: Agent) -> None:
    """Half exited: no descriptors and no maps are left to see, only NVML's row and the flags in /proc."""
    point = rig.root / "dead"
    point.mkdir(exist_ok=True)
    mount = DeadMount(point)
    try:
        process = findings.work(rig, pod, gpu, first=lambda orders: orders.open(point / "file"))
        eventually(agent, lambda samples: bool(series(samples, "process_info", pid=str(process.pid))), True)
        mount.stop()
        process.holder.signal(signal.SIGKILL)
        assert mount.waited_for.wait(5)
        wait_for_state(process.pid, "D")
        if os.listdir(f"/proc/{process.pid}/fd"):
            raise RigError("the kernel closes files before it empties the table of descriptors")
        exiting = row("stuck_process", "exiting", gpu, process)
        expect(agent, exiting)
        rig.unlist(process)  # the row goes, and what is remembered still says where it was
        steady(agent, told, {exiting}, 2.5)
    finally:
        mount.close()
    rig.end(process)


# ---------------------------------------------------------------- phantom


def test_a_phantom_that_nobody_holds_and_its_number_again(rig: Rig, gpu: Gpu, pod: Pod, agent: Agent) -> None:
    """The last owner is named while the number is nobody's; whoever gets it next is not accused."""
    process = findings.work(rig, pod, gpu, memory=4 * GIB)
    eventually(agent, lambda samples: bool(series(samples, "process_info", pid=str(process.pid))), True)
    rig.end(process, listed=True)
    samples = expect(agent, row("phantom_process", "unheld", gpu, process))
    assert orphaned(samples, gpu) == {("phantom",): 4 * GIB, ("orphan",): 0, ("unattributed",): 0}
    time.sleep(1)
    with again(process.pid):
        aliased = ("phantom_process", "aliased", gpu.uuid, str(process.pid), *[""] * 5)
        samples = expect(agent, aliased)
        assert orphaned(samples, gpu)["phantom",] == 4 * GIB
    rig.unlist(process)


@contextlib.contextmanager
def again(pid: int) -> Iterator[None]:
    """Another process with a number that was used before."""
    for _ in range(200):
        LAST_PID.write_text(str(pid - 1))
        with subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL) as process:
            if process.pid == pid:
                try:
                    yield
                finally:
                    process.kill()
                return
            process.kill()
    raise RigError(f"no process gets pid {pid}: the machine is too busy")


def test_a_phantom_that_its_children_hold(rig: Rig, gpu: Gpu, pod: Pod, agent: Agent) -> None:
    """Forked workers keep what the dead one had: they are named, and explained by it."""
    process = findings.work(rig, pod, gpu, memory=2 * GIB, more=lambda orders: orders.fork(1))
    (worker,) = process.holder.children
    eventually(agent, lambda samples: bool(series(samples, "process_info", pid=str(worker))), True)
    process.holder.kill()
    held = row("phantom_process", "held", gpu, process)
    hidden = ("hidden_holder", "unlisted", gpu.uuid, str(worker), *held[4:8], "phantom_process")
    samples = expect(agent, held, hidden)
    assert orphaned(samples, gpu)["phantom",] == 2 * GIB
    rig.end(process)


# ---------------------------------------------------------------- hidden, and memory of nobody


def test_a_hidden_holder(rig: Rig, gpu: Gpu, pod: Pod, agent: Agent) -> None:
    process = findings.work(rig, pod, gpu, listed=False)
    expect(agent, row("hidden_holder", "unlisted", gpu, process))
    rig.end(process)


def test_memory_of_nobody(rig: Rig, gpu: Gpu, pod: Pod, agent: Agent) -> None:
    """First no process has the device open, then one without a row has."""
    gpu.extra = 4 * GIB
    rig.sync()
    samples = expect(agent, row("orphaned_memory", "none", gpu))
    assert orphaned(samples, gpu) == {("phantom",): 0, ("orphan",): 0, ("unattributed",): 4 * GIB}
    process = findings.work(rig, pod, gpu, listed=False)
    memory = row("orphaned_memory", "fd_only", gpu, process)
    samples = expect(agent, memory, row("hidden_holder", "unlisted", gpu, process, "orphaned_memory"))
    assert orphaned(samples, gpu)["unattributed",] == 4 * GIB
    gpu.extra = 0
    rig.end(process)


def test_a_service_of_the_host(rig: Rig, gpu: Gpu, agent: Agent) -> None:
    process = rig.add_host_process("train.service", gpu)
    expect(agent, row("external_process", "system_service", gpu, process))
    rig.end(process)


def _map_and_replace(rig: Rig, pod: Pod, gpu: Gpu) -> tuple[Process, Process]:
    """One that has only a mapping, and one whose node was replaced by that of another GPU."""
    node = rig.devices.gpu(gpu.minor)
    named = rig.devices.node("nvidia-mine", node.major, node.minor)
    mapper = findings.work(rig, pod, listed=False, uvm=False, first=lambda orders: orders.map(node.path))
    opener = findings.work(
        rig, pod, listed=False, first=lambda orders: orders.open(named.path).unlink(named.path)
    )
    rig.devices.node("nvidia-mine", node.major, 7)
    return mapper, opener


def test_holders_without_a_descriptor_or_a_name(command: Sequence[str]) -> None:
    """A mapping alone holds the device; so does a descriptor whose name is another GPU's by now."""
    with Rig(memory=True) as rig:
        gpu = rig.add_gpu()
        observe.aged(rig)
        pod = findings.add_pod(rig, "mapper", [gpu])
        with rig.agent(*findings.AT_ONCE, command=command) as agent:
            observe.settled(agent)
            mapper, opener = _map_and_replace(rig, pod, gpu)
            pids = {str(mapper.pid), str(opener.pid)}
            # These numbers are not for this rig alone: others may run, and hold them too.

            def ours(samples: Samples) -> set[observe.Row]:
                return {one for one in told(samples) if one[3] in pids}

            found = {row("hidden_holder", "unlisted", gpu, one) for one in (mapper, opener)}
            eventually(agent, ours, found, 40)
            rig.end(mapper)
            rig.end(opener)
            eventually(agent, ours, set(), 40)
