"""Find the few inputs that matter in a regression with more inputs than examples, in JAX, compiled once.

Five of a hundred inputs determine the target, and there are sixty examples: without penalties most inputs get a
coefficient. The strength of the penalties changes at each step, as an argument of the compiled function, so that
nothing is recompiled. Run it with `python examples/jax_loop.py`; it needs JAX and nothing from the network.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import penalties as pn

STEPS = 2000
REPORT_AT = (0, 250, 500, 1000, 1500, 2000)
SUPPORT = (3, 17, 42, 64, 91)


def mean_square(prediction: Any, target: Any) -> Any:
    """The base loss; the metrics that it returns are reported with it."""
    error = prediction - target
    return (error**2).mean(), {"worst": abs(error).max()}


PIPELINE = pn.Pipeline(
    [
        # Coefficients that explain little go to zero.
        pn.Term(pn.l1, name="sparsity", weight=0.2, inputs="coefficients"),
        # Outputs of a moderate size while the coefficients are still far off; switched off at the end.
        pn.Term(pn.l2, name="size", weight=0.01, inputs="prediction", options={"reduction": "mean"}),
    ],
    base=mean_square,
)
SCHEDULES = {
    "sparsity": pn.schedules.warmup(0.2, steps=200),
    "size": pn.schedules.cosine(0.01, 0.0, steps=STEPS // 2),
}

traces = 0


def predict(params: Any, x: Any) -> Any:
    return x @ params["coefficients"] + params["bias"]


def objective(params: Any, x: Any, y: Any, weights: Any) -> pn.LossOutput:
    """The output whose total is minimized."""
    global traces
    traces += 1  # runs when JAX traces this function, not when the compiled code runs
    return PIPELINE(prediction=predict(params, x), target=y, coefficients=params["coefficients"], weights=weights)


@jax.jit
def step(params: Any, x: Any, y: Any, weights: Any, rate: Any) -> tuple[Any, pn.LossOutput]:
    """Plain gradient descent, with the norm of each term's gradient at the parameters."""
    out = pn.gradients.at_parameters(objective, params, x, y, weights)
    return jax.tree.map(lambda p, g: p - rate * g, params, out.gradient), out


def train(x: Any, y: Any, *, penalised: bool) -> Any:
    params = {"coefficients": jnp.zeros(x.shape[1]), "bias": jnp.zeros(())}
    decay = pn.schedules.cosine(0.05, 0.0, steps=STEPS)
    for index in range(STEPS + 1):
        weights = pn.schedules.weights(SCHEDULES, index) if penalised else {"sparsity": 0.0, "size": 0.0}
        params, out = step(params, x, y, weights, decay(index))
        if penalised and index in REPORT_AT:
            numbers = out.metrics()
            names = ("base_loss", "sparsity_weighted", "size_weighted", "total", "base_loss/worst")
            weight = float(out["sparsity"].weight)
            print(f"{index:4d} {weight:8.3f} " + " ".join(f"{numbers[name]:9.4f}" for name in names))
    if penalised:
        print(f"\n{out}")
    return params


def summary(params: Any, x: Any, y: Any) -> str:
    """The result, on unseen examples."""
    error = float(jnp.sqrt(((predict(params, x) - y) ** 2).mean()))
    used = np.flatnonzero(np.abs(params["coefficients"]) > 0.05).tolist()
    return f"test error {error:.2f}, {len(used)} inputs in use{f': {used}' if len(used) < 10 else ''}"


def data(count: int, rng: np.random.Generator) -> tuple[Any, Any]:
    x = rng.normal(size=(count, 100))
    y = x[:, SUPPORT] @ np.array([2.0, -1.5, 1.0, -1.0, 2.5]) + 0.1 * rng.normal(size=count)
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


def main() -> None:
    rng = np.random.default_rng(0)
    x, y = data(60, rng)
    test = data(1000, rng)
    print(f"{'step':>4} {'strength':>8} {'base':>9} {'sparsity':>9} {'size':>9} {'total':>9} {'worst':>9}")
    penalised = train(x, y, penalised=True)
    plain = train(x, y, penalised=False)
    print(f"\n{2 * (STEPS + 1)} steps with as many different weights: traced {traces} time{'' if traces == 1 else 's'}")
    print(f"inputs that matter: {list(SUPPORT)}")
    print(f"without penalties:  {summary(plain, *test)}")
    print(f"with penalties:     {summary(penalised, *test)}")


if __name__ == "__main__":
    main()
