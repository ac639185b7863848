"""The pictures of reports in the documentation, of runs that were trained."""

import os
from pathlib import Path

import pytest

from penalties.app import cli

from .browser import DESKTOP, PHONE, Browser, assert_quiet, in_browser, plot

pytestmark = in_browser

ASSETS = Path(__file__).parents[3] / "docs" / "assets"


MADE = bool(os.environ.get("PENALTIES_PICTURES"))
"""Whether the pictures are made anew: fonts differ between machines, and so they are otherwise left as they are."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Path]:
    """The reports of the demo and of its ablation; shortened where nobody will look at them."""
    folder = tmp_path_factory.mktemp("trained")
    steps, shorter = ("150", "60") if MADE else ("3", "2")
    demo, ablation = folder / "demo", folder / "demo-ablation"
    assert cli.main(["train", "--quiet", "--run", str(demo), "--set", f"train.steps={steps}"]) == 0
    seeds = ["--seeds", "5" if MADE else "1"]
    assert cli.main(["ablate", "--quiet", "--run", str(ablation), "--set", f"train.steps={shorter}", *seeds]) == 0
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
            left, top, wide, high = plot(tab)
            tab.run("scrollTo(0, 0)")
            left, top, wide, high = tab.run(
                "(() => { const box = document.querySelector('.u-over').getBoundingClientRect();"
                "return [box.left, box.top, box.width, box.height]; })()"
            )
            tab.hover(left + wide * 0.6, top + high / 2)
        tab.run("new Promise((done) => setTimeout(done, 500))")
        path = (ASSETS if MADE else tmp_path) / f"{picture}.png"
        tab.screenshot(path)
        assert path.read_bytes().startswith(b"\x89PNG")
        assert (ASSETS / path.name).is_file()
    finally:
        tab.close()
