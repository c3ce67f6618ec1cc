"""Findings about processes: phantom, stuck, orphan, external, hidden. Pure.

A *client* has an NVML row, an nvidia-uvm descriptor or a mapping of a device, so that it can own memory; a
*holder* has any NVIDIA file open. Both are what attribution made of them (`Use`), or for a process that is
half gone what is remembered of it (`Known`).
"""

from __future__ import annotations

from collections.abc import Iterator

from exporter import infrastructure
from exporter.diagnosis.facts import Facts
from exporter.diagnosis.rule import Evidence
from exporter.model import (
    NOBODY,
    ContainerStatus,
    FindingName,
    Holds,
    NodeKind,
    Owner,
    Pod,
    Process,
    RowSighting,
    Ruling,
    Subject,
    Undetermined,
    Use,
    Visibility,
    value,
)

INIT = 1  # its files may be kept from everybody, and it is no client
OVERDUE = 120.0  # seconds after deletionTimestamp, which already includes the grace period
# Wait channels (kernel functions) of the NVIDIA driver and of the locks that its calls sleep in
# (kernel-open/). Not "nv" alone: nvme_ is storage.
DRIVER_CHANNELS = (
    *("nv_", "nvidia", "nvlink", "nvswitch", "nvKms", "nvUvm", "_nv"),
    *("uvm_", "rm_", "os_acquire", "os_cond_acquire"),
)
# Where a frozen task sleeps: cgroup v1 (kernel/freezer.c) and v2 (kernel/signal.c).
FROZEN_CHANNELS = ("__refrigerator", "do_freezer_trap", "get_signal")


def _who(process: Process) -> str:
    return f"{process.id.pid}/{process.id.start}"


def _clients(facts: Facts) -> Iterator[tuple[Use, Process]]:
    """Clients that /proc has; not those that only were given the number of a dead one in NVML's list."""
    for use in facts.attribution.uses:
        process = facts.processes.get(use.process) if use.process else None
        if process is not None and use.client and facts.older_row(use) is None:
            yield use, process


# --- phantom ------------------------------------------------------------------------------------------------


def phantoms(facts: Facts) -> Iterator[Ruling]:
    """Rows of NVML that no living process answers to."""
    for use in facts.attribution.uses:
        if use.visibility is Visibility.HOLDER or use.memory == 0:
            continue
        if use.process is None:
            yield _phantom(facts, use)
        elif (sighting := facts.older_row(use)) is not None:
            yield _aliased(facts, use, sighting)


def _phantom(facts: Facts, use: Use) -> Ruling:
    """A row that no process answers to: held by who inherited its descriptors, or by nobody we can see."""
    holders = [
        facts.processes[other.process]
        for other in facts.uses_of_gpu(use.device.uuid)
        if other.visibility is Visibility.HOLDER
        and other.process in facts.processes
        and other.owner is not Owner.SYSTEM
        and use.pod_uid in ("", other.pod_uid)
        and _listed(facts, facts.processes[other.process]) is None  # a living job's are not the dead one's
    ]
    subject = Subject(FindingName.PHANTOM_PROCESS, use.device, str(use.pid))
    if any(_maps_uvm(holder) for holder in holders):
        # A fork does not copy the mapping of nvidia-uvm: this one made its own context, and older drivers
        # list a thread of it that has ended.
        return Undetermined(FindingName.PHANTOM_PROCESS, "held", use.device, "thread_id", subject.who)
    if not holders and (unread := _unread_kin(facts, use)):
        return Undetermined(
            FindingName.PHANTOM_PROCESS, "unheld", use.device, f"unread:{unread}", subject.who
        )
    evidence = [f"NVML lists pid {use.pid} on {use.device.uuid}; /proc/{use.pid} does not exist"]
    evidence += [f"pid {holder.id.pid} ({holder.comm}) still has its files open" for holder in holders]
    return Holds(
        subject=subject,
        kind="held" if holders else "unheld",
        evidence=tuple(evidence),
        workload=use.workload,
        pod_uid=use.pod_uid,
        pid=use.pid,
        comm=use.comm,
        memory=use.memory,
        processes=tuple(holder.id for holder in holders),
    )


