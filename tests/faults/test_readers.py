"""Independent readers of NVML, nvitop and gpustat, see on the same library what we report of plain GPUs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults.course import World, make_world
from tests.rig.agent import Agent, Samples
from tests.rig.errors import RigError
from tests.rig.rig import Rig
from tests.system import observe
from tests.system.observe import values

pytestmark = pytest.mark.timeout(180)
READERS = Path(__file__).parents[2] / "build" / "readers"  # made once
PACKAGES = ("nvitop==1.7.2", "gpustat==1.1.1")
NVITOP = """
import json
from nvitop import Device
print(json.dumps([
    {"uuid": one.uuid(), "total": one.memory_total(), "used": one.memory_used(), "name": one.name(),
     "utilization": one.gpu_utilization(), "temperature": one.temperature(), "power": one.power_usage(),
     "processes": {pid: process.gpu_memory() for pid, process in one.processes().items()}}
    for one in Device.all()]))
"""
MIB = 1 << 20


@pytest.fixture(name="world", scope="module")
def busy_world() -> Iterator[World]:
    with Rig() as rig:
        world = make_world(rig)
        for number, gpu in enumerate(rig.gpus):
            gpu.utilization = 10 * number
        rig.sync()
        yield world


@pytest.fixture(name="samples", scope="module")
def our_samples(world: World, command: Sequence[str]) -> Samples:
    agent: Agent
    with world.rig.agent(command=command) as agent:
        return observe.settled(agent)


@pytest.fixture(name="readers", scope="module")
def installed_readers() -> Path:
    """The interpreter of an environment that has both; RigError says why there is none."""
    python = READERS / "bin" / "python"
    done = READERS / f"installed-{'-'.join(PACKAGES).replace('=', '')}"
    if done.exists():
        return python
    for argv in (
        [sys.executable, "-m", "venv", "--clear", str(READERS)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES],
    ):
        result = subprocess.run(argv, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RigError(f"no nvitop and gpustat in {READERS}: {result.stderr.strip()[-500:]}")
    done.touch()
    return python


def read(world: World, *argv: str) -> Any:
    """The JSON that a reader prints, with the rig's library in the place of NVIDIA's."""
    env = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(world.rig.nvml_folder), "TERM": "dumb"}
    result = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_nvitop_agrees(world: World, samples: Samples, readers: Path) -> None:
    """Memory, utilisation, temperature, power, and every process with its bytes."""
    found = {gpu["uuid"]: gpu for gpu in read(world, str(readers), "-c", NVITOP)}
    assert set(found) == {gpu.uuid for gpu in world.rig.gpus}
    for family, key, scale in (
        ("gpu_memory_total_bytes", "total", 1),
        ("gpu_memory_used_bytes", "used", 1),
        ("gpu_utilization_ratio", "utilization", 0.01),
        ("gpu_temperature_celsius", "temperature", 1),
        ("gpu_power_watts", "power", 0.001),
    ):
        ours = {uuid: value for (uuid,), value in values(samples, family, "uuid").items()}
        assert ours == {uuid: pytest.approx(gpu[key] * scale) for uuid, gpu in found.items()}, family
    theirs = {(uuid, pid): memory for uuid, gpu in found.items() for pid, memory in gpu["processes"].items()}
    ours_of = values(samples, "process_memory_bytes", "uuid", "pid")
    phantom = (world.rig.gpus[3].uuid, str(world.phantom))
    assert {key: value for key, value in ours_of.items() if key != phantom} == {
        key: value for key, value in theirs.items() if key != phantom
    }


def test_gpustat_agrees(world: World, samples: Samples, readers: Path) -> None:
    """The same in its units: MiB, percent, watts; a process that has died is nobody to it."""
    found = {
        gpu["uuid"]: gpu
        for gpu in read(world, str(readers), "-m", "gpustat", "--json", "--no-header")["gpus"]
    }
    assert set(found) == {gpu.uuid for gpu in world.rig.gpus}
    for family, key, scale in (
        ("gpu_memory_total_bytes", "memory.total", MIB),
        ("gpu_memory_used_bytes", "memory.used", MIB),
        ("gpu_utilization_ratio", "utilization.gpu", 0.01),
        ("gpu_temperature_celsius", "temperature.gpu", 1),
        ("gpu_power_watts", "power.draw", 1),
    ):
        ours = {uuid: value for (uuid,), value in values(samples, family, "uuid").items()}
        assert ours == {uuid: pytest.approx(gpu[key] * scale, abs=scale) for uuid, gpu in found.items()}, (
            family
        )
    theirs = {
        (uuid, str(process["pid"])): process["gpu_memory_usage"] * MIB
        for uuid, gpu in found.items()
        for process in gpu["processes"]
    }
    ours_of = values(samples, "process_memory_bytes", "uuid", "pid")
    phantom = (world.rig.gpus[3].uuid, str(world.phantom))
    assert {key: value for key, value in ours_of.items() if key != phantom} == {
        key: value for key, value in theirs.items() if key != phantom
    }
