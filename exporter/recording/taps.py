"""Sources that keep what they were told: the kubelet's replies, the API's objects, directories' names."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exporter.model import Kubelet, PodNames
from exporter.recording.condensed import NODE, POD_LIST
from exporter.sources.kubelet import KubeletSource
from exporter.sources.pod_names import PodNamesSource
from exporter.sources.polling import Getter

PODS_PATH = "/api/v1/pods"


class KubeletTap(KubeletSource):
    """A kubelet source that keeps its last replies: what no field stands for stays in them."""

    def __init__(self, socket: Path) -> None:
        super().__init__(socket)
        self.replies: dict[str, str] = {}

    def _ask(self, deadline: float) -> tuple[bytes, bytes | None]:
        self.replies = {}
        return super()._ask(deadline)

    def _meaning(self, list_reply: bytes, offer_reply: bytes | None) -> Kubelet:
        kubelet = super()._meaning(list_reply, offer_reply)
        for method, reply in (("List", list_reply), ("GetAllocatableResources", offer_reply)):
            if reply is not None:
                self.replies[method] = base64.b64encode(reply).decode()
        return kubelet


class ApiTap:
    """Whoever is asked for objects of the API, keeping the last of each path, condensed."""

    def __init__(self, api: Getter) -> None:
        self._api = api
        self.objects: dict[str, Any] = {}

    def get(
        self,
        path: str,
        query: dict[str, str] | None = None,
        hook: Callable[[dict[str, Any]], object] | None = None,
    ) -> Any:
        """As `Getter` says. The parsers get the condensed object, so that it is proven to be enough."""
        found = self._api.get(path, query)
        kept = (POD_LIST if path == PODS_PATH else NODE)(found)
        self.objects[path] = kept
        return json.loads(json.dumps(kept), object_hook=hook)


class PodNamesTap(PodNamesSource):
    """A source of pod names that keeps the names of the directories, of pods and of their containers."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.directories: dict[str, list[str]] = {}

    def read(self) -> tuple[PodNames, bool]:
        """As `PodNamesSource` does."""
        names, complete = super().read()
        self.directories = {
            f"{one.namespace}_{one.name}_{one.uid}": list(one.containers) for one in names.names
        }
        return names, complete
