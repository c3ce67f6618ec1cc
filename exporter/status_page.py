"""The landing page: a Report comes in, one HTML document goes out.

It holds no script and loads nothing. All text in it is escaped, whoever chose it (truth rule 6).
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape

from exporter.diagnosis import RULES
from exporter.model import (
    SOURCES,
    DeviceKey,
    Finding,
    Gpu,
    Missed,
    Off,
    Reading,
    Report,
    Seen,
    Undetermined,
    value,
)

_STYLE = (
    "body{font-family:sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse}td,th{border:1px "
    "solid #999;padding:.2em .6em;text-align:left}.simulated{background:#fd6;padding:.6em;font-weight:bold}"
)
_TITLE = "kubegpu-exporter"


def page(report: Report | None, telemetry_path: str, version: str) -> bytes:
    """The page as UTF-8. `report` is None until the first cycle is complete."""
    body = "\n".join(_body(report, telemetry_path, version))
    document = (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{_TITLE}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )
    return document.encode("utf-8", "replace")


def _body(report: Report | None, telemetry_path: str, version: str) -> Iterator[str]:
    yield f"<h1>{_TITLE}</h1>"
    if report is not None and report.policy.simulated:
        yield '<p class="simulated">Simulated data: this is a demo, and nothing here is real.</p>'
    yield f'<p>Version {escape(version)}. <a href="{escape(telemetry_path)}">Metrics</a></p>'
    if report is None:
        yield "<p>The first cycle is not complete yet.</p>"
        return
    snapshot = report.snapshot
    yield f"<p>Node {escape(snapshot.node_name)}, as seen at {_moment(snapshot.at)}.</p>"
    yield "<h2>Findings</h2>"
    active = [finding for finding in report.diagnosis.findings if finding.active]
    if active:
        heads = ("finding", "kind", "device", "pod", "pid", "since", "evidence", "what to do")
        yield _table(heads, (_finding(finding) for finding in active))
    else:
        yield "<p>None is active.</p>"
    if report.diagnosis.undetermined:
        yield "<h2>Not known</h2>"
        doubts = sorted({_doubt(one) for one in report.diagnosis.undetermined})
        yield _table(("finding", "kind", "device", "why it could not be judged"), doubts)
    yield "<h2>Sources</h2>"
    yield _table(("source", "up", "why", "last answer"), _sources(report))
    yield "<h2>GPUs</h2>"
    nvml = value(snapshot.nvml)
    if nvml is None:
        yield "<p>Not known: NVML did not answer in the last cycle.</p>"
    else:
        indices = dict(report.history.indices)
        rows = (_gpu(gpu, indices.get(gpu.uuid, gpu.index)) for gpu in nvml.gpus)
        yield _table(("gpu", "uuid", "product", "PCI address", "MIG devices", "state"), rows)


def _finding(finding: Finding) -> Sequence[str]:
    holds = finding.holds
    rule = next(rule for rule in RULES if rule.finding is holds.subject.finding)
    workload = holds.workload
    pod = f"{workload.namespace}/{workload.pod}" if workload.pod else ""
    cause = f" (explained by {finding.explained_by})" if finding.explained_by else ""
    return (
        holds.subject.finding.value + cause,
        holds.kind,
        _device(holds.subject.device),
        pod,
        f"{holds.pid} {holds.comm}" if holds.pid else "",
        _moment(finding.since),
        "; ".join(holds.evidence),
        rule.remedy,
    )


def _doubt(one: Undetermined) -> tuple[str, ...]:
    return (one.finding.value, one.kind, _device(one.device) or "any", one.reason)


def _device(key: DeviceKey | None) -> str:
    return "" if key is None else key.mig_uuid or key.uuid


def _sources(report: Report) -> Iterator[Sequence[str]]:
    last = {record.source: record.last_success for record in report.history.sources}
    for source in SOURCES:
        reading: Reading[object] = getattr(report.snapshot, source)
        at = last.get(source)
        yield (source, *_became(reading), "" if at is None else _moment(at))


def _became(reading: Reading[object]) -> tuple[str, str]:
    match reading:
        case Seen(complete=True):
            return "yes", ""
        case Seen():
            return "in part", "it saw only part"
        case Missed(reason=reason, detail=detail):
            return "no", f"{reason}: {detail}" if detail else reason.value
        case Off():
            return "off", "not wanted"


def _gpu(gpu: Gpu, index: int) -> Sequence[str]:
    state = f"lost: {gpu.lost}" if gpu.lost else "answers"
    return (str(index), gpu.uuid, gpu.product, gpu.pci_address, str(len(gpu.instances)), state)


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row("th", head), *(_row("td", row) for row in rows)]
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
