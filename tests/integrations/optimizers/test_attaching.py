"""How transforms attach: to which parameters, once under a name, until they are removed; closures and loss scalers."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch

import penalties as pn
from penalties.integrations.torch import Attached, centralize, clip_norm, clip_units, decay, gradient_noise, proximal
from tests.integrations.optimizers.cases import flat, problem, sgd, weight
from tests.libraries import DEVICE

EVERY = {
    "decay": lambda optimizer, **options: decay(optimizer, l1=0.1, l2=0.1, **options),
    "coupled": lambda optimizer, **options: decay(optimizer, l1=0.1, l2=0.1, decoupled=False, **options),
    "proximal": lambda optimizer, **options: proximal(optimizer, l1=0.1, **options),
    "centralize": centralize,
    "clip_norm": lambda optimizer, **options: clip_norm(optimizer, max_norm=0.1, **options),
    "clip_units": clip_units,
    "gradient_noise": gradient_noise,
}
every = pytest.mark.parametrize("transform", EVERY.values(), ids=EVERY)


def matrix() -> torch.nn.Parameter:
    return weight([[2.0, -1.0], [0.5, 1.0]], [[1.0, -2.0], [3.0, 1.0]])


@every
def test_a_selection_says_which_parameters(transform: Any):
    models = []
    for parameters in (lambda model: pn.select(model, "*.weight"), lambda model: [model[0].weight, model[2].weight]):
        model, backward = problem()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        transform(optimizer, parameters=parameters(model))
        backward()
        optimizer.step()
        models.append(flat(model))
    assert torch.equal(*models)


@every
def test_only_the_parameters_given_are_changed(transform: Any):
    for given in (lambda one: [one], lambda one: {"w": one}, lambda one: iter([one])):
        chosen, other = matrix(), matrix()
        optimizer = sgd(chosen, other, lr=0.1)
        transform(optimizer, parameters=given(chosen))
        optimizer.step()
        plain = matrix()
        sgd(plain, lr=0.1).step()
        assert torch.equal(other, plain)
        assert not torch.equal(chosen, plain)


@every
def test_a_parameter_without_a_gradient_is_left_alone(transform: Any):
    frozen, trained = matrix().requires_grad_(False), matrix()
    frozen.grad = None
    optimizer = sgd(frozen, trained, lr=0.1)
    transform(optimizer)
    optimizer.step()
    assert torch.equal(frozen, matrix())
    assert frozen.grad is None
    assert not torch.equal(trained, matrix())


@every
def test_a_group_that_is_added_later_takes_part(transform: Any):
    optimizer = sgd(matrix(), lr=0.1)
    transform(optimizer)
    late, plain = matrix(), matrix()
    optimizer.add_param_group({"params": [late], "lr": 0.1})
    optimizer.step()
    sgd(plain, lr=0.1).step()
    assert not torch.equal(late, plain)


@every
def test_a_removed_transform_does_nothing(transform: Any):
    parameter, plain = matrix(), matrix()
    optimizer = sgd(parameter, lr=0.1)
    attached = transform(optimizer)
    attached.remove()
    attached.remove()
    optimizer.step()
    sgd(plain, lr=0.1).step()
    assert torch.equal(parameter, plain)
    assert not [key for key in optimizer.param_groups[0] if key.startswith("penalties")]
    assert transform(optimizer).steps == 0


def test_a_transform_lasts_for_a_with_block():
    parameter = weight([8.0])
    optimizer = sgd(parameter)
    with decay(optimizer, l2=0.5) as attached:
        optimizer.step()
        assert repr(attached) == "Attached('decay', steps=1)"
    optimizer.step()
    assert isinstance(attached, Attached)
    assert parameter.item() == 4.0


def test_the_same_transform_twice_needs_another_name():
    first, second = weight([8.0]), weight([8.0])
    optimizer = sgd(first, second)
    decay(optimizer, l2=0.5, parameters=[first])
    with pytest.raises(
        pn.OptionError, match='decay: name="decay"; expected one that is not attached to this optimizer'
    ):
        decay(optimizer, l2=0.25, parameters=[second])
    decay(optimizer, l2=0.25, parameters=[second], name="decay of the second")
    decay(sgd(first), l2=0.5)  # another optimizer is another matter
    optimizer.step()
    assert (first.item(), second.item()) == (4.0, 6.0)


def test_several_optimizers_of_one_parameter_each_have_their_own():
    parameter = weight([8.0])
    with_decay, without = sgd(parameter), sgd(parameter)
    decay(with_decay, l2=0.5)
    without.step()
    assert parameter.item() == 8.0
    with_decay.step()
    assert parameter.item() == 4.0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            lambda: torch.ones(2),
            'decay: parameters="a tensor"; expected an iterable or a mapping of parameters: put it',
        ),
        (lambda: ["0.weight"], 'decay: parameters="0.weight"; expected parameters; pn.select finds them by name'),
        (
            lambda: [torch.ones(2, 3)],
            r'decay: parameters="one of shape \(2, 3\)"; expected parameters of this optimizer',
        ),
        (
            lambda: torch.nn.Linear(1, 1).named_parameters(),
            r'parameters="an iterable of tuple"; expected parameters; .*dict\(model.named_parameters\(\)\)',
        ),
        (list, r"decay: parameters=\[\]; expected at least one parameter"),
    ],
)
def test_wrong_parameters_are_errors_at_once(parameters: Any, message: str):
    with pytest.raises(pn.OptionError, match=message):
        decay(sgd(weight([1.0])), l1=0.1, parameters=parameters())


def test_an_error_leaves_nothing_attached():
    optimizer = sgd(weight([1.0]))
    with pytest.raises(pn.OptionError):
        decay(optimizer, l1=0.1, parameters=[])
    decay(optimizer, l1=0.1)


def test_wrong_optimizers_and_names_are_errors():
    with pytest.raises(pn.OptionError, match='decay: optimizer="Parameter"; expected a torch.optim.Optimizer'):
        decay(weight([1.0]), l1=0.1)
    with pytest.raises(pn.OptionError, match='attach: name=""; expected a name that is not empty'):
        decay(sgd(weight([1.0])), l1=0.1, name="")


def test_an_optimizer_is_freed_with_what_is_attached():
    optimizer = sgd(weight([1.0]))
    attached = decay(optimizer, l1=0.1)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    assert attached.steps == 0
    attached.remove()


class Derived(torch.optim.SGD):
    """An optimizer whose step calls that of its base; PyTorch runs hooks in both."""

    fails = False

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        if self.fails:
            raise ZeroDivisionError
        return loss


@pytest.mark.parametrize("with_closure", [False, True])
@every
def test_a_step_that_calls_that_of_its_base_is_one_step(transform: Any, with_closure: bool):
    models = []
    for kind in (torch.optim.SGD, Derived):
        model, backward = problem()
        optimizer = kind(model.parameters(), lr=0.1)
        attached = transform(optimizer)
        for _ in range(2):
            backward()
            optimizer.step(backward if with_closure else None)
        assert attached.steps == 2
        models.append(flat(model))
    assert torch.equal(*models)


@every
def test_the_step_after_one_that_raised_is_transformed(transform: Any):
    sgd(weight([1.0]))  # from now on the step of the base runs hooks, too
    optimizer = Derived([matrix()], lr=0.1)
    attached = transform(optimizer)
    optimizer.fails = True
    with pytest.raises(ZeroDivisionError) as caught:
        optimizer.step()
    before = attached.steps
    optimizer.fails = False
    optimizer.step()
    assert attached.steps == before + 1
    assert caught.tb is not None


def test_parameters_that_were_all_replaced_are_an_error():
    first, second = weight([1.0]), weight([1.0])
    optimizer = sgd(first, second)
    decay(optimizer, l2=0.5, parameters=[first, second])
    optimizer.param_groups[0]["params"][0] = weight([1.0])
    optimizer.step()
    optimizer.param_groups[0]["params"][1] = weight([1.0])
    with pytest.raises(pn.OptionError, match="all of them were replaced since; attach again"):
        optimizer.step()


def test_an_optimizer_without_a_learning_rate_is_an_error_where_one_is_needed():
    class Plain(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            """Leave the weights to the transforms."""

    parameter = weight([1.0])
    for given in ({}, {"lr": None}):
        for transform in (lambda one: decay(one, l1=0.1), lambda one: proximal(one, l1=0.1)):
            optimizer = Plain([parameter], given)
            transform(optimizer)
            with pytest.raises(
                pn.OptionError, match="lr=None; expected a learning rate in each parameter group: Plain"
            ):
                optimizer.step()
        optimizer = Plain([parameter], given)
        decay(optimizer, l1=0.1, decoupled=False)
        optimizer.step()


def test_a_wrapper_without_hooks_is_an_error_that_names_the_optimizer_inside():
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        @property
        def param_groups(self) -> Any:
            return self.optimizer.param_groups

    wrapper = Wrapper(sgd(weight([1.0])))
    with pytest.raises(pn.OptionError, match='decay: optimizer="Wrapper"; .*attach to that, optimizer.optimizer'):
        decay(wrapper, l1=0.1)
    decay(wrapper.optimizer, l1=0.1)


# Closures


@pytest.mark.parametrize("keyword", [False, True])
@every
def test_a_closure_computes_the_gradient_that_is_changed(transform: Any, keyword: bool):
    ours, backward = problem()
    optimizer = torch.optim.Adam(ours.parameters(), lr=0.01)
    transform(optimizer)
    theirs, other_backward = problem()
    reference = torch.optim.Adam(theirs.parameters(), lr=0.01)
    transform(reference)
    for _ in range(3):
        loss = optimizer.step(closure=backward) if keyword else optimizer.step(backward)
        other = other_backward()
        reference.step()
        assert loss.item() == other.item()
    assert torch.equal(flat(ours), flat(theirs))


def test_an_optimizer_that_evaluates_its_closure_repeatedly_is_an_error():
    model, backward = problem()
    optimizer = torch.optim.LBFGS(model.parameters())
    decay(optimizer, l2=0.1)
    with pytest.raises(
        pn.GradientError, match="decay: LBFGS evaluates its closure several times a step; expected once"
    ):
        optimizer.step(backward)


def test_a_proximal_step_follows_any_optimizer():
    model, backward = problem()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    proximal(optimizer, l1=1.0)
    optimizer.step(backward)
    weights = flat(model)
    assert 0 < (weights == 0).sum() < len(weights)


# Loss scalers


@pytest.mark.parametrize("fused", [False, True])
@every
def test_a_loss_scaler_changes_nothing(transform: Any, fused: bool):
    models = []
    for scaled in (True, False):
        model, backward = problem(torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        transform(optimizer)
        scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**8, enabled=scaled)
        for _ in range(3):
            scale = scaler.scale(torch.ones((), device=DEVICE))
            backward()
            for parameter in model.parameters():
                parameter.grad.mul_(scale)
            scaler.step(optimizer)
            scaler.update()
        models.append(flat(model))
    torch.testing.assert_close(*models, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscaled", [False, True])
@every
def test_a_step_that_a_scaler_skips_changes_nothing_and_does_not_count(transform: Any, fused: bool, unscaled: bool):
    model, backward = problem(torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
    attached = transform(optimizer)
    scaler = torch.amp.GradScaler(DEVICE)
    scaler.scale(backward())
    next(model.parameters()).grad.view(-1)[0] = float("inf")
    before = flat(model)
    if unscaled:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(flat(model), before)
    assert attached.steps == 0


# Checkpoints


def attach_all(optimizer: torch.optim.Optimizer) -> None:
    centralize(optimizer)
    gradient_noise(optimizer, variance=0.1, seed=3)
    clip_norm(optimizer, max_norm=0.5)
    decay(optimizer, l1=pn.schedules.warmup(0.1, steps=10), l2=0.1)
    proximal(optimizer, l1=pn.schedules.linear(0.0, 0.1, steps=20))


@pytest.mark.parametrize("attached_first", [True, False])
def test_resuming_from_the_checkpoint_of_the_optimizer_continues_exactly(tmp_path: Any, attached_first: bool):
    model, backward = problem()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    attach_all(optimizer)

    def train(steps: int) -> None:
        for _ in range(steps):
            backward()
            optimizer.step()

    train(5)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    train(5)
    straight = flat(model)

    model, backward = problem()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True, map_location=DEVICE)
    model.load_state_dict(saved["model"])
    if attached_first:
        attach_all(optimizer)
    optimizer.load_state_dict(saved["optimizer"])
    if not attached_first:
        attach_all(optimizer)
    train(5)
    assert torch.equal(flat(model), straight)


@pytest.mark.slow
@pytest.mark.parametrize("flat_keys", [False, True])
def test_a_distributed_checkpoint_has_the_count(flat_keys: bool):
    from torch.distributed.checkpoint import state_dict as checkpoints

    options = checkpoints.StateDictOptions(flatten_optimizer_state_dict=flat_keys)
    model, backward = problem()
    optimizer = torch.optim.Adam(model.parameters())
    decay(optimizer, l2=0.1)
    for _ in range(2):
        backward()
        optimizer.step()
    saved = checkpoints.get_optimizer_state_dict(model, optimizer, options=options)
    other, _ = problem()
    resumed = torch.optim.Adam(other.parameters())
    attached = decay(resumed, l2=0.1)
    checkpoints.set_optimizer_state_dict(other, resumed, saved, options=options)
    assert attached.steps == 2


def test_a_checkpoint_from_before_starts_the_count():
    optimizer = sgd(weight([1.0]))
    saved = copy.deepcopy(optimizer.state_dict())
    attached = decay(optimizer, l2=0.1)
    optimizer.step()
    assert attached.steps == 1
    optimizer.load_state_dict(saved)
    assert attached.steps == 0
    optimizer.step()
    assert attached.steps == 1


def test_a_learning_rate_schedule_is_followed():
    parameter = weight([8.0])
    optimizer = sgd(parameter, lr=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    decay(optimizer, l2=1.0)
    optimizer.step()
    schedule.step()
    optimizer.step()
    assert parameter.item() == 3.0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Profiler record function")
@every
def test_a_compiled_step_is_the_same_step(transform: Any):
    models = []
    for compiled in (False, True):
        model, backward = problem()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        attached = transform(optimizer)
        step = torch.compile(lambda: optimizer.step(), backend="aot_eager") if compiled else optimizer.step  # noqa: B023
        for _ in range(4):
            backward()
            step()
        models.append(flat(model))
        assert attached.steps == 4
    torch.testing.assert_close(*models, rtol=1e-9, atol=1e-12)
