"""The chart: what each of its values does, in both helms, and what it refuses."""

from __future__ import annotations

import itertools
import re
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter import __version__
from exporter.settings import Settings, parse
from tests.deploy import render, tools

CI = {path.stem.removesuffix("-values"): path for path in render.ci()}
EVERY = pytest.mark.parametrize("name", CI)
# Keys of Kubernetes' own forms inside a value, which the comment above the value is about.
PLAIN = frozenset(
    {
        "requests",
        "limits",
        "cpu",
        "memory",
        "type",
        "rollingUpdate",
        "maxUnavailable",
        "matchLabels",
        "grafana_dashboard",
        "grafana_folder",
    }
)
WEB_CONFIG = "/etc/kubegpu-exporter/web/web-config.yml"
VERSIONS = ("1.25.0", "1.29.0", "1.30.0", "1.37.0")


def chart(name: str = "default", *sets: str, **more: Any) -> render.Rendered:
    return render.chart(render.ci_value(name), sets, **more)


def settings(found: render.Rendered) -> Settings:
    """What the exporter itself makes of a pod's arguments and environment."""
    environ = {one["name"]: one.get("value", "node-1") for one in found.container["env"]}
    with tempfile.TemporaryDirectory() as folder:
        # It reads this file while it reads its arguments: here it is what the ConfigMap has.
        file = Path(folder, "web-config.yml")
        file.write_text("".join(one["data"].get(file.name, "") for one in found.all("ConfigMap")))
        argv = [arg.replace(WEB_CONFIG, str(file)) for arg in found.container["args"]]
        return parse(argv, environ, "pod-name")[1]


# ---------------------------------------------------------------- helm


@pytest.mark.parametrize("helm", [0, 1], ids=["helm3", "helm4"])
def test_lint(helm: int) -> None:
    """`helm lint --strict` has nothing to say; with the values of each feature: check_everything.py."""
    render.helm(tools.helms()[helm], "lint", "--strict", "--quiet", render.CHART)


@pytest.mark.parametrize("name", ["default", "service-monitor", "settings", "tls-clients", "names"])
def test_both_helms_give_the_same(name: str) -> None:
    """Helm 3 and helm 4 render the same objects; for every feature and cluster: check_everything.py."""
    three, four = tools.helms()
    assert chart(name, program=three) == chart(name, program=four)


def test_the_helms_are_of_two_generations() -> None:
    """The two programs are what this file calls them."""
    said = [render.helm(program, "version", "--short") for program in tools.helms()]
    assert [text.split(".")[0] for text in said] == ["v3", "v4"]


def test_the_cluster_must_be_new_enough() -> None:
    """A cluster before 1.25 is refused, since nothing was checked there."""
    with pytest.raises(render.RenderError, match="kubeVersion"):
        render.chart(version="1.24.0")


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("sets", "named"),
    [
        ("platfrom=gke", "platfrom"),
        ("platform=gkee", "platform"),
        ("profile=root", "profile"),
        ("kubeletRootDir=microk9s", "kubeletRootDir"),
        ("kubeletRootDir=var/lib/kubelet", "kubeletRootDir"),
        ("gpuAccess.mode=magic", "mode"),
        ("gpuAccess.libary=/x", "libary"),
        ("image.tagg=1", "tagg"),
        ("image.digest=sha256:1", "digest"),
        ("port=0", "port"),
        ("hostPID=maybe", "hostPID"),
        ("monitor.kind=Monitor", "kind"),
        ("monitor.interval=soon", "interval"),
        ("monitor.honorLabels=false", "honorLabels"),
        ("settings.intervall=30s", "intervall"),
        ("settings.web\\.listen-address=:1", "web.listen-address"),
        ("settings.rules\\.idle_allocation\\.no_clients\\.age=1h", "no_clients"),
        ("settings.log\\.level=loud", "level"),
        ("probes.liveness.period=3", "period"),
        ("resources.limit.cpu=1", "limit"),
        ("tls.minVersion=TLS11", "minVersion"),
        ("networkPolicy.ports=1", "ports"),
        ("openshift.scc.enabled=true", "enabled"),
        ("serviceAccount.names=x", "names"),
        ("tests.enable=false", "enable"),
        ("extraArgs={interval=3}", "extraArgs"),
    ],
)
def test_the_schema_refuses(sets: str, named: str) -> None:
    """A key that is not there, and a value that cannot be, are named before anything is installed."""
    with pytest.raises(render.RenderError, match=re.escape(named)) as refused:
        render.chart(None, (sets,))
    assert "schema" in str(refused.value)


