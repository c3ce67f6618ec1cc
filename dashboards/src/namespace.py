"""Namespace and pod: what a team was given, what it uses, and what its quota says.

Options come in, the dashboard goes out. What kube-state-metrics would tell is optional here, and a panel that
needs it says so when it is not there.
"""

from __future__ import annotations

from dashboards.src.frame import Dashboard, Options, Placed, Row
from dashboards.src.panels import BAD, BUSY, DOUBT, WARN, Column, Panel, Query, grid, lines, tiles
from dashboards.src.promql import (
    DEVICE,
    HELD,
    NODE,
    UUID,
    WORKLOAD,
    Held,
    or_unknown,
    or_unknown_for,
)
from dashboards.src.promql import OF_PODS as THESE
from dashboards.src.shared import IDENTITY, PLACE, WHO, alerts, device_map, findings

NOTHING = "Nothing was collected on these pods in this time."
POD = "{{cluster}} {{namespace}}/{{pod}}"
CONTAINER = f"{POD} {{{{container}}}} on {{{{node}}}} GPU {{{{gpu}}}} {{{{gi}}}}"
RESOURCE = "cluster, namespace, resource"
QUOTA = 'cluster=~"$cluster", namespace=~"$namespace", resource=~"requests[.]nvidia[.]com/.+"'
REQUESTS = 'cluster=~"$cluster", namespace=~"$namespace", resource=~"nvidia_com_.+"'
NO_QUOTA = "No GPU quota is known: there is none, or kube-state-metrics is not in this data source."
HOLDINGS = Held(THESE)


def answer() -> Panel:
    """Devices of these pods by what they have to do with them."""
    state = f"({HOLDINGS.state})"
    known = f"sum({THESE.metric('gpu_allocated')}) * 0"
    unclear = f"{HOLDINGS.rows} unless on ({HELD}) ({state} >= 0)"

    def count(what: str) -> str:
        return or_unknown(f"count({state} {what}) or {known}")

    return tiles(
        "Given and used",
        "Containers on devices, one for each pair. Given is the kubelet's word, used means that a process "
        "can own memory there. Not known: the kubelet, NVML or the scan of /proc does not answer.",
        Query(count("== 3"), "given and used", BUSY),
        Query(count("== 2"), "given, no process", WARN),
        Query(count("== 1"), "used, not given", WARN),
        Query(or_unknown(f"count({unclear}) or count({HOLDINGS.rows}) * 0 or {known}"), "not known", DOUBT),
    )


def wrong() -> Panel:
    """Findings about these pods."""
    judged = f"count({THESE.metric('findings', CLEAR)}) * 0"
    found = f"sum({THESE.metric('findings', NAMED, workload=True)})"
    here = f"{THESE.metric('finding_undetermined')} and on ({UUID}) {HOLDINGS.rows}"
    everywhere = f"{THESE.metric('finding_undetermined', NODEWIDE)} and on ({NODE}) {HOLDINGS.rows}"
    opened = f"count({here} or {everywhere})"
    silent = f"count({HOLDINGS.rows}) * 0"
    return tiles(
        "What is wrong",
        "Active findings that name these pods. Not judged: kinds of findings on their GPUs for which "
        "evidence is missing.",
        Query(or_unknown(f"{found} or {judged}"), "findings", BAD),
        Query(or_unknown(f"{opened} or {silent}"), "kinds not judged", DOUBT),
    )


CLEAR = 'finding="used_not_allocated", kind=""'
NODEWIDE = 'uuid=""'


def sizes() -> Panel:
    """GPU memory of these pods."""
    memory = f"sum({THESE.metric('workload_memory_bytes', workload=True)})"
    peak = f"sum(max_over_time({THESE.metric('workload_memory_bytes', workload=True)}[1d]))"
    return tiles(
        "GPU memory",
        "Memory of the processes of these pods now, and the sum of each container's greatest in a day. A "
        "container of which one process tells no size is not in it.",
        Query(or_unknown(memory), "now"),
        Query(or_unknown(peak), "most in a day"),
        unit="bytes",
    )


def quota() -> Panel:
    """Quota against what is given and used."""
    hard, used = (
        f'max by ({RESOURCE}) (kube_resourcequota{{{QUOTA}, type="{kind}"}})' for kind in ("hard", "used")
    )
    given = THESE.metric("allocation_info", workload=True)
    working = f"({given} and on ({HELD}) ({HOLDINGS.using} > 0))"

    def by_resource(rows: str) -> str:
        return f"sum by ({RESOURCE}) (label_replace({rows}, {RENAMED}))"

    known = f"({hard} * 0 and on (cluster) {THESE.metric('gpu_allocated')})"
    return grid(
        "Quota against use",
        "Quota and what is booked against it come from kube-state-metrics. Given: devices that the kubelet "
        "gave, once for each container. In use: of those, with a process. Booked and not given: pods that "
        "wait. Given and not in use: what idles.",
        (
            hard,
            or_unknown_for(used, hard),
            or_unknown_for(f"({by_resource(given)} and on ({RESOURCE}) {hard}) or {known}", hard),
            or_unknown_for(f"({by_resource(working)} and on ({RESOURCE}) {hard}) or {known}", hard),
        ),
        (
            Column("cluster", "Cluster"),
            WHO[0],
            Column("resource", "Resource"),
            Column("A", "Quota"),
            Column("B", "Booked"),
            Column("C", "Given"),
            Column("D", "In use"),
        ),
        NO_QUOTA,
    )


