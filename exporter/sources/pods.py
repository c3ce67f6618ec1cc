"""Source pods: the pods of this node as the API server has them. Owner of the `kubernetes` library.

What comes in is one list of this node's pods, every minute, and sooner when a cycle nudges. What goes out is
a slim record per pod. Of the library only its configuration (service account with token renewal, kubeconfig)
and REST layer are used: its typed models cost 100 MB. It is imported by `connect`, so that an agent without
API access does not pay for it. Of a pod it must never keep what is not in the record: specs hold other
people's secrets.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from exporter.infrastructure import STACK_KEYS
from exporter.model import ContainerKind, ContainerStatus, Pod, Pods, Reason, SourceError
from exporter.sources.polling import LEAST, PERIOD, Getter, NotFoundError, Poll, gpu_quantities
from exporter.text import NAME_LIMIT, printable

if TYPE_CHECKING:
    from kubernetes.client import Configuration
    from kubernetes.client.rest import RESTClientObject

CONNECT_SECONDS = 3.0
READ_SECONDS = 10.0  # without a byte
WHOLE_SECONDS = 30.0  # for one reply: a peer that drips must not hold the source for ever
REPLY_LIMIT = 64 * 2**20  # bytes
CHUNK = 2**16  # bytes
ANNOTATION_LIMIT = 1024  # HAMi writes one entry per device and container
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
AGENT = "kubegpu-exporter"

# HTTP status to what it means. What stands in no row is an answer that cannot be understood.
STATUSES: dict[int, tuple[Reason, str]] = {
    401: (Reason.DENIED, "the token is not accepted"),
    403: (Reason.DENIED, "not allowed; is the ClusterRole bound?"),
    404: (Reason.UNAVAILABLE, "not found"),
    408: (Reason.TIMEOUT, "the API server timed out"),
    410: (Reason.UNAVAILABLE, "the resource version is gone"),
    429: (Reason.BUSY, "the API server sheds load"),
    504: (Reason.TIMEOUT, "the API server timed out"),
}
# Annotations that a GPU scheduler writes about its choice; a pattern is matched at the start of the key.
ANNOTATIONS = re.compile(
    r"hami\.io/|volcano\.sh/v?gpu|ALIYUN_COM_GPU_|scheduler\.framework\.gpushare\.allocation$"
    r"|gpu-fraction|gpu-memory$|run\.ai/reserve_for_gpu_index$"
)
# Labels that name a component of the GPU stack, or the GPU group of a KAI reservation.
LABELS = (*STACK_KEYS, "runai-gpu-group")
MALFORMED = (TypeError, ValueError, LookupError, AttributeError)  # what parse raises at a pod that is none
MIRROR = "kubernetes.io/config.mirror"
STATIC_UID = "kubernetes.io/config.hash"


# --- the API server -----------------------------------------------------------------------------------------


def connect(kubeconfig: Path | None = None, service_account: Path = SERVICE_ACCOUNT) -> Api:
    """Return the API server of a kubeconfig, or else of the cluster that we run in. Nothing is read yet."""
    if kubeconfig is not None:
        return Api(lambda: _from_kubeconfig(kubeconfig))
    return Api(lambda: _from_service_account(service_account))


def _from_kubeconfig(path: Path) -> Configuration:
    from kubernetes.client import Configuration  # noqa: PLC0415 - see the module's docstring
    from kubernetes.config import ConfigException, load_kube_config  # noqa: PLC0415
    from kubernetes.config.kube_config import KubeConfigMerger  # noqa: PLC0415

    given = KubeConfigMerger(str(path)).config  # type: ignore[no-untyped-call]
    context = given["contexts"].get_with_name(given["current-context"])["context"]
    user = given["users"].get_with_name(context["user"])["user"]
    if "exec" in user or "auth-provider" in user:
        # The agent runs no program but its own children (DESIGN), and certainly none that a file names.
        raise ConfigException("its user gets credentials from a program; give a token or a certificate")
    configuration = Configuration()
    load_kube_config(config_file=str(path), client_configuration=configuration, persist_config=False)  # type: ignore[no-untyped-call]
    return configuration


def _from_service_account(folder: Path) -> Configuration:
    from kubernetes.client import Configuration  # noqa: PLC0415
    from kubernetes.config.incluster_config import InClusterConfigLoader  # noqa: PLC0415

    configuration = Configuration()
    files = (str(folder / "token"), str(folder / "ca.crt"))
    loader = InClusterConfigLoader(*files)  # type: ignore[no-untyped-call]
    loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
    return configuration


class Api:
    """Objects of the Kubernetes API as plain JSON.

    Configuration is loaded at the first request and again after every failed one: a token, a certificate or a
    kubeconfig that was replaced or came late is then taken up. In between the library reads the service
    account's token each minute.
    """

    def __init__(
        self, load: Callable[[], Configuration], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._load = load
        self._clock = clock
        self._client: RESTClientObject | None = None

    def get(
        self,
        path: str,
        query: dict[str, str] | None = None,
        hook: Callable[[dict[str, Any]], object] | None = None,
    ) -> Any:
        """Return the JSON value at an API path; raises SourceError. `hook` is json.loads' object_hook.

        A 401 is tried again with fresh credentials, a 410 without resourceVersion, once.
        """
        query = dict(query or {})
        try:
            status, body = self._request(path, query)
            if status == 401:
                self._client = None
                status, body = self._request(path, query)
            elif status == 410 and query.pop("resourceVersion", None) is not None:
                status, body = self._request(path, query)
            if status != 200:
                raise _refusal(status, path, body)
        except SourceError:
            self._client = None
            raise
        try:
            return json.loads(body, object_hook=hook)
        except (ValueError, RecursionError) as error:
            raise SourceError(Reason.PROTOCOL, f"{path}: the reply is not JSON") from error

    def _request(self, path: str, query: Mapping[str, str]) -> tuple[int, bytearray]:
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
        from kubernetes.config import ConfigException  # noqa: PLC0415
        from urllib3 import exceptions as http  # noqa: PLC0415 - the library's own transport

        client = self._connected()
        try:
            headers = {"Accept": "application/json", "User-Agent": AGENT}
            if token := client.configuration.get_api_key_with_prefix("BearerToken", alias="authorization"):
                headers["Authorization"] = token.strip()
            url = client.configuration.host + path + (f"?{urlencode(query)}" if query else "")
            timeouts = (CONNECT_SECONDS, READ_SECONDS)
            reply = client.request("GET", url, headers=headers, _request_timeout=timeouts)  # type: ignore[no-untyped-call]
            with contextlib.closing(reply.response):  # a reply read to its end has given its connection back
                return reply.status, self._body(reply.response, path)
        except http.NewConnectionError as error:  # for history's sake a ConnectTimeoutError too
            raise SourceError(Reason.UNAVAILABLE, f"{path}: {_line(error)}") from error
        except http.TimeoutError as error:
            raise SourceError(Reason.TIMEOUT, f"{path}: {_line(error)}") from error
        except (http.HTTPError, ApiException, ConfigException, OSError) as error:
            raise SourceError(Reason.UNAVAILABLE, f"{path}: {_line(error)}") from error
        except ValueError as error:  # http.client, of a header; its text shows the token
            raise SourceError(Reason.UNAVAILABLE, f"{path}: the token is malformed") from error

    def _connected(self) -> RESTClientObject:
        """Return a client of the present configuration, which follows no redirect and repeats nothing."""
        from kubernetes.client.rest import RESTClientObject  # noqa: PLC0415
        from kubernetes.config import ConfigException  # noqa: PLC0415

        if self._client is not None:
            return self._client
        try:
            configuration = self._load()
            configuration.retries = False
            configuration.connection_pool_maxsize = 2
            self._client = RESTClientObject(configuration)
        except PermissionError as error:
            raise SourceError(Reason.DENIED, f"configuration: {_line(error)}") from error
        except (ConfigException, OSError, ValueError, KeyError, TypeError) as error:
            text = (
                f"no way to the Kubernetes API ({_line(error)}); outside a pod give --kubernetes.kubeconfig"
            )
            raise SourceError(Reason.UNAVAILABLE, text) from error
        return self._client

    def _body(self, reply: Any, path: str) -> bytearray:
        """Read a reply in pieces, so that neither its size nor its slowness is the peer's to choose."""
        deadline = self._clock() + WHOLE_SECONDS
        body = bytearray()
        while piece := reply.read1(CHUNK):
            body += piece
            if len(body) > REPLY_LIMIT:
                text = f"{path}: a reply of more than {REPLY_LIMIT // 2**20} MiB"
                raise SourceError(Reason.PROTOCOL, text)
            if self._clock() > deadline:
                raise SourceError(Reason.TIMEOUT, f"{path}: no whole reply in {WHOLE_SECONDS:g} s")
        return body


