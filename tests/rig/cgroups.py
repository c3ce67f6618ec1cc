"""Real control groups for pods, containers and host services, in every hierarchy that can be written.

Real: the directories and the memberships; /proc/PID/cgroup shows them. The paths are the kubelet's, below
wherever this process's hierarchies are mounted: on a bare host that is the root, in a container without a
cgroup namespace its own group comes first, and a reader must not care. Works with version 1, hybrid and
version 2 only. On a machine with a kubelet of its own give a `prefix`: the kubelet kills what it finds in
pod groups unknown to it.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.rig.errors import RigError

Driver = Literal["cgroupfs", "systemd"]
Qos = Literal["guaranteed", "burstable", "besteffort"]
REMOVE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted hierarchy: `controllers` is "" for version 2."""

    mount: Path
    controllers: str


def hierarchies() -> list[Hierarchy]:
    """All hierarchies mounted writable here, from /proc/self/mountinfo."""
    found: dict[Path, Hierarchy] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ", 1)
        kind, _, options = right.split(" ", 2)
        point = Path(left.split(" ")[4])
        if kind not in {"cgroup", "cgroup2"} or not os.access(point, os.W_OK):
            continue
        flags = {"rw", "ro", "xattr", "clone_children", "nsdelegate", "memory_recursiveprot"}
        names = [word for word in options.split(",") if word not in flags]
        found[point] = Hierarchy(point, ",".join(names) if kind == "cgroup" else "")
    if not found:
        raise RigError(
            "no writable cgroup hierarchy: run with CAP_SYS_ADMIN and /sys/fs/cgroup mounted read-write"
        )
    return list(found.values())


def pod_path(uid: str, qos: Qos = "burstable", driver: Driver = "cgroupfs") -> str:
    """The group of a pod as the kubelet names it, without a leading slash."""
    if driver == "cgroupfs":
        return "/".join(["kubepods", *([] if qos == "guaranteed" else [qos]), f"pod{uid}"])
    level = "kubepods" if qos == "guaranteed" else f"kubepods-{qos}"
    middle = [] if qos == "guaranteed" else [f"{level}.slice"]
    return "/".join(["kubepods.slice", *middle, f"{level}-pod{uid.replace('-', '_')}.slice"])


def container_path(
    uid: str,
    container_id: str,
    qos: Qos = "burstable",
    driver: Driver = "cgroupfs",
    runtime: str = "cri-containerd",
) -> str:
    """The group of a container as containerd (or `runtime`) names it."""
    leaf = container_id if driver == "cgroupfs" else f"{runtime}-{container_id}.scope"
    return f"{pod_path(uid, qos, driver)}/{leaf}"


class ControlGroup:
    """One path in all hierarchies."""

    def __init__(self, path: str, directories: list[tuple[Hierarchy, Path]]) -> None:
        self.path = path
        self._directories = directories

    @property
    def procs(self) -> list[Path]:
        """The cgroup.procs file in each hierarchy: a process that writes 0 moves itself."""
        return [directory / "cgroup.procs" for _, directory in self._directories]

    def move(self, pid: int) -> None:
        """Move a process here; its children stay where they are."""
        for path in self.procs:
            path.write_text(str(pid))

    def freeze(self, frozen: bool = True) -> str:
        """Freeze or thaw; "v1" means that the tasks now read as state D and outlive SIGKILL, "v2" neither."""
        for hierarchy, directory in self._directories:
            if "freezer" in hierarchy.controllers.split(","):
                self._switch(directory / "freezer.state", "FROZEN" if frozen else "THAWED", directory)
                return "v1"
        for hierarchy, directory in self._directories:
            if not hierarchy.controllers and (directory / "cgroup.freeze").exists():
                (directory / "cgroup.freeze").write_text("1" if frozen else "0")
                return "v2"
        raise RigError("no freezer: neither a version 1 freezer hierarchy nor cgroup.freeze")

    def remove(self) -> None:
        """Thaw it and remove its directories. End its processes first: one with a process in it stays."""
        self.thaw()
        for _, directory in self._directories:
            _remove(directory)

    def thaw(self) -> None:
        """Thaw it if it can be frozen at all."""
        with contextlib.suppress(RigError, OSError):
            self.freeze(False)

    @staticmethod
    def _switch(path: Path, word: str, directory: Path) -> None:
        path.write_text(word)
        deadline = time.monotonic() + REMOVE_SECONDS
        while path.read_text().strip() != word:
            if time.monotonic() > deadline:
                raise RigError(f"{directory} did not become {word}")
            time.sleep(0.01)


