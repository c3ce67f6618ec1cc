"""Faults of the host: dead mounts, crowds of descriptors and processes, numbers that are given out again."""

import contextlib
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import Begin
from tests.faults.course import Course, World, facts, well
from tests.rig.agent import Agent, Samples
from tests.rig.hardware import GIB
from tests.rig.holder import Orders
from tests.rig.rig import More
from tests.rig.workloads import Process
from tests.sources.fuse import DeadMount
from tests.system.observe import eventually, rows, up, values

pytestmark = pytest.mark.timeout(120)
STORM = 200  # processes a second
STORM_SECONDS = 10.0
TRIES = 30


@pytest.fixture(name="fuse")
def dying_mount(world: World) -> Iterator[DeadMount]:
    point = world.rig.root / "fuse"
    point.mkdir(exist_ok=True)
    mount = DeadMount(point)
    mount.close = _once(mount.close)  # type: ignore[method-assign]
    yield mount
    mount.close()


def _once(action: Callable[[], None]) -> Callable[[], None]:
    """A process cannot end before the mount does: tests close it earlier, and nobody twice."""
    left = [action]
    return lambda: left.pop()() if left else None


@contextlib.contextmanager
def guest(world: World, more: More, *, visible: bool = True) -> Iterator[Process]:
    """One more process of the first pod, for a while."""
    rig, gpu, pod = world.rig, world.rig.gpus[0], world.rig.pods[0]
    nodes = [rig.devices.gpu(gpu.minor), rig.devices.ctl()] if visible else None
    process = rig.add_process(pod, "main", gpu, visible=nodes, more=more)
    try:
        yield process
    finally:
        rig.end(process)


def is_well(course: Course, seconds: float) -> None:
    """All is served for so long, and nothing is unknown."""
    course.until("all served", lambda samples: facts(course.world, samples), well(course.world))
    course.lasts(seconds, well(course.world), set())


def test_dead_mount_under_a_descriptor(world: World, agent: Agent, fuse: DeadMount, begin: Begin) -> None:
    """Whoever asks that file system for news waits for ever: nobody here does."""
    course = begin("dead FUSE mount under a holder's descriptor", world, agent)
    orders = lambda orders: orders.open(fuse.point / "file")  # noqa: E731
    with guest(world, orders, visible=False):
        fuse.stop()
        try:
            is_well(course, 6)
            assert not fuse.waited_for.is_set()
        finally:
            fuse.close()
    course.over("processes")


def test_dead_mount_in_a_containers_dev(world: World, agent: Agent, fuse: DeadMount, begin: Begin) -> None:
    """What is mounted below a container's /dev is not asked either."""
    course = begin("dead FUSE mount in a container's /dev", world, agent)
    rig, gpu = world.rig, world.rig.gpus[0]
    rootfs = rig.root / "rootfs"
    nodes = [rig.devices.gpu(gpu.minor), rig.devices.ctl()]

    def into_container(orders: Orders) -> Orders:
        orders.container(rootfs, nodes).argv.pop()  # --enter, which comes last
        return orders._add("--bind", fuse.point / "file", "dev/remote")._add("--enter")

    with guest(world, into_container, visible=False):
        fuse.stop()
        try:
            is_well(course, 6)
            assert not fuse.waited_for.is_set()
        finally:
            fuse.close()
    course.over("container_dev")


def test_many_descriptors(world: World, agent: Agent, begin: Begin) -> None:
    """All of them are looked at, in time."""
    course = begin("process with 20,000 descriptors", world, agent)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 20_000 if most == resource.RLIM_INFINITY else min(20_000, most - 100)  # not all may raise it
    course.notes.append(f"{count} descriptors")
    with guest(world, lambda orders: orders.many_fds(count)):
        course.until("seen", lambda samples: facts(world, samples), well(world))
        deadline = time.monotonic() + 5
        missed = 0
        while time.monotonic() < deadline:
            missed += up(course.samples(), "processes") == 0
            time.sleep(0.2)
        assert missed <= 3, "the scan did not keep up"
    course.over("processes")


def test_fork_storm(world: World, agent: Agent, begin: Begin) -> None:
    """Processes come and go faster than they can be looked at; those that stay are seen as they are."""
    course = begin("fork storm of 200 processes a second", world, agent)
    script = (
        "import os, time\n"
        f"end = time.monotonic() + {STORM_SECONDS}\n"
        "count = 0\n"
        "while time.monotonic() < end:\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(0.05)\n"
        "        os._exit(0)\n"
        "    count += 1\n"
        f"    time.sleep({1 / STORM})\n"
        "    while count > 20:\n"
        "        os.wait()\n"
        "        count -= 1\n"
    )
    storm = subprocess.Popen([sys.executable, "-c", script])
    world.rig.pods[0].groups["main"].move(storm.pid)
    try:
        deadline = time.monotonic() + STORM_SECONDS
        while time.monotonic() < deadline:
            samples = course.samples()
            if up(samples, "processes") == up(samples, "nvml") == 1:
                assert facts(world, samples) == well(world)
            time.sleep(0.2)
    finally:
        storm.kill()
        storm.wait(5)
    course.over("processes")


def test_pid_reuse(world: World, agent: Agent, begin: Begin) -> None:
    """The number of a process that ended goes to another pod's: it is that pod's, from its own start on."""
    course = begin("pid reuse", world, agent)
    rig = world.rig
    first, second = rig.pods[0], rig.pods[1]
    old = rig.add_process(first, "main", rig.gpus[0], memory=GIB)

    def named(samples: Samples) -> set[tuple[str, ...]]:
        return rows(samples, "process_info", "pid", "pod", "uuid", pid=str(pid))

    def started(samples: Samples) -> set[float]:
        found = values(samples, "process_start_time_seconds", "pid", "uuid", pid=str(pid))
        return {value for _, value in found.items()}

    pid = old.pid
    eventually(agent, named, {(str(pid), "train-0", rig.gpus[0].uuid)})
    (before,) = started(course.samples())
    rig.end(old)
    new = _process_numbered(world, pid)
    assert new.pid == pid
    course.strike()
    course.until("under the new pod", named, {(str(pid), "train-1", rig.gpus[1].uuid)})
    (after,) = started(course.samples())
    assert after > before
    assert second.name == "train-1"
    rig.end(new)
    course.over("processes")


def _process_numbered(world: World, pid: int) -> Process:
    """A process of the second pod with this number, which is free: tried again where others are faster."""
    rig = world.rig
    for _ in range(TRIES):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        process = rig.add_process(rig.pods[1], "main", rig.gpus[1])
        if process.pid == pid:
            return process
        rig.end(process)
    raise AssertionError(f"number {pid} was not given out again in {TRIES} tries")
