"""The `host` child: what reads other processes' /proc, a container's /dev, or the driver's files in /proc.

All of that may hang in the kernel. Child half: answers requests with `Scanner`, `Viewer` and `PciSource`.
Parent half: `HostSource`, the agent's side of all three. Run as
`python -I -m exporter.sources.host PROCFS SYSFS`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from exporter.codec import CodecError, decode, encode
from exporter.model import (
    ContainerDev,
    ContainerView,
    LiveContainer,
    Missed,
    Pci,
    Process,
    ProcessId,
    ProcessTable,
    Reason,
    Seen,
    SourceError,
)
from exporter.sources.child import Child, Part, serve

SECONDS = 60.0  # a scan that takes longer is given up, and its child is killed
PORTION = 32  # processes in one part of an answer
PCI_SECONDS = 0.5  # what the other requests of this child may be held up by a driver that does not answer


class HostSource:
    """Sources `processes`, `container_dev` and `pci`. Calls block; one at a time."""

    def __init__(self, procfs: Path, sysfs: Path, seconds: float = SECONDS) -> None:
        self._child = Child("exporter.sources.host", (str(procfs), str(sysfs)))
        self._seconds = seconds
        self._views: dict[str, ContainerView] = {}

    def read_processes(self, numbers: Collection[int], watched: Collection[int]) -> tuple[ProcessTable, bool]:
        """Holders, the processes behind NVML's `numbers`, and `watched` pids that held or were named before.

        Complete where every process could be read.

        Raises SourceError: blind (foreign pid namespace, hidepid), denied, unavailable, timeout, busy,
        protocol.
        """
        request = {"numbers": sorted(numbers), "watched": sorted(watched)}
        # In portions: to read JSON is one call, during which nothing else runs in this process.
        parts: list[Any] = []
        table = self._ask("processes", request, ProcessTable, lambda _, plain: parts.append(plain))
        processes = tuple(process for plain in parts for process in _decoded(tuple[Process, ...], plain))
        table = replace(table, processes=processes)
        return table, not table.unreadable and not table.truncated

    def read_views(self, containers: Sequence[LiveContainer]) -> tuple[ContainerDev, bool]:
        """The GPU nodes that each container's /dev shows. Complete where none is `unseen`."""
        rows = [(one.pod_uid, one.container_id, (one.process.pid, one.process.start)) for one in containers]
        # Views come as texts: nearly all are those of the last time, and need not be read again.
        texts = self._ask("container_dev", {"containers": rows}, tuple[str, ...])
        known = self._views
        self._views = {text: known.get(text) or _view(text) for text in texts}
        views = tuple(self._views[text] for text in texts)
        return ContainerDev(views), not any(view.unseen for view in views)

    def read_pci(self) -> tuple[Pci, bool]:
        """The GPUs on the bus. Complete where every device could be read; timeout where the driver hangs."""
        reading = self._ask("pci", {}, Seen[Pci])
        return reading.value, reading.complete

    def close(self) -> None:
        """Stop the child for good."""
        self._child.close()

    def _ask(
        self, op: str, request: Mapping[str, Any], kind: Any, part: Part = lambda _name, _plain: None
    ) -> Any:
        return _decoded(kind, self._child.call(op, request, self._seconds, part))


def _decoded(kind: Any, plain: Any) -> Any:
    try:
        return decode(kind, plain)
    except CodecError as error:
        raise SourceError(Reason.PROTOCOL, str(error)) from error


def _view(text: str) -> ContainerView:
    try:
        view: ContainerView = _decoded(ContainerView, json.loads(text))
    except ValueError as error:
        raise SourceError(Reason.PROTOCOL, f"a view that is no JSON: {error}") from error
    return view


class _Texts:
    """Views as texts; one that is the object of the last time is not written anew."""

    def __init__(self) -> None:
        self._written: dict[int, tuple[ContainerView, str]] = {}

    def of(self, views: Sequence[ContainerView]) -> list[str]:
        """The text of each."""
        before, self._written = self._written, {}
        for view in views:
            known = before.get(id(view))  # held by `before`, so that no other view can have its id
            if known is None:
                known = (view, json.dumps(encode(view), separators=(",", ":")))
            self._written[id(view)] = known
        return [self._written[id(view)][1] for view in views]


def main() -> None:
    """The child."""
    # Imported here: the parent needs the class above, and none of what the child works with.
    from exporter.slots import Slot  # noqa: PLC0415
    from exporter.sources.container_dev import Viewer  # noqa: PLC0415
    from exporter.sources.pci import PciSource  # noqa: PLC0415
    from exporter.sources.processes import Scanner  # noqa: PLC0415

    procfs, sysfs = (Path(argument) for argument in sys.argv[1:3])
    scanner, viewer, bus = Scanner(procfs), Viewer(procfs), PciSource(sysfs, procfs)
    texts = _Texts()
    # The driver's files are read aside: a wedged driver must not keep this child from scanning for holders.
    slot: Slot[Pci] = Slot("pci")

    def processes(request: Mapping[str, Any], part: Part) -> Any:
        table = scanner.scan(request["numbers"], request["watched"])
        for first in range(0, len(table.processes), PORTION):
            part("processes", encode(table.processes[first : first + PORTION]))
        return encode(replace(table, processes=()))

    def container_dev(request: Mapping[str, Any], _part: Part) -> Any:
        rows = request["containers"]
        containers = tuple(LiveContainer(pod, one, ProcessId(*process)) for pod, one, process in rows)
        return texts.of(viewer.look(containers).views)

    def pci(_request: Mapping[str, Any], _part: Part) -> Any:
        slot.start(bus.read, fresh_for=0.0)
        reading = slot.collect(time.monotonic() + PCI_SECONDS)
        if isinstance(reading, Missed):
            raise SourceError(reading.reason, reading.detail)
        return encode(reading)

    serve({"processes": processes, "container_dev": container_dev, "pci": pci})


if __name__ == "__main__":
    main()