def _unread_kin(facts: Facts, use: Use) -> str:
    """What could not be read of a process that may hold a dead one's files, "" if there is none."""
    parts = [
        part
        for process in facts.processes.values()
        if process.unread
        and process.id.pid != INIT
        and use.pod_uid in ("", process.cgroup.pod_uid)
        and _listed(facts, process) is None
        for part in process.unread
    ]
    return min(parts, default="")


def _maps_uvm(process: Process) -> bool:
    return any(hold.node.kind is NodeKind.UVM and hold.mappings for hold in process.holds)


def _aliased(facts: Facts, use: Use, sighting: RowSighting) -> Ruling:
    process = facts.processes.get(use.process) if use.process else None
    if process is None or process.unread:
        who = str(sighting.pid)
        return Undetermined(FindingName.PHANTOM_PROCESS, "aliased", use.device, "process_unread", who)
    return Holds(
        subject=Subject(FindingName.PHANTOM_PROCESS, use.device, str(sighting.pid)),
        kind="aliased",
        evidence=(
            f"NVML has listed pid {sighting.pid} on {use.device.uuid} since before that process began",
            f"pid {use.pid} ({use.comm}) holds no NVIDIA file: it has only the number of a dead one",
        ),
        pid=sighting.pid,
        memory=use.memory,
    )


# --- stuck --------------------------------------------------------------------------------------------------


def stuck(facts: Facts) -> Iterator[Ruling]:
    """Clients and holders that can neither go on nor end."""
    table = value(facts.snapshot.processes)
    agent = table.agent if table else 0
    for process in facts.processes.values():
        if agent and agent in (process.id.pid, process.parent):
            continue  # our own children have source metrics of their own
        kind = _stuck_kind(facts, process)
        if kind is not None:
            yield from _stuck_on(facts, process, *kind)
        elif process.state == "Z":
            yield from _maybe_listed(facts, process)


def _stuck_kind(facts: Facts, process: Process) -> tuple[str, str] | None:
    """The kind, and what /proc shows; None for a process that is well, or may be."""
    known = facts.known.get(process.id)
    frozen = process.wchan in FROZEN_CHANNELS
    if process.dumping:
        return None
    if process.state == "Z":
        if process.threads > 1:
            return "zombie_leader", f"State Z, and {process.threads - 1} of its threads live"
        return ("zombie", "State Z, and NVML lists it") if process.numbers else None
    if process.exiting:  # it has taken the signal
        return "exiting", f"State {process.state}, exiting, descriptors closed or closing"
    if process.kill_pending:
        return "kill_pending", f"State {process.state}, SIGKILL pending"
    if frozen or process.state in "Tt" or known is None:
        return None
    stopped = [
        task for task in process.blocked if task in known.blocked and task.wchan not in FROZEN_CHANNELS
    ]
    if not stopped:
        return None
    # Others may only wait for the one that sleeps in the driver.
    task = min(stopped, key=lambda one: (not one.wchan.startswith(DRIVER_CHANNELS), one.tid))
    driver = task.wchan.startswith(DRIVER_CHANNELS)
    kind = "uninterruptible_driver" if driver else "uninterruptible_other"
    return (
        kind,
        f"thread {task.tid} in state D in {task.wchan or 'an unknown function'}, CPU time standing still",
    )


def _stuck_on(facts: Facts, process: Process, kind: str, seen: str) -> Iterator[Ruling]:
    uses = {use.device: use for use in facts.uses_of(process.id)}
    known = facts.known.get(process.id)
    # One that can be looked at and holds nothing has left the device: then it is stuck elsewhere.
    remembered = known.devices if known and (process.dying or process.unread) else ()
    for device in known.devices if known else ():
        if device not in {*uses, *remembered} and (lack := facts.lack(Evidence.ROWS, device)):
            why = f"{lack.evidence}:{lack.reason}"  # a row may be what ties it to the device
            yield Undetermined(FindingName.STUCK_PROCESS, kind, device, why, _who(process))
    for device in sorted({*uses, *remembered}, key=lambda key: key.order):
        use = uses.get(device)
        yield Holds(
            subject=Subject(FindingName.STUCK_PROCESS, device, _who(process)),
            kind=kind,
            evidence=(f"/proc/{process.id.pid}/status: {seen}", _tie(use)),
            workload=use.workload if use else known.workload if known else NOBODY,
            pod_uid=use.pod_uid if use else known.pod_uid if known else "",
            pid=process.id.pid,
            comm=use.comm if use else known.comm if known else process.comm,
            memory=use.memory if use else None,
            processes=(process.id,),
        )


