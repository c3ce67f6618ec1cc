"""Pods that end well, late, by force, or not at all."""

from __future__ import annotations

import time

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.daemons import until
from tests.cluster.exporter_pod import ExporterPod
from tests.cluster.manifests import GPU, container, pod
from tests.cluster.stories import held, one_gpu
from tests.cluster.watching import Told, Watch, truth

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def about(watch: Watch, uid: str) -> set[tuple[str, str, str]]:
    """Finding, kind and cause of what is told of a pod."""
    return {(one.finding, one.kind, one.cause) for one in watch.view.findings if one.uid == uid}


def test_a_pod_that_ignores_sigterm_ends_after_its_grace(exporter: ExporterPod, cluster: Cluster) -> None:
    """It holds its GPU for the grace that it was given, and nobody calls it an orphan."""
    stubborn = cluster.run(pod("stub-0", one_gpu("main", "stubborn"), grace=12))
    held(cluster, 1)
    with Watch(exporter, "SIGTERM ignored, grace 12 s") as watch:
        watch.until(lambda view: view.processes == truth(cluster) != set(), "it is seen")
        cluster.delete(stubborn)
        watch.event("deleted")
        until(lambda: cluster.gone(stubborn), "it is gone")
        watch.event("gone")
        watch.until(lambda view: not view.processes, "nobody is left")
        watch.steady(lambda view: not view.findings, "nothing is wrong", 6)
        assert watch.ever == set()


def test_a_pod_that_is_deleted_by_force_may_live_two_seconds_more(
    exporter: ExporterPod, cluster: Cluster
) -> None:
    """API server and kubelet forget it at once, its process two seconds later: too short for an orphan."""
    forced = cluster.run(pod("forced-0", one_gpu("main", "stubborn"), grace=30))
    held(cluster, 1)
    with Watch(exporter, "deleted by force") as watch:
        watch.until(lambda view: view.processes == truth(cluster) != set(), "it is seen")
        cluster.delete(forced, 0)
        watch.event("deleted by force")
        watch.until(lambda view: not view.processes, "nobody is left")
        watch.steady(lambda view: not view.findings, "nothing is wrong", 12)
        assert watch.ever == set()


def test_a_process_that_outlives_its_pod_is_an_orphan(exporter: ExporterPod, cluster: Cluster) -> None:
    """It hangs, and its pod is deleted by force: pod_gone, explained by the hang; then all is clear."""
    lost = cluster.run(pod("lost-0", one_gpu("main", "stubborn")))
    uid = cluster.uid(lost)
    held(cluster, 1)
    with Watch(exporter, "outlives its pod") as watch:
        watch.until(lambda view: view.processes == truth(cluster) != set(), "it is seen")
        cluster.freeze(cluster.pids(uid)[0])
        cluster.delete(lost, 0)
        watch.event("hangs, and is deleted by force")
        expected = {
            ("stuck_process", "kill_pending", ""),
            ("orphan_process", "pod_gone", "stuck_process"),
        }
        watch.until(lambda view: about(watch, uid) == expected, f"{expected}", 60)
        assert {one[0] for one in watch.view.counted} == {"stuck_process"}
        cluster.thaw()
        watch.event("thawed")
        watch.until(lambda view: not view.findings and not view.processes, "all is clear")
        assert {one.uid for one in watch.ever} == {uid}


def test_a_pod_that_should_be_gone_is_overdue(exporter: ExporterPod, cluster: Cluster) -> None:
    """Deleted in good order, it hangs: two minutes after its time it is overdue, and not before."""
    late = cluster.run(pod("late-0", one_gpu("main", "stubborn"), grace=3))
    uid = cluster.uid(late)
    held(cluster, 1)
    with Watch(exporter, "should be gone") as watch:
        watch.until(lambda view: view.processes == truth(cluster) != set(), "it is seen")
        cluster.freeze(cluster.pids(uid)[0])
        cluster.delete(late)
        watch.event("hangs, and is deleted with a grace of 3 s")
        due = time.monotonic() + 3
        stuck = ("stuck_process", "kill_pending", "")
        watch.until(lambda view: stuck in about(watch, uid), "it is stuck")
        overdue = ("orphan_process", "terminating_overdue", "stuck_process")
        watch.until(lambda view: overdue in about(watch, uid), "it is overdue", 200)
        assert time.monotonic() - due >= 120
        cluster.thaw()
        watch.event("thawed")
        watch.until(lambda view: not view.findings and not view.processes, "all is clear")
        until(lambda: cluster.gone(late), "it is gone")
        assert {one.uid for one in watch.ever} == {uid}


