"""Objects in, what is wrong with them out. Runs in the environment of tools/validate.txt, as a program.

Standard input: JSON list of [name, object, [version of Kubernetes, ...]]. Standard output: JSON list of
errors. Core objects are held to the published schema of each Kubernetes version, in which an unknown field
is an error; objects of the Prometheus Operator to typed models of its API. Those models pass over fields that
they do not know, so each object is also written out again and compared with what went in. A kind that neither
knows is an error too: nothing passes because nobody looked.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

# Kinds that are held to a written table by who calls this (validation.py).
ELSEWHERE = {("security.openshift.io/v1", "SecurityContextConstraints")}


def main() -> int:
    """Check everything; the exit code is 0 even with errors, since they are the answer."""
    objects = json.load(sys.stdin)
    errors = [*core(objects), *operator(objects), *elsewhere(objects)]
    json.dump(errors, sys.stdout)
    return 0


def core(objects: list[Any]) -> Iterator[str]:
    """Errors of objects that Kubernetes itself has."""
    utils = importlib.import_module("kubernetes_validate.utils")
    jsonschema = importlib.import_module("jsonschema")
    referencing = importlib.import_module("referencing")
    bundled = {utils.major_minor(one): one for one in utils.all_versions()}
    for version in sorted({version for _, _, versions in objects for version in versions}):
        if version not in bundled:
            yield f"there is no schema of Kubernetes {version}"
            continue
        folder = f"v{bundled[version]}-local-strict"
        definitions = utils.schema_contents(f"kubernetes-json-schema/{folder}/_definitions.json", version)
        shared = referencing.Resource.from_contents(definitions)
        validators: dict[str, Any] = {}
        mine = [(name, one) for name, one, versions in objects if _api(one) == "core" and version in versions]
        for name, one in mine:
            group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", one["apiVersion"])
            file = f"kubernetes-json-schema/{folder}/{one['kind'].lower()}-{group}.json"
            if file not in validators:
                try:
                    schema = utils.schema_contents(file, version)
                except FileNotFoundError:
                    yield f"{name}: Kubernetes {version} has no {one['apiVersion']} {one['kind']}"
                    continue
                own = referencing.Resource.from_contents(schema)
                registry = shared @ (own @ referencing.Registry())
                validators[file] = jsonschema.validators.Draft202012Validator(schema, registry=registry)
            for error in validators[file].iter_errors(one):
                where = "/".join(map(str, error.absolute_path))
                yield f"{name}: Kubernetes {version}: {one['kind']} {where}: {error.message[:300]}"


def operator(objects: list[Any]) -> Iterator[str]:
    """Errors of objects of the Prometheus Operator."""
    mine = [(name, one) for name, one, _ in objects if _api(one) == "operator"]
    if not mine:
        return  # the models take seconds to load
    models = importlib.import_module("cloudcoil.models.prometheus_operator.v1")
    for name, one in mine:
        model = getattr(models, one["kind"], None)
        if model is None:
            yield f"{name}: the Prometheus Operator has no {one['kind']}"
            continue
        try:
            read = model.model_validate(one)
        except ValueError as error:
            yield f"{name}: {one['kind']}: {error}"
            continue
        written = read.model_dump(by_alias=True, mode="json", exclude_unset=True)
        yield from (f"{name}: {one['kind']}: {path} is no field" for path in _lost(one, written, ""))


def elsewhere(objects: list[Any]) -> Iterator[str]:
    """Objects of other APIs that nobody looks at."""
    for name, one, _ in objects:
        if _api(one) == "elsewhere" and (one["apiVersion"], one["kind"]) not in ELSEWHERE:
            yield f"{name}: {one['apiVersion']} {one['kind']} is not known"


def _api(one: Any) -> str:
    version = one["apiVersion"]
    if version == "monitoring.coreos.com/v1":
        return "operator"
    return "elsewhere" if "openshift.io/" in version else "core"


def _lost(given: Any, kept: Any, path: str) -> Iterator[str]:
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key not in kept:
                yield f"{path}.{key}"
            else:
                yield from _lost(value, kept[key], f"{path}.{key}")
    elif isinstance(given, list) and isinstance(kept, list):
        for number, (one, other) in enumerate(zip(given, kept, strict=False)):
            yield from _lost(one, other, f"{path}[{number}]")


if __name__ == "__main__":
    sys.exit(main())
