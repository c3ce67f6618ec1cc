"""The stand-in NVML library, driven through NVIDIA's own Python binding in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.errors import RigError
from tests.rig.nvml import build, node

# `ask` returns what a call gives, or "E" and the error number, so that one script can try many calls.
PRELUDE = """
import json, sys
import pynvml as n

def ask(function, *arguments):
    try:
        return function(*arguments)
    except n.NVMLError as error:
        return f"E{error.value}"

def rows(function, handle):
    listed = ask(function, handle)
    if isinstance(listed, str):
        return listed
    return [
        [row.pid, row.usedGpuMemory, row.gpuInstanceId, row.computeInstanceId] for row in listed
    ]

def number(value):  # some wrappers forget to unpack the C integer
    return getattr(value, "value", value)

def gpu(index=0):
    return n.nvmlDeviceGetHandleByIndex(index)

def mig(slot, index=0):
    return n.nvmlDeviceGetMigDeviceHandleByIndex(gpu(index), slot)

def tell(answer):
    print(json.dumps(answer), flush=True)

n.nvmlInit()
"""
NONE = 0xFFFFFFFF  # an instance id that is not there
NOT_AVAILABLE = (1 << 64) - 1

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = "E1", "E2", "E3", "E4"
NOT_FOUND, INSUFFICIENT_SIZE, DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND = "E6", "E7", "E9", "E13"
GPU_IS_LOST, VERSION_MISMATCH = "E15", "E25"


class Node:
    """One directory with the library, its document and a call log."""

    def __init__(self, library: Path, directory: Path) -> None:
        self.directory = directory
        self.document = node.place(library, directory, node.node())
        self.log = directory / "nvml.calls"
        self.log.touch()

    def write(self, *devices: node.Object, **overrides: node.Json) -> None:
        node.write(self.document, node.node(*devices, **overrides))

    def start(self, script: str, *, prelude: str = PRELUDE, **environment: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", prelude + script],
            env={**os.environ, "LD_LIBRARY_PATH": str(self.directory), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ask(self, script: str, *, prelude: str = PRELUDE, **environment: str) -> Any:
        """What the script told, or the list of it if it told several things."""
        with self.start(script, prelude=prelude, **environment) as process:
            out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        told = [json.loads(line) for line in out.splitlines()]
        return told[0] if len(told) == 1 else told

    def refused(self, document: node.Json) -> str:
        """The message with which the library ends a process that reads this document."""
        self.document.write_text(json.dumps(document))
        with self.start("") as process:
            _, err = process.communicate(timeout=30)
        assert process.returncode == -signal.SIGABRT
        return err.strip().splitlines()[-1]

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def rig(library: Path, tmp_path: Path) -> Node:
    return Node(library, tmp_path / "node")


def readline(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


@pytest.fixture
def running(rig: Node) -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes that are ended with the test, however it ends."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


# ------------------------------------------------------------------ building


def test_build_is_reused_until_its_inputs_change(tmp_path: Path) -> None:
    first = build.build(tmp_path)
    before = first.stat()
    assert build.build(tmp_path).stat().st_ino == before.st_ino
    (tmp_path / f"{build.NAME}.sha256").write_text("another build")
    assert build.build(tmp_path).stat().st_ino != before.st_ino


def test_build_leaves_functions_out(tmp_path: Path) -> None:
    without = ["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3"]
    rig = Node(build.build(tmp_path / "old", without=without), tmp_path / "node")
    rig.write(node.gpu(0, compute=[node.process(7, 5)]))
    script = """
tell([hasattr(n.nvmlLib, name) for name in %r])
tell(ask(n.nvmlDeviceGetMemoryInfo, gpu(), n.nvmlMemory_v2))
tell(n.nvmlDeviceGetMemoryInfo(gpu()).total)
tell(ask(n.nvmlDeviceGetComputeRunningProcesses_v3, gpu()))
tell(rows(n.nvmlDeviceGetComputeRunningProcesses_v2, gpu()))
"""
    assert rig.ask(script % without) == [
        [False, False],
        FUNCTION_NOT_FOUND,
        40 * node.GIB,
        FUNCTION_NOT_FOUND,
        [[7, 5, NONE, NONE]],
    ]


def test_build_refuses_to_leave_out_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RigError, match="nvmlDeviceGetNothing"):
        build.build(tmp_path, without=["nvmlDeviceGetNothing"])
    assert not (tmp_path / build.NAME).exists()


def test_build_names_the_package_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RigError, match="gcc"):
        build.build(tmp_path / "out")


def test_only_nvml_names_are_exported(library: Path) -> None:
    table = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    ).stdout
    names = [line.split()[-1] for line in table.splitlines()]
    assert len(names) > 80
    assert [name for name in names if not name.startswith("nvml")] == []


# ------------------------------------------------------------------ the library itself


def test_calls_before_init_and_after_shutdown_are_refused(rig: Node) -> None:
    rig.write(node.gpu(0))
    script = """
handle = gpu()
n.nvmlInit()
n.nvmlShutdown()
tell(ask(n.nvmlDeviceGetCount))
n.nvmlShutdown()
tell(ask(n.nvmlDeviceGetCount))
tell(ask(n.nvmlDeviceGetUUID, handle))
tell(ask(n.nvmlShutdown))
tell(ask(n.nvmlSystemGetDriverVersion))
tell(ask(n.nvmlSystemGetNVMLVersion))
tell(str(n.NVMLError(15)))
n.nvmlInit()
tell(ask(n.nvmlDeviceGetUUID, handle))
"""
    assert rig.ask(script) == [
        1,
        UNINITIALIZED,
        UNINITIALIZED,
        UNINITIALIZED,
        UNINITIALIZED,
        "12.570.148.08",
        "GPU is lost",
        node.gpu_uuid(0),
    ]


def test_init_fails_and_waits_as_told(rig: Node) -> None:
    rig.write(init={"code": 9, "delay_ms": 300})
    script = """
