"""The extended group of telemetry end to end: the real child, pynvml, and the C library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.model import Gpu, GpuFault, Telemetry
from exporter.sources.nvml import NvmlSource
from exporter.sources.nvml_fields import EVENTS
from tests.rig.nvml import node
from tests.rig.nvml.node import gpu, gpu_uuid, mig_gpu, mig_instance

ALL_ONES = 2**64 - 1
UNKNOWN = 999
EVENT, THROTTLE = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
WORN: node.Object = {
    "ecc_errors": {"corrected": 3, "uncorrected": 0},
    "ecc_lifetime_errors": {"corrected": 2**33, "uncorrected": 7},
    "remapped_rows": {"corrected": 1, "uncorrected": 2, "pending": True, "failure": False},
    "clocks_event_reasons": 0x4 | 0x40,
    "supported_clocks_event_reasons": 0x1FF,
}


class Rig:
    """A node's NVML document and a source that reads it."""

    def __init__(self, library: Path, directory: Path, *, telemetry: bool, extended: bool) -> None:
        self.log = directory / "nvml.calls"
        self.document = node.place(library, directory, node.node())
        self.log.touch()
        self.source = NvmlSource(
            str(directory / library.name), telemetry=telemetry, pause_file=None, extended=extended
        )

    def read(self, device: node.Object, **overrides: Any) -> tuple[Gpu, tuple[GpuFault, ...]]:
        node.write(self.document, node.node(device, **overrides))
        nvml, complete = self.source.read()
        assert complete
        (only,) = nvml.gpus
        return only, nvml.faults

    def telemetry(self, **overrides: Any) -> Telemetry:
        only, faults = self.read(gpu(0, **overrides))
        assert faults == ()
        return only.telemetry


@pytest.fixture
def rig(nvml_library: Path, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(nvml_library, tmp_path / "node", telemetry=False, extended=True)
    yield made
    made.source.close()


def test_what_a_worn_gpu_says(rig: Rig) -> None:
    """Counts, both states of row remapping, and every reason that the GPU knows with whether it holds."""
    read = rig.telemetry(**WORN)
    assert read.ecc_errors == (("corrected", 3.0), ("uncorrected", 0.0))
    assert read.ecc_lifetime_errors == (("corrected", 2.0**33), ("uncorrected", 7.0))
    assert read.remapped_rows == (("corrected", 1.0), ("uncorrected", 2.0))
    assert (read.row_remap_pending, read.row_remap_failure) == (True, False)
    assert {name for name, holds in read.clock_events if holds} == {"sw_power_cap", "hw_thermal_slowdown"}
    assert {name for name, _ in EVENTS} - {name for name, _ in read.clock_events} == {
        "board_limit",
        "reliability",
    }


def test_the_groups_are_switched_apart(rig: Rig) -> None:
    """The extended group needs no other; sensors that are off are not asked."""
    read = rig.telemetry(**WORN)
    assert (read.temperature, read.power, read.clocks) == (None, None, ())
    assert "nvmlDeviceGetPowerUsage" not in rig.log.read_text()


def test_off_by_default(nvml_library: Path, tmp_path: Path) -> None:
    """Nothing of the group is asked for unless it is wanted."""
    rig = Rig(nvml_library, tmp_path / "node", telemetry=True, extended=False)
    read = rig.telemetry(**WORN)
    rig.source.close()
    assert read.temperature == 35.0
    assert (read.ecc_errors, read.remapped_rows, read.clock_events) == ((), (), ())
    assert (read.row_remap_pending, read.row_remap_failure) == (None, None)
    calls = rig.log.read_text()
    assert not [name for name in ("TotalEccErrors", "RemappedRows", "Reasons") if name in calls]


def test_what_is_not_supported_is_absent_and_no_fault(rig: Rig) -> None:
    """A board without ECC, row remapping and clock events says nothing, and nothing is wrong with that."""
    read = rig.telemetry(ecc_errors=None)
    assert (read.ecc_errors, read.ecc_lifetime_errors, read.remapped_rows) == ((), (), ())
    assert (read.row_remap_pending, read.row_remap_failure, read.clock_events) == (None, None, ())


def test_reasons_by_their_older_name(rig: Rig) -> None:
    """Drivers before R535 know throttle reasons only."""
    older = [EVENT, "nvmlDeviceGetSupportedClocksEventReasons"]
    only, faults = rig.read(gpu(0, **WORN), missing_symbols=older)
    assert faults == ()
    assert len(only.telemetry.clock_events) == 9
    assert dict(only.telemetry.clock_events)["sw_power_cap"] is True
    assert THROTTLE in rig.log.read_text()


def test_every_reason_where_the_gpu_does_not_say_which_it_knows(rig: Rig) -> None:
    """Without a mask of those supported each known reason is told."""
    read = rig.telemetry(clocks_event_reasons=0x400)
    assert [name for name, _ in read.clock_events] == [name for name, _ in EVENTS]
    assert dict(read.clock_events)["reliability"] is True


def test_all_ones_is_no_reading(rig: Rig) -> None:
    """A sentinel is neither a count nor every reason at once."""
    read = rig.telemetry(
        ecc_errors={"corrected": ALL_ONES, "uncorrected": 1},
        remapped_rows={"corrected": 2**32 - 1, "uncorrected": 0, "pending": False, "failure": False},
        clocks_event_reasons=ALL_ONES,
    )
    assert read.ecc_errors == (("uncorrected", 1.0),)
    assert read.remapped_rows == (("uncorrected", 0.0),)
    assert read.clock_events == ()


@pytest.mark.parametrize(
    "call",
    ["nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetCurrentClocksEventReasons"],
)
def test_one_failed_call_costs_its_field_and_is_told(rig: Rig, call: str) -> None:
    """The others stay, and the fault is named."""
    only, faults = rig.read(gpu(0, **WORN, calls={call: {"code": UNKNOWN}}))
    assert GpuFault(0, gpu_uuid(0), call, "UNKNOWN") in faults
    gone = {
        "nvmlDeviceGetTotalEccErrors": only.telemetry.ecc_errors,
        "nvmlDeviceGetRemappedRows": only.telemetry.remapped_rows,
    }
    assert [name for name, read in gone.items() if not read] == [name for name in gone if name == call]


def test_the_parent_of_mig_devices_wears_too(rig: Rig) -> None:
    """The board's memory and clocks are the parent's, whoever has its parts."""
    only, faults = rig.read(mig_gpu(0, mig_instance(0, 7), **WORN))
    assert faults == ()
    assert only.telemetry.ecc_errors == (("corrected", 3.0), ("uncorrected", 0.0))
    assert only.telemetry.row_remap_pending is True
