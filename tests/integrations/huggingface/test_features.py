"""What the mixin does beside the gradient: logs, norms, evaluation, checkpoints, inputs, errors."""

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch.nn.functional import cross_entropy
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback

import penalties as pn
from penalties import telemetry
from penalties.integrations.huggingface import PenaltiesCallback

from . import cases, reference
from .test_trainer import assert_equal, logged


def trainer_of(folder: Path, *terms: pn.Term, accumulation: int = 2, kind: Any = None, **given: Any) -> Any:
    own = {name: given.pop(name) for name in ("norms_at", "penalize_evaluation", "compute_loss_func") if name in given}
    evaluated = {"eval_dataset": cases.points(4)} if "eval_strategy" in given else {}
    return (kind or cases.PenalizedTrainer)(
        cases.Regressor(),
        cases.arguments(folder, accumulation, **given),
        train_dataset=cases.points(18 * cases.ROWS),
        pipeline=cases.points_pipeline(*terms),
        **evaluated,
        **own,
    )


def test_logs_have_every_term_and_the_trainers_own_loss(tmp_path: Path):
    trainer = trainer_of(tmp_path)
    trainer.train()
    first = trainer.state.log_history[0]
    parts = ("base_loss", "decay/weighted", "size/weighted", "level/weighted")
    assert sum(first[f"loss/{part}"] for part in parts) == pytest.approx(first["loss"], rel=1e-5)
    assert first["weight/decay"] == 0.01
    assert first["loss/decay"] == pytest.approx(pn.l2(cases.Regressor().parameters()).item())
    assert not [key for key in first if key.startswith("time/")]
    assert trainer.loss_output.names == ("base_loss", "decay", "size", "level")


@pytest.mark.parametrize("strategy", [{"logging_steps": 5}, {"logging_strategy": "epoch"}])
def test_logs_are_means_over_the_steps_since_the_last(tmp_path: Path, strategy: Any):
    every, some = trainer_of(tmp_path, accumulation=4), trainer_of(tmp_path, accumulation=4, **strategy)
    every.train()
    some.train()
    each = logged(every, "loss/size")
    assert len(each) == cases.STEPS
    # An epoch is five steps: four of four micro-batches and one of two.
    assert logged(some, "loss/size") == pytest.approx([sum(each[:5]) / 5, sum(each[5:]) / 5], rel=1e-5)
    assert logged(some, "loss/total") == pytest.approx(logged(some, "loss"), rel=1e-5)


def test_norms_are_measured_in_the_steps_that_are_logged(tmp_path: Path):
    trainer = trainer_of(tmp_path, norms_at="logits", logging_steps=5)
    trainer.train()
    plain = trainer_of(tmp_path)
    plain.train()
    assert_equal(trainer.model, plain.model)
    assert len(logged(trainer, "grad_norm/size")) == 2
    # The sign of each of two logits.
    assert logged(trainer, "grad_norm/size") == pytest.approx([2**0.5, 2**0.5])
    assert not logged(trainer, "grad_norm/decay")
    everywhere = trainer_of(tmp_path, norms_at="params")
    everywhere.train()
    assert len(logged(everywhere, "grad_norm/decay")) == cases.STEPS


def test_norms_are_in_every_entry_that_is_logged(tmp_path: Path):
    trainer = trainer_of(tmp_path, norms_at="logits", logging_steps=4, logging_first_step=True)
    trainer.train()
    with_loss, with_norms = (
        [entry["step"] for entry in trainer.state.log_history if key in entry] for key in ("loss", "grad_norm/size")
    )
    assert with_norms == with_loss == [1, 4, 8]


@pytest.mark.parametrize("strategy", ["epoch", "no"])
def test_norms_need_to_know_which_steps_are_logged(tmp_path: Path, strategy: str):
    message = f'norms_at="logits"; expected None with logging_strategy="{strategy}".* logging_strategy="steps"'
    with pytest.raises(pn.OptionError, match=message):
        trainer_of(tmp_path, norms_at="logits", logging_strategy=strategy)


