"""Exporter health: whether what the other dashboards show is to be believed.

Options come in, the dashboard goes out. It must show an exporter that is down, stuck, blind or misread by the
scrape configuration as such, and never by an empty panel alone.
"""

from __future__ import annotations

from dashboards.src.frame import Dashboard, Options, Placed, Row
from dashboards.src.panels import (
    BAD,
    CALM,
    DOUBT,
    WARN,
    Column,
    Panel,
    Query,
    at_least,
    grid,
    lines,
    states,
    tiles,
    words,
)
from dashboards.src.promql import NODE, or_unknown, or_unknown_for, silent, targets, with_silent
from dashboards.src.promql import OF_FLEET as ALL
from dashboards.src.shared import ANSWER, TO_NODE, alerts, not_judged

NOTHING = "No exporter said anything in this time."
SITE = "{{cluster}} {{node}}"
SOURCE = f"{SITE} {{{{source}}}}"
# Of the container, from the kubelet's cAdvisor: the exporter does not export them itself.
AGENT = 'cluster=~"$cluster", container="kubegpu-exporter"'


def answering() -> Panel:
    """Targets and their state."""
    up = targets(ALL)
    return tiles(
        "Targets",
        "Exporters that Prometheus scrapes. Silent: down, or serving only what they know of themselves "
        "because their cycle is stuck. Simulated: a demo, all of it made up.",
        Query(or_unknown(f"count({up} == 1) or count({up}) * 0"), "up"),
        Query(or_unknown(f"count({silent(ALL)}) or count({up}) * 0"), "silent", BAD),
        Query(or_unknown(f"count({SIMULATED}) or count({BUILD}) * 0"), "simulated", WARN),
    )


BUILD = ALL.own("exporter_build_info")
SIMULATED = ALL.own("exporter_build_info", 'simulated="true"')


def blindness() -> Panel:
    """What could not be seen or told."""
    alive = f"count({ALL.own('cycle_duration_seconds')}) * 0"
    return tiles(
        "What is missing",
        "Sources that failed or are paused, kinds of findings that could not be judged, processes without "
        "series because the limit was reached, and processes that could not be read.",
        Query(or_unknown(f"sum({ALL.own('source_up')} == bool 0)"), "sources down", BAD),
        Query(or_unknown(f"sum({ALL.own('source_paused')})"), "paused", WARN),
        Query(or_unknown(f"count({ALL.own('finding_undetermined')}) or {alive}"), "kinds not judged", DOUBT),
        Query(or_unknown(f"sum({ALL.own('process_series_dropped')})"), "series dropped", WARN),
        Query(or_unknown(f"sum({ALL.own('processes_unreadable')})"), "processes unreadable", WARN),
    )


def rewritten() -> Panel:
    """Whether the scrape configuration took the pods' names away."""
    names = "|".join(
        f"kubegpu_{name}" for name in ("allocation_info", "process_info", "gpu_memory_used_bytes")
    )
    bad = f'count({{__name__=~"{names}", exported_pod!="", {ALL.target}}})'
    return tiles(
        "Labels rewritten",
        "Series of ours with exported_pod: the scrape configuration has put the exporter's own pod in the "
        "place of the workload's. Then every table of these dashboards names the wrong pod; see the README, "
        "Scrape it.",
        Query(or_unknown(f"{bad} or count({BUILD}) * 0"), "series", BAD),
    )


def sources() -> Panel:
    """Each source over time."""
    up, paused = (f"max by ({NODE}, source) ({ALL.own(name)})" for name in ("source_up", "source_paused"))
    return states(
        "Sources",
        "Whether each source answered. A source that is off has no line. A gap: the exporter said nothing.",
        Query(f"{up} + 2 * {paused}", SOURCE),
        mappings=(words({0: ("failed", BAD), 1: ("answers", CALM), 2: ("paused", WARN)}),),
        nothing=NOTHING,
    )


