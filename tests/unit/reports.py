"""Reports to test with, and the samples of a report by their labels."""

from dataclasses import replace
from typing import Any

from exporter.catalog import FAMILIES
from exporter.model import (
    NOBODY,
    SOURCES,
    Attribution,
    Diagnosis,
    FileHolders,
    FindingName,
    GpuFault,
    History,
    InFlight,
    Missed,
    NodeKind,
    NotApplicable,
    Off,
    Owner,
    Policy,
    ProcessUsage,
    Reason,
    Report,
    Snapshot,
    SourceRecord,
    Telemetry,
    Undetermined,
    Use,
    Visibility,
    Workload,
)
from exporter.model.report import WebReload
from exporter.sources.nvml_fields import EVENTS
from tests import builders as b
from tests.builders import GIB, NOW

BY_NAME = {family.name: family for family in FAMILIES}
WORKED = Telemetry(
    utilization=0.5,
    memory_activity=0.25,
    encoder=0.0,
    decoder=0.0,
    temperature=61.0,
    thresholds=(("slowdown", 90.0), ("shutdown", 95.0)),
    power=310.5,
    power_limit=700.0,
    energy=12_345.5,
    clocks=(("sm", 1.98e9), ("memory", 2.6e9)),
    ecc_errors=(("corrected", 3.0), ("uncorrected", 0.0)),
    ecc_lifetime_errors=(("corrected", 9.0), ("uncorrected", 1.0)),
    remapped_rows=(("corrected", 0.0), ("uncorrected", 1.0)),
    row_remap_pending=True,
    row_remap_failure=False,
    clock_events=tuple((name, name == "sw_power_cap") for name, _ in EVENTS),
)
PLUGIN = (("app", "nvidia-device-plugin-daemonset"),)
WHOLE = Policy(version="0.1.0", telemetry_extended=True)
ALL_SAMPLED = ProcessUsage(4000, 0.4, 0.2, 0.0, 0.0)


def rows(report: Report, name: str) -> dict[frozenset[tuple[str, str]], float]:
    """Samples of a family by their labels; a duplicate is an error."""
    family = BY_NAME[name]
    found: dict[frozenset[tuple[str, str]], float] = {}
    for values, number in family.samples(report):
        labels = frozenset(zip(family.labels, values, strict=True))
        assert labels not in found, f"{name}: {sorted(labels)} twice"
        found[labels] = number
    return found


def one(report: Report, name: str, **labels: str) -> float | None:
    """The one sample with these labels, or None where there is none."""
    matching = [number for found, number in rows(report, name).items() if labels.items() <= set(found)]
    assert len(matching) <= 1, f"{name}: {len(matching)} series match {labels}"
    return matching[0] if matching else None


def names(report: Report) -> set[str]:
    """The families that have a sample."""
    return {family.name for family in FAMILIES if rows(report, family.name)}


def with_sources(look: Snapshot, reading: Missed | Off, *sources: str) -> Snapshot:
    """The look with this reading for the named sources, or for all."""
    changes: dict[str, Any] = dict.fromkeys(sources or SOURCES, reading)
    return replace(look, **changes)


