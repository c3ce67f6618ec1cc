"""The kubelet source against a real gRPC server on a unix socket: real replies, and trouble."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from exporter.model import (
    Advisory,
    AllocatableDevice,
    Allocation,
    DeviceRef,
    GpuByMinor,
    GpuByUuid,
    Kubelet,
    KubeletPod,
    MigByPlacement,
    MigByUuid,
    Reason,
    SourceError,
    Unrecognised,
)
from exporter.sources.kubelet import UNSETTLED, KubeletSource
from tests.rig import kubelet as rig
from tests.rig import messages

A = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
B = "GPU-bbbbbbbb-0000-4000-8000-000000000001"
D = "GPU-dddddddd-0000-4000-8000-000000000002"
C0 = "MIG-cccccccc-0000-5000-8000-000000000000"
C1 = "MIG-cccccccc-0000-5000-8000-000000000001"
GPU, SHARED, MIG, DRA = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "gpu.nvidia.com"
WHOLE_NODE = "05-allocatable-while-allocated.txt"


class Clock:
    """Monotonic and wall time that a test moves."""

    def __init__(self) -> None:
        self.offset = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.offset

    def wall(self) -> float:
        return time.time() + self.offset


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a unix socket's may have 107 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def kubelet(folder: Path) -> Iterator[rig.Kubelet]:
    with rig.Kubelet(folder) as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def source(kubelet: rig.Kubelet, clock: Clock) -> KubeletSource:
    """A source whose kubelet has been up for an hour."""
    os.utime(kubelet.socket, (time.time() - 3600, time.time() - 3600))
    return KubeletSource(kubelet.socket, 2.0, clock.monotonic, clock.wall)


def given(namespace: str, pod: str, container: str, device: str, resource: str = GPU) -> Allocation:
    """The allocation of one plainly spelled device."""
    ref: DeviceRef = MigByUuid(device) if device.startswith("MIG") else GpuByUuid(device.partition("::")[0])
    return Allocation(namespace, pod, container, resource, device, ref, device.partition("::")[2])


def reason(source: KubeletSource) -> tuple[Reason, str]:
    with pytest.raises(SourceError) as caught:
        source.read()
    return caught.value.reason, caught.value.detail


# --- replies of real kubelets -------------------------------------------------------------------------------

HELD = (
    given("default", "held-n1", "a", A),
    given("default", "sh-n1", "a", f"{D}::0", SHARED),
    given("default", "sh-n1", "a", f"{D}::3", SHARED),
)
HELD_PODS = (
    KubeletPod("default", "held-n1", ("a",)),
    KubeletPod("default", "plain-n1", ("web",)),
    KubeletPod("default", "sh-n1", ("a",)),
)

RECORDINGS: dict[str, tuple[tuple[KubeletPod, ...], tuple[Allocation, ...]]] = {
    "02-two-gpus-one-container.txt": (
        (KubeletPod("default", "two-gpus-n1", ("main",)),),
        (given("default", "two-gpus-n1", "main", A), given("default", "two-gpus-n1", "main", B)),
    ),
    "03-finished-pod.txt": ((), ()),
    "04-mixed-shared-sidecar-plain.txt": (
        (
            KubeletPod("default", "plain-n1", ("web",)),
            KubeletPod("default", "shared-1-n1", ("a",)),
            KubeletPod("default", "shared-2-n1", ("a",)),
            KubeletPod("default", "side-n1", ("main", "proxy")),
            KubeletPod("team-a", "mixed-n1", ("mig", "none", "one")),
        ),
        (
            given("default", "shared-1-n1", "a", f"{D}::0", SHARED),
            given("default", "shared-1-n1", "a", f"{D}::3", SHARED),
            given("default", "shared-2-n1", "a", f"{D}::1", SHARED),
            given("default", "side-n1", "proxy", f"{D}::2", SHARED),
            given("team-a", "mixed-n1", "mig", C0, MIG),
            given("team-a", "mixed-n1", "mig", C1, MIG),  # on two NUMA nodes, listed twice
            given("team-a", "mixed-n1", "one", A),
        ),
    ),
    "06-init-running.txt": (
        (KubeletPod("default", "initpod-n1", ("main",)),),
        (given("default", "initpod-n1", "main", A),),
    ),
    "07-plugin-dead.txt": (HELD_PODS, HELD),
    "08-kubelet-restarted-plugin-dead.txt": (HELD_PODS, HELD),
    "09-unhealthy-list.txt": (
        (KubeletPod("default", "held-n1", ("a",)),),
        (given("default", "held-n1", "a", A), given("default", "held-n1", "a", B)),
    ),
    "10-api-pod-and-static.txt": (
        (KubeletPod("default", "static-n1", ("main",)), KubeletPod("team-a", "train-0", ("main", "proxy"))),
        (given("default", "static-n1", "main", A), given("team-a", "train-0", "main", B)),
    ),
    "11-recreated-while-old-process-hangs.txt": (
        (KubeletPod("team-a", "hung-0", ("main",)),),
        (given("team-a", "hung-0", "main", A), given("team-a", "hung-0", "main", B)),
    ),
    "12-kubelet-restarted-api-down.txt": (
        (KubeletPod("default", "st-n1", ("m",)),),
        (given("default", "st-n1", "m", f"{D}::0", SHARED),),
    ),
    "13-dra-one-claim-two-requests.txt": (
        (KubeletPod("team-a", "dra-0", ("none", "slice", "whole")),),
        tuple(
            Allocation("team-a", "dra-0", container, DRA, name, ref, claim="team-a/train")
            for container in ("slice", "whole")
            for name, ref in (
                ("gpu-0", GpuByMinor(0)),
                ("gpu-1-mig-1g5gb-19-0", MigByPlacement(1, 19, 0)),
            )
        ),
    ),
    "14-kubelet-1.33-finished-and-new-pod.txt": (
        (KubeletPod("default", "done-n1", ("a",)), KubeletPod("default", "next-n1", ("a",))),
        (given("default", "next-n1", "a", A), given("default", "next-n1", "a", B)),
    ),
}
OFFERED: dict[str, tuple[str, ...]] = {
    "01-allocatable.txt": (A, B, f"{D}::0", f"{D}::1", f"{D}::2", f"{D}::3", C0, C1),
    "05-allocatable-while-allocated.txt": (A, B, f"{D}::0", f"{D}::1", f"{D}::2", f"{D}::3", C0, C1),
    "09-unhealthy-allocatable.txt": (A, f"{D}::0", f"{D}::1", f"{D}::2", f"{D}::3", C0, C1),
}


@pytest.mark.parametrize("name", RECORDINGS)
def test_recorded_list(kubelet: rig.Kubelet, source: KubeletSource, name: str) -> None:
    """A real kubelet's list becomes its pods and one allocation per container and device, in order."""
    kubelet.load(name)
    kubelet.load(WHOLE_NODE, "GetAllocatableResources")
    found, complete = source.read()
    assert (found.pods, found.allocations) == RECORDINGS[name]
    assert complete


