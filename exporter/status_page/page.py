"""The document: verdict, findings, what is not known, each GPU with its MIG devices, the sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from exporter.model import SOURCES, Missed, Off, Reading, Report, Seen
from exporter.status_page.bar import drawn
from exporter.status_page.markup import STYLE, Html, element, joined, table
from exporter.view import Device, Holder, Problem, View, grouped, moment, of_report, reason, size

_TITLE = "kubegpu-exporter"
_SHOWN = 64  # processes of a device, and findings, before the rest is only counted
_HEAD = ("pid", "name", "owner", "pod", "container", "memory", "seen by", "state", "given the device?")
_SEEN_BY = {"nvml": "NVML", "holder": "open files", "both": "NVML, open files"}
_GIVEN = {True: "yes", False: "no", None: "not known"}


def page(report: Report | None, telemetry_path: str, version: str, *, stale: bool = False) -> bytes:
    """The page as UTF-8. `report` is None until the first cycle is complete; of a `stale` one nothing but
    its age and its sources is told.
    """
    view = of_report(report, followed=True) if report else None
    node = view.node if view else ""
    body = joined(_body(report, view, telemetry_path, version, stale=stale), "\n")
    head = joined(
        (
            Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'),
            element("title", f"{node}: {_TITLE}" if node else _TITLE),
            Html(f"<style>{STYLE}</style>"),
        )
    )
    document = f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n'
    return document.encode("utf-8", "replace")


def _body(
    report: Report | None, view: View | None, path: str, version: str, *, stale: bool
) -> Iterator[Html]:
    if report is None or view is None:
        yield _header("GPUs of this node", "", path, version)
        yield element("p", "The first cycle is not complete yet.", class_="verdict doubt", role="status")
        return
    yield _header(f"GPUs of {view.node}", f"As seen at {moment(report.snapshot.at)}. ", path, version)
    if view.simulated:
        yield element(
            "p", "Simulated data: this is a demo, and nothing here is real.", class_="verdict doubt"
        )
    if stale:
        old = "This is too old to say anything about the node: no cycle has ended since. See the agent's log."
        yield element("p", old, class_="verdict bad", role="status")
    else:
        yield _verdict(view)
        yield _contents(view)
        yield from _problems(view)
        yield from _doubts(view)
        yield from _devices(view)
    yield element("h2", "Sources", id="sources")
    yield table(
        "Sources", ("source", "up", "why not", "last answer"), _sources(report, view), wrap=("why not",)
    )


def _header(title: str, when: str, path: str, version: str) -> Html:
    links = joined(
        (
            element("a", "Metrics", href=path),
            element("a", "Renew now", href="/"),
            element("a", "Stop renewing", href="/?refresh=off"),
        ),
        " · ",
    )
    about = element("p", when, f"{_TITLE} {version}. ", links, class_="quiet")
    return element("header", element("h1", title), about)


# --- the verdict --------------------------------------------------------------------------------------------


def _wrong(view: View) -> list[Problem]:
    """What counts, the worst first; what another finding explains comes last."""
    order = {"critical": 0, "warning": 1, "info": 2}
    active = [one for one in view.everything_wrong if one.active]
    return sorted(active, key=lambda one: (bool(one.explained_by), order.get(one.severity, 3)))


def _verdict(view: View) -> Html:
    counted = [one for one in _wrong(view) if not one.explained_by]
    pending = sum(not one.active for one in view.everything_wrong)
    if counted:
        count = len(counted)
        said = "1 thing is wrong." if count == 1 else f"{count} things are wrong."
        return element("p", said, class_="verdict bad", role="status")
    if not view.seen:
        said = "The GPUs could not be seen: NVML did not answer. This is no clean bill for them."
        return element("p", said, class_="verdict bad", role="status")
    watched = f" {pending} more may be, and must last before it counts." if pending else ""
    if view.doubts or view.gaps:
        said = f"Nothing wrong was found in what could be judged.{watched}"
        return element("p", said, class_="verdict doubt", role="status")
    said = f"Nothing is wrong.{watched}"
    return element("p", said, class_="verdict doubt" if pending else "verdict good", role="status")


def _contents(view: View) -> Html:
    whole = [device for device in view.devices if not device.place.gi]
    places = [("What is wrong", "wrong"), ("Not known", "unknown")]
    places += [(f"GPU {device.index or device.place.uuid}", f"gpu-{device.place.uuid}") for device in whole]
    places.append(("Sources", "sources"))
    links = (element("li", element("a", name, href=f"#{anchor}")) for name, anchor in places)
    return element("nav", element("ul", *links), aria_label="Contents")


def _problems(view: View) -> Iterator[Html]:
    yield element("h2", "What is wrong", id="wrong")
    wrong = _wrong(view)
    where = {id(one): device for device in view.devices for one in device.problems}
    if not wrong:
        yield element("p", "No finding is active.")
    yield from (
        _problem(one, where.get(id(one)), "explained" if one.explained_by else "problem")
        for one in wrong[:_SHOWN]
    )
    yield from _more(len(wrong), "findings")
    pending = [one for one in view.everything_wrong if not one.active]
    if pending:
        yield element("h3", "Being watched: it holds now, and counts once it has lasted")
        yield from (_problem(one, where.get(id(one)), "watched") for one in pending[:_SHOWN])
        yield from _more(len(pending), "that are being watched")


def _problem(problem: Problem, device: Device | None, kind: str) -> Html:
    who = [_workload(problem.namespace, problem.pod, problem.container)] if problem.pod else []
    who += [f"pid {problem.pid} ({problem.comm})"] if problem.pid else []
    who += [size(problem.memory)] if problem.memory is not None else []
    where = (_name(device),) if device else ()
    since = () if problem.since is None else (f"since {moment(problem.since)}",)
    severity = (problem.severity,) if problem.severity else ()
    lines = [
        element("h3", f"{problem.finding} ({problem.kind})"),
        element("p", ", ".join((*severity, *where, *who, *since)), class_="quiet"),
        element("p", f"{problem.summary} {problem.meaning}"),
    ]
    if problem.evidence:
        lines.append(element("ul", *(element("li", one, class_="mono") for one in problem.evidence)))
    if problem.undetermined:
        again = f"It could not be judged again: {reason(problem.undetermined)}."
        lines.append(element("p", again, class_="doubt-text"))
    if problem.explained_by:
        lines.append(element("p", f"Explained by {problem.explained_by}; not counted.", class_="quiet"))
    if problem.remedy:
        lines.append(element("p", element("strong", "What to do: "), problem.remedy))
    return element("article", *lines, class_=kind)


def _doubts(view: View) -> Iterator[Html]:
    yield element("h2", "Not known", id="unknown")
    lines = [
        joined((f"{why}{f' on {place.mig_uuid or place.uuid}' if place else ''}: ", what))
        for why, place, what in grouped(view.doubts)
    ]
    if lines:
        yield element("p", "These findings could not be judged, so that they are neither there nor clear:")
        yield element("ul", *(element("li", line) for line in lines), class_="doubt-text")
    else:
        yield element("p", "Every finding could be judged.")


# --- devices ------------------------------------------------------------------------------------------------


def _devices(view: View) -> Iterator[Html]:
    yield element("h2", "GPUs")
    if not view.devices:
        seen = "NVML lists no GPU." if view.seen else "Not known: NVML did not answer in the last cycle."
        yield element("p", seen)
    elif not view.seen:
        yield element(
            "p", "NVML did not answer: what is below is what the other sources show.", class_="doubt-text"
        )
    uuids = dict.fromkeys(device.place.uuid for device in view.devices)
    for uuid in uuids:
        family = [device for device in view.devices if device.place.uuid == uuid]
        whole = next((device for device in family if not device.place.gi), family[0])
        rest = [device for device in family if device is not whole]
        yield element("article", *_device(whole, rest), id=f"gpu-{uuid}")


def _device(device: Device, instances: Sequence[Device] = ()) -> Iterator[Html]:
    yield element("h3", _name(device), f" {device.product}" if device.product else "")
    yield element("p", device.place.mig_uuid or device.place.uuid, class_="mono quiet")
    if device.lost:
        yield element("p", f"Lost: {device.lost}", class_="bad-text")
    if problems := [one for one in device.problems if one.active and not one.explained_by]:
        names = ", ".join(dict.fromkeys(one.finding for one in problems))
        yield element("p", f"Wrong here: {names}", class_="bad-text")
    yield drawn(device)
    if device.given or not instances:
        yield element("p", element("strong", "Given to: "), _given(device))
    if device.holders:
        shown = (_holder(one) for one in device.holders[:_SHOWN])
        yield table(f"Processes on {_name(device)}", _HEAD, shown)
        yield from _more(len(device.holders), "processes")
    elif not instances:
        yield _nobody(device)
    for one in instances:
        yield element("article", *_device(one))


def _nobody(device: Device) -> Html:
    if device.listed:
        return element("p", "No process is on it.", class_="quiet")
    return element(
        "p", "No process was seen on it, but not all that could show one was had.", class_="doubt-text"
    )


def _name(device: Device) -> str:
    place = device.place
    return f"MIG device, GPU instance {place.gi}" if place.gi else f"GPU {device.index or '?'}"


def _given(device: Device) -> Html | str:
    if device.given:
        told = (
            joined(
                (
                    _workload(one.namespace, one.pod, one.container),
                    " ",
                    element("span", one.resource, class_="quiet"),
                )
            )
            for one in device.given
        )
        return joined(told, ", ")
    return {True: "somebody", False: "nobody", None: "not known"}[device.allocated]


def _holder(one: Holder) -> Sequence[str]:
    pod = f"{one.namespace}/{one.pod}" if one.pod else one.pod_uid
    memory = "" if one.memory is None else size(one.memory)
    given = "needs none" if one.owner == "system" else _GIVEN[one.given] if one.pod else ""
    wrong = given == "no" or one.owner == "orphan"
    last: str = element("strong", given, class_="bad-text") if wrong and given else given
    seen_by = _SEEN_BY.get(one.visibility, one.visibility)
    return (str(one.pid), one.comm, one.owner, pod, one.container, memory, seen_by, one.state, last)


def _workload(namespace: str, pod: str, container: str) -> str:
    return f"{namespace}/{pod} {container}".rstrip()


def _more(count: int, what: str) -> Iterable[Html]:
    if count > _SHOWN:
        yield element("p", f"And {count - _SHOWN} more {what}, in the metrics.", class_="quiet")


# --- sources ------------------------------------------------------------------------------------------------


def _sources(report: Report, view: View) -> Iterator[Sequence[str]]:
    last = {record.source: record.last_success for record in report.history.sources}
    gaps = {one.source: one for one in view.gaps}
    for source in SOURCES:
        reading: Reading[object] = getattr(report.snapshot, source)
        at, missing = last.get(source), gaps.get(source)
        up = _up(reading)
        why = ": ".join(part for part in (missing.reason, missing.detail) if part) if missing else ""
        shown = element("strong", up, class_="bad-text") if up == "no" else up
        yield (source, shown, why, "" if at is None else moment(at))


def _up(reading: Reading[object]) -> str:
    match reading:
        case Seen(complete=complete):
            return "yes" if complete else "in part"
        case Missed():
            return "no"
        case Off():
            return "off"
