"""Terms whose results are on disk: by content, bounded, whole or not at all."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties.pipeline.wrappers.cached import _source
from penalties.pipeline.wrappers.content import ContentError, digest_of
from penalties.pipeline.wrappers.store import Store
from tests.libraries import JAX, LIBRARIES, TORCH, close

from . import functions
from .functions import counted, with_gradient


@pytest.fixture(autouse=True)
def _no_calls_yet() -> None:
    functions.calls.clear()


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and len(path.name) == 64)


class TestTerm:
    def test_is_computed_once_for_each_content(self, library: Any, tmp_path: Path) -> None:
        pipeline = pn.Pipeline([pn.Cached(pn.Term(counted, weight=0.5), tmp_path)])
        outputs = [pipeline(library.array(x)) for x in ([1.0, 2.0], [1.0, 2.0], [3.0, 2.0], [1.0, 2.0])]
        assert len(functions.calls) == 2
        assert [out.metrics()["counted/cached"] for out in outputs] == [0.0, 1.0, 0.0, 1.0]
        assert [out.metrics()["counted/size"] for out in outputs] == [2.0] * 4
        close([out.read().total for out in outputs], [2.5, 2.5, 6.5, 2.5])
        assert library.dtype(outputs[1].total) == library.dtype(outputs[0].total)

    def test_options_the_version_and_the_function_are_parts_of_the_key(self, tmp_path: Path) -> None:
        terms = [
            pn.Term(counted),
            pn.Term(counted, options={"factor": 2.0}),
            pn.Term(with_gradient),
        ]
        cached = [pn.Cached(term, tmp_path) for term in terms] + [pn.Cached(terms[0], tmp_path, version="2")]
        for term in cached * 2:
            pn.Pipeline([term])(np.ones(2))
        assert len(functions.calls) == len(entries(tmp_path)) == 4

    def test_object_goes_by_the_path_that_it_was_given_as(self, tmp_path: Path) -> None:
        terms = [pn.Term(f"{functions.__name__}:{name}", inputs="x") for name in ("doubled", "tripled", "doubled")]
        outputs = [pn.Pipeline([pn.Cached(term, tmp_path)])(x=np.ones(2)) for term in terms]
        assert [(float(out.total), out.metrics()["Times/cached"]) for out in outputs] == [(4, 0), (6, 0), (4, 1)]

    def test_code_of_an_object_and_where_it_is_made_are_parts_of_the_key(
        self, tmp_path: Path, monkeypatch: Any
    ) -> None:
        monkeypatch.syspath_prepend(tmp_path)
        code, made = tmp_path / "cached_class.py", tmp_path / "cached_object.py"
        code.write_text("class Sum:\n    def __call__(self, x):\n        return x.sum()\n")
        made.write_text("from cached_class import Sum\ntotal = Sum()\n")
        term = pn.Term("cached_object:total", inputs="x")
        keys = [_source(term.fn, "cached_object:total")]
        for file in (code, made):
            file.write_text(file.read_text() + "# changed\n")
            keys.append(_source(term.fn, "cached_object:total"))
        assert len(set(keys)) == 3

    def test_version_of_this_library_is_a_part_of_the_key_of_its_penalties(
        self, tmp_path: Path, monkeypatch: Any
    ) -> None:
        def keys() -> list[str]:
            return [_source(pn.l2, "l2"), _source(counted, f"{functions.__name__}:counted")]

        before = keys()
        monkeypatch.setattr(pn, "__version__", "another")
        after = keys()
        assert before[0] != after[0]
        assert before[1] == after[1]

    def test_draws_and_steps_are_parts_of_the_key(self, tmp_path: Path) -> None:
        term = pn.Cached(pn.Term("orthogonality", options={"sample_size": 2, "seed": 3}), tmp_path)
        x = np.random.default_rng(0).normal(size=(6, 3))
        pipeline = pn.Pipeline([term])
        cached = [pipeline(x, step=step).metrics()["orthogonality/cached"] for step in (0, 1, 0, 1)]
        assert cached == [0.0, 0.0, 1.0, 1.0]
        expected = pn.Pipeline([pn.Term("orthogonality", options={"sample_size": 2, "seed": 3})])
        close(pipeline(x, step=1).total, expected(x, step=1).total)

    def test_gradient_that_the_function_returned_is_kept(self, tmp_path: Path) -> None:
        pipeline = pn.Pipeline([pn.Cached(pn.Term(with_gradient), tmp_path)])
        for _ in range(2):
            close(pipeline.value_and_grad(np.array([1.0, -3.0])).gradient, [2.0, -6.0])
        assert len(functions.calls) == 1

    def test_values_per_sample_for_a_score_function(self, tmp_path: Path) -> None:
        inner = pn.Cached(pn.Term(functions.lookup, options={"table": [1.0, 4.0]}), tmp_path)
        pipeline = pn.Pipeline([pn.ScoreFunction(inner, logprobs="lp", baseline="none")])
        outputs = [pipeline.value_and_grad(samples=[0, 1, 1], lp=np.zeros(3), wrt="lp") for _ in range(2)]
        assert [out["lookup"].metrics["cached"] for out in outputs] == [0, 1]
        close(outputs[1].gradient["lp"], [1 / 3, 4 / 3, 4 / 3])

    @pytest.mark.skipif(TORCH not in LIBRARIES, reason="needs PyTorch")
    def test_input_that_requires_a_gradient_is_an_error(self, tmp_path: Path) -> None:
        x = TORCH.array([1.0]).requires_grad_()
        with pytest.raises(pn.TermError, match='its input "x" requires a gradient, which a result on disk does not'):
            pn.Pipeline([pn.Cached(pn.Term(counted), tmp_path)])(x)
        constant = pn.Pipeline([pn.Cached(pn.Term(counted, differentiable=False), tmp_path)])
        assert not constant(x).total.requires_grad

    @pytest.mark.skipif(TORCH not in LIBRARIES, reason="needs PyTorch")
    def test_value_that_depends_on_a_parameter_elsewhere_is_an_error(self, tmp_path: Path) -> None:
        weight = TORCH.array([2.0]).requires_grad_()
        functions.captured = lambda x: (weight * x).sum()
        functions.captured.__module__, functions.captured.__qualname__ = functions.__name__, "captured"
        with pytest.raises(pn.TermError, match="its value depends on a tensor that requires a gradient"):
            pn.Pipeline([pn.Cached(pn.Term(functions.captured, name="captured"), tmp_path)])(TORCH.array([1.0]))

    def test_inside_jit_is_an_error(self, tmp_path: Path) -> None:
        jax = pytest.importorskip("jax")
        pipeline = pn.Pipeline([pn.Cached(pn.Term(counted, differentiable=False), tmp_path)])
        with pytest.raises(
            pn.TermError, match="what it reads: .'x'. holds an array without elements, inside a compiler"
        ):
            jax.jit(lambda x: pipeline(x).total)(jax.numpy.ones(2))
        assert JAX in LIBRARIES or not entries(tmp_path)

    def test_input_without_a_digest_is_an_error(self, tmp_path: Path) -> None:
        pipeline = pn.Pipeline([pn.Cached(pn.Term(counted, inputs="x"), tmp_path)])
        with pytest.raises(
            pn.TermError, match="cannot be cached: what it reads: .'x'..0. holds an object; expected arrays"
        ):
            pipeline(x=[object()])

    def test_option_without_a_digest_is_an_error(self, tmp_path: Path) -> None:
        pipeline = pn.Pipeline([pn.Cached(pn.Term(counted, options={"factor": {1, 2}}), tmp_path)])
        with pytest.raises(pn.TermError, match="cannot be cached: its options: .'factor'. holds a set"):
            pipeline(np.ones(1))

    def test_result_too_large_for_the_folder_is_a_warning(self, tmp_path: Path) -> None:
        pipeline = pn.Pipeline([pn.Cached(pn.Term(counted), tmp_path, max_bytes=100)])
        with pytest.warns(
            RuntimeWarning, match="could not be cached in .*: it takes .* bytes, more than max_bytes=100"
        ):
            out = pipeline(np.array([3.0]))
        assert float(out.total) == 9.0

    def test_file_in_the_place_of_the_folder_is_a_warning(self, tmp_path: Path) -> None:
        (tmp_path / "cache").write_text("notes")
        with pytest.warns(RuntimeWarning, match="could not be cached"):
            out = pn.Pipeline([pn.Cached(pn.Term(counted), tmp_path / "cache")])(np.array([3.0]))
        assert float(out.total) == 9.0
        assert (tmp_path / "cache").read_text() == "notes"

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: pn.Cached(pn.Term(lambda x: x, name="f"), "c"), "a function that can be imported by its path"),
            (lambda: pn.Cached(pn.Term(functions.doubled), "c"), r'pass its path, Term\("my_module:judge"\)'),
            (lambda: pn.Cached(pn.Term(counted), ""), 'folder=""; expected the path of a folder'),
            (lambda: pn.Cached(pn.Term(counted), "c", max_bytes=0), "max_bytes=0; expected a whole number"),
            (lambda: pn.Cached(pn.Term(counted), "c", version=2), "version=2; expected a string"),
            (lambda: pn.Cached(pn.EMA(pn.Term(counted)), "c"), "expected a term without state"),
        ],
    )
    def test_wrong_options(self, make: Any, message: str) -> None:
        with pytest.raises(pn.OptionError, match=message):
            make()

    def test_function_whose_code_cannot_be_read_needs_a_version(self, tmp_path: Path) -> None:
        import math

        with pytest.raises(pn.OptionError, match="expected a version=, or a function from a module file"):
            pn.Cached(pn.Term(math.hypot, inputs=("a", "b")), tmp_path)
        term = pn.Cached(pn.Term(math.hypot, inputs=("a", "b"), differentiable=False), tmp_path, version="1")
        assert [pn.Pipeline([term])(a=3.0, b=4.0).metrics()["hypot"] for _ in range(2)] == [5.0, 5.0]

    def test_state_that_is_returned_is_an_error(self, tmp_path: Path) -> None:
        functions.stateful = lambda x: pn.Evaluation(x.sum(), state=1)
        functions.stateful.__module__, functions.stateful.__qualname__ = functions.__name__, "stateful"
        with pytest.raises(pn.TermError, match="is cached and returned state"):
            pn.Pipeline([pn.Cached(pn.Term(functions.stateful, name="stateful"), tmp_path)])(np.ones(1))


DAMAGE = {
    "cut short": lambda data: data[:-5],
    "empty": lambda data: b"",
    "a bit": lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
    "another file": lambda data: b"not an entry",
}


class TestStore:
    @pytest.mark.parametrize("damage", DAMAGE)
    def test_damaged_entry_is_missing_and_removed(self, tmp_path: Path, damage: str) -> None:
        pipeline = pn.Pipeline([pn.Cached(pn.Term(counted), tmp_path)])
        pipeline(np.array([1.0, 2.0]))
        (entry,) = entries(tmp_path)
        entry.write_bytes(DAMAGE[damage](entry.read_bytes()))
        assert Store(tmp_path, 10**6).get(entry.name) is None
        assert not entry.exists()
        out = pipeline(np.array([1.0, 2.0]))
        assert out.metrics()["counted"] == 5.0
        assert len(functions.calls) == 2

    def test_entry_under_the_name_of_another_is_missing(self, tmp_path: Path) -> None:
        store = Store(tmp_path, 10**6)
        store.put("aa" * 32, b"first")
        (tmp_path / "bb").mkdir()
        (tmp_path / "aa" / ("aa" * 32)).rename(tmp_path / "bb" / ("bb" * 32))
        assert store.get("bb" * 32) is None

    def test_entry_of_another_form_is_missing(self, tmp_path: Path) -> None:
        pipeline = pn.Pipeline([pn.Cached(pn.Term(counted), tmp_path)])
        pipeline(np.array([1.0, 2.0]))
        (entry,) = entries(tmp_path)
        Store(tmp_path, 10**6).put(entry.name, b"checksums are right")
        assert pipeline(np.array([1.0, 2.0])).metrics()["counted/cached"] == 0.0

    def test_entry_that_cannot_be_opened_now_stays(self, tmp_path: Path) -> None:
        resource = pytest.importorskip("resource")
        store = Store(tmp_path, 10**6)
        store.put("aa" * 32, b"content")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            found = store.get("aa" * 32)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert found is None
        assert store.get("aa" * 32) == b"content"

    @pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
    def test_link_is_missing_and_its_target_stays(self, tmp_path: Path) -> None:
        store, target = Store(tmp_path / "cache", 10**6), tmp_path / "target"
        target.write_text("notes")
        (tmp_path / "cache" / "aa").mkdir(parents=True)
        (tmp_path / "cache" / "aa" / ("aa" * 32)).symlink_to(target)
        assert store.get("aa" * 32) is None
        store.put("aa" * 32, b"new")
        assert target.read_text() == "notes"

    def test_least_recently_used_goes_first_and_the_bound_holds(self, tmp_path: Path) -> None:
        store = Store(tmp_path, 10_000)
        keys = [f"{index:02d}" * 32 for index in range(20)]
        for age, key in enumerate(keys[:9]):
            assert store.put(key, b"x" * 1000)
            path = tmp_path / key[:2] / key
            os.utime(path, (age, age))
        assert store.get(keys[0]) is not None
        for key in keys[9:]:
            store.put(key, b"x" * 1000)
            assert sum(path.stat().st_size for path in entries(tmp_path)) <= 10_000
            if key == keys[9]:
                assert store.get(keys[0]) is not None
                assert store.get(keys[1]) is None
        assert store.get(keys[-1]) is not None

    def test_size_that_was_lost_is_counted_again(self, tmp_path: Path) -> None:
        store = Store(tmp_path, 5_000)
        for index in range(12):
            store.put(f"{index:02d}" * 32, b"x" * 1000)
            (tmp_path / "size").write_text("?" if index % 2 else "")
        assert 0 < sum(path.stat().st_size for path in entries(tmp_path)) <= 5_000

    def test_what_a_killed_process_left_behind_is_removed(self, tmp_path: Path) -> None:
        store = Store(tmp_path, 3_000)
        store.put("aa" * 32, b"x" * 1000)
        parts = [tmp_path / "aa" / f".{'aa' * 32}.0123456789abcdef.part", tmp_path / ".size.0123456789abcdef.part"]
        for part in parts:
            part.write_bytes(b"half")
            os.utime(part, (0, 0))
        (tmp_path / "size").unlink()
        store.put("bb" * 32, b"x" * 1000)
        assert not any(part.exists() for part in parts)

    def test_files_of_others_stay(self, tmp_path: Path) -> None:
        others = [tmp_path / name for name in ("en/corpus.txt", "de/half.part", f"aa/{'bb' * 32}", "bb" * 32)]
        for other in others:
            other.parent.mkdir(exist_ok=True)
            other.write_bytes(b"x" * 5000)
            os.utime(other, (0, 0))
        store = Store(tmp_path, 3_000)
        for index in range(6):
            assert store.put(f"{index:02d}" * 32, b"x" * 1000)
        assert all(other.exists() for other in others)

    def test_several_processes_share_a_folder(self, tmp_path: Path) -> None:
        code = (
            "import sys, random; from penalties.pipeline.wrappers.store import Store\n"
            "store, rng = Store(sys.argv[1], 20_000), random.Random(int(sys.argv[2]))\n"
            "for _ in range(25):\n"
            "    number = rng.randrange(25); key = f'{number:02d}' * 32; content = bytes([number]) * 1000\n"
            "    found = store.get(key)\n"
            "    assert found in (None, content), 'a wrong value'\n"
            "    if found is None: assert store.put(key, content)\n"
        )
        workers = [subprocess.Popen([sys.executable, "-c", code, tmp_path, str(seed)]) for seed in range(2)]
        assert [worker.wait(60) for worker in workers] == [0, 0]
        assert 0 < sum(path.stat().st_size for path in entries(tmp_path)) <= 20_000

    def test_lock_that_another_holds_too_long_is_an_error(self, tmp_path: Path, monkeypatch: Any) -> None:
        import filelock

        monkeypatch.setattr("penalties.pipeline.wrappers.store._PATIENCE", 0.05)
        with filelock.FileLock(tmp_path / "lock"), pytest.raises(OSError, match="another process has held the lock"):
            Store(tmp_path, 1000).put("aa" * 32, b"x")


class Point:
    """Something without a digest."""


class TestDigest:
    def test_values_that_differ_have_different_digests(self) -> None:
        import dataclasses
        from collections import namedtuple

        pair = namedtuple("pair", "a b")
        made = dataclasses.make_dataclass("made", ["a", "b"])
        values: list[Any] = [
            None, True, 1, 1.0, "1", b"1", 0.0, -0.0, (), [], {}, [1, [2]], [[1], 2], [[1, 2]], ("a", "bc"),
            ("ab", "c"),
            {"a": 1}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, (1, 2), [1, 2], pair(1, 2), made(1, 2), np.array([1.0]),
            np.array([[1.0]]), np.array([1.0], "float32"), np.array(1.0), np.array([True]), np.array([1]),
            [np.array([1])],
        ]  # fmt: skip
        for library in LIBRARIES[1:]:
            values += [library.array([1.0]), library.array([[1.0]]), library.array([1.0], "bfloat16")]
        digests = [digest_of(value) for value in values]
        assert len(set(digests)) == len(values)
        assert digests == [digest_of(value) for value in values]

    def test_elements_count_and_not_their_place_in_memory(self, library: Any) -> None:
        x = library.array(np.arange(6.0).reshape(2, 3))
        assert digest_of(x.T) == digest_of(library.array(np.arange(6.0).reshape(2, 3).T.copy()))

    def test_objects_with_a_dump_count_by_it(self) -> None:
        pydantic = pytest.importorskip("pydantic")
        model = pydantic.create_model("Model", a=(int, 1))
        assert digest_of(model(a=1)) == digest_of(model(a=1)) != digest_of(model(a=2))

    def test_tensors_that_are_not_their_elements_have_none(self) -> None:
        if TORCH not in LIBRARIES:
            pytest.skip("needs PyTorch")
        import torch

        with pytest.raises(ContentError, match="it holds a Tensor that is sparse, masked"):
            digest_of(torch.eye(2).to_sparse())
        imaginary = torch.tensor([1 + 2j]).conj().imag
        assert digest_of(imaginary) == digest_of(torch.tensor([-2.0]))

    def test_keys_of_jax_have_none(self) -> None:
        if JAX not in LIBRARIES:
            pytest.skip("needs JAX")
        import jax

        # To NumPy those of older releases are objects.
        with pytest.raises(ContentError, match="holds an array of (key<fry>|objects); expected numbers"):
            digest_of(jax.random.key(0))

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ([1, Point()], r"\[1\] holds a Point; expected arrays"),
            ({"a": np.array([Point()])}, r"\['a'\] holds an array of objects; expected numbers"),
            (np.ma.array([1.0], mask=[True]), "it holds a MaskedArray that is sparse, masked, quantized or nested"),
        ],
    )
    def test_others_have_none(self, value: Any, message: str) -> None:
        with pytest.raises(ContentError, match=message):
            digest_of(value)
