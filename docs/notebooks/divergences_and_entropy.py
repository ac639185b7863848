# %% [markdown]
# # Divergences and entropy
#
# Which way round a KL divergence goes decides what a model learns, and a weight on entropy decides how sure it gets.
# Both can be seen in distributions of a few dozen numbers, where the answer is known.

# %%
import math

import torch

import penalties as pn

# %% [markdown]
# ## Two ways round
#
# The target has two peaks over 60 positions. The student has one peak, whose position and width it can choose:
# it cannot be right everywhere, and has to choose what to miss.

# %%
position = torch.arange(60.0)


def peak(middle, width):
    """Log-probabilities of one peak."""
    return (-0.5 * ((position - middle) / width) ** 2).log_softmax(-1)


target = (0.65 * peak(20.0, 2.0).exp() + 0.35 * peak(36.0, 2.0).exp()).log()


def fit(loss):
    """Centre and width of the student that minimises the loss, starting between the peaks."""
    middle, log_width = torch.tensor(26.0, requires_grad=True), torch.tensor(1.0, requires_grad=True)
    optimizer = torch.optim.Adam([middle, log_width], lr=0.1)
    for _ in range(400):
        optimizer.zero_grad()
        loss(peak(middle, log_width.exp())).backward()
        optimizer.step()
    return middle.item(), log_width.exp().item()


covering = fit(lambda student: pn.kl_divergence(target, student))
seeking = fit(lambda student: pn.kl_divergence(student, target))
for name, (middle, width) in {"KL(target ‖ student)": covering, "KL(student ‖ target)": seeking}.items():
    print(f"{name}  position {middle:4.1f}, width {width:.1f}")

mean = (target.exp() * position).sum()
spread = (target.exp() * (position - mean) ** 2).sum().sqrt()
print(f"target                position {mean:4.1f}, width {spread:.1f}")

# %%
peaks = {
    "target": target.exp().tolist(),
    "KL(target ‖ student)": peak(*covering).exp().tolist(),
    "KL(student ‖ target)": peak(*seeking).exp().tolist(),
}

# %% [markdown]
# The first is large where the student misses what the target does, so the student covers both peaks. It has the mean
# and the width of the whole target, and is highest between the peaks, where the target has nothing. The second is
# large where the student does what the target does not, so it settles on one peak and leaves the other. Distillation
# into a small model that should write well wants the second.
#
# ![Probability over 60 positions: the target and the two students](plot:peaks:position)

# %% [markdown]
# ## Where one side is zero
#
# Nothing is clipped, so a student that calls something impossible is infinitely far from a target that does it. `floor`
# bounds that. The Jensen-Shannon divergence is never above 1 bit.

# %%
known = torch.tensor([0.5, 0.5, 0.0]).log()
sure = torch.tensor([1.0, 0.0, 0.0]).log()
print("KL(known ‖ sure)   ", pn.kl_divergence(known, sure).item())
print("the same, floor -10", round(pn.kl_divergence(known, sure, floor=-10.0).item(), 4))
print("KL(sure ‖ known)   ", round(pn.kl_divergence(sure, known).item(), 4))
print("JS in bits         ", round(pn.js_divergence(known, sure, base=2).item(), 4))

# %% [markdown]
# ## What entropy is worth
#
# A policy chooses among five actions with known rewards. Minus the mean reward is the base, and a bonus on entropy
# keeps the choice open. `mode="bonus"` returns −H: adding it to a loss raises entropy.

# %%
reward = torch.tensor([1.0, 0.9, 0.5, 0.2, 0.0])
objective = pn.Pipeline(
    [pn.Term(pn.entropy, weight=0.1, inputs="logits", options={"mode": "bonus", "logits": True})],
    base=lambda logits: -(logits.softmax(-1) * reward).sum(),
)


def learn(weight):
    """The policy that makes the objective least."""
    logits = torch.zeros(5, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(500):
        optimizer.zero_grad()
        objective.total(logits=logits, weights={"entropy": weight}).backward()
        optimizer.step()
    return logits.detach().log_softmax(-1)


print("weight  choices  reward  policy")
for weight in (0.05, 0.1, 0.3, 1.0):
    policy = learn(weight)
    choices, chances = math.exp(pn.entropy(policy)), policy.exp()
    print(f"{weight:6.2f}  {choices:7.2f}  {chances @ reward:6.2f}  {[round(p, 2) for p in chances.tolist()]}")

# %% [markdown]
# `e^H` is the number of equally likely choices that would have this entropy. The weight is a price: at 0.1 the policy
# gives up 0.1 of reward for each nat of entropy. The best policy at a weight is known, the softmax of reward / weight,
# and the numbers agree:

# %%
for weight in (0.1, 1.0):
    exact = (reward / weight).log_softmax(-1)
    print(f"{weight:4.1f}  furthest from the exact policy {(learn(weight).exp() - exact.exp()).abs().max():.3f}")

# %% [markdown]
# ## Padding
#
# A batch of sequences has padding. A mask leaves it out of the mean, whatever numbers are there:

# %%
logits = torch.zeros(2, 3, 8)
logits[1, 2] = math.nan
mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
print(pn.entropy(logits, logits=True).item(), round(pn.entropy(logits, logits=True, mask=mask).item(), 4))
print(round(math.log(8), 4))

# %% [markdown]
# All of this needs whole distributions. With one number for each sampled token, as a training service returns them, use
# the [estimators](../estimators.md). The functions themselves: [Divergences and entropy](../divergences.md).