import json, time
import pynvml as n
began = time.monotonic()
try:
    n.nvmlInit()
except n.NVMLError as error:
    print(json.dumps([f"E{error.value}", time.monotonic() - began]))
"""
    code, took = rig.ask(script, prelude="")
    assert code == DRIVER_NOT_LOADED
    assert took >= 0.3


def test_versions(rig: Node) -> None:
    rig.write(driver_version="535.86", nvml_version="12.535", cuda_version=12020)
    script = """
tell(n.nvmlSystemGetDriverVersion())
tell(n.nvmlSystemGetNVMLVersion())
tell([n.nvmlSystemGetCudaDriverVersion(), n.nvmlSystemGetCudaDriverVersion_v2()])
"""
    assert rig.ask(script) == ["535.86", "12.535", [12020, 12020]]


def test_text_that_does_not_fit_is_refused(rig: Node) -> None:
    rig.write(node.gpu(0))
    script = """
from ctypes import create_string_buffer, c_uint
name = create_string_buffer(64)
call = n.nvmlLib.nvmlDeviceGetName
exact = len("NVIDIA A100-SXM4-40GB") + 1
tell([call(gpu(), name, c_uint(exact - 1)), call(gpu(), name, c_uint(exact)), call(gpu(), None, c_uint(64))])
"""
    assert rig.ask(script) == [7, 0, 2]


# ------------------------------------------------------------------ handles


def test_devices_are_found_by_index_uuid_and_bus_id(rig: Node) -> None:
    rig.write(node.gpu(0), node.gpu(1), node.mig_gpu(2, node.mig_instance(4, 9, parent=2)))
    script = """
tell(n.nvmlDeviceGetCount())
tell([n.nvmlDeviceGetUUID(gpu(i)) for i in range(3)])
tell([ask(n.nvmlDeviceGetHandleByIndex, i) for i in (3, 4294967295)])
by_uuid = n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(gpu(1)))
tell(n.nvmlDeviceGetIndex(by_uuid))
tell([ask(n.nvmlDeviceGetHandleByUUID, uuid) for uuid in ("GPU-none", "none", "")])
ids = ("00000000:3C:00.0", "0000:3c:00.0", "0:3c:0", "3C:00.0")
tell([n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(i)) for i in ids])
tell([ask(n.nvmlDeviceGetHandleByPciBusId, i) for i in ("0000:99:00.0", "0000:3c:00.1", "3c", "rubbish")])
by_mig_uuid = n.nvmlDeviceGetHandleByUUID("MIG-00000002-0009-5000-8000-000000000004")
tell([number(n.nvmlDeviceIsMigDeviceHandle(by_mig_uuid)), n.nvmlDeviceGetIndex(by_mig_uuid)])
tell(ask(n.nvmlDeviceGetUUID, None))
"""
    assert rig.ask(script) == [
        3,
        [node.gpu_uuid(0), node.gpu_uuid(1), node.gpu_uuid(2)],
        [INVALID_ARGUMENT, INVALID_ARGUMENT],
        1,
        [NOT_FOUND, INVALID_ARGUMENT, INVALID_ARGUMENT],
        [1, 1, 1, 1],
        [NOT_FOUND, NOT_FOUND, INVALID_ARGUMENT, INVALID_ARGUMENT],
        [1, 4],
        INVALID_ARGUMENT,
    ]


def test_a_handle_follows_its_uuid_to_another_index(rig: Node) -> None:
    """Handles name a GPU, not a place in the list; a GPU that is no longer there is lost."""
    rig.write(node.gpu(0), node.gpu(1))
    script = """
handle = gpu(1)
tell(n.nvmlDeviceGetIndex(handle))
for line in sys.stdin:
    tell(ask(n.nvmlDeviceGetIndex, handle))
"""
    with rig.start(script) as process:
        assert process.stdin is not None
        assert readline(process) == 1
        rig.write(node.gpu(1))
        process.stdin.write("\n")
        process.stdin.flush()
        assert readline(process) == 0
        rig.write(node.gpu(0))
        out, _ = process.communicate("\n")
    assert json.loads(out) == GPU_IS_LOST


def test_lost_gpus_lose_calls_and_on_request_the_handle(rig: Node) -> None:
    rig.write(
        node.gpu(0, lost=True),
        node.gpu(1, lost=True, lost_handle=True),
        node.gpu(2),
        node.mig_gpu(3, node.mig_instance(0, 7), lost=True),
    )
    script = """
tell([ask(n.nvmlDeviceGetUUID, gpu(0)), ask(n.nvmlDeviceGetPowerUsage, gpu(0))])
tell([ask(n.nvmlDeviceGetHandleByIndex, 1), n.nvmlDeviceGetCount()])
tell(n.nvmlDeviceGetPowerUsage(gpu(2)))
tell(ask(n.nvmlDeviceGetMigDeviceHandleByIndex, gpu(3), 0))
"""
    assert rig.ask(script) == [[GPU_IS_LOST, GPU_IS_LOST], [GPU_IS_LOST, 4], 55_000, GPU_IS_LOST]


def test_identity(rig: Node) -> None:
    rig.write(node.gpu(3, minor=5, serial="123"), node.gpu(4, minor=None, serial=None))
    script = """
