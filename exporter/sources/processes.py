"""Who has an NVIDIA device file open or mapped, and what state those processes are in. Runs in the `host`
child.

In: numbers that NVML lists. Out: a ProcessTable with every holder, every process behind one of those numbers,
and their ancestors; and each container of a pod that is alive. It never opens anything but files of /proc,
and never trusts a name: link text decides only what is worth asking about, the device number of the open file
decides what it is.

How much is asked (DESIGN: the agent never costs what it measures):

- A candidate (an NVML row, a descriptor, a client of the last scan) is looked at thoroughly in each scan: the
  kernel is asked what each descriptor and mapping is. So is a sibling in a container with a candidate in one
  of SIBLINGS scans, and any other process in one of SWEEP: a device file under any other name is found within
  so many scans. In between only those descriptors are proven whose text is below /dev or speaks of nvidia.
- Where the numbers of the open descriptors are those of the last scan (for a process that held nothing, where
  Linux tells how many there are, since 6.2: where they are as many), only the device files found then are
  proven again, and where its memory has the size of the last scan, its mappings stand. In one of RECALL scans
  everything is looked at whatever stayed the same: a device file that took the number of a descriptor closed
  since the last scan is found within so many.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from exporter import cgroups
from exporter.model import (
    Cgroup,
    DeviceNode,
    Hold,
    LiveContainer,
    Process,
    ProcessId,
    ProcessTable,
    Reason,
    SourceError,
    Task,
)
from exporter.sources.device_files import Majors, capabilities, character, file_number, suspects
from exporter.sources.procfs import GONE, ProcessDirectory, Stat, path_only, sleeps_in
from exporter.text import COMM_LIMIT, printable

SWEEP = 20  # scans in which every process is looked at thoroughly once
SIBLINGS = 4  # scans in which every process beside a candidate is
RECALL = 4  # scans in which every process is looked at once, even if its open numbers stay the same
TASK_SECONDS = 60.0  # how often the threads of a client that looks well are read
DESCRIPTOR_LIMIT = 65_536  # of one process, in one scan
TASK_LIMIT = 8_192  # of one process
ANCESTOR_LIMIT = 32
HOST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, include/linux/proc_ns.h
INIT = 1
# A line of maps without any of these maps no device file: permissions of shared mappings, and names.
_MAPS_DEVICE = (b"-s ", b"xs ", b"nvidia", b" /dev/")


@dataclass(slots=True)
class _Sight:
    """What the walk saw of one process."""

    cgroup: Cgroup
    descriptors: dict[DeviceNode, int] = field(default_factory=dict)
    mappings: dict[DeviceNode, int] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    devices: list[str] = field(default_factory=list)  # numbers of the descriptors counted above
    looked: bool = False  # its descriptors could be listed, and it has some
    truncated: bool = False

    @property
    def holds(self) -> tuple[Hold, ...]:
        nodes = sorted(self.descriptors.keys() | self.mappings.keys())
        return tuple(Hold(node, self.descriptors.get(node, 0), self.mappings.get(node, 0)) for node in nodes)


@dataclass(frozen=True, slots=True)
class _Recalled:
    """What the last look at a process saw, if it saw all that it looked for."""

    inode: int  # of its directory in /proc: another process with its number has another one
    thorough: bool
    numbers: str = ""  # all that it had open: where they stay the same, so nearly always do the files
    devices: tuple[str, ...] = ()  # the numbers among them that were the driver's
    size: bytes = b""  # of its memory, as statm has it; empty where the mappings were not looked at
    mappings: tuple[tuple[DeviceNode, int], ...] = ()
    kernel_thread: bool = False


class Scanner:
    """Remembers from scan to scan only which processes are worth a thorough look."""

    def __init__(self, procfs: Path) -> None:
        self._procfs = procfs
        self._root = str(procfs)
        self._scans = 0
        self._candidates: set[int] = set()
        self._containers: set[str] = set()
        self._blocked: set[int] = set()
        self._recalled: dict[int, _Recalled] = {}
        self._noted: dict[int, _Recalled] = {}  # in this scan, for the next
        self._tasks_read: dict[int, float] = {}
        self._inodes: dict[tuple[tuple[int, int], int], DeviceNode] = {}
        # What cgroup texts mean, of this scan and the one before: a container's processes have one text.
        self._places: dict[bytes, Cgroup] = {}
        self._known_places: dict[bytes, Cgroup] = {}
        self._devices = ""
        self._majors = Majors("")
        self._counted = False  # whether the size of /proc/PID/fd is how many descriptors are open

    def scan(self, numbers: Collection[int], watched: Collection[int] = ()) -> ProcessTable:
        """Look at every process once, and describe `watched` pids even if they hold nothing any more.

        Raises SourceError where it cannot look, or looking would show another world.
        """
        pids = self._visible_pids()
        self._scans += 1
        devices = self._text("devices")
        if devices != self._devices:  # what was none of NVIDIA's may be now
            self._devices, self._majors = devices, Majors(devices)
            self._noted = {}
        self._recalled, self._noted = self._noted, {}
        self._inodes.clear()
        self._counted = _is_counted(f"{self._root}/self/fd")
        named, missing = self._resolve(numbers)
        self._known_places, self._places = self._places, {}
        sights = {pid: sight for pid in pids if (sight := self._walk(pid, pid in named)) is not None}
        self._refuse_if_blindfolded(sights)
        holders = {pid for pid, sight in sights.items() if sight.descriptors or sight.mappings}
        processes = tuple(self._describe(holders | set(watched), named, sights))
        described = {process.id.pid for process in processes}
        missing.update(*(folded for pid, folded in named.items() if pid not in described))  # died meanwhile
        clients = holders | named.keys()
        self._candidates = clients
        self._containers = {sights[p].cgroup.container_id for p in clients if p in sights} - {""}
        self._blocked &= clients
        self._tasks_read = {p: at for p, at in self._tasks_read.items() if p in clients}
        return ProcessTable(
            processes=processes,
            containers=tuple(self._live_containers(sights)),
            missing=tuple(sorted(missing)),
            unreadable=tuple(sorted(p for p, s in sights.items() if s.unread and p != INIT)),
            scanned=len(sights),
            truncated=sum(sight.truncated for sight in sights.values()),
            capabilities=capabilities(self._procfs),
            boot_id=printable(self._text("sys/kernel/random/boot_id").strip()),
            boot_time=self._boot_time(),
            ticks_per_second=os.sysconf("SC_CLK_TCK"),
            driver_loaded=bool(self._majors),
            agent=os.getppid(),
        )

    # --- can we see at all?

    def _visible_pids(self) -> list[int]:
        try:
            pids = sorted(int(name) for name in os.listdir(self._root) if name.isdigit())
            namespace = os.readlink(f"{self._root}/self/ns/pid")
        except PermissionError as error:
            raise SourceError(Reason.DENIED, f"{self._root}: {error.strerror}") from error
        except OSError as error:
            raise SourceError(Reason.UNAVAILABLE, f"{self._root} is no procfs: {error.strerror}") from error
        if namespace != HOST_PID_NAMESPACE:
            raise SourceError(Reason.BLIND, "not in the host's pid namespace: set hostPID: true")
        if INIT not in pids:
            raise SourceError(Reason.BLIND, f"{self._root} hides processes of others (hidepid)")
        return pids

    def _refuse_if_blindfolded(self, sights: Mapping[int, _Sight]) -> None:
        """Seeing the descriptors of nobody but ourselves is no scan: it would find no holder on any node."""
        if not any(sight.unread for pid, sight in sights.items() if pid != INIT):
            return
        agent = os.getppid()
        for pid in (pid for pid, sight in sights.items() if sight.looked and pid not in (agent, os.getpid())):
            try:
                with ProcessDirectory(f"{self._root}/{pid}") as directory:
                    if directory.stat().parent != agent:
                        return
            except GONE:
                continue
        raise SourceError(
            Reason.DENIED, "no process may be looked at: run as root with SYS_PTRACE and DAC_READ_SEARCH"
        )

    def _text(self, name: str) -> str:
        try:
            return (self._procfs / name).read_text("utf-8", "replace")
        except OSError as error:
            raise SourceError(Reason.UNAVAILABLE, f"{self._root}/{name}: {error.strerror}") from error

    def _boot_time(self) -> float:
        lines = (line.split() for line in self._text("stat").splitlines())
        return next((float(fields[1]) for fields in lines if fields[:1] == ["btime"]), 0.0)

    # --- NVML's numbers

    def _resolve(self, numbers: Collection[int]) -> tuple[dict[int, list[int]], set[int]]:
        """Fold numbers, which may be thread ids, to thread groups; and those that /proc does not have."""
        named: dict[int, list[int]] = {}
        missing = set()
        for number in numbers:
            try:
                with ProcessDirectory(f"{self._root}/{number}") as directory:
                    named.setdefault(directory.status().tgid, []).append(number)
            except GONE:
                missing.add(number)
            except (OSError, KeyError, ValueError) as error:
                raise SourceError(Reason.DENIED, f"{self._root}/{number}/status: {error}") from error
        return named, missing

    # --- the walk

    def _walk(self, pid: int, named: bool) -> _Sight | None:
        try:
            with ProcessDirectory(f"{self._root}/{pid}") as directory:
                sight = _Sight(self._place(directory))
                if not self._majors:
                    return sight
                beside = sight.cgroup.container_id in self._containers
                turn = pid + self._scans
                thorough = named or pid in self._candidates or turn % (SIBLINGS if beside else SWEEP) == 0
                self._look(pid, directory, sight, thorough)
                return sight
        except GONE:
            return None
        except PermissionError:
            return _Sight(Cgroup(), unread={"cgroup"})

    def _place(self, directory: ProcessDirectory) -> Cgroup:
        text = directory.read("cgroup")
        place = self._places.get(text) or self._known_places.get(text)
        if place is None:
            place = cgroups.parse(text.decode("utf-8", "replace"))
        self._places[text] = place
        return place

    def _look(self, pid: int, directory: ProcessDirectory, sight: _Sight, thorough: bool) -> None:
        inode = directory.inode()
        before = self._recall(pid, inode, thorough)
        if before is not None and before.kernel_thread:
            self._noted[pid] = before
            return
        numbers, size, kernel_thread = "", b"", False
        try:
            numbers = self._descriptors(directory, "fd", sight, thorough, before)
            if not numbers:
                kernel_thread = self._look_at_threads(directory, sight, thorough)
            sight.looked = bool(numbers)
        except PermissionError:
            if directory.stat().kernel_thread:
                return  # holds nothing, whoever may look
            sight.unread.add("fd")
        if thorough or sight.descriptors:
            try:
                size = self._mappings(directory, sight, before)
            except PermissionError:
                sight.unread.add("maps")
        if (numbers or kernel_thread) and not (sight.unread or sight.truncated):
            mappings = tuple(sight.mappings.items())
            self._noted[pid] = _Recalled(
                inode, thorough, numbers, tuple(sight.devices), size, mappings, kernel_thread
            )

    def _recall(self, pid: int, inode: int, thorough: bool) -> _Recalled | None:
        """What the last look saw, unless it is to be looked at anew."""
        before = self._recalled.get(pid)
        if before is None or before.inode != inode or (pid + self._scans) % RECALL == 0:
            return None
        return None if thorough and not before.thorough else before

    def _look_at_threads(self, directory: ProcessDirectory, sight: _Sight, thorough: bool) -> bool:
        """A leader that has exited shows no descriptors while its threads still share them.

        Returns whether it is a kernel thread, which has none.
        """
        stat = directory.stat()
        if stat.state != "Z" or stat.threads < 2:  # a zombie counts itself
            return stat.kernel_thread
        for tid in sorted(directory.names("task"), key=int)[:TASK_LIMIT]:
            try:
                if self._descriptors(directory, f"task/{tid}/fd", sight, thorough):
                    break  # threads share one descriptor table
            except GONE:
                continue
        return False

    def _descriptors(
        self,
        directory: ProcessDirectory,
        where: str,
        sight: _Sight,
        thorough: bool,
        before: _Recalled | None = None,
    ) -> str:
        """Count the device files among a table's descriptors; returns the numbers of all that are open."""
        if before is not None and self._counted and not before.devices:
            count = os.stat(where, dir_fd=directory.fd).st_size
            if count and count == before.numbers.count(" ") + 1:
                return before.numbers
        table = directory.open(where)
        try:
            names = os.listdir(table)
            numbers = " ".join(names)
            sight.truncated |= len(names) > DESCRIPTOR_LIMIT
            if before is not None and numbers == before.numbers:
                self._prove(directory, table, where, before.devices, sight)
                if tuple(sight.devices) == before.devices:
                    return numbers
                sight.descriptors.clear()  # other files have got their numbers: all are looked at
                sight.devices.clear()
            chosen = names[:DESCRIPTOR_LIMIT]
            if not thorough:
                chosen = suspects(table, chosen, lambda: sight.unread.add("fd"))
            # A thorough look asks the kernel of each: that costs no more than its text, and proves it.
            self._prove(directory, table, where, chosen, sight)
            return numbers
        finally:
            os.close(table)

    def _prove(
        self, directory: ProcessDirectory, table: int, where: str, names: Iterable[str], sight: _Sight
    ) -> None:
        """Count those of the descriptors that are open device files of the driver."""
        for name in names:
            try:
                number = character(table, name)
                if number is None or (node := self._majors.node(number.character)) is None:
                    continue
                if not path_only(directory, table, where, name):
                    sight.descriptors[node] = sight.descriptors.get(node, 0) + 1
                    sight.devices.append(name)
                    self._inodes[number.filesystem, number.inode] = node
            except GONE:
                continue  # closed while we looked
            except OSError:
                sight.unread.add("fd")  # one descriptor that cannot be asked about hides no other

    def _mappings(self, directory: ProcessDirectory, sight: _Sight, before: _Recalled | None) -> bytes:
        """Count mappings of device files; returns the size of all memory.

        A driver's memory is mapped shared, or at least says its name.
        """
        size = _size(directory)
        if before is not None and before.size and before.size == size:
            sight.mappings.update(before.mappings)
            return size
        links: int | None = None
        try:
            for line in _lines_with(directory.read_all("maps"), _MAPS_DEVICE):
                fields = line.split(None, 5)
                if len(fields) < 6 or fields[5][:1] != b"/":  # no file behind it
                    continue
                if (
                    fields[1][3:4] != b"s"
                    and b"nvidia" not in fields[5]
                    and not fields[5].startswith(b"/dev/")
                ):
                    continue
                if links is None:
                    links = directory.open("map_files")
                node = self._mapped(links, fields, sight)
                if node is not None:
                    sight.mappings[node] = sight.mappings.get(node, 0) + 1
        finally:
            if links is not None:
                os.close(links)
        return size

    def _mapped(self, links: int, fields: list[bytes], sight: _Sight) -> DeviceNode | None:
        """What is mapped: asked of map_files, which wants CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE (proc(5));
        without them by the inode, if a descriptor of the same file was proven in this scan; else it is not
        known.
        """
        try:
            return self._majors.node(file_number(links, _range(fields[0]), follow=True).character)
        except GONE:
            return None
        except PermissionError:
            major, _, minor = fields[3].partition(b":")
            known = self._inodes.get(((int(major, 16), int(minor, 16)), int(fields[4])))
            if known is None and _may_be_device(fields):
                sight.unread.add("maps")
            return known

    # --- what is told of a process

    def _describe(
        self, wanted: set[int], named: Mapping[int, list[int]], sights: Mapping[int, _Sight]
    ) -> Iterator[Process]:
        told: set[int] = set()
        clients = wanted | named.keys()
        for client in sorted(clients):
            pid, depth = client, 0
            while pid > 0 and pid not in told and depth < ANCESTOR_LIMIT:
                told.add(pid)
                process = self._process(pid, sights.get(pid), sorted(named.get(pid, ())), pid in clients)
                if process is None:
                    break
                yield process
                pid, depth = process.parent, depth + 1

    def _process(self, pid: int, sight: _Sight | None, numbers: list[int], client: bool) -> Process | None:
        try:
            with ProcessDirectory(f"{self._root}/{pid}") as directory:
                stat, status = directory.stat(), directory.status()
                if sight is None:  # a process that started after the walk
                    sight = _Sight(self._place(directory))
                return Process(
                    id=ProcessId(pid, stat.start),
                    parent=stat.parent,
                    state=stat.state,
                    comm=printable(stat.comm, COMM_LIMIT),
                    exe=_link(directory, "exe"),
                    cgroup=sight.cgroup,
                    threads=stat.threads,
                    exiting=stat.exiting,
                    kill_pending=status.kill_pending,
                    dumping=status.dumping,
                    cpu_ticks=stat.cpu_ticks,
                    wchan=sleeps_in(directory),
                    blocked=tuple(self._blocked_tasks(directory, pid, stat)) if client else (),
                    holds=sight.holds,
                    numbers=tuple(numbers),
                    unread=tuple(sorted(sight.unread)),
                )
        except GONE:
            return None
        except PermissionError:
            return None  # the walk has counted it as unreadable

    def _blocked_tasks(self, directory: ProcessDirectory, pid: int, stat: Stat) -> Iterator[Task]:
        """Threads in state D: looked for each time once one was seen, for the rest once in TASK_SECONDS."""
        due = time.monotonic() - self._tasks_read.get(pid, float("-inf")) >= TASK_SECONDS
        if not (due or stat.state in "DZ" or pid in self._blocked):
            return
        self._tasks_read[pid] = time.monotonic()
        self._blocked.discard(pid)
        for tid in sorted(directory.names("task"), key=int)[:TASK_LIMIT]:
            try:
                with ProcessDirectory(f"{self._root}/{pid}/task/{tid}") as task:
                    seen = task.stat()
                    if seen.state == "D":
                        self._blocked.add(pid)
                        yield Task(int(tid), seen.cpu_ticks, sleeps_in(task))
            except GONE:
                continue

    def _live_containers(self, sights: Mapping[int, _Sight]) -> Iterator[LiveContainer]:
        seen: set[tuple[str, str]] = set()
        for pid in sorted(sights):
            place = sights[pid].cgroup
            key = (place.pod_uid, place.container_id)
            if not place.container_id or not place.pod_uid or key in seen:
                continue
            try:
                with ProcessDirectory(f"{self._root}/{pid}") as directory:
                    stat = directory.stat()
            except GONE:
                continue
            if stat.state != "Z" or stat.threads > 1:  # a leader that exited while its threads live
                seen.add(key)
                yield LiveContainer(*key, ProcessId(pid, stat.start))


