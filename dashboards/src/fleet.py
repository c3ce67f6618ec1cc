"""The fleet: the four questions over all nodes, what is wrong where, and how it has gone.

Options come in, the dashboard goes out. It must name the nodes of which nothing is known.
"""

from __future__ import annotations

from dashboards.src.frame import Dashboard, Options, Placed, Row
from dashboards.src.panels import BAD, DOUBT, WARN, Column, Panel, Query, at_least, grid, lines, states, tiles
from dashboards.src.promql import (
    DEVICE,
    GPU,
    NODE,
    UUID,
    devices,
    or_unknown,
    or_unknown_for,
    silent,
    targets,
)
from dashboards.src.promql import OF_FLEET as ALL
from dashboards.src.shared import ANSWER, COUNTED, TO_NODE, alerts, findings, not_judged, questions

NOTHING = "Nothing was collected in this time."
IN_USE = f"clamp_max(sum by ({DEVICE}) ({ALL.metric('processes')}), 1)"
ALIVE = f"count({ALL.own('cycle_duration_seconds')})"


def collection() -> Panel:
    """Whether the numbers of this page are to be had at all."""
    undetermined = f"count({ALL.metric('finding_undetermined')})"
    return tiles(
        "Is anything unseen?",
        "Targets are exporters that Prometheus scrapes. Silent: down, or serving only what they know of "
        "themselves because their cycle is stuck. Kinds not judged: rows of the table Not judged.",
        Query(or_unknown(f"count({targets(ALL)} == 1) or count({targets(ALL)}) * 0"), "targets up"),
        Query(or_unknown(f"count({silent(ALL)}) or count({targets(ALL)}) * 0"), "silent targets", BAD),
        Query(or_unknown(f"sum({ALL.own('source_up')} == bool 0)"), "sources that failed", WARN),
        Query(or_unknown(f"{undetermined} or {ALIVE} * 0"), "kinds not judged", DOUBT),
    )


def nodes() -> Panel:
    """One row for each node, with a word where something is not known."""
    rows = f"(max by ({NODE}) ({targets(ALL)}) ^ 0)"
    answers = f"({rows} unless on ({NODE}) {silent(ALL)}) or ({silent(ALL)} * 0)"
    undetermined = f"count by ({NODE}) ({ALL.metric('finding_undetermined')})"
    alive = f"max by ({NODE}) ({ALL.own('cycle_duration_seconds')} * 0)"
    used, total = (
        f"sum by ({NODE}) ({ALL.metric(f'gpu_memory_{part}_bytes')})" for part in ("used", "total")
    )
    values = (
        f"count by ({NODE}) (count by ({UUID}) ({ALL.metric('gpu_info')}))",
        f"sum by ({NODE}) ({ALL.metric('gpu_allocated')})",
        f"sum by ({NODE}) ({IN_USE})",
        f"sum by ({NODE}) ({ALL.metric('findings')})",
        f"{undetermined} or {alive}",
        f"sum by ({NODE}) ({ALL.metric('gpu_memory_orphaned_bytes')})",
        f"{used} / {total}",
        f"max by ({NODE}) ({ALL.metric('gpu_temperature_celsius')})",
    )
    return grid(
        "Nodes",
        "Every node that is scraped. Devices are whole GPUs and MIG devices. Findings and orphaned memory "
        "are what could be judged: see the column Not judged.",
        (answers, *(or_unknown_for(value, rows) for value in values)),
        (
            Column("cluster", "Cluster"),
            Column("node", "Node", link=TO_NODE),
            Column("A", "Answers", mappings=(ANSWER,)),
            Column("B", "GPUs"),
            Column("C", "Devices given"),
            Column("D", "Devices in use"),
            Column("E", "Findings", mappings=(at_least(1, BAD),)),
            Column("F", "Not judged", mappings=(at_least(1, DOUBT),)),
            Column("G", "Orphaned memory", "bytes", (at_least(1, BAD),)),
            Column("H", "Memory used", "percentunit"),
            Column("I", "Hottest GPU", "celsius"),
        ),
        "No exporter is scraped, or none of the nodes that are chosen.",
        sort=("Findings", True),
    )