@pytest.mark.parametrize("cosines", [True, False])
def test_norms_are_those_of_the_first_micro_batch_with_the_trainers_own_loss(tmp_path: Path, cosines: bool):
    data = cases.tokens(18 * cases.ROWS)
    trainer = cases.PenalizedTrainer(
        cases.language_model(),
        cases.arguments(tmp_path, 4, max_steps=1),
        train_dataset=data,
        pipeline=cases.language_pipeline(),
        norms_at="params",
        cosines=cosines,
    )
    with telemetry.JSONLines(tmp_path / "log.jsonl"):
        trainer.train()
    (((first, *_),),) = cases.windows(data, 4, 1, steps=1)
    gradients = reference.gradients_of_language_model(cases.language_model(), [[first]], across=True)
    logs = trainer.state.log_history[0]
    norms = {f"grad_norm/{name}": gradient.norm().item() for name, gradient in gradients.items()}
    assert {name: logs[name] for name in norms} == pytest.approx(norms, rel=1e-4)
    assert sum(logs[f"grad_share/{name}"] for name in trainer.loss_output.names) == pytest.approx(1.0)
    line = json.loads((tmp_path / "log.jsonl").read_text())["output"]
    assert line["base_loss"]["grad_norm"] == pytest.approx(norms["grad_norm/base_loss"], rel=1e-4)
    assert ("cosines" in line) == cosines
    assert any(key.startswith("grad_cos/") for key in logs) == cosines
    if cosines:
        cosine = torch.cosine_similarity(gradients["base_loss"], gradients["size"], dim=0).item()
        assert logs["grad_cos/base_loss__size"] == pytest.approx(cosine, rel=1e-4)


def test_norms_are_measured_at_a_path(tmp_path: Path):
    trainer = cases.PenalizedTrainer(
        cases.language_model(),
        cases.arguments(tmp_path, 1, max_steps=1),
        train_dataset=cases.tokens(cases.ROWS),
        pipeline=cases.language_pipeline(),
        norms_at="hidden_states.1",
    )
    trainer.train()
    model = cases.language_model()
    ((batch,),) = cases.windows(cases.tokens(cases.ROWS), 1, 1, steps=1)[0]
    hidden = model(batch["input_ids"], output_hidden_states=True).hidden_states[1]
    # The slope of a mean of squares.
    assert logged(trainer, "grad_norm/spread") == pytest.approx([2 * hidden.norm().item() / hidden.numel()], rel=1e-4)


class Stream(IterableDataset[Any]):
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(self.rows)


def test_a_stream_that_ends_in_a_window_is_counted_as_the_trainer_counts_it(tmp_path: Path):
    """Its gradients stay for the first step of the next epoch, where terms of the parameters count once."""
    data, (model, expected) = cases.points(18 * cases.ROWS), (cases.Regressor(), cases.Regressor())
    trainer = cases.PenalizedTrainer(
        model, cases.arguments(tmp_path, 4), train_dataset=Stream(data), pipeline=cases.points_pipeline()
    )
    trainer.train()
    full, rest = cases.windows(data, 4, 1, steps=5)[:4], cases.windows(data, 4, 1, steps=5)[4]
    later = [[*rest, *full[0]], *full[1:]]
    losses = reference.train_regressor(expected, [*full, *later, later[0], full[1]], ranks=1)
    assert_equal(model, expected)
    assert logged(trainer, "loss/total") == pytest.approx(losses, rel=1e-5)
    assert logged(trainer, "loss") == pytest.approx(losses, rel=1e-5)


def test_evaluation_leaves_the_terms_out_unless_it_is_told_to_add_them(tmp_path: Path):
    plain = trainer_of(tmp_path, eval_strategy="steps", eval_steps=10)
    told = trainer_of(tmp_path, eval_strategy="steps", eval_steps=10, penalize_evaluation=True)
    for trainer in (plain, told):
        trainer.train()
    assert_equal(told.model, plain.model)
    batch = {name: torch.stack([row[name] for row in cases.points(4)]) for name in ("x", "labels")}
    with torch.no_grad():
        out = plain.model(**batch)
        terms = cases.points_pipeline().total(params=list(plain.model.parameters()), logits=out["logits"])
    assert logged(plain, "eval_loss") == pytest.approx([out["loss"].item()], rel=1e-5)
    assert logged(told, "eval_loss") == pytest.approx([(out["loss"] + terms).item()], rel=1e-5)


