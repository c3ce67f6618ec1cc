"""Processes that lie about their name, hide a device file or hold nothing: what is believed of them."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.rig.agent import Agent, Samples
from tests.rig.hardware import GIB, MIB, Row
from tests.rig.holder import process_state
from tests.rig.rig import Rig
from tests.rig.workloads import Pod, Process
from tests.system import observe
from tests.system.observe import eventually, rows, values

SWEEP = 20  # scans within which every process is looked at thoroughly


@pytest.fixture(name="rig", scope="module")
def one_gpu_rig() -> Iterator[Rig]:
    with Rig() as rig:
        rig.add_gpu()
        rig.add_gpu()
        observe.aged(rig)
        yield rig


@pytest.fixture(name="pod", scope="module")
def tenant(rig: Rig) -> Pod:
    return rig.add_pod("team-a", "tenant", {"main": [rig.gpus[0]]})


@pytest.fixture(name="agent", scope="module")
def watching_agent(rig: Rig, pod: Pod, command: Sequence[str]) -> Iterator[Agent]:
    with rig.agent(command=command) as agent:
        observe.settled(agent)
        yield agent


@pytest.fixture(name="odd", scope="module")
def holder_of_an_odd_name(rig: Rig, agent: Agent) -> tuple[Process, float]:
    """A process of the host that holds a GPU by a name that says nothing: found while other tests run."""
    node = rig.devices.gpu(rig.gpus[1].minor, "innocent")
    group = rig.groups.service("odd.service")
    started = rig.start((), group, listed=False, uvm=False, more=lambda orders: orders.open(node.path))
    return started, time.monotonic()


def of(samples: Samples, pid: int) -> set[tuple[str, ...]]:
    """What is said of one process: device, state, owner and who sees it."""
    return rows(samples, "process_info", "uuid", "state", "owner", "visibility", pid=str(pid))


def named(samples: Samples, pid: int) -> set[tuple[str, ...]]:
    return rows(samples, "process_info", "comm", "pod", pid=str(pid))


@pytest.mark.parametrize(
    ("comm", "shown"),
    [
        (b'")\n{evil="x', '")?{evil="x'),
        (b"\xff\xfe name", "\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER} name"),
        (b"a\\nb\x1b[31m", "a\\nb?[31m"),
        (b"kubegpu_up 1\n", "kubegpu_up 1?"),
    ],
)
def test_a_name_is_text_and_nothing_else(
    rig: Rig, pod: Pod, agent: Agent, odd: object, comm: bytes, shown: str
) -> None:
    """Quotes, line ends, escape sequences and bytes that are no text reach a label harmlessly."""
    process = rig.add_process(pod, "main", rig.gpus[0], comm=comm, memory=64 * MIB)
    try:
        eventually(agent, lambda samples: named(samples, process.pid), {(shown, "tenant")})
        assert all("evil" not in dict(labels) for _, labels in agent.samples())
        assert agent.get("/").status == 200
    finally:
        rig.end(process)


def test_a_file_that_only_looks_like_a_device_is_none(rig: Rig, pod: Pod, agent: Agent) -> None:
    """What counts is the number of the open file: a regular file called nvidia0 is a regular file."""
    path = rig.root / "nvidia0"
    path.write_text("no device")
    liar = rig.start((), pod.groups["main"], listed=False, uvm=False, more=lambda orders: orders.open(path))
    witness = rig.add_process(pod, "main", rig.gpus[0])
    # Once the witness, which started later, is seen, the liar has been looked at too.
    eventually(agent, lambda samples: bool(of(samples, witness.pid)), True)
    observe.steady(agent, lambda samples: of(samples, liar.pid), set(), 2.5)


def test_a_path_descriptor_holds_nothing(rig: Rig, pod: Pod, agent: Agent) -> None:
    """A descriptor opened with O_PATH names the device and keeps nothing of it."""
    node = rig.devices.gpu(rig.gpus[0].minor)
    looker = rig.start(
        (), pod.groups["main"], listed=False, uvm=False, more=lambda orders: orders.opath(node.path)
    )
    witness = rig.add_process(pod, "main", rig.gpus[0])
    eventually(agent, lambda samples: bool(of(samples, witness.pid)), True)
    observe.steady(agent, lambda samples: of(samples, looker.pid), set(), 2.5)


def test_a_thread_that_nvml_lists_is_its_process(rig: Rig, pod: Pod, agent: Agent) -> None:
    """Some drivers list thread ids: they are folded to the process, and their memory is added up."""
    gpu = rig.gpus[0]
    process = rig.add_process(pod, "main", gpu, listed=False, more=lambda orders: orders.threads(2))
    tids = process.holder.tids
    assert process.pid not in tids
    gpu.rows += [Row(tids[0], GIB), Row(tids[1], 2 * GIB)]
    rig.sync()
    eventually(agent, lambda samples: of(samples, process.pid), {(gpu.uuid, "running", "pod", "both")})
    samples = agent.samples()
    assert values(samples, "process_memory_bytes", "uuid", pid=str(process.pid)) == {(gpu.uuid,): 3 * GIB}
    assert not any(of(samples, tid) for tid in tids)
    gpu.rows[:] = [row for row in gpu.rows if row.pid not in tids]
    rig.end(process)


def test_a_zombie_leader_with_living_threads_is_found(rig: Rig, pod: Pod, agent: Agent) -> None:
    """Its own descriptor table is empty; that of its threads still holds the GPU."""
    gpu = rig.gpus[0]
    process = rig.add_process(pod, "main", gpu, more=lambda orders: orders.threads(1).leader_exits())
    deadline = time.monotonic() + 3
    while process_state(process.pid) != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    eventually(agent, lambda samples: of(samples, process.pid), {(gpu.uuid, "zombie", "pod", "both")})
    rig.unlist(process)
    eventually(agent, lambda samples: of(samples, process.pid), {(gpu.uuid, "zombie", "pod", "holder")})


def test_children_with_inherited_descriptors_are_holders(rig: Rig, pod: Pod, agent: Agent) -> None:
    """They are seen beside the process that NVML lists, and stay when it is killed."""
    gpu = rig.gpus[0]
    process = rig.add_process(pod, "main", gpu, more=lambda orders: orders.fork(2))
    pids = process.holder.children

    def look(samples: Samples) -> list[set[tuple[str, ...]]]:
        return [of(samples, pid) for pid in (process.pid, *pids)]

    held = {(gpu.uuid, "running", "pod", "holder")}
    eventually(agent, look, [{(gpu.uuid, "running", "pod", "both")}, held, held])
    process.holder.kill()
    rig.unlist(process)
    eventually(agent, look, [set(), held, held])
    assert all(named(agent.samples(), pid) == {("python3", "tenant")} for pid in pids)


def test_an_odd_name_is_found_within_a_sweep(rig: Rig, agent: Agent, odd: tuple[Process, float]) -> None:
    """A device file under another name is found by its number, at the latest after twenty scans."""
    process, started = odd
    assert "nvidia" not in str(Path(f"/proc/{process.pid}/fd/{process.holder.fds[0]}").readlink())
    left = max(1.0, started + SWEEP + 5 - time.monotonic())
    expected = {(rig.gpus[1].uuid, "running", "host", "holder")}
    eventually(agent, lambda samples: of(samples, process.pid), expected, timeout=left)


def test_a_name_that_is_gone_and_a_mapping_alone_are_holders(command: Sequence[str]) -> None:
    """An unlinked node is still that device, and a mapping holds it without any descriptor."""
    with Rig(memory=True) as rig:
        gpu = rig.add_gpu()
        pod = rig.add_pod("team-a", "mapper", {"main": [gpu]})
        node = rig.devices.gpu(gpu.minor)
        other = rig.devices.node("nvidia5-again", node.major, node.minor)
        group = pod.groups["main"]
        mapper = rig.start((), group, listed=False, uvm=False, more=lambda orders: orders.map(node.path))
        unlinker = rig.start(
            (), group, listed=False, uvm=False, more=lambda orders: orders.open(other.path).unlink(other.path)
        )
        with rig.agent(command=command) as agent:
            expected = {(gpu.uuid, "running", "pod", "holder")}

            def look(samples: Samples) -> list[set[tuple[str, ...]]]:
                return [of(samples, mapper.pid), of(samples, unlinker.pid)]

            samples = eventually(agent, look, [expected, expected])
            # A mapping makes a client, which can own memory; a descriptor of the GPU alone does not.
            assert values(samples, "workload_processes", "uuid", "pod") == {(gpu.uuid, "mapper"): 1}
