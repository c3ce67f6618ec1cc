"""The status page in a real browser: what a person sees, on a screen, on a phone, with a keyboard.

Pictures of what was tested are left in build/screenshots.
"""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from exporter.model import Report
from tests import builders as b
from tests.browser.conftest import Show
from tests.browser.stories import REPORTS

pytestmark = pytest.mark.timeout(120)


def wrong(shown: Page) -> list[str]:
    return [one.inner_text() for one in shown.locator("article.problem h3").all()]


def test_a_healthy_node(show: Show) -> None:
    """Nothing is wrong, every GPU is there with a bar, its pod and its processes."""
    shown = show("healthy")
    expect(shown.get_by_role("status")).to_have_text("Nothing is wrong.")
    assert wrong(shown) == []
    report = REPORTS["healthy"]()
    assert shown.locator("article[id^=gpu-]").count() == len(dict(report.history.indices))
    for use in report.attribution.uses:
        device = shown.locator(f"[id='gpu-{use.device.uuid}']")
        expect(device.get_by_role("cell", name=str(use.pid), exact=True)).to_have_count(1)
        expect(device.get_by_role("img")).to_have_count(1)


def test_two_pods_on_one_gpu(show: Show) -> None:
    """The findings name both pods, with evidence and what to do; the intruder's row says no."""
    shown = show("two-pods-on-one-gpu")
    expect(shown.get_by_role("status")).to_contain_text("wrong")
    told = shown.locator("article.problem, article.explained").all_inner_texts()
    assert any("used_not_allocated" in one and "vision/deepstream-b" in one for one in told)
    assert all("What to do: " in one for one in told)
    rows = shown.locator("tr", has_text="deepstream-b").filter(has_text="5200")
    expect(rows.first.get_by_role("cell").last).to_have_text("no")


def test_a_hung_process_and_its_successor(show: Show) -> None:
    """One incident counts; what it explains is there and says so. The bar shows the orphan's memory."""
    shown = show("held-by-a-hung-process")
    assert len(wrong(shown)) == 1
    assert wrong(shown)[0].startswith("stuck_process")
    assert shown.get_by_text("not counted").count() > 0
    assert shown.locator(".bar .orphan").count() == 1
    given = [one.get_by_role("cell").last.inner_text() for one in shown.locator("article tr").all()[1:]]
    assert given == ["no", "yes"]  # the successor has its name, and is another pod


def test_nvml_hangs(show: Show) -> None:
    """No clean bill, no figures, no empty list that looks like nobody: the page says what is not known."""
    shown = show("nvml-hung")
    expect(shown.get_by_role("status")).to_contain_text("no clean bill")
    expect(shown.get_by_text("Memory is not known.").first).to_be_visible()
    assert shown.locator(".bar").count() == 0
    assert "No process is on it." not in shown.inner_text("body")
    expect(shown.locator("#unknown + p")).to_contain_text("could not be judged")
    expect(shown.get_by_role("row", name=re.compile("^nvml no busy"))).to_contain_text("has not returned")


def test_a_stalled_agent(show: Show) -> None:
    """A report that is too old says nothing of the node."""
    shown = show(REPORTS["healthy"](), stale=True)
    expect(shown.get_by_role("status")).to_contain_text("too old")
    assert shown.locator("article").count() == 0


def test_hostile_names_are_text(show: Show) -> None:
    """Names that look like markup are shown as they are, and nothing of them runs (the fixture listens)."""
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    shown = show("hostile-names")
    assert shown.locator("script, img").count() == 0
    report: Report = b.report(b.snapshot(nvml=b.nvml(b.gpu(product=evil, lost=evil)), node_name=evil))
    again = show(report)
    assert again.locator("script, img").count() == 0
    assert again.inner_text("h1") == f"GPUs of {evil}"


def test_mig_devices_stand_in_their_gpu(show: Show) -> None:
    """Each of 112 instances is told in its GPU's frame, with its own memory and its own pod."""
    shown = show("mig")
    for gpu in shown.locator("article[id^=gpu-]").all():
        expect(gpu.locator("article")).to_have_count(7)
    expect(
        shown.locator("article article").get_by_text(re.compile("^Given to: team-a/notebook-"))
    ).to_have_count(112)


@pytest.mark.parametrize("name", list(REPORTS))
def test_on_a_phone_the_page_does_not_scroll_sideways(show: Show, name: str) -> None:
    """Only its tables do, each by itself."""
    shown = show(name, width=360)
    assert shown.evaluate("document.documentElement.scrollWidth") <= 360


def test_by_keyboard_all_of_it_can_be_reached(show: Show) -> None:
    """Tab goes through the links and the tables that scroll, each with a visible frame."""
    shown = show("two-pods-on-one-gpu")
    wanted = shown.locator("a, [tabindex]").count()
    reached = set()
    for _ in range(wanted):
        shown.keyboard.press("Tab")
        place = shown.evaluate(
            "(() => { const e = document.activeElement; const s = getComputedStyle(e);"
            " return [e.tagName + e.textContent.slice(0, 40) + e.offsetTop, s.outlineStyle] })()"
        )
        reached.add(place[0])
        assert place[1] == "solid"
    assert len(reached) == wanted
    shown.get_by_role("link", name="Not known").press("Enter")
    assert shown.url.endswith("#unknown")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(show: Show, scheme: str) -> None:
    """Contrast of at least 4.5 to 1, as WCAG 2.1 asks, for all text, by day and by night."""
    shown = show("two-pods-on-one-gpu")
    shown.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    faint = shown.evaluate(CONTRAST)
    assert faint == []


CONTRAST = """
(() => {
  const light = c => { const [r, g, b] = c.map(v => { v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b };
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const ground = e => { for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c.slice(0, 3) } return [255, 255, 255] };
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    const a = light(parse(getComputedStyle(e).color).slice(0, 3)), b = light(ground(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(e.tagName + ': ' + e.textContent.slice(0, 40) + ' ' + ratio.toFixed(2));
  }
  return found;
})()
"""
