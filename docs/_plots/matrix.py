"""Tries every function in every library and writes the table of `docs/matrix.md`: `python -m docs._plots.matrix`.

A cell is "yes" if the call works and agrees with NumPy, or with PyTorch where NumPy has no value, and "–" if the
library raises an error. A result that differs stops the program.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import penalties as pn
from penalties import functional
from penalties.backends import double_precision
from penalties.functional.penalty import facts_of

PAGE = Path(__file__).parents[1] / "matrix.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of the table -->\n"
COLUMNS = ("NumPy", "PyTorch", "`torch.func.grad`", "`torch.compile`", "JAX", "`jax.grad`", "`jax.jit`", "`jax.vmap`")


def example(name: str) -> tuple[Any, ...]:
    """Small arguments: those that a penalty declares, or probabilities and their logarithms for a helper."""
    facts = facts_of(getattr(functional, name)) or facts_of(getattr(functional, name.removeprefix("with_"), None))
    if facts:
        return facts.example()
    probabilities = np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
    if name == "target_logprobs":
        return np.log(probabilities), np.array([2, 0])
    return (probabilities,) if name == "safe_log" else (np.log(probabilities),)


def total(result: Any) -> Any:
    """One number of whatever a function returns."""
    parts = result if isinstance(result, tuple) else (result,)
    return functools.reduce(lambda a, b: a + b, [1.0 * part.sum() for part in parts])


def tried(name: str) -> list[str]:
    """The cells of a function's row."""
    arguments = example(name)
    first = callable(arguments[0])
    fixed, arrays = arguments[: int(first)], arguments[int(first) :]

    def fn(*inputs: Any) -> Any:
        return total(getattr(pn, name)(*fixed, *inputs))

    tensors, traced = [torch.tensor(x) for x in arrays], [jnp.asarray(x) for x in arrays]
    batch = [jnp.stack([x, x]) for x in traced]
    values: list[Callable[[], Any]] = [
        lambda: fn(*arrays),
        lambda: fn(*tensors),
        lambda: torch.func.grad(fn)(*tensors),
        lambda: torch.compile(fn, fullgraph=True, backend="aot_eager")(*tensors),
        lambda: fn(*traced),
        lambda: jax.grad(fn)(*traced),
        lambda: jax.jit(fn)(*traced),
        lambda: jax.vmap(fn)(*batch)[0],
    ]
    torch.compiler.reset()
    found = [attempt(value) for value in values]
    check(name, [found[i] for i in (0, 1, 3, 4, 6, 7)])
    check(name, [found[i] for i in (2, 5)])
    return ["–" if value is None else "yes" for value in found]


def attempt(value: Callable[[], Any]) -> Any:
    """What a call returns, as a NumPy array, or None if it raises an error that says why it cannot."""
    try:
        result = value()
    except (pn.PenaltiesError, RuntimeError, jax.errors.JAXTypeError):
        return None
    return np.asarray(result.detach() if isinstance(result, torch.Tensor) else result, np.float64)


def check(name: str, values: Sequence[Any]) -> None:
    """Raise unless all results that there are agree."""
    known = [value for value in values if value is not None]
    for value in known[1:]:
        np.testing.assert_allclose(value, known[0], rtol=1e-6, err_msg=name)


def table() -> str:
    """The table, in Markdown."""
    with double_precision(True):
        rows = [(f"[`{name}`]({page(name)}.md#{name})", *tried(name)) for name in sorted(functional.__all__)]
    lines = [("function", *COLUMNS), ("---",) * (1 + len(COLUMNS)), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(name: str) -> str:
    """The page that a function is described on, named for its module."""
    return getattr(functional, name).__module__.rpartition(".")[2]


def main() -> None:
    """Write the table into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")


if __name__ == "__main__":
    main()
