"""Rows about processes: by pid (capped, may be off), by workload, counted by owner, and by device file."""

from collections import Counter
from collections.abc import Callable, Iterator

from exporter.catalog.family import (
    INSTANCE,
    WORKLOAD,
    Family,
    Samples,
    devices_of,
    gpus,
    known,
    once,
    workload,
)
from exporter.model import (
    DeviceKey,
    DeviceNode,
    Gpu,
    NodeKind,
    Owner,
    ProcessUsage,
    Report,
    Seen,
    Use,
    Visibility,
    value,
)

_PROCESS = (*INSTANCE, "pid", *WORKLOAD)
_OWNED_BY_PODS = (Owner.POD, Owner.ORPHAN)

# Names as the driver and its tools make them below /dev; a minor follows where there may be several.
_FILES = {
    NodeKind.GPU: "nvidia{minor}",
    NodeKind.CONTROL: "nvidiactl",
    NodeKind.MODESET: "nvidia-modeset",
    NodeKind.UVM: "nvidia-uvm",
    NodeKind.UVM_TOOLS: "nvidia-uvm-tools",
    NodeKind.CAPABILITY: "nvidia-cap{minor}",
    NodeKind.IMEX: "nvidia-imex-channel{minor}",
    NodeKind.NVSWITCH: "nvidia-nvswitch{minor}",
    NodeKind.NVLINK: "nvidia-nvlink",
}


# --- one row per process and device -------------------------------------------------------------------------


@once
def _ranked(report: Report) -> list[Use]:
    """One use per pid and device, the largest memory first and unknown memory last; the order is total."""
    ordered = sorted(
        report.attribution.uses,
        key=lambda use: (
            -1 if use.memory is None else -use.memory - 2,
            use.device.order,
            use.pid,
            str(use.process),
        ),
    )
    first: dict[tuple[str, int | None, str, int], Use] = {}
    for use in ordered:
        first.setdefault((use.device.uuid, use.device.gi, use.device.mig_uuid, use.pid), use)
    return list(first.values())


@once
def _kept(report: Report) -> list[tuple[Use, tuple[str, ...]]]:
    """The uses that have series, with their values of _PROCESS."""
    policy, devices = report.policy, devices_of(report)
    uses = _ranked(report)[: policy.process_series_limit] if policy.process_series else []
    return [(use, (*devices.instance(use.device), str(use.pid), *workload(use.workload))) for use in uses]


def _dropped(report: Report) -> Samples:
    policy = report.policy
    if policy.process_series:
        yield (), max(0, len(_ranked(report)) - policy.process_series_limit)


def _info(report: Report) -> Samples:
    for use, labels in _kept(report):
        facts = (use.comm, use.state, use.owner.value, use.visibility.value, use.pod_uid)
        yield (*labels, *facts), 1


def _memory(report: Report) -> Samples:
    for use, labels in _kept(report):
        yield from known(labels, use.memory)


def _start_time(report: Report) -> Samples:
    table = value(report.snapshot.processes)
    if table is None:
        return
    for use, labels in _kept(report):
        if use.process is not None:
            yield labels, table.boot_time + use.process.start / table.ticks_per_second


def _utilization(engine: str, meaning: str, read: Callable[[ProcessUsage], float | None]) -> Family:
    def samples(report: Report) -> Samples:
        for use, labels in _kept(report):
            if use.usage is not None:
                yield from known(labels, read(use.usage))

    name = f"process_{engine}_utilization_ratio"
    return Family(name, "gauge", f"{meaning}; absent where unsupported (MIG).", _PROCESS, "stable", samples)


# --- sums ---------------------------------------------------------------------------------------------------


def _countable(report: Report) -> dict[str, Gpu]:
    """The GPUs whose clients can be counted: the process scan was had, and NVML's list is to be believed."""
    if not isinstance(report.snapshot.processes, Seen):
        return {}
    return {gpu.uuid: gpu for gpu in gpus(report) if gpu.rows is not None}


def _clients(report: Report) -> Iterator[Use]:
    countable = _countable(report)
    return (use for use in _ranked(report) if use.client and use.device.uuid in countable)


def _workload_processes(report: Report) -> Samples:
    devices = devices_of(report)
    counts: Counter[tuple[str, ...]] = Counter()
    for use in _clients(report):
        if use.owner in _OWNED_BY_PODS:
            counts[(*devices.instance(use.device), *workload(use.workload))] += 1
    yield from counts.items()


def _workload_memory(report: Report) -> Samples:
    """A process that NVML lists without a size makes the sum unknown; one that it does not list adds none."""
    devices = devices_of(report)
    sums: dict[tuple[str, ...], int | None] = {}
    for use in _clients(report):
        if use.owner not in _OWNED_BY_PODS:
            continue
        labels = (*devices.instance(use.device), *workload(use.workload))
        so_far = sums.get(labels, 0)
        part = 0 if use.visibility is Visibility.HOLDER else use.memory
        sums[labels] = None if so_far is None or part is None else so_far + part
    for labels, memory in sums.items():
        yield from known(labels, memory)


