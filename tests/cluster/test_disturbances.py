"""What happens every day on a node, and what breaks: nobody is accused, and what is unknown is said."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, processes_of
from tests.cluster.daemons import until
from tests.cluster.exporter_pod import ExporterPod
from tests.cluster.manifests import MONITORING, SHARED, container, pod
from tests.cluster.stories import init_and_sidecar, one_gpu, static_and_finished, three
from tests.cluster.watching import View, Watch, given, truth
from tests.rig.hardware import Target

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def in_time(watch: Watch, cluster: Cluster) -> None:
    """The exporter says what is so."""
    watch.until(lambda view: view.processes == truth(cluster), "processes are as they are")


def test_a_container_that_crashes_and_comes_back(exporter: ExporterPod, cluster: Cluster) -> None:
    """Each time it works on the GPU that its pod was given; nobody else's container was replaced."""
    cluster.run(pod("crash-0", one_gpu("main", "for=5", "exit=1")), ("Running", "Starting"))
    with Watch(exporter, "crashes and comes back") as watch:
        first = _pid(cluster)
        watch.event(f"pid {first}")
        until(lambda: cluster.hardware.holders() and _pid(cluster) != first, "it runs again", 60)
        watch.event(f"pid {_pid(cluster)}")
        in_time(watch, cluster)
        until(lambda: not cluster.hardware.holders(), "it has crashed again")
        assert watch.view.allocated(cluster.hardware.whole[0]) == 1, "back-off gives no GPU back"
        watch.until(lambda view: not view.processes, "it is seen to have ended")
        watch.steady(lambda view: not view.findings, "nothing is wrong", 6)
        assert watch.ever == set()


def _pid(cluster: Cluster) -> int:
    until(cluster.hardware.holders, "somebody has a device open")
    return min(cluster.hardware.holders(), default=0)


def test_init_containers_and_sidecars(exporter: ExporterPod, cluster: Cluster) -> None:
    """Both are containers of their pod, with what that was given."""
    story = init_and_sidecar(cluster)
    with Watch(exporter, "init container and sidecar") as watch:
        next(story)
        in_time(watch, cluster)
        assert {one.container for one in watch.view.processes} == {"prepare", "proxy"}
        next(story)
        in_time(watch, cluster)
        assert {one.container for one in watch.view.processes} == {"main", "proxy"}
        watch.steady(lambda view: not view.findings, "nothing is wrong", 6)
        assert watch.ever == set()


def test_a_static_pod_and_one_that_has_finished(exporter: ExporterPod, cluster: Cluster) -> None:
    """The static one goes by its mirror's name and its manifest's hash, the finished one has given back."""
    story = static_and_finished(cluster)
    with Watch(exporter, "static and finished") as watch:
        next(story)
        in_time(watch, cluster)
        next(story)
        in_time(watch, cluster)
        (row,) = watch.view.processes
        assert (row.namespace, row.pod) == ("kube-system", "warmer-cluster-node")
        assert len(row.uid) == 32, "the hash of the manifest"
        watch.until(lambda view: view.allocated(cluster.hardware.whole[1]) == 0, "the other one is free")
        watch.steady(lambda view: not view.findings, "nothing is wrong", 6)
        assert watch.ever == set()


def settled(watch: Watch, cluster: Cluster) -> None:
    """It does, and has heard from everybody who the pods of this test are: their names are used again."""
    doubtful = {"used_not_allocated", "visible_not_allocated", "allocated_not_visible"}
    watch.until(
        lambda view: (
            view.processes == truth(cluster)
            and _all_given(view, cluster)
            and not doubtful & set(view.unknown)
        ),
        "it knows the node as it is",
        60,
    )


@pytest.fixture
def busy(cluster: Cluster) -> Cluster:
    """A static pod on a MIG device, and two pods with a GPU each."""
    three(cluster)
    return cluster


def test_a_kubelet_that_restarts(exporter: ExporterPod, busy: Cluster) -> None:
    """While it is away the source is down; after it nobody's devices are taken from him in between."""
    with Watch(exporter, "kubelet killed for 5 s") as watch:
        settled(watch, busy)
        busy.kubelet.kill()
        watch.event("killed")
        watch.until(lambda view: "kubelet" in view.down, "the source is down")
        watch.until(lambda view: "orphan_process" in view.unknown, "it is said what cannot be judged")
        assert _all_given(watch.view, busy), "for a minute its last word counts"
        time.sleep(5)
        busy.kubelet_up()
        watch.event("up")
        watch.until(lambda view: not view.down, "the source is back")
        in_time(watch, busy)
        watch.until(lambda view: _all_given(view, busy), "all is allocated")
        watch.steady(lambda view: not view.findings, "nothing is wrong", 10)
        assert watch.ever == set()


