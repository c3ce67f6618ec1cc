"""Runbooks and README: complete, linked, and with commands and expressions that are right."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path

import pytest
import yaml

from alerts.src import files
from alerts.src.config import parse
from tests.alerts import expressions
from tests.alerts.rulebook import alerts, known

HOME = Path(__file__).parents[2] / "alerts"
RUNBOOKS = HOME / "runbooks"
SECTIONS = ("Meaning", "Impact", "Diagnosis", "Mitigation", "Prevention")
REWRITTEN = {"exported_pod", "pod"}


def _pages() -> list[Path]:
    return sorted(RUNBOOKS.glob("*.md"))


PAGES = [*_pages(), HOME / "README.md"]


def _name(page: Path) -> str:
    return str(page.relative_to(HOME))


def _headings(page: Path) -> list[str]:
    return re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    """One page for each alert, by its name in lower case; beside them the index and the incidents."""
    names = {rule.name.lower() for rule in alerts()}
    others = {"README", "incident-mig-phantom", "incident-wrong-gpu"}
    assert {page.stem for page in _pages()} == names | others


@pytest.mark.parametrize("name", sorted({rule.name for rule in alerts()}))
def test_runbook_is_complete(name: str) -> None:
    """A runbook is titled by its alert, says first what is going on and what to do, and has every section."""
    text = (RUNBOOKS / f"{name.lower()}.md").read_text()
    assert text.startswith(f"# {name}\n\n**What is going on:** ")
    before = text.partition("\n## ")[0]
    assert "\n**First:** " in before
    assert tuple(_headings(RUNBOOKS / f"{name.lower()}.md")) == SECTIONS
    diagnosis = text.partition("## Diagnosis")[2].partition("## Mitigation")[0]
    assert "```" in diagnosis, "no command to run"


def test_index_names_every_page() -> None:
    """The index links to each page."""
    text = (RUNBOOKS / "README.md").read_text()
    for page in _pages():
        if page.stem != "README":
            assert f"({page.name})" in text, page.name


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_resolve(page: Path) -> None:
    """A link leads to a file that exists, and to a heading that it has."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert anchor in {_anchor(heading) for heading in headings}, target


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_expressions_in_pages(page: Path) -> None:
    """What a page gives to paste into Prometheus parses, and names metrics and labels that exist."""
    labels_of = known()
    for block in re.findall(r"```promql\n(.*?)```", page.read_text(), re.DOTALL):
        for expr in re.split(r"\n\n+", block.strip()):
            for metric, labels in expressions.selectors(expr).items():
                # One page shows what a wrong scrape makes of the labels.
                extra = REWRITTEN if "labelsrewritten" in page.stem else set()
                assert labels <= labels_of[metric] | extra, (metric, labels - labels_of[metric])


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_flags_and_commands_in_pages(page: Path) -> None:
    """A shell block parses, and a flag of the exporter that a page names exists."""
    text = page.read_text()
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        said = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stderr
    settings = (HOME.parent / "docs" / "settings.md").read_text()
    for flag in re.findall(r"`(--[a-z][\w.<>-]+)", text):
        if flag.startswith(("--rules.", "--limits.", "--collector.", "--metrics.", "--path.", "--pause")):
            assert flag.partition("=")[0] in settings or re.match(r"--rules\.\w+\.\w+\.age", flag), flag


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_yaml_in_pages(page: Path, tmp_path: Path) -> None:
    """A YAML block is a piece of alerts/config.yaml or of Prometheus' configuration, and valid."""
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
        data = yaml.safe_load(textwrap.dedent(block))
        if "rule_files" not in data:
            parse(data, files.names())
            continue
        path = tmp_path / "prometheus.yml"
        path.write_text(textwrap.dedent(block))
        said = subprocess.run(
            ["promtool", "check", "config", "--syntax-only", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert said.returncode == 0, said.stderr
