"""Node and GPU forensics: who is on a GPU of this node, since when, and what is wrong with that.

Options come in, the dashboard goes out. It must stay useful while NVML is silent: rows remain, and say so.
"""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import SpecialValueMatch

from dashboards.src.frame import Dashboard, Options, Placed, Row
from dashboards.src.hardware import LABEL, components, counts, instances, inventory, per_gpu, telemetry
from dashboards.src.panels import (
    BUSY,
    CALM,
    PLAIN,
    WARN,
    Column,
    Panel,
    Query,
    grid,
    lines,
    special,
    states,
    words,
)
from dashboards.src.promql import (
    DEVICE,
    GPU,
    HELD,
    NODE,
    REMEMBERED,
    UUID,
    or_unknown_for,
    with_silent,
)
from dashboards.src.promql import ON_GPU as HERE
from dashboards.src.shared import (
    COUNTED,
    IDENTITY,
    PLACE,
    WHO,
    alerts,
    device_map,
    findings,
    not_judged,
    questions,
)

NOTHING = "Nothing was collected on these GPUs in this time."
PART = f"{LABEL} {{{{gi}}}}"
PROCESS = f"{DEVICE}, namespace, pod, container, pid"
OWNERS = ("pod", "host", "system", "orphan", "unknown")


# --- processes ----------------------------------------------------------------------------------------------


# NVML has no figure for a process that it does not list, nor for some that it does.
UNTOLD = special(SpecialValueMatch.NA_N, "not told", PLAIN)


def processes() -> Panel:
    """Every process with a GPU, by whatever it was seen."""
    rows = f"max by ({PROCESS}) ({HERE.metric('process_info')})"
    info = f"max by ({PROCESS}, comm, state, owner, visibility, pod_uid) ({HERE.metric('process_info')})"
    started = f"max by ({PROCESS}) ({HERE.metric('process_start_time_seconds')}) * 1000"
    values = (
        f"max by ({PROCESS}) ({HERE.metric('process_memory_bytes')})",
        f"max by ({PROCESS}) ({HERE.metric('process_sm_utilization_ratio')})",
        started,
    )
    return grid(
        "Processes",
        "Seen by: nvml lists it, holder has the device file open, or both. Owner: pod, host, system (known "
        "GPU infrastructure), orphan (its pod is gone), unknown. Memory and utilisation are NVML's word; "
        "not told where it does not list the process or has no figure.",
        (with_silent(info, HERE, "comm"), *(or_unknown_for(value, rows) for value in values)),
        (
            *PLACE,
            Column("pid", "Pid"),
            Column("comm", "Command"),
            *WHO,
            Column("owner", "Owner"),
            Column("state", "State"),
            Column("visibility", "Seen by"),
            Column("B", "Memory", "bytes", (UNTOLD,)),
            Column("C", "Busy", "percentunit", (UNTOLD,)),
            Column("D", "Started", "dateTimeFromNow"),
            *IDENTITY,
            Column("pod_uid", "Pod UID"),
        ),
        "No process has a row: none was seen on these GPUs, /proc or NVML could not be read, or process "
        "series are off.",
        sort=("Memory", True),
    )


def holders() -> Panel:
    """Open device files by owner, beside the processes that NVML lists for the same GPU."""
    files = f"max by ({NODE}, device_file) ({HERE.own('device_holders')} ^ 0)"
    named = (
        f"max by ({UUID}, device_file) (label_replace({HERE.metric('gpu_info')}, "
        '"device_file", "nvidia$1", "minor", "(.+)"))'
    )
    listed = f"count by ({UUID}) ({LISTED}) or (max by ({UUID}) ({HERE.metric('processes')}) * 0)"
    rows = f"max by ({NODE}, device_file) ({HERE.own('device_holders', GPU_FILE)} ^ 0)"
    by_owner = (
        f"sum by ({NODE}, device_file) ({HERE.own('device_holders', f'owner={chr(34)}{owner}{chr(34)}')})"
        for owner in OWNERS
    )
    return grid(
        "Holders of device files, and what NVML lists",
        "Open descriptors and mappings of each device file by owner of the process, from a scan of /proc; "
        "beside them the processes that NVML lists on that GPU. A file that is held and a GPU on which NVML "
        "lists nobody: see the findings hidden_holder and phantom_process.",
        (
            *(f"{held} or ({files} * 0)" for held in by_owner),
            or_unknown_for(
                f"sum by ({NODE}, device_file) ({named} * on ({UUID}) group_left () ({listed}))", rows
            ),
        ),
        (
            *PLACE[:2],
            Column("device_file", "Device file"),
            Column("F", "NVML lists"),
            Column("A", "Held by pods"),
            Column("B", "By the host"),
            Column("C", "By infrastructure"),
            Column("D", "By orphans"),
            Column("E", "By unknown"),
        ),
        "No scan of /proc: who holds device files is unknown.",
    )


LISTED = HERE.metric("process_info", 'visibility=~"nvml|both"')
GPU_FILE = 'device_file=~"nvidia[0-9]+"'


def surge() -> Panel:
    """Processes on each device against what is usual there."""
    count = HERE.metric("processes")
    return lines(
        "Processes against their day",
        "Processes that can own memory, on each device, and the mean of the last 24 hours (dashed). A count "
        "far above its day is a surge: workers that were left behind, or somebody new.",
        Query(f"sum by ({DEVICE}) ({count})", PART),
        Query(f"sum by ({DEVICE}) (avg_over_time({count}[1d]))", f"{PART} day"),
        unit="short",
        nothing="Processes could not be counted in this time.",
        dashed="/ day$/",
    )


