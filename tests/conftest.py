"""What the tests need of the machine, and what happens on one that cannot give it.

As root on Linux nothing is skipped: what cannot be built fails, and the error names what is missing. Anyone
else gets what needs neither root nor a missing program; the rest is skipped, each test by name and with its
reason. What a test needs is found from what it and its fixtures use, so that no list can fall behind.
"""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.rig.nvml import build as nvml_build

ROOT = Path(__file__).parents[1]
COMMAND = "kubegpu-exporter"
# What mounts, makes device nodes or control groups, or changes its root.
PRIVILEGED = {
    *(f"tests.rig.{name}" for name in ("rig", "mounts", "devices", "cgroups", "proc", "proctree")),
    "tests.deploy.image",
}
# What modules of the tests need: to be compiled, or to start servers.
WANTED = {
    "tests.rig.nvml.build": ("gcc", "libc6-dev", "libcjson-dev"),
    "tests.rig.holder": ("gcc", "libc6-dev"),
    "tests.monitoring.servers": ("prometheus", "prometheus-alertmanager"),
    "tests.dashboards.site": ("prometheus",),
    "tests.alerts.promtool": ("prometheus",),
}
COMMANDS = {
    "promtool": "prometheus",
    "amtool": "prometheus-alertmanager",
    "openssl": "openssl",
    "ps": "procps",
}
# How to see that a Debian package is there, without asking dpkg: other distributions have the same files.
PRESENT: dict[str, Callable[[], bool]] = {
    "gcc": lambda: shutil.which("gcc") is not None,
    "libc6-dev": lambda: Path("/usr/include/stdio.h").exists(),
    "libcjson-dev": lambda: Path("/usr/include/cjson/cJSON.h").exists(),
    "openssl": lambda: shutil.which("openssl") is not None,
    "procps": lambda: shutil.which("ps") is not None,
    "prometheus": lambda: shutil.which("promtool") is not None,
    "prometheus-alertmanager": lambda: shutil.which("amtool") is not None,
}


# ---------------------------------------------------------------- what a test needs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this user cannot run; root on Linux runs everything."""
    if sys.platform == "linux" and os.geteuid() == 0:
        return
    missing = {package for package, present in PRESENT.items() if not present()}
    for item in items:
        if isinstance(item, pytest.Function) and (reason := _obstacle(item, missing)):
            item.add_marker(pytest.mark.skip(reason=reason))


def _obstacle(item: pytest.Function, missing: set[str]) -> str:
    """Why a test cannot run here, or nothing."""
    modules, words = _reach(item)
    if modules & PRIVILEGED:
        return "needs root"
    wanted = {package for module in modules for package in WANTED.get(module, ())}
    wanted |= {package for command, package in COMMANDS.items() if command in words}
    if lacking := sorted(wanted & missing):
        return f"needs the Debian package {', '.join(lacking)}"
    return ""


def _reach(item: pytest.Function) -> tuple[set[str], set[str]]:
    """Modules of everything that a test and its fixtures name, and the words that they contain."""
    modules: set[str] = set()
    words: set[str] = set()
    queue = [item.function, *_fixtures(item)]
    seen: set[int] = set()
    while queue:
        function = inspect.unwrap(queue.pop())
        if not isinstance(function, FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        for code in _codes(function.__code__):
            words.update(word for const in code.co_consts if isinstance(const, str) for word in [const])
            for name in code.co_names:
                found = function.__globals__.get(name)
                modules.add(str(getattr(found, "__module__", None) or getattr(found, "__name__", "")))
                if isinstance(found, FunctionType) and found.__module__ == function.__module__:
                    queue.append(found)
    return modules, words


def _fixtures(item: pytest.Function) -> Iterator[Any]:
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        for definition in definitions:
            yield definition.func


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


# ---------------------------------------------------------------- what tests share


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rig's NVML library, with every function."""
    return nvml_build.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as a release would carry it."""
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of an environment with the wheel in it, and no way to the source tree.

    The dependencies are this interpreter's: a line in a .pth file adds their directory to sys.path without
    reading the .pth files that are in it, and so without this project's editable installation.
    """
    folder = tmp_path_factory.mktemp("installed")
    _run(sys.executable, "-m", "venv", "--without-pip", folder)
    (site,) = folder.glob("lib/python*/site-packages")
    own = Path(pytest.__file__).parents[1]
    (site / "dependencies.pth").write_text(f"{own}\n")
    python = folder / "bin" / "python"
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    return python.parent


@pytest.fixture(scope="session")
def command(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The installed command, started in a directory outside the source tree."""
    return ("/usr/bin/env", f"--chdir={tmp_path_factory.mktemp('elsewhere')}", str(installed / COMMAND))


def _run(*argv: str | Path) -> None:
    result = subprocess.run(
        [str(word) for word in argv], capture_output=True, text=True, check=False, cwd="/"
    )
    if result.returncode != 0:
        pytest.fail(f"{' '.join(map(str, argv))}\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
