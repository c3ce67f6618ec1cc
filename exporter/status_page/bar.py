"""The memory of a device as a bar: whose each part is. A Device of the View in, parts and their drawing out.

A part that nobody can name is never drawn as free, and a bar without a total is not drawn at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter.status_page.markup import Html, element, joined
from exporter.view import Device, Holder, size

_COLOURS = 6  # of pods, before they repeat


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the bar: whose it is, bytes, and the class of its colour."""

    whose: str
    memory: int
    colour: str


def parts(device: Device) -> tuple[Part, ...]:
    """Pods first, then other owners, then what no process accounts for, then free memory; none of 0 bytes.

    Empty where used or total is not known.
    """
    if device.used is None or device.total is None:
        return ()
    found: dict[tuple[str, str], int] = {}
    for holder in device.holders:
        key = (holder.owner, _name(holder))
        found[key] = found.get(key, 0) + (holder.memory or 0)
    pods = [(name, memory) for (owner, name), memory in found.items() if owner == "pod"]
    told = [Part(name, memory, f"pod{place % _COLOURS}") for place, (name, memory) in enumerate(pods)]
    told += [Part(name, memory, owner) for (owner, name), memory in found.items() if owner != "pod"]
    known = sum(part.memory for part in told)
    if device.unattributed is not None:
        told.append(Part("no process", device.unattributed, "unattributed"))
        told.append(Part("driver and others", device.used - known - device.unattributed, "rest"))
    else:
        told.append(Part("not known by whom", device.used - known, "unknown"))
    told.append(Part("free", device.total - device.used, "free"))
    return tuple(part for part in told if part.memory > 0)


def drawn(device: Device) -> Html:
    """The bar and its key, the same in words for who sees no colours."""
    if device.used is None or device.total is None or device.total <= 0:
        return element("p", "Memory is not known.", class_="doubt-text")
    pieces = parts(device)
    said = f"Memory: {size(device.used)} of {size(device.total)} used"
    # Shares are of the larger, for figures that were not read at one moment.
    whole = max(device.total, sum(part.memory for part in pieces))
    bar = joined(
        element("span", class_=part.colour, style=f"width:{part.memory / whole:.2%}", title=_told(part))
        for part in pieces
    )
    key = joined(
        element("li", element("i", class_=part.colour, aria_hidden="true"), _told(part)) for part in pieces
    )
    return joined(
        (
            element("p", said),
            element("div", bar, class_="bar", role="img", aria_label=said),
            element("ul", key, class_="key"),
        )
    )


def _told(part: Part) -> str:
    return f"{part.whose}: {size(part.memory)}"


def _name(holder: Holder) -> str:
    pod = f"{holder.namespace}/{holder.pod}" if holder.pod else holder.pod_uid and f"pod {holder.pod_uid}"
    match holder.owner:
        case "pod":
            return pod or "a pod"
        case "orphan":
            return f"orphan of {pod}" if pod else "orphan"
        case owner:
            return f"{holder.comm} ({owner})" if owner == "host" else owner
