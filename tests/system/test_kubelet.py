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


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_silent_kubelet_is_believed_for_a_minute(rig: Rig, agents: tuple[Agent, Agent]) -> None:
    """Allocations and owners outlive the kubelet by a minute, then are unknown; all else stays.

    After its return a pod that it does not list yet is unknown, not unallocated.
    """
    owners = {("team-a", "train-0", "main"), ("team-a", "train-1", "main"), ("", "", "")}
    names = {
        (str(process.pid), process.pod.uid, process.pod.namespace, process.pod.name, process.container)
        for process in rig.processes
        if process.pod is not None
    }
    given = {(gpu.uuid, "", ""): float(gpu.index < 2) for gpu in rig.gpus}

    def named(samples: Samples) -> set[Row]:
        found = rows(samples, "process_info", "pid", "pod_uid", *WORKLOAD)
        return {row for row in found if not observe.another_rigs(int(row[0]))}

    def facts(samples: Samples) -> tuple[object, ...]:
        return (
            named(samples),
            values(samples, "gpu_allocated", *INSTANCE),
            rows(samples, "allocation_info", "uuid", "pod"),
            rows(samples, "gpu_memory_used_bytes", *WORKLOAD),
            len(rows(samples, "gpu_memory_used_bytes", "uuid")),
            up(samples, "kubelet"),
        )

    allocations = {(rig.gpus[0].uuid, "train-0"), (rig.gpus[1].uuid, "train-1")}
    for agent in agents:
        eventually(agent, facts, (names, given, allocations, owners, 3, 1.0))

    rig.kubelet.stop()
    died = time.monotonic()
    silent = (names, given, allocations, owners, 3, 0.0)
    for agent in agents:
        eventually(agent, facts, silent, timeout=5)
    while time.monotonic() < died + GRACE - 5:
        for agent in agents:
            steady(agent, facts, silent, 1.0)
    unknown: tuple[object, ...] = (names, {}, set(), {("", "", "")}, 3, 0.0)
    for agent in agents:
        eventually(agent, facts, unknown, timeout=15)
    assert GRACE - 2 < time.monotonic() - died < GRACE + 6

    first, second = rig.pods
    rig.kubelet.set(pods=[first.resources()])
    rig.kubelet.start()

    def allocated(samples: Samples) -> tuple[object, ...]:
        return values(samples, "gpu_allocated", "uuid").get((rig.gpus[0].uuid,)), up(samples, "kubelet")

    def of_missing(samples: Samples) -> tuple[object, ...]:
        """What is said of the device of the pod that is not listed yet."""
        uuid = rig.gpus[1].uuid
        return (
            values(samples, "gpu_allocated", "uuid").get((uuid,)),
            rows(samples, "allocation_info", "pod", uuid=uuid),
            rows(samples, "gpu_memory_used_bytes", "pod", uuid=uuid),
        )

    for agent in agents:
        eventually(agent, allocated, (1.0, 1.0), timeout=5)
        steady(agent, of_missing, (None, set(), {("",)}), 2.0)
    rig.kubelet.set(pods=[first.resources(), second.resources()])
    for agent in agents:
        eventually(agent, of_missing, (1.0, {("train-1",)}, {("train-1",)}), timeout=5)
        eventually(agent, facts, (names, given, allocations, owners, 3, 1.0), timeout=5)
