"""Look at the node once: ask every source in the one right order, and say what became of each.

NVML, kubelet, pods, node, names and PCI are asked together; then the host is scanned, told NVML's numbers (so
that a listed number which /proc lacks has died, not just been born); then containers' /dev. A source is
waited for half an interval at most. Nothing here decides what a reading means.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from exporter.model import (
    ContainerDev,
    InFlight,
    Kubelet,
    LiveContainer,
    Missed,
    Node,
    Nvml,
    Off,
    Pci,
    PodNames,
    Pods,
    ProcessTable,
    Reading,
    Reason,
    Report,
    Seen,
    Snapshot,
    value,
)
from exporter.slots import Answer, Slot

LONGEST_WAIT = 10.0  # seconds that a cycle waits for a source at most, whatever the interval

T = TypeVar("T")


class NvmlReader(Protocol):
    """What the cycle needs of the NVML source beyond reading it."""

    def read(self) -> tuple[Nvml, bool]:
        """Ask, and wait for the answer."""

    def partial(self) -> Nvml | None:
        """What has come so far of the answer in flight."""

    def in_flight(self) -> InFlight | None:
        """The NVML call that has not returned."""


@dataclass(frozen=True, slots=True)
class Sources:
    """How to ask each source; None = it is off. `pods` and `node` are told whether their last answer looks
    outdated.
    """

    nvml: NvmlReader | None = None
    processes: Callable[[list[int], list[int]], Answer[ProcessTable]] | None = None
    container_dev: Callable[[tuple[LiveContainer, ...]], Answer[ContainerDev]] | None = None
    kubelet: Callable[[], Answer[Kubelet]] | None = None
    pods: Callable[[bool], Answer[Pods]] | None = None
    node: Callable[[bool], Answer[Node]] | None = None
    pod_names: Callable[[], Answer[PodNames]] | None = None
    pci: Callable[[], Answer[Pci]] | None = None


class Gatherer:
    """Gathers one Snapshot per call. Called from one thread."""

    def __init__(self, sources: Sources, interval: float, node_name: str) -> None:
        self._sources = sources
        self._interval = interval
        self._node_name = node_name
        self._slots: dict[str, Slot[object]] = {}

    def __call__(self, previous: Report | None) -> Snapshot:
        """Ask everything that is on. `previous` tells which processes to watch and whether the pods look
        outdated.
        """
        at, monotonic = time.time(), time.monotonic()
        sources, behind = self._sources, previous is not None and previous.attribution.api_behind
        self._start("nvml", sources.nvml.read if sources.nvml else None)
        self._start("kubelet", sources.kubelet)
        self._start("pods", sources.pods and (lambda ask=sources.pods: ask(behind)))
        self._start("node", sources.node and (lambda ask=sources.node: ask(behind)))
        self._start("pod_names", sources.pod_names)
        self._start("pci", sources.pci)
        deadline = self._deadline()
        snapshot = Snapshot(
            at=at,
            monotonic=monotonic,
            node_name=self._node_name,
            nvml=self._nvml(deadline),
            kubelet=self._collect("kubelet", sources.kubelet, deadline),
            pods=self._collect("pods", sources.pods, deadline),
            node=self._collect("node", sources.node, deadline),
            pod_names=self._collect("pod_names", sources.pod_names, deadline),
            pci=self._collect("pci", sources.pci, deadline),
            nvml_in_flight=sources.nvml.in_flight() if sources.nvml else None,
        )
        snapshot = replace(snapshot, processes=self._processes(snapshot, previous))
        return replace(snapshot, container_dev=self._container_dev(snapshot))

    def _nvml(self, deadline: float) -> Reading[Nvml]:
        """NVML's reading. Where it hangs half-way in this cycle, the GPUs that it got to are seen."""
        reader = self._sources.nvml
        reading: Reading[Nvml] = self._collect("nvml", reader, deadline)
        if reader and isinstance(reading, Missed) and reading.reason is Reason.TIMEOUT:
            partial = reader.partial()
            if partial is not None and partial.gpus:
                return Seen(partial, reading.at, reading.took, complete=False)
        return reading

    def _processes(self, snapshot: Snapshot, previous: Report | None) -> Reading[ProcessTable]:
        ask = self._sources.processes
        nvml = value(snapshot.nvml)
        numbers = sorted({row.pid for gpu in (nvml.gpus if nvml else ()) for row in gpu.rows or ()})
        watched = sorted({known.id.pid for known in previous.history.known} if previous else ())
        self._start("processes", ask and (lambda: ask(numbers, watched)))
        return self._collect("processes", ask, self._deadline())

    def _container_dev(self, snapshot: Snapshot) -> Reading[ContainerDev]:
        ask = self._sources.container_dev
        if ask is None:
            return Off()
        if isinstance(snapshot.processes, Missed):
            # Both are asked of one child, and without the scan there is nothing to ask about.
            return Missed(snapshot.processes.reason, snapshot.processes.at, 0.0, "the host was not scanned")
        table = value(snapshot.processes)
        containers = table.containers if table else ()
        self._start("container_dev", lambda: ask(containers))
        return self._collect("container_dev", ask, self._deadline())

    def _deadline(self) -> float:
        return time.monotonic() + min(self._interval / 2, LONGEST_WAIT)

    def _start(self, name: str, ask: Callable[[], Answer[T]] | None) -> None:
        if ask is not None:
            self._slot(name).start(ask, 2 * self._interval)

    def _collect(self, name: str, wanted: object, deadline: float) -> Reading[T]:
        return self._slot(name).collect(deadline) if wanted is not None else Off()  # type: ignore[return-value]

    def _slot(self, name: str) -> Slot[object]:
        return self._slots.setdefault(name, Slot(name))
