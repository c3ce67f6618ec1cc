"""Stories of those who are on a device that is not theirs: people on the host, runtimes, pods with too much
sight, and a kubelet that gives one device twice.
"""

from dataclasses import replace

from exporter.model import DeviceKey, Task
from tests.simulation.node_life import Life
from tests.simulation.node_state import GIB, MIB, Node, Pod


def free_card(node: Node) -> DeviceKey | None:
    """A device of a healthy whole card."""
    keys = [card.key for card in node.cards if not card.slices and not card.dark]
    return node.rng.choice(keys) if keys else None


def outsider(node: Node, life: Life) -> bool:
    """Somebody runs CUDA on the host, from a login, a service or a container of no pod; short runs are
    innocent.
    """
    key = free_card(node)
    if key is None or life.room(key) < 2 * GIB:
        return False
    rng = node.rng
    unit = rng.choice(("session-7.scope", "user@1000.service", "jupyter.service", ""))
    proc = node.spawn("python", unit=unit, container_id="" if unit else f"{rng.getrandbits(256):064x}")
    life.use(proc, key, rng.choice((MIB, GIB)))
    if rng.random() < 0.4:
        life.fork(proc)
    lasts = rng.choice((rng.uniform(5, 60), rng.uniform(300, 2400)))
    node.say(f"pid {proc.pid} in {unit or 'a container'} uses {key.uuid} for {lasts:.0f} s")

    def end() -> None:
        for one in [one for one in node.procs.values() if one is proc or one.parent == proc.pid]:
            node.kill(one)

    node.after(lasts, end)
    return True


def container_cli(node: Node, life: Life) -> bool:
    """Innocent: the runtime's helpers, one after the other, each seen once in state D with the card open."""
    key = free_card(node)
    if key is None:
        return False

    def one(left: int) -> None:
        proc = node.spawn("nvidia-containe", exe="/usr/bin/nvidia-container-cli", unit="containerd.service")
        proc.files, proc.state = (key,), "D"
        proc.blocked = (Task(proc.pid, 3, "os_acquire_mutex"),)
        node.after(node.rng.uniform(2, 18), lambda: node.bury(proc))
        if left:
            node.after(node.rng.uniform(10, 16), lambda: one(left - 1))

    one(12)
    return True


def wrong_card(node: Node, life: Life) -> bool:
    """A pod uses a device that it was not given: privileged and given none, or shown another one."""
    rng = node.rng
    keys = [c.key for c in node.cards if not c.slices and not c.dark and life.room(c.key) > 4 * GIB]
    if not keys:
        return False
    key = rng.choice(keys)
    privileged = rng.random() < 0.5
    pod = life.place("oneoff", devices=0 if privileged else 1)
    if pod is None:
        return False
    pod.privileged = privileged
    pod.busy = True
    if key in pod.held:
        return True
    pod.wanders = key
    node.say(f"{pod.name} uses {key.uuid}{' (privileged)' if privileged else ''}")
    node.after(rng.uniform(60, 1800), lambda: end_of(life, pod))
    return True


def end_of(life: Life, pod: Pod) -> None:
    pod.busy = False
    life.delete(pod, "graceful")


def onlooker(node: Node, life: Life) -> bool:
    """A pod without devices that sees them all (an image that asks for all); or one that sees none of its
    own.
    """
    blind = node.rng.random() < 0.5
    pod = life.place("oneoff", devices=1 if blind else 0)
    if pod is None:
        return False
    pod.busy = True
    if blind:
        pod.blind = True
    else:
        node.after(13.0, lambda: look_around(node, life, pod))
    node.say(f"{pod.name} sees {'nothing' if blind else 'all'}")
    node.after(node.rng.uniform(120, 1800), lambda: end_of(life, pod))
    return True


def look_around(node: Node, life: Life, pod: Pod) -> None:
    """Processes that only have a view."""
    for run in pod.runs:
        run.sees = tuple(card.key for card in node.cards)
        if run.name == "main":
            life.work(pod, run, "sleep")


def twice(node: Node, life: Life) -> bool:
    """The kubelet gives one device to two pods."""
    owners = [p for p in node.pods if p.active and p.given and not p.busy and p.run and p.deletion is None]
    owners = [p for p in owners if not node.card(p.given[0].device).replicas]
    if not owners:
        return False
    first = node.rng.choice(owners)
    pod = life.place("oneoff", devices=0)
    if pod is None:
        return False
    pod.busy = True
    pod.given = tuple(replace(g, container="main") for g in first.given[:1])
    pod.held = (first.given[0].device,)
    node.say(f"{pod.name} is given what {first.name} has")
    node.after(node.rng.uniform(60, 1200), lambda: end_of(life, pod))
    return True
