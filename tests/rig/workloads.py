"""The rig's pods, processes, and what is true about them.

Stand-in: what the API and the kubelet say about a pod, told here from one record. Real: the processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.rig import messages, objects
from tests.rig.cgroups import ControlGroup, Driver, Qos
from tests.rig.errors import RigError
from tests.rig.hardware import Gpu, Mig, Target
from tests.rig.holder import Holder

NODE = "rig-node"


@dataclass(slots=True)
class Pod:
    """A pod as the rig made it. `uid` is what cgroup paths and log directories carry."""

    namespace: str
    name: str
    uid: str
    api_uid: str
    qos: Qos
    driver: Driver
    static: bool
    ids: dict[str, str]
    devices: dict[str, list[tuple[str, str, int]]]
    groups: dict[str, ControlGroup]
    extra: dict[str, Any] = field(default_factory=dict)
    listed: bool = True
    in_api: bool = True

    def api_object(self) -> objects.Json:
        """Its object in the API."""
        containers = [
            objects.Container(name, identity, limits=limits(self.devices[name]))
            for name, identity in self.ids.items()
        ]
        values: dict[str, Any] = {"containers": containers, "node": NODE} | self.extra
        if self.static:
            values["config_hash"] = self.uid
        return objects.pod(self.namespace, self.name, self.api_uid, **values)

    def resources(self) -> dict[str, Any]:
        """Its entry in the kubelet's list."""
        entries = {
            name: [entry for one in given for entry in messages.devices(one[0], [one[1]], [one[2]])]
            for name, given in self.devices.items()
        }
        return messages.pod_resources(self.name, self.namespace, entries)


@dataclass(slots=True)
class Process:
    """A started holder: where it belongs and what it holds."""

    holder: Holder
    pod: Pod | None
    container: str
    uses: tuple[tuple[Target, int | None], ...]
    listed: bool

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.holder.pid

    def oracle(self) -> list[OracleRow]:
        """One row for each device it uses."""
        return [self._row(target, memory) for target, memory in self.uses]

    def _row(self, target: Target, memory: int | None) -> OracleRow:
        mig = target if isinstance(target, Mig) else None
        return OracleRow(
            uuid=target.uuid if mig is None else mig.gpu.uuid,
            mig_uuid="" if mig is None else mig.uuid,
            gi="" if mig is None else str(mig.gi),
            pid=self.pid,
            start_time=self.holder.start_time,
            namespace=self.pod.namespace if self.pod else "",
            pod=self.pod.name if self.pod else "",
            container=self.container,
            pod_uid=self.pod.uid if self.pod else "",
            memory=memory,
            owner="pod" if self.pod else "host",
        )


@dataclass(frozen=True, slots=True)
class OracleRow:
    """What is true about one process on one device. `memory` is None where NVML does not list it."""

    uuid: str
    mig_uuid: str
    gi: str
    pid: int
    start_time: int
    namespace: str
    pod: str
    container: str
    pod_uid: str
    memory: int | None
    owner: str


def device(one: Target | tuple[Target, int]) -> tuple[str, str, int]:
    """Resource name, device id and NUMA node of an allocated device."""
    target, replica = one if isinstance(one, tuple) else (one, 0)
    if not target.device_ids:
        raise RigError(f"{target.uuid} is a MIG parent: allocate its instances")
    gpu = target if isinstance(target, Gpu) else target.gpu
    return target.resource, target.device_ids[replica], gpu.numa_node


def limits(given: Sequence[tuple[str, str, int]]) -> dict[str, str]:
    """The resource limits of a container with these devices."""
    names = [resource for resource, _, _ in given]
    return {name: str(names.count(name)) for name in names}
