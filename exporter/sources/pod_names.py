"""Source pod_names: which pod a UID is, from the names of log directories, without API server or kubelet.

What comes in is /var/log/pods: a directory `<namespace>_<name>_<uid>` per pod (kubelet,
pkg/kubelet/kuberuntime/helpers.go, BuildPodLogsDirectory) with one per container in it. What goes out is
those names; only names are read. It must never follow a link, open a log or walk without end: whoever can
write to a log directory may have made the tree.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from exporter.model import PodName, PodNames, Reason, SourceError
from exporter.text import NAME_LIMIT, printable

ENTRIES = 20_000  # looked at in one read, over the whole tree
# Seconds after which a directory that has not changed is taken to be as it was when it was listed: the
# kernel's time stamps are some milliseconds coarse, so that a change right after a look may leave no trace.
SETTLED = 2.0

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class PodNamesSource:
    """One directory of pod logs; `root` itself may be a link, as where logs have a disk of their own."""

    name = "pod_names"

    def __init__(self, root: Path, wall: Callable[[], float] = time.time) -> None:
        self._root = root
        self._wall = wall
        self._known: dict[str, _Listed] = {}  # directories of pods that had settled when they were listed

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
            walk = _Walk(self._known, self._wall())
            names = sorted(walk.pods(root), key=lambda n: (n.namespace, n.name, n.uid))
            self._known = walk.listed
            return PodNames(tuple(names)), walk.complete
        except OSError as error:
            raise SourceError(Reason.UNAVAILABLE, f"{self._root}: {error.strerror}") from error
        finally:
            os.close(root)


@dataclass(frozen=True, slots=True)
class _Listed:
    """What a pod's directory said, and by what it is told whether it still does."""

    inode: int
    changed_ns: int
    pod: PodName


class _Walk:
    """One look at the tree, and what is left of its allowance."""

    def __init__(self, known: Mapping[str, _Listed], now: float) -> None:
        self.complete = True
        self._now = now
        self.listed: dict[str, _Listed] = {}
        self._known = known
        self._left = ENTRIES

    def pods(self, root: int) -> Iterator[PodName]:
        for directory in self._directories(root):
            known = self._known.get(directory)
            if known is not None and _stamp(root, directory) == (known.inode, known.changed_ns):
                self.listed[directory] = known
                yield known.pod
                continue
            parts = directory.split("_")
            if len(parts) == 3 and all(parts) and printable(directory, len(directory)) == directory:
                yield self._pod(root, directory, *parts)

    def _pod(self, root: int, directory: str, *parts: str) -> PodName:
        namespace, name, uid = (printable(part, NAME_LIMIT) for part in parts)
        inode, changed_ns = _stamp(root, directory)  # before it is listed
        pod = PodName(uid, namespace, name, self._containers(root, directory))
        if self.complete and self._now - changed_ns / 1e9 > SETTLED:
            self.listed[directory] = _Listed(inode, changed_ns, pod)
        return pod

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


def _stamp(root: int, directory: str) -> tuple[int, int]:
    """Which directory it is, and when it last changed; the present where it cannot be asked."""
    try:
        found = os.stat(directory, dir_fd=root, follow_symlinks=False)
    except OSError:
        return 0, time.time_ns()
    return found.st_ino, found.st_ctime_ns
