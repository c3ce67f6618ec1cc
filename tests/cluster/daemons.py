"""A daemon as a child process: started, told to end, killed, always by its own pid."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.rig.errors import RigError


class Daemon:
    """One program. It may be started again after it ended; its log goes on in the same file."""

    def __init__(
        self, name: str, argv: Sequence[str | Path], logs: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.argv = [str(word) for word in argv]
        self.log = logs / f"{name}.log"
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def start(self, ready: Callable[[], object], timeout: float = 30.0) -> None:
        """Start it, and wait until `ready` is true; errors of connections count as false."""
        if self.running:
            return
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                self.argv,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout
        while not _true(ready):
            if self._process.poll() is not None:
                raise RigError(f"{self.name} ended with {self._process.returncode}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise RigError(f"{self.name} is not ready after {timeout} s:\n{self.tail()}")
            time.sleep(0.05)

    def stop(self, signal_number: int = signal.SIGTERM, timeout: float = 20.0) -> None:
        """End it, and wait for that; SIGKILL where it does not in time."""
        process = self._process
        if process is None:
            return
        process.send_signal(signal_number)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None

    def kill(self) -> None:
        """End it as a crash does."""
        self.stop(signal.SIGKILL)

    def tail(self, lines: int = 20) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


def until(condition: Callable[[], object], what: str, timeout: float = 30.0, pause: float = 0.05) -> None:
    """Wait until a function is true; errors of connections count as false. Raises RigError."""
    deadline = time.monotonic() + timeout
    while not _true(condition):
        if time.monotonic() > deadline:
            raise RigError(f"not within {timeout:g} s: {what}")
        time.sleep(pause)


def _true(condition: Callable[[], object]) -> bool:
    try:
        return bool(condition())
    except OSError:
        return False
