"""Whether this machine can carry a cluster, and what an earlier one has left on it.

A cluster needs the machine for itself: the kubelet's own directory, its log directories, the control groups
below kubepods. What is somebody else's is never touched: then it is refused, and the error names what it is.
A cluster whose owner was killed is known by the record that it left, and removed first.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.rig.errors import RigError
from tests.rig.mounts import mounted_below, unmount

KUBELET = Path("/var/lib/kubelet")
OWNED = (KUBELET, Path("/var/log/pods"), Path("/var/log/containers"), Path("/var/lib/cni"))
RECORD = Path("/run/kubegpu-cluster.json")
CNI = Path("/usr/lib/cni")
PROGRAMS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "etcd": "etcd-server",
    "ip": "iproute2",
    "openssl": "openssl",
    "gcc": "gcc",
}
SERVICE = "198.18.240.1"  # of the range for benchmarks (RFC 2544), which no network uses
SERVICES = "198.18.240.0/24"
PODS = "198.18.241.0/24"
FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
FREEZER = Path("/sys/fs/cgroup/freezer")


class Machine:
    """The machine, taken for one cluster. `folder` is where everything of it is, but for what OWNED names."""

    def __init__(self) -> None:
        if sys.platform != "linux" or os.geteuid() != 0:
            raise RigError("a cluster needs root on Linux")
        lacking = sorted({debian for name, debian in PROGRAMS.items() if shutil.which(name) is None})
        if not (CNI / "ptp").exists():
            lacking.append("containernetworking-plugins")
        if lacking:
            raise RigError(f"install the Debian packages {' '.join(lacking)}")
        self._lock = os.open(f"{RECORD}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise RigError("another cluster of these tests runs on this machine") from error
        if RECORD.exists():
            _clear(json.loads(RECORD.read_text()))
        if found := taken():
            os.close(self._lock)
            raise RigError(f"not ours: {', '.join(found)}; a cluster needs a machine without a kubelet")
        self.folder = Path("/tmp") / f"kgc-{os.getpid()}"
        self._record = {"folder": str(self.folder), "forward": FORWARD.read_text().strip()}
        RECORD.write_text(json.dumps(self._record))
        self.folder.mkdir(mode=0o755)
        for name in ("logs", "manifests", "cni", "img"):
            (self.folder / name).mkdir()
        _ip("address", "add", f"{SERVICE}/32", "dev", "lo")

    def close(self) -> None:
        """Take away all that is left."""
        _clear(self._record)
        os.close(self._lock)


def taken() -> list[str]:
    """What is on the machine that a cluster would need for itself, and take away at its end."""
    found = [str(path) for path in OWNED if path.exists()]
    return found + [f"process {pid} in a pod's control group" for pid in dict.fromkeys(_of_groups())]


def left(folder: Path) -> list[str]:
    """What a cluster that has ended has left on the machine; nothing, or something is wrong."""
    found = [str(path) for path in (*OWNED, folder, RECORD) if path.exists()]
    found += [f"pid {pid}" for pid in (*_of_folder(str(folder)), *_of_groups())]
    found += [f"mount {point}" for place in (folder, KUBELET) for point in mounted_below(place)]
    shown = subprocess.run(["ip", "-oneline", "address"], capture_output=True, text=True, check=True).stdout
    return found + [line for line in shown.splitlines() if "198.18.24" in line]


def _clear(record: dict[str, str]) -> None:
    folder = record["folder"]
    _thaw()
    for pid in [*_of_folder(folder), *_of_groups()]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while (any(_of_groups()) or any(_of_folder(folder))) and time.monotonic() < deadline:
        time.sleep(0.05)
    for place in (Path(folder), KUBELET, Path("/run/netns"), Path("/var/run/netns")):
        for point in mounted_below(place):
            unmount(point, lazy=True)
    for group in sorted(_groups(), key=lambda path: len(path.parts), reverse=True):
        with contextlib.suppress(OSError):
            group.rmdir()
    for path in (*OWNED, Path(folder)):
        shutil.rmtree(path, ignore_errors=True)
    for path in Path("/run/netns").glob("cni-*"):
        path.unlink(missing_ok=True)
    _ip("address", "del", f"{SERVICE}/32", "dev", "lo", check=False)
    FORWARD.write_text(record["forward"])
    RECORD.unlink(missing_ok=True)


def _thaw() -> None:
    for state in (FREEZER / "kubepods").rglob("freezer.state"):
        with contextlib.suppress(OSError):
            state.write_text("THAWED")


def _of_folder(folder: str) -> Iterator[int]:
    """Daemons and shims: each has the folder in its command line."""
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and f"{folder}/".encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                yield int(entry)


def _of_groups() -> Iterator[int]:
    """What lives in pods' control groups."""
    for group in _groups():
        with contextlib.suppress(OSError):
            yield from map(int, (group / "cgroup.procs").read_text().split())


def groups_of(uid: str) -> list[Path]:
    """The control groups of a pod, in every hierarchy."""
    return [path for path in _groups() if path.name == f"pod{uid}"]


def _groups() -> Iterator[Path]:
    for root in (*Path("/sys/fs/cgroup").glob("*/kubepods"), Path("/sys/fs/cgroup/kubepods")):
        if not root.is_dir():
            continue
        yield root
        yield from (path for path in root.rglob("*") if path.is_dir())


def _ip(*words: str, check: bool = True) -> None:
    ran = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if check and ran.returncode != 0:
        raise RigError(f"ip {' '.join(words)}: {ran.stderr.strip()}")


def main() -> int:
    """`python -m tests.cluster.machine`: say on one line why this machine can carry no cluster; 3 if so."""
    try:
        Machine().close()
    except RigError as error:
        sys.stdout.write(f"{error}\n")
        return 3
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