for i in (0, 1):
    pci = n.nvmlDeviceGetPciInfo(gpu(i))
    tell([pci.busId, pci.busIdLegacy, pci.domain, pci.bus, pci.device, pci.pciDeviceId, pci.pciSubSystemId])
    tell([ask(f, gpu(i)) for f in (n.nvmlDeviceGetMinorNumber, n.nvmlDeviceGetSerial, n.nvmlDeviceGetName)])
tell([n.nvmlDeviceGetArchitecture(gpu()), n.nvmlDeviceGetBrand(gpu())])
tell(n.nvmlDeviceGetCudaComputeCapability(gpu()))
"""
    first, second = (
        [f"00000000:{bus:02X}:00.0", f"0000:{bus:02X}:00.0", 0, bus, 0, 0x20B010DE, 0x134F10DE]
        for bus in (0x3E, 0x3F)
    )
    assert rig.ask(script) == [
        first,
        [5, "123", "NVIDIA A100-SXM4-40GB"],
        second,
        [NOT_SUPPORTED, NOT_SUPPORTED, "NVIDIA A100-SXM4-40GB"],
        [7, 14],
        [8, 0],
    ]


# The older names have smaller structs: writing the newer tail would corrupt the caller's memory.
def test_older_pci_structs_are_not_overrun(rig: Node) -> None:
    rig.write(node.gpu(0))
    script = """
from ctypes import create_string_buffer
for call in ("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v2"):
    space = create_string_buffer(b"\\xaa" * 128, 128)
    getattr(n.nvmlLib, call)(gpu(), space)
    tell(len(space.raw.rstrip(b"\\xaa")))
"""
    assert rig.ask(script) == [32, 36]


# ------------------------------------------------------------------ telemetry


def test_memory_in_both_versions(rig: Node) -> None:
    rig.write(node.gpu(0, memory=node.memory(1000, used=300, reserved=50)), node.gpu(1, memory=None))
    script = """
old = n.nvmlDeviceGetMemoryInfo(gpu())
new = n.nvmlDeviceGetMemoryInfo(gpu(), n.nvmlMemory_v2)
tell([old.total, old.used, old.free])
tell([new.total, new.used, new.free, new.reserved])
tell(ask(n.nvmlDeviceGetMemoryInfo, gpu(), n.nvmlMemory_v2 + 1))
tell([ask(n.nvmlDeviceGetMemoryInfo, gpu(1)), ask(n.nvmlDeviceGetMemoryInfo, gpu(1), n.nvmlMemory_v2)])
"""
    assert rig.ask(script) == [
        [1000, 350, 650],
        [1000, 300, 650, 50],
        VERSION_MISMATCH,
        [NOT_SUPPORTED, NOT_SUPPORTED],
    ]


TELEMETRY = """
CODECS = (n.nvmlDeviceGetEncoderUtilization, n.nvmlDeviceGetDecoderUtilization)
def all_of(handle):
    rates = ask(n.nvmlDeviceGetUtilizationRates, handle)
    return {
        "utilization": rates if isinstance(rates, str) else [rates.gpu, rates.memory],
        "codecs": [ask(f, handle) for f in CODECS],
        "temperature": [ask(f, handle, 0) for f in (n.nvmlDeviceGetTemperature, n.nvmlDeviceGetTemperatureV)],
        "thresholds": [ask(n.nvmlDeviceGetTemperatureThreshold, handle, i) for i in range(9)],
        "power": [
            ask(n.nvmlDeviceGetPowerUsage, handle),
            ask(n.nvmlDeviceGetEnforcedPowerLimit, handle),
            ask(n.nvmlDeviceGetPowerManagementLimit, handle),
        ],
        "energy": ask(n.nvmlDeviceGetTotalEnergyConsumption, handle),
        "clocks": [ask(n.nvmlDeviceGetClockInfo, handle, i) for i in range(5)],
        "max_clocks": [ask(n.nvmlDeviceGetMaxClockInfo, handle, i) for i in range(4)],
        "placement": [
            ask(n.nvmlDeviceGetNumaNodeId, handle),
            ask(n.nvmlDeviceGetAddressingMode, handle),
            ask(n.nvmlDeviceGetVirtualizationMode, handle),
        ],
        "modes": [
            ask(n.nvmlDeviceGetPersistenceMode, handle),
            ask(n.nvmlDeviceGetComputeMode, handle),
            ask(n.nvmlDeviceGetPerformanceState, handle),
            ask(n.nvmlDeviceGetEccMode, handle),
            ask(n.nvmlDeviceGetTotalEccErrors, handle, 1, 0),
            ask(n.nvmlDeviceGetFanSpeed, handle),
            ask(n.nvmlDeviceGetFanSpeed_v2, handle, 1),
        ],
    }
