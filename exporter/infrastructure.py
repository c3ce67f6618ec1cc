"""The table of known GPU infrastructure: daemons that rightly hold device files of GPUs that nobody gave
them.

A process is infrastructure by its systemd unit, or by its pod's namespace together with its executable's
path. Never by a name alone: any user can call a process nvidia-smi. Pure.

A pod is a component of the GPU stack by its labels. These excuse nobody; they only name a pod whose readiness
is told, together with its namespace.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter.model import Cgroup, Pod


@dataclass(frozen=True, slots=True)
class Component:
    """One daemon: its name, its units on a host, and its executables when it runs in a pod."""

    name: str
    units: tuple[str, ...] = ()
    executables: tuple[str, ...] = ()
    memory_limit: int | None = (
        512 * 2**20
    )  # bytes on one GPU up to which it is excused; None: as much as it likes


# Namespaces in which an executable below is believed. Add yours where the GPU Operator is installed
# elsewhere.
NAMESPACES = (
    "gpu-operator",
    "gpu-operator-resources",
    "nvidia-gpu-operator",
    "nvidia-device-plugin",
    "nvidia-dra-driver-gpu",
    "kube-system",
    "kubegpu",
    "kubegpu-exporter",
    "dcgm-exporter",
)

COMPONENTS: tuple[Component, ...] = (
    Component("persistenced", ("nvidia-persistenced.service",), ("/usr/bin/nvidia-persistenced",)),
    Component("fabric manager", ("nvidia-fabricmanager.service",), ("/usr/bin/nv-fabricmanager",)),
    Component("imex", ("nvidia-imex.service",), ("/usr/bin/nvidia-imex",)),
    Component("powerd", ("nvidia-powerd.service",)),
    Component(
        "dcgm",
        ("nvidia-dcgm.service", "dcgm.service", "dcgm-exporter.service"),
        ("/usr/bin/nv-hostengine", "/usr/bin/dcgm-exporter"),
    ),
    Component(
        "mps",
        ("nvidia-mps.service", "nvidia-cuda-mps.service"),
        (
            "/usr/bin/nvidia-cuda-mps-control",
            "/usr/bin/nvidia-cuda-mps-server",
            "/usr/bin/mps-control-daemon",
        ),
        memory_limit=None,  # it holds the memory of its clients
    ),
    Component("device plugin", (), ("/usr/bin/nvidia-device-plugin", "/usr/bin/nvidia-gpu-device-plugin")),
    Component("dra driver", (), ("/usr/bin/gpu-kubelet-plugin", "/usr/bin/compute-domain-kubelet-plugin")),
    Component("feature discovery", (), ("/usr/bin/gpu-feature-discovery",)),
    Component(
        "mig manager",
        ("nvidia-mig-manager.service",),
        ("/usr/bin/nvidia-mig-manager", "/usr/bin/nvidia-mig-parted"),
    ),
    Component("validator", (), ("/usr/bin/nvidia-validator",)),
    Component("node-status exporter", (), ("/usr/bin/node-status-exporter",)),
    Component("driver manager", (), ("/usr/bin/driver-manager", "/usr/bin/vgpu-device-manager")),
    Component("nvidia-smi of the stack", (), ("/usr/bin/nvidia-smi",)),
)

_BY_UNIT = {unit: component for component in COMPONENTS for unit in component.units}
_BY_EXECUTABLE = {path: component for component in COMPONENTS for path in component.executables}


def component(cgroup: Cgroup, namespace: str, exe: str) -> Component | None:
    """The infrastructure that this process belongs to, or None.

    `namespace` is its pod's ("" outside pods), `exe` the path of its executable as /proc/PID/exe gives it.
    """
    if cgroup.pod_uid or namespace:
        return _BY_EXECUTABLE.get(exe) if namespace in NAMESPACES else None
    return None if cgroup.container_id else _BY_UNIT.get(cgroup.unit)


# Labels of pods by component, as the GPU Operator, the charts of k8s-device-plugin, dcgm-exporter and
# k8s-dra-driver-gpu, the plugin's static manifest, and GKE write them. The key that stands first decides.
STACK_KEYS = ("app.kubernetes.io/component", "app", "k8s-app", "app.kubernetes.io/name", "name")
STACK: dict[str, tuple[str, ...]] = {
    "operator": ("gpu-operator",),
    "driver": (
        "nvidia-driver",
        "nvidia-driver-daemonset",
        "nvidia-driver-installer",
        "nvidia-vgpu-host-manager",
        "nvidia-vgpu-manager-daemonset",
    ),
    "toolkit": ("nvidia-container-toolkit-daemonset",),
    "device_plugin": (
        "nvidia-device-plugin",
        "nvidia-device-plugin-daemonset",
        "nvidia-device-plugin-ds",
        "nvidia-gpu-device-plugin",
        "nvidia-sandbox-device-plugin-daemonset",
        "nvidia-kata-sandbox-device-plugin-daemonset",
    ),
    "validator": (
        "nvidia-operator-validator",
        "nvidia-cuda-validator",
        "nvidia-device-plugin-validator",
        "nvidia-sandbox-validator",
    ),
    "dcgm": ("nvidia-dcgm",),
    "dcgm_exporter": ("nvidia-dcgm-exporter", "dcgm-exporter", "gke-managed-dcgm-exporter"),
    "feature_discovery": (
        "gpu-feature-discovery",
        "nvidia-gpu-feature-discovery",
        "nvidia-device-plugin-gpu-feature-discovery",
    ),
    "mig_manager": ("nvidia-mig-manager",),
    "mps": (
        "mps-control-daemon",
        "nvidia-device-plugin-mps-control-daemon",
        "nvidia-mps-control-daemon",
    ),
    "dra_driver": (
        "nvidia-dra-driver-gpu",
        "dra-driver-nvidia-gpu",
        "nvidia-dra-driver-kubelet-plugin",
        "nvidia-imex-dra-driver-kubelet-plugin",
    ),
    "node_status": ("nvidia-node-status-exporter",),
    "vgpu_device_manager": ("nvidia-vgpu-device-manager",),
    "vfio_manager": ("nvidia-vfio-manager",),
    "kata_manager": ("nvidia-kata-manager",),
    "cc_manager": ("nvidia-cc-manager",),
}
# The chart of k8s-device-plugin gives its three daemon sets the same labels; their containers differ.
_BY_CONTAINER = {"gpu-feature-discovery-ctr": "feature_discovery", "mps-control-daemon-ctr": "mps"}
_BY_LABEL = {label: name for name, labels in STACK.items() for label in labels}


def stack_component(pod: Pod) -> str:
    """The component of the GPU stack that a pod is, or ""."""
    labels = dict(pod.labels)
    found = (_BY_LABEL.get(labels.get(key, ""), "") for key in STACK_KEYS)
    name = next(filter(None, found), "")
    if name == "device_plugin":
        return next((_BY_CONTAINER[one.name] for one in pod.containers if one.name in _BY_CONTAINER), name)
    return name
