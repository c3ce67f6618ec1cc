"""Containers as rules ask for them: whose /dev it is, what its pod is, and what the kubelet gave it. Pure.

In: facts of one cycle. Out: one record for each view of a container's /dev. A container is known by its id;
its name comes from the API server, else from its processes on GPUs, else from the log directory of a pod that
has only ever had one. What no source tells stays unknown.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from exporter import infrastructure
from exporter.diagnosis.facts import Facts
from exporter.model import (
    NOBODY,
    Cgroup,
    ContainerStatus,
    ContainerView,
    Grant,
    LiveContainer,
    Owner,
    Pod,
    Process,
    Workload,
    value,
)


@dataclass(frozen=True, slots=True)
class Container:
    """A container and all that bears on what it may see.

    `workload` lacks what is not known. `given` is what its pod was given, if it is not known by name or is
    one that the kubelet does not list. `listed` is None where the kubelet does not list its pod.
    """

    view: ContainerView
    workload: Workload
    status: ContainerStatus | None
    runtime_class: str
    given: tuple[Grant, ...]
    listed: tuple[str, ...] | None
    client: bool
    infrastructure: bool
    left_behind: bool  # by a pod that is gone

    @property
    def privileged(self) -> bool | None:
        """Whether it is; None where the API server does not tell."""
        return self.status.privileged if self.status else None


class Containers:
    """Look-ups over all containers whose /dev was looked at."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        views, table = value(facts.snapshot.container_dev), value(facts.snapshot.processes)
        kubelet, logs = value(facts.snapshot.kubelet), value(facts.snapshot.pod_names)
        self._views = {view.container_id: view for view in (views.views if views else ())}
        self._live: dict[str, LiveContainer] | None = (
            {one.container_id: one for one in table.containers} if table else None
        )
        self._agent = table.agent if table else 0
        self._listed = {(p.namespace, p.name): p.containers for p in kubelet.pods} if kubelet else {}
        self._logs = {name.uid: name for name in (logs.names if logs else ())}
        self._named = {
            container_id: Workload(pod.namespace, pod.name, container)
            for pod in facts.before.pods
            for container_id, container in pod.containers
        }
        self._clients = set()
        self._orphaned = {use.container_id for use in facts.attribution.uses if use.owner is Owner.ORPHAN}
        for use in facts.attribution.uses:
            if use.container_id and use.workload.container:
                self._named[use.container_id] = use.workload
            if use.client:
                self._clients.add(use.container_id)
        self._inside: dict[str, list[Process]] = defaultdict(list)
        for process in facts.processes.values():
            self._inside[process.cgroup.container_id].append(process)

    def pod(self, workload: Workload) -> Pod | None:
        """The pod of that name, by the API server."""
        return self._facts.pod_named.get((workload.namespace, workload.pod))

    def view(self, container_id: str) -> ContainerView | None:
        """The view of a container's /dev, seen or not."""
        return self._views.get(container_id)

    def views(self, pod_uid: str) -> tuple[ContainerView, ...]:
        """The views of a pod's containers, that of its sandbox among them."""
        return tuple(view for view in self._views.values() if pod_uid and view.pod_uid == pod_uid)

    def is_dead(self, container_id: str) -> bool:
        """Whether the scan found no process of it."""
        return self._live is not None and container_id not in self._live

    def name(self, view: ContainerView) -> Workload:
        """The names of a container, as far as they are known."""
        if pod := self._facts.pods.get(view.pod_uid):
            status = self._status(pod, view)
            return Workload(pod.namespace, pod.name, status.name if status else "")
        if known := self._named.get(view.container_id):
            return known
        if logs := self._logs.get(view.pod_uid):
            only = logs.containers[0] if len(logs.containers) == 1 and not self._is_sandbox(view) else ""
            return Workload(logs.namespace, logs.name, only)
        return NOBODY

    def of(self, view: ContainerView) -> Container:
        """All that is known of the container whose /dev this is."""
        pod, workload = self._facts.pods.get(view.pod_uid), self.name(view)
        return Container(
            view=view,
            workload=workload,
            status=self._status(pod, view) if pod else None,
            runtime_class=pod.runtime_class if pod else "",
            given=self._given(view, workload),
            listed=self._listed.get((workload.namespace, workload.pod)),
            client=view.container_id in self._clients,
            infrastructure=self._is_infrastructure(view, workload.namespace),
            left_behind=self._is_left_behind(view, workload),
        )

    def _is_left_behind(self, view: ContainerView, workload: Workload) -> bool:
        """Whether its pod is gone: another one has its name, or no API server and no kubelet knows it."""
        successor = self.pod(workload)
        replaced = successor is not None and view.pod_uid not in (successor.uid, successor.cgroup_uid)
        return replaced or view.container_id in self._orphaned

    def _given(self, view: ContainerView, workload: Workload) -> tuple[Grant, ...]:
        grants = self._facts.attribution.grants
        if workload.pod:
            grants = self._facts.grants_of(workload.namespace, workload.pod)
        else:
            grants = tuple(grant for grant in grants if grant.pod_uid in ("", view.pod_uid))
        listed = self._listed.get((workload.namespace, workload.pod), ())
        if workload.container in listed:
            return tuple(grant for grant in grants if grant.workload.container == workload.container)
        return grants

    def _status(self, pod: Pod, view: ContainerView) -> ContainerStatus | None:
        before = None
        for one in pod.containers:
            if one.container_id == view.container_id:
                return one
            if one.previous_id == view.container_id:
                before = one
        return before

    def _is_sandbox(self, view: ContainerView) -> bool:
        """Whether it may be the pod's sandbox, which starts before its containers."""
        starts = {
            one.container_id: one.process.start
            for one in (self._live or {}).values()
            if one.pod_uid == view.pod_uid
        }
        return starts.get(view.container_id, 0) <= min(starts.values(), default=0)

    def _is_infrastructure(self, view: ContainerView, namespace: str) -> bool:
        """Whether GPU infrastructure, or the agent itself, runs in it.

        Also daemons that hold no device file just now: the process whose /dev was looked at tells what it is.
        """
        inside = self._inside.get(view.container_id, ())
        live = (self._live or {}).get(view.container_id)
        pids = {pid for process in inside for pid in (process.id.pid, process.parent)}
        if self._agent and self._agent in pids | ({live.process.pid} if live else set()):
            return True
        cgroup = Cgroup(view.pod_uid, view.container_id)
        programs = {view.exe, *(process.exe for process in inside)}
        return any(infrastructure.component(cgroup, namespace, exe) for exe in programs)
