"""A cycle on a node that is all MIG instances: what it costs, and how often NVML is called."""

from __future__ import annotations

import time
from collections import Counter

from tests.bench import nodes, watch
from tests.bench.document import Row, Section, ms

INTERVAL = 2.0


def measure(*, small: bool = False) -> Section:
    """8 GPUs with 7 instances each."""
    gpus, instances, cycles = (2, 7, 3) if small else (8, 7, 45)
    count = gpus * instances
    with nodes.mig_node(gpus, instances) as rig:
        with rig.agent(interval=f"{INTERVAL:g}s") as agent:
            watched = watch.Watch(agent, INTERVAL)
            time.sleep(4 * INTERVAL)
            spent, done = watched.cycles(cycles)
            shares = watched.parts()
            series = len(watched.samples())
        log = rig.root / "calls"
        with rig.agent(env={"RIG_NVML_CALLS": str(log)}) as agent:
            watch.Watch(agent, 1.0).cycles(3)
            before = len(log.read_text().splitlines())
            counted = watch.Watch(agent, 1.0).cycles(6)[1]
            calls = [line.split()[0] for line in log.read_text().splitlines()[before:]]
    each = len(calls) / counted
    most = ", ".join(f"{name} {number / counted:.0f}" for name, number in Counter(calls).most_common(8))
    return Section(
        "MIG",
        (
            Row(
                f"Cycle at {count} MIG instances",
                "-",
                f"{ms(spent)} of CPU; {each:.0f} NVML calls ({each / count:.1f} an instance)",
            ),
        ),
        f"{gpus} GPUs with {instances} instances each, one pod and one process on each instance, "
        f"{series:,} series; CPU time of agent and children over {done} cycles at {INTERVAL:g} s. Calls "
        f"are those that the NVML library logs, in a run of its own, over {counted} cycles.",
        (f"shares of the CPU time: {shares}", f"calls a cycle: {most}"),
    )
