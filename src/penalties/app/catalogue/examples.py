"""An example of everything that a config may name. A test trains with each of them."""

from typing import Final

__all__ = ["EXAMPLES"]

_BATCH: Final = "penalties.training.adapters:"

_TERMS: Final[dict[str, tuple[str, ...]]] = {
    "l1": ("weight = 1e-4", 'inputs = "params"'),
    "l2": ("weight = 1e-4", 'inputs = "params"'),
    "elastic_net": ("weight = 1e-4", 'inputs = "params"', "options = { l1_ratio = 0.9 }"),
    "smooth_l1": ("weight = 1e-4", 'inputs = "params"', "options = { delta = 0.1 }"),
    "entropy": (
        "weight = 0.02",
        'inputs = { p = "logits", mask = "mask" }',
        'options = { mode = "bonus", logits = true }',
    ),
    "kl_divergence": (
        "weight = 0.05",
        'inputs = { p = "logits", q = "initial.logits", mask = "mask" }',
        "options = { logits = true }",
        'schedule = { kind = "warmup", steps = 20 }',
    ),
    "js_divergence": (
        "weight = 0.05",
        'inputs = { p = "logits", q = "initial.logits", mask = "mask" }',
        "options = { logits = true }",
    ),
    "consistency": ("weight = 0.1", 'inputs = ["logprobs", "perturbed"]'),
    "orthogonality": ("weight = 1e-3", 'inputs = "flat_hidden.1"', "options = { sample_size = 64 }"),
    "output_magnitude": ("weight = 1e-2", 'inputs = "flat_logits"', "options = { target = 1.0 }"),
    "kl_estimate": (
        "weight = 0.05",
        'inputs = ["logprobs", "initial"]',
        'schedule = { kind = "warmup", steps = 20 }',
    ),
    "entropy_estimate": ("weight = 0.01", 'inputs = "logprobs"', 'options = { mode = "bonus" }'),
    f"{_BATCH}kl": ("weight = 0.05", 'inputs = { logprobs = "logprobs", reference = "initial", mask = "mask" }'),
    f"{_BATCH}entropy": (
        "weight = 0.01",
        'inputs = { logprobs = "logprobs", mask = "mask" }',
        'options = { mode = "bonus" }',
    ),
    f"{_BATCH}consistency": ("weight = 0.1", 'inputs = { logprobs = "logprobs", pair = "perturbed", mask = "mask" }'),
    f"{_BATCH}l1": ("weight = 1e-3", 'inputs = { logprobs = "logprobs", mask = "mask" }'),
    f"{_BATCH}l2": ("weight = 1e-3", 'inputs = { logprobs = "logprobs", mask = "mask" }'),
    f"{_BATCH}elastic_net": ("weight = 1e-3", 'inputs = { logprobs = "logprobs", mask = "mask" }'),
    f"{_BATCH}orthogonality": ("weight = 1e-3", 'inputs = { logprobs = "hidden.1", mask = "mask" }'),
    f"{_BATCH}gradient_penalty": ("weight = 1e-2", 'inputs = { logprobs = "logprobs", mask = "mask" }'),
}
"""Terms, without their first lines."""

_SAMPLED: Final = ("kl_estimate", "entropy_estimate", f"{_BATCH}kl", f"{_BATCH}entropy")
_FOR_SAMPLED: Final = "# For tokens that the model itself sampled: data.sampled = true."

_INSTEAD: Final = {
    "cross_entropy": "# For logits and targets in your own loop; in a config it is a loss: see the one of this name.",
    "gradient_penalty": f"# For your own functions; for log-probabilities, see {_BATCH}gradient_penalty.",
    "precomputed": "# For losses that a model of yours computes: see pn.collect.",
    "interpolated_gradient_penalty": f"# For your own functions: see {_BATCH}gradient_penalty.",
}
"""Penalties that a config has no inputs for."""

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
    **{
        ("batch" if ":" in name else "penalty", name): "\n".join(
            [*([_FOR_SAMPLED] if name in _SAMPLED else []), "[[term]]", f'fn = "{name}"', *lines]
        )
        for name, lines in _TERMS.items()
    },
    **{("penalty", name): text for name, text in _INSTEAD.items()},
    ("loss", "cross_entropy"): '[train]\nloss = "cross_entropy"\nreduction = "mean"',
    ("loss", "dpo"): (
        '[train]\nloss = "dpo"\nloss_options = { beta = 0.1 }\n\n[references]\ninitial = { kind = "initial" }'
    ),
    ("loss", "importance_sampling"): '[train]\nloss = "importance_sampling"\nreduction = "mean"',
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
"""Lines of a config, by kind and name."""
