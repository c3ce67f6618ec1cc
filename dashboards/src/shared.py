"""Panels that several dashboards have: the four questions, findings, what is not judged, who is where.

A scope and the builder's options come in, panels go out. Nothing here may say "none" where nobody looked:
each number stands beside the number of devices of which it is not known, and each table has a row for what is
silent.
"""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import SpecialValueMatch

from dashboards.src.frame import Options, address, cell
from dashboards.src.panels import (
    BAD,
    BUSY,
    CALM,
    DOUBT,
    PLAIN,
    WARN,
    Column,
    Panel,
    Query,
    at_least,
    grid,
    special,
    tiles,
    words,
)
from dashboards.src.promql import (
    ABSENT,
    DEVICE,
    GPU,
    HELD,
    MEMORY,
    SILENT,
    UUID,
    WORKLOAD,
    Held,
    Scope,
    count_unknown,
    counted,
    devices,
    gpus,
    judged,
    known_orphans,
    or_unknown,
    or_unknown_for,
    with_silent,
)
from exporter.diagnosis.table import RULES

FINDING = f"finding, kind, {DEVICE}, namespace, pod, container, pid, comm, pod_uid, explained_by"
NAMED = 'pod!=""'
MISPLACED = "used_not_allocated|exclusive_gpu_shared"
# What a container has to do with a device.
STATES = words(
    {
        3: ("given and used", CALM),
        2: ("given, no process", BUSY),
        1: ("used, not given", WARN),
        0: ("no pod", PLAIN),
    }
)
ANSWER = words({1: ("yes", CALM), 0: ("no", BAD)})
# Of findings and of what is not judged, in a state over time.
COUNTED = (words({-1: ("not judged", DOUBT), 0: ("none", CALM)}), at_least(1, BAD))

TO_NODE = ("Forensics of this node", address("node", node="${__value.raw}"))
TO_GPU = ("Forensics of this GPU", address("node", node=cell("Node"), gpu=cell("UUID")))
TO_POD = ("This pod", address("namespace", namespace=cell("Namespace"), pod="${__value.raw}"))
TO_NAMESPACE = ("This namespace", address("namespace", namespace="${__value.raw}"))

PLACE = (
    Column("cluster", "Cluster"),
    Column("node", "Node", link=TO_NODE),
    Column("gpu", "GPU", link=TO_GPU, width=60),
    Column("gi", "GI", width=50),
)
WHO = (
    Column("namespace", "Namespace", link=TO_NAMESPACE),
    Column("pod", "Pod", link=TO_POD),
    Column("container", "Container"),
)
IDENTITY = (Column("uuid", "UUID"), Column("mig_uuid", "MIG UUID"))


def owned(scope: Scope, owners: str) -> str:
    """Processes by device of these owners."""
    return scope.metric("processes", f'owner=~"{owners}"')


def found(scope: Scope, names: str) -> str:
    """Counts of these findings by device."""
    return scope.metric("findings", f'finding=~"{names}"')


# --- the four questions -------------------------------------------------------------------------------------


def questions(scope: Scope) -> tuple[Panel, ...]:
    """The top row: each answer beside what could not be seen."""
    return (_users(scope), _pods(scope), _rightful(scope), _owned(scope))


def _users(scope: Scope) -> Panel:
    processes = f"sum by ({DEVICE}) ({scope.metric('processes')})"
    return tiles(
        "1. Who uses the GPUs?",
        "A device is a whole GPU or a MIG device. It is in use while a process can own memory there. Outside "
        "pods: processes of the host, of pods that are gone, and of nobody known. Not seen: NVML's process "
        "list or the scan of /proc is missing, so nobody knows who is there.",
        Query(or_unknown(f"sum(clamp_max({processes}, 1))"), "devices in use", BUSY),
        Query(or_unknown(f"count({devices(scope)})"), "devices in all"),
        Query(or_unknown(f"sum({owned(scope, 'host|orphan|unknown')})"), "processes outside pods", WARN),
        Query(or_unknown(count_unknown(devices(scope), counted(scope), DEVICE)), "devices not seen", DOUBT),
    )


