"""The caller's context and modes, which follow a term."""

import asyncio
import contextvars
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import penalties as pn

WHERE = contextvars.ContextVar("where", default="nowhere")


class TestContext:
    @pytest.mark.parametrize("where", ["thread", "async"])
    def test_context_variables_follow(self, executor: pn.Executor, where: Any) -> None:
        async def awaited(x: Any) -> Any:
            await asyncio.sleep(0)
            return x.sum(), {"here": WHERE.get() == "here"}

        def called(x: Any) -> Any:
            return x.sum(), {"here": WHERE.get() == "here"}

        term = pn.Term(awaited if where == "async" else called, name="term", runs=where)
        token = WHERE.set("here")
        try:
            assert executor.run(pn.Pipeline([term]), {"x": np.ones(1)}).metrics()["term/here"] == 1.0
        finally:
            WHERE.reset(token)
        assert executor.run(pn.Pipeline([term]), {"x": np.ones(1)}).metrics()["term/here"] == 0.0

    @pytest.mark.parametrize("where", ["thread", "async"])
    def test_modes_of_torch_follow(self, executor: pn.Executor, where: Any) -> None:
        def modes() -> dict[str, float]:
            return {
                "grad": torch.is_grad_enabled(),
                "inference": torch.is_inference_mode_enabled(),
                "autocast": torch.is_autocast_enabled("cpu"),
                "meta": torch.get_default_device().type == "meta",
            }

        async def awaited(x: Any) -> Any:
            before = modes()
            await asyncio.sleep(0)
            assert before == modes()
            return x.detach().sum(), before

        def called(x: Any) -> Any:
            return x.detach().sum(), modes()

        def found() -> dict[str, bool]:
            term = pn.Term(awaited if where == "async" else called, name="term", runs=where)
            metrics = executor.run(pn.Pipeline([term]), {"x": x}).metrics()
            return {key: bool(metrics[f"term/{key}"]) for key in modes()}

        x = torch.ones(2)
        assert found() == {"grad": True, "inference": False, "autocast": False, "meta": False}
        with torch.no_grad():
            assert found()["grad"] is False
        with torch.inference_mode():
            assert found()["inference"] is True
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert found()["autocast"] is True
        with torch.device("meta"):
            assert found()["meta"] is True

    def test_the_default_device_of_jax_follows(self, executor: pn.Executor) -> None:
        device = jax.devices()[0]

        def where(x: Any) -> Any:
            return jnp.sum(x), {"same": jax.config.jax_default_device is device}

        with jax.default_device(device):
            out = executor.run(pn.Pipeline([pn.Term(where, runs="thread")]), {"x": jnp.ones(2)})
        assert out.metrics()["where/same"] == 1.0

    def test_without_gradients_none_are_taken(self, executor: pn.Executor) -> None:
        x = torch.ones(2, requires_grad=True)
        with torch.no_grad():
            out = executor.run(pn.Pipeline([pn.Term("l1", runs="thread"), pn.Term("l2", runs="process")]), x)
        assert not out.total.requires_grad

    def test_a_library_that_is_not_loaded_has_no_modes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from penalties.execution.ambient import Modes

        monkeypatch.delitem(sys.modules, "torch")
        monkeypatch.delitem(sys.modules, "jax")
        modes = Modes()
        with modes():
            assert "torch" not in sys.modules
