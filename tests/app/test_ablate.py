"""Ablations: which variants there are, that they differ by nothing else, and how they compare."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penalties.app.ablate import Outcome, Variant, ablate, compared, shown, variants
from penalties.app.config import Config, ConfigError, load
from penalties.app.runs import Run
from penalties.app.runs.disk import RunError
from penalties.app.runs.lock import Lock
from penalties.app.train import Interrupted, TermFailed
from penalties.app.train import start as start_module
from penalties.app.train.progress import SILENT

from .stand_ins import TERMS, Backend, killing, write_config

pytestmark = pytest.mark.usefixtures("backends")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_config(tmp_path, steps=4)


def loading(path: Path) -> Any:
    def loaded(more: Sequence[str]) -> Config:
        return load(path, more)

    return loaded


def silent(*_: Any) -> Any:
    return SILENT


class TestVariants:
    def test_each_term_is_removed_in_turn(self, path: Path) -> None:
        made = variants(loading(path))
        assert [variant.name for variant in made] == ["all", "without kl", "without entropy", "without counting"]
        assert [[term.name for term in variant.config.term] for variant in made] == [
            ["kl", "entropy", "counting"],
            ["entropy", "counting"],
            ["kl", "counting"],
            ["kl", "entropy"],
        ]
        assert [variant.folder for variant in made][:2] == ["all-seed-0", "without-kl-seed-0"]

    def test_each_term_is_kept_alone(self, path: Path) -> None:
        made = variants(loading(path), keep=True)
        assert [variant.name for variant in made] == ["all", "only kl", "only entropy", "only counting"]
        assert [[term.name for term in variant.config.term] for variant in made[1:]] == [
            ["kl"],
            ["entropy"],
            ["counting"],
        ]

    def test_a_sweep_varies_one_value(self, path: Path) -> None:
        made = variants(loading(path), sweeps=["kl.weight=0.01, 0.5,1", "train.learning_rate=0.2"])
        # 0.5 is what the config has.
        assert [variant.name for variant in made] == ["all", "kl.weight=0.01", "kl.weight=1", "train.learning_rate=0.2"]
        assert [variant.config.term[0].weight for variant in made] == [0.5, 0.01, 1.0, 0.5]
        assert made[-1].config.train.learning_rate == 0.2

    def test_seeds_are_of_the_model_and_the_order_of_the_data(self, path: Path) -> None:
        made = variants(loading(path), seeds=2)
        assert [(variant.name, variant.seed) for variant in made][:5] == [
            ("all", 0),
            ("without kl", 0),
            ("without entropy", 0),
            ("without counting", 0),
            ("all", 1),
        ]
        assert all(variant.config.train.seed == variant.seed for variant in made)
        assert len({variant.folder for variant in made}) == 8

    def test_values_may_be_lists_and_strings_with_commas(self, path: Path) -> None:
        sweeps = ['kl.inputs=["logprobs", "initial"],{logprobs = "logprobs", reference = "initial"}']
        made = variants(loading(path), sweeps=[*sweeps, "kl.name='x,y','z'"])
        assert [variant.name for variant in made[1:]] == [
            'kl.inputs={logprobs = "logprobs", reference = "initial"}',
            "kl.name='x,y'",
            "kl.name='z'",
        ]

    @pytest.mark.parametrize("sweep", ["kl.weight", "=1,2", "kl.weight=", "kl.weight=1,,2"])
    def test_a_malformed_sweep_is_an_error(self, path: Path, sweep: str) -> None:
        with pytest.raises(RunError, match="expected a key and its values, such as kl.weight=0.01,0.1,1") as raised:
            variants(loading(path), sweeps=[sweep])
        assert raised.value.status == 2

    def test_a_wrong_value_is_found_before_anything_is_trained(self, path: Path) -> None:
        with pytest.raises(ConfigError, match="weight"):
            variants(loading(path), sweeps=["kl.weight=1,heavy"])

    def test_without_terms_there_is_nothing_to_remove(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="no enabled \\[\\[term\\]\\]"):
            variants(loading(write_config(tmp_path, terms="")))

    @pytest.mark.parametrize("by", ["counting", "counting_weighted", "counting/seen"])
    @pytest.mark.parametrize(
        ("sweeps", "keep", "variant"),
        [
            ([], False, "without counting"),
            ([], True, "only kl"),
            (["counting.enabled=false"], False, "counting.enabled=false"),
        ],
    )
    def test_the_metric_of_the_best_checkpoint_is_in_all(
        self, tmp_path: Path, by: str, sweeps: list[str], keep: bool, variant: str
    ) -> None:
        path = write_config(tmp_path, best_by=by)
        with pytest.raises(RunError, match=f'the variant "{variant}" does not have "{by}", by which') as raised:
            variants(loading(path), sweeps=sweeps, keep=keep)
        assert raised.value.status == 2
        assert len(variants(loading(write_config(tmp_path, best_by="base_loss")), sweeps=sweeps, keep=keep)) > 1

    def test_each_has_something_to_train_on(self, tmp_path: Path) -> None:
        path = write_config(tmp_path, terms=TERMS.partition("\n\n")[0], loss="none")
        with pytest.raises(RunError, match='"without kl" has neither a loss nor a term') as raised:
            variants(loading(path))
        assert raised.value.status == 2
        assert [one.name for one in variants(loading(path), keep=True)] == ["all"]

    def test_a_term_that_is_not_enabled_is_not_removed(self, path: Path) -> None:
        def loaded(more: Sequence[str]) -> Config:
            return load(path, ["kl.enabled=false", *more])

        assert [one.name for one in variants(loaded)] == ["all", "without entropy", "without counting"]
        assert [one.name for one in variants(loaded, keep=True)] == ["all", "only entropy", "only counting"]

    def test_one_value_in_two_spellings_is_one(self, path: Path) -> None:
        trials = variants(loading(path), sweeps=["kl.weight=0.1,0.10,0.1,0.5,2"])
        assert [one.name for one in trials] == ["all", "kl.weight=0.1", "kl.weight=2"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    """The outcomes of an ablation."""
    folder = tmp_path_factory.mktemp("done")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start_module, "connect", Backend)
        return ablate(variants(loading(write_config(folder, steps=4))), folder / "out", progress=silent)


class TestRuns:
    def test_each_run_has_its_own_folder(self, path: Path, tmp_path: Path) -> None:
        whole = load(path, ["train.steps=1"])
        trials = [Variant(name, 0, whole) for name in ("without a b", "without a-b", "without a+b")]
        outcomes = ablate(trials, tmp_path / "out", progress=silent)
        folders = [outcome.folder.name for outcome in outcomes]
        assert folders == ["without-a-b-seed-0", "without-a-b-seed-0-2", "without-a+b-seed-0"]

    def test_are_written_by_one_process(self, path: Path, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        lock = Lock(tmp_path / "out" / "lock")
        with pytest.raises(RunError, match="out is being written by process"):
            ablate(variants(loading(path)), tmp_path / "out", progress=silent)
        lock.release()

    def test_another_config_loses_no_results(self, path: Path, done: list[Outcome], backends: list[Backend]) -> None:
        out = done[0].folder.parent
        before = (out / "ablation.json").read_bytes()

        def other(more: Sequence[str]) -> Config:
            return load(path, ["train.learning_rate=0.5", *more])

        with pytest.raises(RunError, match="its config changed: train.learning_rate was") as raised:
            ablate(variants(other), out, resume=True, progress=silent)
        assert raised.value.status == 2
        assert (out / "ablation.json").read_bytes() == before
        assert backends == []

    def test_one_that_fails_at_once_does_not_stop_the_others(self, tmp_path: Path) -> None:
        terms = (
            '[[term]]\nfn = "tests.app.terms:cranky"\nname = "cranky"\n'
            '[[term]]\nfn = "l2"\ninputs = "logprobs"\nweight = 0.1\n'
        )
        path = write_config(tmp_path, terms=terms)
        trials = variants(loading(path), sweeps=["cranky.options={ fail = true },{ fail = false, size = 2.0 }"])
        outcomes = ablate(trials, tmp_path / "out", progress=silent)
        assert [outcome.error is None for outcome in outcomes] == [True, False, True]

        def failing(more: Sequence[str]) -> Config:
            return load(path, ["cranky.options={ fail = true }", *more])

        with pytest.raises(TermFailed, match="cranky"):
            ablate(variants(failing), tmp_path / "other", progress=silent)

    def test_differ_by_nothing_but_the_variant(self, done: list[Outcome]) -> None:
        assert [outcome.variant for outcome in done] == ["all", "without kl", "without entropy", "without counting"]
        logs = [list(Run(outcome.folder).records()) for outcome in done]
        tokens = [[record["tokens"] for record in log if record["kind"] == "step"] for log in logs]
        assert all(one == tokens[0] for one in tokens)
        first = [next(record for record in log if record["kind"] == "step") for log in logs]
        assert len({record["loss"]["base_loss"]["value"] for record in first}) == 1
        losses = [outcome.base_loss for outcome in done]
        assert len(set(losses)) == 4
        assert set(done[0].terms) == {"kl", "entropy", "counting"}
        assert set(done[1].terms) == {"entropy", "counting"}
        evaluated = [record for record in logs[0] if record["kind"] == "eval"][-1]
        assert done[0].base_loss == evaluated["loss"]["base_loss"]["value"]

    def test_without_held_out_data_the_last_steps_count(self, path: Path, tmp_path: Path) -> None:
        def loaded(more: Sequence[str]) -> Config:
            return load(path, ["data.eval_path=", "train.steps=20", *more])

        outcomes = ablate(variants(loaded)[:1], tmp_path / "out", progress=silent)
        steps = [record["loss"] for record in Run(outcomes[0].folder).records() if record["kind"] == "step"]
        assert outcomes[0].base_loss == pytest.approx(sum(one["base_loss"]["value"] for one in steps[-2:]) / 2)
        assert outcomes[0].terms["counting"] == steps[-2]["regularizers"]["counting"]["value"]

    def test_a_term_that_was_skipped_is_left_out_of_its_mean(self, tmp_path: Path) -> None:
        path = write_config(tmp_path, terms='[[term]]\nfn = "tests.app.terms:failing"\non_error = "skip"\n')

        def loaded(more: Sequence[str]) -> Config:
            return load(path, ["data.eval_path=", "train.steps=5", *more])

        (outcome,) = ablate(variants(loaded)[:1], tmp_path / "out", progress=silent)
        assert outcome.terms == {}

    def test_a_tenth_of_few_steps_is_the_last_step(self, path: Path, tmp_path: Path) -> None:
        def loaded(more: Sequence[str]) -> Config:
            return load(path, ["data.eval_path=", "train.steps=2", *more])

        (outcome,) = ablate(variants(loaded)[:1], tmp_path / "out", progress=silent)
        steps = [record["loss"] for record in Run(outcome.folder).records() if record["kind"] == "step"]
        assert outcome.base_loss == steps[-1]["base_loss"]["value"]
        # It rested at the last step.
        assert "counting" not in outcome.terms

    def test_finished_runs_are_kept_and_others_resumed(
        self, path: Path, tmp_path: Path, backends: list[Backend]
    ) -> None:
        trials = variants(loading(path))

        def breaking(variant: Any, number: int) -> Any:
            return killing(3) if number == 2 else SILENT

        with pytest.raises(Interrupted):
            ablate(trials, tmp_path / "out", progress=breaking)
        assert len(backends) == 3
        with pytest.raises(RunError, match="already has an ablation"):
            ablate(trials, tmp_path / "out", progress=silent)
        outcomes = ablate(trials, tmp_path / "out", resume=True, progress=silent)
        assert len(backends) == 5
        assert all(outcome.error is None for outcome in outcomes)
        summary = json.loads((tmp_path / "out" / "ablation.json").read_text())
        assert [run["variant"] for run in summary["runs"]] == [variant.name for variant in trials]
        assert summary["runs"][0]["folder"] == "all-seed-0"

    def test_one_that_fails_does_not_stop_the_others(self, tmp_path: Path) -> None:
        terms = '[[term]]\nfn = "tests.app.terms:failing"\n[[term]]\nfn = "l2"\ninputs = "logprobs"\nweight = 0.1\n'
        path = write_config(tmp_path, terms=terms)
        outcomes = ablate(variants(loading(path)), tmp_path / "out", progress=silent)
        assert [outcome.error is None for outcome in outcomes] == [False, True, False]
        assert outcomes[0].base_loss is None
        assert "as the test wants it" in (outcomes[0].error or "")

    def test_an_error_in_every_run_is_raised_at_once(self, path: Path, tmp_path: Path) -> None:
        trials = variants(loading(path))
        (tmp_path / "data.jsonl").write_text("no json\n")
        with pytest.raises(Exception, match="line 1"):
            ablate(trials, tmp_path / "out", progress=silent)


def outcome(variant: str, seed: int, loss: float | None, **terms: float) -> Outcome:
    return Outcome(variant, seed, Path("x"), loss, terms, None if loss is not None else "TermError: no")


class TestComparison:
    def test_differences_are_seed_by_seed(self) -> None:
        found = compared(
            [
                outcome("all", 0, 1.0, kl=1.0),
                outcome("without kl", 0, 2.0),
                outcome("all", 1, 3.0, kl=3.0),
                outcome("without kl", 1, 4.5),
            ]
        )
        whole, without = found
        assert whole.base_loss == (2.0, pytest.approx(math.sqrt(2.0)))
        assert without.difference == (1.25, pytest.approx(0.35355, rel=1e-4))
        assert whole.terms == {"kl": 2.0}
        assert shown(found) == [
            "variant     base loss     difference    kl",
            "all         2 ± 1.414                   2",
            "without kl  3.25 ± 1.768  1.25 ± 0.354  -",
        ]

    def test_a_failed_variant_has_no_numbers_and_its_reason(self) -> None:
        assert shown(compared([outcome("all", 0, 1.0), outcome("without kl", 0, None)])) == [
            "variant     base loss  difference",
            "all         1",
            "without kl  failed",
            "without kl: TermError: no",
        ]

    def test_losses_that_are_not_finite_have_no_spread(self) -> None:
        (whole,) = compared([outcome("all", 0, math.inf), outcome("all", 1, 1.0)])
        assert whole.base_loss is not None
        assert whole.base_loss[0] == math.inf
        assert math.isnan(whole.base_loss[1])
        assert "inf" in shown([whole])[1]
