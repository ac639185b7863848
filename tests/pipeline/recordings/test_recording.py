"""What is recorded of a call in which a term fails, and what is not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penalties as pn
from tests.libraries import JAX, LIBRARIES, TORCH, close

from .failing import drawn, fails, remembers


def unequal(x: Any) -> Any:
    raise ValueError("they differ")


def failed(pipeline: pn.Pipeline, *inputs: Any, **named: Any) -> Any:
    """The error of a call."""
    with pytest.raises(pn.PenaltiesError) as found:
        pipeline(*inputs, **named)
    return found.value


def recorded(folder: Path, pipeline: pn.Pipeline, *inputs: Any, **named: Any) -> Path:
    """The folder of a call that failed."""
    with pn.recording(folder):
        error = failed(pipeline, *inputs, **named)
    assert error.__notes__[-1].startswith("recorded in "), error.__notes__
    (path,) = folder.iterdir()
    assert f"penalties.replay({str(path)!r})" in error.__notes__[-1]
    return path


def replayed(path: Path, **arguments: Any) -> str:
    """The message of the error that a replay raises."""
    with pytest.raises(pn.TermError) as found:
        pn.replay(path, **arguments)
    return str(found.value)


class TestReplay:
    def test_raises_the_same_error(self, library: Any, tmp_path: Path) -> None:
        pipeline = pn.Pipeline([pn.Term(fails, weight=0.5, options={"above": 2.0}), pn.Term(pn.l1)])
        path = recorded(tmp_path, pipeline, library.array([1.0, 3.0]), step=7)
        assert path.name == "step-7-fails"
        assert replayed(path) == "fails: raised ValueError: found 3, more than 2"

    def test_returns_the_output_where_the_term_does_not_fail_any_more(self, library: Any, tmp_path: Path) -> None:
        path = recorded(tmp_path, pn.Pipeline([pn.Term(fails), pn.Term(pn.l1)]), library.array([1.0, 3.0]))
        out = pn.replay(path, pn.Pipeline([pn.Term(fails, options={"above": 5.0}), pn.Term(pn.l1)]))
        close(out.read().total, 14.0)
        close(pn.replay(path, inputs={"input": library.array([0.5])}).read().total, 0.75)

    def test_has_the_state_the_step_and_the_weights(self, tmp_path: Path) -> None:
        pipeline = pn.Pipeline([remembers, pn.Term(pn.l1)])
        state = None
        for step in range(2):
            state = pipeline(np.ones(2), step=step, state=state).state
        path = recorded(tmp_path, pipeline, np.ones(2), step=2, state=state, weights={"l1": 0.25})
        assert replayed(path) == "remembers: raised RuntimeError: call 3, step 2"
        mild = pn.Pipeline([pn.Term(lambda x, state=None: pn.Evaluation(x.sum(), state=state), name="remembers"), "l1"])
        out = pn.replay(path, mild)
        assert out.state == {"remembers": {"count": 2}}
        close(out.read().total, 2.5)

    def test_draws_the_same(self, tmp_path: Path) -> None:
        pipeline = pn.Pipeline([pn.Term(drawn, options={"seed": 3})])
        path = recorded(tmp_path, pipeline, np.ones(2), step=4)
        assert replayed(path) == str(failed(pipeline, np.ones(2), step=4))

    def test_takes_the_same_gradients(self, tmp_path: Path) -> None:
        if TORCH not in LIBRARIES:
            pytest.skip("needs PyTorch")
        pipeline = pn.Pipeline([pn.Term(fails, inputs="w"), pn.Term(pn.l2, inputs="w")])
        with pn.recording(tmp_path), pytest.raises(pn.TermError):
            pipeline.value_and_grad(w={"a": TORCH.array([3.0]), "b": TORCH.array([1.0])}, wrt="w", keep=True)
        (path,) = tmp_path.iterdir()
        mild = pn.Pipeline([pn.Term(pn.l1, name="fails", inputs="w"), pn.Term(pn.l2, inputs="w")])
        out = pn.replay(path, mild)
        close(TORCH.numpy(out.gradient["w"]["a"]), [7.0])
        assert out["l2"].gradient is not None

    def test_trains_what_was_trained(self, tmp_path: Path) -> None:
        if TORCH not in LIBRARIES:
            pytest.skip("needs PyTorch")
        pipeline = pn.Pipeline([pn.Term(fails, inputs="w"), pn.Term(pn.l2, inputs="w")])
        frozen, trained = TORCH.array([3.0]), TORCH.array([1.0]).requires_grad_()
        path = recorded(tmp_path, pipeline, w=[frozen, trained])
        assert replayed(path).startswith("fails: raised")
        seen: list[Any] = []

        def look(w: Any) -> Any:
            seen.extend(w)
            return w[1].sum()

        pn.replay(path, pn.Pipeline([look]))
        assert [array.requires_grad for array in seen] == [False, True]

    def test_nests_logits_and_plain_data(self, library: Any, tmp_path: Path) -> None:
        def reads(nest: Any, logits: Any) -> Any:
            raise ValueError("always")

        inputs = {
            "nest": {"a": [library.array([1.0]), (library.array([2.0]), "text", 3, None)], "b": {}},
            "logits": pn.Logits(library.array(np.ones((2, 3))), library.array(np.ones((4, 3))), softcap=5.0),
        }
        path = recorded(tmp_path, pn.Pipeline([reads]), **inputs)
        seen: list[Any] = []

        def look(nest: Any, logits: Any) -> Any:
            seen.append(nest)
            return library.array(0.0) + logits.sum()

        out = pn.replay(path, pn.Pipeline([look]))
        close(out.read().total, float(library.numpy(inputs["logits"].materialize()).sum()))
        assert seen[0]["a"][1][1:] == ("text", 3, None)
        assert seen[0]["b"] == {}

    def test_gradient_of_jax_is_recorded(self, tmp_path: Path) -> None:
        if JAX not in LIBRARIES:
            pytest.skip("needs JAX")
        import jax

        pipeline = pn.Pipeline([pn.Term("consistency", inputs=("a", "b"))])
        with pn.recording(tmp_path), pytest.raises(pn.TermError):
            jax.grad(lambda a: pipeline(a=a, b=JAX.array([1.0])).total)(JAX.array([1.0, 2.0]))
        (path,) = tmp_path.iterdir()
        assert "ShapeError" in replayed(path)

    def test_wrapped_terms(self, tmp_path: Path) -> None:
        pipeline = pn.Pipeline([pn.EMA(pn.SPSA(pn.Term(fails), c=0.5, samples=1))])
        with pn.recording(tmp_path), pytest.raises(pn.TermError) as found:
            pipeline.value_and_grad(np.array([0.7]), step=3)
        (path,) = tmp_path.iterdir()
        assert replayed(path) == str(found.value) == "fails: raised ValueError: found 1.2, more than 1"


class TestWhatIsRecorded:
    def test_only_what_terms_read(self, tmp_path: Path) -> None:
        path = recorded(tmp_path, pn.Pipeline([fails]), x=np.array([3.0]), other=object())
        about = json.loads((path / "call.json").read_text())
        assert about["inputs"] == ["x"]
        assert about["error"]["message"] == "fails: raised ValueError: found 3, more than 1"
        assert about["versions"]["penalties"] == pn.__version__
        assert "ValueError: found 3" in (path / "error.txt").read_text()

    def test_skipped_failures_too(self, tmp_path: Path) -> None:
        with pn.recording(tmp_path):
            out = pn.Pipeline([pn.Term(fails, on_error="skip"), pn.Term(pn.l1)])(np.array([3.0]))
        (path,) = tmp_path.iterdir()
        assert "recorded in" in out["fails"].error.__notes__[-1]
        assert pn.replay(path)["fails"].error is not None

    def test_nothing_outside_or_without_a_failure(self, tmp_path: Path) -> None:
        pipeline = pn.Pipeline([fails])
        with pn.recording(tmp_path):
            pipeline(np.array([0.5]))
        assert not hasattr(failed(pipeline, np.array([3.0])), "__notes__")
        assert not list(tmp_path.iterdir())

    def test_no_more_than_the_limit(self, tmp_path: Path) -> None:
        pipeline = pn.Pipeline([fails])
        with pn.recording(tmp_path, limit=2):
            errors = [failed(pipeline, np.array([3.0]), step=5) for _ in range(3)]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["step-5-fails", "step-5-fails-2"]
        assert errors[2].__notes__ == ["not recorded: 2 calls were; recording(limit=2)"]

    def test_nothing_larger_than_the_bound(self, tmp_path: Path) -> None:
        with pn.recording(tmp_path, max_bytes=1000):
            error = failed(pn.Pipeline([fails]), np.full(1000, 3.0))
        note = "not recorded: InputError: its inputs and state take 8000 bytes; recording(max_bytes=1000)"
        assert error.__notes__ == [note]
        assert not list(tmp_path.iterdir())

    def test_strings_and_lists_count_too(self, tmp_path: Path) -> None:
        with pn.recording(tmp_path, max_bytes=10_000):
            error = failed(pn.Pipeline([pn.Term(unequal, inputs="x")]), x=["word"] * 1000)
        assert error.__notes__[0].startswith("not recorded: InputError: its inputs and state take ")
        assert not list(tmp_path.iterdir())

    def test_failing_to_write_does_not_hide_the_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("notes")
        with pn.recording(tmp_path / "file"):
            error = failed(pn.Pipeline([fails]), np.array([3.0]))
        assert str(error) == "fails: raised ValueError: found 3, more than 1"
        assert error.__notes__[0].startswith("not recorded: ")

    def test_inside_jit_inputs_are_left_out(self, tmp_path: Path) -> None:
        jax = pytest.importorskip("jax")
        with pn.recording(tmp_path), pytest.raises(pn.TermError):
            jax.jit(lambda a, b: pn.Pipeline([pn.Term("consistency", inputs=("a", "b"))])(a=a, b=b).total)(
                jax.numpy.ones(2), jax.numpy.ones(3)
            )
        (path,) = tmp_path.iterdir()
        with pytest.raises(pn.InputError, match='the input "a" was not recorded .*a compiler traces.*; pass inputs='):
            pn.replay(path)

    @pytest.mark.parametrize(("option", "value"), [("max_bytes", 0), ("limit", 0), ("folder", 3)])
    def test_wrong_options(self, tmp_path: Path, option: str, value: Any) -> None:
        arguments: dict[str, Any] = {"folder": tmp_path, option: value}
        with pytest.raises(pn.OptionError, match=f"recording: {option}={value}"), pn.recording(**arguments):
            pass


class TestWhatIsMissing:
    def test_function_without_a_path_needs_the_pipeline(self, tmp_path: Path) -> None:
        pipeline = pn.Pipeline([pn.Term(lambda x: fails(x), name="own")])
        path = recorded(tmp_path, pipeline, np.array([3.0]))
        with pytest.raises(
            pn.InputError, match=r"does not name the functions of its terms \(OptionError: own: fn=.*pass"
        ):
            pn.replay(path)
        assert replayed(path, pipeline=pipeline).startswith("own: raised ValueError")

    def test_option_that_is_not_data_needs_the_pipeline(self, tmp_path: Path) -> None:
        pipeline = pn.Pipeline([pn.Term(fails, options={"above": np.float64(1.0)})])
        path = recorded(tmp_path, pipeline, np.array([3.0]))
        assert replayed(path).startswith("fails: raised") or json.loads((path / "call.json").read_text())
        other = pn.Pipeline([pn.Term(fails, options={"above": np.ones(1)})])
        path = recorded(tmp_path / "other", other, np.array([3.0]))
        with pytest.raises(pn.InputError, match="does not name the functions of its terms"):
            pn.replay(path)

    def test_array_that_cannot_be_written_is_passed_again(self, tmp_path: Path) -> None:
        inputs: list[Any] = [np.array(["a", "b"])]
        if TORCH in LIBRARIES:
            import torch

            inputs.append(torch.eye(2).to_sparse())
        for index, given in enumerate(inputs):
            path = recorded(tmp_path / str(index), pn.Pipeline([unequal]), x=given)
            with pytest.raises(pn.InputError, match=r'the input "x" was not recorded \(.*expected numbers'):
                pn.replay(path, pn.Pipeline([unequal]))

    def test_input_that_is_not_data_is_passed_again(self, tmp_path: Path) -> None:
        def counted(x: Any, data: Any) -> Any:
            raise ValueError(f"{len(data)} of {x.size}")

        pipeline = pn.Pipeline([counted])
        data = [object()]
        path = recorded(tmp_path, pipeline, x=np.ones(2), data=data)
        with pytest.raises(pn.InputError, match=r'the input "data" was not recorded \(.*holds an object'):
            pn.replay(path, pipeline)
        assert replayed(path, pipeline=pipeline, inputs={"data": data}) == "counted: raised ValueError: 1 of 2"

    @pytest.mark.parametrize(
        ("file", "content"),
        [
            ("call.json", None),
            ("call.json", b"{"),
            ("call.json", b'{"version": 1}'),
            ("state.safetensors", b"text"),
            ("input-0.safetensors", None),
        ],
    )
    def test_folder_that_is_damaged(self, tmp_path: Path, file: str, content: Any) -> None:
        path = recorded(tmp_path, pn.Pipeline([fails]), np.array([3.0]))
        (path / file).unlink() if content is None else (path / file).write_bytes(content)
        with pytest.raises(pn.InputError, match=r"is not the folder of a recorded call|was not written by save_state"):
            pn.replay(path)

    def test_folder_of_another_version(self, tmp_path: Path) -> None:
        path = recorded(tmp_path, pn.Pipeline([fails]), np.array([3.0]))
        about = json.loads((path / "call.json").read_text())
        (path / "call.json").write_text(json.dumps({**about, "version": 2}))
        with pytest.raises(pn.InputError, match="has version 2; this library reads 1"):
            pn.replay(path)
