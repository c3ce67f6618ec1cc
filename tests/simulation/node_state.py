"""A GPU node as it really is: cards, processes, pods and the kubelet's books, and the clock that drives them.

Nothing here knows how anybody judges it: only the vocabulary of `exporter.model` and of device ids is used,
for what sources will show. Stories change this state, sources look at it, and the truth is read off it.
"""

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from exporter.model import ContainerKind, DeviceKey, Task

MIB = 2**20
GIB = 2**30
EPOCH = 1_760_000_000.0
BOOT = EPOCH - 100_000.0
TICKS = 100
LAST_SEEN = 60.0  # seconds for which what ended lately may still show somewhere


@dataclass(eq=False)
class Slice:
    """A GPU instance, cut into compute instances."""

    gi: int
    keys: tuple[DeviceKey, ...]  # its MIG devices
    total: int
    base: int = 20 * MIB


@dataclass(eq=False)
class Leak:
    """Memory that no row accounts for. `kind`: none (nobody has it), inherited (a fork does), managed (its
    owner's row is too small).
    """

    device: DeviceKey
    size: int
    kind: str
    since: float
    holders: tuple["Proc", ...] = ()


@dataclass(eq=False)
class Record:
    """A row that the driver keeps for a process that is gone."""

    device: DeviceKey
    pid: int
    process: int
    size: int | None
    since: float


@dataclass(eq=False)
class Card:
    """One GPU. `base` is what the driver itself uses, beyond its reserve."""

    uuid: str
    index: int
    minor: int
    total: int
    base: int
    slices: list[Slice] = field(default_factory=list)
    replicas: int = 0  # 0: exclusive
    mps: bool = False
    no_figures: bool = False  # every row says N/A
    lost: bool = False  # GPU_IS_LOST
    fallen: bool = False  # not counted by NVML any more, yet on the bus
    unhealthy: bool = False  # by the word of the device plugin

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(self.uuid)

    @property
    def devices(self) -> tuple[DeviceKey, ...]:
        """What can be given of it."""
        return tuple(key for cut in self.slices for key in cut.keys) if self.slices else (self.key,)

    @property
    def dark(self) -> bool:
        return self.lost or self.fallen


@dataclass(eq=False)
class Run:
    """One life of a container."""

    id: str
    name: str
    kind: ContainerKind
    started: float
    privileged: bool = False
    sees: tuple[DeviceKey, ...] = ()  # whose nodes are in its /dev
    ended: float | None = None
    populated: bool = False  # it has had a process


@dataclass(frozen=True)
class Given:
    """A device that the kubelet gave to a container."""

    container: str
    device: DeviceKey
    replica: str = ""


@dataclass(eq=False)
class Pod:
    """A pod. `listed` is what the kubelet's List shows of it, `api` whether the API server has it."""

    uid: str
    cgroup_uid: str
    namespace: str
    name: str
    owner: str  # deployment, statefulset, job, static, infra
    created: float
    given: tuple[Given, ...] = ()
    held: tuple[DeviceKey, ...] = ()  # all that it was ever given
    runs: list[Run] = field(default_factory=list)
    phase: str = "Pending"
    deletion: float | None = None
    grace: float = 30.0
    api: bool = True
    listed: bool = True
    gone_at: float | None = None  # from API and List both
    ended_at: float | None = None
    deaf: bool = False  # ignores SIGTERM
    privileged: bool = False
    busy: bool = False  # a story has it
    wanders: DeviceKey | None = None  # the device that it uses in place of its own
    sticks: bool = False  # the kubelet goes on listing it when it has ended
    blind: bool = False  # its containers are started without device nodes

    @property
    def run(self) -> Run | None:
        """Its main container, running."""
        return next((r for r in reversed(self.runs) if r.name == "main" and r.ended is None), None)

    @property
    def active(self) -> bool:
        return self.phase in ("Pending", "Running") and (self.api or self.listed)


