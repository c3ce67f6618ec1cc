"""The metrics of a running exporter over HTTP: an address in, text out. Bounded in size and in time."""

from __future__ import annotations

import time
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from exporter.catalog import PREFIX

_PATIENCE = 10.0  # seconds for the connection and for each read
_LONGEST = 30.0  # seconds for all of it
_LARGEST = 64 * 2**20  # bytes
_CHUNK = 2**16


class FetchError(Exception):
    """No metrics came. The text is one line: address, what happened and remedy."""

    def __init__(self, url: str, problem: str) -> None:
        super().__init__(" ".join(f"--url: {url!r} {problem}".split()))


def fetch(url: str, telemetry_path: str) -> str:
    """The text of the metrics; an address without a path is completed. Raises FetchError."""
    address = url if urlsplit(url).path not in ("", "/") else url.rstrip("/") + telemetry_path
    request = Request(address, headers={"Accept": "text/plain;version=0.0.4"})  # noqa: S310 - http(s), by --url
    try:
        text = _read(request, url).decode("utf-8", "replace")
    except HTTPError as error:
        raise FetchError(
            url, f"answers {error.code} {error.reason}; give its --web.telemetry-path too"
        ) from error
    except (OSError, HTTPException, ValueError, OverflowError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        why = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise FetchError(url, f"does not answer ({why}); see whether the exporter runs there") from error
    if PREFIX not in text:
        raise FetchError(url, "serves no metrics of this exporter, or none yet; see whether it is ready")
    return text


def _read(request: Request, url: str) -> bytes:
    until = time.monotonic() + _LONGEST
    body = bytearray()
    with urlopen(request, timeout=_PATIENCE) as answer:  # noqa: S310 - http(s), by --url
        while chunk := answer.read1(_CHUNK):
            body += chunk
            if len(body) > _LARGEST or time.monotonic() > until:
                raise FetchError(url, "sends without end; give the address of an exporter")
    return bytes(body)
