"""Cross-entropy, and log-probabilities of targets: what only they promise."""

import math
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch

import penalties as pn
from penalties.backends.torch import picking
from tests.cases import log_softmax
from tests.libraries import DEVICE, DTYPE, call, check, close, value_and_gradients

RNG = np.random.default_rng(30)
X = 2 * RNG.normal(size=(4, 5))
TARGETS = np.array([3, 0, 4, 1])
IGNORED = np.array([3, -100, 4, -100])
EXPECTED = -log_softmax(X)[np.arange(4), TARGETS]


def number(library: Any, *inputs: Any, **options: Any) -> Any:
    given = {key: library.array(x, str(x.dtype)) if isinstance(x, np.ndarray) else x for key, x in options.items()}
    x, targets = inputs
    return library.numpy(pn.cross_entropy(library.array(x), library.array(targets, str(targets.dtype)), **given))


@pytest.mark.parametrize("logits", [True, False])
def test_cross_entropy_is_minus_the_logarithm_of_the_target(library: Any, logits: bool) -> None:
    x = X if logits else log_softmax(X)
    close(number(library, x, TARGETS, logits=logits, reduction="none"), EXPECTED)
    close(number(library, x, TARGETS, logits=logits), EXPECTED.mean())
    close(number(library, x.reshape(2, 2, 5), TARGETS.reshape(2, 2), logits=logits, reduction="sum"), EXPECTED.sum())
    close(number(library, x[0], TARGETS[0], logits=logits), EXPECTED[0])


def test_other_libraries_have_the_same_number() -> None:
    x, targets = torch.tensor(X), torch.tensor(IGNORED)
    expected = torch.nn.functional.cross_entropy(x, targets)
    torch.testing.assert_close(pn.cross_entropy(x, targets, logits=True), expected)
    found = pn.cross_entropy(jax.numpy.asarray(X), jax.numpy.asarray(TARGETS), logits=True, reduction="none")
    theirs = optax.losses.softmax_cross_entropy_with_integer_labels(jax.numpy.asarray(X), jax.numpy.asarray(TARGETS))
    np.testing.assert_allclose(found, theirs, rtol=1e-6)


@pytest.mark.parametrize("logits", [True, False])
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_what_does_not_count_reaches_nothing(autodiff: Any, junk: float, logits: bool) -> None:
    """Neither a target that is ignored, nor a masked position, whatever its target."""
    x = X.copy() if logits else log_softmax(X)
    whole = autodiff.array(x[[0, 2]])
    x[[1, 3]] = junk
    targets, mask = autodiff.array([3, -100, 4, 77], "int64"), autodiff.array([1.0, 1.0, 1.0, 0.0])
    kept = autodiff.array([3, 4], "int64")
    fn = lambda p: pn.cross_entropy(p, targets, mask=mask, logits=logits)
    right = lambda p: pn.cross_entropy(p, kept, logits=logits)
    value, (slope,) = value_and_gradients(autodiff, fn)(autodiff.array(x))
    expected, (right_slope,) = value_and_gradients(autodiff, right)(whole)
    close(autodiff.numpy(value), autodiff.numpy(expected))
    close(autodiff.numpy(slope)[[0, 2]], autodiff.numpy(right_slope))
    close(autodiff.numpy(slope)[[1, 3]], 0.0)


def test_a_mean_of_nothing_is_zero(autodiff: Any) -> None:
    targets = autodiff.array([-100] * 4, "int64")
    for logits in (True, False):
        fn = lambda p, logits=logits: pn.cross_entropy(p, targets, logits=logits)
        check(autodiff, DTYPE, fn, (X,), 0.0, (0.0,))


def test_weights_of_positions_multiply(library: Any) -> None:
    mask = np.array([1.0, 5.0, 0.5, 0.0])
    expected = (EXPECTED[0] + 0.5 * EXPECTED[2]) / 1.5
    close(number(library, X, IGNORED, logits=True, mask=mask), expected)


def test_another_index_can_be_ignored_or_none(library: Any) -> None:
    close(number(library, X, TARGETS, logits=True, ignore_index=4), EXPECTED[[0, 1, 3]].mean())
    close(number(library, X, TARGETS, logits=True, ignore_index=None), EXPECTED.mean())


def test_a_target_that_cannot_come_is_infinite(autodiff: Any) -> None:
    x = autodiff.array([[0.0, -np.inf, 0.0]])
    for target, expected in ((1, np.inf), (0, math.log(2))):
        targets = autodiff.array([target], "int64")
        fn = lambda p, targets=targets: pn.cross_entropy(p, targets, logits=True)
        value, (slope,) = value_and_gradients(autodiff, fn)(x)
        close(autodiff.numpy(value), expected)
        assert np.isfinite(autodiff.numpy(slope)).all()


