"""The kubelet dies and comes back with half its list: what it said holds for a minute, then it is unknown."""

import time
from collections.abc import Iterator, Sequence

import pytest

from tests.rig.agent import Agent, Samples
from tests.rig.rig import Rig
from tests.system import observe
from tests.system.observe import INSTANCE, WORKLOAD, Row, eventually, rows, steady, up, values

GRACE = 60.0  # seconds for which the last word of a silent kubelet holds


@pytest.fixture(name="rig", scope="module")
def small_rig() -> Iterator[Rig]:
    with Rig() as rig:
        for _ in range(3):
            rig.add_gpu()
        for number in range(2):
            pod = rig.add_pod("team-a", f"train-{number}", {"main": [rig.gpus[number]]})
            rig.add_process(pod, "main", rig.gpus[number])
        observe.aged(rig)
        yield rig


@pytest.fixture(name="agents", scope="module")
def watching_agents(rig: Rig, command: Sequence[str]) -> Iterator[tuple[Agent, Agent]]:
    """One with the API source, one without: its names come from log directories."""
    with (
        rig.agent(command=command) as with_api,
        rig.agent("--kubernetes.enabled=false", command=command) as without,
    ):
        for agent in (with_api, without):
            observe.settled(agent)
        yield with_api, without


Facts = tuple[object, ...]


def named(samples: Samples) -> set[Row]:
    """Processes and the pods that they are named after."""
    found = rows(samples, "process_info", "pid", "pod_uid", *WORKLOAD)
    return {row for row in found if not observe.another_rigs(int(row[0]))}


def facts(samples: Samples) -> Facts:
    """Names, allocations, the owners of devices, how many GPUs have values, and the kubelet itself."""
    return (
        named(samples),
        values(samples, "gpu_allocated", *INSTANCE),
        rows(samples, "allocation_info", "uuid", "pod"),
        rows(samples, "gpu_memory_used_bytes", *WORKLOAD),
        len(rows(samples, "gpu_memory_used_bytes", "uuid")),
        up(samples, "kubelet"),
    )


def device_facts(samples: Samples, uuid: str) -> Facts:
    """Whether a device is allocated, to which pods, and whose labels it has."""
    return (
        values(samples, "gpu_allocated", "uuid").get((uuid,)),
        rows(samples, "allocation_info", "pod", uuid=uuid),
        rows(samples, "gpu_memory_used_bytes", "pod", uuid=uuid),
    )


def all_is_well(rig: Rig) -> Facts:
    names = {
        (str(process.pid), process.pod.uid, process.pod.namespace, process.pod.name, process.container)
        for process in rig.processes
        if process.pod is not None
    }
    owners = {("team-a", "train-0", "main"), ("team-a", "train-1", "main"), ("", "", "")}
    allocations = {(rig.gpus[0].uuid, "train-0"), (rig.gpus[1].uuid, "train-1")}
    given = {(gpu.uuid, "", ""): float(gpu.index < 2) for gpu in rig.gpus}
    return (names, given, allocations, owners, 3, 1.0)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_silent_kubelet_is_believed_for_a_minute(rig: Rig, agents: tuple[Agent, Agent]) -> None:
    """Allocations and owners outlive the kubelet by a minute, then are unknown; all else stays.

    After its return a pod that it does not list yet is unknown, not unallocated.
    """
    well = all_is_well(rig)
    for agent in agents:
        eventually(agent, facts, well)

    rig.kubelet.stop()
    died = time.monotonic()
    silent = (*well[:-1], 0.0)
    for agent in agents:
        eventually(agent, facts, silent, timeout=5)
    while time.monotonic() < died + GRACE - 5:
        for agent in agents:
            steady(agent, facts, silent, 1.0)
    unknown: Facts = (well[0], {}, set(), {("", "", "")}, 3, 0.0)
    for agent in agents:
        eventually(agent, facts, unknown, timeout=15)
    assert GRACE - 2 < time.monotonic() - died < GRACE + 6

    listed, missing = (gpu.uuid for gpu in rig.gpus[:2])
    first, second = rig.pods
    rig.kubelet.set(pods=[first.resources()])
    rig.kubelet.start()
    for agent in agents:
        known: Facts = (1.0, {("train-0",)}, {("train-0",)})
        eventually(agent, lambda samples: device_facts(samples, listed), known, timeout=5)
        steady(agent, lambda samples: device_facts(samples, missing), (None, set(), {("",)}), 2.0)
    rig.kubelet.set(pods=[first.resources(), second.resources()])
    for agent in agents:
        eventually(agent, facts, well, timeout=5)
