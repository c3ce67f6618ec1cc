"""Faults of the agent's own place: what it may see, when it is stopped, and what time it is."""

import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.faults.conftest import Begin
from tests.faults.course import World, facts, unjudged, well
from tests.rig.agent import Agent, Samples
from tests.rig.errors import RigError
from tests.rig.mounts import bind, mount, unmount
from tests.rig.rig import Rig
from tests.system import observe
from tests.system.observe import one

pytestmark = pytest.mark.timeout(120)
# What says something of processes, and of what containers see. Capacity needs none of it.
BLIND_UNKNOWN = {
    "phantom_process",
    "stuck_process",
    "orphan_process",
    "external_process",
    "hidden_holder",
    "orphaned_memory",
    "exclusive_gpu_shared",
    "used_not_allocated",
    "visible_not_allocated",
    "allocated_not_visible",
    "idle_allocation",
}
END = 5.0  # seconds from SIGTERM to the end
HOUR = 3600


def check_blind(name: str, world: World, agent: Agent, begin: Begin) -> None:
    """An agent that sees another world says so, and makes up nothing about the numbers that NVML lists."""
    course = begin(name, world, agent, settle=False)
    course.missed("processes", "blind", timeout=15)
    observe.settled(agent, "processes", "container_dev")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        samples = course.samples()
        found = facts(world, samples)
        assert (found.gpus, found.allocations) == (well(world).gpus, well(world).allocations)
        assert not found.processes
        assert unjudged(samples) == BLIND_UNKNOWN
        time.sleep(0.3)
    course.notes.append(f"unknown: {', '.join(sorted(BLIND_UNKNOWN))}")


@pytest.fixture(name="hidden_proc")
def proc_that_hides_others(world: World) -> Iterator[Path]:
    """A proc of its own, mounted with hidepid=2, with the rig's driver files laid over it."""
    path = world.rig.root / "hidden"
    path.mkdir()
    # The group from which it hides nothing: unsaid it is root's.
    mount("proc", path, "proc", 0, "hidepid=2,gid=65534")
    bind(world.rig.proc._devices, path / "devices")
    bind(world.rig.proc._driver, path / "driver")
    yield path
    unmount(path, lazy=True)


def test_hidepid(
    world: World, hidden_proc: Path, flags: list[str], command: Sequence[str], begin: Begin
) -> None:
    """Without CAP_SYS_PTRACE such a proc shows only what is one's own."""
    drop = ("/usr/bin/setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")
    with world.rig.agent(*flags, f"--path.procfs={hidden_proc}", command=[*drop, *command]) as agent:
        check_blind("hidepid without SYS_PTRACE", world, agent, begin)


def test_wrong_pid_namespace(world: World, flags: list[str], command: Sequence[str], begin: Begin) -> None:
    """As a pod without hostPID: NVML's numbers are those of another namespace."""
    apart = ("/usr/bin/unshare", "--pid", "--fork", "--kill-child")
    with world.rig.agent(*flags, command=[*apart, *command]) as agent:
        check_blind("wrong pid namespace", world, agent, begin)


def test_sigterm(world: World, flags: list[str], command: Sequence[str], begin: Begin) -> None:
    """It ends in time, and its children with it, whatever the cycle waits for."""
    with world.rig.agent(*flags, command=command) as agent:
        course = begin("SIGTERM in the middle of a cycle", world, agent)
        running = observe.children(agent)
        world.rig.kubelet.mute()
        try:
            course.missed("kubelet", "timeout")
            began = one(agent.samples(), "cycle_timestamp_seconds")
            agent.wait_for(lambda: one(agent.samples(), "cycle_timestamp_seconds") != began)
            time.sleep(0.7)  # the next cycle waits for its kubelet
            start = time.monotonic()
            assert agent.stop(timeout=10) == 0, agent.tail()
            took = time.monotonic() - start
        finally:
            world.rig.kubelet.heal()
        assert took < END
        assert all(observe.ended(pid, 1.0) for pid in running.values())
        course.notes.append(f"exit status 0 after {took:.0f} s, and {len(running)} children gone")


@pytest.fixture(name="shim", scope="module")
def clock_that_can_be_set(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A library that shifts the wall clock of whoever loads it, and the file that says by how much."""
    folder = tmp_path_factory.mktemp("clock")
    library, shift = folder / "shim.so", folder / "shift"
    source = Path(__file__).with_name("shim.c")
    built = subprocess.run(
        ["gcc", "-O1", "-Wall", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"],
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        raise RigError(f"cannot compile {source.name}: {built.stderr.strip()}")
    shift.write_bytes(struct.pack("q", 0))
    return library, shift


def set_clock(shift: Path, seconds: int) -> None:
    with shift.open("r+b") as file:
        file.write(struct.pack("q", seconds))


def test_clock_set_back(
    world: World, shim: tuple[Path, Path], flags: list[str], command: Sequence[str], begin: Begin
) -> None:
    """The wall clock goes back an hour and forward again: no cycle is left out, and no age changes."""
    library, shift = shim
    env = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(shift)}
    rig: Rig = world.rig
    with rig.agent(*flags, command=command, env=env) as agent:
        course = begin("clock set back an hour", world, agent)

        def ahead() -> float:
            return (one(course.samples(), "cycle_timestamp_seconds") or 0.0) - time.time()

        assert abs(ahead()) < 5
        for wanted in (-HOUR, 0):
            set_clock(shift, wanted)
            course.strike()

            def shifted(_: Samples, wanted: int = wanted) -> bool:
                return abs(ahead() - wanted) < 5

            course.until("back an hour" if wanted else "forward again", shifted, True)
            began = one(course.samples(), "cycle_timestamp_seconds")
            course.lasts(5, well(world), set())
            assert (one(course.samples(), "cycle_timestamp_seconds") or 0.0) > (began or 0.0) + 2
        assert agent.get("/-/healthy").status == 200
