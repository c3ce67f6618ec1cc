"""What a rule is, and how expressions and texts are put together. Pure.

A `Language` knows what labels are called in the set-up that the rules are for. Every selector of the
exporter's metrics is made by it, so that none forgets the job, and every mention of a workload label goes
through it, so that none forgets that it may have another name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from alerts.src.config import Config

PREFIX = "kubegpu_"
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule. `hold` and `keep` are seconds, before scaling."""

    name: str
    severity: str
    hold: float
    keep: float
    expr: str
    summary: str  # one sentence, the same for every alert of the name
    description: str


@dataclass(frozen=True, slots=True)
class Record:
    """One recording rule. `meaning` becomes a comment."""

    name: str
    expr: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after the other."""

    name: str
    rules: tuple[Alert, ...] | tuple[Record, ...]
    interval: float | None = None


class Language:
    """Words of one set-up."""

    def __init__(self, config: Config) -> None:
        self.config = config
        names = config.labels
        self.namespace, self.pod, self.container = names.namespace, names.pod, names.container
        self.workload = (names.namespace, names.pod, names.container)
        self.cluster = (config.cluster_label,) if config.cluster_label else ()
        self.target = (*self.cluster, config.node_label, "instance", *config.target_labels)

    # --- expressions

    def metric(self, name: str, *matchers: str) -> str:
        """A selector of one of the exporter's metrics; `name` without the prefix."""
        return f"{PREFIX}{name}{{{self.matchers(*matchers)}}}"

    def matchers(self, *more: str) -> str:
        """The matcher of the job, and more."""
        return ",".join((f'job=~"{escaped(self.config.job)}"', *more))

    def findings(self, finding: str, kinds: Iterable[str] = (), drop: Iterable[str] = ("kind",)) -> str:
        """Active findings by device and workload. The kind may change while one incident lasts, so that it
        is no part of the alert's identity.
        """
        matchers = [f'finding="{finding}"']
        if kinds:
            matchers.append(f'kind=~"{"|".join(kinds)}"')
        return f"sum without ({joined(drop)}) (\n  {self.metric('findings', *matchers)}\n)"

    def total(self, last: str = "") -> str:
        """Memory of each device: of a GPU, and of each GPU instance without the MIG device's name.

        It does not change. With `last` that of so long a time will do, while NVML does not answer.
        """
        gpus, instances = (self.metric(f"{what}_memory_total_bytes") for what in ("gpu", "mig"))
        if last:
            gpus, instances = (f"last_over_time({one}[{last}])" for one in (gpus, instances))
        whole = f"max without ({joined(self.workload)}) ({gpus})"
        parts = f"max without (mig_uuid, {joined(self.workload)}) ({instances})"
        return f"(\n{indented(whole)}\n    or\n{indented(parts)}\n  )"

    # --- texts

    @property
    def where(self) -> str:
        """The node, and its cluster if it has one."""
        node = f"{{{{ with $labels.{self.config.node_label} }}}}{{{{ . }}}}{{{{ else }}}}"
        return f"node {node}{{{{ $labels.instance }}}}{{{{ end }}}}{self.of_cluster}"

    @property
    def of_cluster(self) -> str:
        """The cluster, if there is one."""
        if not self.cluster:
            return ""
        return f"{{{{ with $labels.{self.cluster[0]} }}}} of cluster {{{{ . }}}}{{{{ end }}}}"

    @property
    def gpu(self) -> str:
        """The GPU by index and UUID, and the part of it."""
        return f"GPU {{{{ $labels.gpu }}}} ({{{{ $labels.uuid }}}}{self.part})"

    @property
    def memory(self) -> str:
        """The piece of memory: a GPU's, or that of a GPU instance, which MIG devices may share."""
        part = "{{ with $labels.gi }}, GPU instance {{ . }}{{ end }}"
        return f"GPU {{{{ $labels.gpu }}}} ({{{{ $labels.uuid }}}}{part})"

    @property
    def part(self) -> str:
        """The MIG device or GPU instance, if it is one."""
        return _PART

    @property
    def uuid(self) -> str:
        """The GPU by UUID alone, where the alert has no index."""
        return "GPU {{ $labels.uuid }}"

    @property
    def owner(self) -> str:
        """The pod and container of the alert, or that there is none."""
        container = f"{{{{ with $labels.{self.container} }}}}, container {{{{ . }}}}{{{{ end }}}}"
        pod = f"pod {{{{ $labels.{self.namespace} }}}}/{{{{ . }}}}{container}"
        return f"{{{{ with $labels.{self.pod} }}}}{pod}{{{{ else }}}}no pod{{{{ end }}}}"

    def told(
        self, metric: str, on: tuple[str, ...], item: str, *matchers: str, of: str = "{}", sort: str = ""
    ) -> str:
        """A list that Prometheus looks up when the alert is evaluated: one `item` for each combination of the
        labels in it, among the series that have the alert's values of the labels `on`; at most five, in the
        order of the label `sort`, or of the last one in the item. `of` is put around the selector.
        """
        by = list(dict.fromkeys(_ITEM_LABEL.findall(item)))
        # A range over a printf: the expression itself may contain percent signs.
        fixed = f"{PREFIX}{metric}{{{self.matchers(*matchers)}".replace("%", "%%")
        slots = "".join(f",{label}=%q" for label in on)
        query = f"topk(5, count by ({joined(by)}) ({of.format(fixed + slots + '}')}))"
        arguments = " ".join(f"$labels.{label}" for label in on)
        asked = f"printf `{query}` {arguments} | query | sortByLabel `{sort or by[-1]}`"
        return (
            f"{{{{ range $i, $one := {asked} }}}}{{{{ if $i }}}}, {{{{ end }}}}{item}"
            "{{ else }}not told{{ end }}"
        )

    def processes(self, *findings: str, on: tuple[str, ...]) -> str:
        """Kinds, pids and pods of what was found. The name that a process gives itself is not told here."""
        name = f"{{{{ $one.Labels.{self.namespace} }}}}/{{{{ . }}}}"
        pod = f"{{{{ with $one.Labels.{self.pod} }}}} of {name}{{{{ end }}}}"
        item = f"{{{{ $one.Labels.kind }}}}{{{{ with $one.Labels.pid }}}} (pid {{{{ . }}}}{pod}){{{{ end }}}}"
        return self.told("finding_info", on, item, f'finding=~"{"|".join(findings)}"', sort="pid")

    def given_to(self, on: tuple[str, ...]) -> str:
        """The pods that the kubelet gave the device to."""
        item = f"{{{{ $one.Labels.{self.namespace} }}}}/{{{{ $one.Labels.{self.pod} }}}}"
        return self.told("allocation_info", on, item)

    @property
    def device(self) -> tuple[str, ...]:
        """Labels that find a device again."""
        return (*self.cluster, "instance", "uuid", "gi")


_ITEM_LABEL = re.compile(r"\$one\.Labels\.(\w+)")
_PART = (
    "{{ with $labels.mig_uuid }}, MIG device {{ . }}"
    "{{ else }}{{ with $labels.gi }}, GPU instance {{ . }}{{ end }}{{ end }}"
)


def joined(names: Iterable[str]) -> str:
    """A list of labels."""
    return ", ".join(names)


def indented(text: str, by: int = 4) -> str:
    """Every line moved to the right."""
    return "\n".join(" " * by + line for line in text.split("\n"))


def escaped(text: str) -> str:
    """Text as it stands between double quotes in an expression."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
