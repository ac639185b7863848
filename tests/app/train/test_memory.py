"""How much memory a run takes."""

import builtins
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from penalties.app.train.memory import peak_memory


def test_on_a_cpu_it_is_the_peak_of_the_process() -> None:
    before = peak_memory("cpu")
    assert before is not None
    taken = bytearray(before + 50_000_000)
    taken[::4096] = b"1" * len(taken[::4096])
    after = peak_memory("cpu")
    assert after is not None
    assert after >= before + 40_000_000


def test_on_a_gpu_it_is_that_of_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    cuda = SimpleNamespace(max_memory_allocated=lambda device: asked.append(device) or 12345)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert peak_memory("cuda:1") == 12345
    assert asked == ["cuda:1"]


def test_where_the_system_does_not_say_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "resource":
            raise ImportError(name)
        return whole(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert peak_memory("cpu") is None
