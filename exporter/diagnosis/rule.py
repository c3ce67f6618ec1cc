"""What a rule is: a row of the table in `exporter.diagnosis`. Pure data.

A rule says what holds *now*. It counts no cycles and knows no ages: `settle` does. Each kind names the
evidence without which it cannot be judged, in alternatives; where no alternative is to be had it is
undetermined, or not applicable if the operator switched the source off. The engine sees to that, so a check
may rely on what its kind needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from exporter.model import FindingName, Ruling, Severity

if TYPE_CHECKING:
    from exporter.diagnosis.facts import Facts


class Evidence(StrEnum):
    """What a verdict may rest on. Those of a GPU are asked for each device, the others once for the node."""

    ROWS = "rows"  # NVML's process list of the GPU, believable
    MEMORY = "memory"  # used, total and the rows' figures of the device, meaning what they say
    INVENTORY = "inventory"  # all GPUs that NVML counts
    SCAN = "scan"  # the host was scanned
    WHOLE_SCAN = "whole_scan"  # and no process kept its descriptors from us
    LIST = "list"  # the kubelet's allocations, as known now
    SETTLED_LIST = "settled_list"  # and a pod that is not listed is not there
    PODS = "pods"  # the API server's pods, all of them
    NODE = "node"
    PCI = "pci"
    VIEWS = "views"  # what containers' /dev show


# In words, for the reference and for people who ask what was missing.
EVIDENCE: Mapping[Evidence, str] = {
    Evidence.ROWS: "NVML's process list of the GPU",
    Evidence.MEMORY: "memory in use and every process' figure",
    Evidence.INVENTORY: "all GPUs from NVML",
    Evidence.SCAN: "the scan of /proc",
    Evidence.WHOLE_SCAN: "a scan of /proc that could read every process",
    Evidence.LIST: "the kubelet's allocations",
    Evidence.SETTLED_LIST: "the kubelet's allocations, not just after its restart",
    Evidence.PODS: "the API server's pods",
    Evidence.NODE: "the node object",
    Evidence.PCI: "the PCI bus",
    Evidence.VIEWS: "what containers see in /dev",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """One way in which a finding can hold. It counts after so many consecutive cycles *and* seconds."""

    name: str
    needs: tuple[frozenset[Evidence], ...]
    meaning: str  # one sentence
    cycles: int = 2
    age: float = 60.0  # seconds
    severity: Severity | None = None  # where it differs from the rule's


@dataclass(frozen=True, slots=True)
class Rule:
    """One finding. `of_node`: judged once for the node, not for each device. `of_memory`: for each piece of
    memory, which MIG devices of one GPU instance share.
    """

    finding: FindingName
    kinds: tuple[Kind, ...]
    check: Callable[[Facts], Iterator[Ruling]]
    severity: Severity
    summary: str  # what it means, one sentence
    guards: str  # what does not count
    remedy: str  # one sentence that an on-call can act on
    alert: str  # the alert and the runbook that speak of it
    of_node: bool = False
    of_memory: bool = False

    def kind(self, name: str) -> Kind:
        """The kind of that name. KeyError where there is none: a check that invents kinds is a bug."""
        for kind in self.kinds:
            if kind.name == name:
                return kind
        raise KeyError(name)


def needs(*alternatives: tuple[Evidence, ...]) -> tuple[frozenset[Evidence], ...]:
    """Alternatives of evidence, the best first."""
    return tuple(frozenset(one) for one in alternatives)
