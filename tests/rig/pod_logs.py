"""The kubelet's log tree, <namespace>_<name>_<uid>/<container>/<restart>.log, as below /var/log/pods.

Real: directories and files. A static pod's directory carries its config hash as uid.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path


class PodLogs:
    """A tree of pod log directories at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def add(self, namespace: str, name: str, uid: str, containers: Iterable[str] = ("main",)) -> Path:
        """Make a pod's directory, with one log for each container."""
        folder = self.root / f"{namespace}_{name}_{uid}"
        for container in containers:
            (folder / container).mkdir(parents=True, exist_ok=True)
            (folder / container / "0.log").write_text("2026-01-01T00:00:00.000000000Z stdout F ready\n")
        return folder

    def remove(self, namespace: str, name: str, uid: str) -> None:
        """Remove a pod's directory, as the kubelet does some time after the pod is gone."""
        shutil.rmtree(self.root / f"{namespace}_{name}_{uid}")
