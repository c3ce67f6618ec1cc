"""The exporter as a pod of the cluster: its image, its manifest, and how it is looked at from outside.

The image is the Dockerfile's (tests/deploy/image.py), packed for containerd. The pod is what a DaemonSet
would make on this node. Added is what the stand-ins need: the substitute /proc and /sys, the NVML library,
and ages that a test can wait for.
"""

from __future__ import annotations

import hashlib
import http.client
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import images, manifests
from tests.cluster.api import Json
from tests.cluster.cluster import Cluster
from tests.cluster.daemons import until
from tests.deploy import image
from tests.rig.agent import TEXT, Answer, Samples, parse
from tests.rig.errors import RigError

IMAGE = "docker.io/cluster/kubegpu-exporter:1"
NAME = "kubegpu-exporter"
PORT = 9836
CACHE = image.ROOT / "build" / "cluster" / "image"
CJSON = Path("/usr/lib/x86_64-linux-gnu/libcjson.so.1")  # what the NVML stand-in needs, as a driver's library
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


def security(privileged: bool) -> Json:
    """The two ways to run it."""
    if privileged:
        return {"privileged": True, "runAsUser": 0, "readOnlyRootFilesystem": True}
    return {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def manifest(cluster: Cluster, privileged: bool, flags: Sequence[str]) -> Json:
    """The pod. Its service account may list pods and get nodes, and nothing else."""
    own = {
        "pod-resources": "/var/lib/kubelet/pod-resources",
        "pod-logs": "/var/log/pods",
        "stand-ins": str(cluster.workspace.path),
        "json": str(CJSON),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "namespace": manifests.MONITORING},
        "spec": {
            "nodeName": manifests.NODE,
            "serviceAccountName": NAME,
            "hostPID": True,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 10,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "exporter",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "args": [*stand_ins(cluster), *flags],
                    "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                    "ports": [{"name": "metrics", "containerPort": PORT}],
                    "readinessProbe": {"httpGet": {"path": "/-/ready", "port": PORT}, "periodSeconds": 1},
                    "livenessProbe": {"httpGet": {"path": "/-/healthy", "port": PORT}},
                    "securityContext": security(privileged),
                    "volumeMounts": [
                        {"name": name, "mountPath": path, "readOnly": True} for name, path in own.items()
                    ],
                }
            ],
            "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in own.items()],
        },
    }


def stand_ins(cluster: Cluster) -> list[str]:
    """The flags that point it at the cluster's stand-ins."""
    return [
        f"--path.procfs={cluster.hardware.proc.path}",
        f"--path.sysfs={cluster.hardware.sysfs.root}",
        f"--nvml.library={cluster.hardware.nvml}/libnvidia-ml.so.1",
    ]


class ExporterPod:
    """The exporter on this cluster: run, scrape, delete. Metrics are fetched from the pod's own address."""

    def __init__(self, cluster: Cluster, privileged: bool, flags: Sequence[str]) -> None:
        self._cluster = cluster
        cluster.namespace(manifests.MONITORING)
        account = {"metadata": {"name": NAME}}
        cluster.api.create(f"/api/v1/namespaces/{manifests.MONITORING}/serviceaccounts", account)
        subject = {"kind": "ServiceAccount", "name": NAME, "namespace": manifests.MONITORING}
        for body, path in manifests.access(NAME, subject):
            cluster.api.create(path, body)
        self.pod = cluster.run(manifest(cluster, privileged, flags))
        self._address = ""
        try:
            until(lambda: self.get("/-/ready").status == 200, "the exporter is ready", 30)
        except RigError as error:
            raise RigError(f"{error}\n{self.tail()}") from error

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
        folder = Path("/var/log/pods") / f"{manifests.MONITORING}_{NAME}_{self.uid}"
        text = "".join(file.read_text() for file in sorted(folder.glob("*/*.log")))
        return "\n".join(text.splitlines()[-lines:])

    def delete(self) -> float:
        """Delete the pod as `helm uninstall` has it done; how many seconds its container took to end."""
        began = time.monotonic()
        self._cluster.delete(self.pod)
        until(lambda: self._cluster.gone(self.pod), "the exporter's pod is gone", 30)
        return time.monotonic() - began

    def _find(self) -> str:
        found = self._cluster.api.pod(manifests.MONITORING, NAME) if not self._address else None
        if found:
            self._address = str(found["status"].get("podIP", ""))
        if not self._address:
            raise OSError("the pod has no address")
        return self._address
