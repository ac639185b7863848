"""An example of everything that a config may name. A test trains with each of them."""

import inspect
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ...functional.penalty import Facts
from ..config.objective import estimates
from ..problems import toml_value

__all__ = ["EXAMPLES", "adapter_example", "loss_example", "penalty_example"]

_FOR_SAMPLED: Final = "# For tokens that the model itself sampled: data.sampled = true.\n"
_NO_INPUTS: Final = "# A config has no inputs for it: use it in your own loop."
_ARRAYS: Final = ("flat_logits", "flat_initial.logits")
"""What a penalty reads that does not say so: one array, or two of the same shape."""
_SAMPLED: Final = ("flat_logprobs", "flat_initial")
"""The same of an estimator."""
_BATCH: Final = {"logprobs": "logprobs", "reference": "initial", "pair": "perturbed", "mask": "mask"}
"""What the parameters of a penalty over a batch read."""


def penalty_example(name: str, facts: Facts) -> str:
    """The table that uses a penalty, or a comment on what to use instead."""
    lines = facts.config or _usual(facts)
    return lines if lines.startswith("#") else _term(name, lines)


def _usual(facts: Facts) -> str:
    """The lines of a penalty that declares none."""
    example = facts.example()
    # A function, labels or a number that exists already are not in a config.
    arrays = all(np.ndim(part) and np.asarray(part).dtype.kind == "f" for part in example)
    if not arrays or len(example) > len(_ARRAYS):
        return _NO_INPUTS
    inputs = (_SAMPLED if facts.estimates else _ARRAYS)[: len(example)]
    options = "\noptions = { logits = true }" if facts.distribution else ""
    return f"weight = 0.01\ninputs = {toml_value(inputs)}{options}"


def adapter_example(path: str, function: Callable[..., Any]) -> str:
    """The table that uses a penalty over a batch."""
    parameters = inspect.signature(function).parameters.values()
    reads = [one.name for one in parameters if one.default is one.empty or one.name == "mask"]
    inputs = {name: _BATCH.get(name, name) for name in reads}
    return _term(path, f"weight = 0.01\ninputs = {toml_value(inputs)}")


def _term(fn: str, lines: str) -> str:
    return f'{_FOR_SAMPLED if estimates(fn) else ""}[[term]]\nfn = "{fn}"\n{lines}'


def loss_example(name: str) -> str:
    """The tables of a loss."""
    return EXAMPLES.get(("loss", name), f'[train]\nloss = "{name}"')


_TERM: Final = '[[term]]\nfn = "l2"\nweight = 1e-4\ninputs = "params"\n'

_SCHEDULES: Final = {
    "constant": '{ kind = "constant", value = 0.1 }',
    "linear": '{ kind = "linear", end = 0.1, steps = 50 }',
    "warmup": '{ kind = "warmup", steps = 20 }',
    "cosine": '{ kind = "cosine", start = 0.1, end = 0.01 }',
    "exponential": '{ kind = "exponential", rate = 0.99 }',
    "piecewise": '{ kind = "piecewise", values = { 0 = 0.0, 50 = 0.1 } }',
    "product": """{ kind = "product", schedules = [
    { kind = "warmup", steps = 20 },
    { kind = "exponential", rate = 0.99 },
] }""",
    "chain": """{ kind = "chain", parts = [
    { steps = 20, schedule = { kind = "constant", value = 0.1 } },
], last = { kind = "cosine" } }""",
}

EXAMPLES: Final[dict[tuple[str, str], str]] = {
    ("loss", "dpo"): (
        '[train]\nloss = "dpo"\nloss_options = { beta = 0.1 }\n\n[references]\ninitial = { kind = "initial" }'
    ),
    ("loss", "reverse_kl"): (
        '[train]\nloss = "reverse_kl"\n\n[references]\nteacher = { kind = "client", model = "tiny", seed = 1 }'
    ),
    ("loss", "none"): f'[train]\nloss = "none"\n\n{_TERM}',
    ("reference", "initial"): '[references]\ninitial = { kind = "initial" }',
    ("reference", "client"): '[references]\nteacher = { kind = "client", model = "tiny", seed = 1 }',
    ("reference", "perturbed"): '[references]\nperturbed = { kind = "perturbed", token_dropout = 0.1 }',
    **{("schedule", name): f"{_TERM}schedule = {text}" for name, text in _SCHEDULES.items()},
    ("wrap", "ema"): f'{_TERM}wrap = [{{ kind = "ema", decay = 0.9 }}]',
    ("wrap", "normalized"): f'{_TERM}wrap = [{{ kind = "normalized" }}]',
    ("wrap", "score_function"): (
        "# For your own function, which returns a value for each datum that the model sampled.\n"
        '# [[term]]\n# fn = "package.module:reward"\n# weight = -1.0\n# inputs = "data"\n'
        '# wrap = [{ kind = "score_function", logprobs = "logprobs", mask = "mask" }]'
    ),
    ("wrap", "straight_through"): f'{_TERM}wrap = [{{ kind = "straight_through", discretize = "sign" }}]',
    ("wrap", "spsa"): f'{_TERM}wrap = [{{ kind = "spsa", samples = 2 }}]',
    ("wrap", "evolution_strategies"): f'{_TERM}wrap = [{{ kind = "evolution_strategies", population = 4 }}]',
    ("wrap", "cached"): (
        '[[term]]\nfn = "l2"\nweight = 0.01\ninputs = "flat_mask"\nwrap = [{ kind = "cached", folder = "cache" }]'
    ),
    ("wrap", "stale"): f'{_TERM}wrap = [{{ kind = "stale", steps = 5, wrt = "params" }}]',
    ("table", "references"): (
        '[references]\ninitial = { kind = "initial" }\nperturbed = { kind = "perturbed", token_dropout = 0.2 }'
    ),
    ("table", "term"): f'{_TERM}schedule = {{ kind = "warmup", steps = 20 }}',
    ("table", "executor"): "[executor]\nworkers = 4\ntimeout = 60.0",
    ("table", "samples"): '[samples]\nprompts = ["say one:"]\nmax_tokens = 8',
    ("table", "sinks"): "[sinks]\ntensorboard = true",
    ("sink", "tensorboard"): "[sinks]\ntensorboard = true",
    ("sink", "mlflow"): '[sinks]\nmlflow = { experiment = "penalties" }',
    ("sink", "wandb"): '[sinks]\nwandb = { project = "penalties" }',
    ("sink", "opentelemetry"): "[sinks]\nopentelemetry = true",
}
"""Lines of a config, by kind and name, of what is neither a penalty nor a loss by its name alone."""
