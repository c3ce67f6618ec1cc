"""Findings over cycles: ages, holding through unknown, and which one explains which."""

from collections.abc import Iterable

import pytest

from exporter.diagnosis.facts import Facts
from exporter.diagnosis.rule import Evidence, Kind, Rule, needs
from exporter.diagnosis.settle import HOLD, settle
from exporter.model import (
    Attribution,
    DeviceKey,
    Finding,
    FindingName,
    History,
    Holds,
    Policy,
    ProcessId,
    Ruling,
    Severity,
    Subject,
    Undetermined,
)
from tests import builders as build

PHANTOM, STUCK, ORPHAN, SHARED = (
    FindingName.PHANTOM_PROCESS,
    FindingName.STUCK_PROCESS,
    FindingName.ORPHAN_PROCESS,
    FindingName.EXCLUSIVE_GPU_SHARED,
)
SCAN = needs((Evidence.SCAN,))
RULES = tuple(
    Rule(
        finding=finding,
        kinds=(Kind("worse", SCAN, "", 2, 60), Kind("better", SCAN, "", 4, 120)),
        check=lambda facts: iter(()),
        severity=Severity.WARNING,
        summary="",
        guards="",
        remedy="",
        alert="",
    )
    for finding in FindingName
)
PROCESS = build.process(100, start=5)


def holds(
    finding: FindingName = STUCK,
    kind: str = "worse",
    *,
    device: DeviceKey | None = None,
    who: str = "100/5",
    pid: int = 100,
    processes: tuple[ProcessId, ...] = (PROCESS.id,),
    pod_uid: str = "",
) -> Holds:
    subject = Subject(finding, device or build.key(), who)
    return Holds(subject, kind, ("seen",), pid=pid, processes=processes, pod_uid=pod_uid)


def doubt(
    kind: str = "worse",
    *,
    finding: FindingName = STUCK,
    device: DeviceKey | None = None,
    who: str | None = None,
) -> Undetermined:
    return Undetermined(finding, kind, device, "rows:busy", who)


