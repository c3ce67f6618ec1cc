"""The NVML child's way to the library: find it, start it, call it, and say what became of each call.

In: the pynvml module and names of its functions. Out: what NVML returned, or None, and the faults met on the
way; to the parent, where the child stands. Never: an unguarded call, or a sentinel of nvml.h taken for a
number. Only the child runs this; the parent never loads the library.

A call that fails is one of four things. Absent (not supported here): None. A fault: None, and a `GpuFault` is
noted. `Lost`: the GPU stopped answering, which ends the reading of this GPU. `Gone`: the driver did, which
ends the cycle.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from exporter.model import GpuFault, Reason, SourceError
from exporter.sources.child import Part
from exporter.text import printable

LIBRARY = "libnvidia-ml.so.1"
PLACES = (  # tried in this order after the loader's own search
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",  # driver container of the GPU Operator
    "/run/nvidia/driver/usr/lib/aarch64-linux-gnu",
    "/run/nvidia/driver/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/nvidia/lib64",  # device plugins that mount the driver
    "/usr/local/nvidia/lib",
    "/home/kubernetes/bin/nvidia/lib64",  # GKE, Container-Optimized OS
    "/usr/lib/nvidia/tesla",  # Bottlerocket
    "/usr/local/glibc/usr/lib",  # Talos
    "/usr/lib/wsl/lib",
)
ADVICE = {  # what an operator can do when NVML does not start, in the 128 characters that a detail has
    "LIBRARY_NOT_FOUND": "set nvml.library, or let the container runtime inject the driver's libraries",
    "DRIVER_NOT_LOADED": "the kernel module nvidia is not loaded",
    "NO_PERMISSION": "the NVIDIA device files cannot be opened: run privileged or with the nvidia runtime",
    "LIB_RM_VERSION_MISMATCH": "not the running driver's library: reload or reboot, then recreate this pod",
    "UNINITIALIZED": "the driver went away; NVML is started anew at the next look",
    "UNKNOWN": "device access may have been lost (systemd daemon-reload does that): recreate this pod",
}
ABSENT = frozenset({"NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH"})
LOST = frozenset({"GPU_IS_LOST", "GPU_NOT_FOUND", "RESET_REQUIRED"})
GONE = frozenset({"UNINITIALIZED", "DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH"})
_ALL_ONES = (2**32 - 1, 2**64 - 1)
_SLOW = 0.2  # seconds after which a call is told to the parent by name


class NvmlError(Exception):
    """A call that failed. `name` is nvml.h's without NVML_ERROR_; SUCCESS is how pynvml says *empty*."""

    def __init__(self, call: str, name: str) -> None:
        super().__init__(f"{call}: NVML_ERROR_{name}")
        self.call = call
        self.name = name


class CallError(NvmlError):
    """One call failed; the others may work."""


class Lost(NvmlError):  # noqa: N818 # what became of the GPU, not an error of ours
    """The GPU stopped answering."""


class Gone(NvmlError):  # noqa: N818 # what became of the driver
    """NVML has to be started again before any call can work."""


class Progress:
    """Tells the parent where the child stands, so that a hang can be named by GPU and call.

    Each group of calls is told as it begins. A single call is told only once it has taken long, by a thread:
    ctypes lets go of the interpreter while the call hangs, and a frame for each of some hundred calls would
    cost more than the calls.
    """

    def __init__(self) -> None:
        self.index: int | None = None
        self.uuid = ""
        self._part: Part = lambda *_: None
        self._pipe = threading.Lock()
        self._reading = threading.Event()
        self._call: tuple[str, float] | None = None
        self._thread = threading.Thread(target=self._look, daemon=True)

    @contextmanager
    def reading(self, part: Part) -> Iterator[None]:
        """One read: `part` is used inside, and never after."""
        if self._thread.ident is None:
            self._thread.start()
        self._part, self.index, self.uuid = part, None, ""
        self._reading.set()
        try:
            yield
        finally:
            with self._pipe:
                self._reading.clear()

    def tell(self, name: str, plain: Any) -> None:
        """Send one part."""
        with self._pipe:
            self._part(name, plain)

    def at(self, call: str) -> None:
        """The group of calls that begins with `call` begins."""
        self.tell("at", self._spot(call, time.time()))

    @contextmanager
    def calling(self, call: str) -> Iterator[None]:
        """`call` is in progress."""
        self._call = (call, time.time())
        try:
            yield
        finally:
            self._call = None

    def _spot(self, call: str, since: float) -> dict[str, Any]:
        return {"call": call, "index": self.index, "uuid": self.uuid, "since": since}

    def _look(self) -> None:
        told = None
        while self._reading.wait():
            seen = self._call
            time.sleep(_SLOW)
            with self._pipe:
                if seen is None or seen is told or self._call is not seen or not self._reading.is_set():
                    continue
                told = seen
                try:
                    self._part("at", self._spot(*seen))
                except OSError:
                    return  # the parent is gone; the main thread finds out by itself


