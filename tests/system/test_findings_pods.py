"""Findings about pods: what outlives them, what they use that is not theirs; told alone, until it ends."""

import datetime as dt
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.rig import objects
from tests.rig.agent import Agent
from tests.rig.hardware import GIB, Gpu
from tests.rig.rig import Rig
from tests.rig.workloads import Pod, Process
from tests.system import findings, observe
from tests.system.findings import counted, expect, orphaned, row, told
from tests.system.observe import series, steady

GPUS = 4
# The API server is asked anew at most every ten seconds.
ASKED = 45.0
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(name="rig", scope="module")
def node_of_gpus() -> Iterator[Rig]:
    with Rig() as rig:
        with rig.batch():
            for _ in range(GPUS):
                findings.add_gpu(rig)
            findings.add_gpu(rig, replicas=4)
        observe.aged(rig)
        yield rig


@pytest.fixture(name="agent", scope="module")
def watching_agent(rig: Rig, command: Sequence[str]) -> Iterator[Agent]:
    with rig.agent(*findings.AT_ONCE, command=command) as agent:
        observe.settled(agent)
        yield agent


@pytest.fixture(autouse=True)
def a_node_without_findings(agent: Agent) -> Iterator[None]:
    """Each test finds nothing wrong, and leaves nothing wrong."""
    expect(agent)
    yield
    expect(agent, timeout=ASKED)


def working(rig: Rig, name: str, gpu: Gpu) -> tuple[Pod, Process]:
    pod = findings.add_pod(rig, name, [gpu])
    return pod, findings.work(rig, pod, gpu, memory=2 * GIB)


def ended(rig: Rig, *pods: Pod) -> None:
    """Let pods and their processes go, as after a repair."""
    for process in [one for one in rig.processes if one.pod in pods]:
        rig.end(process)
    for pod in pods:
        rig.delete_pod(pod)


def test_processes_that_outlive_their_pods(rig: Rig, agent: Agent) -> None:
    """Deleted, run to its end, overdue, restarted: four pods that are over, and processes that are not."""
    gone, terminal, overdue, restarted = (
        working(rig, name, gpu)
        for name, gpu in zip(("gone", "terminal", "overdue", "restarted"), rig.gpus, strict=False)
    )
    known = {process.pid for _, process in (gone, terminal, overdue, restarted)}
    observe.eventually(
        agent,
        lambda samples: {int(one["pid"]) for one in series(samples, "process_info", owner="pod")} >= known,
        True,
    )
    steady(agent, told, set(), 3)
    with rig.batch():
        rig.delete_pod(gone[0])
        terminal[0].extra["phase"] = "Succeeded"
        terminal[0].listed = False  # as kubelets from 1.34 on do
        late = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=150)
        overdue[0].extra["deletion_timestamp"] = late.strftime("%Y-%m-%dT%H:%M:%SZ")
    rig.restart_container(restarted[0], "main")
    findings.work(rig, restarted[0], listed=False, uvm=False, comm=b"init")
    began = objects.timestamp(time.time() + 1)
    rig.sync()
    patch_start(rig, restarted[0], began)
    samples = expect(
        agent,
        row("orphan_process", "pod_gone", rig.gpus[0], gone[1]),
        row("orphan_process", "pod_terminal", rig.gpus[1], terminal[1]),
        row("orphan_process", "terminating_overdue", rig.gpus[2], overdue[1]),
        row("orphan_process", "stale_container", rig.gpus[3], restarted[1]),
        timeout=ASKED,
    )
    assert [orphaned(samples, gpu)["orphan",] for gpu in rig.gpus[:GPUS]] == [2 * GIB] * GPUS
    assert not any(orphaned(samples, gpu)["phantom",] for gpu in rig.gpus[:GPUS])
    ended(rig, *(pod for pod, _ in (gone, terminal, overdue, restarted)))


def patch_start(rig: Rig, pod: Pod, began: str) -> None:
    """The API's pod, whose container began just now."""
    found = rig.api.pods[pod.namespace, pod.name]
    for status in found["status"]["containerStatuses"]:
        status["state"]["running"]["startedAt"] = began


def test_two_pods_on_one_gpu_and_the_repair(rig: Rig, agent: Agent) -> None:
    """One GPU each, and both on the first: told once for the GPU and once for the one that is wrong there."""
    first, second = rig.gpus[0], rig.gpus[1]
    owner, at_home = working(rig, "owner", first)
    guest = findings.add_pod(rig, "guest", [second], sees=[first])
    lost = findings.work(rig, guest, first, sees=[first], memory=3 * GIB)
    visible = ("visible_not_allocated", "other", first.uuid, "", guest.uid, "team-a", "guest", "main", "")
    shared = ("exclusive_gpu_shared", "double_use", first.uuid, str(at_home.pid), *[""] * 5)
    wrong = row("used_not_allocated", "of_other_pod", first, lost)
    wrong = (*wrong[:4], guest.uid, "team-a", "guest", "main", "")
    samples = expect(agent, visible, shared, wrong, timeout=ASKED)
    assert counted(samples)["exclusive_gpu_shared", "double_use", first.uuid] == 1
    assert observe.one(samples, "finding_memory_bytes", finding="used_not_allocated") == 3 * GIB
    ended(rig, guest)
    again = findings.add_pod(rig, "guest", [second], generation=1)
    findings.work(rig, again, second)
    expect(agent, timeout=ASKED)
    steady(agent, told, set(), 3)
    ended(rig, owner, again)


def test_pods_that_share_a_gpu_as_planned(rig: Rig, agent: Agent) -> None:
    """Replicas of one GPU for two pods: nothing is wrong."""
    gpu = rig.gpus[GPUS]
    pods = [findings.add_pod(rig, f"slice-{number}", [(gpu, number)]) for number in range(2)]
    pids = {findings.work(rig, pod, gpu).pid for pod in pods}
    observe.eventually(
        agent,
        lambda samples: (
            {int(one["pid"]) for one in series(samples, "process_info", pod_uid=pods[0].uid)}
            | {int(one["pid"]) for one in series(samples, "process_info", pod_uid=pods[1].uid)}
        ),
        pids,
    )
    steady(agent, told, set(), 5)
    ended(rig, *pods)