def _pods(scope: Scope) -> Panel:
    using = f"count(count by ({WORKLOAD}) ({scope.metric('workload_processes', NAMED)}))"
    none_using = f"sum({owned(scope, 'pod')}) * 0"
    given = f"count(count by ({WORKLOAD}) ({scope.metric('allocation_info')}))"
    allocated = scope.metric("gpu_allocated")
    return tiles(
        "2. Which pods are those?",
        "Pods with a process on a device, and pods that the kubelet gave a device. Of no known pod: the "
        "process has an owner that nothing tells. Allocation not known: the kubelet does not answer, or not "
        "yet in full after its restart.",
        Query(or_unknown(f"{using} or {none_using}"), "pods on devices", BUSY),
        Query(or_unknown(f"{given} or sum({allocated}) * 0"), "pods given a device"),
        Query(
            or_unknown(f"sum({owned(scope, 'unknown')})"),
            "processes of no known pod",
            WARN,
        ),
        Query(
            or_unknown(count_unknown(devices(scope), f"max by ({DEVICE}) ({allocated})", DEVICE)),
            "allocation not known",
            DOUBT,
        ),
    )


def _rightful(scope: Scope) -> Panel:
    return tiles(
        "3. Is it the pod that the GPU was given to?",
        "Findings used_not_allocated and exclusive_gpu_shared, not those that another finding explains. Not "
        "judged: evidence is missing, or a kind does not apply there; neither is an acquittal.",
        Query(
            or_unknown(f"sum({found(scope, 'used_not_allocated')})"),
            "on a GPU not given to it",
            BAD,
        ),
        Query(
            or_unknown(f"sum({found(scope, 'exclusive_gpu_shared')})"),
            "exclusive, yet shared",
            BAD,
        ),
        Query(or_unknown(count_unknown(gpus(scope), judged(scope, MISPLACED))), "GPUs not judged", DOUBT),
    )


def _owned(scope: Scope) -> Panel:
    orphaned = scope.metric("gpu_memory_orphaned_bytes")
    return tiles(
        "4. What memory is held that nobody owns?",
        "Memory of processes that do not exist, of pods that are gone or over, and memory that no process "
        "accounts for. At least that much: parts that are not known are not in it. Not judged: devices of "
        "which a part is not known.",
        Query(or_unknown(f"sum({orphaned})"), "orphaned", BAD, "bytes"),
        Query(
            or_unknown(f"count(sum by ({MEMORY}) ({orphaned}) > 0) or sum({orphaned}) * 0"), "devices", BAD
        ),
        Query(
            or_unknown(count_unknown(devices(scope, MEMORY), known_orphans(scope), MEMORY)),
            "not judged",
            DOUBT,
        ),
    )


# --- findings -----------------------------------------------------------------------------------------------


def with_runbooks(expr: str) -> str:
    """The rows with a label that names the runbook of the finding's alert, or of the silent exporter's."""
    for rule in RULES:
        if rule.alert:
            expr = f'label_replace({expr}, "runbook", "{rule.alert.lower()}", "finding", "{rule.finding}")'
    for text, alert in ((SILENT, "kubegpuexporterdown"), (ABSENT, "kubegpuexporterabsent")):
        expr = f'label_replace({expr}, "runbook", "{alert}", "finding", "{text}")'
    return expr


def findings(scope: Scope, options: Options, title: str, *, workload: bool = False) -> Panel:
    """Every active finding, since when, what memory it is about, and where to read on."""
    chosen = {"workload": True} if workload else {}
    named = (NAMED,) if workload else ()
    get = scope.metric if workload else scope.of_node
    since = f"max by ({FINDING}) ({get('finding_since_timestamp_seconds', *named, **chosen)})"
    size = f"max by ({FINDING}) ({get('finding_memory_bytes', *named, **chosen)})"
    runbook = f"{options.runbooks}{{}}.md"
    small = special(SpecialValueMatch.NA_N, "none, or not known", PLAIN)
    return grid(
        title,
        "Each active finding is a row, also one that another finding explains. Click the finding for its "
        "runbook, the node or GPU for forensics, the pod for its view. A target that gives no values is a "
        "row, too: then nobody knows.",
        (with_runbooks(with_silent(f"{since} * 1000", scope, "finding")), or_unknown_for(size, since)),
        (
            Column("finding", "Finding", link=("Runbook", runbook.format(cell("Runbook")))),
            Column("kind", "Kind"),
            Column("A", "Since", "dateTimeFromNow"),
            Column("B", "Memory", "bytes", (small,)),
            *PLACE,
            *WHO,
            Column("pid", "Pid"),
            Column("comm", "Command"),
            Column("explained_by", "Explained by"),
            Column("runbook", "Runbook", link=("Runbook", runbook.format("${__value.raw}"))),
            *IDENTITY,
            Column("pod_uid", "Pod UID"),
        ),
        "No finding is active where it could be judged. What could not be is counted above.",
        sort=("Since", False),
    )


