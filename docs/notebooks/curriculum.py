# %% [markdown]
# # Curriculum by schedules
#
# Some terms are right at one time of training and wrong at another. A schedule turns a weight into a function of the
# step. The case here is the oldest one: look around first, decide later.

# %%
import torch

import penalties as pn
from penalties import schedules

# %% [markdown]
# ## A policy with a bad habit
#
# Ten actions with known rewards. The policy starts almost sure of an action that is worth 0.5; the best is worth 1. The
# gradient of the mean reward is proportional to the probability of an action, so that the best one, which has about
# one chance in 8000, is hardly seen.

# %%
reward = torch.tensor([0.5, 0.0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.2, 0.1, 1.0])
start = torch.zeros(10)
start[0] = 9.0
print(f"{start.softmax(-1)[9].item():.5f}")

objective = pn.Pipeline(
    [pn.Term(pn.entropy, name="curiosity", weight=0.0, inputs="logits", options={"mode": "bonus", "logits": True})],
    base=lambda logits: -(logits.softmax(-1) * reward).sum(),
)
STEPS = 300


# %%
def train(plan):
    """The mean reward at each step, and the policy at the end."""
    logits = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([logits], lr=2.0)
    earned = []
    for step in range(STEPS):
        out = objective(logits=logits, weights=schedules.weights({"curiosity": plan}, step))
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
        earned.append(-out.base.value.item())
    return earned, logits.detach().softmax(-1)


# %% [markdown]
# ## No constant is right
#
# Without curiosity the policy keeps its habit. With a little it leaves too late or not at all, and with enough to
# leave soon it never decides.

# %%
print("weight  reward  sure of the best")
for weight in (0.0, 0.1, 0.2, 0.3, 1.0):
    earned, policy = train(schedules.constant(weight))
    print(f"{weight:6.2f}  {earned[-1]:6.3f}  {policy[9].item():16.3f}")

# %% [markdown]
# ## A weight that falls
#
# `cosine(1.0, 0.0, steps)` begins at 1 and ends at 0, with the last step. While it is high it drives the policy out of
# its habit; from there each action is seen, and as the bonus goes the policy may commit itself to the best.

# %%
falling = schedules.cosine(1.0, 0.0, steps=STEPS)
print([round(falling(step), 3) for step in (0, 75, 150, 225, 299)])
earned, policy = train(falling)
print(f"reward {earned[-1]:.3f}, sure of the best {policy[9].item():.3f}")

# %%
plans = {
    "no bonus": schedules.constant(0.0),
    "constant 0.3": schedules.constant(0.3),
    "cosine to 0": falling,
}
curves = {name: train(plan)[0] for name, plan in plans.items()}

# %% [markdown]
# ![Mean reward over 300 steps: without a bonus, with a constant one, and with one that falls](plot:curves)
#
# At first the falling weight earns less than no bonus at all. Stop there, and you throw the best plan away:

# %%
ahead = max(step for step in range(STEPS) if curves["cosine to 0"][step] < curves["no bonus"][step]) + 1
print(f"ahead from step {ahead} of {STEPS}")

# %% [markdown]
# ## Other shapes
#
# A schedule is any function of the step. These are made of others: `chain` puts one after another, `product`
# multiplies.

# %%
shapes = {
    "falling line": schedules.linear(1.0, 0.0, steps=STEPS),
    "hold, then fall": schedules.chain((schedules.constant(0.5), 100), schedules.cosine(0.5, 0.0, steps=200)),
    "steps": schedules.piecewise({0: 1.0, 100: 0.1, 200: 0.0}),
    "decay": schedules.exponential(1.0, rate=0.99),
    "too fast a decay": schedules.exponential(1.0, rate=0.8),
}
for name, plan in shapes.items():
    earned, _ = train(plan)
    print(f"{name:<18} reward {earned[-1]:.3f}")

# %% [markdown]
# All that keep the weight up long enough get there. The last is gone after about 20 steps, before the habit is.
#
# ## The other direction
#
# `warmup` keeps a term out until the model has something for it to work on, as for a consistency or sparsity term that
# would otherwise settle things on the first day. In your own loop a plan is one argument of
# [`train_step`](../training-loop.md#train_step); in a custom loss it is `weights=schedules.weights(plan, step)`. All
# shapes: [Schedules](../schedules.md).
