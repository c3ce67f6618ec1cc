"""A whole GPU node on one machine: the parts of the rig, kept in step.

Real: the processes, their control groups, open device files, sockets, mounts, log directories, and the NVML
library that the exporter loads. Stand-in: the GPUs, the drivers behind the device files, and what the kubelet
and the API server answer. Nothing is imported from the exporter: `oracle` is what the rig spawned.

    with Rig() as rig:
        gpu = rig.add_gpu()
        pod = rig.add_pod("team-a", "train-0", {"main": [gpu]})
        process = rig.add_process(pod, "main", gpu, memory=4 * GIB)
        with rig.agent() as agent:
            ...
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.rig import messages, objects, sysfs
from tests.rig.agent import Agent
from tests.rig.apiserver import ApiServer
from tests.rig.cgroups import ControlGroup, ControlGroups, Driver, Qos
from tests.rig.devices import Devices, Node
from tests.rig.hardware import DRIVER, GIB, Gpu, Mig, Row, Target
from tests.rig.holder import Holder, Orders
from tests.rig.kubelet import Kubelet
from tests.rig.mounts import Workspace
from tests.rig.nvml import build as nvml_build
from tests.rig.nvml import node as nvml
from tests.rig.pod_logs import PodLogs
from tests.rig.proc import SubstituteProc
from tests.rig.workloads import NODE, OracleRow, Pod, Process, device

More = Callable[[Orders], Orders]


class Rig:
    """One node. `memory` selects device nodes that can be mapped and unlinked (GPU minors 5 and 7 only)."""

    def __init__(
        self,
        *,
        memory: bool = False,
        driver: Driver = "cgroupfs",
        prefix: str = "",
        only_v2: bool = False,
        token: str | None = "rig-token",
        tls: bool = False,
        without: Sequence[str] = (),
    ) -> None:
        self.driver: Driver = driver
        self.gpus: list[Gpu] = []
        self.pods: list[Pod] = []
        self.processes: list[Process] = []
        self._batching = False
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            self.workspace = stack.enter_context(Workspace())
            self.root = self.workspace.path
            self.devices = stack.enter_context(Devices(self.root, memory=memory))
            self.proc = SubstituteProc(self.root, self.devices.text)
            self.proc.write_driver(sysfs.version(DRIVER))
            self.sysfs = sysfs.Sysfs(self.root / "sys")
            self.logs = PodLogs(self.root / "pods")
            self.groups = ControlGroups(prefix, only_v2=only_v2)
            stack.callback(self.groups.close)
            self.kubelet = stack.enter_context(Kubelet(self.root / "kubelet"))
            self.api = stack.enter_context(ApiServer(self.root / "api", token=token, tls=tls))
            self.nvml_folder = self.root / "nvml"
            library = nvml_build.build(_nvml_cache(without), without)
            self.nvml_document = nvml.place(library, self.nvml_folder, nvml.node())
            self.nvml_overrides: nvml.Object = {}
            self.nvml_library = self.nvml_folder / library.name
            self.sync()
            self._stack = stack.pop_all()

    # ------------------------------------------------------------ hardware

    def add_gpu(self, *, minor: int | None = None, uuid_: str | None = None, **more: Any) -> Gpu:
        """Add a GPU to NVML, /dev, sysfs, procfs and the node. `more` are fields of Gpu."""
        index = len(self.gpus)
        minor = self.devices.gpu_minors[index] if minor is None else minor
        gpu = Gpu(index, uuid_ or nvml.gpu_uuid(index), minor, f"0000:{0x3B + index:02x}:00.0", **more)
        self.devices.gpu(minor)
        self.sysfs.add(gpu.address, numa_node=gpu.numa_node)
        files = sysfs.information(gpu.uuid, minor, gpu.address, name=gpu.name, firmware=DRIVER)
        self.proc.write_driver(files)
        self.gpus.append(gpu)
        self.sync()
        return gpu

    def add_mig(self, gpu: Gpu, *, profile: str = "1g.5gb", total: int = 4864 << 20) -> Mig:
        """Add a MIG instance to a GPU made with mig=True; the first few get openable capability nodes."""
        slot = len(gpu.instances)
        taken = {minor for one in self._instances() for minor in one.caps or ()}
        free = [one.minor for one in self.devices.caps() if one.minor not in taken]
        caps = (free[0], free[1]) if len(free) >= 2 else None
        identity = f"MIG-{gpu.index:08x}-0000-5000-8000-{slot:012x}"
        instance = Mig(gpu, identity, slot, slot + 7, 0, profile, total, slot, caps)
        gpu.instances.append(instance)
        lines: list[tuple[int, int, int | None, int]] = []
        for one in self._instances():
            if one.caps is not None:
                lines.append((one.gpu.minor, one.gi, None, one.caps[0]))
                lines.append((one.gpu.minor, one.gi, one.ci, one.caps[1]))
        self.proc.write_driver(sysfs.mig_capabilities(lines))
        self.sync()
        return instance

    # ------------------------------------------------------------ workloads

    def add_pod(
        self,
        namespace: str,
        name: str,
        containers: Mapping[str, Sequence[Target | tuple[Target, int]]],
        *,
        uid: str | None = None,
        qos: Qos = "burstable",
        static: bool = False,
        generation: int = 0,
        **extra: Any,
    ) -> Pod:
        """Add a pod to the API, the kubelet, the control groups and the logs; devices are by container.

        A replica of a shared GPU is (gpu, number). `generation` makes another pod of the same name. `extra`
        goes to objects.pod, such as annotations, phase or init.
        """
        # Another rig on this machine has other uids, and so other control groups.
        seed = f"{self.root}/{namespace}/{name}/{generation}"
        api_uid = str(uuid.uuid5(uuid.NAMESPACE_DNS, seed))
        shown = uid or (hashlib.md5(seed.encode()).hexdigest() if static else api_uid)
        ids = {container: objects.container_id(f"{seed}/{container}") for container in containers}
        pod = Pod(
            namespace,
            f"{name}-{NODE}" if static else name,
            shown,
            api_uid if uid is None or static else uid,
            qos,
            self.driver,
            static,
            ids,
            {container: [device(one) for one in given] for container, given in containers.items()},
            {
                container: self.groups.container(shown, identity, qos, self.driver)
                for container, identity in ids.items()
            },
            extra,
        )
        self.logs.add(namespace, pod.name, shown, containers)
        self.pods.append(pod)
        self.sync()
        return pod

    def restart_container(self, pod: Pod, container: str) -> str:
        """Give a container a new id and group, as after a crash; what lives in the old group stays there."""
        old = pod.ids[container]
        pod.ids[container] = objects.container_id(old)
        pod.groups[container] = self.groups.container(pod.uid, pod.ids[container], pod.qos, pod.driver)
        self.sync()
        return old

    def delete_pod(self, pod: Pod, *, api: bool = True, kubelet: bool = True) -> None:
        """Let the API or the kubelet, or both, forget a pod. Its processes and groups stay."""
        pod.in_api = pod.in_api and not api
        pod.listed = pod.listed and not kubelet
        self.sync()

    def add_process(self, pod: Pod, container: str, *targets: Target, **more: Any) -> Process:
        """Start a process in a container that uses GPUs or MIG instances; `more` as in `start`."""
        return self.start(targets, pod.groups[container], pod=pod, container=container, **more)

    def add_host_process(self, unit: str, *targets: Target, **more: Any) -> Process:
        """Start a process in a service of the host that uses GPUs; `more` as in `start`."""
        return self.start(targets, self.groups.service(unit), **more)

    def start(
        self,
        targets: Sequence[Target],
        group: ControlGroup,
        *,
        pod: Pod | None = None,
        container: str = "",
        memory: int | None = GIB,
        comm: bytes = b"python3",
        listed: bool = True,
        uvm: bool = True,
        graphics: bool = False,
        visible: Sequence[Node] | None = None,
        exe: Path | None = None,
        first: More | None = None,
        more: More | None = None,
    ) -> Process:
        """Start a process that uses the targets as a CUDA process does.

        `memory` is in bytes on each target. Not `listed`: NVML does not know it. Not `uvm`: it only looks, as
        nvidia-smi does. With `visible` it lives in a root of its own whose /dev shows these nodes; those it
        opens must be among them. `more` adds orders after the devices are open, such as a fork; `first`
        before, while the host's files are in sight.
        """
        orders = Orders().cgroup(group)
        if first is not None:
            orders = first(orders)
        if uvm:
            orders.uvm(self.devices)
        if visible is not None:
            rootfs = self.root / "rootfs"
            rootfs.mkdir(exist_ok=True)
            orders.container(rootfs, visible)
        for node in [node for target in targets for node in self.nodes_of(target)]:
            orders.open(node.path if visible is None else f"/dev/{node.name}")
        orders.name(comm)
        holder = Holder(more(orders) if more is not None else orders, exe=exe)
        self._stack.callback(holder.close)
        amount = memory if listed else None
        process = Process(holder, pod, container, tuple((target, amount) for target in targets), listed)
        self.processes.append(process)
        if listed:
            for target in targets:
                target.rows.append(Row(holder.pid, memory, graphics))
        self.sync()
        return process

    def nodes_of(self, target: Target) -> list[Node]:
        """The device nodes that a client of this GPU or MIG instance holds, nvidia-uvm apart."""
        gpu = target if isinstance(target, Gpu) else target.gpu
        nodes = [self.devices.gpu(gpu.minor)]
        if not self.devices.memory:
            nodes.append(self.devices.ctl())
        if isinstance(target, Mig) and target.caps is not None:
            nodes += [node for node in self.devices.caps() if node.minor in target.caps]
        return nodes

    def end(self, process: Process, *, listed: bool = False) -> None:
        """End a process with its children. Still `listed`, it is what NVML calls a phantom."""
        process.holder.close()
        self.processes.remove(process)
        if not listed:
            self.unlist(process)

    def unlist(self, process: Process) -> None:
        """Let NVML forget a process."""
        for target, _ in process.uses:
            target.rows[:] = [row for row in target.rows if row.pid != process.pid]
        process.uses = tuple((target, None) for target, _ in process.uses)
        process.listed = False
        self.sync()

    # ------------------------------------------------------------ keeping in step

    def sync(self) -> None:
        """Tell NVML, the kubelet and the API what is so. Every method does; who edits records must."""
        if self._batching:
            return
        document = nvml.node(*[gpu.document() for gpu in self.gpus], driver_version=DRIVER)
        nvml.write(self.nvml_document, document | self.nvml_overrides)
        offered = [target for gpu in self.gpus for target in gpu.targets()]
        allocatable: list[dict[str, Any]] = []
        capacity: dict[str, int] = {}
        for target in offered:
            node = (target if isinstance(target, Gpu) else target.gpu).numa_node
            allocatable += messages.devices(target.resource, target.device_ids, [node])
            if target.device_ids:
                capacity[target.resource] = capacity.get(target.resource, 0) + len(target.device_ids)
        self.kubelet.set(pods=[pod.resources() for pod in self.pods if pod.listed], allocatable=allocatable)
        self.api.pods = {(pod.namespace, pod.name): pod.api_object() for pod in self.pods if pod.in_api}
        self.api.put(objects.node(NODE, {name: str(count) for name, count in capacity.items()}))

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Put off `sync` to the end of the block."""
        self._batching = True
        try:
            yield
        finally:
            self._batching = False
            self.sync()

    # ------------------------------------------------------------ the exporter's side

    def agent_args(self, interval: str = "1s") -> list[str]:
        """The flags that point the exporter at this rig."""
        return [
            f"--path.procfs={self.proc.path}",
            f"--path.sysfs={self.sysfs.root}",
            f"--path.pod-logs={self.logs.root}",
            f"--kubelet.root-dir={self.kubelet.root}",
            f"--nvml.library={self.nvml_library}",
            f"--kubernetes.kubeconfig={self.api.kubeconfig}",
            f"--node-name={NODE}",
            f"--interval={interval}",
        ]

    def agent(self, *args: str, interval: str = "1s", **more: Any) -> Agent:
        """Start the exporter against this rig; close it before the rig. `more` as in Agent."""
        return Agent([*self.agent_args(interval), *args], log=self.root / "agent.log", **more)

    def oracle(self) -> list[OracleRow]:
        """One row for each process and device it uses, from what was spawned."""
        return [row for process in self.processes for row in process.oracle()]

    def close(self) -> None:
        """End every process and take the node away."""
        self.groups.thaw()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _instances(self) -> list[Mig]:
        return [one for gpu in self.gpus for one in gpu.instances]


def _nvml_cache(without: Sequence[str]) -> Path:
    """Where the built library is kept between runs: one directory for each set of left-out functions."""
    tag = hashlib.sha256(repr(sorted(without)).encode()).hexdigest()[:8] if without else "all"
    return Path(tempfile.gettempdir()) / f"gpurig-cache-{os.getuid()}" / f"nvml-{tag}"
