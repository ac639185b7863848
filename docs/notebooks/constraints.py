# %% [markdown]
# # Constraints
#
# `orthogonality` says how the rows of a matrix should lie to each other, `consistency` that two predictions should
# agree. Each is tried on a problem where it is easy to tell whether the constraint was kept, and what it cost.

# %%
import math

import torch
from torch.nn.functional import cross_entropy

import penalties as pn

# %% [markdown]
# ## A constraint that costs nothing
#
# An autoencoder squeezes 16 numbers through 4. Many matrices do that equally well, and the one that training finds has
# rows that overlap. The penalty picks one whose rows do not:

# %%
generator = torch.Generator().manual_seed(0)
x = torch.randn(200, 6, generator=generator) @ torch.randn(6, 16, generator=generator)


def autoencoder(weight, mode="soft"):
    """The error, and the matrix in front, after training with so much weight on orthogonality."""
    torch.manual_seed(0)
    encoder, decoder = torch.nn.Linear(16, 4, bias=False), torch.nn.Linear(4, 16, bias=False)
    options = {"mode": mode, "normalize": mode == "soft"}
    objective = pn.Pipeline(
        [pn.Term(pn.orthogonality, weight=weight, inputs="rows", options=options)],
        base=lambda output, target: ((output - target) ** 2).mean(),
    )
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.02)
    for _ in range(300):
        out = objective(output=decoder(encoder(x)), target=x, rows=encoder.weight)
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
    return out.base.value.item(), encoder.weight.detach()


print("weight  error  overlap")
for weight in (0.0, 0.01, 0.1):
    error, rows = autoencoder(weight)
    print(f"{weight:6.2f}  {error:5.3f}  {pn.orthogonality(rows).item():7.4f}")

# %% [markdown]
# The error is the same to three digits: the constraint was free. A weight of 0.01 nearly keeps it and 0.1 keeps it.
#
# ## Lengths too
#
# `soft` looks at directions. `hard` without normalisation also asks for length 1, and then the matrix neither
# stretches nor shrinks anything that it keeps: its singular values are 1.

# %%
for weight in (0.0, 0.1):
    error, rows = autoencoder(weight, mode="hard")
    print(f"weight {weight:.1f}  error {error:.3f}  singular values", torch.linalg.svdvals(rows).numpy().round(2) + 0.0)

# %% [markdown]
# ## A constraint that cannot be kept
#
# Six rows of four numbers cannot all be at right angles. The penalty then spreads them as far as they go. How far that
# is, is known: with n rows of d numbers no arrangement has less than n²/d − n (Welch, 1974).

# %%
torch.manual_seed(0)
rows = torch.randn(6, 4, requires_grad=True)
optimizer = torch.optim.SGD([rows], lr=0.1)
print(f"at first {pn.orthogonality(rows).item():.3f}")
for _ in range(300):
    optimizer.zero_grad()
    pn.orthogonality(rows).backward()
    optimizer.step()
print(f"at last  {pn.orthogonality(rows).item():.3f}, the bound {6**2 / 4 - 6:.3f}")

# %% [markdown]
# A term that stops above 0 is not always a weight that is too small. Look at what the least value is.
#
# ## The same answer for neighbours
#
# Two moons, eight labels and 200 points without any. `consistency` asks that a point and a noisy copy of it get the
# same prediction, which needs no label: the boundary moves to where there are no points.


# %%
def moons(count, generator):
    """Points on two half circles that reach into each other, and which circle each is from."""
    labels = torch.arange(count) % 2
    angle = math.pi * torch.rand(count, generator=generator)
    upper = torch.stack([angle.cos(), angle.sin()], -1)
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], -1)
    points = torch.where(labels[:, None] == 0, upper, lower)
    return points + 0.1 * torch.randn(count, 2, generator=generator), labels


OBJECTIVE = pn.Pipeline(
    [pn.Term(pn.consistency, inputs=("clean", "noisy"), options={"metric": "kl"})],
    base=pn.Term(cross_entropy, inputs=("logits", "labels")),
)


# %%
def accuracy(weight, noise, seed):
    """How many of 1000 new points are classified rightly after training."""
    generator = torch.Generator().manual_seed(seed)
    (few, labels), (many, _), (new, truth) = moons(8, generator), moons(200, generator), moons(1000, generator)
    torch.manual_seed(seed)
    hidden = torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Tanh()
    model = torch.nn.Sequential(*hidden, torch.nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(300):
        copies = many + noise * torch.randn(many.shape, generator=generator)
        clean, noisy = model(many).log_softmax(-1), model(copies).log_softmax(-1)
        optimizer.zero_grad()
        total = OBJECTIVE.total(
            logits=model(few), labels=labels, clean=clean, noisy=noisy, weights={"consistency": weight}
        )
        total.backward()
        optimizer.step()
    return (model(new).argmax(-1) == truth).double().mean().item()


def report(name, weight, noise):
    """Three draws of the data."""
    print(f"{name:<16}", "  ".join(f"{accuracy(weight, noise, seed):.0%}" for seed in range(3)))


report("labels alone", 0.0, 0.15)
report("consistency", 3.0, 0.15)

# %% [markdown]
# ## What the noise claims
#
# The noise says which points are the same to you. The moons are about half a unit apart at their closest; noise of that
# size says that they are one:

# %%
report("too much noise", 3.0, 0.5)

# %% [markdown]
# A consistency term is as right as the pairs that it gets. The functions, with all modes and metrics:
# [Structure](../structure.md).
