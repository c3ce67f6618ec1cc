"""Pods that come, go and come back under the same name, while processes stay: whose each of them is."""

from collections.abc import Iterator, Sequence

import pytest

from tests.rig.agent import Agent, Samples
from tests.rig.hardware import GIB, Gpu
from tests.rig.rig import Rig
from tests.rig.workloads import Process
from tests.system import observe
from tests.system.observe import WORKLOAD, Row, eventually, rows


@pytest.fixture(name="rig", scope="module")
def small_rig() -> Iterator[Rig]:
    with Rig() as rig:
        for _ in range(3):
            rig.add_gpu()
        observe.aged(rig)
        yield rig


@pytest.fixture(name="agent", scope="module")
def watching_agent(rig: Rig, command: Sequence[str]) -> Iterator[Agent]:
    with rig.agent(command=command) as agent:
        observe.settled(agent)
        yield agent


def identities(samples: Samples, *gpus: Gpu) -> set[Row]:
    """Processes on these GPUs: pid, UID of the pod, owner, and workload."""
    found: set[Row] = set()
    for gpu in gpus:
        found |= rows(samples, "process_info", "pid", "pod_uid", "owner", *WORKLOAD, uuid=gpu.uuid)
    return {row for row in found if not observe.another_rigs(int(row[0]))}


def identity(process: Process, owner: str = "pod") -> Row:
    assert process.pod is not None
    pod = process.pod
    return (str(process.pid), pod.uid, owner, pod.namespace, pod.name, process.container)


def test_a_pod_of_the_same_name_is_another_pod(rig: Rig, agent: Agent) -> None:
    """A process that outlives its pod is an orphan with the old UID; it is not its namesake's."""
    gpu = rig.gpus[0]
    old_pod = rig.add_pod("team-a", "train-0", {"main": [gpu]})
    old = rig.add_process(old_pod, "main", gpu, memory=4 * GIB)
    eventually(agent, lambda samples: identities(samples, gpu), {identity(old)})
    rig.delete_pod(old_pod)
    new_pod = rig.add_pod("team-a", "train-0", {"main": [gpu]}, generation=1)
    new = rig.add_process(new_pod, "main", gpu, memory=2 * GIB)
    assert (old_pod.namespace, old_pod.name) == (new_pod.namespace, new_pod.name)
    assert old_pod.uid != new_pod.uid
    expected = {identity(old, "orphan"), identity(new)}
    # The API server is asked anew at most once in ten seconds.
    samples = eventually(agent, lambda samples: identities(samples, gpu), expected, timeout=30)
    given = rows(samples, "allocation_info", "pod_uid", "pod", uuid=gpu.uuid)
    assert given == {(new_pod.uid, "train-0")}
    assert observe.one(samples, "processes", uuid=gpu.uuid, owner="orphan") == 1


def test_labels_follow_the_control_group(rig: Rig, agent: Agent) -> None:
    """A process that is moved into another pod's container is that pod's at the next cycle."""
    first, second = rig.gpus[1], rig.gpus[2]
    one = rig.add_pod("team-b", "one", {"main": [first]})
    two = rig.add_pod("team-b", "two", {"side": [second]})
    process = rig.add_process(one, "main", first)
    anchor = rig.add_process(two, "side", second)
    expected = {identity(process), identity(anchor)}
    # Both pods have become known to the API source before the move.
    eventually(agent, lambda samples: identities(samples, first, second), expected, timeout=30)
    two.groups["side"].move(process.pid)
    process.pod, process.container = two, "side"
    expected = {identity(process), identity(anchor)}
    samples = eventually(agent, lambda samples: identities(samples, first, second), expected, timeout=4)
    workloads = rows(samples, "workload_memory_bytes", "uuid", "pod", "container")
    assert (first.uuid, "two", "side") in workloads
    assert (first.uuid, "one", "main") not in workloads