def slow() -> pn.Term:
    return pn.EMA(pn.Term(pn.l2, name="slow", weight=pn.schedules.linear(0.0, 0.5, steps=10), inputs="logits"), 0.5)


@pytest.mark.parametrize("restored", [False, True])
def test_a_resumed_run_continues_exactly(tmp_path: Path, restored: bool):
    options = {"save_strategy": "steps", "save_steps": 4, "restore_callback_states_from_checkpoint": restored}
    whole = trainer_of(tmp_path / "whole", slow(), **options)
    whole.train()
    trainer_of(tmp_path / "cut", slow(), max_steps=4, **options).train()
    resumed = trainer_of(tmp_path / "cut", slow(), **options)
    resumed.train(resume_from_checkpoint=True)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor), name
    assert logged(resumed, "loss/slow") == logged(whole, "loss/slow")
    assert len([one for one in resumed.callback_handler.callbacks if isinstance(one, PenaltiesCallback)]) == 1
    # Training again starts again.
    resumed.model.load_state_dict(cases.Regressor().state_dict())
    resumed.optimizer = resumed.lr_scheduler = None
    resumed.train()
    assert logged(resumed, "loss/slow") == pytest.approx(logged(whole, "loss/slow"))


def test_a_checkpoint_of_a_plain_trainer_can_be_resumed(tmp_path: Path):
    options = {"save_strategy": "steps", "save_steps": 2}
    data = cases.points(18 * cases.ROWS)
    Trainer(cases.Regressor(), cases.arguments(tmp_path, 2, max_steps=2, **options), train_dataset=data).train()
    resumed = trainer_of(tmp_path, slow(), **options)
    resumed.train(resume_from_checkpoint=True)
    assert len(logged(resumed, "loss/slow")) == cases.STEPS - 2
    assert (tmp_path / "checkpoint-10").is_dir()


class Teaching(cases.PenalizedTrainer):
    def term_inputs(self, model: Any, batch: Any, outputs: Any) -> dict[str, Any]:
        return {**super().term_inputs(model, batch, outputs), "teacher": torch.zeros_like(outputs["logits"])}


def test_term_inputs_can_be_added_and_batches_and_outputs_are_read(tmp_path: Path):
    seen: dict[str, Any] = {}

    def reads(x: Any, batch: Any, outputs: Any, labels: Any) -> Any:
        seen.update(x=x, batch=batch, outputs=outputs, labels=labels)
        return outputs["logits"].sum()

    terms = [pn.Term(pn.consistency, inputs=("logits", "teacher")), pn.Term(reads, weight=0.0, scope="sum")]
    trainer = trainer_of(tmp_path, *terms, kind=Teaching)
    trainer.train()
    assert logged(trainer, "loss/consistency") == pytest.approx(logged(trainer, "loss/level"), rel=1e-5)
    assert seen["batch"]["x"] is seen["x"]
    assert seen["labels"] is seen["batch"]["labels"]
    assert set(seen["outputs"]) == {"loss", "logits"}


def token_loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
    logits, labels = outputs.logits[:, :-1].reshape(-1, cases.VOCABULARY), labels[:, 1:].reshape(-1)
    return cross_entropy(logits, labels, reduction="sum") / num_items_in_batch


@pytest.mark.parametrize("accumulation", [1, 4])
def test_wrap_loss_as_compute_loss_func_counts_tokens(tmp_path: Path, accumulation: int):
    """Terms of scope "mean" and "step" alone, since a loss function cannot see ranks."""
    data = cases.tokens(18 * cases.ROWS)
    term = pn.Term(lambda prediction: prediction.logits.square().mean(), name="size", weight=0.1, scope="mean")
    loss = pn.wrap_loss(token_loss, pn.Pipeline([term]), items=lambda labels: (labels[:, 1:] != -100).sum())
    wrapped = Trainer(
        cases.language_model(), cases.arguments(tmp_path, accumulation), train_dataset=data, compute_loss_func=loss
    )
    mixed = cases.PenalizedTrainer(
        cases.language_model(),
        cases.arguments(tmp_path, accumulation),
        train_dataset=data,
        pipeline=pn.Pipeline([pn.Term(lambda logits: logits.square().mean(), name="size", weight=0.1, scope="mean")]),
    )
    for trainer in (wrapped, mixed):
        trainer.train()
    assert_equal(wrapped.model, mixed.model)
    assert logged(wrapped, "loss") == pytest.approx(logged(mixed, "loss"), rel=1e-5)