def _usable(gpu: Gpu) -> Iterator[DeviceKey]:
    """What a client can be on: the MIG devices of a GPU in MIG mode, else the GPU itself."""
    if not gpu.mig_enabled:
        yield DeviceKey(gpu.uuid)
    for mig in gpu.instances:
        yield DeviceKey(gpu.uuid, mig.gi, mig.ci, mig.mig_uuid)


def _processes(report: Report) -> Samples:
    devices = devices_of(report)
    counts: dict[tuple[str, ...], Counter[Owner]] = {}
    for gpu in _countable(report).values():
        for device in _usable(gpu):
            counts[devices.instance(device)] = Counter()
    for use in _clients(report):
        counts.setdefault(devices.instance(use.device), Counter())[use.owner] += 1
    for labels, by_owner in counts.items():
        for owner in Owner:
            yield (*labels, owner.value), by_owner[owner]


# --- device files -------------------------------------------------------------------------------------------


def device_file(node: DeviceNode) -> str:
    """The usual name of a device file, whatever name it was opened by."""
    return _FILES[node.kind].format(minor=node.minor)


def _minors(report: Report) -> set[int]:
    minors = {gpu.minor for gpu in gpus(report)}
    pci = value(report.snapshot.pci)
    if pci is not None:
        minors |= {gpu.minor for gpu in pci.gpus}
    return {minor for minor in minors if minor is not None}


def _holders(report: Report) -> Samples:
    holders = report.attribution.holders
    if holders is None:
        return
    counts: Counter[tuple[str, str]] = Counter()
    for minor in _minors(report):
        for owner in Owner:
            counts[_FILES[NodeKind.GPU].format(minor=minor), owner.value] = 0
    for held in holders:
        counts[device_file(held.node), held.owner.value] += held.count
    yield from counts.items()


def _row(
    name: str,
    meaning: str,
    labels: tuple[str, ...],
    samples: Callable[[Report], Samples],
) -> Family:
    return Family(name, "gauge", meaning, labels, "stable", samples)


FAMILIES = (
    _row(
        "process_info",
        "A process on a GPU or MIG device, always 1. state is running, stuck, zombie, exiting, stopped or "
        "empty; owner is pod, host, system, orphan or unknown; visibility says whether NVML lists it, it "
        "holds device files, or both. comm is what the process calls itself.",
        (*_PROCESS, "comm", "state", "owner", "visibility", "pod_uid"),
        _info,
    ),
    _row(
        "process_memory_bytes",
        "Frame buffer of the process, as NVML says; absent where NVML does not list it or gives no size.",
        _PROCESS,
        _memory,
    ),
    _row("process_start_time_seconds", "When the process was started.", _PROCESS, _start_time),
    _utilization(
        "sm", "Share of time in which the process kept the multiprocessors busy", lambda usage: usage.sm
    ),
    _utilization(
        "memory", "Share of time in which the process read or wrote GPU memory", lambda usage: usage.memory
    ),
    _utilization(
        "encoder", "Share of time in which the process kept the encoder busy", lambda usage: usage.encoder
    ),
    _utilization(
        "decoder", "Share of time in which the process kept the decoder busy", lambda usage: usage.decoder
    ),
    _row(
        "process_series_dropped",
        "Processes without series because the limit was reached; the largest memory is kept. Absent where "
        "process series are off.",
        (),
        _dropped,
    ),
    _row(
        "workload_memory_bytes",
        "Frame buffer of all processes of a container on a device; absent where the size of one of them, "
        "NVML's process list or the scan of processes is not known.",
        (*INSTANCE, *WORKLOAD),
        _workload_memory,
    ),
    _row(
        "workload_processes",
        "Processes of a container that can own memory of the device; absent where NVML's process list or "
        "the scan of processes is not known.",
        (*INSTANCE, *WORKLOAD),
        _workload_processes,
    ),
    _row(
        "processes",
        "Processes that can own memory of the device (listed by NVML, or with nvidia-uvm open, or with a "
        "mapping) by owner. Needs the scan of processes and NVML's process list of that GPU, and is absent "
        "without. In MIG mode one row per MIG device, and one with an empty gi for processes whose instance "
        "is not known.",
        (*INSTANCE, "owner"),
        _processes,
    ),
    _row(
        "device_holders",
        "Open descriptors and mappings of a device file by owner of the process; absent without a scan of "
        "processes. device_file is the usual name, found by device number.",
        ("device_file", "owner"),
        _holders,
    ),
)
