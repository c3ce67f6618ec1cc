"""The Dockerfile, its steps carried out in plain trees (image.py says what that proves and what not)."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from exporter import __version__
from tests.deploy import dockerfile, image

TEXT = (image.ROOT / "Dockerfile").read_text()
HOME = "opt/kubegpu-exporter"
COMPILERS = ("cc", "gcc", "c++", "g++", "clang", "ld", "as", "make", "cargo", "rustc", "go")
CONTEXT = ("Dockerfile", ".dockerignore", "LICENSE", "README.md", "pyproject.toml", "requirements.txt")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def built(builder: image.Builder) -> image.Image:
    """The image."""
    return builder.stage("image")


def said(built: image.Image, *arguments: str) -> str:
    result = subprocess.run(
        built.command(*arguments), capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_image_runs_the_command(built: image.Image) -> None:
    """The entry point starts in the image's tree, as the image's user and without a shell."""
    assert said(built, "--version") == f"kubegpu-exporter {__version__}\n"


def test_the_image_serves_the_demo_and_ends_when_told_to(built: image.Image) -> None:
    """`demo` serves metrics as the image's user, and the image's stop signal ends it with status 0."""
    process = subprocess.Popen(
        built.command("demo", "--web.listen-address=127.0.0.1:0"), stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        port = re.search(r"at port (\d+)", process.stderr.readline())
        assert port
        text = _scraped(f"http://127.0.0.1:{port[1]}/metrics")
        assert f'kubegpu_exporter_build_info{{simulated="true",version="{__version__}"}} 1.0' in text
        process.send_signal(signal.Signals[built.stop_signal])
        assert process.wait(timeout=10) == 0
    finally:
        process.kill()
        process.communicate()


def _scraped(url: str) -> str:
    deadline = time.monotonic() + 20
    while True:
        with urllib.request.urlopen(url, timeout=5) as response:
            text = str(response.read(), "utf-8")
        if "kubegpu_gpu_info{" in text or time.monotonic() > deadline:
            return text
        time.sleep(0.2)


def test_the_image_has_no_compiler_and_nothing_of_the_builder(built: image.Image) -> None:
    """Compilers, sources, build tools and what a step was lent stay in the builder's stages."""
    folders = image.PATH.split(":")
    found = [name for name in COMPILERS for f in folders if (built.tree / f[1:] / name).exists()]
    assert found == []
    assert [name for name in ("source", "tools", "dist", "sbom") if (built.tree / name).exists()] == []
    assert not list((built.tree / HOME).glob("bin/pip*"))
    assert not (built.tree / "root/.cache").exists()
    assert not (built.tree / "etc/pip.conf").exists()


def test_the_image_holds_what_is_pinned_and_no_more(built: image.Image) -> None:
    """The distributions in the image are those of requirements.txt, in those versions, and this one."""
    pinned = re.findall(
        r"^([a-z0-9.-]+)==([^ ]+) (?:\\|;.*)$", (image.ROOT / "requirements.txt").read_text(), re.MULTILINE
    )
    (site,) = (built.tree / HOME).glob("lib/python3.*/site-packages")
    found = {_name(path.name.split("-")[0]): path.name.split("-")[1] for path in site.glob("*.dist-info")}
    versions = {name: version.removesuffix(".dist") for name, version in found.items()}
    wanted = {_name(name): version for name, version in pinned} | {"kubegpu_exporter": __version__}
    assert versions == {name: f"{version}" for name, version in wanted.items()}


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "_", text).lower()


def test_files_are_not_the_users(built: image.Image) -> None:
    """The image's user owns none of the program's files and can write none; no program gains rights."""
    user = int(built.user.split(":")[0])
    assert user != 0
    wrong = []
    for path in [built.tree / HOME, *(built.tree / HOME).rglob("*")]:
        status = path.lstat()
        writable = not stat.S_ISLNK(status.st_mode) and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if status.st_uid == user or writable or status.st_mode & (stat.S_ISUID | stat.S_ISGID):
            wrong.append(path)
    assert wrong == []


def test_modules_are_compiled_for_a_read_only_file_system(built: image.Image) -> None:
    """Each module of ours has byte code that Python takes without looking at times."""
    (package,) = (built.tree / HOME).glob("lib/python3.*/site-packages/exporter")
    modules = list(package.rglob("*.py"))
    assert len(modules) > 50
    for module in modules:
        (code,) = (module.parent / "__pycache__").glob(f"{module.stem}.cpython-*.pyc")
        assert code.read_bytes()[4:8] == b"\x01\x00\x00\x00", code  # PEP 552: hash-based, unchecked


