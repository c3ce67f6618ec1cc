"""Many real processes at once: one holder of the rig, forked as often as needed.

tests.rig.holder.Holder keeps a handle of each child, which is right for a few and too many descriptors for
thousands. These all end when the first one's standard input is closed.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Self

from tests.rig.errors import RigError
from tests.rig.holder import Orders, build_holder

STANDARD = 3  # descriptors that each has without orders: its standard streams
MOST = 4000  # children of one holder


class Crowd:
    """`count` processes that carried out the same orders before they were forked."""

    def __init__(self, orders: Orders, count: int) -> None:
        if count - 1 > MOST:
            raise RigError(f"more than {MOST} children of one holder")
        if count > 1:
            orders.fork(count - 1)
        self._process = subprocess.Popen(
            [os.fsencode(build_holder()), *orders.argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise RigError("the crowd could not be made")
        said = json.loads(line)
        self.pids: list[int] = [said["pid"], *said["children"]]

    def close(self) -> None:
        """End them all."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
