"""The nvml source end to end: the real child, pynvml, and a C library that a JSON document drives."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.model import (
    Gpu,
    GpuFault,
    Memory,
    MigInstance,
    Nvml,
    NvmlRow,
    ProcessUsage,
    Reason,
    SourceError,
    Telemetry,
)
from exporter.sources.nvml import NvmlSource
from tests.rig.nvml import node
from tests.rig.nvml.build import build
from tests.rig.nvml.node import GIB, MIB, gpu, gpu_uuid, mig_gpu, mig_instance, process

ALL_ONES = 2**64 - 1
NOT_SUPPORTED, NO_PERMISSION, INSUFFICIENT_SIZE, GPU_IS_LOST, RESET_REQUIRED, UNKNOWN = 3, 4, 7, 15, 16, 999
UNINITIALIZED, DRIVER_NOT_LOADED, MISMATCH = 1, 9, 18
COMPUTE = "nvmlDeviceGetComputeRunningProcesses"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


class Rig:
    """A node's NVML document and the source that reads it."""

    def __init__(self, library: Path, directory: Path) -> None:
        self.library = directory / library.name
        self.log = directory / "nvml.calls"
        self.document = node.place(library, directory, node.node())
        self.pause_file = directory / "pause"
        self.source = self.new()

    def new(
        self, *, telemetry: bool = True, first_seconds: float = 120.0, seconds: float = 60.0
    ) -> NvmlSource:
        return NvmlSource(
            str(self.library),
            telemetry=telemetry,
            pause_file=self.pause_file,
            first_seconds=first_seconds,
            seconds=seconds,
        )

    def use(self, *, telemetry: bool = True, first_seconds: float = 120.0, seconds: float = 60.0) -> None:
        self.source.close()
        self.source = self.new(telemetry=telemetry, first_seconds=first_seconds, seconds=seconds)

    def show(self, *devices: dict[str, Any], **overrides: Any) -> None:
        node.write(self.document, node.node(*devices, **overrides))

    def read(self, *devices: dict[str, Any], **overrides: Any) -> Nvml:
        if devices or overrides:
            self.show(*devices, **overrides)
        nvml, complete = self.source.read()
        assert complete
        return nvml

    def gpu(self, **overrides: Any) -> Gpu:
        (only,) = self.read(gpu(0, **overrides)).gpus
        return only

    def refused(self) -> SourceError:
        with pytest.raises(SourceError) as raised:
            self.source.read()
        return raised.value

    def calls(self, name: str) -> int:
        return self.log.read_text().split().count(name)