def test_the_schema_refuses_in_helm_3_too() -> None:
    """The older helm reads the schema as the newer one does."""
    with pytest.raises(render.RenderError, match="platfrom"):
        render.chart(None, ("platfrom=gke",), program=tools.helms()[0])


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("platform=gke", "profile=two-capabilities"), "set profile=privileged"),
        (("gpuAccess.mode=host-library",), "gpuAccess.libraryDir: must be set"),
        (("tls.clientCA=true",), "tls.clientCA: needs tls.secretName"),
    ],
)
def test_what_cannot_work_is_refused(sets: tuple[str, ...], said: str) -> None:
    """A combination that the node would refuse later is refused with the remedy."""
    with pytest.raises(render.RenderError, match=said):
        render.chart(None, sets)


def test_every_value_is_in_the_schema_and_has_a_comment() -> None:
    """values.yaml and the schema know the same keys, and a comment stands above each key."""
    text = (render.CHART / "values.yaml").read_text()
    schema = yaml.safe_load((render.CHART / "values.schema.json").read_text())
    assert _keys(yaml.safe_load(text), schema) == []
    lines = text.splitlines()
    bare = []
    for before, line in itertools.pairwise(lines):
        key = re.fullmatch(r" *([A-Za-z]\w*):.*", line)
        if key and key[1] not in PLAIN and not before.lstrip().startswith("#"):
            bare.append(line)
    assert bare == []


def _keys(values: Any, schema: Any, path: str = "") -> list[str]:
    """Where values and schema differ in the keys that they have."""
    properties = schema.get("properties")
    if not isinstance(values, dict) or properties is None or path == ".settings":
        return []
    differ = [f"{path}.{key}" for key in set(values) ^ set(properties)]
    if path in (".seLinuxOptions", ".updateStrategy.rollingUpdate"):
        return []
    return differ + [
        bad
        for key in set(values) & set(properties)
        for bad in _keys(values[key], properties[key], f"{path}.{key}")
    ]


# ---------------------------------------------------------------- the exporter's side


