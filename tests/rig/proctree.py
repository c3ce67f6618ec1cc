"""A recorded /proc: an ordinary directory tree in the kernel's formats (man 5 proc).

For what cannot be produced: tasks that hang in the driver, processes at a scale no test machine runs, a
kernel or driver of another time. Real: the texts' formats, the links, and the device numbers, since every fd
link of a device points at a node made with mknod, which statx reports through the link without any driver.
Stand-in: everything else. What a tree cannot do: links of sockets and pipes dangle, /proc/TID of a thread has
no directory unless it is added as a process, and reading a file never fails half way.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.rig.errors import RigError

O_RDWR = 0o2
O_CLOEXEC = 0o2000000
O_PATH = 0o10000000
HOST_PID_NAMESPACE = 4026531836
PF_EXITING = 0x4
PF_KTHREAD = 0x200000
SIGKILL_BIT = 1 << 8

DEVICES = """Character devices:
  1 mem
  5 /dev/tty
 10 misc
136 pts
195 nvidia
195 nvidia-modeset
195 nvidiactl
235 nvidia-caps
511 nvidia-uvm

Block devices:
  7 loop
259 blkext
"""
OLD_DEVICES = DEVICES.replace("195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n", "195 nvidia-frontend\n")

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "disk sleep",
    "T": "stopped",
    "t": "tracing stop",
    "Z": "zombie",
    "X": "dead",
    "I": "idle",
}


@dataclass(frozen=True, slots=True)
class Fd:
    """An open descriptor: the text of its link (a node's path, or such as socket:[7]) and its flags."""

    target: str | bytes | Path
    flags: int = O_RDWR | O_CLOEXEC
    pos: int = 0


@dataclass(frozen=True, slots=True)
class Map:
    """A mapping. `node` is the path that map_files points at; `text` what maps says, by default the same."""

    node: str | bytes | Path
    text: str | bytes | None = None
    start: int = 0x7F0000000000
    size: int = 0x1000
    permissions: str = "rw-s"
    device: str = "00:05"


@dataclass(frozen=True, slots=True)
class Task:
    """A thread: its state and what it waits in."""

    tid: int
    state: str = "S"
    wchan: str = "futex_wait_queue"
    utime: int = 10
    stime: int = 5
    flags: int = 0x400040
    sig_pending: int = 0
    comm: bytes | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """A process to write. Its leader is described here; `tasks` are its other threads."""

    pid: int
    comm: bytes = b"python3"
    state: str = "S"
    ppid: int = 1
    start: int = 100_000
    cgroup: str = "0::/\n"
    fds: Mapping[int, Fd] = field(default_factory=dict)
    maps: tuple[Map, ...] = ()
    tasks: tuple[Task, ...] = ()
    exe: str | bytes = "/usr/bin/python3"
    wchan: str = "do_sys_poll"
    utime: int = 10
    stime: int = 5
    flags: int = 0x400000
    uid: int = 0
    sig_pending: int = 0
    shared_pending: int = 0
    core_dumping: bool = False
    tracer: int = 0
    pid_namespace: int = HOST_PID_NAMESPACE
    inner_pid: int | None = None
    root: Path | None = None
    mountinfo: str = "22 1 0:21 / / rw,relatime - tmpfs rootfs rw\n"
    fdinfo: bool = True

    @property
    def zombie(self) -> bool:
        """A zombie shows no descriptors, mappings or executable."""
        return self.state == "Z"


class ProcTree:
    """A recorded /proc at `root`; nodes lie beside it in `root`.nodes."""

    def __init__(
        self,
        root: Path,
        *,
        devices: str = DEVICES,
        boot_id: str = "6f1e9f2a-3c1b-4d0e-9a51-0c5b7f3d2e10",
        btime: int = 1_767_225_600,
        uptime: float = 86_400.0,
        self_pid: int = 999,
    ) -> None:
        self.root = root
        self.nodes = root.with_name(root.name + ".nodes")
        self.nodes.mkdir(parents=True)
        root.mkdir(parents=True)
        self.write("devices", devices)
        self.write("stat", _system_stat(btime))
        self.write("uptime", f"{uptime:.2f} {uptime * 60:.2f}\n")
        self.write("sys/kernel/random/boot_id", boot_id + "\n")
        self.write("sys/kernel/pid_max", "4194304\n")
        self.write("filesystems", "nodev\tsysfs\nnodev\ttmpfs\nnodev\tproc\n\text4\n")
        self.add(Process(1, b"systemd", exe="/usr/lib/systemd/systemd", start=1, ppid=0))
        self.add(Process(2, b"kthreadd", state="S", ppid=0, start=1, flags=PF_KTHREAD | 0x8040, exe=""))
        self.add(Process(self_pid, b"kubegpu-exporter", start=int(uptime * 100) - 500))
        (root / "self").symlink_to(str(self_pid))
        (root / "mounts").symlink_to("self/mounts")

    def write(self, name: str, text: str) -> None:
        """Write any file below the root, such as driver/nvidia/version."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def write_driver(self, files: Mapping[str, str]) -> None:
        """Write files below driver/, as sysfs.information and its neighbours give them."""
        for name, text in files.items():
            self.write(f"driver/{name}", text)

    def node(self, name: str | bytes, major: int, minor: int) -> Path:
        """A device node with this number under any name, such as dev/nvidia0; made once."""
        path = self.nodes / os.fsdecode(name)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
            except OSError as error:
                raise RigError(f"mknod {path} c {major} {minor}: {error} (needs CAP_MKNOD)") from error
        return path

    def gpu(self, minor: int) -> Path:
        """The node of a GPU: 195:minor."""
        return self.node(f"dev/nvidia{minor}", 195, minor)

    def ctl(self) -> Path:
        """nvidiactl: 195:255."""
        return self.node("dev/nvidiactl", 195, 255)

    def uvm(self) -> Path:
        """nvidia-uvm: 511:0, as DEVICES says."""
        return self.node("dev/nvidia-uvm", 511, 0)

    def cuda(self, *minors: int, first: int = 20) -> dict[int, Fd]:
        """Descriptors of a CUDA process on these GPUs."""
        targets = [self.ctl(), self.uvm(), *[self.gpu(minor) for minor in minors for _ in range(3)]]
        return {first + index: Fd(target) for index, target in enumerate(targets)}

    def remove(self, pid: int) -> None:
        """Remove a process: it has ended."""
        _remove_tree(self.root / str(pid))

    def replace(self, process: Process) -> None:
        """Write a process again in another condition."""
        self.remove(process.pid)
        self.add(process)

    def add(self, process: Process) -> None:
        """Write a process."""
        home = self.root / str(process.pid)
        home.mkdir()
        leader = Task(
            process.pid,
            process.state,
            process.wchan,
            process.utime,
            process.stime,
            process.flags,
            process.sig_pending,
            process.comm,
        )
        self._write_task(home, process, leader)
        (home / "cmdline").write_bytes(b"" if process.zombie else os.fsencode(process.exe))
        (home / "mountinfo").write_text(process.mountinfo)
        (home / "mounts").write_text("rootfs / tmpfs rw,relatime 0 0\n")
        for name in ("fd", "fdinfo", "map_files", "ns"):
            (home / name).mkdir()
        if process.zombie:
            (home / "maps").write_text("")
        else:
            _write_memory(home, process)
            _write_fds(home, process)
            for name, number in (("mnt", 4026531841), ("cgroup", 4026531835)):
                (home / "ns" / name).symlink_to(f"{name}:[{number}]")
            (home / "root").symlink_to(process.root or "/")
            (home / "cwd").symlink_to("/")
        (home / "ns" / "pid").symlink_to(f"pid:[{process.pid_namespace}]")
        for task in (leader, *process.tasks):
            folder = home / "task" / str(task.tid)
            folder.mkdir(parents=True)
            self._write_task(folder, process, task)
            (folder / "fd").mkdir()
            # Threads share one table. A leader that ended has left it, and theirs are the only copies; of a
            # process without other threads nobody reads them here, and scale is bought by leaving them out.
            if process.tasks and not (process.zombie and task is leader):
                _write_fds(folder, process, fdinfo=False)
                (folder / "maps").write_bytes(_maps(process))

    @staticmethod
    def _write_task(folder: Path, process: Process, task: Task) -> None:
        comm = process.comm if task.comm is None else task.comm
        (folder / "comm").write_bytes(comm[:15] + b"\n")
        (folder / "stat").write_bytes(_stat(process, task, comm[:15]))
        (folder / "status").write_bytes(_status(process, task, comm[:15]))
        (folder / "cgroup").write_text(process.cgroup)
        (folder / "wchan").write_text("0" if task.state in "RZ" else task.wchan)


def _write_fds(home: Path, process: Process, *, fdinfo: bool = True) -> None:
    folder = os.fsencode(home / "fd")  # bytes joined by hand: pathlib would be most of the time at scale
    for number, fd in process.fds.items():
        os.symlink(os.fsencode(fd.target), b"%s/%d" % (folder, number))
        if fdinfo and process.fdinfo:
            (home / "fdinfo" / str(number)).write_text(
                f"pos:\t{fd.pos}\nflags:\t{fd.flags:08o}\nmnt_id:\t26\nino:\t{400 + number}\n"
            )


def _span(one: Map) -> str:
    return f"{one.start:x}-{one.start + one.size:x}"


def _maps(process: Process) -> bytes:
    if process.flags & PF_KTHREAD:
        return b""
    lines = [b"55d0c0000000-55d0c0001000 r--p 00000000 08:01 131".ljust(73) + os.fsencode(process.exe)]
    for one in process.maps:
        text = os.fsencode(one.node if one.text is None else one.text)
        head = f"{_span(one)} {one.permissions} 00000000 {one.device} 812".ljust(73)
        # The kernel escapes a newline in maps and nothing else.
        lines.append(head.encode() + text.replace(b"\n", b"\\012"))
    return b"\n".join(lines) + b"\n"


def _write_memory(home: Path, process: Process) -> None:
    (home / "maps").write_bytes(_maps(process))
    for one in process.maps:
        os.symlink(os.fsencode(one.node), os.fsencode(home / "map_files" / _span(one)))
    if not process.flags & PF_KTHREAD:
        os.symlink(os.fsencode(process.exe), os.fsencode(home / "exe"))


def _escaped(comm: bytes) -> bytes:
    """Comm as stat and status print it: newline and backslash are escaped, the file comm is raw."""
    return comm.replace(b"\\", b"\\\\").replace(b"\n", b"\\n")


def _stat(process: Process, task: Task, comm: bytes) -> bytes:
    """The 52 fields of stat; those that nothing reads are plain constants."""
    before = [task.state, process.ppid, process.pid, process.pid, 0, -1, task.flags, 1200, 0, 3, 0]
    times = [task.utime, task.stime, 0, 0, 20, 0, len(process.tasks) + 1, 0, process.start]
    memory = [0, 0] if process.zombie else [2_147_483_648, 120_000]
    rest = [18446744073709551615, *[0] * 5, task.sig_pending, 0, 4096, 0, 0, 0, 0, 17, 3, 0, 0, 0, 0, 0]
    tail = [0] * (50 - len(before) - len(times) - len(memory) - len(rest))
    fields = " ".join(str(value) for value in [*before, *times, *memory, *rest, *tail])
    return b"%d (%s) %s\n" % (task.tid, _escaped(comm), fields.encode())


def _status(process: Process, task: Task, comm: bytes) -> bytes:
    inner = task.tid if process.inner_pid is None else process.inner_pid
    spaces = str(task.tid) if process.inner_pid is None else f"{task.tid}\t{inner}"
    values: dict[str, object] = {
        "Umask": "0022",
        "State": f"{task.state} ({STATES[task.state]})",
        "Tgid": process.pid,
        "Ngid": 0,
        "Pid": task.tid,
        "PPid": process.ppid,
        "TracerPid": process.tracer,
        "Uid": "\t".join([str(process.uid)] * 4),
        "Gid": "\t".join([str(process.uid)] * 4),
        "FDSize": 0 if process.zombie else 64,
        "Groups": "",
        "NStgid": spaces,
        "NSpid": spaces,
        "NSpgid": spaces,
        "NSsid": spaces,
        "Kthread": int(bool(task.flags & PF_KTHREAD)),
    }
    if not process.zombie and not task.flags & PF_KTHREAD:
        values |= {"VmPeak": " 2097152 kB", "VmSize": " 2097152 kB", "VmRSS": "  480000 kB"}
        values |= {"CoreDumping": int(process.core_dumping), "THP_enabled": 1}
    values |= {
        "Threads": len(process.tasks) + 1,
        "SigQ": "0/127648",
        "SigPnd": f"{task.sig_pending:016x}",
        "ShdPnd": f"{process.shared_pending:016x}",
        "SigBlk": f"{0:016x}",
        "SigIgn": f"{0x1000:016x}",
        "SigCgt": f"{0x2:016x}",
        "CapEff": f"{0:016x}",
        "NoNewPrivs": 0,
        "Seccomp": 0,
        "voluntary_ctxt_switches": 150,
        "nonvoluntary_ctxt_switches": 3,
    }
    body = "".join(f"{name}:\t{value}\n" for name, value in values.items())
    return b"Name:\t" + _escaped(comm) + b"\n" + body.encode()


def _system_stat(btime: int) -> str:
    return (
        "cpu  1000 0 500 900000 20 0 5 0 0 0\ncpu0 1000 0 500 900000 20 0 5 0 0 0\n"
        f"intr 100 0\nctxt 20000\nbtime {btime}\nprocesses 5000\nprocs_running 1\nprocs_blocked 0\n"
    )


def _remove_tree(path: Path) -> None:
    """Remove a tree without following its links, which may carry any bytes."""
    for entry in os.scandir(os.fsencode(path)):
        if entry.is_dir(follow_symlinks=False):
            _remove_tree(Path(os.fsdecode(entry.path)))
        else:
            os.unlink(entry.path)
    path.rmdir()


def container_cgroup(
    path: str, version: int = 2, controllers: Iterable[str] = ("memory", "cpu", "pids")
) -> str:
    """The text of /proc/PID/cgroup for a group path such as cgroups.container_path gives."""
    if version == 2:
        return f"0::/{path}\n"
    lines = [f"{number}:{name}:/{path}\n" for number, name in enumerate(controllers, start=2)]
    return "".join(reversed(lines)) + "0::/\n"