@pytest.mark.parametrize("name", OFFERED)
def test_recorded_allocatable(kubelet: rig.Kubelet, source: KubeletSource, name: str) -> None:
    """Allocatable devices are healthy ones, each once, whatever its NUMA nodes."""
    kubelet.load(name, "GetAllocatableResources")
    allocatable = source.read()[0].allocatable
    assert allocatable is not None
    assert tuple(device.device_id for device in allocatable) == OFFERED[name]
    assert allocatable[0] == AllocatableDevice(GPU, A, GpuByUuid(A))
    assert allocatable[-1] == AllocatableDevice(MIG, C1, MigByUuid(C1))


def test_every_recording_is_replayed() -> None:
    """A new recording needs an expectation."""
    there = {path.name for path in rig.RECORDINGS.glob("[0-9]*.txt")}
    assert there == {*RECORDINGS, *OFFERED}


# --- what else may be in a reply ----------------------------------------------------------------------------


def listed(kubelet: rig.Kubelet, source: KubeletSource, *containers: dict[str, Any]) -> Kubelet:
    kubelet.set(pods=[{"name": "p", "namespace": "n", "containers": list(containers)}])
    return source.read()[0]


def test_other_resources_are_dropped(kubelet: rig.Kubelet, source: KubeletSource) -> None:
    """Devices that are no GPUs and DRA devices of other drivers are not ours; their pod is still listed."""
    entries = [
        *messages.devices("rdma/hca", ["mlx5_0"]),
        *messages.devices("nvidia.com/hostdev", ["0000:3b:00.0"]),
        *messages.devices("example.com/renamed", [A]),
    ]
    claims = [
        messages.claim("c", "n", [{"driver_name": "compute-domain.nvidia.com", "device_name": "channel-0"}]),
        messages.claim("d", "n", [{"driver_name": "dra.net", "device_name": "gpu-0"}]),
    ]
    found = listed(kubelet, source, {"name": "c", "devices": entries, "dynamic_resources": claims})
    assert found.allocations == (given("n", "p", "c", A, "example.com/renamed"),)
    assert found.pods == (KubeletPod("n", "p", ("c",)),)