@EVERY
def test_arguments_are_the_exporters_own(name: str) -> None:
    """The exporter takes the pod's arguments and environment, and they agree with what is mounted."""
    found = chart(name)
    pod = found.pod
    got = settings(found)
    mounts = {one["mountPath"]: one for one in pod["containers"][0]["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    socket = mounts[str(got.kubelet.socket.parent)]
    assert socket["readOnly"]
    assert volumes[socket["name"]]["hostPath"]["path"] == str(got.kubelet.socket.parent)
    assert got.node_name == "node-1"
    (port,) = pod["containers"][0]["ports"]
    assert got.web.listen_address.port == port["containerPort"]
    assert got.kubernetes.enabled == pod["automountServiceAccountToken"]
    assert got.pause_file is not None
    assert str(got.pause_file.parent) in mounts
    if got.nvml.library:
        assert str(Path(got.nvml.library).parent) in mounts
    if f"--web.config.file={WEB_CONFIG}" in found.container["args"]:
        assert str(Path(WEB_CONFIG).parent) in mounts
    if "no-api" not in name:
        assert mounts[str(got.path.pod_logs)]["readOnly"]


def test_settings_arrive_as_they_were_meant() -> None:
    """YAML's own booleans and numbers become what the flags take."""
    got = settings(chart("settings"))
    assert got.web.listen_address.port == 9999
    assert got.interval == 30
    assert not got.collector.telemetry
    assert got.collector.telemetry_extended
    assert got.limits.process_series == 1_000
    assert got.rules.orphaned_memory.bytes == 2_000_000_000
    assert got.expected_gpus == 8
    assert list(got.metrics.deny) == ["kubegpu_process_*", "kubegpu_device_holders"]


@pytest.mark.parametrize(
    ("name", "root"),
    [
        ("default", "/var/lib/kubelet"),
        ("microk8s", "/var/snap/microk8s/common/var/lib/kubelet"),
        ("k3s", "/var/lib/kubelet"),
        ("k0s", "/var/lib/k0s/kubelet"),
        ("rke2", "/var/lib/kubelet"),
        ("gke", "/var/lib/kubelet"),
        ("openshift", "/var/lib/kubelet"),
        ("gpu-operator", "/var/lib/kubelet"),
        ("kubelet-path", "/data/kubelet"),
        ("kubelet-preset", "/var/lib/k0s/kubelet"),
    ],
)
def test_kubelet_directories(name: str, root: str) -> None:
    """Each platform's directory, a path, and another platform's directory by its name."""
    assert str(settings(chart(name)).kubelet.socket) == f"{root}/pod-resources/kubelet.sock"


@pytest.mark.parametrize(
    ("name", "runtime_class", "visible", "annotation"),
    [
        ("default", None, "all", ""),
        ("microk8s", "nvidia", "all", ""),
        ("k3s", "nvidia", "all", ""),
        ("k0s", "nvidia", "all", ""),
        ("rke2", "nvidia", "all", ""),
        ("openshift", "nvidia", "all", ""),
        ("gpu-operator", "nvidia", "all", ""),
        ("gke", None, "void", ""),
        ("host-library", None, "void", ""),
        ("volume-mounts", "nvidia", "/var/run/nvidia-container-devices", ""),
        ("cdi", None, "void", "cdi.k8s.io/kubegpu-exporter"),
        ("nri", None, "void", "nvidia.cdi.k8s.io/container.exporter"),
    ],
)
def test_ways_to_the_gpu(name: str, runtime_class: str | None, visible: str, annotation: str) -> None:
    """Runtime class, environment and annotation of each way; none of them requests a GPU."""
    found = chart(name)
    assert found.pod.get("runtimeClassName") == runtime_class
    env = {one["name"]: one.get("value") for one in found.container["env"]}
    assert env["NVIDIA_VISIBLE_DEVICES"] == visible
    assert env["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    annotations = found.one("DaemonSet")["spec"]["template"]["metadata"].get("annotations", {})
    asked = {key for key, value in annotations.items() if value == "management.nvidia.com/gpu=all"}
    assert asked == ({annotation} if annotation else set())
    mounted = {one["mountPath"] for one in found.container["volumeMounts"]}
    assert ("/var/run/nvidia-container-devices/all" in mounted) == (name == "volume-mounts")


def test_no_runtime_class_can_be_asked_for() -> None:
    """`none` takes the platform's runtime class away."""
    assert "runtimeClassName" not in chart("gpu-operator", "runtimeClassName=none").pod


@EVERY
def test_what_every_pod_has(name: str) -> None:
    """No GPU and no CPU limit, a memory limit, a read-only root, and no service links."""
    pod = chart(name).pod
    (container,) = pod["containers"]
    assert not [key for part in container["resources"].values() for key in part if "/" in key]
    assert "cpu" not in container["resources"]["limits"]
    assert {"cpu", "memory"} <= set(container["resources"]["requests"])
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["enableServiceLinks"] is False
    assert "hostNetwork" not in pod
    assert "hostIPC" not in pod
    assert "resourceClaims" not in pod


def test_the_pod_outlives_what_it_watches() -> None:
    """Critical priority, tolerance of GPU taints, and an update of a tenth of the nodes at a time."""
    found = chart()
    assert found.pod["priorityClassName"] == "system-node-critical"
    assert found.pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    update = found.one("DaemonSet")["spec"]["updateStrategy"]
    assert update == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}


# ---------------------------------------------------------------- nodes


def terms(pod: render.Manifest) -> list[list[dict[str, Any]]]:
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [term["matchExpressions"] for term in required["nodeSelectorTerms"]]


def matches(pod: render.Manifest, labels: dict[str, str]) -> bool:
    """Whether a node with these labels gets the pod, as the scheduler decides it."""

    def holds(one: dict[str, Any]) -> bool:
        value = labels.get(one["key"])
        match one["operator"]:
            case "In":
                return value in one["values"]
            case "NotIn":
                return value not in one["values"]
            case "Exists":
                return value is not None
            case other:
                raise AssertionError(other)

    return any(all(map(holds, term)) for term in terms(pod))


@pytest.mark.parametrize(
    ("labels", "runs"),
    [
        ({}, False),
        ({"nvidia.com/gpu.present": "true"}, True),
        ({"feature.node.kubernetes.io/pci-10de.present": "true"}, True),
        ({"feature.node.kubernetes.io/pci-0302_10de.present": "true"}, True),
        ({"cloud.google.com/gke-accelerator": "nvidia-l4"}, True),
        ({"k8s.amazonaws.com/accelerator": "nvidia-tesla-t4"}, True),
        ({"karpenter.k8s.aws/instance-gpu-manufacturer": "amd"}, False),
        ({"kubernetes.azure.com/accelerator": "nvidia"}, True),
        ({"nvidia.com/gpu.deploy.kubegpu-exporter": "false"}, False),
        ({"nvidia.com/gpu.deploy.kubegpu-exporter": "true"}, False),
    ],
)
def test_nodes_that_get_a_pod(labels: dict[str, str], runs: bool) -> None:
    """Any label of a GPU is enough; a label of another kind, or none, is not."""
    assert matches(chart().pod, labels) is runs


@pytest.mark.parametrize(
    ("labels", "runs"),
    [
        ({"nvidia.com/gpu.deploy.kubegpu-exporter": "false"}, False),
        ({"nvidia.com/gpu.deploy.kubegpu-exporter": "paused-for-driver-upgrade"}, False),
        ({"nvidia.com/gpu.deploy.client": "paused-for-mig-change"}, False),
        ({"nvidia.com/gpu.deploy.client": "true"}, True),
        ({"nvidia.com/gpu.deploy.device-plugin": "paused-for-driver-upgrade"}, False),
        ({"nvidia.com/gpu.deploy.device-plugin": "false"}, True),
    ],
)
def test_nodes_that_are_being_worked_on(labels: dict[str, str], runs: bool) -> None:
    """The pod leaves for a driver or MIG change; another operand that is off is not its business."""
    for label in ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present"):
        assert matches(chart().pod, {label: "true", **labels}) is runs


def test_nodes_of_ones_own() -> None:
    """Without GPU labels the pod goes everywhere; an affinity of one's own stands alone."""
    assert "affinity" not in chart("everywhere").pod
    assert matches(chart("nodes").pod, {})
    assert not matches(chart("nodes").pod, {"nvidia.com/gpu.deploy.client": "paused-for-mig-change"})
    assert chart("affinity").pod["affinity"] == yaml.safe_load(CI["affinity"].read_text())["affinity"]


# ---------------------------------------------------------------- access


@EVERY
def test_the_role_grants_two_things(name: str) -> None:
    """List pods and get nodes, for the exporter's service account; without the API nothing, and no token."""
    found = chart(name)
    if not found.pod["automountServiceAccountToken"]:
        assert not found.all("ClusterRole") + found.all("ClusterRoleBinding")
        return
    assert found.one("ClusterRole")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    ]
    binding = found.one("ClusterRoleBinding")
    assert binding["roleRef"]["name"] == found.one("ClusterRole")["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert subject["name"] == found.pod["serviceAccountName"]
    assert subject["namespace"] == found.one("DaemonSet")["metadata"]["namespace"]
    assert not found.all("Role") + found.all("RoleBinding") + found.all("Secret")


def test_network_policy() -> None:
    """What comes in is from whom was said and the test pod; what goes out is to the API server, or none."""
    policy = chart("network-policy").one("NetworkPolicy")["spec"]
    own, test = policy["ingress"]
    assert own["from"] == yaml.safe_load(CI["network-policy"].read_text())["networkPolicy"]["from"]
    test_pod = chart("network-policy").one("Pod")["metadata"]["labels"]
    assert test["from"][0]["podSelector"]["matchLabels"].items() <= test_pod.items()
    assert policy["egress"] == [{"ports": [{"port": 6443, "protocol": "TCP"}]}]
    assert chart("no-api").one("NetworkPolicy")["spec"]["egress"] == []
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert not chart().all("NetworkPolicy")


def test_tls() -> None:
    """Probes, monitor and test pod follow; with client certificates probes only connect."""
    found = chart("tls")
    assert found.container["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
    (endpoint,) = found.one("PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    web = next(one for one in found.all("ConfigMap") if one["metadata"]["name"].endswith("-web"))
    tls = yaml.safe_load(web["data"]["web-config.yml"])["tls_server_config"]
    assert tls == {
        "cert_file": "/etc/kubegpu-exporter/tls/tls.crt",
        "key_file": "/etc/kubegpu-exporter/tls/tls.key",
        "min_version": "TLS13",
    }
    mutual = chart("tls-clients")
    assert mutual.container["readinessProbe"]["tcpSocket"] == {"port": "metrics"}
    assert not mutual.all("Pod")
    before = found.one("DaemonSet")["spec"]["template"]["metadata"]["annotations"]
    after = mutual.one("DaemonSet")["spec"]["template"]["metadata"]["annotations"]
    assert before["checksum/web-config"] != after["checksum/web-config"]


def test_scc_is_for_openshift() -> None:
    """Security context constraints exist on the platform openshift, or where they are asked for."""
    assert chart("openshift").one("SecurityContextConstraints")
    assert not chart().all("SecurityContextConstraints")
    assert not chart("openshift", "openshift.scc.create=false").all("SecurityContextConstraints")
    assert chart("openshift").container["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}


def test_apparmor_in_old_and_new_clusters() -> None:
    """Kubernetes 1.30 has a field for it; before, it is an annotation. A privileged pod needs neither."""
    for version in VERSIONS:
        found = chart("two-capabilities", version=version)
        field = found.container["securityContext"].get("appArmorProfile")
        annotations = found.one("DaemonSet")["spec"]["template"]["metadata"].get("annotations", {})
        old = version in ("1.25.0", "1.29.0")
        assert field == (None if old else {"type": "Unconfined"})
        key = "container.apparmor.security.beta.kubernetes.io/exporter"
        assert annotations.get(key) == ("unconfined" if old else None)
    assert "appArmorProfile" not in chart().container["securityContext"]


# ---------------------------------------------------------------- names and versions


def test_versions_are_the_packages() -> None:
    """Chart, appVersion and the image that Artifact Hub shows are the package's version."""
    project = tomllib.loads((render.ROOT / "pyproject.toml").read_text())["project"]
    about = yaml.safe_load((render.CHART / "Chart.yaml").read_text())
    assert about["appVersion"] == project["version"] == __version__
    assert about["version"] == __version__
    images = yaml.safe_load(about["annotations"]["artifacthub.io/images"])
    assert (
        images[0]["image"] == chart().container["image"] == f"ghcr.io/kubegpu/kubegpu-exporter:{__version__}"
    )
    for key in ("links", "changes"):
        assert yaml.safe_load(about["annotations"][f"artifacthub.io/{key}"])


def test_the_charts_page_names_values_that_are_there() -> None:
    """Values and defaults in the chart's README are those of values.yaml."""
    values = yaml.safe_load((render.CHART / "values.yaml").read_text())
    text = (render.CHART / "README.md").read_text()
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", text, re.MULTILINE)
    assert len(rows) > 5
    for names, default in rows:
        for name in re.findall(r"`([^`]+)`", names):
            value: Any = values
            for part in name.split("."):
                value = value[part]
            if default.startswith("`"):
                value = value.get("enabled") if isinstance(value, dict) and value else value
                assert yaml.safe_load(default.strip("`")) == value, name


def test_names_labels_and_the_image() -> None:
    """Every override is followed by every object."""
    found = chart("names")
    for one in found.objects:
        labels = one["metadata"]["labels"]
        assert labels["team"] == "platform"
        assert labels["app.kubernetes.io/name"] in ("gpu-watch", "gpu-watch-test")
        assert one["metadata"]["annotations"]["example.com/owner"] == "platform"
        assert one["metadata"].get("namespace", "observability") == "observability"
    digest = yaml.safe_load(CI["names"].read_text())["image"]["digest"]
    assert found.container["image"] == f"registry.example.com/kubegpu/kubegpu-exporter@{digest}"
    assert found.pod["imagePullSecrets"] == [{"name": "shared"}, {"name": "own"}]
    assert found.pod["serviceAccountName"] == found.one("ServiceAccount")["metadata"]["name"] == "gpu-watch"
    template = found.one("DaemonSet")["spec"]["template"]["metadata"]
    assert template["labels"]["example.com/scrape"] == "yes"
    assert template["annotations"]["example.com/note"] == "pods"
    assert found.one("DaemonSet")["metadata"]["annotations"]["example.com/note"] == "daemonset"
    assert found.one("PodMonitor")["spec"]["namespaceSelector"]["matchNames"] == ["observability"]


def test_selectors_never_change() -> None:
    """A selector cannot be upgraded: nothing that a version or a user may change is in it."""
    for name in CI:
        selector = chart(name).one("DaemonSet")["spec"]["selector"]["matchLabels"]
        assert set(selector) == {"app.kubernetes.io/name", "app.kubernetes.io/instance"}
        labels = chart(name).one("DaemonSet")["spec"]["template"]["metadata"]["labels"]
        assert selector.items() <= labels.items()


def test_two_releases_share_no_object() -> None:
    """Objects of the cluster are named after release and namespace."""

    def cluster_wide(found: render.Rendered) -> set[str]:
        return {o["metadata"]["name"] for o in found.objects if "namespace" not in o["metadata"]}

    one = cluster_wide(chart("openshift", namespace="one"))
    other = cluster_wide(chart("openshift", namespace="other"))
    again = cluster_wide(chart("openshift", namespace="one", release="second"))
    assert one
    assert not one & other
    assert not one & again


def test_namespace_and_quota() -> None:
    """The namespace carries the level that the pod needs; on GKE a quota lets the priority class in."""
    (space,) = chart("namespace").all("Namespace")
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert space["metadata"]["name"] == render.NAMESPACE
    (scope,) = chart("gke").one("ResourceQuota")["spec"]["scopeSelector"]["matchExpressions"]
    assert scope["values"] == [chart("gke").pod["priorityClassName"]]
    assert not chart().all("ResourceQuota")


def test_the_pause_file_can_be_on_the_node() -> None:
    """By default it is in the pod; with a directory of the node it is read from there."""
    inside = {one["name"]: one for one in chart().pod["volumes"]}["pause"]
    assert "emptyDir" in inside
    pod = chart("pause-on-the-host").pod
    outside = {one["name"]: one for one in pod["volumes"]}["pause"]
    assert outside["hostPath"] == {"path": "/run/kubegpu-exporter", "type": "DirectoryOrCreate"}
    mount = next(one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "pause")
    assert mount["readOnly"]


def test_extras() -> None:
    """What a user adds comes after what the chart gives."""
    found = chart("extras")
    assert found.container["args"][-1] == "--log.format=json"
    assert found.container["env"][-1] == {"name": "KUBEGPU_LOG_LEVEL", "value": "debug"}
    assert found.container["volumeMounts"][-1]["mountPath"] == "/scratch"
    assert found.pod["volumes"][-1]["name"] == "scratch"
    assert found.one("DaemonSet")["spec"]["updateStrategy"] == {"type": "OnDelete"}
