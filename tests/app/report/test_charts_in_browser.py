"""Charts in a browser: zoom, toggles, smoothing, scales, axes, pictures and numbers to keep."""

import csv
import io
import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from penalties.app import report
from penalties.app.report.charts.chart import Chart
from penalties.app.report.charts.points import Dots, Spot, dots, scatter
from penalties.app.report.page import compose

from .browser import DESKTOP, Browser, Tab, assert_quiet, in_browser, inked, plot, press_button, tip, written
from .synthetic import write_run
from .test_cursor import as_number, log_of, number_of
from .test_page import long_run

pytestmark = in_browser


def settle(tab: Tab) -> None:
    """Until the page has drawn."""
    tab.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 60)))")


def saved(folder: Path, ending: str) -> Path:
    end = time.monotonic() + 20
    while not (found := [path for path in folder.glob(f"*.{ending}") if path.stat().st_size]):
        assert time.monotonic() < end, f"no {ending} was saved"
        time.sleep(0.05)
    return found[0]


def choose(tab: Tab, words: str, number: int = 0) -> None:
    """An entry of the menu of a chart."""
    press_button(tab, ".menu summary", number)
    settle(tab)
    tab.run(
        f"[...document.querySelectorAll('.chart:not(.spark)')[{number}].querySelectorAll('.menu button')]"
        f".find((one) => one.textContent === {words!r}).click()"
    )
    settle(tab)


def test_dragging_zooms_every_chart_of_the_run_and_a_double_click_goes_back(driver: Browser, pages):
    tab = driver.open(pages["small"], DESKTOP, 1800)
    try:
        plot(tab, 1)
        left, top, width, height = plot(tab)
        first, second = inked(tab), inked(tab, 1)
        tab.drag(left + 0.25 * width, left + 0.5 * width, top + height / 2)
        settle(tab)
        assert inked(tab) != first
        assert inked(tab, 1) != second
        tab.hover(left + 2, top + height / 2)
        assert 13 <= int(tip(tab)["where"].removeprefix("step ")) <= 15
        assert tab.run("document.querySelector('.back').hidden") is False
        tab.double_click(left + width / 2, top + height / 2)
        settle(tab)
        assert tab.run("document.querySelector('.back').hidden") is True
        tab.hover(left + 2, top + height / 2)
        assert int(tip(tab)["where"].removeprefix("step ")) == 0
        tab.hover(2, 2)
        settle(tab)
        assert (inked(tab), inked(tab, 1)) == (first, second)
        assert_quiet(tab, pages["small"])
    finally:
        tab.close()


def test_keys_zoom_around_the_cursor(driver: Browser, pages):
    tab = driver.open(pages["small"], DESKTOP)
    try:
        plot(tab)
        tab.run("document.querySelector('.plot').focus()")
        tab.press("End")
        tab.press("+")
        settle(tab)
        tab.press("Home")
        assert int(tip(tab)["where"].removeprefix("step ")) == 30
        tab.press("-")
        settle(tab)
        assert tab.run("document.querySelector('.back').hidden") is True
        tab.press("+")
        tab.press("0")
        tab.press("Home")
        assert tip(tab)["where"] == "step 0"
        assert_quiet(tab, pages["small"])
    finally:
        tab.close()


def test_a_series_is_left_out_and_comes_back(driver: Browser, pages):
    tab = driver.open(pages["small"], DESKTOP)
    try:
        left, top, width, height = plot(tab)
        before = inked(tab)
        press_button(tab, ".legend button")
        settle(tab)
        assert inked(tab) != before
        tab.hover(left + width / 2, top + height / 2)
        assert "training base loss" not in tip(tab)
        press_button(tab, ".legend button")
        tab.hover(2, 2)
        settle(tab)
        assert inked(tab) == before
    finally:
        tab.close()


def test_a_run_is_left_out_of_all_charts(driver: Browser, pages):
    tab = driver.open(pages["compared"], DESKTOP, 2000)
    try:
        plot(tab, 1)
        left, top, width, height = plot(tab)
        tab.run("document.querySelector('.chips button[data-letter=B]').click()")
        settle(tab)
        tab.hover(left + width / 2, top + height / 2)
        for number in (0, 1):
            assert [name[0] for name in tip(tab, number) if name != "where"] == ["A", "C", "D"]
        pressed = "[...document.querySelectorAll('button.r1')].map((one) => one.getAttribute('aria-pressed'))"
        assert set(tab.run(pressed)) == {"false"}
    finally:
        tab.close()


