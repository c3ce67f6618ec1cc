"""A row of the metric table, and the label values that many rows share.

A report comes in, label values and numbers go out. Nothing here may turn *not known* into a number: a
function yields a sample only for a value that somebody read in the cycle of the report (truth rules 1 and 2).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from exporter.model import DeviceKey, DeviceUse, Gpu, Nvml, Report, Workload, value

PREFIX = "kubegpu_"

T = TypeVar("T")
Sample: TypeAlias = tuple[tuple[str, ...], float]
Samples: TypeAlias = Iterator[Sample]
Kind: TypeAlias = Literal["gauge", "counter"]
Stability: TypeAlias = Literal["stable", "experimental"]

DEVICE = ("uuid", "gpu")
INSTANCE = (*DEVICE, "gi", "mig_uuid")
WORKLOAD = ("namespace", "pod", "container")


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family. `samples` yields label values in the order of `labels`, and one number.

    `about_exporter` marks what the exporter says about itself and stays true when no cycle ends any more.
    """

    name: str  # without the prefix
    kind: Kind
    help: str
    labels: tuple[str, ...]
    stability: Stability
    samples: Callable[[Report], Iterable[Sample]]
    about_exporter: bool = False

    @property
    def full_name(self) -> str:
        """The name that is scraped."""
        return PREFIX + self.name


def once(make: Callable[[Report], T]) -> Callable[[Report], T]:
    """`make`, for the last report computed once: many families of one rendering ask for the same.

    The result is shared, so nobody may change it.
    """
    last: list[tuple[Report, T]] = []

    def of(report: Report) -> T:
        held = last[0] if last else None
        if held is None or held[0] is not report:
            held = (report, make(report))
            last[:] = [held]
        return held[1]

    return of


class Devices:
    """Names and owners of the devices of one report."""

    def __init__(self, report: Report) -> None:
        self._indices: Mapping[str, int] = dict(report.history.indices)
        self._instances: dict[DeviceKey, tuple[str, ...]] = {}
        self._uses = {(d.device.uuid, d.device.gi, d.device.ci): d for d in report.attribution.devices}

    def gpu(self, uuid: str, index: int | None = None) -> tuple[str, ...]:
        """Values of DEVICE. `index` is what NVML says now, for a GPU that the history does not know."""
        return (uuid, text(self._indices.get(uuid, index)))

    def instance(self, device: DeviceKey) -> tuple[str, ...]:
        """Values of INSTANCE."""
        known = self._instances.get(device)
        if known is None:
            known = self._instances[device] = (*self.gpu(device.uuid), text(device.gi), device.mig_uuid)
        return known

    def use(self, uuid: str, gi: int | None = None, ci: int | None = None) -> DeviceUse | None:
        """What is known of a device as a whole, if anything."""
        return self._uses.get((uuid, gi, ci))

    def owner(self, uuid: str, gi: int | None = None, ci: int | None = None) -> tuple[str, ...]:
        """Values of WORKLOAD for the owner of a device, all empty where it has none."""
        use = self.use(uuid, gi, ci)
        return workload(use.owner) if use is not None else ("", "", "")


devices_of = once(Devices)


def text(number: int | None) -> str:
    """A number as label value; empty where there is none."""
    return "" if number is None else str(number)


def flag(known: bool) -> float:
    """A fact as 0 or 1."""
    return 1.0 if known else 0.0


def workload(who: Workload) -> tuple[str, ...]:
    """Values of WORKLOAD."""
    return (who.namespace, who.pod, who.container)


def known(labels: tuple[str, ...], number: float | None) -> Samples:
    """One sample, or none where the number is not known."""
    if number is not None:
        yield labels, number


def nvml(report: Report) -> Nvml | None:
    """What NVML said in this cycle, if it answered."""
    return value(report.snapshot.nvml)


def gpus(report: Report) -> tuple[Gpu, ...]:
    """The GPUs that NVML named in this cycle."""
    seen = nvml(report)
    return seen.gpus if seen is not None else ()


def answering(report: Report) -> Iterator[Gpu]:
    """The GPUs whose values were read in this cycle: a lost one only repeats what it said before."""
    return (gpu for gpu in gpus(report) if not gpu.lost)