def test_share_of_a_claimed_device(kubelet: rig.Kubelet, source: KubeletSource) -> None:
    """A device with consumable capacity is shared: its share id is the replica."""
    device = {"driver_name": DRA, "pool_name": "n1", "device_name": "gpu-0", "share_id": "a671"}
    claim = messages.claim("c", "n", [device])
    found = listed(kubelet, source, {"name": "c", "dynamic_resources": [claim]})
    assert found.allocations == (Allocation("n", "p", "c", DRA, "gpu-0", GpuByMinor(0), "a671", "n/c"),)


def test_thousands_of_advisory_units(kubelet: rig.Kubelet, source: KubeletSource) -> None:
    """A scheme that has an id for each MiB leaves one allocation for each GPU."""
    ids = [f"{uuid}-_-{unit}" for uuid in (A, B) for unit in range(3000)]
    entry = {"resource_name": "aliyun.com/gpu-mem", "device_ids": ids}
    found = listed(kubelet, source, {"name": "c", "devices": [entry]})
    refs = [Advisory("gpushare", f"{A}-_-0"), Advisory("gpushare", f"{B}-_-0")]
    assert [allocation.ref for allocation in found.allocations] == refs


def test_unknown_and_hostile_text(kubelet: rig.Kubelet, source: KubeletSource) -> None:
    """An id that nobody knows is kept, and no text can break a line."""
    entry = {"resource_name": "nvidia.com/gpu", "device_ids": ["x\n\x1b[31m"]}
    found = listed(kubelet, source, {"name": "c\n", "devices": [entry]})
    unknown = Unrecognised("x??[31m")
    assert found.allocations == (Allocation("n", "p", "c?", GPU, "x??[31m", unknown),)


def test_long_pod_name(kubelet: rig.Kubelet, source: KubeletSource) -> None:
    """A pod's name may have 253 characters, all of which the join with the API needs."""
    kubelet.set(pods=[{"name": "p" * 253, "namespace": "n"}])
    assert source.read()[0].pods == (KubeletPod("n", "p" * 253, ()),)


# --- trouble ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "no", Reason.DENIED),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit", Reason.BUSY),
        (grpc.StatusCode.UNIMPLEMENTED, "unknown service", Reason.UNAVAILABLE),
        (grpc.StatusCode.INTERNAL, "oops\n\x1b", Reason.PROTOCOL),
        (grpc.StatusCode.UNKNOWN, "PodResources API List method disabled", Reason.PROTOCOL),
    ],
)
@pytest.mark.parametrize("method", ["List", "GetAllocatableResources"])
def test_error_codes(
    kubelet: rig.Kubelet,
    source: KubeletSource,
    method: str,
    code: grpc.StatusCode,
    text: str,
    expected: Reason,
) -> None:
    """Each error of either call has its reason, unless it says that the second is not on offer."""
    kubelet.fail(method, code, text)
    if method == "GetAllocatableResources" and (
        code is grpc.StatusCode.UNIMPLEMENTED or text.endswith("disabled")
    ):
        found, complete = source.read()
        assert found.allocatable is None
        assert complete
        return
    got, detail = reason(source)
    assert got is expected
    assert detail.isprintable()
    assert method in detail


