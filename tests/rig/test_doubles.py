"""The doubles answer as the real interfaces do, faults included."""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.rig import agent, messages, objects, sysfs
from tests.rig.apiserver import ApiServer, Fault
from tests.rig.cgroups import container_path
from tests.rig.errors import RigError
from tests.rig.kubelet import RECORDINGS, REQUESTS, RESPONSES, Kubelet
from tests.rig.pod_logs import PodLogs
from tests.rig.proctree import PF_EXITING, Fd, Map, Process, ProcTree, Task, container_cgroup

NODE = "node-a"
UID = "3b1f7c52-8d0e-4a6b-9c11-5e2d7f80aa14"


@pytest.fixture
def kubelet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelet]:
    with Kubelet(tmp_path_factory.mktemp("k")) as made:
        yield made


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, token="secret") as made:
        yield made


def call(kubelet: Kubelet, method: str = "List", timeout: float = 3.0, **fields: str) -> Any:
    options = [("grpc.max_receive_message_length", 32 << 20), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"unix:{kubelet.socket}", options) as channel:
        ask: Any = channel.unary_unary(
            f"/{messages.SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=messages.MESSAGES[RESPONSES[method]].FromString,
        )
        return ask(messages.message(REQUESTS[method], **fields), timeout=timeout)


def code(kubelet: Kubelet, method: str = "List", timeout: float = 3.0) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call(kubelet, method, timeout)
    return caught.value.code()


# ---------------------------------------------------------------- kubelet


def test_kubelet_answers_with_what_was_set(kubelet: Kubelet) -> None:
    pod = messages.pod_resources("p", "ns", {"main": messages.devices("nvidia.com/gpu", ["GPU-1"], [0, 1])})
    kubelet.set(pods=[pod], allocatable=messages.devices("nvidia.com/gpu", ["GPU-1"]))
    entries = call(kubelet).pod_resources[0].containers[0].devices
    assert [entry.topology.nodes[0].ID for entry in entries] == [0, 1]
    assert call(kubelet, "GetAllocatableResources").devices[0].device_ids == ["GPU-1"]
    assert call(kubelet, "Get", pod_name="p", pod_namespace="ns").pod_resources.name == "p"
    assert code(kubelet, "Get") is grpc.StatusCode.UNKNOWN
    assert kubelet.calls == {"List": 1, "GetAllocatableResources": 1, "Get": 2}


def test_kubelet_replays_every_recording(kubelet: Kubelet) -> None:
    for path in RECORDINGS.glob("*.txt"):
        method = "GetAllocatableResources" if "allocatable" in path.name else "List"
        kubelet.load(path.name, method)
        call(kubelet, method)
    kubelet.load("13-dra-one-claim-two-requests.txt")
    claim = call(kubelet).pod_resources[0].containers[0].dynamic_resources[0]
    assert [one.device_name for one in claim.claim_resources] == ["gpu-0", "gpu-1-mig-1g5gb-19-0"]


def test_kubelet_plays_frames_and_queues(kubelet: Kubelet) -> None:
    def named(name: str) -> Any:
        return messages.message(RESPONSES["List"], pod_resources=[{"name": name}])

    kubelet.play("List", [(0, named("a")), (0.4, named("b"))])
    kubelet.queue("List", named("first"), b"")
    seen = [[pod.name for pod in call(kubelet).pod_resources] for _ in range(3)]
    assert seen == [["first"], [], ["a"]]
    time.sleep(0.5)
    assert call(kubelet).pod_resources[0].name == "b"


