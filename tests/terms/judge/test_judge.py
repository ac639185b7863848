"""A classifier as a term: its scores are those of Transformers, and nothing trains it."""

import math
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import numpy as np
import pytest
import tokenizers
import torch
import transformers

import penalties as pn
from penalties.terms.judge import Judge

from .models import WORDS, classifier, saved, tokenizer

TEXTS = ["good cat", "bad dog ran", "cat sat", "good good good dog", "unheard of"]
KINDS = ["bert", "llama"]


def scores(module: Any, texts: list[str]) -> torch.Tensor:
    """One text after another, without padding."""
    words = tokenizer()
    with torch.no_grad():
        return torch.cat([module(input_ids=torch.tensor([words(text)["input_ids"]])).logits for text in texts]).double()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 2, 32])
@pytest.mark.parametrize("padding", [0, None])
def test_the_value_is_the_mean_score_however_texts_are_batched(kind: str, batch: int, padding: int | None):
    module = classifier(kind, pad_token_id=padding)
    judge = Judge(module, tokenizer=tokenizer(), batch=batch, threshold=0.0)
    out = pn.Pipeline([pn.Term(judge, weight=2.0, inputs={"samples": "texts"}, differentiable=False)])(texts=TEXTS)
    expected = scores(module, TEXTS)[:, 0]
    metrics = out.metrics()
    assert metrics["judge"] == pytest.approx(-expected.mean().item(), abs=1e-6)
    assert metrics["total"] == pytest.approx(-2 * expected.mean().item(), abs=1e-6)
    for name, value in (("mean", expected.mean()), ("min", expected.min()), ("max", expected.max())):
        assert metrics[f"judge/{name}"] == pytest.approx(value.item(), abs=1e-6)
    assert metrics["judge/above"] == (expected > 0).double().mean().item()


@pytest.mark.parametrize("label", ["LABEL_2", 2])
def test_a_label_is_chosen_by_name_or_number(label: str | int):
    module = classifier(labels=3)
    logits = scores(module, TEXTS)
    for score, expected in (
        ("logit", logits[:, 2]),
        ("probability", logits.softmax(-1)[:, 2]),
        ("logprob", logits.log_softmax(-1)[:, 2]),
    ):
        judge = Judge(module, tokenizer=tokenizer(), label=label, score=score, maximise=False)
        assert judge(TEXTS).value == pytest.approx(expected.mean().item(), abs=1e-6)


def test_one_output_is_the_logit_of_a_yes():
    module = classifier()
    logits = scores(module, TEXTS)[:, 0]
    probability, logprob = (
        Judge(module, tokenizer=tokenizer(), score=score)(TEXTS).value for score in ("probability", "logprob")
    )
    assert probability == pytest.approx(-logits.sigmoid().mean().item(), abs=1e-6)
    assert logprob == pytest.approx(-logits.sigmoid().log().mean().item(), abs=1e-6)


def test_of_labels_that_may_hold_together_each_has_a_probability_of_its_own():
    module = classifier(labels=3, problem_type="multi_label_classification")
    logits = scores(module, TEXTS)[:, 1]
    for score, expected in (("logit", logits), ("probability", logits.sigmoid()), ("logprob", logits.sigmoid().log())):
        judge = Judge(module, tokenizer=tokenizer(), label=1, score=score, maximise=False)
        assert judge(TEXTS).value == pytest.approx(expected.mean().item(), abs=1e-6)


def test_token_ids_are_texts_that_were_read_already():
    judge = Judge(classifier(), tokenizer=tokenizer())
    ids = [tokenizer()(text)["input_ids"] for text in TEXTS]
    value = judge(TEXTS).value
    assert judge(ids).value == judge([torch.tensor(one) for one in ids]).value == value
    same = torch.tensor([[2, 4], [3, 5]])
    assert judge(same).value == judge(["good cat", "bad dog"]).value


