"""The pod_names source on log directories as a kubelet makes them, and as others might."""

from __future__ import annotations

import os
import resource
import shutil
import time
from pathlib import Path

import pytest

from exporter.model import PodName, PodNames, Reason, SourceError
from exporter.sources import pod_names
from exporter.sources.pod_names import PodNamesSource

UID = "3b1f7c52-8d0e-4a6b-9c11-5e2d7f80aa14"
STATIC = "0f9d8c7b6a5e4d3c2b1a09f8e7d6c5b4"


def make(root: Path, *directories: str) -> None:
    for directory in directories:
        (root / directory).mkdir(parents=True)


def test_names(tmp_path: Path) -> None:
    """One pod per directory, static pods too, with the containers that have logs."""
    make(
        tmp_path,
        f"team-a_train-0_{UID}/proxy",
        f"team-a_train-0_{UID}/main",
        f"default_static-n1_{STATIC}",
    )
    (tmp_path / f"team-a_train-0_{UID}/main/0.log").write_text("secret")
    assert PodNamesSource(tmp_path).read() == (
        PodNames(
            (
                PodName(STATIC, "default", "static-n1"),
                PodName(UID, "team-a", "train-0", ("main", "proxy")),
            )
        ),
        True,
    )


def test_empty_directory(tmp_path: Path) -> None:
    """A node without pods has no names, and that is known."""
    assert PodNamesSource(tmp_path).read() == (PodNames(()), True)


@pytest.mark.parametrize(
    "name", ["lost+found", "a_b", "a_b_c_d", "_b_c", "a__c", "a_b_", "a_b_c\n", "a_\x1b_c"]
)
def test_other_directories(tmp_path: Path, name: str) -> None:
    """A directory whose name is not that of a pod says nothing."""
    make(tmp_path, name, "n_p_u")
    assert PodNamesSource(tmp_path).read() == (PodNames((PodName("u", "n", "p"),)), True)


def test_undecodable_name(tmp_path: Path) -> None:
    """Bytes that are no text name no pod."""
    os.mkdir(os.fsencode(tmp_path) + b"/n_p\xff_u")
    assert PodNamesSource(tmp_path).read() == (PodNames(()), True)


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Neither a pod nor a container is a link, a file or a FIFO; none of them is opened."""
    outside = tmp_path / "outside"
    make(outside, "secret")
    root = tmp_path / "pods"
    make(root, "n_p_u/main")
    (root / "n_link_u").symlink_to(outside)
    (root / "n_file_u").write_text("")
    os.mkfifo(root / "n_fifo_u")
    (root / "n_p_u/link").symlink_to(outside)
    os.mkfifo(root / "n_p_u/fifo")
    assert PodNamesSource(root).read() == (PodNames((PodName("u", "n", "p", ("main",)),)), True)


def test_root_may_be_a_link(tmp_path: Path) -> None:
    """The operator's own path is followed."""
    make(tmp_path, "disk/n_p_u")
    (tmp_path / "pods").symlink_to(tmp_path / "disk")
    assert PodNamesSource(tmp_path / "pods").read()[0].names == (PodName("u", "n", "p"),)


def test_endless_tree(tmp_path: Path) -> None:
    """A container that fills its log directory costs a bounded walk, and the answer is not whole."""
    make(tmp_path, "n_p_u")
    for number in range(pod_names.ENTRIES + 1):
        (tmp_path / f"n_p_u/{number}").touch()
    names, complete = PodNamesSource(tmp_path).read()
    assert not complete
    assert len(names.names) <= 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_denied(tmp_path: Path) -> None:
    """A root that may not be listed is denied; one pod's directory costs completeness only."""
    root = tmp_path / "pods"
    make(root, "n_p_u/main", "n_q_v/main")
    (root / "n_p_u").chmod(0)
    for parent in (root, *root.parents):
        if parent.owner() == "root" and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    os.seteuid(65534)
    try:
        names, complete = PodNamesSource(root).read()
        os.seteuid(0)
        root.chmod(0)
        os.seteuid(65534)
        with pytest.raises(SourceError) as caught:
            PodNamesSource(root).read()
    finally:
        os.seteuid(0)
    assert names.names == (PodName("u", "n", "p"), PodName("v", "n", "q", ("main",)))
    assert not complete
    assert caught.value.reason is Reason.DENIED


@pytest.mark.parametrize("kind", ["absent", "file"])
def test_no_root(tmp_path: Path, kind: str) -> None:
    """A root that is not there, or no directory, is unavailable, with the setting that cures it."""
    root = tmp_path / kind
    if kind == "file":
        root.touch()
    with pytest.raises(SourceError) as caught:
        PodNamesSource(root).read()
    assert caught.value.reason is Reason.UNAVAILABLE
    assert "--path.pod-logs" in caught.value.detail


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    """However a read ends, it gives back what it opened."""
    make(tmp_path, *(f"n_p{number}_u{number}/main" for number in range(20)))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(min(limit, 200)):
        PodNamesSource(tmp_path).read()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_directory_that_has_settled_is_believed_until_it_changes(tmp_path: Path) -> None:
    """A new container and a new directory of the same name are seen in the next read."""
    pod = tmp_path / "team-a_train_1111"
    (pod / "main").mkdir(parents=True)
    source = PodNamesSource(tmp_path, wall=lambda: time.time() + 60)
    for _ in range(3):
        assert source.read() == (PodNames((PodName("1111", "team-a", "train", ("main",)),)), True)
    (pod / "side").mkdir()
    for _ in range(2):
        (name,) = source.read()[0].names
        assert name.containers == ("main", "side")
    shutil.rmtree(pod)
    (pod / "other").mkdir(parents=True)
    (name,) = source.read()[0].names
    assert name.containers == ("other",)
    shutil.rmtree(pod)
    assert source.read() == (PodNames(()), True)


def test_a_directory_that_has_just_changed_is_listed_again(tmp_path: Path) -> None:
    """A change in the tick of the last one leaves the same time stamp."""
    pod = tmp_path / "team-a_train_1111"
    (pod / "main").mkdir(parents=True)
    source = PodNamesSource(tmp_path)
    for name in ("side", "third"):
        source.read()
        (pod / name).mkdir()
        assert name in source.read()[0].names[0].containers
