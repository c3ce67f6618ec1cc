"""GPUs that are cut anew, plugged in, lost, hung or handed over to a reset: the next cycle says so."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rig.agent import Agent, Samples
from tests.rig.hardware import Gpu
from tests.rig.rig import Rig
from tests.system import observe
from tests.system.observe import eventually, one, rows, up, values

SOON = 5.0  # seconds: a cycle, and another where the machine is busy


@pytest.fixture(name="rig", scope="module")
def mixed_rig() -> Iterator[Rig]:
    with Rig() as rig:
        for _ in range(6):
            rig.add_gpu(utilization=5)
        parent = rig.add_gpu(mig=True)
        rig.add_mig(parent)
        rig.add_mig(parent)
        observe.aged(rig)
        yield rig


@pytest.fixture(name="pause_file", scope="module")
def path_of_pause_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pause") / "pause"


@pytest.fixture(name="agent", scope="module")
def watching_agent(rig: Rig, pause_file: Path, command: Sequence[str]) -> Iterator[Agent]:
    with rig.agent(f"--pause-file={pause_file}", command=command) as agent:
        observe.settled(agent)
        yield agent


def measured(samples: Samples) -> set[tuple[str, ...]]:
    """The GPUs whose values are there."""
    return rows(samples, "gpu_memory_used_bytes", "uuid")


def uuids(*gpus: Gpu) -> set[tuple[str, ...]]:
    return {(gpu.uuid,) for gpu in gpus}


def test_a_new_partition_replaces_the_old_one(rig: Rig, agent: Agent) -> None:
    """A MIG device that was destroyed is gone with all its series; one that was made has its own."""
    (parent,) = (gpu for gpu in rig.gpus if gpu.mig)
    gone = parent.instances.pop()
    fresh = replace(gone, uuid=gone.uuid[:-1] + "f", gi=gone.gi + 4, profile="2g.10gb", caps=None, rows=[])
    parent.instances.append(fresh)
    rig.sync()
    expected = {(one.uuid, str(one.gi), one.profile) for one in parent.instances}

    def look(samples: Samples) -> set[tuple[str, ...]]:
        return rows(samples, "mig_info", "mig_uuid", "gi", "profile")

    samples = eventually(agent, look, expected, SOON)
    for name in ("mig_memory_used_bytes", "gpu_allocated"):
        assert (gone.uuid,) not in rows(samples, name, "uuid", "mig_uuid")
    assert fresh.uuid in {row["mig_uuid"] for row in observe.series(samples, "processes", uuid=parent.uuid)}


def test_a_gpu_that_is_plugged_in_appears(rig: Rig, agent: Agent) -> None:
    """A new GPU has its series, and the PCI bus counts it too."""
    before = one(agent.samples(), "node_gpus", state="pci")
    gpu = rig.add_gpu()
    samples = eventually(agent, measured, uuids(*rig.gpus), SOON)
    assert rows(samples, "gpu_info", "gpu", "minor", uuid=gpu.uuid) == {(str(gpu.index), str(gpu.minor))}
    assert before is not None
    assert one(samples, "node_gpus", state="pci") == before + 1
    assert one(samples, "gpu_allocated", uuid=gpu.uuid) == 0


def test_a_lost_gpu_loses_its_values_and_no_other_does(rig: Rig, agent: Agent) -> None:
    """GPU_IS_LOST is a fact of one GPU: it keeps its name, its values go, and come back with it."""
    gpu = rig.gpus[1]
    gpu.overrides = {"lost": True}
    rig.sync()
    others = uuids(*[one for one in rig.gpus if one is not gpu])
    samples = eventually(agent, measured, others, SOON)
    assert uuids(*rig.gpus) == rows(samples, "gpu_info", "uuid")
    assert {error for (error,) in rows(samples, "nvml_faults", "error", uuid=gpu.uuid)} == {"GPU_IS_LOST"}
    assert one(samples, "processes", uuid=gpu.uuid, owner="pod") is None
    assert up(samples, "nvml") == 1
    gpu.overrides = {}
    rig.sync()
    samples = eventually(agent, measured, uuids(*rig.gpus), SOON)
    assert not observe.series(samples, "nvml_faults", uuid=gpu.uuid)


def test_a_hung_gpu_does_not_take_those_before_it_along(rig: Rig, agent: Agent) -> None:
    """The cycle in which a call hangs keeps the GPUs read before, and names the GPU and the call."""
    hung, call = rig.gpus[3], "nvmlDeviceGetTemperatureV"
    hung.overrides = {"calls": {call: {"hang": True}}}
    rig.sync()
    try:
        first = uuids(*rig.gpus[:3])
        samples = eventually(agent, measured, first, SOON)
        expected = {(call, hung.uuid, "3")}

        def in_flight(samples: Samples) -> tuple[object, ...]:
            calls = rows(samples, "nvml_call_in_flight_info", "call", "uuid", "gpu")
            return calls, up(samples, "nvml")

        samples = eventually(agent, in_flight, (expected, 0.0))
        assert not observe.series(samples, "gpu_memory_used_bytes")
        since = one(samples, "nvml_call_in_flight_since_timestamp_seconds", uuid=hung.uuid)
        assert since == pytest.approx(time.time(), abs=15)
    finally:
        hung.overrides = {}
        rig.sync()
    samples = eventually(agent, measured, uuids(*rig.gpus), 10)
    assert not observe.series(samples, "nvml_call_in_flight_info")


def test_a_pause_releases_every_handle(rig: Rig, agent: Agent, pause_file: Path) -> None:
    """While the pause file exists the NVML child is gone and the metrics say so; afterwards all is back."""
    before = observe.child(agent, observe.NVML_CHILD)
    assert values(agent.samples(), "source_paused", "source")["nvml",] == 0
    pause_file.touch()

    def paused(samples: Samples) -> tuple[float | None, ...]:
        return one(samples, "source_paused", source="nvml"), up(samples, "nvml")

    try:
        samples = eventually(agent, paused, (1.0, 0.0), SOON)
        assert not observe.series(samples, "gpu_memory_used_bytes")
        assert observe.ended(before, 3)
        observe.steady(agent, paused, (1.0, 0.0), 1.5)
        assert observe.NVML_CHILD not in observe.children(agent)
    finally:
        pause_file.unlink()
    samples = eventually(agent, paused, (0.0, 1.0), 10)
    assert measured(samples) == uuids(*rig.gpus)
    assert observe.child(agent, observe.NVML_CHILD) != before
