"""The metric table: every family that this exporter serves, one row each, by subject.

What comes in is a Report, what goes out are label values and numbers; the text of the exposition is made
elsewhere. A row reads the report and nothing else: no clock, no state, no environment. To add a metric, add a
row.
"""

from exporter.catalog import allocations, findings, gpus, health, mig, processes
from exporter.catalog.family import PREFIX, Family, Sample

SUBJECTS: tuple[tuple[str, tuple[Family, ...]], ...] = (
    ("GPUs", gpus.FAMILIES),
    ("MIG devices", mig.FAMILIES),
    ("Allocations", allocations.FAMILIES),
    ("Processes", processes.FAMILIES),
    ("Findings", findings.FAMILIES),
    ("The exporter itself", health.FAMILIES),
)

FAMILIES: tuple[Family, ...] = tuple(family for _, families in SUBJECTS for family in families)

__all__ = ["FAMILIES", "PREFIX", "SUBJECTS", "Family", "Sample"]
