"""The agent on a busy node: memory, CPU, start, scrapes, and a peer beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.bench import nodes, peer, scan, usage, watch
from tests.bench.document import Row, Section, median, megabytes, ms, quantile
from tests.rig.rig import Rig

WITH_API, WITHOUT_API = 96e6, 80e6
MILLICORES = 20.0
START = 3.0
P99_OF_4, ALL_OF_40 = 0.010, 0.250
INTERVAL = 15.0  # the default
FAST = 2.0  # the interval at which cycles are counted: room for a scan on a busy machine
WARM_UP = 12


IMPORTS = {
    "a bare interpreter": "pass",
    "agent": "import exporter.__main__",
    "child nvml": "import exporter.sources.nvml",
    "child host": "import exporter.sources.host, exporter.sources.processes, exporter.sources.container_dev",
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How long to look."""

    cycles: int = 40
    slow_cycles: int = 5
    starts: int = 5
    bursts: tuple[tuple[int, int], ...] = ((1, 300), (4, 300), (40, 100))


TRIAL = Scale(5, 1, 1, ((1, 30), (4, 30), (40, 10)))


def measure(*, small: bool = False) -> Iterator[Section]:
    """Everything that one busy node can tell."""
    size, scale = (nodes.SMALL, TRIAL) if small else (nodes.Size(), Scale())
    with nodes.busy_node(size) as rig:
        yield from _cost(rig, size, scale)
        yield _scrapes(rig, scale)
        yield _starts(rig, scale)
        yield _peer(rig, scale)


@dataclass(frozen=True, slots=True)
class _Run:
    memory: usage.Memory
    parts: list[float]
    per_cycle: float
    cycles: int
    series: int
    scanned: float
    threads: int
    shares: str


def _run(rig: Rig, cycles: int, interval: float, *args: str) -> _Run:
    with rig.agent(*args, interval=f"{interval:g}s") as agent:
        watched = watch.Watch(agent, interval)
        if interval < INTERVAL:
            time.sleep(WARM_UP * interval)
        per_cycle, done = watched.cycles(cycles)
        samples, pids = watched.samples(), watched.pids
        scanned = samples["kubegpu_processes_scanned", frozenset()]
        memory = usage.memory(pids)
        parts = [float(usage.pss(pid)) for pid in pids]
        return _Run(
            memory, parts, per_cycle, done, len(samples), scanned, usage.threads(pids), watched.parts()
        )


def _cost(rig: Rig, size: nodes.Size, scale: Scale) -> list[Section]:
    full = _run(rig, scale.cycles, FAST)
    bare = _run(rig, scale.cycles, FAST, "--kubernetes.enabled=false")
    slow = _run(rig, scale.slow_cycles, INTERVAL)
    files = [str(rig.devices.gpu(gpu.minor).path) for gpu in rig.gpus]
    theirs = median(scan.fuser(files, size.clients) for _ in range(5))
    counted, direct = full.per_cycle / INTERVAL * 1000, slow.per_cycle / INTERVAL * 1000
    node = f"{size.gpus} GPUs, {size.pods} pods"
    memory_rows = tuple(
        Row(
            f"Memory, {node}, {run.series:,} series, {api} the API source",
            f"≤ {budget / 1e6:.0f} MB",
            f"{megabytes(run.memory.pss)} PSS; {megabytes(run.memory.alone)} unshared",
            met=run.memory.alone <= budget,
        )
        for run, api, budget in ((bare, "without", WITHOUT_API), (full, "with", WITH_API))
    )
    processes = f"{size.processes:,} processes with {size.descriptors} descriptors each, {size.gpus} GPUs"
    cpu_row = Row(
        f"CPU at a 15 s interval, {processes}",
        f"≤ {MILLICORES:.0f} millicores",
        f"{counted:.1f} millicores ({ms(full.per_cycle)} a cycle); measured at 15 s: {direct:.1f}",
        f"fuser -v each 15 s: {theirs / INTERVAL * 1000:.1f} millicores ({ms(theirs)})",
        met=max(counted, direct) <= MILLICORES,
    )
    return [
        Section(
            "Memory",
            memory_rows,
            f"The agent and its two children after {WARM_UP + full.cycles} cycles on a node with "
            f"{size.clients} GPU processes. PSS is the sum of /proc/PID/smaps_rollup: there other "
            "programs of this machine that map the same files, this benchmark among them, take part of "
            "the bill. *Unshared* counts each page that the three map once and in full "
            "(/proc/PID/pagemap), as on a node where nothing else runs this Python; the budget is judged "
            "by it.",
            (
                *(
                    f"{api} the API source: PSS of agent and children "
                    f"{', '.join(map(megabytes, run.parts))}; {run.threads} threads"
                    for run, api in ((full, "with"), (bare, "without"))
                ),
                *(
                    f"{name}: {megabytes(usage.imported(code))} of pages written to by its imports alone"
                    for name, code in IMPORTS.items()
                ),
            ),
        ),
        Section(
            "CPU of the agent",
            (cpu_row,),
            f"CPU time of the agent and its children over {full.cycles} cycles at {FAST:g} s, for each "
            "cycle, divided by 15 s; nothing is subtracted. What is done once a minute whatever the "
            f"interval counts too little this way, so the same is measured at 15 s over {slow.cycles} "
            f"cycles; the larger is judged. {full.scanned:,.0f} processes were scanned: the budget's and "
            "those of the machine.",
            (
                f"without the API source {ms(bare.per_cycle)} a cycle",
                f"shares of the CPU time, the start included: {full.shares}",
            ),
        ),
    ]


