"""Source kubelet: which container was given which GPU, and which GPUs the kubelet offers.

What comes in is the kubelet's pod-resources socket (package v1, kubelets 1.20 and later): one List and one
GetAllocatableResources per read, over a channel of their own, because a kept channel takes up to two minutes
to notice that a kubelet is back. What goes out is a Kubelet record and whether it is the whole truth. It must
never take a fresh kubelet's word that a pod is gone: after a restart List answers OK with pods missing, for
as long as the API server is down.
"""

from __future__ import annotations

import errno
import logging
import os
import socket as sockets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError

from exporter import device_ids
from exporter.model import (
    Advisory,
    AllocatableDevice,
    Allocation,
    DeviceRef,
    Kubelet,
    KubeletPod,
    Reason,
    SourceError,
)
from exporter.sources.podresources import podresources_pb2 as api
from exporter.text import NAME_LIMIT, printable

SERVICE = "/v1.PodResourcesLister/"
REPLY_LIMIT = 16 * 2**20  # bytes; what upstream's own clients allow (kubelet/pkg/apis/podresources/client.go)
UNSETTLED = 180.0  # seconds for which a kubelet without history, or without devices, is not believed

# A code that stands in no row is an answer that cannot be understood.
REASONS: dict[grpc.StatusCode, tuple[Reason, str]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: (Reason.TIMEOUT, "no answer within the time allowed"),
    grpc.StatusCode.UNAVAILABLE: (Reason.UNAVAILABLE, "no connection"),
    grpc.StatusCode.PERMISSION_DENIED: (Reason.DENIED, "the kubelet refuses"),
    grpc.StatusCode.UNAUTHENTICATED: (Reason.DENIED, "the kubelet refuses"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (Reason.BUSY, "rejected by the kubelet's rate limit"),
    grpc.StatusCode.UNIMPLEMENTED: (
        Reason.UNAVAILABLE,
        "no pod-resources API v1; kubelet 1.20 or later is needed",
    ),
}
OPTIONS = (
    ("grpc.max_receive_message_length", REPLY_LIMIT),
    ("grpc.enable_http_proxy", 0),
    ("grpc.default_authority", "localhost"),  # else the percent-encoded path, which strict servers refuse
)

_log = logging.getLogger(__name__)
_Reply = TypeVar("_Reply", api.ListPodResourcesResponse, api.AllocatableResourcesResponse)


@dataclass(frozen=True, slots=True)
class _Listener:
    """Which socket it was: each start of a kubelet makes a new one, and file systems reuse inode numbers."""

    device: int
    inode: int
    made_ns: int


class KubeletSource:
    """The pod-resources socket of one kubelet. `seconds` bounds both calls of a read together."""

    name = "kubelet"

    def __init__(
        self,
        socket: Path,
        seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._socket = socket
        self._seconds = seconds
        self._clock = clock
        self._wall = wall
        self._listener: _Listener | None = None
        self._refused = False
        self._empty_since: float | None = None
        self._no_allocatable = False
        # The last answers as they came, and what they say: they change when a pod comes or goes.
        self._understood: tuple[tuple[bytes, bytes | None], Kubelet] | None = None

    def read(self) -> tuple[Kubelet, bool]:
        """Return what the kubelet says and whether an absent pod may be taken as gone; raises SourceError."""
        listener = self._look()
        deadline = self._clock() + self._seconds
        try:
            kubelet = self._meaning(*self._ask(deadline))
        except SourceError as error:
            self._refused = self._refused or error.reason is Reason.UNAVAILABLE
            raise
        return kubelet, self._complete(listener, kubelet)

    def _meaning(self, list_reply: bytes, offer_reply: bytes | None) -> Kubelet:
        """What the replies say. They are decoded here: gRPC would log a decoder's error with a traceback."""
        replies = (list_reply, offer_reply)
        if self._understood is not None and self._understood[0] == replies:
            return self._understood[1]
        listed = _decoded("List", api.ListPodResourcesResponse, list_reply)
        offered = None
        if offer_reply is not None:
            offered = _decoded("GetAllocatableResources", api.AllocatableResourcesResponse, offer_reply)
        kubelet = Kubelet(
            pods=tuple(sorted(_pods(listed), key=lambda pod: (pod.namespace, pod.name))),
            allocations=_allocations(listed),
            allocatable=None if offered is None else _allocatable(offered),
        )
        self._understood = (replies, kubelet)
        return kubelet

    # --- one conversation ---

    def _look(self) -> _Listener:
        """Return which socket stands there now."""
        try:
            found = self._socket.stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            self._refused = True
            text = f"no socket at {self._socket}; is the kubelet down, or its root directory elsewhere?"
            raise SourceError(Reason.UNAVAILABLE, text) from error
        except PermissionError as error:
            text = f"may not look into {self._socket.parent}; uid 0 is needed"
            raise SourceError(Reason.DENIED, text) from error
        except OSError as error:
            raise SourceError(Reason.UNAVAILABLE, f"{self._socket}: {error.strerror}") from error
        if not stat.S_ISSOCK(found.st_mode):
            raise SourceError(Reason.UNAVAILABLE, f"{self._socket} is not a socket")
        return _Listener(found.st_dev, found.st_ino, found.st_mtime_ns)

    def _ask(self, deadline: float) -> tuple[bytes, bytes | None]:
        """The replies to both calls, the second None where this kubelet has no such call."""
        with grpc.insecure_channel(f"unix:{quote(os.fspath(self._socket))}", options=OPTIONS) as channel:
            try:
                listed = self._call(channel, "List", api.ListPodResourcesRequest(), deadline)
            except grpc.RpcError as error:
                raise self._failure("List", error) from error
            try:
                request = api.AllocatableResourcesRequest()
                offered = self._call(channel, "GetAllocatableResources", request, deadline)
            except grpc.RpcError as error:
                if not _not_offered(error):
                    raise self._failure("GetAllocatableResources", error) from error
                if not self._no_allocatable:
                    _log.info("this kubelet does not offer GetAllocatableResources")
                self._no_allocatable = True
                return listed, None
        self._no_allocatable = False
        return listed, offered

    def _call(
        self,
        channel: grpc.Channel,
        method: str,
        request: api.ListPodResourcesRequest | api.AllocatableResourcesRequest,
        deadline: float,
    ) -> bytes:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(SERVICE + method, _same, _same)
        return call(request.SerializeToString(), timeout=max(deadline - self._clock(), 0.001))

    def _failure(self, method: str, error: grpc.RpcError) -> SourceError:
        code, text = error.code(), printable(error.details() or "")
        reason, meaning = REASONS.get(code, (Reason.PROTOCOL, "unexpected error"))
        if code is grpc.StatusCode.UNAVAILABLE:
            return SourceError(*self._refusal(text))
        # The client's own limit has the same code as the server's rate limit (grpc, message_size_filter.cc).
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text:
            reason, meaning = Reason.PROTOCOL, f"a reply of more than {REPLY_LIMIT // 2**20} MiB"
        return SourceError(reason, f"{method}: {meaning} ({code.name}: {text})")

    def _refusal(self, text: str) -> tuple[Reason, str]:
        """Say why no connection came about, by the error number that gRPC keeps to itself."""
        try:
            with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
                probe.settimeout(0.5)
                probe.connect(os.fspath(self._socket))
        except PermissionError:
            return Reason.DENIED, f"may not connect to {self._socket}; uid 0 is needed"
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                return Reason.UNAVAILABLE, f"nobody listens at {self._socket}; is the kubelet down?"
            return Reason.UNAVAILABLE, f"{self._socket}: {error.strerror or error}"
        return Reason.UNAVAILABLE, f"the connection to {self._socket} ended ({text})"

    # --- is it the whole truth ---

    def _complete(self, listener: _Listener, kubelet: Kubelet) -> bool:
        """Whether a pod that is not listed is gone.

        False in the first answer of a kubelet that was away or has a new socket, and of a young one when we
        start ourselves: its list fills over seconds, or not before the API server is back. The history makes
        a grace period of that answer.

        False also while no GPU is offered, for the first UNSETTLED seconds: plugins register anew after a
        restart, and which of a restart, a dead plugin and a node without one it is cannot be told. Longer
        than that, the plugin is dead or there is none. Neither changes List (a dead plugin's allocations
        stay), and to distrust it for ever would leave every such node without verdicts.
        """
        now = self._clock()
        if self._listener is None:
            restarted = self._wall() - listener.made_ns / 1e9 < UNSETTLED
        else:
            restarted = listener != self._listener
        restarted = restarted or self._refused
        self._listener, self._refused = listener, False
        if kubelet.allocatable is None or kubelet.allocatable:
            self._empty_since = None
        elif self._empty_since is None or restarted:
            self._empty_since = now
        empty = self._empty_since is not None and now - self._empty_since < UNSETTLED
        return not (restarted or empty)


def _decoded(method: str, reply: type[_Reply], raw: bytes) -> _Reply:
    try:
        return reply.FromString(raw)
    except DecodeError as error:
        raise SourceError(Reason.PROTOCOL, f"{method}: the reply cannot be decoded") from error


def _same(raw: bytes) -> bytes:
    return raw


def _not_offered(error: grpc.RpcError) -> bool:
    """Whether a kubelet is too old for a call, or has it switched off by a feature gate (code UNKNOWN)."""
    disabled = error.code() is grpc.StatusCode.UNKNOWN and "disabled" in (error.details() or "")
    return disabled or error.code() is grpc.StatusCode.UNIMPLEMENTED


# --- messages to records ------------------------------------------------------------------------------------


def _pods(listed: api.ListPodResourcesResponse) -> Iterator[KubeletPod]:
    for pod in listed.pod_resources:
        names = sorted(printable(container.name) for container in pod.containers)
        yield KubeletPod(printable(pod.namespace), printable(pod.name, NAME_LIMIT), tuple(names))


def _allocations(listed: api.ListPodResourcesResponse) -> tuple[Allocation, ...]:
    """One per container and device, which the kubelet lists once per NUMA node."""
    found: dict[tuple[object, ...], Allocation] = {}
    for pod in listed.pod_resources:
        for container in pod.containers:
            where = (printable(pod.namespace), printable(pod.name, NAME_LIMIT), printable(container.name))
            for resource, device_id, ref, replica, claim in sorted(
                _devices(container), key=lambda d: (*d[:2], d[4])
            ):
                found.setdefault(
                    (*where, resource, _identity(device_id, ref, replica)),
                    Allocation(*where, resource, device_id, ref, replica, claim),
                )
    return tuple(
        sorted(found.values(), key=lambda a: (a.namespace, a.pod, a.container, a.resource, a.device_id))
    )


def _devices(container: api.ContainerResources) -> Iterator[tuple[str, str, DeviceRef, str, str]]:
    """Resource or driver, id, what it means, replica mark and claim of each device."""
    yield from ((*device, "") for device in _plugin_devices(container.devices))
    for claim in container.dynamic_resources:
        # cdi_devices repeats those of the entries before it (kubelet 1.31-1.36), so only the names count.
        for device in claim.claim_resources:
            ref = device_ids.parse_dra(device.driver_name, device.device_name)
            if ref is not None:
                names = printable(device.driver_name), printable(device.device_name)
                claimed = printable(f"{claim.claim_namespace}/{claim.claim_name}", 2 * NAME_LIMIT)
                yield (*names, ref, printable(device.share_id), claimed)


def _plugin_devices(entries: Iterable[api.ContainerDevices]) -> Iterator[tuple[str, str, DeviceRef, str]]:
    for entry in entries:
        for device_id in entry.device_ids:
            if device_ids.is_gpu(entry.resource_name, device_id):
                ref, replica = device_ids.parse(entry.resource_name, device_id)
                yield printable(entry.resource_name), printable(device_id), ref, replica


def _allocatable(offered: api.AllocatableResourcesResponse) -> tuple[AllocatableDevice, ...]:
    found: dict[tuple[object, ...], AllocatableDevice] = {}
    for resource, device_id, ref, replica in sorted(_plugin_devices(offered.devices), key=lambda d: d[:2]):
        key = (resource, _identity(device_id, ref, replica))
        found.setdefault(key, AllocatableDevice(resource, device_id, ref))
    return tuple(sorted(found.values(), key=lambda d: (d.resource, d.device_id)))


def _identity(device_id: str, ref: DeviceRef, replica: str) -> str:
    """What makes two ids two devices. Advisory schemes have one id per MiB: there the GPU counts."""
    return device_id.removesuffix(replica) if isinstance(ref, Advisory) else f"{device_id} {replica}"
