"""Both halves of the one mechanism by which the agent asks a child process.

Whatever may block in the kernel (NVML, other processes' /proc, a container's /dev) is read in an exec'd
child, because a thread that hangs there cannot be ended and keeps its process from exiting. A request and
each frame of the reply are a 32-bit length and JSON. A reply is any number of parts, each a name and a value,
then one end: a value or a reason.

The parent half (`Child`) never waits longer than it was told, starts no second child while the first still
exists, and waits longer and longer between starts. The child half (`serve`) imports the standard library and
`exporter.model` only.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from exporter.model import Reason, SourceError
from exporter.text import printable

if TYPE_CHECKING:
    import subprocess

FRAME_LIMIT = 64 * 2**20  # bytes
STOP_SECONDS = 2.0  # what a child gets for shutting NVML down before it is killed
BACKOFF = (1.0, 300.0)  # seconds between starts of a child that keeps dying: first, most
_GARBAGE = (20_000, 10, 10)  # a reply is many objects that live for a moment, and reference counting frees
_HEADER = struct.Struct(">I")

Part = Callable[[str, Any], None]
Handler = Callable[[Mapping[str, Any], Part], Any]


# --- the child half -----------------------------------------------------------------------------------------


def serve(handlers: Mapping[str, Handler], closing: Callable[[], None] = lambda: None) -> None:
    """Answer requests from standard input until it ends or SIGTERM comes, then call `closing` once.

    A handler gets the request and a function that sends one part; it returns the final value or raises
    SourceError. Any other exception is a bug in the handler: it is reported as a protocol error with its type
    and text. Standard output is kept for frames: what a library prints goes to standard error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at a terminal is the parent's to act on
    signal.signal(signal.SIGTERM, _leave)
    requests = os.fdopen(os.dup(0), "rb", buffering=0)
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.collect()
    gc.freeze()  # what start-up made lives for ever
    gc.set_threshold(*_GARBAGE)
    try:
        while (request := _receive(requests)) is not None:
            _write(replies, _answer(handlers, request, replies))
    except (BrokenPipeError, SystemExit):
        pass  # the parent is gone or has said that it wants no more
    finally:
        closing()


def _end_with_parent() -> None:
    """End a while after the parent did, even if a call that hangs keeps the main thread from noticing."""
    poll = select.poll()
    poll.register(0, 0)  # poll(2) reports POLLHUP, the end of the other side, unasked
    poll.poll()
    time.sleep(STOP_SECONDS)
    os._exit(1)


def _leave(*_: object) -> None:
    raise SystemExit(0)


def _answer(handlers: Mapping[str, Handler], request: Mapping[str, Any], replies: BinaryIO) -> bytes:
    """The frame that ends the reply."""

    def part(name: str, plain: Any) -> None:
        _write(replies, _packed({"part": name, "value": plain}))

    try:
        return _packed({"end": handlers[request["op"]](request, part)})
    except SourceError as error:
        return _packed({"reason": error.reason.value, "detail": error.detail})
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 (the parent must hear of a bug, not of a silent child)
        return _packed({"reason": Reason.PROTOCOL.value, "detail": f"{type(error).__name__}: {error}"})


def _packed(plain: Any) -> bytes:
    data = json.dumps(plain, separators=(",", ":")).encode()
    return _HEADER.pack(len(data)) + data


