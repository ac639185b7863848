"""The pages of frameworks that need no adapter run, and print what they say; skipped without the framework."""

from pathlib import Path

import pytest

from tests.pages import run

PAGES = Path(__file__).parents[3] / "docs" / "trainers"


@pytest.mark.parametrize(("page", "framework"), [("flax.md", "flax"), ("equinox.md", "equinox")])
def test_code_on_the_page_runs_and_prints_what_it_says(page: str, framework: str):
    pytest.importorskip(framework)
    pytest.importorskip("optax")
    run(f"docs/trainers/{page}", (PAGES / page).read_text())
