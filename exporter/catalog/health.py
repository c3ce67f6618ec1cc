"""Rows about the exporter itself: versions, cycle, sources, and what it could not see or understand."""

from collections.abc import Callable, Iterator

from exporter.catalog.family import (
    DEVICE,
    Devices,
    Family,
    Kind,
    Sample,
    Samples,
    devices_of,
    flag,
    known,
    nvml,
)
from exporter.model import (
    SOURCES,
    AllocatableDevice,
    Allocation,
    Missed,
    Nvml,
    Off,
    ProcessTable,
    Reading,
    Reason,
    Report,
    Seen,
    SourceRecord,
    Unrecognised,
    value,
)
from exporter.model.report import WebReload

_CALL = ("call", *DEVICE)


def _build(report: Report) -> Samples:
    yield (report.policy.version, "true" if report.policy.simulated else "false"), 1


def _node(report: Report) -> Samples:
    yield (report.snapshot.node_name,), 1


def _cycle_timestamp(report: Report) -> Samples:
    yield (), report.snapshot.at


def _cycle_duration(report: Report) -> Samples:
    yield from known((), report.took)


# --- sources ------------------------------------------------------------------------------------------------


def readings(report: Report) -> Iterator[tuple[str, Seen[object] | Missed]]:
    """The sources that are on, each with what became of asking it."""
    for source in SOURCES:
        reading: Reading[object] = getattr(report.snapshot, source)
        if not isinstance(reading, Off):
            yield source, reading


def records(report: Report) -> dict[str, SourceRecord]:
    """What is remembered of each source."""
    return {record.source: record for record in report.history.sources}


def _up(report: Report) -> Samples:
    for source, reading in readings(report):
        yield (source,), flag(isinstance(reading, Seen))


def _paused(report: Report) -> Samples:
    for source, reading in readings(report):
        yield (source,), flag(isinstance(reading, Missed) and reading.reason is Reason.PAUSED)


def _duration(report: Report) -> Samples:
    for source, reading in readings(report):
        yield (source,), reading.took


def _last_success(report: Report) -> Samples:
    remembered = records(report)
    for source, _ in readings(report):
        record = remembered.get(source)
        yield from known((source,), record.last_success if record is not None else None)


def _errors(report: Report) -> Samples:
    remembered = records(report)
    for source, _ in readings(report):
        record = remembered.get(source)
        counts = dict(record.errors) if record is not None else {}
        for reason in Reason:
            yield (source, reason.value), counts.get(reason, 0)


# --- what one source says about its own view ----------------------------------------------------------------


def _faults(report: Report) -> Samples:
    seen = nvml(report)
    if seen is not None:
        devices = devices_of(report)
        for labels in _fault_rows(devices, seen):
            yield labels, 1


def _fault_rows(devices: Devices, seen: Nvml) -> set[tuple[str, ...]]:
    rows = {(*devices.gpu(fault.uuid, fault.index), fault.call, fault.error) for fault in seen.faults}
    told = {fault.uuid for fault in seen.faults}
    rows |= {
        (*devices.gpu(gpu.uuid, gpu.index), "", gpu.lost)
        for gpu in seen.gpus
        if gpu.lost and gpu.uuid not in told
    }
    return rows


def _in_flight(number: Callable[[float], float]) -> Callable[[Report], Iterator[Sample]]:
    def samples(report: Report) -> Samples:
        call = report.snapshot.nvml_in_flight
        if call is not None:
            uuid, gpu = devices_of(report).gpu(call.uuid, call.index)
            yield (call.call, uuid, gpu), number(call.since)

    return samples


def _unrecognised(report: Report) -> Samples:
    kubelet = value(report.snapshot.kubelet)
    if kubelet is None:
        return
    ids: dict[str, set[str]] = {}
    named: list[Allocation | AllocatableDevice] = [*kubelet.allocations, *(kubelet.allocatable or ())]
    for device in named:
        unknown = ids.setdefault(device.resource, set())
        if isinstance(device.ref, Unrecognised):
            unknown.add(device.device_id)
    for resource, unknown in ids.items():
        yield (resource,), len(unknown)


def _scan(read: Callable[[ProcessTable], int]) -> Callable[[Report], Iterator[Sample]]:
    def samples(report: Report) -> Samples:
        table = value(report.snapshot.processes)
        if table is not None:
            yield (), read(table)

    return samples