def test_a_loss_that_swallows_the_token_count_raises(tmp_path: Path):
    loss = pn.wrap_loss(lambda outputs, labels: outputs.logits.mean(), pn.Pipeline([]))
    trainer = Trainer(
        cases.language_model(), cases.arguments(tmp_path, 4), train_dataset=cases.tokens(8), compute_loss_func=loss
    )
    with pytest.raises(pn.OptionError, match="expected a loss that takes num_items_in_batch and divides by it"):
        trainer.train()


def test_a_trainer_with_its_own_loss_function_takes_terms(tmp_path: Path):
    model, expected = cases.language_model(), cases.language_model()
    data = cases.tokens(18 * cases.ROWS)
    trainer = cases.PenalizedTrainer(
        model,
        cases.arguments(tmp_path, 4),
        train_dataset=data,
        compute_loss_func=token_loss,
        pipeline=cases.language_pipeline(),
    )
    trainer.train()
    losses = reference.train_language_model(expected, cases.windows(data, 4, 1), across=True)
    assert_equal(model, expected)
    assert logged(trainer, "loss") == pytest.approx(losses, rel=1e-5)


def test_an_own_function_without_a_scope_raises_where_it_matters(tmp_path: Path):
    term = pn.Term(lambda logits: logits.std(), name="deviation")
    trainer_of(tmp_path, term, accumulation=1).train()
    with pytest.raises(pn.OptionError, match="deviation: scope=None; .* the step has 2 micro-batches"):
        trainer_of(tmp_path, term).train()


@pytest.mark.parametrize(
    ("pipeline", "more", "message"),
    [
        ([pn.l2], {}, "expected a Pipeline"),
        (pn.Pipeline(base="l2"), {}, "one without a base: the trainer's own loss is the base"),
        (pn.Pipeline(["l2"]), {"norms_at": "logits"}, 'norms_at="logits"; expected None, or an input .* reads: x'),
        (pn.Pipeline(["l2"]), {"cosines": "all"}, 'cosines="all"; expected True or False'),
    ],
)
def test_wrong_arguments_raise_at_once(tmp_path: Path, pipeline: Any, more: Any, message: str):
    with pytest.raises(pn.OptionError, match=message):
        cases.PenalizedTrainer(cases.Regressor(), cases.arguments(tmp_path, 1), pipeline=pipeline, **more)


def test_a_mask_without_labels_raises():
    from penalties.integrations.huggingface.forward import inputs_of

    with pytest.raises(pn.InputError, match='reads "mask", which comes from "labels", and the batch has none'):
        inputs_of(frozenset(["mask"]), cases.Regressor(), {"x": torch.ones(2)}, {}, shifts=True)


def test_between_logs_numbers_are_kept_rather_than_outputs(tmp_path: Path):
    def outputs() -> int:
        gc.collect()
        return sum(type(one) is pn.LossOutput for one in gc.get_objects())

    before = outputs()
    trainer = trainer_of(tmp_path, accumulation=1, logging_strategy="no")
    trainer.train()
    assert outputs() <= before + 1
    assert trainer.loss_output.total.grad_fn is None