def _maybe_listed(facts: Facts, process: Process) -> Iterator[Undetermined]:
    """A zombie is a plain one where NVML does not list it: on a device whose list is missing nobody knows."""
    known = facts.known.get(process.id)
    for device in known.devices if known and not process.numbers else ():
        if lack := facts.lack(Evidence.ROWS, device):
            why = f"{lack.evidence}:{lack.reason}"
            yield Undetermined(FindingName.STUCK_PROCESS, "zombie", device, why, _who(process))


def _tie(use: Use | None) -> str:
    match use.visibility if use else None:
        case Visibility.HOLDER:
            return "it has the device's files open"
        case None:
            return "it was seen on the device before its files were closed"
        case _:
            return "NVML lists it on the device"


# --- orphan -------------------------------------------------------------------------------------------------


def orphans(facts: Facts) -> Iterator[Ruling]:
    """Living clients of pods and containers that are no longer current."""
    for use, process in _clients(facts):
        if process.state in "ZX" or use.owner is Owner.SYSTEM:
            continue
        for kind, evidence in _orphan_kinds(facts, use, process):
            yield Holds(
                subject=Subject(FindingName.ORPHAN_PROCESS, use.device, _who(process)),
                kind=kind,
                evidence=(evidence,),
                workload=use.workload,
                pod_uid=use.pod_uid,
                pid=use.pid,
                comm=use.comm,
                memory=use.memory,
                processes=(process.id,),
            )
        if (pod := facts.pods.get(use.pod_uid)) and (one := _in_place(use, pod)) and not one.running:
            # Between two attempts of a crash loop nothing tells when the current container began.
            name = FindingName.ORPHAN_PROCESS
            yield Undetermined(name, "stale_container", use.device, "container_not_running", _who(process))


def _orphan_kinds(facts: Facts, use: Use, process: Process) -> Iterator[tuple[str, str]]:
    where = f"pid {use.pid} lives in the cgroup of pod {use.pod_uid}"
    if use.owner is Owner.ORPHAN:
        yield "pod_gone", f"{where}, which neither the API server nor the kubelet knows"
    pod = facts.pods.get(use.pod_uid)
    if pod is not None:
        name = f"{pod.namespace}/{pod.name}"
        if pod.ended:
            yield "pod_terminal", f"{where}; {name} is {pod.phase}"
        due = pod.deletion_timestamp
        if due is not None and facts.snapshot.at > due + OVERDUE:
            yield (
                "terminating_overdue",
                f"{where}; {name} should have been gone {facts.snapshot.at - due:.0f} s ago",
            )
        if (current := _replaced_by(facts, use, process, pod)) is not None:
            yield (
                "stale_container",
                f"{where}, of container {use.container_id[:12]}; {current.name} has been restarted",
            )
    if process.cgroup.deleted:
        yield "cgroup_deleted", f"/proc/{use.pid}/cgroup names a group that was removed"


def _replaced_by(facts: Facts, use: Use, process: Process, pod: Pod) -> ContainerStatus | None:
    """The container that runs in the place of the process' own, which is not the current one and is older."""
    table, one = value(facts.snapshot.processes), _in_place(use, pod)
    if table is None or one is None or not one.running or one.started_at is None:
        return None
    started = table.boot_time + process.id.start / table.ticks_per_second
    return one if started < one.started_at else None


def _in_place(use: Use, pod: Pod) -> ContainerStatus | None:
    """The container with the name of the process' own, if that has another id."""
    if not use.container_id or any(use.container_id == one.container_id for one in pod.containers):
        return None
    return next((one for one in pod.containers if one.name and one.name == use.workload.container), None)


# --- external -----------------------------------------------------------------------------------------------


