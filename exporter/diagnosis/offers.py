"""What the node offers of GPUs, and how much of that there is: look-ups for the rules of capacity. Pure.

In: facts of one cycle. Out: for whole GPUs and for MIG devices, what the node object counts, which ids the
kubelet has of them, and how many ids there ought to be. A resource is known by the ids that the kubelet lists
for it, because its name is the operator's to choose; by its usual name only where there are none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from exporter.diagnosis.facts import Facts
from exporter.model import (
    Advisory,
    DeviceRef,
    Gpu,
    GpuByMinor,
    GpuByUuid,
    MigByInstance,
    MigByPlacement,
    MigByUuid,
    Passthrough,
    Unrecognised,
    value,
)

WHOLE, PART, PASSED_ON, ADVISORY, UNKNOWN = "whole", "mig", "passed on", "advisory", "unknown"
_NAMES = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
_PART_NAMES = "nvidia.com/mig-"
_STRATEGY = "nvidia.com/mig.strategy"  # of NVIDIA's device plugin, as feature discovery says
_REPLICAS = ("nvidia.com/gpu.replicas", "cloud.google.com/gke-max-shared-clients-per-gpu")
_PLUGIN = "device-plugin"  # in a label of the plugin's pods: NVIDIA's operator, charts and GKE
_VGPU_HOSTS = ("host_vgpu", "host_vsga")  # their GPUs are given to virtual machines in slices


@dataclass(frozen=True, slots=True)
class Offer:
    """What the node object counts of one class of devices. `ids`: ids that the kubelet has, per device."""

    resources: tuple[str, ...]
    capacity: int
    allocatable: int
    ids: Mapping[str, int]

    def __str__(self) -> str:
        names = ", ".join(self.resources) or "no resource"
        return f"node object: capacity {self.capacity} and allocatable {self.allocatable} of {names}"


@dataclass(frozen=True, slots=True)
class Stock:
    """How many ids the devices that NVML has make: at least, and at most (None: not known how many each)."""

    devices: int
    least: int
    most: int | None
    each: int | None  # most ids of one device


class Offers:
    """Everything that the node offers of GPUs."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        node, kubelet = value(facts.snapshot.node), value(facts.snapshot.kubelet)
        self._labels = dict(node.labels) if node else {}
        self._live = [
            gpu for gpu in facts.gpus.values() if not gpu.lost and gpu.virtualization not in _VGPU_HOSTS
        ]
        self._listed = kubelet.allocatable if kubelet else None
        refs: dict[str, set[DeviceRef]] = defaultdict(set)
        for one in self._listed or ():
            refs[one.resource].add(one.ref)
        for grant in facts.attribution.grants:
            refs[grant.allocation.resource].add(grant.allocation.ref)
        capacity, allocatable = (dict(node.capacity), dict(node.allocatable)) if node else ({}, {})
        # A resource that was renamed or whose plugin is gone stays with a count of 0.
        offered = {name: self._class(name, refs[name]) for name, count in capacity.items() if count}
        self.by_class = {
            kind: self._offer(kind, tuple(n for n, k in offered.items() if k == kind), capacity, allocatable)
            for kind in (WHOLE, PART, PASSED_ON, ADVISORY, UNKNOWN)
        }

    def _offer(
        self, kind: str, names: tuple[str, ...], capacity: Mapping[str, int], allocatable: Mapping[str, int]
    ) -> Offer:
        devices = [one for one in self._listed or () if self._class(one.resource, {one.ref}) == kind]
        return Offer(
            resources=tuple(sorted(names)),
            capacity=sum(capacity[name] for name in names),
            allocatable=sum(allocatable.get(name, 0) for name in names),
            ids=Counter(self._name(one.ref) for one in devices),
        )

    def _class(self, resource: str, refs: set[DeviceRef]) -> str:
        kinds = {_KINDS[type(ref)] for ref in refs}
        for kind in (UNKNOWN, ADVISORY, PART, WHOLE, PASSED_ON):
            if kind in kinds:
                return kind
        if resource.startswith(_PART_NAMES):
            return PART
        if resource not in _NAMES:
            return UNKNOWN
        single = self._labels.get(_STRATEGY) == "single" and any(gpu.mig_enabled for gpu in self._live)
        return PART if single else WHOLE

    def _name(self, ref: DeviceRef) -> str:
        match ref:
            case GpuByUuid(uuid):
                return uuid
            case GpuByMinor(minor):
                return next((gpu.uuid for gpu in self._live if gpu.minor == minor), f"nvidia{minor}")
            case MigByUuid(mig_uuid):
                return mig_uuid
            case _:
                return str(ref)

    @property
    def listed(self) -> bool:
        """Whether the kubelet says which ids it has."""
        return self._listed is not None

    @property
    def has_plugin(self) -> bool:
        """Whether a device plugin is at work here, even where it offers nothing just now."""
        return (
            any(offer.capacity for offer in self.by_class.values())
            or self._facts.policy.expected_gpus is not None
            or any("/" in grant.allocation.resource for grant in self._facts.attribution.grants)
            or any(
                _PLUGIN in label
                for pod in self._facts.pods.values()
                for _, label in pod.labels
                if not pod.ended
            )
        )

    @property
    def has_claims(self) -> bool:
        """Whether a DRA driver gives GPUs too, which no resource counts. Its names have no slash."""
        return any("/" not in grant.allocation.resource for grant in self._facts.attribution.grants)

    def stock(self, kind: str) -> Stock:
        """How many ids of whole GPUs, or of MIG devices, there ought to be."""
        ids = self.by_class[kind].ids
        sure, maybe = self._parts() if kind == PART else self._wholes()
        few, many = self._replicas(kind)
        count = len(sure)
        there = [ids[name] for name in sure if name in ids]
        expected = self._facts.policy.expected_gpus
        if kind == WHOLE and expected is not None:
            cut = sum(bool(gpu.mig_enabled) and gpu.uuid not in sure for gpu in self._live)
            count, there = max(0, expected - cut), []
        rest = count - len(there)
        most = None if many is None else sum(there) + (rest + len(maybe)) * many
        return Stock(count, sum(there) + rest * few, most, many)

    def doubles(self) -> tuple[str, ...]:
        """GPUs of which the kubelet has ids both whole and in parts."""
        return tuple(sorted(set(self.by_class[WHOLE].ids) & set(self._parents())))

    def _parents(self) -> Iterator[str]:
        parents = {one.mig_uuid: gpu.uuid for gpu in self._facts.gpus.values() for one in gpu.instances}
        for one in self._listed or ():
            match one.ref:
                case MigByUuid(mig_uuid) if mig_uuid in parents:
                    yield parents[mig_uuid]
                case MigByInstance(uuid, minor):
                    yield uuid or self._name(GpuByMinor(-1 if minor is None else minor))
                case _:
                    continue

    def _wholes(self) -> tuple[set[str], set[str]]:
        """UUIDs of GPUs that are to be offered whole, and of those that may be.

        One that is cut into MIG devices is whole to a plugin that does not know MIG.
        """
        cut = {gpu.uuid for gpu in self._live if gpu.mig_enabled}
        sure = {gpu.uuid for gpu in self._live} - cut
        if self._strategy == "none":
            return sure | cut, set()
        if self._strategy or any(offer.ids for offer in self.by_class.values()):
            return sure | (cut & set(self.by_class[WHOLE].ids)), set()
        return sure, cut

    def _parts(self) -> tuple[set[str], set[str]]:
        """UUIDs of MIG devices that are to be offered, and of those that may be."""
        if self._strategy == "none":
            return set(), set()
        only_whole = set(self.by_class[WHOLE].ids) - set(self._parents())
        found = {one.mig_uuid for gpu in self._live if gpu.uuid not in only_whole for one in gpu.instances}
        known = self._strategy or any(offer.ids for offer in self.by_class.values())
        return (found, set()) if known else (set(), found)

    @property
    def _strategy(self) -> str:
        return self._labels.get(_STRATEGY, "")

    def _replicas(self, kind: str) -> tuple[int, int | None]:
        """Least and most ids of one device."""
        if counts := self.by_class[kind].ids.values():
            return min(counts), max(counts)
        told = [self._labels[name] for name in _REPLICAS if name in self._labels]
        if told and told[0].isdigit() and kind == WHOLE:
            return max(1, int(told[0])), max(1, int(told[0]))
        return 1, None


_KINDS: dict[type[DeviceRef], str] = {
    GpuByUuid: WHOLE,
    GpuByMinor: WHOLE,
    MigByUuid: PART,
    MigByInstance: PART,
    MigByPlacement: PART,
    Passthrough: PASSED_ON,
    Advisory: ADVISORY,
    Unrecognised: UNKNOWN,
}


def missing_parts(gpus: Mapping[str, Gpu], names: set[str]) -> set[str] | None:
    """MIG devices among `names` or of GPUs among them; None where a GPU's are not known any more."""
    wholes = {name for name in names if not name.startswith("MIG-")}
    if wholes - gpus.keys():
        return None
    return (names - wholes) | {one.mig_uuid for uuid in wholes for one in gpus[uuid].instances}
