"""Who counts as infrastructure: by unit, or by namespace and executable, and never by a name."""

from __future__ import annotations

import pytest

from exporter.infrastructure import COMPONENTS, NAMESPACES, component
from exporter.model import Cgroup

POD = Cgroup("uid", "id")


def name(cgroup: Cgroup, namespace: str = "", exe: str = "") -> str:
    found = component(cgroup, namespace, exe)
    return found.name if found else ""


@pytest.mark.parametrize(
    ("cgroup", "namespace", "exe", "expected"),
    [
        (Cgroup(unit="nvidia-persistenced.service"), "", "", "persistenced"),
        (Cgroup(unit="nvidia-fabricmanager.service"), "", "/opt/fm", "fabric manager"),
        (Cgroup(unit="nvidia-persistenced.service.evil"), "", "", ""),
        (Cgroup(unit="session-1.scope"), "", "/usr/bin/nvidia-persistenced", ""),
        (Cgroup(), "", "/usr/bin/nv-hostengine", ""),
        (Cgroup(container_id="x", unit="nvidia-dcgm.service"), "", "", ""),
        (POD, "gpu-operator", "/usr/bin/dcgm-exporter", "dcgm"),
        (POD, "kube-system", "/usr/bin/nvidia-device-plugin", "device plugin"),
        (POD, "gpu-operator", "/usr/bin/python3", ""),
        (POD, "gpu-operator", "dcgm-exporter", ""),
        (POD, "team-a", "/usr/bin/dcgm-exporter", ""),
        (POD, "", "/usr/bin/dcgm-exporter", ""),
        (POD, "GPU-operator", "/usr/bin/dcgm-exporter", ""),
        (Cgroup("uid", "id", "nvidia-dcgm.service"), "team-a", "", ""),
    ],
)
def test_the_table_is_asked_by_place(cgroup: Cgroup, namespace: str, exe: str, expected: str) -> None:
    """Any user can call a process nvidia-smi, or put its file into a container of his own."""
    assert name(cgroup, namespace, exe) == expected


def test_the_table_contradicts_itself_nowhere() -> None:
    """No unit and no path means two components; paths are absolute, units are services."""
    units = [unit for one in COMPONENTS for unit in one.units]
    paths = [path for one in COMPONENTS for path in one.executables]
    assert len(units) == len(set(units))
    assert len(paths) == len(set(paths))
    assert all(unit.endswith(".service") for unit in units)
    assert all(path.startswith("/") for path in paths)
    assert len(NAMESPACES) == len(set(NAMESPACES))