def test_smoothing_draws_another_line_and_leaves_the_numbers(driver: Browser, pages):
    tab = driver.open(pages["small"], DESKTOP)
    try:
        left, top, width, height = plot(tab)
        before = inked(tab)
        tab.run(
            "(() => { const range = document.querySelector('.controls input[type=range]'); range.value = 15;"
            "range.dispatchEvent(new Event('input')); })()"
        )
        settle(tab)
        assert inked(tab) != before
        assert tab.run("document.querySelector('.controls output').textContent") == "15\u00a0%"
        tab.hover(left + width / 2, top + height / 2)
        said, log = tip(tab), log_of(pages["small"], "pig-latin")
        step = int(said["where"].removeprefix("step "))
        assert as_number(said["training base loss"]) == pytest.approx(log[step]["base_loss"]["value"], rel=1e-5)
    finally:
        tab.close()


@pytest.mark.parametrize("scale", ["log", "asinh"])
def test_the_scale_of_a_chart_is_chosen_in_its_menu(driver: Browser, pages, scale):
    tab = driver.open(pages["small"], DESKTOP)
    try:
        number = number_of(tab, "Held-out base loss" if scale == "log" else "entropy")
        plot(tab, number)
        before = inked(tab, number)
        choose(tab, scale, number)
        assert inked(tab, number) != before
        choose(tab, "linear", number)
        assert inked(tab, number) == before
        assert_quiet(tab, pages["small"])
    finally:
        tab.close()


def test_charts_are_over_steps_tokens_or_time(driver: Browser, pages):
    lines = (pages["small"].parent / "pig-latin" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    steps = [one for one in records if one["kind"] == "step"]
    tab = driver.open(pages["small"], DESKTOP)
    try:
        left, top, width, height = plot(tab)
        for axis, key in (("tokens", "tokens"), ("seconds", "seconds")):
            tab.run(f"document.querySelector('.controls input[value={axis}]').click()")
            settle(tab)
            tab.hover(left + width / 3, top + height / 2)
            said = tip(tab)
            words, _, step = said["where"].partition(", step ")
            so_far = sum(one[key] for one in steps[: int(step) + 1])
            if axis == "tokens":
                assert int(words.removesuffix(" tokens").replace("\u202f", "")) == pytest.approx(so_far, rel=1e-5)
            else:
                assert float(words.removesuffix("\u00a0s")) == pytest.approx(so_far, rel=5e-3)
            logged = steps[int(step)]["loss"]["base_loss"]["value"]
            assert as_number(said["training base loss"]) == pytest.approx(logged, rel=1e-5)
        assert_quiet(tab, pages["small"])
    finally:
        tab.close()


def test_the_numbers_of_a_chart_are_saved_as_csv(driver: Browser, pages, tmp_path):
    log = log_of(pages["everything"], "everything")
    tab = driver.open(pages["everything"], DESKTOP)
    try:
        tab.downloads(tmp_path)
        number = number_of(tab, "topology")
        plot(tab, number)
        choose(tab, "Numbers (CSV)", number)
        header, *rows = csv.reader(io.StringIO(saved(tmp_path, "csv").read_text()))
        assert header == ["step", "value", "held out", "contribution"]
        by_step = {int(row[0]): row[1:] for row in rows}
        assert set(by_step) == set(log)
        assert by_step[97] == ["failed", "", "failed"]
        for step, (value, _, contribution) in by_step.items():
            logged = log[step]["regularizers"]["topology"]
            if logged["value"] is not None:
                assert float(value) == logged["value"]
                assert float(contribution) == pytest.approx(logged["contribution"], rel=1e-12)
    finally:
        tab.close()


def test_a_chart_is_saved_as_a_picture(driver: Browser, pages, tmp_path):
    tab = driver.open(pages["small"], DESKTOP)
    try:
        tab.downloads(tmp_path)
        plot(tab)
        choose(tab, "Picture (PNG)")
        path = saved(tmp_path, "png")
        picture = path.read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert int.from_bytes(picture[16:20]) > 1000
        assert path.name == "pig-latin-held-out-base-loss.png"
        assert_quiet(tab, pages["small"])
    finally:
        tab.close()


def test_the_numbers_of_a_chart_are_a_table_too(driver: Browser, pages):
    tab = driver.open(pages["long"], DESKTOP)
    try:
        plot(tab)
        choose(tab, "Table")
        rows = tab.run(
            "[...document.querySelectorAll('.figures tbody tr')]"
            ".map((row) => [...row.cells].map((one) => one.textContent))"
        )
        assert 90 <= len(rows) <= 101
        log = log_of(pages["long"], "long")
        for step, value, *_ in rows[::10]:
            logged = log[int(step.replace("\u202f", ""))]["base_loss"]["value"]
            assert as_number(value) == pytest.approx(logged, rel=1e-5)
        assert "the CSV has all of them" in tab.run("document.querySelector('.figures caption').textContent")
        choose(tab, "Table")
        assert tab.run("document.querySelectorAll('.figures').length") == 0
    finally:
        tab.close()


def test_what_is_off_the_scale_is_shown_on_request(driver: Browser, pages):
    tab = driver.open(pages["everything"], DESKTOP)
    try:
        plot(tab)
        before = inked(tab)
        press_button(tab, ".beyond")
        settle(tab)
        assert inked(tab) != before
        assert tab.run("document.querySelector('.beyond').hidden") is True
    finally:
        tab.close()


def test_paper_is_light_and_has_everything(driver: Browser, pages):
    tab = driver.open(pages["small"], DESKTOP, dark=True)
    try:
        plot(tab)
        tab.run("dispatchEvent(new Event('beforeprint'))")
        assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert tab.run("document.querySelectorAll('.chart:not(.drawn)').length") == 0
        assert tab.run("document.querySelectorAll('details:not(.menu):not([open])').length") == 0
        tab.run("dispatchEvent(new Event('afterprint'))")
        assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 29)"
        assert_quiet(tab, pages["small"])
    finally:
        tab.close()


