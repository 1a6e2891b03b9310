"""Chromium for the benchmark `pages`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

CHROMIUM: Final = Path("/usr/bin/chromium")
PAINT_SCRIPT: Final = """new Promise((done) => new PerformanceObserver((list) => {
  const paint = list.getEntriesByName("first-contentful-paint")[0];
  if (paint) done(paint.startTime);
}).observe({ type: "paint", buffered: true }))"""


@contextmanager
def run_chromium() -> Iterator[Any | None]:
    """Run Chromium; yield `None` where it is not installed."""
    if not CHROMIUM.exists():
        yield None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def open_page(page: Any, url: str) -> float:
    """Open a page and return the milliseconds until its first content is painted."""
    page.goto(url)
    return float(page.evaluate(PAINT_SCRIPT))
