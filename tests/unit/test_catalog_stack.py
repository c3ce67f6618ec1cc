"""Which pods are components of the GPU stack, and what is said of them."""

from dataclasses import replace

import pytest

from exporter.infrastructure import STACK, STACK_KEYS, stack_component
from exporter.model import ContainerStatus, Off, Pod, Pods, Report
from tests import builders as b
from tests.unit.reports import one, rows

PLUGIN = {"app": "nvidia-device-plugin-daemonset"}


def pod(name: str = "plugin-x", *containers: str, **changes: object) -> Pod:
    labels = changes.pop("labels", PLUGIN)
    assert isinstance(labels, dict)
    statuses = tuple(replace(b.container_status(), name=container) for container in containers)
    made = b.pod(name, namespace="gpu-operator")
    told: dict[str, object] = {
        "labels": tuple(labels.items()),
        "ready": True,
        "containers": statuses or made.containers,
    }
    return replace(made, **(told | changes))  # type: ignore[arg-type]


def report(*pods: Pod) -> Report:
    return b.report(b.snapshot(pods=Pods(pods)))


@pytest.mark.parametrize(
    ("labels", "component"),
    [
        ({"app": "nvidia-driver-daemonset"}, "driver"),
        (
            {
                "app": "nvidia-gpu-driver-ubuntu22.04-7c6d7bd86b",
                "app.kubernetes.io/component": "nvidia-driver",
            },
            "driver",
        ),
        ({"app": "nvidia-container-toolkit-daemonset"}, "toolkit"),
        (PLUGIN, "device_plugin"),
        ({"name": "nvidia-device-plugin-ds"}, "device_plugin"),
        ({"app.kubernetes.io/name": "nvidia-device-plugin"}, "device_plugin"),
        ({"k8s-app": "nvidia-gpu-device-plugin"}, "device_plugin"),
        ({"name": "nvidia-driver-installer", "k8s-app": "nvidia-driver-installer"}, "driver"),
        ({"app": "nvidia-operator-validator"}, "validator"),
        ({"app": "nvidia-cuda-validator"}, "validator"),
        ({"app": "nvidia-dcgm"}, "dcgm"),
        ({"app": "nvidia-dcgm-exporter"}, "dcgm_exporter"),
        ({"app.kubernetes.io/name": "dcgm-exporter"}, "dcgm_exporter"),
        ({"app": "gpu-feature-discovery"}, "feature_discovery"),
        ({"app": "nvidia-mig-manager"}, "mig_manager"),
        ({"app": "nvidia-device-plugin-mps-control-daemon"}, "mps"),
        ({"app": "nvidia-node-status-exporter"}, "node_status"),
        ({"app.kubernetes.io/name": "nvidia-dra-driver-gpu"}, "dra_driver"),
        ({"app": "gpu-operator", "app.kubernetes.io/component": "gpu-operator"}, "operator"),
        ({"app": "web", "app.kubernetes.io/name": "nvidia"}, ""),
        ({"runai-gpu-group": "nvidia-driver-daemonset"}, ""),
        ({}, ""),
    ],
)
def test_a_component_is_known_by_its_labels(labels: dict[str, str], component: str) -> None:
    """As the operator, the charts, the static manifest and GKE label their pods."""
    assert stack_component(pod(labels=labels)) == component


@pytest.mark.parametrize(
    ("container", "component"),
    [
        ("nvidia-device-plugin-ctr", "device_plugin"),
        ("gpu-feature-discovery-ctr", "feature_discovery"),
        ("mps-control-daemon-ctr", "mps"),
    ],
)
def test_pods_of_one_chart_differ_by_their_containers(container: str, component: str) -> None:
    """The chart of the device plugin gives three daemon sets the same labels."""
    chart = {"app.kubernetes.io/name": "nvidia-device-plugin", "app.kubernetes.io/instance": "nvdp"}
    assert stack_component(pod("nvdp-x", container, "config-manager", labels=chart)) == component


def test_a_label_names_one_component() -> None:
    """No label stands in two rows, and each key is one that is looked at."""
    labels = [label for names in STACK.values() for label in names]
    assert len(set(labels)) == len(labels)
    assert len(set(STACK_KEYS)) == len(STACK_KEYS)


@pytest.mark.parametrize("ready", [True, False])
def test_a_component_is_ready_or_not(ready: bool) -> None:
    """Both are told, with the pod's own names and no container."""
    told = rows(report(pod(ready=ready)), "stack_component_ready")
    assert told == {
        frozenset(
            {
                ("component", "device_plugin"),
                ("namespace", "gpu-operator"),
                ("pod", "plugin-x"),
                ("container", ""),
            }
        ): float(ready)
    }


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_is_not_one_that_is_not_ready(phase: str) -> None:
    """A validator that is done, and a pod that was evicted and has a successor."""
    ended = pod("cuda-validator-x", phase=phase, ready=False, labels={"app": "nvidia-cuda-validator"})
    assert (
        rows(report(ended, pod()), "stack_component_ready").keys()
        == rows(report(pod()), "stack_component_ready").keys()
    )


def test_a_pending_component_is_not_ready() -> None:
    """One that cannot pull its image has no container yet."""
    assert one(report(pod(phase="Pending", ready=False, containers=())), "stack_component_ready") == 0


def test_others_pods_have_no_series() -> None:
    """A pod of a user is none of the stack's."""
    assert rows(report(pod(labels={"app": "train"})), "stack_component_ready") == {}


@pytest.mark.parametrize("reading", [b.missed(), Off()])
def test_nothing_is_said_without_the_api(reading: object) -> None:
    """Neither ready nor not: it is not known."""
    look = replace(b.snapshot(), pods=reading)  # type: ignore[arg-type]
    assert rows(b.report(look), "stack_component_ready") == {}


def test_containers_are_those_of_the_record() -> None:
    """The refinement reads names only."""
    assert stack_component(pod("x", labels={"app": "nvidia-dcgm"})) == "dcgm"
    bare = ContainerStatus("mps-control-daemon-ctr", b.container_status().kind)
    assert stack_component(replace(pod(), containers=(bare,))) == "mps"
