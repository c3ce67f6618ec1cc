"""What the manifests tell Prometheus and Grafana: the scrape, the rules and the dashboards."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import sync
from tests.deploy import render, tools
from tests.monitoring.servers import Prometheus, prometheus, wait_for
from tests.rig.agent import Agent

PLAIN = render.OVERLAYS / "plain-prometheus/prometheus.yaml"
LIMIT = 2**20  # a ConfigMap, and a Secret that holds a release
ANNOTATION_LIMIT = 2**18  # all annotations of an object, one of which `kubectl apply` fills with the object

# ---------------------------------------------------------------- the scrape


def test_the_scrape_contract() -> None:
    """Both monitors, of chart and kustomize, keep our labels, drop the target's and add the node."""
    pod = render.chart().one("PodMonitor")["spec"]
    service = render.chart(render.ci_value("service-monitor")).one("ServiceMonitor")["spec"]
    shipped = render.overlay("prometheus-operator").one("PodMonitor")["spec"]
    for spec, key in ((pod, "podMetricsEndpoints"), (service, "endpoints"), (shipped, "podMetricsEndpoints")):
        (endpoint,) = spec[key]
        assert endpoint["honorLabels"] is True
        node, dropped = endpoint["relabelings"][:2]
        assert node == {
            "action": "replace",
            "sourceLabels": ["__meta_kubernetes_pod_node_name"],
            "targetLabel": "node",
        }
        assert dropped == {"action": "labeldrop", "regex": "pod|container|namespace|service|endpoint"}
        assert spec["sampleLimit"] == 20000
        assert spec["jobLabel"] == "app.kubernetes.io/part-of"


@pytest.mark.parametrize("name", ["default", "service-monitor", "names", "settings"])
def test_a_monitor_finds_the_pods(name: str) -> None:
    """Selector, namespace, port and path of the monitor are those of the pod or Service that it looks for."""
    found = render.chart(render.ci_value(name))
    (monitor,) = found.all("PodMonitor") + found.all("ServiceMonitor")
    of_pods = monitor["kind"] == "PodMonitor"
    template = found.one("DaemonSet")["spec"]["template"]["metadata"]
    target = template if of_pods else found.one("Service")["metadata"]
    spec = monitor["spec"]
    assert spec["selector"]["matchLabels"].items() <= target["labels"].items()
    assert spec["namespaceSelector"]["matchNames"] == [found.one("DaemonSet")["metadata"]["namespace"]]
    assert target["labels"][spec["jobLabel"]] == "kubegpu-exporter"
    (endpoint,) = spec["podMetricsEndpoints" if of_pods else "endpoints"]
    ports = found.container["ports"] if of_pods else found.one("Service")["spec"]["ports"]
    assert endpoint["port"] in {one["name"] for one in ports}
    path = next((a for a in found.container["args"] if a.startswith("--web.telemetry-path=")), "=/metrics")
    assert endpoint["path"] == path.split("=")[1]


def test_a_service_monitors_service_is_there() -> None:
    """A ServiceMonitor brings the Service that it needs, even where the Service alone is off."""
    found = render.chart(render.ci_value("service-monitor"))
    assert found.one("Service")["spec"]["clusterIP"] == "None"
    assert found.one("Service")["spec"]["selector"].items() <= (
        found.one("DaemonSet")["spec"]["template"]["metadata"]["labels"].items()
    )
    assert not render.chart(render.ci_value("no-monitoring")).all("Service")


def _of_the_operator(monitor: render.Manifest) -> dict[str, Any]:
    """The scrape configuration that the Prometheus Operator makes of a PodMonitor, as far as labels go."""
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]

    def label(name: str) -> str:
        return "__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", name)

    relabel: list[dict[str, Any]] = [
        {"source_labels": [label(key)], "regex": value, "action": "keep"}
        for key, value in monitor["spec"]["selector"]["matchLabels"].items()
    ]
    relabel += [
        {
            "source_labels": ["__meta_kubernetes_pod_container_port_name"],
            "regex": endpoint["port"],
            "action": "keep",
        },
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
        {"target_label": "job", "replacement": "namespace/name"},
        {"source_labels": [label(monitor["spec"]["jobLabel"])], "target_label": "job", "regex": "(.+)"},
        {"target_label": "endpoint", "replacement": endpoint["port"]},
    ]
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    relabel += [{names.get(k, k): v for k, v in one.items()} for one in endpoint["relabelings"]]
    return {
        "job_name": "podMonitor/kubegpu/kubegpu-exporter/0",
        "honor_labels": endpoint["honorLabels"],
        "sample_limit": monitor["spec"]["sampleLimit"],
        "relabel_configs": relabel,
    }


