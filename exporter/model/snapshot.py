"""One look at the node: all readings of one cycle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from exporter.model.cluster import Kubelet, Node, PodNames, Pods
from exporter.model.driver import InFlight, Nvml
from exporter.model.host import ContainerDev, Pci, ProcessTable
from exporter.model.readings import OFF, Reading, Seen

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All readings of one cycle. `monotonic` counts on while the wall clock is set: it gives ages."""

    at: float
    monotonic: float
    node_name: str
    nvml: Reading[Nvml] = OFF
    processes: Reading[ProcessTable] = OFF
    container_dev: Reading[ContainerDev] = OFF
    kubelet: Reading[Kubelet] = OFF
    pods: Reading[Pods] = OFF
    node: Reading[Node] = OFF
    pod_names: Reading[PodNames] = OFF
    pci: Reading[Pci] = OFF
    nvml_in_flight: InFlight | None = None


SOURCES = ("nvml", "processes", "container_dev", "kubelet", "pods", "node", "pod_names", "pci")


def value(reading: Reading[T]) -> T | None:
    """The value of a reading that was seen, else None: for callers that treat missing and off alike."""
    return reading.value if isinstance(reading, Seen) else None
