"""The texts of /proc as proc(5) describes them, and as a hostile process fills them in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.sources.procfs import (
    GONE,
    PF_EXITING,
    PF_KTHREAD,
    Mount,
    ProcessDirectory,
    parse_mounts,
    parse_stat,
    parse_status,
)


def _stat(comm: bytes, flags: int = 0x400000) -> bytes:
    rest = f"S 7 8 8 0 -1 {flags} 1 2 3 4 100 23 5 6 20 0 3 0 4242 1 2 3".encode()
    return b"100 (" + comm + b") " + rest + b"\n"


@given(st.binary(max_size=64))
def test_a_name_cannot_shift_the_fields_of_stat(comm: bytes) -> None:
    """The name ends at the last parenthesis, whatever is in it."""
    stat = parse_stat(_stat(comm))
    assert (stat.comm, stat.state, stat.parent) == (comm, "S", 7)
    assert (stat.cpu_ticks, stat.threads, stat.start) == (123, 3, 4242)


def test_flags_tell_kernel_threads_and_exiting_tasks() -> None:
    """By their bits of linux/sched.h."""
    plain = parse_stat(_stat(b"x"))
    assert not plain.kernel_thread
    assert not plain.exiting
    assert parse_stat(_stat(b"x", PF_KTHREAD | 0x8040)).kernel_thread
    assert parse_stat(_stat(b"x", 0x400000 | PF_EXITING)).exiting


STATUS = b"Name:\tx\nState:\tS (sleeping)\nTgid:\t42\nPid:\t43\nSigPnd:\t%s\nShdPnd:\t%s\n%s"


@pytest.mark.parametrize(
    ("own", "shared", "killed"),
    [(b"0", b"0", False), (b"100", b"0", True), (b"0", b"0000000000000100", True), (b"200", b"8000", False)],
)
def test_a_pending_kill_may_be_the_threads_or_the_processs(own: bytes, shared: bytes, killed: bool) -> None:
    """Signal 9 is bit 8 of either."""
    status = parse_status(STATUS % (own, shared, b""))
    assert (status.tgid, status.kill_pending) == (42, killed)


@pytest.mark.parametrize(
    ("line", "dumping"), [(b"CoreDumping:\t1\n", True), (b"CoreDumping:\t0\n", False), (b"", False)]
)
def test_a_core_dump_is_told(line: bytes, dumping: bool) -> None:
    """Kernels before 4.15 and zombies have no such line."""
    assert parse_status(STATUS % (b"0", b"0", line)).dumping is dumping


@pytest.mark.parametrize("separator", [b"\r", b"\x0b", b"\x0c", b"\x1c", b"\x85"])
def test_a_name_cannot_add_lines_to_status(separator: bytes) -> None:
    """The kernel escapes newlines in names, and nothing else that may be taken for the end of a line."""
    text = (STATUS % (b"0", b"0", b"")).replace(b"Name:\tx", b"Name:\tx" + separator + b"CoreDumping:1")
    assert not parse_status(text).dumping


def test_our_own_files_parse() -> None:
    """The formats of this kernel, not only those that somebody wrote down."""
    with ProcessDirectory("/proc/self") as directory:
        stat, status = directory.stat(), directory.status()
        assert status.tgid == os.getpid()
        assert stat.parent == os.getppid()
        assert stat.threads >= 1
        assert any(mount.point == "/" for mount in parse_mounts(directory.read_all("mountinfo")))
        assert str(os.getpid()) in directory.names("task")
        assert len(directory.read_all("maps")) > 1000


def test_a_directory_of_a_process_that_ended_is_gone_and_never_another() -> None:
    """Through one descriptor: what comes to have its pid is not mixed up with it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        directory = ProcessDirectory(f"/proc/{child.pid}")
        assert directory.stat().parent == os.getpid()
        child.communicate()
    with directory, pytest.raises(GONE):
        directory.stat()
    with pytest.raises(GONE):
        ProcessDirectory(f"/proc/{child.pid}")


MOUNTS = b"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
23 22 0:5 / /dev rw,nosuid shared:2 master:1 - devtmpfs udev rw,size=4k
24 23 0:99 / /dev rw - tmpfs tmpfs rw
25 22 0:42 /x /mnt/a\\040b rw - fuse.sshfs user@host:/ rw
broken line
"""


def test_mounts_are_told_in_their_order() -> None:
    """With any number of optional fields; a line that is none is passed over."""
    assert parse_mounts(MOUNTS) == (
        Mount((8, 1), "/", "/", "ext4"),
        Mount((0, 5), "/", "/dev", "devtmpfs"),
        Mount((0, 99), "/", "/dev", "tmpfs"),
        Mount((0, 42), "/x", "/mnt/a\\040b", "fuse.sshfs"),
    )


@pytest.mark.parametrize("separator", ["\r", "\x0b", "\x1c", "\u2028"])
def test_a_mount_point_cannot_add_lines_to_mountinfo(separator: str) -> None:
    """Its name may hold what Python takes for the end of a line: the mount is still there, and only once."""
    line = f"22 1 0:5 / /a{separator}b rw - fuse evil rw\n".encode()
    assert parse_mounts(line) == (Mount((0, 5), "/", f"/a{separator}b", "fuse"),)


def test_reads_are_bounded(tmp_path: Path) -> None:
    """A file that never ends costs a bounded buffer."""
    (tmp_path / "big").write_bytes(b"x" * 300_000)
    with ProcessDirectory(str(tmp_path)) as directory:
        assert len(directory.read("big", 1000)) == 1000
        assert len(directory.read_all("big", 100_000)) < 300_000
        assert len(directory.read_all("big")) == 300_000
