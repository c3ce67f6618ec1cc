"""One cycle's facts as rules ask for them: look-ups over snapshot, attribution and history. Pure.

In: what was read, joined and remembered. Out: records by identity, and for each kind of evidence whether it
is there. Nothing here decides what is wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from exporter import infrastructure
from exporter.diagnosis.rule import Evidence
from exporter.model import (
    NOBODY,
    Attribution,
    DeviceKey,
    DeviceUse,
    Gpu,
    Grant,
    History,
    Known,
    Missed,
    Off,
    Pod,
    Policy,
    Process,
    ProcessId,
    Reading,
    RowSighting,
    Seen,
    Snapshot,
    Use,
    Visibility,
    Workload,
    value,
)

START_SLACK = 2.0  # seconds: start times have clock ticks, sightings have cycles

# Evidence that is there when a source was seen: which source, and whether it must have seen everything.
OF_SOURCE: dict[Evidence, tuple[str, bool]] = {
    Evidence.INVENTORY: ("nvml", True),
    Evidence.SCAN: ("processes", False),
    Evidence.WHOLE_SCAN: ("processes", True),
    Evidence.PODS: ("pods", True),
    Evidence.NODE: ("node", False),
    Evidence.PCI: ("pci", True),
    Evidence.VIEWS: ("container_dev", False),
}


@dataclass(frozen=True, slots=True)
class Lack:
    """Evidence that is not there: which, why, and whether because the operator does not want its source."""

    evidence: Evidence
    reason: str
    off: bool = False


class Facts:
    """Everything that a check may look at."""

    def __init__(self, policy: Policy, before: History, snapshot: Snapshot, attribution: Attribution) -> None:
        self.policy = policy
        self.before = before
        self.snapshot = snapshot
        self.attribution = attribution
        nvml, table, pods = value(snapshot.nvml), value(snapshot.processes), value(snapshot.pods)
        self.gpus: dict[str, Gpu] = {gpu.uuid: gpu for gpu in nvml.gpus} if nvml else {}
        self.device_uses: dict[DeviceKey, DeviceUse] = {use.device: use for use in attribution.devices}
        self._cut = {key.uuid for key in self.device_uses if key.gi is not None}
        self.processes: dict[ProcessId, Process] = (
            {process.id: process for process in table.processes} if table else {}
        )
        self.by_pid: dict[int, Process] = {process.id.pid: process for process in self.processes.values()}
        self.known: dict[ProcessId, Known] = {known.id: known for known in before.known}
        self.pods: dict[str, Pod] = {}
        for pod in pods.pods if pods else ():
            self.pods[pod.uid] = self.pods[pod.cgroup_uid] = pod
        self.pod_named: dict[tuple[str, str], Pod] = {
            (pod.namespace, pod.name): pod for pod in self.pods.values()
        }
        self._uses_of: dict[ProcessId, list[Use]] = defaultdict(list)
        self._uses_on: dict[DeviceKey, list[Use]] = defaultdict(list)
        self._uses_of_gpu: dict[str, list[Use]] = defaultdict(list)
        for use in attribution.uses:
            self._uses_on[use.device].append(use)
            self._uses_of_gpu[use.device.uuid].append(use)
            if use.process is not None:
                self._uses_of[use.process].append(use)
        self._grants_on: dict[DeviceKey, list[Grant]] = defaultdict(list)
        self._grants_of: dict[tuple[str, str], list[Grant]] = defaultdict(list)
        for grant in attribution.grants:
            self._grants_of[grant.workload.namespace, grant.workload.pod].append(grant)
            if grant.device is not None:
                self._grants_on[grant.device].append(grant)
        rows = [row for gpu in self.gpus.values() for row in gpu.rows or ()]
        # Whether the driver gives no process' memory at all, so that N/A is all that can be had.
        self.unmeasured = bool(rows) and all(row.memory is None for row in rows)
        self._sightings = {(row.uuid, row.pid): row for row in before.rows}
        self._lacking: dict[tuple[Evidence, str | None], Lack | None] = {}
        # What is judged: every whole GPU, MIG parent and MIG device; not a GPU instance beside its parts.
        self.devices: tuple[DeviceKey, ...] = tuple(
            key for key in self.device_uses if key.gi is None or key.ci is not None
        )

    # --- devices

    @property
    def memories(self) -> tuple[DeviceKey, ...]:
        """What has memory of its own: whole GPUs, MIG devices, and GPU instances that several of them share.

        A GPU that is cut into parts is none of them.
        """
        shared = {(key.uuid, key.gi) for key in self.device_uses if key.gi is not None and key.ci is None}
        return tuple(
            key
            for key in self.device_uses
            if not (self.is_parent(key) or (key.ci is not None and (key.uuid, key.gi) in shared))
        )

    def gpu(self, device: DeviceKey) -> Gpu | None:
        """The (parent) GPU as NVML saw it in this cycle."""
        return self.gpus.get(device.uuid)

    def is_absent(self, device: DeviceKey | None) -> bool:
        """Whether NVML does not name its GPU."""
        return device is not None and device.uuid not in self.gpus

    def is_parent(self, device: DeviceKey) -> bool:
        """Whether it is a GPU that is cut into MIG devices, or ready to be."""
        gpu = self.gpu(device)
        return device.gi is None and (device.uuid in self._cut or bool(gpu and gpu.mig_enabled))

    def parts(self, device: DeviceKey) -> tuple[DeviceKey, ...]:
        """The MIG devices of a GPU."""
        return tuple(key for key in self.devices if key.uuid == device.uuid and key.gi is not None)

    # --- uses, processes, grants

    def uses_on(self, device: DeviceKey) -> list[Use]:
        """Rows of processes on exactly this device."""
        return self._uses_on.get(device, [])

    def uses_of(self, process: ProcessId) -> list[Use]:
        """Rows of one process, on whatever device."""
        return self._uses_of.get(process, [])

    def uses_of_gpu(self, uuid: str) -> list[Use]:
        """Rows of processes on a GPU or any MIG device of it."""
        return self._uses_of_gpu.get(uuid, [])

    def grants_on(self, device: DeviceKey) -> list[Grant]:
        """What the kubelet gave of exactly this device."""
        return self._grants_on.get(device, [])

    def grants_of(self, namespace: str, pod: str) -> tuple[Grant, ...]:
        """What the kubelet gave to a pod, resolved or not."""
        return tuple(self._grants_of.get((namespace, pod), ()))

    def older_row(self, use: Use) -> RowSighting | None:
        """The row's first sighting, if it is older than the process with its number, which holds nothing.

        Then the row is a dead process', whose number was given out again.
        """
        table = value(self.snapshot.processes)
        process = self.processes.get(use.process) if use.process else None
        if table is None or process is None or process.holds or process.dying:
            return None
        started = table.boot_time + process.id.start / table.ticks_per_second
        for number in process.numbers:
            sighting = self._sightings.get((use.device.uuid, number))
            if sighting is not None:
                return sighting if started > sighting.first + START_SLACK else None
        return None

    def ancestors(self, process: Process) -> Iterator[Process]:
        """Its parents as far as they are known, nearest first."""
        seen = {process.id.pid}
        while (parent := self.by_pid.get(process.parent)) is not None and parent.id.pid not in seen:
            seen.add(parent.id.pid)
            yield parent
            process = parent

    def is_worker(self, use: Use, process: Process) -> bool:
        """Whether it descends from a process of its pod that NVML lists on that GPU: part of a living job."""
        return any(
            other.visibility is not Visibility.HOLDER
            and other.device.uuid == use.device.uuid
            and other.pod_uid == use.pod_uid
            for parent in self.ancestors(process)
            for other in self.uses_of(parent.id)
        )

    def under_mps(self, device: DeviceKey) -> bool:
        """Whether an MPS server works there: its clients share the device, some without a row."""
        gpu = self.gpu(device)
        rows = (gpu.rows or ()) if gpu else ()
        if any("mps" in row.kinds and device.gi in (None, row.gi) for row in rows):
            return True
        return any(self.is_mps_server(use) for use in self.uses_of_gpu(device.uuid))

    def is_mps_server(self, use: Use) -> bool:
        """Whether this is NVIDIA's MPS daemon, as `exporter.infrastructure` knows it."""
        process = self.processes.get(use.process) if use.process else None
        if process is None:
            return False
        known = infrastructure.component(process.cgroup, use.workload.namespace, process.exe)
        return known is not None and known.name == "mps"

    # --- evidence

    def lack(self, evidence: Evidence, device: DeviceKey | None) -> Lack | None:
        """Why a kind of evidence is not there, or None where it is."""
        of_gpu = evidence in (Evidence.ROWS, Evidence.MEMORY)
        key = (evidence, device.uuid if of_gpu and device is not None else None)
        if key not in self._lacking:
            self._lacking[key] = self._look(evidence, device)
        return self._lacking[key]

    def _look(self, evidence: Evidence, device: DeviceKey | None) -> Lack | None:
        match evidence:
            case Evidence.ROWS | Evidence.MEMORY:
                return self._of_gpu(evidence, device)
            case Evidence.LIST:
                return self._listed(evidence)
            case Evidence.SETTLED_LIST:
                return self._settled(evidence)
            case _:
                source, complete = OF_SOURCE[evidence]
                return _lack(evidence, getattr(self.snapshot, source), complete=complete)

    def _of_gpu(self, evidence: Evidence, device: DeviceKey | None) -> Lack | None:
        lack = _lack(evidence, self.snapshot.nvml)
        if lack is not None or device is None:
            return lack
        gpu = self.gpu(device)
        if gpu is None:
            return Lack(evidence, "gpu_not_read")
        if gpu.lost:
            return Lack(evidence, gpu.lost.lower())
        if gpu.rows is None:
            return Lack(evidence, gpu.rows_problem.lower() or "no_rows")
        return None

    def _listed(self, evidence: Evidence) -> Lack | None:
        """Allocations may be judged while the kubelet answers, or within the grace of its last answer."""
        kubelet = self.snapshot.kubelet
        if not isinstance(kubelet, Missed):
            return _lack(evidence, kubelet)
        heard = self.before.kubelet_heard
        if heard is not None and self.snapshot.monotonic - heard <= self.policy.kubelet_grace:
            return None
        return _lack(evidence, kubelet)

    def _settled(self, evidence: Evidence) -> Lack | None:
        lack = _lack(evidence, self.snapshot.kubelet, complete=True)
        settled = self.before.kubelet_settled
        if lack is None and settled is not None and self.snapshot.monotonic < settled:
            return Lack(evidence, "kubelet_restarted")
        return lack


def one_workload(workloads: Iterable[Workload]) -> Workload:
    """The workload that all of them are: without a container where those differ, nobody where pods do."""
    all_ = set(workloads)
    pods = {(one.namespace, one.pod) for one in all_}
    if len(pods) != 1:
        return NOBODY
    namespace, pod = pods.pop()
    containers = {one.container for one in all_}
    return Workload(namespace, pod, containers.pop() if len(containers) == 1 else "")


def _lack(evidence: Evidence, reading: Reading[object], *, complete: bool = False) -> Lack | None:
    match reading:
        case Off():
            return Lack(evidence, "off", off=True)
        case Missed(reason=reason):
            return Lack(evidence, reason.value)
        case Seen() if complete and not reading.complete:
            return Lack(evidence, "incomplete")
        case _:
            return None
