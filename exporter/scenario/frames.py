"""Frames from plain data: each a change to the one before. Raises CodecError naming the path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from exporter.codec import CodecError, decode
from exporter.model import SOURCES, InFlight, Missed, Nvml, Off, ProcessTable, Reading, Seen, value
from exporter.scenario.records import RECORDS, Plain, listing, needed, only
from exporter.scenario.replay import Frame, Scenario

TOOK = 0.01  # seconds that a source takes unless the frame says how long


@dataclass(slots=True)
class _Course:
    """What the frames so far amount to: each source's fields as written, and its last reading."""

    node_name: str
    fields: dict[str, Plain] = field(default_factory=dict)
    readings: dict[str, Reading[Any]] = field(default_factory=dict)
    in_flight: InFlight | None = None

    def change(self, frame: Plain, where: str) -> None:
        """Take up one frame."""
        for source in SOURCES:
            here = f"{where}.{source}"
            if source in frame:
                self._read(source, frame[source], here)
            elif source not in self.readings:
                raise CodecError(
                    here, "missing in the first frame; give its fields, off, or {missed: <reason>}"
                )
        if "nvml_in_flight" in frame:
            self.in_flight = decode(InFlight | None, frame["nvml_in_flight"], f"{where}.nvml_in_flight")

    def _read(self, source: str, given: Any, where: str) -> None:
        match given:
            case "off":
                self.readings[source] = Off()
                return
            case "seen":
                form: Plain = {"seen": {}}
            case {"missed": reason, **more}:
                self.readings[source] = decode(
                    Missed, {"took": TOOK, **more, "reason": reason, "at": 0.0}, where
                )
                return
            case {"seen": _} | {"partial": _}:
                form = given
            case dict():
                form = {"seen": given}
            case _:
                raise CodecError(
                    where, f"{given!r} is no reading; give fields, seen, off, or {{missed: <reason>}}"
                )
        kind = "partial" if "partial" in form else "seen"
        only(form, (kind, "age", "took"), where)
        self.fields[source] = _patched(self.fields.get(source), form[kind] or {}, where)
        if not self.fields[source]:
            raise CodecError(where, f"{given!r}, but no frame so far says what; give its fields")
        age: float = decode(float, form.get("age", 0.0), f"{where}.age")
        self.readings[source] = Seen(
            self._record(source, where),
            -age,
            decode(float, form.get("took", TOOK), f"{where}.took"),
            kind == "seen",
        )

    def _record(self, source: str, where: str) -> object:
        plain = self.fields[source]
        if source == "node":
            plain = {"name": self.node_name, **plain}
        return RECORDS[source](plain, where)

    def frame(self, at: float) -> Frame:
        """The frame that begins at `at`."""
        readings = dict(self.readings)
        table = readings["processes"]
        if isinstance(table, Seen):
            readings["processes"] = replace(table, value=_asked(table.value, value(readings["nvml"])))
        gpus = self.fields.get("nvml", {}).get("gpus", {})
        power = {uuid: gpu.get("telemetry", {}).get("power") or 0.0 for uuid, gpu in gpus.items()}
        return Frame(at, readings, self.in_flight, power)


def read(name: str, plain: Any) -> Scenario:
    """The scenario of a file's content."""
    if not isinstance(plain, dict):
        raise CodecError("the file", f"{plain!r} is no mapping; give node_name, interval, loop and frames")
    only(plain, ("node_name", "interval", "loop", "anchors", "frames"), "")
    node_name: str = needed(plain, "node_name", str, "", "the node's name")
    interval: float = needed(plain, "interval", float, "", "the seconds between two looks")
    if interval <= 0:
        raise CodecError("interval", f"{interval:g} is not above 0; give the seconds between two looks")
    frames = plain.get("frames")
    if not isinstance(frames, list) or not frames:
        raise CodecError("frames", f"{frames!r} is no list of frames; give at least one")
    built = tuple(_frames(node_name, frames))
    loop = plain.get("loop", False)
    back = (0.0 if loop else None) if isinstance(loop, bool) else decode(float, loop, "loop")
    if back is not None and not 0 <= back <= built[-1].at:
        raise CodecError("loop", f"{back:g} is outside the frames; give 0 to {built[-1].at:g}, true or false")
    return Scenario(name, node_name, interval, built, back)


def _frames(node_name: str, frames: list[Any]) -> Iterator[Frame]:
    course = _Course(node_name)
    last: float | None = None
    for number, plain in enumerate(frames):
        where = f"frames[{number}]"
        if not isinstance(plain, dict):
            raise CodecError(where, f"{plain!r} is no mapping; give at and the sources that change")
        only(plain, ("at", "nvml_in_flight", *SOURCES), where)
        at: float = needed(plain, "at", float, where, "the seconds from the start")
        if last is None and at != 0:
            raise CodecError(f"{where}.at", f"{at:g}; the first frame is at 0")
        if last is not None and at <= last:
            raise CodecError(
                f"{where}.at", f"{at:g} is not after the frame before, at {last:g}; sort the frames"
            )
        course.change(plain, where)
        yield course.frame(at)
        last = at


def _patched(before: Plain | None, patch: Any, where: str) -> Plain:
    """A merge patch as RFC 7396 has it, but null must have something to take away."""
    if not isinstance(patch, dict):
        raise CodecError(where, f"{patch!r} is no mapping; give the fields that change")
    result = dict(before or {})
    for key, new in patch.items():
        old = result.get(key)
        if new is None:
            if before is not None and key not in before:
                raise CodecError(f"{where}.{key}", f"null takes nothing away; there are {listing(before)}")
            result.pop(key, None)
        elif isinstance(new, dict):
            result[key] = _patched(old if isinstance(old, dict) else None, new, f"{where}.{key}")
        else:
            result[key] = new
    return result


def _asked(table: ProcessTable, nvml: Nvml | None) -> ProcessTable:
    """The scan as it answers when told the numbers in NVML's lists."""
    asked = {row.pid for gpu in (nvml.gpus if nvml else ()) for row in gpu.rows or ()}
    processes = tuple(
        replace(one, numbers=tuple(sorted(asked & {one.id.pid, *one.numbers}))) for one in table.processes
    )
    found = {number for one in processes for number in one.numbers}
    return replace(table, processes=processes, missing=tuple(sorted(asked - found)))
