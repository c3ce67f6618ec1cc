"""The pages: a request comes in, the response of prepared bytes goes out."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

RENEWAL = 15  # seconds after which a browser asks for the status page again
CHUNK = 64 * 1024  # what one stuck reader holds in memory, at most twice
_TEXT = "text/plain; charset=utf-8"
_HTML = "text/html; charset=utf-8"

_Headers = list[tuple[bytes, bytes]]
Scope = Mapping[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]


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
class _Response:
    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


def _respond(app: App, scope: Scope) -> _Response:
    path = scope["path"]
    pages: dict[str, Callable[[], _Response]] = {
        "/": lambda: _page(app.status_page(), scope.get("query_string", b"")),
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


def _page(html: bytes, query: bytes) -> _Response:
    policy = (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    if query == b"refresh=off":  # for who reads it with a keyboard or a screen reader, or copies from it
        return _Response(200, _HTML, html, (policy,))
    return _Response(200, _HTML, html, (policy, (b"refresh", b"%d" % RENEWAL)))


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


async def answer(app: App, scope: Scope, send: Send) -> None:
    """Send the response to one request, whose body is never read."""
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
    while len(body) > CHUNK:
        await send({"type": "http.response.body", "body": body[:CHUNK], "more_body": True})
        body = body[CHUNK:]
        await asyncio.sleep(0)  # others have their turn, and a client that left is noticed
        if scope["state"]["left"]():
            return
    await send({"type": "http.response.body", "body": body, "more_body": False})
