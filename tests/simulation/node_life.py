"""Ordinary life on a node: pods are placed, started, restarted, ended and deleted as Kubernetes does it.

What takes how long is from runs of a real kubelet: a device stays listed 1.5 s after the process has ended,
an API object goes 0.6 s after the last container, a static pod leaves the list before its processes end.
"""

from collections.abc import Callable

from exporter.model import ContainerKind, DeviceKey
from tests.simulation.node_state import GIB, MIB, Card, Given, Node, Pod, Proc, Run

OWNERS = ("deployment", "deployment", "statefulset", "job", "job", "static")
NAMESPACES = ("team-a", "team-b", "serving")


class Life:
    """The kubelet, the controllers and the workloads of one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.rng = node.rng
        self.kubelet_up = True
        self.api_up = True

    # --- placing

    def offer(self, card: Card) -> list[tuple[DeviceKey, str]]:
        """Devices and replica marks of a card that the kubelet can still give."""
        taken = {(g.device, g.replica) for p in self.node.pods if p.active and p.listed for g in p.given}
        if card.unhealthy or card.dark:
            return []
        marks = [str(n) for n in range(card.replicas)] or [""]
        return [(key, mark) for key in card.devices for mark in marks if (key, mark) not in taken]

    def place(self, owner: str = "", name: str = "", devices: int = 1) -> Pod | None:
        """Create a pod and give it devices, as far as there are any."""
        if not (self.kubelet_up and self.api_up and self.node.plugin_ready):
            return None
        rng, node = self.rng, self.node
        offers = [one for card in node.cards for one in self.offer(card)]
        if len(offers) < devices:
            return None
        owner = owner or rng.choice(OWNERS)
        number = node.serial()
        uid = f"{number:08x}-aaaa-4000-8000-{rng.getrandbits(48):012x}"
        suffix = "0" if owner == "statefulset" else f"{number:x}"
        pod = Pod(
            uid=uid,
            cgroup_uid=f"{rng.getrandbits(128):032x}" if owner == "static" else uid,
            namespace=rng.choice(NAMESPACES),
            name=name or f"{owner}-{number:x}-{suffix}",
            owner=owner,
            created=node.now,
            deaf=rng.random() < 0.2,
            grace=rng.choice((5.0, 30.0, 30.0, 60.0)),
        )
        self.give(pod, rng.sample(offers, devices))
        node.pods.append(pod)
        node.say(f"{pod.name} ({owner}) created, given {len(pod.given)}")
        node.after(rng.uniform(1, 12), lambda: self.start(pod))
        return pod

    def give(self, pod: Pod, offers: list[tuple[DeviceKey, str]]) -> None:
        """Enter devices into the kubelet's books."""
        init = self.rng.random() < 0.2
        names = ("main", "prepare") if init else ("main",)
        pod.given = tuple(Given(name, key, mark) for name in names for key, mark in offers)
        pod.held = tuple({g.device: None for g in pod.given})

    # --- running

    def start(self, pod: Pod) -> None:
        """Start the containers of a pod: its init container first, if it has one."""
        if not pod.active or pod.deletion is not None:
            return
        pod.phase = "Running"
        pause = f"{self.rng.getrandbits(256):064x}"
        self.node.spawn("pause", pod=pod, container_id=pause, exe="/pause", threads=1)
        if any(g.container == "prepare" for g in pod.given):
            run = self.begin(pod, "prepare", ContainerKind.INIT)
            proc = self.work(pod, run, "prepare", memory=GIB)
            self.node.after(self.rng.uniform(5, 60), lambda: self._prepared(pod, run, proc))
        else:
            self.main(pod)
        if self.rng.random() < 0.2:
            self.work(pod, self.begin(pod, "proxy", ContainerKind.SIDECAR), "envoy", memory=0)

    def _prepared(self, pod: Pod, run: Run, proc: Proc) -> None:
        self.node.bury(proc)
        run.ended = self.node.now
        if pod.active and pod.deletion is None:
            self.main(pod)

    def begin(self, pod: Pod, name: str, kind: ContainerKind = ContainerKind.APP) -> Run:
        """A new life of a container."""
        node = self.node
        given = tuple(g.device for g in pod.given if g.container == name)
        sees = tuple(node.devices()) if pod.privileged else given
        if pod.blind:
            sees = ()
        elif pod.wanders is not None and not pod.privileged:
            sees = (pod.wanders,)
        identity = f"{self.rng.getrandbits(256):064x}"
        run = Run(identity, name, kind, node.now, pod.privileged, sees)
        pod.runs.append(run)
        return run

    def main(self, pod: Pod) -> None:
        """Start the main container: perhaps a launcher, a trainer on each device, and its loaders."""
        node, rng = self.node, self.rng
        run = self.begin(pod, "main")
        parent = 1
        if pod.blind or rng.random() < 0.5:
            run.populated = True
            parent = node.spawn("bash", pod=pod, run=run, container_id=run.id, exe="/bin/bash", threads=1).pid
        idle = pod.owner == "statefulset" and rng.random() < 0.15
        if pod.blind or idle:
            return
        devices = (pod.wanders,) if pod.wanders else tuple(dict.fromkeys(g.device for g in pod.given))
        node.after(rng.uniform(2, 25), lambda: self.trainer(pod, run, parent, devices))
        if pod.owner == "job":
            node.after(rng.uniform(180, 2400), lambda: self.complete(pod, run))

    def trainer(self, pod: Pod, run: Run, parent: int, devices: tuple[DeviceKey, ...]) -> None:
        """A process that uses its devices, and forked workers that inherit its files."""
        if run.ended is not None or not devices or not all(self.node.has(key) for key in devices):
            return
        if any(self.node.card(key).dark for key in devices):
            return
        proc = self.work(pod, run, "python", parent=parent)
        for key in devices:
            self.use(proc, key)
        for _ in range(self.rng.choice((0, 0, 1, 2))):
            self.fork(proc)

    def work(self, pod: Pod, run: Run, comm: str, *, parent: int = 1, memory: int = 0) -> Proc:
        """A process of a container; with `memory`, on the first device that it was given."""
        proc = self.node.spawn(comm, parent, pod=pod, run=run, container_id=run.id)
        run.populated = True
        mine = [g.device for g in pod.given if g.container == run.name]
        if memory and mine and self.node.has(mine[0]) and not self.node.card(mine[0]).dark:
            self.use(proc, mine[0], memory)
        return proc

    def use(self, proc: Proc, key: DeviceKey, size: int = 0) -> None:
        """Make a CUDA context on a device."""
        card = self.node.card(key)
        room = card.total // max(1, 4 * max(1, card.replicas))
        if card.slices:
            room = next(cut.total for cut in card.slices if key in cut.keys) // 4
        room = min(room, self.room(key) // 2)
        proc.memory[key] = min(size or self.rng.randint(600 * MIB, max(601 * MIB, room)), max(room, MIB))
        proc.files = tuple(dict.fromkeys((*proc.files, key)))
        proc.uvm, proc.maps = max(1, proc.uvm), True

    def room(self, key: DeviceKey) -> int:
        """Memory that is still free around a device."""
        node, card = self.node, self.node.card(key)
        cut = next((cut for cut in card.slices if key in cut.keys), None)
        total = cut.total if cut else card.total
        inside = cut.keys if cut else card.devices
        used = sum(size or 0 for p in node.procs.values() for k, size in p.memory.items() if k in inside)
        used += sum(leak.size for leak in node.leaks if leak.device in inside)
        used += sum(record.size or 0 for record in node.records if record.device in inside)
        return max(0, total - used - GIB)

    def fork(self, parent: Proc) -> Proc:
        """A worker that inherits the descriptors, but no row and no mapping."""
        child = self.node.spawn("pt_data_worker", parent.pid, pod=parent.pod, run=parent.run)
        child.container_id, child.unit = parent.container_id, parent.unit
        child.files, child.uvm, child.number = parent.files, parent.uvm, 0
        return child

    # --- ending

    def complete(self, pod: Pod, run: Run) -> None:
        """A job runs to its end; its object stays for a while."""
        if run.ended is not None or pod.deletion is not None or pod.busy:
            return
        for one in pod.runs:
            one.ended = one.ended or self.node.now
        self.clear(pod)
        if self.node.of_pod(pod):
            return  # something of it is stuck: the runtime cannot report the end
        pod.phase, pod.ended_at = self.rng.choice(("Succeeded", "Failed")), self.node.now
        self.node.say(f"{pod.name} ended")
        self.node.after(1.5, lambda: self.unlist(pod))
        self.node.after(self.rng.uniform(60, 900), lambda: self.drop(pod))
        self.again(pod)

    def crash(self, pod: Pod, run: Run, keep: Callable[[Proc], bool] = lambda _: False) -> None:
        """The main container dies and is restarted after a back-off; `keep` survives in the old one."""
        run.ended = self.node.now
        for proc in self.node.of_pod(pod):
            if proc.run is run and not keep(proc):
                self.node.kill(proc)
        self.node.say(f"{pod.name} crashed")

        def back() -> None:
            if pod.active and pod.deletion is None and pod.run is None:
                self.main(pod)

        self.node.after(self.rng.uniform(1, 60), back)

    def watch(self) -> None:
        """The runtime notices containers whose last process has gone."""
        living = {proc.run for proc in self.node.procs.values()}
        for pod in self.node.pods:
            run = pod.run
            if run and run.populated and run not in living and pod.active and pod.deletion is None:
                self.crash(pod, run)
        self.node.after(7.0, self.watch)

    def clear(self, pod: Pod) -> None:
        """SIGKILL to everything in a pod."""
        for proc in self.node.of_pod(pod):
            if not proc.trouble or proc.trouble in ("driver", "other", "zombie"):
                self.node.kill(proc)

    def delete(self, pod: Pod, how: str = "") -> None:
        """Delete a pod: graceful, force, or the manifest of a static one taken away."""
        if pod.deletion is not None or not pod.api:
            return
        how = how or self.rng.choice(("graceful", "graceful", "force"))
        if pod.owner == "static":
            how = "manifest"
        self.node.say(f"{pod.name} deleted ({how}){' deaf' if pod.deaf else ''}")
        grace = 0.0 if how == "force" else pod.grace
        pod.deletion = self.node.now + grace
        if how != "graceful":
            self.unlist(pod)
            self.drop(pod)
            self.again(pod)
        stops = 2.0 if how == "force" else grace if pod.deaf else self.rng.uniform(0.5, min(4.0, grace))
        self.node.after(stops, lambda: self._stopped(pod))

    def _stopped(self, pod: Pod) -> None:
        """Try to end all, until there is nobody left."""
        if not pod.busy:
            self.clear(pod)
        if self.node.of_pod(pod):
            self.node.after(5.0, lambda: self._stopped(pod))
            return
        for run in pod.runs:
            run.ended = run.ended or self.node.now
        if pod.api or pod.listed:
            self.node.after(0.6, lambda: self.drop(pod))
            self.node.after(1.5, lambda: self.unlist(pod))
            self.node.after(2.0, lambda: self.again(pod))

    def unlist(self, pod: Pod) -> None:
        """The kubelet's books are closed."""
        if pod.sticks:
            return
        pod.listed = False
        self._note_gone(pod)

    def drop(self, pod: Pod) -> None:
        """The API object goes."""
        pod.api = False
        self._note_gone(pod)

    def _note_gone(self, pod: Pod) -> None:
        if not pod.api and not pod.listed and pod.gone_at is None:
            pod.gone_at = self.node.now

    def again(self, pod: Pod) -> None:
        """The controller makes a new pod in place of one that ended or was deleted."""
        if pod.owner in ("infra", "oneoff"):
            return
        name = pod.name if pod.owner in ("statefulset", "static") else ""
        wanted = max(1, len({g.device for g in pod.given}))
        owner, space = pod.owner, pod.namespace
        if pod.phase in ("Succeeded", "Failed") or pod.busy:
            name = ""

        def make() -> None:
            made = self.place(owner, name, wanted)
            if made is None:
                self.node.after(self.rng.uniform(10, 60), make)
            else:
                made.namespace = space

        self.node.after(self.rng.uniform(1, 30), make)
