"""The report in a browser: nothing goes wrong, nothing is fetched, and the cursor shows what the log says.

The pictures of reports in the documentation are made here, too.
"""

import dataclasses
import json
import math
import os
from pathlib import Path

import pytest

from penalties.app import cli, report

from .browser import CHROMIUM, Browser, Tab, browser
from .synthetic import Part, _small, config, everything, small, write_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
]

ASSETS = Path(__file__).parents[3] / "docs" / "assets"
DESKTOP, PHONE = 1160, 390


@pytest.fixture(scope="module")
def driver():
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    """Reports by name, beside the folders of their runs."""
    folder = tmp_path_factory.mktemp("runs")
    whole = _small(60, 0)
    compared = [small(folder / "all")]
    for gone, cost in (("kl_estimate", 1.12), ("entropy", 1.05), ("sparsity", 1.002)):
        changed = {
            "base": dataclasses.replace(whole["base"], value=lambda step, cost=cost: whole["base"].value(step) * cost),
            "parts": {name: part for name, part in whole["parts"].items() if name != gone},
            "evaluate": {step: loss * cost for step, loss in whole["evaluate"].items()},
            "settings": config([name for name in whole["parts"] if name != gone], 60),
        }
        compared.append(small(folder / f"without-{gone}", **changed))
    runs = {
        "small": [small(folder / "pig-latin")],
        "everything": [everything(folder / "everything")],
        "one": [small(folder / "one", steps=1)],
        "long": [
            write_run(folder / "long", steps=3000, base=Part(lambda step: 2 + math.sin(step / 90), lambda step: 1.0))
        ],
        "compared": compared,
        "names": [_long_names(folder / f"{LONG}_{number}", 40 - 10 * number) for number in range(2)],
        "rare": [_rare(folder / "rare")],
    }
    for name, folders in runs.items():
        report.make(folders).save(folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in runs}


LONG = "a_run_with_a_name_that_says_everything_about_its_learning_rate"


def _long_names(folder: Path, steps: int) -> Path:
    """A run of more terms than there are colours, all of long names."""
    names = [f"a_term_whose_name_says_more_than_a_reader_wants_{place}_v2" for place in range(12)]
    parts = {name: Part(lambda step: 1.0) for name in names}
    return write_run(folder, steps=steps, parts=parts, cosines=lambda *_: -0.6, settings=config(names, 40))


def _rare(folder: Path) -> Path:
    """A run whose gradients are measured at every tenth step."""
    base = Part(lambda step: 3 - step / 50, lambda step: 1.0, lambda step: 1 + step, measured=10)
    return write_run(folder, steps=45, base=base, parts={"kl": Part(lambda step: 1.0, measured=10)})


def log_of(page: Path, run: str) -> dict[int, dict]:
    lines = (page.parent / run / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines if line.endswith("}")]
    return {one["step"]: one["loss"] for one in found if one["kind"] == "step"}


def assert_quiet(tab: Tab, page: Path) -> None:
    """No error, no warning, and no request but for the page itself."""
    assert tab.events("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded") == []
    requests = [one["params"]["request"]["url"] for one in tab.events("Network.requestWillBeSent")]
    assert [url for url in requests if not url.startswith("data:")] == [page.resolve().as_uri()]


def plot(tab: Tab, number: int = 0) -> list[float]:
    """Bring a chart to the middle of the screen: its left, top, width and height."""
    return tab.run(
        f"(() => {{ const plot = document.querySelectorAll('.plot')[{number}];"
        "plot.scrollIntoView({block: 'center', behavior: 'instant'});"
        "const box = plot.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; })()"
    )


def tip(tab: Tab, number: int = 0) -> dict[str, str] | None:
    """What the cursor of a chart says: the step, and numbers by name; None where it says nothing."""
    return tab.run(
        f"(() => {{ const tip = document.querySelectorAll('.tip')[{number}]; if (tip.hidden) return null;"
        "const rows = [...tip.querySelectorAll('tr')].map((row) => [...row.children].map((cell) => cell.textContent));"
        "return {...Object.fromEntries(rows), step: tip.querySelector('caption').textContent}; })()"
    )


