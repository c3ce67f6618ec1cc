"""The table of settings, from the fields: names, defaults, help text and reference."""

import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from exporter.diagnosis import RULES
from exporter.model import FindingName
from exporter.settings.fields import Metavar, Settings
from exporter.settings.values import format_duration, format_size

PROGRAM = "kubegpu-exporter"
ENV_PREFIX = "KUBEGPU_"
AGES = ("rules", "ages")  # where the ages are; there is one for each kind of finding
AGE_FLAG = "--rules.<finding>.<kind>.age"
AGE_ENV = "KUBEGPU_RULES_<FINDING>_<KIND>_AGE"
AGES_MEANING = (
    "How long a finding of this kind must hold before it counts: at least the interval, or 0 for as soon as "
    "it was seen in as many cycles as it needs. The defaults are:"
)
_FINDINGS = frozenset(FindingName)


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
        if here == AGES:
            yield from _ages()
            continue
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _fields_of(field.annotation, here)
            continue
        yield Setting(
            key=".".join(part if part in _FINDINGS else part.replace("_", "-") for part in here),
            location=here,
            boolean=field.annotation is bool,
            metavar=next(str(item) for item in field.metadata if isinstance(item, Metavar)),
            default=field.default,
            meaning=field.description or "",
        )


def _ages() -> Iterator[Setting]:
    """Findings and kinds keep their own spelling, that of the metrics."""
    for rule in RULES:
        for kind in rule.kinds:
            yield Setting(
                key=f"rules.{rule.finding}.{kind.name}.age",
                location=(*AGES, f"{rule.finding}.{kind.name}"),
                boolean=False,
                metavar="DURATION",
                default=float(kind.age),
                meaning=f"How long {rule.finding}, kind {kind.name}, must hold before it counts.",
            )


TABLE = {setting.key: setting for setting in _fields_of(Settings)}
BY_ENV = {setting.env: setting for setting in TABLE.values()}


def _default_text(setting: Setting) -> str:
    match setting.default:
        case bool(value) if setting.metavar == "on|off":
            return "on" if value else "off"
        case bool(value):
            return str(value).lower()
        case float(share) if setting.metavar == "SHARE":
            return f"{share:g}"
        case float(seconds):
            return format_duration(seconds)
        case int(size) if setting.metavar == "SIZE":
            return format_size(size)
        case None | ():
            return ""
        case value:
            return "" if setting.key == "node-name" else str(value)


def reference() -> Iterable[SettingDoc]:
    """Every setting but the ages of the findings, in the order of the help text."""
    return [_doc(setting) for setting in TABLE.values() if not is_age(setting)]


def ages() -> Iterable[SettingDoc]:
    """The ages of the findings, one for each kind."""
    return [_doc(setting) for setting in TABLE.values() if is_age(setting)]


def is_age(setting: Setting) -> bool:
    """Whether it is the age of a kind of finding."""
    return setting.location[:2] == AGES


def _doc(setting: Setting) -> SettingDoc:
    return SettingDoc(setting.flag, setting.env, _default_text(setting), setting.meaning, setting.metavar)


def help_text() -> str:
    """The text of --help."""
    lines = [
        f"Usage: {PROGRAM} [run|demo|describe|record] [--FLAG=VALUE ...]",
        "",
        "  run       serve the metrics of this node's GPUs (the default)",
        "  demo      serve the metrics of a recorded scenario; needs no GPU and no Kubernetes",
        "  describe  look once and say who is on which GPU and what is wrong; exit code 1 if anything is",
        "  record    look a few times and write what this node says of itself to the file of --output",
        "",
        "Each flag can also be set by the environment variable beside it, or in the file of --config.file.",
        "Precedence: flag, environment, file, default.",
        "",
    ]
    for doc in reference():
        lines += [f"  {doc.flag}={doc.metavar}  [{doc.env}]", *_wrapped(doc.meaning, doc.default)]
    lines += [f"  {AGE_FLAG}=DURATION  [{AGE_ENV}]", *_wrapped(AGES_MEANING)]
    for rule in RULES:
        kinds = ", ".join(f"{kind.name} {format_duration(kind.age)}" for kind in rule.kinds)
        lines += textwrap.wrap(
            f"{rule.finding}: {kinds}", 96, initial_indent=" " * 8, subsequent_indent=" " * 10
        )
    lines += ["  --version", "      Print the version.", "  -h, --help", "      Print this text."]
    return "\n".join(lines) + "\n"


def _wrapped(meaning: str, default: str = "") -> list[str]:
    text = f"{meaning} Default: {default}" if default else meaning
    return textwrap.wrap(text, 96, initial_indent=" " * 6, subsequent_indent=" " * 6)