def external(facts: Facts) -> Iterator[Ruling]:
    """Clients outside Kubernetes that are no known infrastructure."""
    for use, process in _clients(facts):
        if use.owner is Owner.UNKNOWN and (use.container_id or not process.dying):
            yield Undetermined(
                FindingName.EXTERNAL_PROCESS, "unknown", use.device, "owner_unknown", _who(process)
            )
        if not _is_external(use, process):
            continue
        cgroup = process.cgroup
        place = cgroup.unit or (f"container {cgroup.container_id[:12]}" if cgroup.container_id else "no unit")
        yield Holds(
            subject=Subject(FindingName.EXTERNAL_PROCESS, use.device, _who(process)),
            kind=_external_kind(process),
            evidence=(f"pid {use.pid} ({use.comm}) is in no pod: {place}", _tie(use)),
            pid=use.pid,
            comm=use.comm,
            memory=use.memory,
            processes=(process.id,),
        )


def _is_external(use: Use, process: Process) -> bool:
    """In no pod; infrastructure is excused up to what such a daemon has ever needed."""
    if use.owner is Owner.HOST:
        return True
    if use.owner is not Owner.SYSTEM or use.pod_uid or not use.memory:
        return False
    daemon = infrastructure.component(process.cgroup, "", process.exe)
    return daemon is not None and daemon.memory_limit is not None and use.memory > daemon.memory_limit


def _external_kind(process: Process) -> str:
    cgroup = process.cgroup
    if cgroup.container_id:
        return "other_container"
    if cgroup.unit.startswith(("session-", "user@")):
        return "user_session"
    return "system_service" if cgroup.unit.endswith(".service") else "unknown"


# --- hidden -------------------------------------------------------------------------------------------------


def hidden(facts: Facts) -> Iterator[Ruling]:
    """Clients that NVML does not list, and that no listed process brought forth."""
    for use, process in _clients(facts):
        if use.visibility is not Visibility.HOLDER:
            continue
        if use.owner is Owner.SYSTEM or _listed(facts, process) is not None:
            continue
        if doubt := _maybe_listed_too(facts, use, process):
            yield Undetermined(FindingName.HIDDEN_HOLDER, "unlisted", use.device, doubt, _who(process))
            continue
        yield Holds(
            subject=Subject(FindingName.HIDDEN_HOLDER, use.device, _who(process)),
            kind="unlisted",
            evidence=(
                f"pid {use.pid} ({use.comm}) has {_files(process)} open or mapped; NVML does not list it",
            ),
            workload=use.workload,
            pod_uid=use.pod_uid,
            pid=use.pid,
            comm=use.comm,
            processes=(process.id,),
        )
    if lack := facts.lack(Evidence.WHOLE_SCAN, None):
        for device in facts.devices:  # of those that nobody could look at, whoever they are
            why = f"{lack.evidence}:{lack.reason}"
            yield Undetermined(FindingName.HIDDEN_HOLDER, "unlisted", device, why, who="")


def _listed(facts: Facts, process: Process) -> Process | None:
    """The process that NVML lists on any GPU: itself, or one of its pod that it descends from.

    CUDA opens the files of all GPUs that it sees and works on some of them; what it forks inherits them all.
    """
    for one in (process, *facts.ancestors(process)):
        uses = facts.uses_of(one.id)
        if one.cgroup.pod_uid == process.cgroup.pod_uid and any(
            use.visibility is not Visibility.HOLDER for use in uses
        ):
            return one
    return None


def _maybe_listed_too(facts: Facts, use: Use, process: Process) -> str:
    """Why NVML may list it after all: by a thread that has ended, or on another GPU; "" if it does not."""
    others = facts.uses_of_gpu(use.device.uuid)
    if _maps_uvm(process) and any(o.process is None and o.pod_uid in ("", use.pod_uid) for o in others):
        return "thread_id"
    for one in (process, *facts.ancestors(process)):
        for row in facts.uses_of(one.id):
            if lack := facts.lack(Evidence.ROWS, row.device):
                return f"{lack.evidence}:{lack.reason}"
    return ""


def _files(process: Process) -> str:
    return ", ".join(sorted({f"nvidia {hold.node.kind} {hold.node.minor}" for hold in process.holds}))
