"""References: one array per datum that accompanies the data, passed in, or made by a provider.

A reference is a list of arrays, each with the shape of its datum's `target_tokens`, or a provider, which makes them
while the forward of the step is running: `initial()`, `client(teacher)`, `perturbed()`, or any object with `start`.
With `top_k` the first two have the K likeliest tokens at each position instead of the targets.
"""

from .checking import checked
from .likeliest import checked_likeliest
from .logits import check_vocabulary
from .providers import Initial, Perturbed, Provider, Teacher, client, initial, perturbed

__all__ = [
    "Initial",
    "Perturbed",
    "Provider",
    "Teacher",
    "check_vocabulary",
    "checked",
    "checked_likeliest",
    "client",
    "initial",
    "perturbed",
]
