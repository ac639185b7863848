"""What an executor is given, and where it may be called."""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import penalties as pn

from .terms import healthy


class TestOptions:
    @pytest.mark.parametrize("options", [{"max_workers": 0}, {"timeout": 0}, {"timeout": 301.0}, {"sequential": "yes"}])
    def test_a_wrong_one_is_an_error(self, options: Any) -> None:
        with pytest.raises(pn.OptionError, match=f"Executor: {next(iter(options))}="):
            pn.Executor(**options)

    def test_processes_need_a_system_that_forks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "win32")
        with pn.Executor() as executor, pytest.raises(pn.OptionError, match='runs="process"; expected "thread"'):
            executor.run(pn.Pipeline([pn.Term("l1", runs="process")]), np.ones(1))

    def test_a_pipeline_is_needed(self, executor: pn.Executor) -> None:
        with pytest.raises(pn.OptionError, match="expected a Pipeline"):
            executor.run([pn.Term("l1")], np.ones(1))  # pyright: ignore

    def test_inputs_are_named_by_strings(self, executor: pn.Executor) -> None:
        with pytest.raises(pn.OptionError, match="names, each a string"):
            executor.run(pn.Pipeline(["l1"]), {1: np.ones(1)})

    def test_a_closed_executor_runs_nothing(self) -> None:
        executor = pn.Executor()
        executor.close()
        executor.close()
        with pytest.raises(RuntimeError, match="this Executor is closed"):
            executor.run(pn.Pipeline(["l1"]), np.ones(1))

    def test_repr(self) -> None:
        assert repr(pn.Executor(3, timeout=5)) == "Executor(max_workers=3, timeout=5, sequential=False)"

    @pytest.mark.parametrize("missing", ["pebble", "cloudpickle"])
    def test_a_missing_library_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
        from penalties.execution import portable

        portable._pickler_class.cache_clear()
        monkeypatch.setitem(__import__("sys").modules, missing, None)
        with (
            pn.Executor() as executor,
            pytest.raises(pn.MissingLibraryError, match=r'pip install "penalties\[process\]"'),
        ):
            executor.run(pn.Pipeline([pn.Term(healthy, runs="process")]), {"x": np.ones(1)})
        portable._pickler_class.cache_clear()

    def test_inside_torch_func_is_an_error(self, executor: pn.Executor) -> None:
        pipeline = pn.Pipeline([pn.Term("l1", runs="thread")])
        with pytest.raises(pn.BackendError, match=r"called inside a transform of torch\.func"):
            torch.func.grad(lambda x: executor.run(pipeline, x).total)(torch.ones(2))

    def test_inside_torch_compile_is_an_error(self, executor: pn.Executor, monkeypatch: pytest.MonkeyPatch) -> None:
        from penalties.execution import run

        monkeypatch.setattr(run, "compiling", lambda: True)
        with pytest.raises(pn.BackendError, match=r"called inside torch\.compile"):
            executor.run(pn.Pipeline(["l1"]), torch.ones(2))

    @pytest.mark.parametrize("transform", [jax.jit, jax.vmap])
    def test_inside_jit_and_vmap_is_an_error(self, executor: pn.Executor, transform: Any) -> None:
        pipeline = pn.Pipeline([pn.Term("l1", runs="thread")])
        with pytest.raises(pn.BackendError, match="called inside jax.jit or jax.vmap"):
            transform(lambda x: executor.run(pipeline, x).total)(jnp.ones((2, 2)))


def printing(x: Any) -> Any:
    print("printed")
    print("said", file=sys.stderr)
    return x.sum()


def test_what_terms_in_processes_print_goes_to_the_streams_that_are_given(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = tmp_path / "out", tmp_path / "err"
    with (
        paths[0].open("wb") as out,
        paths[1].open("wb") as err,
        pn.Executor(1, streams=(out.fileno(), err.fileno())) as executor,
    ):
        assert float(executor.run(pn.Pipeline([pn.Term(printing, runs="process")]), np.ones(3)).total) == 3.0
    assert [path.read_text() for path in paths] == ["printed\n", "said\n"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("streams", [(1,), (1, 2, 2), (1, -1), (1, 10**6), 5, (1, "x")])
def test_streams_are_two_open_descriptors(streams: Any) -> None:
    with pytest.raises(pn.OptionError, match="streams=.*; expected None, or two open descriptors"):
        pn.Executor(streams=streams)