def test_a_folder_is_loaded_at_the_first_call_and_once(tmp_path: Path):
    module = classifier()
    folder = saved(tmp_path, module)
    judge, other = Judge(folder), Judge(str(folder), score="probability")
    assert judge(TEXTS).value == pytest.approx(-scores(module, TEXTS).mean().item(), abs=1e-6)
    other(TEXTS)
    assert judge._module() is other._module()
    assert not judge._module().training
    assert not any(parameter.requires_grad for parameter in judge._module().parameters())
    assert Judge(folder, dtype="bfloat16")(TEXTS).value == pytest.approx(judge(TEXTS).value, abs=0.05)


def test_the_score_function_is_unbiased_and_leaves_the_judge_alone():
    module = classifier()
    words = ["good", "bad", "cat"]
    penalties = -scores(module, words)[:, 0]
    p = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    logits = p.log().requires_grad_()
    exact = torch.autograd.grad((logits.softmax(0) * penalties).sum(), logits)[0]
    judge = Judge(module, tokenizer=tokenizer(), gradient="score")
    pipeline = pn.Pipeline([pn.Term(judge, inputs={"samples": "texts", "logprobs": "logprobs"})])
    expected = torch.zeros(3, dtype=torch.float64)
    for first in range(3):
        for second in range(3):
            texts = [words[first], words[second]]
            out = pipeline(texts=texts, logprobs=logits.log_softmax(0)[[first, second]])
            expected += p[first] * p[second] * torch.autograd.grad(out.total, logits)[0]
    assert torch.allclose(expected, exact, atol=1e-7)
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_straight_through_is_the_value_of_the_likeliest_tokens_with_the_slopes_there(kind: str):
    module = classifier(kind)
    ids = [[2, 4, 6], [3, 5, 0], [3, 4, 0]]
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 0]])
    torch.manual_seed(1)
    p = (torch.nn.functional.one_hot(torch.tensor(ids), len(WORDS)) * 4.0 + torch.rand(3, 3, len(WORDS))).softmax(-1)
    p.requires_grad_()
    judge = Judge(module, gradient="straight-through")
    out = pn.Pipeline([pn.Term(judge, inputs={"samples": "p", "mask": "mask"})])(p=p, mask=mask)
    out.total.backward()
    assert out.total.item() == pytest.approx(Judge(module)([[2, 4, 6], [3, 5], [3, 4]]).value, abs=1e-6)
    for row, length in enumerate([3, 2, 2]):
        hard = torch.nn.functional.one_hot(torch.tensor([ids[row][:length]]), len(WORDS)).float().requires_grad_()
        logits = module(inputs_embeds=hard @ module.get_input_embeddings().weight.detach()).logits
        (slopes,) = torch.autograd.grad(-logits.sum() / 3, hard)
        assert torch.allclose(p.grad[row, :length], slopes[0], atol=1e-6)
        assert not p.grad[row, length:].any()
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.slow
def test_probabilities_go_where_the_judge_likes_them_to():
    module = classifier()
    logits = torch.zeros(1, 3, len(WORDS), requires_grad=True)
    judge = Judge(module, gradient="straight-through")
    pipeline = pn.Pipeline([pn.Term(judge, inputs={"samples": "p"})])
    optimizer = torch.optim.Adam([logits], lr=0.3)
    values = []
    for _ in range(40):
        out = pipeline(p=logits.softmax(-1))
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
        values.append(out.total.item())
    best = min(Judge(module)([[a, b, c]]).value for a in range(8) for b in range(8) for c in range(8))
    assert values[-1] < values[0]
    assert values[-1] < best + 0.25 * (values[0] - best)


