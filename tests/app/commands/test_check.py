"""`penalties check` and `penalties schema`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penalties.app.config import load
from penalties.app.config.schema import FILE

from ..configs import write

Run = Callable[..., tuple[int, str, str]]


class TestCheck:
    def test_a_config_that_is_right(self, run: Run, tmp_path: Path) -> None:
        path = write(tmp_path, "[train]\nsteps = 7")
        status, out, err = run("check", path)
        assert (status, err) == (0, "")
        assert (
            out == f"{path}: ok: 7 steps, batch size 8, 5 lines of data, cross_entropy, terms: none, backend: local\n"
        )

    @pytest.mark.parametrize("arguments", [[], ["demo"]])
    def test_the_demo(self, run: Run, arguments: list[str]) -> None:
        assert run("check", *arguments)[:2] == (
            0,
            "demo: ok: 150 steps, batch size 16, 260 lines of data, cross_entropy, terms: kl, entropy, size, "
            "backend: local\n",
        )

    def test_everything_that_is_wrong(self, run: Run, tmp_path: Path) -> None:
        path = write(tmp_path, '[train]\nstep = 7\n[[term]]\nfn = "l3"', data=["x", "[]"])
        status, out, err = run("check", path, "--set", "train.seed=-1")
        assert (status, out) == (2, "")
        said = err.splitlines()
        assert [line.removeprefix(f"{path}: ").split(": ")[0] for line in said[:-1]] == [
            *("train.seed", "train.step", "term.l3.fn", "lines.jsonl", "lines.jsonl")
        ]
        assert said[3].startswith(f"{path}: lines.jsonl: line 1: is no")
        assert said[-1] == "5 problems"

    def test_data_are_not_read_if_their_table_is_wrong(self, run: Run, tmp_path: Path) -> None:
        path = write(tmp_path, '[data]\npath = "nothing.jsonl"')
        assert run("check", path)[2].splitlines()[-1] == "1 problem"

    def test_a_file_that_is_not_there(self, run: Run, tmp_path: Path) -> None:
        status, _, err = run("check", tmp_path / "nothing.toml")
        assert status == 2
        assert err.splitlines()[-1] == "1 problem"

    def test_tokens_are_counted_where_the_tokenizer_is_here(self, run: Run, tmp_path: Path) -> None:
        long = [{"prompt": "a" * 9, "completion": "b"}, {"prompt": "", "completion": "b"}]
        text = '[data]\npath = "lines.jsonl"\nmax_length = 5\nend_token = false\n'
        said = run("check", write(tmp_path, text, data=long))[2]
        assert "line 1: its prompt has 9 tokens" in said
        assert "line 2: has no prompt" in said
        assert run("check", write(tmp_path, f'{text}[model]\nname = "org/model"', data=long))[0] == 0

    def test_quietly(self, run: Run, tmp_path: Path) -> None:
        assert run("check", write(tmp_path), "--quiet") == (0, "", "")
        assert len(run("check", write(tmp_path, "[train]\nsteps = 0"), "-q")[2].splitlines()) == 1

    def test_for_machines(self, run: Run, tmp_path: Path) -> None:
        status, out, _ = run("check", write(tmp_path, "[train]\nsteps = 0"), "--json")
        found = json.loads(out)
        assert status == 2
        assert not found["ok"]
        assert found["problems"][0]["where"] == "train.steps"
        assert found["config"] is None
        path = write(tmp_path)
        status, out, _ = run("check", path, "--json")
        assert status == 0
        assert json.loads(out) == {"ok": True, "problems": [], "notes": [], "config": load(path).to_dict()}

    def test_notes_on_what_is_probably_not_intended(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("TINKER_API_KEY", raising=False)
        text = (
            '[backend]\nkind = "tinker"\n[references]\ninitial = { kind = "initial" }\n'
            '[data]\npath = "lines.jsonl"\neval_path = "lines.jsonl"\non_bad_line = "skip"'
        )
        status, out, _ = run("check", write(tmp_path, text, data=[{"prompt": "a", "completion": "b"}, "x"]))
        assert status == 0
        for part in (
            "references.initial: no term reads it",
            "TINKER_API_KEY is not set",
            "nothing is held out",
            "line 2: is no",
        ):
            assert f"note: {part}" in out or part in out
        assert " 1 line of data, " in out

    @pytest.mark.parametrize(
        "reader",
        [
            '[[term]]\nfn = "kl_estimate"\ninputs = ["logprobs", "initial"]',
            '[train]\nloss = "tests.app.config_terms:loss_of_reference"',
        ],
    )
    def test_a_reference_that_is_read_has_no_note(self, run: Run, tmp_path: Path, reader: str) -> None:
        text = f'[references]\ninitial = {{ kind = "initial" }}\n{reader}'
        assert "note" not in run("check", write(tmp_path, text))[1]

    @pytest.mark.usefixtures("terminal")
    def test_on_a_terminal_paths_are_coloured(self, run: Run, tmp_path: Path) -> None:
        assert "\x1b[1;31mtrain.steps\x1b[0m" in run("check", write(tmp_path, "[train]\nsteps = 0"))[2]


class TestSchema:
    def test_it_is_the_one_that_ships(self, run: Run) -> None:
        assert run("schema") == (0, FILE.read_text(encoding="utf-8"), "")

    def test_it_can_be_written(self, run: Run, tmp_path: Path) -> None:
        assert run("schema", "--out", tmp_path / "schema.json") == (0, "", "")
        assert (tmp_path / "schema.json").read_bytes() == FILE.read_bytes()

    def test_a_path_that_cannot_be_written_is_an_error(self, run: Run, tmp_path: Path) -> None:
        status, _, err = run("schema", "--out", tmp_path / "no" / "schema.json")
        assert status == 2
        assert "cannot be written (No such file or directory)" in err
