"""By which evidence a process is a pod's, the host's, infrastructure, or of a pod that is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exporter.attribution import attribute
from exporter.model import (
    Attribution,
    Basis,
    Cgroup,
    History,
    Kubelet,
    KubeletPod,
    LiveContainer,
    NodeKind,
    Off,
    Owner,
    Pods,
    Policy,
    ProcessId,
    Snapshot,
    Use,
    Workload,
)
from exporter.report import advance
from tests import builders as b

TRAIN = Workload("team-a", "train-0", "main")
HOLDS = (b.hold(), b.hold(NodeKind.UVM))


def judge(look: Snapshot, history: History | None = None) -> Attribution:
    return attribute(Policy(), history or History(), look)


def only(look: Snapshot, history: History | None = None) -> Use:
    (use,) = judge(look, history).uses
    return use


def worker(pid: int = 4000, **more: object) -> object:
    return b.process(pid, pod_uid=b.pod_uid(), container_id=b.container_id(), holds=HOLDS, **more)  # type: ignore[arg-type]


def look(**more: object) -> Snapshot:
    """One process of the first pod, which API and kubelet both know."""
    known: dict[str, object] = {
        "processes": b.process_table(worker()),  # type: ignore[arg-type]
        "pods": (b.pod(),),
        "kubelet": b.kubelet(b.allocation()),
    }
    return b.snapshot(**(known | more))  # type: ignore[arg-type]


LISTED = Kubelet((KubeletPod("team-a", "train-0", ("main",)),), (), ())


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("sources", "workload", "basis"),
    [
        ({}, TRAIN, Basis.API),
        ({"pods": b.missed(), "pod_names": (b.pod_name(),), "kubelet": LISTED}, TRAIN, Basis.KUBELET),
        ({"pods": Off(), "pod_names": (b.pod_name(),), "kubelet": b.missed()}, TRAIN, Basis.LOGS),
        ({"pods": Off(), "kubelet": LISTED}, Workload(), Basis.UID),
        ({"pods": (b.pod(uid=b.pod_uid(2)),), "kubelet": LISTED}, Workload(), Basis.UID),
    ],
    ids=["api", "logs and kubelet", "logs alone", "nothing", "another pod of that name"],
)
def test_a_pod_is_named_by_the_uid_of_its_cgroup(
    sources: dict[str, object], workload: Workload, basis: Basis
) -> None:
    """Never by a name alone: a pod created again under the same name is another pod."""
    use = only(look(**sources))
    assert (use.workload, use.basis, use.pod_uid) == (workload, basis, b.pod_uid())


def test_a_name_is_remembered_while_its_sources_are_silent() -> None:
    """An API outage at night does not turn a known pod into a UID, container included."""
    first = advance(Policy(), None, look())
    use = only(look(pods=b.missed(), pod_names=b.missed()), first.history)
    assert (use.workload, use.basis, use.owner) == (TRAIN, Basis.MEMORY, Owner.POD)


def test_a_static_pods_cgroup_uid_is_its_config_hash() -> None:
    """The mirror pod has another uid; both mean the same pod."""
    static = replace(b.pod(uid="0f9d8c7b6a5e4d3c2b1a09f8e7d6c5b4"), uid=b.pod_uid(9))
    holder = b.process(pod_uid=static.cgroup_uid, container_id=b.container_id(), holds=HOLDS)
    use = only(look(processes=b.process_table(holder), pods=(static,)))
    assert (use.workload, use.basis) == (TRAIN, Basis.API)


def test_a_container_is_named_by_its_id_alone() -> None:
    """In a pod of two containers an unknown id names none; a restarted one's former id names it."""
    two = b.pod(
        containers=(
            replace(b.container_status("main"), previous_id=b.container_id(7)),
            b.container_status("sidecar", identity=b.container_id(2)),
        )
    )
    for identity, name in ((1, "main"), (2, "sidecar"), (7, "main"), (9, "")):
        holder = b.process(pod_uid=b.pod_uid(), container_id=b.container_id(identity), holds=HOLDS)
        assert only(look(processes=b.process_table(holder), pods=(two,))).workload.container == name


def test_the_only_container_that_ever_logged_is_the_one() -> None:
    """Without the API the log directory names the container where there has been only one."""
    names = replace(b.pod_name(), containers=("main",))
    assert only(look(pods=b.missed(), pod_names=(names,))).workload.container == "main"
    names = replace(b.pod_name(), containers=("init", "main"))
    assert only(look(pods=b.missed(), pod_names=(names,))).workload.container == ""


