"""A kubelet's pod-resources endpoint: a real gRPC server on a real unix socket.

Real: the transport, the socket file and its directory (0750), how it comes and goes: a kubelet makes its
socket under another name and renames it into place; when it dies the file stays and refuses; when it starts
again there is a new inode. Stand-in: the answers, which tests set as messages, recordings or raw bytes.
Not modelled: the rate limit (set a RESOURCE_EXHAUSTED fault) and v1alpha1.
"""

from __future__ import annotations

import collections
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf.message import Message

from tests.rig import messages
from tests.rig.errors import RigError

RECORDINGS = Path(__file__).parents[1] / "recordings"
REQUESTS = {
    "List": "ListPodResourcesRequest",
    "GetAllocatableResources": "AllocatableResourcesRequest",
    "Get": "GetPodResourcesRequest",
}
RESPONSES = {
    "List": "ListPodResourcesResponse",
    "GetAllocatableResources": "AllocatableResourcesResponse",
    "Get": "GetPodResourcesResponse",
}
WORKERS = 8
LIMIT = 107

Reply = bytes | Message


@dataclass(frozen=True, slots=True)
class Fault:
    """What a method does instead of answering: an error, after a delay; `mute` never answers."""

    code: grpc.StatusCode | None = None
    text: str = ""
    delay: float = 0.0
    mute: bool = False