@pytest.fixture(name="scraped", scope="module")
def _scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the demo twice: as the PodMonitor and as the plain configuration say."""
    folder = tmp_path_factory.mktemp("scraped")
    monitor = _of_the_operator(render.chart().one("PodMonitor"))
    plain = yaml.safe_load(PLAIN.read_text())["scrape_configs"][0]
    plain.pop("kubernetes_sd_configs")
    plain |= {"job_name": "plain"}  # a name of its own, to tell the two apart
    labels = render.chart().one("DaemonSet")["spec"]["template"]["metadata"]["labels"]
    meta = {f"__meta_kubernetes_pod_label_{re.sub(r'[^a-z]', '_', k)}": v for k, v in labels.items()} | {
        "__meta_kubernetes_namespace": "kubegpu",
        "__meta_kubernetes_pod_name": "kubegpu-exporter-x",
        "__meta_kubernetes_pod_node_name": "node-7",
        "__meta_kubernetes_pod_container_name": "exporter",
        "__meta_kubernetes_pod_container_port_name": "metrics",
    }
    agent = Agent(["demo", "--interval=1s"], log=folder / "agent.log")
    try:
        targets = folder / "targets.json"
        targets.write_text(json.dumps([{"targets": [f"127.0.0.1:{agent.port}"], "labels": meta}]))
        each = {
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "file_sd_configs": [{"files": [str(targets)]}],
        }
        config = {"scrape_configs": [{**one, **each} for one in (monitor, plain)]}
        with prometheus(folder, config) as server:
            wait_for("scrapes", lambda: len(server.query("kubegpu_gpu_allocated")) >= 16, 60)
            yield server
    finally:
        agent.stop()


@pytest.mark.parametrize("job", ["kubegpu-exporter", "plain"])
@pytest.mark.timeout(120)
def test_labels_survive_the_shipped_scrape(scraped: Prometheus, job: str) -> None:
    """A real Prometheus keeps the workload's labels, gives free devices no pod, and knows the node."""
    busy = scraped.query(f'kubegpu_gpu_memory_used_bytes{{job="{job}",pod!=""}}')
    free = scraped.query(f'kubegpu_gpu_memory_used_bytes{{job="{job}",pod=""}}')
    assert busy
    assert free
    assert all(labels["node"] == "node-7" for labels, _ in busy + free)
    assert not [labels for labels, _ in busy if labels["pod"] == "kubegpu-exporter-x"]
    assert not scraped.query(f'{{job="{job}",exported_pod!=""}}')
    ((info, _),) = scraped.query(f'kubegpu_exporter_build_info{{job="{job}"}}')
    assert not {"pod", "namespace", "container", "endpoint", "service"} & set(info)


def test_promtool_takes_the_plain_configuration(tmp_path: Path) -> None:
    """The configuration for a Prometheus without operator is one, with the rules that the overlay mounts.

    Debian's promtool is built without Kubernetes: that one part is compared with what it must be.
    """
    config = yaml.safe_load(PLAIN.read_text())
    assert config["rule_files"] == ["/etc/prometheus/kubegpu-exporter/*.rules.yaml"]
    found = config["scrape_configs"][0].pop("kubernetes_sd_configs")
    assert found == [{"role": "pod", "namespaces": {"names": [render.NAMESPACE]}}]
    (rules,) = (
        one
        for one in render.overlay("plain-prometheus").all("ConfigMap")
        if one["metadata"]["name"] == "kubegpu-exporter-rules"
    )
    for name, text in rules["data"].items():
        (tmp_path / name).write_text(text)
    config["rule_files"] = [str(tmp_path / "*.rules.yaml")]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    argv = ["promtool", "check", "config", str(tmp_path / "prometheus.yaml")]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert set(rules["data"]) == {source.name for source in (render.ROOT / "alerts").glob("*.rules.yaml")}
    assert result.stdout.count("rules found") == len(rules["data"])


