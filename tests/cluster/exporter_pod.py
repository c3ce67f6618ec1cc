"""The exporter as a pod of the cluster: its image, its manifest, and how it is looked at from outside.

The image is the Dockerfile's (tests/deploy/image.py), packed for containerd. The pod is what the controller
of DaemonSets would make of the chart on this node. Values of the chart name what the stand-ins need: the
substitute /proc and /sys, the NVML library, and ages that a test can wait for.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.cluster import images, manifests
from tests.cluster.api import Json
from tests.cluster.build import VERSION
from tests.cluster.cluster import Cluster
from tests.cluster.daemons import until
from tests.deploy import image, render
from tests.rig.agent import TEXT, Answer, Samples, parse
from tests.rig.errors import RigError

IMAGE = "docker.io/cluster/kubegpu-exporter:1"
NAME = "kubegpu-exporter"
PORT = 9836
CACHE = image.ROOT / "build" / "cluster" / "image"
CJSON = Path("/usr/lib/x86_64-linux-gnu/libcjson.so.1")  # what the NVML stand-in needs, as a driver's library
# Where the chart's objects are created, but for the DaemonSet, which no controller would read.
PATHS = {
    "ServiceAccount": f"/api/v1/namespaces/{manifests.MONITORING}/serviceaccounts",
    "ClusterRole": f"/apis/{manifests.RBAC}/v1/clusterroles",
    "ClusterRoleBinding": f"/apis/{manifests.RBAC}/v1/clusterrolebindings",
    "Service": f"/api/v1/namespaces/{manifests.MONITORING}/services",
}
# What the controller of DaemonSets lets each of its pods tolerate (k8s.io/kubernetes, daemon/util).
DAEMON_TOLERATIONS = [
    *(
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
        for key in ("not-ready", "unreachable")
    ),
    *(
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoSchedule"}
        for key in ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
    ),
]
# What the image is made of.
PARTS = ("Dockerfile", ".dockerignore", "requirements.txt", "pyproject.toml", "README.md", "LICENSE")


def archive() -> Path:
    """The exporter's image as an archive, made anew when something in it has changed."""
    stamp, packed = CACHE / "stamp", CACHE / "exporter.oci"
    digest = _digest()
    if packed.exists() and stamp.exists() and stamp.read_text() == digest:
        return packed
    shutil.rmtree(CACHE, ignore_errors=True)
    CACHE.mkdir(parents=True)
    base = image.base(image.ROOT / "build" / "deploy" / "base")
    built = image.Builder(base, CACHE / "stages").stage("image")
    layer = CACHE / "exporter.layer"
    # Links and owners as they are; tar keeps what Python's tarfile would have to be told.
    subprocess.run(["tar", "--numeric-owner", "-C", built.tree, "-cf", layer, "."], check=True)
    env = [f"{key}={value}" for key, value in built.env.items()]
    config = {
        "Entrypoint": list(built.entrypoint),
        "Env": env,
        "User": built.user,
        "WorkingDir": built.workdir,
    }
    images.archive(layer, IMAGE, config)
    layer.unlink()
    shutil.rmtree(CACHE / "stages")
    stamp.write_text(digest)
    return packed


