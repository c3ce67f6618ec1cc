"""Findings about the node: counts of GPUs that ought to agree and do not. Pure.

The bus, the driver, the kubelet and the node object each count GPUs. A GPU that is missing is one incident:
it is told once, by the kind that names it, and the counts that it makes wrong are not told again. Replicas,
MIG devices, claims and GPUs handed to virtual machines are counted for what they are; where that is not
known, nothing is said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from exporter.diagnosis import standing
from exporter.diagnosis.facts import Facts
from exporter.diagnosis.offers import ADVISORY, PART, UNKNOWN, WHOLE, Offers, Stock, missing_parts
from exporter.diagnosis.rule import Evidence
from exporter.diagnosis.standing import Standing
from exporter.model import (
    NOBODY,
    FindingName,
    GpuByUuid,
    Grant,
    Holds,
    MigByUuid,
    Missed,
    NotApplicable,
    Nvml,
    Pci,
    PciGpu,
    Ruling,
    Seen,
    Subject,
    Undetermined,
    value,
)

NAME = FindingName.NODE_CAPACITY_MISMATCH
DRIVER = "nvidia"  # as sysfs names what a GPU is bound to
NAMING = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID")  # calls without which a GPU has no name
COUNTS = ("capacity_gt_real", "capacity_lt_real")
EXPECTED = "expected"  # GPUs that are missing and that nothing names
WHO = {WHOLE: "capacity", PART: "capacity of mig"}  # one incident, whichever count shows it


def mismatch(facts: Facts) -> Iterator[Ruling]:
    """Counts of GPUs that ought to agree and do not."""
    found = [*_off_the_bus(facts), *_held(facts)]
    yield from found
    absent = _Absent(facts, {one.subject.who for one in found if isinstance(one, Holds)})
    offers = Offers(facts)
    yield from _counts(facts, offers, absent)
    yield from _unhealthy(facts, offers, absent)
    yield from _doubles(facts, offers)
    yield from _stale(facts)


def _holds(kind: str, who: str, evidence: Sequence[str], grants: Sequence[Grant] = ()) -> Holds:
    """A finding of the node, with the pod that it is about where it is about one."""
    pods = {(grant.workload, grant.pod_uid) for grant in grants}
    workload, pod_uid = pods.pop() if len(pods) == 1 else (NOBODY, "")
    return Holds(Subject(NAME, None, who), kind, tuple(evidence), workload=workload, pod_uid=pod_uid)


def _unknown(kind: str, reason: str, who: str | None = None) -> Undetermined:
    return Undetermined(NAME, kind, None, reason, who)


class _Absent:
    """Devices that kinds of their own tell of, so that counts need not."""

    def __init__(self, facts: Facts, names: set[str]) -> None:
        parts = missing_parts(facts.gpus, names)
        wholes = sum(not name.startswith("MIG-") for name in names)
        if EXPECTED in names and facts.policy.expected_gpus is not None:
            wholes = facts.policy.expected_gpus - sum(not gpu.lost for gpu in facts.gpus.values())
        self._counts = {WHOLE: wholes, PART: None if parts is None else len(parts)}

    def explains(self, kind: str, surplus: int, each: int | None) -> bool:
        """Whether a count is off by no more than what is known to be missing, or not off at all."""
        count = self._counts.get(kind, 0)
        if surplus <= 0 or count is None:
            return True
        return surplus <= count * each if each is not None else count > 0


# --- bus and driver -----------------------------------------------------------------------------------------


def _off_the_bus(facts: Facts) -> Iterator[Ruling]:
    """GPUs that the driver ought to have and has not: a lost one is not there, though NVML may name it."""
    nvml, bus = value(facts.snapshot.nvml), value(facts.snapshot.pci)
    if nvml is None or bus is None or facts.lack(Evidence.PCI, None):
        return
    if not _told(nvml):
        yield _unknown("nvml_lt_pci", "inventory:incomplete")
        return
    live = [gpu for gpu in nvml.gpus if not gpu.lost]
    expected = facts.policy.expected_gpus
    cards = tuple(_missing(nvml, bus, short=expected is None or len(live) < expected))
    placed = {card.uuid for card in bus.gpus}
    vague = any(not gpu.pci_address and gpu.uuid not in placed for gpu in live)
    lost = {name: gpu for gpu in nvml.gpus if gpu.lost for name in (gpu.uuid, gpu.pci_address)}
    for card in cards:
        gpu = lost.get(card.uuid) or lost.get(card.address)
        uuid = card.uuid or (gpu.uuid if gpu else "")
        if vague:
            yield _unknown("nvml_lt_pci", "address_unknown", uuid or card.address)
            continue
        said = f"NVML says {gpu.lost}" if gpu else "NVML does not list it"
        grants = [one for one in facts.attribution.grants if uuid and one.device and one.device.uuid == uuid]
        yield _holds(
            "nvml_lt_pci",
            uuid or card.address,
            (
                f"PCI {card.address} {uuid}: bound to {card.driver or 'no driver'}; {said}",
                f"the bus has {len(bus.gpus)} GPUs, NVML {len(live)} that answer",
            ),
            grants,
        )
    if expected is not None and len(live) + len(cards) < expected:
        text = f"--expected-gpus is {expected}; NVML has {len(live)} that answer, the bus {len(bus.gpus)}"
        yield _holds("nvml_lt_pci", EXPECTED, (text,))


def _told(nvml: Nvml) -> bool:
    """Whether each GPU that NVML counts was named, or is known to have no name: then no others will come."""
    named = {gpu.index for gpu in nvml.gpus} | {one.index for one in nvml.faults if one.call in NAMING}
    return len(nvml.gpus) == nvml.count or named >= set(range(nvml.count))


def _missing(nvml: Nvml, bus: Pci, *, short: bool) -> Iterator[PciGpu]:
    """GPUs of the bus that NVML has not.

    Bound to another driver one is somebody else's: a virtual machine's, mostly. Bound to none it failed to
    start, unless the driver has as many as expected.
    """
    there = {name for gpu in nvml.gpus if not gpu.lost for name in (gpu.pci_address, gpu.uuid)}
    for card in bus.gpus:
        wanted = card.driver == DRIVER or (short and not card.driver)
        if wanted and card.address not in there and (not card.uuid or card.uuid not in there):
            yield card


# --- what pods were given -----------------------------------------------------------------------------------


def _held(facts: Facts) -> Iterator[Ruling]:
    """Devices that pods hold and NVML does not have. One that NVML names as lost, it has."""
    nvml = value(facts.snapshot.nvml)
    if nvml is None or facts.lack(Evidence.INVENTORY, None):
        return
    there = {gpu.uuid for gpu in nvml.gpus} | {one.mig_uuid for gpu in nvml.gpus for one in gpu.instances}
    # A call that failed may be why a MIG device is not in the list.
    blurred = any("Mig" in fault.call or "Instance" in fault.call for fault in nvml.faults)
    missing: dict[str, list[Grant]] = defaultdict(list)
    for grant in facts.attribution.grants:
        match grant.allocation.ref:
            case GpuByUuid(name) | MigByUuid(name) if name not in there and not _is_over(facts, grant):
                missing[name].append(grant)
            case _:
                continue
    for name, grants in missing.items():
        if not all(grant.current for grant in grants):
            yield _unknown("allocated_device_missing", "kubelet_restarted", name)
        elif all(standing.of_grant(facts, grant) is Standing.UNKNOWN for grant in grants):
            yield _unknown("allocated_device_missing", "pod_unknown", name)  # it may have ended
        elif blurred and name.startswith("MIG-"):
            yield _unknown("allocated_device_missing", "instances_not_read", name)
        else:
            pods = sorted({f"{grant.workload.namespace}/{grant.workload.pod}" for grant in grants})
            text = (
                f"the kubelet gave {name} to {', '.join(pods)}; NVML has {nvml.count} GPUs and not this one"
            )
            yield _holds("allocated_device_missing", name, (text,), grants)


def _is_over(facts: Facts, grant: Grant) -> bool:
    pod = facts.pod_named.get((grant.workload.namespace, grant.workload.pod))
    return pod is not None and pod.ended


def _stale(facts: Facts) -> Iterator[Ruling]:
    """Devices that the kubelet lists for pods that are over.

    Kubelets up to 1.33 list pods that have ended, but without devices. A pod of which something lives is not
    stale: the kubelet waits for it, and what lives in it is the orphan rule's.
    """
    kubelet, table = facts.snapshot.kubelet, value(facts.snapshot.processes)
    if not isinstance(kubelet, Seen) or facts.lack(Evidence.PODS, None):
        return
    living = {one.pod_uid for one in table.containers} if table else set()
    stale: dict[str, list[Grant]] = defaultdict(list)
    for grant in facts.attribution.grants:
        gone = (grant.workload.namespace, grant.workload.pod) not in facts.pod_named
        if grant.current and (gone or _is_over(facts, grant)) and grant.pod_uid not in living:
            stale[f"{grant.workload.namespace}/{grant.workload.pod}"].append(grant)
    for pod, grants in stale.items():
        if table is None:
            yield _unknown("allocation_stale", "scan:missed", pod)
            continue
        if facts.attribution.unnamed_pods and not any(grant.pod_uid for grant in grants):
            yield _unknown("allocation_stale", "pod_unnamed", pod)  # one of those that live may be it
            continue
        ids = ", ".join(sorted({grant.allocation.device_id for grant in grants}))
        state = "has ended" if _is_over(facts, grants[0]) else "is not known to the API server"
        yield _holds("allocation_stale", pod, (f"the kubelet lists {ids} for {pod}, which {state}",), grants)


# --- what the node offers -----------------------------------------------------------------------------------


def _unsettled(facts: Facts) -> str:
    """Why the kubelet's ids are not to be counted now: plugins register anew when it or they restart."""
    match facts.snapshot.kubelet:
        case Missed(reason=reason):
            return f"list:{reason}"
        case Seen(complete=False):
            return "list:incomplete"
        case _:
            return ""