def busy() -> Report:
    """A node on which every family of the catalog has something to say."""
    mig = tuple(b.mig_instance(gi, index=1, used=GIB) for gi in (1, 2))
    gpus = (
        b.gpu(0, used=3 * GIB, rows=(b.row(4000),), telemetry=WORKED),
        b.gpu(1, mig_enabled=True, instances=mig, used=2 * GIB),
    )
    call = InFlight("nvmlDeviceGetMemoryInfo_v2", 1, b.gpu_uuid(1), NOW - 3)
    looked = b.snapshot(
        nvml=b.nvml(*gpus, faults=(GpuFault(1, b.gpu_uuid(1), "nvmlDeviceGetPowerUsage", "unknown error"),)),
        kubelet=b.kubelet(b.allocation()),
        pods=(b.pod(gpus=1), b.pod("plugin-x", namespace="gpu-operator", uid=b.pod_uid(9), labels=PLUGIN)),
        in_flight=call,
    )
    attribution = Attribution(
        uses=(b.use(usage=ALL_SAMPLED), b.use(4100, b.key(1, 1, 0))),
        grants=(b.grant(b.key()),),
        devices=(
            b.device_use(owner=b.TRAINER, allocated=True, attributed=GIB, unattributed=2 * GIB, baseline=0),
            b.device_use(b.key(1), attributed=None, unattributed=None, baseline=None),
            b.device_use(b.key(1, 1, 0), attributed=GIB),
            b.device_use(b.key(1, 2, 0)),
        ),
        holders=(FileHolders(b.device_node(minor=0), Owner.POD, 7),),
    )
    history = History(
        indices=((b.gpu_uuid(0), 0), (b.gpu_uuid(1), 1)),
        last_active=((b.gpu_uuid(0), NOW - 60),),
        sources=tuple(SourceRecord(source, last_success=NOW) for source in SOURCES),
        cycles=9,
    )
    told = b.clear_of(b.key(), b.key(1), b.key(1, 1, 0), b.key(1, 2, 0), but=(FindingName.STUCK_PROCESS,))
    off = NotApplicable(FindingName.NODE_CAPACITY_MISMATCH, "mig_double_advertised", None, "node:off")
    doubt = Undetermined(FindingName.VISIBLE_NOT_ALLOCATED, "other", b.key(), "unentered")
    diagnosis = replace(told, findings=(b.finding(),), undetermined=(doubt,), not_applicable=(off,))
    report = b.report(looked, attribution, history=history, diagnosis=diagnosis, policy=WHOLE)
    return replace(report, web_reload=WebReload(succeeded=True, at=NOW))


def all_off() -> Report:
    """A node of which nothing is wanted."""
    return b.report(with_sources(b.snapshot(), Off()))


def mig_report(*devices: tuple[int, int], owners: dict[tuple[int, int], Workload] | None = None) -> Report:
    """GPU 0 in MIG mode with the given (gi, ci), each instance with 1 GiB in use."""
    instances = tuple(b.mig_instance(gi, ci, used=GIB) for gi, ci in devices)
    looked = b.snapshot(nvml=b.nvml(b.gpu(mig_enabled=True, instances=instances)))
    owned = owners or {}
    uses = tuple(
        b.device_use(b.key(0, gi, ci), owner=owned.get((gi, ci), NOBODY), attributed=GIB)
        for gi, ci in devices
    )
    return b.report(looked, Attribution(devices=(b.device_use(), *uses), holders=()))


def used(*uses: Use, policy: Policy | None = None) -> Report:
    """The quiet node with these uses of its GPU."""
    return b.report(b.snapshot(), Attribution(uses=uses, holders=()), policy=policy)


def whole_gpus_with_64_processes() -> Report:
    """Eight GPUs, each with eight processes of a pod of its own."""
    gpus = tuple(
        b.gpu(index, rows=tuple(b.row(1000 * index + n) for n in range(8)), telemetry=WORKED)
        for index in range(8)
    )
    owners = [Workload("team-a", f"train-{index}", "main") for index in range(8)]
    attribution = Attribution(
        uses=tuple(
            b.use(1000 * index + n, b.key(index), workload=owners[index], usage=ALL_SAMPLED)
            for index in range(8)
            for n in range(8)
        ),
        grants=tuple(b.grant(b.key(index), workload=owners[index]) for index in range(8)),
        devices=tuple(b.device_use(b.key(index), owner=owners[index], allocated=True) for index in range(8)),
        holders=tuple(
            FileHolders(b.device_node(kind, minor), owner, 1)
            for owner in Owner
            for kind, minors in (
                (NodeKind.GPU, range(8)),
                (NodeKind.UVM, range(1)),
                (NodeKind.CONTROL, range(1)),
            )
            for minor in minors
        ),
    )
    report = b.report(b.snapshot(nvml=b.nvml(*gpus)), policy=WHOLE)
    history = replace(
        report.history,
        last_active=tuple((item.uuid, NOW) for item in gpus),
        sources=tuple(SourceRecord(source, last_success=NOW) for source in SOURCES),
    )
    diagnosis = b.clear_of(*(use.device for use in attribution.devices))
    return replace(report, attribution=attribution, history=history, diagnosis=diagnosis)


