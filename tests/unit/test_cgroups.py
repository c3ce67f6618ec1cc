"""Every cgroup layout that is known from the field, one line each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.cgroups import parse
from exporter.model import Cgroup

U = "3b1f7c52-8d0e-4a6b-9c11-5e2d7f80aa14"
U_ = U.replace("-", "_")
C = "c0ffee" + "0" * 56 + "01"
N = "badcab" + "0" * 56 + "02"
STATIC = "0f9d8c7b6a5e4d3c2b1a09f8e7d6c5b4"
BOTH = Cgroup(U, C)

LAYOUTS = {
    "v2 systemd containerd burstable": (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{U_}.slice/cri-containerd-{C}.scope",
        BOTH,
    ),
    "v2 systemd containerd besteffort": (
        f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{U_}.slice/cri-containerd-{C}.scope",
        BOTH,
    ),
    "guaranteed": (f"0::/kubepods.slice/kubepods-pod{U_}.slice/cri-containerd-{C}.scope", BOTH),
    "CRI-O": (f"0::/kubepods.slice/kubepods-pod{U_}.slice/crio-{C}.scope", BOTH),
    "CRI-O, crun's inner split": (
        f"0::/kubepods.slice/kubepods-pod{U_}.slice/crio-{C}.scope/container",
        BOTH,
    ),
    "cri-dockerd": (f"0::/kubepods.slice/kubepods-burstable-pod{U_}.slice/docker-{C}.scope", BOTH),
    "v1 cgroupfs": (f"4:memory:/kubepods/burstable/pod{U}/{C}", BOTH),
    "v1 cgroupfs guaranteed": (f"4:memory:/kubepods/pod{U}/{C}", BOTH),
    "v2 cgroupfs": (f"0::/kubepods/besteffort/pod{U}/{C}", BOTH),
    "CRI-O cgroupfs": (f"0::/kubepods/burstable/pod{U}/crio-{C}", BOTH),
    "drivers that disagree": (
        f"2:cpu:/system.slice/containerd.service/kubepods-burstable-pod{U_}.slice:cri-containerd:{C}",
        BOTH,
    ),
    "runtime in its own slice": (
        f"2:cpu:/podruntime.slice/containerd.service/kubepods-burstable-pod{U_}.slice:cri-containerd:{C}",
        BOTH,
    ),
    "kind, systemd": (
        (
            f"0::/system.slice/docker-{N}.scope/kubelet.slice/kubelet-kubepods.slice"
            "/kubelet-kubepods-besteffort.slice"
            f"/kubelet-kubepods-besteffort-pod{U_}.slice/cri-containerd-{C}.scope"
        ),
        BOTH,
    ),
    "kind, cgroupfs": (f"0::/docker/{N}/kubelet/kubepods/burstable/pod{U}/{C}", BOTH),
    "minikube in docker": (f"4:memory:/docker/{N}/kubepods/besteffort/pod{U}/{C}", BOTH),
    "static pod": (
        f"0::/kubepods.slice/kubepods-burstable-pod{STATIC}.slice/cri-containerd-{C}.scope",
        Cgroup(STATIC, C),
    ),
    "systemd in a container": (
        f"0::/kubepods.slice/kubepods-pod{U_}.slice/cri-containerd-{C}.scope/init.scope",
        BOTH,
    ),
    "service below a container": (f"0::/kubepods/pod{U}/{C}/sub/x.service", BOTH),
    "docker in a pod": (f"0::/kubepods/pod{U}/{C}/docker/{N}", BOTH),
    "reader in its own namespace": (
        f"0::/../../kubepods-besteffort-pod{U_}.slice/cri-containerd-{C}.scope",
        BOTH,
    ),
    "sibling, pod not shown": (f"0::/../cri-containerd-{C}.scope", Cgroup("", C)),
    "sibling, cgroupfs": (f"0::/../{C}", Cgroup("", C)),
    "reader itself": ("0::/", Cgroup()),
    "cgroup removed": (f"0::/kubepods/pod{U}/{C} (deleted)", Cgroup(U, C, deleted=True)),
    "hybrid": (f"9:devices:/kubepods/pod{U}/{C}\n0::/system.slice/x.service", BOTH),
    "hybrid, root": (f"9:devices:/kubepods/pod{U}/{C}\n0::/", BOTH),
    "docker": (f"4:memory:/docker/{C}", Cgroup("", C)),
    "docker, systemd": (f"0::/system.slice/docker-{C}.scope", Cgroup("", C)),
    "podman": (f"0::/machine.slice/libpod-{C}.scope/container", Cgroup("", C)),
    "podman, rootless": (
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{C}.scope",
        Cgroup("", C),
    ),
    "nerdctl": (f"0::/system.slice/nerdctl-{C}.scope", Cgroup("", C)),
    "ctr": (f"0::/default/{C}", Cgroup("", C)),
    "ECS": (f"0::/ecs/8d0e4a6b/{C}", Cgroup("", C)),
    "host daemon": (
        "0::/system.slice/nvidia-persistenced.service",
        Cgroup(unit="nvidia-persistenced.service"),
    ),
    "shell of a user": (
        "0::/user.slice/user-1000.slice/session-3.scope",
        Cgroup(unit="session-3.scope"),
    ),
    "host scope": ("0::/init.scope", Cgroup(unit="init.scope")),
    "Talos host": ("0::/podruntime/runtime", Cgroup()),
    "pause": (f"0::/kubepods.slice/kubepods-pod{U_}.slice", Cgroup(U)),
    "CRI-O's monitor": (
        f"0::/kubepods.slice/kubepods-pod{U_}.slice/crio-conmon-{C}.scope",
        Cgroup(unit=f"crio-conmon-{C}.scope"),
    ),
    "escaped": (f"0::/kubepods/pod{U}/cri\\x2dcontainerd-{C}.scope", BOTH),
    "the freezer alone was moved": (
        f"6:freezer:/kubepods/pod{STATIC}/{N}\n4:memory:/kubepods/pod{U}/{C}",
        BOTH,
    ),
    "below the container in one hierarchy": (
        f"6:freezer:/kubepods/pod{U}/{C}/stuck\n4:memory:/kubepods/pod{U}/{C}\n0::/",
        BOTH,
    ),
}


@pytest.mark.parametrize(("text", "expected"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_layout(text: str, expected: Cgroup) -> None:
    """The layout gives the pod, the container or the unit that it names."""
    assert expected == parse(text)


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    """No text makes the parser raise, and what it shows is printable."""
    place = parse(text)
    assert place.unit.isprintable()


@given(st.permutations([*LAYOUTS["hybrid"][0].splitlines(), "1:name=systemd:/", "3:freezer:/"]))
def test_order_of_lines_does_not_matter(lines: list[str]) -> None:
    """The kernel's order of hierarchies is no evidence."""
    assert parse("\n".join(lines)) == BOTH


@pytest.mark.parametrize("trick", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r"])
def test_a_group_cannot_forge_a_line(trick: str) -> None:
    """A pod that names a group of its own after another pod stays where it is."""
    other = U.replace("3", "4")
    forged = f"0::/kubepods/pod{U}/{C}/x{trick}0::/kubepods/pod{other}/{N}/{'y' * 300}"
    assert parse(forged) == BOTH
