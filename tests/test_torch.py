"""What is particular to PyTorch: subclasses, modes, transforms, generators, networks with buffers."""

import copy

import numpy as np
import pytest
import torch

import penalties as pn
from tests.libraries import DEVICE, LIBRARIES, TORCH

pytestmark = pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")


class Marked(torch.Tensor):
    """A subclass that does nothing but exist."""


def network(norm: bool = True) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [
        torch.nn.Linear(3, 4),
        *([torch.nn.BatchNorm1d(4)] if norm else []),
        torch.nn.Tanh(),
        torch.nn.Linear(4, 1),
    ]
    return torch.nn.Sequential(*layers).double().to(DEVICE)


def data(rows: int = 5) -> torch.Tensor:
    return TORCH.array(np.random.default_rng(13).normal(size=(rows, 3)), "float64")


@pytest.mark.parametrize("wrap", [torch.nn.Parameter, lambda x: x.as_subclass(Marked)])
def test_parameters_and_subclasses(wrap: object) -> None:
    x = data()
    for fn in (pn.l1, pn.orthogonality, lambda z: pn.l1(z, reduction="mean"), lambda z: pn.entropy(z, logits=True)):
        torch.testing.assert_close(torch.Tensor(fn(wrap(x)).detach()), fn(x).detach(), check_dtype=False)


def test_an_iterable_of_parameters_and_a_state_dict() -> None:
    model = network()
    flat = torch.cat([p.reshape(-1) for p in model.parameters()])
    torch.testing.assert_close(pn.l1(model.parameters()), pn.l1(flat))
    torch.testing.assert_close(pn.l2(dict(model.named_parameters()), center="mean"), pn.l2(flat, center="mean"))
    pn.l1(model.parameters()).backward()
    for p in model.parameters():
        assert p.grad is not None
        torch.testing.assert_close(p.grad, p.detach().sign())


def test_parameter_containers_are_nests() -> None:
    leaves = [torch.nn.Parameter(torch.full((n,), 2.0)) for n in (2, 3)]
    assert pn.l1(torch.nn.ParameterList(leaves)).item() == 10.0
    assert pn.l1(torch.nn.ParameterDict({"a": leaves[0], "b": leaves[1]})).item() == 10.0


