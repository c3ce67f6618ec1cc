"""The looks themselves: sources in, document out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from exporter import __version__
from exporter.codec import encode
from exporter.gather import Gatherer, Sources
from exporter.model import Missed, Policy, Report, Seen, Snapshot
from exporter.recording import proc
from exporter.recording.files import FORMAT
from exporter.recording.taps import PODS_PATH, ApiTap, KubeletTap, PodNamesTap
from exporter.report import advance
from exporter.slots import Slot
from exporter.sources.node import NodeSource
from exporter.sources.pods import PodsSource
from exporter.sources.polling import Getter

LOOKS = 3
BETWEEN = 2.0  # seconds in which a thread that sleeps in the kernel may move
LONGEST_WAIT = 20.0  # as interval of a Gatherer: it waits the 10 s that it may for a source
PROC_SECONDS = 20.0


def record(
    policy: Policy,
    sources: Sources,
    node_name: str,
    places: tuple[Path, Path, Path],
    api: Getter | None,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Look a few times. `places`: procfs, the kubelet's socket, the pods' logs."""
    procfs, socket, logs = places
    kubelet, names, tap = KubeletTap(socket), PodNamesTap(logs), ApiTap(api) if api else None
    parts = replace(
        sources,
        kubelet=kubelet.read,
        pod_names=names.read,
        pods=PodsSource(tap, node_name).read if tap else None,
        node=NodeSource(tap, node_name).read if tap else None,
    )
    gather = Gatherer(parts, LONGEST_WAIT, node_name)
    slot: Slot[dict[str, Any]] = Slot("proc")
    looks = []
    report: Report | None = None
    for number in range(LOOKS):
        if number:
            sleep(BETWEEN)
        snapshot = gather(report)
        objects = tap.objects if tap else {}
        raw = {
            "kubelet": dict(kubelet.replies) if isinstance(snapshot.kubelet, Seen) else {},
            "pods": objects.get(PODS_PATH) if isinstance(snapshot.pods, Seen) else None,
            "node": next((one for path, one in objects.items() if path != PODS_PATH), None)
            if isinstance(snapshot.node, Seen)
            else None,
            "pod_names": dict(names.directories) if isinstance(snapshot.pod_names, Seen) else None,
            "proc": _proc(slot, procfs, snapshot),
        }
        looks.append({"snapshot": encode(snapshot), "raw": raw})
        report = advance(policy, report, snapshot)
    return {"format": FORMAT, "version": __version__, "masked": False, "looks": looks}


def _proc(slot: Slot[dict[str, Any]], procfs: Path, snapshot: Snapshot) -> dict[str, Any] | None:
    """The texts of /proc; None where it could not be scanned, or a process' files do not answer."""
    if not isinstance(snapshot.processes, Seen):
        return None
    table = snapshot.processes.value
    slot.start(lambda: (proc.read(procfs, table), True), 0.0)
    reading = slot.collect(time.monotonic() + PROC_SECONDS)
    return None if isinstance(reading, Missed) or not isinstance(reading, Seen) else reading.value
