"""Findings about what was given and what is used: shared, misplaced and idle devices. Pure.

The kubelet says what was given, NVML's rows say who has memory where; both must be known before they can
disagree. A row counts with more than 0 bytes. N/A counts only where the driver gives no figure for any
process of the node, and then as a warning at most. What a pod may be given by a scheme whose choice the
kubelet does not know is never called wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from exporter.diagnosis import standing
from exporter.diagnosis.facts import Facts, one_workload
from exporter.diagnosis.rule import Evidence
from exporter.diagnosis.standing import Standing
from exporter.model import (
    Basis,
    ContainerKind,
    DeviceKey,
    FindingName,
    Grant,
    Holds,
    NotApplicable,
    Owner,
    ProcessId,
    Ruling,
    Seen,
    Severity,
    Subject,
    Undetermined,
    Use,
    Visibility,
)

MIB = 2**20
SHARED, MISPLACED, IDLE = (
    FindingName.EXCLUSIVE_GPU_SHARED,
    FindingName.USED_NOT_ALLOCATED,
    FindingName.IDLE_ALLOCATION,
)
DYING = ("zombie", "exiting", "stuck")  # states of a use that the rule of stuck processes is about


def _weighs(facts: Facts, use: Use) -> bool:
    """Whether it has memory there, as far as anybody can tell; a dead one's number is not enough."""
    if use.process is None or use.visibility is Visibility.HOLDER or facts.older_row(use):
        return False
    return facts.unmeasured if use.memory is None else use.memory > 0


def _bytes(uses: Iterable[Use]) -> int | None:
    known = [use.memory for use in uses if use.memory is not None]
    return sum(known) if known else None


def _ids(uses: Iterable[Use]) -> tuple[ProcessId, ...]:
    return tuple(sorted({use.process for use in uses if use.process is not None}))


def _name(device: DeviceKey) -> str:
    return device.mig_uuid or device.uuid


def _pod(given: Use | Grant) -> tuple[str, str]:
    return (given.workload.namespace, given.workload.pod)


def _told(use: Use) -> str:
    what = "memory" if use.memory is None else f"{use.memory // MIB} MiB"
    pod = f"{use.workload.namespace}/{use.workload.pod}" if use.workload.pod else f"pod {use.pod_uid}"
    return f"pid {use.pid} ({use.comm}) of {pod} has {what} on {_name(use.device)}"


# --- shared -------------------------------------------------------------------------------------------------


def shared(facts: Facts) -> Iterator[Ruling]:
    """Devices of one pod that two pods use, or that were given twice."""
    for device in facts.devices:
        yield from _double_use(facts, device)
        yield from _double_allocation(facts, device)


def _double_use(facts: Facts, device: DeviceKey) -> Iterator[Ruling]:
    uses = [use for use in facts.uses_on(device) if _weighs(facts, use)]
    if reason := _by_design(facts, device, uses):
        yield NotApplicable(SHARED, "double_use", device, reason)
        return
    counted = [use for use in uses if _counted(facts, use)]
    if len(_parties(facts, device, counted)) < 2:
        if counted and any(use.owner is Owner.UNKNOWN for use in uses):
            yield Undetermined(SHARED, "double_use", device, "owner_unknown")
        return
    sound = [use for use in counted if _sound(facts, use)]
    # Where what an ended pod left behind is the other party, the finding about that says why: name it.
    users = sound if len(_parties(facts, device, sound)) > 1 else counted
    if doubt := _maybe_by_design(facts, device, users):
        yield Undetermined(SHARED, "double_use", device, doubt)
        return
    yield Holds(
        subject=Subject(SHARED, device),
        kind="double_use",
        evidence=tuple(map(_told, users)),
        pid=users[0].pid,
        comm=users[0].comm,
        memory=_bytes(users),
        processes=_ids(users),
        severity=Severity.WARNING if facts.unmeasured else None,
    )


