"""HTTP server: prepared bytes in, responses out.

It is given plain callables that must return at once, and knows nothing of GPUs, metrics or cycles.
Every client is untrusted: one that sends no complete request, or does not read its response, is closed by
a deadline, and a flood of connections closes the oldest idle one, so that a probe is always answered.
It never renders, reads a file, or waits for a source.
"""

import asyncio
import contextlib
import errno
import signal
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

_CHUNK = 64 * 1024  # what one stuck reader holds in memory, at most twice
_BACKLOG = 512
_GRACE = 2.0  # seconds that a shutdown leaves to responses in progress
_TEXT = "text/plain; charset=utf-8"
_HTML = "text/html; charset=utf-8"

_Headers = list[tuple[bytes, bytes]]
_Scope = Mapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[dict[str, Any]], Awaitable[None]]


class BindError(Exception):
    """The address cannot be listened on. The text is one line: field, value and remedy."""


class Body(Protocol):
    """One rendering of the metrics: the same text plain and compressed."""

    @property
    def content_type(self) -> str:
        """The Content-Type, with its version."""

    @property
    def plain(self) -> bytes:
        """The text."""

    @property
    def gzipped(self) -> bytes:
        """The text compressed."""


@dataclass(frozen=True, slots=True)
class App:
    """What is served. Each callable runs on the server's loop: it returns prepared values and never waits."""

    telemetry_path: str
    metrics: Callable[[str, bool], Body]  # the Accept header, whether the client takes gzip
    ready: Callable[[], tuple[bool, str]]
    healthy: Callable[[], tuple[bool, str]]
    status_page: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may cost."""

    request_seconds: float = 10.0  # from connecting, or from the last response, to a complete request
    response_seconds: float = 20.0  # from a complete request until its response is handed to the kernel
    handshake_seconds: float = 10.0  # of TLS
    connections: int = 256


# ---------------------------------------------------------------- the pages


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


def _respond(app: App, scope: _Scope) -> _Response:
    path = scope["path"]
    pages: dict[str, Callable[[], _Response]] = {
        "/": lambda: _page(app.status_page()),
        "/-/healthy": lambda: _probe(*app.healthy()),
        "/healthz": lambda: _probe(*app.healthy()),
        "/-/ready": lambda: _probe(*app.ready()),
        "/readyz": lambda: _probe(*app.ready()),
        app.telemetry_path: lambda: _metrics(app, scope["headers"]),
    }
    page = pages.get(path)
    if page is None:
        return _Response(404, _TEXT, b"Not found. The pages are / and the metrics it links to.\n")
    if scope["method"] not in ("GET", "HEAD"):
        return _Response(405, _TEXT, b"Only GET and HEAD are served.\n", ((b"allow", b"GET, HEAD"),))
    return page()


def _metrics(app: App, headers: Iterable[tuple[bytes, bytes]]) -> _Response:
    wants_gzip = accepts_gzip(_header(headers, b"accept-encoding"))
    body = app.metrics(_header(headers, b"accept"), wants_gzip)
    vary = (b"vary", b"Accept, Accept-Encoding")
    if wants_gzip:
        return _Response(200, body.content_type, body.gzipped, (vary, (b"content-encoding", b"gzip")))
    return _Response(200, body.content_type, body.plain, (vary,))


def _probe(passed: bool, reason: str) -> _Response:
    return _Response(200 if passed else 503, _TEXT, f"{reason}\n".encode(errors="replace"))


def _page(html: bytes) -> _Response:
    policy = (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    return _Response(200, _HTML, html, (policy,))


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    """All of a header's lines as one, as RFC 9110 section 5.3 joins them; "" if there is none."""
    return ", ".join(value.decode("latin-1") for key, value in headers if key == name)


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header takes gzip: named or by *, and not with q=0."""
    weights: dict[str, float] = {}
    for item in accept_encoding.lower().split(","):
        coding, *parameters = (part.strip() for part in item.split(";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    weight = float(parameter[2:])
                except ValueError:
                    weight = 0.0
        weights[coding] = weight
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0


async def _answer(app: App, scope: _Scope, send: _Send) -> None:
    response = _respond(app, scope)
    headers: _Headers = [
        (b"content-type", response.content_type.encode("latin-1")),
        (b"content-length", str(len(response.body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *response.headers,
    ]
    if any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"]):
        headers.append((b"connection", b"close"))  # the request's body is not read
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    body = memoryview(b"" if scope["method"] == "HEAD" else response.body)
    # Each send waits while the client's buffer is full, so a stuck reader costs two chunks and not the body.
    while len(body) > _CHUNK:
        await send({"type": "http.response.body", "body": body[:_CHUNK], "more_body": True})
        body = body[_CHUNK:]
    await send({"type": "http.response.body", "body": body, "more_body": False})


# ---------------------------------------------------------------- the guard of the connections


class _Guard:
    """The open connections, oldest first, apart by whether a request is being answered."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._waiting: dict[_Connection, None] = {}
        self._answering: dict[_Connection, None] = {}

    def admit(self, connection: "_Connection") -> None:
        """Take in a connection, closing the oldest one without a request if there are too many."""
        if len(self._waiting) + len(self._answering) >= self.limits.connections:
            oldest = next(iter(self._waiting or self._answering))
            self.forget(oldest)
            oldest.transport.abort()
        self._waiting[connection] = None

    def wait(self, connection: "_Connection") -> None:
        """Note that no request of this connection is being answered."""
        self.forget(connection)
        self._waiting[connection] = None

    def answer(self, connection: "_Connection") -> None:
        """Note that a complete request of this connection is being answered."""
        self.forget(connection)
        self._answering[connection] = None

    def forget(self, connection: "_Connection") -> None:
        """Drop a connection from the count."""
        self._waiting.pop(connection, None)
        self._answering.pop(connection, None)


