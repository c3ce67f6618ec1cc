"""docs/architecture.md and the tree name the same modules."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()


def modules() -> set[str]:
    """Every module of the package, and every package below it with a slash, as the page may name them."""
    found = set()
    for path in (ROOT / "exporter").rglob("*"):
        inside = path.relative_to(ROOT / "exporter")
        if "__pycache__" in inside.parts or "scenarios" in inside.parts[:-1]:
            continue
        if path.is_dir() or (path.suffix == ".py" and path.name != "__init__.py"):
            found.add(path.name + ("/" if path.is_dir() else ""))
    return found


def test_every_module_is_named() -> None:
    """A new module gets a line in the page."""
    named = set(re.findall(r"`(?:[a-z_]+/)*([a-z_]+(?:\.py|/))`", PAGE))
    generated = {"podresources_pb2.py"}
    assert modules() - named - generated == {"sources/"} - named


def test_every_named_module_exists() -> None:
    """The page speaks of nothing that is gone."""
    named = set(re.findall(r"`((?:exporter/)?(?:[a-z_]+/)*[a-z_]+\.py)`", PAGE))
    names = modules()
    assert {name for name in named if name.rsplit("/", 1)[-1] not in names} == set()
    assert {name for name in named if name.startswith("exporter/") and not (ROOT / name).exists()} == set()


def test_every_folder_of_tests_is_run() -> None:
    """None is forgotten in the order of pyproject.toml; the cluster's is a run of its own."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]
    listed = (settings.get("ini_options") or settings)["testpaths"]
    folders = {f"tests/{path.parent.name}" for path in ROOT.glob("tests/*/test_*.py")}
    assert set(listed) == folders - {"tests/cluster", "tests/bench"}
