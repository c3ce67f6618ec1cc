"""The pods source and the API client against a real HTTP server, with and without TLS."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.model import ContainerKind, ContainerStatus, Pod, Reason, SourceError
from exporter.sources.pods import Api, PodsSource, connect, parse
from tests.rig import objects
from tests.rig.apiserver import ApiServer, Fault
from tests.rig.objects import Container, container_id, timestamp

NODE = "gpu-node-1"
UID = "3b1f7c52-8d0e-4a6b-9c11-5e2d7f80aa14"
STATIC = "0f9d8c7b6a5e4d3c2b1a09f8e7d6c5b4"
STARTED = 1_790_000_000.0


class Cluster(ApiServer):
    """A server with TLS that, as a real one, takes the name of the scheme in any case."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, token="first", tls=True)

    def answer(self, path: str, query: dict[str, str], token: str | None) -> tuple[int, objects.Json]:
        scheme, _, secret = (token or "").partition(" ")
        return super().answer(path, query, f"{scheme.title()} {secret}")


class Clock:
    """Monotonic time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Steady(random.Random):
    """No jitter."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path, token="first") as running:
        running.put(pod("train-0"))
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def source(server: ApiServer, clock: Clock) -> PodsSource:
    return PodsSource(connect(server.kubeconfig), NODE, clock=clock, rng=Steady())


def pod(name: str, uid: str = UID, node: str = NODE, **fields: Any) -> objects.Json:
    fields.setdefault("containers", [Container("main", container_id(name))])
    return objects.pod("team-a", name, uid, node=node, **fields)


def reason(source: PodsSource, nudge: bool = False) -> tuple[Reason, str]:
    with pytest.raises(SourceError) as caught:
        source.read(nudge)
    return caught.value.reason, caught.value.detail


def names(source: PodsSource, nudge: bool = False) -> list[str]:
    return [one.name for one in source.read(nudge)[0].pods]


# --- one pod ------------------------------------------------------------------------------------------------


def test_whole_record() -> None:
    """Everything that attribution asks of a pod, and nothing else of it."""
    raw = pod(
        "train-0",
        containers=[
            Container("main", "aa" * 32, restarts=1, last_id="bb" * 32, started_at=timestamp(STARTED)),
            Container("log", "cc" * 32, state="waiting", reason="CrashLoopBackOff", runtime="cri-o"),
        ],
        init=[
            Container("fetch", "dd" * 32, state="terminated", started_at=timestamp(STARTED)),
            Container("proxy", "ee" * 32, sidecar=True, started_at=timestamp(STARTED)),
        ],
        ephemeral=[Container("debug", "ff" * 32, started_at=timestamp(STARTED))],
        deletion_timestamp=timestamp(STARTED + 60),
        runtime_class="nvidia",
        labels={"app": "train", "team": "secret"},
        annotations={"hami.io/vgpu-node": NODE, "gpu-fraction": "0.5", "example.com/token": "secret"},
    )
    raw["spec"]["hostPID"] = True
    raw["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    app, init, sidecar, debug = (
        ContainerKind.APP,
        ContainerKind.INIT,
        ContainerKind.SIDECAR,
        ContainerKind.EPHEMERAL,
    )
    assert parse(raw) == Pod(
        uid=UID,
        cgroup_uid=UID,
        namespace="team-a",
        name="train-0",
        phase="Running",
        deletion_timestamp=STARTED + 60,
        containers=(
            ContainerStatus("fetch", init, "dd" * 32, started_at=STARTED),
            ContainerStatus("proxy", sidecar, "ee" * 32, "", True, True, STARTED),
            ContainerStatus("main", app, "aa" * 32, "bb" * 32, True, True, STARTED, True),
            ContainerStatus("log", app, "cc" * 32),
            ContainerStatus("debug", debug, "ff" * 32, "", True, True, STARTED),
        ),
        annotations=(("gpu-fraction", "0.5"), ("hami.io/vgpu-node", NODE)),
        labels=(("app", "train"),),
        runtime_class="nvidia",
        host_pid=True,
        ready=True,
    )


def test_static_pod_has_the_uid_of_its_cgroup() -> None:
    """The kubelet runs a static pod under its config hash; the mirror's own UID is in no cgroup."""
    found = parse(pod("static-n1", config_hash=STATIC))
    assert (found.uid, found.cgroup_uid) == (UID, STATIC)


def test_hash_of_a_pod_that_is_no_mirror() -> None:
    """An annotation that anybody may write gives nobody the processes of another pod."""
    assert parse(pod("liar", annotations={"kubernetes.io/config.hash": STATIC})).cgroup_uid == UID


