"""The HTTP server over real sockets: its pages, its patience with clients, and its end."""

import gzip
import http.client
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from exporter.server import App, BindError, Limits, Server, accepts_gzip


@dataclass(frozen=True)
class Rendered:
    content_type: str
    plain: bytes
    gzipped: bytes


METRICS = b"kubegpu_source_up 1\n" * 50
BIG = bytes(32 * 1024 * 1024)  # more than the kernel buffers of a connection hold


def make_app(*, ready: bool = True, healthy: bool = True, plain: bytes = METRICS) -> App:
    body = Rendered("text/plain; version=0.0.4", plain, gzip.compress(plain, 1))
    return App(
        telemetry_path="/metrics",
        metrics=lambda accept, wants_gzip: body,
        ready=lambda: (ready, "ready" if ready else "the first cycle is not complete"),
        healthy=lambda: (healthy, "ok" if healthy else "the cycle made no progress for 90 s"),
        status_page=lambda: b"<!doctype html><title>kubegpu-exporter</title>",
    )


@contextmanager
def serving(
    app: App, limits: Limits | None = None, context: Callable[[], ssl.SSLContext] | None = None
) -> Iterator[int]:
    server = Server(app, "127.0.0.1", 0, context, limits)
    server.bind()
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server.port
    finally:
        server.stop()
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture(name="port", scope="module")
def served() -> Iterator[int]:
    with serving(make_app()) as port:
        yield port


def ask(
    port: int, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=15)


def seconds_until_closed(sock: socket.socket) -> float:
    start = time.monotonic()
    with suppress(ConnectionResetError):
        while sock.recv(65536):
            pass
    return time.monotonic() - start


def test_metrics_are_served_plain_unless_gzip_is_asked_for(port: int) -> None:
    """Without Accept-Encoding the text comes as it is; caches are told that both headers matter."""
    response, body = ask(port, "GET", "/metrics")
    assert response.status == 200
    assert body == METRICS
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4"
    assert response.headers["Content-Encoding"] is None
    assert response.headers["Vary"] == "Accept, Accept-Encoding"
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["Server"] is None
    assert response.headers["Date"] is not None


def test_metrics_are_served_compressed_to_a_client_that_takes_gzip(port: int) -> None:
    """Prometheus asks for gzip and gets the prepared bytes."""
    response, body = ask(port, "GET", "/metrics", {"Accept-Encoding": "gzip"})
    assert response.headers["Content-Encoding"] == "gzip"
    assert int(response.headers["Content-Length"]) == len(body)
    assert gzip.decompress(body) == METRICS


@pytest.mark.parametrize(
    ("accept_encoding", "expected"),
    [
        ("", False),
        ("gzip", True),
        ("GZip;Q=0.5", True),
        ("deflate, gzip;q=1.0, *;q=0.5", True),
        ("*", True),
        ("x-gzip", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, *", False),
        ("*;q=0", False),
        ("identity", False),
        ("gzip;q=nonsense", False),
    ],
)
def test_accept_encoding_is_read_with_its_weights(accept_encoding: str, *, expected: bool) -> None:
    """A coding with q=0 is refused, however it is spelled."""
    assert accepts_gzip(accept_encoding) is expected


@pytest.mark.parametrize("path", ["/metrics", "/", "/-/healthy", "/healthz", "/-/ready", "/readyz"])
def test_head_has_the_headers_of_get_and_no_body(port: int, path: str) -> None:
    """HEAD tells the length of what GET would send."""
    _, body = ask(port, "GET", path)
    response, nothing = ask(port, "HEAD", path)
    assert response.status == 200
    assert nothing == b""
    assert int(response.headers["Content-Length"]) == len(body) > 0


def test_the_status_page_may_run_no_script(port: int) -> None:
    """The page shows names from the node: nothing in it is executed."""
    response, body = ask(port, "GET", "/")
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert b"kubegpu-exporter" in body


def test_the_status_page_renews_itself_unless_it_is_told_not_to(port: int) -> None:
    """Who reads it by keyboard or screen reader can hold it still."""
    assert ask(port, "GET", "/")[0].headers["Refresh"] == "15"
    assert "Refresh" not in ask(port, "GET", "/?refresh=off")[0].headers


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "/metrics/../x", "//", "/%00"])
def test_an_unknown_path_is_not_found(port: int, path: str) -> None:
    """Only the listed paths exist."""
    assert ask(port, "GET", path)[0].status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_refused_with_those_allowed(port: int, method: str) -> None:
    """405 names GET and HEAD."""
    response, _ = ask(port, method, "/metrics")
    assert response.status == 405
    assert response.headers["Allow"] == "GET, HEAD"


def test_a_request_with_a_body_ends_its_connection(port: int) -> None:
    """The body is not read, so the connection cannot carry a further request."""
    response, _ = ask(port, "POST", "/metrics", body=b"x" * 1000)
    assert response.status == 405
    assert response.headers["Connection"] == "close"


def test_a_query_is_ignored(port: int) -> None:
    """Prometheus may add parameters to the path."""
    assert ask(port, "GET", "/metrics?collect[]=gpu")[1] == METRICS


def test_a_connection_carries_several_requests(port: int) -> None:
    """Keep-alive works, also for requests sent at once."""
    request = b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n"
    last = b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
    with connect(port) as sock:
        sock.sendall(request + request + last)
        received = b"".join(iter(lambda: sock.recv(65536), b""))
    assert received.count(b"HTTP/1.1 200") == 3