tell(all_of(gpu()))
"""


def test_telemetry(rig: Node) -> None:
    rig.write(
        node.gpu(
            0,
            utilization={"gpu": 37, "memory": 12},
            encoder=3,
            decoder=4,
            codec_period_us=99,
            temperature=41,
            thresholds={"shutdown": 92, "slowdown": 89, "mem_max": 95, "gpu_max": 85},
            power_mw=61_000,
            power_limit_mw=300_000,
            power_management_limit_mw=400_000,
            energy_mj=1 << 45,
            clocks={"graphics": 1, "sm": 2, "memory": 3, "video": 4},
            max_clocks={"graphics": 10, "sm": None, "memory": 30, "video": 40},
            numa_node=2,
            addressing_mode="ATS",
            virtualization=3,
            ecc_errors={"corrected": 1, "uncorrected": 2},
            fans=[30, 31],
        )
    )
    assert rig.ask(TELEMETRY) == {
        "utilization": [37, 12],
        "codecs": [[3, 99], [4, 99]],
        "temperature": [41, 41],
        "thresholds": [92, 89, 95, 85, *[NOT_SUPPORTED] * 4, INVALID_ARGUMENT],
        "power": [61_000, 300_000, 400_000],
        "energy": 1 << 45,
        "clocks": [1, 2, 3, 4, INVALID_ARGUMENT],
        "max_clocks": [10, NOT_SUPPORTED, 30, 40],
        "placement": [2, 2, 3],
        "modes": [1, 0, 0, [1, 1], 2, 30, 31],
    }


def test_whatever_is_not_given_is_not_supported(rig: Node) -> None:
    rig.write({"uuid": "GPU-bare", "pci": "00000000:01:00.0", "name": "bare"})
    answers = rig.ask(TELEMETRY)
    flat = [
        answer for group in answers.values() for answer in (group if isinstance(group, list) else [group])
    ]
    assert set(flat) == {NOT_SUPPORTED, INVALID_ARGUMENT}
    assert flat.count(INVALID_ARGUMENT) == 2


def test_field_values(rig: Node) -> None:
    rig.write(node.gpu(0, fields={"193": -5, "308": 41.5, "83": 1 << 40, "92": 7}))
    script = """
for value in n.nvmlDeviceGetFieldValues(gpu(), [193, 308, 83, 92, 1]):
    known = {0: value.value.dVal, 1: value.value.uiVal, 3: value.value.ullVal, 4: value.value.sllVal}
    tell([value.nvmlReturn, known[value.valueType] if value.nvmlReturn == 0 else None])
"""
    assert rig.ask(script) == [[0, -5], [0, 41.5], [0, 1 << 40], [0, 7], [3, None]]


@pytest.mark.parametrize(
    ("node_wide", "gpus", "expected"),
    [
        (None, [None, None], NOT_SUPPORTED),
        (None, [False, None], [0, 0, 0]),
        (None, [False, True], [2, 1, 0]),
        (False, [True, True], [0, 0, 0]),
        ({"environment": 1, "feature": 2, "devtools": 1}, [None], [1, 2, 1]),
    ],
)
def test_confidential_computing_state(
    rig: Node, node_wide: node.Json, gpus: list[node.Json], expected: object
) -> None:
    devices = [node.gpu(index, confidential=state) for index, state in enumerate(gpus)]
    rig.write(*devices, confidential=node_wide)
    script = """
state = ask(n.nvmlSystemGetConfComputeState)
tell(state if isinstance(state, str) else [state.environment, state.ccFeature, state.devToolsMode])
"""
    assert rig.ask(script) == expected


# ------------------------------------------------------------------ processes


def test_process_lists_in_three_shapes(rig: Node) -> None:
    rig.write(
        node.gpu(
            0,
            compute=[node.process(11, 1 << 33), node.process(12, None)],
            graphics=[node.process(13, 0)],
            mps=[node.process(14, 5)],
        )
    )
    script = """
tell(rows(n.nvmlDeviceGetComputeRunningProcesses, gpu()))
tell(rows(n.nvmlDeviceGetComputeRunningProcesses_v2, gpu()))
tell(rows(n.nvmlDeviceGetGraphicsRunningProcesses, gpu()))
tell(rows(n.nvmlDeviceGetMPSComputeRunningProcesses, gpu()))
from ctypes import Structure, byref, c_uint, c_ulonglong
class First(Structure):
    _fields_ = [("pid", c_uint), ("memory", c_ulonglong)]
space, count = (First * 3)(), c_uint(3)
call = n.nvmlLib.nvmlDeviceGetComputeRunningProcesses
tell([call(gpu(), byref(count), space), count.value, [[row.pid, row.memory] for row in space]])
"""
    compute = [[11, 1 << 33, NONE, NONE], [12, None, NONE, NONE]]
    assert rig.ask(script) == [
        compute,
        compute,
        [[13, 0, NONE, NONE]],
        [[14, 5, NONE, NONE]],
        [0, 2, [[11, 1 << 33], [12, NOT_AVAILABLE], [0, 0]]],
    ]


def test_process_detail_lists(rig: Node) -> None:
    """Through the C call: the binding's wrapper raises TypeError on a row with N/A."""
    rig.write(
        node.gpu(
            0,
            compute=[node.process(11, 1, protected_memory=5), node.process(12, None, protected_memory=None)],
            graphics=[node.process(13, 3)],
            mps=[node.process(14, 4)],
        )
    )
    script = """
from ctypes import POINTER, byref, cast
def details(mode, room=9, version=n.nvmlProcessDetailList_v1):
    space = (n.c_nvmlProcessDetail_v1_t * 9)()
    asked = n.c_nvmlProcessDetailList_t(version=version, mode=mode, numProcArrayEntries=room)
    asked.procArray = cast(space, POINTER(n.c_nvmlProcessDetail_v1_t)) if room else None
    code = n.nvmlLib.nvmlDeviceGetRunningProcessDetailList(gpu(), byref(asked))
    found = space[: asked.numProcArrayEntries]
    rows = [[row.pid, row.usedGpuMemory, row.usedGpuCcProtectedMemory] for row in found]
    return [code, asked.numProcArrayEntries] if code else rows
tell([details(mode) for mode in range(4)])
tell([details(0, room=0), details(3, room=3), details(4)[0], details(0, version=1)[0]])
"""
    compute = [[11, 1, 5], [12, NOT_AVAILABLE, NOT_AVAILABLE]]
    graphics, mps = [[13, 3, 0]], [[14, 4, 0]]
    assert rig.ask(script) == [
        [compute, graphics, mps, [*compute, *graphics, *mps]],
        [[7, 2], [7, 4], 2, 2],
    ]


