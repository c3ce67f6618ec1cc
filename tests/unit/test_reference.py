from pathlib import Path

import pytest

from exporter import reference, settings
from exporter.catalog import FAMILIES
from exporter.diagnosis import RULES
from exporter.diagnosis.rule import EVIDENCE, Evidence
from tests import cases_table

ROOT = Path(__file__).parents[2]


def table_rows(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if line.startswith("| ")
    ]


def test_every_family_is_in_the_reference_once() -> None:
    text = reference.metrics()
    named = [row[0].split("`")[1] for row in table_rows(text) if row[0].startswith("`")]
    assert sorted(named) == sorted(family.full_name for family in FAMILIES)
    for family in FAMILIES:
        assert family.help in text


@pytest.mark.parametrize("subject", ["metrics", "settings", "findings"])
def test_the_reference_in_the_repository_is_current(subject: str) -> None:
    committed = (ROOT / "docs" / f"{subject}.md").read_text()
    printed = reference.PRINTERS[subject]()
    if subject == "findings":
        committed = _without_cases(committed)
        printed = _without_cases(printed)
    assert committed == printed, f"run: python -m exporter.reference {subject} > docs/{subject}.md"


def _without_cases(page: str) -> str:
    begin, end = reference.CASES
    return page[: page.index(begin)] + page[page.index(end) :]


def test_the_table_of_cases_in_the_repository_is_current() -> None:
    """What each scenario expects of the findings, and what comes."""
    committed = cases_table.PAGE.read_text()
    assert committed == cases_table.page(committed), "run: python -m tests.cases_table"


def test_a_page_without_marks_for_the_cases_is_refused() -> None:
    with pytest.raises(ValueError, match="are missing"):
        cases_table.page("# Findings\n")


def test_every_setting_is_in_the_reference() -> None:
    rows = [row for row in table_rows(reference.settings_reference()) if row[0].startswith("`--")]
    assert [row[1].strip("`") for row in rows] == [doc.env for doc in settings.reference()]


def test_every_age_of_a_finding_is_in_the_reference() -> None:
    rows = dict(row for row in table_rows(reference.settings_reference()) if len(row) == 2)
    for rule in RULES:
        told = [one.split("` ") for one in rows[f"`{rule.finding}`"].split(", ")]
        assert [(name.strip("`"), settings.parse_duration(age)) for name, age in told] == [
            (kind.name, kind.age) for kind in rule.kinds
        ]


def test_every_finding_is_in_the_reference_with_all_that_its_rule_says() -> None:
    sections = reference.findings().split("\n## ")[1:-1]
    assert [section.splitlines()[0].strip("`") for section in sections] == [rule.finding for rule in RULES]
    for rule, section in zip(RULES, sections, strict=True):
        for text in (rule.summary, rule.guards, rule.remedy, rule.alert):
            assert text in section
        kinds = {row[0].strip("`"): row for row in table_rows(section)[2:]}
        assert list(kinds) == [kind.name for kind in rule.kinds]
        for kind in rule.kinds:
            assert kind.meaning in kinds[kind.name]
            assert (kind.severity or rule.severity) in kinds[kind.name]
            assert all(EVIDENCE[one] in section for group in kind.needs for one in group)


def test_every_evidence_has_words() -> None:
    assert set(EVIDENCE) == set(Evidence)


def test_a_bar_does_not_split_a_cell() -> None:
    for text in (reference.metrics(), reference.settings_reference(), reference.findings()):
        tables = [block for block in text.split("\n\n") if block.startswith("| ")]
        assert tables
        for block in tables:
            lines = block.strip().splitlines()
            bars = {line.replace("\\|", "").count("|") for line in lines}
            assert len(bars) == 1


@pytest.mark.parametrize("subject", ["metrics", "settings", "findings"])
def test_the_command_prints_it(subject: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main([subject]) == 0
    assert capsys.readouterr().out == reference.PRINTERS[subject]()


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["metrics", "settings"]])
def test_the_command_says_how_it_is_used(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main(argv) == 2
    assert "metrics|settings|findings" in capsys.readouterr().err
