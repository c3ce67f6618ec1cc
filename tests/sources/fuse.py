"""A FUSE file system that answers until it is told to stop: a dead mount under somebody's descriptor.

Real: the kernel's side. The server speaks just enough of the protocol (include/uapi/linux/fuse.h) for one
file named `file` to be opened. Who then asks it for news waits, beyond the reach of SIGKILL, until `close`.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from pathlib import Path

from tests.rig.errors import RigError

LOOKUP, GETATTR, OPEN, INIT, OPENDIR = 1, 3, 14, 26, 27
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
_libc = ctypes.CDLL(None, use_errno=True)


class DeadMount:
    """Mounted at `point`; `stop` makes it mute, `close` aborts the connection and unmounts."""

    def __init__(self, point: Path) -> None:
        self.point = point
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        if _libc.mount(b"rig", os.fsencode(point), b"fuse.rig", 0, options.encode()) != 0:
            raise RigError(f"cannot mount FUSE on {point}: {os.strerror(ctypes.get_errno())}")
        self._mute = threading.Event()
        self.waited_for = threading.Event()  # somebody waits for an answer that will not come
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answer nothing any more. Requests are still taken, so that whoever sends one waits for ever."""
        self._mute.set()

    def close(self) -> None:
        """Free whoever waits and take the mount away."""
        self._mute.set()
        _libc.umount2(os.fsencode(self.point), 1 | 2)  # MNT_FORCE, which aborts, and MNT_DETACH
        self._thread.join(5)
        os.close(self._device)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, 1 << 20)
            except OSError:
                return
            if self._mute.is_set():
                self.waited_for.set()
                continue
            _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
            body = self._answer(opcode, node)
            error = 0 if body is not None else -38  # ENOSYS
            payload = body or b""
            os.write(self._device, struct.pack("<IiQ", 16 + len(payload), error, unique) + payload)

    @staticmethod
    def _answer(opcode: int, node: int) -> bytes | None:
        def attr(inode: int) -> bytes:
            mode = 0o40755 if inode == 1 else 0o100644
            return _ATTR.pack(inode, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 512, 0)

        if opcode == INIT:
            return struct.pack(
                "<IIIIHHIIHHIIHH", 7, 31, 1 << 16, 0, 8, 8, 1 << 16, 1, 32, 0, 0, 0, 0, 0
            ).ljust(64, b"\0")
        if opcode == LOOKUP:
            return struct.pack("<QQQQII", 2, 0, 0, 0, 0, 0) + attr(2)  # valid for no time: every stat asks
        if opcode == GETATTR:
            return struct.pack("<QII", 0, 0, 0) + attr(node)
        if opcode in (OPEN, OPENDIR):
            return struct.pack("<QII", 1, 0, 0)
        return None
