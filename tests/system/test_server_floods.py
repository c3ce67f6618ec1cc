"""The server among clients that cost it something: a probe is answered within a second all the same."""

import http.client
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from exporter.server import Limits, room_for
from exporter.server.guard import Guard
from tests.system.test_server import BIG, ask, connect, make_app, seconds_until_closed, serving
from tests.system.test_server_tls import authority, server_context, trusting

GET = b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n"
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # TLS: the first bytes of a ClientHello, and no more
CROWD = 500


def probed(port: int, tls: ssl.SSLContext | None = None) -> float:
    """Seconds that a probe took to get 200."""
    start = time.monotonic()
    if tls is None:
        assert ask(port, "GET", "/healthz")[0].status == 200
        return time.monotonic() - start
    connection = http.client.HTTPSConnection("localhost", port, context=tls, timeout=10)
    try:
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
    finally:
        connection.close()
    return time.monotonic() - start


@contextmanager
def arriving(port: int, first: bytes) -> Iterator[None]:
    """Clients that go on arriving and sending `first`, 100 in a second."""
    end = threading.Event()

    def arrive() -> None:
        with ExitStack() as stack:
            while not end.wait(0.01):
                with suppress(OSError):
                    stack.enter_context(connect(port)).sendall(first)

    thread = threading.Thread(target=arrive)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(10)


def crowd(stack: ExitStack, port: int, first: bytes, number: int = CROWD) -> list[socket.socket]:
    """Connections that sent `first` and stay."""
    made = [stack.enter_context(connect(port)) for _ in range(number)]
    for sock in made:
        with suppress(ConnectionError):  # it had to make room
            sock.sendall(first)
    return made


