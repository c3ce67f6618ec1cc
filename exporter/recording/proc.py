"""The texts of /proc behind a scan: of the node, and of each process that the scan told of.

Read just after the scan, so a process may have moved on or ended meanwhile. Only what the scan itself reads
is read, by the same ways: nothing is opened but files of /proc, and descriptors are asked about by statx.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exporter.model import Process, ProcessTable
from exporter.sources.device_files import Majors, file_number
from exporter.sources.procfs import ProcessDirectory

OF_NODE = {"devices": "devices", "mig_minors": "driver/nvidia-caps/mig-minors"}
OF_PROCESS = ("stat", "cgroup", "wchan")
# What says something of a process in its status; the rest is nobody's business.
STATUS = (b"Name", b"Tgid", b"SigPnd", b"ShdPnd", b"CoreDumping")
_START = 20  # fields of stat after the name, the last of them the start time
LIMIT = 1 << 20  # bytes of one text


def read(procfs: Path, table: ProcessTable) -> dict[str, Any]:
    """The texts, bytes as Latin-1: JSON has no bytes, and any of them may occur."""
    texts = {name: text for name, path in OF_NODE.items() if (text := _text(procfs / path)) is not None}
    majors = Majors(texts.get("devices", ""))
    processes = {}
    for process in table.processes:
        try:
            processes[str(process.id.pid)] = _process(procfs, process, majors)
        except OSError:
            continue  # it has ended, or is not ours to read: the snapshot says what the scan saw
    return {**texts, "processes": processes}


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(LIMIT).decode("latin-1")
    except OSError:
        return None


def _process(procfs: Path, process: Process, majors: Majors) -> dict[str, Any]:
    with ProcessDirectory(f"{procfs}/{process.id.pid}") as directory:
        found: dict[str, Any] = {}
        for name in OF_PROCESS:
            try:
                found[name] = directory.read(name).decode("latin-1")
            except PermissionError:
                found[name] = ""
        found["stat"] = _without_addresses(found["stat"])
        lines = directory.read("status", 16384).split(b"\n")
        found["status"] = b"\n".join(line for line in lines if line.split(b":")[0] in STATUS).decode(
            "latin-1"
        )
        if process.holds:
            found["descriptors"] = [*_descriptors(directory, majors)]
            found["maps"] = [*_maps(directory)]
        if process.blocked:
            found["tasks"] = {str(task.tid): _task(procfs, process, task.tid) for task in process.blocked}
        return found


def _without_addresses(stat: str) -> str:
    """A text of stat in which all after the start time, which is addresses and the like, is 0."""
    head, bracket, tail = stat.rpartition(")")
    fields = tail.split()
    return f"{head}{bracket} {' '.join(fields[:_START] + ['0'] * len(fields[_START:]))}\n"


def _descriptors(directory: ProcessDirectory, majors: Majors) -> Iterator[dict[str, Any]]:
    """Those of device files: what the link says, what the kernel says, and how it was opened."""
    try:
        table = directory.open("fd")
    except PermissionError:
        return
    try:
        for name in sorted(directory.names("fd"), key=int):
            try:
                number = file_number(table, name, follow=True)
                if majors.node(number.character) is not None:
                    info = directory.read(f"fdinfo/{name}", 4096).decode("latin-1")
                    flags = next(
                        (line.split()[1] for line in info.splitlines() if line.startswith("flags:")), "0"
                    )
                    text = os.fsencode(os.readlink(name, dir_fd=table)).decode("latin-1")
                    yield {"fd": int(name), "text": text, "number": number.character, "flags": flags}
            except OSError:
                continue
    finally:
        os.close(table)


def _maps(directory: ProcessDirectory) -> Iterator[str]:
    try:
        lines = directory.read_all("maps", 16 * LIMIT).split(b"\n")
    except OSError:
        return
    for line in lines:
        fields = line.split(None, 5)
        if len(fields) == 6 and (b"nvidia" in fields[5] or fields[5].startswith(b"/dev/")):
            yield line.decode("latin-1")


def _task(procfs: Path, process: Process, tid: int) -> dict[str, str]:
    try:
        with ProcessDirectory(f"{procfs}/{process.id.pid}/task/{tid}") as task:
            stat, wchan = (task.read(name, 4096).decode("latin-1") for name in ("stat", "wchan"))
            return {"stat": _without_addresses(stat), "wchan": wchan}
    except OSError:
        return {}
