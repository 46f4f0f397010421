"""Debian's Chromium, without a window, and what it reports of a page: its log and its requests."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.remote.webdriver import WebDriver

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # in a container one is often root, for whom there is no sandbox
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
#: Kept by the page itself: every text that is written on a canvas, where and how large.
_WRITTEN = """
const write = CanvasRenderingContext2D.prototype.fillText;
window.written = [];
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  written.push({text, x, y, width: this.measureText(text).width, size: parseFloat(this.font)});
  write.call(this, text, x, y);
};
"""


class Browser:
    """One window, on one page at a time."""

    def __init__(self, driver: WebDriver) -> None:
        self.driver = driver

    def open(self, page: Path, width: int) -> None:
        """Shows a file on a screen, in a window of that width, after forgetting what the last page has said."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})  # a screen
        self.driver.get("about:blank")
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        self.driver.get(page.as_uri())

    def ask(self, script: str) -> Any:
        """What a script on the page returns."""
        return self.driver.execute_script(script)

    def log(self) -> list[str]:
        """What the page has written to the console, errors and warnings of the browser's own included."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """What the page has asked for, itself included; not what it holds within itself."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith("data:")]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium with a home of its own; without it these tests say what to install."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.exit("make test-browser needs Chromium: apt-get install chromium chromium-driver", returncode=2)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    window = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    window.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _WRITTEN})
    yield Browser(window)
    window.quit()
