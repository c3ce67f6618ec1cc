"""Rows about GPUs: inventory, memory and telemetry. Owner labels are those of the whole GPU."""

from collections.abc import Callable

from exporter.catalog.family import (
    DEVICE,
    WORKLOAD,
    Family,
    Kind,
    Samples,
    answering,
    devices_of,
    gpus,
    known,
    nvml,
    text,
)
from exporter.model import DeviceUse, Gpu, Memory, Policy, Report, Telemetry

_OWNED = (*DEVICE, *WORKLOAD)
_MIG_MODES = {True: "enabled", False: "disabled", None: ""}


def _driver(report: Report) -> Samples:
    seen = nvml(report)
    if seen is not None:
        yield (seen.driver_version, seen.cuda_version, seen.nvml_version), 1


def _inventory(report: Report) -> Samples:
    devices = devices_of(report)
    for gpu in gpus(report):
        facts = (text(gpu.minor), gpu.pci_address, gpu.product, _MIG_MODES[gpu.mig_enabled])
        yield (*devices.gpu(gpu.uuid, gpu.index), *facts), 1


def _per_gpu(
    name: str,
    meaning: str,
    read: Callable[[Gpu, DeviceUse | None], float | None],
    kind: Kind = "gauge",
) -> Family:
    """A row with one number for each GPU that answers."""

    def samples(report: Report) -> Samples:
        devices = devices_of(report)
        for gpu in answering(report):
            labels = (*devices.gpu(gpu.uuid, gpu.index), *devices.owner(gpu.uuid))
            yield from known(labels, read(gpu, devices.use(gpu.uuid)))

    return Family(name, kind, meaning, _OWNED, "stable", samples)


def _memory(name: str, meaning: str, read: Callable[[Memory], int | None]) -> Family:
    return _per_gpu(name, meaning, lambda gpu, _: None if gpu.memory is None else read(gpu.memory))


def _judged(name: str, meaning: str, read: Callable[[DeviceUse], int | None]) -> Family:
    return _per_gpu(name, meaning, lambda _, use: None if use is None else read(use))


def _engine(name: str, meaning: str, read: Callable[[Telemetry], float | None]) -> Family:
    return _per_gpu(name, meaning, lambda gpu, _: read(gpu.telemetry))


def _switched(family: Family, wanted: Callable[[Policy], bool] = lambda policy: policy.telemetry) -> Family:
    """The row, silent where its group of telemetry is off."""

    def samples(report: Report) -> Samples:
        if wanted(report.policy):
            yield from family.samples(report)

    return Family(family.name, family.kind, family.help, family.labels, family.stability, samples)


def _extended(family: Family) -> Family:
    return _switched(family, lambda policy: policy.telemetry_extended)


def _named(
    name: str,
    meaning: str,
    label: str,
    read: Callable[[Telemetry], tuple[tuple[str, float], ...]],
    kind: Kind = "gauge",
) -> Family:
    """A row with several named numbers for each GPU that answers."""

    def samples(report: Report) -> Samples:
        devices = devices_of(report)
        for gpu in answering(report):
            for which, number in read(gpu.telemetry):
                yield (*devices.gpu(gpu.uuid, gpu.index), which, *devices.owner(gpu.uuid)), number

    return Family(name, kind, meaning, (*DEVICE, label, *WORKLOAD), "stable", samples)


