"""The same numbers as independent implementations, where those are right."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import torch.nn.functional as F
from scipy.spatial.distance import jensenshannon
from scipy.special import entr, rel_entr

import penalties as pn
from tests.cases import log_softmax
from tests.libraries import call

RNG = np.random.default_rng(8)
X = RNG.normal(size=(6, 9))
P, Q = log_softmax(2 * RNG.normal(size=(6, 9))), log_softmax(2 * RNG.normal(size=(6, 9)))


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found, dtype=np.float64), np.asarray(expected), rtol=1e-5, atol=1e-7)


class TestScipy:
    def test_kl(self, library: Any) -> None:
        found = library.numpy(call(library, "kl_divergence", P, Q, reduction="none"))
        close(found, rel_entr(np.exp(P), np.exp(Q)).sum(-1))

    def test_kl_with_zeros(self, library: Any) -> None:
        p, q = np.exp(P), np.exp(Q)
        p[:, 0] = q[:, 0] = 0
        p[:, 1] = 0
        q[0, 2] = 0
        logs = [np.log(x, where=x > 0, out=np.full(x.shape, -np.inf)) for x in (p, q)]
        close(library.numpy(call(library, "kl_divergence", *logs, reduction="none")), rel_entr(p, q).sum(-1))

    def test_entropy(self, library: Any) -> None:
        close(library.numpy(call(library, "entropy", P, reduction="none")), entr(np.exp(P)).sum(-1))

    @pytest.mark.parametrize("base", [None, 2])
    def test_js(self, library: Any, base: int | None) -> None:
        found = library.numpy(call(library, "js_divergence", P, Q, base=base, reduction="none"))
        distance = jensenshannon(np.exp(P), np.exp(Q), axis=-1, base=base)
        close(found, distance**2)
        close(library.numpy(call(library, "js_divergence", P, Q, base=base, reduction="none", sqrt=True)), distance)


class TestTorch:
    def test_norms(self) -> None:
        x = torch.tensor(X)
        zeros = torch.zeros_like(x)
        close(pn.l1(x), F.l1_loss(x, zeros, reduction="sum"))
        close(pn.l2(x, reduction="mean"), F.mse_loss(x, zeros))
        for delta in (0.3, 1.0, 2.0):
            close(pn.smooth_l1(x, delta=delta), F.huber_loss(x, zeros, delta=delta, reduction="sum") / delta)

    def test_divergences(self) -> None:
        p, q = torch.tensor(P), torch.tensor(Q)
        close(pn.kl_divergence(p, q), F.kl_div(q, p, reduction="batchmean", log_target=True))
        close(pn.entropy(p, reduction="none"), torch.distributions.Categorical(logits=p).entropy())

    def test_consistency(self) -> None:
        a, b = torch.tensor(X), torch.tensor(Q)
        close(pn.consistency(a, b, metric="cosine", reduction="none"), 1 - F.cosine_similarity(a, b, dim=-1))
        close(pn.consistency(a, b), F.mse_loss(a, b))

    def test_gradient_penalty_is_the_textbook_one(self) -> None:
        torch.manual_seed(0)
        critic = torch.nn.Sequential(torch.nn.Linear(9, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)).double()
        x = torch.tensor(X, requires_grad=True)
        (gradient,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
        expected = ((gradient.norm(2, dim=1) - 1) ** 2).mean()
        found = pn.gradient_penalty(critic, torch.tensor(X))
        close(found.detach(), expected.detach())
        parameters = list(critic.parameters())
        pairs = zip(
            torch.autograd.grad(found, parameters, allow_unused=True, materialize_grads=True),
            torch.autograd.grad(expected, parameters, allow_unused=True, materialize_grads=True),
            strict=True,
        )
        for ours, theirs in pairs:
            close(ours, theirs)


class TestOptax:
    def test_divergences(self) -> None:
        p, q = jnp.asarray(P), jnp.asarray(Q)
        close(
            pn.kl_divergence(p, q, reduction="none"),
            optax.losses.kl_divergence_with_log_targets(q, p),
        )

    def test_consistency(self) -> None:
        a, b = jnp.asarray(X), jnp.asarray(Q)
        close(pn.consistency(a, b, reduction="none"), optax.losses.squared_error(a, b))
        close(pn.consistency(a, b, metric="cosine", reduction="none"), optax.losses.cosine_distance(a, b))
        for delta in (0.5, 1.0):
            close(pn.smooth_l1(a, delta=delta), optax.losses.huber_loss(a, delta=delta).sum() / delta)

    def test_log_softmax_inside(self) -> None:
        logits = jnp.asarray(X)
        close(pn.entropy(logits, logits=True), pn.entropy(jax.nn.log_softmax(logits)))
