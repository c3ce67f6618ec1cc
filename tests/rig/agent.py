"""The exporter under test as an operating system process of its own, seen from outside only.

Real: the process, its command line, its HTTP port, its signals and its log. Nothing of it is imported.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

from tests.rig.errors import RigError

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
COMMAND = "kubegpu-exporter"
TEXT = "text/plain;version=0.0.4"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


class Agent:
    """One run of the exporter. Starts at once and, unless told otherwise, waits until it is ready.

    `args` are the flags (see Rig.agent_args); the listen address is added on a free port. `command` is the
    program, by default the one beside this interpreter.
    """

    def __init__(
        self,
        args: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        command: Sequence[str | Path] | None = None,
        ready: float | None = 20.0,
    ) -> None:
        self.port = free_port()
        self.log = log
        self.argv = [*(command or [_default_command()]), f"--web.listen-address=127.0.0.1:{self.port}", *args]
        self.env = {"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", **(env or {})}
        self._closed = False
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                self.argv,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        if ready is not None:
            try:
                self.wait_ready(ready)
            except BaseException:
                self.stop()
                raise

    @property
    def pid(self) -> int:
        """The process id of the parent process."""
        return self.process.pid

    def wait_ready(self, timeout: float = 20.0) -> None:
        """Wait until /-/ready answers 200; a RigError carries the end of the log."""
        self.wait_for(lambda: self.get("/-/ready", timeout=2.0).status == 200, timeout, "not ready")

    def wait_for(
        self, condition: Callable[[], object], timeout: float = 20.0, what: str = "nothing came of it"
    ) -> None:
        """Wait until a function without arguments is true; connection errors count as false."""
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if condition():
                    return
            if self.process.poll() is not None:
                raise RigError(f"the agent ended with {self.process.returncode}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise RigError(f"{what} within {timeout} s:\n{self.tail()}")
            time.sleep(0.05)

    def get(self, path: str, headers: Mapping[str, str] | None = None, timeout: float = 10.0) -> Answer:
        """One GET on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request("GET", path, headers=dict(headers or {}))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def scrape(self) -> str:
        """The metrics in the classic text format."""
        answer = self.get("/metrics", {"Accept": TEXT})
        if answer.status != 200:
            raise RigError(f"/metrics answered {answer.status}: {answer.text[:200]}")
        return answer.text

    def samples(self) -> Samples:
        """The metrics as {(name, labels): value}."""
        return parse(self.scrape())

    def tail(self, lines: int = 20) -> str:
        """The end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self, timeout: float = 10.0) -> int:
        """SIGTERM, then after the timeout SIGKILL to its whole session; the exit status."""
        if self._closed:
            return self.process.returncode
        self._closed = True
        self.process.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def parse(text: str) -> Samples:
    """Samples of an exposition; the same series twice is an error."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            if key in found:
                raise RigError(f"series given twice: {key}")
            found[key] = sample.value
    return found


def select(samples: Samples, name: str, **labels: str) -> dict[frozenset[tuple[str, str]], float]:
    """The series of one name that carry all these labels, by their whole label set."""
    wanted = set(labels.items())
    return {keys: value for (family, keys), value in samples.items() if family == name and wanted <= keys}


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _default_command() -> Path:
    path = Path(sys.executable).with_name(COMMAND)
    if not path.exists():
        raise RigError(f"no {path}: install the project into this environment (pip install -e .)")
    return path
