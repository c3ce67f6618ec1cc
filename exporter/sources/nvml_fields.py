"""The NVML child's reading of one device, field by field.

In: the guarded calls and a device handle. Out: records of `exporter.model`; None where NVML has nothing to
say, and the faults noted in `Calls`. Never: a sentinel of nvml.h as a number, or one call's failure as
another field's. Raises `Lost` and `Gone` only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from exporter.model import Memory, MigInstance, NvmlRow, ProcessUsage, Telemetry
from exporter.sources.nvml_calls import CallError, Calls, known
from exporter.text import printable

EMPTY_SLOT = frozenset({"NOT_FOUND", "INVALID_ARGUMENT"})  # the slots of MIG devices are sparse
REFUSED = frozenset({"NO_PERMISSION"})  # where nvml.h documents it
OLDER = frozenset({"FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH"})  # go one version down

# nvml.h renames the plain names to the newest version; drivers go on exporting the older symbols. pynvml
# offers these two; the first version, of drivers before R450 and without GI and CI, it does not.
LADDER = ("_v3", "_v2")
LISTS = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
)
GARBAGE = "garbage"
PID_MOST = 2**22  # PID_MAX_LIMIT, include/linux/threads.h
THRESHOLDS = (("shutdown", 0), ("slowdown", 1), ("mem_max", 2), ("gpu_max", 3))  # nvmlTemperatureThresholds_t
CLOCKS = (("graphics", 0), ("sm", 1), ("memory", 2), ("video", 3))  # nvmlClockType_t
ERRORS = (("corrected", 0), ("uncorrected", 1))  # nvmlMemoryErrorType_t
VOLATILE, AGGREGATE = 0, 1  # nvmlEccCounterType_t: since the driver was loaded, over the life of the board
EVENTS = (  # nvmlClocksEventReasons
    ("gpu_idle", 0x1),
    ("applications_clocks_setting", 0x2),
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("sw_thermal_slowdown", 0x20),
    ("hw_thermal_slowdown", 0x40),
    ("hw_power_brake_slowdown", 0x80),
    ("display_clock_setting", 0x100),
    ("board_limit", 0x200),
    ("reliability", 0x400),
)
LOOK_BACK = 1_000_000  # microseconds
_MIG_NAME = re.compile(r"\bMIG (\d\S*)")

_Merged = dict[tuple[int, int, int], NvmlRow]  # by (gi, ci, pid), -1 for none


def ratio(percent: int | None) -> float | None:
    """A share from 0 to 1. Drivers give tens of thousands of % with dead processes: that is no share."""
    percent = known(percent)
    return None if percent is None or percent > 100 else percent / 100


def scaled(value: int | None, unit: float) -> float | None:
    """A reading in base units."""
    return None if value is None else value * unit


def memory(calls: Calls, handle: Any, uuid: str) -> Memory | None:
    """Frame buffer of a GPU or MIG device.

    Version 2 tells what the driver reserves, but some drivers fill it wrongly: it is believed only if the
    parts made up the total when the device was first read.
    """
    if calls.memory_versions.get(uuid, 2) == 2:
        try:
            read = calls.demand("nvmlDeviceGetMemoryInfo_v2", handle)
        except CallError as error:
            if error.name not in OLDER:
                calls.note(error, REFUSED)
                return None
        else:
            if not _has_memory(read):
                return None
            adds_up = read.used + read.free + read.reserved == read.total
            if calls.memory_versions.setdefault(uuid, 2 if adds_up else 1) == 2:
                return Memory(read.total, read.used, read.free, known(read.reserved))
    read = calls.ask("nvmlDeviceGetMemoryInfo", handle, absent=REFUSED)
    return Memory(read.total, read.used, read.free, version=1) if _has_memory(read) else None


def _has_memory(read: Any) -> bool:
    """Boards without memory of their own (GB10, Thor) say 0 or N/A where they do not say *not supported*."""
    return bool(read and read.total) and None not in map(known, (read.total, read.used, read.free))


def mig_devices(calls: Calls, handle: Any, total: int | None) -> list[tuple[Any, MigInstance]]:
    """(handle, instance) of each MIG device of a GPU with `total` bytes of memory, in the order of slots."""
    found = []
    for slot in range(calls.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        device = calls.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot, absent=EMPTY_SLOT)
        if device is None:
            continue
        # The device may be destroyed between any two calls, then its handle is an invalid argument (nvml.h).
        uuid = calls.ask("nvmlDeviceGetUUID", device, absent=EMPTY_SLOT)
        gi = calls.ask("nvmlDeviceGetGpuInstanceId", device, absent=EMPTY_SLOT)
        ci = calls.ask("nvmlDeviceGetComputeInstanceId", device, absent=EMPTY_SLOT)
        if not uuid or gi is None or ci is None:
            continue
        uuid, profile, placement = (
            printable(uuid),
            _profile(calls, device, total),
            _placement(calls, handle, gi),
        )
        found.append((device, MigInstance(uuid, gi, ci, profile, *placement, memory(calls, device, uuid))))
    return found


def _placement(calls: Calls, handle: Any, gi: int) -> tuple[int | None, int | None, int | None]:
    """Profile id, first and number of memory slices of a GPU instance; only for the privileged (nvml.h)."""
    instance = calls.ask("nvmlDeviceGetGpuInstanceById", handle, gi, absent=REFUSED | EMPTY_SLOT)
    info = instance and calls.ask("nvmlGpuInstanceGetInfo", instance, absent=REFUSED | EMPTY_SLOT)
    if not info:
        return None, None, None
    return known(info.profileId), known(info.placement.start), known(info.placement.size)


def _profile(calls: Calls, device: Any, total: int | None) -> str:
    """The profile's name, from the device's (`NVIDIA A100-SXM4-40GB MIG 1g.5gb`) or its attributes."""
    if match := _MIG_NAME.search(printable(calls.ask("nvmlDeviceGetName", device, absent=EMPTY_SLOT) or "")):
        return match[1]
    has = calls.ask("nvmlDeviceGetAttributes_v2", device, absent=EMPTY_SLOT | REFUSED)
    if has is None or not total:
        return ""
    # NVIDIA's tools name the memory as the nearest eighth of the whole, in whole GiB (go-nvlib, MIG profile
    # names).
    eighths = round(has.memorySizeMB * 2**20 / total * 8)
    gib = round(eighths / 8 * -(-total // 2**30))
    slices, compute = has.gpuInstanceSliceCount, has.computeInstanceSliceCount
    return f"{slices}g.{gib}gb" if compute == slices else f"{compute}c.{slices}g.{gib}gb"


def rows(
    calls: Calls, handle: Any, devices: Iterable[tuple[Any, MigInstance]]
) -> tuple[tuple[NvmlRow, ...] | None, str]:
    """(rows, "") or (None, why): who uses a GPU, over its three process lists.

    The parent of MIG devices answers only who may monitor all of them (nvml.h); then each MIG device is
    asked.
    """
    merged: _Merged = {}
    try:
        try:
            _gather(calls, handle, None, merged)
        except CallError as error:
            if error.name not in REFUSED or not (listed := list(devices)):
                raise
            merged.clear()
            for device, instance in listed:
                _gather(calls, device, instance, merged)
    except CallError as error:
        calls.note(error, REFUSED | {GARBAGE})
        return None, error.name
    return tuple(merged[key] for key in sorted(merged)), ""


def _gather(calls: Calls, handle: Any, instance: MigInstance | None, merged: _Merged) -> None:
    """Merge a handle's lists into `merged`. Raises CallError if the compute list fails or any is garbage."""
    for kind, call in LISTS:
        try:
            listed = _list(calls, call, handle)
        except CallError as error:
            if kind == "compute" or error.name == GARBAGE:
                raise
            calls.note(error, REFUSED)
            continue
        for one in listed:
            gi, ci = known(one.gpuInstanceId), known(one.computeInstanceId)
            if instance is not None:  # a MIG device's own list need not say whose it is
                gi, ci = instance.gi, instance.ci
            row = NvmlRow(one.pid, gi, ci, known(one.usedGpuMemory), (kind,))
            key = (-1 if gi is None else gi, -1 if ci is None else ci, one.pid)
            merged[key] = _union(merged.get(key, row), row)


