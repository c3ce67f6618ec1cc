"""`python -m tests.browser.pictures`: write the pictures of docs/images that README shows, from the stories.

In: the names of the table. Out: a PNG each. Needs Chromium; shows nothing but what the tests look at.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.conftest import FLAGS, serving
from tests.browser.stories import REPORTS

FOLDER = Path(__file__).parents[2] / "docs" / "images"


@dataclass(frozen=True)
class Picture:
    """A story, the size of the window in CSS pixels, and the element to which it is scrolled."""

    story: str
    width: int
    height: int
    at: str = "body"


PICTURES = {
    "status.png": Picture("two-pods-on-one-gpu", 1100, 690),
    "status-gpus.png": Picture("held-by-a-hung-process", 1100, 330, "article[id^=gpu-]"),
    "status-phone.png": Picture("nvml-hung", 390, 760),
}


def main() -> int:
    """Write all of them; 1 where there is no browser."""
    program = shutil.which("chromium")
    if program is None:
        sys.stderr.write("Chromium is not installed: make test installs it as root.\n")
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        for name, picture in PICTURES.items():
            with serving(REPORTS[picture.story]()) as address:
                page = browser.new_page(viewport={"width": picture.width, "height": picture.height})
                page.goto(f"{address}/?refresh=off")
                page.locator(picture.at).first.evaluate("element => element.scrollIntoView()")
                page.screenshot(path=FOLDER / name)
                page.close()
        browser.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