class _Connection(H11Protocol):
    """uvicorn's connection with two deadlines that no byte from the client can put off."""

    def __init__(self, guard: _Guard, config: uvicorn.Config, state: Any) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self._guard = guard
        self._deadline: asyncio.TimerHandle | None = None
        self._answered: object = None  # the request cycle that the deadline was last moved for

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._guard.admit(self)
        self._arm(self._guard.limits.request_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._guard.forget(self)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is self._answered:
            return
        if not self.cycle.more_body and not self.cycle.response_complete:
            self._answered = self.cycle
            self._guard.answer(self)
            self._arm(self._guard.limits.response_seconds)

    def on_response_complete(self) -> None:
        self._guard.wait(self)
        self._arm(self._guard.limits.request_seconds)
        super().on_response_complete()  # may take up the next request, and move the deadline again

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(seconds, self._expire)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        # close() waits until what is buffered is sent, which a client that does not read never allows.
        if self.transport.get_write_buffer_size() or self.transport.is_closing():
            self.transport.abort()
        else:
            self.transport.close()


# ---------------------------------------------------------------- the server


class _Uvicorn(uvicorn.Server):
    """uvicorn's server on our sockets, with the guard, ending without raising the signal again."""

    def __init__(self, config: uvicorn.Config, limits: Limits, context: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._limits = limits
        self._context = context

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve `sockets`. Unlike uvicorn's own, bounds the TLS handshake, which precedes any connection."""
        loop = asyncio.get_running_loop()
        guard = _Guard(self._limits)
        handshake = None if self._context is None else self._limits.handshake_seconds
        self.servers = [
            await loop.create_server(
                lambda: _Connection(guard, self.config, self.server_state),
                sock=sock,
                ssl=self._context,
                backlog=_BACKLOG,
                ssl_handshake_timeout=handshake,
            )
            for sock in sockets or ()
        ]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End as uvicorn does, but cut what a client does not read instead of failing its request."""
        asyncio.get_running_loop().call_later(_GRACE, self._cut)
        await super().shutdown(sockets)

    def _cut(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end the server, and are not raised again: a stopped pod's status is 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.should_exit = True


class Server:
    """Serves an `App`: `bind` first, then `run` on the main thread."""

    def __init__(
        self,
        app: App,
        host: str,
        port: int,
        ssl_context: ssl.SSLContext | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._limits = limits or Limits()
        self._sockets: list[socket.socket] = []
        config = uvicorn.Config(
            self._handle,
            http=_Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            workers=1,
            log_config=None,
            log_level="error",  # what clients send wrong is no event of ours
            access_log=False,
            server_header=False,
            proxy_headers=False,
            # Only the guard's deadline closes an idle connection; uvicorn's timer must merely be no sooner.
            timeout_keep_alive=int(self._limits.request_seconds) + 1,
            timeout_graceful_shutdown=3,
        )
        self._uvicorn = _Uvicorn(config, self._limits, ssl_context)

    async def _handle(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        del receive  # no page reads a request's body
        await _answer(self._app, scope, send)

    @property
    def port(self) -> int:
        """The bound port; it differs from the one asked for if that was 0."""
        return int(self._sockets[0].getsockname()[1]) if self._sockets else self._port

    def bind(self) -> None:
        """Listen, before anything else starts. Raises BindError where the address cannot be had."""
        try:
            self._sockets = _listen(self._host, self._port)
        except OSError as error:
            given = f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"
            remedy = "give a free port" if error.errno == errno.EADDRINUSE else "give an address of this host"
            raise BindError(
                f"--web.listen-address: {given!r} cannot be listened on ({error.strerror}); {remedy}"
            ) from error

    def close(self) -> None:
        """Give up the bound address without serving."""
        for sock in self._sockets:
            sock.close()

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or `stop`; responses in progress get 2 s to end."""
        asyncio.run(self._uvicorn.serve(sockets=self._sockets))

    def stop(self) -> None:
        """End `run` soon. May be called from any thread."""
        self._uvicorn.should_exit = True


def _listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for `host`; "" is every address, of IPv6 too where the node has it."""
    if not host:
        if socket.has_dualstack_ipv6():
            # A kernel with the disable_ipv6 sysctl has IPv6 sockets and no address to bind them to.
            with contextlib.suppress(OSError):
                return [_listen_on(socket.AF_INET6, ("::", port))]
        return [_listen_on(socket.AF_INET, ("0.0.0.0", port))]  # noqa: S104 (what the user asked for)
    sockets: list[socket.socket] = []
    refused: OSError | None = None
    for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            sockets.append(_listen_on(family, address))
        except OSError as error:  # localhost names ::1 too where there is none
            refused = error
        if port == 0 and sockets:
            break  # one free port, not one for each address
    if refused is not None and (not sockets or refused.errno == errno.EADDRINUSE):
        for sock in sockets:
            sock.close()
        raise refused
    return sockets


def _listen_on(family: int, address: tuple[Any, ...]) -> socket.socket:
    dual = family == socket.AF_INET6 and address[0] == "::"
    return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