def test_pod_that_has_not_started() -> None:
    """A pending pod has no statuses; its containers are known by their specs."""
    raw = pod("new", phase="Pending")
    del raw["status"]["containerStatuses"], raw["status"]["conditions"]
    found = parse(raw)
    assert found.containers == (ContainerStatus("main", ContainerKind.APP),)
    assert not found.ready


@pytest.mark.parametrize(
    ("init", "apps", "expected"),
    [
        ([], [("a", "1"), ("b", "2")], 3),
        ([("i", "4")], [("a", "1")], 4),  # an init container runs before the apps
        ([("i", "1"), ("j", "2")], [("a", "1")], 2),  # and by itself
        ([("+s", "1")], [("a", "1")], 2),  # a sidecar runs beside them
        ([("+s", "1"), ("i", "4")], [("a", "1")], 5),  # and beside the init containers after it
        ([("i", "4"), ("+s", "1")], [("a", "1")], 4),  # not those before
    ],
)
def test_requests_as_the_scheduler_counts(
    init: list[tuple[str, str]], apps: list[tuple[str, str]], expected: int
) -> None:
    """What a pod asks for is its peak, not its sum."""

    def containers(wanted: list[tuple[str, str]]) -> list[Container]:
        return [
            Container(name.strip("+"), limits={"nvidia.com/gpu": count, "cpu": "500m"}, sidecar="+" in name)
            for name, count in wanted
        ]

    found = parse(pod("p", containers=containers(apps), init=containers(init)))
    assert found.gpu_requests == (("nvidia.com/gpu", expected),)


def test_requests_of_several_resources() -> None:
    """GPU resources are kept apart; amounts of HAMi and other resources are not devices."""
    limits = {
        "nvidia.com/mig-1g.5gb": "2",
        "nvidia.com/gpumem": "3000",
        "aliyun.com/gpu-mem": "8",
        "memory": "1Gi",
    }
    found = parse(pod("p", containers=[Container("c", limits=limits)]))
    assert found.gpu_requests == (("aliyun.com/gpu-mem", 8), ("nvidia.com/mig-1g.5gb", 2))


# --- the list -----------------------------------------------------------------------------------------------


def test_only_pods_of_this_node(server: ApiServer, source: PodsSource) -> None:
    """The server is asked for one node's pods, from its cache, and told who asks."""
    server.put(pod("elsewhere", node="gpu-node-2"))
    pods, complete, at = source.read(False)
    assert [one.name for one in pods.pods] == ["train-0"]
    assert complete
    assert abs(at - time.time()) < 5
    asked = server.requests[-1]
    assert asked.query == {"fieldSelector": f"spec.nodeName={NODE}", "resourceVersion": "0"}
    assert asked.agent == "kubegpu-exporter"


def test_selector_that_is_ignored(source: PodsSource, server: ApiServer) -> None:
    """A server that sends other nodes' pods does not make them ours."""
    reply = {"metadata": {}, "items": [pod("mine"), pod("elsewhere", node="gpu-node-2")]}
    server.break_(Fault(body=json.dumps(reply).encode()))
    assert names(source) == ["mine"]


@pytest.mark.parametrize(
    "broken",
    [
        {"metadata": {}, "spec": {}, "status": {}},
        {"metadata": None, "spec": None, "status": None},
        {"spec": {}},
        "pod",
        pod("x") | {"metadata": {"uid": 7, "name": "x", "namespace": "n"}},
        pod("x", deletion_timestamp="yesterday"),
        pod("x", deletion_timestamp="2026-01-01T00:00:00"),
        pod("x", containers=[Container("c", limits={"nvidia.com/gpu": "many"})]),
    ],
)
def test_malformed_pod(source: PodsSource, server: ApiServer, broken: object) -> None:
    """One pod that cannot be read costs that pod, and the list is no longer complete."""
    server.break_(Fault(body=json.dumps({"metadata": {}, "items": [broken, pod("whole")]}).encode()))
    pods, complete, _ = source.read(False)
    assert [one.name for one in pods.pods] == ["whole"]
    assert not complete


def test_list_of_which_more_follows(source: PodsSource, server: ApiServer) -> None:
    """A server that hands out only the first page has not said everything."""
    server.break_(Fault(body=json.dumps({"metadata": {"continue": "x"}, "items": []}).encode()))
    assert not source.read(False)[1]


def test_list_that_goes_back_in_time(source: PodsSource, server: ApiServer, clock: Clock) -> None:
    """A list that is older than the last one, from another server's cache, proves no absence."""
    completes = []
    for version in ("900", "800", "801"):
        reply = {"metadata": {"resourceVersion": version}, "items": []}
        server.break_(Fault(body=json.dumps(reply).encode()))
        clock.now += 100
        completes.append(source.read(False)[1])
    assert completes == [True, False, True]


