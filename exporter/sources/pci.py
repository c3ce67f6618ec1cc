"""Source pci: the GPUs on the PCI bus, and minor and UUID of those that the NVIDIA driver has, without NVML.

What comes in is sysfs and /proc/driver/nvidia. What goes out is one record per physical GPU. Virtual
functions are slices of a GPU and no GPUs. It must never ask the driver more than once for what does not
change: each read of a GPU's `information` takes the driver's locks and wakes a suspended GPU
(kernel-open/nvidia/nv-procfs.c, nv_procfs_read_gpu_info).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from exporter.model import Pci, PciGpu, Reason, SourceError
from exporter.text import printable

VENDOR = "0x10de"
CLASSES = (
    "0x0300",
    "0x0302",
)  # VGA-compatible and 3D controller (pci.ids); audio and USB functions have others
READ_LIMIT = 4096  # bytes

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MINOR = re.compile(r"^Device Minor:\s*([0-9]{1,6})\s*$", re.MULTILINE)
# A GPU that was never initialised has question marks for digits.
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Identity:
    """What the driver said. `binding` is the inode of sysfs' driver link, new with each binding."""

    binding: int
    minor: int | None
    uuid: str


class PciSource:
    """The PCI bus below `sysfs` (/sys) and the NVIDIA driver's files below `procfs` (/proc)."""

    name = "pci"

    def __init__(self, sysfs: Path, procfs: Path) -> None:
        self._devices = sysfs / "bus/pci/devices"
        self._gpus = procfs / "driver/nvidia/gpus"
        self._known: dict[str, _Identity] = {}

    def read(self) -> tuple[Pci, bool]:
        """Return the GPUs, and whether every device could be read; raises SourceError."""
        try:
            addresses = sorted(name for name in os.listdir(self._devices) if _ADDRESS.fullmatch(name))
        except PermissionError as error:
            raise SourceError(Reason.DENIED, f"may not list {self._devices}") from error
        except OSError as error:
            text = f"{self._devices}: {error.strerror}; set --path.sysfs"
            raise SourceError(Reason.UNAVAILABLE, text) from error
        gpus: list[PciGpu] = []
        complete = True
        for address in addresses:
            try:
                if self._is_gpu(address):
                    gpus.append(self._gpu(address))
            except FileNotFoundError:
                continue  # unplugged while we looked
            except OSError:
                complete = False
        self._known = {gpu.address: self._known[gpu.address] for gpu in gpus if gpu.address in self._known}
        return Pci(tuple(gpus)), complete

    def _is_gpu(self, address: str) -> bool:
        device = self._devices / address
        if _read(device / "vendor").strip() != VENDOR or not _read(device / "class").startswith(CLASSES):
            return False
        return not os.path.lexists(device / "physfn")

    def _gpu(self, address: str) -> PciGpu:
        link = self._devices / address / "driver"
        try:
            driver, binding = os.path.basename(os.readlink(link)), os.lstat(link).st_ino
        except FileNotFoundError:
            driver, binding = "", 0
        known = self._known.get(address)
        if known is None or known.binding != binding or not known.uuid:
            known = _Identity(binding, *self._information(address))
            self._known[address] = known
        return PciGpu(address, printable(driver), known.minor, known.uuid)

    def _information(self, address: str) -> tuple[int | None, str]:
        """Minor and UUID, as far as the driver is loaded and has this GPU."""
        try:
            text = _read(self._gpus / address / "information")
        except FileNotFoundError:
            return None, ""
        minor, uuid = _MINOR.search(text), _UUID.search(text)
        return int(minor[1]) if minor else None, uuid[1] if uuid else ""


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(READ_LIMIT).decode("utf-8", "replace")
