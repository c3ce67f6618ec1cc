"""A real browser, and the real server with the status page of one Report."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Dialog, Page, Route, sync_playwright

from exporter.model import Report
from exporter.server import App, Server
from exporter.status_page import page
from tests.browser.stories import REPORTS

PICTURES = Path(os.environ.get("PICTURES", Path(__file__).parents[2] / "build" / "screenshots"))
# A container has no user namespace for its sandbox, and this machine's network is no browser's business.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def serving(report: Report | None, *, stale: bool = False) -> Iterator[str]:
    """The address of a server that shows one report."""
    app = App(
        telemetry_path="/metrics",
        metrics=lambda _accept, _gzip: pytest.fail("the page asked for metrics"),
        ready=lambda: (True, "ready"),
        healthy=lambda: (True, "healthy"),
        status_page=lambda: page(report, "/metrics", "0.1.0", stale=stale),
    )
    server = Server(app, "127.0.0.1", 0)
    server.bind()
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.stop()
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture(name="browser", scope="session")
def _browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        if os.geteuid() == 0:
            pytest.fail("chromium is not installed: make test installs it")
        pytest.skip("needs chromium, which only root can install")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


Show = Callable[..., Page]


@pytest.fixture(name="show")
def _show(browser: Browser) -> Iterator[Show]:
    """Opens the status page of a story or of a Report. Its problems are test failures: a script that ran, a
    message on the console, a request for anything but the page itself.
    """
    with ExitStack() as stack:
        heard: list[str] = []

        def dismissed(dialog: Dialog) -> None:
            heard.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        def show(what: str | Report | None, *, width: int = 1200, stale: bool = False) -> Page:
            report = REPORTS[what]() if isinstance(what, str) else what
            address = stack.enter_context(serving(report, stale=stale))
            opened = browser.new_page(viewport={"width": width, "height": 900})
            stack.callback(opened.close)
            opened.on("console", lambda message: heard.append(f"console: {message.text}"))
            opened.on("dialog", dismissed)
            opened.on("pageerror", lambda error: heard.append(f"error: {error}"))

            def only_the_page(route: Route) -> None:
                if route.request.url.endswith("/favicon.ico"):
                    route.fulfill(status=204)
                    return
                if not route.request.url.startswith(address):
                    heard.append(f"request: {route.request.url}")
                route.continue_()

            opened.route("**/*", only_the_page)
            opened.goto(f"{address}/?refresh=off")
            if isinstance(what, str):
                PICTURES.mkdir(parents=True, exist_ok=True)
                opened.screenshot(path=PICTURES / f"status-{what}-{width}.png", full_page=True)
            return opened

        yield show
        assert not heard
