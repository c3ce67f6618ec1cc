"""Builders of Kubernetes API objects: full Pod and Node JSON as an API server of about 1.30 returns it.

Stand-in: the objects. They carry what a real one carries (managedFields included, which is most of its size),
so that a reader is measured and tested on realistic input.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

CREATED = "2026-01-01T00:00:00Z"


def container_id(seed: str) -> str:
    """A container id: 64 hexadecimal digits, the same for the same seed."""
    return hashlib.sha256(seed.encode()).hexdigest()


def timestamp(seconds: float) -> str:
    """Unix time as the API writes it."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a pod and its status; `state` is running, waiting or terminated."""

    name: str
    id: str = ""
    state: str = "running"
    reason: str = ""
    exit_code: int = 0
    restarts: int = 0
    last_id: str = ""
    started_at: str = CREATED
    finished_at: str = CREATED
    limits: Mapping[str, str] = field(default_factory=dict)
    sidecar: bool = False
    runtime: str = "containerd"

    def spec(self) -> Json:
        """The container in the pod's spec."""
        resources = {"limits": dict(self.limits), "requests": dict(self.limits)} if self.limits else {}
        spec: Json = {
            "name": self.name,
            "image": f"registry.example/{self.name}:1",
            "resources": resources,
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
            "imagePullPolicy": "IfNotPresent",
            "env": [{"name": f"VARIABLE_{index}", "value": "x" * 40} for index in range(12)],
            "volumeMounts": [
                {
                    "name": "kube-api-access-abcde",
                    "readOnly": True,
                    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                }
            ],
        }
        return {**spec, "restartPolicy": "Always"} if self.sidecar else spec

    def status(self) -> Json:
        """The container in the pod's status."""
        last: Json = {}
        if self.last_id:
            last = {"terminated": self._terminated(self.last_id, "Error", 137)}
        status: Json = {
            "name": self.name,
            "image": f"registry.example/{self.name}:1",
            "imageID": f"registry.example/{self.name}@sha256:{container_id(self.name)}",
            "restartCount": self.restarts,
            "ready": self.state == "running",
            "started": self.state == "running",
            "state": self._state(),
            "lastState": last,
        }
        return {**status, "containerID": f"{self.runtime}://{self.id}"} if self.id else status

    def _state(self) -> Json:
        match self.state:
            case "running":
                return {"running": {"startedAt": self.started_at}}
            case "waiting":
                return {"waiting": {"reason": self.reason or "ContainerCreating"}}
            case "terminated":
                return {"terminated": self._terminated(self.id, self.reason or "Completed", self.exit_code)}
            case _:
                raise ValueError(f"container state {self.state!r}")

    def _terminated(self, identity: str, reason: str, code: int) -> Json:
        return {
            "exitCode": code,
            "reason": reason,
            "startedAt": self.started_at,
            "finishedAt": self.finished_at,
            "containerID": f"{self.runtime}://{identity}",
        }


ContainerLike = Container | tuple[str, str, bool]


def pod(
    namespace: str,
    name: str,
    uid: str,
    *,
    node: str,
    containers: Iterable[ContainerLike] = (),
    init: Iterable[ContainerLike] = (),
    ephemeral: Iterable[ContainerLike] = (),
    phase: str = "Running",
    deletion_timestamp: str | None = None,
    grace: int = 30,
    config_hash: str | None = None,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    created: str = CREATED,
    runtime_class: str | None = None,
    host_network: bool = False,
    owner: tuple[str, str] | None = None,
) -> Json:
    """A Pod. A container is a Container, or (name, id, running). `config_hash` makes it a mirror."""
    apps, inits, debug = ([_container(one) for one in group] for group in (containers, init, ephemeral))
    notes = dict(annotations or {})
    if config_hash is not None:
        notes |= {
            "kubernetes.io/config.hash": config_hash,
            "kubernetes.io/config.mirror": config_hash,
            "kubernetes.io/config.seen": created,
            "kubernetes.io/config.source": "file",
        }
        owner = ("Node", node)
    metadata: Json = {
        "name": name,
        "namespace": namespace,
        "uid": uid,
        "resourceVersion": "1000",
        "creationTimestamp": created,
        "labels": dict(labels or {}),
        "annotations": notes,
        "managedFields": _managed(created, len(apps)),
    }
    if owner is not None:
        metadata["ownerReferences"] = [
            {"apiVersion": "v1", "kind": owner[0], "name": owner[1], "uid": uid, "controller": True}
        ]
    if deletion_timestamp is not None:
        metadata |= {"deletionTimestamp": deletion_timestamp, "deletionGracePeriodSeconds": grace}
    spec: Json = {
        "nodeName": node,
        "containers": [one.spec() for one in apps],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": grace,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "tolerations": [
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
        ],
        "volumes": [{"name": "kube-api-access-abcde", "projected": {"defaultMode": 420, "sources": []}}],
    }
    status: Json = {
        "phase": phase,
        "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": created}
            for kind in (
                "PodReadyToStartContainers",
                "Initialized",
                "Ready",
                "ContainersReady",
                "PodScheduled",
            )
        ],
        "hostIP": "192.0.2.1",
        "podIP": "198.51.100.7",
        "podIPs": [{"ip": "198.51.100.7"}],
        "startTime": created,
        "qosClass": "Burstable",
        "containerStatuses": [one.status() for one in apps],
    }
    if inits:
        spec["initContainers"] = [one.spec() for one in inits]
        status["initContainerStatuses"] = [one.status() for one in inits]
    if debug:
        spec["ephemeralContainers"] = [one.spec() for one in debug]
        status["ephemeralContainerStatuses"] = [one.status() for one in debug]
    if runtime_class is not None:
        spec["runtimeClassName"] = runtime_class
    if host_network:
        spec["hostNetwork"] = True
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec, "status": status}


def node(
    name: str,
    capacity: Mapping[str, str],
    allocatable: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Json:
    """A Node; allocatable defaults to capacity."""
    plain = {"cpu": "64", "memory": "527942872Ki", "pods": "110", "ephemeral-storage": "1855337472Ki"}
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "uid": "5f0c8a52-1111-4222-8333-0123456789ab",
            "resourceVersion": "2000",
            "creationTimestamp": CREATED,
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
            "managedFields": _managed(CREATED, 3),
        },
        "spec": {},
        "status": {
            "capacity": {**plain, **capacity},
            "allocatable": {**plain, **(capacity if allocatable is None else allocatable)},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "nodeInfo": {"kubeletVersion": "v1.30.0", "containerRuntimeVersion": "containerd://1.7.20"},
        },
    }


def _container(one: ContainerLike) -> Container:
    if isinstance(one, Container):
        return one
    name, identity, running = one
    return Container(name, identity, "running" if running else "terminated")


def _managed(time: str, containers: int) -> list[Json]:
    """Field ownership as the kubelet and the controller write it: the bulk of a real object."""
    keys: Json = {
        f'k:{{"name":"c{index}"}}': {".": {}, "f:image": {}, "f:env": {}} for index in range(containers)
    }
    fields = {
        "f:spec": {"f:containers": keys, "f:restartPolicy": {}, "f:schedulerName": {}, "f:tolerations": {}},
        "f:metadata": {"f:labels": {".": {}, "f:app": {}}, "f:ownerReferences": {}},
        "f:status": {"f:conditions": {}, "f:containerStatuses": {}, "f:phase": {}, "f:podIPs": {}},
    }
    return [
        {
            "manager": manager,
            "operation": "Update",
            "apiVersion": "v1",
            "time": time,
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
        }
        for manager in ("kube-controller-manager", "kubelet")
    ]
