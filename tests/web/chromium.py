"""A real browser for tests. Whatever it complains about fails the test: its console, failed requests, violated policies."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ("--no-sandbox", "--process-per-site")
"""The tests may run as root, for whom Chromium's sandbox does not work. Tabs that share a process take less time."""
WITHIN_MS = 30_000
VIOLATION_SCRIPT = """
document.addEventListener("securitypolicyviolation", (event) => console.error("policy violated: " + event.violatedDirective));
"""
ABORTED = "net::ERR_ABORTED"
"""A request that ends because its page ends, such as the stream of changes."""


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Start Chromium, and end it. What a test expects of a page may take as long as any other wait: only a failure takes so long."""
    expect.set_options(timeout=WITHIN_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Tabs:
    """The tabs of one person, who has own cookies. `complaints` collects what the browser complains about."""

    def __init__(self, browser: Browser, address: str, **options: Any) -> None:
        self._context: BrowserContext = browser.new_context(base_url=address, **options)
        self._context.set_default_timeout(WITHIN_MS)
        self._context.add_init_script(VIOLATION_SCRIPT)
        self.complaints: list[str] = []
        self._parked: Page | None = None

    def add_script(self, path: Path) -> None:
        """Load a script into each page, before its own scripts."""
        self._context.add_init_script(path=path)

    def open(self, path: str) -> Page:
        """Open a page in a new tab."""
        page = self._context.new_page()
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("requestfailed", self._on_failed_request)
        page.goto(path)
        return page

    def park(self, path: str) -> None:
        """Open a page that stays open: without a page, the process of the tabs would end, and a new one takes a second."""
        self._parked = self.open(path)

    def forgive(self, text: str) -> None:
        """Remove the complaints that contain the text."""
        self.complaints[:] = [each for each in self.complaints if text not in each]

    def check(self) -> None:
        """Close all tabs. Fails if the browser complained about anything since the last check."""
        for page in self._context.pages:
            if page is not self._parked:
                page.close()
        complaints, self.complaints = self.complaints, []
        assert complaints == []

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text} ({message.location.get('url', '')})")

    def _on_failed_request(self, request: Any) -> None:
        if request.failure != ABORTED:
            self.complaints.append(f"request failed: {request.failure} ({request.url})")

    def close(self) -> None:
        self._context.close()


@contextmanager
def tabs_of(browser: Browser, address: str, **options: Any) -> Iterator[Tabs]:
    """Yield the tabs of a person. Fails if the browser complained about anything."""
    tabs = Tabs(browser, address, **options)
    try:
        yield tabs
        tabs.check()
    finally:
        tabs.close()