def test_a_container_outside_the_pods_group_is_found_by_its_id() -> None:
    """Some runtimes put containers elsewhere: the API's container id is proof enough."""
    holder = b.process(container_id=b.container_id(), holds=HOLDS)
    use = only(look(processes=b.process_table(holder)))
    assert (use.workload, use.owner, use.pod_uid) == (TRAIN, Owner.POD, b.pod_uid())


# ---------------------------------------------------------------- owners


@pytest.mark.parametrize(
    ("place", "exe", "owner"),
    [
        (Cgroup(), "/usr/bin/python3", Owner.HOST),
        (Cgroup(unit="session-3.scope"), "/usr/bin/python3", Owner.HOST),
        (Cgroup(unit="nvidia-persistenced.service"), "/usr/bin/nvidia-persistenced", Owner.SYSTEM),
        (Cgroup(unit="train.service"), "/usr/bin/nvidia-persistenced", Owner.HOST),
        (Cgroup(container_id="a" * 64), "/usr/bin/python3", Owner.HOST),
        (Cgroup(container_id="a" * 64, unit="dcgm.service"), "/usr/bin/dcgm-exporter", Owner.HOST),
    ],
)
def test_outside_pods_a_process_is_the_hosts_or_known_infrastructure(
    place: Cgroup, exe: str, owner: Owner
) -> None:
    """By its unit; a name or path alone proves nothing."""
    use = only(look(processes=b.process_table(b.process(cgroup=place, exe=exe, holds=HOLDS))))
    assert (use.owner, use.workload, use.pod_uid) == (owner, Workload(), "")


def test_infrastructure_in_a_pod_is_system_and_keeps_its_pod() -> None:
    """By namespace and executable together; the same executable elsewhere is a workload."""
    holder = b.process(
        pod_uid=b.pod_uid(), container_id=b.container_id(), exe="/usr/bin/dcgm-exporter", holds=HOLDS
    )
    table = b.process_table(holder)
    inside = only(look(processes=table, pods=(b.pod("dcgm-1", namespace="gpu-operator"),)))
    assert (inside.owner, inside.workload.pod) == (Owner.SYSTEM, "dcgm-1")
    assert only(look(processes=table)).owner is Owner.POD


@pytest.mark.parametrize("pod_uid", ["", b.pod_uid(8)])
def test_the_agent_and_its_children_are_system(pod_uid: str) -> None:
    """They hold device files to look at them, in whichever namespace they are installed."""
    own = b.process(50, parent=49, pod_uid=pod_uid, holds=HOLDS)
    table = replace(b.process_table(own), agent=49)
    assert only(look(processes=table)).owner is Owner.SYSTEM
    assert only(look(processes=replace(table, agent=0))).owner is not Owner.SYSTEM


def test_an_unreadable_cgroup_is_unknown() -> None:
    """Not the host's: it may well be a pod's."""
    use = only(look(processes=b.process_table(b.process(holds=HOLDS, unread=("cgroup",)))))
    assert use.owner is Owner.UNKNOWN


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_dead_task_of_cgroup_v1_keeps_its_pod(state: str) -> None:
    """It reads as in the root group: what it lived in is remembered."""
    first = advance(Policy(), None, look())
    dead = b.process(state=state, numbers=(4000,))
    second = look(nvml=b.nvml(b.gpu(rows=(b.row(4000),))), processes=b.process_table(dead))
    use = only(second, first.history)
    assert (use.owner, use.workload, use.state) == (Owner.POD, TRAIN, "zombie")
    third = advance(Policy(), advance(Policy(), first, second), second)
    assert third.attribution.uses[0].workload == TRAIN


def test_a_dead_task_in_the_root_group_that_nobody_knew_alive_is_unknown() -> None:
    """After a restart of the agent it is not the host's: on cgroup v1 every dead task reads so."""
    dead = b.process(state="Z", numbers=(4000,))
    use = only(look(nvml=b.nvml(b.gpu(rows=(b.row(4000),))), processes=b.process_table(dead)))
    assert use.owner is Owner.UNKNOWN


# ---------------------------------------------------------------- orphans

GONE: dict[str, object] = {"pods": (), "kubelet": Kubelet((), (), ())}
OTHER = Kubelet((KubeletPod("team-a", "other", ()),), (), ())


