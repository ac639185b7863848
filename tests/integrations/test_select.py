"""Parameters by pattern: which are selected, in which order, and what a term over them does."""

import dataclasses
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import penalties as pn

DECAY = pn.Pipeline([pn.Term(pn.l2, name="decay", inputs="params")])


def network() -> nn.Sequential:
    """An embedding whose weight is also that of the last layer, a linear layer, and one with statistics."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 5, bias=False))
    model[3].weight = model[0].weight
    return model


ALL = ["0.weight", "1.weight", "1.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ALL),
        ({"include": "*.weight"}, ["0.weight", "1.weight", "2.weight"]),
        ({"include": "1.*"}, ["1.weight", "1.bias"]),
        ({"include": ["2.bias", "1.w*"]}, ["1.weight", "2.bias"]),
        ({"include": re.compile("^1|bias$")}, ["1.weight", "1.bias", "2.bias"]),
        ({"include": lambda name, parameter: parameter.ndim == 1 and "2" in name}, ["2.weight", "2.bias"]),
        ({"exclude": "*.bias"}, ["0.weight", "1.weight", "2.weight"]),
        ({"exclude": ("*.bias", re.compile("^2"))}, ["0.weight", "1.weight"]),
        ({"exclude": lambda name, parameter: False}, ALL),
        ({"types": nn.Linear}, ["1.weight", "1.bias", "3.weight"]),
        ({"types": [nn.Embedding, nn.modules.batchnorm._BatchNorm]}, ["0.weight", "2.weight", "2.bias"]),
        ({"ndim": 1}, ["1.bias", "2.weight", "2.bias"]),
        ({"ndim": ">=2"}, ["0.weight", "1.weight"]),
        ({"ndim": "<2"}, ["1.bias", "2.weight", "2.bias"]),
        ({"include": "*.weight", "types": nn.Linear, "exclude": "1.*", "ndim": 2}, ["3.weight"]),
    ],
)
def test_parameters_are_selected_in_the_order_of_the_model(options: dict[str, Any], names: list[str]) -> None:
    assert list(pn.select(network(), **options)) == names


def test_tied_weights_are_taken_once_and_excluded_by_any_name() -> None:
    model = network()
    assert pn.select(model, "3.*")["3.weight"] is model[0].weight
    assert list(pn.select(model, exclude="3.*")) == ALL[1:]
    assert list(pn.select(model, exclude="0.*")) == ALL[1:]


def test_the_table_says_what_is_covered() -> None:
    model = network()
    model[2].requires_grad_(False)
    assert repr(pn.select(model, exclude="1.bias")) == (
        "Selection, 2 of 5 parameters, 36 of 48 elements; 2 frozen left out\n"
        "  parameter  shape   elements  module\n"
        "  0.weight   (5, 4)  20        Embedding  also 3.weight\n"
        "  1.weight   (4, 4)  16        Linear"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"include": "1.wieght"},
            'include="1.wieght"; expected a pattern that matches a parameter, such as "1.weight"',
        ),
        ({"include": "1"}, '"1.*" for the 2 parameters inside it'),
        ({"include": ["0.*", "9.*"]}, 'include="9.*"'),
        (
            {"exclude": "bias"},
            'exclude="bias"; expected a pattern that matches a parameter, such as "2.bias", "1.bias"',
        ),
        ({"exclude": re.compile("kernel")}, 'exclude="kernel"; expected a pattern'),
        (
            {"include": "0.*", "exclude": "3.*"},
            'include="0.*"; expected patterns that match some of the 4 of 5 parameters that the others leave',
        ),
        ({"include": []}, "include=[]; expected patterns that match some of the 5 parameters"),
        ({"include": lambda name, parameter: False}, "expected patterns that match some of the 5 parameters"),
        ({"exclude": "*"}, 'exclude="*"; expected patterns that leave some of the 5 parameters'),
        ({"ndim": 7}, "ndim=7; expected a number of dimensions that some of the 5 parameters have: 1, 2"),
        ({"ndim": -1}, "ndim=-1; expected a number of dimensions"),
        (
            {"exclude": ["1.*", "3.*"], "types": nn.Linear},
            "types=['Linear']; expected classes of modules that have some of the 2 of 5 parameters",
        ),
        (
            {"types": nn.BatchNorm1d, "ndim": 2},
            "ndim=2; expected a number of dimensions that some of the 2 of 5 parameters that the others leave have: 1",
        ),
        ({"include": 5}, "include=5; expected a glob, a compiled regular expression, a function"),
        ({"include": nn.Linear}, "expected a glob"),
        ({"types": nn.Conv2d}, 'types="Conv2d"; expected classes of modules that have parameters: BatchNorm1d, Emb'),
        ({"types": "Linear"}, 'types="Linear"; expected a class of modules'),
        ({"types": []}, "types=[]; expected a class of modules"),
        ({"ndim": "2"}, 'ndim="2"; expected a whole number, or a comparison such as ">=2"'),
        ({"ndim": 2.0}, "ndim=2.0; expected a whole number"),
    ],
)
def test_what_matches_nothing_or_makes_no_sense_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pn.OptionError) as caught:
        pn.select(network(), **options)
    assert message in str(caught.value)


@pytest.mark.parametrize("model", [nn.Tanh(), [], {"a": 1.0}, torch.ones(2), (x for x in [torch.ones(2)]), 3])
def test_a_model_without_parameters_is_an_error(model: Any) -> None:
    with pytest.raises(pn.OptionError, match="expected a model or a nest with parameters"):
        pn.select(model)


def test_parameters_without_a_shape_are_an_error() -> None:
    with pytest.raises(pn.OptionError, match="run a batch through the model first"):
        pn.select(nn.LazyLinear(2))


def test_frozen_parameters_are_left_out_and_all_frozen_is_an_error() -> None:
    model = network()
    model[1].requires_grad_(False)
    assert list(pn.select(model)) == ["0.weight", "2.weight", "2.bias"]
    with pytest.raises(pn.OptionError, match="all that match are frozen"):
        pn.select(model, "1.*")


def test_a_selection_that_was_frozen_since_is_an_error() -> None:
    model = network()
    selected = pn.select(model)
    model[0].requires_grad_(False)
    assert DECAY(params=selected).total.requires_grad
    model.requires_grad_(False)
    with pytest.raises(pn.GradientError, match="select again after the model is wrapped"):
        DECAY(params=selected)
    assert "5 parameters" in repr(selected)


def test_an_unknown_name_is_an_error_with_the_near_one() -> None:
    selected = pn.select(network())
    assert "1.weight" in selected
    assert "1.wieght" not in selected
    with pytest.raises(pn.InputError, match='no parameter "1.wieght"; it has 5; did you mean 1.weight?'):
        selected["1.wieght"]


def test_a_term_trains_what_is_selected_and_nothing_else() -> None:
    model = network()
    selected = pn.select(model, types=nn.Linear, exclude="*.bias")
    out = DECAY.value_and_grad(params=selected)
    assert list(out.gradient["params"]) == ["1.weight", "3.weight"]
    torch.testing.assert_close(out.gradient["params"]["3.weight"], 2 * model[0].weight)
    DECAY.value_and_grad(params=selected, accumulate=True)
    torch.testing.assert_close(model[0].weight.grad, 2 * model[0].weight.detach())
    assert model[2].weight.grad is None
    with pn.Executor() as executor:
        elsewhere = executor.run(pn.Pipeline([DECAY["decay"].replace(runs="thread")]), {"params": selected})
    torch.testing.assert_close(elsewhere.total, out.total)
    model.zero_grad()
    elsewhere.total.backward()
    torch.testing.assert_close(model[0].weight.grad, 2 * model[0].weight.detach())


def moved(model: nn.Module) -> None:
    model.to(torch.float64)


def halved(model: nn.Module) -> None:
    model.half()


def updated(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 3


def loaded(model: nn.Module) -> None:
    model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()}, assign=True)


@pytest.mark.parametrize("change", [moved, halved, updated, loaded])
def test_a_selection_reads_the_model_as_it_is_now(change: Any) -> None:
    model = nn.Linear(3, 2)
    selected = pn.select(model)
    change(model)
    assert selected["weight"] is model.weight
    torch.testing.assert_close(DECAY(params=selected).total, pn.l2([model.weight, model.bias]))


def test_weights_that_are_tied_later_count_once() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    selected = pn.select(model)
    model[1].weight = model[0].weight
    assert (list(selected), len(selected)) == (["0.weight"], 1)
    torch.testing.assert_close(DECAY(params=selected).total, pn.l2(model[0].weight))


def test_a_module_that_is_replaced_later_is_read() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    selected = pn.select(model)
    model[0], model[1] = nn.Linear(3, 2), nn.Linear(2, 1, bias=False)
    assert selected["0.weight"] is model[0].weight
    assert selected["1.weight"] is model[1].weight
    with pytest.raises(pn.InputError, match='the model has no parameter "1.bias" any more; select again'):
        DECAY(params=selected)


def test_prefixes_of_wrappers_are_left_out_of_names() -> None:
    model = network()
    compiled = torch.compile(model)
    inside = nn.Sequential(torch.compile(nn.Linear(2, 2)), nn.Linear(2, 1))
    inside.module = nn.Linear(1, 1)
    for wrapped in (compiled, nn.DataParallel(model), nn.DataParallel(compiled), torch.compile(nn.DataParallel(model))):
        assert list(pn.select(wrapped)) == ALL
    assert list(pn.select(inside, "*.weight")) == ["0.weight", "1.weight", "module.weight"]


def test_parametrized_weights_belong_to_their_layer() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), nn.LayerNorm(2))
    names = list(pn.select(model, types=nn.Linear))
    assert names == ["0.bias", "0.parametrizations.weight.original0", "0.parametrizations.weight.original1"]


@pytest.mark.slow
def test_adapters_are_selected_after_peft_wrapped_the_model() -> None:
    peft = pytest.importorskip("peft")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    before = pn.select(model, "*.weight")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["0"]))
    with pytest.raises(pn.GradientError, match="for example by peft"):
        DECAY(params=before)
    names = list(pn.select(wrapped, "*.lora_A.*"))
    assert names == ["base_model.model.0.lora_A.default.weight"]
    with pytest.raises(pn.OptionError, match="all that match are frozen"):
        pn.select(wrapped, "*.base_layer.*")


def test_a_selection_works_inside_a_compiled_function() -> None:
    model = network()
    selected = pn.select(model, "*.weight")
    total = torch.compile(lambda: DECAY.total(params=selected), fullgraph=True, backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(total(), DECAY.total(params=selected))
        updated(model)


def test_nests_are_selected_by_their_keys() -> None:
    # Golden row A14: two layers with a weight each; names keep the order, whole numbers are no parameters.
    nest = {"layer1": {"w": np.array([1.0, 2.0])}, "layer2": {"w": np.array([3.0]), "steps": np.array(3)}, "x": None}
    selected = pn.select(nest)
    assert list(selected) == ["layer1.w", "layer2.w"]
    assert pn.l1(selected) == 6.0
    assert list(pn.select(nest, "layer2.*")) == ["layer2.w"]
    assert list(pn.select([np.ones((2, 2)), (np.ones(1),)], ndim=1)) == ["1.0"]
    matrix = np.ones((2, 2))
    assert list(pn.select({"a": matrix, "b": matrix})) == ["a"]


class Pair(NamedTuple):
    w: Any
    b: Any


def test_fields_are_names_in_nests() -> None:
    import jax

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Layer:
        w: Any
        inner: Any

    ones = np.ones(2)
    assert list(pn.select({"layer": Pair(ones, {"x": ones.copy()})})) == ["layer.w", "layer.b.x"]
    assert list(pn.select([Layer(ones, Pair(ones.copy(), [ones.copy()]))])) == ["0.w", "0.inner.w", "0.inner.b.0"]
    assert list(pn.select({"b": {3: ones}, "a": ones.copy()})) == ["b.3", "a"]


def test_golden_row_of_a_matrix() -> None:
    # A14: 2 by 2 is one parameter of 4 elements, and a term over it is one over the 4.
    matrix = np.array([[1.0, -2.0], [3.0, -4.0]])
    selected = pn.select({"w": matrix})
    assert repr(selected).startswith("Selection, 1 of 1 parameters, 4 of 4 elements")
    assert selected["w"] is matrix
    assert pn.l1(selected) == pn.l1(matrix.reshape(4)) == 10.0


def test_models_in_a_nest_are_selected_with_their_names() -> None:
    parts = {"encoder": nn.Linear(2, 3), "scales": [torch.ones(2, requires_grad=True)]}
    assert list(pn.select(parts)) == ["encoder.weight", "encoder.bias", "scales.0"]
    assert list(pn.select(parts, types=nn.Linear, ndim=2)) == ["encoder.weight"]


def test_the_state_of_an_optimizer_is_an_error() -> None:
    import jax.numpy as jnp
    import optax

    params = {"w": jnp.ones(2)}
    state = optax.adam(0.1).init(params)
    for given in (state, {"params": params, "state": state}):
        with pytest.raises(pn.OptionError, match='model="ScaleByAdamState"; expected the parameters of a model, not'):
            pn.select(given)
    with pytest.raises(pn.OptionError, match="expected the parameters without the optimizer"):
        pn.select({"params": params, "opt_state": ()})


def test_tensors_in_nests_that_need_no_gradient_are_frozen() -> None:
    model = network()
    assert list(pn.select(dict(model.named_parameters()), "1.*")) == ["1.weight", "1.bias"]
    with pytest.raises(pn.OptionError, match="all that match are frozen"):
        pn.select(model.state_dict())


def test_statistics_beside_parameters_are_an_error() -> None:
    variables = {"params": {"w": np.ones(2)}, "batch_stats": {"mean": np.ones(2)}}
    with pytest.raises(pn.OptionError, match=r'expected the parameters without the statistics: variables\["params"\]'):
        pn.select(variables)


def test_jax_arrays_are_selected_inside_a_gradient() -> None:
    import jax
    import jax.numpy as jnp

    params = {"dense": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}}
    grad = jax.jit(jax.grad(lambda p: DECAY.total(params=pn.select(p, "*.kernel"))))(params)
    np.testing.assert_array_equal(grad["dense"]["kernel"], 2 * np.ones((2, 2)))
    np.testing.assert_array_equal(grad["dense"]["bias"], np.zeros(2))
    # Equal arrays of JAX are two parameters, in a gradient and out of it.
    twice = jnp.ones(2)
    assert list(pn.select({"a": twice, "b": twice})) == ["a", "b"]


def test_a_selection_is_a_term_of_the_parameters_in_a_training_step() -> None:
    model = nn.Linear(3, 1)
    terms = pn.Pipeline([pn.Term(pn.l2, weight=0.1, inputs="kernels")])
    step = pn.train_step(model, nn.functional.mse_loss, terms, torch.optim.SGD(model.parameters(), lr=0.1))
    expected = float(pn.l2(model.weight).detach())
    x, y = torch.ones(4, 3), torch.zeros(4, 1)
    metrics = step(x, y, kernels=pn.select(model, "weight"))
    assert metrics["l2"] == pytest.approx(expected)


@pytest.mark.slow
def test_distributed_models_are_selected_and_captured_by_the_names_inside(tmp_path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        wrapped = nn.parallel.DistributedDataParallel(model)
        assert list(pn.select(wrapped)) == ["0.weight", "0.bias", "2.weight", "2.bias"]
        with pn.capture(wrapped, "0") as activations:
            wrapped(torch.ones(2, 4))
        assert activations["0"].requires_grad

        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        selected, before = pn.select(model, "*.weight"), model[0].weight
        expected = DECAY.total(params=selected).detach()
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        assert selected["0.weight"] is model[0].weight is not before
        torch.testing.assert_close(DECAY.total(params=selected).detach(), expected)
    finally:
        torch.distributed.destroy_process_group()
