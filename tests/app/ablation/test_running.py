"""The runs of an ablation: folders, failures, interruptions, and what is kept of them."""

import json
from pathlib import Path

import pytest

from penalties.app.ablation import Outcome, Variant, analysed, variants
from penalties.app.ablation import recorded as recorded_in
from penalties.app.config import load
from penalties.app.runs import Run
from penalties.app.runs.disk import RunError
from penalties.app.runs.lock import Lock
from penalties.app.train import Interrupted, TermFailed
from penalties.app.train import start as start_module
from penalties.app.train.progress import SILENT

from ..stand_ins import Backend, killing, write_config
from .records import in_sequence, loading, trained

pytestmark = pytest.mark.usefixtures("backends")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_config(tmp_path, steps=4)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    """The outcomes of an ablation."""
    folder = tmp_path_factory.mktemp("done")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start_module, "connect", Backend)
        return trained(variants(loading(write_config(folder, steps=4))), folder / "out")


class TestRuns:
    def test_each_run_has_its_own_folder(self, path: Path, tmp_path: Path) -> None:
        whole = load(path, ["train.steps=1"])
        trials = [Variant(name, 0, whole) for name in ("without a b", "without a-b", "without a+b")]
        outcomes = trained(trials, tmp_path / "out")
        folders = [outcome.folder.name for outcome in outcomes]
        assert folders == ["without-a-b-seed-0", "without-a-b-seed-0-2", "without-a+b-seed-0"]

    def test_are_written_by_one_process(self, path: Path, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        lock = Lock(tmp_path / "out" / "lock")
        with pytest.raises(RunError, match="out is being written by process"):
            trained(variants(loading(path)), tmp_path / "out")
        lock.release()

    def test_another_config_loses_no_results(self, path: Path, done: list[Outcome], backends: list[Backend]) -> None:
        out = done[0].folder.parent
        before = (out / "ablation.json").read_bytes()

        other = loading(path, "train.learning_rate=0.5")
        with pytest.raises(RunError, match="its config changed: train.learning_rate was") as raised:
            trained(variants(other), out, resume=True)
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
        outcomes = trained(trials, tmp_path / "out")
        assert [outcome.error is None for outcome in outcomes] == [True, False, True]

        failing = loading(path, "cranky.options={ fail = true }")
        with pytest.raises(TermFailed, match="cranky"):
            trained(variants(failing), tmp_path / "other")

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
        loaded = loading(path, "data.eval_path=", "train.steps=20")
        outcomes = trained(variants(loaded)[:1], tmp_path / "out")
        steps = [record["loss"] for record in Run(outcomes[0].folder).records() if record["kind"] == "step"]
        assert outcomes[0].base_loss == pytest.approx(sum(one["base_loss"]["value"] for one in steps[-2:]) / 2)
        assert outcomes[0].terms["counting"] == steps[-2]["regularizers"]["counting"]["value"]

    def test_a_term_that_was_skipped_is_left_out_of_its_mean(self, tmp_path: Path) -> None:
        path = write_config(tmp_path, terms='[[term]]\nfn = "tests.app.terms:failing"\non_error = "skip"\n')

        loaded = loading(path, "data.eval_path=", "train.steps=5")
        (outcome,) = trained(variants(loaded)[:1], tmp_path / "out")
        assert outcome.terms == {}

    def test_a_tenth_of_few_steps_is_the_last_step(self, path: Path, tmp_path: Path) -> None:
        loaded = loading(path, "data.eval_path=", "train.steps=2")
        (outcome,) = trained(variants(loaded)[:1], tmp_path / "out")
        steps = [record["loss"] for record in Run(outcome.folder).records() if record["kind"] == "step"]
        assert outcome.base_loss == steps[-1]["base_loss"]["value"]
        # It rested at the last step.
        assert "counting" not in outcome.terms

    def test_finished_runs_are_kept_and_others_resumed(
        self, path: Path, tmp_path: Path, backends: list[Backend]
    ) -> None:
        trials = variants(loading(path))

        breaking = in_sequence(SILENT, SILENT, killing(3))
        with pytest.raises(Interrupted):
            trained(trials, tmp_path / "out", training=breaking)
        assert len(backends) == 3
        with pytest.raises(RunError, match="already has an ablation"):
            trained(trials, tmp_path / "out")
        begun = analysed(recorded_in(tmp_path / "out"))
        assert (begun.ended, begun.runs, begun.complete) == (2, len(trials), False)
        outcomes = trained(trials, tmp_path / "out", resume=True)
        assert len(backends) == 5
        assert all(outcome.error is None for outcome in outcomes)
        summary = json.loads((tmp_path / "out" / "ablation.json").read_text())
        assert [run["variant"] for run in summary["runs"]] == [variant.name for variant in trials]
        assert summary["runs"][0]["folder"] == "all-seed-0"
        assert analysed(recorded_in(tmp_path / "out")).complete

    def test_a_resumed_ablation_loses_no_comparison(self, path: Path, tmp_path: Path, backends: list[Backend]) -> None:
        loaded = loading(path, "train.steps=1")
        trained(variants(loaded, sweeps=["kl.weight=1,2"], seeds=2), tmp_path / "out")
        before, count = (tmp_path / "out" / "ablation.json").read_bytes(), len(backends)

        told = 'its ablation has "kl.weight=2" and seed 1 as well; resume it with the same options and perhaps more'
        with pytest.raises(RunError, match=told) as raised:
            trained(variants(loaded, sweeps=["kl.weight=1"]), tmp_path / "out", resume=True)
        assert raised.value.status == 2
        assert (tmp_path / "out" / "ablation.json").read_bytes() == before
        assert len(backends) == count

        more = trained(variants(loaded, sweeps=["kl.weight=1,2,3"], seeds=3), tmp_path / "out", resume=True)
        assert (len(more), len(backends)) == (12, count + 6)
        (tmp_path / "out" / "ablation.json").write_text("{")
        assert len(trained(variants(loaded, sweeps=["kl.weight=1"]), tmp_path / "out", resume=True)) == 2

    def test_one_that_fails_does_not_stop_the_others(self, tmp_path: Path) -> None:
        terms = '[[term]]\nfn = "tests.app.terms:failing"\n[[term]]\nfn = "l2"\ninputs = "logprobs"\nweight = 0.1\n'
        path = write_config(tmp_path, terms=terms)
        outcomes = trained(variants(loading(path)), tmp_path / "out")
        assert [outcome.error is None for outcome in outcomes] == [False, True, False]
        assert outcomes[0].base_loss is None
        assert "as the test wants it" in (outcomes[0].error or "")

    def test_an_error_in_every_run_is_raised_at_once(self, path: Path, tmp_path: Path) -> None:
        trials = variants(loading(path))
        (tmp_path / "data.jsonl").write_text("no json\n")
        with pytest.raises(Exception, match="line 1"):
            trained(trials, tmp_path / "out")
