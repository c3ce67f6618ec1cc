"""Reading: argv, environment and file in, `Settings` out.

Precedence: flag, environment, file, default. Nothing is taken silently: an unknown flag, variable or key,
and a value that a field refuses, is a `SettingsError` naming the field as it was written, value and remedy.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_settings import InitSettingsSource

from exporter.diagnosis import RULES
from exporter.settings.fields import Output, Settings
from exporter.settings.table import BY_ENV, ENV_PREFIX, TABLE, Setting, is_age
from exporter.settings.values import BOOLEANS, format_duration, node_name

# A Service called kubegpu or kubegpu-anything makes Kubernetes set these in every pod of its namespace.
_SERVICE_LINK = re.compile(
    r"KUBEGPU_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
# The downward API's usual name for the node's name; a flag or KUBEGPU_NODE_NAME overrides it.
_NODE_NAME_ENV = "NODE_NAME"


class SettingsError(Exception):
    """A setting that cannot be taken. The text is one line: field, value and remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


class Command(StrEnum):
    """What the command line asks for."""

    RUN = "run"
    DEMO = "demo"
    DESCRIBE = "describe"
    RECORD = "record"
    HELP = "help"
    VERSION = "version"


# A layer maps the key of a setting to its text and to its name in the user's words.
_Layer = dict[str, tuple[str, str]]


def parse(argv: Sequence[str], environ: Mapping[str, str], hostname: str) -> tuple[Command, Settings]:
    """The command and its settings. Raises SettingsError, with the one line that the user is to read.

    `argv` is without the program's name. With --help or --version nothing else is read.
    """
    for flag, command in (("-h", Command.HELP), ("--help", Command.HELP), ("--version", Command.VERSION)):
        if flag in argv:
            return command, Settings()
    command, flags = _read_argv(argv)
    variables = _read_environ(environ)
    named = (variables | flags).get("config.file")
    # Built once with the file's name alone, so that a file that cannot be read is refused under that name.
    path = _build([{"config.file": named}]).config.file if named else None
    file = _read_file(path) if path else {}
    settings = _build([flags, variables, file, _host(hostname)])
    _check_output(command, settings)
    return command, settings


def _check_output(command: Command, settings: Settings) -> None:
    """One flag for two commands: what the other one takes is refused."""
    if command is Command.RECORD and isinstance(settings.output, Output):
        raise SettingsError(f"--output: {str(settings.output)!r} is no file; give --output=NAME.json.gz")
    if command is Command.DESCRIBE and not isinstance(settings.output, Output):
        raise SettingsError(f"--output: {str(settings.output)!r} is no form; give one of text, json")


def _host(hostname: str) -> _Layer:
    """The kubelet's own default: the host name in lower case. One that no node can have is left out."""
    name = hostname.lower()
    try:
        node_name(name)
    except ValueError:
        return {}
    return {"node-name": (name, "host name")}


def _read_argv(argv: Sequence[str]) -> tuple[Command, _Layer]:
    command: Command | None = None
    layer: _Layer = {}
    rest = list(argv)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("-"):
            if command is not None:
                raise SettingsError(f"{argument}: is one argument too many; give flags as --FLAG=VALUE")
            command = _command(argument)
            continue
        flag, equals, value = argument.partition("=")
        setting = TABLE.get(flag[2:]) if flag.startswith("--") else None
        if setting is None:
            raise SettingsError(f"{flag}: unknown flag; {_suggest_flag(flag)}")
        if not equals:
            value = _next_value(setting, rest)
        layer[setting.key] = (value, flag)
    return command or Command.RUN, layer


def _command(word: str) -> Command:
    if word not in (Command.RUN, Command.DEMO, Command.DESCRIBE, Command.RECORD):
        raise SettingsError(f"{word}: unknown command; give run, demo, describe or record")
    return Command(word)


def _next_value(setting: Setting, rest: list[str]) -> str:
    """The value of a flag without =: the next argument; a bare boolean is true."""
    if setting.boolean:
        return rest.pop(0) if rest and rest[0].lower() in BOOLEANS else "true"
    if not rest or rest[0].startswith("--"):
        raise SettingsError(f"{setting.flag}: has no value; give {setting.flag}={setting.metavar}")
    return rest.pop(0)


def _suggest_flag(flag: str) -> str:
    if flag.startswith("--rules."):
        return _suggest_rule(flag[2:], "--")
    name = flag.lstrip("-").replace("_", "-")
    positive = TABLE.get(name.removeprefix("no-"))
    if name.startswith("no-") and positive is not None and positive.boolean:
        return f"give {positive.flag}={positive.metavar.split('|')[1]}"
    return _suggest(name, TABLE, "--")


