"""Stand-in NVIDIA device nodes: real character devices of other drivers, named by a substitute /proc/devices.

Real: the nodes, the opens, the device numbers that statx reports. Stand-in: the drivers behind them.

| NVIDIA file | stands in | why |
|---|---|---|
| nvidiaN, nvidiactl (255), nvidia-modeset (254) | slave N of a private devpts, major 136 | many minors |
| nvidia-uvm (0), nvidia-uvm-tools (1) | 5:0 (/dev/tty), 5:1 (/dev/console) | the only usual minor 0 |
| nvidia-caps | misc devices 10:N such as fuse, loop-control, autofs | few processes hold them |
| nvidiaN that can be mapped | 1:5 (zero), 1:7 (full: opens, does not map) | `MEMORY` variant |

What follows from that:
- A node of major 136 made with mknod outside its devpts opens with EIO, so those nodes are bind mounts of
  the devpts entry: any name works and the link text is that name, but unlink gives EBUSY. Use the MEMORY
  variant for " (deleted)" and for maps. A private mapping of 1:5 keeps the node's path, a shared one not.
- Host terminals are 136:0 and up, so GPU minors start at 40.
- 5:0 opens only in a process with a controlling terminal: the holder becomes a session leader and takes a pty
  of its own first. 5:1 is held by whatever owns the machine's console: see it as an nvidia-uvm-tools holder.
- 1:3 (null) is held by everything: never use minor 3 as a GPU in the MEMORY variant.
- The pty masters are parked in flight on a socket, so no process of the rig shows 5:2 descriptors.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.rig.errors import RigError
from tests.rig.mounts import bind, mount

PTS_MAJOR = 136
UVM = (5, 0)
UVM_TOOLS = (5, 1)
CTL_MINOR = 255
MODESET_MINOR = 254
GPU_MINORS = range(40, 60)
CAPS_MAJOR = 10
# fuse, loop-control, autofs, btrfs-control, kvm, tun, uinput, vhost-net, mcelog, snapshot
CAPS_CANDIDATES = (229, 237, 235, 234, 232, 200, 223, 238, 227, 231)
MEMORY_MAJOR = 1
MEMORY_MINORS = (5, 7)
TIOCSPTLCK = 0x40045431
TIOCGPTN = 0x80045430

PTY_DEVICES = f"{PTS_MAJOR} nvidia\n{UVM[0]} nvidia-uvm\n{CAPS_MAJOR} nvidia-caps\n"
MEMORY_DEVICES = f"{MEMORY_MAJOR} nvidia\n{UVM[0]} nvidia-uvm\n{CAPS_MAJOR} nvidia-caps\n"


def devices_text(lines: str = PTY_DEVICES) -> str:
    """A whole /proc/devices with the given character majors beside ordinary ones, in the kernel's layout."""
    chars = {1: "mem", 4: "tty", 5: "/dev/tty", 10: "misc", 13: "input", 128: "ptm", 136: "pts"}
    for line in lines.splitlines():
        number, name = line.split(maxsplit=1)
        chars[int(number)] = name
    body = "".join(f"{major:3d} {name}\n" for major, name in sorted(chars.items()))
    return f"Character devices:\n{body}\nBlock devices:\n  7 loop\n259 blkext\n"


@dataclass(frozen=True, slots=True)
class Node:
    """A device node: where it is, and the number that a descriptor of it shows."""

    path: Path
    major: int
    minor: int

    @property
    def name(self) -> str:
        """Its name below /dev."""
        inner = f"{self.path.parent.name}/" if self.path.parent.name == "nvidia-caps" else ""
        return f"{inner}{self.path.name}"

    @property
    def rdev(self) -> int:
        """The device number as st_rdev."""
        return os.makedev(self.major, self.minor)


