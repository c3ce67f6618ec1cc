"""Objects of the Kubernetes API, cut down to the fields that the sources read. Pure.

What is not in a table here is left out: specs hold other people's secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from exporter import device_ids
from exporter.sources import node, pods

Json = dict[str, Any]
_Cut = Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _object(**fields: _Cut) -> _Cut:
    """Keep these fields of a mapping, each cut in its way; of what is none the name of its type."""

    def cut(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value if value is None else type(value).__name__
        return {name: one(value[name]) for name, one in fields.items() if name in value}

    return cut


def _each(cut: _Cut) -> _Cut:
    def cut_all(value: Any) -> Any:
        return [cut(one) for one in value] if isinstance(value, list) else None

    return cut_all


def _keys(wanted: Callable[[str], object]) -> _Cut:
    def cut(value: Any) -> Any:
        return {k: v for k, v in value.items() if wanted(k)} if isinstance(value, Mapping) else None

    return cut


_GPUS = _keys(device_ids.is_gpu_resource)
_TIMES = _object(startedAt=_same)
_CONTAINER = _object(
    name=_same,
    restartPolicy=_same,
    resources=_object(limits=_GPUS, requests=_GPUS),
    securityContext=_object(privileged=_same),
)
_STATUS = _object(
    name=_same,
    containerID=_same,
    ready=_same,
    state=_object(running=_TIMES, terminated=_TIMES),
    lastState=_object(terminated=_object(containerID=_same)),
)
POD = _object(
    metadata=_object(
        uid=_same,
        namespace=_same,
        name=_same,
        deletionTimestamp=_same,
        annotations=_keys(lambda key: key in (pods.MIRROR, pods.STATIC_UID) or pods.ANNOTATIONS.match(key)),
        labels=_keys(lambda key: key in pods.LABELS),
    ),
    spec=_object(
        nodeName=_same,
        runtimeClassName=_same,
        hostPID=_same,
        initContainers=_each(_CONTAINER),
        containers=_each(_CONTAINER),
        ephemeralContainers=_each(_CONTAINER),
    ),
    status=_object(
        phase=_same,
        conditions=_each(_object(type=_same, status=_same)),
        initContainerStatuses=_each(_STATUS),
        containerStatuses=_each(_STATUS),
        ephemeralContainerStatuses=_each(_STATUS),
    ),
)
POD_LIST = _object(metadata=_object(**{"resourceVersion": _same, "continue": _same}), items=_each(POD))
NODE = _object(
    metadata=_object(name=_same, labels=_keys(node.LABELS.match)),
    status=_object(capacity=_GPUS, allocatable=_GPUS),
)
