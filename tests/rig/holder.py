"""Real processes under orders: compiles holder.c once and starts it.

Orders are carried out in the order they are given, so what is opened before a fork is inherited and what is
opened after it is not. Everything a holder started ends with it, and it ends when the rig does.

    orders = Orders().cgroup(group).open(node.path).uvm(devices).name(b"python3").fork(2)
    with Holder(orders) as holder:
        holder.pid, holder.children, holder.start_time
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self, TypedDict

from tests.rig.devices import PTS_MAJOR, Devices, Node
from tests.rig.errors import RigError

SOURCE = Path(__file__).with_name("holder.c")
READY_SECONDS = 10.0
END_SECONDS = 5.0


class Group(Protocol):
    """A control group that a process can move itself into."""

    @property
    def procs(self) -> list[Path]:
        """The cgroup.procs file in each hierarchy."""


class _Report(TypedDict):
    pid: int
    tids: list[int]
    children: list[int]
    fds: list[int]
    vfork_child: int


class Orders:
    """A list of orders for one holder; each method adds one and returns the list (see holder.c)."""

    def __init__(self) -> None:
        self.argv: list[bytes] = []

    def _add(self, *words: str | bytes | Path | int) -> Self:
        for word in words:
            self.argv.append(str(word).encode() if isinstance(word, int) else os.fsencode(word))
        return self

    def cgroup(self, group: Group) -> Self:
        """Move into a group. First of all, or what was forked before stays outside."""
        for path in group.procs:
            self._add("--cgroup", path)
        return self

    def container(self, root: Path, visible: Sequence[Node]) -> Self:
        """Live in a root of its own (an empty directory of the host) whose /dev is a tmpfs with these nodes.

        Ptys are bound, others made with mknod. Later paths are as seen inside, such as /dev/nvidia40; what
        was opened before keeps its place.
        """
        self._add("--container", root)
        for node in visible:
            if node.major == PTS_MAJOR:
                self._add("--bind", node.path, f"dev/{node.name}")
            else:
                self._add("--mknod", f"dev/{node.name}", node.major, node.minor)
        return self._add("--enter")

    def open(self, path: Path | str | bytes, times: int = 1) -> Self:
        """Hold a descriptor, or several."""
        for _ in range(times):
            self._add("--open", path)
        return self

    def opath(self, path: Path | str | bytes) -> Self:
        """Hold an O_PATH descriptor, which names the file and holds nothing."""
        return self._add("--opath", path)

    def map(self, path: Path | str | bytes) -> Self:
        """Hold a private mapping without a descriptor: 1:5 of the MEMORY variant only."""
        return self._add("--map", path)

    def unlink(self, path: Path | str | bytes) -> Self:
        """Unlink a name that was opened or mapped; not for bind mounts."""
        return self._add("--unlink", path)

    def uvm(self, devices: Devices, path: str | Path | None = None) -> Self:
        """Hold nvidia-uvm, on a terminal of its own. Before any fork; once per holder."""
        return self._add("--uvm-tty", devices.terminal(), path or devices.uvm().path)

    def many_fds(self, count: int) -> Self:
        """Hold many descriptors of an ordinary directory."""
        return self._add("--many-fds", count)

    def name(self, comm: bytes) -> Self:
        """Call itself so: at most 15 bytes count, any but NUL."""
        return self._add("--name", comm)

    def ignore_term(self) -> Self:
        """Ignore SIGTERM."""
        return self._add("--ignore-term")

    def setsid(self) -> Self:
        """Start a new session."""
        return self._add("--setsid")

    def fork(self, count: int) -> Self:
        """Start children that inherit all descriptors so far."""
        return self._add("--fork", count)

    def double_fork(self) -> Self:
        """Go on as a process whose parents have ended: adopted by pid 1 or a subreaper."""
        return self._add("--double-fork")

    def threads(self, count: int) -> Self:
        """Run more threads."""
        return self._add("--threads", count)

    def busy(self) -> Self:
        """Let one more thread spin."""
        return self._add("--busy")

    def uninterruptible(self) -> Self:
        """Wait in state D, really, in vfork (not in a driver); SIGKILL still ends it."""
        return self._add("--vfork")

    def leader_exits(self) -> Self:
        """End the first thread while another lives: a zombie leader."""
        return self._add("--leader-exits")


class Holder:
    """One started process. `exe` gives it an executable path of its own (a copy is put there)."""

    def __init__(self, orders: Orders, *, exe: Path | None = None) -> None:
        binary = build_holder()
        if exe is not None:
            exe.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(binary, exe)
            binary = exe
        self._process = subprocess.Popen(
            [os.fsencode(binary), *orders.argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._pidfds: dict[int, int] = {}
        self._closed = False
        try:
            said = self._read_report()
        except BaseException:
            self.close()
            raise
        self.pid = said["pid"]
        self.tids = said["tids"]
        self.children = said["children"]
        self.fds = said["fds"]
        self.vfork_child = said["vfork_child"]
        if self.pid != self._process.pid:
            self._process.wait(END_SECONDS)
        for pid in (self.pid, *self.children, *([self.vfork_child] if self.vfork_child else [])):
            self._pidfds[pid] = os.pidfd_open(pid)
        self.start_time = start_time(self.pid)

    @property
    def state(self) -> str:
        """The state letter of the leader in /proc/PID/stat; "" when it is gone."""
        return process_state(self.pid)

    def signal(self, number: int, pid: int | None = None) -> None:
        """Send a signal to the holder, or to one of its children."""
        signal.pidfd_send_signal(self._pidfds[pid or self.pid], number)

    def kill(self, *, reap: bool = True) -> None:
        """SIGKILL the holder alone and wait for it; its children live on. Unreaped it stays a zombie."""
        self.signal(signal.SIGKILL)
        self.wait(reap=reap)

    def wait(self, timeout: float = END_SECONDS, *, reap: bool = True) -> None:
        """Wait until the holder has ended, with all its threads."""
        if not select.select([self._pidfds[self.pid]], [], [], timeout)[0]:
            raise RigError(f"process {self.pid} ({self.state}) did not end within {timeout} s")
        if reap and self.pid == self._process.pid:
            self._process.wait(END_SECONDS)

    def close(self) -> None:
        """End the holder and all that it started."""
        if self._closed:
            return
        self._closed = True
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        for handle in self._pidfds.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        waiting = set(self._pidfds.values())
        deadline = time.monotonic() + END_SECONDS
        while waiting and time.monotonic() < deadline:
            waiting -= set(select.select(list(waiting), [], [], 0.2)[0])
        for handle in self._pidfds.values():
            os.close(handle)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_report(self) -> _Report:
        """The line that the holder prints when it has carried out its orders."""
        out, errors = self._process.stdout, self._process.stderr
        assert out is not None
        assert errors is not None
        if select.select([out], [], [], READY_SECONDS)[0]:
            line = out.readline()
            if line:
                report: _Report = json.loads(line)
                return report
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(END_SECONDS)
        raise RigError(errors.read().decode(errors="replace").strip() or "the holder did not get ready")


def build_holder() -> Path:
    """The compiled holder; built when its source changed."""
    source = SOURCE.read_bytes()
    folder = Path(tempfile.gettempdir()) / f"gpurig-cache-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    binary = folder / f"holder-{hashlib.sha256(source).hexdigest()[:16]}"
    if binary.exists():
        return binary
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RigError("no C compiler: install gcc to build tests/rig/holder.c")
    partial = folder / f"{binary.name}.{os.getpid()}"
    command = [compiler, "-O1", "-Wall", "-pthread", "-o", str(partial), str(SOURCE)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RigError(f"cannot compile {SOURCE.name}: {result.stderr.strip()}")
    partial.rename(binary)
    return binary


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on: comm may hold spaces and parentheses."""
    text = Path(f"/proc/{pid}/stat").read_bytes().decode("latin-1")
    return text[text.rindex(")") + 2 :].split()


def start_time(pid: int) -> int:
    """Start time of a process in clock ticks since boot (field 22 of stat)."""
    return int(_stat_fields(pid)[19])


def process_state(pid: int) -> str:
    """State letter of a process, or "" when there is none."""
    try:
        return _stat_fields(pid)[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
