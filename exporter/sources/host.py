"""The `host` child: whatever reads other processes' /proc or a container's /dev, which may hang in the
kernel.

Child half: answers `processes` and `container_dev` requests with `Scanner` and `Viewer`. Parent half:
`HostSource`, the agent's side of both. Run as `python -I -m exporter.sources.host PROCFS`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from exporter.codec import CodecError, decode, encode
from exporter.model import ContainerDev, LiveContainer, ProcessTable, Reason, SourceError
from exporter.sources.child import Child, Part, serve

SECONDS = 60.0  # a scan that takes longer is given up, and its child is killed


class HostSource:
    """Sources `processes` and `container_dev`. Calls block; a second one at a time is refused as busy."""

    def __init__(self, procfs: Path, seconds: float = SECONDS) -> None:
        self._child = Child("exporter.sources.host", (str(procfs),))
        self._seconds = seconds

    def read_processes(self, numbers: Collection[int], watched: Collection[int]) -> tuple[ProcessTable, bool]:
        """Holders, the processes behind NVML's `numbers`, and `watched` pids that held or were named before.

        Complete where every process could be read.

        Raises SourceError: blind (foreign pid namespace, hidepid), denied, unavailable, timeout, busy,
        protocol.
        """
        request = {"numbers": sorted(numbers), "watched": sorted(watched)}
        table = self._ask("processes", request, ProcessTable)
        if table.driver_loaded and table.scanned > 1 and len(table.unreadable) >= table.scanned - 1:
            raise SourceError(
                Reason.DENIED, "no process may be looked at: run as root with SYS_PTRACE and DAC_READ_SEARCH"
            )
        return table, not table.unreadable and not table.truncated

    def read_views(self, containers: Sequence[LiveContainer]) -> tuple[ContainerDev, bool]:
        """The GPU nodes that each container's /dev shows. Complete where none is `unseen`."""
        dev = self._ask("container_dev", {"containers": encode(tuple(containers))}, ContainerDev)
        return dev, not any(view.unseen for view in dev.views)

    def close(self) -> None:
        """Stop the child for good."""
        self._child.close()

    def _ask(self, op: str, request: Mapping[str, Any], kind: Any) -> Any:
        answer = self._child.call(op, request, self._seconds)
        try:
            return decode(kind, answer)
        except CodecError as error:
            raise SourceError(Reason.PROTOCOL, str(error)) from error


def main() -> None:
    """The child."""
    # Imported here: the parent needs the class above, and none of what the child works with.
    from exporter.sources.container_dev import Viewer  # noqa: PLC0415
    from exporter.sources.processes import Scanner  # noqa: PLC0415

    procfs = Path(sys.argv[1])
    scanner, viewer = Scanner(procfs), Viewer(procfs)

    def processes(request: Mapping[str, Any], _part: Part) -> Any:
        return encode(scanner.scan(request["numbers"], request["watched"]))

    def container_dev(request: Mapping[str, Any], _part: Part) -> Any:
        return encode(viewer.look(decode(tuple[LiveContainer, ...], request["containers"])))

    serve({"processes": processes, "container_dev": container_dev})


if __name__ == "__main__":
    main()
