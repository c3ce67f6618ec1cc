"""What the driver says: records of the source nvml."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Memory:
    """Frame buffer of a GPU or GPU instance. In version 1 `used` has the driver's reserve in it (nvml.h)."""

    total: int
    used: int
    free: int
    reserved: int | None = None
    version: int = 2


@dataclass(frozen=True, slots=True)
class NvmlRow:
    """One entry of NVML's process lists, merged over the lists by (gi, ci, pid).

    `pid` is the number as NVML gave it, which some drivers fill with a thread id. `memory` None = the driver
    says N/A.
    """

    pid: int
    gi: int | None = None
    ci: int | None = None
    memory: int | None = None
    kinds: tuple[str, ...] = ("compute",)  # of compute, graphics, mps


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """Shares of a GPU's engines that one process had since the last look; None = not given."""

    pid: int
    sm: float | None
    memory: float | None
    encoder: float | None
    decoder: float | None


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG device. Its memory belongs to the GPU instance: compute instances of one GI share it."""

    mig_uuid: str
    gi: int
    ci: int
    profile: str = ""
    profile_id: int | None = None
    start: int | None = None
    size: int | None = None
    memory: Memory | None = None


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a thermometer, a wattmeter and the engine counters of one GPU say; absent where unsupported."""

    utilization: float | None = None
    memory_activity: float | None = None
    encoder: float | None = None
    decoder: float | None = None
    temperature: float | None = None  # degrees Celsius
    thresholds: tuple[tuple[str, float], ...] = ()  # (shutdown, slowdown, ...), degrees Celsius
    power: float | None = None  # watts
    power_limit: float | None = None  # watts, as enforced
    energy: float | None = None  # joules since the driver was loaded
    clocks: tuple[tuple[str, float], ...] = ()  # (graphics, sm, memory, video), hertz
    # The extended group.
    ecc_errors: tuple[tuple[str, float], ...] = ()  # (corrected, uncorrected) since the driver was loaded
    ecc_lifetime_errors: tuple[tuple[str, float], ...] = ()  # the same over the life of the board
    remapped_rows: tuple[tuple[str, float], ...] = ()  # by the kind of error that made them be remapped
    row_remap_pending: bool | None = None  # a reset of the GPU will remap rows
    row_remap_failure: bool | None = None
    clock_events: tuple[tuple[str, bool], ...] = ()  # reasons for which clocks may be held down: do they hold


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as NVML sees it in this cycle.

    `rows` is None where the process list could not be had or is not to be believed, and `rows_problem` says
    why; an empty tuple means that NVML lists nobody. `lost` is the NVML error of a GPU that stopped
    answering: then the inventory is what was read before.
    """

    uuid: str
    index: int
    minor: int | None = None
    pci_address: str = ""  # domain:bus:device.function as sysfs writes it
    product: str = ""
    mig_enabled: bool | None = None  # None: the GPU has no MIG
    virtualization: str = ""  # none, passthrough, vgpu, host_vgpu, host_vsga or unknown ""
    memory: Memory | None = None
    coherent_memory: bool | None = None  # frame buffer is a NUMA node or addressed by the CPU's page tables
    confidential: bool | None = None
    instances: tuple[MigInstance, ...] = ()
    rows: tuple[NvmlRow, ...] | None = None
    rows_problem: str = ""
    usage: tuple[ProcessUsage, ...] | None = None
    telemetry: Telemetry = field(default_factory=Telemetry)
    lost: str = ""


@dataclass(frozen=True, slots=True)
class GpuFault:
    """An NVML call on one GPU that failed with something else than *not supported*."""

    index: int
    uuid: str  # "" where the GPU could not even be named
    call: str
    error: str


@dataclass(frozen=True, slots=True)
class Nvml:
    """What the driver says of all its GPUs."""

    driver_version: str
    cuda_version: str
    nvml_version: str
    count: int  # as nvmlDeviceGetCount says, also of those that gave no handle
    gpus: tuple[Gpu, ...]
    faults: tuple[GpuFault, ...] = ()


@dataclass(frozen=True, slots=True)
class InFlight:
    """The NVML call that has not returned yet, and on which GPU."""

    call: str
    index: int | None
    uuid: str
    since: float