def owners() -> Panel:
    """Processes by whose they are."""
    return lines(
        "Processes by owner",
        "Pod, host, system (known GPU infrastructure), orphan (its pod is gone), unknown.",
        Query(f"sum by (owner) ({HERE.metric('processes')})", "{{owner}}"),
        unit="short",
        nothing="Processes could not be counted in this time.",
        stacked=True,
    )


# --- over time ----------------------------------------------------------------------------------------------


def timeline() -> Panel:
    """Findings of each device over time, and when they could not be judged."""
    place = "cluster, node, uuid, gi"
    found = f"sum by ({place}, gpu) ({HERE.of_node('findings')})"
    known = f"topk by ({UUID}) (1, max by ({GPU}) (last_over_time({HERE.metric('gpu_info')}[{REMEMBERED}])))"
    opened = f"max by ({place}) ({HERE.of_node('finding_undetermined')}) * -1"
    rows = (
        f"({found} > 0) or on ({place}) (({opened}) * on ({UUID}) group_left (gpu) {known}) "
        f"or on ({place}) ({opened}) or on ({place}) {found}"
    )
    device = f'label_replace({rows}, "device", "whole node", "uuid", "")'
    device = f'label_replace({device}, "device", "GPU $1", "gpu", "(.+)")'
    return states(
        "Findings over time",
        "Number of active findings on each device. Not judged: none is active, and one of its kinds could "
        "not be judged. A gap: the exporter said nothing.",
        Query(device, "{{cluster}} {{node}} {{device}} {{gi}}"),
        mappings=COUNTED,
        nothing="Nothing was judged in this time.",
    )


def memory() -> tuple[Panel, ...]:
    """Where memory is, how it grows, and what is lost."""
    sizes = HERE.metric("workload_memory_bytes")
    free = per_gpu("gpu_memory_unattributed_bytes")
    orphaned = HERE.metric("gpu_memory_orphaned_bytes")
    container = f"{PART} {{{{namespace}}}}/{{{{pod}}}} {{{{container}}}}"
    return (
        lines(
            "Memory by container",
            "Memory of each container's processes, and what no process accounts for. Dashed: the memory that "
            "the GPUs have. A container breaks off while one of its processes tells no size.",
            Query(f"max by ({HELD}) ({sizes})", container),
            Query(f"{free}", f"{LABEL} unattributed"),
            Query(per_gpu("gpu_memory_total_bytes"), f"{LABEL} total"),
            unit="bytes",
            nothing=NOTHING,
            stacked=True,
            dashed="/ total$/",
        ),
        lines(
            "Memory growth by container",
            "Slope over half an hour. A line that stays above 0 for hours is a leak, or a cache that fills.",
            Query(f"max by ({HELD}) (deriv({sizes}[30m]))", container),
            unit="binBps",
            nothing=NOTHING,
            least=None,
        ),
        lines(
            "Orphaned memory by cause",
            "Phantom: rows of processes that do not exist. Orphan: processes of pods that are gone or over. "
            "Unattributed: no process accounts for it. A line that breaks off is not a line at 0.",
            Query(f"sum by ({DEVICE}, cause) ({orphaned})", f"{PART} {{{{cause}}}}"),
            unit="bytes",
            nothing="Whether memory is orphaned was not known in this time.",
            stacked=True,
        ),
    )


def allocation() -> Panel:
    """Whether each device was given to somebody, over time."""
    given = f"max by ({DEVICE}) ({HERE.metric('gpu_allocated')})"
    active = f"clamp_max(sum by ({DEVICE}) ({HERE.metric('processes')}), 1)"
    return states(
        "Given and in use over time",
        "Given is the kubelet's word; in use means that a process can own memory there. A gap: one of the "
        "two was not known.",
        Query(f"2 * {given} + {active}", PART),
        mappings=(
            words(
                {
                    3: ("given, in use", CALM),
                    2: ("given, not in use", BUSY),
                    1: ("in use, not given", WARN),
                    0: ("free", PLAIN),
                }
            ),
        ),
        nothing="Allocation or processes were not known in this time.",
    )


def build(options: Options) -> Dashboard:
    """The dashboard."""
    by_container, growth, orphaned = memory()
    utilization, activity, temperature, power, clocks = telemetry()
    return Dashboard(
        "node",
        "GPU node forensics",
        "Everything about the GPUs of a node: findings with since and evidence, who is on which device, "
        "every process, memory and where it went, and what the node says about its GPUs.",
        ("job", "cluster", "node", "gpu"),
        (
            Row("Now", (*(Placed(panel, 6, 6) for panel in questions(HERE)),)),
            Row(
                "What is wrong",
                (
                    Placed(findings(HERE, options, "Findings"), 24, 8),
                    Placed(timeline(), 24, 8),
                    Placed(not_judged(HERE), 16, 7),
                    Placed(alerts('node=~"$node|"'), 8, 7),
                ),
            ),
            Row(
                "Who is there",
                (
                    Placed(device_map(HERE, whole=True), 24, 9),
                    Placed(processes(), 24, 10),
                    Placed(holders(), 14, 8),
                    Placed(owners(), 10, 8),
                    Placed(surge(), 12, 8),
                    Placed(allocation(), 12, 8),
                ),
            ),
            Row("Memory", (Placed(by_container, 24, 9), Placed(growth, 12, 8), Placed(orphaned, 12, 8))),
            Row(
                "GPUs",
                (
                    Placed(inventory(), 24, 8),
                    Placed(instances(), 24, 8),
                    Placed(counts(), 12, 6),
                    Placed(components(), 12, 6),
                ),
            ),
            Row(
                "Hardware",
                (
                    Placed(utilization, 12, 8),
                    Placed(activity, 12, 8),
                    Placed(temperature, 12, 8),
                    Placed(power, 12, 8),
                    Placed(clocks, 24, 7),
                ),
            ),
        ),
        span="now-3h",
    )