def test_lists_are_sized_first(rig: Node) -> None:
    rig.write(node.gpu(0, compute=[node.process(11, 1), node.process(12, 2)]), node.gpu(1))
    script = """
from ctypes import byref, c_uint
call = n.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3
def sized(handle, room, space):
    count = c_uint(room)
    return [call(handle, byref(count), space), count.value]
space = (n.c_nvmlProcessInfo_v3_t * 2)()
tell([sized(gpu(), 0, None), sized(gpu(), 1, space), sized(gpu(), 2, space), sized(gpu(), 2, None)])
tell([sized(gpu(1), 0, None), call(gpu(), None, space)])
"""
    assert rig.ask(script) == [[[7, 2], [7, 2], [0, 2], [2, 2]], [[0, 0], 2]]


def test_lists_fail_as_told(rig: Node) -> None:
    rig.write(node.gpu(0, compute="permission", graphics={"code": 999}, mps=None))
    script = """
tell(ask(n.nvmlDeviceGetComputeRunningProcesses, gpu()))
tell(ask(n.nvmlDeviceGetGraphicsRunningProcesses, gpu()))
tell(ask(n.nvmlDeviceGetMPSComputeRunningProcesses, gpu()))
"""
    assert rig.ask(script) == [NO_PERMISSION, "E999", NOT_SUPPORTED]


def test_garbage_rows_must_be_asked_for(rig: Node) -> None:
    garbage = [
        node.process(0, 1, raw=True),
        node.process(NONE, NOT_AVAILABLE - 1, gi=3, raw=True),
        node.process(NONE, (1 << 53) - 1, raw=True),
    ]
    rig.write(node.gpu(0, compute=garbage))
    assert rig.ask("tell(rows(n.nvmlDeviceGetComputeRunningProcesses, gpu()))") == [
        [0, 1, NONE, NONE],
        # JSON numbers are doubles: the last integers below 2**64 are read as all ones, which means N/A.
        [NONE, None, 3, NONE],
        [NONE, (1 << 53) - 1, NONE, NONE],
    ]
    assert "pid that cannot exist" in rig.refused(node.node(node.gpu(0, compute=[node.process(0, 1)])))


def test_process_utilization_gives_what_is_newer(rig: Node) -> None:
    samples: list[node.Json] = [
        {"pid": 11, "timestamp": 1000, "sm": 1, "mem": 2, "enc": 3, "dec": 4},
        {"pid": 12, "timestamp": 2000, "sm": 99},
    ]
    garbage: node.Json = [{"pid": 13, "timestamp": 1, "sm": 40_000, "raw": True}]
    rig.write(
        node.gpu(0, process_utilization=samples),
        node.gpu(1),
        node.gpu(2, process_utilization=None),
        node.gpu(3, process_utilization={"code": 0}),
        node.gpu(4, process_utilization=garbage),
        node.mig_gpu(5, process_utilization=samples),
    )
    script = """
def samples(handle, since):
    found = ask(n.nvmlDeviceGetProcessUtilization, handle, since)
    if isinstance(found, str):
        return found
    return [[s.pid, s.timeStamp, s.smUtil, s.memUtil, s.encUtil, s.decUtil] for s in found]
tell([samples(gpu(), since) for since in (0, 1000, 2000)])
tell([samples(gpu(index), 0) for index in range(1, 6)])
"""
    first, second = [11, 1000, 1, 2, 3, 4], [12, 2000, 99, 0, 0, 0]
    assert rig.ask(script) == [
        [[first, second], [second], NOT_FOUND],
        [NOT_FOUND, NOT_SUPPORTED, "E0", [[13, 1, 40_000, 0, 0, 0]], NOT_SUPPORTED],
    ]


def test_newer_process_utilization_call(rig: Node) -> None:
    """Through the C call, since the binding's wrapper takes the address of a copy."""
    rig.write(node.gpu(0, process_utilization=[{"pid": 11, "timestamp": 10, "sm": 1, "jpg": 5, "ofa": 6}]))
    script = """
from ctypes import byref, cast, POINTER
asked = n.c_nvmlProcessesUtilizationInfo_v1_t(0)
asked.version = n.ProcessesUtilizationInfo_v1
call = n.nvmlLib.nvmlDeviceGetProcessesUtilizationInfo
sized = call(gpu(), byref(asked))
space = (n.c_nvmlProcessUtilizationInfo_v1_t * asked.processSamplesCount)()
asked.procUtilArray = cast(space, POINTER(n.c_nvmlProcessUtilizationInfo_v1_t))
filled = call(gpu(), byref(asked))
tell([sized, filled, space[0].pid, space[0].timeStamp, space[0].smUtil, space[0].jpgUtil, space[0].ofaUtil])
asked.version += 1
tell(call(gpu(), byref(asked)))
"""
    assert rig.ask(script) == [[7, 0, 11, 10, 1, 5, 6], 25]


# ------------------------------------------------------------------ MIG


