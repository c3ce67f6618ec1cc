"""What processes cost, from the kernel's own books: CPU time, memory, threads and descriptors.

Nothing here knows what the processes do. CPU time comes from /proc/PID/stat: the
kernel scales its sum of user and system time to what the scheduler measured, in steps of a clock tick.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
_FRAME = (1 << 55) - 1  # Documentation/admin-guide/mm/pagemap.rst
_PRESENT = 1 << 63
MB = 1e6


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a group of processes in bytes.

    `pss` is the sum of their proportional shares. A page of a library counts less there for each process of
    the machine that maps it too, this benchmark's own among them; `alone` counts every page that one of the
    group maps once and in full, as if no other process shared it.
    """

    pss: int
    alone: int


def family(pid: int) -> list[int]:
    """A process and its children, those that live."""
    others = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [pid, *(other for other in others if _field(other, 1) == pid)]


def cpu_seconds(pids: Collection[int]) -> float:
    """User and system time of these processes so far, in seconds; none of those that have ended."""
    return sum(_field(pid, 11) + _field(pid, 12) for pid in pids) / TICKS


def threads(pids: Collection[int]) -> int:
    """Their threads."""
    return sum(_field(pid, 17) for pid in pids)


def descriptors(pids: Collection[int]) -> int:
    """Their open descriptors."""
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)


def memory(pids: Collection[int]) -> Memory:
    """What they occupy. Needs root: frame numbers are hidden from others."""
    frames: set[int] = set()
    for pid in pids:
        frames |= _frames(pid)
    return Memory(sum(pss(pid) for pid in pids), len(frames) * PAGE)


def pss(pid: int) -> int:
    """The proportional set size of one process, in bytes."""
    return _rollup(pid, "Pss:")


def private(pid: int) -> int:
    """Pages that only this process maps and has written to, in bytes."""
    return _rollup(pid, "Private_Dirty:")


def imported(code: str) -> int:
    """Pages that a fresh interpreter has written to once it has run a line of imports, in bytes."""
    rollup = "open('/proc/self/smaps_rollup')"
    look = f"; print(next(line.split()[1] for line in {rollup} if line.startswith('Private_Dirty')))"
    told = subprocess.run(
        [sys.executable, "-I", "-c", code + look], check=True, capture_output=True, text=True
    )
    return int(told.stdout) * 1024


def _rollup(pid: int, name: str) -> int:
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    return sum(int(words[1]) * 1024 for words in lines if words[0] == name)


def _frames(pid: int) -> set[int]:
    found: set[int] = set()
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            first, _, last = line.split()[0].partition("-")
            low, high = int(first, 16) // PAGE, int(last, 16) // PAGE
            if "[v" in line:  # vvar, vdso, vsyscall: the kernel's
                continue
            data = os.pread(pagemap.fileno(), (high - low) * 8, low * 8)
            entries = struct.unpack(f"{len(data) // 8}Q", data)
            found.update(entry & _FRAME for entry in entries if entry & _PRESENT)
    found.discard(0)
    return found


def _field(pid: int, index: int) -> int:
    """A numeric field of /proc/PID/stat after the state; 0 where the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(text.rpartition(b")")[2].split()[index])
