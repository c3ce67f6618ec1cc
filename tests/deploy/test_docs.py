"""docs/install.md and docs/privileges.md say what is: commands render, snippets are taken, tables agree."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.deploy import render, tools

INSTALL = (render.ROOT / "docs/install.md").read_text()
PRIVILEGES = (render.ROOT / "docs/privileges.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", INSTALL, re.DOTALL | re.MULTILINE)
HERE = ("./deploy/helm/kubegpu-exporter", str(render.CHART))
# Flags of `helm upgrade` that `helm template` lacks, since they are about a cluster.
OF_A_CLUSTER = {"--install", "--create-namespace", "--reset-then-reuse-values"}


def commands() -> Iterator[str]:
    """Every command of the page: lines of its sh blocks, and those in its tables that install."""
    for language, text in BLOCKS:
        if language == "sh":
            yield from text.splitlines()
    yield from re.findall(r"`(helm upgrade [^`]+|kubectl [a-z]+ [^`]+)`", INSTALL)


def installing() -> list[str]:
    return [one for one in commands() if one.startswith(("helm upgrade", "kubectl apply"))]


@pytest.mark.parametrize("command", sorted(set(installing())))
def test_commands_that_install_render(command: str) -> None:
    """Each names a chart or overlay that is there, and renders with its values, in both helms."""
    words = shlex.split(command)
    if words[0] == "kubectl":
        assert words[-2] == "-k"
        argv = [str(tools.kubectl()), "kustomize", str(render.ROOT / words[-1])]
        result = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return
    rest = [HERE[1] if word == HERE[0] else word for word in words[2:] if word not in OF_A_CLUSTER]
    assert HERE[1] in rest
    for program in tools.helms():
        for flag in OF_A_CLUSTER & set(words):
            assert flag in render.helm(program, "upgrade", "--help")
        assert render.objects(render.helm(program, "template", *rest)).one("DaemonSet")


@pytest.mark.parametrize("command", sorted(set(commands()) - set(installing())))
def test_other_commands_exist(command: str) -> None:
    """The subcommand is there, and has each flag that is used."""
    before, _, _ = command.partition(" -- ")
    program, *words = shlex.split(before)
    path = str(tools.kubectl() if program == "kubectl" else tools.helms()[1])
    global_flags = subprocess.run(
        [path, "options"] if program == "kubectl" else [path, "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    positional = [word for word in words if not word.startswith("-")]
    if "--namespace" in words:
        positional.remove("kubegpu")  # its value
    verbs = positional[: {"rollout": 2, "create": 3 if "secret" in positional else 2}.get(positional[0], 1)]
    text = subprocess.run([path, *verbs, "--help"], capture_output=True, text=True, check=True).stdout
    for flag in re.findall(r"(?:^| )(--[a-z-]+)", before):
        assert f"{flag}=" in text + global_flags or f"{flag} " in text + global_flags, flag


def snippets(kind: str) -> list[str]:
    """The yaml blocks that begin with this comment."""
    return [text for language, text in BLOCKS if language == "yaml" and text.startswith(f"# {kind}.yaml\n")]


@pytest.mark.parametrize("text", snippets("values"))
def test_values_are_taken(text: str, tmp_path: Path) -> None:
    """The chart takes each snippet of values, and it changes what is rendered."""
    file = tmp_path / "values.yaml"
    file.write_text(text)
    assert render.chart(file) != render.chart()


def test_every_snippet_is_checked() -> None:
    """No yaml block is of a kind that no test looks at."""
    yamls = [text for language, text in BLOCKS if language == "yaml"]
    assert len(snippets("values")) >= 4
    assert len(yamls) == len(snippets("values") + snippets("kustomization") + snippets("prometheus"))
    assert {language for language, _ in BLOCKS} == {"sh", "yaml"}


def test_the_kustomization_labels_what_the_operator_selects(tmp_path: Path) -> None:
    """The reader's own kustomization puts the release's label on monitor and rules."""
    (text,) = snippets("kustomization")
    overlay = os.path.relpath(render.OVERLAYS, tmp_path)
    file = tmp_path / "kustomization.yaml"
    file.write_text(text.replace("deploy/kustomize/overlays", overlay))
    argv = [str(tools.kubectl()), "kustomize", str(tmp_path)]
    found = render.objects(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    labelled = {
        one["kind"] for one in found.objects if one["metadata"]["labels"].get("release") == "prometheus"
    }
    assert labelled == {"PodMonitor", "PrometheusRule"}
    assert all(one["metadata"]["labels"]["release"] == "prometheus" for one in found.all("PrometheusRule"))


def test_the_scrape_configuration_is_the_overlays() -> None:
    """The page shows what the overlay has, which a real Prometheus runs in test_monitoring.py."""
    (text,) = snippets("prometheus")
    shipped = yaml.safe_load((render.OVERLAYS / "plain-prometheus/prometheus.yaml").read_text())
    assert yaml.safe_load(text)["scrape_configs"] == shipped["scrape_configs"]


def test_pages_name_what_is_there() -> None:
    """Links of both pages lead somewhere, and each platform and each way to the GPU is told of."""
    for text in (INSTALL, PRIVILEGES):
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert (render.ROOT / "docs" / target).exists(), target
    schema = yaml.safe_load((render.CHART / "values.schema.json").read_text())["properties"]
    for mode in filter(None, schema["gpuAccess"]["properties"]["mode"]["enum"]):
        assert f"`{mode}`" in INSTALL
    for platform in set(schema["platform"]["enum"]) - {"default"}:
        assert f"platform={platform}" in INSTALL
    for name in render.overlays():
        assert f"`{name}`" in INSTALL


# ---------------------------------------------------------------- privileges


def table(heading: str) -> list[list[str]]:
    """The rows of the first table under a heading of privileges.md, the first row with the column names."""
    _, _, rest = PRIVILEGES.partition(f"\n## {heading}\n")
    lines = re.search(r"((?:^\|.*\n)+)", rest, re.MULTILINE)
    assert lines
    rows = [
        [cell.strip().strip("`") for cell in line.strip("|\n").split("|")] for line in lines[1].splitlines()
    ]
    return [rows[0], *rows[2:]]


def privileges(profile: str) -> dict[str, str]:
    """What a profile's pod is given, in the words of the table."""
    found = render.chart(None, (f"profile={profile}", "runtimeClassName=nvidia"))
    context = found.container["securityContext"]
    capabilities = context.get("capabilities", {})
    env = {one["name"] for one in found.container["env"]}

    def yes(value: object) -> str:
        return "yes" if value else "no"

    privileged = context["privileged"]
    return {
        "privileged container": yes(privileged),
        "user": str(context["runAsUser"]),
        "capabilities added": "all" if privileged else ", ".join(capabilities["add"]),
        "capabilities dropped": ", ".join(capabilities.get("drop", [])) or "none",
        "privilege escalation": yes(context.get("allowPrivilegeEscalation", privileged)),
        "seccomp": context.get("seccompProfile", {}).get("type", "none"),
        "AppArmor": context.get("appArmorProfile", {}).get("type", "none"),
        "root file system": "read-only" if context["readOnlyRootFilesystem"] else "writable",
        "host pid namespace": yes(found.pod["hostPID"]),
        "host network": yes(found.pod.get("hostNetwork")),
        "MIG devices asked of the runtime": yes("NVIDIA_MIG_MONITOR_DEVICES" in env),
    }


