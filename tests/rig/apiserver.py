"""A Kubernetes API server for pods and nodes: real HTTP (or TLS) on a real socket of 127.0.0.1.

Real: the transport, the certificate check, field selectors, chunked lists, gzip above 128 KiB, Status objects
for errors. Stand-in: the store behind it. Not modelled: watch, writes, access rights beyond one bearer token.
A list with resourceVersion=0 is served whole whatever its limit, as the watch cache of a real server does.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from tests.rig.errors import RigError
from tests.rig.objects import Json

REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 410: "Expired", 429: "TooManyRequests"}
GZIP_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """One request that came in; `at` is time.monotonic()."""

    at: float
    path: str
    query: dict[str, str]
    agent: str


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens instead of, or before, the answer."""

    status: int | None = None
    delay: float = 0.0
    half_open: bool = False
    body: bytes | None = None


class ApiServer:
    """An API server that starts at once. Its store: `pods` by (namespace, name), `nodes` by name."""

    def __init__(self, folder: Path, *, token: str | None = None, tls: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.kubeconfig = folder / "kubeconfig"
        self.token = token
        self.pods: dict[tuple[str, str], Json] = {}
        self.nodes: dict[str, Json] = {}
        self.requests: list[Request] = []
        self.fault = Fault()
        self._fault_path = "/"
        self._released = threading.Event()
        self._open: set[socket.socket] = set()
        self._certificate = _make_certificate(folder) if tls else None
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self.port = 0
        self.start()
        self._write_kubeconfig()

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"{'https' if self._certificate else 'http'}://127.0.0.1:{self.port}"

    # ------------------------------------------------------------ store

    def put(self, *objects: Json) -> None:
        """Add or replace pods and nodes."""
        for one in objects:
            metadata = one["metadata"]
            if one["kind"] == "Pod":
                self.pods[metadata["namespace"], metadata["name"]] = one
            else:
                self.nodes[metadata["name"]] = one

    def delete_pod(self, namespace: str, name: str) -> None:
        """Remove a pod's object."""
        del self.pods[namespace, name]

    def count(self, path: str = "/api/v1/pods") -> int:
        """How many requests came in for a path."""
        return sum(request.path == path for request in self.requests)

    # ------------------------------------------------------------ faults

    def break_(self, fault: Fault, path: str = "/") -> None:
        """Suffer this fault in every request whose path starts so."""
        self.fault = fault
        self._fault_path = path

    def fail(self, status: int, path: str = "/") -> None:
        """Answer with this HTTP status and a Status object."""
        self.break_(Fault(status=status), path)

    def heal(self) -> None:
        """End the fault."""
        self.fault = Fault()
        self._released.set()
        self._released = threading.Event()

    def stop(self) -> None:
        """Go down: connections end and the port refuses."""
        self.heal()
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server = self._thread = None

    def start(self) -> None:
        """Come up, on the port it had before."""
        self._server = _Server(("127.0.0.1", self.port), _handler(self))
        if self._certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self._certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Go down for good."""
        self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ answers

    def answer(self, path: str, query: dict[str, str], token: str | None) -> tuple[int, Json]:
        """Status and object for a GET."""
        if self.token is not None and (token or "").lower() != f"bearer {self.token}".lower():
            return 401, status_object(401, "Unauthorized")
        parts = path.strip("/").split("/")
        match parts:
            case ["api", "v1", "pods"]:
                return self._list("PodList", list(self.pods.values()), query)
            case ["api", "v1", "namespaces", namespace, "pods"]:
                chosen = [one for (where, _), one in self.pods.items() if where == namespace]
                return self._list("PodList", chosen, query)
            case ["api", "v1", "namespaces", namespace, "pods", name]:
                return _one(self.pods.get((namespace, name)), "pods", name)
            case ["api", "v1", "nodes"]:
                return self._list("NodeList", list(self.nodes.values()), query)
            case ["api", "v1", "nodes", name]:
                return _one(self.nodes.get(name), "nodes", name)
            case _:
                return 404, status_object(404, "the server could not find the requested resource")

    @staticmethod
    def _list(kind: str, objects: list[Json], query: dict[str, str]) -> tuple[int, Json]:
        if query.get("watch") in {"1", "true"}:
            return 400, status_object(400, "this server does not watch")
        try:
            chosen = [one for one in objects if _selected(one, query.get("fieldSelector", ""))]
        except KeyError as error:
            return 400, status_object(400, f"field label not supported: {error.args[0]}")
        items = [{k: v for k, v in one.items() if k not in {"kind", "apiVersion"}} for one in chosen]
        metadata: Json = {"resourceVersion": "5000"}
        limit = int(query.get("limit", "0"))
        if limit and query.get("resourceVersion") != "0":
            start = int(query.get("continue") or 0)
            rest = len(items) - start - limit
            items = items[start : start + limit]
            if rest > 0:
                metadata |= {"continue": str(start + limit), "remainingItemCount": rest}
        return 200, {"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items}

    def suffer(self, path: str) -> Fault:
        """Wait through the fault, if it concerns this path, and return it."""
        fault = self.fault if path.startswith(self._fault_path) else Fault()
        if fault.half_open:
            self._released.wait()
        elif fault.delay:
            self._released.wait(fault.delay)
        return fault

    def _write_kubeconfig(self) -> None:
        cluster: Json = {"server": self.url}
        if self._certificate is not None:
            cluster["certificate-authority"] = str(self._certificate[0])
        user = {} if self.token is None else {"token": self.token}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "rig", "cluster": cluster}],
            "users": [{"name": "rig", "user": user}],
            "contexts": [{"name": "rig", "context": {"cluster": "rig", "user": "rig"}}],
            "current-context": "rig",
        }
        self.kubeconfig.write_text(json.dumps(config, indent=2))
        self.kubeconfig.chmod(0o600)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle of an answer is part of the game."""


def _handler(owner: ApiServer) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            owner._open.add(self.connection)

        def finish(self) -> None:
            owner._open.discard(self.connection)
            super().finish()

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
            owner.requests.append(
                Request(time.monotonic(), parts.path, query, self.headers.get("User-Agent", ""))
            )
            fault = owner.suffer(parts.path)
            if fault.half_open:
                self.close_connection = True
            elif fault.body is not None:
                self._send(fault.status or 200, fault.body)
            elif fault.status is not None:
                self._send(fault.status, json.dumps(status_object(fault.status, "injected")).encode())
            else:
                code, found = owner.answer(parts.path, query, self.headers.get("Authorization"))
                self._send(code, json.dumps(found, separators=(",", ":")).encode())

        def _send(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            if len(body) > GZIP_BYTES and "gzip" in self.headers.get("Accept-Encoding", ""):
                body = gzip.compress(body, 1)
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Requests are recorded, not printed."""

    return Handler


def status_object(code: int, message: str) -> Json:
    """The Status object that an API server sends with an error."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": REASONS.get(code, "InternalError"),
        "code": code,
    }


def _one(found: Json | None, kind: str, name: str) -> tuple[int, Json]:
    if found is None:
        return 404, status_object(404, f'{kind} "{name}" not found')
    return 200, found


def _selected(one: Json, selector: str) -> bool:
    """Whether an object passes a field selector; KeyError names a field that pods and nodes do not have."""
    fields = {
        "metadata.name": one["metadata"]["name"],
        "metadata.namespace": one["metadata"].get("namespace", ""),
        "spec.nodeName": one.get("spec", {}).get("nodeName", ""),
        "status.phase": one.get("status", {}).get("phase", ""),
    }
    for term in filter(None, selector.split(",")):
        name, value = term.replace("==", "=").split("=", 1)
        unequal = name.endswith("!")
        if (fields[name.rstrip("!")] == value) == unequal:
            return False
    return True


def _make_certificate(folder: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        raise RigError("no openssl command: install openssl for a TLS API server")
    certificate, key = folder / "tls.crt", folder / "tls.key"
    extensions = ["subjectAltName=IP:127.0.0.1", "keyUsage=critical,digitalSignature,keyCertSign"]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=rig-api"]
    command += [word for extension in extensions for word in ("-addext", extension)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode != 0:
        raise RigError(f"openssl made no certificate: {result.stderr.strip()}")
    return certificate, key