RENAMED = '"resource", "requests.$1", "resource", "(.+)"'


def requests() -> Panel:
    """Requested, given and used over time, by namespace."""
    wanted = f"sum by (cluster, namespace) (kube_pod_container_resource_requests{{{REQUESTS}}})"
    using = f"count by (cluster, namespace) ({HOLDINGS.using} > 0)"
    return lines(
        "Requested, given, in use",
        "Requested comes from kube-state-metrics and has no line without it. Given: devices that the kubelet "
        "gave, once for each container. In use: devices with a process.",
        Query(wanted, "{{cluster}} {{namespace}} requested"),
        Query(f"count by (cluster, namespace) ({HOLDINGS.given})", "{{cluster}} {{namespace}} given"),
        Query(using, "{{cluster}} {{namespace}} in use"),
        unit="short",
        nothing=NOTHING,
    )


def idle() -> Panel:
    """Devices that these pods were given, and how long nothing ran there."""
    active = f"time() - max by ({DEVICE}) ({THESE.metric('gpu_last_active_timestamp_seconds')})"
    given = HOLDINGS.given
    since = f"({given}) * on ({DEVICE}) group_left () ({active})"
    return grid(
        "Given, and idle for how long",
        "Time since a kernel last ran on the device, for each container that was given it; on a shared "
        "device by whomever. MIG devices do not tell it. Processes: 0 means that nobody is even waiting "
        "there.",
        (or_unknown_for(since, given), f"({HOLDINGS.processes}) and on ({HELD}) ({given})"),
        (
            *WHO,
            Column("A", "Idle for", "s"),
            Column("B", "Processes"),
            *PLACE,
            *IDENTITY,
        ),
        "No device was given to these pods, or the kubelet does not answer.",
        sort=("Idle for", True),
    )


def use() -> tuple[Panel, ...]:
    """Memory, work and processes of these pods over time."""
    memory = THESE.metric("workload_memory_bytes", workload=True)
    own = THESE.metric("gpu_utilization_ratio", NAMED, workload=True)
    busy = THESE.metric("process_sm_utilization_ratio", workload=True)
    count = THESE.metric("workload_processes", workload=True)
    pods = f"sum by ({WORKLOAD})"
    return (
        lines(
            "Memory",
            "GPU memory of each container on each device. A line breaks off while one of the processes tells "
            "no size.",
            Query(f"max by ({HELD}) ({memory})", CONTAINER),
            unit="bytes",
            nothing=NOTHING,
            stacked=True,
        ),
        lines(
            "Memory growth",
            "Slope over half an hour. A line that stays above 0 for hours is a leak, or a cache that fills.",
            Query(f"sum by ({WORKLOAD}) (deriv({memory}[30m]))", POD),
            unit="binBps",
            nothing=NOTHING,
            least=None,
        ),
        lines(
            "Utilisation of GPUs that a pod has to itself",
            "Share of time in which a kernel ran on a GPU that exactly one pod has. Shared GPUs and MIG "
            "devices are not here: see the next panel.",
            Query(
                f"max by (cluster, node, gpu, uuid, namespace, pod) ({own})",
                f"{POD} on {{{{node}}}} GPU {{{{gpu}}}}",
            ),
            unit="percentunit",
            nothing="No GPU that one pod has to itself told its utilisation in this time.",
            most=1,
        ),
        lines(
            "GPU time by pod",
            "Sum over the pod's processes of the share in which each kept the multiprocessors busy: 2 is two "
            "GPUs full. MIG devices do not tell it.",
            Query(f"{pods} ({busy})", POD),
            unit="percentunit",
            nothing="No process told its utilisation in this time.",
        ),
        lines(
            "Processes",
            "Processes that can own GPU memory, and the mean of the last 24 hours (dashed).",
            Query(f"{pods} ({count})", POD),
            Query(f"{pods} (avg_over_time({count}[1d]))", f"{POD} day"),
            unit="short",
            nothing=NOTHING,
            dashed="/ day$/",
        ),
    )


NAMED = 'pod!=""'


def build(options: Options) -> Dashboard:
    """The dashboard."""
    memory, growth, owned, busy, count = use()
    return Dashboard(
        "namespace",
        "GPU namespace and pod",
        "What the pods of a namespace were given and use, what is wrong with that, and their quota. Made for "
        "who owns the pods; the links lead to the node.",
        ("job", "cluster", "namespace", "pod"),
        (
            Row("Now", (Placed(answer(), 10, 6), Placed(wrong(), 6, 6), Placed(sizes(), 8, 6))),
            Row(
                "What is wrong",
                (
                    Placed(findings(THESE, options, "Findings about these pods", workload=True), 16, 8),
                    Placed(alerts('namespace=~"$namespace"', 'pod=~"$pod|"'), 8, 8),
                ),
            ),
            Row("Where", (Placed(device_map(THESE, whole=False), 24, 9),)),
            Row("Use", (*(Placed(one, 12, 8) for one in (memory, growth, owned, busy, count)),)),
            Row(
                "Given and wanted",
                (Placed(idle(), 24, 8), Placed(quota(), 12, 8), Placed(requests(), 12, 8)),
            ),
        ),
    )
