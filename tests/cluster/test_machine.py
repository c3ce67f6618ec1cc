"""The cluster takes a machine for itself, and says so to whoever wants it as well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import machine
from tests.cluster.cluster import Cluster
from tests.rig.errors import RigError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]


def test_a_second_one_is_refused(empty_cluster: Cluster) -> None:
    """Two kubelets would kill each other's pods."""
    with pytest.raises(RigError, match="another cluster of these tests runs"):
        machine.Machine()


def test_it_is_refused_beside_a_kubelet(empty_cluster: Cluster) -> None:
    """What it would take away at its end must not be somebody else's: it is named."""
    assert {str(machine.KUBELET), "/var/log/pods"} <= set(machine.taken())


def test_nobody_but_root_is_admitted() -> None:
    """The refusal comes before anything is touched, and names what is missing."""
    script = "import os; os.setuid(65534); from tests.cluster.machine import Machine; Machine()"
    # Imported before the user changes: the checkout may be closed to others.
    script = f"import tests.cluster.machine; {script}"
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.strip().endswith("RigError: a cluster needs root on Linux")