def test_large_leaves_are_not_packed_but_give_the_same() -> None:
    leaves = [torch.randn(n, dtype=torch.float64, device=DEVICE, requires_grad=True) for n in (2**21, 7, 2**21 + 1)]
    flat = torch.cat(leaves)
    for fn in (pn.l1, pn.l2, lambda x: pn.l2(x, center="mean", reduction="mean"), lambda x: pn.l1(x, reduction="mean")):
        torch.testing.assert_close(fn(leaves), fn(flat))
    found, expected = torch.autograd.grad(pn.l2(leaves, center="mean"), leaves), 2 * (flat - flat.mean())
    torch.testing.assert_close(torch.cat(found), expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_recording(mode: type) -> None:
    x, model = data().requires_grad_(), network()
    expected = pn.gradient_penalty(model, x)
    with mode():
        assert not pn.l2(x).requires_grad
        assert not pn.kl_divergence(x, x, logits=True).requires_grad
        value, penalty = pn.with_gradient_penalty(model, x)
        made_here = pn.gradient_penalty(model, 1 * x)
    assert not value.requires_grad
    for found in (penalty, made_here):
        assert not found.requires_grad
        torch.testing.assert_close(found.clone(), expected.detach())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing(dtype: torch.dtype) -> None:
    x = torch.randn(6, 8, device=DEVICE)
    calls = [
        pn.orthogonality,
        lambda z: pn.orthogonality(z.T),
        lambda z: pn.orthogonality(z, mode="spectral"),
        lambda z: pn.orthogonality(z, mode="spectral", exact=True),
        lambda z: pn.kl_divergence(z, z.flip(0), logits=True),
        lambda z: pn.js_divergence(z, z.flip(0), logits=True),
        lambda z: pn.consistency(z, z.flip(0), metric="cosine"),
        pn.elastic_net,
        pn.smooth_l1,
        pn.output_magnitude,
    ]
    for call in calls:
        expected = call(x)
        with torch.autocast(DEVICE, dtype=dtype):
            found = call(x)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


class TestGradientPenalty:
    @pytest.mark.parametrize("train", [True, False])
    def test_a_network_with_batch_norm_trains_through_it(self, train: bool) -> None:
        model = network().train(train)
        before = copy.deepcopy(model[1].running_mean)
        x = data().requires_grad_()
        penalty = pn.gradient_penalty(model, x)
        penalty.backward()
        assert x.grad is not None
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
        assert model[0].weight.grad.abs().sum() > 0
        assert torch.equal(before, model[1].running_mean) != train

    def test_second_derivatives_with_batch_norm(self) -> None:
        model = network().eval()
        assert torch.autograd.gradgradcheck(lambda x: pn.gradient_penalty(model, x), data().requires_grad_())
        model = network().train()
        assert torch.autograd.gradcheck(lambda x: pn.gradient_penalty(model, x), data().requires_grad_())

    def test_the_input_is_left_as_it_was(self) -> None:
        x = data()
        pn.gradient_penalty(network(), x).backward()
        assert not x.requires_grad
        assert x.grad is None

    def test_fn_is_evaluated_once(self) -> None:
        calls = []

        def fn(z: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return (z * z).sum(-1)

        value, _ = pn.with_gradient_penalty(fn, data())
        assert calls == [1]
        torch.testing.assert_close(value.detach(), (data() ** 2).sum(-1))

    def test_under_torch_func(self) -> None:
        model = network(norm=False)
        x = data()
        expected = TORCH.raw_gradients(lambda z: pn.gradient_penalty(model, z), x)[0]
        torch.testing.assert_close(torch.func.grad(lambda z: pn.gradient_penalty(model, z))(x), expected)
        batched = torch.func.vmap(lambda z: pn.gradient_penalty(model, z))(torch.stack([x, 2 * x]))
        torch.testing.assert_close(batched[1], pn.gradient_penalty(model, 2 * x))

    @pytest.mark.slow
    def test_compiled(self) -> None:
        model = network(norm=False)
        x = data()
        compiled = torch.compile(lambda z: pn.gradient_penalty(model, z), fullgraph=True, backend="aot_eager")
        expected = pn.gradient_penalty(model, x)
        found = compiled(x)
        torch.testing.assert_close(found, expected)
        slopes = torch.autograd.grad(found, model[0].weight)
        torch.testing.assert_close(slopes, torch.autograd.grad(expected, model[0].weight))


class TestSeeds:
    def test_an_int_gives_the_same_draw_each_call(self) -> None:
        x = data(20)
        first = pn.orthogonality(x, sample_size=5, seed=3)
        torch.testing.assert_close(pn.orthogonality(x, sample_size=5, seed=3), first)
        assert pn.orthogonality(x, sample_size=5, seed=4) != first

    def test_a_generator_moves_on_and_can_be_set_back(self) -> None:
        x, fn = data(20), lambda z: (z**3).sum(-1)
        generator = torch.Generator(DEVICE).manual_seed(0)
        draws = [pn.orthogonality(x, sample_size=5, seed=generator) for _ in range(2)]
        draws += [pn.interpolated_gradient_penalty(fn, x, 0 * x, seed=generator) for _ in range(2)]
        assert draws[0] != draws[1]
        assert draws[2] != draws[3]
        generator.manual_seed(0)
        assert pn.orthogonality(x, sample_size=5, seed=generator) == draws[0]

    def test_the_drawn_array(self) -> None:
        x = data(20)
        rows = torch.tensor([4, 2, 9], device=DEVICE)
        expected = pn.orthogonality(x[rows]) * (20 * 19) / (3 * 2)
        torch.testing.assert_close(pn.orthogonality(x, sample_size=3, seed=rows), expected)


def test_ragged_leaves_of_mixed_shapes_and_dtypes() -> None:
    leaves = [torch.ones(3, dtype=torch.float16), torch.ones(2, 2, dtype=torch.float64), torch.tensor(2.0)]
    leaves = [leaf.to(DEVICE) for leaf in leaves]
    assert float(pn.l1(leaves)) == 9.0
    assert pn.l1(leaves).dtype == torch.float64
    assert pn.l1(leaves[:1] * 2).dtype == torch.float32
    each = pn.l1({"a": leaves, "b": (leaves[2],)}, reduction="none")
    assert [tuple(leaf.shape) for leaf in each["a"]] == [(3,), (2, 2), ()]
    assert isinstance(each["b"], tuple)


def test_leaves_on_two_devices_are_added_on_the_first() -> None:
    """The meta device stands in for a second accelerator."""
    from penalties.backends import torch as backend

    leaves = [torch.ones(3), torch.ones(4, device="meta")]
    assert not backend.packs(leaves)
    assert backend.packs(leaves[:1] * 2)
    total = backend.add([torch.ones((), device="meta"), torch.ones(())])
    assert total.device.type == "meta"
    for fn in (pn.l1, lambda x: pn.elastic_net(x, reduction="mean")):
        assert fn(leaves[::-1]).device.type == "meta"


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a second device")
def test_the_common_mean_of_leaves_on_two_devices() -> None:
    leaves = [torch.ones(3), torch.full((1,), 5.0, device=DEVICE)]
    assert pn.l2(leaves, center="mean").item() == 12.0


@pytest.mark.parametrize("shapes", [((3,), (2, 2), (1,)), ((0,), (2, 2), (0,)), ((2, 2), (3,)), ((3,), (1,))])
def test_packing_flattens_leaves_of_every_rank(shapes: tuple[tuple[int, ...], ...]) -> None:
    from penalties.backends import torch as backend

    leaves = [torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in shapes]
    expected = [number for leaf in leaves for number in leaf.flatten().tolist()]
    assert backend.concatenate(leaves).tolist() == expected
