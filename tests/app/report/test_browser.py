"""The report in a browser: nothing goes wrong, nothing is fetched, and everything can be read."""

import pytest

from penalties.app import report

from .browser import DESKTOP, PHONE, Browser, assert_quiet, in_browser, plot
from .synthetic import Part, write_run

pytestmark = in_browser


@pytest.mark.parametrize("name", ["small", "everything", "one", "long", "compared", "names", "rare"])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_a_page_opens_without_error_or_request_and_fits_its_screen(driver: Browser, pages, name, width):
    tab = driver.open(pages[name], width, phone=width == PHONE)
    try:
        tab.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        assert_quiet(tab, pages[name])
        assert tab.run("document.documentElement.scrollWidth") <= width
        texts = tab.run(
            "[...document.querySelectorAll('.legend li, .signs li, .where, button, label, dd, td, th')]"
            ".filter((one) => one.textContent && parseFloat(getComputedStyle(one).fontSize) < 11.5).length"
        )
        assert texts == 0, "nothing is too small to read"
    finally:
        tab.close()


def test_a_link_to_a_run_opens_it(driver: Browser, pages):
    tab = driver.open(pages["compared"], DESKTOP)
    try:
        assert tab.run("document.querySelectorAll('details.run[open]').length") == 0
        tab.run("document.querySelector('a[href=\"#run-C\"]').click()")
        tab.run("new Promise((done) => setTimeout(done, 50))")
        assert tab.run("document.querySelector('details.run[open]').id") == "run-C"
        assert_quiet(tab, pages["compared"])
    finally:
        tab.close()


def test_a_name_like_markup_is_shown_as_it_is(driver: Browser, pages):
    evil = "&amp;<img src=x onerror=a()>"
    folder = write_run(pages["small"].parent / "evil", steps=3, parts={evil: Part(lambda step: 1.0)})
    page = folder / "report.html"
    report.make([folder]).save(page)
    tab = driver.open(page, DESKTOP)
    try:
        left, top, width, height = plot(tab)
        tab.hover(left + width / 2, top + height / 2)
        assert evil in tab.run("document.body.textContent")
        tab.run("document.querySelectorAll('.menu summary').forEach((one) => one.click())")
        assert tab.run("document.querySelectorAll('img').length") == 0
        assert_quiet(tab, page)
    finally:
        tab.close()


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_long_names_are_one_line_with_their_swatch(driver: Browser, pages, width):
    tab = driver.open(pages["names"], width, phone=width == PHONE)
    try:
        tab.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        lines = tab.run(
            "[...document.querySelectorAll('.name, .legend button')].filter((one) => one.offsetParent)"
            ".map((one) => one.getBoundingClientRect().height / parseFloat(getComputedStyle(one).fontSize))"
        )
        assert len(lines) > 50
        assert max(lines) < 2
        cut = tab.run("document.querySelector('.headline .name[title]').title")
        assert cut.startswith("a_term_whose_name")
        assert len(tab.run("document.querySelector('.headline .name[title]').textContent")) == 24
    finally:
        tab.close()


def test_the_first_column_of_a_wide_table_stays(driver: Browser, pages):
    tab = driver.open(pages["names"], PHONE, phone=True)
    try:
        tab.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        left = "document.querySelector('table.cosines tbody th').getBoundingClientRect().left"
        before = tab.run(left)
        tab.run("document.querySelector('table.cosines').closest('.table').scrollLeft = 300")
        assert tab.run(left) == before
        assert tab.run("document.querySelector('table.cosines').closest('.table').scrollLeft") == 300
    finally:
        tab.close()


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_messages_in_tables_have_room_for_words(driver: Browser, pages, width):
    tab = driver.open(pages["everything"], width, phone=width == PHONE)
    try:
        cells = tab.run(
            "[...document.querySelectorAll('table.words td')].filter((one) => one.textContent.length > 15)"
            ".map((one) => [one.textContent, one.getBoundingClientRect().width])"
        )
        assert any(text.startswith("first at step") for text, _ in cells)
        assert any("took more than" in text for text, _ in cells)
        assert min(room for _, room in cells) > 180
    finally:
        tab.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_words_stand_out_from_the_page(driver: Browser, pages, dark):
    tab = driver.open(pages["everything"], DESKTOP, dark=dark)
    try:
        words = "h1, h2, dt, dd, .facts, .note, figcaption span, .legend button, .controls label, .signs li, td, th"
        pairs = tab.run(
            "(() => { const back = getComputedStyle(document.body).backgroundColor;"
            f"return [...document.querySelectorAll('{words}')]"
            ".map((one) => [getComputedStyle(one).color, back]); })()"
        )
        assert min(contrast(*pair) for pair in {tuple(pair) for pair in pairs}) >= 4.5
    finally:
        tab.close()


def contrast(first: str, second: str) -> float:
    def light(color: str) -> float:
        parts = [int(part) / 255 for part in color.removeprefix("rgb(").removesuffix(")").split(",")]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(part * weight for part, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True)) + 0.05

    low, high = sorted((light(first), light(second)))
    return high / low