def source_lines() -> tuple[Panel, ...]:
    """Errors, times and ages of sources."""
    errors = f"sum by ({NODE}, source, reason) (rate({ALL.own('source_errors_total')}[$__rate_interval])) > 0"
    last = ALL.own("source_last_success_timestamp_seconds")
    duration = f"max by ({NODE}, source) ({ALL.own('source_duration_seconds')})"
    return (
        lines(
            "Errors by source and reason",
            "Cycles in which a source gave nothing. A reason without errors has no line.",
            Query(errors, f"{SOURCE} {{{{reason}}}}"),
            unit="cps",
            nothing="No source failed in this time, where exporters answered: see Targets.",
        ),
        lines(
            "Age of the last answer",
            "Time since each source last answered. It grows while the source fails, and has no line before "
            "its first answer.",
            Query(f"time() - max by ({NODE}, source) ({last})", SOURCE),
            unit="s",
            nothing=NOTHING,
        ),
        lines(
            "How long sources take",
            "Time that the source took in the last cycle, or that it was waited for.",
            Query(duration, SOURCE),
            unit="s",
            nothing=NOTHING,
        ),
        lines(
            "Cycle",
            "Age of the values that are served, and how long the cycle took that they come from. An age of "
            "more than 5 intervals: the cycle is stuck, and only what the exporter knows of itself is "
            "served.",
            Query(f"time() - max by ({NODE}) ({ALL.own('cycle_timestamp_seconds')})", f"{SITE} age"),
            Query(f"max by ({NODE}) ({ALL.own('cycle_duration_seconds')})", f"{SITE} duration"),
            unit="s",
            nothing=NOTHING,
        ),
    )


def blind_spots() -> tuple[Panel, ...]:
    """What did not apply, and where NVML failed or hangs."""
    keys = "finding, kind, reason"
    off = f"count by ({keys}) ({ALL.own('finding_not_applicable_info')})"
    faults = f"max by ({NODE}, uuid, gpu, call, error) ({ALL.own('nvml_faults')})"
    flight = (
        f"max by ({NODE}, call, uuid, gpu) ({ALL.own('nvml_call_in_flight_since_timestamp_seconds')}) * 1000"
    )
    where = (Column("cluster", "Cluster"), Column("node", "Node", link=TO_NODE))
    gpu = (Column("gpu", "GPU", width=60), Column("uuid", "UUID"))
    return (
        grid(
            "Not applicable",
            "Kinds of findings without meaning somewhere: the operator switched a source off, or the "
            "hardware is such. They are neither judged nor missing.",
            (off,),
            (
                Column("finding", "Finding"),
                Column("kind", "Kind"),
                Column("reason", "Why"),
                Column("A", "Devices and nodes"),
            ),
            "Every kind applies everywhere, or no exporter answers: see Targets.",
        ),
        grid(
            "NVML calls that failed",
            "Calls on one GPU that failed in the last cycle. Not supported is no failure.",
            (with_silent(faults, ALL, "error"),),
            (*where, Column("call", "Call"), Column("error", "Error"), *gpu),
            "No call on a GPU failed in the last cycle, on the nodes where NVML answers.",
        ),
        grid(
            "NVML calls that hang",
            "The call that had not returned when the cycle ended. One that stays is a driver that hangs: its "
            "GPU is named.",
            (with_silent(flight, ALL, "call"),),
            (*where, Column("call", "Call"), Column("A", "Since", "dateTimeFromNow"), *gpu),
            "No NVML call was in flight when the last cycle ended.",
        ),
    )


