"""The pages of this repository lead where they say."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SKIPPED = {".venv", "node_modules", "build", ".git", "dist"}
PAGES = sorted(
    path for path in ROOT.rglob("*.md") if not SKIPPED & set(path.relative_to(ROOT).parts) and path.is_file()
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Names of its headings, as forges make them."""
    heads = (line.lstrip("#").strip() for line in page.read_text().splitlines() if line.startswith("#"))
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    """No page of this repository points into the void."""
    dead = []
    for target in LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            dead.append(target)
    assert not dead