class Devices:
    """Stand-in nodes under `root`/dev (a Workspace path: it must allow device nodes)."""

    def __init__(self, root: Path, *, memory: bool = False) -> None:
        self.dev = root / "dev"
        self.pts = root / "pts"
        self.memory = memory
        self.dev.mkdir()
        self.pts.mkdir()
        mount("gpurig", self.pts, "devpts", 0, "newinstance,ptmxmode=0666,mode=0600")
        self._parked = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._caps: list[Node] | None = None
        if not memory:
            self._make_terminals()

    @property
    def text(self) -> str:
        """The /proc/devices text that names these stand-ins."""
        return devices_text(MEMORY_DEVICES if self.memory else PTY_DEVICES)

    @property
    def gpu_minors(self) -> tuple[int, ...]:
        """Minors a GPU of this variant can have."""
        return MEMORY_MINORS if self.memory else tuple(GPU_MINORS)

    def gpu(self, minor: int, name: str | bytes | None = None) -> Node:
        """The node of the GPU with this minor; any name, also one that lies or holds odd bytes."""
        if minor not in self.gpu_minors:
            raise RigError(f"no stand-in for GPU minor {minor}: this variant has {self.gpu_minors}")
        return self._nvidia(minor, name if name is not None else f"nvidia{minor}")

    def ctl(self) -> Node:
        """nvidiactl, which every client opens. The MEMORY variant has none."""
        return self._nvidia(CTL_MINOR, "nvidiactl")

    def modeset(self) -> Node:
        """nvidia-modeset."""
        return self._nvidia(MODESET_MINOR, "nvidia-modeset")

    def uvm(self, name: str | bytes = "nvidia-uvm") -> Node:
        """nvidia-uvm: opened by a holder only, after taking a terminal of its own (see `terminal`)."""
        return self.node(name, *UVM)

    def uvm_tools(self) -> Node:
        """nvidia-uvm-tools: may be seen; opening it opens the machine's console."""
        return self.node("nvidia-uvm-tools", *UVM_TOOLS)

    def caps(self) -> list[Node]:
        """Nodes nvidia-caps/nvidia-capM that open on this machine; the minors are for mig-minors."""
        if self._caps is None:
            (self.dev / "nvidia-caps").mkdir(exist_ok=True)
            made = [
                self.node(f"nvidia-caps/nvidia-cap{minor}", CAPS_MAJOR, minor) for minor in CAPS_CANDIDATES
            ]
            self._caps = [node for node in made if _opens(node.path)]
            if len(self._caps) < 2:
                raise RigError(
                    "no two openable misc devices (fuse, loop-control, autofs, ...) for nvidia-caps"
                )
        return list(self._caps)

    def node(self, name: str | bytes, major: int, minor: int) -> Node:
        """A node made with mknod under any name, also one whose device number contradicts it."""
        path = self.dev / os.fsdecode(name)
        if not path.exists():
            try:
                os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
                os.chmod(path, 0o666)
            except OSError as error:
                raise RigError(f"mknod {path} c {major} {minor}: {error} (needs CAP_MKNOD)") from error
        return Node(path, major, minor)

    def terminal(self) -> Path:
        """A fresh pty slave for one holder of nvidia-uvm. Its minor is none of a GPU."""
        master, index = _new_pty(self.pts)
        self._park([master])
        return self.pts / str(index)

    def close(self) -> None:
        """Hang up all terminals. The mounts go with the workspace."""
        for end in self._parked:
            end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _nvidia(self, minor: int, name: str | bytes) -> Node:
        if self.memory:
            return self.node(name, MEMORY_MAJOR, minor)
        path = self.dev / os.fsdecode(name)
        if not path.exists():
            path.touch()
            bind(self.pts / str(minor), path)
        return Node(path, PTS_MAJOR, minor)

    def _make_terminals(self) -> None:
        """Allocate ptys up to 255 and keep those that stand for something: indexes come in order."""
        wanted = {*GPU_MINORS, MODESET_MINOR, CTL_MINOR}
        keep: list[int] = []
        drop: list[int] = []
        for _ in range(CTL_MINOR + 1):
            master, index = _new_pty(self.pts)
            (keep if index in wanted else drop).append(master)
        self._park(keep)
        for master in drop:
            os.close(master)

    def _park(self, masters: Iterable[int]) -> None:
        """Keep descriptors open in flight on a socket: open, but in no process's descriptor table."""
        numbers = array.array("i", masters)
        self._parked[0].sendmsg([b"m"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
        for master in numbers:
            os.close(master)


def _new_pty(pts: Path) -> tuple[int, int]:
    try:
        master = os.open(pts / "ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        fcntl.ioctl(master, TIOCSPTLCK, struct.pack("i", 0))
        # TIOCGPTN: the index of the slave, which is its minor.
        (index,) = struct.unpack("I", fcntl.ioctl(master, TIOCGPTN, struct.pack("I", 0)))
    except OSError as error:
        raise RigError(
            f"no pty of a private devpts: {error} (see kernel.pty.max and RLIMIT_NOFILE)"
        ) from error
    return master, int(index)


def _opens(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
