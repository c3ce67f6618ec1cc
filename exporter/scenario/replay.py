"""Snapshots from frames: the course of a scenario at a moment, its times turned into the clock's."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from exporter.model import InFlight, Missed, Nvml, Pod, Pods, ProcessTable, Reading, Report, Seen, Snapshot


@dataclass(frozen=True, slots=True)
class Frame:
    """What every source says from `at` on. Times count from the start, those of readings from a snapshot."""

    at: float
    readings: Mapping[str, Reading[Any]]
    in_flight: InFlight | None
    power: Mapping[str, float]  # watts by UUID, also while NVML is not answering


@dataclass(frozen=True, slots=True)
class Scenario:
    """A course of events. After the last frame it goes on at second `loop_to`; None: the last frame holds."""

    name: str
    node_name: str
    interval: float
    frames: tuple[Frame, ...]
    loop_to: float | None = None

    @property
    def end(self) -> float:
        """Seconds from the start to where a loop goes back: the last frame lasts one interval."""
        return self.frames[-1].at + self.interval


class Player:
    """Plays a scenario in real time, from the first call on; called like a Gatherer, once a cycle."""

    def __init__(
        self,
        scenario: Scenario,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scenario = scenario
        self._wall = wall
        self._monotonic = monotonic
        self._start: tuple[float, float] | None = None

    def __call__(self, _previous: Report | None) -> Snapshot:
        """The node as it is now in the scenario."""
        at, monotonic = self._wall(), self._monotonic()
        start_wall, start_monotonic = self._start = self._start or (at, monotonic)
        return _snapshot(self._scenario, monotonic - start_monotonic, start_wall, at, monotonic)


def snapshots(scenario: Scenario, start_wall: float, start_monotonic: float) -> Iterator[Snapshot]:
    """One Snapshot for each interval, to the last frame, without a clock."""
    for look in range(math.ceil(scenario.end / scenario.interval)):
        elapsed = look * scenario.interval
        yield _snapshot(scenario, elapsed, start_wall, start_wall + elapsed, start_monotonic + elapsed)


def _snapshot(scenario: Scenario, elapsed: float, start: float, at: float, monotonic: float) -> Snapshot:
    frame = _frame(scenario, elapsed)
    readings = {name: _dated(reading, start, at) for name, reading in frame.readings.items()}
    nvml = readings["nvml"]
    if isinstance(nvml, Seen):
        readings["nvml"] = replace(nvml, value=_grown(scenario, nvml.value, elapsed))
    flight = frame.in_flight
    return Snapshot(
        at=at,
        monotonic=monotonic,
        node_name=scenario.node_name,
        nvml_in_flight=replace(flight, since=start + flight.since) if flight else None,
        **readings,
    )


def _frame(scenario: Scenario, elapsed: float) -> Frame:
    if scenario.loop_to is not None and elapsed >= scenario.end:
        elapsed = scenario.loop_to + (elapsed - scenario.end) % (scenario.end - scenario.loop_to)
    return max((frame for frame in scenario.frames if frame.at <= elapsed), key=lambda frame: frame.at)


def _dated(reading: Reading[Any], start: float, at: float) -> Reading[Any]:
    """A reading of this cycle, its times turned from seconds since the start into the clock's."""
    match reading:
        case Seen(value=ProcessTable() as table):
            dated: Any = replace(table, boot_time=start + table.boot_time)
        case Seen(value=Pods() as pods):
            dated = Pods(tuple(_dated_pod(pod, start) for pod in pods.pods))
        case Seen():
            dated = reading.value
        case Missed():
            return replace(reading, at=at)
        case _:
            return reading
    return replace(reading, value=dated, at=at + reading.at)


def _dated_pod(pod: Pod, start: float) -> Pod:
    def shifted(seconds: float | None) -> float | None:
        return None if seconds is None else start + seconds

    containers = tuple(replace(one, started_at=shifted(one.started_at)) for one in pod.containers)
    return replace(pod, deletion_timestamp=shifted(pod.deletion_timestamp), containers=containers)


def _grown(scenario: Scenario, nvml: Nvml, elapsed: float) -> Nvml:
    """The counters of energy as far as the power has driven them, laps of a loop included."""
    gpus = []
    for gpu in nvml.gpus:
        energy = gpu.telemetry.energy
        if energy is not None:
            energy += _joules(scenario, gpu.uuid, elapsed)
        gpus.append(replace(gpu, telemetry=replace(gpu.telemetry, energy=energy)))
    return replace(nvml, gpus=tuple(gpus))


def _joules(scenario: Scenario, uuid: str, elapsed: float) -> float:
    back, end = scenario.loop_to, scenario.end
    if back is None or elapsed <= end:
        return _drawn(scenario, uuid, 0, elapsed)
    laps, rest = divmod(elapsed - end, end - back)
    lap = _drawn(scenario, uuid, back, end)
    return _drawn(scenario, uuid, 0, end) + laps * lap + _drawn(scenario, uuid, back, back + rest)


def _drawn(scenario: Scenario, uuid: str, since: float, until: float) -> float:
    """Joules between two seconds of one pass; the last frame lasts on."""
    frames = scenario.frames
    ends = (*(frame.at for frame in frames[1:]), float("inf"))
    return sum(
        frame.power.get(uuid, 0.0) * max(0.0, min(until, end) - max(since, frame.at))
        for frame, end in zip(frames, ends, strict=True)
    )