def _counted(facts: Facts, use: Use) -> bool:
    """Pods' processes; not those of a pod that is just handing its device over."""
    if use.owner is Owner.ORPHAN:
        return True
    return use.owner is Owner.POD and standing.of_use(facts, use) is not Standing.ENDING


def _sound(facts: Facts, use: Use) -> bool:
    """Whether it is a process of a pod that is current, and not on its way out."""
    process = facts.processes.get(use.process) if use.process else None
    return (
        use.owner is Owner.POD
        and use.state not in DYING
        and process is not None
        and not (process.kill_pending or process.cgroup.deleted)
        and standing.of_use(facts, use) is Standing.CURRENT
    )


def _parties(facts: Facts, device: DeviceKey, uses: Iterable[Use]) -> set[str]:
    """Those that must not share it: pods, of which those with one claim are one."""
    claims = {_pod(grant): grant.allocation.claim for grant in _over(facts, device)}
    return {claims.get(_pod(use)) or use.pod_uid for use in uses}


def _over(facts: Facts, device: DeviceKey) -> list[Grant]:
    """What was given of a device, or of the whole GPU that it is part of."""
    whole = DeviceKey(device.uuid)
    return facts.grants_on(device) + ([] if device == whole else facts.grants_on(whole))


def _by_design(facts: Facts, device: DeviceKey, uses: Iterable[Use]) -> str:
    """What makes it right that several pods use the device, "" if nothing is known to."""
    given = _over(facts, device)
    if any(grant.shared for grant in given) or standing.offered_in_replicas(facts, device):
        return "replicas"
    if facts.under_mps(device):
        return "mps"
    pods = {(use.workload, use.pod_uid) for use in uses} | {(one.workload, one.pod_uid) for one in given}
    return max((standing.scheme(facts, *pod) for pod in pods), default="")


def _maybe_by_design(facts: Facts, device: DeviceKey, uses: Iterable[Use]) -> str:
    """Why it is not known whether sharing is right there; a plain id that the kubelet lists settles it."""
    if facts.is_parent(device):
        return "no_instance"  # rows that name no part, and the parts are what is given
    if any(grant.current for grant in _over(facts, device)):
        return ""
    return next((doubt for use in uses if (doubt := standing.doubt(facts, use))), "")


def _double_allocation(facts: Facts, device: DeviceKey) -> Iterator[Ruling]:
    """One plain id for two pods. Claims are left out: one with admin access is given what is another's."""
    pods: dict[tuple[str, str], Grant] = {}
    for grant in facts.grants_on(device):
        if not (grant.shared or grant.allocation.claim):
            pods.setdefault(_pod(grant), grant)
    stands = {pod: standing.of_grant(facts, grant) for pod, grant in pods.items()}
    active = [pod for pod, is_ in stands.items() if is_ is Standing.CURRENT and pods[pod].current]
    doubtful = [
        pod
        for pod, is_ in stands.items()
        if is_ is Standing.UNKNOWN or (is_ is Standing.CURRENT and not pods[pod].current)
    ]
    if len(active) > 1:
        yield Holds(
            subject=Subject(SHARED, device),
            kind="double_allocation",
            evidence=tuple(
                f"the kubelet lists {pods[pod].allocation.device_id} for {'/'.join(pod)}" for pod in active
            ),
        )
    elif doubtful and len(active) + len(doubtful) > 1:
        yield Undetermined(SHARED, "double_allocation", device, "pod_unknown")


# --- misplaced ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Case:
    """One pod's processes with memory on one device."""

    device: DeviceKey
    uid: str
    uses: tuple[Use, ...]

    def undetermined(self, reason: str) -> Iterator[Ruling]:
        for kind in ("of_other_pod", "of_nobody"):
            yield Undetermined(MISPLACED, kind, self.device, reason, self.uid)