def eight_gpus_with_56_mig_devices(count: int = 8) -> Report:
    """Eight GPUs of seven MIG devices each, every one given to a pod with one process."""
    places = [(index, gi) for index in range(count) for gi in range(7, 14)]
    gpus = tuple(
        b.gpu(
            index,
            mig_enabled=True,
            instances=tuple(b.mig_instance(gi, index=index) for gi in range(7, 14)),
            telemetry=replace(WORKED, utilization=None, memory_activity=None),
        )
        for index in range(count)
    )
    owners = {place: Workload("team-a", f"notebook-{place[0]}-{place[1]}", "main") for place in places}
    uses = tuple(
        b.use(100 * index + gi, b.key(index, gi, 0), workload=owners[index, gi]) for index, gi in places
    )
    capability_nodes = range(2 * len(places))
    attribution = Attribution(
        uses=uses,
        grants=tuple(b.grant(b.key(index, gi, 0), workload=owners[index, gi]) for index, gi in places),
        devices=(
            *(b.device_use(b.key(index), attributed=None, unattributed=None) for index in range(count)),
            *(b.device_use(b.key(*place, 0), owner=owner, allocated=True) for place, owner in owners.items()),
        ),
        holders=tuple(
            FileHolders(b.device_node(NodeKind.CAPABILITY, minor), Owner.POD, 1) for minor in capability_nodes
        ),
    )
    report = b.report(b.snapshot(nvml=b.nvml(*gpus)), policy=WHOLE)
    history = replace(
        report.history, sources=tuple(SourceRecord(source, last_success=NOW) for source in SOURCES)
    )
    diagnosis = b.clear_of(*(use.device for use in attribution.devices))
    return replace(report, attribution=attribution, history=history, diagnosis=diagnosis)


def troubled() -> Report:
    """A GPU of train-0 that an intruder and a service use too; one process is stuck, and the API is down."""
    intruder = Workload("team-b", "rogue-0", "main")
    stuck, orphan = FindingName.STUCK_PROCESS, FindingName.ORPHAN_PROCESS
    uses = (
        b.use(4000),
        b.use(4001, workload=intruder, uid=b.pod_uid(2), used=2 * GIB, comm="miner"),
        b.use(4002, workload=NOBODY, owner=Owner.HOST, used=None, visibility=Visibility.HOLDER, comm="top"),
    )
    look = b.snapshot(nvml=b.nvml(b.gpu(used=4 * GIB)), pods=b.missed(Reason.DENIED, detail="403 Forbidden"))
    attribution = Attribution(
        uses=uses,
        grants=(b.grant(b.key()),),
        devices=(b.device_use(owner=b.TRAINER, allocated=True, attributed=3 * GIB, unattributed=GIB),),
        holders=(),
    )
    diagnosis = Diagnosis(
        findings=(
            b.finding(active=False),
            b.finding(orphan, "pod_gone", active=False, explained_by=stuck),
        ),
        undetermined=(
            Undetermined(orphan, "pod_gone", None, "pods:denied"),
            Undetermined(orphan, "pod_terminal", None, "pods:denied"),
            Undetermined(FindingName.NODE_CAPACITY_MISMATCH, "allocation_stale", None, "pods:denied"),
            Undetermined(FindingName.PHANTOM_PROCESS, "held", b.key(), "thread_id", "7"),
        ),
    )
    return b.report(look, attribution, diagnosis=diagnosis)
