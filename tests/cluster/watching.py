"""What the exporter's pod says over time, beside what is so: scrapes in the background, and their timeline.

What is so comes from the processes' own files, the API server and the kubelet's List. The exporter is seen by
its metrics alone.
"""

from __future__ import annotations

import contextlib
import http.client
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Self

from tests.cluster.cluster import Cluster
from tests.cluster.exporter_pod import ExporterPod
from tests.cluster.hardware import CAPS_MAJOR, GPU_MAJOR
from tests.rig.agent import Samples
from tests.rig.errors import RigError
from tests.rig.hardware import Gpu, Target
from tests.system.observe import WORKLOAD, rows, values

PERIOD = 0.3
MISSED_LIMIT = 15.0  # seconds without an answer, as while the exporter's container is started anew


class Told(NamedTuple):
    """A finding: `pod` is namespace/name/container, `uid` the pod's, `cause` the finding that explains it."""

    finding: str
    kind: str
    gpu: str
    pod: str
    uid: str
    cause: str = ""


class On(NamedTuple):
    """A process on a device."""

    uuid: str
    gi: str
    pid: str
    namespace: str
    pod: str
    container: str
    uid: str


class View:
    """One scrape."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    @property
    def findings(self) -> set[Told]:
        """Everything that is wrong."""
        names = ("finding", "kind", "gpu", *WORKLOAD, "pod_uid", "explained_by")
        found = rows(self.samples, "finding_info", *names)
        return {Told(a, b, c, "/".join(filter(None, (d, e, f))), g, h) for a, b, c, d, e, f, g, h in found}

    @property
    def counted(self) -> set[tuple[str, ...]]:
        """What `findings` counts: finding, kind and GPU."""
        found = values(self.samples, "findings", "finding", "kind", "gpu", "gi", *WORKLOAD)
        return {key[:3] for key, count in found.items() if count}

    @property
    def processes(self) -> set[On]:
        """Workers of pods on devices, as `process_info` has them."""
        names = ("uuid", "gi", "pid", *WORKLOAD, "pod_uid")
        return {
            On(*row) for row in rows(self.samples, "process_info", *names, owner="pod", visibility="both")
        }

    @property
    def unknown(self) -> dict[str, set[str]]:
        """What could not be judged: reasons by finding."""
        found: dict[str, set[str]] = {}
        for finding, reason in rows(self.samples, "finding_undetermined", "finding", "reason"):
            found.setdefault(finding, set()).add(reason)
        return found

    @property
    def down(self) -> set[str]:
        """Sources that do not answer."""
        return {source for (source,), up in values(self.samples, "source_up", "source").items() if not up}

    def allocated(self, target: Target) -> float | None:
        """1, 0, or None where it is not known."""
        uuid = target.uuid if isinstance(target, Gpu) else target.gpu.uuid
        mig = "" if isinstance(target, Gpu) else target.uuid
        return values(self.samples, "gpu_allocated", uuid=uuid, mig_uuid=mig).get(())

    def owner(self, gpu: Gpu) -> str:
        """The workload on the series of a whole GPU."""
        (found,) = rows(self.samples, "gpu_memory_used_bytes", *WORKLOAD, uuid=gpu.uuid)
        return "/".join(filter(None, found))


class Watch:
    """Scrapes until it is left, then prints when what changed."""

    def __init__(self, exporter: ExporterPod, title: str) -> None:
        self._exporter = exporter
        self._title = title
        self._began = time.monotonic()
        self._lines: list[str] = []
        self._last: dict[str, set[str]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._scrape, daemon=True)
        self._answered = time.monotonic()
        self.view: View = View({})
        self.ever: set[Told] = set()
        self.gap = 0.0

    def event(self, what: str) -> None:
        """Note what the test has done."""
        self._lines.append(f"{time.monotonic() - self._began:7.1f} -- {what}")

    def until(self, condition: Callable[[View], object], what: str, timeout: float = 40.0) -> View:
        """Wait until a scrape says so. The error carries the timeline."""
        deadline = time.monotonic() + timeout
        while True:
            view = self.view
            if view.samples and condition(view):
                return view
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout:g} s: {what}\n{self.told()}")
            time.sleep(0.1)

    def steady(self, condition: Callable[[View], object], what: str, seconds: float) -> None:
        """Every scrape says so for so long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert condition(self.view), f"no longer: {what}\n{self.told()}"
            time.sleep(0.1)

    def told(self) -> str:
        """The timeline."""
        return "\n".join([f"== {self._title}", *self._lines, self._exporter.tail(8)])

    def __enter__(self) -> Self:
        self._thread.start()
        self.until(lambda view: True, "the first scrape")
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        sys.stdout.write("\n".join(["", f"== {self._title}", *self._lines, ""]))

    def _scrape(self) -> None:
        while not self._ended.wait(PERIOD):
            with contextlib.suppress(OSError, http.client.HTTPException, RigError):
                self._take(View(self._exporter.samples()))

    def _take(self, view: View) -> None:
        now = time.monotonic()
        self.gap = max(self.gap, now - self._answered)
        self._answered = now
        self.ever |= view.findings
        said: dict[str, Iterable[str]] = {
            "finding": (" ".join(filter(None, one)) for one in view.findings),
            "process": (" ".join(one[1:]) for one in view.processes),
            "unknown": (f"{name}: {', '.join(sorted(why))}" for name, why in view.unknown.items()),
            "down": view.down,
        }
        for what, texts in said.items():
            current = set(texts)
            before = self._last.get(what, set())
            for sign, changed in (("+", current - before), ("-", before - current)):
                self._lines += [f"{now - self._began:7.1f} {sign}  {what} {text}" for text in sorted(changed)]
            self._last[what] = current
        self.view = view


# ---------------------------------------------------------------- what is so


def truth(cluster: Cluster) -> set[On]:
    """Every worker on every device that it has open, with its pod and container by the API server's word."""
    names = {}
    for pod in cluster.api.pods():
        metadata, status = pod["metadata"], pod["status"]
        for kind in ("initContainerStatuses", "containerStatuses"):
            for one in status.get(kind) or []:
                identity = one.get("containerID", "").rpartition("/")[2]
                names[identity] = (metadata["namespace"], metadata["name"], one["name"], cluster.uid(pod))
    found = set()
    for pid, numbers in cluster.hardware.holders().items():
        identity = _container(pid)
        for target in (one for gpu in cluster.hardware.gpus for one in gpu.targets()):
            if identity in names and _works_on(target, numbers):
                uuid, gi = (target.uuid, "") if isinstance(target, Gpu) else (target.gpu.uuid, str(target.gi))
                found.add(On(uuid, gi, str(pid), *names[identity]))
    return found


def given(cluster: Cluster) -> set[tuple[str, ...]]:
    """Pod, container and device id of what the kubelet lists now."""
    return {
        (pod.namespace, pod.name, container.name, identity)
        for pod in cluster.resources() or ()
        for container in pod.containers
        for entry in container.devices
        for identity in entry.device_ids
    }


def _works_on(target: Target, numbers: set[tuple[int, int]]) -> bool:
    if isinstance(target, Gpu):
        return not target.mig and (GPU_MAJOR, target.minor) in numbers
    return target.caps is not None and (CAPS_MAJOR, target.caps[1]) in numbers


def _container(pid: int) -> str:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            if "/kubepods" in line and not line.endswith("/stuck"):
                return line.rpartition("/")[2]
    return ""
