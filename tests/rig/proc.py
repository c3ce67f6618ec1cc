"""A substitute /proc: the real one bound elsewhere, with a few files of the NVIDIA driver laid over it.

Real: everything about processes. Stand-in: `devices`, which names the stand-in majors, and the directory
`driver`, which a procfs has on every kernel but in which nothing can be made, so it is covered as a whole.
`self` and `thread-self` resolve for whoever reads them, as in the real one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.rig.errors import RigError
from tests.rig.mounts import bind


class SubstituteProc:
    """The real /proc at `root`/proc with stand-in `devices` and `driver`. It ends with the workspace."""

    def __init__(self, root: Path, devices: str) -> None:
        self.path = root / "proc"
        self._devices = root / "proc-devices"
        self._driver = root / "proc-driver"
        self.path.mkdir()
        self._driver.mkdir()
        self._devices.write_text(devices)
        bind(Path("/proc"), self.path)
        bind(self._devices, self.path / "devices")
        if not (self.path / "driver").is_dir():
            raise RigError("/proc/driver is missing on this kernel: it cannot be covered")
        bind(self._driver, self.path / "driver")

    def set_devices(self, text: str) -> None:
        """Replace the text of `devices` in place: a driver that was reloaded has other majors."""
        self._devices.write_text(text)

    def write_driver(self, files: Mapping[str, str]) -> None:
        """Write files below `driver`, named relative to it, such as nvidia/gpus/0000:01:00.0/information."""
        for name, text in files.items():
            path = self._driver / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def substitute_proc(root: Path, devices: str) -> SubstituteProc:
    """The real /proc under `root` (a Workspace path), reading `devices` in place of /proc/devices."""
    return SubstituteProc(root, devices)