def test_founding_incident_a(exporter: ExporterPod, cluster: Cluster) -> None:
    """A pod is made anew on the GPUs that its hung self holds: the old one is named, by its UID."""
    both = pod("hung-0", container("main", ["given", "memory=8192"], {GPU: 2}))
    old = cluster.run(both)
    held(cluster, 1)
    with Watch(exporter, "made anew on the GPUs of its hung self") as watch:
        watch.until(lambda view: view.processes == truth(cluster) != set(), "it is seen")
        cluster.freeze(cluster.pids(cluster.uid(old))[0])
        cluster.delete(old, 0)
        watch.event("hangs, and is deleted by force")
        until(lambda: cluster.gone(old), "the old pod is gone")
        new = cluster.run(both)
        watch.event("made anew")
        held(cluster, 2)
        uid, name = cluster.uid(old), "team-a/hung-0/main"
        expected = set()
        for gpu in ("0", "1"):
            expected |= {
                Told("stuck_process", "kill_pending", gpu, name, uid),
                Told("orphan_process", "pod_gone", gpu, name, uid, "stuck_process"),
            }
        watch.until(lambda view: expected <= view.findings, f"{expected}", 60)
        sharing = {one for one in watch.view.findings if one.finding == "exclusive_gpu_shared"}
        assert {(one.kind, one.gpu, one.cause) for one in sharing} == {
            ("double_use", "0", "stuck_process"),
            ("double_use", "1", "stuck_process"),
        }
        assert watch.view.findings == expected | sharing
        assert watch.view.counted == {("stuck_process", "kill_pending", gpu) for gpu in ("0", "1")}
        assert {watch.view.owner(gpu) for gpu in cluster.hardware.whole} == {name}
        cluster.thaw()
        watch.event("thawed")
        watch.until(lambda view: not view.findings and view.processes == truth(cluster), "all is clear")
        assert {one.uid for one in watch.view.processes} == {cluster.uid(new)}


def test_founding_incident_b(exporter: ExporterPod, cluster: Cluster) -> None:
    """Two pods were given a GPU each, see both, and both work on the first."""
    cluster.show_all("nvidia0", "nvidia1")
    words = ["nvidia0", "memory=4096"]
    right = cluster.run(pod("right-0", container("main", words, {GPU: 1})))
    wrong = cluster.run(pod("wrong-0", container("main", words, {GPU: 1}), namespace="team-b"))
    held(cluster, 2)
    with Watch(exporter, "both on the first") as watch:
        expected = {
            Told("used_not_allocated", "of_other_pod", "0", "team-b/wrong-0/main", cluster.uid(wrong)),
            Told("visible_not_allocated", "other", "0", "team-b/wrong-0/main", cluster.uid(wrong)),
            Told("visible_not_allocated", "other", "1", "team-a/right-0/main", cluster.uid(right)),
        }
        watch.until(lambda view: expected <= view.findings, f"{expected}", 60)
        (sharing,) = watch.view.findings - expected
        assert (sharing.finding, sharing.kind, sharing.gpu) == ("exclusive_gpu_shared", "double_use", "0")
        assert watch.view.processes == truth(cluster)
        cluster.delete(wrong, 0)
        watch.event("the wrong one is deleted")
        watch.until(
            lambda view: "exclusive_gpu_shared" not in {one.finding for one in view.findings}, "clear"
        )
        left = Told("visible_not_allocated", "other", "1", "team-a/right-0/main", cluster.uid(right))
        watch.until(lambda view: view.findings == {left}, f"{left} alone")
