"""The site as a reader sees it: no page is wider than a screen or a phone, and none needs the network."""

from pathlib import Path

import pytest

from tests.browser.conftest import Browser

SITE = Path(__file__).parents[2] / "docs" / "_build" / "html"
PAGES = [page for page in sorted(SITE.rglob("*.html")) if not {"_modules", "_static"} & {*page.parts}]


@pytest.mark.parametrize("width", [1200, 400])
@pytest.mark.skipif(not PAGES, reason="the site is not built: make docs")
def test_pages_fit_the_screen_and_need_no_network(browser: Browser, width: int) -> None:
    """Wide tables and code scroll by themselves."""
    wide, outside = {}, set()
    for page in PAGES:
        browser.open(page, width)
        if (needed := browser.ask("return document.documentElement.scrollWidth")) > width:
            wide[page.relative_to(SITE).as_posix()] = needed
        outside |= {url for url in browser.requests() if not url.startswith("file:")}
    assert not wide
    assert not outside
