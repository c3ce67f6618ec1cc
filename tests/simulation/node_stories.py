"""Things that happen to processes and pods: a table of stories, each of which begins if it can find a victim.

A story changes the state, arranges its own end, and says in the diary what it did. Whether it is an incident
follows from the state alone (`node_truth`); those marked innocent must never be told as one.
"""

from collections.abc import Callable
from functools import partial

from exporter.model import Task
from tests.simulation.node_life import Life
from tests.simulation.node_state import GIB, MIB, Leak, Node, Pod, Proc, Record, Run
from tests.simulation.node_strangers import container_cli, onlooker, outsider, twice, wrong_card

Story = Callable[[Node, Life], bool]
DRIVER_WAITS = ("nvidia_close_callback", "uvm_va_space_destroy", "os_acquire_mutex", "rm_shutdown_adapter")
OTHER_WAITS = ("nfs_wait_bit_killable", "fuse_wait_answer", "folio_wait_bit")


def trainers(node: Node) -> list[Proc]:
    """Healthy processes of ordinary pods that have memory on a device."""
    return [
        proc
        for proc in node.procs.values()
        if proc.pod and proc.memory and not proc.infra and not proc.trouble and proc.state == "S" and proc.run
        and proc.run.ended is None and proc.run.name == "main"
        and not proc.pod.busy and proc.pod.deletion is None
        and node.now - proc.start > 60 and not any(node.card(key).dark for key in proc.memory)
    ]  # fmt: skip


def pick(node: Node) -> Proc | None:
    found = trainers(node)
    return node.rng.choice(found) if found else None


def trouble(proc: Proc, kind: str, now: float) -> None:
    proc.trouble, proc.troubled, proc.dumping = kind, now, False


def free(node: Node, lost: Leak) -> None:
    """The driver lets go of leaked memory."""
    if lost in node.leaks:
        node.leaks.remove(lost)


def crash_if_running(life: Life, pod: Pod, run: Run) -> None:
    if run.ended is None:
        life.crash(pod, run)


# --- stuck --------------------------------------------------------------------------------------------------


def sleep(node: Node, life: Life) -> bool:
    """A thread sleeps in the driver, or in a file system, and does not move. Some get killed meanwhile."""
    proc = pick(node)
    if proc is None:
        return False
    rng = node.rng
    driver = rng.random() < 0.6
    wchan = rng.choice(DRIVER_WAITS if driver else OTHER_WAITS)
    proc.blocked = (Task(proc.pid, 4711, wchan),)
    proc.state = "D"
    trouble(proc, "driver" if driver else "other", node.now)
    node.say(f"pid {proc.pid} of {proc.pod.name if proc.pod else ''} sleeps in {wchan}")
    lasts = rng.uniform(150, 2400)
    if rng.random() < 0.6 and proc.pod:
        pod = proc.pod
        node.after(rng.uniform(20, lasts), lambda: life.delete(pod))
    elif rng.random() < 0.5 and proc.run and proc.pod:
        pod, run = proc.pod, proc.run
        node.after(rng.uniform(20, lasts), lambda: crash_if_running(life, pod, run))

    def wake() -> None:
        if node.procs.get(proc.pid) is not proc:
            return
        node.say(f"pid {proc.pid} wakes")
        proc.blocked, proc.state, proc.trouble, proc.troubled = (), "S", "", None
        if proc.killed or (proc.run and proc.run.ended is not None):
            node.bury(proc)

    node.after(lasts, wake)
    return True


def nap(node: Node, life: Life) -> bool:
    """Innocent: short sleeps in state D that move, for some minutes."""
    proc = pick(node)
    if proc is None:
        return False
    until = node.now + node.rng.uniform(30, 400)

    def turn() -> None:
        if node.procs.get(proc.pid) is not proc or proc.trouble:
            return
        resting = node.now >= until
        proc.state = "S" if resting else "D"
        moved = Task(proc.pid, int(node.now), node.rng.choice(OTHER_WAITS))
        proc.blocked = () if resting else (moved,)
        if not resting:
            node.after(node.rng.uniform(3, 12), turn)

    turn()
    return True


def half_exit(node: Node, life: Life) -> bool:
    """It is ending and its files are closed; the driver keeps its row, or only its memory."""
    proc = pick(node)
    if proc is None or not proc.pod:
        return False
    proc.was_on = tuple(proc.memory)
    proc.files, proc.uvm, proc.maps, proc.exiting, proc.state = (), 0, False, True, "D"
    trouble(proc, "exiting", node.now)
    node.say(f"pid {proc.pid} of {proc.pod.name} is half exited")
    if node.rng.random() < 0.3:
        for key, size in proc.memory.items():
            node.leaks.append(Leak(key, size or GIB, "inherited", node.now, (proc,)))
        proc.memory = {}
    node.after(node.rng.uniform(30, 1500), lambda: node.bury(proc))
    return True


def zombie_leader(node: Node, life: Life) -> bool:
    proc = pick(node)
    if proc is None:
        return False
    proc.state = "Z"
    trouble(proc, "zombie_leader", node.now)
    node.say(f"pid {proc.pid} lost its leader")
    node.after(node.rng.uniform(20, 1200), lambda: node.bury(proc))
    return True


def zombie(node: Node, life: Life) -> bool:
    """A dead process that nobody collects: with its row it is an incident, without it is innocent."""
    proc = pick(node)
    if proc is None:
        return False
    proc.was_on = ()
    proc.state, proc.threads, proc.files, proc.uvm, proc.maps = "Z", 1, (), 0, False
    if node.rng.random() < 0.5:
        proc.memory = {}
        proc.trouble = "zombie"
    else:
        trouble(proc, "zombie", node.now)
    node.say(f"pid {proc.pid} is a zombie{' with a row' if proc.memory else ''}")
    node.after(node.rng.uniform(20, 1200), lambda: node.bury(proc))
    return True


