"""The project's image, built without an image engine: the Dockerfile's own steps, run in plain file trees.

In: the Dockerfile, the build context, a tree that stands in for the base image. Out: for each target a tree
and the configuration that an engine would store with it. A step that is not understood ends the build.

What stands in for `python:*-slim-bookworm` is Debian bookworm with Debian's own Python 3.11, made by
mmdebstrap: the same distribution and minor version, another build of Python, without the pip that the real
one has. `python` is put where the real one has it. Run as root: trees are entered with chroot.

Where packages come from is the machine's business: pip's settings, its certificates and the resolver are
passed into the trees while steps run, and taken out again.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.deploy import dockerfile

ROOT = Path(__file__).parents[2]
BASE = re.compile(r"python:3\.11\.\d+-slim-bookworm")  # what the stand-in may stand in for
DEBIAN = ("apt", "ca-certificates", "python3", "python3-venv")  # apt: with its libraries, as in the real one
SHELL = ("/bin/sh", "-c")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Settings of the machine's pip and of its way out, which steps may use and trees never keep.
PASSED = re.compile(
    r"PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|CERT|PROXY|DEFAULT_TIMEOUT)|(?i:https?|no)_proxy"
)


class BuildError(Exception):
    """A step that ended badly: the step and the end of what it said."""


@dataclass(frozen=True, slots=True)
class Image:
    """A tree, and what an engine would store with it."""

    tree: Path
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0:0"
    ports: tuple[str, ...] = ()
    stop_signal: str = "SIGTERM"
    entrypoint: tuple[str, ...] = ()
    args: Mapping[str, str] = field(default_factory=dict)  # of this stage; not stored

    def command(self, *arguments: str) -> list[str]:
        """How the image runs on this machine: its entry point in its tree as its user, without a shell."""
        return self.exec(*self.entrypoint, *arguments)

    def exec(self, *argv: str) -> list[str]:
        """`argv` in the image as its user."""
        env = [f"{key}={value}" for key, value in self.env.items()]
        return ["chroot", f"--userspec={self.user}", str(self.tree), "env", "-i", *env, *argv]


def base(tree: Path) -> Path:
    """The stand-in for the base image, made in `tree` unless it is there."""
    made = tree.with_suffix(".made")
    if made.exists() and made.read_text() == " ".join(DEBIAN):
        return tree
    tree.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{tree.name}-", dir=tree.parent) as folder:
        new = Path(folder, "tree")
        include = f"--include={','.join(DEBIAN)}"
        _run(["mmdebstrap", "--quiet", "--variant=essential", include, "bookworm", str(new)], "mmdebstrap")
        (new / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        shutil.rmtree(tree, ignore_errors=True)
        new.rename(tree)
    made.write_text(" ".join(DEBIAN))
    return tree


class Builder:
    """Builds stages of the Dockerfile in `context`, each once, as trees below `folder`."""

    def __init__(
        self, base_tree: Path, folder: Path, context: Path = ROOT, args: Mapping[str, str] | None = None
    ) -> None:
        self._stages = dockerfile.stages((context / "Dockerfile").read_text())
        self._base = base_tree
        self._folder = folder
        self._context = context
        self._args = args or {}
        self._built: dict[str, Image] = {}

    def stage(self, name: str) -> Image:
        """One stage, or target, and first what it is made of."""
        if name not in self._stages:
            raise BuildError(f"no stage {name}; there are {', '.join(self._stages)}")
        if name not in self._built:
            stage = self._stages[name]
            image = self._start(stage.base, self._folder / name)
            for step in stage.steps:
                image = self._step(image, step)
            self._built[name] = image
        return self._built[name]

    def _start(self, base_name: str, tree: Path) -> Image:
        if base_name == "scratch":
            tree.mkdir(parents=True)
            return Image(tree)
        if base_name in self._stages:
            image = self.stage(base_name)
            _copy_tree(image.tree, tree)
            return replace(image, tree=tree)
        if not BASE.fullmatch(base_name):
            raise BuildError(f"{base_name}: nothing here stands in for it")
        _copy_tree(self._base, tree)
        return Image(tree, env={"PATH": PATH})

    def _step(self, image: Image, step: dockerfile.Instruction) -> Image:
        known = {**image.args, **image.env}
        match step.name:
            case "ARG":
                name, _, default = step.text.partition("=")
                value = self._args.get(name, dockerfile.expand(default, known, step.line))
                return replace(image, args={**image.args, name: value})
            case "ENV":
                return replace(image, env={**image.env, **step.pairs(known)})
            case "LABEL":
                return replace(image, labels={**image.labels, **step.pairs(known)})
            case "WORKDIR":
                path = os.path.join(image.workdir, dockerfile.expand(step.text, known, step.line))
                _inside(image.tree, path).mkdir(parents=True, exist_ok=True)
                return replace(image, workdir=path)
            case "USER":
                return replace(image, user=step.text)
            case "EXPOSE":
                return replace(image, ports=(*image.ports, *step.words()))
            case "STOPSIGNAL":
                return replace(image, stop_signal=step.text)
            case "ENTRYPOINT":
                words = step.words() if step.is_exec else [*SHELL, step.text]
                return replace(image, entrypoint=tuple(words))
            case _:
                self._write(image, step)
                return image

    def _write(self, image: Image, step: dockerfile.Instruction) -> None:
        match step.name:
            case "COPY":
                self._copy(image, step)
            case "RUN":
                self._execute(image, step)
            case _:
                raise dockerfile.Unknown(f"line {step.line}: {step.name} is not carried out")

    def _copy(self, image: Image, step: dockerfile.Instruction) -> None:
        *sources, destination = step.words()
        target = _inside(image.tree, os.path.join(image.workdir, destination))
        into = destination.endswith("/") or len(sources) > 1
        for source in sources:
            if "from" in step.flags:
                found = _inside(self.stage(step.flags["from"]).tree, source)
                ignored = None
            else:
                found = self._context / source
                ignored = Ignored((self._context / ".dockerignore").read_text())
            if any(sign in source for sign in "*?["):
                raise dockerfile.Unknown(f"line {step.line}: patterns of COPY are not understood")
            if not found.exists() or (ignored and ignored.hides(source, found.is_dir())):
                raise BuildError(f"line {step.line}: {source} is not there, or .dockerignore hides it")
            if found.is_dir():
                _copy_folder(found, target, self._context, ignored)
            else:
                to = target / found.name if into else target
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(found, to)

    def _execute(self, image: Image, step: dockerfile.Instruction) -> None:
        argv = step.words() if step.is_exec else [*SHELL, step.text]
        passed = {name: value for name, value in os.environ.items() if PASSED.fullmatch(name)}
        env = {**passed, "HOME": "/root", **image.args, **image.env}
        with _way_out(image.tree, passed):
            command = ["env", "-i", *(f"{key}={value}" for key, value in env.items())]
            inside = ["env", f"--chdir={image.workdir}", *argv]
            _run(["chroot", f"--userspec={image.user}", str(image.tree), *command, *inside], step.text)


class Ignored:
    """The patterns of a .dockerignore: the last one that matches decides."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self._rules = [
            (line.startswith("!"), line.removeprefix("!").strip("/"))
            for line in lines
            if line and not line.startswith("#")
        ]

    def hides(self, path: str, folder: bool = False) -> bool:
        """Whether this path of the context stays behind. A folder above a wanted path is not hidden."""
        hidden = False
        for wanted, pattern in self._rules:
            if any(_matches(pattern, part) for part in _upwards(path)):
                hidden = not wanted
            elif wanted and folder and pattern.startswith(f"{path}/"):
                hidden = False
        return hidden


