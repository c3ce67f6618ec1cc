"""The host scan against `fuser -v`: the same processes, the same device files, the same minute."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time

from exporter.sources.processes import SWEEP, Scanner
from tests.bench.crowd import STANDARD, Crowd
from tests.bench.document import Row, Section, median, ms
from tests.rig.devices import Devices
from tests.rig.holder import Orders
from tests.rig.mounts import Workspace
from tests.rig.proc import SubstituteProc

GPUS = 8
HOLDERS_OF_EACH = 4
PEER_RUNS = 10


def measure(*, small: bool = False) -> Section:
    """Scan real processes, of which a few hold device files."""
    processes, descriptors = (400, 50) if small else (4000, 50)
    with contextlib.ExitStack() as stack:
        workspace = stack.enter_context(Workspace())
        devices = stack.enter_context(Devices(workspace.path))
        proc = SubstituteProc(workspace.path, devices.text)
        files = [devices.gpu(minor).path for minor in devices.gpu_minors[:GPUS]]
        holders = 0
        for path in files:
            orders = Orders().open(path, 3).many_fds(descriptors - STANDARD - 3)
            holders += len(stack.enter_context(Crowd(orders, HOLDERS_OF_EACH)).pids)
        left = processes - holders
        while left:
            some = min(left, 2000)
            stack.enter_context(Crowd(Orders().many_fds(descriptors - STANDARD), some))
            left -= some
        scanner = Scanner(proc.path)
        first, _ = _scan(scanner)
        # Two programs in turn, so that what else the machine does meets both alike.
        peers: list[float] = []
        scans: list[float] = []
        found = 0
        for number in range(SWEEP):
            spent, found = _scan(scanner)
            scans.append(spent)
            if number % (SWEEP // PEER_RUNS) == 0:
                peers.append(fuser([str(path) for path in files], holders))
    if found < holders:
        raise RuntimeError(f"{found} holders were seen of {holders}")
    mine, theirs, count = median(scans), median(peers), processes * descriptors
    return Section(
        "Host scan",
        (
            Row(
                f"CPU of a host scan, {processes:,} processes with {descriptors} descriptors each",
                "less than `fuser -v`",
                f"{ms(mine)} (median of {SWEEP})",
                f"fuser -v: {ms(theirs)} (median of {PEER_RUNS})",
                mine < theirs,
            ),
        ),
        f"`Scanner.scan` on the real /proc with {GPUS} stand-in device files, {holders} of the processes "
        f"holding one; the others hold directories, so that every descriptor has a path. The {SWEEP} "
        "scans after the first are counted, which together look thoroughly at every process once. `fuser "
        f"-v` is given the {GPUS} device files, and its output is thrown away; it names all {holders} "
        "holders too. It neither tells pods nor looks at mappings of a file under another name.",
        (
            f"first scan {ms(first)}; scans afterwards {ms(min(scans))} to {ms(max(scans))}",
            f"a whole sweep of {SWEEP} scans {ms(sum(scans))}",
            f"fuser {ms(min(peers))} to {ms(max(peers))}",
            f"per descriptor {mine / count * 1e6:.2f} µs, fuser {theirs / count * 1e6:.2f} µs",
        ),
    )


def _scan(scanner: Scanner) -> tuple[float, int]:
    """CPU seconds of one scan, and how many holders it saw."""
    before = time.thread_time()
    table = scanner.scan([])
    return time.thread_time() - before, sum(bool(process.holds) for process in table.processes)


def fuser(files: list[str], holders: int) -> float:
    """CPU seconds of one run of the peer, its start included; it must see what we see."""
    process = subprocess.Popen(
        ["fuser", "-v", *files], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    said = set(re.findall(rb"\d+", process.stdout.read()))
    process.stdout.close()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 or len(said) < holders:
        raise RuntimeError(f"fuser ended with {process.returncode} and named {len(said)} of {holders}")
    return used.ru_utime + used.ru_stime