OUTSIDE = [5, -1, -5, 2**31 - 1]


@pytest.mark.parametrize("name", ["cross_entropy", "target_logprobs"])
class TestOutside:
    """A target that is not a class never becomes another class."""

    @pytest.mark.parametrize("outside", OUTSIDE)
    def test_raises_where_values_can_be_looked_at(self, library: Any, name: str, outside: int) -> None:
        if library.name == "jax" or (library.name == "torch" and DEVICE != "cpu"):
            pytest.skip("values are not looked at")
        also = ", or ignore_index=-100" if name == "cross_entropy" else ""
        message = f"^{name}: targets={outside}; expected the index of a class, from 0 to 4{also}$"
        for logits in (True, False):
            with pytest.raises(pn.OptionError, match=message):
                call(library, name, X[:1], targets=np.array([outside]), logits=logits)

    @pytest.mark.parametrize("logits", [True, False])
    def test_is_nan_elsewhere(self, autodiff: Any, name: str, logits: bool) -> None:
        targets = autodiff.array([*OUTSIDE, 2], "int64")
        options = {"logits": logits, **({"reduction": "none"} if name == "cross_entropy" else {})}
        each = lambda x: getattr(pn, name)(x, targets, **options)
        x = autodiff.array(np.concatenate([X, X[:1]]))
        if autodiff.name == "torch":
            # Inside a transform, as inside a compiler and on a GPU, values are not looked at.
            found, slopes = torch.func.vmap(each)(x[None])[0], torch.func.grad(lambda x: each(x).sum())(x)
        else:
            found, slopes = jax.jit(lambda x: (each(x), jax.grad(lambda x: each(x).sum())(x)))(x)
        assert np.isnan(autodiff.numpy(found)).tolist() == [True] * 4 + [False]
        assert np.isnan(autodiff.numpy(slopes)).any(-1).tolist() == [True] * 4 + [False]

    def test_is_nan_inside_a_compiler(self, name: str) -> None:
        x, targets = torch.tensor(X), torch.tensor(OUTSIDE)
        fn = torch.compile(lambda x, t: getattr(pn, name)(x, t, logits=True).sum(), fullgraph=True, backend="eager")
        assert torch.isnan(fn(x, targets))


class TestErrors:
    def test_targets_of_another_shape(self, library: Any) -> None:
        x = library.array(X)
        for targets in (np.zeros((4, 1), int), np.zeros(3, int), np.zeros((), int)):
            given = library.array(targets, "int64")
            with pytest.raises(
                pn.ShapeError, match=r"^cross_entropy: targets has shape .*; expected \(4,\), the shape"
            ):
                pn.cross_entropy(x, given)
        for targets in (np.zeros((3, 2), int), np.zeros(3, int), np.zeros((4, 1, 1), int)):
            given = library.array(targets, "int64")
            with pytest.raises(
                pn.ShapeError, match=r"^target_logprobs: targets has shape .*; expected \(4,\), the shape"
            ):
                pn.target_logprobs(x, given)

    @pytest.mark.parametrize("dtype", ["float32", "bool"])
    @pytest.mark.parametrize("name", ["cross_entropy", "target_logprobs"])
    def test_targets_that_are_not_whole_numbers(self, library: Any, name: str, dtype: str) -> None:
        with pytest.raises(pn.BackendError, match=f"^{name}: targets has dtype .*{dtype}; expected whole numbers"):
            getattr(pn, name)(library.array(X), library.array(np.ones(4), dtype))

    @pytest.mark.parametrize("shape", [(), (2, 0)])
    @pytest.mark.parametrize("name", ["cross_entropy", "target_logprobs"])
    def test_no_classes(self, library: Any, name: str, shape: tuple[int, ...]) -> None:
        with pytest.raises(pn.ShapeError, match=f"^{name}: p has shape .*; expected a last axis"):
            getattr(pn, name)(library.array(np.zeros(shape)), library.array(np.zeros(shape[:-1], int), "int64"))

    @pytest.mark.parametrize("ignored", [0.5, True, 2**31, "none"])
    def test_an_ignore_index_that_is_not_whole(self, library: Any, ignored: Any) -> None:
        with pytest.raises(pn.OptionError, match=r"^cross_entropy: ignore_index=.*; expected None or a whole number"):
            number(library, X, TARGETS, ignore_index=ignored)

    def test_a_temperature_that_the_dtype_cannot_hold(self, library: Any) -> None:
        x = library.array(X, "bfloat16")
        assert np.isfinite(library.numpy(pn.cross_entropy(x, library.array(TARGETS, "int64"), temperature=1e30)))
        with pytest.raises(pn.OptionError, match="temperature=1e-40; expected a number that .*float32 can hold"):
            pn.cross_entropy(x, library.array(TARGETS, "int64"), temperature=1e-40)

    def test_a_mask_of_another_shape(self, library: Any) -> None:
        with pytest.raises(pn.ShapeError, match="mask has shape"):
            number(library, X, TARGETS, mask=np.ones((4, 5)))


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "int64"])
def test_targets_of_every_integer_dtype(library: Any, kind: str) -> None:
    close(number(library, X, TARGETS.astype(kind), logits=True), EXPECTED.mean())


