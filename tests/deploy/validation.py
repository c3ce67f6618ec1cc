"""Whether Kubernetes would take rendered objects: each to the schemas that know its kind."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.deploy import render, tools

VERSIONS = tuple(f"1.{minor}" for minor in range(25, 38))
PROGRAM = Path(__file__).with_name("validate.py")
SCC = "SecurityContextConstraints"
# Fields of security.openshift.io/v1 by type (openshift/api, security/v1/types.go).
_STRATEGY = {"type": str}
SCC_FIELDS: dict[str, Any] = {
    "apiVersion": str,
    "kind": str,
    "metadata": dict,
    "priority": (int, type(None)),
    "users": list,
    "groups": list,
    "volumes": list,
    "allowPrivilegedContainer": bool,
    "allowPrivilegeEscalation": bool,
    "defaultAllowPrivilegeEscalation": bool,
    "allowHostPID": bool,
    "allowHostIPC": bool,
    "allowHostNetwork": bool,
    "allowHostPorts": bool,
    "allowHostDirVolumePlugin": bool,
    "readOnlyRootFilesystem": bool,
    "allowedCapabilities": list,
    "requiredDropCapabilities": list,
    "defaultAddCapabilities": list,
    "seccompProfiles": list,
    "runAsUser": _STRATEGY,
    "seLinuxContext": _STRATEGY,
    "fsGroup": _STRATEGY,
    "supplementalGroups": _STRATEGY,
}
# OpenShift refuses an object without these, whatever their value.
SCC_REQUIRED = (
    "allowHostDirVolumePlugin",
    "allowHostIPC",
    "allowHostNetwork",
    "allowHostPID",
    "allowHostPorts",
    "allowPrivilegedContainer",
    "allowedCapabilities",
    "defaultAddCapabilities",
    "priority",
    "readOnlyRootFilesystem",
    "requiredDropCapabilities",
    "volumes",
)


def errors(named: Iterable[tuple[str, render.Rendered, Sequence[str]]]) -> list[str]:
    """What is wrong with these objects, each rendering in some versions of Kubernetes; equal ones once."""
    different: dict[str, tuple[str, render.Manifest, Sequence[str]]] = {}
    for name, rendered, versions in named:
        for one in rendered.objects:
            different.setdefault(json.dumps([one, versions], sort_keys=True), (name, one, versions))
    python = tools.environment("validate") / "python"
    request = json.dumps(list(different.values()))
    result = subprocess.run([python, PROGRAM], input=request, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return [result.stderr]
    found: list[str] = json.loads(result.stdout)
    for name, one, _ in different.values():
        found += [f"{name}: {SCC}: {wrong}" for wrong in scc(one)] if one["kind"] == SCC else []
    return found


def scc(one: render.Manifest) -> list[str]:
    """What is wrong with security context constraints, by the table above."""
    wrong = [f"{field} is missing" for field in SCC_REQUIRED if field not in one]
    for field, value in one.items():
        kind = SCC_FIELDS.get(field)
        if kind is None:
            wrong.append(f"{field} is no field")
        elif isinstance(kind, dict):
            if set(value) - {"type", "uid", "seLinuxOptions", "ranges"} or not isinstance(value["type"], str):
                wrong.append(f"{field} is no strategy")
        elif not isinstance(value, kind):
            wrong.append(f"{field} is {value!r}")
    return wrong