def test_no_answer_waits_for_an_acknowledgement() -> None:
    """Nagle's algorithm is off on accepted connections: a kept connection does not cost 40 ms a scrape."""
    server = Server(make_app(), "127.0.0.1", 0)
    server.bind()
    try:
        for listening in server._sockets:
            with socket.create_connection(("127.0.0.1", server.port)):
                accepted, _ = listening.accept()
                with accepted:
                    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    finally:
        for listening in server._sockets:
            listening.close()


def test_garbage_is_a_bad_request(port: int) -> None:
    """What is not HTTP gets 400 and is closed."""
    with connect(port) as sock:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 400")


def test_probes_fail_with_their_reason() -> None:
    """Not ready and not healthy are 503, each with its reason."""
    with serving(make_app(ready=False, healthy=False)) as port:
        ready, why = ask(port, "GET", "/-/ready")
        healthy, what = ask(port, "GET", "/-/healthy")
    assert (ready.status, why) == (503, b"the first cycle is not complete\n")
    assert (healthy.status, what) == (503, b"the cycle made no progress for 90 s\n")


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nHost: ", b"POST / HTTP/1.1\r\nContent-Le"])
def test_a_connection_without_a_complete_request_is_closed(sent: bytes) -> None:
    """Nothing, or half a header, holds a connection until the deadline and no longer."""
    with serving(make_app(), Limits(request_seconds=0.5)) as port, connect(port) as sock:
        sock.sendall(sent)
        assert 0.3 < seconds_until_closed(sock) < 3


def test_trickled_bytes_do_not_put_the_deadline_off() -> None:
    """A header sent byte by byte is cut at the same deadline."""
    with serving(make_app(), Limits(request_seconds=1)) as port, connect(port) as sock:
        start = time.monotonic()
        sock.sendall(b"GET / HTTP/1.1\r\nX: ")
        with suppress(ConnectionError):
            while time.monotonic() - start < 10:
                sock.sendall(b"x")
                time.sleep(0.1)
        assert 0.8 < time.monotonic() - start < 4


def test_an_endless_request_body_does_not_put_the_deadline_off() -> None:
    """A request that is answered before its body ends is no complete request."""
    with serving(make_app(), Limits(request_seconds=1)) as port, connect(port) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        assert seconds_until_closed(sock) < 4


def test_an_idle_connection_after_a_response_is_closed() -> None:
    """The deadline runs anew from each response."""
    with serving(make_app(), Limits(request_seconds=1)) as port, connect(port) as sock:
        for _ in range(3):
            sock.sendall(b"HEAD /healthz HTTP/1.1\r\nHost: node\r\n\r\n")
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")
            time.sleep(0.6)
        assert seconds_until_closed(sock) < 3


def test_a_client_that_does_not_read_its_response_is_closed() -> None:
    """A stuck reader is cut, so that it cannot hold memory for ever."""
    limits = Limits(request_seconds=0.5, response_seconds=0.5)
    with serving(make_app(plain=BIG), limits) as port, connect(port) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")
        time.sleep(2)
        received = 0
        with suppress(ConnectionError):
            while data := sock.recv(1 << 20):
                received += len(data)
        assert received < len(BIG)


def test_a_slow_reader_gets_all_of_a_large_response() -> None:
    """A response larger than any buffer arrives whole."""
    with serving(make_app(plain=BIG)) as port:
        response, body = ask(port, "GET", "/metrics")
    assert response.status == 200
    assert body == BIG


def test_an_address_in_use_is_refused_with_field_and_remedy(port: int) -> None:
    """The message is the one line that the command prints."""
    with pytest.raises(BindError, match=r"^--web\.listen-address: '127\.0\.0\.1:\d+' .*; give a free port$"):
        Server(make_app(), "127.0.0.1", port).bind()


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_host_is_refused(host: str) -> None:
    """An address that the node does not have, or a name that does not resolve."""
    with pytest.raises(BindError, match="give an address of this host"):
        Server(make_app(), host, 0).bind()


@pytest.mark.parametrize("client", ["127.0.0.1", "::1"])
def test_no_host_listens_on_ipv4_and_ipv6(client: str) -> None:
    """:PORT is every address of the node."""
    if client == "::1" and not ipv6_works():
        pytest.skip("this kernel has no IPv6 loopback")
    server = Server(make_app(), "", 0)
    server.bind()
    try:
        socket.create_connection((client, server.port), timeout=5).close()
    finally:
        server.close()


def ipv6_works() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from types import SimpleNamespace
from exporter.server import App, Server
body = SimpleNamespace(content_type="text/plain", plain=bytes(32 << 20), gzipped=b"")
app = App("/metrics", lambda a, z: body, lambda: (True, "ok"), lambda: (True, "ok"), lambda: b"page")
server = Server(app, "127.0.0.1", 0)
server.bind()
print(server.port, flush=True)
server.run()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_within_five_seconds(number: signal.Signals) -> None:
    """With an idle client, half a request and a stuck reader connected, the exit status is still 0."""
    script = SCRIPT.format(root=str(Path(__file__).parents[2]))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        port = int(process.stdout.readline())
        with connect(port), connect(port) as half, connect(port) as stuck:
            half.sendall(b"GET / HTTP/1.1\r\n")
            stuck.sendall(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")
            time.sleep(0.5)
            start = time.monotonic()
            process.send_signal(number)
            status = process.wait(10)
            took = time.monotonic() - start
        errors = process.stderr.read()
    assert status == 0, errors
    assert took < 5
    assert b"Traceback" not in errors
