"""Parity between groups: the numbers of fairret, definitions by hand, gradients, and batches that lack a group."""

import functools
from typing import Any

import fairret.loss
import fairret.statistic
import jax
import numpy as np
import pytest
import torch

import penalties as pn
from penalties.terms.fairness import demographic_parity, equal_opportunity, equalized_odds
from tests.libraries import NUMPY, TORCH, close, value_and_gradients

VIOLATIONS = ("max", "mean", "norm", "ratio", "relative")
SOME = ["max", *[pytest.param(violation, marks=pytest.mark.slow) for violation in VIOLATIONS[1:]]]


def batch(rows: int = 40, groups: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(0.05, 0.95, rows), rng.integers(0, 2, rows), rng.integers(0, groups, rows)


def by_hand(rates: np.ndarray, overall: float, violation: str) -> float:
    apart = rates - overall
    return {
        "max": max(abs(a - b) for a in rates for b in rates),
        "mean": np.abs(apart).mean(),
        "norm": np.sqrt((apart**2).sum()),
        "ratio": 1 - rates.min() / rates.max(),
        "relative": np.abs(rates / overall - 1).mean(),
    }[violation]


@pytest.mark.parametrize("violation", VIOLATIONS)
def test_violations_are_what_they_say(violation: Any) -> None:
    p, labels, groups = batch()
    for rows, value in (
        (p >= 0, demographic_parity(p, groups, violation=violation)[0]),
        (labels == 1, equal_opportunity(p, labels, groups, violation=violation)[0]),
    ):
        rates = np.array([p[rows & (groups == g)].mean() for g in range(3)])
        assert value == pytest.approx(by_hand(rates, p[rows].mean(), violation))
    both = [equal_opportunity(p, chosen, groups, violation=violation)[0] for chosen in (labels, 1 - labels)]
    assert equalized_odds(p, labels, groups, violation=violation)[0] == pytest.approx(np.mean(both))


@pytest.mark.parametrize(
    ("statistic", "positives"),
    [("PositiveRate", None), ("TruePositiveRate", 1), ("FalsePositiveRate", 0)],
)
def test_rates_losses_and_gradients_are_those_of_fairret(statistic: str, positives: int | None) -> None:
    p, labels, groups = batch()
    logits = np.log(p / (1 - p))
    theirs, ours = (torch.tensor(logits, requires_grad=True) for _ in range(2))
    members = torch.nn.functional.one_hot(torch.tensor(groups), 3).double()
    rate = getattr(fairret.statistic, statistic)()
    more = [] if positives is None else [torch.tensor(labels)[:, None].double()]
    loss = fairret.loss.NormLoss(rate)(theirs[:, None], members, *more)
    options = {"violation": "relative", "logits": True}
    if positives is None:
        value, metrics = demographic_parity(ours, torch.tensor(groups), **options)
    else:
        chosen = torch.tensor(labels if positives else 1 - labels)
        value, metrics = equal_opportunity(ours, chosen, torch.tensor(groups), **options)
    loss.backward()
    value.backward()
    # Theirs adds the groups up, and ours takes their mean.
    torch.testing.assert_close(3 * value, loss)
    torch.testing.assert_close(3 * ours.grad, theirs.grad)
    name = "rate" if positives is None else "true_positive"
    found = [metrics[f"{name}/{group}"].item() for group in range(3)]
    np.testing.assert_allclose(found, rate(torch.sigmoid(theirs)[:, None], members, *more).detach())


@pytest.mark.parametrize("violation", SOME)
def test_libraries_agree_and_gradients_are_finite_differences(library: Any, violation: Any) -> None:
    p, labels, groups = batch(12)
    fn = functools.partial(equalized_odds, violation=violation, count=3)
    expected, numbers = fn(p, labels, groups)
    y, g = library.array(labels, "int64"), library.array(groups, "int64")
    value, metrics = library.compiled(fn)(library.array(p), y, g)
    close(library.numpy(value), expected)
    for name, number in numbers.items():
        close(library.numpy(metrics[name]), number)
    if library.differentiates:
        slope = value_and_gradients(library, lambda x: fn(x, y, g)[0])(library.array(p, "float64"))[1][0]
        for row, step in enumerate(1e-6 * np.eye(12)):
            difference = (fn(p + step, labels, groups)[0] - fn(p - step, labels, groups)[0]) / 2e-6
            assert library.numpy(slope)[row] == pytest.approx(difference, abs=1e-6)


def test_logits_are_probabilities() -> None:
    p, labels, groups = batch()
    x = np.log(p / (1 - p))
    assert equalized_odds(x, labels, groups, logits=True)[0] == pytest.approx(equalized_odds(p, labels, groups)[0])


def test_memberships_may_be_soft_and_flags_are_two_groups() -> None:
    p, _, groups = batch()
    hard = demographic_parity(p, groups)
    one_hot = demographic_parity(p, np.eye(3)[groups])
    assert one_hot[0] == pytest.approx(hard[0])
    assert {key: float(x) for key, x in one_hot[1].items()} == pytest.approx({k: float(x) for k, x in hard[1].items()})
    members = np.random.default_rng(1).dirichlet([1, 1], 40)
    rates = members.T @ p / members.sum(0)
    assert demographic_parity(p, members)[0] == pytest.approx(abs(rates[0] - rates[1]))
    assert demographic_parity(p, groups > 0)[0] == pytest.approx(abs(p[groups > 0].mean() - p[groups == 0].mean()))


def test_a_group_without_rows_is_left_out_and_said_to_be() -> None:
    p, _, groups = batch()
    groups = 2 * (groups > 0)
    for violation in VIOLATIONS:
        value, metrics = demographic_parity(p, groups, violation=violation, count=4)
        assert value == pytest.approx(demographic_parity(p, groups // 2, violation=violation)[0])
    assert metrics["groups"] == 2
    assert metrics["evidence"] == 1
    assert [metrics[f"size/{group}"] > 0 for group in range(4)] == [True, False, True, False]
    assert [metrics[f"rate/{group}"] == -1 for group in range(4)] == [False, True, False, True]


@pytest.mark.parametrize("violation", SOME)
def test_without_two_groups_there_is_no_evidence_and_no_gradient(autodiff: Any, violation: Any) -> None:
    p, labels, groups = batch(6)
    groups = autodiff.array(0 * groups, "int64")
    ones = autodiff.array(0 * labels, "int64")
    for fn in (
        lambda x: demographic_parity(x, groups, violation=violation, count=2),
        lambda x: equal_opportunity(x, ones, groups, violation=violation, count=2),  # not even one positive
    ):
        value, metrics = autodiff.compiled(fn)(autodiff.array(p))
        assert value == 0
        assert metrics["evidence"] == metrics["gap"] == 0
        _, (slope,) = value_and_gradients(autodiff, lambda x, fn=fn: fn(x)[0])(autodiff.array(p))
        assert not autodiff.numpy(slope).any()


def test_odds_with_evidence_of_one_label_are_those_of_that_label() -> None:
    p, groups = np.array([0.9, 0.2, 0.4]), np.array([0, 1, 1])
    labels = np.array([1, 1, 0])
    value, metrics = equalized_odds(p, labels, groups)
    assert value == pytest.approx(0.7)
    assert metrics["evidence"] == 0.5
    assert metrics["groups"] == 1
    assert metrics["false_positive/0"] == -1


@pytest.mark.parametrize("violation", SOME)
def test_equal_rates_have_value_and_gradient_zero(autodiff: Any, violation: Any) -> None:
    p = autodiff.array([0.25, 0.75, 0.5, 0.5])
    groups = autodiff.array([0, 0, 1, 1], "int64")
    fn = lambda p: demographic_parity(p, groups, violation=violation, count=2)[0]
    value, (slope,) = value_and_gradients(autodiff, fn)(p)
    assert value == 0
    assert np.isfinite(autodiff.numpy(slope)).all()
    nothing = demographic_parity(np.zeros(4), np.array([0, 0, 1, 1]), violation=violation, count=2)[0]
    assert nothing == 0


def test_padding_reaches_nothing_and_weights_count(library: Any) -> None:
    p, labels, groups = batch(8)
    padded, wrong, alien = p.copy(), labels.copy(), groups.copy()
    padded[3], wrong[3], alien[3] = np.nan, 7, -1
    weights = np.array([1.0, 2.0, 1.0, 0.0, 1.0, 1.0, 3.0, 1.0])
    mask, y, g = library.array(weights), library.array(wrong, "int64"), library.array(alien, "int64")
    fn = functools.partial(equalized_odds, count=3, violation="mean")
    repeated = [np.repeat(x, weights.astype(int)) for x in (p, labels, groups)]
    found = library.compiled(fn)(library.array(padded), y, g, mask=mask)[0]
    close(library.numpy(found), fn(*repeated)[0])
    if library.differentiates:
        slope = value_and_gradients(library, lambda x: fn(x, y, g, mask=mask)[0])(library.array(padded))[1][0]
        assert np.isfinite(library.numpy(slope)).all()
        assert library.numpy(slope)[3] == 0


def test_nan_is_not_hidden() -> None:
    p, _, groups = batch()
    p[0] = np.nan
    for violation in VIOLATIONS:
        assert np.isnan(demographic_parity(p, groups, violation=violation)[0])


def test_compilers_see_the_same() -> None:
    p, labels, groups = batch()
    fn = functools.partial(equalized_odds, count=3, permutations=50)
    expected, metrics = fn(p, labels, groups)
    y, g = TORCH.array(labels, "int64"), TORCH.array(groups, "int64")
    found, traced = torch.compile(fn, fullgraph=True, backend="aot_eager")(TORCH.array(p, "float64"), y, g)
    close(TORCH.numpy(found), expected, "float64")
    close(NUMPY.numpy(jax.jit(fn)(p, labels, groups)[0]), expected, "float64")
    # The test needs values.
    assert set(metrics) - set(traced) == {"p_value"}


def test_a_term_of_a_config_brings_its_metrics() -> None:
    entry = {"fn": "penalties.terms.fairness:demographic_parity", "inputs": {"p": "logits", "groups": "groups"}}
    pipeline = pn.Pipeline.from_config([{**entry, "options": {"logits": True, "permutations": 20}}])
    logits, groups = torch.tensor([2.0, 1.0, -1.0, 0.0]), torch.tensor([0, 0, 1, 1])
    out = pipeline.value_and_grad(logits=logits, groups=groups, wrt="logits")
    metrics = out.metrics()
    assert metrics["demographic_parity/gap"] == pytest.approx(metrics["demographic_parity"])
    assert 0 < metrics["demographic_parity/p_value"] <= 1
    assert (out.gradient["logits"][:2] > 0).all()


def test_what_is_wrong_is_said() -> None:
    p, labels, groups = batch()
    parity = functools.partial(demographic_parity, p)
    odds = functools.partial(equalized_odds, p)
    wrong: list[tuple[Any, tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
        (parity, (groups[:-1],), {}, pn.ShapeError, "the number of a group for each row of p"),
        (parity, (groups - 1,), {}, pn.OptionError, "groups=-1.0; expected the number of a group, from 0 to 1"),
        (parity, (groups,), {"count": 2}, pn.OptionError, "from 0 to 1"),
        (parity, (groups + 90210,), {}, pn.OptionError, "numbers from 0 to 99, or count="),
        (parity, (groups,), {"count": 0}, pn.OptionError, "a whole number of at least 1"),
        (parity, (groups + 0.5,), {}, pn.BackendError, "whole numbers"),
        (parity, (np.eye(3)[groups],), {"count": 2}, pn.OptionError, "None or 3, the number of columns"),
        (parity, (-np.eye(3)[groups],), {}, pn.OptionError, "numbers of at least 0"),
        (parity, (groups,), {"violation": "gap"}, pn.OptionError, "max"),
        (parity, (groups,), {"permutations": -1}, pn.OptionError, "a whole number of at least 0"),
        (parity, (groups,), {"seed": 0.5}, pn.OptionError, "a whole number of at least 0"),
        (parity, (groups,), {"logits": 1}, pn.OptionError, "True or False"),
        (parity, (groups,), {"mask": np.ones(3)}, pn.ShapeError, "mask has shape"),
        (parity, (torch.tensor(groups),), {}, pn.BackendError, "one library in a call"),
        (odds, (labels + 1, groups), {}, pn.OptionError, "labels=2.0; expected 0 or 1"),
        (odds, (labels[:, None], groups), {}, pn.ShapeError, "labels has shape"),
        (functools.partial(demographic_parity, p + 1), (groups,), {}, pn.OptionError, "logits=True"),
    ]
    for fn, arguments, options, kind, message in wrong:
        with pytest.raises(kind, match=message):
            fn(*arguments, **options)
    with pytest.raises(pn.OptionError, match="the number of groups, which cannot be read from labels on a GPU"):
        demographic_parity(jax.numpy.asarray(p), jax.numpy.asarray(groups))


@pytest.mark.parametrize("wrong", ["label", "group"])
def test_where_values_cannot_be_looked_at_what_is_wrong_is_nan(wrong: str) -> None:
    p, labels, groups = batch()
    (labels if wrong == "label" else groups)[0] = 5
    assert np.isnan(jax.jit(functools.partial(equalized_odds, count=3))(p, labels, groups)[0])


def test_groups_in_one_column_are_an_error_and_not_one_group() -> None:
    p, _, groups = batch()
    for column in (groups[:, None], np.ones((len(p), 1))):
        with pytest.raises(pn.ShapeError, match=r"groups has shape \(40, 1\); expected \(40,\), the number of a group"):
            demographic_parity(p, column)
    assert demographic_parity(p[:, None], groups[:, None])[0] == demographic_parity(p, groups)[0]


@pytest.mark.parametrize("dtype", ["U1", object])
def test_names_of_groups_are_an_error_that_says_how_to_number_them(dtype: Any) -> None:
    p, _, groups = batch()
    with pytest.raises(pn.BackendError, match="number the names of groups once, for all data"):
        demographic_parity(p, np.array(list("abc"))[groups].astype(dtype))
