"""What Kubernetes and the container runtime show of a node: pods, allocations, device files."""

from collections.abc import Iterator

from exporter import device_ids
from exporter.model import (
    AllocatableDevice,
    Allocation,
    ContainerStatus,
    DeviceKey,
    DeviceNode,
    Hold,
    Kubelet,
    KubeletPod,
    NodeKind,
)
from exporter.model import (
    Pod as ApiPod,
)
from tests.simulation.node_state import Card, Node, Pod, Proc, Run

FRONTEND, UVM, CAPS = 195, 511, 509
CONTROL = DeviceNode(NodeKind.CONTROL, FRONTEND, 255)
UVM_NODE = DeviceNode(NodeKind.UVM, UVM, 0)


# --- kubelet ------------------------------------------------------------------------------------------------


def resource(card: Card | None) -> str:
    return "nvidia.com/mig-1g.20gb" if card is not None and card.slices else "nvidia.com/gpu"


def spelled(key: DeviceKey, replica: str) -> str:
    return (key.mig_uuid or key.uuid) + (f"::{replica}" if replica else "")


def kubelet(node: Node, state: str) -> Kubelet:
    """The kubelet's answer: `empty` and `partial` while it starts, `no_api` without the API server's pods."""
    shown = [pod for pod in node.pods if pod.listed and (pod.sticks or pod.ended_at is None)]
    if state == "empty":
        shown = []
    elif state == "partial":
        shown = [pod for pod in shown if pod.owner == "static"] + shown[: len(shown) // 3]
    elif state == "no_api":
        shown = [pod for pod in shown if pod.owner == "static"]
    shown = list(dict.fromkeys(shown))
    ready = state != "empty" and node.plugin_ready
    return Kubelet(
        pods=tuple(KubeletPod(pod.namespace, pod.name, _names(pod)) for pod in shown),
        allocations=tuple(one for pod in shown for one in _allocations(node, pod)),
        allocatable=tuple(_allocatable(node)) if ready else (),
    )


def _names(pod: Pod) -> tuple[str, ...]:
    return tuple(dict.fromkeys(("main", *(g.container for g in pod.given))))


def _allocations(node: Node, pod: Pod) -> Iterator[Allocation]:
    cards = {card.uuid: card for card in node.cards}
    for given in pod.given:
        text = spelled(given.device, given.replica)
        name = resource(cards.get(given.device.uuid))
        ref, replica = device_ids.parse(name, text)
        yield Allocation(pod.namespace, pod.name, given.container, name, text, ref, replica)


def _allocatable(node: Node) -> Iterator[AllocatableDevice]:
    for card in node.cards:
        if card.unhealthy:
            continue
        for key in card.devices:
            for mark in [str(n) for n in range(card.replicas)] or [""]:
                text = spelled(key, mark)
                yield AllocatableDevice(resource(card), text, device_ids.parse(resource(card), text)[0])


# --- API server ---------------------------------------------------------------------------------------------


def pods(node: Node) -> tuple[ApiPod, ...]:
    """The pods of the node that the API server has, as they are now."""
    return tuple(_pod(node, pod) for pod in node.pods if pod.api)


def _pod(node: Node, pod: Pod) -> ApiPod:
    wanted = sum(1 for given in pod.given if given.container == "main")
    card = node.card(pod.given[0].device) if pod.given else None
    return ApiPod(
        uid=pod.uid,
        cgroup_uid=pod.cgroup_uid,
        namespace=pod.namespace,
        name=pod.name,
        phase=pod.phase,
        deletion_timestamp=pod.deletion,
        containers=tuple(_statuses(pod)),
        gpu_requests=((resource(card), wanted),) if wanted else (),
        ready=pod.phase == "Running",
    )


def _statuses(pod: Pod) -> Iterator[ContainerStatus]:
    for name in dict.fromkeys(run.name for run in pod.runs):
        lives = [run for run in pod.runs if run.name == name]
        last = lives[-1]
        yield ContainerStatus(
            name=name,
            kind=last.kind,
            container_id=last.id,
            previous_id=lives[-2].id if len(lives) > 1 else "",
            running=last.ended is None,
            ready=last.ended is None,
            started_at=last.started if last.ended is None else None,
            privileged=last.privileged,
        )


# --- device files -------------------------------------------------------------------------------------------


def capability(card: Card, key: DeviceKey) -> DeviceNode:
    return DeviceNode(NodeKind.CAPABILITY, CAPS, 100 * card.minor + 10 * (key.gi or 0) + (key.ci or 0) + 1)


def nodes_of(node: Node, key: DeviceKey) -> tuple[DeviceNode, ...]:
    """The device files that belong to a device."""
    card = next((card for card in node.cards if card.uuid == key.uuid), None)
    if card is None:
        return ()
    whole = DeviceNode(NodeKind.GPU, FRONTEND, card.minor)
    return (whole,) if key.gi is None else (whole, capability(card, key))


def container_nodes(node: Node, run: Run | None) -> tuple[DeviceNode, ...]:
    """What a container's /dev shows. A privileged one sees what is there now, capability files too; the pause
    container sees nothing.
    """
    if run is None:
        return ()
    seen = {one for key in run.sees for one in nodes_of(node, key)}
    if run.privileged:
        seen = {one for key in (*node.devices(), *(c.key for c in node.cards)) for one in nodes_of(node, key)}
    return tuple(sorted({*seen, CONTROL, UVM_NODE})) if seen else ()


def holds(node: Node, proc: Proc) -> tuple[Hold, ...]:
    """The NVIDIA files that a process has open or mapped."""
    files = {one for key in proc.files for one in nodes_of(node, key)}
    if not files and not proc.uvm:
        return ()
    found = [Hold(one, 2, 1 if proc.maps and one.kind is NodeKind.GPU else 0) for one in files]
    found.append(Hold(CONTROL, 1, 0))
    if proc.uvm:
        found.append(Hold(UVM_NODE, proc.uvm, 1 if proc.maps else 0))
    return tuple(sorted(found, key=lambda hold: hold.node))
