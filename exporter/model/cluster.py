"""What Kubernetes says: records of the sources kubelet, pods, node and pod_names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from exporter.model.device_refs import DeviceRef


@dataclass(frozen=True, slots=True)
class Allocation:
    """The kubelet says: this container was given this device. `replica` is set for a shared device (`::n`,
    vgpu).
    """

    namespace: str
    pod: str
    container: str
    resource: str
    device_id: str
    ref: DeviceRef
    replica: str = ""
    claim: str = ""  # namespace/name of the DRA claim, which several containers may share


@dataclass(frozen=True, slots=True)
class KubeletPod:
    """A pod that the kubelet lists, with devices or without."""

    namespace: str
    name: str
    containers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AllocatableDevice:
    """A healthy device of a device plugin, given or not."""

    resource: str
    device_id: str
    ref: DeviceRef


@dataclass(frozen=True, slots=True)
class Kubelet:
    """One answer of the pod-resources API."""

    pods: tuple[KubeletPod, ...]
    allocations: tuple[Allocation, ...]
    allocatable: tuple[AllocatableDevice, ...] | None  # None: this kubelet does not offer the call


class ContainerKind(StrEnum):
    """Which list of the pod a container stands in; a sidecar is a restartable init container."""

    APP = "app"
    INIT = "init"
    SIDECAR = "sidecar"
    EPHEMERAL = "ephemeral"


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """A container of a pod, as the API server has it."""

    name: str
    kind: ContainerKind
    container_id: str = ""  # without the runtime prefix
    previous_id: str = ""
    running: bool = False
    ready: bool = False
    started_at: float | None = None
    privileged: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of this node by the API server. `cgroup_uid` is the config hash for a static pod's mirror."""

    uid: str
    cgroup_uid: str
    namespace: str
    name: str
    phase: str
    deletion_timestamp: float | None = None
    containers: tuple[ContainerStatus, ...] = ()
    gpu_requests: tuple[tuple[str, int], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()  # only those that a GPU scheduler writes
    labels: tuple[tuple[str, str], ...] = ()  # only those that name a component of the GPU stack
    runtime_class: str = ""
    host_pid: bool = False
    ready: bool = False

    @property
    def ended(self) -> bool:
        """Whether all its containers have run to their end."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods of this node."""

    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """The node object."""

    name: str
    capacity: tuple[tuple[str, int], ...]  # resources of GPUs only
    allocatable: tuple[tuple[str, int], ...]
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PodName:
    """A directory `<namespace>_<name>_<uid>` of the kubelet's pod logs, and the containers that have logs in
    it.
    """

    uid: str
    namespace: str
    name: str
    containers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodNames:
    """The directories of the kubelet's pod logs."""

    names: tuple[PodName, ...]
