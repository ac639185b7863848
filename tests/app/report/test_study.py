"""The section of an ablation or a search in the report: its words, and numbers that are those of the runs."""

import html
import json
import re
from pathlib import Path

import pytest

from penalties.app.ablation import Outcome, Recorded, recorded
from penalties.app.ablation.outcomes import Facts, write
from penalties.app.cli import main
from penalties.app.report import make
from penalties.app.report.study import Study, study_of

from .synthetic import config, write_run

LOSSES = {"all": [1.0, 2.0, 3.0], "without kl": [1.5, 2.6, 3.5], "kl.weight=2": [1.1, 2.0, 2.9]}
FACTS = {
    "all": Facts({"kl.weight": 0.5}, None, {}),
    "without kl": Facts({}, "kl", {}),
    "kl.weight=2": Facts({"kl.weight": 2}, None, {}),
}


def ablation(folder: Path, names: dict[str, str] | None = None) -> Path:
    """An ablation of runs of one step."""
    outcomes: list[Outcome] = []
    for name, losses in LOSSES.items():
        for seed, loss in enumerate(losses):
            run = folder / f"{name}-seed-{seed}"
            write_run(run, steps=[1, 2], settings=config([name], 2, seed=seed))
            shown = (names or {}).get(name, name)
            terms = {} if name == "without kl" else {(names or {}).get("kl", "kl"): 1.0 / loss}
            outcomes.append(Outcome(shown, seed, run, loss, terms, None, 1, True))
    facts = {(names or {}).get(name, name): one for name, one in FACTS.items()}
    write(folder, Recorded((names or {}).get("all", "all"), facts, outcomes))
    return folder


def section(folder: Path) -> Study:
    found = study_of([folder])
    assert found is not None
    return found


def test_the_page_has_the_headline_the_intervals_and_the_power(tmp_path: Path) -> None:
    page = html.unescape(make([ablation(tmp_path)]).html)
    headlines = re.findall(r'<p class="headline"[^>]*>(.*)</p>', page)
    # What the runs say by themselves comes under it, without a headline of its own.
    assert headlines[0] == "kl helped; no effect of kl.weight=2 was shown."
    assert not any("ended lowest" in one for one in headlines)
    assert "uncorrected; an effect is claimed where p, adjusted by Holm's method for 2 comparisons" in page
    assert "With 3 seeds and 2 comparisons, an effect of 4.6 standard deviations" in page


def test_what_runs_say_by_themselves_ranks_no_variant(tmp_path: Path) -> None:
    made = make([ablation(tmp_path)])
    page = html.unescape(made.html)
    assert "<h1>Ablation of 9 runs</h1>" in page
    assert "Ranking" not in page
    assert not re.search("ended.{0,20} with the lowest", page)
    assert made.together[0] == "kl helped; no effect of kl.weight=2 was shown."
    assert '<meta name="description" content="kl helped; no effect' in page
    # Of the runs alone, without the file of the ablation, it is an ordinary comparison.
    assert "Ranking" in make(sorted(path for path in tmp_path.iterdir() if path.is_dir())).html


def test_the_command_says_what_the_ablation_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(ablation(tmp_path))]) == 0
    assert capsys.readouterr().out.splitlines()[-2] == "kl helped; no effect of kl.weight=2 was shown."
    assert main(["report", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"][0] == "kl helped; no effect of kl.weight=2 was shown."


def test_a_variant_without_a_term_has_the_colour_of_the_term(tmp_path: Path) -> None:
    effects, *_ = section(ablation(tmp_path)).charts
    # The first term is the first colour, wherever it stands on the page.
    assert effects.spec["rows"][0]["css"] == "t1"


def test_dots_are_named_by_their_seeds(tmp_path: Path) -> None:
    effects, *_ = section(ablation(tmp_path)).charts
    assert effects.spec["rows"][0]["labels"] == ["seed 0", "seed 1", "seed 2"]


def test_the_charts_are_of_the_same_numbers(tmp_path: Path) -> None:
    effects, swept, front = section(ablation(tmp_path)).charts
    rows = {row["name"]: row for row in effects.spec["rows"]}
    assert [round(one, 6) for one in rows["without kl"]["values"]] == [0.5, 0.6, 0.5]
    assert rows["without kl"]["low"] < rows["without kl"]["mean"] < rows["without kl"]["high"]
    assert swept.spec["scale"] == "log"
    assert [(one["name"], one["x"], one["y"]) for one in swept.spec["spots"]] == [
        ("all", 0.5, 2.0),
        ("kl.weight=2", 2.0, 2.0),
    ]
    assert [one["front"] for one in front.spec["spots"]].count(True) == 1
    page = html.unescape(make([tmp_path]).html)
    for chart in (effects, swept, front):
        assert chart.title in page


def test_a_sweep_with_0_is_about_logarithmic_all_the_same(tmp_path: Path) -> None:
    record = recorded(ablation(tmp_path))
    write(tmp_path, record._replace(variants={**record.variants, "kl.weight=2": Facts({"kl.weight": 0}, None, {})}))
    _, swept, _ = section(tmp_path).charts
    assert (swept.spec["scale"], [one["x"] for one in swept.spec["spots"]]) == ("asinh", [0.0, 0.5])


def test_the_numbers_are_those_of_the_runs(tmp_path: Path) -> None:
    tables = {table.title: table for table in section(ablation(tmp_path)).tables}
    assert list(tables) == [
        "Variants",
        "Difference from all by seed",
        "Held-out base loss by kl.weight",
        "Held-out base loss against kl",
    ]
    assert tables["Difference from all by seed"].rows == [
        ["without kl", "0.5", "0.6", "0.5"],
        ["kl.weight=2", "0.1", "0", "−0.1"],
    ]
    assert tables["Held-out base loss by kl.weight"].rows == [["0.5", "all", "2"], ["2", "kl.weight=2", "2"]]
    assert [row[-1] for row in tables["Held-out base loss against kl"].rows] == ["no", "yes"]
    page = make([tmp_path]).html
    for table in tables.values():
        for row in table.rows:
            cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
            assert f'<tr><th scope="row">{html.escape(row[0])}</th>{cells}</tr>' in page


def test_names_cannot_inject_markup(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>&\"'"
    names = {name: f"{hostile} {name}" for name in (*LOSSES, "kl")}
    page = make([ablation(tmp_path, names)]).html
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page


@pytest.mark.parametrize("broken", ["{", "[]", '{"runs": 3}', '{"runs": [], "variants": {}, "baseline": "all"}'])
def test_an_ablation_that_cannot_be_read_leaves_its_runs(tmp_path: Path, broken: str) -> None:
    (ablation(tmp_path) / "ablation.json").write_text(broken)
    assert study_of([tmp_path]) is None
    assert len(make([tmp_path]).verdicts) == 9


def test_runs_without_their_ablation_have_no_section(tmp_path: Path) -> None:
    folders = sorted(path for path in ablation(tmp_path).iterdir() if path.is_dir())
    assert study_of(folders) is None
    assert not re.search("<h2>Ablation", make(folders).html)


def test_the_file_is_json_that_every_parser_reads(tmp_path: Path) -> None:
    made = Outcome("all", 0, tmp_path / "all", float("nan"), {"kl": float("inf")}, None, 1, True)
    write(tmp_path, Recorded("all", {}, [made]))
    plain = json.loads((tmp_path / "ablation.json").read_text(), parse_constant=lambda _: pytest.fail("not JSON"))
    assert plain["runs"][0]["base_loss"] == "NaN"
    assert section(tmp_path).found.rows[0].terms == {"kl": float("inf")}