def timeline() -> Panel:
    """Findings of the fleet over time, and when they could not be judged."""
    found = f"sum by (finding) ({ALL.metric('findings')})"
    undetermined = f"max by (finding) ({ALL.metric('finding_undetermined')}) * -1"
    return states(
        "Findings over time",
        "Number of active findings in the fleet. Not judged: none is active, and somewhere one of its kinds "
        "could not be judged. A gap: no exporter said anything.",
        Query(f"({found} > 0) or ({undetermined}) or {found}", "{{finding}}"),
        mappings=COUNTED,
        nothing=NOTHING,
    )


def trends() -> tuple[Panel, ...]:
    """Supply and use, memory, and what is lost."""
    utilization = f"max by ({GPU}) ({ALL.metric('gpu_utilization_ratio')})"
    memory = [
        Query(f"sum({ALL.metric(f'gpu_memory_{part}_bytes')})", part)
        for part in ("attributed", "unattributed", "baseline", "reserved", "total", "used")
    ]
    causes = f"sum by (cause) ({ALL.metric('gpu_memory_orphaned_bytes')})"
    return (
        lines(
            "Devices: known, given, in use, computing",
            "Devices are whole GPUs and MIG devices. Computing: GPUs with a utilisation above 0, which MIG "
            "does not tell. Given and not in use is what idles; in use and not given is what the findings "
            "judge.",
            Query(f"count({devices(ALL)})", "known"),
            Query(f"sum({ALL.metric('gpu_allocated')})", "given"),
            Query(f"sum({IN_USE})", "in use"),
            Query(f"sum({utilization} > bool 0)", "computing"),
            unit="short",
            nothing=NOTHING,
        ),
        lines(
            "GPU memory",
            "Attributed: of known processes. Unattributed: in use, and neither a process nor the driver's "
            "baseline explains it. A part that cannot be judged on a GPU is not in its sum.",
            *memory,
            unit="bytes",
            nothing=NOTHING,
            stacked=True,
            dashed="/^(total|used)$/",
        ),
        lines(
            "Orphaned memory by cause",
            "Phantom: rows of processes that do not exist. Orphan: processes of pods that are gone or over. "
            "Unattributed: no process accounts for it. A line that breaks off is not a line at 0.",
            Query(causes, "{{cause}}"),
            unit="bytes",
            nothing="Whether memory is orphaned was not known in this time.",
            stacked=True,
        ),
        lines(
            "Utilisation by node",
            "Mean of the GPUs that tell it; a node with MIG devices only has no line.",
            Query(f"avg by ({NODE}) ({utilization})", "{{cluster}} {{node}}"),
            unit="percentunit",
            nothing="No GPU told its utilisation in this time.",
            most=1,
        ),
    )


def build(options: Options) -> Dashboard:
    """The dashboard."""
    known, memory, orphaned, utilization = trends()
    return Dashboard(
        "fleet",
        "GPU fleet",
        "Who uses each GPU, which pod that is, whether it is the pod that the GPU was given to, and what "
        "memory is held that nobody owns: over all nodes. What could not be seen is counted, never left out.",
        ("job", "cluster", "node"),
        (
            Row("Now", (*(Placed(panel, 6, 6) for panel in questions(ALL)),)),
            Row(
                "What is wrong",
                (
                    Placed(findings(ALL, options, "Findings"), 24, 9),
                    Placed(collection(), 6, 8),
                    Placed(not_judged(ALL), 10, 8),
                    Placed(alerts('node=~"$node|"'), 8, 8),
                ),
            ),
            Row("Where", (Placed(nodes(), 24, 9), Placed(timeline(), 24, 8))),
            Row(
                "Trend",
                (
                    Placed(known, 12, 8),
                    Placed(memory, 12, 8),
                    Placed(orphaned, 12, 8),
                    Placed(utilization, 12, 8),
                ),
            ),
        ),
    )