def _counts(facts: Facts, offers: Offers, absent: _Absent) -> Iterator[Ruling]:
    """Capacity against the devices that there are."""
    reason = _unsettled(facts)
    if not reason and offers.by_class[UNKNOWN].capacity:
        reason = "unknown_resource"
    if reason:
        yield from (_unknown(kind, reason) for kind in COUNTS)
        return
    waived = "advisory_scheme" if offers.by_class[ADVISORY].capacity else ""
    if waived or not offers.has_plugin:
        for kind in COUNTS:
            yield NotApplicable(NAME, kind, None, waived or "no_device_plugin")
        return
    if offers.has_claims:
        yield NotApplicable(NAME, "capacity_lt_real", None, "claims")
    for kind in WHO:
        for ruling in _compared(facts, offers, absent, kind):
            if not (offers.has_claims and ruling.kind == "capacity_lt_real"):
                yield ruling


def _compared(facts: Facts, offers: Offers, absent: _Absent, kind: str) -> Iterator[Holds | Undetermined]:
    """The capacity of one class of devices against what there is of it."""
    offer, stock, who = offers.by_class[kind], offers.stock(kind), WHO[kind]
    evidence = (str(offer), _words(kind, stock), f"kubelet: {sum(offer.ids.values())} healthy ids")
    if offer.capacity < stock.least:
        # What ought to be there may be what is missing, where the operator says how much ought to be.
        told = facts.policy.expected_gpus is not None
        if not (told and absent.explains(kind, stock.least - offer.capacity, stock.each)):
            yield _holds("capacity_lt_real", who, evidence)
    elif stock.most is None and offer.capacity > stock.least:
        yield _unknown("capacity_gt_real", "replicas_unknown", who)
    elif stock.most is not None and not absent.explains(kind, offer.capacity - stock.most, stock.each):
        yield _holds("capacity_gt_real", who, evidence)


