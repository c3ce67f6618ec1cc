"""A device plugin: `python -m tests.cluster.device_plugin CONFIG`.

In: a JSON file {"dev": folder of the device files, "resources": {resource: {id: [file below dev, ...]}},
"show": [files that every container gets, whatever it was given], "unhealthy": [ids]}. It is read again and
again. Out: a gRPC server for each resource, registered with the kubelet again whenever that has a new
socket. Messages (device plugin API v1beta1) are described here, nothing is generated.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PLUGINS = Path("/var/lib/kubelet/device-plugins")
PACKAGE = "v1beta1"
PERIOD = 0.2

# message: {field number: (name, type)}; [] repeats, a capital letter is a message.
FIELDS: dict[str, dict[int, tuple[str, str]]] = {
    "Empty": {},
    "DevicePluginOptions": {2: ("get_preferred_allocation_available", "bool")},
    "RegisterRequest": {
        1: ("version", "string"),
        2: ("endpoint", "string"),
        3: ("resource_name", "string"),
        4: ("options", "DevicePluginOptions"),
    },
    "ListAndWatchResponse": {1: ("devices", "Device[]")},
    "Device": {1: ("ID", "string"), 2: ("health", "string"), 3: ("topology", "TopologyInfo")},
    "TopologyInfo": {1: ("nodes", "NUMANode[]")},
    "NUMANode": {1: ("ID", "int64")},
    "PreferredAllocationRequest": {1: ("container_requests", "ContainerPreferredAllocationRequest[]")},
    "ContainerPreferredAllocationRequest": {
        1: ("available_device_ids", "string[]"),
        2: ("must_include_device_ids", "string[]"),
        3: ("allocation_size", "int32"),
    },
    "PreferredAllocationResponse": {1: ("container_responses", "ContainerPreferredAllocationResponse[]")},
    "ContainerPreferredAllocationResponse": {1: ("device_ids", "string[]")},
    "AllocateRequest": {1: ("container_requests", "ContainerAllocateRequest[]")},
    "ContainerAllocateRequest": {1: ("devices_ids", "string[]")},
    "AllocateResponse": {1: ("container_responses", "ContainerAllocateResponse[]")},
    "ContainerAllocateResponse": {3: ("devices", "DeviceSpec[]")},
    "DeviceSpec": {
        1: ("container_path", "string"),
        2: ("host_path", "string"),
        3: ("permissions", "string"),
    },
}
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _FIELD.TYPE_STRING,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "bool": _FIELD.TYPE_BOOL,
}


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="cluster/plugin.proto", package=PACKAGE, syntax="proto3")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for number, (field_name, kind) in fields.items():
            plain = kind.removesuffix("[]")
            label = _FIELD.LABEL_REPEATED if kind.endswith("[]") else _FIELD.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=number, label=label)
            field.type = _SCALARS.get(plain, _FIELD.TYPE_MESSAGE)
            if plain not in _SCALARS:
                field.type_name = f".{PACKAGE}.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in FIELDS
    }


MESSAGES = _messages()


class Plugin:
    """The plugin of one resource."""

    def __init__(self, config: Path, resource: str) -> None:
        self._config = config
        self._resource = resource
        self._endpoint = f"cluster-{resource.replace('/', '-')}.sock"
        self._server: grpc.Server | None = None

    def serve(self) -> None:
        """Listen anew, and tell the kubelet. Raises grpc.RpcError."""
        if self._server:
            self._server.stop(0).wait()
        methods = {
            "GetDevicePluginOptions": (_options, "Empty", "DevicePluginOptions"),
            "GetPreferredAllocation": (
                _prefer,
                "PreferredAllocationRequest",
                "PreferredAllocationResponse",
            ),
            "Allocate": (self._allocate, "AllocateRequest", "AllocateResponse"),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                method, MESSAGES[request].FromString, MESSAGES[reply].SerializeToString
            )
            for name, (method, request, reply) in methods.items()
        }
        handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(
            self._watch, MESSAGES["Empty"].FromString, MESSAGES["ListAndWatchResponse"].SerializeToString
        )
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        service = grpc.method_handlers_generic_handler(f"{PACKAGE}.DevicePlugin", handlers)
        self._server.add_generic_rpc_handlers((service,))
        self._server.add_insecure_port(f"unix:{PLUGINS}/{self._endpoint}")
        self._server.start()
        request = MESSAGES["RegisterRequest"](
            version=PACKAGE,
            endpoint=self._endpoint,
            resource_name=self._resource,
            options={"get_preferred_allocation_available": True},
        )
        with grpc.insecure_channel(f"unix:{PLUGINS}/kubelet.sock") as channel:
            register = channel.unary_unary(
                f"/{PACKAGE}.Registration/Register",
                MESSAGES["RegisterRequest"].SerializeToString,
                MESSAGES["Empty"].FromString,
            )
            register(request, timeout=5)

    def _read(self) -> dict[str, Any]:
        config: dict[str, Any] = json.loads(self._config.read_text())
        return config

    def _watch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        told = None
        while context.is_active():
            config = self._read()
            unhealthy = config.get("unhealthy", [])
            devices = [
                {
                    "ID": identity,
                    "health": "Unhealthy" if identity in unhealthy else "Healthy",
                    "topology": {"nodes": [{"ID": 0}]},
                }
                for identity in config["resources"][self._resource]
            ]
            if devices != told:
                told = devices
                yield MESSAGES["ListAndWatchResponse"](devices=devices)
            time.sleep(PERIOD)

    def _allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        config = self._read()
        known = config["resources"][self._resource]
        responses = []
        for one in request.container_requests:
            names = [name for identity in one.devices_ids for name in known[identity]]
            names += config.get("show", [])
            specs = [
                {
                    "container_path": f"/dev/{name}",
                    "host_path": f"{config['dev']}/{name}",
                    "permissions": "rw",
                }
                for name in dict.fromkeys(names)
            ]
            sys.stdout.write(f"{time.time():.3f} {self._resource} {list(one.devices_ids)}\n")
            sys.stdout.flush()
            responses.append({"devices": specs})
        return MESSAGES["AllocateResponse"](container_responses=responses)


def _options(request: Any, context: grpc.ServicerContext) -> Any:
    return MESSAGES["DevicePluginOptions"](get_preferred_allocation_available=True)


def _prefer(request: Any, context: grpc.ServicerContext) -> Any:
    """The first ids that are free: left alone a kubelet gives any."""
    chosen = [
        {"device_ids": sorted(one.available_device_ids)[: one.allocation_size]}
        for one in request.container_requests
    ]
    return MESSAGES["PreferredAllocationResponse"](container_responses=chosen)


def main(config: Path) -> None:
    """Serve until killed; a kubelet that starts anew forgets its plugins."""
    plugins = [Plugin(config, resource) for resource in json.loads(config.read_text())["resources"]]
    seen: tuple[int, int] | None = None
    while True:
        try:
            found = os.stat(PLUGINS / "kubelet.sock")
            now = (found.st_ino, found.st_ctime_ns)
            if now != seen:
                for plugin in plugins:
                    plugin.serve()
                seen = now
        except (FileNotFoundError, grpc.RpcError) as error:
            sys.stderr.write(f"{error}\n")
        threading.Event().wait(PERIOD)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