def _scrapes(rig: Rig, scale: Scale) -> Section:
    found: dict[int, list[float]] = {}
    quick: dict[int, list[float]] = {}
    size, series = 0, 0
    with rig.agent() as agent:
        series = len(watch.Watch(agent, 1.0).samples())
        for clients, bursts in scale.bursts:
            found[clients], size = watch.load(agent.port, clients, bursts, 1.0)
            quick[clients], _ = watch.load(agent.port, clients, bursts, 1.0, "quick")
    p99, most = quantile(found[4], 0.99), max(found[40])
    return Section(
        "Scrapes",
        (
            Row(f"Scrape of {series:,} series during a cycle, 1 at once", "-", _times(found[1])),
            Row("… 4 at once", f"p99 ≤ {ms(P99_OF_4)}", _times(found[4]), met=p99 <= P99_OF_4),
            Row("… 40 at once", f"all ≤ {ms(ALL_OF_40)}", _times(found[40]), met=most <= ALL_OF_40),
        ),
        "A load generator in a process of its own sends all requests of a burst at once on kept "
        "connections, gzip accepted, and counts from the first byte sent to the last received. Every "
        "burst begins while a cycle runs (interval 1 s; the generator reads from the metrics when the "
        "next one is due). Wall time: what else the machine does is in it, and the generator too, which "
        "has one of the cores.",
        (
            f"{size:,} bytes of answer",
            *(
                f"{clients} at once: {len(seconds):,} scrapes; with a client that acknowledges at once "
                f"(TCP_QUICKACK) {_times(quick[clients])}"
                for clients, seconds in found.items()
            ),
        ),
    )


def _times(seconds: list[float]) -> str:
    return f"p50 {ms(median(seconds))}, p99 {ms(quantile(seconds, 0.99))}, max {ms(max(seconds))}"


def _starts(rig: Rig, scale: Scale) -> Section:
    starts = [watch.start(rig) for _ in range(scale.starts)]
    wall, cpu = median(one[0] for one in starts), median(one[1] for one in starts)
    return Section(
        "Start",
        (
            Row(
                "Start to first metrics",
                f"≤ {START:.0f} s",
                f"{wall:.2f} s (median of {scale.starts}; {max(one[0] for one in starts):.2f} s at most)",
                met=wall <= START,
            ),
        ),
        "From spawning the command to the first 200 of /-/ready, which is after the first cycle, on the same "
        "node; asked every 10 ms.",
        (f"CPU time until then {cpu:.2f} s",),
    )


def _peer(rig: Rig, scale: Scale) -> Section:
    with peer.running(rig, 1.0) as other:
        time.sleep(5)
        text = other.scrape()
        before, began = usage.cpu_seconds([other.pid]), time.monotonic()
        time.sleep(10 if scale is TRIAL else 45)
        collecting = (usage.cpu_seconds([other.pid]) - before) / (time.monotonic() - began)
        bursts = scale.bursts[1][1] // 6
        before = usage.cpu_seconds([other.pid])
        began = time.monotonic()
        seconds, size = watch.load(other.port, 1, bursts, 0)
        idle = collecting * (time.monotonic() - began)
        a_scrape = max(0.0, usage.cpu_seconds([other.pid]) - before - idle) / len(seconds)
        four, _ = watch.load(other.port, 4, bursts, 0)
        memory = usage.memory([other.pid])
    series = sum(not line.startswith("#") for line in text.splitlines())
    listed = peer.listed(text)
    rows = len({row.pid for gpu in rig.gpus for row in gpu.rows})
    return Section(
        "A peer: nvitop-exporter",
        (
            Row(
                "Memory", "-", "see above", f"{megabytes(memory.pss)} PSS; {megabytes(memory.alone)} unshared"
            ),
            Row("CPU of looking once", "-", "see above", f"{ms(collecting)} (its interval is 1 s)"),
            Row("CPU of a scrape", "-", "rendered once a cycle", ms(a_scrape)),
            Row("Scrape, 1 at once", "-", "see above", _times(seconds)),
            Row("Scrape, 4 at once", "-", "see above", _times(four)),
        ),
        f"{peer.NAME} {peer.VERSION} in an environment of its own, on the same NVML library and "
        f"processes. It serves {series:,} series in {size:,} bytes, {listed:,} of them the memory of a "
        f"process on a GPU ({rows:,} processes are listed by NVML). It reads the GPUs, the processes that "
        "NVML lists and the host's CPU, memory and network in one thread, and renders at each scrape. It "
        "does not look for holders of device files, knows no pods, asks neither kubelet nor API server, "
        "has no findings, and sees a hung driver call as silence. What it does more: CPU and memory of "
        "each process, and of the host.",
    )
