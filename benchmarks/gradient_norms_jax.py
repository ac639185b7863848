"""The norm of every term's gradient in one jax.jit, five terms at 1e6, against value and gradient of the total."""

import jax

from .gradient_norms import FIVE, given
from .harness import Row, compare, keep_memory


def run(scale: float) -> list[Row]:
    keep_memory()
    arrays = {name: jax.numpy.asarray(tensor.detach().numpy()) for name, tensor in given().items()}
    total = jax.jit(lambda named: jax.value_and_grad(lambda x: FIVE.total(**{**named, "student": x}))(named["student"]))
    complete = jax.jit(lambda named: FIVE.value_and_grad(**named, wrt="student"))
    value, gradient = total(arrays)
    out = complete(arrays)
    assert jax.numpy.allclose(out.total, value)
    assert jax.numpy.allclose(out.gradient["student"], gradient, atol=1e-9)

    def plain() -> None:
        jax.block_until_ready(total(arrays))

    def ours() -> None:
        jax.block_until_ready(complete(arrays))

    return [compare("jit", plain, ours, seconds=12.0 * scale, unit="ms", most_ratio=1.5)]
