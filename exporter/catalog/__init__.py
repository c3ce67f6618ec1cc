"""The metric table: every family that this exporter serves, one row each, by subject.

What comes in is a Report, what goes out are label values and numbers; the text of the exposition is made
elsewhere. A row reads the report and nothing else: no clock, no state, no environment. To add a metric, add a
row.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from exporter.catalog import allocations, findings, gpus, health, mig, processes, stack
from exporter.catalog.family import PREFIX, Family, Sample

SUBJECTS: tuple[tuple[str, tuple[Family, ...]], ...] = (
    ("GPUs", gpus.FAMILIES),
    ("MIG devices", mig.FAMILIES),
    ("Allocations", allocations.FAMILIES),
    ("Processes", processes.FAMILIES),
    ("Findings", findings.FAMILIES),
    ("The GPU stack", stack.FAMILIES),
    ("The exporter itself", health.FAMILIES),
)

FAMILIES: tuple[Family, ...] = tuple(family for _, families in SUBJECTS for family in families)

# Without these a blind or stuck exporter would pass for a quiet node, so no setting leaves them out.
ALWAYS = frozenset(
    PREFIX + name for name in ("exporter_build_info", "node_info", "cycle_timestamp_seconds", "source_up")
)


def matching(pattern: str) -> frozenset[str]:
    """The full names of the families that a glob matches."""
    return frozenset(family.full_name for family in FAMILIES if fnmatchcase(family.full_name, pattern))


def chosen(allow: Iterable[str] = (), deny: Iterable[str] = ()) -> tuple[Family, ...]:
    """The families that these globs leave: those allowed (all, where nothing is) less those denied, and
    always those of ALWAYS.
    """
    allowed = frozenset().union(*map(matching, allow)) or frozenset(family.full_name for family in FAMILIES)
    served = allowed.difference(*map(matching, deny)) | ALWAYS
    return tuple(family for family in FAMILIES if family.full_name in served)


__all__ = ["ALWAYS", "FAMILIES", "PREFIX", "SUBJECTS", "Family", "Sample", "chosen", "matching"]
