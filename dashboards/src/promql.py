"""PromQL that keeps "unknown" apart from zero: selectors, what should be there, joins with an absence arm.

Metric names come in, expressions of the Prometheus 2.42 language go out. No expression here may turn a
series that is missing into a 0: a 0 is only made where another series proves that somebody looked. What
nobody knows is the number NaN, which panels show as the word "unknown".
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "kubegpu_"
NODE = "cluster, node"
UUID = "cluster, node, uuid"
GPU = "cluster, node, uuid, gpu"
MEMORY = "cluster, node, uuid, gi"  # what is used as one memory: a GPU or a GPU instance
DEVICE = "cluster, node, uuid, gpu, gi, mig_uuid"
HELD = f"{DEVICE}, namespace, pod, container"  # a container on a device
WORKLOAD = "cluster, namespace, pod"

# For so long a GPU that its exporter no longer shows is counted as unknown instead of being forgotten.
REMEMBERED = "1h"
SILENT = "unknown: the exporter does not answer"
ABSENT = "unknown: no exporter is scraped"
ORPHAN_CAUSES = ("phantom", "orphan", "unattributed")


@dataclass(frozen=True, slots=True)
class Scope:
    """What the variables of a dashboard choose: matchers for targets, for devices and for pods."""

    target: str
    device: str = ""
    workload: str = ""

    def metric(self, name: str, *more: str, workload: bool = False) -> str:
        """A selector of a family of ours about devices; `workload`: only of the pods that are chosen."""
        parts = (*more, self.target, self.device, self.workload if workload else "")
        return f"{PREFIX}{name}{{{', '.join(part for part in parts if part)}}}"

    def own(self, name: str, *more: str) -> str:
        """A selector of a family that has no device."""
        return f"{PREFIX}{name}{{{', '.join((*more, self.target))}}}"

    def of_node(self, name: str, *more: str) -> str:
        """A selector of a family about devices that also has rows about the node as a whole: those too."""
        device = self.device.replace('"$gpu"', '"$gpu|"')
        parts = (*more, self.target, device)
        return f"{PREFIX}{name}{{{', '.join(part for part in parts if part)}}}"


TARGET = 'job=~"$job", cluster=~"$cluster"'
ON_NODE = f'{TARGET}, node=~"$node"'
ON_GPU = Scope(ON_NODE, 'uuid=~"$gpu"')
OF_FLEET = Scope(ON_NODE)
OF_PODS = Scope(TARGET, workload='namespace=~"$namespace", pod=~"$pod"')


# --- what should be there -----------------------------------------------------------------------------------


def targets(scope: Scope, metric: str = "up") -> str:
    """`up`, or another series that Prometheus adds, of this exporter's targets and of no others.

    With "All" chosen the job matches every job, so targets are known by what their job served lately.
    """
    served = f'last_over_time(kubegpu_exporter_build_info{{job=~"$job"}}[{REMEMBERED}])'
    return f"({metric}{{{scope.target}}} and on (job) {served})"


def gpus(scope: Scope, keys: str = UUID) -> str:
    """1 for each GPU: those shown now, and those that a target which shows none now showed lately."""
    now = scope.metric("gpu_info")
    before = f"max by ({keys}) (last_over_time({now}[{REMEMBERED}]))"
    silent = f"({before} unless on ({NODE}) {now}) and on ({NODE}) {targets(scope)}"
    return f"(max by ({keys}) ({now}) or {silent})"


def devices(scope: Scope, keys: str = DEVICE) -> str:
    """1 for each GPU that is not cut and each MIG device, also of nodes that show none now."""
    whole, parts = scope.metric("gpu_info", 'mig_mode!="enabled"'), scope.metric("mig_info")
    shown = scope.metric("gpu_info")
    now = f"max by ({keys}) ({whole}) or max by ({keys}) ({parts})"
    before = (
        f"max by ({keys}) (last_over_time({whole}[{REMEMBERED}])) "
        f"or max by ({keys}) (last_over_time({parts}[{REMEMBERED}]))"
    )
    return f"({now} or (({before}) unless on ({NODE}) {shown}) and on ({NODE}) {targets(scope)})"


def count_unknown(universe: str, judged: str, on: str = UUID) -> str:
    """How many of the universe are not judged; absent if nothing is known to exist."""
    return f"sum(({universe} unless on ({on}) {judged}) or ({universe} * 0))"


def or_unknown(expr: str) -> str:
    """One number, or NaN where there is none."""
    return f"{expr} or vector(NaN)"


def or_unknown_for(expr: str, rows: str) -> str:
    """The absence arm of a table's column: NaN for each row that has no value. Both need the same labels."""
    return f"{expr} or ({rows} * NaN)"