def _owner(history: History | None = None, **more: object) -> Owner:
    evidence = more.pop("evidence", {})
    assert isinstance(evidence, dict)
    return only(look(**(GONE | more | evidence)), history).owner


def test_a_pod_that_api_and_kubelet_both_deny_is_gone() -> None:
    """Its process is an orphan, also where the pod was created again under its name."""
    named = (b.pod_name(),)
    assert _owner(pod_names=named) is Owner.ORPHAN
    assert _owner() is Owner.ORPHAN
    again = b.pod(uid=b.pod_uid(2))
    assert _owner(pod_names=named, pods=(again,), kubelet=LISTED) is Owner.ORPHAN


@pytest.mark.parametrize(
    "evidence",
    [
        {"pods": b.missed()},
        {"pods": Off()},
        {"kubelet": b.missed()},
        {"kubelet": Off()},
        {"pods": b.seen(Pods(()), complete=False)},
        {"kubelet": b.seen(Kubelet((), (), ()), complete=False)},
        {"pods": (b.pod(),)},
        {"kubelet": LISTED},
        {"pods": b.seen(Pods(()), at=b.BOOT_TIME + 5_000_000 / b.TICKS - 1)},
    ],
    ids=[
        "API missed",
        "API off",
        "kubelet missed",
        "kubelet off",
        "API in part",
        "kubelet in part",
        "API knows it",
        "kubelet lists it",
        "API list older than the process",
    ],
)
def test_less_than_both_words_makes_no_orphan(evidence: dict[str, object]) -> None:
    """A page in the night needs two complete and fresh answers that agree."""
    assert _owner(pod_names=(b.pod_name(),), evidence=evidence) is Owner.POD


def test_a_kubelet_that_has_just_started_makes_no_orphan() -> None:
    """It answers OK with pods missing for a while."""
    settling = History(kubelet_settled=b.MONOTONIC + 1)
    assert _owner(settling, pod_names=(b.pod_name(),)) is Owner.POD
    settled = History(kubelet_settled=b.MONOTONIC)
    assert _owner(settled, pod_names=(b.pod_name(),)) is Owner.ORPHAN


def test_a_pod_without_a_name_may_be_one_that_the_kubelet_lists() -> None:
    """A static pod without mirror and logs: the kubelet lists a name that no pod of the API explains."""
    assert _owner(kubelet=OTHER) is Owner.POD
    assert _owner(kubelet=OTHER, pods=(b.pod("other", uid=b.pod_uid(2)),)) is Owner.ORPHAN


# ---------------------------------------------------------------- what is said of pods


def test_pods_without_a_name_are_listed_once_each() -> None:
    """However many containers they have."""
    containers = tuple(
        LiveContainer(b.pod_uid(3), b.container_id(number), ProcessId(number, 1)) for number in (1, 2)
    )
    table = b.process_table(containers=containers)
    assert judge(look(processes=table)).unnamed_pods == (b.pod_uid(3),)


@pytest.mark.parametrize(
    ("more", "behind"),
    [
        ({}, False),
        ({"pods": ()}, True),
        ({"kubelet": Kubelet((), (), ())}, True),
        ({"kubelet": OTHER, "processes": b.process_table()}, True),
        ({"pods": b.missed()}, False),
        ({"kubelet": b.missed()}, False),
    ],
)
def test_the_api_is_asked_sooner_when_it_is_behind(more: dict[str, object], behind: bool) -> None:
    """Where a cgroup or the kubelet shows a pod that its list lacks, or the kubelet has dropped one."""
    assert judge(look(**more)).api_behind is behind


@pytest.mark.parametrize(
    ("container", "age", "behind"),
    [
        (b.container_id(2), 0.0, True),
        (b.container_id(2), 9.0, True),
        (b.container_id(2), 11.0, False),
        (b.container_id(1), 0.0, False),
        ("", 0.0, False),
    ],
    ids=["new container", "status still on its way", "never told of", "known container", "no container"],
)
def test_the_api_is_asked_sooner_for_a_container_that_it_has_not_told_of(
    container: str, age: float, behind: bool
) -> None:
    """The main container after an init container, or one after a crash: else it had no name for a minute."""
    start = int((b.NOW - age - b.BOOT_TIME) * b.TICKS)
    new = b.process(4001, pod_uid=b.pod_uid(), container_id=container, holds=HOLDS, start=start)
    assert judge(look(processes=b.process_table(worker(), new))).api_behind is behind  # type: ignore[arg-type]
