"""Regularizers of a batch: the penalties over what a training client gives, one array per datum, of ragged length.

Each is a function for a `Term`, which reads its inputs by name, and gives a value with metrics:

    Term(adapters.kl, 0.1, inputs={"logprobs": "logprobs", "reference": "initial", "mask": "mask"})

In a configuration it is named by its path, `"penalties.training.adapters:kl"`. Every datum counts, and a mean is over
all places of the batch. With a `mask` a place counts as much as it says: prompts, of weight 0, do not count. It has one
number for each place, (N,), or one for each candidate, (N, K).

Log-probabilities of shape (N,) are of one sampled token at each place. They are no distribution, so that divergence and
entropy are *estimated* from them. Those of shape (N, K) are of K candidates at each place: a part of a distribution, of
which divergence and entropy are computed, after the K were renormalised.
"""

from .divergences import consistency, entropy, kl
from .norms import elastic_net, l1, l2
from .structure import gradient_penalty, orthogonality

__all__ = ["consistency", "elastic_net", "entropy", "gradient_penalty", "kl", "l1", "l2", "orthogonality"]