def _refusal(status: int, path: str, body: bytearray) -> SourceError:
    unknown = (
        (Reason.UNAVAILABLE, "the API server failed") if status >= 500 else (Reason.PROTOCOL, "unexpected")
    )
    reason, meaning = STATUSES.get(status, unknown)
    try:
        message = json.loads(body)["message"]
    except (ValueError, RecursionError, LookupError, TypeError):
        message = ""
    said = f" ({printable(message)})" if isinstance(message, str) and message else ""
    error = NotFoundError if status == 404 else SourceError
    return error(reason, f"{path}: {meaning}: HTTP {status}{said}")


def _line(error: Exception) -> str:
    return printable(f"{type(error).__name__}: {error}", 300)


# --- the source ---------------------------------------------------------------------------------------------


class PodsSource:
    """The pods that are bound to one node, polled once in a `period` and when nudged."""

    name = "pods"

    def __init__(
        self,
        api: Getter,
        node_name: str,
        period: float = PERIOD,
        least: float = LEAST,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._api = api
        self._node_name = node_name
        self._poll = Poll(self._list, period, least, clock, rng)
        self._version = 0

    def read(self, nudge: bool) -> tuple[Pods, bool, float]:
        """Return the pods, whether they are all, and when (epoch) they were listed; raises SourceError.

        `nudge` says that somebody saw a pod that this list lacks, or missed one that it has.
        """
        return self._poll.read(nudge)

    def _list(self) -> tuple[Pods, bool]:
        if not self._node_name:
            raise SourceError(Reason.UNAVAILABLE, "no node name; set --node-name")
        # resourceVersion=0 is answered from the API server's cache instead of etcd.
        query = {"fieldSelector": f"spec.nodeName={self._node_name}", "resourceVersion": "0"}
        found = self._api.get("/api/v1/pods", query, hook=_condense)
        if not isinstance(found, dict) or not isinstance(found.get("items"), list):
            raise SourceError(Reason.PROTOCOL, "/api/v1/pods: the reply is no list")
        pods = [item for item in found["items"] if isinstance(item, _OnNode)]
        mine = (item.pod for item in pods if item.node_name == self._node_name)
        whole = len(pods) == len(found["items"]) and self._forward(found.get("metadata"))
        return Pods(tuple(sorted(mine, key=lambda pod: (pod.namespace, pod.name, pod.uid)))), whole

    def _forward(self, metadata: object) -> bool:
        """Whether a list is whole and no older than the last: another API server's cache may lag."""
        if not isinstance(metadata, dict) or metadata.get("continue"):
            return False
        text = metadata.get("resourceVersion")
        version = int(text) if isinstance(text, str) and re.fullmatch(r"[0-9]{1,20}", text) else self._version
        before, self._version = self._version, version
        return version >= before


# --- objects to records -------------------------------------------------------------------------------------


class _OnNode:
    """A parsed pod on its way out of the list, with the node that it is bound to."""

    __slots__ = ("node_name", "pod")

    def __init__(self, pod: Pod, node_name: object) -> None:
        self.pod = pod
        self.node_name = node_name


def _condense(value: dict[str, Any]) -> object:
    """Turn each pod into its record while the list is being decoded: no tree of the whole list ever exists.

    Nothing inside a pod has all three keys. A malformed pod stays what it is, and so makes the list
    incomplete.
    """
    if "metadata" in value and "spec" in value and "status" in value:
        try:
            return _OnNode(parse(value), value["spec"].get("nodeName"))
        except MALFORMED:
            return value
    return value


def parse(pod: Mapping[str, Any]) -> Pod:
    """Return the record of a pod as the API writes it; raises one of MALFORMED."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod["status"]
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    deleted = metadata.get("deletionTimestamp")
    conditions = status.get("conditions") or ()
    return Pod(
        uid=_name(metadata["uid"]),
        cgroup_uid=_name(_cgroup_uid(metadata["uid"], annotations)),
        namespace=_name(metadata["namespace"]),
        name=_name(metadata["name"]),
        phase=printable(status.get("phase") or ""),
        deletion_timestamp=None if deleted is None else _epoch(deleted),
        containers=tuple(_containers(spec, status)),
        gpu_requests=_requests(spec),
        annotations=tuple(
            sorted(
                (printable(key), printable(value, ANNOTATION_LIMIT))
                for key, value in annotations.items()
                if ANNOTATIONS.match(key)
            )
        ),
        labels=tuple((key, printable(labels[key])) for key in LABELS if key in labels),
        runtime_class=_name(spec.get("runtimeClassName") or ""),
        host_pid=spec.get("hostPID") is True,
        ready=any(c["type"] == "Ready" and c["status"] == "True" for c in conditions),
    )


def _cgroup_uid(uid: str, annotations: Mapping[str, str]) -> str:
    """The UID under which the kubelet runs a pod; the API gives a static pod's mirror another one."""
    return annotations.get(STATIC_UID) or uid if MIRROR in annotations else uid


def _specs(spec: Mapping[str, Any]) -> Iterator[tuple[ContainerKind, Mapping[str, Any]]]:
    """Containers in the order in which they start."""
    for one in spec.get("initContainers") or ():
        yield ContainerKind.SIDECAR if one.get("restartPolicy") == "Always" else ContainerKind.INIT, one
    for one in spec.get("containers") or ():
        yield ContainerKind.APP, one
    for one in spec.get("ephemeralContainers") or ():
        yield ContainerKind.EPHEMERAL, one


def _containers(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[ContainerStatus]:
    statuses = {
        one["name"]: one
        for group in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
        for one in status.get(group) or ()
    }
    for kind, one in _specs(spec):
        said = statuses.get(one["name"], {})
        state = said.get("state") or {}
        running = state.get("running")
        last = (said.get("lastState") or {}).get("terminated") or {}
        started = (running or state.get("terminated") or {}).get("startedAt")
        yield ContainerStatus(
            name=_name(one["name"]),
            kind=kind,
            container_id=_bare_id(said.get("containerID")),
            previous_id=_bare_id(last.get("containerID")),
            running=running is not None,
            ready=said.get("ready") is True,
            started_at=None if started is None else _epoch(started),
            privileged=(one.get("securityContext") or {}).get("privileged") is True,
        )


def _requests(spec: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """GPUs that a pod asks for, as the scheduler counts (component-helpers/resource).

    Init containers run one by one, each
    beside the sidecars before it, and all are gone but the sidecars when the apps run.
    """
    together: dict[str, int] = {}
    peak: dict[str, int] = {}
    for kind, one in _specs(spec):
        for resource, count in _limits(one):
            sum_ = together.get(resource, 0) + count
            if kind in (ContainerKind.APP, ContainerKind.SIDECAR):
                together[resource] = sum_
            if kind is not ContainerKind.EPHEMERAL:
                peak[resource] = max(peak.get(resource, 0), sum_)
    return tuple(sorted((printable(resource), count) for resource, count in peak.items()))


def _limits(container: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Limits and requests of such a resource are equal, and either may be left out."""
    resources = container.get("resources") or {}
    wanted = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return gpu_quantities(wanted)


def _bare_id(text: str | None) -> str:
    """A container id without its runtime: `containerd://`, `cri-o://`, `docker://`."""
    return printable((text or "").rpartition("://")[2])


def _name(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError("a name that is no text")
    return printable(text, NAME_LIMIT)


def _epoch(text: str) -> float:
    """RFC 3339 time with a zone to seconds since the epoch."""
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return when.timestamp()
