"""What the tests of faults share: one world for each module, and one agent that watches it."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.faults.course import Course, World, ages, make_world, reach
from tests.rig.agent import Agent
from tests.rig.rig import Rig

Begin = Callable[..., Course]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """A rig that is busy, with findings that stand."""
    with Rig() as rig:
        yield make_world(rig)


@pytest.fixture(scope="session", name="flags")
def shortened_ages(command: Sequence[str]) -> list[str]:
    """Every finding counts after a second."""
    return ages(command, "1s")


@pytest.fixture(scope="module")
def agent(world: World, flags: list[str], command: Sequence[str]) -> Iterator[Agent]:
    """The installed exporter, watching."""
    with world.rig.agent(*flags, command=command) as agent:
        reach(world, agent)
        yield agent


@pytest.fixture
def begin(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Iterator[Begin]:
    """Begin a course; what it saw goes into the report of the test."""
    courses: list[Course] = []

    def start(name: str, world: World, agent: Agent, *, settle: bool = True) -> Course:
        courses.append(Course(name, world, agent, settle=settle))
        record_property("fault", name)
        return courses[-1]

    yield start
    for course in courses:
        record_property("seen", course.seen)