class Calls:
    """NVML, started once, with every call guarded. `progress` says which GPU is being read."""

    def __init__(self, nvml: Any, library: str | None) -> None:
        self.progress = Progress()
        self.faults: list[GpuFault] = []
        self.memory_versions: dict[str, int] = {}  # by uuid
        self.stamps: dict[str, int] = {}  # by uuid: microseconds, of the newest utilisation sample seen
        self.running = False
        self._nvml = nvml
        self._library = library
        self._missing: set[str] = set()
        self._names = {0: "SUCCESS"} | {
            code: name.removeprefix("NVML_ERROR_")
            for name, code in vars(nvml).items()
            if name.startswith("NVML_ERROR_") and isinstance(code, int)
        }
        # Two calls whose struct version pynvml takes as an argument: one name per symbol here.
        self._versioned: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetMemoryInfo_v2": lambda handle: nvml.nvmlDeviceGetMemoryInfo(
                handle, nvml.nvmlMemory_v2
            ),
            "nvmlDeviceGetAttributes_v2": nvml.nvmlDeviceGetAttributes_v2,
        }

    def start(self) -> None:
        """Load and start the library, unless it runs. Raises SourceError with NVML's error and a remedy."""
        if self.running:
            return
        self.progress.at("nvmlInit")
        self._load()
        try:
            self.demand("nvmlInit")
        except NvmlError as error:
            raise refusal(error.name) from error
        self.running = True

    def shut(self) -> None:
        """Release every handle."""
        running, self.running = self.running, False
        self.memory_versions.clear()
        self.stamps.clear()
        if running:
            with suppress(self._nvml.NVMLError):  # it may not be running any more
                self._nvml.nvmlShutdown()

    def _load(self) -> None:
        # pynvml asks the loader for the soname only. Its module global nvmlLib, once set, is used as it is.
        if self._nvml.nvmlLib is not None:
            return
        places = [self._library] if self._library else [LIBRARY, *(f"{place}/{LIBRARY}" for place in PLACES)]
        problem = ""
        for place in places:
            if place != LIBRARY and not os.path.exists(place):
                continue
            try:
                self._nvml.nvmlLib = ctypes.CDLL(place)
            except OSError as error:
                if place != LIBRARY or os.strerror(errno.ENOENT) not in str(error):
                    problem = str(error)
            else:
                return
        if self._library and not problem:
            problem = f"{self._library} does not exist"
        raise refusal("LIBRARY_NOT_FOUND", problem)

    def demand(self, call: str, *arguments: Any) -> Any:
        """Call NVML. Raises Gone, Lost (noted as a fault), or CallError, which the caller answers."""
        for last in (False, True):
            try:
                return self._once(call, arguments)
            except CallError as error:
                # Sizing and filling are two calls: the list may have grown between them.
                if error.name != "INSUFFICIENT_SIZE" or last:
                    raise
        raise AssertionError("unreachable")

    def _once(self, call: str, arguments: tuple[Any, ...]) -> Any:
        if call in self._missing:
            raise CallError(call, "FUNCTION_NOT_FOUND")
        function = self._versioned.get(call) or getattr(self._nvml, call)
        try:
            with self.progress.calling(call):
                return function(*arguments)
        except self._nvml.NVMLError as error:
            name = self._names.get(error.value, f"CODE_{error.value}")
        except UnicodeDecodeError as error:  # pynvml decodes strictly; a corrupt name is still a name
            return error.object
        if name == "FUNCTION_NOT_FOUND":
            self._missing.add(call)
        if name in GONE:
            raise Gone(call, name)
        if name in LOST:
            self.note(lost := Lost(call, name))
            raise lost
        raise CallError(call, name)

    def ask(self, call: str, *arguments: Any, absent: Iterable[str] = ()) -> Any:
        """Call NVML: None where that is not supported, fails with an error in `absent`, or is a fault."""
        try:
            return self.demand(call, *arguments)
        except CallError as error:
            self.note(error, absent)
            return None

    def note(self, error: NvmlError, absent: Iterable[str] = ()) -> None:
        """Remember a fault of the GPU that is being read; calls about the whole node are no GPU's fault."""
        if self.progress.index is None or error.name in ABSENT or error.name in absent:
            return
        fault = GpuFault(self.progress.index, self.progress.uuid, error.call, error.name)
        if fault not in self.faults:
            self.faults.append(fault)

    def text(self, call: str, *arguments: Any) -> str:
        """A call that gives a string; "" where it gives none."""
        return printable(self.ask(call, *arguments) or "")

    def number(self, call: str, *arguments: Any) -> int | None:
        """A call that gives a number."""
        return known(self.ask(call, *arguments))


def refusal(name: str, more: str = "") -> SourceError:
    """The error of an NVML that does not work at all."""
    reason = Reason.DENIED if name == "NO_PERMISSION" else Reason.UNAVAILABLE
    return SourceError(
        reason, printable(f"NVML_ERROR_{name}: {more or ADVICE.get(name, 'NVML does not work')}")
    )


def known(value: int | None) -> int | None:
    """A number, or None for *not available*, which nvml.h writes as all ones (NVML_VALUE_NOT_AVAILABLE)."""
    return None if value in _ALL_ONES else value
