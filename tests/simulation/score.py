"""Compares what the exporter finds with what is true: findings that are true, false or missed, and how late.

A finding has to be there once its truth is as old as the rule's age plus two cycles plus the lag of the
sources that it needs, counting only cycles in which those sources were whole: unknown is not clear, but it is
not known either. It may be there for as long after the truth has ended as its sources lag, and 15 minutes
while nobody can judge it. One that is told before its age is premature, and counts as false.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from exporter.diagnosis import RULES
from exporter.model import Finding, FindingName, Policy, Report, Seen, Severity, Snapshot
from exporter.report import advance
from tests.simulation.node_truth import Truth
from tests.simulation.node_weather import INTERVAL, History

F = FindingName
TWO_CYCLES = 2 * INTERVAL + 2.0
ROWS_LAG = 2 * INTERVAL  # rows of a cycle ago, a row that comes after its process
API_LAG = 75.0  # the API server is asked once a minute, give or take a fifth
HOLD = 900.0 + INTERVAL  # for which a finding that nobody can judge stays
RESTART = 180.0  # after a kubelet restart an absent pod is not yet gone
LAG: dict[FindingName, float] = {
    F.PHANTOM_PROCESS: ROWS_LAG,
    F.STUCK_PROCESS: 60.0,  # threads of a process that looks well are read once a minute
    F.ORPHAN_PROCESS: API_LAG,
    F.EXTERNAL_PROCESS: ROWS_LAG,
    F.HIDDEN_HOLDER: ROWS_LAG,
    F.ORPHANED_MEMORY: ROWS_LAG,
    F.EXCLUSIVE_GPU_SHARED: API_LAG,
    F.USED_NOT_ALLOCATED: API_LAG,
    F.VISIBLE_NOT_ALLOCATED: API_LAG,
    F.ALLOCATED_NOT_VISIBLE: API_LAG,
    F.NODE_CAPACITY_MISMATCH: API_LAG,
    F.IDLE_ALLOCATION: ROWS_LAG,
}
SOURCES: dict[FindingName, tuple[str, ...]] = {
    F.PHANTOM_PROCESS: ("nvml", "processes"),
    F.STUCK_PROCESS: ("processes",),
    F.ORPHAN_PROCESS: ("processes", "pods", "kubelet"),
    F.EXTERNAL_PROCESS: ("nvml", "processes", "pods"),  # the API names pods by container ids alone
    F.HIDDEN_HOLDER: ("nvml", "processes"),
    F.ORPHANED_MEMORY: ("nvml", "processes"),
    F.EXCLUSIVE_GPU_SHARED: ("nvml", "processes", "kubelet"),
    F.USED_NOT_ALLOCATED: ("nvml", "processes", "kubelet"),
    F.VISIBLE_NOT_ALLOCATED: ("nvml", "container_dev", "kubelet", "processes", "pods"),
    F.ALLOCATED_NOT_VISIBLE: ("nvml", "container_dev", "kubelet", "processes"),
    F.NODE_CAPACITY_MISMATCH: ("nvml", "node", "kubelet", "pods", "pci"),
    F.IDLE_ALLOCATION: ("nvml", "processes", "kubelet", "pods"),
}
_RULES = {rule.finding: rule for rule in RULES}


@dataclass
class Spell:
    """A truth for as long as it lasts without a break of more than two cycles."""

    truth: Truth
    since: float
    last: float
    first: float  # of all that came before it without a break of more than a finding is held for
    must_since: float | None = None
    must_last: float = 0.0
    seen: float = 0.0  # seconds of it with whole sources since it has to be told
    seen_last: float = 0.0
    told: float | None = None
    missed: bool = False


@dataclass(frozen=True)
class Failure:
    """One disagreement, with what it takes to see it again."""

    seed: int
    hour: float
    verdict: str  # false, premature, missed
    finding: str
    critical: bool
    detail: str

    def __str__(self) -> str:
        critical = " CRITICAL" if self.critical else ""
        return (
            f"seed {self.seed} at {self.hour:.4f} h: {self.verdict}{critical} {self.finding}: {self.detail}"
        )


@dataclass
class Score:
    """Counts per finding, and every disagreement."""

    hours: float = 0.0
    true: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    delays: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: "Score") -> None:
        self.hours += other.hours
        for name, count in other.true.items():
            self.true[name] += count
        for name, delays in other.delays.items():
            self.delays[name].extend(delays)
        self.failures.extend(other.failures)


class Scorer:
    """Folds one history."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.history = History(seed)
        self.score = Score()
        self._spells: dict[tuple[object, ...], Spell] = {}
        self._whole: dict[str, bool] = {}
        self._unsettled = 0.0
        self._blamed: set[tuple[object, ...]] = set()
        self._start = 0.0

    def run(self, hours: float) -> Score:
        report: Report | None = None
        policy = Policy()
        for snapshot, wrong, innocent in self.history.frames(hours):
            self._start = self._start or snapshot.at
            report = advance(policy, report, snapshot)
            self._follow(snapshot, wrong, innocent)
            told = [f for f in report.diagnosis.findings if f.active]
            self._look_for_missed(snapshot, told, innocent)
            self._look_for_false(snapshot, told, innocent)
        self.score.hours += hours
        return self.score

    # --- truth over time

    def _follow(self, snapshot: Snapshot, wrong: Iterable[Truth], innocent: tuple[str, ...]) -> None:
        now = snapshot.at
        self._note_sources(snapshot)
        for truth in wrong:
            spell = self._spells.get(truth.key)
            if spell is None or now - spell.last > TWO_CYCLES:
                first = spell.first if spell and now - spell.last < HOLD else now
                spell = self._spells[truth.key] = Spell(truth, now, now, first)
            elif truth.age > spell.truth.age or truth.must != spell.truth.must:
                spell.seen = 0.0
            spell.truth, spell.last = truth, now
            if not truth.must:
                spell.must_since = None
                continue
            if spell.must_since is None or now - spell.must_last > INTERVAL + 5:
                spell.must_since, spell.seen = now, 0.0
            spell.must_last = now
            if truth.finding is F.ORPHANED_MEMORY and "rows lag" in innocent:
                spell.seen = 0.0  # a row of the dead hides as much: not *every cycle for 5 minutes*
                continue
            if self._is_seen(snapshot, truth):
                # Unknown does not age a finding, up to the cycle in which it is judged again; one that could
                # not be judged for longer than it is held begins anew.
                gap = now - spell.seen_last
                spell.seen = 0.0 if gap > HOLD - INTERVAL else spell.seen + INTERVAL * (gap < 1.5 * INTERVAL)
                spell.seen_last = now
        self._spells = {key: one for key, one in self._spells.items() if now - one.last < 2 * HOLD}

    def _note_sources(self, snapshot: Snapshot) -> None:
        for name in ("nvml", "processes", "container_dev", "kubelet", "pods", "node", "pci"):
            reading = getattr(snapshot, name)
            self._whole[name] = isinstance(reading, Seen) and reading.complete
        if not self._whole["kubelet"]:
            self._unsettled = snapshot.at + RESTART + INTERVAL

    def _is_seen(self, snapshot: Snapshot, truth: Truth) -> bool:
        """Whether this cycle can count towards telling it."""
        needed = (*SOURCES[truth.finding], *(("nvml",) if truth.by_row else ()))
        if not all(self._whole[name] for name in needed):
            return False
        if "kubelet" in needed and snapshot.at < self._unsettled:
            return False
        if truth.uuid and "nvml" in needed and isinstance(snapshot.nvml, Seen):
            return any(gpu.uuid == truth.uuid and not gpu.lost for gpu in snapshot.nvml.value.gpus)
        return True

    # --- verdicts

    def _look_for_missed(self, snapshot: Snapshot, told: list[Finding], innocent: tuple[str, ...]) -> None:
        now = snapshot.at
        for spell in self._spells.values():
            truth = spell.truth
            if spell.last != now:
                continue
            blind = spell.seen_last != now
            if any(matches(finding, truth) for finding in told):
                if spell.told is None and truth.must:
                    spell.told = now
                    self.score.true[truth.finding.value] += 1
                    self.score.delays[truth.finding.value].append(now - spell.since)
                continue
            due = truth.age + TWO_CYCLES + LAG[truth.finding]
            if truth.must and spell.seen > due and not (blind or spell.missed):
                spell.missed = True
                self._blame("missed", snapshot, truth.finding, False, f"{truth} {innocent}")

    def _look_for_false(self, snapshot: Snapshot, told: list[Finding], innocent: tuple[str, ...]) -> None:
        for finding in told:
            if finding.explained_by is not None:
                continue
            subject = finding.holds.subject
            verdict = self._verdict(snapshot.at, finding)
            key = (verdict, subject, finding.since)
            if verdict and key not in self._blamed:
                self._blamed.add(key)
                holds = finding.holds
                what = f"{subject} {holds.kind} {holds.evidence} {finding.undetermined} {innocent}"
                self._blame(verdict, snapshot, subject.finding, severity(finding) is Severity.CRITICAL, what)

    def _verdict(self, now: float, finding: Finding) -> str:
        about = [spell for spell in self._spells.values() if matches(finding, spell.truth)]
        after = HOLD if finding.undetermined else TWO_CYCLES + LAG[finding.holds.subject.finding]
        recent = [spell for spell in about if now - spell.last <= after]
        if not recent:
            return "false"
        # A finding keeps its age when its kind changes, so that a spell before this one counts too.
        ripe = any(now - one.first >= one.truth.age - 2 * INTERVAL for one in about if now - one.last <= HOLD)
        return "" if ripe else "premature"

    def _blame(
        self, verdict: str, snapshot: Snapshot, finding: FindingName, critical: bool, text: str
    ) -> None:
        hour = (snapshot.at - self._start) / 3600
        self.score.failures.append(Failure(self.seed, hour, verdict, finding.value, critical, text))