def test_a_kubelet_that_restarts_while_the_api_server_is_down(exporter: ExporterPod, busy: Cluster) -> None:
    """It lists the static pod alone, for as long as the API server is away: the others are not accused."""
    with Watch(exporter, "kubelet restarted while the API server is down") as watch:
        settled(watch, busy)
        busy.apiserver.kill()
        watch.event("API server killed")
        busy.kubelet.kill()
        busy.kubelet_up()
        watch.event("kubelet restarted")
        until(lambda: {row[0] for row in given(busy)} == {"kube-system"}, "it lists the static pod alone")
        watch.until(lambda view: "orphan_process" in view.unknown, "it is said what cannot be judged")
        watch.until(lambda view: "pods" in view.down, "the API server is missed", 90)
        watch.until(
            lambda view: view.unknown.get("used_not_allocated") == {"allocation_carried"},
            "what the two others were given is not known any more",
            90,
        )
        assert [watch.view.allocated(gpu) for gpu in busy.hardware.whole] == [None, None]
        assert watch.view.allocated(busy.hardware.mig[0]) == 1
        watch.steady(lambda view: not view.findings, "nothing is wrong", 15)
        assert len(watch.view.processes) == 3, "who is where is known all the same"
        busy.api_up()
        watch.event("API server up")
        watch.until(lambda view: not view.down, "all sources are back", 90)
        until(lambda: len(given(busy)) == 3, "the kubelet lists all", 90)
        watch.until(lambda view: _all_given(view, busy), "all is allocated again")
        watch.steady(lambda view: not view.findings, "nothing is wrong", 6)
        assert watch.ever == set()


def test_an_api_server_that_is_away_for_a_minute(exporter: ExporterPod, busy: Cluster) -> None:
    """It is missed and said to be; names stay, and a new static pod has the name of its log directory."""
    with Watch(exporter, "API server down") as watch:
        settled(watch, busy)
        expected, unheard = truth(busy), {"pods:unavailable"}
        busy.apiserver.kill()
        watch.event("killed")
        watch.until(lambda view: {"pods", "node"} <= view.down, "the API server is missed", 90)
        watch.until(lambda view: unheard <= view.unknown.get("orphan_process", set()), "and said to be")
        watch.steady(lambda view: view.processes == expected, "who is where is known all the same", 10)
        name = busy.run_static(
            pod("late", container("main", ["given"], {SHARED: 1}), namespace="kube-system")
        )
        watch.event(f"new: {name}")
        watch.until(
            lambda view: ("kube-system", name, "main") in {row[3:6] for row in view.processes},
            "a new pod has the name of its log directory",
        )
        busy.api_up()
        watch.event("up")
        watch.until(lambda view: not view.down, "all sources are back", 90)
        watch.until(lambda view: not unheard & view.unknown.get("orphan_process", set()), "its word counts")
        assert watch.ever == set()


def test_a_device_plugin_that_is_killed(exporter: ExporterPod, busy: Cluster) -> None:
    """What was given stays given; no device is offered, and nobody is accused of that."""
    with Watch(exporter, "device plugin killed for 20 s") as watch:
        settled(watch, busy)
        busy.plugin.kill()
        watch.event("killed")
        until(lambda: not busy.offers_any(), "the kubelet offers no device")
        watch.steady(lambda view: not view.findings and _all_given(view, busy), "all is given", 20)
        busy.plugin_up()
        watch.event("up")
        watch.steady(lambda view: not view.findings and _all_given(view, busy), "all is given", 15)
        assert watch.ever == set()


def test_an_exporter_that_restarts(exporter: ExporterPod, busy: Cluster) -> None:
    """Its container is started anew, and it says the same as before within ten seconds."""
    with Watch(exporter, "exporter killed") as watch:
        settled(watch, busy)
        os.kill(_first_process(exporter.uid), signal.SIGKILL)
        watch.event("killed")
        until(lambda: _restarts(busy, exporter.name) == 1, "the kubelet has started it anew")
        time.sleep(1)
        in_time(watch, busy)
        watch.until(lambda view: _all_given(view, busy) and not view.down, "it knows all again")
        watch.steady(lambda view: not view.findings, "nothing is wrong", 10)
        assert watch.ever == set()
        assert watch.gap < 10


def test_a_pod_without_a_device_is_nobody(exporter: ExporterPod, cluster: Cluster) -> None:
    """A container without any device has no series, and its pod no finding."""
    cluster.run(pod("plain-0", container("main", [])))
    with Watch(exporter, "a plain pod") as watch:
        watch.until(lambda view: not view.processes, "those of another test have ended")
        watch.steady(lambda view: not view.findings and not view.processes, "nothing is told", 6)
        assert watch.ever == set()


def _all_given(view: View, cluster: Cluster) -> bool:
    targets: list[Target] = [*cluster.hardware.whole, cluster.hardware.mig[0]]
    return all(view.allocated(one) == 1 for one in targets)


def _first_process(uid: str) -> int:
    """The exporter's first process: the parent of its children."""
    for pid in processes_of(uid):
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"kubegpu-exporter" in words and b"-m\0" not in words:
            return pid
    raise AssertionError("the exporter does not run")


def _restarts(cluster: Cluster, name: str) -> int:
    found = cluster.api.pod(MONITORING, name)
    assert found is not None
    (status,) = found["status"]["containerStatuses"]
    return int(status["restartCount"]) if "running" in status["state"] else -1
