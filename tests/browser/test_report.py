"""The report as a reader sees it: on a wide screen and on a phone, without a network, by pointer and by keyboard."""

import itertools
import re
import shutil
from pathlib import Path

import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from experiments import command
from experiments.study import study
from experiments.tasks import presets
from stellaris.acting import ActorCritic
from stellaris.systems import Workload
from tests.browser.conftest import Browser
from tests.experiments.test_figures import Here

WIDTHS = (1200, 400)
#: Sizes of text in CSS pixels, under which it is hard to read.
SMALLEST = 13.0
#: Of a picture's width in dots, of which it has 200 an inch: that text of 10 points is 11 CSS pixels high.
SMALLEST_PICTURE = 0.4


def _workload(environment: str) -> Workload:
    """Short fragments, a small network."""
    return Workload(environment, policy=ActorCritic(hidden=(8,)), actors=16, fragment=32)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page on a small study, which is run here, in this process."""
    out = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(presets, "workload", _workload)
        patch.setattr(study, "Worker", Here)
        few = ("--preset", "smoke", "--steps", "6144", "--seeds", "1", "--out", str(out))
        both = ("--variant", "stellaris", "--variant", "synchronous")
        assert command.main(["stellaris-training", *few, *both]) == 0
    return out


@pytest.fixture(scope="module")
def report(results: Path) -> Path:
    """The page."""
    return write(results)


@pytest.fixture(scope="module")
def without_timeline(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page where no run of Stellaris is."""
    out = tmp_path_factory.mktemp("without")
    shutil.copytree(results / "stellaris-training", out / "stellaris-training")
    return write(out)


def write(out: Path) -> Path:
    """The report on a folder of results."""
    assert command.main(["report", "--out", str(out)]) == 0
    return out / "report.html"


# ---- the whole page ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", ["report", "without_timeline"])
def test_nothing_is_wrong_and_nothing_is_fetched(
    browser: Browser, page: str, width: int, request: pytest.FixtureRequest
) -> None:
    """The console is empty, and the page asks for nothing but itself."""
    path: Path = request.getfixturevalue(page)
    browser.open(path, width)
    assert browser.log() == []
    assert browser.requests() == [path.as_uri()]


