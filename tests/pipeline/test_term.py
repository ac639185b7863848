"""Terms: what they call and read, and which arguments are errors."""

import functools
import math
import pickle
import re
from typing import Any

import numpy as np
import pytest

import penalties as pn
from tests.libraries import LIBRARIES


def scaled(x: Any, *, factor: float = 2.0) -> Any:
    return factor * x.sum()


def pair(a: Any, b: Any) -> Any:
    return (a * b).sum()


def keyword_only(*, x: Any, y: Any) -> Any:
    return (x - y).sum()


def collecting(first: Any, *others: Any) -> Any:
    return first.sum() + sum(other.sum() for other in others)


class Named:
    name = "own"

    def __call__(self, x: Any) -> Any:
        return x.sum()


class Calling(Named):
    def name(self) -> str:  # type: ignore[override]
        return "called"


class Unnamed:
    def __call__(self, x: Any) -> Any:
        return x.sum()


class Length:
    """A regularizer."""

    name = "length"

    def compute(self, data: Any, logprobs: Any, options: Any) -> Any:
        return options.get("factor", 1.0) * abs(logprobs).sum(), {"count": len(data)}


def total(term: pn.Term, *inputs: Any, **named: Any) -> float:
    return pn.Pipeline([term])(*inputs, **named).metrics()["total"]


class TestNames:
    @pytest.mark.parametrize(
        ("fn", "name"),
        [
            (pn.l1, "l1"),
            ("l1", "l1"),
            ("tests.pipeline.test_term:scaled", "scaled"),
            (functools.partial(scaled, factor=3.0), "scaled"),
            (functools.partial(functools.partial(scaled), factor=3.0), "scaled"),
            (Named(), "own"),
            (Calling(), "called"),
            (Unnamed(), "Unnamed"),
            (Length(), "length"),
        ],
    )
    def test_default(self, fn: Any, name: str) -> None:
        assert pn.Term(fn).name == name

    def test_a_lambda_must_be_given_one(self) -> None:
        with pytest.raises(pn.OptionError, match=r"name=None; expected a name, since a lambda has none"):
            pn.Term(lambda x: x)

    @pytest.mark.parametrize("name", ["total", "l1_weighted", "l1_grad_norm", "a/b", "", 3, "regularizer_total"])
    def test_names_that_are_taken(self, name: Any) -> None:
        with pytest.raises(pn.OptionError, match="Term: name="):
            pn.Term(pn.l1, name=name)

    def test_the_name_of_the_base_loss_is_taken(self) -> None:
        with pytest.raises(pn.OptionError, match="the base loss has this one"):
            pn.Pipeline([pn.Term(pn.l1, name="base_loss")])


class TestFunctions:
    @pytest.mark.parametrize("fn", [3, None, [pn.l1]])
    def test_no_function(self, fn: Any) -> None:
        with pytest.raises(pn.OptionError, match="a function, a Regularizer, the name of a penalty, or a dotted path"):
            pn.Term(fn)

    def test_unknown_name_suggests_the_nearest(self) -> None:
        with pytest.raises(pn.OptionError, match=r'fn="entropi"; expected .*l1.*; did you mean entropy\?'):
            pn.Term("entropi")

    @pytest.mark.parametrize("path", ["tests.pipeline.test_term:nothing", "no_such_module:fn", ":fn", "math:"])
    def test_a_path_that_leads_nowhere(self, path: str) -> None:
        with pytest.raises(pn.OptionError, match="that can be imported"):
            pn.Term(path)

    def test_an_object_behind_a_path(self) -> None:
        assert pn.Term("tests.pipeline.test_term:Length.name.__len__", inputs=()).path is not None

    def test_c_code_that_says_no_parameters(self) -> None:
        term = pn.Term(math.hypot, inputs=("a", "b"), differentiable=False)
        assert total(term, a=3.0, b=4.0) == 5.0
        assert term == pickle.loads(pickle.dumps(term))