def test_mig_mode(rig: Node) -> None:
    rig.write(
        node.gpu(0, mig_mode=None),
        node.gpu(1),
        node.gpu(2, pending_mig_mode=1),
        node.mig_gpu(3),
    )
    script = """
tell([ask(n.nvmlDeviceGetMigMode, gpu(i)) for i in range(4)])
tell([n.nvmlDeviceGetMaxMigDeviceCount(gpu(i)) for i in range(4)])
tell([ask(n.nvmlDeviceGetMigDeviceHandleByIndex, gpu(i), 0) for i in range(4)])
tell(ask(n.nvmlDeviceGetMigDeviceHandleByIndex, gpu(3), 7))
"""
    assert rig.ask(script) == [
        [NOT_SUPPORTED, [0, 0], [0, 1], [1, 1]],
        [0, 0, 0, 7],
        [NOT_SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED, NOT_FOUND],
        INVALID_ARGUMENT,
    ]


def test_mig_devices(rig: Node) -> None:
    """Slots may be sparse; a MIG handle answers for its instance, and telemetry stays with the parent."""
    rig.write(
        node.mig_gpu(
            0,
            node.mig_instance(1, 7, memory=node.memory(500, used=100, reserved=10)),
            node.mig_instance(5, 3, ci=2, profile="1c.3g.20gb", gpu_slices=3, compute_slices=1, memory=None),
            compute=[
                node.process(11, 1, gi=7, ci=0),
                node.process(12, 2, gi=3, ci=2),
                node.process(13, 3, gi=3, ci=0),
            ],
        )
    )
    script = """
found = [i for i in range(7) if not isinstance(ask(n.nvmlDeviceGetMigDeviceHandleByIndex, gpu(), i), str)]
tell(found)
for handle in map(mig, found):
    attributes = n.nvmlDeviceGetAttributes(handle)
    tell([
        number(n.nvmlDeviceIsMigDeviceHandle(handle)),
        n.nvmlDeviceGetUUID(handle),
        n.nvmlDeviceGetName(handle),
        n.nvmlDeviceGetGpuInstanceId(handle),
        n.nvmlDeviceGetComputeInstanceId(handle),
        n.nvmlDeviceGetUUID(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)),
        [attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount],
        rows(n.nvmlDeviceGetComputeRunningProcesses, handle),
    ])
memory = n.nvmlDeviceGetMemoryInfo(mig(1), n.nvmlMemory_v2)
tell([memory.total, memory.used, memory.reserved, ask(n.nvmlDeviceGetMemoryInfo, mig(5))])
of_gpus = (n.nvmlDeviceGetPowerUsage, n.nvmlDeviceGetUtilizationRates, n.nvmlDeviceGetMigMode)
tell([ask(f, mig(1)) for f in of_gpus])
tell(len(rows(n.nvmlDeviceGetComputeRunningProcesses, gpu())))
tell([ask(f, gpu()) for f in (n.nvmlDeviceGetGpuInstanceId, n.nvmlDeviceGetAttributes)])
tell([ask(f, gpu()) for f in (n.nvmlDeviceGetUtilizationRates, n.nvmlDeviceGetEncoderUtilization)])
"""
    parent = node.gpu_uuid(0)
    assert rig.ask(script) == [
        [1, 5],
        [
            1,
            "MIG-00000000-0007-5000-8000-000000000001",
            "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
            7,
            0,
            parent,
            [1, 1],
            [[11, 1, 7, 0]],
        ],
        [
            1,
            "MIG-00000000-0003-5000-8000-000000000005",
            "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb",
            3,
            2,
            parent,
            [3, 1],
            [[12, 2, 3, 2]],
        ],
        [500, 100, 10, NOT_SUPPORTED],
        [NOT_SUPPORTED] * 3,
        3,
        [INVALID_ARGUMENT, NOT_SUPPORTED],
        [NOT_SUPPORTED, NOT_SUPPORTED],
    ]


def test_gpu_instances_and_compute_instances(rig: Node) -> None:
    profile: node.Json = {
        "profile": 0,
        "id": 19,
        "name": "1g.5gb",
        "slices": 1,
        "instances": 7,
        "memory_mb": 4864,
        "multiprocessors": 14,
    }
    shared: node.Object = {"gi_profile": 9, "profile": "1c.3g.20gb", "placement": {"start": 4, "size": 4}}
    instances: list[node.Json] = [
        node.mig_instance(0, 7),
        node.mig_instance(1, 1) | shared,
        node.mig_instance(2, 1, ci=1, ci_placement={"start": 1, "size": 1}) | shared,
        {"gi": 4, "gi_profile": 19, "placement": {"start": 2, "size": 1}},
    ]
    rig.write(node.mig_gpu(0, mig={"max": 7, "instances": instances, "profiles": [profile]}), node.gpu(1))
    script = """
profile = n.nvmlDeviceGetGpuInstanceProfileInfo(gpu(), 0, version=2)
tell([profile.id, profile.instanceCount, profile.name])
unknown = (1, n.NVML_GPU_INSTANCE_PROFILE_COUNT)
tell([ask(n.nvmlDeviceGetGpuInstanceProfileInfo, gpu(), which) for which in unknown])
def info(handle):
    about = n.nvmlGpuInstanceGetInfo(handle)
    return [about.id, about.profileId, about.placement.start, about.placement.size]
instances = (n.c_nvmlGpuInstance_t * 7)()
count = n.c_uint()
def listed(which):
    n.nvmlDeviceGetGpuInstances(gpu(), which, instances, n.byref(count))
    return [info(instances[i]) for i in range(count.value)]
tell([listed(19), listed(9), listed(14)])
three = n.nvmlDeviceGetGpuInstanceById(gpu(), 1)
tell(info(three))
tell(ask(n.nvmlDeviceGetGpuInstanceById, gpu(), 2))
tell(ask(n.nvmlDeviceGetGpuInstanceById, gpu(1), 1))
about = n.nvmlComputeInstanceGetInfo(n.nvmlGpuInstanceGetComputeInstanceById(three, 1))
tell([about.id, about.profileId, about.placement.start, about.placement.size])
tell(ask(n.nvmlGpuInstanceGetComputeInstanceById, three, 2))
computes = (n.c_nvmlComputeInstance_t * 7)()
n.nvmlGpuInstanceGetComputeInstances(three, 0, computes, n.byref(count))
tell(count.value)
tell(ask(n.nvmlGpuInstanceGetInfo, gpu()))
"""
    assert rig.ask(script) == [
        [19, 7, "MIG 1g.5gb"],
        [NOT_SUPPORTED, INVALID_ARGUMENT],
        [[[7, 19, 0, 1], [4, 19, 2, 1]], [[1, 9, 4, 4]], []],
        [1, 9, 4, 4],
        NOT_FOUND,
        NOT_SUPPORTED,
        [1, 0, 1, 1],
        NOT_FOUND,
        2,
        INVALID_ARGUMENT,
    ]


