"""`penalties list` and `penalties describe`."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penalties.app import console
from penalties.app.cli import main

Run = Callable[..., tuple[int, str, str]]


class TestList:
    def test_it_names_everything_by_kind(self, run: Run) -> None:
        status, out, err = run("list")
        assert (status, err) == (0, "")
        assert out.startswith("penalty: fn of a [[term]]\n")
        assert "\n  l1 " in out
        assert "\n  penalties.training.adapters:kl " in out
        assert "\n  warmup " in out
        assert "\x1b" not in out

    def test_one_kind_alone(self, run: Run) -> None:
        out = run("list", "loss")[1]
        assert "dpo" in out
        assert "l1" not in out

    def test_for_machines(self, run: Run) -> None:
        found = json.loads(run("list", "--json")[1])
        assert {
            "kind": "loss",
            "name": "cross_entropy",
            "summary": "`Σ −logprob·weight`, as the service computes it.",
        } in found

    def test_an_unknown_kind(self, run: Run) -> None:
        status, _, err = run("list", "losses")
        assert status == 2
        assert err.splitlines() == [
            'error: Invalid value for KIND: there is no "losses"; did you mean loss? '
            "(penalty, batch, loss, reference, schedule, wrap, sink, input and table)",
            "see: penalties list --help",
        ]
        assert "Usage: penalties list [OPTIONS] [KIND]" in run("list", "--help")[1]

    def test_shells_complete_kinds(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        asked = {"_PENALTIES_COMPLETE": "bash_complete", "COMP_WORDS": "penalties list s", "COMP_CWORD": "2"}
        for name, value in asked.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit):
            main(["list", "s"])
        assert capsys.readouterr().out == "plain,schedule\nplain,sink\n"

    @pytest.mark.usefixtures("terminal")
    def test_on_a_terminal_it_is_a_table(self, run: Run) -> None:
        out = run("list", "loss")[1]
        assert "\x1b[" in out
        assert "what it is" in out


class TestDescribe:
    def test_a_penalty(self, run: Run) -> None:
        status, out, _ = run("describe", "kl_estimate")
        assert status == 0
        for part in (
            "kl_estimate (penalty: fn of a [[term]])",
            "reads: logprobs, reference",
            '"k1", "k2" or "k3"',
            '    fn = "kl_estimate"',
        ):
            assert part in out
        assert ">>>" not in out

    def test_a_function_in_the_working_directory(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "terms_of_here.py").write_text('def small(logprobs):\n    """Small numbers."""\n')
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.chdir(tmp_path)
        status, out, _ = run("describe", "terms_of_here:small")
        assert (status, "Small numbers." in out) == (0, True)

    @pytest.mark.parametrize("name", ["step", "<reference>", "flat_<reference>", "<reference>.logits", "flat_logits"])
    def test_inputs_whose_names_depend_on_the_config(self, run: Run, name: str) -> None:
        assert run("describe", name)[1].startswith(f"{name} (input")
        assert f"  {name} " in run("list", "input")[1]

    @pytest.mark.parametrize("name", ["train", "[train]"])
    def test_a_table(self, run: Run, name: str) -> None:
        out = run("describe", name)[1]
        assert re.search(r"^  steps +100 ", out, re.MULTILINE)
        assert "The number of optimizer steps." in out

    def test_a_list_of_tables(self, run: Run) -> None:
        out = run("describe", "[[term]]")[1]
        assert "fn              (required)" in out

    def test_a_key(self, run: Run) -> None:
        out = run("describe", "train.learning_rate")[1]
        assert "a number above 0" in out

    def test_two_things_of_one_name(self, run: Run) -> None:
        out = run("describe", "data")[1]
        assert "data (input: in inputs of a [[term]])" in out
        assert "data (table: a table of a config)" in out

    def test_a_kind_is_listed(self, run: Run) -> None:
        status, out, _ = run("describe", "schedule")
        assert (status, out) == (0, run("list", "schedule")[1])
        found = json.loads(run("describe", "schedule", "--json")[1])
        assert [one["name"] for one in found][:3] == ["constant", "linear", "warmup"]

    def test_what_has_no_default_is_not_set(self, run: Run) -> None:
        assert "eval_path  not set  a string" in run("describe", "data.eval_path")[1]

    def test_your_own_function(self, run: Run) -> None:
        out = run("describe", "tests.app.config_terms:steady")[1]
        assert "How large they are." in out
        assert "size  1.0" in out

    def test_for_machines(self, run: Run) -> None:
        (found,) = json.loads(run("describe", "l1", "--json")[1])
        assert found["reads"] == ["x"]
        assert found["values"][0]["name"] == "reduction"

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("kl_estimat", "did you mean kl_estimate?"),
            ("train.step", "did you mean train.steps?"),
            ("schedules", "did you mean schedule?"),
            ("zzz", "`penalties list` shows all names"),
            ("os:nothing", "has no attribute"),
        ],
    )
    def test_an_unknown_name_is_an_error(self, run: Run, name: str, says: str) -> None:
        status, out, err = run("describe", name)
        assert (status, out) == (2, "")
        assert says in err
        assert "see: penalties describe --help" in err

    @pytest.mark.usefixtures("terminal")
    def test_on_a_terminal_it_is_coloured(self, run: Run) -> None:
        out = run("describe", "l1")[1]
        assert "\x1b[" in out
        assert "reduction" in out


def test_a_table_in_a_pipe_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    console.table("title", ["a", "b"], [["x", "first"], ["longer", "second"]])
    assert capsys.readouterr().out == "title\n  x       first\n  longer  second\n"
