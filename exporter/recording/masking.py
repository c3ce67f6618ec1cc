"""Pseudonyms for what names people and their work: a document in, one without such names out.

Names of namespaces, pods, containers, nodes, processes, units and claims become `pod-1` and the like, the
same everywhere in the document; UUIDs become others of the same form, drawn anew for each recording. Kept is
what every cluster has: the names of the GPU stack, which the table of infrastructure knows.
"""

from __future__ import annotations

import base64
import re
import secrets
import uuid
from typing import Any

from exporter.codec import TAG
from exporter.sources.podresources import podresources_pb2 as api
from exporter.sources.pods import LABELS
from exporter.text import COMM_LIMIT, printable

# (record, field) of an encoded Snapshot to what kind of name it is.
ROLES: dict[tuple[str, str], str] = {
    ("Snapshot", "node_name"): "node",
    ("Node", "name"): "node",
    ("Pod", "namespace"): "namespace",
    ("Pod", "name"): "pod",
    ("ContainerStatus", "name"): "container",
    ("KubeletPod", "namespace"): "namespace",
    ("KubeletPod", "name"): "pod",
    ("KubeletPod", "containers"): "container",
    ("Allocation", "namespace"): "namespace",
    ("Allocation", "pod"): "pod",
    ("Allocation", "container"): "container",
    ("Allocation", "claim"): "claim",
    ("PodName", "namespace"): "namespace",
    ("PodName", "name"): "pod",
    ("PodName", "containers"): "container",
    ("Process", "comm"): "comm",
    ("Process", "exe"): "exe",
    ("ContainerView", "exe"): "exe",
    ("Cgroup", "unit"): "unit",
    ("Missed", "detail"): "detail",
}
STACK = re.compile(
    r"nvidia[\w.-]*|dcgm[\w.-]*|nv-hostengine|gpu-operator[\w.-]*|gpu-feature-discovery|kube-system|"
    r"node-feature-discovery|(?:crio|libpod)-conmon-[0-9a-f]+[^/]*|user@\d+\.service|session-\w+\.scope|(?:kubelet|containerd|docker|crio)\.service"
)
_UUID = re.compile(
    r"[0-9a-f]{8}(?:([-_])[0-9a-f]{4}){3}\1[0-9a-f]{12}(?![0-9a-f])"
)  # `pod` may come before it
_HASH = re.compile(r"(?:(?<=pod)|(?<![0-9a-f]))[0-9a-f]{32}(?![0-9a-f])")  # the UID of a static pod
# Parts of a cgroup's path that say nothing but what they are.
_GROUP = re.compile(
    r"|\.\.|kubepods[\w.-]*|pod[0-9a-f_-]{32,36}(?:\.slice)?|(?:system|user|machine|init)\.(?:slice|scope)|"
    r"user-\d+\.slice|(?:cri-containerd-|crio-|docker-|libpod-)?[0-9a-f]{64}(?:\.scope)?"
)
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")  # as in exporter.cgroups


def masked(document: dict[str, Any]) -> dict[str, Any]:
    """The document under pseudonyms."""
    mask = _Mask()
    looks = [
        {"snapshot": mask.uuids(mask.record(look["snapshot"])), "raw": mask.uuids(mask.raw(look["raw"]))}
        for look in document["looks"]
    ]
    return {**document, "masked": True, "looks": looks}


