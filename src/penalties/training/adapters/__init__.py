"""Regularizers of a batch: the penalties over what a training client returns, one array per datum, of ragged length.

Each is a function for a `Term`, reads its inputs by name, and returns a value with metrics:

    Term(adapters.kl, 0.1, inputs={"logprobs": "logprobs", "reference": "initial", "mask": "mask"})

In a config it is named by its path, `"penalties.training.adapters:kl"`. Every datum counts, and a mean is over all
positions of the batch. A `mask` weights positions: prompts, of weight 0, do not count. It has one number per position,
(N,), or one per candidate, (N, K).

Log-probabilities of shape (N,) belong to one sampled token per position. They are not a distribution, so divergence and
entropy are *estimated* from them. Those of shape (N, K) belong to K candidates per position: part of a distribution,
whose divergence and entropy are computed after renormalising over the K.
"""

from .divergences import consistency, entropy, kl
from .norms import elastic_net, l1, l2
from .structure import gradient_penalty, orthogonality

__all__ = ["consistency", "elastic_net", "entropy", "gradient_penalty", "kl", "l1", "l2", "orthogonality"]
