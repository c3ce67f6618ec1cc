"""A real Prometheus, a real Alertmanager and a webhook, each on loopback and ended by its own pid.

Nothing here knows what is monitored.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tests.rig.agent import free_port

T = TypeVar("T")
Labels = Mapping[str, str]


def wait_for(what: str, ask: Callable[[], T | None], timeout: float = 30.0) -> T:
    """Ask until there is an answer that is true; fails with what was waited for."""
    deadline = time.monotonic() + timeout
    while True:
        if answer := ask():
            return answer
        assert time.monotonic() < deadline, f"{what}: not within {timeout} s"
        time.sleep(0.2)


@dataclass(frozen=True)
class Server:
    """A running server of Prometheus' family."""

    port: int

    def ask(self, path: str, **query: str) -> Any:
        """The JSON of an answer. An error of the server is one here."""
        url = f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{url}\n{error.read().decode()[:500]}") from error


class Prometheus(Server):
    """The answers of its API that tests need."""

    def query(self, expression: str) -> list[tuple[Labels, float]]:
        """An instant query, now."""
        result = self.ask("/api/v1/query", query=expression)["data"]["result"]
        return [(one["metric"], float(one["value"][1])) for one in result]

    def alerts(self) -> list[tuple[str, str, Labels]]:
        """Alerts that are pending or firing: name, state, labels."""
        found = self.ask("/api/v1/alerts")["data"]["alerts"]
        return [(one["labels"]["alertname"], one["state"], one["labels"]) for one in found]

    def groups(self) -> list[dict[str, Any]]:
        """The groups of rules, as evaluated last."""
        found: list[dict[str, Any]] = self.ask("/api/v1/rules")["data"]["groups"]
        return found


@contextmanager
def prometheus(
    folder: Path, config: Mapping[str, Any], rules: Sequence[Path] = (), *flags: str
) -> Iterator[Prometheus]:
    """A Prometheus with this configuration and these rule files, ready to answer."""
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump({**config, "rule_files": [str(path) for path in rules]}))
    server = Prometheus(free_port())
    argv = [
        "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{server.port}",
        "--log.level=warn",
        *flags,
    ]
    with _process(argv, folder / "prometheus.log", server):
        yield server


@contextmanager
def alertmanager(folder: Path, config: Mapping[str, Any]) -> Iterator[Server]:
    """An Alertmanager with this configuration, of no cluster."""
    file = folder / "alertmanager.yaml"
    file.write_text(yaml.safe_dump(dict(config)))
    server = Server(free_port())
    argv = [
        "prometheus-alertmanager",
        f"--config.file={file}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{server.port}",
        "--cluster.listen-address=",
        "--log.level=warn",
    ]
    with _process(argv, folder / "alertmanager.log", server):
        yield server


@contextmanager
def _process(argv: Sequence[str], log: Path, server: Server) -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        try:

            def answers() -> bool:
                assert process.poll() is None, log.read_text()[-2000:]
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/-/ready", timeout=5):
                        return True
                except OSError:  # nobody listens yet, or it says 503 while it starts
                    return False

            wait_for(argv[0], answers)
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@dataclass
class Webhook:
    """What was sent to a receiver: documents as Alertmanager posts them, in order."""

    port: int = 0
    heard: list[dict[str, Any]] = field(default_factory=list)

    def notifications(self, alert: str) -> list[dict[str, Any]]:
        """Each alert of this name in each document, with its status."""
        return [
            one
            for document in self.heard
            for one in document["alerts"]
            if one["labels"]["alertname"] == alert
        ]


@contextmanager
def webhook() -> Iterator[Webhook]:
    """A receiver on loopback."""
    found = Webhook()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.heard.append(json.loads(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        found.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
