# %% [markdown]
# # Custom-loss training: a run that breaks
#
# A language model is trained on a custom loss, and the curve of the total looks wonderful while the model gets worse.
# The gradient norms say what is wrong; two changes fix it.

# %%
import penalties as pn
from penalties.training import AdamParams, Datum, LocalTrainingClient, ModelInput, forward_backward_custom, references

# %% [markdown]
# ## The task
#
# A small random model learns pig latin: `glass = assglay`. The weights of the answers' tokens add up to 1 over the
# batch, so that the cross-entropy is a mean, as penalties are.

# %%
WORDS = ("glass", "garden", "round", "grass", "early", "castle", "tea", "stone", "river", "light", "bread", "cloud")


def pig_latin(word):
    """The consonants in front go to the end, and "ay" follows."""
    first = next(index for index, letter in enumerate(word) if letter in "aeiou")
    return word[first:] + word[:first] + "ay"


ANSWERS = sum(len(pig_latin(word)) for word in WORDS)


def datum(word, encode):
    """What the model reads, what it should say at each position, and how much that counts."""
    prompt, answer = encode(f"{word} = "), encode(pig_latin(word))
    tokens = prompt + answer
    weights = [0.0] * (len(prompt) - 1) + [1.0 / ANSWERS] * len(answer)
    return Datum(ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:], "weights": weights})


# %% [markdown]
# The model should stay close to where it started. A KL against `references.initial()`, the model before
# training, is to hold it.


# %%
def train(estimator, weight, steps=40):
    """The outputs of all steps."""
    options = {"estimator": estimator}
    kl = pn.Term(pn.kl_estimate, name="kl", weight=weight, inputs=("logprobs", "initial"), options=options)
    before, outputs = references.initial(), []
    with LocalTrainingClient("tiny", seed=0) as client:
        data = [datum(word, client.get_tokenizer().encode) for word in WORDS]
        for _ in range(steps + 1):
            passed = forward_backward_custom(
                client,
                data,
                "cross_entropy",
                regularizers=[kl],
                references={"initial": before},
                track_grad_norms=True,
            )
            client.optim_step(AdamParams(learning_rate=5e-3))
            outputs.append(passed.result().custom_loss)
    return outputs


# %% [markdown]
# ## A wonderful curve
#
# `k1` is the first estimator in the list, and 5 sounds like a weight.

# %%
broken = train("k1", weight=5.0)
for step in (0, 10, 20, 40):
    print(f"{step:2d}  total {broken[step].total:6.2f}")

# %% [markdown]
# It falls and falls, below zero too. The parts of it:

# %%
for step in (0, 10, 20, 40):
    out = broken[step]
    print(f"{step:2d}  total {out.total:6.2f}  base {out.base.value:5.2f}  kl {out['kl'].value:5.2f}")

# %% [markdown]
# The base, which is what we want to learn, has doubled. And the KL is negative, which no KL divergence can be: one
# token's `k1` may be, but not the mean over what the model itself would say.
#
# ## Reading it
#
# `explain` names the first fault. By default it speaks up at a factor of 100; we ask for 4.


# %%
def read(out, **thresholds):
    """What each term is of the loss and of the gradient, and what stands out."""
    explanation = pn.explain(out, **thresholds)
    for share in explanation.shares:
        print(f"{share.name:<10} {share.loss_share:4.0%} of the loss  {share.grad_share:4.0%} of the gradient")
    for finding in explanation.findings:
        print(finding.message)


read(broken[40], dominance=4.0)

# %% [markdown]
# The gradient of the KL is five times as long as that of the base. That alone could be a matter of taste. The second
# fault is in how the length changes, or rather does not:

# %%
for step in (0, 1, 10, 40):
    print(f"{step:2d}  base {broken[step].base.grad_norm:.4f}  kl {broken[step]['kl'].grad_norm:.4f}")

# %% [markdown]
# At step 0 the model *is* its reference. A divergence is at its least there, and its gradient must be 0. This one has
# a gradient as long as the base's, at every step, wherever the model is. It is a constant force and no distance. Three
# lengths tell its direction: where the total's is the difference of the two, they point against each other.

# %%
base, kl, total = broken[0].base.grad_norm, broken[0]["kl"].grad_norm_weighted, broken[0].total_grad_norm
print(f"{kl:.3f} - {base:.3f} = {total:.3f}, cosine {(total**2 - base**2 - kl**2) / (2 * base * kl):.2f}")

# %% [markdown]
# So the term is minus the base, five times. The gradient of `k1` is 1 at every token: on text that the model did not
# sample, minimising it makes that text less likely, [and nothing else](../estimators.md#what-the-gradient-trains).
#
# ## The weight alone does not fix it
#
# A hundredth of it, and the model learns. But the term only takes 5 % off the base's gradient, near the start and far
# from it, and holds nothing:

# %%
light = train("k1", weight=0.05)
for step in (0, 40):
    base, kl = light[step].base, light[step]["kl"]
    print(f"{step:2d}  base {base.value:5.2f}, gradient {base.grad_norm:.4f}  kl gradient {kl.grad_norm_weighted:.4f}")

# %% [markdown]
# ## Nor does the estimator alone
#
# `k2` is half the square of how far a token has moved. Its gradient is that of a distance: 0 at the start, and longer
# the further the model is. At a weight of 5 the model stands still:

# %%
held = train("k2", weight=5.0)
print(f"step 0: gradient of kl {held[0]['kl'].grad_norm_weighted:.4f}; step 40:")
read(held[40])
print(f"base {held[40].base.value:.2f}, gradient of the total {held[40].total_grad_norm:.2f}")

# %% [markdown]
# The KL is 2 % of the loss, and nothing in the loss looks wrong. It is half of the gradient, and what is left of both
# together is a fifth of either: they cancel.
#
# ## Fixed
#
# They cancel where a token has moved by 1 / weight nats: there the gradient of `k2`, weight times the distance, is that
# of the base, 1. At 5 that is 0.2 nats, and the base has fallen from 6.04 by just that. At 0.05 it is 20 nats, further
# than a token can go. A weight of 0.2 grants 5 of the 6 nats that there are to learn:

# %%
runs = {weight: train("k2", weight) for weight in (0.05, 0.2, 0.5)}
for weight, outputs in runs.items():
    out = outputs[40]
    print(f"{weight:4.2f}  grants {1 / weight:4.1f}  base {out.base.value:.2f}")
    read(out)

# %%
base_loss = {
    "k1, weight 5": [out.base.value for out in broken],
    "k2, weight 5": [out.base.value for out in held],
    "k2, weight 0.2": [out.base.value for out in runs[0.2]],
}

# %% [markdown]
# ![The base loss over 40 steps: broken, held too tightly, and fixed](plot:base_loss)
#
# At 0.2 the model learns and the term holds: near the end the two gradients are almost as long. At 0.5 they met early,
# and the model has stopped at the 2 nats that it was granted. At 0.05 the term is in the table and not in the model.
#
# What to remember: look at the base, not at the total. A distance has no gradient where there is no distance. Terms
# whose lengths subtract are fighting, and where the lengths are equal too, training has stopped.
# `track_grad_norms=True` is all it took to see.
#
# More: [Custom losses](../custom-loss.md), [Gradients](../gradients.md), [Reading gradient norms](gradient_norms.md).