def _web_reload(read: Callable[[WebReload], float]) -> Callable[[Report], Iterator[Sample]]:
    def samples(report: Report) -> Samples:
        if report.web_reload is not None:
            yield (), read(report.web_reload)

    return samples


def _forgotten(report: Report) -> Samples:
    yield (), report.history.forgotten


def _own(
    name: str, meaning: str, labels: tuple[str, ...], samples: Callable[[Report], Iterator[Sample]]
) -> Family:
    """A row that stays true when no cycle ends any more."""
    kind: Kind = "counter" if name.endswith("_total") else "gauge"
    return Family(name, kind, meaning, labels, "stable", samples, about_exporter=True)


FAMILIES = (
    _own(
        "exporter_build_info",
        "Version of this exporter, always 1. simulated is true where all other data is made up (demo).",
        ("version", "simulated"),
        _build,
    ),
    _own("node_info", "The Kubernetes node that this exporter runs on, always 1.", ("node",), _node),
    _own(
        "cycle_timestamp_seconds",
        "When the cycle began that all served values come from. Where it lies more than 5 intervals back, "
        "only metrics of the exporter itself are served.",
        (),
        _cycle_timestamp,
    ),
    Family(
        "cycle_duration_seconds",
        "gauge",
        "How long the last cycle took to ask all sources and to join their answers, without rendering.",
        (),
        "stable",
        _cycle_duration,
    ),
    Family(
        "source_up",
        "gauge",
        "1 if the source answered in the last cycle, else 0. A source that is off has no series.",
        ("source",),
        "stable",
        _up,
    ),
    Family(
        "source_paused", "gauge", "1 while the operator pauses the source.", ("source",), "stable", _paused
    ),
    Family(
        "source_duration_seconds",
        "gauge",
        "How long the source took in the last cycle, or how long it was waited for.",
        ("source",),
        "stable",
        _duration,
    ),
    _own(
        "source_last_success_timestamp_seconds",
        "When the source last answered; absent until it did.",
        ("source",),
        _last_success,
    ),
    _own(
        "source_errors_total",
        "Cycles in which the source gave nothing, by reason.",
        ("source", "reason"),
        _errors,
    ),
    Family(
        "nvml_faults",
        "gauge",
        "An NVML call on one GPU that failed in the last cycle, always 1. Not supported is no failure. gpu "
        "is the index and uuid is empty where the GPU could not be named.",
        (*DEVICE, "call", "error"),
        "stable",
        _faults,
    ),
    Family(
        "nvml_call_in_flight_info",
        "gauge",
        "The NVML call that had not returned when the cycle ended, always 1.",
        _CALL,
        "stable",
        _in_flight(lambda _: 1.0),
    ),
    Family(
        "nvml_call_in_flight_since_timestamp_seconds",
        "gauge",
        "When the NVML call in flight was made.",
        _CALL,
        "stable",
        _in_flight(lambda since: since),
    ),
    Family(
        "device_ids_unrecognised",
        "gauge",
        "Device ids of the kubelet whose spelling this exporter does not know, by resource.",
        ("resource",),
        "stable",
        _unrecognised,
    ),
    Family(
        "processes_scanned",
        "gauge",
        "Processes that the last scan looked at.",
        (),
        "stable",
        _scan(lambda table: table.scanned),
    ),
    Family(
        "processes_unreadable",
        "gauge",
        "Processes whose descriptors or mappings could not be read in the last scan.",
        (),
        "stable",
        _scan(lambda table: len(table.unreadable)),
    ),
    Family(
        "processes_truncated",
        "gauge",
        "Processes of which the last scan did not look at every descriptor, because of its limit.",
        (),
        "stable",
        _scan(lambda table: table.truncated),
    ),
    Family(
        "web_config_reload_success",
        "gauge",
        "1 if the TLS files of the web configuration are in use as they are now, 0 if they were replaced by "
        "some that cannot be: then those before are. Absent without TLS.",
        (),
        "stable",
        _web_reload(lambda reload: flag(reload.succeeded)),
    ),
    Family(
        "web_config_reload_success_timestamp_seconds",
        "gauge",
        "When the TLS files in use were read. Absent without TLS.",
        (),
        "stable",
        _web_reload(lambda reload: reload.at),
    ),
    _own(
        "history_forgotten_total",
        "Entries that the exporter's memory dropped because it was full.",
        (),
        _forgotten,
    ),
)