def test_missing_allocatable_is_logged_once(
    kubelet: rig.Kubelet, source: KubeletSource, caplog: pytest.LogCaptureFixture
) -> None:
    """A kubelet without the call is a fact, told once, and again only after it had it."""
    caplog.set_level(logging.INFO)
    kubelet.disable("GetAllocatableResources")
    for _ in range(3):
        assert source.read()[0].allocatable is None
    assert len(caplog.records) == 1
    kubelet.heal()
    source.read()
    kubelet.fail("GetAllocatableResources", grpc.StatusCode.UNKNOWN, "method disabled")
    source.read()
    assert len(caplog.records) == 2


@pytest.mark.parametrize("method", ["List", "GetAllocatableResources"])
def test_mute_kubelet(kubelet: rig.Kubelet, clock: Clock, method: str) -> None:
    """A kubelet that takes the call and never answers costs the time allowed, for both calls together."""
    kubelet.mute(method)
    start = time.monotonic()
    assert reason(KubeletSource(kubelet.socket, 0.5))[0] is Reason.TIMEOUT
    assert 0.4 < time.monotonic() - start < 1.5


def test_deaf_listener(kubelet: rig.Kubelet) -> None:
    """A listener that accepts and says nothing is a timeout too."""
    kubelet.deaf()
    assert reason(KubeletSource(kubelet.socket, 0.5))[0] is Reason.TIMEOUT


def test_reply_over_the_limit(kubelet: rig.Kubelet, source: KubeletSource) -> None:
    """A reply over 16 MiB is no rate limit, though it has the same code."""
    kubelet.huge()
    got, detail = reason(source)
    assert got is Reason.PROTOCOL
    assert "16 MiB" in detail


def test_large_reply(kubelet: rig.Kubelet, source: KubeletSource) -> None:
    """A reply over gRPC's own default of 4 MiB is read."""
    kubelet.set(pods=[{"name": f"p{i:05}", "namespace": "n" * 63} for i in range(80_000)])
    assert len(source.read()[0].pods) == 80_000


@pytest.mark.parametrize("method", ["List", "GetAllocatableResources"])
@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x0a\x04\x0a\x02\xff\xfe"])
def test_garbage(kubelet: rig.Kubelet, source: KubeletSource, method: str, garbage: bytes) -> None:
    """Bytes that are no message, and text that is none, are a protocol error and no log."""
    kubelet.set_raw(method, garbage)
    assert reason(source) == (Reason.PROTOCOL, f"{method}: the reply cannot be decoded")


def test_no_connection_says_why(kubelet: rig.Kubelet, source: KubeletSource, folder: Path) -> None:
    """Absent, refused and not a socket are told apart."""
    kubelet.stop()
    assert reason(source)[1].startswith("nobody listens at ")
    kubelet.socket.unlink()
    assert reason(source)[1].startswith("no socket at ")
    kubelet.socket.write_text("")
    assert reason(source)[1].endswith(" is not a socket")
    assert reason(KubeletSource(folder / "nowhere/kubelet.sock"))[0] is Reason.UNAVAILABLE
    assert reason(KubeletSource(folder / ("x" * 120)))[0] is Reason.UNAVAILABLE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("mode", [0o750, 0o755])
def test_denied(kubelet: rig.Kubelet, folder: Path, mode: int) -> None:
    """Without uid 0 neither the kubelet's directory nor its socket can be used, and the text says so."""
    folder.chmod(0o755)
    kubelet.socket.parent.chmod(mode)
    kubelet.socket.chmod(0o755)
    os.seteuid(65534)
    try:
        got, detail = reason(KubeletSource(kubelet.socket, 2.0))
    finally:
        os.seteuid(0)
    assert got is Reason.DENIED
    assert "uid 0" in detail


