"""The wheel: what is in it, that it is what runs, and what its children load."""

import re
import subprocess
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.rig.agent import Agent, free_port
from tests.system import observe
from tests.system.observe import HOST_CHILD, NVML_CHILD, one

ROOT = Path(__file__).parents[2]
CHILDREN = {
    HOST_CHILD: ["/proc", "/sys"],
    NVML_CHILD: ["--library", "/nowhere/libnvidia-ml.so.1", "--telemetry", "on"],
}
FORBIDDEN = {
    *("grpc", "google", "kubernetes", "urllib3", "pydantic", "pydantic_core", "pydantic_settings"),
    *("prometheus_client", "uvicorn", "yaml", "asyncio"),
}
LIBRARIES = ("grpc", "pydantic", "upb", "yaml")


@pytest.fixture(name="names", scope="module")
def names_in_the_wheel(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_holds_the_package_and_nothing_else(names: list[str]) -> None:
    """Only exporter/ and the metadata; of exporter/ every file of the source tree, and no cache."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = f"kubegpu_exporter-{project['version']}.dist-info"
    assert {name.split("/")[0] for name in names} == {"exporter", metadata}
    tracked = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "exporter").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.startswith("exporter/")} == tracked
    assert "exporter/sources/podresources/podresources.proto" in names
    assert any(re.fullmatch(r"exporter/scenarios/[^/]+/frames\.yaml", name) for name in names)
    assert not [name for name in names if name.endswith((".pyc", ".so"))]


def test_what_runs_is_the_wheel(installed: Path) -> None:
    """The tests of this folder run the installed package: the source tree cannot be imported there."""
    code = "import sys, exporter; print(exporter.__file__); print(*sys.path, sep='\\n')"
    python = installed / "python"
    result = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True, cwd="/")
    file, *path = result.stdout.splitlines()
    assert Path(file).is_relative_to(installed.parent)
    assert str(ROOT) not in path


def test_the_version_is_the_projects(command: Sequence[str], tmp_path: Path) -> None:
    """--version prints what pyproject.toml says."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    result = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == (f"kubegpu-exporter {version}\n", "")


@pytest.mark.parametrize("module", CHILDREN)
def test_a_child_imports_only_what_it_needs(installed: Path, module: str) -> None:
    """Started as the agent starts it, a child imports none of the agent's large libraries."""
    result = subprocess.run(
        [installed / "python", "-I", "-X", "importtime", "-m", module, *CHILDREN[module]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    lines = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.split("|")[-1].strip() for line in lines}
    assert "exporter.sources.child" in imported
    assert not {name.split(".")[0] for name in imported} & FORBIDDEN


def test_a_running_child_maps_no_large_library(command: Sequence[str], tmp_path: Path) -> None:
    """The maps of the running children show no library of gRPC, protobuf, pydantic or YAML."""
    flags = [f"--nvml.library={tmp_path}/libnvidia-ml.so.1", "--interval=1s", "--kubernetes.enabled=false"]
    with Agent([*flags, f"--kubelet.root-dir={tmp_path}"], log=tmp_path / "log", command=command) as agent:
        for module in CHILDREN:
            maps = Path(f"/proc/{observe.child(agent, module)}/maps").read_text()
            loaded = {line.split()[-1] for line in maps.splitlines() if ".so" in line}
            assert loaded
            assert not [path for path in loaded if any(name in Path(path).parts for name in LIBRARIES)]
            assert not [path for path in loaded if re.search("grpc|pydantic|upb|_yaml", path)]


# ---------------------------------------------------------------- the demo


def shipped() -> list[str]:
    """The scenarios that the wheel carries."""
    return sorted(path.parent.name for path in (ROOT / "exporter" / "scenarios").glob("*/frames.yaml"))


@pytest.mark.parametrize("scenario", shipped())
def test_the_demo_says_that_it_is_one(command: Sequence[str], tmp_path: Path, scenario: str) -> None:
    """Each shipped scenario is served as a node of its own, and is called simulated wherever it is read."""
    argv = ["demo", f"--demo.scenario={scenario}"]
    with Agent(argv, log=tmp_path / "log", command=command) as agent:
        samples = agent.samples()
        assert one(samples, "exporter_build_info", simulated="true") == 1
        assert one(samples, "exporter_build_info", simulated="false") is None
        assert observe.series(samples, "source_up")
        page = agent.get("/")
        assert page.status == 200
        assert "Simulated data" in page.text
        assert "SIMULATED" in agent.log.read_text()
        assert not observe.children(agent)
        assert agent.stop() == 0


def test_a_demo_without_a_name_runs(command: Sequence[str], tmp_path: Path) -> None:
    """The demo needs no flag at all."""
    with Agent(["demo"], log=tmp_path / "log", command=command) as agent:
        assert observe.series(agent.samples(), "gpu_info")


def test_an_unknown_scenario_is_refused_by_name(command: Sequence[str]) -> None:
    """The line names those that there are."""
    argv = [*command, "demo", "--demo.scenario=no-such", f"--web.listen-address=127.0.0.1:{free_port()}"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert result.returncode == 2
    assert "no-such" in result.stderr.splitlines()[-1]
    assert all(name in result.stderr.splitlines()[-1] for name in shipped())
