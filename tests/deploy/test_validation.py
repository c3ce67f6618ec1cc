"""Every rendered object is one that Kubernetes takes, and the checks that say so do find what is wrong."""

from __future__ import annotations

import copy
import subprocess
from typing import Any

import pytest

from tests.deploy import render, tools, validation

pytestmark = pytest.mark.timeout(180)
OLD = "1.29.0"  # the last version with the other way to say "AppArmor: unconfined"


def test_every_object_is_valid() -> None:
    """From Kubernetes 1.25 to 1.37, unknown fields being errors; kinds of OpenShift and the operator too.

    The oldest and newest, and those around the change of AppArmor; the others are in check_everything.py.
    """
    old, new = ["1.25", "1.29"], ["1.30", "1.33", "1.37"]
    every = old + new
    assert {validation.VERSIONS[0], validation.VERSIONS[-1]} <= set(every)
    named = list(render.everything())
    assert len(named) > 30
    in_both = [(name, one, every) for name, one in named if _privileged(one)]
    in_new = [(name, one, new) for name, one in named if not _privileged(one)]
    in_old = [
        (path.stem, render.chart(path, version=OLD), old)
        for path in render.ci()
        if not _privileged(render.chart(path))
    ]
    assert in_new
    assert in_old
    assert validation.errors(in_both + in_new + in_old) == []


def _privileged(rendered: render.Rendered) -> bool:
    return rendered.container["securityContext"].get("privileged") is True


def spoiled(kind: str, path: str, value: Any, name: str = "openshift") -> render.Rendered:
    """The objects of a kind with one thing set wrong in the first."""
    objects = copy.deepcopy(render.chart(render.ci_value(name)).objects)
    target: Any = next(one for one in objects if one["kind"] == kind)
    *way, last = path.split("/")
    for step in way:
        target = target[int(step) if step.isdigit() else step]
    target[last] = value
    return render.Rendered(tuple(one for one in objects if one["kind"] in (kind, value)))


WRONG: list[tuple[str, str, Any, str]] = [
    ("DaemonSet", "spec/template/spec/hostPid", True, "hostPid"),
    ("DaemonSet", "spec/template/spec/containers/0/ports/0/containerPort", "9836", "9836"),
    ("ClusterRole", "rule", [], "rule"),
    ("Service", "spec/ports/0/targetport", 1, "targetport"),
    ("PodMonitor", "spec/podMetricsEndpoints/0/honorLabel", True, "honorLabel is no field"),
    ("PodMonitor", "spec/podMetricsEndpoints/0/interval", "soon", "interval"),
    ("PrometheusRule", "spec/groups/0/rules/0/alerts", "X", "alerts is no field"),
    ("SecurityContextConstraints", "allowHostPid", True, "allowHostPid is no field"),
    ("SecurityContextConstraints", "users", "one", "users is 'one'"),
    ("SecurityContextConstraints", "kind", "Context", "security.openshift.io/v1 Context is not known"),
    ("Pod", "kind", "Pot", "no v1 Pot"),
    ("PodMonitor", "kind", "PotMonitor", "no PotMonitor"),
]


@pytest.fixture(scope="module")
def found() -> list[str]:
    """What is said about every wrong thing, each in an object of its own."""
    named = [
        (f"case {number}", spoiled(kind, path, value), ["1.33"])
        for number, (kind, path, value, _) in enumerate(WRONG)
    ]
    return validation.errors(named)


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[said for *_, said in WRONG])
def test_what_is_wrong_is_found(found: list[str], number: int) -> None:
    """A field that is not there, a wrong type and an unknown kind are errors; nothing passes unlooked at."""
    (one,) = [text for text in found if text.startswith(f"case {number}:")]
    assert WRONG[number][-1] in one


def test_hadolint() -> None:
    """Hadolint has nothing to say about the Dockerfile, at any level, and it does find what is wrong."""
    program = tools.environment("validate") / "hadolint"
    argv = [str(program), "--no-color", "--failure-threshold", "style"]
    result = subprocess.run(
        [*argv, str(render.ROOT / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (0, "")
    bad = subprocess.run([*argv, "-"], input="FROM debian\n", capture_output=True, text=True, check=False)
    assert bad.returncode != 0
    assert "DL3006" in bad.stdout
