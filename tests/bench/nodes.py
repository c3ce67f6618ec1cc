"""The nodes that the benchmarks run on: rigs with as many real processes, pods and GPUs as a budget names.

Everything is spawned through tests.rig; what is counted there is what the exporter finds in /proc.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.bench.crowd import STANDARD, Crowd
from tests.rig.hardware import GIB, Gpu, Target
from tests.rig.holder import Orders
from tests.rig.rig import Rig
from tests.rig.workloads import Pod


@dataclass(frozen=True, slots=True)
class Size:
    """How large a node is. A client has a GPU to itself, or two shared ones; the first `wide`, three."""

    gpus: int = 16
    pods: int = 250
    clients: int = 160
    processes: int = 1000
    descriptors: int = 35
    wide: int = 110
    helpers: int = 2  # processes of a container beside its first


SMALL = Size(gpus=4, pods=20, clients=12, processes=80, wide=0)


@contextlib.contextmanager
def busy_node(size: Size) -> Iterator[Rig]:
    """Half of the GPUs given whole, one to a pod, the rest time-sliced; every pod has processes, and the host
    has what is missing to `processes`.
    """
    with contextlib.ExitStack() as stack:
        rig = stack.enter_context(Rig())
        whole = size.gpus // 2
        shared = max(1, size.gpus - whole)
        replicas = 3 * (size.clients - whole) // shared + 1
        with rig.batch():
            for index in range(size.gpus):
                rig.add_gpu(replicas=0 if index < whole else replicas, utilization=50)
            places = itertools.count()
            pods = [_add_pod(rig, number, size, whole, places) for number in range(size.pods)]
            left = size.processes
            for number, (pod, targets) in enumerate(pods):
                left -= _populate(rig, stack, pod, targets, size, number)
            while left > 0:
                left -= _strangers(rig, stack, min(left, 200), size.descriptors)
        hour_ago = time.time() - 3600  # a kubelet that has just started is not believed about what is absent
        os.utime(rig.kubelet.socket, (hour_ago, hour_ago))
        yield rig


def _add_pod(
    rig: Rig, number: int, size: Size, whole: int, places: Iterator[int]
) -> tuple[Pod, list[Target]]:
    targets: list[Target] = []
    given: list[Target | tuple[Target, int]] = []
    if number < whole:
        targets = [rig.gpus[number]]
        given = list(targets)
    elif number < size.clients:
        shared = rig.gpus[whole:]
        for place in itertools.islice(places, 3 if number < size.wide else 2):
            gpu = shared[place % len(shared)]
            targets.append(gpu)
            given.append((gpu, place // len(shared)))
    return rig.add_pod(f"team-{number % 10}", f"work-{number}", {"main": given}), targets


def _populate(
    rig: Rig, stack: contextlib.ExitStack, pod: Pod, targets: list[Target], size: Size, number: int
) -> int:
    """Start a pod's processes; returns how many."""
    count = 0
    if targets:
        many = size.descriptors - STANDARD - 2 - len(targets)
        memory = (GIB >> 1) + (number << 20)
        rig.add_process(pod, "main", *targets, memory=memory, more=lambda orders: orders.many_fds(many))
        count += 1
    helpers = size.helpers + (0 if targets else 1)
    plain = Orders().cgroup(pod.groups["main"]).many_fds(size.descriptors - STANDARD)
    stack.enter_context(Crowd(plain, helpers))
    return count + helpers


def _strangers(rig: Rig, stack: contextlib.ExitStack, count: int, descriptors: int) -> int:
    orders = Orders().cgroup(rig.groups.service("other.service"))
    stack.enter_context(Crowd(orders.many_fds(descriptors - STANDARD), count))
    return count


@contextlib.contextmanager
def mig_node(gpus: int, instances: int) -> Iterator[Rig]:
    """GPUs all cut into MIG instances, each given to a pod with one process."""
    with Rig() as rig:
        with rig.batch():
            for _ in range(gpus):
                gpu = rig.add_gpu(mig=True)
                for _ in range(instances):
                    _use(rig, gpu)
        yield rig


def _use(rig: Rig, gpu: Gpu) -> None:
    instance = rig.add_mig(gpu)
    name = f"mig-{gpu.index}-{instance.slot}"
    pod = rig.add_pod("team-m", name, {"main": [instance]})
    rig.add_process(pod, "main", instance, memory=GIB)
