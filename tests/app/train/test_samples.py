"""Samples at evaluations: logged, shown and measured, without a trace in the training."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penalties.app.config import ConfigError, load
from penalties.app.metrics import Sample, exact_match
from penalties.app.runs import Run
from penalties.app.runs.checkpoints import find
from penalties.app.runs.disk import RunError
from penalties.app.train import Interrupted, train
from penalties.app.train.progress import Lines, spoken_samples
from penalties.app.trained.sampling import asked, continued

from ..data.tokenizers import tokenizer
from ..stand_ins import Backend, comparable, killing, records, toy_config, weights_of

pytestmark = pytest.mark.usefixtures("backends")

PROMPTS = '[samples]\nprompts = ["stone ", "fire "]\nmax_tokens = 5\n'


def metrics(*names: str, lines: int = 2) -> str:
    return f"[samples]\nmetrics = {list(names)!r}\nlines = {lines}\nmax_tokens = 5\n"


def sampled(folder: Path, more: str, **options: Any) -> Run:
    return train(toy_config(folder, more=more, **options), folder / "run")


class TestPrompts:
    def test_are_continued_at_each_evaluation(self, tmp_path: Path) -> None:
        run = sampled(tmp_path, PROMPTS)
        found = records(run, "samples")
        assert [record["step"] for record in found] == [0, 3, 6]
        assert [record["step"] for record in records(run, "eval")] == [0, 3, 6]
        for record in found:
            assert [one["prompt"] for one in record["samples"]] == ["stone ", "fire "]
            assert all(len(one["text"]) == 5 for one in record["samples"])
            assert record["metrics"] == {}
        assert found[0]["samples"] != found[-1]["samples"]

    def test_need_no_held_out_data(self, tmp_path: Path) -> None:
        config = toy_config(tmp_path, more=PROMPTS)
        without = config.model_copy(update={"data": config.data.model_copy(update={"eval_path": None})})
        run = train(without, tmp_path / "run")
        assert [record["step"] for record in records(run, "samples")] == [0, 3, 6]
        assert records(run, "eval") == []

    def test_change_nothing(self, tmp_path: Path, finished: Run) -> None:
        run = sampled(tmp_path, PROMPTS)
        assert weights_of(run.folder, 6) == weights_of(finished.folder, 6)
        others = [record for record in run.records() if record["kind"] != "samples"]
        assert comparable(others) == comparable(list(finished.records()))

    def test_may_change_when_a_run_is_resumed(self, tmp_path: Path) -> None:
        with pytest.raises(Interrupted):
            train(toy_config(tmp_path, more=PROMPTS), tmp_path / "run", progress=killing(5))
        more = PROMPTS.replace("fire", "water")
        run = train(toy_config(tmp_path, more=more), tmp_path / "run", resume=True)
        assert [one["prompt"] for one in records(run, "samples")[-1]["samples"]] == ["stone ", "water "]

    @pytest.mark.parametrize("after", [2, 3, 4])
    def test_a_killed_run_says_the_same(self, tmp_path: Path, after: int) -> None:
        config = toy_config(tmp_path, more=PROMPTS)
        whole = train(config, tmp_path / "whole")
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run", progress=killing(after))
        run = train(config, tmp_path / "run", resume=True)
        assert comparable(list(run.records())) == comparable(list(whole.records()))


class TestMetrics:
    def test_a_match_is_exact_but_for_space_around_it(self) -> None:
        samples = [Sample("a", " b\n", "b"), Sample("a", "b c", "b  c"), Sample("a", "B", "b"), Sample("a", "", " ")]
        assert exact_match(samples) == 0.5

    def test_are_computed_over_held_out_lines(self, tmp_path: Path) -> None:
        run = sampled(tmp_path, metrics("exact_match", "tests.app.terms:lengths"))
        for record in records(run, "samples"):
            assert record["samples"] == []
            assert record["metrics"] == {"exact_match": 0.0, "lengths/text": 5.0, "lengths/completion": 5.0}

    def test_pick_the_best_checkpoint(self, tmp_path: Path) -> None:
        run = sampled(tmp_path, metrics("exact_match"), best_by="exact_match", best_is="highest")
        assert find(run, "best").step == 3

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("failing_metric", '"tests.app.terms:failing_metric" failed: .*no such luck.* expected a number'),
            ("wordy_metric", '"tests.app.terms:wordy_metric" failed: .*could not convert'),
        ],
    )
    def test_one_that_fails_is_named(self, tmp_path: Path, name: str, says: str) -> None:
        with pytest.raises(RunError, match=says):
            sampled(tmp_path, metrics(f"tests.app.terms:{name}"))

    def test_lines_without_a_prompt_are_not_enough(self, tmp_path: Path) -> None:
        config = toy_config(tmp_path, more=metrics("exact_match"))
        (tmp_path / "held_out.jsonl").write_text('{"prompt": "", "completion": "whatever"}\n')
        with pytest.raises(RunError, match="none of the first 2 held-out lines has a prompt") as raised:
            train(config, tmp_path / "run")
        assert raised.value.status == 2

    @pytest.mark.parametrize(
        ("more", "says"),
        [
            (metrics("exact_mach"), 'found "exact_mach"; expected "exact_match" or .*; did you mean "exact_match"?'),
            (metrics("tests.app.terms:gone"), 'found "tests.app.terms:gone"; expected'),
            (metrics("a:lengths", "b:lengths"), "expected functions of different names"),
            (PROMPTS.replace("5", "0"), "samples.max_tokens: found 0; expected a whole number of at least 1"),
            (PROMPTS.replace("stone ", ""), "samples.prompts"),
        ],
    )
    def test_mistakes_are_found_before_training(self, tmp_path: Path, more: str, says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            toy_config(tmp_path, more=more)

    def test_need_held_out_completions(self, tmp_path: Path) -> None:
        path = tmp_path / "data.jsonl"
        text = f'[data]\npath = "data.jsonl"\n{metrics("exact_match")}'
        path.write_text('{"prompt": "a", "completion": "b"}\n')
        (tmp_path / "one.toml").write_text(text)
        with pytest.raises(ConfigError, match="there are no held-out lines; add data.eval_path"):
            load(tmp_path / "one.toml")
        path.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
        before = 'eval_path = "data.jsonl"\n[references]\ninitial = { kind = "initial" }\n[train]\nloss = "dpo"\n'
        (tmp_path / "two.toml").write_text(text.replace("[samples]", f"{before}[samples]"))
        with pytest.raises(ConfigError, match="pairs have no completion to compare with"):
            load(tmp_path / "two.toml")


class TestConversations:
    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What the model was given to continue."""
        found: list[str] = []
        draw = Backend.sample

        def recorded(backend: Backend, prompts: Any, count: int, options: Any) -> Any:
            found.extend(backend.tokenizer.decode(one) for one in prompts)
            return draw(backend, prompts, count, options)

        monkeypatch.setattr(Backend, "sample", recorded)
        return found

    def talking(self, folder: Path, held_out: str) -> Run:
        """A run whose data are conversations, with a prompt and a metric."""
        more = PROMPTS + 'metrics = ["tests.app.terms:lengths"]\n'
        config = toy_config(folder, more=more, steps=1)
        talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
        (folder / "data.jsonl").write_text(f"{json.dumps({'messages': talk})}\n")
        (folder / "held_out.jsonl").write_text(held_out)
        return train(config, folder / "run")

    def test_prompts_are_turns_of_a_user(self, tmp_path: Path, asked: list[str]) -> None:
        said = ["old", "new", "older", "newer", "thanks"]
        roles = ["user", "assistant", "user", "assistant", "user"]
        talk = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
        run = self.talking(tmp_path, f"{json.dumps({'messages': talk})}\n")
        assert asked[:3] == [
            "user: stone \nassistant: ",
            "user: fire \nassistant: ",
            "user: old\nassistant: new\nuser: older\nassistant: ",
        ]
        record = records(run, "samples")[-1]
        assert [one["prompt"] for one in record["samples"]] == ["stone ", "fire "]
        assert record["metrics"]["lengths/completion"] == len("newer")
        assert find(run, "last").notes["chat"] is True

    def test_held_out_lines_are_what_they_are(self, tmp_path: Path, asked: list[str]) -> None:
        self.talking(tmp_path, '{"prompt": "plain ", "completion": "text"}\n')
        assert asked[2] == "plain "

    def test_an_answer_to_nothing_has_no_prompt(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="none of the first 32 held-out lines has a prompt"):
            self.talking(tmp_path, '{"messages": [{"role": "assistant", "content": "hello"}]}\n')

    def test_one_that_does_not_fit_the_template_is_an_error(self) -> None:
        backend: Any = SimpleNamespace(tokenizer=tokenizer("{{ raise_exception('no user here') }}"), limit=None)
        with pytest.raises(RunError, match='the prompt "hi" cannot be used: .*chat template: .*no user here') as raised:
            continued(backend, [asked("hi", chat=True)])
        assert raised.value.status == 2


class TestShown:
    def test_in_lines_for_a_pipe(self, tmp_path: Path) -> None:
        out = io.StringIO()
        run = train(toy_config(tmp_path, more=PROMPTS), tmp_path / "run", progress=Lines(out))
        said = [one["text"] for one in records(run, "samples")[-1]["samples"]]
        shown = out.getvalue()
        assert f"samples after step 6:\n  stone → {said[0]}\n  fire → {said[1]}\n" in shown
        assert "samples before step 1:\n" in shown

    def test_a_long_one_is_cut(self) -> None:
        record = {"kind": "samples", "step": 1, "samples": [{"prompt": "a", "text": "b" * 500}], "metrics": {}}
        assert spoken_samples(record)[1] == f"  a → {'b' * 193}…"