# ---------------------------------------------------------------- rules and dashboards


def test_copies_are_in_step(capsys: pytest.CaptureFixture[str]) -> None:
    """Rules, dashboards and the settings in the schema are those of the rest of the repository."""
    assert sync.main(["--check"]) == 0, capsys.readouterr().err


def test_rules_arrive_as_they_are() -> None:
    """Each rules file becomes one PrometheusRule, in chart and kustomize; Prometheus' own templates stay."""
    sources = {
        path.name.removesuffix(".rules.yaml"): yaml.safe_load(path.read_text())
        for path in (render.ROOT / "alerts").glob("*.rules.yaml")
    }
    assert "{{ $labels." in json.dumps(sources)
    for found in (render.chart(), render.overlay("prometheus-operator")):
        rules = {
            one["metadata"]["name"].removeprefix("kubegpu-exporter-"): one["spec"]
            for one in found.all("PrometheusRule")
        }
        assert rules == sources


def test_dashboards_arrive_as_they_are() -> None:
    """Each dashboard is a ConfigMap that Grafana's sidecar takes, byte for byte, and small enough for one."""
    sources = {path.name: path.read_text() for path in (render.ROOT / "dashboards").glob("*.json")}
    assert sources
    for found in (render.chart(), render.overlay("prometheus-operator"), render.overlay("plain-prometheus")):
        maps = [one for one in found.all("ConfigMap") if "-dashboard-" in one["metadata"]["name"]]
        data = {name: text for one in maps for name, text in one["data"].items()}
        assert {name: text.rstrip("\n") for name, text in data.items()} == {
            name: text.rstrip("\n") for name, text in sources.items()
        }
        for one in maps:
            assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
            assert one["metadata"]["annotations"]["grafana_folder"] == "GPU"
            assert len(json.dumps(one)) < ANNOTATION_LIMIT, "too big for kubectl apply"


def test_a_release_fits_into_its_secret() -> None:
    """Helm keeps chart and manifest of a release in one Secret: both together must fit."""
    files = [path for path in render.CHART.rglob("*") if path.is_file() and "ci" not in path.parts]
    chart = {str(path): base64.b64encode(path.read_bytes()).decode() for path in files}
    manifest = [*render.chart().objects]
    release = gzip.compress(json.dumps([chart, manifest]).encode(), 9)
    assert len(base64.b64encode(base64.b64encode(release))) < LIMIT * 0.8


@pytest.mark.parametrize(
    ("sets", "apis", "kinds"),
    [
        ((), (), set()),
        ((), (render.MONITORING,), {"PodMonitor", "PrometheusRule"}),
        (("monitor.enabled=false",), (render.MONITORING,), {"PrometheusRule"}),
        (("monitor.enabled=true",), (), {"PodMonitor"}),
        (("rules.enabled=true",), (), {"PrometheusRule"}),
    ],
)
def test_auto_is_where_the_operator_is(sets: tuple[str, ...], apis: tuple[str, ...], kinds: set[str]) -> None:
    """Objects of the operator are made where the cluster knows them, or where they are asked for."""
    found = render.chart(None, sets, apis=apis)
    assert {one["kind"] for one in found.objects if one["apiVersion"] == render.MONITORING} == kinds


def test_monitoring_objects_can_be_elsewhere() -> None:
    """Monitor, rules and dashboards go where the operator looks, with the label that it selects by."""
    found = render.chart(render.ci_value("service-monitor"))
    for kind in ("ServiceMonitor", "PrometheusRule"):
        for one in found.all(kind):
            assert one["metadata"]["namespace"] == "monitoring"
            assert one["metadata"]["labels"]["release"] == "prometheus"


# ---------------------------------------------------------------- helm test


