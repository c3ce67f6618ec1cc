"""Mounts of the rig: thin wrappers of mount(2), and the tmpfs workspace everything else lives in.

Real: every mount. The workspace is one private tmpfs, so device nodes work below it whatever the options
of the temporary directory are, nothing that is mounted inside it reaches another mount namespace, and one
lazy unmount at the end takes everything away, even after a failure half way.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import os
import tempfile
from pathlib import Path
from typing import Self

from tests.rig.errors import RigError

MS_BIND = 1 << 12
MS_REC = 1 << 14
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
PREFIX = "gpurig-"

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str | None, flags: int = 0, options: str = "") -> None:
    """Mount; a refusal becomes a RigError that names the target and the usual cause."""
    result = _libc.mount(
        source.encode(),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() if options else None,
    )
    if result != 0:
        code = ctypes.get_errno()
        raise RigError(
            f"cannot mount {kind or source} on {target}: {os.strerror(code)}"
            " (the rig needs uid 0 with CAP_SYS_ADMIN and no seccomp or AppArmor rule against mount)"
        )


def bind(source: Path, target: Path) -> None:
    """Bind source over target, then cut it off from its peers.

    The second step matters: on a host with shared propagation a bind of /proc is a peer of the real one, and
    a file mounted below it afterwards would appear in the host's own /proc.
    """
    mount(os.fspath(source), target, None, MS_BIND)
    mount("none", target, None, MS_PRIVATE)


def unmount(target: Path, *, lazy: bool = False) -> bool:
    """Unmount; True when it is gone."""
    return bool(_libc.umount2(os.fsencode(target), MNT_DETACH if lazy else 0) == 0)


class Workspace:
    """A private tmpfs under the temporary directory; `path` is its root. Use it as a context manager.

    The directory name is short, because a unix socket path may have 107 bytes only. A lock file beside it is
    held while the owner lives: a later workspace removes those whose owner was killed.
    """

    def __init__(self, size: str = "512m") -> None:
        base = Path(tempfile.gettempdir()).resolve()
        _sweep(base)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        self._lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._open = True
        try:
            mount("gpurig", self.path, "tmpfs", 0, f"mode=755,size={size}")
            mount("none", self.path, None, MS_PRIVATE)
        except BaseException:
            self.close()
            raise
        atexit.register(self.close)

    def close(self) -> None:
        """Take the workspace away with all that is mounted in it. Safe to call twice."""
        if not self._open:
            return
        self._open = False
        atexit.unregister(self.close)
        _remove(self.path)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def mounted_below(path: Path) -> list[Path]:
    """Mount points at or below path, as this process sees them, deepest first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        point = Path(os.fsdecode(line.split(b" ")[4].decode("unicode_escape").encode("latin-1")))
        if point == path or path in point.parents:
            found.append(point)
    return sorted(found, key=lambda point: len(point.parts), reverse=True)


def _remove(path: Path) -> None:
    """Unmount the tmpfs at path, lazily, and remove its directory; never walks into what is mounted."""
    while mounted_below(path) and unmount(path, lazy=True):
        pass
    with contextlib.suppress(OSError):
        path.rmdir()
    with contextlib.suppress(OSError):
        os.unlink(f"{path}.lock")


def _sweep(base: Path) -> None:
    """Remove workspaces whose owner died without closing them."""
    for lock in base.glob(f"{PREFIX}*.lock"):
        with contextlib.suppress(OSError):
            handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(lock.with_suffix(""))
            finally:
                os.close(handle)