FAMILIES = (
    Family(
        "driver_info",
        "gauge",
        "Versions of the NVIDIA driver, always 1; absent while NVML does not answer.",
        ("driver_version", "cuda_version", "nvml_version"),
        "stable",
        _driver,
    ),
    Family(
        "gpu_info",
        "gauge",
        "A GPU that NVML lists, always 1. mig_mode is enabled, disabled, or empty where the GPU has no MIG.",
        (*DEVICE, "minor", "pci_bus_id", "product", "mig_mode"),
        "stable",
        _inventory,
    ),
    _memory("gpu_memory_total_bytes", "Frame buffer of the GPU.", lambda memory: memory.total),
    _memory(
        "gpu_memory_used_bytes",
        "Frame buffer in use. Contains the driver's reserve where gpu_memory_reserved_bytes is absent.",
        lambda memory: memory.used,
    ),
    _memory("gpu_memory_free_bytes", "Frame buffer that is free.", lambda memory: memory.free),
    _memory(
        "gpu_memory_reserved_bytes",
        "Frame buffer that the driver keeps for itself; absent for drivers that do not tell.",
        lambda memory: memory.reserved,
    ),
    _judged(
        "gpu_memory_attributed_bytes",
        "Frame buffer that belongs to known processes; absent where that cannot be judged.",
        lambda use: use.attributed,
    ),
    _judged(
        "gpu_memory_unattributed_bytes",
        "Frame buffer in use that neither a known process nor the baseline explains, at least 0; absent "
        "where that cannot be judged.",
        lambda use: use.unattributed,
    ),
    _judged(
        "gpu_memory_baseline_bytes",
        "Frame buffer that the driver uses with no client on the GPU: the least that was seen.",
        lambda use: use.baseline,
    ),
    _engine(
        "gpu_utilization_ratio",
        "Share of time in which a kernel ran on the GPU; absent where unsupported (MIG).",
        lambda telemetry: telemetry.utilization,
    ),
    _engine(
        "gpu_memory_activity_ratio",
        "Share of time in which GPU memory was read or written; absent where unsupported (MIG).",
        lambda telemetry: telemetry.memory_activity,
    ),
    _engine(
        "gpu_encoder_utilization_ratio",
        "Share of time in which the video encoder was busy; absent where unsupported.",
        lambda telemetry: telemetry.encoder,
    ),
    _engine(
        "gpu_decoder_utilization_ratio",
        "Share of time in which the video decoder was busy; absent where unsupported.",
        lambda telemetry: telemetry.decoder,
    ),
    _switched(
        _engine("gpu_temperature_celsius", "Temperature of the GPU.", lambda telemetry: telemetry.temperature)
    ),
    _switched(
        _named(
            "gpu_temperature_threshold_celsius",
            "Temperature at which the GPU slows down, shuts down or passes another of its limits.",
            "threshold",
            lambda telemetry: telemetry.thresholds,
        )
    ),
    _switched(_engine("gpu_power_watts", "Power that the GPU draws.", lambda telemetry: telemetry.power)),
    _switched(
        _engine(
            "gpu_power_limit_watts",
            "Power limit that the GPU enforces.",
            lambda telemetry: telemetry.power_limit,
        )
    ),
    _switched(
        _per_gpu(
            "gpu_energy_joules_total",
            "Energy that the GPU used since the driver was loaded.",
            lambda gpu, _: gpu.telemetry.energy,
            kind="counter",
        )
    ),
    _switched(
        _named(
            "gpu_clock_hertz",
            "Current frequency of a clock of the GPU.",
            "clock",
            lambda telemetry: telemetry.clocks,
        )
    ),
    *(
        _extended(family)
        for family in (
            _named(
                "gpu_ecc_errors_total",
                "Memory errors, by whether they could be corrected, since the driver was loaded.",
                "error",
                lambda telemetry: telemetry.ecc_errors,
                kind="counter",
            ),
            _named(
                "gpu_ecc_lifetime_errors_total",
                "Memory errors, by whether they could be corrected, over the life of the board.",
                "error",
                lambda telemetry: telemetry.ecc_lifetime_errors,
                kind="counter",
            ),
            _named(
                "gpu_remapped_rows_total",
                "Rows of memory that were remapped over the life of the board, by the errors that led to it.",
                "error",
                lambda telemetry: telemetry.remapped_rows,
                kind="counter",
            ),
            _engine(
                "gpu_row_remap_pending",
                "1 if rows are to be remapped when the GPU is next reset, else 0.",
                lambda telemetry: telemetry.row_remap_pending,
            ),
            _engine(
                "gpu_row_remap_failure",
                "1 if rows could not be remapped, else 0: such a board is to be replaced.",
                lambda telemetry: telemetry.row_remap_failure,
            ),
            _named(
                "gpu_clock_event",
                "1 while this is a reason for which the clocks are lower than they could be, else 0.",
                "reason",
                lambda telemetry: telemetry.clock_events,
            ),
        )
    ),
)