def misplaced(facts: Facts) -> Iterator[Ruling]:
    """Clients of pods on devices that those pods were not given."""
    cases: dict[tuple[DeviceKey, str], list[Use]] = {}
    for use in facts.attribution.uses:
        if use.owner is Owner.POD and use.pod_uid and _weighs(facts, use):
            cases.setdefault((use.device, use.pod_uid), []).append(use)
        elif use.owner is Owner.UNKNOWN and use.process is not None and _weighs(facts, use):
            yield from _Case(use.device, f"{use.process.pid}/{use.process.start}", ()).undetermined(
                "owner_unknown"
            )
    for (device, uid), uses in cases.items():
        yield from _misplaced(facts, _Case(device, uid, tuple(uses)))


def _misplaced(facts: Facts, case: _Case) -> Iterator[Ruling]:
    first = case.uses[0]
    if first.basis is Basis.UID or not first.workload.pod:
        yield from case.undetermined("pod_unnamed")
        return
    given = standing.grants(facts, first)
    if any(grant.current and _covers(grant, case.device) for grant in given):
        return
    if standing.of_use(facts, first) in (Standing.ENDING, Standing.OVER):
        return  # it may have been given the device before: what it left is the orphan rule's
    if scheme := _not_judged(facts, case):
        yield NotApplicable(MISPLACED, "of_other_pod", case.device, scheme)
        yield NotApplicable(MISPLACED, "of_nobody", case.device, scheme)
    elif doubt := _why_unsure(facts, case, given):
        yield from case.undetermined(doubt)
    else:
        yield _trespass(facts, case, given)


def _not_judged(facts: Facts, case: _Case) -> str:
    first = case.uses[0]
    if scheme := standing.scheme(facts, first.workload, case.uid):
        return scheme
    gpu = facts.gpu(case.device)
    pids = {number for use in case.uses if use.process for number in _numbers(facts, use.process)}
    rows = [row for row in (gpu.rows or ()) if row.pid in pids] if gpu else []
    return "mps" if rows and all("mps" in row.kinds for row in rows) else ""


def _numbers(facts: Facts, process: ProcessId) -> tuple[int, ...]:
    found = facts.processes.get(process)
    return found.numbers if found else (process.pid,)


def _why_unsure(facts: Facts, case: _Case, given: tuple[Grant, ...]) -> str:
    """Why the pod may have been given the device after all, "" if it was not."""
    first = case.uses[0]
    if doubt := standing.doubt(facts, first):
        return doubt
    if any(_may_cover(grant, case.device) for grant in given):
        return "no_instance"
    now = {grant.allocation for grant in given}
    if any(
        (held.allocation.namespace, held.allocation.pod) == _pod(first) and held.allocation not in now
        for held in facts.before.carried
    ):
        return "allocation_ended"
    if all(_initialises(facts, use) for use in case.uses):
        return "init_container"
    return ""


def _covers(grant: Grant, device: DeviceKey) -> bool:
    """A whole GPU has its parts in it; a part covers neither the GPU nor its other parts."""
    return grant.device in (device, DeviceKey(device.uuid))


def _may_cover(grant: Grant, device: DeviceKey) -> bool:
    """Whether a part was given and the row does not say on which part it is."""
    given = grant.device
    if given is None or given.uuid != device.uuid or device.ci is not None:
        return False
    return device.gi is None or given.gi == device.gi


def _initialises(facts: Facts, use: Use) -> bool:
    """Init containers may have more devices than the pod keeps, and the kubelet lists only what it keeps."""
    pod = facts.pods.get(use.pod_uid)
    return any(
        one.kind is ContainerKind.INIT and one.container_id == use.container_id
        for one in (pod.containers if pod else ())
        if one.container_id
    )


