"""Every kernel compiles for a GPU: the interpreter takes what the compiler does not. No GPU is needed for it."""

import itertools
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from penalties.kernels.triton import elementwise, gradients, statistics

# Triton announces a change of a default.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")]

TYPES = {
    "FLAGS": "*i8",
    "scale": "fp32",
    "slope": "fp32",
    "straight": "fp32",
    "SHOWN": "*i1",
    "WHICH": "*i32",
    "FIRST": "*i32",
}
TYPES |= dict.fromkeys(("PIECES", "SAVED", "VALUES", "ROWS", "NORMS"), "*fp32")
TYPES |= dict.fromkeys(("LABELS", "XS", "GS", "SIZES"), "*i64")
TYPES |= {f"{word}{number}": "fp32" for word in ("b", "c", "steep") for number in range(5)}
"""Of the arguments that are neither tensors of the user's dtype nor whole numbers."""


def assert_compiles(kernel: Any, dtype: str, **constants: Any) -> None:
    user = {"X", "Y", "G", "LIKE", "TO"}
    signature = {
        parameter.name: "constexpr"
        if parameter.name in constants
        else f"*{dtype}"
        if parameter.name in user
        else TYPES.get(parameter.name, "*fp64" if parameter.name == "SUMS" else "i32")
        for parameter in kernel.params
    }
    by_index = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=by_index)
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]


def _is_interpreted() -> bool:
    return not hasattr(statistics._normalizing, "params")


needs_the_compiler = pytest.mark.skipif(_is_interpreted(), reason="Triton was imported with its interpreter")


@needs_the_compiler
@pytest.mark.parametrize("logits", [True, False])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_distributions(dtype: str, logits: bool) -> None:
    tile: dict[str, Any] = {"T": 128, "W": 8, "NVIDIA": True}
    for pair, hides in itertools.product((True, False), (True, False)):
        kinds = {"ENTROPY": True, "KL": pair, "REVERSE": pair}
        rows = {"HAS_Y": pair, "HAS_SHOWN": hides}
        assert_compiles(statistics._normalizing, dtype, **kinds, **rows, **tile)
        labels = {"HAS_LABELS": pair, "LOGITS": logits}
        # The number of rows is a constant where there is one.
        one = {} if hides else {"N": 1}
        assert_compiles(statistics._finishing, dtype, **rows, **labels, **one, POWER=2, NVIDIA=True)
        assert_compiles(statistics._summing, dtype, **kinds, JS=pair, LOGITS=logits, **rows, **one, **tile)
        more = {
            "SYMMETRIC": pair,
            "JS": pair,
            "LABEL": pair,
            "HAS_Y": pair,
            "HAS_FLAGS": hides,
            "HAS_ROWS": hides,
            "HAS_NORMS": hides,
            "LOGITS": logits,
        }
        absent = dict.fromkeys(() if hides else ("FLAGS", "ROWS", "NORMS"))
        assert_compiles(gradients._differentiating, dtype, **kinds, **more, **absent, **one, **tile)


@needs_the_compiler
@pytest.mark.parametrize("deltas", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_element_wise(dtype: str, deltas: int) -> None:
    sizes: dict[str, Any] = {"COUNT": 4 if deltas < 2 else 8, "BLOCK": 2048, "T": 256}
    for other, width in ((True, 4), (False, 1)):
        assert_compiles(elementwise._sweeping, dtype, DELTAS=deltas, SIGNS=other, ADDS=other, W=width, **sizes)