def test_a_mig_handle_shows_what_its_slot_holds_now(rig: Node) -> None:
    """As nvml.h warns: handles may be reused and their properties can change."""
    rig.write(node.mig_gpu(0, node.mig_instance(0, 7)))
    script = """
handle = mig(0)
tell(n.nvmlDeviceGetGpuInstanceId(handle))
for line in sys.stdin:
    tell(ask(n.nvmlDeviceGetGpuInstanceId, handle))
"""
    with rig.start(script) as process:
        assert process.stdin is not None
        assert readline(process) == 7
        rig.write(node.mig_gpu(0, node.mig_instance(0, 9)))
        process.stdin.write("\n")
        process.stdin.flush()
        assert readline(process) == 9
        rig.write(node.gpu(0))
        out, _ = process.communicate("\n")
    assert json.loads(out) == INVALID_ARGUMENT


# ------------------------------------------------------------------ misbehaviour


def test_calls_fail_node_wide_per_gpu_and_per_instance(rig: Node) -> None:
    temperature = "nvmlDeviceGetTemperature"
    name = "nvmlDeviceGetName"
    rig.write(
        node.gpu(0),
        node.gpu(1, calls={temperature: {"code": 999}, "nvmlDeviceGetHandleByUUID": {"code": 4}}),
        node.gpu(2, calls={temperature: {}}),
        node.mig_gpu(3, node.mig_instance(0, 7, calls={name: {}}), calls={name: {"code": 4}}),
        calls={temperature: {"code": 15}},
    )
    script = """
tell([ask(n.nvmlDeviceGetTemperature, gpu(i), 0) for i in range(3)])
tell([ask(n.nvmlDeviceGetHandleByUUID, n.nvmlDeviceGetUUID(gpu(1)))])
tell([ask(n.nvmlDeviceGetName, gpu(3)), ask(n.nvmlDeviceGetName, mig(0, 3))])
"""
    assert rig.ask(script) == [
        [GPU_IS_LOST, "E999", 35],
        [NO_PERMISSION],
        [NO_PERMISSION, "NVIDIA A100-SXM4-40GB MIG 1g.5gb"],
    ]


def test_a_failure_can_be_placed_and_counted(rig: Node) -> None:
    """The list grew between sizing and reading: the second call of the first attempt fails."""
    call = "nvmlDeviceGetComputeRunningProcesses_v3"
    rig.write(
        node.gpu(0, compute=[node.process(11, 1)], calls={call: {"code": 7, "skip": 1, "times": 1}}),
    )
    script = "tell([rows(n.nvmlDeviceGetComputeRunningProcesses, gpu()) for attempt in range(2)])"
    assert rig.ask(script) == [INSUFFICIENT_SIZE, [[11, 1, NONE, NONE]]]


def test_missing_symbols_answer_function_not_found(rig: Node) -> None:
    rig.write(node.gpu(0), missing_symbols=["nvmlDeviceGetMemoryInfo_v2"])
    script = """
tell(ask(n.nvmlDeviceGetMemoryInfo, gpu(), n.nvmlMemory_v2))
tell(hasattr(n.nvmlLib, "nvmlDeviceGetMemoryInfo_v2"))
"""
    assert rig.ask(script) == [FUNCTION_NOT_FOUND, True]


def test_a_crash_ends_the_process(rig: Node, running: list["subprocess.Popen[str]"]) -> None:
    rig.write(node.gpu(0, calls={"nvmlDeviceGetName": {"crash": True}}))
    process = rig.start("tell(1)\nn.nvmlDeviceGetName(gpu())\ntell(2)")
    running.append(process)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (-signal.SIGABRT, "1\n")


def test_a_delay_is_kept(rig: Node) -> None:
    rig.write(node.gpu(0), calls={"nvmlDeviceGetName": {"delay_ms": 300}})
    script = """
import time
handle = gpu()
began = time.monotonic()
name = n.nvmlDeviceGetName(handle)
tell([name, time.monotonic() - began])
"""
    name, took = rig.ask(script)
    assert name == "NVIDIA A100-SXM4-40GB"
    assert took >= 0.3


HANG = """
import threading
handle = gpu()
tell("before")
def call():
    tell(ask(n.nvmlDeviceGetName, handle))
threading.Thread(target=call, daemon=True).start()
for line in sys.stdin:
    tell("alive")
"""


