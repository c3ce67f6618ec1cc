"""Which character devices are NVIDIA's, and what a descriptor really is: numbers from the kernel, never
names.

Majors are looked up in /proc/devices each time, because most are dynamic and change with a reload of the
driver. A descriptor or directory entry is proven by statx with AT_STATX_DONT_SYNC, which does not ask a file
system for news: on a dead FUSE or NFS mount stat and fstat hang in the kernel, beyond the reach of SIGKILL.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from exporter.model import CapabilityNode, DeviceNode, NodeKind
from exporter.sources.procfs import GONE, link_text

# --- statx(2) -----------------------------------------------------------------------------------------------

AT_SYMLINK_NOFOLLOW = 0x100
AT_NO_AUTOMOUNT = 0x800
AT_STATX_DONT_SYNC = 0x4000
_STATX_TYPE = 0x1
_STATX_INO = 0x100
_S_IFMT, _S_IFCHR = 0o170000, 0o020000


class _Statx(ctypes.Structure):
    """struct statx (include/uapi/linux/stat.h): times are skipped as bytes."""

    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("blksize", ctypes.c_uint32),
        ("attributes", ctypes.c_uint64),
        ("nlink", ctypes.c_uint32),
        ("uid", ctypes.c_uint32),
        ("gid", ctypes.c_uint32),
        ("mode", ctypes.c_uint16),
        ("spare0", ctypes.c_uint16),
        ("ino", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("blocks", ctypes.c_uint64),
        ("attributes_mask", ctypes.c_uint64),
        ("times", ctypes.c_char * 64),
        ("rdev_major", ctypes.c_uint32),
        ("rdev_minor", ctypes.c_uint32),
        ("dev_major", ctypes.c_uint32),
        ("dev_minor", ctypes.c_uint32),
        ("spare", ctypes.c_char * 112),
    )


_libc = ctypes.CDLL(None, use_errno=True)
_statx = _libc.statx
_statx.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)
_buffer = _Statx()  # the child that uses this has one thread
_address = ctypes.addressof(_buffer)


@dataclass(frozen=True, slots=True)
class FileNumber:
    """What statx says of a file: its device number if it is a character device, and where its inode lives."""

    character: tuple[int, int] | None
    filesystem: tuple[int, int]
    inode: int


def file_number(directory: int, name: str, *, follow: bool) -> FileNumber:
    """Ask the kernel what `name` below an open directory is. Raises OSError; never waits."""
    flags = AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT | (0 if follow else AT_SYMLINK_NOFOLLOW)
    if _statx(directory, os.fsencode(name), flags, _STATX_TYPE | _STATX_INO, _address) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)
    return _answer()


def _answer() -> FileNumber:
    character = (_buffer.rdev_major, _buffer.rdev_minor) if _buffer.mode & _S_IFMT == _S_IFCHR else None
    return FileNumber(character, (_buffer.dev_major, _buffer.dev_minor), _buffer.ino)


# Converted once: a scan asks this of every descriptor of every candidate.
_flags = ctypes.c_int(AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT)
_mask = ctypes.c_uint(_STATX_TYPE | _STATX_INO)
_pointer = ctypes.c_void_p(_address)
_quick_statx = ctypes.CDLL(None).statx  # without errno


def character(directory: int, name: str) -> FileNumber | None:
    """`file_number` of what a name below an open directory leads to, if that is a character device.

    The same question as `file_number` with `follow`, for the many that are none. Raises OSError; never waits.
    """
    if _quick_statx(directory, name.encode(), _flags, _mask, _pointer) != 0:
        number = file_number(directory, name, follow=True)  # again, for the error
        return number if number.character else None
    return _answer() if _buffer.mode & _S_IFMT == _S_IFCHR else None


# Texts that nearly every process has, and that a device file is looked for only in a thorough look.
_COMMON = ("/dev/null", "/dev/pts/", "/dev/urandom", "/dev/shm/")  # noqa: S108 (a text to compare with)
_TOO_LONG = "/dev/"  # stands for a text that was: the kernel is asked what the file is


def suspects(table: int, names: list[str], unread: Callable[[], object]) -> list[str]:
    """Those links of an open directory whose text speaks of a device, or is longer than a page.

    How long a text is, and all that is in it, was chosen by whoever opened the file: it only saves questions.
    `unread` is called for each that cannot be read.
    """
    readlink = os.readlink  # this loop is most of what a scan costs
    try:
        texts = [readlink(name, dir_fd=table) for name in names]
    except OSError:
        texts = [_text(table, name, unread) for name in names]
    together = "\n".join(texts)
    if "/dev/" not in together and "nvidia" not in together:
        return []
    return [name for name, text in zip(names, texts, strict=True) if _speaks_of_device(text)]


def _text(table: int, name: str, unread: Callable[[], object]) -> str:
    try:
        text = link_text(table, name)
    except GONE:
        return ""
    except OSError:
        unread()
        return ""
    return _TOO_LONG if text is None else text


def _speaks_of_device(text: str) -> bool:
    return text[:1] == "/" and (
        "nvidia" in text or (text.startswith("/dev/") and not text.startswith(_COMMON))
    )


# --- the driver's majors ------------------------------------------------------------------------------------

# Names in /proc/devices. The front end was called nvidia-frontend until about driver 550.40.
_KINDS: dict[str, NodeKind] = {
    "nvidia": NodeKind.GPU,
    "nvidia-frontend": NodeKind.GPU,
    "nvidia-uvm": NodeKind.UVM,
    "nvidia-caps": NodeKind.CAPABILITY,
    "nvidia-caps-imex-channels": NodeKind.IMEX,
    "nvidia-nvswitch": NodeKind.NVSWITCH,
    "nvidia-nvlink": NodeKind.NVLINK,
}
_NVIDIA_MAJOR = 195  # Documentation/admin-guide/devices.txt
# Minors with a meaning of their own (open-gpu-kernel-modules, nv.h and uvm_linux.h).
_SPECIAL: dict[tuple[NodeKind, int], NodeKind] = {
    (NodeKind.GPU, 254): NodeKind.MODESET,
    (NodeKind.GPU, 255): NodeKind.CONTROL,
    (NodeKind.UVM, 1): NodeKind.UVM_TOOLS,
}


class Majors:
    """The character majors of the NVIDIA driver at one moment. Falsy when the driver is not loaded."""

    def __init__(self, devices: str) -> None:
        """`devices` is the text of /proc/devices."""
        self._kinds: dict[int, NodeKind] = {}
        for line in devices.partition("Block devices")[0].splitlines():
            major, _, name = line.strip().partition(" ")
            if name in _KINDS and major.isdigit():
                self._kinds[int(major)] = _KINDS[name]
        if self._kinds:
            self._kinds.setdefault(_NVIDIA_MAJOR, NodeKind.GPU)

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def node(self, number: tuple[int, int] | None) -> DeviceNode | None:
        """The device node with this number, or None if it is not the driver's."""
        if number is None or (kind := self._kinds.get(number[0])) is None:
            return None
        return DeviceNode(_SPECIAL.get((kind, number[1]), kind), *number)


_ACCESS = re.compile(r"gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)")


def capabilities(procfs: Path) -> tuple[CapabilityNode, ...]:
    """What each nvidia-caps minor opens (/proc/driver/nvidia-caps/mig-minors); empty without MIG support."""
    try:
        text = (procfs / "driver/nvidia-caps/mig-minors").read_text("ascii", "replace")
    except OSError:
        return ()
    return tuple(
        CapabilityNode(int(minor), int(gpu), int(gi), int(ci) if ci else None)
        for gpu, gi, ci, minor in _ACCESS.findall(text)
    )
