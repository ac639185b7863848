"""Activations by name: what is recorded, what is not, and what raises."""

import contextlib
import dataclasses
import gc
import re
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import penalties as pn

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Network(nn.Module):
    """Two layers that may be checkpointed, and a head."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.second, self.head = nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2)
        self.reentrant = reentrant

    def body(self, x: Tensor) -> Tensor:
        return self.second(self.act(self.first(x)))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x) if self.reentrant is None else checkpoint(self.body, x, use_reentrant=self.reentrant)
        return self.head(torch.tanh(hidden))


def loss(prediction: Tensor, activations: Any) -> Tensor:
    return prediction.sum() + activations["first"].square().sum() + activations["second"].abs().sum()


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters()]


def expected() -> list[Tensor]:
    """The gradients of the same loss, written by hand."""
    model = Network()
    first = model.first(X)
    second = model.second(model.act(first))
    loss(model.head(torch.tanh(second)), {"first": first, "second": second}).backward()
    return gradients(model)


@pytest.mark.parametrize("reentrant", [None, False])
@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward outside"])
def test_gradients_are_right_also_under_checkpointing(reentrant: bool | None, inside: bool) -> None:
    model = Network(reentrant)
    with pn.capture(model, ["first", "second"]) as activations:
        prediction = model(X)
        if inside:
            loss(prediction, activations).backward()
            # The recomputation was not recorded.
            assert [len(calls) for calls in activations.calls.values()] == [1, 1]
    if not inside:
        loss(prediction, activations).backward()
    torch.testing.assert_close(gradients(model), expected())


def test_methods_that_are_called_without_the_model_are_recorded_and_recomputations_are_not() -> None:
    model = Network()
    with pn.capture(model, "first") as activations:
        checkpoint(model.body, X, use_reentrant=False).sum().backward()
        assert len(activations.calls["first"]) == 1


def test_a_checkpoint_around_the_whole_model_is_not_recorded_again() -> None:
    model = Network()
    with pn.capture(model, "first") as activations:
        checkpoint(model, X, use_reentrant=False).sum().backward()
        assert len(activations.calls["first"]) == 1


def test_reentrant_checkpointing_raises() -> None:
    model = Network(reentrant=True)
    x = X.clone().requires_grad_()
    with pn.capture(model, ["first", "head"]) as activations:
        assert model(x) is activations["head"]
    with pytest.raises(pn.GradientError, match='"first" has no graph.*use_reentrant=False'):
        pn.Pipeline([pn.Term(pn.l2, inputs="activations.first")])(activations=activations)


def test_without_gradients_an_output_without_a_graph_is_as_it_should_be() -> None:
    model = Network().eval()
    with pn.capture(model, "first") as activations, torch.no_grad():
        model(X)
        assert activations["first"].shape == (3, 4)
    with torch.no_grad(), pn.capture(model, "first") as activations:
        model(X)
    torch.testing.assert_close(activations["first"], model.first(X))
    frozen = Network().requires_grad_(False)
    with pn.capture(frozen, "first") as activations:
        frozen(X)
    assert not activations["first"].requires_grad


def test_an_output_before_anything_that_trains_raises() -> None:
    model = Network()
    model.first.requires_grad_(False)
    with pn.capture(model, ["first", "second"]) as activations:
        model(X)
    assert activations["second"].requires_grad
    with pytest.raises(pn.GradientError, match="capture a module after the first that trains"):
        activations["first"]


def test_a_module_that_is_called_several_times_has_a_list() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with pn.capture(model, "*") as activations:
        model(X)
        assert isinstance(activations["0"], Tensor)
        model(model(X))
        assert [len(activations[name]) for name in ("0", "1")] == [3, 3]
        assert pn.Pipeline([pn.Term(pn.l2, inputs="a.1.2")])(a=activations).total == pn.l2(model(model(X)))
        activations.clear()
        assert list(activations) == []
        with pytest.raises(pn.InputError, match='"0" was not called since the last clear'):
            activations["0"]


def test_names_are_matched_as_in_select_and_shared_modules_are_recorded_once() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Sequential(nn.Tanh(), shared), nn.Linear(4, 2))
    for names, found in (
        ("*", ["0", "1", "1.0", "2"]),
        (["1.1", re.compile("^2")], ["1.1", "2"]),
        (lambda name, module: isinstance(module, nn.Linear), ["0", "2"]),
    ):
        with pn.capture(model, names) as activations:
            model(X)
        assert list(activations) == found
    assert len(activations["0"]) == 2


def test_wrapped_models_are_captured_by_the_names_inside() -> None:
    model = Network()
    wrapped = nn.DataParallel(model)
    with pn.capture(wrapped, "first") as activations:
        wrapped(X)
    assert list(activations) == ["first"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("frist", 'names="frist"; expected a pattern that matches a module, such as "first"'),
        ([], r"names=\[\]; expected at least one name or pattern"),
        (3, "names=3; expected a glob"),
    ],
)
def test_names_that_match_nothing_are_an_error(names: Any, message: str) -> None:
    with pytest.raises(pn.OptionError, match=message), pn.capture(Network(), names):
        pass


def test_other_models_are_an_error() -> None:
    with pytest.raises(pn.OptionError, match='model="dict"; expected a PyTorch module, a Flax NNX module or a Keras'):
        pn.capture({"w": X}, "w")


def test_a_capture_that_saw_nothing_raises_for_each_pattern() -> None:
    model = Network()
    with pytest.raises(pn.OptionError, match='names="head"; expected modules that are called inside the block'):  # noqa: SIM117
        with pn.capture(model, ["first", "head"]):
            model.body(X)
    # Of several modules one may stay idle, as experts do, and what was cleared was seen.
    with pn.capture(model, "*") as activations:
        model.first(X)
        activations.clear()


def test_a_name_that_is_not_captured_is_an_error() -> None:
    model = Network()
    with pn.capture(model, "first") as activations:
        model(X)
    with pytest.raises(pn.InputError, match='"frist" is not captured; did you mean first?'):
        activations["frist"]
    assert repr(activations) == "Captured, 1 of 1 modules\n  module  calls  shapes\n  first   1      (3, 4)"


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_hooks_are_removed_whatever_happens_and_errors_are_not_hidden() -> None:
    model = Network()
    with contextlib.suppress(ZeroDivisionError), pn.capture(model, "*"):
        assert hooks(model) > 0
        raise ZeroDivisionError
    assert hooks(model) == 0
    with pytest.raises(pn.OptionError), pn.capture(model, "*"):
        pass
    assert hooks(model) == 0


def test_captures_nest() -> None:
    model = Network()
    with pn.capture(model, "first") as outer:
        with pn.capture(model, "*") as inner:
            model(X)
        model(X)
    assert len(outer["first"]) == 2
    assert isinstance(inner["first"], Tensor)


def test_nothing_is_kept_after_the_block_but_what_the_caller_holds() -> None:
    model = Network()
    with pn.capture(model, "first") as activations:
        model(X)
        seen = weakref.ref(activations["first"])
    assert seen() is activations["first"]
    del activations
    gc.collect()
    assert seen() is None


@dataclasses.dataclass
class Output:
    hidden: Tensor
    cache: Any = None


class Layer(nn.Module):
    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.linear, self.wrap = nn.Linear(4, 4), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.linear(x))


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda h: (h, None), "a.layer.0"),
        (lambda h: {"hidden": h, "mask": torch.ones(3)}, "a.layer.hidden"),
        (Output, "a.layer.hidden"),
    ],
    ids=["tuple", "dict", "dataclass"],
)
def test_outputs_of_any_form_are_kept_and_read_by_path(wrap: Any, path: str) -> None:
    model = nn.ModuleDict({"layer": Layer(wrap)})
    with pn.capture(model, "layer") as activations:
        model["layer"](X)
    out = pn.Pipeline([pn.Term(pn.l2, inputs=path)])(a=activations)
    out.total.backward()
    assert model["layer"].linear.weight.grad.abs().sum() > 0
    model.requires_grad_(True)[("layer")].wrap = lambda h: wrap(h.detach())
    with pn.capture(model, "layer") as activations:
        model["layer"](X)
    with pytest.raises(pn.GradientError):
        activations["layer"]


def test_an_output_that_is_changed_in_place_raises() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    with pytest.raises(pn.InputError, match='"0" was changed in place.*inplace=False'), pn.capture(model, "*"):
        model(X)
    with pn.capture(model, "1"):
        model(X)
    # Without a graph a change cannot be noticed, so the output is copied.
    with torch.no_grad(), pn.capture(model, "0") as activations:
        model(X)
    assert (activations["0"] < 0).any()


def test_the_output_of_a_frozen_model_is_as_it_was_returned() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)).requires_grad_(False)
    with pn.capture(model, "0") as activations:
        model(X)
    torch.testing.assert_close(activations["0"], model[0](X))


def test_threads_lose_nothing() -> None:
    model = Network()
    with pn.capture(model, "first") as activations:
        threads = [threading.Thread(target=model, args=(X,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(activations["first"]) == 4


def test_outputs_of_replicas_are_in_the_order_of_their_devices() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Placed(nn.Module):
        def forward(self, device: int) -> Tensor:
            return torch.empty(2, device=f"cuda:{device}")

    model = nn.ModuleDict({"layer": Placed()})
    with FakeTensorMode(), pn.capture(model, "layer") as activations:
        for device in (1, 0):
            model["layer"](device)
    assert [output.device.index for output in activations["layer"]] == [0, 1]


def test_a_compiled_model_is_captured_in_a_block_that_is_entered_before_its_first_call() -> None:
    torch.compiler.reset()
    model = Network()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with pn.capture(compiled, ["first", "second"]) as activations:
        for _ in range(3):
            model.zero_grad()
            activations.clear()
            loss(compiled(X), activations).backward()
            torch.testing.assert_close(gradients(model), expected())
    assert activations["first"].shape == (3, 4)


def test_a_model_that_was_compiled_before_the_capture_raises() -> None:
    torch.compiler.reset()
    model = Network()
    compiled = torch.compile(model, backend="aot_eager")
    compiled(X)
    with (
        pytest.raises(pn.OptionError, match=r"skips its hooks: call torch\.compiler\.reset"),
        pn.capture(model, "first"),
    ):
        compiled(X)


def test_a_part_that_was_compiled_before_the_capture_raises_and_an_idle_one_does_not() -> None:
    torch.compiler.reset()
    model = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))
    model[0] = torch.compile(model[0], backend="aot_eager")
    with pn.capture(model, "*.1") as activations:
        model[1](X)
    assert list(activations) == ["1.1"]
    with pn.capture(model, "*.1") as activations:
        model[1](model[0](X))
    assert list(activations) == ["0.1", "1.1"]
    torch.compiler.reset()
    model[0](X)
    with pytest.raises(pn.OptionError, match=r'names="0.1"; .*skips its hooks'), pn.capture(model, "*.1"):
        model[1](model[0](X))


# PyTorch's own, where it compiles a function of a tensor that is no leaf.
no_leaf = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


def compiled_forward(module: nn.Module) -> None:
    module.forward = torch.compile(module.forward, backend="aot_eager")


@no_leaf
def test_a_forward_that_was_compiled_before_the_capture_raises_also_beside_modules_that_are_seen() -> None:
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 2))
    compiled_forward(model[1])
    model(X)
    with pytest.raises(pn.OptionError, match=r'names="1.0"; .*skips its hooks'), pn.capture(model, "*"):
        model(X)
    # Its own output is seen, and so is everything in a block that is entered before the first call.
    with pn.capture(model, re.compile(r"^\d$")) as activations:
        model(X)
    assert list(activations) == ["0", "1", "2"]
    torch.compiler.reset()
    with pn.capture(model, "*") as activations:
        model(X)
    assert list(activations) == ["0", "1", "1.0", "1.1", "2"]


@no_leaf
def test_a_module_that_was_compiled_in_place_before_the_capture_is_seen() -> None:
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 2))
    model[1].compile(backend="aot_eager")
    model(X)
    with pn.capture(model, "*") as activations:
        model(X)
    assert list(activations) == ["0", "1", "1.0", "1.1", "2"]


def test_a_forward_that_somebody_replaced_may_leave_modules_idle() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]))
    model[1].forward = lambda x: x
    with pn.capture(model, "*") as activations:
        model(X)
    assert list(activations) == ["0", "1"]


def test_a_change_in_place_inside_a_compiled_model_does_not_reach_the_capture() -> None:
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with pn.capture(model, "0") as activations:
        compiled(X)
    torch.testing.assert_close(activations["0"], model[0](X))


def test_golden_rows_of_captures() -> None:
    # A16: 10 inputs, a layer of 5, a capture, a layer of 1.
    model = nn.Sequential(nn.Linear(10, 5), nn.Linear(5, 1))
    with pn.capture(model, "0") as activations:
        assert model(torch.ones(1, 10)).shape == (1, 1)
    assert activations["0"].shape == (1, 5)
    wide = nn.Sequential(nn.Linear(10, 8), nn.Linear(8, 1))
    with pn.capture(wide, "0") as activations:
        wide(torch.ones(1, 10))
    assert activations["0"].shape == (1, 8)


def test_golden_row_of_a_step_over_activations() -> None:
    # A15 with activities: base, terms and total are reported, and the state of batch norm advances.
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    terms = pn.Pipeline(
        [pn.Term(pn.l1, name="activity", weight=0.01, inputs="activations.1")],
        base=pn.Term(nn.functional.mse_loss, inputs=("prediction", "y")),
    )
    with pn.capture(model, "1") as activations:
        prediction = model(X)
    out = terms(prediction=prediction, y=torch.zeros(3, 1), activations=activations)
    out.total.backward()
    assert list(out.metrics()) == ["activity", "activity_weighted", "base_loss", "total"]
    assert model[1].num_batches_tracked == 1
