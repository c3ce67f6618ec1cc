"""Source `nvml`: GPUs, MIG devices, who uses them, and what their sensors say.

In: NVML, through a child process, because a call may hang in the driver for ever. Out: `exporter.model.Nvml`,
and while a call is in flight what has come so far and where it stands. Never: the library loaded in the
parent, two children at once, or a GPU that failed read as one that is idle.

The parent half is `NvmlSource`. The child half is `main`, run as `python -I -m exporter.sources.nvml
[--library PATH] [--telemetry on|off] [--telemetry-extended on|off]`: NVML is started once in its life, and
again only when the driver went away under it.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from exporter.codec import CodecError, decode, encode
from exporter.model import Gpu, GpuFault, InFlight, Nvml, Reason, SourceError
from exporter.sources import nvml_fields as fields
from exporter.sources.child import Child, Part, serve
from exporter.sources.nvml_calls import CallError, Calls, Gone, Lost, refusal
from exporter.text import printable

if TYPE_CHECKING:
    from pathlib import Path

VIRTUALIZATION = ("none", "passthrough", "vgpu", "host_vgpu", "host_vsga")  # nvmlGpuVirtualizationMode_t
ATS = 2  # nvmlDeviceAddressingModeType_t: CPU and GPU share one set of page tables
NEW_PROCESS = "LIB_RM_VERSION_MISMATCH"  # the error that a loaded library never recovers from
_PCI = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Head:
    """What is known before the first GPU is read: the node's versions and the number of its GPUs."""

    driver_version: str
    cuda_version: str
    nvml_version: str
    count: int


# --- the parent half ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Stream:
    """What has come of one call."""

    head: Head | None = None
    gpus: dict[int, Gpu] = field(default_factory=dict)
    at: InFlight | None = None
    problem: CodecError | None = None

    def nvml(self, faults: tuple[GpuFault, ...] = ()) -> Nvml | None:
        if self.head is None:
            return None
        head, gpus = self.head, tuple(self.gpus[index] for index in sorted(self.gpus))
        return Nvml(head.driver_version, head.cuda_version, head.nvml_version, head.count, gpus, faults)

    @property
    def where(self) -> str:
        if self.at is None:
            return ""
        return f" in {self.at.call}" + (
            "" if self.at.index is None else f" of GPU {self.at.index} {self.at.uuid}"
        )


class NvmlSource:
    """The parent half. `read` blocks and is called from one thread; `partial` and `in_flight` from any."""

    name = "nvml"

    def __init__(
        self,
        library: str | None,
        telemetry: bool,
        pause_file: Path | None,
        first_seconds: float = 120.0,
        seconds: float = 60.0,
        extended: bool = False,
    ) -> None:
        chosen = ["--library", library] if library else []
        groups = {"--telemetry": telemetry, "--telemetry-extended": extended}
        for group, wanted in groups.items():
            chosen += [group, "on" if wanted else "off"]
        self._child = Child("exporter.sources.nvml", chosen)
        self._pause_file = pause_file
        self._first_seconds = first_seconds
        self._seconds = seconds
        self._lock = threading.Lock()
        self._stream: _Stream | None = None
        self._warm = False  # the running child has answered: its NVML is up
        self._inventory: dict[int, Gpu] = {}

    def read(self) -> tuple[Nvml, bool]:
        """Return what NVML says, and whether every GPU that it counts could at least be named.

        Raises SourceError: paused, timeout (the child was killed), denied, unavailable, busy, protocol.
        """
        if self._pause_file is not None and os.path.exists(self._pause_file):
            self._warm = False
            self._child.stop()
            raise SourceError(Reason.PAUSED, printable(f"{self._pause_file} exists"))
        stream = _Stream()
        with self._lock:
            if self._stream is not None:
                raise SourceError(Reason.BUSY, "an earlier call has not returned")
            self._stream = stream
        try:
            nvml = self._asked(stream)
        finally:
            with self._lock:
                self._stream = None
        return nvml, len(nvml.gpus) == nvml.count

    def partial(self) -> Nvml | None:
        """What has come of the call in flight; None where none is, or it has not come to the GPUs."""
        with self._lock:
            return self._stream.nvml() if self._stream else None

    def in_flight(self) -> InFlight | None:
        """Where the call in flight stands."""
        with self._lock:
            return self._stream.at if self._stream else None

    def close(self) -> None:
        """Stop the child for good."""
        self._child.close()

    def _asked(self, stream: _Stream) -> Nvml:
        # A new child has never seen the GPU that may have been lost meanwhile, so it is told of all of them.
        request = {} if self._warm else {"known": [encode(gpu) for gpu in self._inventory.values()]}
        seconds = self._seconds if self._warm else self._first_seconds
        self._warm = False
        try:
            end = self._child.call(
                "read", request, seconds, lambda name, plain: self._take(stream, name, plain)
            )
        except SourceError as error:
            if NEW_PROCESS in error.detail:
                self._child.stop()
            if error.reason in (Reason.TIMEOUT, Reason.UNAVAILABLE) and "NVML_ERROR" not in error.detail:
                raise SourceError(error.reason, f"{error.detail}{stream.where}") from error
            raise
        try:
            if stream.problem is not None:
                raise stream.problem
            nvml = stream.nvml(decode(tuple[GpuFault, ...], dict(end)["faults"], "faults"))
        except (CodecError, KeyError, TypeError, ValueError) as error:
            raise SourceError(Reason.PROTOCOL, printable(str(error))) from error
        if nvml is None:
            raise SourceError(Reason.PROTOCOL, "an answer without a head")
        self._warm = True
        return nvml

    def _take(self, stream: _Stream, name: str, plain: Any) -> None:
        """Take one part. An unreadable one spoils the answer, but the rest of it must leave the pipe."""
        try:
            with self._lock:
                match name:
                    case "at":
                        stream.at = decode(InFlight, plain, name)
                    case "head":
                        stream.head = decode(Head, plain, name)
                    case "gpu":
                        gpu: Gpu = decode(Gpu, plain, name)
                        stream.gpus[gpu.index] = gpu
                        self._inventory[gpu.index] = _inventory(gpu)
                    case _:
                        stream.problem = CodecError(name, "no part of an answer has this name")
        except CodecError as error:
            stream.problem = stream.problem or error