def _union(first: NvmlRow, second: NvmlRow) -> NvmlRow:
    """One row of two. Each list gives all memory of the process, so the larger figure is the process's."""
    amounts = [row.memory for row in (first, second) if row.memory is not None]
    kinds = tuple(sorted({*first.kinds, *second.kinds}))
    return NvmlRow(first.pid, first.gi, first.ci, max(amounts, default=None), kinds)


def _list(calls: Calls, call: str, handle: Any) -> list[Any]:
    """One process list by the newest symbol that gives a credible one.

    Early R535 drivers fill 32-byte entries behind the _v3 symbol, which is known by numbers that no pid can
    be; their _v2 symbol is right.
    """
    problem = "FUNCTION_NOT_FOUND"
    for version in LADDER:
        try:
            listed: list[Any] = calls.demand(call + version, handle)
        except CallError as error:
            if error.name == "SUCCESS":
                return []
            if error.name not in OLDER:
                raise
            problem = problem if problem == GARBAGE else error.name
            continue
        if all(0 < one.pid <= PID_MOST for one in listed):
            return listed
        problem = GARBAGE
    raise CallError(call, problem)


def usage(
    calls: Calls, handle: Any, uuid: str, pids: frozenset[int], now: float
) -> tuple[ProcessUsage, ...] | None:
    """What each process did since the last look at this GPU; () = all were idle, None = not supported (MIG).

    The stamp is the device's own: one shared by all would hide the samples of a device whose clock lags. The
    first look reaches back one second, the longest period over which the driver samples (nvml.h,
    nvmlUtilization_t): stamp 0 would give the driver's whole ring buffer, with long-dead processes, and *now*
    would give nothing. `now` is in seconds.
    """
    micros = int(now * 1e6)
    since = min(
        calls.stamps.get(uuid, micros - LOOK_BACK), micros
    )  # a clock set back must not mute the samples
    try:
        samples = calls.demand("nvmlDeviceGetProcessUtilization", handle, since)
    except CallError as error:
        if error.name in ("NOT_FOUND", "SUCCESS"):
            calls.stamps.setdefault(uuid, since)
            return ()
        calls.note(error, REFUSED)
        return None
    # A stamp of the future is garbage and would mute all that come before it.
    new = [one for one in samples if since < one.timeStamp <= micros + LOOK_BACK]
    new.sort(key=lambda one: int(one.timeStamp))
    calls.stamps[uuid] = new[-1].timeStamp if new else since
    newest = {one.pid: one for one in new if one.pid in pids}
    shares = (
        ProcessUsage(pid, ratio(one.smUtil), ratio(one.memUtil), ratio(one.encUtil), ratio(one.decUtil))
        for pid, one in sorted(newest.items())
    )
    return tuple(share for share in shares if share != ProcessUsage(share.pid, None, None, None, None))


