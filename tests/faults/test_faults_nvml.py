"""Faults of the NVML child, of the library and of one GPU."""

import contextlib
import os
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from tests.faults.conftest import Begin
from tests.faults.course import World, standing, told, well, without_gpu_values
from tests.rig.agent import Agent, Samples
from tests.rig.nvml import node as nvml
from tests.rig.rig import Rig
from tests.system import observe
from tests.system.observe import NVML_CHILD, rows, up

pytestmark = pytest.mark.timeout(120)
INIT_SECONDS = 28.0
# Without rows, memory and inventory. Programs of the host are judged by the scan alone, which is whole.
NVML_UNKNOWN = {
    "phantom_process",
    "hidden_holder",
    "orphaned_memory",
    "exclusive_gpu_shared",
    "used_not_allocated",
    "node_capacity_mismatch",
    "idle_allocation",
}


@pytest.fixture(name="slow", scope="module", autouse=True)
def agent_whose_init_is_slow(
    world: World, flags: list[str], command: Sequence[str]
) -> Iterator[tuple[Agent, float]]:
    """Started before all others, so that they pass the time: its own library takes 28 s to start."""
    rig = world.rig
    folder = rig.root / "slow"
    document = nvml.node(*[gpu.document() for gpu in rig.gpus], init={"delay_ms": int(INIT_SECONDS * 1000)})
    nvml.place(rig.nvml_library.resolve(), folder, document)
    library = f"--nvml.library={folder / rig.nvml_library.name}"
    began = time.monotonic()
    with rig.agent(*flags, library, command=command) as agent:
        yield agent, began


def test_slow_init(world: World, slow: tuple[Agent, float], begin: Begin) -> None:
    """What needs no GPU is there at once; the GPUs come when they can, and their absence means nothing."""
    agent, began = slow
    course = begin("NVML init takes 28 s", world, agent, settle=False)
    told_without = {row for row in standing(world) if row[0] != "phantom_process"}
    observe.eventually(agent, lambda samples: told(world, samples), told_without)
    course.findings = told_without
    left = began + INIT_SECONDS - 4 - time.monotonic()
    course.missed("nvml", "busy")
    course.lasts(min(left, 4.0), without_gpu_values(well(world)), NVML_UNKNOWN, "nvml")
    course.pause_until(began + INIT_SECONDS - 1)
    observe.eventually(agent, lambda samples: up(samples, "nvml"), 1.0)
    observe.eventually(agent, lambda samples: told(world, samples), standing(world))
    course.findings = standing(world)
    course.over("nvml")


def test_stopped(world: World, agent: Agent, begin: Begin) -> None:
    """A child that does not run, as one whose call hangs in the driver."""
    course = begin("NVML child stopped", world, agent)
    pid = observe.child(agent, NVML_CHILD)
    os.kill(pid, signal.SIGSTOP)
    try:
        course.missed("nvml", "busy")
        course.lasts(4, without_gpu_values(well(world)), NVML_UNKNOWN, "nvml")
    finally:
        os.kill(pid, signal.SIGCONT)
    course.over("nvml")
    assert observe.child(agent, NVML_CHILD) == pid


def test_killed(world: World, agent: Agent, begin: Begin) -> None:
    """The next child takes over."""
    course = begin("NVML child killed", world, agent)
    pid = observe.child(agent, NVML_CHILD)
    os.kill(pid, signal.SIGKILL)
    course.missed("nvml", "unavailable")
    course.over("nvml")
    assert observe.child(agent, NVML_CHILD) != pid


def test_garbage(world: World, agent: Agent, begin: Begin) -> None:
    """Bytes that are no frame come out of the child's pipe: it is replaced."""
    course = begin("NVML child writes garbage", world, agent)
    pid = observe.child(agent, NVML_CHILD)
    pipe = os.open(f"/proc/{pid}/fd/{_replies(pid)}", os.O_WRONLY)
    try:
        os.write(pipe, struct.pack(">I", 12) + b"no JSON here")
    finally:
        os.close(pipe)
    course.missed("nvml", "protocol")
    course.over("nvml")
    assert observe.child(agent, NVML_CHILD) != pid


def _replies(pid: int) -> str:
    """The child's descriptor of the pipe that the agent reads from: it writes it, and it is no 1 or 2."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            text = os.readlink(f"/proc/{pid}/fd/{name}")
            with open(f"/proc/{pid}/fdinfo/{name}") as file:
                flags = int(file.read().split("flags:")[1].split()[0], 8)
            if int(name) > 2 and text.startswith("pipe:") and flags & os.O_ACCMODE == os.O_WRONLY:
                return name
    raise AssertionError(f"child {pid} has no pipe to write to")


def test_crash_in_init(world: World, agent: Agent, begin: Begin) -> None:
    """Each new child dies in nvmlInit; the one that does not is there within its turn."""
    course = begin("NVML crashes in init", world, agent)
    rig: Rig = world.rig
    rig.nvml_overrides = {"calls": {"nvmlInit_v2": {"crash": True}, "nvmlInitWithFlags": {"crash": True}}}
    rig.sync()
    os.kill(observe.child(agent, NVML_CHILD), signal.SIGKILL)
    try:
        course.missed("nvml", "unavailable")
        course.lasts(5, without_gpu_values(well(world)), NVML_UNKNOWN, "nvml")
    finally:
        rig.nvml_overrides = {}
        rig.sync()
    course.over("nvml", timeout=25)


def test_lost_gpu(world: World, agent: Agent, begin: Begin) -> None:
    """One GPU falls off the bus and comes back; the others do not feel it."""
    course = begin("GPU lost and back", world, agent)
    course.consequences = {("node_capacity_mismatch", "", "")}
    gpu = world.rig.gpus[3]  # that of the phantom and of the program of the host
    gpu.overrides = {"lost": True}
    world.rig.sync()

    def doubtful(samples: Samples) -> set[str]:
        found = rows(samples, "finding_undetermined", "uuid", "finding", "reason")
        return {uuid if uuid == gpu.uuid else f"{uuid} {finding} {reason}" for uuid, finding, reason in found}

    def lost(samples: Samples) -> set[tuple[str, ...]]:
        return rows(samples, "gpu_memory_used_bytes", "uuid")

    others = frozenset((one.uuid,) for one in world.rig.gpus[:3])
    course.until("without values", lost, set(others))
    whole = well(world)
    owners = frozenset(row for row in whole.owners if row[0] != gpu.uuid)
    unknown = NVML_UNKNOWN - {"node_capacity_mismatch"}
    course.lasts(3, replace(whole, gpus=others, owners=owners), unknown)
    course.until("the others judged", doubtful, {gpu.uuid})
    gpu.overrides = {}
    world.rig.sync()
    course.until("the loss resolved", lambda samples: course.consequences & told(world, samples), set())
    course.over("nvml")
