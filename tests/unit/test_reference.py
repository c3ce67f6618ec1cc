from html.parser import HTMLParser
from pathlib import Path

import pytest

from exporter import reference, settings
from exporter.catalog import FAMILIES
from exporter.diagnosis import RULES
from exporter.diagnosis.rule import Evidence
from exporter.model import Policy, Reason
from exporter.status_page import page
from tests import builders as b
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
            assert all(reference.EVIDENCE[one] in section for group in kind.needs for one in group)


def test_every_evidence_has_words() -> None:
    assert set(reference.EVIDENCE) == set(Evidence)


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


# --- the landing page ---


class _Page(HTMLParser):
    """Tags, link targets and text of a page; every tag must be closed."""

    def __init__(self, html: bytes) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str | None] = []
        self.text = ""
        self.feed(html.decode())
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)
        self.links += [target for name, target in attrs if name in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def test_the_page_shows_sources_and_gpus() -> None:
    looked = b.snapshot(processes=b.missed(Reason.DENIED, detail="ptrace"), nvml=b.nvml(b.gpu(), b.gpu(1)))
    shown = _Page(page(b.report(looked), "/metrics", "0.1.0"))
    assert shown.links == ["/metrics"]
    for expected in ("0.1.0", "node-1", "denied: ptrace", "container_dev", b.gpu_uuid(0), b.gpu_uuid(1)):
        assert expected in shown.text
    assert "Simulated" not in shown.text
    assert "script" not in shown.tags


def test_the_page_before_the_first_cycle() -> None:
    shown = _Page(page(None, "/metrics", "0.1.0"))
    assert "first cycle" in shown.text
    assert shown.links == ["/metrics"]


def test_the_page_says_that_data_is_simulated() -> None:
    assert "Simulated data" in _Page(page(b.report(policy=Policy(simulated=True)), "/m", "0")).text


def test_the_page_does_not_take_unknown_gpus_for_none() -> None:
    shown = _Page(page(b.report(b.snapshot(nvml=b.missed())), "/metrics", "0.1.0"))
    assert "NVML did not answer" in shown.text


def test_the_page_escapes_what_others_chose() -> None:
    evil = "<script>alert('1')</script>\"&\ud800"
    looked = b.snapshot(
        nvml=b.nvml(b.gpu(product=evil, lost=evil)),
        pods=b.missed(detail=evil),
        node_name=evil,
    )
    html = page(b.report(looked), '/"><script>', evil)
    shown = _Page(html)
    assert "script" not in shown.tags
    assert shown.text.count("<script>alert('1')</script>\"&?") == 5
    assert shown.links == ['/"><script>']