class Course:
    """Cycles in a row."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.findings: tuple[Finding, ...] = ()

    def at(self, second: float, *rulings: Ruling, alive: bool = True) -> tuple[Finding, ...]:
        table = build.process_table(*([PROCESS] if alive else []))
        look = build.snapshot(processes=table, at=build.NOW + second, monotonic=build.MONOTONIC + second)
        facts = Facts(self.policy, History(), look, Attribution())
        self.findings = settle(RULES, self.policy, self.findings, facts, rulings)
        return self.findings

    def active(self, second: float, *rulings: Ruling, alive: bool = True) -> list[FindingName]:
        found = self.at(second, *rulings, alive=alive)
        return [one.holds.subject.finding for one in found if one.active]


# --- cycles and ages ----------------------------------------------------------------------------------------


def test_it_takes_cycles_and_seconds() -> None:
    course = Course()
    assert course.active(0, holds()) == []
    assert course.active(59, holds()) == []
    assert course.active(60, holds()) == [STUCK]


def test_seconds_alone_are_not_enough() -> None:
    course = Course()
    course.at(0, holds(kind="better"))
    assert course.active(600, holds(kind="better")) == []
    assert course.active(615, holds(kind="better")) == []
    assert course.active(630, holds(kind="better")) == [STUCK]


def test_a_cycle_without_it_starts_over() -> None:
    course = Course()
    course.at(0, holds())
    assert course.at(45) == ()
    assert course.active(60, holds()) == []
    assert course.active(120, holds()) == [STUCK]


def test_the_operator_sets_an_age() -> None:
    course = Course(Policy(ages=(("stuck_process.worse", 10.0), ("orphan_process.worse", 500.0))))
    course.at(0, holds())
    assert course.active(15, holds()) == [STUCK]


def test_a_change_of_kind_keeps_the_age_and_what_is_active() -> None:
    course = Course()
    course.at(0, holds(kind="better"))
    assert course.active(60, holds()) == [STUCK]
    (found,) = course.at(75, holds(kind="better"))
    assert (found.active, found.since, found.holds.kind) == (True, build.NOW, "better")


def test_of_two_kinds_the_first_in_the_rule_is_told() -> None:
    (found,) = Course().at(0, holds(kind="better"), holds(kind="worse"))
    assert found.holds.kind == "worse"


def test_subjects_on_one_device_are_followed_apart() -> None:
    course = Course()
    course.at(0, holds())
    found = course.at(60, holds(), holds(who="200/7", pid=200, processes=()))
    assert [one.active for one in found] == [True, False]


# --- unknown ------------------------------------------------------------------------------------------------


def test_unknown_resolves_nothing_for_a_quarter_of_an_hour() -> None:
    course = Course()
    course.at(0, holds())
    course.at(60, holds())
    (found,) = course.at(60 + HOLD, doubt())
    assert (found.active, found.undetermined, found.since) == (True, "rows:busy", build.NOW)
    assert course.at(61 + HOLD, doubt()) == ()


def test_judged_again_it_is_as_before() -> None:
    course = Course()
    course.at(0, holds())
    course.at(60, holds())
    course.at(75, doubt())
    (found,) = course.at(90, holds())
    assert (found.active, found.undetermined, found.since) == (True, "", build.NOW)


def test_unknown_does_not_age_a_finding() -> None:
    course = Course()
    course.at(0, holds())
    course.at(15, doubt())
    course.at(300, doubt())
    assert course.active(315, holds()) == []
    assert course.active(360, holds()) == []
    assert course.active(375, holds()) == [STUCK]


@pytest.mark.parametrize(
    ("about", "kept"),
    [
        (doubt(), True),
        (doubt(device=build.key()), True),
        (doubt(device=build.key(1)), False),
        (doubt(who="100/5"), True),
        (doubt(who="200/7"), False),
        (doubt(who=""), False),
        (doubt(finding=ORPHAN), False),
        (doubt("better"), True),  # what is wrong with a process turns from one kind into another
    ],
)
def test_only_a_doubt_about_it_keeps_a_finding(about: Undetermined, kept: bool) -> None:
    course = Course()
    course.at(0, holds())
    assert bool(course.at(15, about)) is kept


def test_a_finding_about_no_process_is_kept_by_its_own_kind_alone() -> None:
    course = Course()
    course.at(0, holds(pid=0, processes=()))
    assert course.at(15, doubt("better")) == ()


def test_unknown_does_not_keep_what_is_gone() -> None:
    course = Course()
    course.at(0, holds())
    assert course.at(15, doubt(), alive=False) == ()


def test_judged_and_not_found_is_over_at_once() -> None:
    course = Course()
    course.at(0, holds())
    course.at(60, holds())
    assert course.at(75) == ()


# --- one incident fires once --------------------------------------------------------------------------------


def explained(course: Course) -> dict[FindingName, FindingName | None]:
    return {one.holds.subject.finding: one.explained_by for one in course.findings}


def play(*rulings: Ruling, times: Iterable[float] = (0, 60, 120)) -> dict[FindingName, FindingName | None]:
    course = Course()
    for second in times:
        course.at(second, *rulings)
    return explained(course)


def test_an_orphan_that_is_stuck_is_explained() -> None:
    assert play(holds(), holds(ORPHAN)) == {STUCK: None, ORPHAN: STUCK}


def test_what_is_pending_explains_nothing() -> None:
    """It may never be told; then nobody would be told of either."""
    course = Course()
    for second in (0, 60):
        course.at(second, holds(kind="better"), holds(ORPHAN))
    assert course.active(60, holds(kind="better"), holds(ORPHAN)) == [ORPHAN]
    assert explained(course) == {STUCK: None, ORPHAN: None}


def test_other_processes_explain_nothing() -> None:
    other = holds(ORPHAN, who="200/7", pid=200, processes=(ProcessId(200, 7),))
    assert play(holds(), other) == {STUCK: None, ORPHAN: None}


def test_the_same_process_on_another_gpu_explains_nothing() -> None:
    assert play(holds(), holds(ORPHAN, device=build.key(1))) == {STUCK: None, ORPHAN: None}


def test_a_mig_device_and_its_parent_are_one_gpu() -> None:
    assert play(holds(), holds(ORPHAN, device=build.key(0, 1, 0))) == {STUCK: None, ORPHAN: STUCK}


def test_sharing_with_a_stuck_process_is_explained() -> None:
    two = holds(SHARED, who="", processes=(PROCESS.id, ProcessId(200, 7)))
    assert play(holds(), two) == {STUCK: None, SHARED: STUCK}


def test_a_finding_about_no_process_goes_by_its_pod() -> None:
    idle = holds(FindingName.IDLE_ALLOCATION, who="u", pid=0, processes=(), pod_uid="u")
    assert play(holds(pod_uid="u"), idle)[FindingName.IDLE_ALLOCATION] is STUCK
    assert play(holds(pod_uid="v"), idle)[FindingName.IDLE_ALLOCATION] is None


def test_a_phantom_that_orphans_hold_is_theirs() -> None:
    assert play(holds(PHANTOM), holds(ORPHAN)) == {PHANTOM: ORPHAN, ORPHAN: None}


def test_a_phantom_that_nobody_holds_is_no_other_processs() -> None:
    alone = holds(PHANTOM, who="4711", pid=4711, processes=(), pod_uid="u")
    assert play(alone, holds(ORPHAN, pod_uid="u")) == {PHANTOM: None, ORPHAN: None}