def severity(finding: Finding) -> Severity:
    """How bad a finding is, by itself, its kind or its rule."""
    rule = _RULES[finding.holds.subject.finding]
    return finding.holds.severity or rule.kind(finding.holds.kind).severity or rule.severity


def matches(finding: Finding, truth: Truth) -> bool:
    """Whether a finding is about that truth, as far as each says what it is about."""
    holds = finding.holds
    subject = holds.subject
    if subject.finding is not truth.finding:
        return False
    device = subject.device
    if device is not None and truth.uuid and device.uuid != truth.uuid:
        return False
    if device is not None and None not in (device.gi, truth.gi) and device.gi != truth.gi:
        return False
    if truth.pid and holds.pid and holds.pid not in (truth.pid, truth.alias):
        return False
    return not (truth.uuid and truth.pod and holds.pod_uid and truth.pod != holds.pod_uid)


def play(job: tuple[int, float]) -> Score:
    """Fold one seed's history of so many hours."""
    seed, hours = job
    return Scorer(seed).run(hours)


def table(score: Score, names: Iterable[FindingName] = FindingName) -> str:
    """The result, one line per finding."""
    columns = (("finding", -26), ("true", 7), ("false", 7), ("early", 7), ("missed", 8), ("critical", 10))
    head = (*columns, ("median s", 10), ("max s", 8))
    lines = ["".join(f"{text:<{-width}}" if width < 0 else f"{text:>{width}}" for text, width in head)]
    for name in names:
        mine = [f for f in score.failures if f.finding == name.value]
        counts = [sum(f.verdict == verdict for f in mine) for verdict in ("false", "premature", "missed")]
        delays = sorted(score.delays.get(name.value, ())) or [0.0]
        critical = sum(f.critical for f in mine)
        lines.append(
            f"{name.value:26}{score.true.get(name.value, 0):>7}{counts[0]:>7}{counts[1]:>7}{counts[2]:>8}"
            f"{critical:>10}{delays[len(delays) // 2]:>10.0f}{delays[-1]:>8.0f}"
        )
    return "\n".join((*lines, f"{score.hours:g} node-hours"))