class TestCallables:
    """The parameters of whatever can be called."""

    def test_loss_modules(self) -> None:
        torch = pytest.importorskip("torch")
        term = pn.Term(torch.nn.CrossEntropyLoss(label_smoothing=0.1))
        assert (term.name, list(term.inputs)) == ("CrossEntropyLoss", ["input", "target"])
        logits, labels = torch.tensor([[2.0, -1.0]]), torch.tensor([0])
        expected = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)
        base = pn.Pipeline(base=term.fn)
        torch.testing.assert_close(base.total(input=logits, target=labels), expected)
        renamed = pn.Pipeline(base=term.replace(inputs=("logits", "labels")))
        torch.testing.assert_close(renamed.total(logits=logits, labels=labels), expected)
        torch.testing.assert_close(
            renamed.value_and_grad(logits=logits, labels=labels, wrt="logits").gradient["logits"],
            torch.func.grad(lambda x: term.fn(x, labels))(logits),
        )

    def test_a_module_around_another_takes_what_that_takes(self) -> None:
        torch = pytest.importorskip("torch")
        inner = torch.nn.CrossEntropyLoss()
        logits, labels = torch.tensor([[2.0, -1.0]]), torch.tensor([0])
        for outer in (torch.nn.DataParallel(inner), torch.compile(inner, backend="eager")):
            pipeline = pn.Pipeline(base=outer)
            torch.testing.assert_close(pipeline.total(input=logits, target=labels), inner(logits, labels))

    def test_modules_of_your_own_keep_their_hooks(self) -> None:
        torch = pytest.importorskip("torch")

        class Scaled(torch.nn.Module):
            def forward(self, hidden: Any, scale: float = 2.0) -> Any:
                return scale * hidden.sum()

        module = Scaled()
        module.register_forward_hook(lambda module, arguments, value: value + 1.0)
        term = pn.Term(module, options={"scale": 3.0})
        assert total(term, hidden=torch.ones(2)) == 7.0
        assert term == term.replace(weight=1.0)

    def test_any_number_of_arguments(self, library: Any) -> None:
        def together(*parts: Any) -> Any:
            return sum(part.sum() for part in parts)

        with pytest.raises(pn.OptionError, match="together: inputs=None; expected names in order"):
            pn.Term(together)
        assert total(pn.Term(together, inputs="a"), a=library.array([2.0])) == 2.0

    def test_decorated_functions(self, library: Any) -> None:
        def doubled(fn: Any) -> Any:
            @functools.wraps(fn)
            def call(*args: Any, **kwargs: Any) -> Any:
                return 2.0 * fn(*args, **kwargs)

            return call

        term = pn.Term(doubled(pair))
        assert (term.name, list(term.inputs)) == ("pair", ["a", "b"])
        assert total(term, a=library.array([2.0]), b=library.array([3.0])) == 12.0
        # A wrapper around a penalty is not that penalty.
        wrapped = pn.Term(doubled(pn.l2), options={"reduction": "mean"})
        assert total(wrapped, library.array([1.0, 3.0])) == 10.0

    def test_partial_functions(self, library: Any) -> None:
        x = library.array([2.0])
        assert total(pn.Term(functools.partial(pair, x)), b=library.array([3.0])) == 6.0
        assert total(pn.Term(functools.partial(pair, b=x)), a=library.array([3.0])) == 6.0
        mean = pn.Term(functools.partial(pn.l1, reduction="mean"))
        assert total(mean, library.array([1.0, 3.0])) == 2.0
        assert total(mean.replace(options={"reduction": "sum"}), library.array([1.0, 3.0])) == 4.0
        with pytest.raises(pn.OptionError, match="reduction"):
            pn.Term(functools.partial(pn.l1, reduction="avg"))

    def test_bound_methods_and_callable_objects(self, library: Any) -> None:
        class Loss:
            factor = 3.0

            def of(self, x: Any) -> Any:
                return self.factor * x.sum()

            def __call__(self, x: Any, y: Any) -> Any:
                return self.factor * (x * y).sum()

        x = library.array([2.0])
        assert total(pn.Term(Loss().of), x=x) == 6.0
        assert total(pn.Term(Loss()), x=x, y=x) == 12.0

    def test_jitted_functions(self) -> None:
        jax = pytest.importorskip("jax")
        term = pn.Term(jax.jit(pair))
        assert list(term.inputs) == ["a", "b"]
        assert total(term, a=jax.numpy.ones(2), b=jax.numpy.ones(2)) == 2.0


