"""Alerts on the exporter itself: whether the other alerts can be believed. Pure.

Here, and only here, something that is absent makes an alert.
"""

from __future__ import annotations

from collections.abc import Iterator

from alerts.src.findings import CRITICAL, INFO, MINUTE, WARNING
from alerts.src.rule import Alert, Language, joined
from alerts.src.values import duration

WORKLOAD = ("namespace", "pod", "container")


def alerts(words: Language) -> tuple[Alert, ...]:
    """All of them. Where the operator says that labels have other names, nobody complains of that."""
    rewritten = () if words.config.renames else tuple(_rewritten(words))
    return (
        *_down(words),
        *_absent(words),
        *_sources(words),
        *_undetermined(words),
        *rewritten,
        *_dropped(words),
    )


def _down(words: Language) -> Iterator[Alert]:
    limit = words.config.thresholds.stale_cycle
    yield Alert(
        "KubeGPUExporterDown",
        WARNING,
        10 * MINUTE,
        5 * MINUTE,
        f"up{{{words.matchers()}}} == 0\nor\ntime() - {words.metric('cycle_timestamp_seconds')} > {limit:g}",
        "The GPU exporter of a node does not answer, or has stopped to look.",
        f"The exporter of {words.where} cannot be scraped, or its last cycle is older than "
        f"{duration(limit)}. Nothing is known of the node's GPUs: that no alert fires for them is no clean "
        "bill.\nFirst: look at the exporter's pod on that node and at its log.",
    )


def _absent(words: Language) -> Iterator[Alert]:
    here = words.metric("exporter_build_info")
    by = f"group by ({joined(words.cluster)})"
    window = duration(words.config.thresholds.absent_window)
    yield Alert(
        "KubeGPUExporterAbsent",
        CRITICAL,
        15 * MINUTE,
        5 * MINUTE,
        f"absent(\n  {here}\n)\nor\n(\n  {by} (\n    last_over_time({here}[{window}])\n  )\n"
        f"  unless\n  {by} (\n    {here}\n  )\n) > 0",
        "No GPU exporter is scraped at all.",
        f"Prometheus has no series of the GPU exporter{words.of_cluster} any more. No alert on GPUs can "
        "fire.\nFirst: look for the DaemonSet and its targets in Prometheus; then compare the rules' job "
        f"selector ({words.config.job}) with the targets' job.",
    )


def _sources(words: Language) -> Iterator[Alert]:
    paused = words.metric("source_paused")
    reasons = words.told(
        "source_errors_total",
        (*words.cluster, "instance", "source"),
        "{{ $one.Labels.reason }}",
        of="increase({}[10m]) > 0",
    )
    for severity, which, loss in (
        (CRITICAL, 'source="nvml"', "nothing that the driver knows is known: no memory, no process lists"),
        (WARNING, 'source!="nvml"', "findings that need it are not judged"),
    ):
        yield Alert(
            "KubeGPUExporterSourceDown",
            severity,
            10 * MINUTE,
            5 * MINUTE,
            f"{words.metric('source_up', which)} == 0\nunless\n{paused} == 1",
            "A source of the GPU exporter does not answer.",
            "The source {{ $labels.source }} of the exporter of "
            f"{words.where} gives nothing. Reasons: {reasons}. Until it answers {loss}; that no alert fires "
            "is no clean bill.\nFirst: for nvml look for a stuck process, then run nvidia-smi with a "
            "timeout; for the others look at the exporter's log.",
        )


def _undetermined(words: Language) -> Iterator[Alert]:
    on = (*words.cluster, "instance", "finding")
    reasons = words.told("finding_undetermined", on, "{{ $one.Labels.kind }} ({{ $one.Labels.reason }})")
    yield Alert(
        "KubeGPUExporterFindingUndetermined",
        WARNING,
        30 * MINUTE,
        10 * MINUTE,
        f"count without (kind, uuid, gi, reason) (\n  {words.metric('finding_undetermined')}\n) > 0",
        "A finding could not be judged for half an hour.",
        "On "
        f"{words.where} it is not known whether there is a {{{{ $labels.finding }}}}: {reasons}.\n"
        "First: look up the reason in the runbook; until then do not take silence for health.",
    )


def _rewritten(words: Language) -> Iterator[Alert]:
    """The exporter's own series have no workload labels: such a label there is the target's, which then also
    is on every device without an owner.
    """
    forms = [words.metric("exporter_build_info", f'{label}!=""') for label in WORKLOAD]
    forms += [
        words.metric(metric, f'exported_{label}!=""')
        for metric in ("allocation_info", "process_info", "findings")
        for label in WORKLOAD[:2]
    ]
    yield Alert(
        "KubeGPUExporterLabelsRewritten",
        WARNING,
        15 * MINUTE,
        5 * MINUTE,
        f"count by ({joined((*words.cluster, 'job'))}) (\n  " + "\n  or\n  ".join(forms) + "\n) > 0",
        "The scrape configuration changes the labels of the GPU exporter.",
        "In job {{ $labels.job }}"
        f"{words.of_cluster} the labels namespace, pod and container name the exporter's pod, not the pod on "
        "the GPU. Alerts and dashboards accuse the wrong pod, or none.\n"
        "First: set honor_labels: true and drop the target's own pod, container and namespace labels.",
    )


def _dropped(words: Language) -> Iterator[Alert]:
    yield Alert(
        "KubeGPUExporterSeriesDropped",
        INFO,
        30 * MINUTE,
        10 * MINUTE,
        f"{words.metric('process_series_dropped')} > 0",
        "The GPU exporter tells only some of the processes.",
        "{{ $value }} processes on the GPUs of "
        f"{words.where} have no series of their own. Findings and sums count them all the same.\n"
        "First: see why there are so many; then raise --limits.process-series if they are right.",
    )
