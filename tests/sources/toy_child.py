"""A child as the tests of child.py need one: it serves, hangs, dies and talks nonsense on demand.

Run as `python -I -m tests.sources.toy_child [nonsense]`; the editable installation makes that importable.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from exporter.model import Reason, SourceError
from exporter.sources.child import Part, serve

NONSENSE = {
    "garbage": b"Fatal Python error: this is no frame\n" * 4,
    "huge": b"\xff\xff\xff\xff{}",
    "no-json": b"\x00\x00\x00\x05hello",
    "no-text": b"\x00\x00\x00\x04\xff\xfe\xfd\xfc",
    "nested": (100_000).to_bytes(4, "big") + b"[" * 100_000,
    "no-object": b"\x00\x00\x00\x02[]",
    "neither": b'\x00\x00\x00\x0a{"oth": 1}',
    "unknown-reason": b'\x00\x00\x00\x13{"reason": "sulky"}',
    "half": b'\x00\x00\x00\x40{"end": ',
}


def echo(request: Mapping[str, Any], _part: Part) -> Any:
    """What was asked, without the operation."""
    return {name: held for name, held in request.items() if name != "op"}


def pid(_request: Mapping[str, Any], _part: Part) -> Any:
    return os.getpid()


def parts(request: Mapping[str, Any], part: Part) -> Any:
    for number in range(int(request["count"])):
        part("number", number)
        time.sleep(float(request.get("pause", 0)))
    return "done"


def refuse(request: Mapping[str, Any], _part: Part) -> Any:
    raise SourceError(Reason(request["reason"]), request["detail"])


def bug(_request: Mapping[str, Any], _part: Part) -> Any:
    raise KeyError("oops")


def unserialisable(_request: Mapping[str, Any], _part: Part) -> Any:
    return {"set": {1, 2}}


def sleep(request: Mapping[str, Any], _part: Part) -> Any:
    time.sleep(float(request["length"]))
    return "awake"


def die(request: Mapping[str, Any], _part: Part) -> Any:
    os._exit(int(request["status"]))


def chatter(_request: Mapping[str, Any], _part: Part) -> Any:
    """What a C library and a careless Python one do to standard output."""
    print("a library says hello", flush=True)  # noqa: T201
    libc = ctypes.CDLL(None)
    libc.puts(b"and so does one in C")
    libc.fflush(None)
    return "quiet"


def closing() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "closing":
        with open(sys.argv[2], "a", encoding="ascii") as file:
            file.write("closed\n")


def main() -> None:
    nonsense = NONSENSE.get(sys.argv[1] if len(sys.argv) > 1 else "")
    if nonsense is not None:
        os.read(0, 1 << 16)
        os.write(1, nonsense)
        if sys.argv[1] != "half":
            time.sleep(30)
        return
    handlers = (echo, pid, parts, refuse, bug, unserialisable, sleep, die, chatter)
    serve({handler.__name__: handler for handler in handlers}, closing)


if __name__ == "__main__":
    main()
