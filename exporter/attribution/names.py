"""Which pod a cgroup's UID or a container id is, and by which evidence.

Order of belief: the API server's pod with that UID; a log directory of that UID, better where the kubelet
lists that name; what an earlier cycle knew; else the UID alone. A pod is never named by its name alone: a
re-created pod of the same name is another pod. A container is named by its id, or where the pod has ever had
only one container. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter.model import Basis, Cgroup, History, NamedPod, Pod, PodName, Seen, Snapshot, value


@dataclass(frozen=True, slots=True)
class Name:
    """A pod by UID; namespace and name are "" where only the UID is known."""

    uid: str
    namespace: str
    name: str
    basis: Basis


class Names:
    """Look-ups over all that is known of pods in this cycle."""

    def __init__(self, snapshot: Snapshot, history: History) -> None:
        pods = value(snapshot.pods)
        kubelet = value(snapshot.kubelet)
        logs = value(snapshot.pod_names)
        table = value(snapshot.processes)
        self.pods: dict[str, Pod] = {}
        for pod in pods.pods if pods else ():
            self.pods[pod.uid] = self.pods[pod.cgroup_uid] = pod
        self._by_name = {(p.namespace, p.name): p for p in self.pods.values()}
        self.told = set(self._by_name)
        self._by_container = {
            c.container_id: p for p in self.pods.values() for c in p.containers if c.container_id
        }
        self._remembered = {pod.uid: pod for pod in history.pods}
        self._logs: dict[str, PodName] = {name.uid: name for name in (logs.names if logs else ())}
        self.listed = {(p.namespace, p.name) for p in kubelet.pods} if kubelet else set()
        self._containers = {(p.namespace, p.name): p.containers for p in kubelet.pods} if kubelet else {}
        self.living = {container.pod_uid for container in table.containers} if table else None
        self._api = snapshot.pods
        self._known: dict[tuple[str, str], set[str]] = {}  # UIDs by name, of logs and memory
        known: list[PodName | NamedPod] = [*self._logs.values(), *self._remembered.values()]
        for one in known:
            self._known.setdefault((one.namespace, one.name), set()).add(one.uid)

    def pod(self, cgroup: Cgroup) -> Name | None:
        """The pod of a cgroup, or None outside pods."""
        uid = cgroup.pod_uid
        if not uid:
            pod = self._by_container.get(cgroup.container_id) if cgroup.container_id else None
            return Name(pod.cgroup_uid, pod.namespace, pod.name, Basis.API) if pod else None
        if pod := self.pods.get(uid):
            return Name(uid, pod.namespace, pod.name, Basis.API)
        if logs := self._logs.get(uid):
            listed = (logs.namespace, logs.name) in self.listed
            return Name(uid, logs.namespace, logs.name, Basis.KUBELET if listed else Basis.LOGS)
        if known := self._remembered.get(uid):
            return Name(uid, known.namespace, known.name, Basis.MEMORY)
        return Name(uid, "", "", Basis.UID)

    def container(self, cgroup: Cgroup, name: Name) -> str:
        """The container's name, or "" where nothing proves it."""
        if pod := self.pods.get(name.uid):
            for one in pod.containers:
                if cgroup.container_id and cgroup.container_id in (one.container_id, one.previous_id):
                    return one.name
        known = self._remembered.get(name.uid)
        for container_id, container in known.containers if known else ():
            if container_id == cgroup.container_id:
                return container
        logs = self._logs.get(name.uid)
        return logs.containers[0] if logs and len(logs.containers) == 1 else ""

    def uid(self, namespace: str, name: str) -> str:
        """The cgroup UID of the pod that the kubelet lists under a name; "" where no evidence picks exactly
        one.
        """
        if pod := self._by_name.get((namespace, name)):
            return pod.cgroup_uid
        known = self._uids(namespace, name)
        alive = known & self.living if self.living is not None else known
        return next(iter(alive)) if len(alive) == 1 else ""

    def ended(self, namespace: str, name: str) -> bool:
        """Whether the API server says that this pod has run to its end."""
        pod = self._by_name.get((namespace, name))
        return pod is not None and pod.ended

    def may_live(self, namespace: str, name: str, since: float) -> bool:
        """Whether a pod that the kubelet listed at `since` can still be there: nothing seen rules it out.

        An API list from before then may be older than the pod.
        """
        pod = self._by_name.get((namespace, name))
        if pod is not None and pod.ended:
            return False
        if pod is None and isinstance(self._api, Seen) and self._api.complete and self._api.at >= since:
            return False
        uids = {pod.cgroup_uid} if pod else self._uids(namespace, name)
        return self.living is None or not uids or bool(uids & self.living)

    def _uids(self, namespace: str, name: str) -> set[str]:
        """All pods that the logs and the memory know by a name."""
        return self._known.get((namespace, name), set())
