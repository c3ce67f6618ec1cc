"""The table of known GPU infrastructure: daemons that rightly hold device files of GPUs that nobody gave
them.

A process is infrastructure by its systemd unit, or by its pod's namespace together with its executable's
path. Never by a name alone: any user can call a process nvidia-smi. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter.model import Cgroup


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
