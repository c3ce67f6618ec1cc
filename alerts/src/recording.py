"""Recording rules: sums that dashboards and alerts share. Pure.

Names are level:metric:operation. A sum contains what is known; where nothing is, there is no series.
"""

from __future__ import annotations

from alerts.src.devices import PROCESSES, PROCESSES_DAY
from alerts.src.rule import Group, Language, Record, indented, joined
from alerts.src.values import duration

MINUTE = 60.0
SHARE = "allocation:kubegpu_gpus:share"


def groups(words: Language) -> tuple[Group, ...]:
    """All of them."""
    own = words.config.interval
    return (
        Group("kubegpu-clusters", _clusters(words), own),
        Group("kubegpu-namespaces", _namespaces(words, own or MINUTE), own or MINUTE),
        Group("kubegpu-device-counts", _devices(words), own or MINUTE),
        Group("kubegpu-device-days", _day(), own or 2 * MINUTE),
    )


def _by(words: Language, *labels: str) -> str:
    return f"by ({joined((*words.cluster, *labels))})"


def _clusters(words: Language) -> tuple[Record, ...]:
    each = joined((*words.target, "uuid"))
    stuck = words.metric("findings", 'finding="stuck_process"')
    return (
        Record(
            "cluster:kubegpu_gpus:count",
            f"count {_by(words)} (\n  {words.metric('gpu_info')}\n)",
            "GPUs that NVML lists.",
        ),
        Record(
            "cluster:kubegpu_gpu_memory_orphaned_bytes:sum",
            f"sum {_by(words)} (\n  {words.metric('gpu_memory_orphaned_bytes')}\n)",
            "Memory that nobody needs any more, as far as it is known.",
        ),
        Record(
            "cluster:kubegpu_stuck_gpus:count",
            f"sum {_by(words)} (\n  max by ({each}) (\n    {stuck}\n  ) > bool 0\n)",
            "GPUs with a stuck process among those that were judged.",
        ),
        Record(
            "cluster:kubegpu_findings:sum",
            f"sum {_by(words, 'finding')} (\n  {words.metric('findings')}\n)",
            "Active findings that no other one explains, by finding; 0 only where it was judged.",
        ),
        Record(
            "node:kubegpu_findings:sum",
            f"sum by ({joined((*words.target, 'finding'))}) (\n  {words.metric('findings')}\n)",
            "The same by node.",
        ),
    )


def _namespaces(words: Language, interval: float) -> tuple[Record, ...]:
    """GPU-seconds are added up from one sample for each evaluation: the group has an interval of its own.
    The window ends half an interval early, so that it has the same number of samples in every version.
    """
    owner = joined(words.workload)
    rows = f"max without (resource, pod_uid) (\n  {words.metric('allocation_info', '{}')}\n)"
    each = f"ignoring (mig_uuid, {owner}) group_left ()"

    def part(which: str) -> str:
        chosen = rows.replace("{}", which)
        return (
            f"{indented(chosen, 2)}\n"
            f"  / {each}\n  count without (mig_uuid, {owner}) (\n{indented(chosen)}\n  )"
        )

    whole = f"max without ({owner}) ({words.metric('gpu_memory_total_bytes')})"
    slice_ = f"max without (mig_uuid, {owner}) ({words.metric('mig_memory_total_bytes')})"
    use = f"max without ({owner}) ({words.metric('gpu_utilization_ratio')})"
    by = _by(words, words.namespace)
    whole_gpu, instance = 'gi=""', 'gi!=""'
    hour = duration(3600 - interval / 2)
    names = {key: f"namespace:kubegpu_{key}_gpus:sum" for key in ("allocated", "measured", "busy")}
    return (
        Record(
            SHARE,
            f"(\n{part(whole_gpu)}\n)\nor\n(\n{part(instance)}\n  * {each} (\n    {slice_}\n"
            f"    / ignoring (gi) group_left () {whole}\n  )\n)",
            "What each allocation has, in GPUs: a shared device is divided evenly, a GPU instance counts by "
            "its share of the GPU's memory.",
        ),
        Record(names["allocated"], f"sum {by} (\n  {SHARE}\n)", "GPUs that the namespace was given."),
        Record(
            names["measured"],
            f"sum {by} (\n  {SHARE}\n  and ignoring (mig_uuid, {owner}) {use}\n)",
            "Those of them whose utilisation is known; never MIG.",
        ),
        Record(
            names["busy"],
            f"sum {by} (\n  {SHARE}\n  * {each} {use}\n)",
            "How many GPUs it keeps busy, of those whose utilisation is known.",
        ),
        Record(
            "namespace:kubegpu_allocated_gpu_seconds:sum1h",
            f"sum_over_time({names['allocated']}[{hour}]) * {interval:g}",
            "GPU-seconds that the namespace was given in the last hour.",
        ),
        Record(
            "namespace:kubegpu_busy_gpu_seconds:sum1h",
            f"sum_over_time({names['busy']}[{hour}]) * {interval:g}",
            "GPU-seconds that it kept busy in the last hour.",
        ),
        Record(
            "namespace:kubegpu_gpu_waste:ratio1h",
            f"1 - sum_over_time({names['busy']}[{hour}]) / sum_over_time({names['measured']}[{hour}])",
            "Share of the GPU time of the last hour that it was given and did not use, where that is known.",
        ),
        Record(
            "namespace:kubegpu_workload_memory_bytes:sum",
            f"sum {by} (\n  {words.metric('workload_memory_bytes')}\n)",
            "GPU memory of the processes of the namespace.",
        ),
        Record(
            "cluster:kubegpu_allocated_gpus:sum",
            f"sum {_by(words)} (\n  {names['allocated']}\n)",
            "GPUs that pods were given.",
        ),
    )


def _devices(words: Language) -> tuple[Record, ...]:
    """Without `instance`, so that a new pod of the exporter does not end the device's past."""
    by = joined((*words.cluster, words.config.node_label, "uuid", "gi", "mig_uuid"))
    return (
        Record(
            PROCESSES,
            f"max by ({by}) (\n  sum without (owner) (\n    {words.metric('processes')}\n  )\n)",
            "Processes that can own memory of the device.",
        ),
    )


def _day() -> tuple[Record, ...]:
    return (
        Record(
            PROCESSES_DAY,
            f"quantile_over_time(0.95, {PROCESSES}[1d])",
            "So many or fewer of them in 19 of 20 minutes of the last day.",
        ),
    )