def scraping() -> tuple[Panel, ...]:
    """What Prometheus gets and what it costs."""
    scanned = ((f"processes_{what}", what, "") for what in ("scanned", "unreadable", "truncated"))
    return (
        lines(
            "Series by target",
            "Samples of each scrape, and those that are left after the metric relabelling of the scrape "
            "configuration (dashed).",
            Query(f"max by ({NODE}) ({targets(ALL, 'scrape_samples_scraped')})", SITE),
            Query(
                f"max by ({NODE}) ({targets(ALL, 'scrape_samples_post_metric_relabeling')})", f"{SITE} kept"
            ),
            unit="short",
            nothing="Prometheus scraped no exporter in this time.",
            dashed="/ kept$/",
        ),
        lines(
            "Duration of scrapes",
            "A scrape only hands out what the last cycle made: long ones are the network's, or a busy "
            "node's.",
            Query(f"max by ({NODE}) ({targets(ALL, 'scrape_duration_seconds')})", SITE),
            unit="s",
            nothing="Prometheus scraped no exporter in this time.",
        ),
        lines(
            "Processes scanned",
            "Processes that the last scan of /proc looked at, could not read, or did not look at in full.",
            *(Query(f"max by ({NODE}) ({ALL.own(name)})", f"{SITE} {what}") for name, what, _ in scanned),
            unit="short",
            nothing="No scan of /proc in this time.",
        ),
        lines(
            "What was left out",
            "Processes without series because the limit was reached, and entries that the exporter's memory "
            "dropped because it was full (per second).",
            Query(f"max by ({NODE}) ({ALL.own('process_series_dropped')})", f"{SITE} series dropped"),
            Query(
                f"max by ({NODE}) (rate({ALL.own('history_forgotten_total')}[$__rate_interval]))",
                f"{SITE} forgotten",
            ),
            unit="short",
            nothing=NOTHING,
        ),
        lines(
            "CPU of the agent",
            "Cores, as the kubelet's cAdvisor measured them. The exporter does not export this itself.",
            Query(
                f"sum by ({NODE}) (rate(container_cpu_usage_seconds_total{{{AGENT}}}[$__rate_interval]))",
                SITE,
            ),
            unit="short",
            nothing="cAdvisor's metrics of a container kubegpu-exporter are not in this data source.",
        ),
        lines(
            "Memory of the agent",
            "Working set, as the kubelet's cAdvisor measured it. The exporter does not export this itself.",
            Query(f"max by ({NODE}) (container_memory_working_set_bytes{{{AGENT}}})", SITE),
            unit="bytes",
            nothing="cAdvisor's metrics of a container kubegpu-exporter are not in this data source.",
        ),
    )


def inventory() -> Panel:
    """Versions by node."""
    rows = f"(max by ({NODE}) ({targets(ALL)}) ^ 0)"
    versions = f"max by ({NODE}, version, simulated) ({BUILD})"
    driver = f"max by ({NODE}, driver_version, cuda_version, nvml_version) ({ALL.own('driver_info')})"
    answers = f"({rows} unless on ({NODE}) {silent(ALL)}) or ({silent(ALL)} * 0)"
    unknown = f"sum by ({NODE}) ({ALL.own('device_ids_unrecognised')})"
    return grid(
        "Versions",
        "What runs where. No driver version: NVML does not answer. Ids not recognised: the kubelet names "
        "devices in a spelling that the exporter does not know.",
        (
            answers,
            versions,
            f"{driver} or ({rows} * NaN unless on ({NODE}) {driver})",
            or_unknown_for(unknown, rows),
        ),
        (
            Column("cluster", "Cluster"),
            Column("node", "Node", link=TO_NODE),
            Column("A", "Answers", mappings=(ANSWER,)),
            Column("version", "Exporter"),
            Column("simulated", "Simulated"),
            Column("driver_version", "Driver"),
            Column("cuda_version", "CUDA"),
            Column("nvml_version", "NVML"),
            Column("D", "Ids not recognised", mappings=(at_least(1, WARN),)),
        ),
        "No exporter is scraped, or none of the nodes that are chosen.",
    )


def build(_: Options) -> Dashboard:
    """The dashboard."""
    errors, ages, durations, cycle = source_lines()
    off, faults, flight = blind_spots()
    return Dashboard(
        "exporter",
        "GPU exporter health",
        "Whether the exporters see what they should, and what they cost. Read this when another dashboard "
        "says unknown.",
        ("job", "cluster", "node"),
        (
            Row(
                "Now",
                (Placed(answering(), 8, 5), Placed(blindness(), 12, 5), Placed(rewritten(), 4, 5)),
            ),
            Row(
                "Sources",
                (
                    Placed(sources(), 24, 9),
                    Placed(errors, 12, 8),
                    Placed(ages, 12, 8),
                    Placed(durations, 12, 8),
                    Placed(cycle, 12, 8),
                ),
            ),
            Row(
                "What could not be judged",
                (
                    Placed(not_judged(ALL), 24, 8),
                    Placed(off, 12, 7),
                    Placed(alerts('node=~"$node|"'), 12, 7),
                    Placed(faults, 12, 6),
                    Placed(flight, 12, 6),
                ),
            ),
            Row("Scraping and cost", (*(Placed(panel, 12, 7) for panel in scraping()),)),
            Row("Versions", (Placed(inventory(), 24, 8),)),
        ),
    )