def test_contributions_of_rare_terms_are_means_over_all_steps(tmp_path: Path):
    rare = pn.Term(pn.l2, name="rare", weight=0.1, inputs="logits", every=5)
    trainer = trainer_of(tmp_path, rare, logging_steps=10)
    trainer.train()
    (entry,) = [entry for entry in trainer.state.log_history if "loss/rare" in entry]
    parts = ("base_loss", "decay/weighted", "size/weighted", "level/weighted", "rare/weighted")
    assert sum(entry[f"loss/{part}"] for part in parts) == pytest.approx(entry["loss"], rel=1e-5)
    # Two of ten steps have the term.
    assert entry["loss/rare/weighted"] == pytest.approx(0.1 * entry["loss/rare"] * 2 / 10)
    assert entry["weight/rare"] == pytest.approx(0.1)
    names = ("base_loss", "decay", "size", "level", "rare")
    assert sum(entry[f"loss/{name}/share"] for name in names) == pytest.approx(1.0)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_sink_sees_each_step_once(tmp_path: Path, accumulation: int):
    trainer = trainer_of(tmp_path, accumulation=accumulation, norms_at="logits", max_steps=3)
    with telemetry.JSONLines(tmp_path / "log.jsonl"):
        trainer.train()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line["event"], line["step"]) for line in lines] == [("pipeline.stop", step) for step in range(3)]
    assert [line["loss_total"] for line in lines] == pytest.approx(logged(trainer, "loss"), rel=1e-5)
    assert [line["output"]["regularizers"]["size"]["grad_norm"] for line in lines] == pytest.approx([2**0.5] * 3)


def test_terms_may_be_skipped_in_some_micro_batches(tmp_path: Path):
    calls: list[int] = []

    def flaky(logits: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise ValueError("the third")
        return logits.square().mean()

    trainer = trainer_of(tmp_path, pn.Term(flaky, scope="mean", on_error="skip"), accumulation=4)
    trainer.train()
    assert len(logged(trainer, "loss/flaky")) == cases.STEPS


def test_evaluation_has_every_term_at_every_step(tmp_path: Path):
    rare = pn.Term(pn.l2, name="rare", inputs="logits", every=2)
    options = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 4, "learning_rate": 0.0}
    trainer = trainer_of(tmp_path, rare, accumulation=1, penalize_evaluation=True, **options)
    with telemetry.JSONLines(tmp_path / "log.jsonl"):
        trainer.train()
    found = logged(trainer, "eval_loss")
    assert found == pytest.approx([found[0]] * 4)
    # Evaluation is no step.
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 4


def test_a_name_that_nobody_offers_raises_with_those_there_are(tmp_path: Path):
    term = pn.Term(pn.l2, name="size_of_logit", inputs="logit")
    known = "params, logits, hidden_states, outputs, mask, batch, x, labels"
    with pytest.raises(pn.InputError, match=f'size_of_logit: reads "logit", .* read {known}, .* did you mean logits'):
        trainer_of(tmp_path, term).train()


def test_a_step_that_a_loss_scaler_skips_leaves_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Accelerate has a loss scaler on GPUs alone; it says by this what the scaler did."""
    trainer = trainer_of(tmp_path, pn.EMA(pn.Term(pn.l2, name="slow", inputs="logits", scope="mean"), decay=0.5))
    states: list[Any] = []

    class Watches(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            states.append(trainer.callback_handler.callbacks[-2].accumulation.state)
            monkeypatch.setattr(AcceleratedOptimizer, "step_was_skipped", state.global_step == 1)

    trainer.add_callback(Watches())
    trainer.args.max_steps = 3
    trainer.train()
    first, skipped, third = (state["slow"]["before"] for state in states)
    assert torch.equal(skipped, first)
    assert not torch.equal(third, first)


def test_several_devices_in_one_process_raise(tmp_path: Path):
    """As DataParallel would have them."""
    trainer = trainer_of(tmp_path)
    trainer.args._n_gpu = 2
    batch = {name: torch.stack([row[name] for row in cases.points(2)]) for name in ("x", "labels")}
    with pytest.raises(pn.OptionError, match="the number of GPUs in this process=2; expected 1: .*torchrun"):
        trainer.compute_loss(trainer.model, batch)


@pytest.mark.parametrize("share", ["get_tp_size", "get_cp_size", "get_sp_size"])
def test_processes_that_share_a_batch_raise(tmp_path: Path, share: str, monkeypatch: pytest.MonkeyPatch):
    trainer = trainer_of(tmp_path)
    monkeypatch.setattr(trainer, share, lambda: 2)
    with pytest.raises(pn.OptionError, match="the number of processes to a batch=2; expected 1: .*parallelism"):
        trainer.train()