def _is_counted(table: str) -> bool:
    """Whether the kernel tells how many descriptors are open (proc_fd_getattr, fs/proc/fd.c); ours tell."""
    try:
        return os.stat(table).st_size == len(os.listdir(table)) - 1  # less the one that lists them
    except OSError:
        return False


def _size(directory: ProcessDirectory) -> bytes:
    """The size of a process' memory, in pages; empty where /proc does not tell."""
    try:
        return directory.read("statm", 128).partition(b" ")[0]
    except GONE:
        return b""


def _lines_with(text: bytes, words: Sequence[bytes]) -> list[bytes]:
    """The lines that have one of the words in them, in order. There may be thousands that have none."""
    starts = set()
    for word in words:
        at = text.find(word)
        while at >= 0:
            starts.add(text.rfind(b"\n", 0, at) + 1)
            at = text.find(b"\n", at)  # the only separator that the kernel escapes
            at = text.find(word, at) if at >= 0 else at
    return [text[start:].partition(b"\n")[0] for start in sorted(starts)]


def _may_be_device(fields: list[bytes]) -> bool:
    """Whether a mapping that nothing proves may be of a device file, by what maps says of it.

    Every CUDA process maps NVIDIA's libraries, which are mapped privately, and many map shared memory: with
    those two the scan would never be complete.
    """
    path = fields[5]
    if path.startswith(b"/dev/"):
        return not path.startswith(b"/dev/shm/")
    return b"nvidia" in path and fields[1][3:4] == b"s"


def _range(text: bytes) -> str:
    """The name in map_files of an address range in maps: the same without leading zeros."""
    low, _, high = text.partition(b"-")
    return f"{int(low, 16):x}-{int(high, 16):x}"


def _link(directory: ProcessDirectory, name: str) -> str:
    try:
        return printable(os.fsencode(directory.link(name)))
    except OSError:  # gone, not ours to read, or longer than a page
        return ""
