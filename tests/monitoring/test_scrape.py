"""What becomes of the workload labels in the three scrape configurations, on a real Prometheus."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.servers import Labels, Prometheus, prometheus, wait_for
from tests.rig.agent import Agent

pytestmark = pytest.mark.timeout(120)
README = Path(__file__).parents[2] / "README.md"
# What service discovery says of the exporter's own pod.
TARGET = {
    "pod": "kubegpu-exporter-x",
    "namespace": "monitoring",
    "container": "kubegpu-exporter",
    "node": "node-1",
}
DROPPED = [{"regex": "pod|container|namespace|service|endpoint", "action": "labeldrop"}]
OWN = ("namespace", "pod", "container")

# Job: honor_labels, relabel_configs.
JOBS: dict[str, tuple[bool, list[dict[str, str]]]] = {
    "rewritten/kubegpu-exporter": (False, []),
    "honoured/kubegpu-exporter": (True, []),
    "contract/kubegpu-exporter": (True, DROPPED),
}
# A pod of the demo's node, which has GPUs to itself.
PODS_OWN = {"namespace": "training", "pod": "llama-pretrain-0", "container": "trainer"}


@pytest.fixture(name="server", scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("scrape")
    rules = folder / "rules"
    scaled = folder / "config.yaml"
    scaled.write_text("for_scale: 0.001\n")
    command = (sys.executable, "-m", "alerts.src", f"--config={scaled}", f"--output={rules}")
    subprocess.run(command, check=True, cwd=README.parent)
    agent = Agent(["demo", "--interval=1s"], log=folder / "agent.log")
    try:
        config: dict[str, Any] = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "scrape_configs": [
                {
                    "job_name": job,
                    "honor_labels": honoured,
                    "static_configs": [{"targets": [f"127.0.0.1:{agent.port}"], "labels": TARGET}],
                    "relabel_configs": relabelled,
                }
                for job, (honoured, relabelled) in JOBS.items()
            ],
        }
        with prometheus(folder, config, sorted(rules.glob("*.yaml"))) as server:
            wait_for("scrapes", lambda: len(server.query("kubegpu_exporter_build_info")) == len(JOBS))
            yield server
    finally:
        agent.stop()


def one(server: Prometheus, metric: str, job: str, **labels: str) -> Labels:
    """The labels of the only series there is of these."""
    wanted = ",".join(f'{name}="{value}"' for name, value in {"job": job, **labels}.items())
    ((found, _),) = server.query(f"{metric}{{{wanted}}}")
    return found


def of_workload(labels: Labels) -> dict[str, str]:
    """What a series says about pods, whatever the labels are called."""
    return {name: value for name, value in labels.items() if name.removeprefix("exported_") in OWN}


EXPORTED = {f"exported_{name}": value for name, value in PODS_OWN.items()}
EXPORTER = {name: TARGET[name] for name in OWN}


@pytest.mark.parametrize(
    ("job", "with_pod", "without", "never"),
    [
        pytest.param(
            "rewritten/kubegpu-exporter", EXPORTER | EXPORTED, EXPORTER, EXPORTER, id="honor_labels: false"
        ),
        pytest.param("honoured/kubegpu-exporter", PODS_OWN, {}, EXPORTER, id="honor_labels: true"),
        pytest.param("contract/kubegpu-exporter", PODS_OWN, {}, {}, id="the contract"),
    ],
)
def test_labels_of_workloads(
    server: Prometheus, job: str, with_pod: Labels, without: Labels, never: Labels
) -> None:
    """A series with a pod, one whose pod is empty, and one of a family that has no such label."""
    wanted = "exported_pod" if "exported_pod" in with_pod else "pod"
    found = server.query(f'kubegpu_gpu_memory_used_bytes{{job="{job}",{wanted}="{PODS_OWN["pod"]}"}}')
    assert found
    for labels, _ in found:
        assert of_workload(labels) == dict(with_pod)
        assert labels["node"] == "node-1"
    free = server.query(
        f'kubegpu_gpu_memory_used_bytes{{job="{job}"}} and on (uuid) '
        f'kubegpu_gpu_allocated{{job="{job}"}} == 0'
    )
    assert free
    assert all(of_workload(labels) == dict(without) for labels, _ in free)
    assert of_workload(one(server, "kubegpu_exporter_build_info", job)) == dict(never)


def test_the_rewritten_labels_have_an_alert(server: Prometheus) -> None:
    """The two wrong configurations say so themselves; the contract is silent."""
    name = "KubeGPUExporterLabelsRewritten"

    def firing() -> set[str]:
        return {
            labels["job"] for alert, state, labels in server.alerts() if (alert, state) == (name, "firing")
        }

    wrong = {"rewritten/kubegpu-exporter", "honoured/kubegpu-exporter"}
    wait_for("the alert", lambda: firing() == wrong)
    # The contract has been judged as often as the others.
    judged = [rule for group in server.groups() for rule in group["rules"] if rule["name"] == name]
    assert [rule["health"] for rule in judged] == ["ok"]
    assert firing() == wrong


def test_the_readme_shows_the_contract() -> None:
    """What is tested here as the contract is what the README tells."""
    text = README.read_text()
    assert "honor_labels: true" in text
    assert DROPPED[0]["regex"] in text
