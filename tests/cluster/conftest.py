"""Fixtures of the cluster. Its tests run on their own (`make cluster-test`): they take the whole machine.

They are collected where the marker expression names them, and not with all the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import machine
from tests.cluster.cluster import Cluster
from tests.cluster.exporter_pod import ExporterPod, archive
from tests.system.findings import KINDS

AGE = "4s"  # of most kinds: longer than what a kubelet takes for anything, short enough to be waited for
# A node object that is read once a minute may be that of a kubelet which has just started, with no device.
SLOW_AGE = "90s"
SLOW = "node_capacity_mismatch"
SETTINGS = {
    "interval": "1s",
    **{
        f"rules.{name}.{kind}.age": SLOW_AGE if name == SLOW else AGE
        for name, kinds in KINDS.items()
        for kind in kinds
    },
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the cluster alone unless it is asked for by its marker."""
    asked = "cluster" in config.getoption("markexpr").split()
    return None if asked or not collection_path.name.startswith("test_") else True


@pytest.fixture(scope="session")
def empty_cluster() -> Iterator[Cluster]:
    """The cluster, with the exporter's image in it."""
    packed = archive()
    with Cluster() as cluster:
        cluster.load(packed)
        yield cluster
    assert machine.left(cluster.folder) == []


@pytest.fixture
def cluster(empty_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, whole before and after a test, and without pods but the exporter's."""
    yield empty_cluster
    empty_cluster.whole_again()


@pytest.fixture(scope="module")
def exporter(empty_cluster: Cluster) -> Iterator[ExporterPod]:
    """The exporter's pod with two capabilities, one for each module."""
    pod = ExporterPod(empty_cluster, "two-capabilities", SETTINGS)
    yield pod
    pod.delete()
