"""One process' files below /proc, through one directory descriptor: after pid reuse it gives ESRCH, never a
mix-up.

Texts are parsed as proc(5) describes them. `ProcessLookupError` and `FileNotFoundError` mean that the process
is gone, which is normal; `PermissionError` means that the agent may not look, which is not.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from exporter.text import printable

PF_EXITING = 0x4  # include/linux/sched.h
PF_KTHREAD = 0x200000
O_PATH_FLAG = 0o10000000  # include/uapi/asm-generic/fcntl.h, as fdinfo shows it
_READ_OR_WRITTEN = (0o500, 0o300, 0o700)
_SIGKILL_BIT = 1 << 8
GONE = (ProcessLookupError, FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/PID/stat that matter here; times in clock ticks."""

    comm: bytes
    state: str
    parent: int
    flags: int
    cpu_ticks: int
    threads: int
    start: int

    @property
    def kernel_thread(self) -> bool:
        """Whether it never had a user space."""
        return bool(self.flags & PF_KTHREAD)

    @property
    def exiting(self) -> bool:
        """Whether it has begun to end."""
        return bool(self.flags & PF_EXITING)


def parse_stat(text: bytes) -> Stat:
    """Parse /proc/PID/stat. The name may hold spaces and parentheses: it ends at the last `)`."""
    head, _, tail = text.rpartition(b")")
    fields = tail.split()
    return Stat(
        comm=head.partition(b"(")[2],
        state=fields[0].decode("ascii", "replace"),
        parent=int(fields[1]),
        flags=int(fields[6]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        threads=int(fields[17]),
        start=int(fields[19]),
    )


@dataclass(frozen=True, slots=True)
class Status:
    """The fields of /proc/PID/status that stat lacks."""

    tgid: int
    kill_pending: bool
    dumping: bool


def parse_status(text: bytes) -> Status:
    """Parse /proc/PID/status. Before Linux 4.15 there is no `CoreDumping`: a dump looks like any exit."""
    pending = int(_line(text, b"SigPnd") or b"0", 16) | int(_line(text, b"ShdPnd") or b"0", 16)
    return Status(
        tgid=int(_line(text, b"Tgid")),
        kill_pending=bool(pending & _SIGKILL_BIT),
        dumping=_line(text, b"CoreDumping").strip() == b"1",
    )


def _line(text: bytes, name: bytes) -> bytes:
    """What a line of status says; nothing where there is none.

    Lines end at newlines only: a process' name, which comes first, may hold any other end of a line, and the
    kernel escapes newlines in it.
    """
    return text.partition(b"\n%s:" % name)[2].partition(b"\n")[0]


def link_text(table: int, name: str) -> str | None:
    """The text of a link below an open directory; None where it is longer than a page.

    How long it is was chosen by whoever opened the file. Raises OSError.
    """
    try:
        return os.readlink(name, dir_fd=table)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise


class ProcessDirectory:
    """An open /proc/PID or /proc/PID/task/TID, as a context manager. Raises OSError as the module says."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.fd)

    def read(self, name: str, limit: int = 1 << 16) -> bytes:
        """At most `limit` bytes of one file; for files that the kernel writes in one piece."""
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            return os.read(fd, limit)
        finally:
            os.close(fd)

    def read_all(self, name: str, limit: int = 1 << 24) -> bytes:
        """A file that comes in pieces, such as maps."""
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            pieces = []
            while limit > 0 and (piece := os.read(fd, 1 << 17)):
                pieces.append(piece)
                limit -= len(piece)
            return b"".join(pieces)
        finally:
            os.close(fd)

    def link(self, name: str) -> str:
        """Text of a symbolic link."""
        return os.readlink(name, dir_fd=self.fd)

    def open(self, name: str) -> int:
        """A descriptor of a directory below, for listing; the caller closes it."""
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)

    def names(self, name: str) -> list[str]:
        """Entries of a directory below."""
        fd = self.open(name)
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)

    def inode(self) -> int:
        """The number of the directory itself, which lasts no longer than the process."""
        return os.fstat(self.fd).st_ino

    def stat(self) -> Stat:
        """Its /proc/PID/stat."""
        return parse_stat(self.read("stat", 4096))

    def status(self) -> Status:
        """Its /proc/PID/status."""
        return parse_status(self.read("status", 16384))


def path_only(directory: ProcessDirectory, table: int, where: str, name: str) -> bool:
    """A descriptor opened with O_PATH names a device file and holds nothing. `table` is `where`, open.

    The link's own mode shows for what the file was opened (tid_fd_update_inode, fs/proc/fd.c). One that was
    opened for neither reading nor writing may still take ioctls: there only the flags tell.
    """
    try:
        if stat.S_IMODE(os.stat(name, dir_fd=table, follow_symlinks=False).st_mode) in _READ_OR_WRITTEN:
            return False
        info = directory.read(f"{where.removesuffix('fd')}fdinfo/{name}", 4096)
    except GONE:
        return True  # closed since
    flags = next((line.split()[1] for line in info.splitlines() if line.startswith(b"flags:")), b"0")
    return bool(int(flags, 8) & O_PATH_FLAG)


def sleeps_in(directory: ProcessDirectory) -> str:
    """The kernel function a task sleeps in; "" when it runs or may not be asked."""
    try:
        text = directory.read("wchan", 256).strip()
    except (*GONE, PermissionError):
        return ""
    return "" if text == b"0" else printable(text)


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/PID/mountinfo (proc(5)): what is mounted there. `root` is what of the file system."""

    device: tuple[int, int]
    root: str
    point: str
    kind: str


def parse_mounts(text: bytes) -> tuple[Mount, ...]:
    """Parse /proc/PID/mountinfo. Later lines lie over earlier ones at the same point."""
    mounts = []
    for line in text.decode("utf-8", "surrogateescape").split("\n"):
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) > 4 and right:
            major, _, minor = fields[2].partition(":")
            mounts.append(Mount((int(major), int(minor)), fields[3], fields[4], right.split(" ")[0]))
    return tuple(mounts)
