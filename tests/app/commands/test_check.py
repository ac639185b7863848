"""`penalties check` and `penalties schema`."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penalties.app.config import load
from penalties.app.config.schema import FILE

from ..configs import LINES, write
from ..data.tokenizers import CHATML, folder_with_code, model_folder

Run = Callable[..., tuple[int, str, str]]


class TestCheck:
    def test_a_config_that_is_right(self, run: Run, tmp_path: Path) -> None:
        path = write(tmp_path, "[train]\nsteps = 7")
        status, out, err = run("check", path)
        assert (status, err) == (0, "")
        lengths, batch, summary = out.splitlines()
        assert lengths == "tokens: median 13, 95 % have at most 17, longest 17"
        assert re.fullmatch(r"the first batch: loss (\d\.\d+), base_loss \1", batch)
        assert summary == (
            f"{path}: ok: 7 steps, batch size 8, 5 lines of data, cross_entropy, terms: none, backend: local"
        )

    @pytest.mark.parametrize("arguments", [[], ["demo"]])
    def test_the_demo(self, run: Run, arguments: list[str]) -> None:
        status, out, _ = run("check", *arguments)
        assert (status, out.splitlines()[-1]) == (
            0,
            "demo: ok: 150 steps, batch size 16, 260 lines of data, cross_entropy, terms: kl, entropy, size, "
            "backend: local",
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

    def test_many_bad_lines_are_counted(self, run: Run, tmp_path: Path) -> None:
        path = write(tmp_path, data=["x"] * 50)
        said = run("check", path)[2].splitlines()
        assert len(said) == 22
        assert said[-2:] == [f"{path}: and 30 more lines are bad", "50 problems"]
        err = run("train", path, "--run", tmp_path / "run")[2].splitlines()
        assert err[1] == f"and 49 more: `penalties check {path}` lists the first of them"
        text = '[data]\npath = "lines.jsonl"\non_bad_line = "skip"'
        out = run("check", write(tmp_path, text, data=[*LINES, *["x"] * 50]))[1]
        assert "note: data: and 30 more lines were left out" in out

    def test_what_is_cut_is_said(self, run: Run, tmp_path: Path) -> None:
        path = write(tmp_path, '[data]\npath = "lines.jsonl"\nmax_length = 14\n')
        out = run("check", path, "--no-model")[1]
        assert "longest 17; data.max_length = 14 cuts 3 of 5, and 6.8% of all tokens" in out
        assert "the first batch" not in out

    def test_a_term_that_fails_on_the_first_batch_is_a_problem(self, run: Run, tmp_path: Path) -> None:
        path = write(tmp_path, '[[term]]\nfn = "tests.app.terms:cranky"\noptions = { fail = true }')
        status, _, err = run("check", path)
        assert status == 2
        assert "term.cranky: fails on the first batch: raised RuntimeError: as the test wants it" in err
        assert run("check", path, "--no-model")[0] == 0

    @pytest.mark.parametrize(
        ("where", "text"),
        [
            ("model.name", '[model]\nname = "my_models:first"'),
            ("references.teacher.model", '[references]\nteacher = { kind = "client", model = "my_models:first" }'),
        ],
    )
    def test_a_name_that_no_model_can_have_is_a_problem(self, run: Run, tmp_path: Path, where: str, text: str) -> None:
        status, _, err = run("check", write(tmp_path, text))
        assert status == 2
        assert f'{where}: "my_models:first" is neither a folder nor a name that a model can have on the hub' in err

    def test_a_model_that_is_elsewhere_is_not_run(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TINKER_API_KEY", "tml-x")
        out = run("check", write(tmp_path, '[model]\nname = "org/model"'))[1]
        assert 'note: model.name: "org/model" is not downloaded yet, so no term was run' in out
        out = run("check", write(tmp_path, '[backend]\nkind = "tinker"'))[1]
        assert "note: backend.kind: the model is on a server, so no term was run" in out

    def test_messages_are_checked_by_the_template_of_a_model_that_is_here(self, run: Run, tmp_path: Path) -> None:
        lines = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]}]
        for template, status in ((CHATML, 0), (None, 2)):
            name = f"model-{status}"
            path = write(tmp_path, f'[model]\nname = "{model_folder(tmp_path / name, template)}"', data=lines)
            assert run("check", path)[0] == status
        assert run("check", write(tmp_path, '[model]\nname = "org/model"', data=lines))[0] == 0

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            (
                'fn = "kl_estimate"\ninputs = ["logprobs", "initial"]',
                'fn = "kl_divergence" with inputs = { p = "logits", q = "initial.logits", mask = "mask" } and '
                "options = { logits = true } is exact; or set data.sampled = true",
            ),
            (
                'fn = "entropy_estimate"\ninputs = "flat_logprobs"\nwrap = [{ kind = "ema" }]',
                'fn = "entropy" with inputs = { p = "logits", mask = "mask" }',
            ),
            (
                'fn = "penalties.training.adapters:kl"\n'
                'inputs = { logprobs = "logprobs", reference = "initial", mask = "mask" }',
                'q = "initial.logits"',
            ),
        ],
    )
    def test_estimators_over_tokens_of_a_data_set_are_a_problem(
        self, run: Run, tmp_path: Path, text: str, says: str
    ) -> None:
        table = '[data]\npath = "lines.jsonl"\n'
        text = f'[references]\ninitial = {{ kind = "initial" }}\n[[term]]\n{text}\n'
        status, _, err = run("check", write(tmp_path, table + text))
        assert status == 2
        assert "which is for tokens that the model itself sampled, and a data set has others" in err
        assert says in err
        assert run("check", write(tmp_path, f"{table}sampled = true\n{text}"))[0] == 0
        assert run("check", write(tmp_path, f"{table}{text}enabled = false\n"), "--no-model")[0] == 0
        remote = '[backend]\nkind = "tinker"\n'
        err = run("check", write(tmp_path, remote + table + text))[2]
        assert 'is exact, with backend.kind = "local"' in err
        near = 'with references.initial.top_k = 20, inputs = ["logprobs.initial", "initial"] is near it on a server'
        assert (near in err) == ("initial" in text.partition("[[term]]")[2])

    def test_the_likeliest_tokens_of_a_reference_are_tried(self, run: Run, tmp_path: Path) -> None:
        text = (
            '[references]\nteacher = { kind = "client", model = "tiny", seed = 1, top_k = 8 }\n[[term]]\n'
            'fn = "kl_divergence"\ninputs = { p = "logprobs.teacher", q = "teacher" }\n'
            'options = { direction = "reverse" }\n'
        )
        status, out, _ = run("check", write(tmp_path, text))
        assert status == 0
        assert "kl_divergence" in out

    def test_data_that_cannot_be_counted_for_epochs_are_a_problem(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "broken.parquet").write_bytes(b"PAR1")
        path = write(tmp_path, '[data]\npath = "broken.parquet"\n[train]\nepochs = 1')
        status, out, _ = run("check", path, "--json")
        assert status == 2
        (problem,) = json.loads(out)["problems"]
        assert problem["where"].startswith("broken.parquet: ")
        status, _, err = run("check", path)
        assert (status, err.splitlines()[-1]) == (2, "1 problem")

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
        found = json.loads(out)
        assert found.pop("loss")["loss_total"] > 0
        assert found.pop("lengths") == {"measured": 5, "median": 13, "most": 17, "longest": 17, "cut": 0, "lost": 0.0}
        assert found == {"ok": True, "problems": [], "notes": [], "config": load(path).to_dict()}

    def test_notes_on_what_a_model_without_an_adapter_costs(self, run: Run, tmp_path: Path) -> None:
        text = (
            '[model]\nadapter = "none"\ndtype = "bfloat16"\n[references]\nbefore = { kind = "initial" }\n[[term]]\n'
            'fn = "kl_divergence"\ninputs = ["logits", "before.logits"]\noptions = { logits = true }\n'
        )
        status, out, _ = run("check", write(tmp_path, text))
        assert status == 0
        assert 'note: references.before: model.adapter = "none" keeps a copy of the weights for it' in out
        assert "note: model.dtype: the weights are trained in it too, so small updates are rounded away" in out
        for change in ("model.adapter=lora", "model.dtype=float32"):
            assert run("check", write(tmp_path, text), "--set", change)[1] != out

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

    @pytest.mark.parametrize(("best_by", "schedule"), [("loss", True), ("loss", False), ("base_loss", True)])
    def test_a_best_loss_whose_weights_change_has_one(
        self, run: Run, tmp_path: Path, best_by: str, schedule: bool
    ) -> None:
        text = (
            f'[data]\npath = "lines.jsonl"\neval_path = "lines.jsonl"\n[train]\nbest_by = "{best_by}"\neval_every = 1\n'
            '[[term]]\nfn = "l2"\ninputs = "params"\n' + 'schedule = { kind = "warmup", steps = 4 }\n' * schedule
        )
        status, out, _ = run("check", write(tmp_path, text))
        assert status == 0
        note = (
            'train.best_by: the weight of l2 changes, so evaluations of "loss" cannot be compared; choose "base_loss"'
        )
        assert (note in out) == (best_by == "loss" and schedule)

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


class TestCode:
    """Modules run when they are imported."""

    @pytest.fixture
    def ran(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A file that is there once the module of the config's term ran."""
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.delitem(sys.modules, "own_terms", raising=False)
        text = f"import pathlib\n\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n\n\n"
        text += "def size(logprobs):\n    return logprobs[0].sum()\n"
        (tmp_path / "own_terms.py").write_text(text)
        return tmp_path / "ran"

    def test_a_module_is_imported_if_nothing_else_is_wrong(self, run: Run, tmp_path: Path, ran: Path) -> None:
        path = write(tmp_path, '[[term]]\nfn = "own_terms:size"')
        status, out, err = run("check", path, "--set", "train.steps=0")
        assert (status, ran.exists()) == (2, False)
        assert out == 'note: term.1.fn: "own_terms:size" was not imported, nor its options checked\n'
        assert "run.toml: train.steps: found 0" in err
        assert run("check", path)[0] == 0
        assert ran.exists()

    @pytest.mark.parametrize("command", ["train", "ablate"])
    def test_no_command_imports_modules_of_a_config_that_is_wrong(
        self, run: Run, tmp_path: Path, ran: Path, command: str
    ) -> None:
        path = write(tmp_path, '[train]\nloss = "own_terms:size"\n[[term]]\nfn = "own_terms:size"')
        assert run(command, path, "--set", "train.steps=0", "--run", tmp_path / "run")[0] == 2
        assert not ran.exists()

    def test_without_code_none_is(self, run: Run, tmp_path: Path, ran: Path) -> None:
        before = list(sys.path)
        path = write(tmp_path, '[[term]]\nfn = "own_terms:size"\n[[term]]\nfn = "l3"')
        status, out, err = run("check", path, "--no-code")
        assert (status, "term.l3.fn: " in err) == (2, True)
        path = write(tmp_path, '[train]\nloss = "own_terms:size"\n[[term]]\nfn = "own_terms:size"')
        status, out, err = run("check", path, "--no-code")
        assert (status, err) == (0, "")
        assert 'note: train.loss: "own_terms:size" was not imported' in out
        assert "run.toml: ok: 100 steps, batch size 8, 5 lines of data, own_terms:size, terms: own_terms:size" in out
        held_out = 'path = "lines.jsonl"\neval_path = "lines.jsonl"'
        path = write(tmp_path, f'[samples]\nmetrics = ["exact_match", "own_terms:size"]\n[data]\n{held_out}')
        status, out, err = run("check", path, "--no-code")
        assert (status, err) == (0, "")
        assert re.findall("note: (.*) was not imported", out) == ['samples.metrics: "own_terms:size"']
        wrap = 'wrap = [{ kind = "straight_through", discretize = "own_terms:size" }]'
        path = write(tmp_path, f'[[term]]\nfn = "l2"\ninputs = "params"\n{wrap}')
        status, out, err = run("check", path, "--no-code")
        assert (status, err) == (0, "")
        assert re.findall("note: (.*) was not imported", out) == ['term.1.wrap.1.discretize: "own_terms:size"']
        assert not ran.exists()
        assert sys.path == before

    def test_a_module_that_ends_the_program_is_a_problem(self, run: Run, tmp_path: Path, ran: Path) -> None:
        (tmp_path / "own_terms.py").write_text("raise SystemExit(0)\n")
        status, _, err = run("check", write(tmp_path, '[[term]]\nfn = "own_terms:size"'))
        assert status == 2
        assert "that can be imported (SystemExit: 0)" in err

    @pytest.mark.parametrize("parts", [["config"], ["config", "tokenizer"]])
    def test_code_that_comes_with_a_model_is_a_problem_and_is_not_run(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: list[str]
    ) -> None:
        model = folder_with_code(tmp_path / "model", *parts)
        monkeypatch.setattr("builtins.input", lambda *_: "y")
        path = write(tmp_path, f'[model]\nname = "{model}"')
        for command in (("check", "--no-code"), ("train", "--run", tmp_path / "run")):
            status, _, err = run(*command, path)
            assert status == 2
            assert f'"{model}" comes with its own code, which is never run; choose a model that' in err
            assert not (model / "ran").exists()

    def test_code_of_a_model_on_a_server_is_the_business_of_its_sdk(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = folder_with_code(tmp_path / "model", "config")
        monkeypatch.setattr("builtins.input", lambda *_: "y")
        path = write(tmp_path, f'[model]\nname = "{model}"\n[backend]\nkind = "tinker"')
        assert run("check", "--no-code", path)[0] == 0
        assert not (model / "ran").exists()


class TestParts:
    """What a config says about `train.micro_batch_tokens`."""

    SEPARABLE = '[train]\nmicro_batch_tokens = 40\n[[term]]\nfn = "l2"\ninputs = "logprobs"\n'
    OWN = '[[term]]\nfn = "tests.app.config_terms:steady"\nname = "steady"\n'

    def test_sums_and_means_need_no_second_forward(self, run: Run, tmp_path: Path) -> None:
        likeliest = (
            '[references]\nfirst = { kind = "initial", top_k = 4 }\n'
            '[[term]]\nfn = "kl_divergence"\ninputs = ["logprobs.first", "first"]'
        )
        status, out, err = run("check", write(tmp_path, self.SEPARABLE + likeliest))
        assert (status, err) == (0, "")
        assert "note" not in out

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            ('[[term]]\nfn = "orthogonality"\ninputs = "flat_hidden.1"', "term.orthogonality: {}it is not a sum"),
            (OWN, "term.steady: {}it is a function of the whole batch; set separable = true if it is a sum"),
            (f'{OWN}runs = "thread"', 'term.steady: {}it runs in a thread; use runs = "inline"'),
            (f"{OWN}separable = false", "term.steady: {}it has separable = false"),
            (
                '[[term]]\nfn = "l1"\ninputs = "logprobs"\nwrap = [{ kind = "ema" }]',
                "term.l1: {}it keeps state",
            ),
            (
                '[[term]]\nfn = "l1"\ninputs = "logprobs"\nwrap = [{ kind = "straight_through" }]',
                "term.l1: {}StraightThrough goes around it; accept the second forward",
            ),
        ],
    )
    def test_what_needs_one_is_named_with_a_remedy(self, run: Run, tmp_path: Path, more: str, said: str) -> None:
        status, out, err = run("check", write(tmp_path, self.SEPARABLE + more))
        assert (status, err) == (0, "")
        twice = "needs the whole batch, so with train.micro_batch_tokens each part goes through the model twice: "
        assert f"note: {said.format(twice)}" in out
        assert out.count("needs the whole batch") == 1
        status, out, _ = run("check", write(tmp_path, self.SEPARABLE.replace("micro_batch_tokens = 40", "") + more))
        assert (status, "needs the whole batch" in out) == (0, False)

    @pytest.mark.parametrize(("every", "own", "noted"), [(10, True, True), (0, True, False), (10, False, False)])
    def test_logits_of_the_whole_batch_are_noted(
        self, run: Run, tmp_path: Path, every: int, own: bool, noted: bool
    ) -> None:
        entropy = '[[term]]\nfn = "entropy"\ninputs = { p = "logits" }\noptions = { logits = true }\n'
        separable = self.SEPARABLE.replace("[[term]]", f"gradients_every = {every}\n[[term]]")
        status, out, err = run("check", write(tmp_path, separable + entropy + (self.OWN if own else "")))
        assert (status, err) == (0, "")
        assert ("note: train.gradients_every: in two passes, a step that measures" in out) == noted

    def test_your_own_loss_can_be_a_term(self, run: Run, tmp_path: Path) -> None:
        loss = '[train]\nmicro_batch_tokens = 40\nloss = "tests.app.config_terms:loss"'
        status, out, _ = run("check", write(tmp_path, loss))
        assert status == 0
        assert 'a function of the whole batch; a [[term]] with separable, and train.loss = "none", can avoid' in out

    @pytest.mark.parametrize(("scope", "status"), [("sum", 0), ("mean", 2)])
    def test_a_promise_that_is_wrong_is_a_problem(self, run: Run, tmp_path: Path, scope: str, status: int) -> None:
        text = f'{self.SEPARABLE}{self.OWN}scope = "{scope}"\nseparable = "tokens"'
        found, out, err = run("check", write(tmp_path, text))
        assert found == status
        assert "needs the whole batch" not in out
        assert ("term.steady.separable: is " in err) == (status == 2)
        assert ("over the first batch, but " in err) == (status == 2)

    def test_a_promise_that_says_too_little_is_a_problem(self, run: Run, tmp_path: Path) -> None:
        text = f'{self.SEPARABLE}{self.OWN}scope = "mean"\nseparable = true'
        status, _, err = run("check", write(tmp_path, text))
        assert status == 2
        assert 'separable=True; expected "tokens" or "sequences"' in err
