"""What happens on the cluster while it is recorded: three looks each, and what comes to pass between them.

A story is a generator. What it does before its first yield is there in the first look, what it does before
its second one in the second, and so on. What is true then is written in tests/recordings/cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tests.cluster.api import Json
from tests.cluster.cluster import Cluster
from tests.cluster.daemons import until
from tests.cluster.manifests import GPU, MIG, SHARED, container, pod

Story = Callable[[Cluster], Iterator[None]]
NUDGE = 12.0  # seconds after which the exporter asks the API server again where its list looks outdated
POLL = 75.0  # and after which it does in any case


def one_gpu(name: str = "main", *words: str) -> Json:
    """A container that is given a GPU and works on it."""
    return container(name, ["given", "memory=4096", *words], {GPU: 1})


def held(cluster: Cluster, count: int) -> None:
    """Wait until so many workers have a device open, and the driver knows."""
    until(lambda: len(cluster.hardware.holders()) == count, f"{count} workers have a device open")
    cluster.hardware.look()


def shapes(cluster: Cluster) -> Iterator[None]:
    """Two pods with a GPU each, one of them with a child; a MIG device; two of four replicas; a plain pod."""
    cluster.run(pod("train-0", one_gpu("main", "fork")))
    cluster.run(pod("train-1", one_gpu(), namespace="team-b"))
    cluster.run(pod("infer-0", container("server", ["given", "memory=2048"], {MIG: 1})))
    for number in range(2):
        cluster.run(pod(f"notebook-{number}", container("main", ["given", "memory=1024"], {SHARED: 1})))
    cluster.run(pod("plain-0", container("main", [])))
    held(cluster, 6)
    for _ in range(3):
        yield


def init_and_sidecar(cluster: Cluster) -> Iterator[None]:
    """An init container works on a GPU, then the main one on the same; beside it a sidecar on another."""
    init = one_gpu("prepare", "for=8")
    sidecar = {**one_gpu("proxy"), "restartPolicy": "Always"}
    waiting = pod("staged-0", one_gpu(), initContainers=[init])
    cluster.run(pod("served-0", container("main", []), initContainers=[sidecar], namespace="team-b"))
    cluster.run(waiting, ("Pending",))
    held(cluster, 2)
    yield
    until(lambda: cluster.running("team-a", "staged-0"), "the main container runs")
    held(cluster, 2)
    time.sleep(NUDGE)
    yield
    yield


def static_and_finished(cluster: Cluster) -> Iterator[None]:
    """A static pod on one GPU; on the other a pod that runs to its end, and is no longer listed."""
    name = cluster.run_static(pod("warmer", one_gpu(), namespace="kube-system"))
    until(lambda: cluster.running("kube-system", name), "the static pod's mirror runs")
    cluster.run(pod("batch-0", one_gpu("main", "for=6"), restart="Never"))
    held(cluster, 2)
    yield
    until(lambda: cluster.phase("team-a", "batch-0") == "Succeeded", "it has ended")
    held(cluster, 1)
    time.sleep(NUDGE)
    yield
    yield


def kubelet_restarts(cluster: Cluster) -> Iterator[None]:
    """The kubelet is away, and comes back, first with nothing in its list."""
    three(cluster)
    yield
    cluster.kubelet.kill()
    yield
    cluster.kubelet_up()
    yield


def kubelet_restarts_without_api(cluster: Cluster) -> Iterator[None]:
    """The kubelet starts while the API server is down: of three pods it lists the static one for good."""
    three(cluster)
    yield
    cluster.apiserver.kill()
    cluster.kubelet.kill()
    cluster.kubelet_up()
    until(lambda: len(cluster.resources() or ()) == 1, "it lists the static pod")
    until(cluster.offers_all, "the device plugin has registered again")
    yield
    time.sleep(POLL)
    yield


def plugin_killed(cluster: Cluster) -> Iterator[None]:
    """The device plugin is killed, and started again: what was given stays given."""
    three(cluster)
    yield
    cluster.plugin.kill()
    until(lambda: not cluster.offers_any(), "the kubelet offers no device")
    yield
    cluster.plugin_up()
    yield


def recreated_while_it_hangs(cluster: Cluster) -> Iterator[None]:
    """A process hangs, its pod is deleted by force and made again, on the same two GPUs."""
    both = pod("hung-0", container("main", ["given", "memory=8192"], {GPU: 2}))
    old = cluster.run(both)
    held(cluster, 1)
    yield
    cluster.freeze(cluster.pids(cluster.uid(old))[0])
    cluster.delete(old, 0)
    until(lambda: cluster.gone(old), "the old pod is gone")
    cluster.run(both)
    held(cluster, 2)
    until(lambda: cluster.killed(old), "the runtime has tried to kill it")
    time.sleep(NUDGE)
    yield
    yield


def three(cluster: Cluster) -> None:
    """A static pod on a MIG device and two others on a GPU each."""
    server = container("server", ["given", "memory=2048"], {MIG: 1})
    name = cluster.run_static(pod("warmer", server, namespace="kube-system"))
    until(lambda: cluster.running("kube-system", name), "the static pod's mirror runs")
    cluster.run(pod("train-0", one_gpu()))
    cluster.run(pod("train-1", one_gpu(), namespace="team-b"))
    held(cluster, 3)


STORIES: dict[str, Story] = {
    "shapes": shapes,
    "init-and-sidecar": init_and_sidecar,
    "static-and-finished": static_and_finished,
    "kubelet-restarts": kubelet_restarts,
    "kubelet-restarts-without-api": kubelet_restarts_without_api,
    "plugin-killed": plugin_killed,
    "recreated-while-it-hangs": recreated_while_it_hangs,
}
