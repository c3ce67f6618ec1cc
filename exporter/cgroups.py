"""The text of /proc/PID/cgroup to the pod, container or host unit that a process lives in. Pure; never
raises.

What comes in is one line per hierarchy, `id:controllers:path` (cgroups(7)); which path says more depends on
cgroup version, driver, runtime and nesting, so every line is tried. A path is relative to the reader's cgroup
namespace root: it may begin with `/..`, and a cgroup root of any name may precede `kubepods`. Paths are never
anchored at their start. A new layout is a new row of PATTERNS and a new line in tests/unit/test_cgroups.py.
"""

from __future__ import annotations

import re

from exporter.model import Cgroup
from exporter.text import printable

# A pod's UID is a UUID, with underscores where systemd's slice names forbid dashes, or the 32 hex digits of a
# static pod's config hash (kubelet, pkg/kubelet/cm/pod_container_manager_linux.go).
_UID = r"(?P<pod>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
_ID = r"(?<![0-9a-f])(?P<container>[0-9a-f]{64})(?![0-9a-f])"

# First match wins. The outermost pod and the first container below it: what runs inside that container
# (Docker in a pod, systemd in a container, kind in a pod) belongs to it. Outside pods the innermost container
# is the one that matters.
PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    # conmon watches a CRI-O container from beside it and is none of its processes
    ("runtime monitor", re.compile(r"/(?P<unit>(?:crio|libpod)-conmon-[0-9a-f]+[^/]*)")),
    ("container of a pod", re.compile(rf"[/-]pod{_UID}(?:\.slice)?[/:].*?{_ID}")),
    ("pod itself", re.compile(rf"[/-]pod{_UID}(?:\.slice)?(?:/|$)")),
    ("container outside pods", re.compile(rf"^.*{_ID}")),
    ("user session", re.compile(r"/user\.slice/.*?(?P<unit>session-[^/]+\.scope|user@[0-9]+\.service)")),
    ("host service", re.compile(r"^.*/(?P<unit>[^/]+\.service)(?:/|$)")),
    ("host scope", re.compile(r"^.*/(?P<unit>[^/]+\.scope)(?:/|$)")),
)
# Where lines disagree (one hierarchy can be moved alone), a resource controller says more than freezer or a
# named hierarchy.
_PREFERRED = ("memory", "cpu", "pids", "devices", "")
_DELETED = " (deleted)"
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")  # systemd.unit(5): bytes that a unit name may not hold


def parse(text: str) -> Cgroup:
    """Return where a process lives; an empty Cgroup for the root group and for text that says nothing."""
    # Not splitlines: the kernel escapes no \x0b or \u2028 in a name, and a pod may name groups of its own.
    best = max((_place(line) for line in text.split("\n")), key=lambda p: p[0], default=None)
    return best[1] if best else Cgroup()


def _place(line: str) -> tuple[tuple[int, int, int, str], Cgroup]:
    """One line's place and its worth: a container of a pod, then a pod, then a container, then a unit."""
    _, _, rest = line.partition(":")
    controllers, _, raw = rest.partition(":")
    path = raw.removesuffix(_DELETED)
    path = _ESCAPED.sub(lambda m: chr(int(m[1], 16)), path)
    names = controllers.split(",")
    rank = max((len(_PREFERRED) - i for i, name in enumerate(_PREFERRED) if name in names), default=0)
    for _, pattern in PATTERNS:
        if found := pattern.search(path):
            groups = found.groupdict()
            place = Cgroup(
                pod_uid=(groups.get("pod") or "").replace("_", "-"),
                container_id=groups.get("container") or "",
                unit=printable(groups.get("unit") or ""),
                deleted=raw.endswith(_DELETED),
            )
            worth = 2 * bool(place.pod_uid) + bool(place.container_id)
            return (worth + 1, rank, len(path), path), place
    return (0, rank, len(path), path), Cgroup()
