"""Findings over cycles: ages, grace, holding through unknown, and which finding explains which. Pure.

In: the findings of the cycle before and this cycle's rulings. Out: the findings now. A finding becomes active
when it has held for as many consecutive cycles *and* seconds as its kind asks. One that cannot be judged
again stays, flagged, until it is judged, its subject is gone, or HOLD seconds have passed: unknown resolves
nothing, and does not age it either. A finding with a cause that another one tells is kept for the table and
not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from exporter.diagnosis.facts import Facts
from exporter.diagnosis.rule import Evidence, Kind, Rule
from exporter.model import Finding, FindingName, Holds, Policy, Ruling, Seen, Subject, Undetermined

HOLD = 900.0  # seconds for which a finding that nobody can judge stays

# Findings about processes that count because of the row that they have, or of the files that they hold.
OF_CLIENTS = (FindingName.ORPHAN_PROCESS, FindingName.EXTERNAL_PROCESS, FindingName.HIDDEN_HOLDER)

# Findings that name processes, but outlive them: memory stays where its last holder has gone.
OUTLIVES = (FindingName.PHANTOM_PROCESS, FindingName.ORPHANED_MEMORY)

# Which findings are the cause of which, the first that fits is named. They must be about the same process, or
# where a finding is about none, about the same pod on the same device.
EXPLAINED_BY: dict[FindingName, tuple[FindingName, ...]] = {
    FindingName.PHANTOM_PROCESS: (FindingName.STUCK_PROCESS, FindingName.ORPHAN_PROCESS),
    FindingName.ORPHAN_PROCESS: (FindingName.STUCK_PROCESS,),
    FindingName.EXTERNAL_PROCESS: (FindingName.STUCK_PROCESS,),
    FindingName.USED_NOT_ALLOCATED: (FindingName.STUCK_PROCESS, FindingName.ORPHAN_PROCESS),
    FindingName.EXCLUSIVE_GPU_SHARED: (FindingName.STUCK_PROCESS, FindingName.ORPHAN_PROCESS),
    FindingName.ORPHANED_MEMORY: (FindingName.STUCK_PROCESS, FindingName.ORPHAN_PROCESS),
    FindingName.HIDDEN_HOLDER: (
        FindingName.STUCK_PROCESS,
        FindingName.ORPHAN_PROCESS,
        FindingName.PHANTOM_PROCESS,
        FindingName.ORPHANED_MEMORY,
        FindingName.EXTERNAL_PROCESS,
        FindingName.USED_NOT_ALLOCATED,
    ),
    FindingName.IDLE_ALLOCATION: (FindingName.ALLOCATED_NOT_VISIBLE, FindingName.STUCK_PROCESS),
}


def settle(
    rules: Sequence[Rule],
    policy: Policy,
    previous: Sequence[Finding],
    facts: Facts,
    rulings: Iterable[Ruling],
) -> tuple[Finding, ...]:
    """The findings after this cycle, in a fixed order."""
    table = {rule.finding: rule for rule in rules}
    rulings = tuple(rulings)
    held = _held(table, rulings)
    doubts = [ruling for ruling in rulings if isinstance(ruling, Undetermined)]
    before = {finding.holds.subject: finding for finding in previous}
    findings = [_again(policy, table, before.get(subject), holds, facts) for subject, holds in held.items()]
    findings += [
        kept
        for subject, finding in before.items()
        if subject not in held and (kept := _kept(finding, doubts, facts)) is not None
    ]
    findings.sort(key=lambda finding: finding.holds.subject.order)
    causes = _Causes(findings)
    return tuple(replace(finding, explained_by=causes.of(finding)) for finding in findings)


def _held(table: Mapping[FindingName, Rule], rulings: Iterable[Ruling]) -> dict[Subject, list[Holds]]:
    """The rulings for each subject, in the order in which their kinds stand in the rule."""
    held: dict[Subject, list[Holds]] = {}
    for ruling in rulings:
        if isinstance(ruling, Holds):
            held.setdefault(ruling.subject, []).append(ruling)
    for holds in held.values():
        holds.sort(key=lambda one: _rank(table, one))
    return held


def _rank(table: Mapping[FindingName, Rule], holds: Holds) -> int:
    rule = table[holds.subject.finding]
    return rule.kinds.index(rule.kind(holds.kind))


def _again(
    policy: Policy,
    table: Mapping[FindingName, Rule],
    before: Finding | None,
    holds: Sequence[Holds],
    facts: Facts,
) -> Finding:
    """A finding that holds in this cycle, told as the first kind that is old enough, else as the first.

    So a kind that has to wait for longer does not keep another from counting. What was active stays so when
    its kind changes.
    """
    now = facts.snapshot.monotonic
    unknown = now - before.held_monotonic if before and before.undetermined else 0.0
    finding = Finding(
        holds=holds[0],
        since=before.since if before else facts.snapshot.at,
        since_monotonic=before.since_monotonic + unknown if before else now,
        held_monotonic=now,
        cycles=before.cycles + 1 if before else 1,
        active=before.active if before else False,
    )
    rule = table[holds[0].subject.finding]
    lasted = now - finding.since_monotonic
    for one in holds:
        kind = rule.kind(one.kind)
        if finding.cycles >= kind.cycles and lasted >= _age(policy, finding, kind):
            return replace(finding, holds=one, active=True)
    return finding


def _age(policy: Policy, finding: Finding, kind: Kind) -> float:
    return dict(policy.ages).get(f"{finding.holds.subject.finding}.{kind.name}", kind.age)


def _kept(finding: Finding, doubts: Iterable[Undetermined], facts: Facts) -> Finding | None:
    """A finding that does not hold now: kept where that is for want of evidence, None where it is over."""
    doubt = next((doubt.reason for doubt in doubts if _about(doubt, finding)), _unread(finding, facts))
    if doubt is None or facts.snapshot.monotonic - finding.held_monotonic > HOLD:
        return None
    looked = isinstance(facts.snapshot.processes, Seen) and finding.holds.subject.finding not in OUTLIVES
    mine = finding.holds.processes
    if looked and mine and not any(process in facts.processes for process in mine):
        return None  # nobody is left that it could be about
    return replace(finding, undetermined=doubt)


def _unread(finding: Finding, facts: Facts) -> str | None:
    """Why a client that is no longer seen to be one may be one still: its files could not be read, or the
    list in which it may have a row. A GPU that the driver no longer has is gone, and its clients with it.
    """
    subject = finding.holds.subject
    if subject.finding not in OF_CLIENTS:
        return None
    mine = [facts.processes[one] for one in finding.holds.processes if one in facts.processes]
    unread = sorted({part for process in mine for part in process.unread})
    if unread:
        return f"unread:{unread[0]}"
    lack = facts.lack(Evidence.ROWS, subject.device)
    gone = facts.lack(Evidence.INVENTORY, None) is None and facts.is_absent(subject.device)
    return f"{lack.evidence}:{lack.reason}" if lack and not (lack.off or gone) else None


def _about(doubt: Undetermined, finding: Finding) -> bool:
    """Whether a doubt is about this finding. What is wrong with a process may turn from kind to kind."""
    subject = finding.holds.subject
    return (
        doubt.finding is subject.finding
        and (doubt.kind == finding.holds.kind or bool(finding.holds.pid))
        and doubt.device in (None, subject.device)
        and doubt.who in (None, subject.who)
    )


class _Causes:
    """The findings of a cycle by what they are about: processes on a GPU, or a pod on it."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self._about: dict[tuple[str, object], set[FindingName]] = {}
        for finding in findings:
            if not finding.active:
                continue  # what is pending may never be told, and then nobody would be told of either
            for about in _subjects(finding.holds, every=True):
                self._about.setdefault(about, set()).add(finding.holds.subject.finding)

    def of(self, finding: Finding) -> FindingName | None:
        """The first finding that explains this one, by the order of EXPLAINED_BY."""
        causes = EXPLAINED_BY.get(finding.holds.subject.finding, ())
        if not causes:
            return None
        there = {name for about in _subjects(finding.holds) for name in self._about.get(about, ())}
        return next((name for name in causes if name in there), None)


def _subjects(holds: Holds, *, every: bool = False) -> Iterator[tuple[str, object]]:
    """What a finding is about: its processes on the GPU, or its pod there if it is about none (or `every`).

    A phantom is about a process that is not there.
    """
    device = holds.subject.device
    uuid = device.uuid if device else ""
    for process in holds.processes:
        yield uuid, process
    if holds.pod_uid and (every or not (holds.processes or holds.pid)):
        yield uuid, holds.pod_uid
