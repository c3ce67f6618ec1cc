"""What holds of every diagnosis: order means nothing, silence accuses and acquits nobody, time runs on."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from exporter.diagnosis import RULES
from exporter.diagnosis.settle import HOLD
from exporter.model import DeviceKey, Finding, FindingName, Policy, Process, Report, Seen, Snapshot, Subject
from exporter.report import advance
from tests.unit import strategies
from tests.unit.losses import LOSSES, Loss, lose
from tests.unit.reports import rows
from tests.unit.strategies import Frames, histories, stormy_histories

KINDS = tuple(f"{rule.finding}.{kind.name}" for rule in RULES for kind in rule.kinds)
# As the operator may set them, so that a few cycles make a finding active; and as shipped.
QUICK, SHIPPED = strategies.policy(0.0, KINDS), strategies.policy(None)
POLICIES = {"quick": QUICK, "shipped": SHIPPED}
policies = st.sampled_from(tuple(POLICIES))
# Derandomized: what fails here fails everywhere.
MANY = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate, Phase.shrink),  # explaining a failure takes minutes
    suppress_health_check=(HealthCheck.too_slow,),
)


def fold(policy: Policy, frames: Iterable[Snapshot]) -> Report:
    return list(reports(policy, frames))[-1]


def reports(policy: Policy, frames: Iterable[Snapshot]) -> Iterator[Report]:
    report: Report | None = None
    for frame in frames:
        report = advance(policy, report, frame)
        yield report


def subjects(report: Report | None, *, active: bool = False) -> dict[Subject, Finding]:
    found = report.diagnosis.findings if report else ()
    return {one.holds.subject: one for one in found if one.active or not active}


# ---------------------------------------------------------------- order


def shuffled(record: Any, dice: random.Random) -> Any:
    """The same record, with every list in it in another order."""
    if isinstance(record, tuple):
        mixed = [shuffled(one, dice) for one in record]
        plain = record and all(isinstance(one, str | float | int) for one in record)
        pair = len(record) == 2 and isinstance(record[0], str)
        return record if plain or pair else tuple(dice.sample(mixed, len(mixed)))
    if not is_dataclass(record) or isinstance(record, type):
        return record
    changes = {field.name: shuffled(getattr(record, field.name), dice) for field in fields(record)}
    return type(record)(**changes)


@MANY
@given(stormy_histories(), policies, st.integers(0, 2**16))
def test_order_means_nothing(frames: Frames, named: str, seed: int) -> None:
    """Whoever lists whatever in whatever order: the verdict is the same, to the last line of evidence."""
    policy = POLICIES[named]
    dice = random.Random(seed)
    one = fold(policy, frames)
    other = fold(policy, [shuffled(frame, dice) for frame in frames])
    assert other.attribution == one.attribution
    assert other.diagnosis == one.diagnosis


# ---------------------------------------------------------------- silence


def kept_from_us(frame: Snapshot, loss: Loss) -> bool:
    """Whether a partial list leaves it to the API server, which contradicts the kubelet, what is given."""
    listed, told = frame.kubelet, frame.pods
    assert isinstance(listed, Seen)
    assert isinstance(told, Seen)
    names = {(pod.namespace, pod.name) for pod in told.value.pods}
    disputed = any((pod.namespace, pod.name) not in names for pod in listed.value.pods)
    return loss == ("kubelet", True) and disputed


def only_on_the_bus(subject: Subject, report: Report) -> bool:
    """Whether nothing but the bus names the GPU: NVML never had it."""
    return subject.device is not None and subject.device not in {
        use.device for use in report.attribution.devices
    }


def over(finding: Finding, last: Snapshot) -> bool:
    """Whether a finding that cannot be judged is let go: after 15 minutes."""
    return last.monotonic - finding.held_monotonic > HOLD


@MANY
@given(histories(least=2), policies, st.sampled_from(LOSSES))
def test_silence_resolves_nothing(frames: Frames, named: str, loss: Loss) -> None:
    """What was found before, and would still be there, does not end because a source was not heard."""
    policy = POLICIES[named]
    *before, last = frames
    earlier = fold(policy, before)
    full = advance(policy, earlier, last)
    less = advance(policy, earlier, lose(last, loss))
    still, kept = subjects(full), subjects(less)
    for subject, finding in subjects(earlier).items():
        if kept_from_us(last, loss) or (loss[0] == "pci" and only_on_the_bus(subject, full)):
            continue
        if subject in still and not over(finding, last):
            assert subject in kept, f"{subject} ended for want of {loss}"
            assert kept[subject].active or not finding.active
            assert (subject.finding, subject.device) not in less.diagnosis.clear


@MANY
@given(histories(least=2), policies, st.sampled_from(LOSSES))
def test_silence_says_zero_of_nothing(frames: Frames, named: str, loss: Loss) -> None:
    """A device on which something holds is not clear of it because a source was not heard."""
    policy = POLICIES[named]
    *before, last = frames
    earlier = fold(policy, before)
    full = advance(policy, earlier, last)
    less = advance(policy, earlier, lose(last, loss))
    clear = set(less.diagnosis.clear)
    # What has not been found before, and only a row could show, nobody can know of without NVML.
    known = subjects(earlier) if loss == ("nvml", False) else subjects(full)
    for subject in subjects(full).keys() & known.keys():
        if kept_from_us(last, loss) or (loss[0] == "pci" and only_on_the_bus(subject, full)):
            continue
        assert (subject.finding, subject.device) not in clear, f"{subject} is clear for want of {loss}"


@MANY
@given(histories(least=2), policies, st.sampled_from(LOSSES))
def test_silence_accuses_nobody(frames: Frames, named: str, loss: Loss) -> None:
    """No finding becomes active that would not be, had every source been heard; however long it lasts."""
    policy = POLICIES[named]
    full: Report | None = None
    less: Report | None = None
    known: set[object] = set()
    for frame in frames:
        full = advance(policy, full, frame)
        less = advance(policy, less, lose(frame, loss))
        known |= {_accused(subject) for subject in subjects(full)}
        accused = {
            _accused(s) for s, one in subjects(less, active=True).items() if one.holds.kind not in TWICE
        }
        assert accused <= known


# The counts of the node object are true by themselves; that a missing GPU explains them NVML and the bus say.
TWICE = ("allocatable_lt_capacity", "capacity_gt_real")


def _accused(subject: Subject) -> object:
    """Whom a finding is about. Without NVML a part of a GPU may be known as that GPU only."""
    return subject.finding, subject.device.uuid if subject.device else "", subject.who


# ---------------------------------------------------------------- over time


@MANY
@given(stormy_histories(), policies)
def test_time_runs_on(frames: Frames, named: str) -> None:
    """A finding keeps its beginning while it lives, its age grows, and what is active stays so."""
    policy = POLICIES[named]
    before: dict[Subject, Finding] = {}
    for report in reports(policy, frames):
        now = subjects(report)
        for subject in before.keys() & now.keys():
            old, new = before[subject], now[subject]
            assert new.since == old.since
            assert _age(new) >= _age(old)
            assert new.held_monotonic >= old.held_monotonic
            assert new.cycles >= old.cycles
            assert new.active or not old.active
        for subject in now.keys() - before.keys():
            assert now[subject].since == report.snapshot.at
        before = now


def _age(finding: Finding) -> float:
    return finding.held_monotonic - finding.since_monotonic


@MANY
@given(stormy_histories(), policies)
def test_an_active_finding_has_lasted(frames: Frames, named: str) -> None:
    """As many cycles and seconds as the least patient of its kinds asks."""
    policy = POLICIES[named]
    ages = dict(policy.ages)
    for report in reports(policy, frames):
        for finding in report.diagnosis.findings:
            if finding.active:
                name = finding.holds.subject.finding
                rule = next(rule for rule in RULES if rule.finding is name)
                assert finding.cycles >= min(kind.cycles for kind in rule.kinds)
                assert _age(finding) >= min(ages.get(f"{name}.{one.name}", one.age) for one in rule.kinds)


@MANY
@given(stormy_histories(), policies)
def test_a_finding_ends_only_when_judged_or_gone(frames: Frames, named: str) -> None:
    """After which its device may be clear; or nobody is left whom it was about; or it has waited too long."""
    policy = POLICIES[named]
    before: dict[Subject, Finding] = {}
    for report in reports(policy, frames):
        now = subjects(report)
        for subject in before.keys() - now.keys():
            finding = before[subject]
            doubts = [
                one
                for one in report.diagnosis.undetermined
                if one.finding is subject.finding
                and one.kind == finding.holds.kind
                and one.device in (None, subject.device)
                and one.who is None
            ]
            gone = finding.holds.processes and not _lives(report, finding)
            assert not doubts or gone or over(finding, report.snapshot), f"{subject} ended in doubt {doubts}"
        before = now


def _lives(report: Report, finding: Finding) -> bool:
    table = report.snapshot.processes
    if not isinstance(table, Seen):
        return True
    there: set[object] = {process.id for process in table.value.processes}
    return any(process in there for process in finding.holds.processes)


# ---------------------------------------------------------------- what is told


@MANY
@given(stormy_histories(), policies)
def test_every_finding_can_be_checked_and_placed(frames: Frames, named: str) -> None:
    """It has lines of evidence, a kind of its rule, and a device that somebody told of."""
    policy = POLICIES[named]
    devices: set[DeviceKey | None] = {None}
    for report in reports(policy, frames):
        devices |= {use.device for use in report.attribution.devices}
        devices |= {use.device for use in report.attribution.uses}
        for finding in report.diagnosis.findings:
            holds = finding.holds
            assert holds.evidence
            assert all(line.strip() and "None" not in line for line in holds.evidence)
            assert f"{holds.subject.finding}.{holds.kind}" in KINDS
            assert holds.subject.device in devices


@MANY
@given(stormy_histories(), policies)
def test_nothing_is_clear_and_in_doubt(frames: Frames, named: str) -> None:
    """Neither in the diagnosis nor in the samples; and where something holds nothing is clear."""
    policy = POLICIES[named]
    for report in reports(policy, frames):
        found = report.diagnosis
        clear = set(found.clear)
        for one in found.undetermined:
            assert (one.finding, one.device) not in clear
            assert one.device is not None or not any(name is one.finding for name, _ in clear)
        assert not clear & {(one.holds.subject.finding, one.holds.subject.device) for one in found.findings}
        zero = {_where(labels) for labels, count in rows(report, "findings").items() if count == 0}
        assert not zero & {_where(labels) for labels in rows(report, "finding_undetermined")}


def _where(labels: Iterable[tuple[str, str]]) -> tuple[str, str, str]:
    told = dict(labels)
    return told["finding"], told["uuid"], told["gi"]


@MANY
@given(stormy_histories(), policies)
def test_what_counts_is_active_and_explains_itself(frames: Frames, named: str) -> None:
    """What another finding explains is told and not counted; the cause is active, and is another one."""
    policy = POLICIES[named]
    for report in reports(policy, frames):
        counts: Counter[str] = Counter()
        for labels, count in rows(report, "findings").items():
            counts[dict(labels)["finding"]] += int(count)
        told = [one for one in report.diagnosis.findings if one.active and one.explained_by is None]
        assert +counts == Counter(str(one.holds.subject.finding) for one in told)
        for one in report.diagnosis.findings:
            if one.explained_by is not None:
                assert any(cause is not one and _explains(cause, one) for cause in report.diagnosis.findings)


def _explains(cause: Finding, finding: Finding) -> bool:
    about, of = cause.holds.subject, finding.holds.subject
    same_gpu = about.device is None or of.device is None or about.device.uuid == of.device.uuid
    return cause.active and about.finding is finding.explained_by and same_gpu


@MANY
@given(stormy_histories(), policies)
def test_one_holder_is_never_two_pods(frames: Frames, named: str) -> None:
    """All findings about one process alone name one pod, or none."""
    policy = POLICIES[named]
    for report in reports(policy, frames):
        owners: dict[object, set[str]] = {}
        for use in report.attribution.uses:
            if use.process is not None and use.pod_uid:
                owners.setdefault(use.process, set()).add(use.pod_uid)
        for finding in report.diagnosis.findings:
            holds = finding.holds
            alone = len(holds.processes) == 1 and holds.subject.finding is not FindingName.PHANTOM_PROCESS
            if alone and holds.pod_uid and not finding.undetermined:
                owners.setdefault(holds.processes[0], set()).add(holds.pod_uid)
        assert all(len(pods) == 1 for pods in owners.values())


@MANY
@given(histories(least=3), st.integers(0, 2))
def test_a_thread_in_the_driver_is_named_before_others(frames: Frames, turn: int) -> None:
    """Threads wait for the one that hangs in the driver: that one is the cause, wherever it is listed."""
    kinds = set()
    for order in (0, 1):
        report: Report | None = None
        for frame in frames:
            report = advance(QUICK, report, _hung(frame, turn, order))
        found = subjects(report).values()
        kinds |= {one.holds.kind for one in found if one.holds.kind.startswith("uninterruptible")}
    assert "uninterruptible_other" not in kinds


def _hung(frame: Snapshot, turn: int, order: int) -> Snapshot:
    """The frame in which every process has a thread in the driver and one that waits for it."""
    table = frame.processes
    assert isinstance(table, Seen)
    tasks = strategies.HUNG[::-1] if order else strategies.HUNG
    hung: tuple[Process, ...] = tuple(
        replace(one, blocked=tasks[turn % 2 :] + tasks[: turn % 2]) for one in table.value.processes
    )
    return replace(frame, processes=replace(table, value=replace(table.value, processes=hung)))