class ControlGroups:
    """Makes groups and removes them at the end, with those parents that it made.

    `only_v2` leaves the version 1 hierarchies alone, so that a hybrid host shows what a new one does.
    """

    def __init__(self, prefix: str = "", *, only_v2: bool = False) -> None:
        self.prefix = prefix.strip("/")
        self._hierarchies = [one for one in hierarchies() if not (only_v2 and one.controllers)]
        if not self._hierarchies:
            raise RigError("no writable version 2 hierarchy")
        self._groups: dict[str, ControlGroup] = {}
        self._parents: list[Path] = []

    def make(self, path: str) -> ControlGroup:
        """The group with this path, below the prefix."""
        path = "/".join(part for part in (self.prefix, path.strip("/")) if part)
        if path not in self._groups:
            made = [(hierarchy, self._make(hierarchy, path)) for hierarchy in self._hierarchies]
            self._groups[path] = ControlGroup(path, made)
        return self._groups[path]

    def pod(self, uid: str, qos: Qos = "burstable", driver: Driver = "cgroupfs") -> ControlGroup:
        """A pod's group, such as the pause container's parent."""
        return self.make(pod_path(uid, qos, driver))

    def container(
        self, uid: str, container_id: str, qos: Qos = "burstable", driver: Driver = "cgroupfs"
    ) -> ControlGroup:
        """A container's group."""
        return self.make(container_path(uid, container_id, qos, driver))

    def service(self, unit: str = "x.service", slice_: str = "system.slice") -> ControlGroup:
        """A host service's group."""
        return self.make(f"{slice_}/{unit}")

    def thaw(self) -> None:
        """Thaw everything, so that its processes can end."""
        for group in self._groups.values():
            group.thaw()

    def close(self) -> None:
        """Remove everything that was made."""
        for path in sorted(self._groups, key=lambda path: path.count("/"), reverse=True):
            self._groups[path].remove()
        self._groups.clear()
        for directory in sorted(self._parents, key=lambda path: len(path.parts), reverse=True):
            with contextlib.suppress(OSError):
                directory.rmdir()
        self._parents.clear()

    def _make(self, hierarchy: Hierarchy, path: str) -> Path:
        directory = hierarchy.mount
        for part in path.split("/"):
            directory /= part
            # Another rig may remove a shared parent between our mkdir and the next: then start again.
            try:
                directory.mkdir()
            except FileExistsError:
                continue
            except FileNotFoundError:
                return self._make(hierarchy, path)
            except OSError as error:
                raise RigError(f"cannot make the control group {directory}: {error}") from error
            self._parents.append(directory)
            _inherit_cpuset(directory)
        return directory


def _inherit_cpuset(directory: Path) -> None:
    """Version 1: a new cpuset is empty and takes no process until it is filled from its parent."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        path = directory / name
        if path.exists() and (directory / "cgroup.clone_children").exists() and not path.read_text().strip():
            path.write_text((directory.parent / name).read_text())


def _remove(directory: Path) -> None:
    """Remove a group once its processes have left; one that another rig is using stays for that one."""
    deadline = time.monotonic() + REMOVE_SECONDS
    while directory.exists():
        try:
            directory.rmdir()
        except OSError:
            if time.monotonic() > deadline or any(entry.is_dir() for entry in directory.iterdir()):
                return
            time.sleep(0.01)
