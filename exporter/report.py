"""One step of the agent's mind: what is known now, from what was known before and what was seen. Pure."""

from __future__ import annotations

from exporter.attribution import attribute
from exporter.diagnosis import diagnose
from exporter.history import forget_other_world, remember
from exporter.model import History, Policy, Report, Snapshot


def advance(policy: Policy, previous: Report | None, snapshot: Snapshot) -> Report:
    """Fold one Snapshot into the Report. All state is the previous Report: tests and the demo are folds over
    frames.
    """
    before = forget_other_world(previous.history if previous else History(), snapshot)
    attribution = attribute(policy, before, snapshot)
    found = previous.diagnosis.findings if previous else ()
    diagnosis = diagnose(policy, before, found, snapshot, attribution)
    history = remember(policy, before, snapshot, attribution)
    return Report(policy, snapshot, attribution, history, diagnosis)
