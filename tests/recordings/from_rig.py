"""`python -m tests.recordings.from_rig [FOLDER]`: record rigs with the installed command, under pseudonyms.

What else runs on the machine is cut out: only processes that the rig has started are kept.
"""

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.rig.hardware import GIB
from tests.rig.rig import Rig

HERE = Path(__file__).parent
COMMAND = Path(sys.executable).with_name("kubegpu-exporter")


def plain() -> Rig:
    """A GPU in use by its pod, one with an orphan, one with a host program and a phantom, and one free."""
    rig = Rig()
    for _ in range(4):
        rig.add_gpu()
    train = rig.add_pod("team-a", "train-0", {"main": [rig.gpus[0]]})
    files = rig.nodes_of(rig.gpus[0])
    rig.add_process(
        train, "main", rig.gpus[0], memory=8 * GIB, visible=files, more=lambda orders: orders.fork(2)
    )
    left = rig.add_pod("team-b", "left-0", {"main": [rig.gpus[1]]})
    rig.add_process(left, "main", rig.gpus[1], memory=2 * GIB)
    rig.delete_pod(left)
    rig.add_host_process("rogue.service", rig.gpus[2])
    dead = rig.add_host_process("done.service", rig.gpus[2], memory=3 * GIB)
    rig.end(dead, listed=True)
    return rig


def mixed() -> Rig:
    """A MIG GPU with two instances, one in use, and a time-sliced GPU of two pods; cgroups by systemd."""
    rig = Rig(driver="systemd")
    parent = rig.add_gpu(mig=True)
    first, _ = rig.add_mig(parent), rig.add_mig(parent)
    shared = rig.add_gpu(replicas=4)
    infer = rig.add_pod("team-a", "infer-0", {"server": [first]})
    rig.add_process(infer, "server", first, memory=GIB, visible=rig.nodes_of(first))
    for number in range(2):
        pod = rig.add_pod("team-b", f"notebook-{number}", {"main": [(shared, number)]})
        rig.add_process(pod, "main", shared, memory=2 * GIB, visible=rig.nodes_of(shared))
    static = rig.add_pod("kube-system", "warmer", {"main": []}, static=True)
    rig.add_process(static, "main", shared, memory=GIB, more=lambda orders: orders.threads(1).leader_exits())
    return rig


RIGS: dict[str, Callable[[], Rig]] = {"rig-plain": plain, "rig-mixed": mixed}


def cut(look: dict[str, Any], pids: set[int]) -> None:
    """Leave only these processes in a look."""
    table = look["snapshot"]["processes"]["value"]
    table["processes"] = [one for one in table["processes"] if one["id"]["pid"] in pids]
    table["containers"] = [one for one in table["containers"] if one["process"]["pid"] in pids]
    views = look["snapshot"]["container_dev"]["value"]
    kept = {one["container_id"] for one in table["containers"]}
    views["views"] = [one for one in views["views"] if one["container_id"] in kept]
    texts = look["raw"]["proc"]["processes"]
    look["raw"]["proc"]["processes"] = {pid: text for pid, text in texts.items() if int(pid) in pids}


def main(folder: Path) -> None:
    """Write a file for each rig."""
    for name, make in RIGS.items():
        path = folder / f"{name}.json.gz"
        with make() as rig:
            hour_ago = time.time() - 3600  # a young kubelet is not believed about what it does not list
            os.utime(rig.kubelet.socket, (hour_ago, hour_ago))
            argv = [str(COMMAND), "record", f"--output={path}", "--mask", *rig.agent_args()]
            subprocess.run(argv, check=True)
            pids = {pid for one in rig.processes for pid in (one.pid, *one.holder.children)}
        document = json.loads(gzip.decompress(path.read_bytes()))
        for look in document["looks"]:
            cut(look, pids)
        with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
            packed.write(json.dumps(document, separators=(",", ":"), sort_keys=True).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