@pytest.mark.parametrize("width", WIDTHS)
def test_pictures(browser: Browser, report: Path, width: int) -> None:
    """Each is loaded, and large enough to be read."""
    browser.open(report, width)
    pictures = browser.ask("return [...document.images].map(i => [i.complete, i.naturalWidth, i.clientWidth])")
    assert pictures
    assert all(complete and natural > 0 for complete, natural, _ in pictures)
    assert all(SMALLEST_PICTURE * natural <= shown <= natural for _, natural, shown in pictures)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_as_wide_as_the_window(browser: Browser, report: Path, width: int) -> None:
    """Also with every table open: what is wider scrolls within itself."""
    browser.open(report, width)
    browser.ask("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    assert browser.ask("return document.documentElement.scrollWidth") <= width
    tables = browser.ask("return [...document.querySelectorAll('td, th')].map(cell => cell.closest('.wide') !== null)")
    assert tables
    assert all(tables)


def test_claims_are_read_without_scrolling_on_a_phone(browser: Browser, report: Path) -> None:
    """All that is said of each, by name."""
    browser.open(report, 400)
    cells = browser.ask("""return [...document.querySelectorAll('#claims td')].filter(cell => cell.textContent)
        .map(cell => [cell.getBoundingClientRect().right, getComputedStyle(cell, '::before').content])""")
    assert cells
    assert all(right <= 400 for right, _ in cells)
    assert '"paper\'s value"' in {name for _, name in cells}


@pytest.mark.parametrize("width", WIDTHS)
def test_text_is_large_enough(browser: Browser, report: Path, width: int) -> None:
    """That of the page, and that on the canvas, where no text overlaps another."""
    browser.open(report, width)
    browser.ask("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    sizes = browser.ask("""return [...document.body.querySelectorAll('*')]
        .filter(of => of.checkVisibility() && [...of.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
        .map(of => [parseFloat(getComputedStyle(of).fontSize), of.outerHTML.slice(0, 60)])""")
    assert sizes
    assert [text for size, text in sizes if size < SMALLEST] == []
    for button in ("Infinity", *["0.5"] * 6):
        browser.ask("written.length = 0")
        browser.driver.find_element(By.CSS_SELECTOR, f'[data-zoom="{button}"]').click()
        written = browser.ask("return written")
        assert written
        assert min(text["size"] for text in written) >= SMALLEST
        ticks = [text for text in written if text["text"].endswith(" s")]
        assert len(ticks) > 1
        assert all(one["x"] + one["width"] + 8 < two["x"] for one, two in itertools.pairwise(ticks))
        assert ticks[-1]["x"] + ticks[-1]["width"] <= canvas(browser).size["width"]


def test_on_paper(browser: Browser, report: Path) -> None:
    """A page's width is kept, every table is open, and what only a screen can do is left out."""
    browser.open(report, 718)  # A4 less its margins
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.ask("return document.documentElement.scrollWidth") <= 718
    assert all(browser.ask("return [...document.querySelectorAll('table, img')].map(of => of.checkVisibility())"))
    assert all(browser.ask("return [...document.images].map(image => image.getBoundingClientRect().right <= 718)"))
    assert not browser.driver.find_element(By.TAG_NAME, "button").is_displayed()


def test_the_contents_lead_to_their_sections(browser: Browser, report: Path) -> None:
    """Each link brings a section that has that heading to the top."""
    browser.open(report, 1200)
    links = browser.driver.find_elements(By.CSS_SELECTOR, "nav a")
    assert {"claims", "timeline", "stellaris-training", "frameworks", "settings", "assumptions"} == {
        link.text for link in links
    }
    for link in links:
        browser.ask("window.scrollTo(0, 0)")
        link.click()
        top, bottom = browser.ask("""const of = document.querySelector(':target').getBoundingClientRect();
            return [of.top, innerHeight + scrollY - document.documentElement.scrollHeight]""")
        assert abs(top) < 2 or abs(bottom) < 2  # at the top, unless the page ends
        assert browser.ask("return document.querySelector(':target h2').textContent")


# ---- the timeline ------------------------------------------------------------------------------------------------


def canvas(browser: Browser) -> WebElement:
    """Where the timeline is drawn."""
    return browser.driver.find_element(By.TAG_NAME, "canvas")


def shown(browser: Browser) -> tuple[float, float]:
    """From when until when the timeline is seen, as it says itself."""
    text = browser.driver.find_element(By.ID, "shown").text
    begin, end, whole = map(float, re.findall(r"[\d.]+", text))
    assert 0 <= begin < end <= whole
    return begin, end


def pointed(browser: Browser) -> str:
    """What is said of an invocation."""
    return browser.driver.find_element(By.ID, "pointed").text


def over(browser: Browser, x: float, y: float) -> ActionChains:
    """The pointer at so many pixels from the canvas's corner."""
    size = canvas(browser).size
    return ActionChains(browser.driver).move_to_element_with_offset(
        canvas(browser), round(x - size["width"] / 2), round(y - size["height"] / 2)
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_an_invocation_is_read_under_the_pointer(browser: Browser, report: Path, width: int) -> None:
    """Its function, its container, its times, and its cold start, as the trace has them; and nothing beside it."""
    browser.open(report, width)
    call = browser.ask("""return JSON.parse(document.getElementById('invocations').textContent)
        .filter(call => call[0] === 'actor').sort((a, b) => a[1] - b[1] || a[3] - b[3])[0]""")
    name, container, acquired, started, ended, cold = call
    assert cold
    begin, end = shown(browser)
    lane = 22 + 3  # below the name of the first function
    over(browser, ((started + ended) / 2 - begin) / (end - begin) * canvas(browser).size["width"], lane).perform()
    assert pointed(browser) == (
        f"{name}, container {container}: from {started:.3f} s to {ended:.3f} s, "
        f"cold start of {started - acquired:.3f} s"
    )
    over(browser, 5, 5).perform()
    assert pointed(browser).strip() == ""


def test_buttons_zoom(browser: Browser, report: Path) -> None:
    """In by half and out again, about the middle; and to all there is."""
    browser.open(report, 1200)
    begin, end = shown(browser)
    press = {name: browser.driver.find_element(By.CSS_SELECTOR, f'[data-zoom="{name}"]') for name in ("0.5", "2")}
    press["0.5"].click()
    assert shown(browser) == pytest.approx((begin + (end - begin) / 4, end - (end - begin) / 4), abs=0.011)
    press["2"].click()
    assert shown(browser) == pytest.approx((begin, end), abs=0.011)
    press["0.5"].click()
    browser.driver.find_element(By.CSS_SELECTOR, '[data-zoom="Infinity"]').click()
    whole = browser.driver.find_element(By.ID, "shown").text.split()
    assert (whole[0], whole[3]) == ("0.00", whole[6])


def test_the_wheel_zooms_with_the_control_key_alone(browser: Browser, report: Path) -> None:
    """About the pointer; without the key it scrolls the page."""
    browser.open(report, 1200)
    before = shown(browser)
    left, top, width = browser.ask("""const canvas = document.querySelector('canvas');
        canvas.scrollIntoView();
        const box = canvas.getBoundingClientRect();
        return [box.left, box.top, box.width]""")
    wheel = {"type": "mouseWheel", "x": left + width / 4, "y": top + 60, "deltaX": 0, "deltaY": -200}
    browser.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {**wheel, "modifiers": 2})
    begin, end = shown(browser)
    assert end - begin < 0.7 * (before[1] - before[0])
    assert begin + (end - begin) / 4 == pytest.approx(before[0] + (before[1] - before[0]) / 4, abs=0.02)
    scrolled = browser.ask("return scrollY")
    browser.driver.execute_cdp_cmd("Input.dispatchMouseEvent", wheel)
    WebDriverWait(browser.driver, 5).until(lambda _: browser.ask("return scrollY") < scrolled)
    assert shown(browser) == (begin, end)


def test_dragging_moves(browser: Browser, report: Path) -> None:
    """Half the canvas to the left, half of what is shown later; not beyond the beginning."""
    browser.open(report, 1200)
    browser.driver.find_element(By.CSS_SELECTOR, '[data-zoom="0.5"]').click()
    begin, end = shown(browser)
    half = canvas(browser).size["width"] // 2
    drag = over(browser, half + 100, 60).click_and_hold().move_by_offset(-100, 0).release()
    drag.perform()
    moved = 100 / (2 * half) * (end - begin)
    assert shown(browser) == pytest.approx((begin + moved, end + moved), abs=0.011)
    for _ in range(4):
        over(browser, 10, 60).click_and_hold().move_by_offset(2 * half - 20, 0).release().perform()
    assert shown(browser) == pytest.approx((0.0, end - begin), abs=0.011)


def test_the_keyboard_reads_and_zooms(browser: Browser, report: Path) -> None:
    """From invocation to invocation and lane to lane; what is chosen is shown."""
    browser.open(report, 1200)
    canvas(browser).send_keys(Keys.ARROW_RIGHT)
    first = pointed(browser)
    assert first.startswith("actor, container ")
    begin, end = shown(browser)
    canvas(browser).send_keys("+" * 4)
    assert shown(browser)[1] - shown(browser)[0] == pytest.approx((end - begin) / 16, abs=0.011)
    canvas(browser).send_keys(Keys.ARROW_RIGHT * 2)
    second = pointed(browser)
    assert second.split(":")[0] == first.split(":")[0]
    started, ended = map(float, re.findall(r"([\d.]+) s", second)[:2])
    assert shown(browser)[0] <= (started + ended) / 2 <= shown(browser)[1]
    canvas(browser).send_keys(Keys.ARROW_LEFT * 2)
    assert pointed(browser) == first
    canvas(browser).send_keys(Keys.ARROW_DOWN * 16)
    assert pointed(browser).startswith("learner, container ")
    canvas(browser).send_keys("0")
    assert shown(browser)[0] == 0.0


def test_without_a_timeline_it_is_said(browser: Browser, without_timeline: Path) -> None:
    """Nothing is drawn, and there is nothing to press."""
    browser.open(without_timeline, 1200)
    assert pointed(browser) == "No run of Stellaris is there."
    assert not canvas(browser).is_displayed()
