"""Source pod_names: which pod a UID is, from the names of log directories, without API server or kubelet.

What comes in is /var/log/pods: a directory `<namespace>_<name>_<uid>` per pod (kubelet,
pkg/kubelet/kuberuntime/helpers.go, BuildPodLogsDirectory) with one per container in it. What goes out is
those names; only names are read. It must never follow a link, open a log or walk without end: whoever can
write to a log directory may have made the tree.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from exporter.model import PodName, PodNames, Reason, SourceError
from exporter.text import NAME_LIMIT, printable

ENTRIES = 20_000  # looked at in one read, over the whole tree

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class PodNamesSource:
    """One directory of pod logs; `root` itself may be a link, as where logs have a disk of their own."""

    name = "pod_names"

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self) -> tuple[PodNames, bool]:
        """Return the names, and whether every directory could be looked at; raises SourceError."""
        try:
            root = os.open(self._root, _DIRECTORY)
        except PermissionError as error:
            raise SourceError(Reason.DENIED, f"may not list {self._root}") from error
        except OSError as error:
            text = f"{self._root}: {error.strerror}; set --path.pod-logs"
            raise SourceError(Reason.UNAVAILABLE, text) from error
        try:
            walk = _Walk()
            names = sorted(walk.pods(root), key=lambda n: (n.namespace, n.name, n.uid))
            return PodNames(tuple(names)), walk.complete
        except OSError as error:
            raise SourceError(Reason.UNAVAILABLE, f"{self._root}: {error.strerror}") from error
        finally:
            os.close(root)


class _Walk:
    """One look at the tree, and what is left of its allowance."""

    def __init__(self) -> None:
        self.complete = True
        self._left = ENTRIES

    def pods(self, root: int) -> Iterator[PodName]:
        for directory in self._directories(root):
            parts = directory.split("_")
            if len(parts) == 3 and all(parts) and printable(directory, len(directory)) == directory:
                namespace, name, uid = (printable(part, NAME_LIMIT) for part in parts)
                yield PodName(uid, namespace, name, self._containers(root, directory))

    def _containers(self, root: int, directory: str) -> tuple[str, ...]:
        try:
            pod = os.open(directory, _DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
        except FileNotFoundError:
            return ()  # the kubelet has just removed it
        except OSError:
            self.complete = False
            return ()
        try:
            return tuple(sorted(printable(name, NAME_LIMIT) for name in self._directories(pod)))
        except OSError:
            self.complete = False
            return ()
        finally:
            os.close(pod)

    def _directories(self, descriptor: int) -> Iterator[str]:
        """Names of the directories in one, links to directories left out."""
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if self._left == 0:
                    self.complete = False
                    return
                self._left -= 1
                if entry.is_dir(follow_symlinks=False):
                    yield entry.name
