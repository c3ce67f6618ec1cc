"""What takes too long for every run of the tests; `make deploy-check` asks for this file by name.

The chart with every values file in both helms and for old and new clusters, checkov, and the bill of
materials.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from exporter import __version__
from tests.deploy import image, render, tools, validation

pytestmark = pytest.mark.timeout(600)
CI = {path.stem.removesuffix("-values"): path for path in render.ci()}

# Checks of checkov that are not followed, and why: of every DaemonSet, of each profile, of the test pod.
EVERY = {
    "CKV_K8S_11": "no CPU limit on purpose: throttling delays scrapes and saves nothing",
    "CKV_K8S_15": "a tag is never written twice; pulling always makes a registry a dependency",
    "CKV_K8S_17": "hostPID: the exporter names processes of the node",
    "CKV_K8S_29": "the one container has a security context; the pod needs none beside",
    "CKV_K8S_38": "the token is for the pods and the node; kubernetesApi.enabled=false goes without",
    "CKV_K8S_40": "uid 0: the kubelet's directory is its own, and capabilities go to uid 0 only",
    "CKV_K8S_43": "the digest is the user's to give: image.digest",
}
PROFILES = {
    "privileged": {
        "CKV_K8S_16": "privileged is the documented default (docs/privileges.md)",
        "CKV_K8S_20": "a privileged container cannot have allowPrivilegeEscalation false",
        "CKV_K8S_23": "uid 0, as above",
        "CKV_K8S_28": "a privileged container drops nothing",
        "CKV_K8S_31": "a privileged container has no seccomp profile",
        "CKV_K8S_37": "the same, for capabilities",
    },
    "two-capabilities": {
        "CKV_K8S_23": "uid 0, as above",
        "CKV_K8S_25": "the two capabilities are the profile",
    },
    "mig-monitor": {
        "CKV_K8S_23": "uid 0, as above",
        "CKV_K8S_25": "the three capabilities are the profile",
        "CKV_K8S_39": "SYS_ADMIN is what the NVIDIA runtime asks for",
    },
}
TEST_POD = {
    "CKV_K8S_8": "it ends by itself and has no probe",
    "CKV_K8S_9": "the same, for readiness",
    "CKV_K8S_11": "as above",
    "CKV_K8S_15": "as above",
    "CKV_K8S_40": "the image's own user, over 10000; OpenShift gives another",
    "CKV_K8S_43": "as above",
    "CKV2_K8S_6": "a NetworkPolicy is one value away; who may scrape is not ours to know",
}


@pytest.mark.parametrize("name", CI)
@pytest.mark.parametrize("helm", [0, 1], ids=["helm3", "helm4"])
def test_lint(name: str, helm: int) -> None:
    """`helm lint --strict` has nothing to say with the values of any feature."""
    render.helm(tools.helms()[helm], "lint", "--strict", "--quiet", render.CHART, f"--values={CI[name]}")


@pytest.mark.parametrize("version", ["1.25.0", "1.29.0", "1.30.0", "1.37.0"])
def test_both_helms_give_the_same_for_every_cluster(version: str) -> None:
    """Helm 3 and helm 4 render the same objects, for old and new clusters, with and without the operator."""
    three, four = tools.helms()
    for path in CI.values():
        for apis in ((render.MONITORING,), ()):
            one = render.chart(path, version=version, program=three, apis=apis)
            assert one == render.chart(path, version=version, program=four, apis=apis), path


@pytest.mark.parametrize("version", validation.VERSIONS)
def test_each_cluster_takes_what_is_rendered_for_it(version: str) -> None:
    """Every values file, rendered for a version of Kubernetes, is valid in that version."""
    named = [(path.stem, render.chart(path, version=f"{version}.0"), [version]) for path in CI.values()]
    assert validation.errors(named) == []


@pytest.mark.parametrize("profile", PROFILES)
def test_checkov(tmp_path: Path, profile: str) -> None:
    """Checkov says of each profile exactly what is answered above, and nothing of any other object."""
    found = render.chart(None, (f"profile={profile}", "runtimeClassName=nvidia"))
    (tmp_path / "all.yaml").write_text("\n---\n".join(json.dumps(one) for one in found.objects))
    failed = _checkov("kubernetes", "--directory", str(tmp_path))
    said = {kind: {c for c, name in failed if name.startswith(f"{kind}.")} for kind in ("DaemonSet", "Pod")}
    assert said["DaemonSet"] == set(EVERY | PROFILES[profile])
    assert said["Pod"] == set(TEST_POD)
    assert {name.split(".")[0] for _, name in failed} == {"DaemonSet", "Pod"}


def test_checkov_of_everything(tmp_path: Path) -> None:
    """No values file and no overlay makes checkov say what it does not say of the profiles."""
    for name, found in render.everything():
        text = "\n---\n".join(json.dumps(one) for one in found.objects)
        (tmp_path / f"{name.replace(' ', '-').replace(',', '')}.yaml").write_text(text)
    known = set(EVERY | TEST_POD).union(*PROFILES.values())
    assert {check for check, _ in _checkov("kubernetes", "--directory", str(tmp_path))} == known


def test_checkov_of_the_dockerfile() -> None:
    """Checkov has nothing to say about the Dockerfile but that it has no health check: the pod has."""
    failed = _checkov("dockerfile", "--file", str(render.ROOT / "Dockerfile"))
    assert {check for check, _ in failed} == {"CKV_DOCKER_2"}


def _checkov(framework: str, *where: str) -> set[tuple[str, str]]:
    argv = [str(tools.environment("checkov") / "checkov"), "--framework", framework, "--skip-download"]
    argv += ["--output", "json", "--quiet", "--compact", *where]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 1), result.stderr
    report = json.loads(result.stdout)
    assert report["summary"]["passed"] > 5
    assert report["summary"]["parsing_errors"] == 0
    return {(one["check_id"], one["resource"]) for one in report["results"]["failed_checks"]}


def test_the_bill_of_materials(builder: image.Builder) -> None:
    """The target sbom is a CycloneDX document that lists what is installed, with versions and licences."""
    (file,) = builder.stage("sbom").tree.iterdir()
    bill = json.loads(file.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "kubegpu-exporter"
    assert bill["metadata"]["component"]["version"] == __version__
    listed = {one["name"].lower().replace("_", "-"): one["version"] for one in bill["components"]}
    for line in (render.ROOT / "requirements.txt").read_text().splitlines():
        if "==" in line:
            name, version = line.split()[0].split("==")
            assert listed.pop(name) == version
    assert set(listed) <= {"kubegpu-exporter"}
    assert [one for one in bill["components"] if one.get("purl", "").startswith("pkg:pypi/")]
