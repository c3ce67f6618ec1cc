"""What the chart and the kustomizations take from elsewhere in this repository, written where they need it.

In: `alerts/*.rules.yaml`, `dashboards/*.json`, the exporter's table of settings. Out: copies of rules and
dashboards below the chart, the same rules as PrometheusRule objects for kustomize, and the part of
values.schema.json that knows every setting. `python -m deploy.sync` writes; `--check` only compares, names
what differs, and ends with 1. A copy is never edited and never has anything that its source lacks.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from exporter.settings import ages, reference

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy/helm/kubegpu-exporter"
OPERATOR = ROOT / "deploy/kustomize/overlays/prometheus-operator"
NOTE = "# Written by `python -m deploy.sync`; do not edit.\n"
COPIES = (("alerts", "*.rules.yaml"), ("dashboards", "*.json"))
# Settings that the chart gives by itself, or that a pod cannot use.
NOT_SETTINGS = frozenset(
    {
        "web.listen-address",
        "web.config.file",
        "node-name",
        "kubernetes.enabled",
        "kubernetes.kubeconfig",
        "kubelet.root-dir",
        "path.pod-logs",
        "pause-file",
        "demo.scenario",
        "url",
        "output",
        "mask",
        "config.file",
    }
)
_NUMBERS = ("COUNT", "SHARE", "SIZE", "DURATION")


def wanted() -> dict[Path, str]:
    """Every file that is written here, with its text."""
    files: dict[Path, str] = {}
    for folder, pattern in COPIES:
        sources = sorted((ROOT / folder).glob(pattern))
        files |= {CHART / "files" / folder / source.name: source.read_text() for source in sources}
        names = [source.name for source in sources]
        files[CHART / "files" / folder / "kustomization.yaml"] = _config_maps(folder, names)
    rules = sorted((ROOT / "alerts").glob("*.rules.yaml"))
    files[OPERATOR / "rules.yaml"] = NOTE + "---\n".join(_rule(source) for source in rules)
    schema = CHART / "values.schema.json"
    files[schema] = _schema(schema.read_text())
    return files


def _config_maps(folder: str, names: Iterable[str]) -> str:
    """A kustomization with the copies as ConfigMaps: one for all rules, one for each dashboard."""
    generators: list[Mapping[str, Any]]
    if folder == "alerts":
        generators = [{"name": "kubegpu-exporter-rules", "files": list(names)}]
    else:
        generators = [
            {"name": f"kubegpu-exporter-dashboard-{Path(name).stem}", "files": [name]} for name in names
        ]
    lines = [NOTE.rstrip(), "apiVersion: kustomize.config.k8s.io/v1beta1", "kind: Kustomization"]
    lines += ["generatorOptions:", "  disableNameSuffixHash: true"]
    if folder == "dashboards":
        lines += ["  labels:", '    grafana_dashboard: "1"', "  annotations:", "    grafana_folder: GPU"]
    lines.append("configMapGenerator:")
    for one in generators:
        lines += [f"  - name: {one['name']}", "    files:", *(f"      - {name}" for name in one["files"])]
    return "\n".join(lines) + "\n"


def _rule(source: Path) -> str:
    name = source.name.removesuffix(".rules.yaml")
    head = (
        "apiVersion: monitoring.coreos.com/v1\n"
        "kind: PrometheusRule\n"
        f"metadata:\n  name: kubegpu-exporter-{name}\n"
        "spec:\n"
    )
    return head + textwrap.indent(source.read_text(), "  ")


def _schema(text: str) -> str:
    """The chart's schema with the settings as they are now."""
    schema = json.loads(text)
    settings = schema["properties"]["settings"]
    settings["properties"] = _settings()
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _settings() -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for setting in reference():
        key = setting.flag.removeprefix("--")
        if key not in NOT_SETTINGS:
            properties[key] = {"description": setting.meaning, **_form(setting.metavar)}
    age = {"description": "How long a finding of this kind must hold before it counts.", **_form("DURATION")}
    return properties | {setting.flag.removeprefix("--"): age for setting in ages()}


def _form(metavar: str) -> dict[str, Any]:
    """What values.yaml may hold: YAML's own numbers and booleans are taken where they mean the same."""
    if metavar in {"on|off", "true|false"}:
        return {"enum": [*metavar.split("|"), True, False]}
    if "|" in metavar and re.fullmatch(r"[a-z|]+", metavar):
        return {"enum": metavar.split("|")}
    return {"type": ["string", "number"] if metavar in _NUMBERS else "string"}


def main(arguments: list[str]) -> int:
    """Write, or with --check compare; returns the exit code."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python -m deploy.sync [--check]\n")
        return 2
    files = wanted()
    strangers = {
        path for folder, _ in COPIES for path in (CHART / "files" / folder).glob("*") if path not in files
    }
    differing = {path for path, text in files.items() if not path.exists() or path.read_text() != text}
    if arguments:
        for path in sorted(differing | strangers):
            sys.stderr.write(f"{path.relative_to(ROOT)}: run `python -m deploy.sync`\n")
        return 1 if differing | strangers else 0
    for path in sorted(differing):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path])
    for path in strangers:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