def test_hostile_names(source: PodsSource, server: ApiServer) -> None:
    """Text of the API is shown as one printable line."""
    server.put(pod("a\n\x1b", labels={"app": "x\ny"}, annotations={"gpu-memory": "1\n"}))
    found = source.read(False)[0].pods[0]
    assert (found.name, found.labels, found.annotations) == (
        "a??",
        (("app", "x?y"),),
        (("gpu-memory", "1?"),),
    )


# --- how often ----------------------------------------------------------------------------------------------


def test_polls_once_a_period(source: PodsSource, server: ApiServer, clock: Clock) -> None:
    """Between polls the list and its time stay what they were."""
    _, _, first = source.read(False)
    for _ in range(5):
        clock.now += 11
        assert source.read(False)[2] == first
    assert server.count() == 1
    clock.now += 6
    assert source.read(False)[2] > first
    assert server.count() == 2


def test_nudge(source: PodsSource, server: ApiServer, clock: Clock) -> None:
    """A nudge is heeded at once, but not twice in ten seconds."""
    source.read(False)
    server.put(pod("train-1", uid=STATIC))
    clock.now += 9
    assert names(source, nudge=True) == ["train-0"]
    clock.now += 1
    assert names(source, nudge=True) == ["train-0", "train-1"]
    assert names(source, nudge=True) == ["train-0", "train-1"]
    assert server.count() == 2


def test_backoff(source: PodsSource, server: ApiServer, clock: Clock) -> None:
    """Failure is repeated, not hidden behind the old list; the server is asked less and less."""
    source.read(False)
    clock.now += 60
    server.fail(500)
    start, asked = clock.now, []
    while clock.now < start + 200:
        before = server.count()
        assert reason(source, nudge=True)[0] is Reason.UNAVAILABLE
        if server.count() > before:
            asked.append(clock.now - start)
        clock.now += 1
    assert asked == [0, 10, 30, 70, 130, 190]
    server.heal()
    clock.now += 60
    assert names(source) == ["train-0"]
    clock.now += 59
    source.read(False)
    assert server.count() == 1 + len(asked) + 1


def test_nodes_do_not_poll_in_step(server: ApiServer) -> None:
    """Two nodes that start together drift apart."""

    def second_poll(seed: int) -> float:
        clock = Clock()
        source = PodsSource(connect(server.kubeconfig), NODE, clock=clock, rng=random.Random(seed))
        source.read(False)
        start, before = clock.now, server.count()
        while server.count() == before:
            clock.now += 0.5
            source.read(False)
        return clock.now - start

    waits = [second_poll(seed) for seed in range(6)]
    assert len(set(waits)) > 3
    assert all(48 <= wait <= 72.5 for wait in waits)


# --- trouble ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (401, Reason.DENIED),
        (403, Reason.DENIED),
        (404, Reason.UNAVAILABLE),
        (410, Reason.UNAVAILABLE),
        (429, Reason.BUSY),
        (500, Reason.UNAVAILABLE),
        (503, Reason.UNAVAILABLE),
        (504, Reason.TIMEOUT),
        (302, Reason.PROTOCOL),
        (204, Reason.PROTOCOL),
    ],
)
def test_statuses(source: PodsSource, server: ApiServer, status: int, expected: Reason) -> None:
    """Every status has a reason, and the text says which it was."""
    server.fail(status)
    got, detail = reason(source)
    assert got is expected
    assert f"HTTP {status}" in detail


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"items": {}}', b"\xff", b"[" * 200_000])
def test_garbage(source: PodsSource, server: ApiServer, body: bytes) -> None:
    """What is no list of pods is a protocol error."""
    server.break_(Fault(body=body))
    assert reason(source)[0] is Reason.PROTOCOL


def test_error_with_hostile_text(source: PodsSource, server: ApiServer) -> None:
    """A message of the server is quoted as one printable line, or not at all."""
    server.break_(Fault(status=403, body=json.dumps({"message": "no\n\x1b"}).encode()))
    assert reason(source)[1].endswith("(no??)")


def test_expired_version_is_asked_again_without(server: ApiServer) -> None:
    """A 410 is the cache's refusal: the same question without resourceVersion follows, once."""
    server.fail(410)
    with pytest.raises(SourceError):
        connect(server.kubeconfig).get("/api/v1/pods", {"resourceVersion": "0", "limit": "1"})
    assert [asked.query for asked in server.requests] == [
        {"resourceVersion": "0", "limit": "1"},
        {"limit": "1"},
    ]


