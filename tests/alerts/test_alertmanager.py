"""The sample for Alertmanager: valid, routes as it says, and mutes in a real Alertmanager what it says."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SAMPLE = Path(__file__).parents[2] / "alerts" / "alertmanager.yaml"
NODE = {"cluster": "blue", "node": "gpu-1", "instance": "10.0.0.1:9836"}
OTHER = {**NODE, "node": "gpu-2", "instance": "10.0.0.2:9836"}
GPU = {**NODE, "uuid": "GPU-1"}

# What fires, and which of them are muted; each alert is a name, a severity and labels.
Alert = tuple[str, str, dict[str, str]]
CASES: dict[str, tuple[list[Alert], list[Alert]]] = {
    "a page mutes the warning about the same device": (
        [("GPUMemoryOrphaned", "critical", GPU), ("GPUStuckProcess", "warning", GPU)],
        [("GPUMemoryOrphaned", "warning", GPU)],
    ),
    "not that of another device, node or GPU instance": (
        [
            ("GPUMemoryOrphaned", "critical", GPU),
            ("GPUMemoryOrphaned", "warning", {**GPU, "uuid": "GPU-2"}),
            ("GPUMemoryOrphaned", "warning", {**GPU, "gi": "3"}),
            ("GPUMemoryOrphaned", "warning", {**OTHER, "uuid": "GPU-1"}),
        ],
        [],
    ),
    "the wrong pod explains that two are there": (
        [("GPUUsedByWrongPod", "critical", {**GPU, "pod": "b"})],
        [("GPUExclusiveShared", "critical", GPU)],
    ),
    "not on another GPU": (
        [
            ("GPUUsedByWrongPod", "critical", {**GPU, "pod": "b"}),
            ("GPUExclusiveShared", "critical", {**GPU, "uuid": "GPU-2"}),
        ],
        [],
    ),
    "an exporter that is down mutes what is kept for its node": (
        [
            ("KubeGPUExporterDown", "warning", NODE),
            ("GPUOrphanProcess", "warning", {**OTHER, "uuid": "GPU-9"}),
        ],
        [
            ("GPUStuckProcess", "critical", GPU),
            ("GPUOrphanProcess", "warning", GPU),
            ("KubeGPUExporterSourceDown", "critical", {**NODE, "source": "nvml"}),
            ("KubeGPUExporterFindingUndetermined", "warning", {**NODE, "finding": "stuck_process"}),
        ],
    ),
    "a source that is down mutes small findings of its node, and no page": (
        [
            ("KubeGPUExporterSourceDown", "critical", {**NODE, "source": "nvml"}),
            ("GPUStuckProcess", "critical", GPU),
            ("GPUPhantomProcess", "warning", {**OTHER, "uuid": "GPU-9"}),
        ],
        [
            ("GPUPhantomProcess", "warning", GPU),
            ("GPUIdleAllocation", "info", GPU),
            ("KubeGPUExporterFindingUndetermined", "warning", {**NODE, "finding": "phantom_process"}),
        ],
    ),
    "without a label for the node one node does not mute another": (
        [
            ("KubeGPUExporterDown", "warning", {"instance": "10.0.0.1:9836"}),
            ("GPUStuckProcess", "critical", {"instance": "10.0.0.2:9836", "uuid": "GPU-2"}),
        ],
        [("GPUStuckProcess", "critical", {"instance": "10.0.0.1:9836", "uuid": "GPU-1"})],
    ),
}
ROUTES = (
    ({"alertname": "GPUMemoryOrphaned", "severity": "critical"}, "pager"),
    ({"alertname": "KubeGPUExporterAbsent", "severity": "critical"}, "pager"),
    ({"alertname": "GPUOrphanProcess", "severity": "warning"}, "chat"),
    ({"alertname": "GPUIdleAllocation", "severity": "info"}, "quiet"),
    ({"alertname": "SomethingElse", "severity": "critical"}, "chat"),
)


def _amtool(*words: str) -> str:
    said = subprocess.run(["amtool", *words], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
    return said.stdout.strip()


def test_sample_is_valid() -> None:
    """The sample is accepted by amtool."""
    assert "SUCCESS" in _amtool("check-config", str(SAMPLE))


@pytest.mark.parametrize(("labels", "receiver"), ROUTES, ids=str)
def test_routes(labels: dict[str, str], receiver: str) -> None:
    """Pages go to the pager, warnings to the chat, information to nobody who is disturbed by it."""
    words = [f"{name}={value}" for name, value in labels.items()]
    assert _amtool("config", "routes", "test", f"--config.file={SAMPLE}", *words) == receiver


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Alertmanager with the sample, on its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    folder = tmp_path_factory.mktemp("alertmanager")
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        [
            "prometheus-alertmanager",
            f"--config.file={SAMPLE}",
            f"--web.listen-address={address}",
            "--cluster.listen-address=",
            f"--storage.path={folder}",
        ],
        stdout=log,
        stderr=log,
    )
    try:
        _wait_for(f"http://{address}/-/ready", process, folder / "log")
        yield f"http://{address}/api/v2/alerts"
    finally:
        process.terminate()
        process.wait(10)
        log.close()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
    pytest.fail(log.read_text())


def _labels(alert: Alert, case: str) -> dict[str, str]:
    """Each case is a cluster of its own, so that one Alertmanager does for all."""
    name, severity, labels = alert
    return {"alertname": name, "severity": severity, **labels, "cluster": case}


def _post(url: str, alerts: list[dict[str, str]]) -> None:
    body = json.dumps([{"labels": labels} for labels in alerts]).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=5):
        pass


def _states(url: str, case: str) -> list[tuple[dict[str, str], bool]]:
    with urllib.request.urlopen(url, timeout=5) as answer:
        alerts: list[dict[str, Any]] = json.load(answer)
    some = [one for one in alerts if one["labels"]["cluster"] == case]
    return _sorted([(one["labels"], bool(one["status"]["inhibitedBy"])) for one in some])


@pytest.mark.parametrize("case", CASES)
def test_inhibition(case: str, alertmanager: str) -> None:
    """A real Alertmanager mutes exactly what the case names."""
    loud, muted = ([_labels(one, case) for one in some] for some in CASES[case])
    _post(alertmanager, [*loud, *muted])
    wanted = _sorted([*((one, False) for one in loud), *((one, True) for one in muted)])
    # It hears of alerts one after the other; what it thinks at last is what counts.
    for _ in range(100):
        if _states(alertmanager, case) == wanted:
            break
        time.sleep(0.05)
    time.sleep(0.3)
    assert _states(alertmanager, case) == wanted


def _sorted(states: list[tuple[dict[str, str], bool]]) -> list[tuple[dict[str, str], bool]]:
    return sorted(states, key=lambda one: json.dumps(one, sort_keys=True))


def test_silences_of_the_readme(alertmanager: str) -> None:
    """Every command that the README gives to silence something is taken by a real Alertmanager."""
    text = (SAMPLE.parent / "README.md").read_text()
    commands = re.findall(r"^amtool (silence add .*?[^\\])$", text, re.MULTILINE | re.DOTALL)
    assert len(commands) == text.count("amtool silence add") > 0
    url = alertmanager.partition("/api/")[0]
    for command in commands:
        _amtool(f"--alertmanager.url={url}", *shlex.split(command.replace("\\\n", " ")), "--author=test")
