"""What there is to say about a node, wherever it comes from. Pure data.

A device is named by the label values of its series, so that a look at the node and the metrics of an exporter
speak of the same things. None means *not known or not supported*, as everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum

from exporter.diagnosis import RULES


class Verdict(IntEnum):
    """The outcome, which is the exit code."""

    NOTHING_WRONG = 0  # nothing that could be judged
    WRONG = 1
    NOT_SEEN = 3  # NVML did not answer: that nothing else is wrong is no clean bill for its GPUs


@dataclass(frozen=True, slots=True)
class Place:
    """A GPU, or a MIG device of it: `gi` and `mig_uuid` are empty for a whole GPU."""

    uuid: str
    gi: str = ""
    mig_uuid: str = ""

    def meets(self, other: Place) -> bool:
        """Whether the two are one device, or one is a part of the other."""
        if self.uuid != other.uuid or (self.gi and other.gi and self.gi != other.gi):
            return False
        return not self.mig_uuid or not other.mig_uuid or self.mig_uuid == other.mig_uuid


@dataclass(frozen=True, slots=True)
class Given:
    """The kubelet gave a device to a container. `place` None: an id that nobody can read."""

    place: Place | None
    namespace: str
    pod: str
    container: str
    resource: str


@dataclass(frozen=True, slots=True)
class Holder:
    """A process on a device. `given`: whether its pod was given the device; one that is gone has none."""

    pid: int
    comm: str
    owner: str
    namespace: str
    pod: str
    container: str
    pod_uid: str
    memory: int | None
    visibility: str
    state: str
    given: bool | None


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong. `since` is set where a running exporter has followed it, and `active` says
    whether it has lasted long enough to count; None: nobody followed it.
    """

    finding: str
    kind: str
    severity: str
    summary: str
    meaning: str
    remedy: str
    evidence: tuple[str, ...] = ()
    namespace: str = ""
    pod: str = ""
    container: str = ""
    pid: int = 0
    comm: str = ""
    memory: int | None = None
    explained_by: str = ""
    undetermined: str = ""  # why it could not be judged again
    age: float | None = None  # seconds that it must hold before an exporter counts it
    since: float | None = None
    active: bool | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU or MIG device. `allocated` is what the kubelet says; `listed`: everybody on it would be seen."""

    place: Place
    index: str
    product: str
    used: int | None = None
    total: int | None = None
    attributed: int | None = None
    unattributed: int | None = None
    allocated: bool | None = None
    given: tuple[Given, ...] = ()
    holders: tuple[Holder, ...] = ()
    problems: tuple[Problem, ...] = ()
    lost: str = ""
    listed: bool | None = None


@dataclass(frozen=True, slots=True)
class Doubt:
    """A kind of finding that could not be judged; `place` None: anywhere."""

    finding: str
    kind: str
    place: Place | None
    reason: str


@dataclass(frozen=True, slots=True)
class Gap:
    """A source that did not answer, or only in part."""

    source: str
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """A node. `at` is seconds since the epoch; `problems` are those that are about no device shown."""

    node: str
    origin: str
    at: float | None
    seen: bool
    devices: tuple[Device, ...] = ()
    problems: tuple[Problem, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    gaps: tuple[Gap, ...] = ()
    simulated: bool = False

    @property
    def everything_wrong(self) -> tuple[Problem, ...]:
        """All problems, those of devices first."""
        return (*(one for device in self.devices for one in device.problems), *self.problems)

    @property
    def verdict(self) -> Verdict:
        """The outcome: what is wrong counts, whatever else was not seen."""
        if self.everything_wrong:
            return Verdict.WRONG
        return Verdict.NOTHING_WRONG if self.seen else Verdict.NOT_SEEN


@dataclass(frozen=True, slots=True)
class Judged:
    """What the table of rules says of a kind of finding; empty for what this version does not know."""

    severity: str = ""
    summary: str = ""
    meaning: str = ""
    remedy: str = ""
    age: float | None = None


def judged(finding: str, kind: str) -> Judged:
    """What is known of a kind of finding by its names."""
    for rule in RULES:
        for row in rule.kinds:
            if (rule.finding, row.name) == (finding, kind):
                return Judged(row.severity or rule.severity, rule.summary, row.meaning, rule.remedy, row.age)
    return Judged()


def is_given(place: Place, namespace: str, pod: str, given: Iterable[Given], *, known: bool) -> bool | None:
    """Whether a pod was given a device or a part of it. None: not known, or there is no pod with a name."""
    if not pod:
        return None
    own = [one for one in given if (one.namespace, one.pod) == (namespace, pod)]
    if any(one.place is not None and one.place.meets(place) for one in own):
        return True
    return None if not known or any(one.place is None for one in own) else False


def given_here(place: Place, given: Collection[Given]) -> tuple[Given, ...]:
    """To whom exactly this device was given; several replicas for one container are told once."""
    mine = {one for one in given if one.place == place}
    return tuple(sorted(mine, key=lambda one: (one.namespace, one.pod, one.container, one.resource)))


def ranked(holders: Iterable[Holder]) -> tuple[Holder, ...]:
    """The largest memory first."""
    return tuple(sorted(holders, key=lambda one: (-(one.memory or 0), one.pid)))


def waiting(call: str, index: str) -> str:
    """A call of NVML that has not returned."""
    return f"{call} has not returned" + (f" for GPU {index}" if index else "")
