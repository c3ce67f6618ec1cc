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
    MetricsSettings,
    NvmlSettings,
    OrphanedMemorySettings,
    Output,
    PathSettings,
    RulesSettings,
    Settings,
    WebSettings,
)
from exporter.settings.reading import Command, SettingsError, load_yaml, parse
from exporter.settings.table import (
    AGE_ENV,
    AGE_FLAG,
    AGES_MEANING,
    PROGRAM,
    SettingDoc,
    ages,
    help_text,
    reference,
)
from exporter.settings.values import ListenAddress, format_duration, format_size, parse_duration

__all__ = [
    "AGES_MEANING",
    "AGE_ENV",
    "AGE_FLAG",
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
    "MetricsSettings",
    "NvmlSettings",
    "OrphanedMemorySettings",
    "Output",
    "PathSettings",
    "RulesSettings",
    "SettingDoc",
    "Settings",
    "SettingsError",
    "WebSettings",
    "ages",
    "format_duration",
    "format_size",
    "help_text",
    "load_yaml",
    "parse",
    "parse_duration",
    "reference",
]
