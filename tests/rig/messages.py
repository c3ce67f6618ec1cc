"""Messages of the kubelet's pod-resources API v1, described in Python: nothing generated, nothing imported.

A superset of kubelets 1.20 to 1.37: every addition has a number of its own, so one description writes all of
them. It lives in a descriptor pool of its own beside whatever the code under test registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import Message

PACKAGE = "v1"
SERVICE = "v1.PodResourcesLister"
METHODS = ("List", "GetAllocatableResources", "Get")

# message: {field number: (name, type)}; [] repeats, ? is proto3 optional, a capital letter is a message.
FIELDS: dict[str, dict[int, tuple[str, str]]] = {
    "ListPodResourcesRequest": {},
    "AllocatableResourcesRequest": {},
    "GetPodResourcesRequest": {1: ("pod_name", "string"), 2: ("pod_namespace", "string")},
    "ListPodResourcesResponse": {1: ("pod_resources", "PodResources[]")},
    "GetPodResourcesResponse": {1: ("pod_resources", "PodResources")},
    "AllocatableResourcesResponse": {
        1: ("devices", "ContainerDevices[]"),
        2: ("cpu_ids", "int64[]"),
        3: ("memory", "ContainerMemory[]"),
    },
    "PodResources": {
        1: ("name", "string"),
        2: ("namespace", "string"),
        3: ("containers", "ContainerResources[]"),
        4: ("cpu_ids", "int64[]"),
        5: ("memory", "ContainerMemory[]"),
    },
    "ContainerResources": {
        1: ("name", "string"),
        2: ("devices", "ContainerDevices[]"),
        3: ("cpu_ids", "int64[]"),
        4: ("memory", "ContainerMemory[]"),
        5: ("dynamic_resources", "DynamicResource[]"),
    },
    "ContainerMemory": {
        1: ("memory_type", "string"),
        2: ("size", "uint64"),
        3: ("topology", "TopologyInfo"),
    },
    "ContainerDevices": {
        1: ("resource_name", "string"),
        2: ("device_ids", "string[]"),
        3: ("topology", "TopologyInfo"),
    },
    "TopologyInfo": {1: ("nodes", "NUMANode[]")},
    "NUMANode": {1: ("ID", "int64")},
    "DynamicResource": {
        1: ("class_name", "string"),
        2: ("claim_name", "string"),
        3: ("claim_namespace", "string"),
        4: ("claim_resources", "ClaimResource[]"),
    },
    "ClaimResource": {
        1: ("cdi_devices", "CDIDevice[]"),
        2: ("driver_name", "string"),
        3: ("pool_name", "string"),
        4: ("device_name", "string"),
        5: ("share_id", "string?"),
    },
    "CDIDevice": {1: ("name", "string")},
}

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"string": _FIELD.TYPE_STRING, "int64": _FIELD.TYPE_INT64, "uint64": _FIELD.TYPE_UINT64}


def _describe() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="rig/podresources.proto", package=PACKAGE, syntax="proto3")
    for message_name, fields in FIELDS.items():
        message = file.message_type.add(name=message_name)
        for number, (name, kind) in fields.items():
            field = message.field.add(name=name, number=number, label=_FIELD.LABEL_OPTIONAL)
            if kind.endswith("[]"):
                field.label = _FIELD.LABEL_REPEATED
            if kind.endswith("?"):
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{name}")
            plain = kind.rstrip("[]?")
            if plain in _SCALARS:
                field.type = _SCALARS[plain]
            else:
                field.type = _FIELD.TYPE_MESSAGE
                field.type_name = f".{PACKAGE}.{plain}"
    return file


def _build() -> dict[str, type[Message]]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_describe())
    found = {name: pool.FindMessageTypeByName(f"{PACKAGE}.{name}") for name in FIELDS}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


MESSAGES: dict[str, type[Message]] = _build()


def message(name: str, **fields: Any) -> Message:
    """A message of this API by its name; fields as keyword arguments, nested ones as dicts."""
    return MESSAGES[name](**fields)


def devices(resource: str, ids: Iterable[str], numa: Iterable[int] = ()) -> list[dict[str, Any]]:
    """Entries as a kubelet writes them: one per device and NUMA node; none without a topology."""
    entries: list[dict[str, Any]] = []
    for device in ids:
        entry: dict[str, Any] = {"resource_name": resource, "device_ids": [device]}
        nodes = list(numa)
        entries += [{**entry, "topology": {"nodes": [{"ID": node}]}} for node in nodes] or [entry]
    return entries


def claim(name: str, namespace: str, devices_: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """A DynamicResource: claim_resources are dicts of driver_name, pool_name, device_name, cdi_devices."""
    return {"claim_name": name, "claim_namespace": namespace, "claim_resources": list(devices_)}


def pod_resources(
    name: str, namespace: str, containers: Mapping[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """A listed pod: containers by name with their device entries."""
    return {
        "name": name,
        "namespace": namespace,
        "containers": [{"name": container, "devices": entries} for container, entries in containers.items()],
    }


def load_text(path: Path, kind: str) -> Message:
    """A recorded reply in protobuf text form; `kind` is the message's name."""
    reply = MESSAGES[kind]()
    text_format.Parse(path.read_text(), reply)
    return reply