def _write(stream: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[stream.write(view) :]


def _receive(stream: BinaryIO) -> Any | None:
    """One frame, or None at the end of the stream."""
    header = _exactly(stream, _HEADER.size)
    body = header and _exactly(stream, _HEADER.unpack(header)[0])
    return json.loads(body) if body else None


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = stream.read(size - len(data))
        if not chunk:
            return b""
        data += chunk
    return data


# --- the parent half ----------------------------------------------------------------------------------------


class Child:
    """One child process and the conversation with it. One call at a time: other callers wait their turn."""

    def __init__(self, module: str, arguments: Sequence[str] = ()) -> None:
        # -I: neither the current directory nor PYTHON* variables may choose what a privileged child runs.
        self._command = (sys.executable, "-I", "-m", module, *arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._dying: subprocess.Popen[bytes] | None = None
        self._talking = threading.Lock()
        self._closed = False
        self._not_before = 0.0
        self._delay = 0.0

    @property
    def pid(self) -> int | None:
        """The running child's."""
        return self._process.pid if self._process else None

    def call(self, op: str, request: Mapping[str, Any], seconds: float, part: Part = lambda *_: None) -> Any:
        """Ask and wait for the end of the reply, at most `seconds`; then the child is killed.

        Raises SourceError: busy (the call before did not end in time, or a child that was told to end has
        not), unavailable (no child can be started, or it died), timeout, protocol, or what the child reports.
        """
        deadline = time.monotonic() + seconds
        if not self._talking.acquire(timeout=seconds):
            raise SourceError(Reason.BUSY, "an earlier call has not returned")
        try:
            process = self._running()
            end = self._converse(process, {"op": op, **request}, deadline, part)
        finally:
            self._talking.release()
        self._delay = 0.0
        if "reason" in end:
            raise SourceError(Reason(end["reason"]), printable(str(end.get("detail", ""))))
        return end.get("end")

    def stop(self) -> None:
        """Ask the child to end, wait up to STOP_SECONDS, kill it, and do not wait for one that the kernel
        holds.
        """
        process = self._process
        if process is None:
            return
        self._dying, self._process = (
            process,
            None,
        )  # in this order: a caller starts no other while one is left
        import subprocess  # noqa: PLC0415 - as in _running

        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        if self._talking.acquire(timeout=STOP_SECONDS):  # a caller in flight still reads from its pipe
            self._reaped()
            self._talking.release()

    def close(self) -> None:
        """Stop for good: no call starts another child."""
        self._closed = True
        self.stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._buried(f"exit status {self._process.returncode}")
        if self._process is not None:
            return self._process
        if not self._reaped():
            raise SourceError(
                Reason.BUSY, f"child {self._dying and self._dying.pid} was told to end and has not ended"
            )
        wait = self._not_before - time.monotonic()
        if self._closed or wait > 0:
            raise SourceError(Reason.UNAVAILABLE, f"child ended; next start in {max(wait, 0):.0f} s")
        import subprocess  # noqa: PLC0415 - the child half is to have no memory of it

        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, close_fds=True
            )
        except OSError as error:
            self._put_off()
            raise SourceError(Reason.UNAVAILABLE, f"child cannot be started: {error}") from error
        return self._process

    def _reaped(self) -> bool:
        if self._dying is not None and self._dying.poll() is not None:
            for pipe in (self._dying.stdin, self._dying.stdout):
                if pipe:
                    pipe.close()
            self._dying = None
        return self._dying is None

    def _buried(self, why: str) -> SourceError:
        """Give the current child up and say so; the next one starts only after a while."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._dying = process
            self._reaped()
        self._put_off()
        return SourceError(Reason.UNAVAILABLE, f"child gone: {why}")

    def _put_off(self) -> None:
        self._delay = min(max(self._delay * 2, BACKOFF[0]), BACKOFF[1])
        self._not_before = time.monotonic() + self._delay

    def _converse(
        self, process: subprocess.Popen[bytes], request: Mapping[str, Any], deadline: float, part: Part
    ) -> dict[str, Any]:
        if process.stdin is None or process.stdout is None:
            raise SourceError(Reason.PROTOCOL, "the child has no pipes")
        talk = _Talk(process.stdout.fileno(), process.stdin.fileno(), deadline)
        try:
            talk.send(request)
            frame = talk.next()
            while "part" in frame:
                part(frame["part"], frame.get("value"))
                frame = talk.next()
        except TimeoutError:
            self._buried("")
            raise SourceError(Reason.TIMEOUT, "no answer; the child was killed") from None
        except (EOFError, OSError, _GarbageError) as error:
            if self._process is not process:  # stop() took it away while we waited
                raise SourceError(Reason.UNAVAILABLE, "the child was stopped") from error
            broken = self._buried(printable(str(error)) or "it closed the pipe")
            if isinstance(error, _GarbageError):
                raise SourceError(Reason.PROTOCOL, broken.detail) from error
            raise broken from error
        except BaseException:
            self._buried("its reply was not read to the end")  # the next call must not find the rest
            raise
        return frame


class _GarbageError(ValueError):
    """Bytes from the child that are no frame."""


class _Talk:
    """Frames to and from a child until a deadline. Raises TimeoutError, EOFError, OSError, _GarbageError."""

    def __init__(self, replies: int, requests: int, deadline: float) -> None:
        self._replies = replies
        self._requests = requests
        self._deadline = deadline
        os.set_blocking(requests, False)  # a child that does not read must not hold us beyond the deadline

    def send(self, plain: Any) -> None:
        """One request."""
        data = memoryview(_packed(plain))
        while data:
            self._wait(self._requests, select.POLLOUT)
            data = data[os.write(self._requests, data) :]

    def next(self) -> dict[str, Any]:
        """One frame of the reply."""
        (size,) = _HEADER.unpack(self._read(_HEADER.size))
        if size > FRAME_LIMIT:
            raise _GarbageError(f"a frame of {size} bytes")
        try:
            frame = json.loads(self._read(size))
        except (ValueError, RecursionError) as error:
            raise _GarbageError(f"a frame that is no JSON: {error}") from error
        if not isinstance(frame, dict) or not frame.keys() & {"part", "end", "reason"}:
            raise _GarbageError("a frame that is neither part nor end")
        if "reason" in frame and frame["reason"] not in tuple(Reason):
            raise _GarbageError(f"a reason that is none: {frame['reason']!r}")
        return frame

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._wait(self._replies, select.POLLIN)
            chunk = os.read(self._replies, min(size - len(data), 1 << 20))
            if not chunk:
                raise EOFError("it ended")
            data += chunk
        return bytes(data)

    def _wait(self, descriptor: int, event: int) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        left = self._deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise TimeoutError