def debugger(node: Node, life: Life) -> bool:
    """Innocent: stopped by a debugger, or writing a core dump."""
    proc = pick(node)
    if proc is None:
        return False
    dump = node.rng.random() < 0.5
    proc.state, proc.dumping = ("D", True) if dump else ("t", False)
    proc.blocked = (Task(proc.pid, 1, "folio_wait_bit"),) if dump else ()

    def go_on() -> None:
        if node.procs.get(proc.pid) is proc and not proc.trouble:
            proc.state, proc.dumping, proc.blocked = "S", False, ()

    node.after(node.rng.uniform(60, 600), go_on)
    return True


# --- left behind --------------------------------------------------------------------------------------------


def phantom(node: Node, life: Life) -> bool:
    """A process is killed and the driver keeps its row; forked workers may hold it. Later the number is used
    again, or the driver lets go.
    """
    proc = pick(node)
    if proc is None:
        return False
    if node.records and node.rng.random() < 0.7:
        return False
    number = proc.number or proc.pid
    records = [Record(key, number, proc.pid, size, node.now) for key, size in proc.memory.items()]
    node.records.extend(records)
    node.say(f"pid {proc.pid} dies and its row stays")
    node.bury(proc)
    lasts = node.rng.uniform(30, 2400)

    def free() -> None:
        for record in records:
            if record in node.records:
                node.records.remove(record)

    def reuse() -> None:
        if proc.pid not in node.procs and records[0] in node.records and not proc.number:
            made = node.spawn_as(proc.pid, "cron", unit="cron.service", exe="/usr/sbin/cron")
            node.say(f"pid {proc.pid} is cron now")
            node.after(node.rng.uniform(60, 900), lambda: node.bury(made))

    node.after(lasts, free)
    if node.rng.random() < 0.3:
        node.after(node.rng.uniform(90, 600), reuse)
    return True


def inherited(node: Node, life: Life) -> bool:
    """A trainer dies in a living container, and a forked worker keeps its memory, with no row."""
    proc = pick(node)
    if proc is None or proc.parent not in node.procs:
        return False
    heirs = [one for one in node.procs.values() if one.parent == proc.pid]
    heirs = heirs or [life.fork(proc)]
    for key, size in proc.memory.items():
        node.leaks.append(Leak(key, size or GIB, "inherited", node.now, tuple(heirs)))
    node.say(f"pid {proc.pid} dies and its workers keep its memory")
    node.bury(proc)
    lasts = node.rng.uniform(30, 2400)
    for heir in heirs:
        node.after(lasts, partial(node.kill, heir))
    return True


def leak(node: Node, life: Life) -> bool:
    """Memory stays in use with nobody there; a small amount is innocent."""
    cards = [card for card in node.cards if not card.dark]
    if not cards:
        return False
    key = node.rng.choice(node.rng.choice(cards).devices)
    room = life.room(key)
    size = node.rng.choice((100 * MIB, 3 * GIB, 8 * GIB))
    if room < size + GIB:
        return False
    lost = Leak(key, size, "none", node.now)
    node.leaks.append(lost)
    node.say(f"{size // MIB} MiB leak on {key.uuid} {key.gi}")
    node.after(node.rng.uniform(100, 2400), lambda: free(node, lost))
    return True


def managed(node: Node, life: Life) -> bool:
    """A living process has more memory than its row says."""
    proc = pick(node)
    if proc is None:
        return False
    key = next(iter(proc.memory))
    if life.room(key) < 6 * GIB:
        return False
    node.leaks.append(Leak(key, 5 * GIB, "managed", node.now, (proc,)))
    node.say(f"pid {proc.pid} has managed memory")
    return True


def survivor(node: Node, life: Life) -> bool:
    """A pod is force-deleted and the runtime loses a process of it; or only its control group is gone."""
    proc = pick(node)
    if proc is None or proc.pod is None:
        return False
    pod = proc.pod
    proc.parent = 1
    pod.busy = True
    deleted = node.rng.random() < 0.3
    proc.group_gone = deleted
    life.delete(pod, node.rng.choice(("force", "graceful")))
    others = [one for one in node.of_pod(pod) if one is not proc]
    node.after(2.0, lambda: [node.kill(one) for one in others])
    node.say(f"pid {proc.pid} survives {pod.name}{' without a group' if deleted else ''}")

    def end() -> None:
        pod.busy = False
        node.kill(proc)

    node.after(node.rng.uniform(60, 1800), end)
    return True


def stale(node: Node, life: Life) -> bool:
    """The main process dies, its container is restarted, and one of the old container lives on."""
    proc = pick(node)
    if proc is None or proc.pod is None or proc.run is None:
        return False
    proc.parent = 1
    life.crash(proc.pod, proc.run, keep=lambda one: one is proc)
    node.after(node.rng.uniform(60, 1500), lambda: node.kill(proc))
    return True


STORIES: tuple[tuple[float, Story], ...] = (
    (3, sleep), (2, nap), (2, half_exit), (1, zombie_leader), (2, zombie), (2, debugger), (2, phantom),
    (2, inherited), (2, leak), (0.5, managed), (2, survivor), (1.5, stale), (3, outsider), (1, container_cli),
    (2, wrong_card), (1.5, onlooker), (0.7, twice),
)  # fmt: skip