def test_idle_connections() -> None:
    """The oldest make room; the newest stay."""
    with serving(make_app(), Limits(request_seconds=30)) as port, ExitStack() as stack:
        idle = crowd(stack, port, b"")
        assert probed(port) < 1
        assert seconds_until_closed(idle[0]) < 2
        idle[-1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            idle[-1].recv(1)
        with arriving(port, b""):
            assert max(probed(port) for _ in range(20)) < 1


def test_headers_that_trickle() -> None:
    """One byte a second holds no place longer than the deadline, and keeps nobody out until then."""
    with serving(make_app(), Limits(request_seconds=3)) as port, ExitStack() as stack:
        slow = crowd(stack, port, b"GET /metrics HTTP/1.1\r\nX: ")
        start = time.monotonic()
        open_ = set(slow)
        while open_ and time.monotonic() - start < 10:
            for sock in list(open_):
                try:
                    sock.sendall(b"x")
                except OSError:
                    open_.discard(sock)
            assert probed(port) < 1
            time.sleep(1)
        assert not open_
        assert time.monotonic() - start < 8


def test_responses_that_nobody_reads(caplog: pytest.LogCaptureFixture) -> None:
    """Stuck readers in every place, and more of them coming: the newcomer still has time for its request."""
    with serving(make_app(plain=BIG), Limits(response_seconds=30)) as port, ExitStack() as stack:
        crowd(stack, port, GET, 300)
        assert probed(port) < 1
        with arriving(port, GET):
            assert max(probed(port) for _ in range(20)) < 1
    assert not caplog.records  # a flood of clients is none of the log


def test_handshakes_that_do_not_end(tmp_path: Path) -> None:
    """Half a ClientHello, or none, holds a place that the guard can take back."""
    pki = authority(tmp_path, "one")
    context = server_context(pki)
    with serving(make_app(), Limits(handshake_seconds=30), lambda: context) as port, ExitStack() as stack:
        half = crowd(stack, port, HELLO, CROWD // 2) + crowd(stack, port, b"", CROWD // 2)
        assert probed(port, trusting(pki)) < 1
        assert seconds_until_closed(half[0]) < 2
        with arriving(port, HELLO):
            assert max(probed(port, trusting(pki)) for _ in range(10)) < 1


def test_stuck_readers_on_tls_cost_no_more_than_without(tmp_path: Path) -> None:
    """What waits for a client that does not read is bounded by the guard, not by asyncio's default."""
    pki = authority(tmp_path, "one")
    context = server_context(pki)
    with serving(make_app(plain=BIG), None, lambda: context) as port, ExitStack() as stack:
        before = rss()
        for _ in range(100):
            sock = trusting(pki).wrap_socket(connect(port), server_hostname="localhost")
            stack.enter_context(sock)
            sock.sendall(GET)
        time.sleep(0.5)
        assert probed(port, trusting(pki)) < 1
        assert (rss() - before) / 100 < 512 * 1024


def rss() -> int:
    """Resident memory of this process, bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_handshake_that_does_not_end_is_closed_by_its_deadline(tmp_path: Path) -> None:
    """Nobody else need come for it to go."""
    context = server_context(authority(tmp_path, "one"))
    limits = Limits(handshake_seconds=0.5)
    with serving(make_app(), limits, lambda: context) as port, connect(port) as silent, connect(port) as half:
        half.sendall(HELLO)
        assert seconds_until_closed(silent) < 3
        assert seconds_until_closed(half) < 3


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", HELLO, b""])
def test_a_client_that_leaves_amid_the_handshake_leaves_nothing(tmp_path: Path, sent: bytes) -> None:
    """Plain HTTP on the TLS port, half a handshake and a mere connection are all forgotten."""
    pki = authority(tmp_path, "one")
    context = server_context(pki)
    before = set(threading.enumerate())  # a browser of other tests has threads of the same kind
    with serving(make_app(), Limits(connections=8), lambda: context) as port:
        for _ in range(50):
            with connect(port) as sock:
                sock.sendall(sent)
        assert probed(port, trusting(pki)) < 1
        time.sleep(0.2)
        assert not [task for task in set(threading.enumerate()) - before if "asyncio" in task.name]


def test_a_scrape_in_progress_outlives_a_flood() -> None:
    """A connection whose request is being answered is not the one that makes room."""
    with (
        serving(make_app(plain=BIG), Limits(connections=8)) as port,
        ExitStack() as stack,
        connect(port) as scrape,
    ):
        scrape.sendall(b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        head = scrape.recv(1)
        for _ in range(40):
            stack.enter_context(connect(port))
        received = len(head) + sum(len(data) for data in iter(lambda: scrape.recv(1 << 20), b""))
        assert received > len(BIG)


def test_stuck_readers_do_not_keep_a_probe_out() -> None:
    """If every connection is a stuck reader, the oldest makes room."""
    with serving(make_app(plain=BIG), Limits(connections=8)) as port, ExitStack() as stack:
        crowd(stack, port, GET, 20)
        time.sleep(0.3)
        assert ask(port, "GET", "/healthz")[0].status == 200


# ---------------------------------------------------------------- who makes room


class Place:
    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_who_makes_room() -> None:
    """The oldest without a request; but while stuck readers have over half of the places, one of them."""
    guard = Guard(Limits(connections=4))
    idle, reading, *more = [Place() for _ in range(8)]
    for one in (reading, idle, *more[:2]):
        guard.admit(one)
    guard.answer(reading)
    guard.admit(more[2])
    assert (idle.aborted, reading.aborted) == (True, False)
    for one in more[:2]:
        guard.answer(one)
    guard.admit(more[3])
    assert (reading.aborted, more[2].aborted) == (True, False)
    assert list(guard) == [more[2], more[3], more[0], more[1]]


# ---------------------------------------------------------------- descriptors

LIMITS = """
import resource, sys
sys.path.insert(0, {root!r})
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from exporter.server import Limits, room_for
print(room_for(Limits()).connections, *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (256, 4096, [256, 4096, 4096]),  # raised
        (1024, 4096, [256, 1024, 4096]),  # enough as it is
        (256, 400, [144, 400, 400]),  # fewer connections, so that the rest of the agent has its own
        (64, 64, [16, 64, 64]),
    ],
)
def test_descriptors_are_had_for_every_connection(soft: int, hard: int, expected: list[int]) -> None:
    """The soft limit is raised to the hard one where the guard's places need it."""
    script = LIMITS.format(root=str(Path(__file__).parents[2]), soft=soft, hard=hard)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert list(map(int, result.stdout.split())) == expected
    assert room_for(Limits(connections=8)) == Limits(connections=8)