def _suggest_rule(name: str, prefix: str = "") -> str:
    """What there is where a finding or a kind of it was named that is not."""
    _, finding, kind, *_ = (*name.split("."), "", "")
    known = {str(rule.finding): rule for rule in RULES}
    near = known.get(finding.replace("-", "_"))
    if near is None:
        return f"give one of the findings {', '.join(known)}"
    kinds = [one.name for one in near.kinds]
    if kind in kinds or kind.replace("-", "_") in kinds:
        return f"give {prefix}rules.{near.finding}.{kind.replace('-', '_')}.age"
    thresholds = [
        key.split(".")[-1]
        for key in TABLE
        if key.startswith(f"rules.{near.finding}.") and key.count(".") == 2
    ]
    more = f", or a threshold: {', '.join(thresholds)}" if thresholds else ""
    return f"give {prefix}rules.{near.finding}.<kind>.age with one of {', '.join(kinds)}{more}"


def _suggest(name: str, known: Iterable[str], prefix: str = "") -> str:
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {prefix}{matches[0]}?" if matches else "see --help for those there are"


def _read_environ(environ: Mapping[str, str]) -> _Layer:
    layer: _Layer = {}
    if environ.get(_NODE_NAME_ENV):
        layer["node-name"] = (environ[_NODE_NAME_ENV], _NODE_NAME_ENV)
    for name in sorted(environ):
        if name in BY_ENV:
            if environ[name]:  # a manifest's empty variable is an unset one
                layer[BY_ENV[name].key] = (environ[name], name)
        elif name.startswith(ENV_PREFIX) and not _SERVICE_LINK.fullmatch(name):
            raise SettingsError(f"{name}: unknown environment variable; {_suggest(name, BY_ENV)}")
    return layer


def _read_file(path: Path) -> _Layer:
    layer: _Layer = {}
    for key, value in _flatten(load_yaml(path)):
        name = f"{path}: {key}"
        if key not in TABLE:
            rule = key.startswith("rules.")
            remedy = _suggest_rule(key) if rule else _suggest(key.replace("_", "-"), TABLE)
            raise SettingsError(f"{name}: unknown key; {remedy}")
        if key == "config.file":
            raise SettingsError(f"{name}: a file cannot name another; give --config.file={value}")
        if key in layer:
            raise SettingsError(f"{name}: given twice, nested and dotted; give it once")
        if isinstance(value, list | dict):
            raise SettingsError(f"{name}: {value!r} is not a single value; give one")
        if value is not None:
            layer[key] = (str(value).lower() if isinstance(value, bool) else str(value), name)
    return layer


def _flatten(mapping: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in mapping.items():
        if isinstance(value, dict) and value and f"{prefix}{key}" not in TABLE:
            yield from _flatten(value, f"{prefix}{key}.")
        elif not (value is None and any(known.startswith(f"{prefix}{key}.") for known in TABLE)):
            yield f"{prefix}{key}", value


class _UniqueKeys(yaml.SafeLoader):
    """Safe YAML in which a key given twice is an error, not a silent choice of the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key.value!r} is given twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def load_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; an empty file is an empty mapping. Raises SettingsError naming the file."""
    try:
        loaded = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)  # noqa: S506 (a SafeLoader)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}); give a readable file") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is not UTF-8 text; give a YAML file") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" on line {mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise SettingsError(f"{path}: is not valid YAML{line} ({problem}); correct it") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise SettingsError(f"{path}: is not a mapping of keys to values; give `key: value` lines")
    return {str(key): value for key, value in loaded.items()}


def _build(layers: Sequence[_Layer]) -> Settings:
    """The settings of these layers, the first one first."""
    given: _Layer = {}
    for layer in layers:
        given = layer | given
    sources = tuple(InitSettingsSource(Settings, _nest(layer)) for layer in layers)
    try:
        settings = Settings(_build_sources=(sources, {}))
    except ValidationError as error:
        first = error.errors()[0]
        key = next(
            key for key, setting in TABLE.items() if setting.location == first["loc"][: len(setting.location)]
        )
        text, name = given[key]
        cause = first.get("ctx", {}).get("error")
        problem = str(cause) if isinstance(cause, ValueError) else f"is refused ({first['msg']}); see --help"
        raise SettingsError(f"{name}: {text!r} {problem}") from error
    _check_ages(settings, given)
    return settings


def _check_ages(settings: Settings, given: _Layer) -> None:
    """An age under the interval would be no other than the interval; 0 says that in so many words."""
    least = settings.interval
    for key, (text, name) in given.items():
        if is_age(TABLE[key]) and 0 < settings.rules.ages[TABLE[key].location[-1]] < least:
            shown = format_duration(least)
            raise SettingsError(
                f"{name}: {text!r} is under the interval of {shown}; give {shown} or more, or 0"
            )


def _nest(layer: _Layer) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, (text, _) in layer.items():
        *groups, leaf = TABLE[key].location
        target = nested
        for group in groups:
            target = target.setdefault(group, {})
        target[leaf] = text
    return nested
