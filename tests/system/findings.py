"""What the tests of findings share: a node on which every kind counts within seconds, and all that it tells.

The processes of a pod live in a root of their own whose /dev shows what the pod was given, as in a container:
else every device would rightly be called invisible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.rig.agent import Agent, Samples
from tests.rig.hardware import Gpu, Target
from tests.rig.rig import Rig
from tests.rig.workloads import Pod, Process
from tests.system import observe
from tests.system.observe import WORKLOAD, Row, eventually, rows, values

# Every kind at the least age there is, but for the one that every waiting pod would fulfil.
KINDS = {
    "phantom_process": ("held", "unheld", "aliased"),
    "stuck_process": (
        *("kill_pending", "exiting", "zombie_leader", "uninterruptible_driver", "zombie"),
        "uninterruptible_other",
    ),
    "orphan_process": ("pod_gone", "pod_terminal", "stale_container", "cgroup_deleted"),
    "external_process": ("user_session", "system_service", "other_container", "unknown"),
    "hidden_holder": ("unlisted",),
    "orphaned_memory": ("none", "fd_only", "live_peer"),
    "exclusive_gpu_shared": ("double_use", "double_allocation"),
    "used_not_allocated": ("of_other_pod", "of_nobody"),
    "visible_not_allocated": ("privileged", "host_device", "mig_caps", "other"),
    "allocated_not_visible": ("no_device_file",),
    "node_capacity_mismatch": ("allocated_device_missing", "capacity_gt_real", "capacity_lt_real"),
}
AT_ONCE = tuple(f"--rules.{name}.{kind}.age=1s" for name, kinds in KINDS.items() for kind in kinds)
TOLD = ("finding", "kind", "uuid", "pid", "pod_uid", *WORKLOAD, "explained_by")
MINORS = range(59, 39, -1)  # from the other end than rigs that run beside this one
_started: set[int] = set()  # holders of ours, with their children


def add_gpu(rig: Rig, **more: Any) -> Gpu:
    """A GPU whose device number no other rig is likely to use."""
    return rig.add_gpu(minor=MINORS[len(rig.gpus)], **more)


def add_pod(
    rig: Rig,
    name: str,
    given: Sequence[Target | tuple[Target, int]],
    *,
    sees: Sequence[Target] = (),
    **more: Any,
) -> Pod:
    """A pod that was given devices, with the first process of its container, which uses nothing."""
    pod = rig.add_pod("team-a", name, {"main": given}, **more)
    work(rig, pod, sees=sees, listed=False, uvm=False, comm=b"init")
    return pod


def work(rig: Rig, pod: Pod, *targets: Target, sees: Sequence[Target] = (), **more: Any) -> Process:
    """A process of a pod. Its /dev shows what the pod was given, and what else it `sees`."""
    ids = {identity for _, identity, _ in pod.devices["main"]}
    given = [one for gpu in rig.gpus for one in gpu.targets() if ids & set(one.device_ids)]
    nodes = dict.fromkeys(node for one in (*given, *sees) for node in rig.nodes_of(one))
    process = rig.add_process(pod, "main", *targets, visible=tuple(nodes), **more)
    _started.update((process.pid, *process.holder.children))
    return process


def row(finding: str, kind: str, gpu: Gpu, process: Process | None = None, explained_by: str = "") -> Row:
    """A finding as the rig knows it: about a process of a pod, or about the device."""
    pod = process.pod if process else None
    pid = str(process.pid) if process else ""
    if process is None or pod is None:
        return (finding, kind, gpu.uuid, pid, "", "", "", "", explained_by)
    return (finding, kind, gpu.uuid, pid, pod.uid, pod.namespace, pod.name, process.container, explained_by)


def told(samples: Samples) -> set[Row]:
    """Everything that is wrong on the node, without what another rig's processes do."""
    return {one for one in rows(samples, "finding_info", *TOLD) if not _foreign(one)}


def _foreign(one: Row) -> bool:
    """Whether it is about another rig's process; one of ours may have lost its parents."""
    pid = int(one[3] or 0)
    return pid != 0 and pid not in _started and observe.another_rigs(pid)


def counted(samples: Samples) -> dict[Row, float]:
    """`findings` above 0 by finding, kind and device, without another rig's."""
    found: dict[Row, float] = {}
    for one in rows(samples, "finding_info", *TOLD):
        if _foreign(one) and not one[-1]:
            found[one[:3]] = found.get(one[:3], 0) - 1
    for labels, count in values(samples, "findings", "finding", "kind", "uuid", "gi", *WORKLOAD).items():
        if count:
            found[labels[:3]] = found.get(labels[:3], 0) + count
    return {key: count for key, count in found.items() if count}


def expect(agent: Agent, *expected: Row, timeout: float = 40.0) -> Samples:
    """Wait until exactly these findings are active, and see that what counts is what nothing explains."""
    samples = eventually(agent, told, set(expected), timeout)
    counts: dict[Row, float] = {}
    for one in expected:
        if not one[-1]:
            counts[one[:3]] = counts.get(one[:3], 0) + 1
    assert counted(samples) == counts
    for finding, kind, uuid, *_ in expected:
        clear = values(samples, "findings", "kind", *WORKLOAD, finding=finding, uuid=uuid, gi="")
        assert 0 not in clear.values(), f"{finding} {kind} holds on {uuid} and is clear"
    return samples


def since(samples: Samples) -> dict[Row, float]:
    """When each active finding was first seen."""
    return values(samples, "finding_since_timestamp_seconds", *TOLD)


def orphaned(samples: Samples, gpu: Gpu) -> dict[Row, float]:
    """Bytes that nobody needs any more on a GPU, by cause."""
    return values(samples, "gpu_memory_orphaned_bytes", "cause", uuid=gpu.uuid)
