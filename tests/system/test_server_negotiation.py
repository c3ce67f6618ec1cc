"""What a scraper gets for the Accept header that it sends: real bytes over a real socket."""

import gzip
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from exporter.exposition import Renderer
from tests import builders as b
from tests.system.test_server import connect, make_app, serving

TEXT = b"text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = b"application/openmetrics-text; version=1.0.0; charset=utf-8"


@pytest.fixture(name="port", scope="module")
def served() -> Iterator[int]:
    rendered = Renderer(lambda: b.MONOTONIC).render(b.report())
    with serving(replace(make_app(), metrics=lambda accept, _: rendered.body(accept))) as port:
        yield port


def scrape(port: int, *lines: bytes) -> tuple[bytes, dict[bytes, bytes], bytes]:
    """Status line, headers and body of a request with these header lines."""
    with connect(port) as sock:
        sock.sendall(
            b"\r\n".join((b"GET /metrics HTTP/1.1", b"Host: node", b"Connection: close", *lines, b"", b""))
        )
        received = b"".join(iter(lambda: sock.recv(65536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    status, *rest = head.split(b"\r\n")
    headers = dict(line.split(b": ", 1) for line in rest)
    return status, {name.lower(): value for name, value in headers.items()}, body


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ([], TEXT),
        ([b"Accept:"], TEXT),
        ([b"Accept: */*"], TEXT),
        ([b"Accept: text/plain;version=1.0.0;escaping=allow-utf-8"], TEXT),
        ([b"Accept: application/openmetrics-text;version=1.0.0;escaping=allow-utf-8"], OPENMETRICS),
        ([b"Accept: application/openmetrics-text; version=1.0.0"], OPENMETRICS),
        ([b"Accept: application/openmetrics-text;version=abc"], TEXT),
        ([b"Accept: text/plain;version=abc;q=abc"], TEXT),
        ([b"Accept: text/html", b"Accept: application/openmetrics-text;version=1.0.0"], OPENMETRICS),
        ([b"Accept: " + b"x" * 10_000], TEXT),
        ([b"Accept: " + b"a/b;q=0.1," * 1_000], TEXT),
        ([b"Accept: " + b',;="' * 2_500], TEXT),
        ([b"Accept: " + bytes(range(0xA0, 0x100)) * 100], TEXT),
        ([b"Accept: %n%s../../etc/passwd\x1b[31m"], TEXT),
    ],
)
@pytest.mark.parametrize("gzipped", [False, True])
def test_every_header_gets_one_of_two_formats(
    port: int, accept: list[bytes], expected: bytes, *, gzipped: bool
) -> None:
    """Prometheus 3 fails a scrape whose content type it does not know, so there are but two; each parses."""
    wish = [b"Accept-Encoding: gzip"] if gzipped else []
    status, headers, body = scrape(port, *accept, *wish)
    assert status == b"HTTP/1.1 200 OK"
    assert headers[b"content-type"] == expected
    assert int(headers[b"content-length"]) == len(body)
    text = (gzip.decompress(body) if gzipped else body).decode()
    parse = text_string_to_metric_families if expected is TEXT else openmetrics.text_string_to_metric_families
    assert "kubegpu_exporter_build" in "".join(family.name for family in parse(text))


@pytest.mark.parametrize(
    "line",
    [
        b"Accept: a\x00b",
        b"Accept\xff: a",
        b"Accept : a",
        b"no header",
    ],
)
def test_what_is_no_header_is_a_bad_request(port: int, line: bytes) -> None:
    """It is refused and the server goes on."""
    status, _, _ = scrape(port, line)
    assert status.startswith(b"HTTP/1.1 4")
    assert scrape(port)[0] == b"HTTP/1.1 200 OK"


def test_a_header_without_end_is_cut_off(port: int) -> None:
    """It costs no more than one buffer, and the server goes on."""
    with connect(port) as sock, suppress(ConnectionError):
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: node\r\nAccept: ")
        for _ in range(1_000):
            sock.sendall(b"x" * 65536)
        pytest.fail("64 MiB of header were taken")
    assert scrape(port)[0] == b"HTTP/1.1 200 OK"
