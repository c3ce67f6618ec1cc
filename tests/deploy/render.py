"""The chart and the kustomizations, rendered by the real programs: values in, Kubernetes objects out."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.deploy import tools

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/kubegpu-exporter"
OVERLAYS = ROOT / "deploy/kustomize/overlays"
MONITORING = "monitoring.coreos.com/v1"
RELEASE, NAMESPACE = "kubegpu-exporter", "kubegpu"

Manifest = dict[str, Any]


class RenderError(Exception):
    """What helm or kubectl said."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The objects of one rendering."""

    objects: tuple[Manifest, ...]

    def all(self, kind: str) -> list[Manifest]:
        """The objects of a kind."""
        return [one for one in self.objects if one["kind"] == kind]

    def one(self, kind: str) -> Manifest:
        """The only object of a kind."""
        (found,) = self.all(kind)
        return found

    @property
    def pod(self) -> Manifest:
        """The DaemonSet's pod specification."""
        spec: Manifest = self.one("DaemonSet")["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Manifest:
        """The exporter's container."""
        (found,) = self.pod["containers"]
        container: Manifest = found
        return container


class _Strict(yaml.CSafeLoader):
    """YAML in which a key given twice is an error: the API server takes the last one and says nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if name in seen:
                raise RenderError(f"{name} is given twice, {key.start_mark}")
            seen.add(name)
        return super().construct_mapping(node, deep)


def objects(text: str) -> Rendered:
    """The objects in a stream of YAML documents."""
    return Rendered(tuple(one for one in yaml.load_all(text, _Strict) if one))


def ci() -> list[Path]:
    """The values files that the chart is rendered with, one for each feature."""
    return sorted((CHART / "ci").glob("*-values.yaml"))


def helm(program: Path, *arguments: str | Path) -> str:
    """What helm prints. Raises RenderError."""
    return _run([program, *arguments])


def chart(
    values: Path | None = None,
    sets: Sequence[str] = (),
    *,
    program: Path | None = None,
    apis: Sequence[str] = (MONITORING,),
    version: str = "1.33.0",
    release: str = RELEASE,
    namespace: str = NAMESPACE,
) -> Rendered:
    """The chart, as `helm template` gives it; the newer helm's unless another is given."""
    argv = ["template", release, str(CHART), f"--namespace={namespace}"]
    argv += [f"--kube-version={version}", *(f"--api-versions={api}" for api in apis)]
    argv += [f"--values={values}"] if values else []
    for one in sets:
        argv += ["--set", one]
    # Not kept where the values are a test's own file: another test may have one of that name.
    rendered = _rendered if values is None or CHART in values.parents else _rendered.__wrapped__
    return rendered(program or tools.helms()[1], *argv)


@functools.cache
def _rendered(program: Path, *argv: str) -> Rendered:
    return objects(helm(program, *argv))


def ci_value(name: str) -> Path:
    """The values file of one feature."""
    path = CHART / "ci" / f"{name}-values.yaml"
    if not path.exists():
        raise RenderError(f"{path} is not there")
    return path


@functools.cache
def overlay(name: str) -> Rendered:
    """A kustomize overlay, as `kubectl kustomize` gives it."""
    return objects(_run([tools.kubectl(), "kustomize", OVERLAYS / name]))


def overlays() -> list[str]:
    """The names of the overlays."""
    return sorted(path.name for path in OVERLAYS.iterdir() if (path / "kustomization.yaml").exists())


def everything() -> Iterable[tuple[str, Rendered]]:
    """Every rendering that there is, with a name: the chart with each values file, and each overlay."""
    with ThreadPoolExecutor(4) as pool:
        files = ci()
        rendered = pool.map(chart, files)
        yield from ((f"chart, {file.stem}", one) for file, one in zip(files, rendered, strict=True))
        names = overlays()
        yield from ((f"overlay {n}", one) for n, one in zip(names, pool.map(overlay, names), strict=True))


def _run(argv: Sequence[str | Path]) -> str:
    result = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RenderError(result.stderr + result.stdout)
    return result.stdout