class _Mask:
    """The pseudonyms given so far."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._space = uuid.UUID(bytes=secrets.token_bytes(16))

    # --- single names

    def name(self, role: str, text: str) -> str:
        """The pseudonym of a name in its role."""
        if not text or STACK.fullmatch(text):
            return text
        if role == "detail":
            return ""
        if role == "claim":
            namespace, _, claim = text.partition("/")
            return f"{self.name('namespace', namespace)}/{self._drawn('claim', claim)}"
        if role == "exe":
            return text if STACK.fullmatch(text.rpartition("/")[2]) else f"/{self._drawn(role, text)}"
        if role == "unit":
            return f"{self._drawn(role, text)}.{text.rpartition('.')[2]}"
        return self._drawn(role, text)

    def _drawn(self, role: str, text: str) -> str:
        count = sum(kind == role for kind, _ in self._names) + 1
        return self._names.setdefault((role, text), f"{role}-{count}")

    def uuids(self, plain: Any) -> Any:
        """All UUIDs in a document, as others of the same form."""
        match plain:
            case str():
                return _HASH.sub(lambda m: self._other(m[0]).hex, _UUID.sub(self._uuid, plain))
            case list():
                return [self.uuids(one) for one in plain]
            case dict():
                return {self.uuids(key): self.uuids(value) for key, value in plain.items()}
            case _:
                return plain

    def _uuid(self, match: re.Match[str]) -> str:
        return str(self._other(match[0].replace("_", "-"))).replace("-", match[1])

    def _other(self, text: str) -> uuid.UUID:
        return uuid.uuid5(self._space, text)

    # --- an encoded record

    def record(self, plain: Any) -> Any:
        """An encoded record with everything in it."""
        if isinstance(plain, list):
            return [self.record(one) for one in plain]
        if not isinstance(plain, dict):
            return plain
        kind = plain.get(TAG, "")
        return {name: self._field(ROLES.get((kind, name), ""), name, held) for name, held in plain.items()}

    def _field(self, role: str, name: str, held: Any) -> Any:
        if role and isinstance(held, list):
            return [self.name(role, one) for one in held]
        if role:
            return self.name(role, held)
        if name == "labels":
            return [[key, self._label(key, value)] for key, value in held]
        return self.record(held)

    def _label(self, key: str, value: str) -> str:
        return self.name("label", value) if key in LABELS else value

    # --- raw material

    def raw(self, raw: dict[str, Any]) -> dict[str, Any]:
        """The raw material of a look."""
        return {
            "kubelet": {method: self._reply(method, text) for method, text in raw["kubelet"].items()},
            "pods": raw["pods"]
            and {**raw["pods"], "items": [self._pod(one) for one in raw["pods"]["items"]]},
            "node": raw["node"] and self._node(raw["node"]),
            "pod_names": raw["pod_names"] and dict(map(self._directory, raw["pod_names"].items())),
            "proc": raw["proc"] and self._proc(raw["proc"]),
        }

    def _reply(self, method: str, text: str) -> str:
        data = base64.b64decode(text)
        if method != "List":
            offered = api.AllocatableResourcesResponse.FromString(data)
            for entry in offered.devices:
                entry.device_ids[:] = [self.uuids(one) for one in entry.device_ids]
            return base64.b64encode(offered.SerializeToString()).decode()
        listed = api.ListPodResourcesResponse.FromString(data)
        for pod in listed.pod_resources:
            pod.namespace, pod.name = self.name("namespace", pod.namespace), self.name("pod", pod.name)
            for container in pod.containers:
                container.name = self.name("container", container.name)
                for entry in container.devices:
                    entry.device_ids[:] = [self.uuids(one) for one in entry.device_ids]
                for claim in container.dynamic_resources:
                    said = self.name("claim", f"{claim.claim_namespace}/{claim.claim_name}")
                    claim.claim_namespace, _, claim.claim_name = said.partition("/")
        return base64.b64encode(listed.SerializeToString()).decode()

    def _pod(self, pod: dict[str, Any]) -> dict[str, Any]:
        metadata, spec, status = pod["metadata"], pod["spec"], pod["status"]
        labels = {key: self._label(key, value) for key, value in (metadata.get("labels") or {}).items()}
        names = {
            "namespace": self.name("namespace", metadata["namespace"]),
            "name": self.name("pod", metadata["name"]),
        }
        place = {"nodeName": self.name("node", spec.get("nodeName") or "")}
        return {
            "metadata": {**metadata, **names, "labels": labels},
            "spec": {**self._containers(spec), **place},
            "status": self._containers(status),
        }

    def _containers(self, part: dict[str, Any]) -> dict[str, Any]:
        def named(one: Any) -> Any:
            return {**one, "name": self.name("container", one["name"])} if "name" in one else one

        return {
            key: [named(one) for one in held] if isinstance(held, list) else held
            for key, held in part.items()
        }

    def _node(self, node: dict[str, Any]) -> dict[str, Any]:
        metadata = node["metadata"]
        return {**node, "metadata": {**metadata, "name": self.name("node", metadata["name"])}}

    def _directory(self, item: tuple[str, list[str]]) -> tuple[str, list[str]]:
        namespace, name, uid = item[0].split("_")
        containers = [self.name("container", one) for one in item[1]]
        return f"{self.name('namespace', namespace)}_{self.name('pod', name)}_{uid}", containers

    def _proc(self, proc: dict[str, Any]) -> dict[str, Any]:
        return {**proc, "processes": {pid: self._process(one) for pid, one in proc["processes"].items()}}

    def _process(self, texts: dict[str, Any]) -> dict[str, Any]:
        found = {**texts, "stat": self._stat(texts["stat"])}
        comm = _comm(texts["stat"].partition("(")[2].rpartition(")")[0])
        others = [line for line in texts["status"].split("\n") if not line.startswith("Name:")]
        found["status"] = "\n".join([f"Name:\t{self.name('comm', comm)}", *others])
        found["cgroup"] = self._cgroup(texts["cgroup"])
        found["descriptors"] = [
            {**one, "text": self._path(one["text"])} for one in texts.get("descriptors", ())
        ]
        found["maps"] = [self._mapping(line) for line in texts.get("maps", ())]
        tasks = texts.get("tasks", {})
        found["tasks"] = {
            tid: {**task, "stat": self._stat(task["stat"])} for tid, task in tasks.items() if task
        }
        return {key: value for key, value in found.items() if key in texts}

    def _cgroup(self, text: str) -> str:
        lines = [line.rpartition(":") for line in text.split("\n")]
        return "\n".join(f"{head}{colon}{self._groups(path)}" for head, colon, path in lines)

    def _groups(self, path: str) -> str:
        whole = path.removesuffix(" (deleted)")
        return "/".join(map(self._group, whole.split("/"))) + path[len(whole) :]

    def _group(self, part: str) -> str:
        if _GROUP.fullmatch(part):
            return part
        if part.endswith((".service", ".scope")):
            return self.name("unit", _ESCAPED.sub(lambda m: chr(int(m[1], 16)), part))
        return self._drawn("group", part) + (".slice" if part.endswith(".slice") else "")

    def _stat(self, text: str) -> str:
        head, _, tail = text.rpartition(")")
        pid, _, comm = head.partition("(")
        return f"{pid}({self.name('comm', _comm(comm))}){tail}"

    def _mapping(self, line: str) -> str:
        *fields, path = line.split(None, 5)
        return " ".join([*fields, self._path(path)])

    def _path(self, path: str) -> str:
        folder, _, name = path.rpartition("/")
        if not STACK.match(name):
            return f"/{self._drawn('file', path)}"
        return path if folder.startswith("/dev") else f"/{self._drawn('folder', folder)}/{name}"


def _comm(latin: str) -> str:
    """A process' name as its record has it."""
    return printable(latin.encode("latin-1"), COMM_LIMIT)
