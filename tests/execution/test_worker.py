"""The inside of a worker, run in this process."""

import itertools
import multiprocessing
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import penalties as pn
from penalties.backends import double_precision, owner
from penalties.execution import blocks, native, worker
from penalties.execution.blocks import LARGE, Blocks, Outlet, Views, aligned, lay, read
from penalties.execution.bodies import Bodies
from penalties.execution.portable import Packed, dumps, function_bytes, loads
from penalties.execution.worker import Failure, Reply, Request, begin, serve

KEYS = itertools.count(1_000_000)


@pytest.fixture
def shared() -> Iterator[Blocks]:
    shared = Blocks()
    yield shared
    worker._views.forget(list(worker._views._open))
    shared.close()


def request(shared: Blocks, term: pn.Term | None, inputs: Any, wrt: Any = (), **changes: Any) -> Request:
    board = shared.take(24)
    np.ndarray((3,), np.float64, board.buf)[:] = 0.0
    data, arrays = dumps((inputs, wrt, None, None))
    body = None if term is None else function_bytes(term)
    settings = {
        packed.library: {"torch": "float32", "jax": False}[packed.library]
        for packed in arrays
        if packed.library != "numpy"
    }
    given = {"name": "term", "key": next(KEYS), "body": body, "data": data, "arrays": arrays, "outlet": None}
    return Request(**{**given, "settings": settings, "clock": (board.name, 0), **changes})


def evaluation(reply: Reply) -> pn.Evaluation:
    return pn.Evaluation(*loads(reply.data, [array for array in reply.arrays if isinstance(array, Packed)]))


def failure(reply: Reply) -> Failure:
    found = loads(reply.data, ())
    assert isinstance(found, Failure)
    return found


def test_evaluates_and_notes_the_time(shared: Blocks) -> None:
    asked = request(shared, pn.Term("l2"), {"x": torch.tensor([3.0], requires_grad=True)}, ("x",))
    before = time.monotonic()
    found = evaluation(serve(asked))
    assert (found.value.item(), found.gradient["x"].tolist()) == (9.0, [6.0])
    began, pid, done = np.ndarray((3,), np.float64, shared._all[asked.clock[0]].buf)
    assert before <= began <= time.monotonic()
    assert (pid, done) == (os.getpid(), 1.0)


