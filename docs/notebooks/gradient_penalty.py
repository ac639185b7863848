# %% [markdown]
# # Gradient penalty
#
# A critic tells two sets of samples apart. Left alone it grows without bound; held at slope 1 it measures the distance
# between the sets. Here the distance is known, so that the measure can be checked.

# %%
import torch

import penalties as pn

# %% [markdown]
# ## Two sets, 3 apart
#
# The second set is the first, moved by (3, 0). To make one into the other every sample has to travel 3, which is their
# Wasserstein distance. It is also the largest value of `mean(critic(first)) − mean(critic(second))` over all critics
# whose slope is nowhere above 1.

# %%
generator = torch.Generator().manual_seed(0)


def samples(count=128):
    """Some of either set."""
    first, second = torch.randn(2, count, 2, generator=generator)
    return first + torch.tensor([3.0, 0.0]), second


def network():
    """A critic, the same at each call."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Softplus(), torch.nn.Linear(16, 1))


first, second = samples()
critic = network()
print(f"slope at the start: {pn.gradients.norm(lambda x: critic(x).mean(), first[:1]):.2f}")

# %% [markdown]
# ## Left alone
#
# The critic is trained to make the difference large. It does so by becoming steep:


# %%
def train(objective, steps=150):
    """A critic, and the difference that it sees at each step."""
    critic = network()
    optimizer = torch.optim.Adam(critic.parameters(), lr=0.03)
    seen = []
    for step in range(steps + 1):
        first, second = samples()
        out = objective(critic=critic, first=first, second=second, step=step)
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
        seen.append(-out.base.value.item())
    return critic, seen


def difference(critic, first, second):
    """The base: minus what the critic sees."""
    return critic(second).mean() - critic(first).mean()


alone = pn.Pipeline(base=difference)
_, seen = train(alone)
for step in (0, 50, 100, 150):
    print(f"{step:3d}  difference {seen[step]:4.0f}")

# %% [markdown]
# ## Held at slope 1
#
# `interpolated_gradient_penalty` takes the slope at points between the sets, one for each pair of samples, and returns
# the mean of `(slope − 1)²`. In a pipeline its `seed` goes with the step, so that the points are others each time.

# %%
held = alone.add(
    pn.Term(pn.interpolated_gradient_penalty, name="slope", weight=10.0, inputs=("critic", "first", "second"))
)
critic, measured = train(held)
for step in (0, 50, 100, 150):
    print(f"{step:3d}  difference {measured[step]:.1f}")

# %% [markdown]
# The difference is the distance, give or take the noise of 128 samples and what the penalty lets through: the best
# slope against a weight of 10 is a little above 1. On many samples:

# %%
first, second = samples(20_000)
print(f"difference {-difference(critic, first, second).item():.2f}")
print(f"penalty    {pn.interpolated_gradient_penalty(critic, first, second).item():.4f}")

# %% [markdown]
# ## How much weight
#
# A penalty is not a wall: the slope settles where one more bit of difference costs as much as it brings. The least of
# `−3s + weight·(s − 1)²` is at `s = 1 + 1.5 / weight`, which says what to expect.

# %%
print("weight  difference  expected")
by_weight = {}
for weight in (1.0, 10.0, 100.0):
    critic, by_weight[f"weight {weight:g}"] = train(held.with_weights({"slope": weight}))
    print(f"{weight:6.0f}  {-difference(critic, first, second).item():10.2f}  {3 + 4.5 / weight:8.2f}")

# %% [markdown]
# ![The difference that the critic sees over 150 steps, for three weights](plot:by_weight)
#
# A weight of 1 measures nothing. A weight of 10 is off by 15 %, as expected. A weight of 100 is nearer, and slower:
# after 150 steps it has not arrived.

# %% [markdown]
# ## What it costs
#
# The penalty needs one more backward pass, and a graph of it. Where the slope changes slowly, take it every fourth
# step, at four times the weight:

# %%
seldom = pn.Pipeline(
    [
        pn.Term(
            pn.interpolated_gradient_penalty,
            name="slope",
            weight=40.0,
            inputs=("critic", "first", "second"),
            every=4,
        )
    ],
    base=difference,
)
critic, _ = train(seldom)
print(f"difference {-difference(critic, first, second).item():.2f}")

# %% [markdown]
# The functions, with other targets than 1 and with cheaper stand-ins: [Smoothness](../smoothness.md).
