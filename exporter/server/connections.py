"""Connections: uvicorn's protocol with deadlines that no byte from the client can put off.

Before it, on TLS, stands an `Opening`, so that the guard also counts connections whose handshake has not
ended, and so that each new connection is served with the certificates of its moment.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from exporter.server.guard import Guard
from exporter.server.pages import CHUNK

_SHUTDOWN = 2.0  # seconds for a client to answer the end of TLS


class Connection(H11Protocol):
    """One connection, from its first byte of HTTP on."""

    def __init__(self, guard: Guard, config: uvicorn.Config, state: Any) -> None:
        super().__init__(config=config, server_state=state, app_state={"left": self._left})
        self._guard = guard
        self._deadline: asyncio.TimerHandle | None = None
        self._answered: object = None  # the request cycle that the deadline was last moved for

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Stand under guard, with a deadline for the first request."""
        super().connection_made(transport)
        self._guard.admit(self)
        self._arm(self._guard.limits.request_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the guard."""
        self._disarm()
        self._guard.forget(self)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Take up requests; a complete one has another deadline."""
        super().handle_events()
        if self.cycle is self._answered:
            return
        if not self.cycle.more_body and not self.cycle.response_complete:
            self._answered = self.cycle
            self._guard.answer(self)
            self._arm(self._guard.limits.response_seconds)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._guard.wait(self)
        self._arm(self._guard.limits.request_seconds)
        super().on_response_complete()  # may take up the next request, and move the deadline again

    def abort(self) -> None:
        """Close at once, and write nothing more of a response."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        self.transport.abort()

    def _left(self) -> bool:
        """Whether nobody is there any more to get the response in progress."""
        return bool(self.cycle.disconnected)

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
            self.abort()
        else:
            self.transport.close()


class Opening(asyncio.Protocol):
    """A connection until its TLS handshake is done; then a `Connection` takes its place."""

    def __init__(
        self, guard: Guard, context: Callable[[], ssl.SSLContext], connect: Callable[[], Connection]
    ) -> None:
        self._guard = guard
        self._context = context
        self._connect = connect
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []  # came with the end of the handshake
        self._gone = False
        self._task: asyncio.Task[None] | None = None  # the loop itself holds tasks weakly

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stand under guard, and begin the handshake."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 (of a TCP socket)
        self._transport = transport
        self._guard.admit(self)
        self._task = asyncio.get_running_loop().create_task(self._open(transport))

    def data_received(self, data: bytes) -> None:
        """Keep what came before its reader did."""
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the client left as soon as it had come."""
        del exc
        self._gone = True

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    async def _open(self, transport: asyncio.Transport) -> None:
        tls: asyncio.Transport | None = None
        try:
            tls = await self._shake_hands(transport)
        except OSError:  # of TLS too: what clients do wrong is no event of ours
            pass
        finally:
            self._guard.forget(self)
            if tls is None or self._gone:
                transport.abort()
        if tls is None or self._gone:
            return
        tls.set_write_buffer_limits(high=CHUNK)  # by default eight times as much
        connection = self._connect()
        tls.set_protocol(connection)
        connection.connection_made(tls)
        for data in self._early:
            connection.data_received(data)

    async def _shake_hands(self, transport: asyncio.Transport) -> asyncio.Transport | None:
        if transport.is_closing():  # made room before its turn came; start_tls would wait for ever
            return None
        return await asyncio.get_running_loop().start_tls(
            transport,
            self,
            self._context(),
            server_side=True,
            ssl_handshake_timeout=self._guard.limits.handshake_seconds,
            ssl_shutdown_timeout=_SHUTDOWN,
        )
