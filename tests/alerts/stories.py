"""Series and alerts of one story, in few words."""

from __future__ import annotations

from collections.abc import Sequence

from tests.alerts.promtool import TARGET, Labels, Series
from tests.alerts.table import GPU, HARDWARE, POD

Minutes = Sequence[float | None]
OTHER: Labels = {"namespace": "ml", "pod": "train-1", "container": "main"}
SHARED = {name: TARGET[name] for name in HARDWARE}


def of(name: str, labels: Labels, minutes: Minutes, **target: str) -> Series:
    """A series of the exporter."""
    return Series(f"kubegpu_{name}", {**TARGET, **labels, **target}, minutes)


def alert(severity: str, labels: Labels, target: Labels = TARGET) -> Labels:
    """Labels of an alert."""
    return {**target, **labels, "severity": severity}


def whole(name: str, labels: Labels, value: float, minutes: int) -> Series:
    """A series that does not change."""
    return of(name, labels, [value] * minutes)


# The kubelet gave the first GPU to a pod.
GIVEN: Labels = {**GPU, **POD, "resource": "nvidia.com/gpu", "pod_uid": "u1"}