@pytest.mark.parametrize("name", ["small", "everything", "compared", "names"])
def test_tables_fit_on_paper(driver: Browser, pages, name):
    tab = driver.open(pages[name], 680)
    try:
        tab.run("document.querySelectorAll('details:not(.menu)').forEach((one) => (one.open = true))")
        tab.call("Emulation.setEmulatedMedia", media="print")
        settle(tab)
        cut = tab.run(
            "[...document.querySelectorAll('.table:not(:has(.cosines)), pre')].filter((one) => one.offsetParent)"
            ".filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent.slice(0, 40))"
        )
        assert cut == []
        assert tab.run("getComputedStyle(document.querySelector('.table')).overflowX") == "visible"
    finally:
        tab.close()


def test_letters_that_would_stand_far_from_their_lines_are_left_out(driver: Browser, tmp_path):
    for count, there in ((3, True), (12, False)):
        folders = [write_run(tmp_path / f"{count}-{run}", steps=9) for run in range(count)]
        page = tmp_path / f"{count}.html"
        report.make(folders).save(page)
        tab = driver.open(page, DESKTOP)
        try:
            plot(tab)
            assert any(one["text"] == "A" for one in written(tab)) is there
        finally:
            tab.close()


def with_charts(page: Path, charts: Sequence[Chart], path: Path) -> Path:
    """The page with these charts before its own."""
    text = page.read_text()
    figures = "".join(
        f'<figure class="chart {chart.size}" data-group="A"><figcaption><strong>{chart.title}</strong></figcaption>'
        '<details class="menu"><summary>…</summary></details><div class="plot"></div><p class="where"></p>'
        f'<script type="application/json">{chart.data}</script></figure>'
        for chart in charts
    )
    path.write_text(text.replace('<div class="charts">', f'<div class="charts">{figures}', 1))
    return path


