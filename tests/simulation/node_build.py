"""A node to begin with: its cards, the daemons that come with GPUs, and a first set of pods."""

from exporter.model import ContainerKind, DeviceKey
from tests.simulation.node_life import Life
from tests.simulation.node_state import EPOCH, GIB, MIB, Card, Node, Pod, Proc, Run, Slice

DAEMONS = (  # name, executable, whether it stays on every card with a descriptor
    ("nvidia-dcgm-exporter", "/usr/bin/dcgm-exporter", True),
    ("nvidia-device-plugin", "/usr/bin/nvidia-device-plugin", True),
)


def build(seed: int) -> tuple[Node, Life]:
    """A node of two to four cards, at work."""
    node = Node(seed)
    rng = node.rng
    node.now = EPOCH - 600  # it has been up for a while when the agent starts
    node.thread_rows = rng.random() < 0.15
    count = rng.choice((2, 2, 3, 4))
    minors = rng.sample(range(count), count)
    for index in range(count):
        uuid = f"GPU-{index:08x}-{rng.getrandbits(16):04x}-4000-8000-{rng.getrandbits(48):012x}"
        card = Card(uuid, index, minors[index], 80 * GIB, rng.choice((0, 3 * MIB, 120 * MIB, 200 * MIB)))
        node.cards.append(card)
        shape = rng.random()
        if shape < 0.2:
            cut(node, card)
        elif shape < 0.35:
            card.replicas, card.mps = 4, rng.random() < 0.4
    life = Life(node)
    daemons(node)
    for _ in range(sum(1 for _ in node.devices())):
        if rng.random() < 0.8:
            life.place(devices=2 if rng.random() < 0.15 else 1)
    life.watch()
    node.run_until(EPOCH)
    return node, life


def cut(node: Node, card: Card) -> None:
    """Partition a card: fresh MIG devices, some GPU instances with two compute instances."""
    card.slices = []
    for gi in range(1, node.rng.choice((3, 4))):
        cis = (0, 1) if node.rng.random() < 0.3 else (0,)
        keys = tuple(
            DeviceKey(card.uuid, gi, ci, f"MIG-{node.rng.getrandbits(32):08x}-{gi:04x}-4000-8000-{ci:012x}")
            for ci in cis
        )
        card.slices.append(Slice(gi, keys, 20 * GIB))


def daemons(node: Node) -> None:
    """Infrastructure, on the host and in pods of the operator's namespace."""
    every = tuple(card.key for card in node.cards)
    node.spawn(
        "nvidia-persiste",
        exe="/usr/bin/nvidia-persistenced",
        unit="nvidia-persistenced.service",
        infra=True,
        files=every,
    )
    for name, exe, holds in DAEMONS:
        number = node.serial()
        uid = f"{number:08x}-cccc-4000-8000-{node.rng.getrandbits(48):012x}"
        pod = Pod(uid, uid, "gpu-operator", f"{name}-{number:x}", "infra", node.now)
        pod.phase, pod.privileged = "Running", True
        run = Run(f"{node.rng.getrandbits(256):064x}", "main", ContainerKind.APP, node.now, privileged=True)
        run.sees = (*every, *node.devices())
        pod.runs.append(run)
        node.pods.append(pod)
        proc = node.spawn(name[7:22], pod=pod, run=run, container_id=run.id, exe=exe, infra=True)
        proc.files = every if holds else ()
    for card in node.cards:
        if card.mps:
            mps_server(node, card)


def mps_server(node: Node, card: Card) -> Proc:
    """The one process through which all clients of an MPS card work."""
    server = node.spawn(
        "nvidia-cuda-mps", exe="/usr/bin/nvidia-cuda-mps-server", unit="nvidia-mps.service", infra=True
    )
    server.files, server.uvm, server.maps = (card.key,), 1, True
    server.memory[card.key] = 30 * MIB
    return server