def reach(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The script of the test pod, as the pod runs it."""
    (container,) = render.chart().one("Pod")["spec"]["containers"]
    script = container["args"][2]
    argv = ["python3", *container["args"][:2], script, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def test_helm_test_asks_every_exporter(tmp_path: Path) -> None:
    """The test pod succeeds where exporters answer, says what they miss, and fails where none is there."""
    (container,) = render.chart().one("Pod")["spec"]["containers"]
    assert container["args"][3:] == ["http", "kubegpu-exporter.kubegpu.svc", "9836", "/metrics"]
    agent = Agent(["demo", "--interval=1s"], log=tmp_path / "agent.log")
    try:
        good = reach("http", "127.0.0.1", str(agent.port), "/metrics")
        assert good.returncode == 0, good.stderr + good.stdout
        assert "answers; sources missing: none" in good.stdout
        other = reach("http", "127.0.0.1", str(agent.port), "/")
        assert other.returncode == 1
        assert "is no kubegpu-exporter" in other.stdout
    finally:
        agent.stop()
    gone = reach("http", "127.0.0.1", str(agent.port), "/metrics")
    assert gone.returncode == 1
    nobody = reach("http", "nobody.invalid", "9836", "/metrics")
    assert nobody.returncode == 1
    assert "no exporter is ready" in nobody.stdout


# ---------------------------------------------------------------- notes


def notes(tmp_path: Path, *sets: str, apis: tuple[str, ...] = ()) -> str:
    """What helm prints after an installation. `helm template` does not print it, so the notes become an
    object in a copy of the chart; both helms must agree.
    """
    copy = tmp_path / "chart"
    subprocess.run(["cp", "--recursive", str(render.CHART), str(copy)], check=True)
    text = (copy / "templates/NOTES.txt").read_text()
    (copy / "templates/_notes.tpl").write_text(f'{{{{- define "notes" }}}}{text}{{{{ end }}}}')
    (copy / "templates/zz.yaml").write_text('kind: Notes\ntext: {{ include "notes" . | toJson }}\n')
    said = set()
    for program in tools.helms():
        argv: list[str | Path] = [
            "template",
            "kubegpu",
            copy,
            "--namespace=gpu",
            "--show-only=templates/zz.yaml",
        ]
        argv += [f"--api-versions={api}" for api in apis]
        for one in sets:
            argv += ["--set", one]
        said.add(render.objects(render.helm(program, *argv)).one("Notes")["text"])
    (found,) = said
    return str(found)


@pytest.mark.parametrize(
    ("sets", "apis", "said", "not_said"),
    [
        (("runtimeClassName=nvidia",), (), "WARNING: nothing scrapes this yet", "no runtime class"),
        ((), (render.MONITORING,), "WARNING: no runtime class", "nothing scrapes"),
        (("platform=gke",), (render.MONITORING,), "label release:", "WARNING"),
        (("hostPID=false",), (), "WARNING: hostPID is off", "label release:"),
        (
            ("monitor.enabled=true",),
            (),
            "does not have the API",
            "nothing scrapes",
        ),
        (("monitor.enabled=false", "rules.enabled=false"), (), "exec daemonset/", "monitoring.coreos.com"),
        (
            ("tls.secretName=x",),
            (render.MONITORING,),
            "does not verify the exporter",
            "refused",
        ),
        (
            ("tls.secretName=x", "tls.clientCA=true"),
            (render.MONITORING,),
            "shows none, so it will be refused",
            "nothing scrapes",
        ),
        (
            ("monitor.additionalLabels.release=x", "platform=k3s"),
            (render.MONITORING,),
            "kubectl label node NODE",
            "kube-prometheus-stack",
        ),
        (("gpuNodes.enabled=false",), (), "describe --url=http://localhost:9836", "kubectl label node"),
    ],
)
def test_notes(
    tmp_path: Path, sets: tuple[str, ...], apis: tuple[str, ...], said: str, not_said: str
) -> None:
    """The notes warn of what will not work, and only then."""
    text = notes(tmp_path, *sets, apis=apis)
    assert said in text
    assert not_said not in text
