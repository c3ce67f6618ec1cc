"""Settings: argv, environment and file in, one frozen `Settings` out.

The only package that reads a command line, an environment or a configuration file. One field in `fields` is
one setting; `values` reads its text, `table` names it, `reading` merges flag, environment, file and default.
It never changes a value silently: what it cannot take is a `SettingsError` naming field, value and remedy.
"""

from exporter.settings.fields import (
    CollectorSettings,
    KubeletSettings,
    KubernetesSettings,
    LimitsSettings,
    LogFormat,
    LogLevel,
    LogSettings,
    NvmlSettings,
    PathSettings,
    Settings,
    WebSettings,
)
from exporter.settings.reading import Command, SettingsError, load_yaml, parse
from exporter.settings.table import PROGRAM, SettingDoc, help_text, reference
from exporter.settings.values import ListenAddress, format_duration, parse_duration

__all__ = [
    "PROGRAM",
    "CollectorSettings",
    "Command",
    "KubeletSettings",
    "KubernetesSettings",
    "LimitsSettings",
    "ListenAddress",
    "LogFormat",
    "LogLevel",
    "LogSettings",
    "NvmlSettings",
    "PathSettings",
    "SettingDoc",
    "Settings",
    "SettingsError",
    "WebSettings",
    "format_duration",
    "help_text",
    "load_yaml",
    "parse",
    "parse_duration",
    "reference",
]
