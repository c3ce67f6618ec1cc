"""The kustomizations: the same objects as the chart's, for the values that each stands for."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from exporter import __version__
from tests.deploy import render

# Each overlay with the values that make the chart the same.
OFF = ("monitor.enabled=false", "rules.enabled=false")
NEITHER = (*OFF, "dashboards.enabled=false")
SAME: dict[str, tuple[str, ...]] = {
    "prometheus-operator": ("platform=gpu-operator",),
    "plain-prometheus": ("platform=gpu-operator", *OFF),
    "microk8s": (
        "platform=microk8s",
        "monitor.enabled=false",
        "rules.enabled=false",
        "dashboards.enabled=false",
    ),
    "gke": ("platform=gke", *NEITHER),
    "openshift": (
        "platform=openshift",
        "monitor.enabled=false",
        "rules.enabled=false",
        "dashboards.enabled=false",
    ),
}
HELMS_OWN = ("helm.sh/chart", "app.kubernetes.io/managed-by", "helm.sh/resource-policy")
ONLY_HELM = {"Pod"}  # of `helm test`


def comparable(found: render.Rendered) -> dict[tuple[str, str], Any]:
    """The objects by kind and name, without what says that Helm made them."""
    objects = {}
    for one in copy.deepcopy(found.objects):
        if one["kind"] in ONLY_HELM:
            continue
        _plain(one["metadata"])
        if one["kind"] == "DaemonSet":
            _plain(one["spec"]["template"]["metadata"])
        if one["kind"] == "ConfigMap":
            one["data"] = {name: text.rstrip("\n") for name, text in one["data"].items()}
        objects[one["kind"], one["metadata"]["name"]] = one
    return objects


def _plain(metadata: dict[str, Any]) -> None:
    for part in ("labels", "annotations"):
        kept = {k: v for k, v in metadata.get(part, {}).items() if k not in HELMS_OWN}
        metadata[part] = kept


@pytest.mark.parametrize("name", SAME)
def test_an_overlay_is_the_chart(name: str) -> None:
    """Every object of the overlay is the chart's, to the last field, and none is missing."""
    ours = comparable(render.overlay(name))
    rules = ours.pop(("ConfigMap", "kubegpu-exporter-rules"), None)
    assert (rules is not None) == (name == "plain-prometheus")
    theirs = comparable(render.chart(None, (*SAME[name], "namespace.create=true")))
    assert set(ours) == set(theirs)
    for key, one in ours.items():
        assert one == theirs[key], key


def test_every_overlay_is_compared() -> None:
    """An overlay that is added is compared with the chart, too."""
    assert render.overlays() == sorted(SAME)


def test_the_version_is_the_packages() -> None:
    """Labels and image carry the package's version."""
    base = yaml.safe_load((render.OVERLAYS.parent / "base/kustomization.yaml").read_text())
    assert base["images"][0]["newTag"] == __version__
    for name in SAME:
        found = render.overlay(name)
        assert found.container["image"] == f"ghcr.io/kubegpu/kubegpu-exporter:{__version__}"
        for one in found.objects:
            assert one["metadata"]["labels"]["app.kubernetes.io/version"] == __version__, one["metadata"]
