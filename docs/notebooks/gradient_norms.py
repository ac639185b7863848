# %% [markdown]
# # Reading gradient norms
#
# Three penalties on one classifier, all with weights that looked reasonable. Which of them trains it? The values of the
# terms do not say. Their gradients do, and what they say can be checked by taking a term away.

# %%
import torch
from torch.nn.functional import cross_entropy

import penalties as pn

# %% [markdown]
# ## The run
#
# 300 examples with 20 inputs, of which three matter. One label in five is wrong, so there is much to learn by heart.

# %%
generator = torch.Generator().manual_seed(0)


def examples(count, wrong):
    """Inputs, and labels of which some are wrong."""
    x = torch.randn(count, 20, generator=generator)
    labels = (x[:, 0] + x[:, 1] * x[:, 2] > 0).long()
    return x, torch.where(torch.rand(count, generator=generator) < wrong, 1 - labels, labels)


(x, labels), (test_x, test_labels) = examples(300, 0.2), examples(2000, 0.0)

objective = pn.Pipeline(
    [
        pn.Term(pn.l1, name="sparsity", weight=0.02, inputs="params"),
        pn.Term(pn.entropy, name="doubt", weight=0.2, inputs="logits", options={"mode": "bonus", "logits": True}),
        pn.Term(pn.output_magnitude, name="size", weight=0.05, inputs="hidden", options={"target": 0.0}),
    ],
    base=pn.Term(cross_entropy, inputs=("logits", "labels")),
)


# %%
def train(objective, steps=200, look_at=()):
    """The accuracy on right labels after training; the outputs of some steps with the norms of all gradients."""
    torch.manual_seed(0)
    encoder, head = torch.nn.Linear(20, 32), torch.nn.Linear(32, 2)
    params = [*encoder.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(params, lr=0.01)
    seen = {}
    for step in range(steps + 1):
        hidden = torch.tanh(encoder(x))
        out = objective(params=params, logits=head(hidden), hidden=hidden, labels=labels)
        optimizer.zero_grad()
        if step in look_at:
            seen[step] = pn.gradients.track(out, wrt=params)
        out.total.backward()
        optimizer.step()
    right = head(torch.tanh(encoder(test_x))).argmax(-1) == test_labels
    return right.double().mean().item(), seen


accuracy, seen = train(objective, look_at=range(0, 201, 10))
print(f"{accuracy:.0%}")

# %% [markdown]
# `track` measures every term and leaves the step as it is: the backward pass is the loop's own. With `wrt=` it takes a
# backward pass for each term, which is fine every tenth step.
#
# ## At the first step
#
# `explain` makes a table of an output, and says what stands out:

# %%
print(pn.explain(seen[0]))

# %% [markdown]
# ## At the last
#
# The shares alone, of the loss and of the gradient:


# %%
def shares(out):
    """What each term is of the whole."""
    for share in pn.explain(out).shares:
        print(f"{share.name:<10} {share.loss_share:4.0%} of the loss  {share.grad_share:4.0%} of the gradient")


shares(seen[200])

# %% [markdown]
# Sparsity is a tenth of the loss and four fifths of the gradient. The base is the other way round. How that came about:

# %%
of_the_gradient = {
    name: [share.grad_share for out in seen.values() for share in pn.explain(out).shares if share.name == name]
    for name in ("base_loss", "sparsity", "doubt", "size")
}

# %% [markdown]
# ![Shares of the gradient of four terms, at every tenth of 200 steps](plot:of_the_gradient:tens of steps)
#
# The base has got short, because the examples are fitted as far as the others let it. The gradient of an `l1` does not
# get shorter: it is `sign(x)`, however small the weights are.

# %% [markdown]
# ## Length is not everything
#
# Two long gradients that point elsewhere do not meet. The cosines say which terms fight:

# %%
names = seen[200].names
print(" " * 10, *[f"{name:>9}" for name in names])
for name, row in zip(names, seen[200].cosines.tolist(), strict=True):
    print(f"{name:<10}", *[f"{cosine:9.1f}" for cosine in row])

# %% [markdown]
# `doubt` and the base pull against each other, as they should: one wants sure predictions for every label, wrong ones
# too, and the other does not. Sparsity is nearly at right angles to everything: most of its length is in weights that
# nobody else cares about. And `size` wants what `doubt` wants, at a fortieth of the length.
#
# ## A reading is a guess: check it
#
# So `size` should not be missed. Sparsity should be, most of all.

# %%
print(f"all terms          {accuracy:.0%}")
for name in objective.names:
    print(f"without {name:<10} {train(objective.remove(name))[0]:.0%}")
alone = objective.remove("sparsity").remove("doubt").remove("size")
print(f"none of them       {train(alone)[0]:.0%}")

# %% [markdown]
# ## A weight from norms
#
# If `size` is to count, its norm says at which weight: for a tenth of the base's gradient, multiply the weight by what
# is missing.

# %%
last = seen[200]
wanted = 0.1 * last.base.grad_norm / last["size"].grad_norm
print(f"weight {wanted.item():.1f} instead of {last['size'].weight:.2f}")
_, again = train(objective.with_weights({"size": wanted.item()}), look_at=[200])
shares(again[200])

# %% [markdown]
# A tenth of the base's 16 % would be 1.6 %. It is less, because the outputs have shrunk under the term since. Norms
# change while a model trains, so such a weight is a start. `pn.Monitor` checks at regular intervals and at
# once when the loss jumps: [Gradients](../gradients.md#monitor). What a norm can tell when a run is broken:
# [Custom-loss training](custom_loss_training.md).