@pytest.mark.parametrize("runs", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_it_trains_from_elsewhere_as_inline(tmp_path: Path, runs: str):
    folder = saved(tmp_path)
    logprobs = torch.zeros(len(TEXTS), requires_grad=True)
    inputs = {"texts": TEXTS, "logprobs": logprobs}
    terms = [
        pn.Term(Judge(folder, gradient="score"), inputs={"samples": "texts", "logprobs": "logprobs"}, runs=where)
        for where in ("inline", runs)
    ]
    here = pn.Pipeline([terms[0]]).value_and_grad(**inputs, wrt="logprobs")
    with pn.Executor(max_workers=1) as executor:
        there = executor.run(pn.Pipeline([terms[1]]), inputs, wrt="logprobs")
    assert there.metrics()["total"] == here.metrics()["total"]
    assert torch.equal(there.gradient["logprobs"], here.gradient["logprobs"])


def test_it_travels_by_its_folder(tmp_path: Path):
    judge = Judge(saved(tmp_path))
    value = judge(TEXTS).value
    sent = cloudpickle.dumps(judge)
    assert len(sent) < 20_000
    assert cloudpickle.loads(sent)(TEXTS).value == value


def test_what_is_too_long_is_cut_and_counted():
    judge = Judge(classifier(), tokenizer=tokenizer(), max_length=3)
    cut = judge(["good cat sat bad bad", "dog"])
    assert cut.metrics["truncated"] == 1
    assert cut.value == judge(["good cat sat", "dog"]).value
    assert judge([[2, 4, 6, 3, 3], [5]]).value == cut.value
    # By default, where the model has no more positions.
    assert Judge(classifier(), tokenizer=tokenizer())(["cat " * 50]).metrics["truncated"] == 1


def test_a_classifier_without_a_trained_head_is_an_error(tmp_path: Path):
    folder = saved(tmp_path)
    transformers.BertModel(classifier().config).save_pretrained(folder)
    with pytest.raises(pn.OptionError, match=r"its files lack classifier\.bias, classifier\.weight, which would be"):
        Judge(folder)(TEXTS)


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path):
    (tmp_path / "config.json").write_text(
        '{"model_type": "own", "auto_map": {"AutoConfig": "evil.C", "AutoModelForSequenceClassification": "evil.M"}}'
    )
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(pn.OptionError, match="expected a folder with a sequence classifier"):
        Judge(tmp_path)(TEXTS)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": 3}, 'model="an int"; expected a folder, a name, or a classifier of Transformers'),
        ({"score": "margin"}, 'score="margin"; expected "logit", "probability" or "logprob"'),
        ({"gradient": "soft"}, 'gradient="soft"; expected "none", "score" or "straight-through"'),
        ({"maximise": 1}, "maximise=1; expected True or False"),
        ({"baseline": None}, "baseline=None; expected True or False"),
        ({"threshold": math.nan}, "threshold=nan; expected None, or a finite number"),
        ({"batch": 0}, "batch=0; expected a whole number of at least 1"),
        ({"max_length": 0}, "max_length=0; expected a whole number of at least 1"),
        ({"model": classifier(), "device": "cpu"}, 'device="cpu"; expected None with a module'),
        ({"model": classifier(), "dtype": "float16"}, 'dtype="float16"; expected None with a module'),
    ],
)
def test_a_wrong_option_is_an_error_that_says_what_was_expected(options: dict[str, Any], message: str):
    with pytest.raises(pn.OptionError) as caught:
        Judge(**{"model": "folder", **options})
    assert message in str(caught.value)


def test_a_module_in_training_mode_is_an_error():
    with pytest.raises(pn.OptionError, match="expected one in eval mode"):
        Judge(classifier().train(), tokenizer=tokenizer())(TEXTS)


def test_a_label_that_is_not_there_is_an_error():
    for label in (None, "good", 3, True):
        with pytest.raises(pn.OptionError, match='expected one of the outputs: "LABEL_0", .*, or a number from 0 to 2'):
            Judge(classifier(labels=3), tokenizer=tokenizer(), label=label)(TEXTS)
    with pytest.raises(pn.OptionError, match="expected one of the outputs: .*, or a number from 0 to 0"):
        Judge(classifier(), tokenizer=tokenizer(), label="good")(TEXTS)


def test_scores_that_are_not_finite_are_an_error():
    module = classifier()
    torch.nn.init.constant_(module.classifier.bias, math.nan)
    with pytest.raises(pn.NonFiniteError, match="a score is nan; expected finite numbers"):
        Judge(module, tokenizer=tokenizer())(TEXTS)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "expected a list of texts, or of the token ids of each; at least one"),
        ("good cat", 'samples="a str"; expected a list of texts'),
        (["good", 3], r"samples\[0\]=\"a str\"; expected a text, or a list or array of token ids"),
        ([[1.5]], r"samples\[0\]=\"a list\"; expected a text, or a list or array of token ids"),
        ([[2], []], r"samples\[1\]=\[\]; expected a text that has tokens"),
        (["good", ""], r"samples\[1\]=\"\"; expected a text that has tokens"),
        ([[2, 8]], r"samples\[0\]=8; expected token ids of the judge, from 0 to 7, by its own tokenizer"),
        ([[-1]], "expected token ids of the judge, from 0 to 7"),
    ],
)
def test_what_is_no_text_is_an_error(samples: Any, message: str):
    with pytest.raises(pn.OptionError, match=message):
        Judge(classifier(), tokenizer=tokenizer())(samples)


