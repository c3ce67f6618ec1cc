"""A cluster of one node: etcd, API server, containerd, kubelet, device plugin. All of them real but the GPUs.

    with Cluster() as cluster:
        pod = cluster.run(manifests.pod("train-0", {"main": {"nvidia.com/gpu": 1}}))
        cluster.kubelet.kill()

There is no scheduler and no controller: pods name their node, and what a controller would make (service
accounts, the ConfigMap with the CA) is made here. What List says and what the API server says is not told by
anybody: it comes from what the kubelet does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import grpc

from tests.cluster import build, images, machine, manifests, pki
from tests.cluster.api import Api, ApiError, Json
from tests.cluster.daemons import Daemon, until
from tests.cluster.hardware import Hardware
from tests.rig import messages
from tests.rig.mounts import Workspace

NODE = manifests.NODE
PORT = 443
SOCKET = machine.KUBELET / "pod-resources" / "kubelet.sock"
CONTAINERD = """version = 2
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Without CAP_SYS_RESOURCE nobody may have the -998 that every sandbox asks for, and runc ends with
  # "can't get final child's PID from pipe".
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "{folder}/cni"
    bin_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = "{folder}/runc"
"""
NETWORK = {
    "cniVersion": "0.4.0",
    "name": "cluster",
    "plugins": [
        {
            "type": "ptp",
            "ipam": {"type": "host-local", "subnet": machine.PODS, "routes": [{"dst": "0.0.0.0/0"}]},
        }
    ],
}
KUBELET: Json = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "fileCheckFrequency": "1s",
    "syncFrequency": "10s",
    "cgroupDriver": "cgroupfs",
    "failCgroupV1": False,
    "failSwapOn": False,
    "enforceNodeAllocatable": [],
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "address": "127.0.0.1",
    "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
    "localStorageCapacityIsolation": False,
    "resolvConf": "",
    "imageGCHighThresholdPercent": 100,
}


class Cluster:
    """Everything of it is made on entering and gone on leaving. With `api=False` the kubelet is alone."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            self.machine = machine.Machine()
            stack.callback(self.machine.close)
            self.folder = self.machine.folder
            self.workspace = stack.enter_context(Workspace())
            self.hardware = Hardware(self.workspace.path)
            stack.callback(self.hardware.close)
            server = f"https://{machine.SERVICE}:{PORT}"
            self.pki = pki.make(self.folder / "pki", NODE, server, (machine.SERVICE,))
            self.api = Api(self.pki, machine.SERVICE, PORT)
            self._daemons()
            stack.callback(self._end)
            self._start()
            self._stack = stack.pop_all()

    # ------------------------------------------------------------ pods

    def run(self, pod: Json, phases: Sequence[str] = ("Running",), timeout: float = 90.0) -> Json:
        """Create a pod and wait until it runs; the object as it is then."""
        metadata = pod["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        self.namespace(namespace)
        self.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
        until(lambda: self.phase(namespace, name) in phases, f"{name} is {phases}", timeout)
        found = self.api.pod(namespace, name)
        assert found is not None
        return found

    def run_static(self, pod: Json) -> str:
        """Give the kubelet a static pod; the name under which it runs. Renamed: inotify reads half files."""
        name = pod["metadata"]["name"]
        scratch = self.folder / f"{name}.json"
        scratch.write_text(json.dumps(pod))
        scratch.rename(self.folder / "manifests" / f"{name}.json")
        return f"{name}-{NODE}"

    def end_static(self, name: str) -> None:
        """Take a static pod away, by the name of its manifest."""
        (self.folder / "manifests" / f"{name}.json").unlink()

    def delete(self, pod: Json, grace: int | None = None) -> None:
        """Ask for the end of a pod; 0 is `kubectl delete --force`."""
        self.api.delete_pod(pod["metadata"]["namespace"], pod["metadata"]["name"], grace)

    def gone(self, pod: Json) -> bool:
        """Whether the API server no longer has this very pod."""
        metadata = pod["metadata"]
        found = self.api.pod(metadata["namespace"], metadata["name"])
        return found is None or found["metadata"]["uid"] != metadata["uid"]

    def clear(self) -> None:
        """End all pods but the exporter's, thawed first, and wait until nobody holds a device."""
        self.thaw()
        for manifest in (self.folder / "manifests").iterdir():
            manifest.unlink()
        for pod in self.api.pods():
            if pod["metadata"]["namespace"] != manifests.MONITORING:
                with contextlib.suppress(ApiError):
                    self.delete(pod, 0)
        until(lambda: not self.hardware.holders(), "all workers have ended", 40)
        until(lambda: not self._listed(), "the kubelet lists no pod with a device", 20)

    def pids(self, uid: str) -> list[int]:
        """Workers of a pod that have a device open, by the UID in its control group."""
        return sorted(set(self.hardware.holders()) & set(processes_of(uid)))

    def phase(self, namespace: str, name: str) -> str:
        """The phase of a pod, "Starting" while one of its containers does not run, "" if there is none."""
        pod = self.api.pod(namespace, name)
        if pod is None:
            return ""
        states = pod["status"].get("containerStatuses") or []
        phase = str(pod["status"].get("phase"))
        # Running, by the API's word, is a pod as soon as one container has been started.
        if phase == "Running" and not all("running" in one["state"] for one in states):
            return "Starting"
        return phase

    def running(self, namespace: str, name: str) -> bool:
        """Whether every container of a pod runs, but for those that have run before."""
        return self.phase(namespace, name) == "Running"

    def killed(self, pod: Json) -> bool:
        """Whether SIGKILL was sent to a process of a pod that hangs, and is not taken."""
        pending = 0
        for pid in self.pids(self.uid(pod)):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith(("SigPnd:", "ShdPnd:")):
                    pending |= int(line.split()[1], 16)
        return bool(pending & 1 << signal.SIGKILL - 1)

    def uid(self, pod: Json) -> str:
        """The UID of a pod in its control group: of a static pod's mirror the hash of its manifest."""
        metadata = pod["metadata"]
        return str(metadata.get("annotations", {}).get("kubernetes.io/config.hash", metadata["uid"]))

    def freeze(self, pid: int) -> None:
        """Let a process hang as in a driver, beyond SIGKILL: state D, by a version 1 freezer of its own."""
        place = next(
            line.split(":", 2)[2]
            for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()
            if line.split(":")[1] == "freezer"
        )
        group = Path(f"{machine.FREEZER}{place}") / "stuck"
        group.mkdir()
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        until(lambda: (group / "freezer.state").read_text().strip() == "FROZEN", "it is frozen")

    def thaw(self) -> None:
        """Let everything go on that `freeze` stopped."""
        for state in list((machine.FREEZER / "kubepods").rglob("stuck/freezer.state")):
            state.write_text("THAWED")

    def show_all(self, *names: str) -> None:
        """Let every container that is given a device see these files as well, as a careless runtime does."""
        self._configure(show=names)

    # ------------------------------------------------------------ parts

    def kubelet_up(self) -> None:
        """Start the kubelet, and wait for its first List, however much is in it."""
        self.kubelet.start(lambda: self.resources() is not None)

    def plugin_up(self) -> None:
        """Start the device plugin, and wait until the kubelet offers every device."""
        self.plugin.start(self.offers_all)

    def whole_again(self) -> None:
        """Everything runs again, and no pod is left of what was."""
        self.thaw()
        self.api_up()
        self.kubelet_up()
        self.plugin_up()
        self.show_all()
        self.clear()
        self.aged()

    def offers_any(self) -> bool:
        """Whether the kubelet offers a device."""
        return self._offered() > 0

    def offers_all(self) -> bool:
        """Whether the kubelet offers every device."""
        return self._offered() == sum(len(devices) for devices in self.hardware.resources().values())

    def resources(self) -> list[Any] | None:
        """The pods of the kubelet's List, None where it does not answer."""
        reply = self._ask("List", "ListPodResourcesRequest", "ListPodResourcesResponse")
        return None if reply is None else list(reply.pod_resources)

    def aged(self) -> None:
        """Let the kubelet look an hour old: a young one is not believed about what is absent."""
        hour_ago = time.time() - 3600
        if SOCKET.stat().st_mtime > hour_ago:  # else each time would look like another start
            os.utime(SOCKET, (hour_ago, hour_ago))

    def namespace(self, name: str) -> None:
        """A namespace with what the controllers would put in it."""
        if self.api.find(f"/api/v1/namespaces/{name}/serviceaccounts/default") is not None:
            return
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        ca = {"ca.crt": (self.pki.folder / "ca.crt").read_text()}
        root = {"metadata": {"name": "kube-root-ca.crt"}, "data": ca}
        self.api.create(f"/api/v1/namespaces/{name}/configmaps", root)
        account = {"metadata": {"name": "default"}}
        self.api.create(f"/api/v1/namespaces/{name}/serviceaccounts", account)

    def load(self, archive: Path) -> None:
        """Import an image."""
        self.ctr("images", "import", str(archive))

    def ctr(self, *words: str) -> str:
        """Ask containerd."""
        argv = ["ctr", "-a", f"{self.folder}/containerd.sock", "-n", "k8s.io", *words]
        ran = subprocess.run(argv, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise OSError(f"ctr {words[0]}: {ran.stderr.strip()}")
        return ran.stdout

    def flags(self) -> list[str]:
        """What points an exporter on the host at this cluster."""
        return [
            f"--path.procfs={self.hardware.proc.path}",
            f"--path.sysfs={self.hardware.sysfs.root}",
            f"--nvml.library={self.hardware.nvml}/libnvidia-ml.so.1",
            f"--kubernetes.kubeconfig={self.pki.kubeconfig('exporter')}",
            f"--node-name={NODE}",
        ]

    def close(self) -> None:
        """End every process and take the cluster away."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ building it

    def _daemons(self) -> None:
        folder, logs = self.folder, self.folder / "logs"
        client, peer = free_port(), free_port()
        self._etcd_port = client
        (folder / "containerd.toml").write_text(
            CONTAINERD.format(folder=folder, pause=images.PAUSE, cni=machine.CNI)
        )
        (folder / "cni" / "cluster.conflist").write_text(json.dumps(NETWORK))
        own = {
            "staticPodPath": f"{folder}/manifests",
            "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
            "port": free_port(),
            "healthzPort": free_port(),
        }
        (folder / "kubelet.json").write_text(json.dumps({**KUBELET, **own}))
        self._configure()
        etcd = [
            f"--data-dir={folder}/etcd",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
        ]
        kubelet = [
            f"--config={folder}/kubelet.json",
            f"--hostname-override={NODE}",
            f"--kubeconfig={self.pki.kubeconfig('kubelet')}",
            f"--node-labels={manifests.LABEL}=true",
            "--v=2",
        ]
        plugin = [sys.executable, "-m", "tests.cluster.device_plugin", str(folder / "plugin.json")]
        self.etcd = Daemon("etcd", ["etcd", *etcd], logs)
        self.apiserver = Daemon(
            "apiserver", [build.program("kube-apiserver"), *self._api_flags(client)], logs
        )
        self.containerd = Daemon(
            "containerd", ["containerd", "-c", folder / "containerd.toml", "-l", "warn"], logs
        )
        self.kubelet = Daemon("kubelet", [build.program("kubelet"), *kubelet], logs)
        self.plugin = Daemon("plugin", plugin, logs)

    def _api_flags(self, etcd: int) -> list[str]:
        keys = self.pki.folder
        return [
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            f"--bind-address={machine.SERVICE}",
            f"--secure-port={PORT}",
            "--allow-privileged",
            f"--tls-cert-file={keys}/apiserver.crt",
            f"--tls-private-key-file={keys}/apiserver.key",
            f"--client-ca-file={keys}/ca.crt",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={keys}/sa.pub",
            f"--service-account-signing-key-file={keys}/sa.key",
            f"--service-cluster-ip-range={machine.SERVICES}",
            "--endpoint-reconciler-type=none",
            "--enable-admission-plugins=NodeRestriction",
        ]

    def _start(self) -> None:
        self.etcd.start(lambda: _listens(self._etcd_port))
        self.api_up()
        self.containerd.start(lambda: self.ctr("version"))
        program = images.worker(self.folder / "img")
        for name in (images.PAUSE, images.WORK):
            self.load(images.small(self.folder / "img", name, program))
        for name in ("kube-system", "team-a", "team-b"):
            self.namespace(name)
        for body, path in manifests.access("exporter", {"kind": "User", "name": "exporter"}):
            self.api.create(path, body)
        self.kubelet_up()
        self.plugin_up()
        self.aged()
        until(self._registered, "the node object has the devices", 40)

    def api_up(self) -> None:
        """Start the API server, and wait until it serves."""
        self.apiserver.start(self.api.ready, 60)

    def _end(self) -> None:
        """In the order in which nothing waits for what has ended; the machine kills what is left."""
        with contextlib.suppress(Exception):
            self.thaw()
            for pod in self.api.pods():
                self.delete(pod, 0)
            until(lambda: not self.ctr("tasks", "ls", "-q").split(), "all containers have ended", 15)
        self.kubelet.stop()
        self.plugin.stop()
        self.apiserver.kill()
        self.etcd.stop()
        with contextlib.suppress(OSError):
            for task in self.ctr("tasks", "ls", "-q").split():
                self.ctr("tasks", "rm", "-f", task)
        self.containerd.stop()

    def _configure(self, show: Sequence[str] = (), unhealthy: Sequence[str] = ()) -> None:
        config = {
            "dev": str(self.hardware.dev),
            "resources": self.hardware.resources(),
            "show": list(show),
            "unhealthy": list(unhealthy),
        }
        scratch = self.folder / "plugin.scratch"
        scratch.write_text(json.dumps(config))
        scratch.rename(self.folder / "plugin.json")

    # ------------------------------------------------------------ asking

    def _registered(self) -> bool:
        node = self.api.find(f"/api/v1/nodes/{NODE}")
        wanted = {name: str(len(ids)) for name, ids in self.hardware.resources().items()}
        return node is not None and wanted.items() <= node["status"].get("capacity", {}).items()

    def _listed(self) -> bool:
        pods = self.resources()
        return pods is None or any(one.devices for pod in pods for one in pod.containers)

    def _offered(self) -> int:
        reply = self._ask(
            "GetAllocatableResources", "AllocatableResourcesRequest", "AllocatableResourcesResponse"
        )
        return 0 if reply is None else len({identity for one in reply.devices for identity in one.device_ids})

    def _ask(self, method: str, request: str, reply: str) -> Any:
        with grpc.insecure_channel(f"unix:{SOCKET}", options=[("grpc.enable_http_proxy", 0)]) as channel:
            call = channel.unary_unary(
                f"/{messages.SERVICE}/{method}",
                messages.MESSAGES[request].SerializeToString,
                messages.MESSAGES[reply].FromString,
            )
            try:
                return call(messages.message(request), timeout=2)
            except grpc.RpcError:
                return None


def processes_of(uid: str) -> list[int]:
    """Every process of a pod, its sandbox's too."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and f"/pod{uid}/" in Path(f"/proc/{entry}/cgroup").read_text():
                found.append(int(entry))
    return found


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
