"""What is wrong on the node, by a table of rules. Pure: (policy, before, snapshot, attribution) → Diagnosis.

`RULES` (table.py) is the table; a rule's check looks at `Facts` and yields rulings. This module sees to what
must not be left to each rule: a kind whose evidence is missing is undetermined on that device and neither
holds nor is clear there; one whose source is off is not applicable; a device is clear of a finding only where
every applicable kind was judged and none holds. `settle` follows findings over cycles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from exporter.diagnosis.facts import Facts, Lack
from exporter.diagnosis.rule import Kind, Rule
from exporter.diagnosis.settle import settle
from exporter.diagnosis.table import RULES
from exporter.model import (
    Attribution,
    DeviceKey,
    Diagnosis,
    Finding,
    FindingName,
    History,
    Holds,
    NotApplicable,
    Policy,
    Ruling,
    Snapshot,
    Undetermined,
)

__all__ = ["RULES", "diagnose"]

T = TypeVar("T", Undetermined, NotApplicable)


def diagnose(
    policy: Policy,
    before: History,
    previous: tuple[Finding, ...],
    snapshot: Snapshot,
    attribution: Attribution,
) -> Diagnosis:
    """Judge a cycle. `previous` are the findings of the cycle before, pending ones among them."""
    facts = Facts(policy, before, snapshot, attribution)
    rulings = [ruling for rule in RULES for ruling in _judged(rule, facts, previous)]
    findings = settle(RULES, policy, previous, facts, rulings)
    return Diagnosis(
        findings=findings,
        undetermined=tuple(_undetermined(facts, rulings)),
        not_applicable=tuple(_not_applicable(facts, rulings)),
        clear=tuple(_clear(facts, rulings, findings)),
    )


def _judged(rule: Rule, facts: Facts, previous: Iterable[Finding]) -> Iterator[Ruling]:
    """The rule's rulings, less those that its kinds lack the evidence for, and those lacks."""
    lacking: set[Ruling] = set()
    scope = set(_scope(rule, facts))
    before = {one.holds.subject.device for one in previous if one.holds.subject.finding is rule.finding}
    for kind in rule.kinds:
        for device in scope | before:
            # A GPU that is no longer known has taken its rows along: what else is missing leaves a doubt.
            if lack := _lack(kind, facts, device if device in scope else None):
                lacking.add(_unjudged(rule, kind, device, lack))
    for ruling in rule.check(facts):
        device = ruling.subject.device if isinstance(ruling, Holds) else ruling.device
        kind = rule.kind(ruling.kind)
        if lack := _lack(kind, facts, device):  # also on a device that is out of scope: NVML dropped it
            lacking.add(_unjudged(rule, kind, device, lack))
        else:
            yield ruling
    yield from lacking


def _unjudged(rule: Rule, kind: Kind, device: DeviceKey | None, lack: Lack) -> Undetermined | NotApplicable:
    ruling = NotApplicable if lack.off else Undetermined
    return ruling(rule.finding, kind.name, device, f"{lack.evidence}:{lack.reason}")


def _scope(rule: Rule, facts: Facts) -> Iterable[DeviceKey | None]:
    """What the rule is judged on. Without any known device it is the node, so that a lack is still told."""
    if rule.of_node or not facts.devices:
        return (None,)
    return facts.memories if rule.of_memory else facts.devices


def _lack(kind: Kind, facts: Facts, device: DeviceKey | None) -> Lack | None:
    """What is missing of a kind's best alternative that is not switched off; None where one is complete."""
    best: Lack | None = None
    for alternative in kind.needs:
        lacks = [lack for one in sorted(alternative) if (lack := facts.lack(one, device)) is not None]
        if not lacks:
            return None
        worst = next((lack for lack in lacks if lack.off), lacks[0])
        if best is None or (best.off and not worst.off):
            best = worst
    return best


def _undetermined(facts: Facts, rulings: Iterable[Ruling]) -> Iterator[Undetermined]:
    """What could not be judged; one row for the node where it is the same on every device."""
    found = [ruling for ruling in rulings if isinstance(ruling, Undetermined)]
    everywhere = _everywhere(facts, [one for one in found if one.who is None])
    yield from sorted(everywhere, key=_order)
    for one in sorted(set(found), key=_order):
        if one.who is not None or replace(one, device=None) not in everywhere:
            yield one


def _not_applicable(facts: Facts, rulings: Iterable[Ruling]) -> Iterator[NotApplicable]:
    """What has no meaning here; one row for the node where it is the same on every device."""
    found = [ruling for ruling in rulings if isinstance(ruling, NotApplicable)]
    everywhere = _everywhere(facts, found)
    yield from sorted(everywhere, key=_order)
    for one in sorted(set(found), key=_order):
        if replace(one, device=None) not in everywhere:
            yield one


def _everywhere(facts: Facts, found: Iterable[T]) -> set[T]:
    """Rulings that stand for all devices, as rulings of the node."""
    devices: dict[T, set[DeviceKey | None]] = {}
    for one in found:
        devices.setdefault(replace(one, device=None), set()).add(one.device)
    scopes = {rule.finding: set(_scope(rule, facts)) for rule in RULES}
    return {one for one, where in devices.items() if None in where or where >= scopes[one.finding]}


def _clear(
    facts: Facts, rulings: Iterable[Ruling], findings: Iterable[Finding]
) -> Iterator[tuple[FindingName, DeviceKey | None]]:
    """Where every kind that applies was judged, and none holds or is still held."""
    taken = {(f.holds.subject.finding, f.holds.subject.device) for f in findings}
    off: dict[tuple[FindingName, DeviceKey | None], set[str]] = {}
    for ruling in rulings:
        match ruling:
            case Undetermined(finding=finding, device=device):
                taken.add((finding, device))
            case NotApplicable(finding=finding, kind=kind, device=device):
                off.setdefault((finding, device), set()).add(kind)
            case Holds(subject=subject):
                taken.add((subject.finding, subject.device))
    for rule in RULES:
        for device in _scope(rule, facts):
            if device is None and not rule.of_node:
                continue  # no device is known, so none is clear
            waived = off.get((rule.finding, device), set()) | off.get((rule.finding, None), set())
            doubtful = {(rule.finding, device), (rule.finding, None)} & taken
            if not doubtful and len(waived) < len(rule.kinds):
                yield rule.finding, device


def _order(one: Undetermined | NotApplicable) -> tuple[object, ...]:
    device = one.device.order if one.device else ("", -1, -1, "")
    who = (one.who or "") if isinstance(one, Undetermined) else ""
    return (one.finding.value, one.kind, device, one.reason, who)