@dataclass(eq=False)
class Proc:
    """A process. `memory` has a figure for each device on which the driver lists it, None for N/A."""

    pid: int
    start: float
    parent: int
    comm: str
    exe: str = "/usr/bin/python3"
    pod: Pod | None = None
    run: Run | None = None
    container_id: str = ""
    unit: str = ""
    infra: bool = False
    state: str = "S"
    threads: int = 4
    exiting: bool = False
    killed: bool = False  # SIGKILL pending
    dumping: bool = False
    blocked: tuple[Task, ...] = ()
    memory: dict[DeviceKey, int | None] = field(default_factory=dict)
    files: tuple[DeviceKey, ...] = ()
    was_on: tuple[DeviceKey, ...] = ()  # devices before its files were closed
    uvm: int = 0  # descriptors
    maps: bool = False
    number: int = 0  # what the driver calls it, if not by its pid
    group_gone: bool = False
    shown: bool = False  # a scan has seen it with the device open
    troubled: float | None = None  # since when it can neither go on nor end
    trouble: str = ""

    @property
    def devices(self) -> tuple[DeviceKey, ...]:
        return tuple(dict.fromkeys((*self.memory, *self.files, *self.was_on)))

    @property
    def client(self) -> bool:
        return bool(self.memory) or self.uvm > 0 or self.maps


class Node:
    """The state, the clock and the dice."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = EPOCH
        self.cards: list[Card] = []
        self.procs: dict[int, Proc] = {}
        self.pods: list[Pod] = []
        self.leaks: list[Leak] = []
        self.records: list[Record] = []
        self.log: list[tuple[float, str]] = []
        self.innocent: dict[str, float] = {}  # what goes on without being wrong → since
        self.driver = "570.148.08"
        self.boot_count = 1
        self.plugin_ready = True
        self.thread_rows = False  # the driver lists thread ids
        self.advertised: int | None = None  # what the node object says, if it is wrong
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._serial = 0
        self._pid = 2000
        self._reuse: list[int] = []

    # --- time

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something later."""
        self._serial += 1
        heapq.heappush(self._queue, (self.now + seconds, self._serial, action))

    def run_until(self, when: float) -> None:
        """Let everything happen that is due."""
        while self._queue and self._queue[0][0] <= when:
            at, _, action = heapq.heappop(self._queue)
            self.now = at
            action()
        self.now = when

    def say(self, text: str) -> None:
        """Write the node's diary."""
        self.log.append((self.now, text))

    def serial(self) -> int:
        self._serial += 1
        return self._serial

    # --- look-ups

    def card(self, key: DeviceKey) -> Card:
        return next(card for card in self.cards if card.uuid == key.uuid)

    def has(self, key: DeviceKey) -> bool:
        """Whether that device is there as NVML would name it, MIG devices included."""
        card = next((card for card in self.cards if card.uuid == key.uuid), None)
        return card is not None and (key in card.devices or key == card.key)

    def given(self, key: DeviceKey) -> list[Pod]:
        """Active pods that the kubelet gave a device to."""
        return [p for p in self.pods if p.active and any(g.device == key for g in p.given)]

    def of_pod(self, pod: Pod) -> list[Proc]:
        return [proc for proc in self.procs.values() if proc.pod is pod]

    def devices(self) -> Iterator[DeviceKey]:
        for card in self.cards:
            yield from card.devices

    # --- processes

    def spawn(self, comm: str, parent: int = 1, **more: object) -> Proc:
        """Start a process."""
        self._pid += self.rng.randint(1, 40)
        pid = self._pid
        proc = Proc(pid, self.now, parent, comm)
        for name, given in more.items():
            setattr(proc, name, given)
        if self.thread_rows and self.rng.random() < 0.7:
            proc.number = pid + self.rng.randint(1, 3)
            self._pid += 4
        self.procs[pid] = proc
        return proc

    def spawn_as(self, pid: int, comm: str, **more: object) -> Proc:
        """Start a process that gets a number used before."""
        proc = Proc(pid, self.now, 1, comm)
        for name, given in more.items():
            setattr(proc, name, given)
        self.procs[pid] = proc
        return proc

    def bury(self, proc: Proc) -> None:
        """A process is gone, with all that it had. Its children belong to init."""
        if self.procs.get(proc.pid) is not proc:
            return
        del self.procs[proc.pid]
        for child in self.procs.values():
            if child.parent == proc.pid:
                child.parent = 1
        for leak in [one for one in self.leaks if proc in one.holders]:
            leak.holders = tuple(one for one in leak.holders if one is not proc)
            if not leak.holders:
                self.leaks.remove(leak)

    def kill(self, proc: Proc) -> bool:
        """Send SIGKILL; whether it took it. One that is stuck in the kernel does not."""
        if self.procs.get(proc.pid) is not proc:
            return True
        if proc.trouble in ("driver", "other", "kill_pending"):
            if not proc.killed:
                proc.killed = True
                proc.trouble = "kill_pending"
                proc.troubled = self.now
            return False
        if proc.trouble in ("exiting", "zombie_leader"):
            return False
        self.bury(proc)
        return True