class Kubelet:
    """A kubelet under `root` (the kubelet's root directory). Starts at once; `close` ends it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.socket = root / "pod-resources" / "kubelet.sock"
        self._hidden = root / "starting"
        if len(os.fsencode(self.socket)) > LIMIT:
            raise RigError(f"socket path over {LIMIT} bytes: {self.socket} (use a shorter root)")
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self.socket.parent.chmod(0o750)
        self._hidden.mkdir(exist_ok=True)
        self._lock = threading.Lock()
        self._released = threading.Event()
        self._numbers = itertools.count()
        self._frames: dict[str, list[tuple[float, bytes]]] = {}
        self._queues: dict[str, collections.deque[bytes]] = {
            method: collections.deque() for method in REQUESTS
        }
        self._faults: dict[str, Fault] = {}
        self._pods: list[Message] = []
        self._server: grpc.Server | None = None
        self._deaf: socket.socket | None = None
        self.calls: collections.Counter[str] = collections.Counter()
        self.set(pods=(), allocatable=())
        self.start()

    # ------------------------------------------------------------ answers

    def set(
        self,
        *,
        pods: Iterable[dict[str, Any]] | Message | None = None,
        allocatable: Iterable[dict[str, Any]] | Message | None = None,
    ) -> None:
        """Answer List and Get with these pods, GetAllocatableResources with these device entries."""
        if pods is not None:
            reply = (
                pods if isinstance(pods, Message) else messages.message(RESPONSES["List"], pod_resources=pods)
            )
            self._pods = list(reply.pod_resources)  # type: ignore[attr-defined]
            self.set_raw("List", reply.SerializeToString())
        if allocatable is not None:
            if not isinstance(allocatable, Message):
                allocatable = messages.message(RESPONSES["GetAllocatableResources"], devices=allocatable)
            self.set_raw("GetAllocatableResources", allocatable.SerializeToString())

    def set_raw(self, method: str, reply: bytes) -> None:
        """Answer a method with these bytes, whatever they are."""
        self.play(method, [(0.0, reply)])

    def load(self, name: str, method: str = "List", folder: Path = RECORDINGS) -> None:
        """Answer a method with a recorded reply in protobuf text form."""
        reply = messages.load_text(folder / name, RESPONSES[method])
        if method == "List":
            self.set(pods=reply)
        else:
            self.set(allocatable=reply)

    def play(self, method: str, frames: Iterable[tuple[float, Reply]]) -> None:
        """Answer with the frame that is due: (seconds from now, reply), in order of time; the last stays."""
        start = time.monotonic()
        timed = [(start + seconds, _encode(reply)) for seconds, reply in frames]
        with self._lock:
            self._frames[method] = timed

    def queue(self, method: str, *replies: Reply) -> None:
        """Answer the next calls with these replies, one each, before anything else."""
        with self._lock:
            self._queues[method].extend(_encode(reply) for reply in replies)

    # ------------------------------------------------------------ faults

    def fail(self, method: str, code: grpc.StatusCode, text: str = "", delay: float = 0.0) -> None:
        """Answer with an error."""
        self._faults[method] = Fault(code=code, text=text, delay=delay)

    def disable(self, method: str) -> None:
        """The method does not exist, as in older kubelets: UNIMPLEMENTED."""
        self.fail(
            method, grpc.StatusCode.UNIMPLEMENTED, f"unknown method {method} for service {messages.SERVICE}"
        )

    def delay(self, method: str, seconds: float) -> None:
        """Answer late."""
        self._faults[method] = Fault(delay=seconds)

    def mute(self, method: str = "List") -> None:
        """Take the call and never answer; heal or close ends it."""
        self._faults[method] = Fault(mute=True)

    def huge(self, method: str = "List", size: int = 17 << 20) -> None:
        """Answer with a valid message over 16 MiB."""
        name = "x" * (size - 64)
        if method == "List":
            reply = messages.message(RESPONSES[method], pod_resources=[{"name": name}])
        else:
            reply = messages.message(RESPONSES[method], devices=[{"resource_name": name}])
        self.set_raw(method, reply.SerializeToString())

    def heal(self) -> None:
        """End all faults of methods."""
        self._faults.clear()
        self._released.set()
        self._released = threading.Event()

    # ------------------------------------------------------------ the process

    def start(self) -> None:
        """Start, as a kubelet does: a new socket, renamed into place."""
        if self._server is not None or self._deaf is not None:
            raise RigError("the kubelet is running already")
        pool = futures.ThreadPoolExecutor(WORKERS, thread_name_prefix="rig-kubelet")
        server = grpc.server(pool, options=[("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)])
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(self._handler(name)) for name in REQUESTS
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(messages.SERVICE, handlers)])
        path = self._hidden / f"{next(self._numbers)}"
        server.add_insecure_port(f"unix:{path}")
        server.start()
        path.rename(self.socket)
        self._server = server

    def stop(self, *, keep_socket: bool = True) -> None:
        """Die. The socket file stays and refuses, unless it is removed too."""
        self.heal()
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None
        if self._deaf is not None:
            self._deaf.close()
            self._deaf = None
        if not keep_socket:
            self.socket.unlink(missing_ok=True)

    def restart(self, down: float = 0.0) -> None:
        """Die and start again with a new inode."""
        self.stop()
        time.sleep(down)
        self.start()

    def deaf(self) -> None:
        """Die, and let a listener take its place that accepts connections and never says a byte."""
        self.stop()
        path = self._hidden / f"{next(self._numbers)}"
        self._deaf = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._deaf.bind(os.fspath(path))
        self._deaf.listen(64)
        path.rename(self.socket)

    def close(self) -> None:
        """End for good."""
        self.stop(keep_socket=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ serving

    def _handler(self, method: str) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def handle(request: bytes, context: grpc.ServicerContext) -> bytes:
            with self._lock:
                self.calls[method] += 1
            self._suffer(self._faults.get(method, Fault()), context)
            return self._get(request, context) if method == "Get" else self._answer(method)

        return handle

    def _suffer(self, fault: Fault, context: grpc.ServicerContext) -> None:
        released = self._released
        if fault.mute:
            while context.is_active() and not released.wait(0.1):
                pass
            context.abort(grpc.StatusCode.UNAVAILABLE, "shutting down")
        if fault.delay:
            released.wait(fault.delay)
        if fault.code is not None:
            context.abort(fault.code, fault.text)

    def _answer(self, method: str) -> bytes:
        now = time.monotonic()
        with self._lock:
            if self._queues[method]:
                return self._queues[method].popleft()
            frames = self._frames[method]
        return [reply for at, reply in frames if at <= now or at == frames[0][0]][-1]

    def _get(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        wanted: Any = messages.MESSAGES[REQUESTS["Get"]]()
        wanted.ParseFromString(request)
        listed: list[Any] = list(self._pods)
        names = (wanted.pod_namespace, wanted.pod_name)
        found = next((pod for pod in listed if (pod.namespace, pod.name) == names), None)
        if found is None:
            text = f"pod {wanted.pod_name} in namespace {wanted.pod_namespace} not found"
            context.abort(grpc.StatusCode.UNKNOWN, text)
        return messages.message(RESPONSES["Get"], pod_resources=found).SerializeToString()


def _encode(reply: Reply) -> bytes:
    return reply if isinstance(reply, bytes) else reply.SerializeToString()
