"""From a pod that is gone and a process that is not, to one page on somebody's desk, and to its end.

All of it is real: the process with its device files, the exporter, Prometheus with the shipped rules,
Alertmanager with the shipped routes and inhibitions. Only time is shortened: the exporter's ages by flags,
`for` by the generator's `for_scale`, Alertmanager's waiting by its own settings.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.servers import Prometheus, Webhook, alertmanager, prometheus, wait_for, webhook
from tests.rig.agent import Agent
from tests.rig.hardware import GIB
from tests.rig.rig import Rig
from tests.rig.workloads import NODE
from tests.system import findings, observe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
SCALE = 0.02  # ten minutes are twelve seconds
HANG = 8.0  # seconds: shorter than the scaled keep_firing_for
NAME = "GPUMemoryOrphaned"


def routes(port: int) -> dict[str, Any]:
    """The shipped configuration of Alertmanager, with our receiver in it and without its patience."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "alerts" / "alertmanager.yaml").read_text())
    for route in (config["route"], *config["route"]["routes"]):
        route.update(group_wait="1s", group_interval="1s", repeat_interval="1h")
    for receiver in config["receivers"]:
        if receiver["name"] == "pager":
            receiver["webhook_configs"] = [{"url": f"http://127.0.0.1:{port}/", "send_resolved": True}]
        else:
            receiver.pop("webhook_configs", None)
    return config


@pytest.fixture(name="rig", scope="module")
def _rig() -> Iterator[Rig]:
    with Rig() as rig:
        with rig.batch():
            findings.add_gpu(rig)
            findings.add_gpu(rig)
        observe.aged(rig)
        yield rig


@pytest.fixture(name="agent", scope="module")
def _agent(rig: Rig) -> Iterator[Agent]:
    with rig.agent(*findings.AT_ONCE) as agent:
        observe.settled(agent)
        yield agent


@pytest.fixture(name="pager", scope="module")
def _pager(agent: Agent, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, Webhook]]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "config.yaml").write_text(f"for_scale: {SCALE}\nrunbook_url: http://runbooks/{{alert}}\n")
    command = (
        sys.executable,
        "-m",
        "alerts.src",
        f"--config={folder}/config.yaml",
        f"--output={folder}/rules",
    )
    subprocess.run(command, check=True, cwd=ROOT)
    with webhook() as heard, alertmanager(folder, routes(heard.port)) as manager:
        target = {"targets": [f"127.0.0.1:{agent.port}"], "labels": {"node": NODE, "cluster": "rig"}}
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "scrape_configs": [
                {"job_name": "kubegpu-exporter", "honor_labels": True, "static_configs": [target]}
            ],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{manager.port}"]}]}]},
        }
        with prometheus(folder, config, sorted((folder / "rules").glob("*.yaml"))) as server:
            wait_for("a scrape", lambda: server.query("kubegpu_exporter_build_info"))
            yield server, heard


def pages(heard: Webhook, status: str) -> Sequence[dict[str, Any]]:
    return [one for one in heard.notifications(NAME) if one["status"] == status]


def firing(server: Prometheus) -> set[str]:
    return {name for name, state, _ in server.alerts() if state == "firing"}


def test_an_orphan_pages_once_and_is_resolved_by_its_cure(
    rig: Rig, agent: Agent, pager: tuple[Prometheus, Webhook]
) -> None:
    """One page with pod, GPU, bytes and runbook; NVML hanging in between neither ends nor repeats it."""
    server, heard = pager
    gpu = rig.gpus[0]
    pod = findings.add_pod(rig, "train-0", [gpu])
    process = findings.work(rig, pod, gpu, memory=12 * GIB)
    well = findings.add_pod(rig, "serve-0", [rig.gpus[1]])
    findings.work(rig, well, rig.gpus[1], memory=2 * GIB)
    observe.eventually(agent, lambda samples: len(observe.rows(samples, "process_info", "pid")) >= 2, True)
    time.sleep(3)
    assert NAME not in {name for name, _, _ in server.alerts()}
    assert heard.heard == []

    rig.delete_pod(pod)  # by force: API server and kubelet forget it, its process stays
    wait_for("the page", lambda: pages(heard, "firing"), 90)
    (page,) = pages(heard, "firing")
    assert page["labels"]["uuid"] == gpu.uuid
    assert (page["labels"]["node"], page["labels"]["cluster"]) == (NODE, "rig")
    told = page["annotations"]["description"]
    for expected in (gpu.uuid, f"{pod.namespace}/{pod.name}", str(process.pid), "12GiB", NODE):
        assert expected in told.replace(" ", ""), told
    assert page["annotations"]["runbook_url"] == "http://runbooks/gpumemoryorphaned"

    gpu.overrides = {"calls": {"nvmlDeviceGetUUID": {"hang": True}}}
    rig.sync()
    observe.eventually(agent, lambda samples: observe.up(samples, "nvml"), 0.0, 20)
    hung = time.monotonic()
    while time.monotonic() - hung < HANG:
        assert NAME in firing(server)
        time.sleep(0.5)
    gpu.overrides = {}
    rig.sync()
    observe.eventually(agent, lambda samples: observe.up(samples, "nvml"), 1.0, 60)
    time.sleep(3)
    assert NAME in firing(server)
    assert pages(heard, "resolved") == []

    rig.end(process)
    wait_for("the end of it", lambda: pages(heard, "resolved"), 60)
    assert len(pages(heard, "firing")) - len(pages(heard, "resolved")) in (0, 1)
    firsts = {one["startsAt"] for one in heard.notifications(NAME)}
    assert len(firsts) == 1, f"it was told as {len(firsts)} incidents"
    assert NAME not in firing(server)
    others = {one["labels"]["uuid"] for one in heard.notifications(NAME)}
    assert others == {gpu.uuid}, "a healthy pod's GPU was told of"
