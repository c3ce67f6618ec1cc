"""`python -m tests.rig`: a busy node to look at, held until Ctrl-C; prints the command that watches it."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys

from tests.rig.hardware import GIB, MIB, Gpu, Target
from tests.rig.rig import Rig


def populate(rig: Rig) -> None:
    """8 GPUs of which two are MIG parents and one is time-sliced, 12 pods, 40 processes."""
    with rig.batch():
        whole = [rig.add_gpu(utilization=40 + index, numa_node=index // 4) for index in range(5)]
        shared = rig.add_gpu(replicas=4, utilization=90, numa_node=1)
        parents = [rig.add_gpu(mig=True, numa_node=1) for _ in range(2)]
        instances = [rig.add_mig(parent) for parent in parents for _ in range(3)]
        _run(rig, "training", "train-0", whole[0], whole[1], workers=8)
        _run(rig, "training", "train-1", whole[2], workers=8)
        _run(rig, "serving", "llm-0", whole[3], workers=3)
        for replica in range(3):
            pod = rig.add_pod("notebooks", f"jupyter-{replica}", {"main": [(shared, replica)]})
            for _ in range(2):
                rig.add_process(pod, "main", shared, memory=700 * MIB)
        for number, instance in enumerate(instances):
            _run(rig, "inference", f"embed-{number}", instance, workers=2, memory=GIB)
        rig.add_host_process("x.service", whole[4], memory=2 * GIB, comm=b"stray")
        rig.add_host_process("nvidia-persistenced.service", *whole, uvm=False, listed=False)
        rig.add_host_process("y.service", whole[0], uvm=False, listed=False, comm=b"nvtop")


def _run(
    rig: Rig, namespace: str, name: str, *targets: Gpu | Target, workers: int, memory: int = 3 * GIB
) -> None:
    pod = rig.add_pod(namespace, name, {"main": list(targets)})
    for _ in range(workers):
        rig.add_process(pod, "main", *targets, memory=memory)


def main() -> None:
    """Hold the node."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(KeyboardInterrupt), Rig() as rig:
        populate(rig)
        command = shlex.join(["kubegpu-exporter", *rig.agent_args()])
        sys.stdout.write(
            f"{len(rig.gpus)} GPUs, {len(rig.pods)} pods, {len(rig.processes)} processes\n\n{command}\n\n"
            "Ctrl-C ends the rig.\n"
        )
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main()
