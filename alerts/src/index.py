"""The tables of alerts/README.md: a page with marks goes in, the page with tables comes out. Pure."""

from __future__ import annotations

from alerts.src import files, recording
from alerts.src.config import Config
from alerts.src.rule import Alert, Language, Record
from alerts.src.values import duration


def page(text: str, config: Config) -> str:
    """The page with what stands between the marks written anew."""
    for name, table in (("alerts", _alerts(config)), ("records", _records(config))):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, found, rest = text.partition(begin)
        if found:
            text = f"{head}{begin}\n{table}\n{end}{rest.partition(end)[2]}"
    return text


def _alerts(config: Config) -> str:
    lines = ["| alert | severity | for | keeps firing for | means |", "| --- | --- | --- | --- | --- |"]
    for group in files.alerting(config):
        for rule in group.rules:
            if isinstance(rule, Alert):
                link = f"[{rule.name}](runbooks/{rule.name.lower()}.md)"
                times = f"{duration(rule.hold)} | {duration(rule.keep)}"
                lines.append(f"| {link} | {rule.severity} | {times} | {rule.summary} |")
    return "\n".join(lines) + "\n"


def _records(config: Config) -> str:
    lines = ["| series | is |", "| --- | --- |"]
    for group in recording.groups(Language(config)):
        lines += [f"| `{rule.name}` | {rule.meaning} |" for rule in group.rules if isinstance(rule, Record)]
    return "\n".join(lines) + "\n"