def _trespass(facts: Facts, case: _Case, given: tuple[Grant, ...]) -> Holds:
    first = case.uses[0]
    owners = sorted(
        {
            "/".join(_pod(grant))
            for grant in _over(facts, case.device)
            if grant.current
            and not grant.shared
            and _pod(grant) != _pod(first)
            and standing.of_grant(facts, grant) is Standing.CURRENT
        }
    )
    own = sorted({grant.allocation.device_id for grant in given}) or ["no GPU"]
    return Holds(
        subject=Subject(MISPLACED, case.device, case.uid),
        kind="of_other_pod" if owners else "of_nobody",
        evidence=(
            *map(_told, case.uses),
            f"the kubelet gave {'/'.join(_pod(first))} {', '.join(own)}",
            *(f"the kubelet gave {_name(case.device)} to {owner}" for owner in owners),
        ),
        workload=one_workload(use.workload for use in case.uses),
        pod_uid=case.uid,
        pid=first.pid,
        comm=first.comm,
        memory=_bytes(case.uses),
        processes=_ids(case.uses),
        severity=Severity.WARNING if facts.unmeasured else None,
    )


# --- idle ---------------------------------------------------------------------------------------------------


def idle(facts: Facts) -> Iterator[Ruling]:
    """Devices that a pod was given and that none of its processes uses."""
    for device in facts.devices:
        pods: dict[tuple[str, str], list[Grant]] = {}
        for grant in facts.grants_on(device):
            if not standing.reserves(facts, grant):
                pods.setdefault(_pod(grant), []).append(grant)
        near = _Near(facts, device)
        for grants in pods.values():
            yield from _idle(facts, near, grants)
        # A kubelet that has just started may not list the pod yet that it gave this to.
        lack = facts.lack(Evidence.SETTLED_LIST, None)
        if not pods and lack is not None and isinstance(facts.snapshot.kubelet, Seen):
            yield Undetermined(IDLE, "no_client", device, f"{lack.evidence}:{lack.reason}")


def _idle(facts: Facts, near: _Near, grants: list[Grant]) -> Iterator[Ruling]:
    first, device = grants[0], near.device
    if near.works(first):
        return
    stands = standing.of_grant(facts, first)
    if stands in (Standing.ENDING, Standing.OVER):
        return
    pod = "/".join(_pod(first))  # the kubelet's name for it: its UID is not always known
    if not any(one.current for one in grants):
        yield Undetermined(IDLE, "no_client", device, "kubelet_restarted", pod)
        return
    if doubt := _may_work(facts, near, first, stands):
        yield Undetermined(IDLE, "no_client", device, doubt, pod)
        return
    yield Holds(
        subject=Subject(IDLE, device, pod),
        kind="no_client",
        evidence=(
            *(f"the kubelet lists {one.allocation.device_id} for {pod}" for one in grants),
            f"no process of it has a row on {_name(device)}, nvidia-uvm open or the device mapped",
        ),
        workload=one_workload(one.workload for one in grants),
        pod_uid=first.pod_uid,
    )


class _Near:
    """Clients on a device, on parts of it, or on the GPU where their part is not known."""

    def __init__(self, facts: Facts, device: DeviceKey) -> None:
        self.device = device
        self.uses = [use for use in facts.uses_of_gpu(device.uuid) if use.client and self._counts(use.device)]
        self._uids = {use.pod_uid for use in self.uses}
        self._pods = {_pod(use) for use in self.uses}

    def _counts(self, on: DeviceKey) -> bool:
        device = self.device
        return on == device or None in (device.gi, on.gi) or (on.ci is None and on.gi == device.gi)

    def works(self, grant: Grant) -> bool:
        """Whether one of them is the pod's."""
        return grant.pod_uid in self._uids if grant.pod_uid else _pod(grant) in self._pods


def _may_work(facts: Facts, near: _Near, grant: Grant, stands: Standing) -> str:
    """Why a client of the pod may have been overlooked, "" if none can have been."""
    if stands is Standing.UNKNOWN:
        return "pod_unknown"
    if lack := facts.lack(Evidence.WHOLE_SCAN, near.device):
        return f"{lack.evidence}:{lack.reason}"
    for use in near.uses:
        if use.owner is Owner.UNKNOWN:
            return "owner_unknown"
        if not grant.pod_uid and use.basis is Basis.UID:
            return "pod_unnamed"
    return ""
