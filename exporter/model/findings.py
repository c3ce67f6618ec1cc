"""Findings: what a rule says of this cycle, and what becomes of it over cycles."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from exporter.model.identities import NOBODY, DeviceKey, ProcessId, Workload


class FindingName(StrEnum):
    """What can be wrong. Precedence is in `exporter.diagnosis.settle`."""

    PHANTOM_PROCESS = "phantom_process"
    STUCK_PROCESS = "stuck_process"
    ORPHAN_PROCESS = "orphan_process"
    EXTERNAL_PROCESS = "external_process"
    HIDDEN_HOLDER = "hidden_holder"
    ORPHANED_MEMORY = "orphaned_memory"
    EXCLUSIVE_GPU_SHARED = "exclusive_gpu_shared"
    USED_NOT_ALLOCATED = "used_not_allocated"
    VISIBLE_NOT_ALLOCATED = "visible_not_allocated"
    ALLOCATED_NOT_VISIBLE = "allocated_not_visible"
    NODE_CAPACITY_MISMATCH = "node_capacity_mismatch"
    IDLE_ALLOCATION = "idle_allocation"


class Severity(StrEnum):
    """How an alert on a finding is routed."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a finding is about, over time. The kind is no part of it: a zombie that was stuck is one incident.

    `device` None is the whole node. `who` tells subjects on one device apart: a process, a pod, a container,
    or "" where the device itself is the subject.
    """

    finding: FindingName
    device: DeviceKey | None
    who: str = ""

    @property
    def order(self) -> tuple[str, tuple[str, int, int, str], str]:
        """A sort key."""
        return (self.finding.value, self.device.order if self.device else ("", -1, -1, ""), self.who)


@dataclass(frozen=True, slots=True)
class Holds:
    """A rule says: this is so, now. `evidence` are lines that a person can check on the node.

    `processes` are those that the finding is about; `pid` is 0 where it is about none, `memory` None where no
    bytes are known or at stake.
    """

    subject: Subject
    kind: str
    evidence: tuple[str, ...]
    workload: Workload = NOBODY
    pod_uid: str = ""
    pid: int = 0
    comm: str = ""
    memory: int | None = None
    processes: tuple[ProcessId, ...] = ()
    severity: Severity | None = None  # where it differs from the rule's


@dataclass(frozen=True, slots=True)
class Undetermined:
    """A kind that cannot be judged on a device (None: on the node), or of one subject, and why."""

    finding: FindingName
    kind: str
    device: DeviceKey | None
    reason: str
    who: str | None = None  # of one subject only


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """A kind without meaning on a device (None: the node), and why: a source is off, the hardware differs."""

    finding: FindingName
    kind: str
    device: DeviceKey | None
    reason: str


Ruling: TypeAlias = Holds | Undetermined | NotApplicable


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a rule found, followed over cycles.

    `since` is when it was first found. `active` = it has been so for as many cycles and seconds as its kind
    asks. `undetermined` is why it could not be judged again in this cycle, "" if it was. `explained_by` names
    the finding that is its cause: then it is told, but not counted.
    """

    holds: Holds
    since: float
    since_monotonic: float
    held_monotonic: float
    cycles: int
    active: bool
    undetermined: str = ""
    explained_by: FindingName | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings of a cycle, and what could not be judged. `clear`: device (None: node) per finding."""

    findings: tuple[Finding, ...] = ()
    undetermined: tuple[Undetermined, ...] = ()
    not_applicable: tuple[NotApplicable, ...] = ()
    clear: tuple[tuple[FindingName, DeviceKey | None], ...] = ()


NOTHING_FOUND = Diagnosis()
