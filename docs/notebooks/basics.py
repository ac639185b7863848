# %% [markdown]
# # Basics
#
# A penalty is a function, a term gives it a name and a weight, and a pipeline adds terms up. This page takes a
# regression that has too many inputs from one to the next, and ends with the few that matter.

# %%
import torch

import penalties as pn

# %% [markdown]
# ## A penalty is a function
#
# It takes arrays and returns a scalar, in the library of the arrays, with a gradient:

# %%
w = torch.tensor([2.0, -3.0, 0.0], requires_grad=True)
value = pn.l1(w)
value.backward()
print(value.item(), w.grad.tolist())

# %% [markdown]
# ## A term has a name and a weight
#
# The pipeline asks each term which inputs it reads, and hands them over by name. `base` is the loss that was there
# before: a term of weight 1 that is reported separately.

# %%
objective = pn.Pipeline(
    [
        pn.Term(pn.l1, name="sparsity", weight=0.1, inputs="w"),
        pn.Term(pn.l2, name="size", weight=0.01, inputs="w"),
    ],
    base=lambda prediction, target: ((prediction - target) ** 2).mean(),
)
print(objective)

# %% [markdown]
# ## An output says what each term did
#
# 30 examples with 40 inputs each, of which three matter. There are more inputs than examples, so that some weights fit
# the examples perfectly and mean nothing.

# %%
generator = torch.Generator().manual_seed(0)
truth = torch.zeros(40)
truth[[3, 17, 29]] = torch.tensor([2.0, -1.5, 1.0])


def examples(count):
    """Inputs, and targets with a little noise."""
    x = torch.randn(count, 40, generator=generator)
    return x, x @ truth + 0.1 * torch.randn(count, generator=generator)


(x, y), (test_x, test_y) = examples(30), examples(1000)
w = torch.full((40,), 0.1, requires_grad=True)
out = objective(prediction=x @ w, target=y, w=w)
print(out)

# %% [markdown]
# `out.total` is an ordinary tensor with a graph. The rest is for you: `out["sparsity"].contribution` is one number, and
# `out.metrics()` is all of them, flat, for a logger.

# %%
out.total.backward()
print(w.grad.shape, round(out["sparsity"].contribution.item(), 4))
print({name: round(number, 3) for name, number in out.metrics().items()})

# %% [markdown]
# ## Training
#
# The same loop twice. Edits return a new pipeline, so `without` is the objective with nothing but its base.


# %%
def train(objective, steps=1000):
    """The weights after so many steps of gradient descent, and their last output."""
    w = torch.zeros(40, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.02)
    for _ in range(steps):
        out = objective(prediction=x @ w, target=y, w=w)
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
    return w.detach(), out


def report(name, w):
    """What the weights are worth on examples that they have not seen."""
    error = ((test_x @ w - test_y) ** 2).mean()
    print(f"{name:<16} test error {error:.2f}, inputs in use {(w.abs() > 0.05).sum():2d} of 40")


without = objective.remove("sparsity").remove("size")
plain, _ = train(without)
sparse, out = train(objective)
report("base alone", plain)
report("with penalties", sparse)

# %% [markdown]
# Alone, the base finds weights that fit the 30 examples and little else. With the penalties the three inputs are found.
# What the terms came to at the end:

# %%
for term in (out.base, *out):
    print(f"{term.name:<10} {term.contribution.item():.2f}")
print("inputs:", (sparse.abs() > 0.05).nonzero().flatten().tolist())

# %% [markdown]
# ## How much weight
#
# A weight is a number at the call: `weights=` overrides it and changes nothing else. Too little leaves inputs in that
# do not matter. Too much pulls in those that do.

# %%
for weight in (0.001, 0.01, 0.1, 1.0):
    report(f"sparsity {weight:g}", train(objective.with_weights({"sparsity": weight}))[0])

# %% [markdown]
# Next: [what divergences and entropy do](divergences_and_entropy.md), or all of
# [Composing an objective](../composing.md).
