"""Which NVIDIA device files a container can see in its /dev. Runs in the `host` child.

In: live containers, each with one of its processes. Out: the device nodes in that process' /dev, by number,
whether that is the host's /dev, and what the process runs. A container's file tree is hostile: it is entered
only where mountinfo says that /dev is a tmpfs or devtmpfs, no link in it is followed, no file in it is
opened, and only directories of that very mount are listed. Anything else is `unseen`, not empty.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

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


# What decides what a /dev shows: the directory itself, and what is mounted at it and below it.
_Place: TypeAlias = tuple[tuple[int, int], int, tuple[Mount, ...]]


class Viewer:
    """Remembers the last view of each container, and looks again at a quarter of them in each call."""

    def __init__(self, procfs: Path) -> None:
        self._procfs = procfs
        self._calls = 0
        self._views: dict[tuple[str, ProcessId], ContainerView] = {}
        # Directories listed in this call: many containers may have one, as the host's.
        self._listed: dict[_Place, tuple[DeviceNode, ...]] = {}

    def look(self, containers: Sequence[LiveContainer]) -> ContainerDev:
        """Views of the given containers. Raises SourceError where /proc/devices cannot be read."""
        try:
            majors = Majors((self._procfs / "devices").read_text("utf-8", "replace"))
        except OSError as error:
            raise SourceError(Reason.UNAVAILABLE, f"{self._procfs}/devices: {error.strerror}") from error
        self._calls += 1
        self._listed.clear()
        host = self._host_dev()
        views = {}
        for container in containers:
            key = (container.container_id, container.process)
            due = (container.process.pid + self._calls) % REFRESH == 0
            known = self._views.get(key)
            fresh = known is not None and not known.unseen and not due
            views[key] = known if known and fresh else self._view(container, majors, host)
        self._views = views
        return ContainerDev(tuple(views.values()))

    def _host_dev(self) -> tuple[int, int] | None:
        """The file system of the host's /dev; None where pid 1 cannot be asked, or has none of its own."""
        try:
            with ProcessDirectory(f"{self._procfs}/1") as process:
                return _dev_mount(_mounts(process)).device
        except (OSError, _UnsafeError):
            return None

    def _view(self, container: LiveContainer, majors: Majors, host: tuple[int, int] | None) -> ContainerView:
        nodes: tuple[DeviceNode, ...] = ()
        unseen = exe = ""
        of_host = False
        try:
            with ProcessDirectory(f"{self._procfs}/{container.process.pid}") as process:
                if process.stat().start != container.process.start:
                    raise ProcessLookupError
                exe = _executable(process)
                mounts = _mounts(process)
                mount = _dev_mount(mounts)
                of_host = mount.device == host
                nodes = self._nodes(process, mounts, mount, majors)
        except GONE:
            unseen = "gone"
        except PermissionError:
            unseen = "denied"
        except _UnsafeError as error:
            unseen = str(error)
        except OSError as error:  # a zombie's mountinfo gives EINVAL; no container may hide the others
            unseen = printable(f"{error.filename}: {error.strerror}")
        return ContainerView(container.pod_uid, container.container_id, nodes, unseen, of_host, exe)

    def _nodes(
        self, process: ProcessDirectory, mounts: tuple[Mount, ...], mount: Mount, majors: Majors
    ) -> tuple[DeviceNode, ...]:
        root = os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process.fd)
        try:
            dev = os.open("dev", _OPEN, dir_fd=root)
        except OSError as error:
            raise _UnsafeError("no directory /dev") from error
        finally:
            os.close(root)
        try:
            number = file_number(dev, ".", follow=False)
            if number.filesystem != mount.device:
                raise _UnsafeError("/dev changed while it was looked at")
            place = (number.filesystem, number.inode, mounts)
            if place not in self._listed:
                found = (node for name in _BELOW for node in _listed(dev, name, mount, majors))
                self._listed[place] = tuple(sorted(set(found)))
            return self._listed[place]
        finally:
            os.close(dev)


class _UnsafeError(Exception):
    """A /dev that is not to be entered; the text says what it is."""


def _executable(process: ProcessDirectory) -> str:
    try:
        return printable(process.link("exe"))
    except OSError:  # as a zombie's; it says nothing about its /dev
        return ""


def _mounts(process: ProcessDirectory) -> tuple[Mount, ...]:
    """The mounts at /dev and below it."""
    lines = process.read_all("mountinfo").split(b"\n")
    return parse_mounts(b"\n".join(line for line in lines if b" /dev" in line))


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