def test_what_an_engine_is_told(built: image.Image) -> None:
    """Labels, port, stop signal and entry point, and no variable that asks a runtime for GPUs."""
    label = "org.opencontainers.image"
    assert built.labels[f"{label}.version"] == __version__
    assert built.labels[f"{label}.source"] == "https://github.com/kubegpu/kubegpu-exporter"
    assert built.labels[f"{label}.licenses"] == "Apache-2.0"
    assert built.labels[f"{label}.base.name"] == dockerfile.stages(TEXT)["image"].base
    assert built.ports == ("9836",)
    assert built.stop_signal == "SIGTERM"
    assert built.entrypoint == (f"/{HOME}/bin/kubegpu-exporter",)
    assert (built.tree / HOME / "bin/kubegpu-exporter").read_text().startswith(f"#!/{HOME}/bin/python\n")
    assert not [name for name in built.env if name.startswith("NVIDIA_")]


def test_the_wheel_is_the_same_wherever_it_is_built(
    builder: image.Builder, base_tree: Path, tmp_path: Path
) -> None:
    """Two builds give the same bytes, though times, modes and the order of the checkout's files differ."""
    context = tmp_path / "context"
    context.mkdir()
    for name in reversed(CONTEXT):
        shutil.copyfile(image.ROOT / name, context / name)
    shutil.copytree(image.ROOT / "deploy/image", context / "deploy/image")
    shutil.copytree(image.ROOT / "exporter", context / "exporter")
    for number, path in enumerate(sorted(context.rglob("*"), reverse=True)):
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
        path.chmod(0o700 if path.is_dir() else 0o600)
    first = builder.stage("wheel").tree
    second = image.Builder(base_tree, tmp_path / "again", context).stage("wheel").tree
    assert [path.name for path in first.iterdir()] == [f"kubegpu_exporter-{__version__}-py3-none-any.whl"]
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()


def test_the_context_is_what_the_dockerfile_copies() -> None:
    """.dockerignore lets through what is copied; no repository, environment or byte code."""
    ignored = image.Ignored((image.ROOT / ".dockerignore").read_text())
    for step in dockerfile.instructions(TEXT):
        if step.name == "COPY" and not step.flags:
            for source in step.words()[:-1]:
                assert not ignored.hides(source, (image.ROOT / source).is_dir()), source
    for path in (".git/config", ".venv/bin/python", "tests/conftest.py", "deploy/helm", "build/base"):
        assert ignored.hides(path), path
    assert ignored.hides("exporter/__pycache__/model.cpython-311.pyc")


def test_bases_are_pinned_and_the_same() -> None:
    """The stage that installs and the stage that runs have one base: byte code and links must fit."""
    stages = dockerfile.stages(TEXT)
    bases = {stage.base for stage in stages.values()} - set(stages) - {"scratch"}
    assert len(bases) == 1
    assert image.BASE.fullmatch(bases.pop())
    assert list(stages)[-1] == "image"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("FROM scratch AS one\nHEALTHCHECK CMD true", "HEALTHCHECK"),
        ("FROM scratch AS one\nrun true", "run"),
        ("FROM scratch AS one\nRUN --mount=type=cache,target=/x true", "--mount"),
        ("FROM scratch AS one\nCOPY --chown=1 a b", "--chown"),
        ("FROM scratch AS one\nRUN <<END\ntrue\nEND", "here-documents"),
        ("FROM scratch", "name of its own"),
        ("RUN true", "before the first FROM"),
        ("FROM scratch AS one\nRUN true \\", "continued"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, what: str) -> None:
    """No instruction, flag or form is passed over: a step that was skipped would be a lie."""
    with pytest.raises(dockerfile.Unknown, match=re.escape(what)):
        dockerfile.stages(text)


def test_variables_must_be_known(tmp_path: Path) -> None:
    """A variable that is not set, and a form of one that is not understood, end the build."""
    with pytest.raises(dockerfile.Unknown, match="NOPE"):
        dockerfile.expand("a${NOPE}", {}, 1)
    with pytest.raises(dockerfile.Unknown, match="substitution"):
        dockerfile.expand("${A:-b}", {"A": "1"}, 1)


def test_a_step_that_fails_ends_the_build(base_tree: Path, tmp_path: Path) -> None:
    """The build stops at the step, and says which it was."""
    (tmp_path / "Dockerfile").write_text(
        "FROM python:3.11.14-slim-bookworm AS one\nRUN echo so it goes; exit 3\n"
    )
    (tmp_path / ".dockerignore").write_text("*\n")
    with pytest.raises(image.BuildError, match=r"exit 3\nended with 3:\nso it goes"):
        image.Builder(base_tree, tmp_path / "trees", tmp_path).stage("one")