def test_kubelet_faults(kubelet: Kubelet) -> None:
    kubelet.fail("List", grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
    assert code(kubelet) is grpc.StatusCode.RESOURCE_EXHAUSTED
    kubelet.disable("GetAllocatableResources")
    assert code(kubelet, "GetAllocatableResources") is grpc.StatusCode.UNIMPLEMENTED
    kubelet.mute()
    assert code(kubelet, timeout=0.3) is grpc.StatusCode.DEADLINE_EXCEEDED
    kubelet.delay("List", 0.2)
    start = time.monotonic()
    call(kubelet)
    assert time.monotonic() - start >= 0.2
    kubelet.heal()
    kubelet.set_raw("List", b"\xff\xff")
    assert code(kubelet) is grpc.StatusCode.INTERNAL
    kubelet.huge()
    assert call(kubelet).ByteSize() > 16 << 20


def test_kubelet_dies_and_comes_back(kubelet: Kubelet) -> None:
    assert kubelet.socket.parent.stat().st_mode & 0o777 == 0o750
    inode = kubelet.socket.stat().st_ino
    kubelet.stop()
    assert kubelet.socket.stat().st_ino == inode
    assert code(kubelet) is grpc.StatusCode.UNAVAILABLE
    kubelet.start()
    assert kubelet.socket.stat().st_ino != inode
    call(kubelet)
    kubelet.deaf()
    assert code(kubelet, timeout=0.3) in {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}
    kubelet.stop(keep_socket=False)
    assert not kubelet.socket.exists()


def test_kubelet_refuses_a_path_that_no_socket_can_have(tmp_path: Path) -> None:
    with pytest.raises(RigError, match="over 107 bytes"):
        Kubelet(tmp_path / ("x" * 100))


# ---------------------------------------------------------------- API server


def fetch(api: ApiServer, path: str, token: str = "secret", **more: Any) -> Any:
    request = urllib.request.Request(api.url + path, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=2, **more) as reply:
        return json.load(reply)


def status(api: ApiServer, path: str = "/api/v1/pods", token: str = "secret") -> int:
    with pytest.raises(urllib.error.HTTPError) as caught:
        fetch(api, path, token)
    with caught.value as error:
        assert json.load(error)["kind"] == "Status"
        return error.code


def test_api_lists_the_pods_of_a_node(api: ApiServer) -> None:
    for number, node in enumerate([NODE, NODE, "node-b"]):
        running = [("main", objects.container_id(str(number)), True)]
        api.put(objects.pod("ns", f"p{number}", UID, node=node, containers=running))
    api.put(objects.node(NODE, {"nvidia.com/gpu": "8"}))
    found = fetch(api, f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE}&resourceVersion=0")
    assert [pod["metadata"]["name"] for pod in found["items"]] == ["p0", "p1"]
    assert found["kind"] == "PodList"
    statuses = found["items"][0]["status"]["containerStatuses"]
    assert statuses[0]["containerID"] == f"containerd://{objects.container_id('0')}"
    assert fetch(api, f"/api/v1/nodes/{NODE}")["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert status(api, "/api/v1/nodes/none") == 404
    first = fetch(api, "/api/v1/pods?limit=2")
    rest = fetch(api, f"/api/v1/pods?limit=2&continue={first['metadata']['continue']}")
    assert (len(first["items"]), len(rest["items"])) == (2, 1)
    assert api.count() == 3


def test_api_faults(api: ApiServer) -> None:
    assert status(api, token="wrong") == 401
    for wanted in (401, 403, 410, 500):
        api.fail(wanted)
        assert status(api) == wanted
    api.break_(Fault(body=b"<html>"))
    with pytest.raises(json.JSONDecodeError):
        fetch(api, "/api/v1/pods")
    api.break_(Fault(half_open=True))
    with pytest.raises(TimeoutError):
        fetch(api, "/api/v1/pods")
    api.heal()
    assert fetch(api, "/api/v1/pods")["items"] == []
    port = api.port
    api.stop()
    with pytest.raises(urllib.error.URLError):
        fetch(api, "/api/v1/pods")
    api.start()
    assert api.port == port
    fetch(api, "/api/v1/pods")


def test_api_with_a_certificate(tmp_path: Path) -> None:
    with ApiServer(tmp_path, tls=True) as api:
        config = json.loads(api.kubeconfig.read_text())
        authority = config["clusters"][0]["cluster"]["certificate-authority"]
        context = ssl.create_default_context(cafile=authority)
        assert fetch(api, "/api/v1/pods", context=context)["items"] == []


def test_pods_of_every_shape() -> None:
    sidecar = objects.Container("side", "1" * 64, sidecar=True)
    waiting = objects.Container("main", state="waiting", reason="CrashLoopBackOff", last_id="2" * 64)
    debug = objects.Container("debug", "3" * 64)
    pod = objects.pod(
        "ns",
        "p",
        UID,
        node=NODE,
        containers=[waiting],
        init=[sidecar],
        ephemeral=[debug],
        config_hash="f" * 32,
    )
    assert pod["spec"]["initContainers"][0]["restartPolicy"] == "Always"
    assert pod["status"]["ephemeralContainerStatuses"][0]["name"] == "debug"
    last = pod["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert last["containerID"] == "containerd://" + "2" * 64
    assert pod["metadata"]["annotations"]["kubernetes.io/config.hash"] == "f" * 32


# ---------------------------------------------------------------- trees


def test_a_recorded_proc_reads_like_the_kernels(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path / "proc")
    group = container_cgroup(container_path(UID, "ab" * 32))
    fds = tree.cuda(0) | {4: Fd("socket:[7]")}
    tree.add(
        Process(
            100,
            b"a) b\n(c",
            state="D",
            start=4242,
            cgroup=group,
            fds=fds,
            maps=(Map(tree.gpu(0)),),
            tasks=(Task(101),),
            flags=0x400000 | PF_EXITING,
            wchan="os_acquire_rwlock_write",
        )
    )
    numbers = {os.stat(tree.root / f"100/fd/{fd}").st_rdev for fd in fds if fd != 4}
    assert numbers == {os.makedev(195, 0), os.makedev(195, 255), os.makedev(511, 0)}
    fields = (tree.root / "100/stat").read_text().rpartition(") ")[2].split()
    real = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    assert len(fields) == len(real)
    assert (fields[0], fields[19], int(fields[6]) & PF_EXITING) == ("D", "4242", PF_EXITING)
    assert "(a) b\\n(c)" in (tree.root / "100/stat").read_text()
    assert (tree.root / "100/task/100/wchan").read_text() == "os_acquire_rwlock_write"
    assert os.readlink(tree.root / "self/ns/pid") == "pid:[4026531836]"
    shapes = [
        {line.split(":")[0] for line in Path(path).read_text().splitlines()}
        for path in (tree.root / "100/status", "/proc/self/status")
    ]
    assert shapes[0] <= shapes[1] | {"Kthread", "CoreDumping", "THP_enabled"}


def test_a_recorded_zombie_leader_keeps_its_threads_descriptors(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path / "proc")
    tree.add(Process(100, state="Z", fds=tree.cuda(0), tasks=(Task(101),)))
    assert os.listdir(tree.root / "100/fd") == []
    assert len(os.listdir(tree.root / "100/task/101/fd")) == 5
    assert not (tree.root / "100/exe").exists()
    tree.replace(Process(100))
    assert (tree.root / "100/exe").is_symlink()


def test_sysfs_and_logs(tmp_path: Path) -> None:
    tree = sysfs.Sysfs(tmp_path / "sys")
    tree.add("0000:3b:00.0")
    tree.add("0000:3b:00.4", driver="vfio-pci", physfn="0000:3b:00.0")
    device = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    assert (device / "vendor").read_text() == "0x10de\n"
    assert (device / "driver").resolve().name == "nvidia"
    assert (device.with_name("0000:3b:00.4") / "physfn").resolve() == device.resolve()
    folder = PodLogs(tmp_path / "pods").add("ns", "p", UID, ["main"])
    assert folder.name == f"ns_p_{UID}"
    assert (folder / "main/0.log").exists()


# ---------------------------------------------------------------- agent

TALKER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(b'# TYPE x gauge\\nx{a="1"} 2\\n')
    def log_message(self, *rest): print("asked", flush=True)
host, port = sys.argv[1].partition("=")[2].split(":")
http.server.HTTPServer((host, int(port)), Handler).serve_forever()
"""


def test_agent_runs_a_program_and_parses_what_it_says(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TALKER]
    with agent.Agent([], log=tmp_path / "log", command=command) as running:
        samples = running.samples()
        assert samples == {("x", frozenset({("a", "1")})): 2.0}
        assert list(agent.select(samples, "x", a="1").values()) == [2.0]
        assert "asked" in running.tail()
    assert running.process.returncode == -15


def test_an_agent_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such flag')"]
    with pytest.raises(RigError, match="no such flag"):
        agent.Agent([], log=tmp_path / "log", command=command)