def alive(process: "subprocess.Popen[str]") -> Any:
    """The rest of the process still runs: the hung call has released the interpreter."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return readline(process)


def wait_for_call(rig: Node, line: str) -> None:
    until = time.monotonic() + 10
    while line not in rig.calls():
        assert time.monotonic() < until, rig.calls()
        time.sleep(0.01)


def test_a_hung_call_ends_when_the_document_heals(rig: Node, running: list["subprocess.Popen[str]"]) -> None:
    rig.write(node.gpu(0, calls={"nvmlDeviceGetName": {"hang": True}}))
    process = rig.start(HANG)
    running.append(process)
    assert readline(process) == "before"
    wait_for_call(rig, "nvmlDeviceGetName 0")
    assert alive(process) == "alive"
    rig.write(node.gpu(0, name="healed"))
    assert readline(process) == "healed"


def test_a_hard_hang_does_not_heal(rig: Node, running: list["subprocess.Popen[str]"]) -> None:
    rig.write(node.gpu(0), calls={"nvmlDeviceGetName": {"hang_hard": True}})
    process = rig.start(HANG)
    running.append(process)
    assert readline(process) == "before"
    wait_for_call(rig, "nvmlDeviceGetName 0")
    rig.write(node.gpu(0))
    time.sleep(0.3)
    assert alive(process) == "alive"


# ------------------------------------------------------------------ document and call log


def test_calls_are_logged_with_their_device(rig: Node, tmp_path: Path) -> None:
    rig.write(node.gpu(0), node.mig_gpu(1, node.mig_instance(2, 7)))
    script = """
n.nvmlDeviceGetCount()
n.nvmlDeviceGetName(gpu(1))
n.nvmlDeviceGetName(mig(2, 1))
ask(n.nvmlDeviceGetHandleByIndex, 5)
tell(0)
"""
    expected = [
        "nvmlInitWithFlags -",
        "nvmlDeviceGetCount_v2 -",
        "nvmlDeviceGetHandleByIndex_v2 1",
        "nvmlDeviceGetName 1",
        "nvmlDeviceGetHandleByIndex_v2 1",
        "nvmlDeviceGetMigDeviceHandleByIndex 1",
        "nvmlDeviceGetName 1:2",
        "nvmlDeviceGetHandleByIndex_v2 -",
    ]
    rig.ask(script)
    assert rig.calls() == expected
    rig.log.unlink()
    named = tmp_path / "elsewhere"
    rig.ask(script, RIG_NVML_CALLS=str(named))
    assert named.read_text().splitlines() == expected
    assert not rig.log.exists()


def test_the_document_can_be_elsewhere(rig: Node, tmp_path: Path) -> None:
    elsewhere = tmp_path / "other.json"
    node.write(elsewhere, node.node(node.gpu(0), node.gpu(1)))
    assert rig.ask("tell(n.nvmlDeviceGetCount())") == 0
    assert rig.ask("tell(n.nvmlDeviceGetCount())", RIG_NVML_JSON=str(elsewhere)) == 2


def test_threads_may_call_while_the_document_changes(rig: Node) -> None:
    """No call sees half a document: name and serial of a GPU always come from one of the two."""
    script = """
import threading
handle = gpu()
seen = set()
def work():
    for _ in range(3000):
        seen.add(n.nvmlDeviceGetName(handle))
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
tell(sorted(seen - {"first", "second"}))
"""
    rig.write(node.gpu(0, name="first"))
    with rig.start(script) as process:
        turn = 0
        while process.poll() is None:
            rig.write(node.gpu(0, name=("first", "second")[turn % 2]))
            turn += 1
        out, err = process.communicate()
    assert (out, err) == ("[]\n", "")
    assert turn > 2


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (node.node(node.gpu(0, temprature=1)), "devices[0].temprature is no known key"),
        (node.node(node.gpu(0, memory={"total": 1})), "devices[0].memory.used is missing"),
        (node.node(node.gpu(0, temperature="hot")), "devices[0].temperature must be an integer"),
        (node.node(node.gpu(0, power_mw=-1)), "devices[0].power_mw must be an integer"),
        (node.node(node.gpu(0, pci="3B:00.0")), "pci that is not like"),
        (node.node(node.gpu(0, addressing_mode="numa")), "addressing_mode other than"),
        (node.node(node.gpu(0, mig_mode=1)), "mig_mode 1 and no mig"),
        (node.node(node.gpu(0), node.gpu(0)), "has one uuid twice"),
        (node.node(node.mig_gpu(0, node.mig_instance(7, 1))), "not below mig.max"),
        (node.node(node.mig_gpu(0, node.mig_instance(1, 1), node.mig_instance(1, 2))), "one slot twice"),
        (node.node(node.gpu(0, compute="denied")), 'must be a list, "permission" or'),
        (
            node.node(calls={"nvmlDeviceGetNonsense": {}}),
            "nvmlDeviceGetNonsense is no function of this library",
        ),
        (node.node(calls={"nvmlDeviceGetName": {"sleep": 1}}), "sleep is no known key"),
        ({"devices": []}, "driver_version is missing"),
        ([], "must be an object"),
    ],
)
def test_a_slip_in_the_document_ends_the_process(rig: Node, document: node.Json, message: str) -> None:
    assert message in rig.refused(document)


def test_half_a_document_ends_the_process(rig: Node) -> None:
    rig.document.write_text('{"driver_version": ')
    with rig.start("") as process:
        _, err = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGABRT
    assert "is not JSON" in err
