"""The node source against a real HTTP server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.model import Node, Reason, SourceError
from exporter.sources.node import NodeSource
from exporter.sources.pods import connect
from tests.rig import objects
from tests.rig.apiserver import ApiServer, Fault


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, token="t") as running:
        yield running


def test_gpus_and_labels(server: ApiServer) -> None:
    """GPU resources and the labels that describe GPUs are kept, nothing else."""
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100",
        "nvidia.com/mig.strategy": "mixed",
        "feature.node.kubernetes.io/pci-10de.present": "true",
        "feature.node.kubernetes.io/pci-0302_10de.present": "true",
        "feature.node.kubernetes.io/pci-8086.present": "true",
        "team": "secret",
    }
    capacity = {
        "nvidia.com/gpu": "8",
        "nvidia.com/mig-1g.5gb": "0",
        "aliyun.com/gpu-mem": "2k",
        "rdma/hca": "4",
    }
    server.put(objects.node("n1", capacity, {"nvidia.com/gpu": "7"}, labels))
    node, complete, _ = NodeSource(connect(server.kubeconfig), "n1").read()
    assert complete
    assert node == Node(
        name="n1",
        capacity=(("aliyun.com/gpu-mem", 2000), ("nvidia.com/gpu", 8), ("nvidia.com/mig-1g.5gb", 0)),
        allocatable=(("nvidia.com/gpu", 7),),
        labels=(
            ("feature.node.kubernetes.io/pci-0302_10de.present", "true"),
            ("feature.node.kubernetes.io/pci-10de.present", "true"),
            ("nvidia.com/gpu.product", "NVIDIA-H100"),
            ("nvidia.com/mig.strategy", "mixed"),
        ),
    )


@pytest.mark.parametrize("name", ["absent", "", "a/b?c", "../nodes"])
def test_node_that_is_not_there(server: ApiServer, name: str) -> None:
    """A wrong name is told as such, with the setting that cures it, whatever the name is."""
    with pytest.raises(SourceError) as caught:
        NodeSource(connect(server.kubeconfig), name).read()
    assert caught.value.reason is Reason.UNAVAILABLE
    assert caught.value.detail.endswith("set --node-name")
    assert all(request.path.startswith("/api/v1/nodes/") for request in server.requests)


@pytest.mark.parametrize(
    "reply",
    [
        [],
        {},
        {"metadata": None, "status": None},
        {"metadata": {"name": 1}, "status": {}},
        {"metadata": {"name": "n1"}, "status": {"capacity": {"nvidia.com/gpu": "x"}}},
    ],
)
def test_reply_that_is_no_node(server: ApiServer, reply: object) -> None:
    """What is no node is a protocol error."""
    server.break_(Fault(body=json.dumps(reply).encode()))
    with pytest.raises(SourceError) as caught:
        NodeSource(connect(server.kubeconfig), "n1").read()
    assert caught.value.reason is Reason.PROTOCOL


def test_polled_like_the_pods(server: ApiServer) -> None:
    """One request in a minute."""
    now = 0.0
    server.put(objects.node("n1", {"nvidia.com/gpu": "8"}))
    source = NodeSource(connect(server.kubeconfig), "n1", clock=lambda: now)
    for second in range(0, 48, 4):
        now = float(second)
        source.read()
    assert server.count("/api/v1/nodes/n1") == 1
    now = 73.0
    source.read()
    assert server.count("/api/v1/nodes/n1") == 2