def _digest() -> str:
    digest = hashlib.sha256()
    found = [image.ROOT / name for name in PARTS]
    for folder in ("exporter", "deploy/image"):
        found += sorted(path for path in (image.ROOT / folder).rglob("*") if path.is_file())
    for path in found:
        if path.exists() and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(image.ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def rendered(cluster: Cluster, profile: str, settings: Mapping[str, str]) -> render.Rendered:
    """The chart, with the values that a cluster of stand-ins needs."""
    mounts = {"stand-ins": str(cluster.workspace.path), "json": str(CJSON)}
    values = {
        "profile": profile,
        "runtimeClassName": "none",
        "image": dict(zip(("registry", "repository", "tag"), _parts(IMAGE), strict=True)),
        "settings": {**stand_ins(cluster), **settings},
        "extraVolumes": [{"name": name, "hostPath": {"path": path}} for name, path in mounts.items()],
        "extraVolumeMounts": [
            {"name": name, "mountPath": path, "readOnly": True} for name, path in mounts.items()
        ],
    }
    file = cluster.folder / f"values-{profile}.json"
    file.write_text(json.dumps(values))
    version = VERSION.removeprefix("v")
    return render.chart(file, apis=(), version=version, release=NAME, namespace=manifests.MONITORING)


def _parts(name: str) -> tuple[str, str, str]:
    registry, _, rest = name.partition("/")
    repository, _, tag = rest.rpartition(":")
    return registry, repository, tag


def pod_of(daemon_set: Json, node: str) -> Json:
    """The pod that a DaemonSet's controller would make on a node, with the tolerations that it adds."""
    template = daemon_set["spec"]["template"]
    spec = {**template["spec"], "nodeName": node}
    spec["tolerations"] = [*spec.get("tolerations", []), *DAEMON_TOLERATIONS]
    metadata = {
        **template["metadata"],
        "name": f"{daemon_set['metadata']['name']}-{node}",
        "namespace": daemon_set["metadata"]["namespace"],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def stand_ins(cluster: Cluster) -> dict[str, str]:
    """The settings that point it at the cluster's stand-ins."""
    return {
        "path.procfs": str(cluster.hardware.proc.path),
        "path.sysfs": str(cluster.hardware.sysfs.root),
        "nvml.library": f"{cluster.hardware.nvml}/libnvidia-ml.so.1",
    }


class ExporterPod:
    """The exporter on this cluster: run, scrape, delete. Metrics are fetched from the pod's own address."""

    def __init__(self, cluster: Cluster, profile: str, settings: Mapping[str, str]) -> None:
        self._cluster = cluster
        cluster.namespace(manifests.MONITORING)
        chart = rendered(cluster, profile, settings)
        for kind, path in PATHS.items():
            self._create(chart.one(kind), path)
        self.pod = cluster.run(pod_of(chart.one("DaemonSet"), manifests.NODE))
        self._address = ""
        try:
            until(lambda: self.get("/-/ready").status == 200, "the exporter is ready", 30)
        except RigError as error:
            raise RigError(f"{error}\n{self.tail()}") from error

    @property
    def name(self) -> str:
        """The pod's name."""
        return str(self.pod["metadata"]["name"])

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return str(self.pod["metadata"]["uid"])

    def get(self, path: str) -> Answer:
        """One GET."""
        connection = http.client.HTTPConnection(self._find(), PORT, timeout=5)
        try:
            connection.request("GET", path, headers={"Accept": TEXT})
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers, response.read())
        finally:
            connection.close()

    def samples(self) -> Samples:
        """The metrics as {(name, labels): value}."""
        answer = self.get("/metrics")
        if answer.status != 200:
            raise RigError(f"/metrics answered {answer.status}")
        return parse(answer.text)

    def tail(self, lines: int = 20) -> str:
        """The end of its log, and of those of its earlier containers."""
        folder = Path("/var/log/pods") / f"{manifests.MONITORING}_{self.name}_{self.uid}"
        text = "".join(file.read_text() for file in sorted(folder.glob("*/*.log")))
        return "\n".join(text.splitlines()[-lines:])

    def delete(self) -> float:
        """Delete the pod as `helm uninstall` has it done; how many seconds its container took to end."""
        began = time.monotonic()
        self._cluster.delete(self.pod)
        until(lambda: self._cluster.gone(self.pod), "the exporter's pod is gone", 30)
        return time.monotonic() - began

    def _create(self, body: Json, path: str) -> None:
        """Create an object of the chart in place of an older one, as `helm upgrade` does."""
        api = self._cluster.api
        if api.find(f"{path}/{body['metadata']['name']}") is not None:
            api.request("DELETE", f"{path}/{body['metadata']['name']}")
        api.request("POST", path, body)

    def _find(self) -> str:
        found = self._cluster.api.pod(manifests.MONITORING, self.name) if not self._address else None
        if found:
            self._address = str(found["status"].get("podIP", ""))
        if not self._address:
            raise OSError("the pod has no address")
        return self._address