def _words(kind: str, stock: Stock) -> str:
    devices = "GPUs to offer whole" if kind == WHOLE else "MIG devices to offer"
    most = "any number of" if stock.most is None else f"at most {stock.most}"
    return f"there are {stock.devices} {devices}: at least {stock.least} and {most} ids"


def _unhealthy(facts: Facts, offers: Offers, absent: _Absent) -> Iterator[Ruling]:
    """Devices that a plugin calls unhealthy: they stay in the capacity and leave what can be allocated."""
    for kind, offer in offers.by_class.items():
        who = WHO.get(kind, f"capacity {kind}")
        lacking = offer.capacity - offer.allocatable
        each = offers.stock(kind).each if kind in WHO else 1
        if lacking <= 0 or absent.explains(kind, lacking, each):
            continue
        if isinstance(facts.snapshot.kubelet, Seen) and (reason := _unsettled(facts)):
            yield _unknown("allocatable_lt_capacity", reason, who)
        else:
            yield _holds("allocatable_lt_capacity", who, (str(offer),))


def _doubles(facts: Facts, offers: Offers) -> Iterator[Ruling]:
    """GPUs that are offered whole and in parts: whoever comes second finds them in use."""
    if not (offers.by_class[WHOLE].capacity and offers.by_class[PART].capacity):
        return
    if reason := _unsettled(facts):
        yield _unknown("mig_double_advertised", reason)
    elif not offers.listed:
        yield NotApplicable(NAME, "mig_double_advertised", None, "no_ids")
    elif doubles := offers.doubles():
        text = f"the kubelet has ids of {', '.join(doubles)} whole and of MIG devices in it"
        yield _holds("mig_double_advertised", "offered twice", (text,))
    elif lack := facts.lack(Evidence.INVENTORY, None):  # it says which GPU a MIG device is a part of
        yield _unknown("mig_double_advertised", f"{lack.evidence}:{lack.reason}")
