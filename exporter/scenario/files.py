"""Scenario files: found by name or path, parsed, and refused in a line that names field, value and remedy."""

from __future__ import annotations

import re
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from exporter.codec import CodecError
from exporter.scenario import frames
from exporter.scenario.replay import Scenario

DEFAULT = "healthy-node"
FILE = "frames.yaml"
SETTING = "--demo.scenario"


class ScenarioError(Exception):
    """A scenario that cannot be replayed. The text is one line: field, value and remedy."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(" ".join(f"{SETTING}: {where}: {problem}".split()))


def shipped() -> tuple[str, ...]:
    """Names of the scenarios that come with the package."""
    return tuple(sorted(folder.name for folder in _shipped().iterdir() if folder.joinpath(FILE).is_file()))


def load(name_or_path: str | None) -> Scenario:
    """A shipped scenario by name (None: the default), or that of a folder or file. Raises ScenarioError."""
    name = name_or_path or DEFAULT
    place: Traversable = _shipped() / name if name in shipped() else Path(name)
    if isinstance(place, Path) and not place.exists():
        known = ", ".join(shipped())
        raise ScenarioError(
            repr(name), f"no shipped scenario and no such path; shipped are {known}, else give a folder"
        )
    file = place.joinpath(FILE) if place.is_dir() else place
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ScenarioError(repr(str(file)), f"{error.strerror}; a scenario has a {FILE}") from error
    title = place.name if place.is_dir() else Path(name).absolute().parent.name
    shown = name if name in shipped() else str(file)
    try:
        return frames.read(title, yaml.load(text, _Loader))  # noqa: S506 - it is a SafeLoader
    except yaml.YAMLError as error:
        raise ScenarioError(shown, f"{error}; correct the YAML") from error
    except CodecError as error:
        raise ScenarioError(shown, f"{error.where.lstrip('.')}: {error.problem}") from error


def _shipped() -> Traversable:
    return resources.files("exporter") / "scenarios"


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain scalars, sizes, and no key twice.

    In YAML 1.1 `off` would be no text, and the PCI address 0000:01:00.0 a number.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Looked at before merge keys put more into it."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        keys = set()
        for key, _ in node.value:
            if key.value in keys:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} stands twice", problem_mark=key.start_mark)
            keys.add(key.value)
        return node


def _size(loader: yaml.SafeLoader, node: Any) -> int:
    text = str(loader.construct_scalar(node))
    return int(float(text[:-3]) * 2 ** {"KiB": 10, "MiB": 20, "GiB": 30}[text[-3:]])


def _float(loader: yaml.SafeLoader, node: Any) -> float:
    return float(str(loader.construct_scalar(node)))


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:merge", r"<<", "<"),
    ("tag:yaml.org,2002:null", r"null|", ["n", ""]),
    ("tag:yaml.org,2002:bool", r"true|false", "tf"),
    ("tag:yaml.org,2002:int", r"-?(?:0|[1-9][0-9_]*)", "-0123456789"),
    ("tag:yaml.org,2002:float", r"-?[0-9]+(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)", "-0123456789"),
    ("!size", r"[0-9]+(?:\.[0-9]+)?[KMG]iB", "0123456789"),
):
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), list(_first))
_Loader.add_constructor("!size", _size)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)
