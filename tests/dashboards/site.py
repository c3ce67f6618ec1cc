"""A site to look at: the exporter's demos of every scenario, and a real Prometheus that scrapes them.

A folder comes in; processes, all ended by their own pid, and answers of Prometheus go out. Each scenario is
scraped twice, with a `cluster` label and without, as in set-ups of several clusters and of one. What other
exporters would say (kube-state-metrics, cAdvisor) is a page that stands still. Nothing here may know a query.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from exporter.diagnosis.table import RULES
from tests.rig.agent import Agent, free_port

HERE = Path(__file__).parent
# Each scenario by its name: the node that its exporter is on, and flags.
NODES = {
    "healthy-node": "gpu-node-1",
    "mig-node": "mig-node-1",
    "time-sliced": "edge-node-1",
    "wrong-gpu": "video-node-1",
    "bad-night": "bad-node-1",
    "blind-night": "blind-node-1",
}
FLAGS = {"bad-night": ["--limits.process-series=4"]}
AGES = [f"--rules.{rule.finding.value}.{kind.name}.age=1s" for rule in RULES for kind in rule.kinds]
REWRITTEN = "rewritten"
FOREIGN = """\
kube_resourcequota{namespace="training",resourcequota="gpus",resource="requests.nvidia.com/gpu",type="hard"} 8
kube_resourcequota{namespace="training",resourcequota="gpus",resource="requests.nvidia.com/gpu",type="used"} 4
kube_pod_container_resource_requests{namespace="training",pod="llama-pretrain-0",container="trainer",\
node="gpu-node-1",resource="nvidia_com_gpu",unit="integer"} 4
container_cpu_usage_seconds_total{namespace="gpu",pod="kubegpu-exporter-x",container="kubegpu-exporter",\
node="gpu-node-1"} %.3f
container_memory_working_set_bytes{namespace="gpu",pod="kubegpu-exporter-x",container="kubegpu-exporter",\
node="gpu-node-1"} 6.1e7
"""
RULE = {"alert": "GPUUsedByWrongPod", "expr": 'kubegpu_findings{finding="used_not_allocated"} > 0'}


def jobs(clustered: bool, scenario: str) -> str:
    """The scrape job of a scenario."""
    return f"{'many' if clustered else 'one'}/{scenario}"


@dataclass
class Site:
    """A running site. Times are those of this machine's clock, as Prometheus uses it."""

    folder: Path
    stack: ExitStack
    port: int = 0
    start: float = 0.0
    agents: dict[str, Agent] = field(default_factory=dict)

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer of Prometheus' API; an error of the query is one here."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query.get('query', path)}\n{error.read().decode()[:500]}") from error

    def samples(self, query: str, start: float, end: float) -> list[tuple[dict[str, str], list[float]]]:
        """Each series of a query with its values at every second."""
        data = self.ask("query_range", query=query, start=f"{start:.3f}", end=f"{end:.3f}", step="1")
        return [(one["metric"], [float(value) for _, value in one["values"]]) for one in data["result"]]

    def wait(self, query: str, timeout: float = 30.0) -> None:
        """Until an instant query has a result."""
        deadline = time.monotonic() + timeout
        while not self.ask("query", query=query)["result"]:
            assert time.monotonic() < deadline, f"nothing came of {query} within {timeout} s"
            time.sleep(0.2)


@contextmanager
def running(folder: Path) -> Iterator[Site]:
    """The site, until the block ends."""
    with ExitStack() as stack:
        site = Site(folder, stack)
        for scenario in NODES:
            own = HERE / "scenarios" / scenario
            flags = [f"--demo.scenario={own if own.exists() else scenario}", "--interval=1s"]
            ages = [] if scenario in SLOW else AGES
            args = ["demo", *flags, *FLAGS.get(scenario, ()), *ages]
            site.agents[scenario] = Agent(args, log=folder / f"{scenario}.log")
            stack.callback(site.agents[scenario].stop)
        foreign = stack.enter_context(_foreign())
        _prometheus(site, foreign)
        yield site


SLOW = ("healthy-node",)  # with the ages of a real node: an idle notebook is no finding after a second


@contextmanager
def _foreign() -> Iterator[int]:
    """The page of the other exporters."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (FOREIGN % time.process_time()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def _prometheus(site: Site, foreign: int) -> None:
    site.port = free_port()
    rules, config = site.folder / "rules.yaml", site.folder / "prometheus.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "GPU", "rules": [RULE]}]}))
    config.write_text(yaml.safe_dump(_config(site, foreign, rules)))
    argv = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={site.folder / 'data'}"]
    argv += [f"--web.listen-address=127.0.0.1:{site.port}", "--log.level=warn", "--query.max-samples=5000000"]
    log = site.stack.enter_context((site.folder / "prometheus.log").open("wb"))
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    site.stack.callback(_end, process)
    deadline = time.monotonic() + 20
    while not _is_ready(site.port):
        assert process.poll() is None, (site.folder / "prometheus.log").read_text()[-2000:]
        assert time.monotonic() < deadline, "Prometheus is not ready"
        time.sleep(0.1)
    live = (len(NODES) + 1) * 2 + 1
    site.wait(f"count(up == 1) >= {live}")
    site.start = time.time()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=2):
            return True
    except OSError:  # refused, or 503 while it starts
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _config(site: Site, foreign: int, rules: Path) -> dict[str, Any]:
    """The README's scrape contract for every scenario: honor_labels, node and cluster as target labels."""
    scrapes = []
    for clustered in (True, False):
        for scenario, node in NODES.items():
            groups = [_group(site.agents[scenario].port, clustered, scenario, node=node)]
            if scenario == "bad-night":  # and a node that does not answer
                groups.append(_group(free_port(), clustered, scenario, node="gone-node-1"))
            job = {"job_name": jobs(clustered, scenario), "honor_labels": True, "static_configs": groups}
            scrapes.append(job)
        groups = [_group(foreign, clustered, "healthy-node")]
        scrapes.append({"job_name": jobs(clustered, "ksm"), "honor_labels": True, "static_configs": groups})
    # Without the contract the target's pod takes the place of the workload's.
    group = _group(
        site.agents["wrong-gpu"].port, True, REWRITTEN, node="video-node-1", pod="kubegpu-exporter-x"
    )
    scrapes.append({"job_name": jobs(True, REWRITTEN), "static_configs": [group]})
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": scrapes,
    }


def _group(port: int, clustered: bool, cluster: str, **labels: str) -> dict[str, Any]:
    return {
        "targets": [f"127.0.0.1:{port}"],
        "labels": {**({"cluster": cluster} if clustered else {}), **labels},
    }