@pytest.fixture
def rig(library: Path, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(library, tmp_path / "node")
    made.log.touch()
    yield made
    made.source.close()


def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


def now() -> int:
    return int(time.time() * 1e6)


# --- inventory and telemetry ----------------------------------------------------------------------


def test_inventory(rig: Rig) -> None:
    nvml = rig.read(gpu(0), gpu(1, minor=5, pci="00010000:AF:00.0", virtualization=3, mig_mode=None))
    assert (nvml.driver_version, nvml.cuda_version, nvml.nvml_version) == (
        "570.148.08",
        "12.8",
        "12.570.148.08",
    )
    assert (nvml.count, nvml.faults) == (2, ())
    first, second = nvml.gpus
    assert (first.uuid, first.index, first.minor, first.pci_address) == (gpu_uuid(0), 0, 0, "0000:3b:00.0")
    assert (first.product, first.mig_enabled, first.virtualization) == (
        "NVIDIA A100-SXM4-40GB",
        False,
        "none",
    )
    assert (first.confidential, first.coherent_memory, first.lost) == (False, False, "")
    assert (second.minor, second.pci_address, second.mig_enabled) == (5, "10000:af:00.0", None)
    assert second.virtualization == "host_vgpu"


def test_a_node_without_gpus_is_a_reading(rig: Rig) -> None:
    assert rig.read().gpus == ()


def test_nvml_is_started_once(rig: Rig) -> None:
    for _ in range(3):
        rig.read(gpu(0))
    assert rig.calls("nvmlInitWithFlags") == 1
    assert rig.calls("nvmlDeviceGetName") == 1, "what cannot change is read once"
    rig.source.close()
    assert rig.calls("nvmlShutdown") == 1


@pytest.mark.parametrize(
    ("numa", "mode", "coherent"),
    [
        (None, "NONE", False),
        (None, "HMM", False),
        (None, "ATS", True),
        (4, "NONE", True),
        (2**32 - 1, "NONE", False),
    ],
)
def test_coherent_memory(rig: Rig, numa: int | None, mode: str, coherent: bool) -> None:
    assert rig.gpu(numa_node=numa, addressing_mode=mode).coherent_memory is coherent


def test_what_an_old_driver_does_not_know_is_unknown(rig: Rig) -> None:
    symbols = ["nvmlDeviceGetNumaNodeId", "nvmlDeviceGetAddressingMode", "nvmlSystemGetConfComputeState"]
    nvml = rig.read(gpu(0), missing_symbols=symbols)
    assert (nvml.gpus[0].coherent_memory, nvml.gpus[0].confidential, nvml.faults) == (None, None, ())


def test_confidential_computing(rig: Rig) -> None:
    assert rig.read(gpu(0), confidential=True).gpus[0].confidential is True


def test_telemetry(rig: Rig) -> None:
    read = rig.gpu(utilization={"gpu": 87, "memory": 40}, encoder=3, decoder=100, energy_mj=12_345_678)
    assert read.telemetry == Telemetry(
        utilization=0.87,
        memory_activity=0.4,
        encoder=0.03,
        decoder=1.0,
        temperature=35.0,
        thresholds=(("shutdown", 92.0), ("slowdown", 89.0), ("mem_max", 95.0), ("gpu_max", 85.0)),
        power=55.0,
        power_limit=400.0,
        energy=12345.678,
        clocks=(("graphics", 210e6), ("sm", 210e6), ("memory", 1215e6), ("video", 585e6)),
    )


def test_telemetry_off_keeps_the_engine_counters(rig: Rig) -> None:
    rig.use(telemetry=False)
    assert rig.gpu().telemetry == Telemetry(utilization=0.0, memory_activity=0.0, encoder=0.0, decoder=0.0)
    assert rig.calls("nvmlDeviceGetPowerUsage") == 0


def test_one_unsupported_sensor_costs_only_its_field(rig: Rig) -> None:
    whole = rig.gpu().telemetry
    part = rig.gpu(power_mw=None, encoder=None, thresholds={"slowdown": 89}, clocks={"sm": 210}).telemetry
    assert part == replace(
        whole, power=None, encoder=None, thresholds=(("slowdown", 89.0),), clocks=(("sm", 210e6),)
    )


def test_all_ones_is_no_reading(rig: Rig) -> None:
    part = rig.gpu(power_mw=2**32 - 1, energy_mj=ALL_ONES, encoder=2**32 - 1).telemetry
    assert (part.power, part.energy, part.encoder, part.power_limit) == (None, None, None, 400.0)


def test_temperature_by_the_older_symbol(rig: Rig) -> None:
    assert (
        rig.read(gpu(0), missing_symbols=["nvmlDeviceGetTemperatureV"]).gpus[0].telemetry.temperature == 35.0
    )


def test_a_failed_call_is_a_fault_and_costs_only_its_field(rig: Rig) -> None:
    nvml = rig.read(gpu(0, calls={"nvmlDeviceGetPowerUsage": {"code": UNKNOWN}}), gpu(1))
    assert nvml.faults == (GpuFault(0, gpu_uuid(0), "nvmlDeviceGetPowerUsage", "UNKNOWN"),)
    assert nvml.gpus[0].telemetry == replace(nvml.gpus[1].telemetry, power=None)
    assert rig.read(gpu(0), gpu(1)).faults == (), "faults are of one cycle"


def test_hostile_names_become_one_printable_line(rig: Rig) -> None:
    rig.show(gpu(0, name='A100"\n\x1b[31m'))
    assert rig.read().gpus[0].product == 'A100"??[31m'
    rig.use()
    raw = rig.document.read_bytes().replace(b'A100\\"\\n\\u001b[31m', b"B\xff\xfe")
    rig.document.unlink()
    rig.document.write_bytes(raw)
    assert rig.read().gpus[0].product == "B\ufffd\ufffd"


# --- memory ---------------------------------------------------------------------------------------


def test_memory_with_what_the_driver_reserves(rig: Rig) -> None:
    read = rig.gpu(memory=node.memory(40 * GIB, used=3 * GIB, reserved=640 * MIB))
    assert read.memory == Memory(40 * GIB, 3 * GIB, 37 * GIB - 640 * MIB, 640 * MIB, 2)


@pytest.mark.parametrize("how", ["missing", "wrong"])
def test_memory_falls_back_to_version_1(rig: Rig, how: str) -> None:
    memory = node.memory(40 * GIB, used=3 * GIB, reserved=640 * MIB)
    if how == "wrong":
        memory["free"] = GIB
    missing = ["nvmlDeviceGetMemoryInfo_v2"] if how == "missing" else []
    read = rig.read(gpu(0, memory=memory), missing_symbols=missing).gpus[0].memory
    assert read == Memory(40 * GIB, 3 * GIB + 640 * MIB, int(str(memory["free"])), None, 1)


@pytest.mark.parametrize(
    "memory",
    [
        None,
        {"total": 0, "used": 0, "free": 0, "reserved": 0},
        {"total": ALL_ONES, "used": ALL_ONES, "free": ALL_ONES, "reserved": ALL_ONES},
        {"total": 40 * GIB, "used": ALL_ONES, "free": ALL_ONES, "reserved": ALL_ONES},
    ],
)
def test_memory_that_is_not_available_is_absent(rig: Rig, memory: dict[str, int] | None) -> None:
    nvml = rig.read(gpu(0, memory=memory, compute=[process(7, 5 * MIB)]))
    assert (nvml.gpus[0].memory, nvml.faults) == (None, ())
    assert nvml.gpus[0].rows == (NvmlRow(7, memory=5 * MIB),), "its processes are still listed"


# --- process lists --------------------------------------------------------------------------------


def test_the_three_lists_are_one(rig: Rig) -> None:
    read = rig.gpu(
        compute=[process(30, 5 * MIB), process(20, None)],
        graphics=[process(30, 9 * MIB), process(40, None)],
        mps=[process(20, MIB)],
    )
    assert read.rows == (
        NvmlRow(20, memory=MIB, kinds=("compute", "mps")),
        NvmlRow(30, memory=9 * MIB, kinds=("compute", "graphics")),
        NvmlRow(40, memory=None, kinds=("graphics",)),
    )
    assert read.rows_problem == ""


def test_nobody_is_an_empty_list(rig: Rig) -> None:
    assert rig.gpu().rows == ()


def test_lists_by_the_older_symbol(rig: Rig) -> None:
    missing = [COMPUTE + "_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"]
    nvml = rig.read(gpu(0, compute=[process(30, MIB)], mps=[process(31, MIB)]), missing_symbols=missing)
    assert [row.pid for row in nvml.gpus[0].rows or ()] == [30, 31]
    rig.read()
    assert rig.calls(COMPUTE + "_v3") == 1, "a missing symbol is remembered"


def test_no_list_at_all_is_unknown_and_not_nobody(rig: Rig) -> None:
    nvml = rig.read(gpu(0, compute=[process(30, MIB)]), missing_symbols=[COMPUTE + "_v3", COMPUTE + "_v2"])
    assert (nvml.gpus[0].rows, nvml.gpus[0].rows_problem) == (None, "FUNCTION_NOT_FOUND")
    assert nvml.gpus[0].usage is None


@pytest.mark.parametrize("pid", [0, 2**32 - 1, 2**23])
def test_garbage_is_believed_in_no_part(rig: Rig, pid: int) -> None:
    read = rig.gpu(compute=[process(30, MIB), process(pid, MIB, raw=True)])
    assert (read.rows, read.rows_problem) == (None, "garbage")
    assert rig.gpu(compute=[process(30, MIB)], graphics=[process(pid, MIB, raw=True)]).rows is None


def test_a_failed_compute_list_is_unknown(rig: Rig) -> None:
    nvml = rig.read(gpu(0, compute={"code": UNKNOWN}), gpu(1, compute={"code": NOT_SUPPORTED}))
    assert [(one.rows, one.rows_problem) for one in nvml.gpus] == [(None, "UNKNOWN"), (None, "NOT_SUPPORTED")]
    assert nvml.faults == (GpuFault(0, gpu_uuid(0), COMPUTE + "_v3", "UNKNOWN"),)


def test_a_missing_graphics_or_mps_list_costs_nothing(rig: Rig) -> None:
    nvml = rig.read(gpu(0, compute=[process(30, MIB)], graphics=None, mps={"code": NO_PERMISSION}))
    assert (nvml.gpus[0].rows, nvml.faults) == ((NvmlRow(30, memory=MIB),), ())


def test_a_list_that_grows_between_sizing_and_filling(rig: Rig) -> None:
    once = {COMPUTE + "_v3": {"code": INSUFFICIENT_SIZE, "skip": 1, "times": 1}}
    assert rig.gpu(compute=[process(30, MIB)], calls=once).rows == (NvmlRow(30, memory=MIB),)


# --- utilisation of processes ---------------------------------------------------------------------


def sample(pid: int, stamp: int, sm: int, **more: Any) -> dict[str, Any]:
    return {"pid": pid, "timestamp": stamp, "sm": sm, "mem": 5, "enc": 0, "dec": 0} | more


def test_usage_of_the_listed_processes(rig: Rig) -> None:
    stamp = now()
    rows = [process(30, MIB), process(31, MIB), process(32, MIB)]
    samples = [
        sample(30, stamp - 10, 99),
        sample(30, stamp, 50),
        sample(31, stamp, 25_000, raw=True),
        sample(32, stamp, 25_000, mem=25_000, enc=101, dec=2**32 - 1, raw=True),
        sample(33, stamp, 40),
        sample(30, stamp - 60_000_000, 70),
        sample(31, stamp + 3_600_000_000, 70),
    ]
    assert rig.gpu(compute=rows, process_utilization=samples).usage == (
        ProcessUsage(30, 0.5, 0.05, 0.0, 0.0),
        ProcessUsage(31, None, 0.05, 0.0, 0.0),
    )


def test_a_sample_is_used_once_and_each_gpu_has_its_own_stamp(rig: Rig) -> None:
    stamp = now()
    early = gpu(0, compute=[process(30, MIB)], process_utilization=[sample(30, stamp - 500_000, 50)])
    late = gpu(1, compute=[process(31, MIB)], process_utilization=[sample(31, stamp, 60)])
    first = rig.read(late | {"pci": "00000000:01:00.0"}, early).gpus
    assert [one.usage and one.usage[0].sm for one in first] == [0.6, 0.5]
    assert [one.usage for one in rig.read().gpus] == [(), ()]


@pytest.mark.parametrize("answer", [[], {"code": 0}])
def test_idle_is_a_reading(rig: Rig, answer: Any) -> None:
    assert rig.gpu(compute=[process(30, MIB)], process_utilization=answer).usage == ()


def test_unsupported_usage_is_absent(rig: Rig) -> None:
    nvml = rig.read(gpu(0, compute=[process(30, MIB)], process_utilization=None))
    assert (nvml.gpus[0].usage, nvml.faults) == (None, ())


# --- MIG ------------------------------------------------------------------------------------------


def test_mig_devices(rig: Rig) -> None:
    second = mig_instance(
        5,
        2,
        ci=1,
        gi_profile=9,
        profile="3g.20gb",
        placement={"start": 4, "size": 4},
        memory=node.memory(20 * GIB),
    )
    rows = [process(30, MIB, 7, 0), process(30, 2 * MIB, 2, 1), process(31, None, 2, 1)]
    nvml = rig.read(mig_gpu(0, mig_instance(0, 7), second, compute=rows))
    (read,) = nvml.gpus
    assert (read.mig_enabled, nvml.faults) == (True, ())
    assert read.instances == (
        MigInstance(
            "MIG-00000000-0007-5000-8000-000000000000",
            7,
            0,
            "1g.5gb",
            19,
            0,
            1,
            Memory(4864 * MIB, 0, 4864 * MIB, 0),
        ),
        MigInstance(
            "MIG-00000000-0002-5000-8000-000000000005",
            2,
            1,
            "3g.20gb",
            9,
            4,
            4,
            Memory(20 * GIB, 0, 20 * GIB, 0),
        ),
    )
    assert read.rows == (
        NvmlRow(30, 2, 1, 2 * MIB),
        NvmlRow(31, 2, 1, None),
        NvmlRow(30, 7, 0, MIB),
    )
    assert (read.usage, read.telemetry.utilization, read.telemetry.temperature) == (None, None, 35.0)


def test_profile_from_the_attributes(rig: Rig) -> None:
    whole = mig_instance(0, 1, name="NVIDIA A100", gpu_slices=3, compute_slices=3, memory_mb=19968)
    part = mig_instance(1, 2, name="NVIDIA A100", gpu_slices=3, compute_slices=1, memory_mb=19968)
    assert [one.profile for one in rig.read(mig_gpu(0, whole, part)).gpus[0].instances] == [
        "3g.20gb",
        "1c.3g.20gb",
    ]


def test_placement_that_may_not_be_seen(rig: Rig) -> None:
    refuse = {"nvmlDeviceGetGpuInstanceById": {"code": NO_PERMISSION}}
    nvml = rig.read(mig_gpu(0, mig_instance(0, 7), calls=refuse))
    (instance,) = nvml.gpus[0].instances
    assert (instance.profile_id, instance.start, instance.size, nvml.faults) == (None, None, None, ())
    assert instance.profile == "1g.5gb"


def test_the_parent_refuses_and_each_mig_device_answers(rig: Rig) -> None:
    refuse = {COMPUTE + "_v3": {"code": NO_PERMISSION}}
    own: dict[str, Any] = {COMPUTE + "_v3": {}}
    instances = mig_instance(0, 7, calls=own), mig_instance(1, 8, calls=own)
    rows = [process(30, MIB, 7, 0), process(31, MIB, 8, 0)]
    (read,) = rig.read(mig_gpu(0, *instances, compute=rows, calls=refuse)).gpus
    assert read.rows == (NvmlRow(30, 7, 0, MIB), NvmlRow(31, 8, 0, MIB))
    (read,) = rig.read(gpu(0, compute="permission")).gpus
    assert (read.rows, read.rows_problem) == (None, "NO_PERMISSION")


def test_repartition_between_two_reads(rig: Rig) -> None:
    assert [
        one.gi for one in rig.read(mig_gpu(0, mig_instance(0, 7), mig_instance(1, 8))).gpus[0].instances
    ] == [7, 8]
    new = mig_instance(0, 1, uuid="MIG-new", profile="3g.20gb")
    assert [one.mig_uuid for one in rig.read(mig_gpu(0, new)).gpus[0].instances] == ["MIG-new"]
    (read,) = rig.read(gpu(0)).gpus
    assert (read.mig_enabled, read.instances) == (False, ())


# --- a GPU that stops answering -------------------------------------------------------------------


@pytest.mark.parametrize("how", ["lost", "lost_handle"])
def test_one_lost_gpu_silences_no_other_and_comes_back(rig: Rig, how: str) -> None:
    busy = gpu(0, compute=[process(30, MIB)])
    before = rig.read(busy, gpu(1, compute=[process(31, MIB)]))
    nvml = rig.read(busy, gpu(1, **{how: True}))
    assert nvml.gpus[0] == replace(before.gpus[0], usage=())
    lost = nvml.gpus[1]
    assert (lost.lost, lost.uuid, lost.product) == ("GPU_IS_LOST", gpu_uuid(1), "NVIDIA A100-SXM4-40GB")
    assert (lost.memory, lost.rows, lost.usage, lost.telemetry) == (None, None, None, Telemetry())
    assert {(fault.index, fault.uuid, fault.error) for fault in nvml.faults} == {
        (1, gpu_uuid(1), "GPU_IS_LOST")
    }
    back = rig.read(busy, gpu(1))
    assert (back.gpus[1].lost, back.gpus[1].rows, back.faults) == ("", (), ())


def test_lost_half_way_keeps_nothing_of_this_cycle(rig: Rig) -> None:
    rig.read(mig_gpu(0, mig_instance(0, 7)), gpu(1))
    fatal = {"nvmlDeviceGetPowerUsage": {"code": RESET_REQUIRED}}
    nvml = rig.read(mig_gpu(0, mig_instance(0, 7), compute=[process(30, MIB, 7, 0)], calls=fatal), gpu(1))
    lost, other = nvml.gpus
    assert (lost.lost, lost.memory, lost.rows, lost.mig_enabled) == ("RESET_REQUIRED", None, None, True)
    assert [(one.gi, one.memory) for one in lost.instances] == [(7, None)], (
        "what it is divided into is remembered"
    )
    assert other.rows == ()


def test_a_gpu_lost_before_anybody_saw_it_is_only_a_fault(rig: Rig) -> None:
    rig.show(gpu(0), gpu(1, lost_handle=True))
    nvml, complete = rig.source.read()
    assert (nvml.count, [one.index for one in nvml.gpus], complete) == (2, [0], False)
    assert nvml.faults == (GpuFault(1, "", "nvmlDeviceGetHandleByIndex", "GPU_IS_LOST"),)


def test_a_new_child_knows_what_the_old_one_saw(rig: Rig) -> None:
    rig.read(gpu(0), gpu(1))
    rig.pause_file.touch()
    assert rig.refused().reason is Reason.PAUSED
    rig.pause_file.unlink()
    lost = rig.read(gpu(0), gpu(1, lost_handle=True)).gpus[1]
    assert (lost.uuid, lost.minor, lost.lost) == (gpu_uuid(1), 1, "GPU_IS_LOST")


def test_an_index_that_became_another_gpu_is_not_remembered_twice(rig: Rig) -> None:
    rig.read(gpu(0), gpu(1), gpu(2))
    rig.show(gpu(0), gpu(2, pci="00000000:01:00.0"), gpu(1, uuid=gpu_uuid(9), lost_handle=True))
    nvml, complete = rig.source.read()
    assert ([one.uuid for one in nvml.gpus], complete) == ([gpu_uuid(0), gpu_uuid(2)], False)


# --- hangs, crashes, and a driver that is not there -----------------------------------------------


@pytest.fixture
def in_background() -> Iterator[Callable[[Rig], Future[tuple[Nvml, bool]]]]:
    with ThreadPoolExecutor(1) as pool:
        yield lambda rig: pool.submit(rig.source.read)


Background = Callable[[Rig], "Future[tuple[Nvml, bool]]"]


def test_a_hang_is_named_and_heals(rig: Rig, in_background: Background) -> None:
    assert (rig.source.partial(), rig.source.in_flight()) == (None, None)
    rig.show(gpu(0, compute=[process(30, MIB)]), gpu(1, calls={"nvmlDeviceGetPowerUsage": {"hang": True}}))
    started = time.time()
    reading = in_background(rig)
    until(lambda: (at := rig.source.in_flight()) is not None and at.call == "nvmlDeviceGetPowerUsage")
    at = rig.source.in_flight()
    assert at is not None
    assert (at.index, at.uuid, started < at.since < time.time()) == (1, gpu_uuid(1), True)
    partial = rig.source.partial()
    assert partial is not None
    assert [(one.index, one.rows) for one in partial.gpus] == [(0, (NvmlRow(30, memory=MIB),))]
    assert partial.count == 2
    with pytest.raises(SourceError, match="busy"):
        rig.source.read()
    rig.show(gpu(0), gpu(1))
    nvml, complete = reading.result(10)
    assert ([one.index for one in nvml.gpus], complete) == ([0, 1], True)
    assert (rig.source.partial(), rig.source.in_flight()) == (None, None)


def test_a_hang_in_init_shows_nothing_but_where(rig: Rig, in_background: Background) -> None:
    rig.show(gpu(0), init={"delay_ms": 1500})
    reading = in_background(rig)
    until(lambda: (at := rig.source.in_flight()) is not None and at.call == "nvmlInit")
    assert rig.source.partial() is None
    assert reading.result(10)[0].count == 1


def test_a_hang_without_end_costs_the_child(rig: Rig) -> None:
    rig.use(seconds=1.0, first_seconds=5.0)
    rig.read(gpu(0), gpu(1))
    rig.show(gpu(0), gpu(1, calls={"nvmlDeviceGetTotalEnergyConsumption": {"hang_hard": True}}))
    error = rig.refused()
    assert error.reason is Reason.TIMEOUT
    assert f"nvmlDeviceGetTotalEnergyConsumption of GPU 1 {gpu_uuid(1)}" in error.detail
    rig.show(gpu(0), gpu(1))
    until(lambda: _answers(rig))


def _answers(rig: Rig) -> bool:
    """Whether the source answers again; a new child is started only after a while."""
    try:
        return bool(rig.read().gpus)
    except SourceError:
        return False


def test_a_crash_in_a_call_is_unavailable_and_heals(rig: Rig) -> None:
    rig.show(gpu(0), gpu(1, calls={"nvmlDeviceGetMemoryInfo_v2": {"crash": True}}))
    error = rig.refused()
    assert error.reason is Reason.UNAVAILABLE
    assert f"nvmlDeviceGetMemoryInfo of GPU 1 {gpu_uuid(1)}" in error.detail
    rig.show(gpu(0), gpu(1))
    until(lambda: _answers(rig))


@pytest.mark.parametrize(
    ("code", "reason", "name", "remedy"),
    [
        (DRIVER_NOT_LOADED, Reason.UNAVAILABLE, "NVML_ERROR_DRIVER_NOT_LOADED", "module"),
        (NO_PERMISSION, Reason.DENIED, "NVML_ERROR_NO_PERMISSION", "privileged"),
        (MISMATCH, Reason.UNAVAILABLE, "NVML_ERROR_LIB_RM_VERSION_MISMATCH", "recreate this pod"),
        (UNKNOWN, Reason.UNAVAILABLE, "NVML_ERROR_UNKNOWN", "recreate this pod"),
        (GPU_IS_LOST, Reason.UNAVAILABLE, "NVML_ERROR_GPU_IS_LOST", ""),
        (77, Reason.UNAVAILABLE, "NVML_ERROR_CODE_77", ""),
    ],
)
def test_init_that_fails_says_why_and_heals(
    rig: Rig, code: int, reason: Reason, name: str, remedy: str
) -> None:
    rig.show(gpu(0), init={"code": code})
    error = rig.refused()
    assert (error.reason, error.detail.split(":")[0]) == (reason, name)
    assert error.detail.endswith(remedy) or remedy in error.detail
    assert len(rig.read(gpu(0)).gpus) == 1


def test_a_version_mismatch_needs_a_new_process(rig: Rig) -> None:
    rig.read(gpu(0))
    old = rig.source._child.pid
    rig.show(gpu(0, calls={"nvmlDeviceGetMemoryInfo_v2": {"code": MISMATCH}}))
    assert "NVML_ERROR_LIB_RM_VERSION_MISMATCH" in rig.refused().detail
    rig.read(gpu(0))
    assert rig.source._child.pid not in (None, old)


def test_a_driver_that_went_away_is_started_anew(rig: Rig) -> None:
    rig.read(gpu(0))
    old = rig.source._child.pid
    rig.show(gpu(0, calls={"nvmlDeviceGetMemoryInfo_v2": {"code": UNINITIALIZED}}))
    error = rig.refused()
    assert (error.reason, error.detail.split(":")[0]) == (Reason.UNAVAILABLE, "NVML_ERROR_UNINITIALIZED")
    rig.read(gpu(0))
    assert rig.source._child.pid == old
    assert (rig.calls("nvmlShutdown"), rig.calls("nvmlInitWithFlags")) == (1, 2)


def test_no_library_and_a_broken_one(tmp_path: Path) -> None:
    path = tmp_path / "libnvidia-ml.so.1"
    source = NvmlSource(str(path), telemetry=True, pause_file=None)
    try:
        for text in ("does not exist", "file too short"):
            with pytest.raises(SourceError, match=text) as raised:
                source.read()
            assert raised.value.reason is Reason.UNAVAILABLE
            assert "NVML_ERROR_LIBRARY_NOT_FOUND" in raised.value.detail
            path.touch()
    finally:
        source.close()


def test_the_pause_file_releases_the_library(rig: Rig) -> None:
    rig.read(gpu(0))
    pid = rig.source._child.pid
    assert rig.library.name in Path(f"/proc/{pid}/maps").read_text()
    rig.pause_file.touch()
    assert rig.refused().reason is Reason.PAUSED
    assert not Path(f"/proc/{pid}").exists()
    assert rig.calls("nvmlShutdown") == 1
    rig.pause_file.unlink()
    assert len(rig.read(gpu(0)).gpus) == 1


def test_the_parent_never_loads_the_library(rig: Rig) -> None:
    rig.read(gpu(0))
    assert "libnvidia-ml" not in Path("/proc/self/maps").read_text()
    assert "pynvml" not in sys.modules


def test_the_child_stays_small() -> None:
    code = (
        "import io, sys; sys.stdin = io.StringIO()\n"
        "from exporter.sources.nvml import main\n"
        "main([])\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name.split(".")[0] for name in ran.stderr.split()}
    assert {"exporter", "pynvml"} <= loaded
    assert not loaded & {"grpc", "google", "kubernetes", "pydantic", "prometheus_client", "uvicorn", "yaml"}


class Talker:
    """A child that says what a test wants."""

    def __init__(self, end: Any, *parts: tuple[str, Any]) -> None:
        self.end = end
        self.parts = parts

    def call(self, op: str, request: Any, seconds: float, part: Callable[[str, Any], None]) -> Any:
        for name, value in self.parts:
            part(name, value)
        return self.end

    def close(self) -> None:
        pass


HEAD = ("head", {"driver_version": "1", "cuda_version": "", "nvml_version": "", "count": 0})


@pytest.mark.parametrize(
    ("end", "parts"),
    [
        ({"faults": []}, [HEAD, ("gpu", {"uuid": "GPU-1", "index": "one"})]),
        ({"faults": []}, [HEAD, ("gpu", None)]),
        ({"faults": []}, [HEAD, ("news", {})]),
        ({"faults": []}, []),
        ({"faults": [{}]}, [HEAD]),
        ({}, [HEAD]),
        (None, [HEAD]),
    ],
)
def test_an_answer_that_cannot_be_understood(rig: Rig, end: Any, parts: list[tuple[str, Any]]) -> None:
    rig.source._child = Talker(end, *parts)  # type: ignore[assignment]
    assert rig.refused().reason is Reason.PROTOCOL
