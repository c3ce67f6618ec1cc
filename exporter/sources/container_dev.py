"""Which NVIDIA device files a container can see in its /dev. Runs in the `host` child.

In: live containers, each with one of its processes. Out: the device nodes in that process' /dev, by number. A
container's file tree is hostile: it is entered only where mountinfo says that /dev is a tmpfs or devtmpfs, no
link in it is followed, no file in it is opened, and only directories of that very mount are listed. Anything
else is `unseen`, not empty.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from exporter.model import (
    ContainerDev,
    ContainerView,
    DeviceNode,
    LiveContainer,
    ProcessId,
    Reason,
    SourceError,
)
from exporter.sources.device_files import Majors, file_number
from exporter.sources.procfs import GONE, Mount, ProcessDirectory, parse_mounts
from exporter.text import printable

REFRESH = 4  # scans in which every container's /dev is looked at once; new containers at once
ENTRY_LIMIT = 4_096
_SAFE = ("tmpfs", "devtmpfs")
_BELOW = ("", "nvidia-caps", "nvidia-caps-imex-channels")  # where the driver puts its nodes
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Viewer:
    """Remembers the last view of each container, and looks again at a quarter of them in each call."""

    def __init__(self, procfs: Path) -> None:
        self._procfs = procfs
        self._calls = 0
        self._views: dict[tuple[str, ProcessId], ContainerView] = {}

    def look(self, containers: Sequence[LiveContainer]) -> ContainerDev:
        """Views of the given containers. Raises SourceError where /proc/devices cannot be read."""
        try:
            majors = Majors((self._procfs / "devices").read_text("utf-8", "replace"))
        except OSError as error:
            raise SourceError(Reason.UNAVAILABLE, f"{self._procfs}/devices: {error.strerror}") from error
        self._calls += 1
        views = {}
        for container in containers:
            key = (container.container_id, container.process)
            due = (container.process.pid + self._calls) % REFRESH == 0
            known = self._views.get(key)
            views[key] = known if known and not known.unseen and not due else self._view(container, majors)
        self._views = views
        return ContainerDev(tuple(views.values()))

    def _view(self, container: LiveContainer, majors: Majors) -> ContainerView:
        nodes: tuple[DeviceNode, ...] = ()
        unseen = ""
        try:
            with ProcessDirectory(f"{self._procfs}/{container.process.pid}") as process:
                if process.stat().start != container.process.start:
                    raise ProcessLookupError
                nodes = tuple(sorted(set(_nodes(process, majors))))
        except GONE:
            unseen = "gone"
        except PermissionError:
            unseen = "denied"
        except _UnsafeError as error:
            unseen = str(error)
        except OSError as error:  # a zombie's mountinfo gives EINVAL; no container may hide the others
            unseen = printable(f"{error.filename}: {error.strerror}")
        return ContainerView(container.pod_uid, container.container_id, nodes, unseen)


class _UnsafeError(Exception):
    """A /dev that is not to be entered; the text says what it is."""


def _nodes(process: ProcessDirectory, majors: Majors) -> Iterator[DeviceNode]:
    mount = _dev_mount(parse_mounts(process.read_all("mountinfo")))
    root = os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process.fd)
    try:
        dev = os.open("dev", _OPEN, dir_fd=root)
    except OSError as error:
        raise _UnsafeError("no directory /dev") from error
    finally:
        os.close(root)
    try:
        if file_number(dev, ".", follow=False).filesystem != mount.device:
            raise _UnsafeError("/dev changed while it was looked at")
        for name in _BELOW:
            yield from _listed(dev, name, mount, majors)
    finally:
        os.close(dev)


def _dev_mount(mounts: Sequence[Mount]) -> Mount:
    mount = next((m for m in reversed(mounts) if m.point == "/dev"), None)
    if mount is None or mount.kind not in _SAFE:
        raise _UnsafeError(f"/dev is {mount.kind if mount else 'no mount of its own'}")
    return mount


def _listed(dev: int, below: str, mount: Mount, majors: Majors) -> Iterator[DeviceNode]:
    try:
        if below and file_number(dev, below, follow=False).filesystem != mount.device:
            raise _UnsafeError(f"/dev/{below} is a mount of its own")
        directory = os.open(below or ".", _OPEN, dir_fd=dev)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise _UnsafeError(f"/dev/{below}: {error.strerror}") from error
    try:
        names = os.listdir(directory)
        if len(names) > ENTRY_LIMIT:
            raise _UnsafeError(f"/dev/{below} has {len(names)} entries")
        for name in names:
            try:
                node = majors.node(file_number(directory, name, follow=False).character)
            except GONE:
                continue
            if node is not None:
                yield node
    finally:
        os.close(directory)