def telemetry(calls: Calls, handle: Any, *, sensors: bool, extended: bool) -> Telemetry:
    """What the engine counters say, and the groups that are wanted. A failed call costs only its field."""
    rates = calls.ask("nvmlDeviceGetUtilizationRates", handle)
    codecs = [calls.ask(f"nvmlDeviceGet{engine}Utilization", handle) for engine in ("Encoder", "Decoder")]
    encoder, decoder = (ratio(pair[0]) if pair else None for pair in codecs)
    return Telemetry(
        utilization=ratio(rates.gpu) if rates else None,
        memory_activity=ratio(rates.memory) if rates else None,
        encoder=encoder,
        decoder=decoder,
        **(_sensors(calls, handle) if sensors else {}),
        **(_wear(calls, handle) if extended else {}),
    )


def _sensors(calls: Calls, handle: Any) -> Mapping[str, Any]:
    temperature = calls.number("nvmlDeviceGetTemperatureV", handle, 0)  # NVML_TEMPERATURE_GPU
    if temperature is None:
        temperature = calls.number("nvmlDeviceGetTemperature", handle, 0)  # drivers before R570
    return {
        "temperature": scaled(temperature, 1.0),
        "thresholds": _each(calls, "nvmlDeviceGetTemperatureThreshold", handle, THRESHOLDS, 1.0),
        "power": scaled(calls.number("nvmlDeviceGetPowerUsage", handle), 1e-3),
        "power_limit": scaled(calls.number("nvmlDeviceGetEnforcedPowerLimit", handle), 1e-3),
        "energy": scaled(calls.number("nvmlDeviceGetTotalEnergyConsumption", handle), 1e-3),
        "clocks": _each(calls, "nvmlDeviceGetClockInfo", handle, CLOCKS, 1e6),
    }


def _each(
    calls: Calls, call: str, handle: Any, kinds: Iterable[tuple[str, int]], unit: float
) -> tuple[tuple[str, float], ...]:
    read = ((name, calls.number(call, handle, kind)) for name, kind in kinds)
    return tuple((name, value * unit) for name, value in read if value is not None)


def _wear(calls: Calls, handle: Any) -> Mapping[str, Any]:
    """The extended group: errors of the memory, and what holds the clocks down."""
    rows = calls.ask("nvmlDeviceGetRemappedRows", handle)
    corrected, uncorrected, pending, failure = map(known, rows) if rows else (None, None, None, None)
    by_error = (("corrected", corrected), ("uncorrected", uncorrected))
    return {
        "ecc_errors": _ecc(calls, handle, VOLATILE),
        "ecc_lifetime_errors": _ecc(calls, handle, AGGREGATE),
        "remapped_rows": tuple((name, float(count)) for name, count in by_error if count is not None),
        "row_remap_pending": None if pending is None else pending != 0,
        "row_remap_failure": None if failure is None else failure != 0,
        "clock_events": _clock_events(calls, handle),
    }


def _ecc(calls: Calls, handle: Any, counter: int) -> tuple[tuple[str, float], ...]:
    read = (
        (name, calls.number("nvmlDeviceGetTotalEccErrors", handle, kind, counter)) for name, kind in ERRORS
    )
    return tuple((name, float(count)) for name, count in read if count is not None)


def _clock_events(calls: Calls, handle: Any) -> tuple[tuple[str, bool], ...]:
    """Each reason that the GPU knows, and whether it holds now."""
    now = _reasons(calls, handle, "Current")
    able = _reasons(calls, handle, "Supported")
    if now is None:
        return ()
    return tuple((name, bool(now & bit)) for name, bit in EVENTS if able is None or able & bit)


def _reasons(calls: Calls, handle: Any, which: str) -> int | None:
    """A mask of reasons; drivers before R535 call them throttle reasons."""
    mask = calls.number(f"nvmlDeviceGet{which}ClocksEventReasons", handle)
    return calls.number(f"nvmlDeviceGet{which}ClocksThrottleReasons", handle) if mask is None else mask