def test_a_swept_value_of_0_stands_beside_the_smallest_others(driver: Browser, pages, tmp_path):
    spots = [Spot("", f"t{place}", x, 700.0) for place, x in enumerate((0.0, 0.01, 0.1, 1.0, 10.0))]
    chart = scatter("Sweep", spots, x_name="weight", y_name="loss", x_scale="asinh", joined=True)
    page = with_charts(pages["small"], [chart], tmp_path / "sweep.html")
    tab = driver.open(page, DESKTOP)
    try:
        plot(tab)
        said = {one["text"]: (one["left"] + one["right"]) / 2 for one in written(tab)}
        ticks = [said[tick] for tick in ("0", "0.1", "1", "10")]
        assert not any(text.startswith("\u2212") for text in said), "there is no room for numbers below 0"
        # One decade is as wide as the next, and the way from 0 is of their size.
        assert ticks[3] - ticks[2] == pytest.approx(ticks[2] - ticks[1], rel=0.05)
        assert 1 < (ticks[1] - ticks[0]) / (ticks[2] - ticks[1]) < 2
        assert_quiet(tab, page)
    finally:
        tab.close()


def test_dots_and_points_are_drawn_without_steps(driver: Browser, pages, tmp_path):
    rows = [Dots("kl", "t1", [0.1, 0.3], mean=0.2, low=0.05, high=0.35), Dots("=l1", "t2", [-0.1, -0.1, 0.2])]
    spots = [Spot(f"w={x}", f"t{place}", x, 3 - place, front=place < 2) for place, x in enumerate((0.01, 0.1, 1.0))]
    charts = [
        dots("Effects", rows, x_name="Δ"),
        scatter("Front", spots, x_name="weight", y_name="loss", x_scale="log", joined=True),
    ]
    page = with_charts(pages["small"], charts, tmp_path / "points.html")
    tab = driver.open(page, DESKTOP)
    try:
        tab.downloads(tmp_path)
        for number in (0, 1):
            plot(tab, number)
            assert inked(tab, number)
        choose(tab, "Numbers (CSV)", 0)
        header, *found = csv.reader(io.StringIO(saved(tmp_path, "csv").read_text()))
        assert header == ["name", "Δ", "mean", "low", "high"]
        assert found[0] == ["kl", "0.1", "0.2", "0.05", "0.35"]
        assert found[-1][:2] == ["'=l1", "0.2"], "a name that starts like a formula is none"
        assert_quiet(tab, page)
    finally:
        tab.close()


def test_a_page_of_ten_long_runs_is_painted_at_once(driver: Browser, tmp_path):
    page = tmp_path / "report.html"
    log = long_run(10_000)
    report.Report(compose([log] * 10, [f"run {place}" for place in range(10)]).html, {}, None).save(page)
    paints: list[float] = []
    for _ in range(3):
        tab = driver.open(page, DESKTOP)
        try:
            settle(tab)
            paints.append(tab.run("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        finally:
            tab.close()
    assert min(paints) < 500


def test_ten_runs_of_100_000_steps_stay_smooth(driver: Browser, tmp_path):
    page = tmp_path / "report.html"
    log = long_run(100_000, terms=3)
    report.Report(compose([log] * 10, [f"run {place}" for place in range(10)]).html, {}, None).save(page)
    tab = driver.open(page, DESKTOP)
    try:
        left, top, width, height = plot(tab)
        slowest = tab.run(
            "(async () => { const over = document.querySelector('.u-over'); const box = over.getBoundingClientRect();"
            "const times = []; for (let at = 0; at < 60; at += 1) { const start = performance.now();"
            "const place = {clientX: box.left + box.width * at / 60, clientY: box.top + 50, bubbles: true};"
            "over.dispatchEvent(new MouseEvent('mousemove', place));"
            "await new Promise((done) => requestAnimationFrame(done)); times.push(performance.now() - start); }"
            "return times.sort((a, b) => a - b)[54]; })()"
        )
        assert slowest < 100, f"of ten moves of the cursor one takes {slowest} ms"
        start = time.perf_counter()
        tab.drag(left + 0.25 * width, left + 0.5 * width, top + height / 2)
        settle(tab)
        assert time.perf_counter() - start < 3
        assert_quiet(tab, page)
    finally:
        tab.close()
