"""Faults of the kubelet's pod-resources socket."""

import time
from collections.abc import Iterator

import grpc
import pytest

from tests.faults.conftest import Begin
from tests.faults.course import World, facts, well
from tests.rig.agent import Agent
from tests.system.observe import up, values

pytestmark = pytest.mark.timeout(120)
# Who is gone by its word; and whether the orphan's device was its own: its pod would have to be known.
LISTS = {"orphan_process", "node_capacity_mismatch", "used_not_allocated"}
# A list that fills after a restart may lack the container that uses a device: idle is not known either.
FILLING = LISTS | {"idle_allocation"}


@pytest.fixture(autouse=True)
def well_again(world: World) -> Iterator[None]:
    """No test leaves its fault to the next."""
    yield
    kubelet = world.rig.kubelet
    kubelet.heal()
    if kubelet._server is None:
        kubelet.start()
    world.rig.sync()


def test_mute(world: World, agent: Agent, begin: Begin) -> None:
    """It takes the call and never answers."""
    course = begin("kubelet mute", world, agent)
    world.rig.kubelet.mute()
    course.missed("kubelet", "timeout")
    course.lasts(3, well(world), LISTS, "kubelet")
    world.rig.kubelet.heal()
    course.over("kubelet")


def test_slow(world: World, agent: Agent, begin: Begin) -> None:
    """Its answer takes longer than a cycle waits, and less than the interval."""
    course = begin("kubelet slower than the wait", world, agent)
    world.rig.kubelet.delay("List", 0.8)
    course.missed("kubelet", "timeout")
    course.until("heard of", lambda samples: up(samples, "kubelet"), 1.0)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        samples = course.samples()
        heard = values(samples, "source_last_success_timestamp_seconds", "source")["kubelet",]
        assert time.time() - heard < 5
        if up(samples, "processes") == up(samples, "nvml") == 1:
            assert facts(world, samples) == well(world)
        time.sleep(0.2)
    world.rig.kubelet.heal()
    course.over("kubelet")


def test_rate_limit(world: World, agent: Agent, begin: Begin) -> None:
    """Too many clients ask it."""
    course = begin("kubelet rate limit", world, agent)
    world.rig.kubelet.fail("List", grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
    course.missed("kubelet", "busy")
    course.lasts(2, well(world), LISTS, "kubelet")
    world.rig.kubelet.heal()
    course.over("kubelet")


def test_huge(world: World, agent: Agent, begin: Begin) -> None:
    """Its reply is larger than any client takes."""
    course = begin("kubelet reply of 17 MiB", world, agent)
    world.rig.kubelet.huge()
    course.missed("kubelet", "protocol")
    course.lasts(2, well(world), LISTS, "kubelet")
    world.rig.sync()
    course.over("kubelet")


def test_refused(world: World, agent: Agent, begin: Begin) -> None:
    """Nobody listens. After its return a pod that it does not list is not believed gone for three minutes."""
    course = begin("kubelet refused", world, agent)
    world.rig.kubelet.stop()
    course.missed("kubelet", "unavailable")
    course.lasts(3, well(world), LISTS, "kubelet")
    world.rig.kubelet.start()
    course.over("kubelet")
    course.lasts(2, well(world), FILLING, "kubelet")


def test_restarting(world: World, agent: Agent, begin: Begin) -> None:
    """A new kubelet lists nothing and offers nothing, then one pod of two, then both: nothing is set free."""
    course = begin("kubelet restarting: empty, partial, full", world, agent)
    rig = world.rig
    whole = rig.kubelet._answer("GetAllocatableResources")
    rig.kubelet.set(pods=[], allocatable=[])
    rig.kubelet.restart()
    calls = rig.kubelet.calls["List"]
    course.lasts(4, well(world), FILLING, "kubelet")
    assert rig.kubelet.calls["List"] >= calls + 2, "it was not asked"
    rig.kubelet.set(pods=[rig.pods[0].resources()])
    rig.kubelet.set_raw("GetAllocatableResources", whole)
    course.lasts(4, well(world), FILLING, "kubelet")
    rig.sync()
    course.over("kubelet")
