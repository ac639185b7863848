"""Surrogates: requests to a server that make the gradient of its own loss equal to the gradient of ours.

A server computes a loss L of the log-probabilities with weights that the client chooses. If ∂L/∂logprob equals
∂C/∂logprob of the client's loss C, the chain rule does the rest: the model gets the gradient of C. Which numbers to
send depends on whether the server `"sums"` or `"averages"`; `probe` finds out.
"""

from .probing import probe
from .sending import FORWARD, REDUCTIONS, Surrogate, forward_data, surrogate_of

__all__ = ["FORWARD", "REDUCTIONS", "Surrogate", "forward_data", "probe", "surrogate_of"]