# --- is it the whole truth ----------------------------------------------------------------------------------


def test_restart_between_two_reads(kubelet: rig.Kubelet, source: KubeletSource) -> None:
    """The first answer from a new socket is not complete, though no call was ever refused."""
    kubelet.load(WHOLE_NODE, "GetAllocatableResources")
    assert source.read()[1]
    kubelet.restart()
    assert not source.read()[1]
    assert source.read()[1]


def test_restart_that_was_seen(kubelet: rig.Kubelet, source: KubeletSource) -> None:
    """The first answer after a refused call is not complete."""
    kubelet.load(WHOLE_NODE, "GetAllocatableResources")
    source.read()
    kubelet.stop()
    reason(source)
    kubelet.start()
    assert not source.read()[1]
    assert source.read()[1]


def test_trouble_that_is_no_restart(kubelet: rig.Kubelet, source: KubeletSource) -> None:
    """A slow or busy kubelet has forgotten nothing."""
    kubelet.load(WHOLE_NODE, "GetAllocatableResources")
    source.read()
    kubelet.fail("List", grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
    reason(source)
    kubelet.heal()
    assert source.read()[1]


@pytest.mark.parametrize(("age", "complete"), [(5.0, False), (UNSETTLED + 5, True), (-60.0, False)])
def test_our_own_start(kubelet: rig.Kubelet, age: float, complete: bool) -> None:
    """When we start, a young socket means a kubelet that may not have its pods yet."""
    kubelet.load(WHOLE_NODE, "GetAllocatableResources")
    os.utime(kubelet.socket, (time.time() - age, time.time() - age))
    source = KubeletSource(kubelet.socket, 2.0)
    assert source.read()[1] is complete
    assert source.read()[1]


def test_plugin_dies(kubelet: rig.Kubelet, source: KubeletSource, clock: Clock) -> None:
    """Nothing on offer may be a restart; after three minutes it is a dead plugin, and List is right."""
    kubelet.load("07-plugin-dead.txt")
    kubelet.load(WHOLE_NODE, "GetAllocatableResources")
    assert source.read()[1]
    kubelet.set(allocatable=())
    found, complete = source.read()
    assert found.allocatable == ()
    assert found.allocations == HELD
    assert not complete
    clock.offset = UNSETTLED - 10
    assert not source.read()[1]
    clock.offset = UNSETTLED + 10
    assert source.read()[1]


def test_node_without_plugin(kubelet: rig.Kubelet, source: KubeletSource, clock: Clock) -> None:
    """A node that never offers a GPU is believed after three minutes, and doubted anew after a restart."""
    kubelet.set(allocatable=messages.devices("rdma/hca", ["mlx5_0"]))
    assert not source.read()[1]
    clock.offset = UNSETTLED + 10
    assert source.read()[1]
    kubelet.restart()
    assert not source.read()[1]
    assert not source.read()[1]


def test_recorded_restart(kubelet: rig.Kubelet, source: KubeletSource) -> None:
    """A restart as recorded: refused, nothing, one pod of three, all. Only the last answer is complete."""
    whole = messages.load_text(
        rig.RECORDINGS / "05-allocatable-while-allocated.txt", rig.RESPONSES["GetAllocatableResources"]
    )
    kubelet.load("07-plugin-dead.txt")
    kubelet.set(allocatable=whole)
    source.read()
    kubelet.stop()
    reason(source)
    kubelet.start()
    nothing = messages.message(rig.RESPONSES["List"])
    one = messages.message(
        rig.RESPONSES["List"], pod_resources=[{"name": "plain-n1", "namespace": "default"}]
    )
    kubelet.queue("List", nothing, one)
    kubelet.queue("GetAllocatableResources", b"", b"")
    verdicts = [source.read() for _ in range(3)]
    assert [(len(found.pods), complete) for found, complete in verdicts] == [
        (0, False),
        (1, False),
        (3, True),
    ]
