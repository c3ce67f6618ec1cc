"""Pods and rights of the cluster, as objects of the API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.cluster import images
from tests.cluster.api import Json

NODE = "cluster-node"
MONITORING = "gpu-monitoring"
GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"
LABEL = "nvidia.com/gpu.present"  # as a device plugin's or feature discovery's: where the exporter is to run
RBAC = "rbac.authorization.k8s.io"


def container(name: str, words: Sequence[str], limits: Mapping[str, int] | None = None, **more: Any) -> Json:
    """A container of the small image that does as it is told (worker.c), with devices."""
    resources = {"resources": {"limits": {key: str(count) for key, count in (limits or {}).items()}}}
    return {
        "name": name,
        "image": images.WORK,
        "imagePullPolicy": "Never",
        "command": images.command(words) if words else ["/worker", "pause"],
        **(resources if limits else {}),
        **more,
    }


def pod(
    name: str,
    *containers: Json,
    namespace: str = "team-a",
    grace: int = 2,
    restart: str = "Always",
    **spec: Any,
) -> Json:
    """A pod on this node. It shares the host's network: none of its own is needed."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "nodeName": NODE,
            "hostNetwork": True,
            "terminationGracePeriodSeconds": grace,
            "restartPolicy": restart,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": list(containers),
            **spec,
        },
    }


def access(name: str, subject: Json) -> Iterator[tuple[Json, str]]:
    """What an exporter needs to be allowed, and for whom: objects and where they are created."""
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    ]
    base = f"/apis/{RBAC}/v1"
    role = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    yield role, f"{base}/clusterroles"
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
        "subjects": [{**subject, **({"apiGroup": RBAC} if subject["kind"] == "User" else {})}],
    }
    yield binding, f"{base}/clusterrolebindings"
