"""Serving: listening sockets, and uvicorn's server on them with the guard."""

import asyncio
import contextlib
import errno
import signal
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from types import FrameType
from typing import Any

import uvicorn

from exporter.server.connections import Connection, Opening
from exporter.server.guard import Guard, Limits
from exporter.server.pages import App, Scope, Send, answer

_BACKLOG = 512
_SEND_BUFFER = 128 * 1024  # bytes; the kernel doubles both
_RECEIVE_BUFFER = 32 * 1024
_GRACE = 2.0  # seconds that a shutdown leaves to responses in progress

_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Context = Callable[[], ssl.SSLContext]


class BindError(Exception):
    """The address cannot be listened on. The text is one line: field, value and remedy."""


class _Uvicorn(uvicorn.Server):
    """uvicorn's server on our sockets, with the guard, ending without raising the signal again."""

    def __init__(self, config: uvicorn.Config, limits: Limits, context: Context | None) -> None:
        super().__init__(config)
        self._guard = Guard(limits)
        self._context = context

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve `sockets`. The TLS of uvicorn's own would be out of the guard's sight until it stands."""
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(self._accept, sock=sock, backlog=_BACKLOG) for sock in sockets or ()
        ]
        self.started = True

    def _accept(self) -> asyncio.Protocol:
        if self._context is None:
            return self._connect()
        return Opening(self._guard, self._context, self._connect)

    def _connect(self) -> Connection:
        return Connection(self._guard, self.config, self.server_state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End as uvicorn does, but cut what a client does not read instead of failing its request."""
        for connection in self._guard:
            if isinstance(connection, Opening):
                connection.abort()
        asyncio.get_running_loop().call_later(_GRACE, self._cut)
        await super().shutdown(sockets)

    def _cut(self) -> None:
        for connection in self._guard:
            connection.abort()

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
    """Serves an `App`: `bind` first, then `run` on the main thread.

    With `context` on TLS; it is called for each new connection, so it must return at once.
    """

    def __init__(
        self,
        app: App,
        host: str,
        port: int,
        context: Context | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._limits = limits or Limits()
        self._sockets: list[socket.socket] = []
        config = uvicorn.Config(
            self._handle,
            http=Connection,
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
        self._uvicorn = _Uvicorn(config, self._limits, context)

    async def _handle(self, scope: Scope, receive: _Receive, send: Send) -> None:
        del receive  # no page reads a request's body
        await answer(self._app, scope, send)

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
    sock = socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
    # Connections inherit all three. asyncio leaves Nagle's algorithm on where a socket's protocol is 0, as it
    # is here: the body of an answer would then wait for the client to acknowledge the header, which clients
    # put off for 40 ms.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The kernel would otherwise grow buffers to megabytes, which a container's memory limit counts: many
    # clients that do not read must not have the agent killed.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    return sock
