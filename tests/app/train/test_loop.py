"""Training a run: what it logs, and how it ends."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from penalties.app.config import load
from penalties.app.runs import Run
from penalties.app.runs.disk import RunError
from penalties.app.train import Interrupted, TermFailed, train
from penalties.app.train import start as start_module
from penalties.app.train.progress import Progress

from ..stand_ins import (
    Backend,
    comparable,
    events,
    killing,
    killing_at_load,
    records,
    toy_config,
    weights_of,
    write_config,
)

pytestmark = pytest.mark.usefixtures("backends")


class TestRun:
    def test_logs_every_step_evaluation_and_event(self, finished: Run) -> None:
        steps = records(finished, "step")
        assert [record["step"] for record in steps] == list(range(1, 7))
        assert [record["step"] for record in records(finished, "eval")] == [0, 3, 6]
        assert events(finished) == ["checkpoint", "checkpoint", "checkpoint", "finished"]
        first = steps[0]
        assert set(first) == {
            *("kind", "step", "time", "seconds", "tokens", "learning_rate", "memory"),
            *("loss", "durations", "errors", "metrics"),
        }
        assert first["memory"] > 10_000_000
        assert first["tokens"] > 0
        assert first["seconds"] > 0
        assert first["learning_rate"] == 0.05
        assert first["metrics"].keys() == {"loss:sum", "surrogate_loss:sum", "norm"}
        assert first["errors"] == {}
        assert set(first["durations"]) == {"base_loss", "kl", "entropy", "counting"}

    def test_the_loss_falls_and_weights_follow_their_schedules(self, finished: Run) -> None:
        steps = records(finished, "step")
        assert steps[-1]["loss"]["base_loss"]["value"] < steps[0]["loss"]["base_loss"]["value"]
        weights = [record["loss"]["regularizers"]["kl"]["weight"] for record in steps]
        assert weights == pytest.approx([0.0, 0.125, 0.25, 0.375, 0.5, 0.5])
        evaluated = records(finished, "eval")
        assert evaluated[-1]["loss"]["base_loss"]["value"] < evaluated[0]["loss"]["base_loss"]["value"]

    def test_gradients_are_measured_at_their_steps(self, tmp_path: Path) -> None:
        run = train(toy_config(tmp_path, gradients_every=2), tmp_path / "run")
        steps = records(run, "step")
        assert ["cosines" in record["loss"] for record in steps] == [True, False] * 3
        norms = [record["loss"]["total_grad_norm"] for record in steps]
        assert [norm is None for norm in norms] == [False, True] * 3
        assert all(norm > 0 for norm in norms[::2])
        assert not any("cosines" in record["loss"] for record in records(run, "eval"))

    def test_gradients_are_not_measured_unless_requested(self, tmp_path: Path) -> None:
        run = train(toy_config(tmp_path, gradients_every=0), tmp_path / "run")
        assert all(record["loss"]["total_grad_norm"] is None for record in records(run, "step"))

    def test_an_evaluation_has_every_term_and_no_backward(self, tmp_path: Path, backends: list[Backend]) -> None:
        run = train(toy_config(tmp_path, steps=1, checkpoint_every=0), tmp_path / "run")
        for record in records(run, "eval"):
            assert set(record["loss"]["regularizers"]) == {"kl", "entropy", "counting"}
            assert record["tokens"] > 0
        # Before the first step: for the references of both batches and twice for the two that are held out.
        calls = backends[0].client.calls
        assert calls.count("forward_backward") == 1
        assert calls.count("optim_step") == 1

    def test_an_evaluation_changes_no_state(self, tmp_path: Path) -> None:
        often = train(toy_config(tmp_path, eval_every=1), tmp_path / "often")
        never = train(toy_config(tmp_path, eval_every=100), tmp_path / "never")
        assert comparable(records(often, "step")) == comparable(records(never, "step"))

    def test_without_held_out_data_nothing_is_evaluated(self, tmp_path: Path) -> None:
        config = toy_config(tmp_path)
        config = config.model_copy(update={"data": config.data.model_copy(update={"eval_path": None})})
        assert records(train(config, tmp_path / "run"), "eval") == []

    def test_a_term_that_fails_and_may_is_logged_as_skipped(self, tmp_path: Path) -> None:
        terms = '[[term]]\nfn = "tests.app.terms:failing"\nweight = 0.1\non_error = "skip"\n'
        run = train(toy_config(tmp_path, terms), tmp_path / "run")
        step = records(run, "step")[4]
        assert step["loss"]["regularizers"]["failing"]["value"] is None
        assert "as the test wants it" in step["errors"]["failing"]
        (warning,) = [record for record in records(run, "event") if record["event"] == "warning"]
        assert warning["step"] == 5
        assert "failing was skipped" in warning["message"]

    def test_dominance_is_reported_once(self, tmp_path: Path) -> None:
        terms = '[[term]]\nfn = "tests.app.terms:huge"\n'
        run = train(toy_config(tmp_path, terms, gradients_every=1), tmp_path / "run")
        (warning,) = [record for record in records(run, "event") if record["event"] == "warning"]
        assert "huge dominates base_loss" in warning["message"]
        assert warning["step"] == 3

    def test_bad_lines_that_were_left_out_are_reported(self, tmp_path: Path) -> None:
        config = toy_config(tmp_path, data='on_bad_line = "skip"')
        with (tmp_path / "data.jsonl").open("a") as file:
            file.write("no json\n")
        run = train(config, tmp_path / "run")
        assert events(run)[0] == "warning"
        assert "1 line of data left out; data.jsonl: line 9" in records(run, "event")[0]["message"]

    def test_the_learning_rate_follows_its_schedule(self, tmp_path: Path) -> None:
        config = toy_config(tmp_path)
        from penalties.app.config.schedules import Linear

        schedule = Linear(kind="linear", start=0.0, end=0.05, steps=6)
        config = config.model_copy(update={"train": config.train.model_copy(update={"schedule": schedule})})
        run = train(config, tmp_path / "run")
        rates = [record["learning_rate"] for record in records(run, "step")]
        assert rates == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.04, 0.05])

    def test_pairs_are_trained_on_by_dpo(self, tmp_path: Path) -> None:
        path = write_config(tmp_path, terms="", loss="dpo", steps=8)
        lines = [json.dumps({"prompt": f"{n}: ", "chosen": "yes", "rejected": "no"}) for n in range(4)]
        for name in ("data.jsonl", "held_out.jsonl"):
            (tmp_path / name).write_text("\n".join(lines))
        run = train(load(path), tmp_path / "run")
        margins = [record["loss"]["base_loss"]["custom"]["margin"] for record in records(run, "step")]
        assert margins[0] == pytest.approx(0.0, abs=1e-6)
        assert margins[-1] > margins[0]
        assert records(run, "eval")[-1]["loss"]["base_loss"]["custom"]["accuracy"] == 1.0

    def test_every_default_is_in_the_saved_config(self, finished: Run) -> None:
        assert finished.config() == load(finished.folder.parent / "toy.toml").to_dict()

    def test_the_backend_is_closed_with_the_status(self, tmp_path: Path, backends: list[Backend]) -> None:
        train(toy_config(tmp_path, steps=1), tmp_path / "run")
        assert backends[0].status == "success"


class TestReferences:
    def test_the_model_before_training_is_evaluated_once_per_example(
        self, tmp_path: Path, backends: list[Backend]
    ) -> None:
        train(toy_config(tmp_path, eval_every=100), tmp_path / "run")
        # 8 lines in batches of 3: the third one has the last two that are new; then two batches of held-out data.
        asked = backends[0].client.calls[:5]
        assert asked == ["forward"] * 5
        assert (tmp_path / "run" / "references" / "initial.npz").is_file()

    def test_they_are_reused_when_the_run_is_resumed(self, tmp_path: Path, backends: list[Backend]) -> None:
        config = toy_config(tmp_path, eval_every=100)
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run", progress=killing(3))
        before = (tmp_path / "run" / "references" / "initial.npz").read_bytes()
        train(config, tmp_path / "run", resume=True)
        assert backends[1].client.calls[0] == "forward"
        assert backends[1].client.calls[1] == "forward_backward"
        assert (tmp_path / "run" / "references" / "initial.npz").read_bytes() == before

    def test_a_teacher_with_a_cache_keeps_it_when_the_run_is_resumed(self, tmp_path: Path) -> None:
        more = 'teacher = { kind = "client", model = "tiny", seed = 3 }\nnoisy = { kind = "perturbed" }'
        terms = (
            '[[term]]\nfn = "kl_estimate"\nname = "near"\nweight = 0.1\ninputs = ["logprobs", "teacher"]\n'
            '[[term]]\nfn = "kl_estimate"\nname = "steady"\nweight = 0.1\ninputs = ["logprobs", "noisy"]\n'
        )
        config = toy_config(tmp_path, terms, more)
        whole = train(config, tmp_path / "whole")
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run", progress=killing(3))
        assert (tmp_path / "run" / "references" / "teacher.npz").is_file()
        run = train(config, tmp_path / "run", resume=True)
        assert comparable(list(run.records())) == comparable(list(whole.records()))


class TestEnding:
    def test_ctrl_c_finishes_the_step_and_saves_a_checkpoint(self, tmp_path: Path, backends: list[Backend]) -> None:
        config = toy_config(tmp_path, checkpoint_every=0)
        told: list[str] = []

        class Pressing(Progress):
            def record(self, record: Any, line: str) -> None:
                if record["kind"] == "step" and record["step"] == 3:
                    os.kill(os.getpid(), signal.SIGINT)

            def stopping(self) -> None:
                told.append("stopping")

        with pytest.raises(Interrupted, match="interrupted after 3 steps") as raised:
            train(config, tmp_path / "run", progress=Pressing())

        assert raised.value.status == 1
        assert told == ["stopping"]
        assert backends[0].status == "interrupted"
        assert events(Run(tmp_path / "run")) == ["checkpoint", "interrupted"]
        whole = train(config, tmp_path / "whole")
        run = train(config, tmp_path / "run", resume=True)
        assert weights_of(run.folder, 6) == weights_of(whole.folder, 6)

    def test_ctrl_c_in_the_last_step_finishes_the_run(self, tmp_path: Path) -> None:
        class Pressing(Progress):
            def record(self, record: Any, line: str) -> None:
                if record["kind"] == "step" and record["step"] == 6:
                    signal.raise_signal(signal.SIGTERM)

        run = train(toy_config(tmp_path), tmp_path / "run", progress=Pressing())
        assert events(run)[-1] == "finished"

    def test_a_second_ctrl_c_stops_at_once_and_names_the_last_checkpoint(self, tmp_path: Path) -> None:
        with pytest.raises(Interrupted, match="stopped immediately after 3 steps; the last checkpoint is after 2"):
            train(toy_config(tmp_path), tmp_path / "run", progress=killing(3))
        assert events(Run(tmp_path / "run"))[-1] == "interrupted"

    def test_before_the_first_step_there_is_no_checkpoint(self, tmp_path: Path) -> None:
        progress = killing_at_load()
        with pytest.raises(Interrupted, match="stopped immediately after 0 steps; there is no checkpoint yet"):
            train(toy_config(tmp_path), tmp_path / "run", progress=progress)

    def test_a_term_that_fails_ends_the_run_and_the_log_says_why(self, tmp_path: Path, backends: list[Backend]) -> None:
        terms = '[[term]]\nfn = "tests.app.terms:failing"\nweight = 0.1\n'
        with pytest.raises(TermFailed, match="at step 5: failing: .*as the test wants it"):
            train(toy_config(tmp_path, terms), tmp_path / "run")
        run = Run(tmp_path / "run")
        assert [record["step"] for record in records(run, "step")] == [1, 2, 3, 4]
        last = run.last()
        assert last is not None
        assert last["event"] == "failed"
        assert "as the test wants it" in last["message"]
        assert last["step"] == 4
        assert backends[0].status == "errored"

    @pytest.mark.parametrize(
        ("term", "every", "says"),
        [
            ("late", 10, "at step 3: late: the value is nan"),
            ("late_gradient", 10, "at step 3: datum 0: the gradient of the loss is"),
            ("late_gradient", 1, "at step 3: late_gradient: datum 0: the gradient of the loss is"),
        ],
    )
    def test_a_number_that_is_not_finite_is_reported_with_its_step(
        self, tmp_path: Path, term: str, every: int, says: str
    ) -> None:
        config = toy_config(tmp_path, f'[[term]]\nfn = "tests.app.terms:{term}"\n', gradients_every=every)
        with pytest.raises(TermFailed, match=says) as raised:
            train(config, tmp_path / "run")
        assert not raised.value.finite

    def test_a_name_that_the_message_starts_with_is_said_all_the_same(self, tmp_path: Path) -> None:
        terms = '[[term]]\nfn = "tests.app.terms:late_gradient"\nname = "datum 0"\n'
        with pytest.raises(TermFailed, match="at step 3: datum 0: datum 0: the gradient of the loss is"):
            train(toy_config(tmp_path, terms, gradients_every=1), tmp_path / "run")

    def test_no_key_is_in_any_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TINKER_API_KEY", "tml-very-secret")

        def connect(*_: Any) -> Any:
            raise RunError("401: tml-very-secret is unknown")

        monkeypatch.setattr(start_module, "connect", connect)
        with pytest.raises(RunError):
            train(toy_config(tmp_path), tmp_path / "run")
        for path in (tmp_path / "run").rglob("*"):
            if path.is_file():
                assert b"very-secret" not in path.read_bytes()
        assert "<TINKER_API_KEY>" in (tmp_path / "run" / "metrics.jsonl").read_text()

    def test_a_full_disk_ends_the_run_and_leaves_whole_lines(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = toy_config(tmp_path, checkpoint_every=2)
        write, room = os.write, [9000]

        def full(descriptor: int, content: bytes) -> int:
            if not content.startswith(b"{"):
                return write(descriptor, content)
            fits = min(len(content), room[0])
            room[0] -= fits
            if fits == 0:
                raise OSError(28, "No space left on device")
            return write(descriptor, content[:fits])

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(RunError, match="the disk is full; free some space, then resume"):
            train(config, tmp_path / "run")
        monkeypatch.undo()
        monkeypatch.setattr(start_module, "connect", Backend)
        lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["kind"] for line in lines].count("step") > 1
        run = train(config, tmp_path / "run", resume=True)
        whole = train(config, tmp_path / "whole")
        assert comparable(list(run.records())) == comparable(list(whole.records()))