class TestInputs:
    def test_by_parameter_name(self, library: Any) -> None:
        assert total(pn.Term(pair), a=library.array([1.0, 2.0]), b=library.array([3.0, 4.0])) == 11.0

    @pytest.mark.parametrize("inputs", [("p", "q"), ["p", "q"], {"a": "p", "b": "q"}, {"b": "q", "a": "p"}])
    def test_renamed(self, library: Any, inputs: Any) -> None:
        term = pn.Term(pair, inputs=inputs)
        assert dict(term.inputs) == {"a": "p", "b": "q"}
        assert total(term, p=library.array([1.0, 2.0]), q=library.array([3.0, 4.0])) == 11.0

    def test_a_default_may_be_an_input_by_a_mapping(self, library: Any) -> None:
        term = pn.Term(pn.kl_estimate, inputs={"logprobs": "lp", "reference": "ref", "mask": "kept"})
        lp, ref = library.array([-1.0, -2.0]), library.array([-2.0, -2.0])
        masked = total(term, lp=lp, ref=ref, kept=library.array([0.0, 1.0]))
        assert masked == 0.0

    def test_keyword_only_parameters(self, library: Any) -> None:
        assert total(pn.Term(keyword_only), x=library.array([3.0]), y=library.array([1.0])) == 2.0

    def test_further_positional_inputs(self, library: Any) -> None:
        term = pn.Term(collecting, inputs=("a", "b", "c"))
        one = library.array([1.0])
        assert total(term, a=one, b=one, c=one) == 3.0
        assert term.replace(weight=2.0).inputs == term.inputs

    def test_a_parameter_given_as_option_is_no_input(self, library: Any) -> None:
        if not library.differentiates:
            pytest.skip("needs gradients")
        term = pn.Term(pn.gradient_penalty, options={"fn": lambda x: (x**2).sum()})
        assert list(term.inputs) == ["x"]
        assert total(term, x=library.array([0.5])) == 0.0

    def test_same_input_twice(self, library: Any) -> None:
        assert total(pn.Term(pair, inputs=("x", "x")), x=library.array([2.0])) == 4.0

    @pytest.mark.parametrize("name", ["weights", "wrt", "cosines", "keep", "step", "state"])
    def test_arguments_of_the_call_name_no_input(self, name: str) -> None:
        with pytest.raises(pn.OptionError, match="arguments of the call: rename it"):
            pn.Term(pn.l1, inputs=name)

    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            (("p",), "2 names in order, for a, b"),
            ("p", 'inputs="p"; expected 2 names'),
            (("p", "q", "r"), "2 names in order"),
            ({"a": "p"}, "an input for b too, or a value in options"),
            ({"a": "p", "b": "q", "c": "r"}, "parameters of the function: a, b"),
            (("p", 3), "names, each a string"),
            (("p", ""), "names, each a string"),
        ],
    )
    def test_wrong(self, inputs: Any, message: str) -> None:
        with pytest.raises(pn.OptionError, match=message):
            pn.Term(pair, inputs=inputs)

    def test_an_option_cannot_be_an_input_too(self) -> None:
        with pytest.raises(pn.OptionError, match="either an input or an option"):
            pn.Term(scaled, inputs={"x": "x", "factor": "y"}, options={"factor": 2.0})

    def test_a_function_without_inputs(self) -> None:
        with pytest.raises(pn.OptionError, match="none: it has no inputs"):
            pn.Term(lambda: 1.0, name="constant", inputs="x")


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"wieght": 0.1}, "Term: wieght=0.1; expected an argument of Term; did you mean weight?"),
            (
                {"axis": 1},
                "Term: axis=1; expected an argument of Term; an option of its function goes into options={'axis': …}",
            ),
        ],
    )
    def test_unknown(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(pn.OptionError, match=f"^{re.escape(message)}$"):
            pn.Term(pn.l1, **arguments)

    @pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf, True, "1", None, 1j, np.ones(2)])
    def test_weight(self, weight: Any) -> None:
        with pytest.raises(pn.OptionError, match="l1: weight="):
            pn.Term(pn.l1, weight=weight)

    @pytest.mark.parametrize("weight", [0, 2, 0.5, np.float32(0.5), np.array(0.5)])
    def test_numbers_of_every_kind_are_weights(self, weight: Any) -> None:
        assert pn.Term(pn.l1, weight=weight).weight == weight

    def test_arrays_as_weights_are_not_range_checked(self, autodiff: Any) -> None:
        assert float(pn.Term(pn.l1, weight=autodiff.array(-1.0)).weight) == -1.0
        with pytest.raises(pn.OptionError, match="a 0-d array, not one of this shape"):
            pn.Term(pn.l1, weight=autodiff.array([1.0]))

    @pytest.mark.parametrize(
        ("argument", "value", "message"),
        [
            ("options", [("reduction", "sum")], "a mapping from options to values"),
            ("enabled", 1, "True or False"),
            ("differentiable", "yes", "True or False"),
            ("idempotent", None, "True or False"),
            ("runs", "gpu", '"inline", "thread", "process", "async" or "ray"'),
            ("timeout", 0, "None, or seconds above 0 and up to 300"),
            ("timeout", 301, "None, or seconds above 0 and up to 300"),
            ("on_error", "ignore", '"raise" or "skip"'),
            ("every", 0, "a whole number of at least 1"),
            ("every", 1.5, "a whole number of at least 1"),
            ("chunk", 0, "a whole number of at least 1"),
        ],
    )
    def test_wrong(self, argument: str, value: Any, message: str) -> None:
        with pytest.raises(pn.OptionError, match=f"l1: {argument}=.*{message}"):
            pn.Term(pn.l1, **{argument: value})

    def test_unknown_option_names_the_nearest(self) -> None:
        with pytest.raises(pn.OptionError, match=r"l1: reductio=.*did you mean reduction\?"):
            pn.Term(pn.l1, options={"reductio": "sum"})

    def test_any_option_where_the_function_takes_any(self) -> None:
        def open_ended(x: Any, **options: Any) -> Any:
            return options["factor"] * x.sum()

        assert total(pn.Term(open_ended, options={"factor": 2.0}), np.array([1.5])) == 3.0

    @pytest.mark.parametrize(
        ("fn", "options", "message"),
        [
            ("l1", {"reduction": "avg"}, 'shrink: reduction="avg"; expected "sum", "mean" or "none"'),
            ("smooth_l1", {"delta": -1}, "shrink: delta=-1; expected a finite number above 0"),
            ("kl_divergence", {"direction": "up"}, "shrink: direction="),
            ("entropy", {"temperature": 0.0}, "shrink: temperature=0.0"),
            ("orthogonality", {"mode": "firm"}, "shrink: mode="),
            ("entropy", {"p": "logits"}, r'shrink: p="logits"; expected an array; .*: inputs=\{"p": …\}'),
            ("l2", {"x": 3.0}, "shrink: x=3.0; expected an array"),
        ],
    )
    def test_a_value_that_an_option_cannot_take_is_an_error_at_once(self, fn: str, options: Any, message: str) -> None:
        with pytest.raises(pn.OptionError, match=message):
            pn.Term(fn, name="shrink", options=options)

    @pytest.mark.parametrize(
        ("fn", "options"),
        [
            ("orthogonality", {"sample_size": 256, "seed": np.random.default_rng(0)}),
            ("orthogonality", {"sample_size": 256, "seed": 3}),
            ("kl_divergence", {"mask": np.ones(7), "floor": -20.0, "symmetric": True}),
            ("l2", {"center": "mean", "clip": 1.0}),
            ("output_magnitude", {"target": 2.0}),
            ("interpolated_gradient_penalty", {"fn": abs, "target_norm": 0.0}),
        ],
    )
    def test_right_options_are_taken(self, fn: str, options: Any) -> None:
        assert dict(pn.Term(fn, options=options).options) == options

    def test_a_value_that_only_the_call_can_judge_names_the_term(self) -> None:
        with pytest.raises(pn.TermError, match="clash: raised ShapeError"):
            total(pn.Term(pn.consistency, name="clash"), a=np.ones(2), b=np.ones(3))


class TestRegularizers:
    def test_compute_gets_data_logprobs_and_options(self, library: Any) -> None:
        term = pn.Term(Length(), weight=0.5, options={"factor": 2.0})
        out = pn.Pipeline([term])(data=["a", "b"], logprobs=library.array([-1.0, -2.0]))
        assert out.metrics() == {"length": 6.0, "length_weighted": 3.0, "length/count": 2.0, "total": 3.0}
        assert isinstance(Length(), pn.Regularizer)

    def test_its_inputs_can_be_renamed(self, library: Any) -> None:
        term = pn.Term(Length(), inputs=("batch", "lp"))
        assert total(term, batch=[], lp=library.array([-1.0])) == 1.0


@pytest.mark.skipif(len(LIBRARIES) < 3, reason="needs all libraries")
def test_built_ins_are_the_penalties_that_return_a_scalar() -> None:
    from penalties import functional
    from penalties.pipeline.catalogue import BUILT_IN

    helpers = {"renormalize", "replace_nonfinite", "safe_log", "target_logprobs", "valid_logprobs", "validate"}
    helpers |= {"with_gradient_penalty"}
    assert set(BUILT_IN) == set(functional.__all__) - helpers