def as_number(text: str) -> float:
    return float(text.replace("−", "-").replace("∞", "inf"))


@pytest.mark.parametrize("name", ["small", "everything", "one", "long", "compared", "names", "rare"])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_a_page_opens_without_error_or_request_and_fits_its_screen(driver: Browser, pages, name, width):
    tab = driver.open(pages[name], width, phone=width == PHONE)
    try:
        tab.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        assert_quiet(tab, pages[name])
        assert tab.run("document.documentElement.scrollWidth") <= width
        texts = tab.run(
            "[...document.querySelectorAll('.ys span, .xs span, .legend li, dd, td, th')]"
            ".filter((one) => one.textContent && parseFloat(getComputedStyle(one).fontSize) < 11.5).length"
        )
        assert texts == 0, "nothing is too small to read"
    finally:
        tab.close()


@pytest.mark.parametrize("part", [0.0, 0.31, 0.52, 1.0])
def test_hovering_shows_the_numbers_of_the_log(driver: Browser, pages, part):
    log = log_of(pages["small"], "pig-latin")
    tab = driver.open(pages["small"], DESKTOP)
    try:
        left, top, width, height = plot(tab)
        tab.hover(left + part * (width - 1), top + height / 2)
        said = tip(tab)
        step = round(part * 59)
        assert said.pop("step") == f"step {step}"
        assert as_number(said.pop("total")) == pytest.approx(log[step]["loss_total"], rel=1e-4)
        assert as_number(said.pop("base_loss")) == pytest.approx(log[step]["base_loss"]["value"], rel=1e-4)
        terms = log[step]["regularizers"]
        assert list(said) == list(terms)
        for name, text in said.items():
            assert as_number(text) == pytest.approx(terms[name]["contribution"], rel=1e-4)
        assert_quiet(tab, pages["small"])
    finally:
        tab.close()


def test_the_cursor_of_every_chart_of_a_run_is_at_the_same_step(driver: Browser, pages):
    tab = driver.open(pages["small"], DESKTOP)
    try:
        left, top, width, height = plot(tab)
        tab.hover(left + width / 2, top + height / 2)
        shown = "[...document.querySelectorAll('.cursor')].map((one) => one.hidden ? null : one.style.left)"
        places = tab.run(shown)
        assert len(set(places)) == 1
        assert places[0].startswith("50.")
        assert tip(tab, 1) is None
        tab.hover(2, 2)
        assert set(tab.run(shown)) == {None}
        assert tip(tab) is None
    finally:
        tab.close()


def test_the_dots_of_the_cursor_lie_on_the_lines(driver: Browser, pages):
    log = log_of(pages["small"], "pig-latin")
    tab = driver.open(pages["small"], DESKTOP)
    try:
        left, top, width, height = plot(tab, 1)
        tab.hover(left + width / 2, top + height / 2)
        low, high, is_log, zeros = tab.run(
            "JSON.parse(document.querySelectorAll('figure.chart')[1].querySelector('script').textContent).y"
        )
        assert is_log
        assert zeros == 0
        bottoms = tab.run(
            "[...document.querySelectorAll('figure.chart')[1].querySelectorAll('.cursor i')]"
            ".map((dot) => [dot.className, parseFloat(dot.style.bottom)])"
        )
        step = int(tip(tab, 1)["step"].removeprefix("step "))
        norm = log[step]["total_grad_norm"]
        place = math.log(norm / low) / math.log(high / low)
        assert dict(bottoms)["total under"] == pytest.approx(100 * place, abs=0.01)
    finally:
        tab.close()