def _upwards(path: str) -> Iterator[str]:
    parts = path.split("/")
    for count in range(1, len(parts) + 1):
        yield "/".join(parts[:count])


def _matches(pattern: str, path: str) -> bool:
    if pattern.startswith("**/"):
        return "/" not in pattern[3:] and fnmatch.fnmatchcase(path.rsplit("/", 1)[-1], pattern[3:])
    if "**" in pattern:
        raise dockerfile.Unknown(f".dockerignore: {pattern} is not understood")
    parts, names = pattern.split("/"), path.split("/")
    return len(parts) == len(names) and all(map(fnmatch.fnmatchcase, names, parts))


def _copy_folder(source: Path, target: Path, context: Path, ignored: Ignored | None) -> None:
    """The contents of a folder, as COPY takes them."""

    def left_out(folder: str, names: list[str]) -> set[str]:
        if ignored is None:
            return set()
        paths = {name: Path(folder, name) for name in names}
        return {n for n, p in paths.items() if ignored.hides(str(p.relative_to(context)), p.is_dir())}

    shutil.copytree(source, target, symlinks=True, ignore=left_out, dirs_exist_ok=True)


def _copy_tree(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    _run(["cp", "--archive", "--reflink=auto", str(source), str(target)], "cp")


def _inside(tree: Path, path: str) -> Path:
    return tree / path.lstrip("/")


@contextmanager
def _way_out(tree: Path, passed: Mapping[str, str]) -> Iterator[None]:
    """The machine's resolver and certificates in the tree, for as long as a step runs; then as it was."""
    files = [Path("/etc/resolv.conf"), Path(passed.get("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt"))]
    with tempfile.TemporaryDirectory() as kept:
        saved: list[tuple[Path, Path | None]] = []
        for number, file in enumerate(files):
            inside = _inside(tree, str(file))
            before = Path(kept, str(number)) if inside.exists() else None
            if before:
                shutil.copy2(inside, before)
            inside.parent.mkdir(parents=True, exist_ok=True)
            if file.exists():
                shutil.copyfile(file, inside)
            saved.append((inside, before))
        try:
            yield
        finally:
            for inside, before in saved:
                inside.unlink(missing_ok=True)
                if before:
                    shutil.copy2(before, inside)


def _run(argv: list[str], step: str) -> None:
    result = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        said = re.sub(r"https?://[^\s'\"]+", "URL", result.stdout[-1500:] + result.stderr[-1500:])
        raise BuildError(f"{step}\nended with {result.returncode}:\n{said}")