def test_the_table_of_profiles() -> None:
    """Each cell of the table is what the chart renders, for each profile that there is."""
    (_, *profiles), *rows = table("Profiles")
    schema = yaml.safe_load((render.CHART / "values.schema.json").read_text())
    assert profiles == schema["properties"]["profile"]["enum"]
    for column, profile in enumerate(profiles, start=1):
        assert {row[0]: row[column] for row in rows} == privileges(profile)


def test_the_scc_is_the_profile() -> None:
    """On OpenShift the pod is allowed what its profile asks for, and no more."""
    for profile in ("privileged", "two-capabilities", "mig-monitor"):
        found = render.chart(None, ("platform=openshift", f"profile={profile}"))
        scc = found.one("SecurityContextConstraints")
        context = found.container["securityContext"]
        assert scc["allowPrivilegedContainer"] is context["privileged"]
        assert scc["allowedCapabilities"] == context.get("capabilities", {}).get("add", [])
        assert scc["requiredDropCapabilities"] == context.get("capabilities", {}).get("drop", [])
        assert scc["allowHostPID"] is found.pod["hostPID"]
        assert scc["readOnlyRootFilesystem"] is True
        account = f"system:serviceaccount:{render.NAMESPACE}:{found.pod['serviceAccountName']}"
        assert scc["users"] == [account]
        kinds = {kind for volume in found.pod["volumes"] for kind in volume if kind != "name"}
        assert kinds <= set(scc["volumes"])
        assert not [scc[key] for key in ("allowHostNetwork", "allowHostPorts", "allowHostIPC") if scc[key]]


def test_the_table_of_mounts() -> None:
    """Every path of the node that any values file mounts is in the table, read-only, and none besides."""
    _, *rows = table("Mounts")
    listed = {row[0]: row[1] for row in rows}
    seen = set()
    for path in render.ci():
        if path.stem in ("kubelet-path-values", "host-library-values", "settings-values"):
            continue  # the user's own directories
        pod = render.chart(path).pod
        mounts = {one["name"]: one for one in pod["containers"][0]["volumeMounts"]}
        for volume in pod["volumes"]:
            if "hostPath" in volume:
                seen.add(volume["name"])
                assert mounts[volume["name"]]["readOnly"], volume
                if not volume["hostPath"]["path"].endswith("kubelet/pod-resources"):
                    assert listed[volume["name"]] == volume["hostPath"]["path"]
    assert seen == set(listed)


def test_the_table_of_the_cluster() -> None:
    """What the role grants is what the table says."""
    _, *rows = table("Cluster")
    granted = {
        f"`{verb}` {resource}"
        for rule in render.chart().one("ClusterRole")["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }
    assert {
        f"`{row[1]}" if row[1][0] != "`" else row[1] for row in rows if row[0] == "ClusterRole"
    } == granted