def test_server_down_and_back(source: PodsSource, server: ApiServer, clock: Clock) -> None:
    """A refused connection is unavailable, and the next poll after the outage works."""
    source.read(False)
    server.stop()
    clock.now += 60
    assert reason(source)[0] is Reason.UNAVAILABLE
    server.start()
    clock.now += 10
    assert names(source) == ["train-0"]


@pytest.mark.slow
def test_half_open_connection(source: PodsSource, server: ApiServer) -> None:
    """A server that takes the request and says nothing costs ten seconds."""
    server.break_(Fault(half_open=True))
    start = time.monotonic()
    assert reason(source)[0] is Reason.TIMEOUT
    assert time.monotonic() - start < 12


def test_reply_that_is_too_large(source: PodsSource, server: ApiServer) -> None:
    """A reply over 64 MiB is not read to its end."""
    server.break_(Fault(body=b" " * (65 << 20)))
    assert reason(source)[0] is Reason.PROTOCOL


def test_without_a_node_name(server: ApiServer) -> None:
    """Nobody asks for the pods of no node."""
    got, detail = reason(PodsSource(connect(server.kubeconfig), ""))
    assert (got, server.count()) == (Reason.UNAVAILABLE, 0)
    assert "--node-name" in detail


# --- credentials --------------------------------------------------------------------------------------------


def in_cluster(server: ApiServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Api:
    """An API client as in a pod: a service account's folder and two variables that the library reads."""
    folder.mkdir()
    (folder / "ca.crt").write_bytes((server.kubeconfig.parent / "tls.crt").read_bytes())
    (folder / "token").write_text("first")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    return connect(service_account=folder)


def test_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pod its token and the cluster's authority are used; a new token costs no poll."""
    with Cluster(tmp_path / "api") as server:
        server.put(pod("train-0"))
        api = in_cluster(server, tmp_path / "account", monkeypatch)
        clock = Clock()
        source = PodsSource(api, NODE, clock=clock)
        assert names(source) == ["train-0"]
        server.token = "second"
        (tmp_path / "account/token").write_text("second\n")
        clock.now += 100
        assert names(source) == ["train-0"]


def test_wrong_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that the cluster's authority did not sign gets no token."""
    with Cluster(tmp_path / "api") as server:
        api = in_cluster(server, tmp_path / "account", monkeypatch)
        with ApiServer(tmp_path / "other", tls=True) as other:
            (tmp_path / "account/ca.crt").write_bytes((other.kubeconfig.parent / "tls.crt").read_bytes())
        with pytest.raises(SourceError) as caught:
            api.get("/api/v1/pods")
        assert caught.value.reason is Reason.UNAVAILABLE
        assert "CERTIFICATE_VERIFY_FAILED" in caught.value.detail
        assert not server.requests


def test_token_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that fits in no header is no crash, and is not shown."""
    with Cluster(tmp_path / "api") as server:
        api = in_cluster(server, tmp_path / "account", monkeypatch)
        (tmp_path / "account/token").write_text("sec\nret")
        with pytest.raises(SourceError) as caught:
            api.get("/api/v1/pods")
        assert "ret" not in caught.value.detail.removeprefix("/api/v1/pods")


def test_no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a cluster, or with a kubeconfig that is missing or none, there is no way to the API."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    broken = tmp_path / "broken"
    broken.write_text("- no\n- kubeconfig")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\x00{")
    for api in (connect(), connect(tmp_path / "absent"), connect(broken), connect(binary)):
        with pytest.raises(SourceError) as caught:
            api.get("/api/v1/pods")
        assert caught.value.reason is Reason.UNAVAILABLE
        assert "no way to the Kubernetes API" in caught.value.detail


def test_configuration_that_comes_late(server: ApiServer, tmp_path: Path, clock: Clock) -> None:
    """A kubeconfig that is mounted after the start is taken up by the next poll."""
    late = tmp_path / "late"
    source = PodsSource(connect(late), NODE, clock=clock, rng=Steady())
    assert reason(source)[0] is Reason.UNAVAILABLE
    late.write_bytes(server.kubeconfig.read_bytes())
    clock.now += 10
    assert names(source) == ["train-0"]


def test_typed_models_are_never_loaded(server: ApiServer) -> None:
    """A poll loads none of the library's models; importing the module does not even load the library."""
    script = f"""
import sys, pathlib
from exporter.sources import pods
assert not any(name.partition(".")[0] in ("kubernetes", "urllib3") for name in sys.modules), "too early"
pods.PodsSource(pods.connect(pathlib.Path({str(server.kubeconfig)!r})), {NODE!r}).read(False)
heavy = [n for n in sys.modules if n.startswith(("kubernetes.client.models.", "kubernetes.client.api."))]
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])
