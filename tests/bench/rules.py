"""What the rules cost a Prometheus: every group, over a fleet that is scraped and has a day of past.

A real Prometheus scrapes simulated nodes, each with what the exporter serves in a scenario, and evaluates
alerts/*.rules.yaml as they are. What the rules look back on is put into its storage first.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from exporter import scenario as scenarios
from exporter.exposition import Format, expose
from exporter.model import Policy, Report
from exporter.report import advance
from tests.bench.document import Row, Section

RULES = Path(__file__).parents[2] / "alerts"
BUDGET = 1.0  # seconds for the slowest group
# Nodes by scenario. The second and third have findings, whose texts ask Prometheus more.
NODES = (("healthy-node", 160), ("mig-node", 20), ("wrong-gpu", 20))
SMALL = (("healthy-node", 4), ("mig-node", 1), ("wrong-gpu", 1))
SCRAPE = 15
DAY, HOURS = 86400 + 600, 6 * 3600 + 600  # how far back, and a little more


@dataclass(frozen=True)
class Node:
    """One simulated node: labels of its target, and what it serves."""

    name: str
    body: str

    @property
    def labels(self) -> dict[str, str]:
        """As a scrape would set them."""
        return {"instance": f"{self.name}:9836", "node": self.name, "cluster": "bench"}


def measure(*, small: bool = False) -> Section:
    """Evaluation time of each group of rules."""
    nodes = list(_fleet(SMALL if small else NODES))
    past = 600 if small else None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        samples = _fill(folder, nodes, past)
        address = stack.enter_context(_served(nodes))
        prometheus = stack.enter_context(_prometheus(folder, nodes, address))
        groups = _groups(prometheus, 45 if small else 270)
        series = _query(prometheus, "count({job='kubegpu-exporter'})")
        firing = _query(prometheus, "count(ALERTS)")
    return _section(nodes, groups, samples, series, firing)


# --- the fleet ----------------------------------------------------------------------------------------------


def _fleet(kinds: tuple[tuple[str, int], ...]) -> Iterator[Node]:
    number = 0
    for name, count in kinds:
        text = expose(_last(name), Format.TEXT).decode()
        for _ in range(count):
            # A UUID of its own for each device of each node.
            body = re.sub(r'"((?:GPU|MIG)-)', rf'"\g<1>{number:08x}-', text)
            yield Node(f"gpu-{number}", body)
            number += 1


def _last(name: str) -> Report:
    """The report in which a scenario ends, at a time that stays young while this runs."""
    played = scenarios.load(name)
    policy = Policy(interval=played.interval, version="0", simulated=True)
    report: Report | None = None
    for snapshot in scenarios.snapshots(played, time.time() - played.end + 60, 50_000.0):
        report = advance(policy, report, snapshot)
    assert report is not None
    return report


@contextmanager
def _served(nodes: list[Node]) -> Iterator[str]:
    """An HTTP server with a path for each node."""
    bodies = {f"/{node.name}": node.body.encode() for node in nodes}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = bodies[self.path]
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# --- the past -----------------------------------------------------------------------------------------------


def _fill(folder: Path, nodes: list[Node], past: int | None) -> int:
    """Blocks with what rules look back on: memory of workloads, and what was recorded. Counts samples."""
    now = int(time.time()) - 60
    path = folder / "past.openmetrics"
    written = 0
    with path.open("w") as file:
        for metric, back, step, labels in _remembered(nodes):
            file.write(f"# TYPE {metric} gauge\n")
            for row in labels:
                for at in range(now - (past or back), now, step):
                    file.write(f"{metric}{row} {5e9 + at % 7} {at}\n")
                    written += 1
        file.write("# EOF\n")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(path)]
    made = subprocess.run([*command, str(folder / "data")], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise RuntimeError(made.stderr)
    path.unlink()
    return written


def _remembered(nodes: list[Node]) -> Iterator[tuple[str, int, int, list[str]]]:
    """Metric, seconds back, seconds between samples, and the labels of each series."""
    workloads: list[str] = []
    devices: list[str] = []
    for node in nodes:
        own = ",".join(f'{name}="{value}"' for name, value in node.labels.items())
        workloads += [
            f'{{job="kubegpu-exporter",{own},{_without_empty(labels)}}}'
            for labels in re.findall(r"^kubegpu_workload_memory_bytes\{(.*)\}", node.body, re.MULTILINE)
        ]
        for labels in re.findall(r'^kubegpu_processes\{(.*owner="pod".*)\}', node.body, re.MULTILINE):
            kept = re.findall(r'(?:uuid|gi|mig_uuid)="[^"]+"', labels)
            devices.append(f'{{cluster="bench",node="{node.name}",{",".join(kept)}}}')
    namespaces = [f'{{cluster="bench",namespace="team-{number}"}}' for number in range(100)]
    yield "kubegpu_workload_memory_bytes", HOURS, SCRAPE, workloads
    yield "device:kubegpu_processes:sum", DAY, 60, devices
    for name in ("allocated", "busy", "measured"):
        yield f"namespace:kubegpu_{name}_gpus:sum", 3600, 60, namespaces


def _without_empty(labels: str) -> str:
    return ",".join(re.findall(r'\w+="[^"]+"', labels))


# --- Prometheus ---------------------------------------------------------------------------------------------


@contextmanager
def _prometheus(folder: Path, nodes: list[Node], address: str) -> Iterator[str]:
    targets = [
        {"targets": [address], "labels": {**node.labels, "__metrics_path__": f"/{node.name}"}}
        for node in nodes
    ]
    config = {
        "global": {"scrape_interval": f"{SCRAPE}s", "evaluation_interval": f"{SCRAPE}s"},
        "rule_files": [str(RULES / "*.rules.yaml")],
        "scrape_configs": [{"job_name": "kubegpu-exporter", "honor_labels": True, "static_configs": targets}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        own = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={own}",
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _ready(own, process, folder / "log")
            yield own
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _ready(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"http://{address}/-/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(log.read_text()[-2000:])


def _get(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"http://{address}/api/v1/{path}", timeout=60) as answer:
        return json.load(answer)["data"]


def _query(address: str, expr: str) -> int:
    found = _get(address, f"query?query={urllib.parse.quote(expr)}")["result"]
    return int(found[0]["value"][1]) if found else 0


def _groups(address: str, wait: float) -> dict[str, list[float]]:
    """Seconds of each evaluation by group, but for the first ones, in which nothing was scraped yet."""
    seen: dict[str, dict[str, float]] = {}
    began = time.monotonic()
    settled = time.time() + min(wait / 3, 2.5 * SCRAPE)
    while time.monotonic() - began < wait:
        for group in _get(address, "rules")["groups"]:
            unhealthy = [rule["name"] for rule in group["rules"] if rule["health"] == "err"]
            if unhealthy:
                raise RuntimeError(f"rules that fail: {unhealthy}")
            at = group["lastEvaluation"]
            if _time(at) > settled:
                seen.setdefault(group["name"], {})[at] = group["evaluationTime"]
        time.sleep(2)
    return {name: list(times.values()) for name, times in seen.items()}


def _time(written: str) -> float:
    """Seconds since the epoch of a time such as 2026-01-02T03:04:05.123456789Z."""
    trimmed = re.sub(r"\.(\d{6})\d*", r".\1", written.replace("Z", "+00:00"))
    return datetime.fromisoformat(trimmed).timestamp()


# --- what is told -------------------------------------------------------------------------------------------


def _section(
    nodes: list[Node], groups: dict[str, list[float]], samples: int, series: int, firing: int
) -> Section:
    slowest = max(groups, key=lambda name: max(groups[name]))
    worst = max(groups[slowest])
    version = subprocess.run(["prometheus", "--version"], capture_output=True, text=True, check=False).stdout
    number = version.split()[2] if version else "?"
    return Section(
        "Rules",
        (
            Row(
                f"Alert and recording rules over {len(nodes)} nodes, slowest group",
                f"under {BUDGET:g} s",
                f"{worst * 1000:.0f} ms ({slowest})",
                met=worst < BUDGET,
            ),
        ),
        f"Prometheus {number} scrapes {len(nodes)} simulated nodes every {SCRAPE} s, {series:,} series, and "
        f"evaluates alerts/*.rules.yaml at their own intervals, or every {SCRAPE} s. {samples:,} samples of "
        f"past are in its storage, as far as rules look back; {firing} alerts are pending or firing. The "
        "time is what /api/v1/rules says of each evaluation, the longest one counts.",
        tuple(
            f"{name}: median {sorted(times)[math.floor(len(times) / 2)] * 1000:.0f} ms, longest "
            f"{max(times) * 1000:.0f} ms, {len(times)} evaluations"
            for name, times in sorted(groups.items())
        ),
    )


if __name__ == "__main__":  # on its own: python -m tests.bench.rules
    assert shutil.which("prometheus"), "needs the Debian package prometheus"
    print(measure())  # noqa: T201