def test_what_is_not_finite_failed_or_missing_is_said(driver: Browser, pages):
    tab = driver.open(pages["everything"], DESKTOP)
    try:
        left, top, width, height = plot(tab)

        def at(step: int) -> dict[str, str]:
            tab.hover(left + width * step / 239, top + height / 2)
            said = tip(tab)
            assert said["step"] == f"step {step}"
            return said

        assert at(85)["total"] == "NaN"
        assert at(97)["topology"] == "failed"
        assert "orthogonality" not in at(97)
        assert "orthogonality" in at(96)
        marks = tab.run(
            "[...document.querySelectorAll('figure.chart')[0].querySelectorAll('.mark')].map((one) => one.title)"
        )
        assert "NaN or infinite: steps 85 to 86" in marks
        assert "resumed at step 79" in marks
    finally:
        tab.close()


def test_a_long_run_shows_steps_that_are_in_the_log(driver: Browser, pages):
    log = log_of(pages["long"], "long")
    tab = driver.open(pages["long"], DESKTOP)
    try:
        left, top, width, height = plot(tab)
        for part in (0.1, 0.456, 0.9):
            tab.hover(left + width * part, top + height / 2)
            said = tip(tab)
            step = int(said["step"].removeprefix("step ").replace("\u202f", ""))
            assert abs(step - part * 2999) < 30
            assert as_number(said["total"]) == pytest.approx(log[step]["loss_total"], rel=1e-4)
    finally:
        tab.close()


def test_arrow_keys_move_the_cursor_and_it_is_said(driver: Browser, pages):
    log = log_of(pages["small"], "pig-latin")
    tab = driver.open(pages["small"], DESKTOP)
    said = "document.activeElement.getAttribute('aria-valuetext')"
    try:
        tab.press("Tab", 9)
        assert tab.run("document.activeElement.getAttribute('role')") == "slider"
        assert tip(tab)["step"] == "step 0"
        for key, step in (
            ("ArrowRight", 1),
            ("ArrowUp", 2),
            ("ArrowLeft", 1),
            ("ArrowDown", 0),
            ("ArrowLeft", 0),
            ("PageUp", 6),
            ("End", 59),
            ("ArrowRight", 59),
            ("PageDown", 53),
            ("Home", 0),
        ):
            tab.press(key)
            assert tip(tab)["step"] == f"step {step}", key
            assert tab.run(said).startswith(f"step {step}: base_loss ")
            assert tab.run("document.activeElement.getAttribute('aria-valuenow')") == str(step)
        total = tab.run(said).rpartition("total ")[2]
        assert as_number(total) == pytest.approx(log[0]["loss_total"], rel=1e-4)
        tab.press("a")
        tab.press("Escape", 27)
        assert tip(tab) is None
        tab.press("ArrowRight")
        tab.press("Tab", 9)
        assert tip(tab) is None, "it is gone with the focus"
        assert_quiet(tab, pages["small"])
    finally:
        tab.close()


def test_a_finger_moves_the_cursor(driver: Browser, pages):
    tab = driver.open(pages["small"], PHONE, phone=True)
    try:
        tab.call("Emulation.setTouchEmulationEnabled", enabled=True)
        left, top, width, height = plot(tab)
        point = [{"x": left + width / 2, "y": top + height / 2}]
        tab.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=point)
        tab.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        assert tip(tab)["step"] in ("step 29", "step 30")
        box = tab.run(
            "(() => { const box = document.querySelector('.tip').getBoundingClientRect();"
            "return [box.left, box.right]; })()"
        )
        assert 0 <= box[0] < box[1] <= PHONE
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
        assert evil in tip(tab)
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
            "[...document.querySelectorAll('.name, .legend li')].filter((one) => one.offsetParent)"
            ".map((one) => one.getBoundingClientRect().height / parseFloat(getComputedStyle(one).fontSize))"
        )
        assert len(lines) > 50
        assert max(lines) < 2
        cut = tab.run("document.querySelector('.headline .name[title]').title")
        assert cut.startswith("a_term_whose_name")
        assert len(tab.run("document.querySelector('.headline .name[title]').textContent")) == 24
    finally:
        tab.close()


