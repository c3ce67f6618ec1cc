"""Faults of the Kubernetes API, side by side: each has an API server and an agent of its own.

An agent asks rarely, so all of them are made to ask by one pod that only the kubelet knows.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.course import Course, World, ages, reach, well
from tests.rig.agent import Agent
from tests.rig.apiserver import ApiServer, Fault
from tests.rig.workloads import Pod
from tests.system.observe import up

pytestmark = pytest.mark.timeout(240)
API_UNKNOWN = {"orphan_process", "node_capacity_mismatch", "used_not_allocated"}
LEAST = 10.0  # seconds between two polls
LATEST = 40.0  # seconds until an agent that waits for ten, and for a read that waits for ten, has asked again


@dataclass(slots=True)
class Side:
    """One API server, its fault and the agent that asks it."""

    name: str
    reason: str
    strike: Callable[[ApiServer], None]
    api: ApiServer
    agent: Agent


def rotate(api: ApiServer) -> None:
    """A new token is what the server wants, and the kubeconfig has it."""
    old = str(api.token)
    api.token = "rotated"
    fresh = api.kubeconfig.with_name("fresh")
    fresh.write_text(api.kubeconfig.read_text().replace(old, api.token))
    shutil.move(fresh, api.kubeconfig)


FAULTS: dict[str, tuple[str, Callable[[ApiServer], None]]] = {
    "API 401": ("denied", lambda api: api.fail(401)),
    "API 403": ("denied", lambda api: api.fail(403)),
    "API 410": ("unavailable", lambda api: api.fail(410)),
    "API 500": ("unavailable", lambda api: api.fail(500)),
    "API half-open": ("busy", lambda api: api.break_(Fault(half_open=True))),
    "API garbage": ("protocol", lambda api: api.break_(Fault(body=b'{"kind": "PodList", "items": [{]'))),
    "API token rotated": ("denied", rotate),
}


def mirror(world: World, api: ApiServer) -> None:
    """Let a server know what the rig's own knows."""
    api.pods, api.nodes = dict(world.rig.api.pods), dict(world.rig.api.nodes)


@pytest.fixture(name="sides", scope="module")
def all_sides(world: World, command: Sequence[str]) -> Iterator[list[Side]]:
    """Seven agents cost a small machine more than one: their beat is slower."""
    flags = ages(command, "2s")
    with contextlib.ExitStack() as stack:
        sides = []
        for number, (name, (reason, strike)) in enumerate(FAULTS.items()):
            folder: Path = world.rig.root / f"api-{number}"
            api = stack.enter_context(ApiServer(folder, token="first"))
            mirror(world, api)
            argv = [*world.rig.agent_args("2s"), *flags, f"--kubernetes.kubeconfig={api.kubeconfig}"]
            agent = stack.enter_context(Agent(argv, log=folder / "log", command=command))
            sides.append(Side(name, reason, strike, api, agent))
        for side in sides:
            reach(world, side.agent, 60)
        yield sides


@pytest.fixture(name="courses", scope="module")
def all_courses(world: World, sides: list[Side]) -> Iterator[dict[str, Future[Course]]]:
    """All faults at once."""
    began = [Course(side.name, world, side.agent) for side in sides]
    time.sleep(LEAST)
    for side, course in zip(sides, began, strict=True):
        side.strike(side.api)
        course.strike()
    nudge = world.rig.add_pod("team-a", "late-0", {"main": []})
    with ThreadPoolExecutor(len(sides)) as pool:
        running = [
            (side.name, pool.submit(suffer, world, side, course, nudge))
            for side, course in zip(sides, began, strict=True)
        ]
        yield dict(running)


def suffer(world: World, side: Side, course: Course, nudge: Pod) -> Course:
    """The course of one fault."""
    if side.name == "API token rotated":
        return renew(world, side, course)
    course.missed("pods", side.reason, LEAST + 5)
    course.lasts(5, well(world), API_UNKNOWN, "pods", "node")
    mirror(world, side.api)
    side.api.heal()
    assert (nudge.namespace, nudge.name) in side.api.pods
    course.over("pods", LATEST)
    course.until("node back", lambda samples: up(samples, "node"), 1.0, LATEST)
    return course


def renew(world: World, side: Side, course: Course) -> Course:
    """The refused request is made again with the new token: no cycle lacks the pods."""
    asked = side.api.count()
    mirror(world, side.api)
    deadline = time.monotonic() + LEAST
    while time.monotonic() < deadline:
        assert up(course.samples(), "pods") != 0, side.agent.tail()
        time.sleep(0.3)
    course.notes.append(f"asked {side.api.count() - asked} times, pods were there in every cycle")
    assert side.api.count() >= asked
    course.over("pods")
    return course


@pytest.mark.parametrize("name", FAULTS)
def test_api(
    name: str, courses: dict[str, Future[Course]], record_property: Callable[[str, object], None]
) -> None:
    """What the API server did not say is unknown, and the agent asks again in its time."""
    record_property("fault", name)
    record_property("seen", courses[name].result(timeout=120).seen)
