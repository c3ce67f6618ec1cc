"""A node as people ask about it: who is on which GPU, was it given to them, what is wrong, what is not known.

In: a Report. Out: a View, which `describe` prints and the status page draws. Nothing here decides what is
wrong.
"""

from exporter.view.forms import gap, grouped, moment, reason, size
from exporter.view.records import (
    Device,
    Doubt,
    Gap,
    Given,
    Holder,
    Place,
    Problem,
    Verdict,
    View,
    given_here,
    is_given,
    judged,
    ranked,
    waiting,
)
from exporter.view.reported import of_report

__all__ = [
    "Device",
    "Doubt",
    "Gap",
    "Given",
    "Holder",
    "Place",
    "Problem",
    "Verdict",
    "View",
    "gap",
    "given_here",
    "grouped",
    "is_given",
    "judged",
    "moment",
    "of_report",
    "ranked",
    "reason",
    "size",
    "waiting",
]