def test_no_positions(library: Any) -> None:
    close(number(library, np.zeros((0, 5)), np.zeros(0, int), logits=True), 0.0)


class TestPieces:
    """In PyTorch, rows are processed a few at a time."""

    def drawn(self, dtype: Any = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        logits = (5 * torch.randn(11, 30, generator=generator)).to(dtype).requires_grad_()
        targets = torch.randint(0, 30, (11, 4), generator=generator)
        # Some targets meet.
        targets[3] = 7
        return logits, targets, torch.randn(11, 4, generator=generator)

    @pytest.mark.parametrize("piece", [1, 30, 90, 1 << 20])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
    def test_numbers(self, monkeypatch: pytest.MonkeyPatch, piece: int, dtype: Any) -> None:
        monkeypatch.setitem(picking._PIECE, "cpu", piece)
        logits, targets, upstream = self.drawn(dtype)
        found = pn.target_logprobs(logits, targets, logits=True)
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        expected = logits.to(wide).log_softmax(-1).gather(-1, targets)
        assert found.dtype is wide
        torch.testing.assert_close(found, expected)
        (slope,) = torch.autograd.grad(found, logits, upstream.to(wide))
        (right,) = torch.autograd.grad(expected, logits, upstream.to(wide))
        assert slope.dtype is dtype
        torch.testing.assert_close(slope, right, rtol=0.01 if dtype is torch.bfloat16 else 1e-5, atol=1e-6)

    def test_what_is_hidden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(picking._PIECE, "cpu", 90)
        logits, targets, _ = self.drawn()
        targets = torch.where(torch.arange(11) % 3 == 0, -100, targets[:, 0])
        with torch.no_grad():
            logits[targets == -100] = math.nan
        (slope,) = torch.autograd.grad(pn.cross_entropy(logits, targets, logits=True), logits)
        (right,) = torch.autograd.grad(
            torch.nn.functional.cross_entropy(logits[targets >= 0], targets[targets >= 0]), logits
        )
        torch.testing.assert_close(slope, right)

    def test_a_class_that_cannot_come_has_no_gradient(self) -> None:
        logits, targets, upstream = self.drawn()
        banned = logits.detach().clone()
        banned[:, 29] = -torch.inf
        banned.requires_grad_()
        found = pn.target_logprobs(banned, targets.clamp(max=28), logits=True)
        (slope,) = torch.autograd.grad(found, banned, upstream)
        assert found.isfinite().all()
        assert slope.isfinite().all()
        assert not slope[:, 29].any()


class TestInPipelines:
    TERM = pn.Term(pn.cross_entropy, inputs=("logits", "labels"), options={"logits": True})

    def test_chunks_count_what_is_not_ignored(self, autodiff: Any) -> None:
        inputs = {"logits": autodiff.array(X), "labels": autodiff.array(IGNORED, "int64")}
        whole = pn.Pipeline([self.TERM]).value_and_grad(wrt="logits", **inputs)
        pieces = pn.Pipeline([self.TERM.replace(chunk=3)]).value_and_grad(wrt="logits", **inputs)
        close(autodiff.numpy(pieces.total), autodiff.numpy(whole.total))
        close(autodiff.numpy(pieces.gradient["logits"]), autodiff.numpy(whole.gradient["logits"]))

    def test_labels_have_no_gradient(self, autodiff: Any) -> None:
        inputs = {"logits": autodiff.array(X), "labels": autodiff.array(IGNORED, "int64")}
        if autodiff.name == "torch":
            inputs["logits"].requires_grad_()
        assert list(pn.Pipeline([self.TERM]).value_and_grad(**inputs).gradient) == ["logits"]

    def test_debug_does_not_take_labels_for_a_distribution(self, library: Any) -> None:
        inputs = {"logits": library.array(log_softmax(X)), "labels": library.array(IGNORED, "int64")}
        with pn.debug():
            pn.Pipeline([self.TERM.replace(options={})])(**inputs)

    def test_by_name_and_in_a_config(self) -> None:
        term = pn.Term("cross_entropy", inputs=("logits", "labels"), options={"logits": True, "ignore_index": 0})
        again = pn.Pipeline.from_config(pn.Pipeline([term]).to_config())
        assert again == pn.Pipeline([term])