def silent(scope: Scope) -> str:
    """A row for each target that gives no current values: down, or its cycle is stuck."""
    return f"(max by ({NODE}) ({targets(scope)}) unless on ({NODE}) {scope.own('cycle_duration_seconds')})"


def with_silent(expr: str, scope: Scope, label: str) -> str:
    """A table's rows, one for each target of which nothing is known, and one if there is no target."""
    parts = ((silent(scope), SILENT), (f"absent({targets(scope)})", ABSENT))
    rows = (f'label_replace({rows} * NaN, "{label}", "{text}", "", "")' for rows, text in parts)
    return " or ".join((expr, *rows))


# --- who has what -------------------------------------------------------------------------------------------


def counted(scope: Scope) -> str:
    """GPUs and MIG devices on which processes could be counted."""
    return f"max by ({DEVICE}) ({scope.metric('processes')})"


def judged(scope: Scope, findings: str) -> str:
    """GPUs on which these kinds of findings were judged: said to be clear or found, and nothing left open."""
    chosen = f'finding=~"{findings}"'
    opened = scope.metric("finding_undetermined", chosen)
    return f"(max by ({UUID}) ({scope.metric('findings', chosen)}) unless on ({UUID}) {opened})"


def known_orphans(scope: Scope) -> str:
    """Memories of which all three parts of what is orphaned are known."""
    parts = [scope.metric("gpu_memory_orphaned_bytes", f'cause="{cause}"') for cause in ORPHAN_CAUSES]
    whole = f" and on ({MEMORY}) ".join(parts)
    return f"max by ({MEMORY}) ({whole})"


@dataclass(frozen=True, slots=True)
class Held:
    """Which container was given, and which uses, which device."""

    scope: Scope

    @property
    def given(self) -> str:
        """1 for each container that the kubelet gave a device."""
        return f"max by ({HELD}) ({self.scope.metric('allocation_info', workload=True)})"

    @property
    def using(self) -> str:
        """Processes of each container that has some on a device."""
        clients = self.scope.metric("workload_processes", 'pod!=""', workload=True)
        return f"max by ({HELD}) ({clients})"

    @property
    def rows(self) -> str:
        """1 for each container on a device, given or using."""
        return f"(({self.given}) or ({self.using}) ^ 0)"

    @property
    def is_given(self) -> str:
        """1 or 0 for each row, NaN while the kubelet's word on the device is not known."""
        told = f"({self.rows} * 0 and on ({DEVICE}) {self.scope.metric('gpu_allocated')})"
        return or_unknown_for(f"{self.given} or {told}", self.rows)

    @property
    def processes(self) -> str:
        """Processes of each row, NaN while they cannot be counted on the device."""
        counted = self._counted(f"{self.rows} * 0")
        return or_unknown_for(f"{self.using} or {counted}", self.rows)

    @property
    def memory(self) -> str:
        """Bytes of each row, NaN while they are not known."""
        sizes = f"max by ({HELD}) ({self.scope.metric('workload_memory_bytes', workload=True)})"
        nothing = self._counted(f"({self.rows} * 0 unless on ({HELD}) {self.using})")
        return or_unknown_for(f"{sizes} and on ({HELD}) {self.rows} or {nothing}", self.rows)

    @property
    def state(self) -> str:
        """3: given and used, 2: given only, 1: used only, NaN: not known, for each row."""
        return f"2 * ({self.is_given}) + clamp_max(({self.processes}), 1)"

    @property
    def bare(self) -> str:
        """1 for each device that no container was given or uses, as far as is known."""
        return f"({devices(self.scope)} unless on ({DEVICE}) {self.rows})"

    def or_free(self, expr: str) -> str:
        """A column's rows, and one for each bare device: 0 if it is known that no pod has it, else NaN."""
        spare = f"(({self.scope.metric('gpu_allocated')} == 0) and on ({DEVICE}) ({self._pods} == 0))"
        free = f"({self.bare} * 0 and on ({DEVICE}) {spare})"
        return f"{expr} or {free} or ({self.bare} * NaN)"

    def or_anybody(self, expr: str) -> str:
        """A column's rows, and for each bare device the processes there, whosever they are."""
        anybody = f"(sum by ({DEVICE}) ({self.scope.metric('processes')}) and on ({DEVICE}) {self.bare})"
        return f"{expr} or {anybody} or ({self.bare} * NaN)"

    @property
    def _pods(self) -> str:
        return self.scope.metric("processes", 'owner="pod"')

    def _counted(self, rows: str) -> str:
        return f"({rows} and on ({DEVICE}) {self._pods})"