def _inventory(gpu: Gpu) -> Gpu:
    """What stays true of a GPU that stopped answering: what it is, not what it did."""
    return Gpu(
        gpu.uuid,
        gpu.index,
        minor=gpu.minor,
        pci_address=gpu.pci_address,
        product=gpu.product,
        mig_enabled=gpu.mig_enabled,
        virtualization=gpu.virtualization,
        coherent_memory=gpu.coherent_memory,
        confidential=gpu.confidential,
        instances=tuple(replace(instance, memory=None) for instance in gpu.instances),
    )


# --- the child half -----------------------------------------------------------------------------------------


class _Reader:
    """Reads all GPUs, again and again, and remembers what they are."""

    def __init__(self, calls: Calls, *, sensors: bool, extended: bool = False) -> None:
        self._calls = calls
        self._sensors = sensors
        self._extended = extended
        self._remembered: dict[int, Gpu] = {}  # by index: as last seen, without what changes
        self._fixed: dict[str, Gpu] = {}  # by UUID: what cannot change while NVML runs

    def read(self, request: Mapping[str, Any], part: Part) -> dict[str, Any]:
        """Answer op `read`: parts `at`, `head` and `gpu`, then the faults."""
        for plain in request.get("known", ()):
            gpu: Gpu = decode(Gpu, plain, "known")
            self._remembered.setdefault(gpu.index, gpu)
        self._calls.faults.clear()
        with self._calls.progress.reading(part):
            try:
                self._calls.start()
                self._read_all()
            except Gone as gone:
                self.close()
                raise refusal(gone.name) from gone
        return {"faults": [encode(fault) for fault in self._calls.faults]}

    def close(self) -> None:
        """Release NVML."""
        self._fixed.clear()
        self._calls.shut()

    def _read_all(self) -> None:
        calls, unnamed, seen = self._calls, [], set()
        head = self._head()
        calls.progress.tell("head", encode(head))
        confidential = self._confidential()
        for index in range(head.count):
            try:
                handle, uuid = self._named(index)
            except (CallError, Lost) as error:
                calls.note(error)
                unnamed.append((index, error.name))
                continue
            seen.add(uuid)
            self._tell(self._gpu(handle, Gpu(uuid, index, confidential=confidential)))
        for index, problem in unnamed:  # last, because an index may have become another GPU's
            gpu = self._remembered.get(index)
            if gpu is not None and gpu.uuid not in seen:
                self._tell(replace(gpu, lost=problem))

    def _tell(self, gpu: Gpu) -> None:
        self._remembered[gpu.index] = _inventory(gpu)
        self._calls.progress.tell("gpu", encode(gpu))

    def _head(self) -> Head:
        calls = self._calls
        calls.progress.at("nvmlDeviceGetCount")
        try:
            count = calls.demand("nvmlDeviceGetCount")
        except (CallError, Lost) as error:
            raise refusal(error.name) from error
        cuda = calls.number("nvmlSystemGetCudaDriverVersion")
        return Head(
            driver_version=calls.text("nvmlSystemGetDriverVersion"),
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            nvml_version=calls.text("nvmlSystemGetNVMLVersion"),
            count=count,
        )

    def _confidential(self) -> bool | None:
        """Whether confidential computing is on, for the whole node; None where the driver knows none."""
        state = self._calls.ask("nvmlSystemGetConfComputeState")
        return None if state is None else state.ccFeature != 0

    def _named(self, index: int) -> tuple[Any, str]:
        """Handle and UUID of the GPU at an index."""
        progress, known = self._calls.progress, self._remembered.get(index)
        progress.index, progress.uuid = index, known.uuid if known else ""
        progress.at("nvmlDeviceGetHandleByIndex")
        handle = self._calls.demand("nvmlDeviceGetHandleByIndex", index)
        uuid = printable(self._calls.demand("nvmlDeviceGetUUID", handle))
        progress.uuid = uuid
        return handle, uuid

    def _gpu(self, handle: Any, gpu: Gpu) -> Gpu:
        """Read one GPU. If it is lost on the way, all that was read of it in this cycle is dropped."""
        try:
            gpu = self._identified(handle, gpu)
            return self._used(handle, gpu)
        except Lost as lost:
            before = self._remembered.get(gpu.index)
            kept = before if before is not None and before.uuid == gpu.uuid else gpu
            return replace(_inventory(kept), lost=lost.name)

    def _identified(self, handle: Any, gpu: Gpu) -> Gpu:
        """What cannot change while NVML runs; read once, unless a call failed."""
        if gpu.uuid in self._fixed:
            return replace(self._fixed[gpu.uuid], index=gpu.index)
        calls = self._calls
        calls.progress.at("nvmlDeviceGetMinorNumber")
        faults = len(calls.faults)
        mode = calls.number("nvmlDeviceGetVirtualizationMode", handle)
        gpu = replace(
            gpu,
            minor=calls.number("nvmlDeviceGetMinorNumber", handle),
            pci_address=_pci_address(calls.ask("nvmlDeviceGetPciInfo", handle)),
            product=calls.text("nvmlDeviceGetName", handle),
            virtualization=VIRTUALIZATION[mode] if mode is not None and mode < len(VIRTUALIZATION) else "",
            coherent_memory=self._coherent(handle),
        )
        if len(calls.faults) == faults:
            self._fixed[gpu.uuid] = gpu
        return gpu

    def _coherent(self, handle: Any) -> bool | None:
        """Whether the kernel may use the frame buffer as its own memory.

        HMM does not count: there the GPU mirrors the CPU's page tables in software (nvml.h), which every x86
        node with a recent kernel does, and the frame buffer stays the driver's.
        """
        node = self._calls.number("nvmlDeviceGetNumaNodeId", handle)
        mode = self._calls.number("nvmlDeviceGetAddressingMode", handle)
        if node is None and mode is None:
            return None
        return (node is not None and node >= 0) or mode == ATS

    def _used(self, handle: Any, gpu: Gpu) -> Gpu:
        """What changes from cycle to cycle."""
        calls, at = self._calls, self._calls.progress.at
        at("nvmlDeviceGetMemoryInfo")
        memory = fields.memory(calls, handle, gpu.uuid)
        at("nvmlDeviceGetMigMode")
        modes = calls.ask("nvmlDeviceGetMigMode", handle)
        devices = (
            fields.mig_devices(calls, handle, memory.total if memory else None) if modes and modes[0] else []
        )
        at("nvmlDeviceGetComputeRunningProcesses")
        rows, problem = fields.rows(calls, handle, devices)
        at("nvmlDeviceGetProcessUtilization")
        pids = frozenset(row.pid for row in rows or ())
        usage = None if rows is None else fields.usage(calls, handle, gpu.uuid, pids, time.time())
        at("nvmlDeviceGetUtilizationRates")
        return replace(
            gpu,
            mig_enabled=modes[0] != 0 if modes else None,
            memory=memory,
            instances=tuple(instance for _, instance in devices),
            rows=rows,
            rows_problem=problem,
            usage=usage,
            telemetry=fields.telemetry(calls, handle, sensors=self._sensors, extended=self._extended),
        )


def _pci_address(info: Any) -> str:
    """`0000:3b:00.0`, as sysfs has it, from NVML's `00000000:3B:00.0`."""
    match = _PCI.fullmatch(str(info.busId).lower()) if info else None
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4]}" if match else ""


def main(arguments: Sequence[str]) -> None:
    """The child: answer the parent until it is gone. The arguments come from `NvmlSource` alone."""
    import pynvml  # noqa: PLC0415 # only the child may load it

    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    reader = _Reader(
        Calls(pynvml, options.get("--library")),
        sensors=options.get("--telemetry") != "off",
        extended=options.get("--telemetry-extended") == "on",
    )
    serve({"read": reader.read}, reader.close)


if __name__ == "__main__":
    main(sys.argv[1:])