@pytest.mark.parametrize(
    ("samples", "mask", "error", "message"),
    [
        (torch.ones(1, 2, 5), None, pn.ShapeError, r"samples is \(1, 2, 5\); expected .* of shape \(B, T, 8\)"),
        (["good"], None, pn.ShapeError, r"samples is a list; expected probabilities of shape"),
        (torch.ones(1, 13, 8), None, pn.ShapeError, "samples has 13 positions; expected at most 12"),
        (torch.ones(2, 2, 8), torch.ones(2), pn.ShapeError, r"mask has shape \(2,\); expected \(2, 2\)"),
        (torch.ones(2, 2, 8), [1, 2], pn.ShapeError, "mask has shape a list; expected"),
        (torch.ones(1, 2, 8), torch.tensor([[0, 1]]), pn.OptionError, "padding only at the end"),
        (torch.ones(1, 2, 8), torch.zeros(1, 2), pn.OptionError, "at least one position"),
        (torch.full((1, 2, 8), 3.0), None, pn.OptionError, "samples=3.0; expected probabilities from 0 to 1"),
        (
            torch.full((1, 2, 8), 0.1).log(),
            None,
            pn.OptionError,
            r"samples=-2.3\d*; expected probabilities from 0 to 1",
        ),
        (torch.full((1, 2, 8), math.nan), None, pn.OptionError, "samples=nan; expected probabilities"),
    ],
)
def test_what_is_no_distribution_over_tokens_is_an_error(samples: Any, mask: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        Judge(classifier(), gradient="straight-through")(samples, mask=mask)


def test_a_missing_tokenizer_is_an_error(tmp_path: Path):
    with pytest.raises(pn.OptionError, match="tokenizer=None; expected that of the module"):
        Judge(classifier())(TEXTS)
    classifier().save_pretrained(tmp_path)
    with pytest.raises(pn.OptionError, match="tokenizer=None; expected a tokenizer, since there is none"):
        Judge(tmp_path)(TEXTS)


def test_the_score_needs_log_probabilities():
    with pytest.raises(pn.InputError, match='gradient="score" needs the log-probabilities of the samples'):
        Judge(classifier(), tokenizer=tokenizer(), gradient="score")(TEXTS)


def test_its_tokenizer_may_be_any():
    assert isinstance(tokenizer().backend_tokenizer, tokenizers.Tokenizer)
    assert np.isfinite(Judge(classifier(), tokenizer=lambda text, **_: {"input_ids": [len(text) % 8]})(TEXTS).value)


@pytest.mark.parametrize(
    ("gradient", "unread"),
    [("none", "logprobs"), ("none", "mask"), ("score", "mask"), ("straight-through", "logprobs")],
)
def test_an_input_that_is_not_read_is_an_error(gradient: Any, unread: str):
    judge = Judge(classifier(), tokenizer=tokenizer(), gradient=gradient)
    with pytest.raises(pn.OptionError, match=f'{unread}=".*"; expected None with gradient="{gradient}"'):
        judge(TEXTS, **{unread: torch.zeros(len(TEXTS))})


@pytest.mark.parametrize("given", [torch.tensor([0.5, 0.2, 0.1]), [np.array([-1.0, 2.0]), np.zeros(1), np.zeros(2)]])
def test_the_score_takes_neither_probabilities_nor_losses(given: Any):
    judge = Judge(classifier(), tokenizer=tokenizer(), gradient="score")
    with pytest.raises(pn.OptionError, match=r"logprobs=(0.5|2.0); expected log-probabilities, which are at most 0"):
        judge(["good", "bad", "cat"], logprobs=given)
    judge(["good"], logprobs=jax.numpy.array([1e-6]))
