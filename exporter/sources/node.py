"""Source node: what the API server says this node has of GPUs, and the labels that describe them.

What comes in is the Node object, polled like the pods. What goes out is its GPU resources and the labels of
LABELS. It must never keep the rest: other resources and other people's labels are none of our business.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from exporter.model import Node, Reason, SourceError
from exporter.sources.polling import LEAST, PERIOD, Getter, NotFoundError, Poll, gpu_quantities
from exporter.text import NAME_LIMIT, printable

# GPU feature discovery and the GPU operator, node feature discovery, GKE's sharing.
LABELS = re.compile(
    r"nvidia\.com/|feature\.node\.kubernetes\.io/pci-(?:0300_|0302_)?10de|cloud\.google\.com/gke-"
    r"(?:accelerator|gpu-partition-size|gpu-sharing-strategy|max-shared-clients-per-gpu)"
)


class NodeSource:
    """The Node object of one node, polled once in a `period`."""

    name = "node"

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
        self._poll = Poll(self._get, period, least, clock, rng)

    def read(self, nudge: bool = False) -> tuple[Node, bool, float]:
        """Return the node, True, and when (epoch) it was read; raises SourceError."""
        return self._poll.read(nudge)

    def _get(self) -> tuple[Node, bool]:
        if not self._node_name:
            raise SourceError(Reason.UNAVAILABLE, "no node name; set --node-name")
        path = f"/api/v1/nodes/{quote(self._node_name, safe='')}"
        try:
            return _parse(self._api.get(path)), True
        except NotFoundError as error:
            text = f"no node named {printable(self._node_name, NAME_LIMIT)}; set --node-name"
            raise SourceError(Reason.UNAVAILABLE, text) from error
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise SourceError(Reason.PROTOCOL, f"{path}: the reply is no node") from error


def _parse(node: Mapping[str, Any]) -> Node:
    metadata, status = node["metadata"], node["status"]
    labels = metadata.get("labels") or {}
    return Node(
        name=printable(metadata["name"], NAME_LIMIT),
        capacity=_counts(status.get("capacity")),
        allocatable=_counts(status.get("allocatable")),
        labels=tuple(sorted((printable(k), printable(v)) for k, v in labels.items() if LABELS.match(k))),
    )


def _counts(quantities: Mapping[str, Any] | None) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((printable(resource), count) for resource, count in gpu_quantities(quantities or {})))
