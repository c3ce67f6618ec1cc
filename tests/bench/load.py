"""A load generator in a process of its own: `python -m tests.bench.load PORT CLIENTS BURSTS INTERVAL`.

Sends one GET /metrics on each of CLIENTS connections at once, waits for all answers, and again. With an
INTERVAL above 0 it does so only while the exporter's cycle runs, which it knows from the exporter's own
metrics; the connections are kept. With 0 it does so at any time, on new connections. Prints JSON: seconds and
bytes. The word `quick` at the end makes it acknowledge at once what it receives.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import select
import socket
import sys
import time

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\nAccept-Encoding: gzip\r\n%s\r\n"
RENDERING = 0.1  # seconds that a cycle goes on after what it tells of itself
LEAST_GAP, MOST_GAP = 0.005, 0.025
_LENGTH = re.compile(rb"(?i)content-length: (\d+)")
_TOLD = re.compile(r"^kubegpu_cycle_(timestamp|duration)_seconds (\S+)$", re.MULTILINE)


class Client:
    """One connection and the answer in flight on it."""

    def __init__(self, port: int, *, keep: bool, quick: bool) -> None:
        self._port = port
        self._keep = keep
        self._quick = quick
        self._socket: socket.socket | None = None
        self.began = self.ended = 0.0
        self.data = b""

    def send(self) -> int:
        """Begin a request; the descriptor to wait for."""
        self.began, self.ended, self.data = time.perf_counter(), 0.0, b""
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), 30)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._quick:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        self._socket.sendall(REQUEST % (b"" if self._keep else b"Connection: close\r\n"))
        return self._socket.fileno()

    def receive(self) -> bool:
        """Take what has come; whether that was all."""
        if self._socket is None:
            raise RuntimeError("nothing was sent")
        piece = self._socket.recv(1 << 20)
        if self._quick:  # the kernel forgets it
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        self.data += piece
        head, found, body = self.data.partition(b"\r\n\r\n")
        length = _LENGTH.search(head) if found else None
        if not (length and len(body) >= int(length[1])):
            if not piece:
                raise RuntimeError(f"the connection ended after {len(self.data)} bytes: {head[:80]!r}")
            return False
        self.ended = time.perf_counter()
        if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
            raise RuntimeError(head[:100].decode(errors="replace"))
        if not self._keep:
            self._socket.close()
            self._socket = None
        return True


def burst(clients: list[Client]) -> list[float]:
    """One request on each, all at once; how long each took."""
    poll, waiting = select.poll(), {}
    for client in clients:
        descriptor = client.send()
        waiting[descriptor] = client
        poll.register(descriptor, select.POLLIN)
    while waiting:
        for descriptor, _ in poll.poll(60_000):
            if waiting[descriptor].receive():
                poll.unregister(descriptor)
                del waiting[descriptor]
    return [client.ended - client.began for client in clients]


def cycle(client: Client) -> tuple[float, float]:
    """When the last cycle began, and how long the exporter was busy with it."""
    burst([client])
    text = gzip.decompress(client.data.partition(b"\r\n\r\n")[2]).decode()
    told = {name: float(number) for name, number in _TOLD.findall(text)}
    return told["timestamp"], told["duration"] + RENDERING


def main() -> None:
    """Take the times and print them."""
    port, count, bursts = (int(word) for word in sys.argv[1:4])
    interval = float(sys.argv[4])
    clients = [Client(port, keep=interval > 0, quick=sys.argv[5:] == ["quick"]) for _ in range(count)]
    times: list[float] = []
    until = 0.0
    for _ in range(bursts):
        if interval > 0 and time.time() > until:
            began, busy = cycle(clients[0])
            while began <= time.time():
                began += interval
            time.sleep(max(0.0, began - time.time()))
            until = began + busy
        times += burst(clients)
        time.sleep(random.uniform(LEAST_GAP, MOST_GAP))
    json.dump({"seconds": times, "bytes": len(clients[0].data)}, sys.stdout)


if __name__ == "__main__":
    main()