def test_a_tip_of_many_rows_stands_under_the_chart_of_a_phone(driver: Browser, pages):
    tab = driver.open(pages["names"], PHONE, phone=True)
    try:
        tab.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        number = tab.run(
            "[...document.querySelectorAll('figure.chart')].findIndex((one) => one.querySelectorAll('.legend li')[8])"
        )
        left, top, width, height = plot(tab, number)
        tab.hover(left + width / 2, top + height / 2)
        under = tab.run(f"document.querySelectorAll('.tip')[{number}].getBoundingClientRect().top")
        assert under >= top + height
        left, top, width, height = plot(tab, 0)
        tab.hover(left + width / 2, top + height / 2)
        assert tab.run("document.querySelectorAll('.tip')[0].getBoundingClientRect().top") < top + height
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


def test_the_cursor_tells_runs_by_their_letters(driver: Browser, pages):
    tab = driver.open(pages["compared"], DESKTOP)
    try:
        left, top, width, height = plot(tab)
        tab.hover(left + width / 2, top + height / 2)
        assert [name.partition(" ")[0] for name in tip(tab) if name != "step"] == ["A", "B", "C", "D"]
    finally:
        tab.close()


def test_the_cursor_of_gradients_goes_from_one_measured_step_to_the_next(driver: Browser, pages):
    tab = driver.open(pages["rare"], DESKTOP)
    try:
        left, top, width, height = plot(tab, 1)
        tab.hover(left + width * 33 / 44, top + height / 2)
        said = tip(tab, 1)
        assert said["step"] == "step 30"
        assert said["base_loss"] == "31"
        left, top, width, height = plot(tab, 0)
        tab.hover(left + width / 2, top + height / 2)
        assert tip(tab, 1) is None
    finally:
        tab.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_words_stand_out_from_the_page(driver: Browser, pages, dark):
    tab = driver.open(pages["everything"], DESKTOP, dark=dark)
    try:
        words = "h1, h2, dt, dd, .facts, .note, figcaption span, .ys span, .legend li, td, th"
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


# The pictures of the documentation, of runs that were trained.

MADE = bool(os.environ.get("PENALTIES_PICTURES"))
"""Whether the pictures are made anew: fonts differ between machines, and so they are otherwise left as they are."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Path]:
    """The reports of the demo and of its ablation; shortened where nobody will look at them."""
    folder = tmp_path_factory.mktemp("trained")
    steps, shorter = ("150", "60") if MADE else ("3", "2")
    demo, ablation = folder / "demo", folder / "demo-ablation"
    assert cli.main(["train", "--quiet", "--run", str(demo), "--set", f"train.steps={steps}"]) == 0
    assert cli.main(["ablate", "--quiet", "--run", str(ablation), "--set", f"train.steps={shorter}"]) == 0
    return {"demo": demo / "report.html", "ablation": ablation / "report.html"}


@pytest.mark.parametrize(
    ("picture", "page", "width", "height", "dark"),
    [
        ("report_light", "demo", DESKTOP, 1500, False),
        ("report_compared_light", "ablation", DESKTOP, 1450, False),
        ("report_phone_dark", "demo", PHONE, 1700, True),
    ],
)
def test_pictures_of_reports(driver: Browser, trained, tmp_path, picture, page, width, height, dark):
    tab = driver.open(trained[page], width, height, dark=dark, phone=width == PHONE)
    try:
        assert_quiet(tab, trained[page])
        if width == DESKTOP and page == "demo":
            left, top, wide, high = tab.run(
                "(() => { const box = document.querySelector('.plot').getBoundingClientRect();"
                "return [box.left, box.top, box.width, box.height]; })()"
            )
            tab.hover(left + wide * 0.6, top + high / 2)
        path = (ASSETS if MADE else tmp_path) / f"{picture}.png"
        tab.screenshot(path)
        assert path.read_bytes().startswith(b"\x89PNG")
        assert (ASSETS / path.name).is_file()
    finally:
        tab.close()
