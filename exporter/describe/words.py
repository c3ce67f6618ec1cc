"""A View as text for a person, or as JSON for a program. Pure: it asks nothing, and prints nothing.

No character of what others chose reaches the terminal unless it is printable (truth rule 6); the only
escape sequences are the colours, put in afterwards.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence

from exporter.settings import format_duration
from exporter.view import Device, Holder, Problem, Verdict, View, gap, grouped, moment, reason, size

_COLOURS = {"bold": "1", "bad": "1;31", "doubt": "33", "quiet": "2"}
_SEEN_BY = {"nvml": "NVML", "holder": "open files", "both": "NVML, files"}
_GIVEN = {True: "yes", False: "NO", None: ""}
_NEEDS_NONE = "-"  # infrastructure is given no GPU and needs none
_HEAD = ("PID", "NAME", "OWNER", "POD", "CONTAINER", "MEMORY", "SEEN BY", "STATE", "GIVEN")

Line = tuple[str, str]  # style, text


def as_text(view: View, *, colour: bool = False) -> str:
    """The view in words, a line each."""
    painted = (_painted(style, _printable(line), colour=colour) for style, line in _lines(view))
    return "".join(f"{line}\n" for line in painted)


def as_json(view: View) -> str:
    """The view as one JSON document in ASCII; `verdict` is nothing_wrong, wrong or not_seen."""
    document = {"verdict": view.verdict.name.lower(), **dataclasses.asdict(view)}
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


def _printable(line: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in line)


def _painted(style: str, line: str, *, colour: bool) -> str:
    return f"\x1b[{_COLOURS[style]}m{line}\x1b[0m" if colour and style else line


def _lines(view: View) -> Iterator[Line]:
    if view.simulated:
        yield "doubt", "SIMULATED data of a scenario: nothing here is real."
    when = "" if view.at is None else f", {moment(view.at)}"
    yield "bold", f"Node {view.node or 'unknown'}: {view.origin}{when}"
    for device in view.devices:
        yield "", ""
        yield from _device(device, tuple(one for one in view.devices if one.place.uuid == device.place.uuid))
    if not view.devices:
        yield "", ""
        yield "", "No GPU is known."
    if view.problems:
        yield "", ""
        yield "bold", "The node"
        for problem in view.problems:
            yield from _problem(problem)
    yield from _unseen(view)
    yield "", ""
    yield _summary(view)


def _device(device: Device, family: Sequence[Device]) -> Iterator[Line]:
    """A device; `family` are all devices of its GPU, itself among them."""
    parts = sum(bool(one.place.gi) for one in family)
    cut = not device.place.gi and parts > 0
    yield "bold", "  ".join(part for part in (_name(device), device.product, device.lost and "LOST") if part)
    if device.lost:
        yield "bad", f"  Does not answer: {device.lost}"
    if cut:
        yield "", f"  Cut into   {parts} MIG device{'s' if parts > 1 else ''}, below"
    if device.given or not cut:
        yield "", f"  Given to   {_given(device)}"
    sharers = sum(one.place.gi == device.place.gi for one in family) if device.place.gi else 1
    shared = f" (of the instance, which {sharers} MIG devices share)" if sharers > 1 else ""
    yield "", f"  Memory     {_memory(device)}{shared}"
    if device.holders:
        yield from (("", f"  {line}") for line in _table(_HEAD, map(_holder, device.holders)))
    elif not cut:
        yield "", "  No process on it was seen."
    for problem in device.problems:
        yield from _problem(problem)


def _name(device: Device) -> str:
    place = device.place
    if place.gi:
        return f"MIG device {place.mig_uuid or 'unknown'}, instance {place.gi} of {place.uuid}"
    return f"GPU {device.index or '?'}  {place.uuid}"


def _given(device: Device) -> str:
    if device.given:
        return ", ".join(
            f"{one.namespace}/{one.pod} {one.container} ({one.resource})" for one in device.given
        )
    return {True: "somebody", False: "nobody", None: "not known"}[device.allocated]


def _memory(device: Device) -> str:
    if device.used is None or device.total is None:
        return "not known"
    text = f"{size(device.used)} of {size(device.total)} used"
    known = (
        (device.attributed, "is accounted for by processes"),
        (device.unattributed, "is not accounted for"),
    )
    told = [f"{size(number)} {what}" for number, what in known if number is not None]
    return "; ".join([text, *(told or ["by whom is not known"])])


def _holder(one: Holder) -> Sequence[str]:
    pod = f"{one.namespace}/{one.pod}" if one.pod else one.pod_uid
    memory = "" if one.memory is None else size(one.memory)
    seen_by = _SEEN_BY.get(one.visibility, one.visibility)
    given = _NEEDS_NONE if one.owner == "system" else _GIVEN[one.given] or ("unknown" if one.pod else "")
    return (str(one.pid), one.comm, one.owner, pod, one.container, memory, seen_by, one.state, given)


def _problem(problem: Problem) -> Iterator[Line]:
    severity = f", {problem.severity}" if problem.severity else ""
    yield "bad", f"  WRONG: {problem.finding} ({problem.kind}{severity})"
    yield "", f"    {problem.summary} {problem.meaning}".rstrip()
    who = [f"{problem.namespace}/{problem.pod} {problem.container}".rstrip()] if problem.pod else []
    who += [f"pid {problem.pid} ({problem.comm})"] if problem.pid else []
    who += [size(problem.memory)] if problem.memory is not None else []
    if who:
        yield "", f"    {', '.join(who)}"
    yield from (("", f"    - {line}") for line in problem.evidence)
    if problem.since is None:
        lasting = (
            f"; a running exporter counts it once it has lasted {format_duration(problem.age)}"
            if problem.age
            else ""
        )
        yield "quiet", f"    Holds now{lasting}."
    else:
        yield "quiet", f"    Active; first seen {moment(problem.since)}."
    if problem.undetermined:
        yield "doubt", f"    It could not be judged again: {reason(problem.undetermined)}"
    if problem.explained_by:
        yield "quiet", f"    Explained by {problem.explained_by}."
    if problem.remedy:
        yield "", f"    What to do: {problem.remedy}"


# --- what was not seen --------------------------------------------------------------------------------------


def _unseen(view: View) -> Iterator[Line]:
    if view.gaps:
        yield "", ""
        yield "bold", "Sources that did not answer, or only in part"
        yield from (("doubt", f"  {gap(one)}") for one in view.gaps)
    if view.doubts:
        yield "", ""
        yield "bold", "Could not be judged"
        for why, place, what in grouped(view.doubts):
            where = "" if place is None else f" on {place.mig_uuid or place.uuid}"
            yield "doubt", f"  {why}{where}: {what}"


def _summary(view: View) -> Line:
    match view.verdict:
        case Verdict.WRONG:
            count = len(view.everything_wrong)
            return "bad", "1 thing is wrong." if count == 1 else f"{count} things are wrong."
        case Verdict.NOT_SEEN:
            return "bad", "The GPUs could not be seen: NVML did not answer. This is no clean bill for them."
        case Verdict.NOTHING_WRONG if view.doubts or view.gaps:
            return "doubt", "Nothing wrong was found in what could be judged."
        case _:
            return "", "Nothing is wrong."


# --- forms --------------------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    cells = [head, *([cell or "-" for cell in row] for row in rows)]
    widths = [max(len(_printable(row[column])) for row in cells) for column in range(len(head))]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
