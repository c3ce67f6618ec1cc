"""The table of settings, from the fields: names, defaults, help text and reference."""

import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from exporter.settings.fields import Metavar, Settings
from exporter.settings.values import format_duration

PROGRAM = "kubegpu-exporter"
ENV_PREFIX = "KUBEGPU_"


@dataclass(frozen=True, slots=True)
class SettingDoc:
    """One setting as the reference prints it."""

    flag: str
    env: str
    default: str
    meaning: str
    metavar: str


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: how it is named everywhere, and what it is when unset."""

    key: str  # web.listen-address
    location: tuple[str, ...]  # ("web", "listen_address")
    boolean: bool
    metavar: str
    default: Any
    meaning: str

    @property
    def flag(self) -> str:
        """Its flag."""
        return f"--{self.key}"

    @property
    def env(self) -> str:
        """Its environment variable."""
        return ENV_PREFIX + re.sub("[.-]", "_", self.key).upper()


def _fields_of(model: type[BaseModel], location: tuple[str, ...] = ()) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        here = (*location, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _fields_of(field.annotation, here)
            continue
        yield Setting(
            key=".".join(here).replace("_", "-"),
            location=here,
            boolean=field.annotation is bool,
            metavar=next(str(item) for item in field.metadata if isinstance(item, Metavar)),
            default=field.default,
            meaning=field.description or "",
        )


TABLE = {setting.key: setting for setting in _fields_of(Settings)}
BY_ENV = {setting.env: setting for setting in TABLE.values()}


def _default_text(setting: Setting) -> str:
    match setting.default:
        case bool(value) if setting.metavar == "on|off":
            return "on" if value else "off"
        case bool(value):
            return str(value).lower()
        case float(seconds):
            return format_duration(seconds)
        case None:
            return ""
        case value:
            return "" if setting.key == "node-name" else str(value)


def reference() -> Iterable[SettingDoc]:
    """Every setting, in the order of the help text."""
    return [
        SettingDoc(setting.flag, setting.env, _default_text(setting), setting.meaning, setting.metavar)
        for setting in TABLE.values()
    ]


def help_text() -> str:
    """The text of --help."""
    lines = [
        f"Usage: {PROGRAM} [run|demo] [--FLAG=VALUE ...]",
        "",
        "  run    serve the metrics of this node's GPUs (the default)",
        "  demo   serve the metrics of a recorded scenario; needs no GPU and no Kubernetes",
        "",
        "Each flag can also be set by the environment variable beside it, or in the file of --config.file.",
        "Precedence: flag, environment, file, default.",
        "",
    ]
    for doc in reference():
        lines.append(f"  {doc.flag}={doc.metavar}  [{doc.env}]")
        default = f" Default: {doc.default}" if doc.default else ""
        lines += textwrap.wrap(doc.meaning + default, 96, initial_indent=" " * 6, subsequent_indent=" " * 6)
    lines += ["  --version", "      Print the version.", "  -h, --help", "      Print this text."]
    return "\n".join(lines) + "\n"
