"""Starting where there is nothing, or with what cannot be right: serve what is known, say what is wrong."""

import re
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.rig.agent import Agent, free_port
from tests.system import observe
from tests.system.observe import one, values

CYCLES = 5


@pytest.fixture(name="agent", scope="module")
def agent_on_an_empty_machine(
    tmp_path_factory: pytest.TempPathFactory, command: Sequence[str]
) -> Iterator[Agent]:
    """No GPU, no kubelet, no cluster; the processes are this machine's."""
    folder = tmp_path_factory.mktemp("empty")
    (folder / "nothing").mkdir()
    nothing = folder / "nothing"
    flags = [
        f"--path.sysfs={nothing}",
        f"--path.pod-logs={nothing}",
        f"--kubelet.root-dir={nothing}",
        f"--nvml.library={nothing}/libnvidia-ml.so.1",
        "--node-name=empty",
        "--interval=1s",
    ]
    with Agent(flags, log=folder / "log", command=command) as agent:
        agent.wait_for(
            lambda: one(agent.samples(), "source_errors_total", source="nvml", reason="unavailable")
        )
        yield agent


def test_an_empty_machine_is_served(agent: Agent) -> None:
    """It is ready and healthy, names its node, and claims nothing about GPUs."""
    assert agent.get("/-/ready").status == agent.get("/-/healthy").status == 200
    samples = agent.samples()
    assert one(samples, "node_info", node="empty") == 1
    assert not observe.series(samples, "gpu_info")
    assert not observe.series(samples, "gpu_allocated")
    assert not observe.series(samples, "process_info")
    found = values(samples, "source_up", "source")
    assert {source for source in ("nvml", "kubelet", "pods", "node") if found[source,] == 0} == {
        "nvml",
        "kubelet",
        "pods",
        "node",
    }


def test_each_missing_source_is_logged_once(agent: Agent) -> None:
    """A source that stays missing is one line, not one in each cycle."""
    counted = values(agent.samples(), "source_errors_total", "source", reason="unavailable")["nvml",]

    def errors() -> float:
        return values(agent.samples(), "source_errors_total", "source", reason="unavailable")["nvml",]

    agent.wait_for(lambda: errors() >= counted + CYCLES, timeout=20)
    found = values(agent.samples(), "source_up", "source")
    missing = {source for (source,), is_up in found.items() if not is_up}
    lines = re.findall(r"source (\w+) is missing: (\w+)", agent.log.read_text())
    # The first cycle may not have waited long enough to hear why.
    known = [source for source, reason in lines if source in missing and reason != "timeout"]
    assert sorted(known) == sorted(missing)
    assert len(set(lines)) == len(lines)
    assert "Traceback" not in agent.log.read_text()


def test_an_empty_machine_is_left_in_time(agent: Agent) -> None:
    """SIGTERM ends it with status 0 within five seconds."""
    start = time.monotonic()
    assert agent.stop() == 0
    assert time.monotonic() - start < 5


# ---------------------------------------------------------------- what cannot be right


def refused(command: Sequence[str], *flags: str) -> str:
    """The last line on standard error of a start that failed as it must."""
    result = subprocess.run(
        [*command, *flags],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("flag", "field", "value", "remedy"),
    [
        ("--intervall=5s", "--intervall", "", "--interval"),
        ("--interval=0.5s", "--interval", "0.5s", "1s"),
        ("--interval=soon", "--interval", "soon", "give"),
        ("--web.listen-address=nowhere", "--web.listen-address", "nowhere", "give"),
        ("--kubernetes.enabled=perhaps", "--kubernetes.enabled", "perhaps", "true"),
        ("--config.file=/nowhere", "--config.file", "/nowhere", "give"),
    ],
)
def test_a_bad_flag_is_refused(
    command: Sequence[str], flag: str, field: str, value: str, remedy: str
) -> None:
    """Exit status 2; the last line names the field, the value and what to do; nobody listens."""
    port = free_port()
    line = refused(command, *([] if "listen" in flag else [f"--web.listen-address=127.0.0.1:{port}"]), flag)
    assert line.startswith(f"kubegpu-exporter: {field}")
    assert value in line
    assert remedy in line.split(";")[-1]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_a_port_in_use_is_refused(command: Sequence[str]) -> None:
    """It does not start beside another program, and says which address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refused(command, f"--web.listen-address={address}")
    assert line.startswith("kubegpu-exporter: --web.listen-address")
    assert address in line
    assert "give a free port" in line


def test_a_slip_in_a_scenario_is_refused(command: Sequence[str], installed: Path, tmp_path: Path) -> None:
    """A key that no scenario has is named with its file and a remedy, before anything is served."""
    folder = tmp_path / "slip"
    folder.mkdir()
    (folder / "frames.yaml").write_text("node_name: x\nintervall: 15\nframes: [{at: 0}]\n")
    line = refused(
        command, "demo", f"--demo.scenario={folder}", f"--web.listen-address=127.0.0.1:{free_port()}"
    )
    assert line.startswith("kubegpu-exporter: ")
    assert str(folder) in line
    assert "intervall" in line
    assert ";" in line