def test_keeps_a_term_and_says_when_it_has_none(shared: Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LOADED", 1)
    monkeypatch.setattr(worker, "_terms", OrderedDict())
    first, second = pn.Term("l1"), pn.Term("l2")
    asked = request(shared, first, {"x": np.array([2.0])})
    assert float(evaluation(serve(asked)).value) == 2.0
    again = request(shared, None, {"x": np.array([3.0])}, key=asked.key)
    assert float(evaluation(serve(again)).value) == 3.0
    assert float(evaluation(serve(request(shared, second, {"x": np.array([3.0])}))).value) == 9.0
    assert not serve(again).known


def test_libraries_are_loaded_before_the_clock_starts(shared: Blocks) -> None:
    asked = request(shared, pn.Term("l1"), {"x": np.ones(2)}, settings={"nobody_has_this": 1})
    error = str(failure(serve(asked)).error())
    assert "could not be loaded in a process: ModuleNotFoundError: No module named 'nobody_has_this'; what a" in error


def test_libraries_have_the_callers_settings(shared: Blocks) -> None:
    asked = request(shared, pn.Term("l1"), {"x": torch.ones(2)}, settings={"torch": "float64"})
    assert evaluation(serve(asked)).value.dtype == torch.float32
    assert torch.get_default_dtype() == torch.float64
    serve(request(shared, pn.Term("l1"), {"x": torch.ones(2)}))
    assert torch.get_default_dtype() == torch.float32
    with double_precision(True):
        asked = request(shared, pn.Term("l1"), {"x": jnp.ones(2)}, settings={"jax": True})
    found = serve(asked)
    with double_precision(True):
        assert evaluation(found).value.dtype == jnp.float64


def test_large_arrays_lie_in_blocks_and_go_back_there(shared: Blocks) -> None:
    x = np.arange(LARGE, dtype=np.float64)
    block = shared.take(2 * x.nbytes)
    _, (packed,) = dumps(x)
    lent = lay(block, packed)
    outlet = Outlet(block.name, x.nbytes, x.nbytes)

    def doubled(x: Any) -> pn.Evaluation:
        return pn.Evaluation(np.float64(x.sum()), {"x": 2 * x})

    reply = serve(request(shared, pn.Term(doubled), {"x": x}, ("x",), arrays=[lent], outlet=outlet))
    assert not reply.retained
    (back,) = [array for array in reply.arrays if isinstance(array, blocks.Lent)]
    assert (read(block, back).data == 2 * x).all()
    # Where there is no room, through the pipe.
    reply = serve(request(shared, pn.Term(doubled), {"x": x}, ("x",), arrays=[lent], outlet=Outlet(block.name, 0, 8)))
    assert (evaluation(reply).gradient["x"] == 2 * x).all()


def test_a_block_that_a_term_keeps_is_named_and_closed_when_it_lets_go(shared: Blocks) -> None:
    class Keeps:
        def __reduce__(self) -> Any:
            return _keeper, ()

        def __call__(self, x: Any) -> Any:
            raise AssertionError("made again by the worker")

    _KEPT.clear()
    x = np.ones(LARGE)
    block = shared.take(x.nbytes)
    lent = lay(block, dumps(x)[1][0])
    reply = serve(request(shared, pn.Term(Keeps(), name="keeps", inputs="x"), {"x": x}, arrays=[lent]))
    assert reply.retained == (block.name,)
    assert block.name not in worker._views._open
    assert len(worker._views._held) == 1
    _KEPT.clear()
    worker._views.forget([])
    assert not worker._views._held


_KEPT: list[Any] = []


def _keeper() -> Any:
    def keep(x: Any) -> Any:
        _KEPT.append(x)
        return x.sum()

    return keep


def test_a_view_too_many_closes_the_oldest(shared: Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_ATTACHED", 1)
    views = Views()
    first, second = shared.take(1), shared.take(1)
    views.attach(first.name)
    views.attach(second.name)
    assert list(views._open) == [second.name]
    views.forget([second.name])


def test_answers_until_the_caller_hangs_up(shared: Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = multiprocessing.Pipe()
    monkeypatch.setattr(worker.multiprocessing, "current_process", lambda: type("Process", (), {"line": theirs}))
    at_fork: list[Any] = []
    monkeypatch.setattr(os, "register_at_fork", lambda after_in_child: at_fork.append(after_in_child))
    ours.send(request(shared, pn.Term("l1"), {"x": np.ones(2)}))
    answering = threading.Thread(target=worker.answer)
    answering.start()
    assert float(evaluation(ours.recv()).value) == 2.0
    ours.close()
    answering.join(10.0)
    assert not answering.is_alive()
    at_fork[0]()
    assert theirs.closed


def test_errors_come_back_with_their_cause(shared: Blocks) -> None:
    def broken(x: Any) -> Any:
        raise KeyError("lost")

    error = failure(serve(request(shared, pn.Term(broken), {"x": np.ones(1)}))).error()
    assert isinstance(error, pn.TermError)
    assert isinstance(error.__cause__, KeyError)
    assert "in broken" in error.__cause__.__notes__[0]


def test_a_term_that_exits_is_an_error(shared: Blocks) -> None:
    def leave(x: Any) -> Any:
        raise SystemExit(3)

    error = failure(serve(request(shared, pn.Term(leave), {"x": np.ones(1)}))).error()
    assert str(error) == "term: raised SystemExit: 3"


def test_a_body_that_cannot_be_loaded_is_an_error(shared: Blocks) -> None:
    asked = request(shared, None, {"x": np.ones(1)}, body=b"nonsense")
    for _ in range(2):
        reply = serve(asked)
        assert "could not be loaded in a process" in str(failure(reply).error())
        assert not reply.known


def test_a_cause_that_cannot_travel_is_told() -> None:
    class Local(Exception):
        pass

    cause = Local("here")
    cause.lock = threading.Lock()
    told = Failure.of("term", cause)
    assert told.cause is None
    assert isinstance(told.error().__cause__, RuntimeError)
    assert "Local: here" in told.error().__cause__.__notes__[0]
    assert Failure.of("term", pn.TermError("term", "alone")).error().__cause__ is None
    # One whose bytes make something else here.
    assert isinstance(Failure(pn.TermError("a", "b"), b"nonsense", "text").error().__cause__, RuntimeError)


def test_a_fork_of_a_term_ends(shared: Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(BaseException):
        pass

    def end(status: int) -> None:
        raise Ended(status)

    pids = iter([1, 2, 2])
    monkeypatch.setattr(os, "getpid", lambda: next(pids))
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(Ended):
        serve(request(shared, pn.Term("l1"), {"x": np.ones(1)}))


def test_begin_sets_a_process_up(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    class Thread:
        def __init__(self, target: Any, daemon: bool) -> None:
            started.append((target, daemon))

        def start(self) -> None:
            pass

    handled: list[Any] = []
    monkeypatch.setattr(worker, "_keep_memory", lambda: None)
    monkeypatch.setattr(worker, "_die_with_the_server", lambda: None)
    monkeypatch.setattr(worker.signal, "signal", lambda *given: handled.append(given))
    monkeypatch.setattr(worker.threading, "Thread", Thread)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    state, generator = np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        begin(1)
        first = float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002
        begin(1)
        assert (float(np.random.rand()), float(torch.rand(()))) != first  # noqa: NPY002
        monkeypatch.delitem(worker.sys.modules, "torch")
        begin(1)
    finally:
        monkeypatch.undo()
        np.random.set_state(state)  # noqa: NPY002
        torch.set_rng_state(generator)
    assert started[0] == (worker._end_with_the_caller, True)
    assert handled[0] == (worker.signal.SIGTERM, worker.signal.SIG_DFL)


def test_a_worker_keeps_freed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    library = type("Library", (), {"mallopt": staticmethod(lambda *given: asked.append(given))})
    monkeypatch.setattr(worker.ctypes, "CDLL", lambda name: library)
    worker._keep_memory()
    assert [parameter for parameter, _ in asked] == [-1, -3]
    monkeypatch.setattr(worker.ctypes, "CDLL", lambda name: object())
    worker._keep_memory()
    assert len(asked) == 2


def test_a_worker_dies_with_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    library = type("Library", (), {"prctl": staticmethod(lambda *given: asked.append(given))})
    monkeypatch.setattr(worker.ctypes, "CDLL", lambda name: library)
    reader, writer = os.pipe()
    server = type("Server", (), {"_forkserver_alive_fd": writer})
    monkeypatch.setattr(worker.forkserver, "_forkserver", server)
    worker._die_with_the_server()
    assert os.read(reader, 1) == b""
    os.close(reader)
    monkeypatch.setattr(worker.ctypes, "CDLL", lambda name: object())
    worker._die_with_the_server()
    assert asked == [(1, worker.signal.SIGKILL)]


def test_a_worker_ends_with_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    worker._end_with_the_caller()
    ended: list[int] = []
    reader, writer = os.pipe()
    os.close(writer)
    parent = type("Parent", (), {"sentinel": reader})
    monkeypatch.setattr(worker.multiprocessing, "parent_process", lambda: parent)
    monkeypatch.setattr(os, "_exit", ended.append)
    worker._end_with_the_caller()
    os.close(reader)
    assert ended == [1]


def test_threads_are_capped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    set_to: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    native.cap_threads(2)
    assert (os.environ["OMP_NUM_THREADS"], os.environ["MKL_NUM_THREADS"], set_to) == ("2", "1", [2])


class TestPortable:
    @pytest.mark.parametrize(
        "value",
        [
            torch.arange(6.0).reshape(2, 3).T,
            torch.tensor([1.5], dtype=torch.bfloat16),
            torch.tensor([1.5]).to(torch.float8_e4m3fn),
            torch.tensor(3),
            torch.tensor([1 + 2j]).conj(),
            torch.eye(2).to_sparse(),
        ],
        ids=["strides", "bfloat16", "float8", "0-d", "conjugate", "sparse"],
    )
    def test_tensors_come_back_as_they_were(self, value: torch.Tensor) -> None:
        back = loads(*dumps({"value": value}))["value"]
        assert back.dtype == value.dtype
        assert back.layout == value.layout
        assert torch.equal(back.to_dense().to(torch.complex64), value.to_dense().to(torch.complex64))

    def test_a_tensor_that_requires_a_gradient_does_there(self) -> None:
        assert loads(*dumps(torch.ones(2, requires_grad=True))).requires_grad

    def test_numpy_and_jax(self) -> None:
        key = jax.random.key(0)
        value = {"a": np.float32([1.0]), "b": jnp.ones(2), "objects": np.array([None, "x"]), "key": key}
        back = loads(*dumps(value))
        assert back["a"].dtype == np.float32
        assert isinstance(back["b"], jax.Array)
        assert back["objects"].tolist() == [None, "x"]
        assert (jax.random.key_data(back["key"]) == jax.random.key_data(key)).all()

    def test_an_array_that_is_there_twice_travels_once(self) -> None:
        x = np.ones(3)
        data, arrays = dumps([x, x, {"again": x}])
        assert len(arrays) == 1
        first, second, _ = loads(data, arrays)
        assert first is second

    def test_read_only_memory_is_copied_for_torch(self) -> None:
        data, (packed,) = dumps(torch.ones(2))
        packed.data.flags.writeable = False
        back = loads(data, [packed])
        back[0] = 5.0
        assert packed.data[0] == 1.0

    def test_objects_of_any_class(self) -> None:
        class Batch:
            def __init__(self) -> None:
                self.tokens = torch.arange(3)

        assert loads(*dumps(Batch())).tokens.tolist() == [0, 1, 2]

    def test_a_cache_of_a_script_travels_empty(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import functools

        @functools.lru_cache(maxsize=3)
        def doubled(x: int) -> int:
            return 2 * x

        doubled(1)
        doubled.__module__ = "__main__"
        back = loads(function_bytes(doubled), ())
        assert back.cache_info().currsize == 0
        assert back.cache_parameters()["maxsize"] == 3
        assert back(2) == 4


class TestBodies:
    def test_are_made_once_whatever_the_weight(self) -> None:
        bodies, term = Bodies(), pn.Term("l1")
        assert bodies.of(term) is not None
        assert (
            bodies.of(term)[0]
            == bodies.of(term.with_weight(0.5))[0]
            != bodies.of(pn.Term("l1", options={"reduction": "mean"}))[0]
        )

    def test_are_let_go(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from penalties.execution import bodies as module

        monkeypatch.setattr(module, "_KEPT", 1)
        bodies, first, second = Bodies(), pn.Term("l1"), pn.Term("l2")
        key = bodies.of(first)[0]
        bodies.of(second)
        assert bodies.of(first)[0] != key


class TestBlocks:
    def test_are_used_again(self, shared: Blocks) -> None:
        block = shared.take(100_000)
        assert block.size == 2**17
        shared.give([block])
        assert shared.take(90_000) is block
        assert shared.take(90_000) is not block
        assert len(shared) == 2

    def test_one_far_too_large_is_left_to_others(self, shared: Blocks) -> None:
        shared.give([shared.take(10_000_000)])
        assert shared.take(10).size == 64 * 1024

    def test_retained_ones_are_never_given_out_again(self, shared: Blocks) -> None:
        block = shared.take(10)
        shared.give([block], (block.name,))
        shared.give([block])
        assert len(shared) == 0

    def test_none_after_closing(self) -> None:
        shared = Blocks()
        shared.close()
        with pytest.raises(RuntimeError, match="closed"):
            shared.take(10)

    def test_arrays_begin_where_they_may(self) -> None:
        assert [aligned(size) for size in (0, 1, 64, 65)] == [0, 64, 64, 128]


def test_the_fork_server_caps_native_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    capped: list[int] = []
    monkeypatch.setattr(native, "cap_threads", capped.append)
    module = importlib.import_module("penalties.execution.preload")
    capped.clear()
    importlib.reload(module)
    assert capped == [1]


@pytest.mark.parametrize("array", [np.array([1.0, np.inf]), jnp.array([1.0, jnp.inf])], ids=["numpy", "jax"])
def test_only_torch_hangs_on_what_a_function_holds(array: Any) -> None:
    ops = owner(array)
    assert ops is not None
    assert not ops.captures(array.sum(), [array])

    assert ops.zeros_like(array).tolist() == [0.0, 0.0]
    assert (
        ops.add_gradients(
            pn.l1, [array], [0], scale=1.0, mean=False, sum_at=lambda place: array, weight=1.0, slope=None
        )
        is None
    )


def test_a_value_without_a_graph_hangs_on_nothing() -> None:
    ops = owner(torch.ones(2))
    assert ops is not None
    assert not ops.captures(torch.tensor(1.0), [torch.ones(2)])


def test_blocks_that_the_caller_removed_are_let_go(shared: Blocks) -> None:
    views = Views()
    first = shared.take(10)
    views.attach(first.name)
    shared.give([first], [first.name])
    second = shared.take(10)
    views.attach(second.name)
    assert list(views._open) == [second.name]
    views.forget([second.name])
