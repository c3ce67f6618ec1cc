"""The Reports that the status page is looked at with: the end of a story, or one moment of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from exporter import scenario
from exporter.model import Report
from tests import golden
from tests.unit.reports import eight_gpus_with_56_mig_devices

STORIES = Path(__file__).parents[1] / "scenarios"


def story(name: str, at: float | None = None) -> Report:
    """The report of a story's cycle at so many seconds, or of its last one."""
    found: Report | None = None
    path = STORIES / name
    for seconds, report in golden.reports(scenario.load(str(path) if path.exists() else name)):
        if at is None or seconds <= at:
            found = report
    if found is None:
        raise ValueError(f"{name} has no cycle at {at}")
    return found


# What a picture is called, and what it shows.
REPORTS: Mapping[str, Callable[[], Report]] = {
    "healthy": partial(story, "healthy-node", 60),
    "two-pods-on-one-gpu": partial(story, "wrong-gpu"),
    "held-by-a-hung-process": partial(story, "recreated-on-the-gpu-of-its-hung-self", 345),
    "nvml-hung": partial(story, "nvml-hung", 45),
    "hostile-names": partial(story, "hostile-names"),
    "mig": partial(eight_gpus_with_56_mig_devices, 16),
}