def not_judged(scope: Scope) -> Panel:
    """Kinds of findings that are neither found nor clear, and why."""
    rows = (
        f"max by (cluster, node, finding, kind, uuid, gi, reason) ({scope.of_node('finding_undetermined')})"
    )
    return grid(
        "Not judged",
        "A kind of finding here could not be judged in the last cycle: it is neither clear nor resolved. The "
        "reason names the evidence that was missing. No UUID: it concerns the node, or every GPU of it.",
        (with_silent(rows, scope, "reason"),),
        (
            Column("cluster", "Cluster"),
            Column("node", "Node", link=TO_NODE),
            Column("finding", "Finding"),
            Column("kind", "Kind"),
            Column("reason", "Why"),
            Column("uuid", "UUID"),
            Column("gi", "GI", width=50),
        ),
        "Every kind that applies was judged on every target that is scraped.",
    )


# --- who is on which device ---------------------------------------------------------------------------------


NO_DEVICE = "No device is known here: NVML has shown none in the last hour, or no exporter is scraped."
NO_HOLDER = "None of these pods is known to have a device: none has, or NVML and the kubelet do not answer."


def device_map(scope: Scope, *, whole: bool) -> Panel:
    """Which container is on which device: given, using, or both. `whole`: also devices that nobody has."""
    held = Held(scope)
    columns: tuple[str, ...] = (held.state, held.processes, held.memory, held.is_given)
    if whole:
        state, processes, memory, given = columns
        columns = (held.or_free(state), held.or_anybody(processes), memory, held.or_free(given))
    return grid(
        "Who is on which GPU",
        "One row for each container and device that it was given, uses, or both. Given is the kubelet's "
        "word, use is a process that can own memory of the device. On a shared GPU, and after an index mix-"
        "up, the two differ: what is wrong with that is said by the findings, which also wait for the "
        "kubelet.",
        columns,
        (
            Column("A", "State", mappings=(STATES,)),
            *PLACE,
            *WHO,
            Column("D", "Given", mappings=(words({1: ("yes", PLAIN), 0: ("no", PLAIN)}),), width=80),
            Column("B", "Processes", width=90),
            Column("C", "Memory", "bytes"),
            *IDENTITY,
        ),
        NO_DEVICE if whole else NO_HOLDER,
    )


def alerts(*matchers: str) -> Panel:
    """What fires, as Prometheus says it."""
    firing = ", ".join(
        ('alertname=~"GPU.*|KubeGPU.*"', 'alertstate="firing"', 'cluster=~"$cluster"', *matchers)
    )
    keys = "alertname, severity, cluster, node, uuid, namespace, pod"
    return grid(
        "Alerts that fire",
        "The alerts of this project that fire in this data source. The findings say more, and sooner.",
        (f"max by ({keys}) (ALERTS{{{firing}}})",),
        (
            Column("alertname", "Alert"),
            Column("severity", "Severity"),
            Column("cluster", "Cluster"),
            Column("node", "Node", link=TO_NODE),
            Column("namespace", "Namespace"),
            Column("pod", "Pod"),
            Column("uuid", "UUID"),
        ),
        "No alert of this project fires, or its rules are not loaded in this data source.",
    )


__all__ = [
    "ANSWER",
    "COUNTED",
    "FINDING",
    "GPU",
    "HELD",
    "IDENTITY",
    "PLACE",
    "STATES",
    "UUID",
    "WHO",
    "alerts",
    "device_map",
    "findings",
    "not_judged",
    "questions",
]
