"""Who is where on a real cluster, from process to allocation, in both ways to run the exporter."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import machine, manifests
from tests.cluster.cluster import Cluster, processes_of
from tests.cluster.conftest import SETTINGS
from tests.cluster.daemons import until
from tests.cluster.exporter_pod import ExporterPod
from tests.cluster.stories import shapes
from tests.cluster.watching import View, Watch, given, truth
from tests.system.observe import WORKLOAD, rows

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
ENDS_IN = 5.0  # seconds


@pytest.fixture(params=["privileged", "two-capabilities"])
def either(request: pytest.FixtureRequest, empty_cluster: Cluster) -> Iterator[ExporterPod]:
    """The exporter in one of its two profiles."""
    pod = ExporterPod(empty_cluster, request.param, SETTINGS)
    yield pod
    if not empty_cluster.gone(pod.pod):
        pod.delete()


def allocations(view: View) -> set[tuple[str, ...]]:
    """Pod, container and device of each allocation."""
    found = rows(view.samples, "allocation_info", *WORKLOAD, "uuid", "mig_uuid")
    return {(*row[:3], row[4] or row[3]) for row in found}


def test_every_series_has_its_pod(either: ExporterPod, cluster: Cluster) -> None:
    """Whole GPUs, a MIG device, replicas: processes, allocations and devices have the pods that are there."""
    for _ in shapes(cluster):
        break
    with Watch(either, "shapes") as watch:
        expected = truth(cluster)
        assert len(expected) == 6, expected
        watch.until(lambda view: view.processes == expected, f"processes are {expected}")
        listed = {(*row[:3], row[3].partition("::")[0]) for row in given(cluster)}
        view = watch.until(lambda view: allocations(view) == listed, f"allocations are {listed}")
        first, second = cluster.hardware.whole
        assert {view.owner(first), view.owner(second)} == {"team-a/train-0/main", "team-b/train-1/main"}
        assert view.owner(cluster.hardware.shared) == ""
        assert rows(view.samples, "mig_memory_used_bytes", "mig_uuid", *WORKLOAD) == {
            (cluster.hardware.mig[0].uuid, "team-a", "infer-0", "server"),
            (cluster.hardware.mig[1].uuid, "", "", ""),
        }
        assert [view.allocated(one) for one in cluster.hardware.mig] == [1, 0]
        assert {view.allocated(gpu) for gpu in cluster.hardware.whole} == {1}
        # As long as it takes to look at every process thoroughly.
        watch.steady(
            lambda view: not (view.down or view.findings or view.unknown), "all is well and all is known", 22
        )
        assert watch.ever == set()
        # What is in the container is what the exporter may see, so that no node is seen that was not given.
        assert rows(view.samples, "findings", "finding", "kind", "gpu", finding="visible_not_allocated")


def test_it_lets_go_and_leaves_nothing(either: ExporterPod, cluster: Cluster) -> None:
    """SIGTERM ends it within five seconds; processes, control groups, mounts and files are as before."""
    uid = either.uid
    groups = machine.groups_of(uid)
    assert groups, "the pod has control groups while it runs"
    before = _files(cluster)
    # Not the sandbox's process, which only waits.
    pids = {pid for pid in processes_of(uid) if b"exporter" in Path(f"/proc/{pid}/cmdline").read_bytes()}
    assert len(pids) >= 3, "the exporter and its two children"
    began = time.monotonic()
    cluster.delete(either.pod)
    until(lambda: not any(_alive(pid) for pid in pids), "it has ended", 30, 0.02)
    took = time.monotonic() - began
    assert took <= ENDS_IN
    until(lambda: cluster.gone(either.pod), "the pod is gone")
    until(lambda: not any(group.exists() for group in groups), "its control groups are gone")
    until(lambda: uid not in Path("/proc/mounts").read_text(), "its mounts are gone")
    until(lambda: not (machine.KUBELET / "pods" / uid).exists(), "the kubelet has forgotten it", 60)
    assert _files(cluster) == before
    sys.stdout.write(f"\n== SIGTERM to end: {took:.2f} s\n")


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").exists()


def _files(cluster: Cluster) -> set[str]:
    """What is where the exporter has something of the host mounted, but for logs."""
    places = (cluster.hardware.nvml, cluster.hardware.sysfs.root, machine.KUBELET / "pod-resources")
    return {
        os.path.join(folder, name)
        for place in places
        for folder, _, names in os.walk(place)
        for name in names
    } | {manifests.MONITORING}
