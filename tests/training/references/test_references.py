"""References: what providers ask for and when, what they remember, and what is refused."""

import asyncio
import dataclasses
import gc
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tinker import types as sdk

import penalties as pn
from penalties.training import Datum, ModelInput, TensorData, references
from penalties.training.reading import numpy_of
from penalties.training.references.memory import Memory

WAIT = 10


def datum(tokens: Sequence[int], candidates: int | None = None, **inputs: Any) -> Datum:
    targets = np.asarray(tokens) + 1
    if candidates is not None:
        targets = targets[:, None] + np.arange(candidates)
    return Datum(ModelInput.from_ints(tokens), {"target_tokens": targets, **inputs})


def sdk_datum(tokens: Sequence[int], **inputs: Any) -> sdk.Datum:
    return sdk.Datum(
        model_input=sdk.ModelInput.from_ints(list(tokens)),
        loss_fn_inputs={"target_tokens": [token + 1 for token in tokens], **inputs},
    )


def truth(one: Any, trained: float = 0.0) -> np.ndarray[Any, Any]:
    """What a client says of a datum: a number for each target that depends on what comes before, and on training."""
    tokens = np.cumsum(one.model_input.to_ints()).astype(np.float32)
    targets = numpy_of(one.loss_fn_inputs["target_tokens"]).astype(np.float32)
    before = tokens if targets.ndim == 1 else tokens[:, None]
    return -(before + targets / 100 + np.float32(trained)).astype(np.float32)


class Later:
    """A future as an SDK's is: `result(timeout)` and awaitable, and nothing else."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def result(self, timeout: float | None = None) -> Any:
        return self.make()

    def __await__(self) -> Any:
        yield from ()
        return self.make()


class Client:
    """Answers from `truth`, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.losses: list[str] = []
        self.trained = 0.0
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None
        self.change: Callable[[Any], Any] = lambda output: output

    def forward(self, data: Sequence[Any], loss_fn: str, loss_fn_config: Any = None) -> Any:
        self.asked.append(list(data))
        self.losses.append(loss_fn)
        # A server's turn comes when it was asked, whenever it is waited for.
        return self.later(data, self.trained)

    def later(self, data: Sequence[Any], trained: float) -> Any:
        def make() -> Any:
            assert self.go.wait(WAIT)
            if self.error is not None:
                raise self.error
            return self.change(
                SimpleNamespace(loss_fn_outputs=[{"logprobs": TensorData(truth(one, trained))} for one in data])
            )

        return Later(make)

    @property
    def count(self) -> int:
        """Data that it was asked for in all."""
        return sum(map(len, self.asked))


class Resettable(Client):
    """Can go back to where it began."""

    def forward_initial(self, data: Sequence[Any]) -> Any:
        self.asked.append(list(data))
        return self.later(data, 0.0)


def got(future: "Future[Any]") -> list[Any]:
    assert isinstance(future, Future)
    return future.result(WAIT)


def same(found: Sequence[Any], expected: Sequence[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, np.ndarray)
        assert (one.dtype, one.shape) == (np.float32, other.shape)
        np.testing.assert_array_equal(one, other)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "penalties-promise"]


BATCH = [datum([1, 2, 3]), datum([4]), datum([5, 6])]


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Any:
    before = set(threads())
    yield
    end = time.monotonic() + WAIT
    while set(threads()) - before and time.monotonic() < end:
        time.sleep(0.005)
    assert not set(threads()) - before


PROVIDERS: dict[str, Callable[[], Any]] = {
    "initial": references.initial,
    "client": lambda: references.client(Client()),
    "cached client": lambda: references.client(Client(), cache=True),
    "perturbed": lambda: references.perturbed(token_dropout=0.0),
}


@pytest.mark.parametrize("name", PROVIDERS)
class TestEveryProvider:
    def made(self, name: str) -> tuple[Any, Client]:
        """A provider, and the client that it asks."""
        provider = PROVIDERS[name]()
        return provider, getattr(provider, "teacher", None) or Client()

    def test_gives_one_array_per_datum(self, name: str) -> None:
        provider, client = self.made(name)
        same(got(provider.start(client, BATCH, step=0)), [truth(one) for one in BATCH])
        assert set(client.losses) <= {"cross_entropy"}

    def test_is_a_provider(self, name: str) -> None:
        assert isinstance(self.made(name)[0], references.Provider)

    def test_candidates_keep_their_form(self, name: str) -> None:
        provider, client = self.made(name)
        data = [datum([1, 2], 3), datum([4], 3)]
        same(got(provider.start(client, data, step=0)), [truth(one) for one in data])

    def test_candidates_that_come_flat_get_their_form(self, name: str) -> None:
        provider, client = self.made(name)
        data = [datum([1, 2], 3)]
        client.change = lambda output: SimpleNamespace(
            loss_fn_outputs=[{"logprobs": one["logprobs"].to_numpy().reshape(-1)} for one in output.loss_fn_outputs]
        )
        same(got(provider.start(client, data, step=0)), [truth(one) for one in data])

    def test_data_of_the_sdk(self, name: str) -> None:
        provider, client = self.made(name)
        data = [sdk_datum([1, 2]), sdk_datum([3])]
        same(got(provider.start(client, data, step=0)), [truth(one) for one in data])
        assert all(type(one) is sdk.Datum for request in client.asked for one in request)

    def test_only_targets_and_weights_are_sent(self, name: str) -> None:
        provider, client = self.made(name)
        data = [datum([1, 2], advantages=[1.0, 2.0], logprobs=[0.0, 0.0]), datum([3], weights=[1.0])]
        got(provider.start(client, data, step=0))
        assert [set(one.loss_fn_inputs) for request in client.asked for one in request] == [
            {"target_tokens", "weights"}
        ] * 2

    def test_no_data(self, name: str) -> None:
        provider, client = self.made(name)
        assert got(provider.start(client, [], step=0)) == []
        assert client.count == 0

    def test_does_not_wait(self, name: str) -> None:
        provider, client = self.made(name)
        client.go.clear()
        future = provider.start(client, BATCH, step=0)
        assert not future.done()
        assert all(thread.daemon for thread in threads())
        client.go.set()
        same(got(future), [truth(one) for one in BATCH])

    def test_a_failing_forward_names_the_provider(self, name: str) -> None:
        provider, client = self.made(name)
        client.error = ConnectionError("gone")
        future = provider.start(client, BATCH, step=0)
        who = name.removeprefix("cached ")
        with pytest.raises(pn.InputError, match=f"{who}: its forward raised ConnectionError: gone") as caught:
            got(future)
        assert isinstance(caught.value.__cause__, ConnectionError)

    def test_can_be_tried_again_after_a_failure(self, name: str) -> None:
        provider, client = self.made(name)
        client.error = ConnectionError("gone")
        assert provider.start(client, BATCH, step=0).exception(WAIT) is not None
        client.error = None
        same(got(provider.start(client, BATCH, step=0)), [truth(one) for one in BATCH])

    def test_a_forward_that_refuses_names_the_provider(self, name: str) -> None:
        provider, client = self.made(name)

        def forward(data: Any, loss_fn: Any) -> Any:
            raise ValueError("No data provided")

        client.forward = forward  # type: ignore[method-assign]
        with pytest.raises(
            pn.InputError, match=f"{name.removeprefix('cached ')}: its forward raised ValueError: No data"
        ):
            got(provider.start(client, BATCH, step=0))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda output: 7, "gave int; expected an output with loss_fn_outputs"),
            (lambda output: SimpleNamespace(loss_fn_outputs=output.loss_fn_outputs[1:]), "gave 2 outputs for 3 data"),
            (
                lambda output: _changed(output, {"elementwise_loss": 0}),
                "datum 1: its forward gave elementwise_loss; exp",
            ),
            (lambda output: _changed(output, {}), "datum 1: its forward gave nothing; expected logprobs"),
            (
                lambda output: _changed(output, {"logprobs": [1.0, 2.0]}),
                r"datum 1: .* of shape \(2,\); expected \(1,\)",
            ),
            (
                lambda output: _changed(output, {"logprobs": [math.nan]}),
                "datum 1: .* logprobs that are nan or infinite",
            ),
        ],
    )
    def test_a_wrong_answer_names_the_datum(self, name: str, change: Any, message: str) -> None:
        provider, client = self.made(name)
        client.change = change
        with pytest.raises(pn.InputError, match=f"{name.removeprefix('cached ')}: .*{message}"):
            got(provider.start(client, BATCH, step=0))

    def test_what_is_no_datum_is_in_the_future(self, name: str) -> None:
        provider, client = self.made(name)
        for wrong, message in (
            (7, "datum 1: got int|datum 1: its model_input is NoneType"),
            (
                Datum(ModelInput.from_ints([1]), {}),
                "datum 1: its loss_fn_inputs have no target_tokens",
            ),
        ):
            with pytest.raises(pn.InputError, match=message):
                got(provider.start(client, [BATCH[0], wrong], step=0))

    def test_futures_of_every_kind(self, name: str) -> None:
        async def awaited(output: Any) -> Any:
            await asyncio.sleep(0)
            return output

        kept: Future[Any] = Future()
        kinds: list[Callable[[Any], Any]] = [awaited, lambda output: output, lambda output: kept]
        for kind in kinds:
            provider, client = self.made(name)
            plain = client.forward

            def forward(data: Any, loss_fn: str, kind: Any = kind, plain: Any = plain) -> Any:
                output = plain(data, loss_fn).result()
                if kind is kinds[2]:
                    kept.set_result(output)
                return kind(output)

            client.forward = forward  # type: ignore[method-assign]
            same(got(provider.start(client, BATCH, step=0)), [truth(one) for one in BATCH])

    def test_a_promise_can_be_awaited(self, name: str) -> None:
        provider, client = self.made(name)

        async def main() -> Any:
            return await asyncio.wait_for(asyncio.wrap_future(provider.start(client, BATCH, step=0)), WAIT)

        same(asyncio.run(main()), [truth(one) for one in BATCH])


def _changed(output: Any, second: Any) -> Any:
    outputs = list(output.loss_fn_outputs)
    if isinstance(second, dict) and "logprobs" in second:
        second = {"logprobs": TensorData(np.asarray(second["logprobs"], np.float32))}
    outputs[1] = second
    return SimpleNamespace(loss_fn_outputs=outputs)


class TestInitial:
    def test_is_of_the_model_before_training(self) -> None:
        provider, client = references.initial(), Client()
        first = got(provider.start(client, BATCH, step=0))
        client.trained = 5.0
        same(got(provider.start(client, BATCH[::-1], step=1)), first[::-1])
        assert (client.count, len(provider)) == (3, 3)

    def test_is_known_by_tokens_and_targets_alone(self) -> None:
        provider, client = references.initial(), Client()
        got(provider.start(client, [datum([1, 2], weights=[0.0, 1.0])], step=0))
        got(provider.start(client, [sdk_datum([1, 2], weights=[1.0, 1.0])], step=1))
        assert client.count == 1
        others = [datum([1, 3]), datum([1, 2, 3]), datum([1, 2], 1)]
        assert len({*map(_key, others), _key(datum([1, 2]))}) == 4

    @given(lists=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=2, max_size=6))
    def test_different_data_have_different_keys(self, lists: list[list[int]]) -> None:
        assert len({_key(datum(tokens)) for tokens in lists}) == len({tuple(tokens) for tokens in lists})

    def test_equal_data_are_asked_for_once(self) -> None:
        provider, client = references.initial(), Client()
        data = [BATCH[0], BATCH[1], BATCH[0]]
        same(got(provider.start(client, data, step=0)), [truth(one) for one in data])
        assert client.count == 2

    def test_a_new_datum_after_the_first_step_is_refused(self) -> None:
        provider, client = references.initial(), Client()
        got(provider.start(client, BATCH[:1], step=0))
        with pytest.raises(
            pn.InputError,
            match=r"initial: datum 1: is new after the first call, .* call prepare\(client, data\) with all",
        ):
            got(provider.start(client, BATCH[:2], step=1))
        with pytest.raises(pn.InputError, match="initial: datum 0: is new"):
            provider.prepare(client, BATCH[2:])
        same(got(provider.start(client, BATCH[:1], step=2)), [truth(BATCH[0])])
        assert client.count == 1

    def test_the_first_step_counts_even_where_nothing_is_new(self) -> None:
        provider, client = references.initial(), Client()
        provider.prepare(client, BATCH[:1])
        got(provider.start(client, BATCH[:1], step=0))
        with pytest.raises(pn.InputError, match="datum 0: is new"):
            got(provider.start(client, BATCH[1:], step=1))

    def test_prepare_as_often_as_you_like(self) -> None:
        provider, client = references.initial(), Client()
        provider.prepare(client, BATCH[:1])
        provider.prepare(client, BATCH, timeout=WAIT)
        assert client.count == 3
        got(provider.start(client, BATCH[:1], step=0))
        client.trained = 5.0
        same(got(provider.start(client, BATCH, step=1)), [truth(one) for one in BATCH])

    def test_prepare_raises_what_went_wrong(self) -> None:
        provider, client = references.initial(), Client()
        client.error = ConnectionError("gone")
        with pytest.raises(pn.InputError, match="initial: its forward raised ConnectionError"):
            provider.prepare(client, BATCH)

    def test_prepare_may_end_in_time(self) -> None:
        provider, client = references.initial(), Client()
        client.go.clear()
        with pytest.raises(TimeoutError):
            provider.prepare(client, BATCH, timeout=0.01)
        client.go.set()

    def test_the_first_step_may_also_bring_new_data(self) -> None:
        provider, client = references.initial(), Client()
        provider.prepare(client, BATCH[:1])
        same(got(provider.start(client, BATCH, step=0)), [truth(one) for one in BATCH])
        assert client.count == 3

    def test_is_sent_before_start_gives_back(self) -> None:
        """Whatever trains the model next comes after it, however late somebody waits."""
        provider, client = references.initial(), Client()
        client.go.clear()
        future = provider.start(client, BATCH, step=0)
        client.trained = 5.0
        client.go.set()
        same(got(future), [truth(one) for one in BATCH])

    def test_a_failed_first_step_is_no_first_step(self) -> None:
        provider, client = references.initial(), Client()
        client.error = ConnectionError("gone")
        assert provider.start(client, BATCH[:1], step=0).exception(WAIT) is not None
        client.error = None
        same(got(provider.start(client, BATCH, step=0)), [truth(one) for one in BATCH])

    def test_a_failure_of_some_says_which(self) -> None:
        provider, client = references.initial(), Resettable()
        got(provider.start(client, BATCH[1:2], step=0))
        client.error = ConnectionError("gone")
        with pytest.raises(pn.InputError, match="initial: its forward, asked for data 0, 2, raised ConnectionError"):
            got(provider.start(client, BATCH, step=1))

    def test_a_late_failure_does_not_undo_a_step_that_came_between(self) -> None:
        provider, client = references.initial(), Client()
        provider.prepare(client, BATCH[:1])
        client.go.clear()
        late = provider.start(client, BATCH[:2], step=0)
        same(got(provider.start(client, BATCH[:1], step=0)), [truth(BATCH[0])])
        client.error = ConnectionError("gone")
        client.go.set()
        assert late.exception(WAIT) is not None
        client.error = None
        with pytest.raises(pn.InputError, match="datum 0: is new"):
            got(provider.start(client, BATCH[1:2], step=1))

    def test_is_exact_at_any_time_where_the_client_can_go_back(self) -> None:
        provider, client = references.initial(), Resettable()
        client.trained = 5.0
        same(got(provider.start(client, BATCH[:1], step=7)), [truth(BATCH[0])])
        same(got(provider.start(client, BATCH, step=8)), [truth(one) for one in BATCH])
        assert (client.count, client.losses) == (3, [])

    def test_belongs_to_one_client(self) -> None:
        provider = references.initial()
        client = Client()
        got(provider.start(client, BATCH, step=0))
        with pytest.raises(pn.InputError, match="initial: was used with another client before"):
            got(provider.start(Client(), BATCH, step=0))

    def test_does_not_keep_its_client_alive(self) -> None:
        provider, client = references.initial(), Client()
        got(provider.start(client, BATCH, step=0))
        there = weakref.ref(client)
        client.asked.clear()
        del client
        end = time.monotonic() + WAIT
        while there() is not None and time.monotonic() < end:
            gc.collect()
            time.sleep(0.005)
        assert there() is None
        with pytest.raises(pn.InputError, match="another client"):
            got(provider.start(Client(), BATCH, step=0))

    def test_clients_without_weak_references(self) -> None:
        class Small:
            __slots__ = ("inner",)

            def __init__(self) -> None:
                self.inner = Client()

            def forward(self, data: Any, loss_fn: str) -> Any:
                return self.inner.forward(data, loss_fn)

        provider, client = references.initial(), Small()
        for step in range(2):
            same(got(provider.start(client, BATCH, step=step)), [truth(one) for one in BATCH])

    def test_a_client_without_forward(self) -> None:
        with pytest.raises(pn.InputError, match="initial: the client, object, has no method forward"):
            got(references.initial().start(object(), BATCH, step=0))

    def test_what_it_gives_may_be_written_to(self) -> None:
        provider, client = references.initial(), Client()
        for _ in range(2):
            found = got(provider.start(client, BATCH, step=0))
            same(found, [truth(one) for one in BATCH])
            torch.as_tensor(found[0]).fill_(7.0)

    def test_who_asks_meanwhile_waits_for_the_same_answer(self) -> None:
        provider, client = references.initial(), Resettable()
        client.go.clear()
        one = provider.start(client, BATCH[:2], step=0)
        other = provider.start(client, BATCH[1:], step=0)
        again = provider.start(client, BATCH[:1], step=0)
        client.go.set()
        same(got(other), [truth(datum_) for datum_ in BATCH[1:]])
        same(got(one), [truth(datum_) for datum_ in BATCH[:2]])
        same(got(again), [truth(BATCH[0])])
        assert client.count == 3

    def test_many_threads_at_once(self) -> None:
        provider, client = references.initial(), Resettable()
        data = [datum([token]) for token in range(40)]
        failures: list[BaseException] = []

        def work(seed: int) -> None:
            generator = np.random.default_rng(seed)
            try:
                for _ in range(10):
                    chosen = [data[place] for place in generator.integers(0, 40, 7)]
                    same(got(provider.start(client, chosen, step=0)), [truth(one) for one in chosen])
            except BaseException as error:
                failures.append(error)

        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(WAIT)
        assert not failures
        assert client.count == len(provider)

    def test_images_are_refused(self) -> None:
        class Pictures(ModelInput):
            def to_ints(self) -> list[int]:
                raise ValueError("an image among the chunks")

        one = Datum(Pictures([]), {"target_tokens": [1]})
        for provider, message in (
            (references.initial(), "datum 0: "),
            (references.perturbed(), "perturbed: datum 0: "),
        ):
            with pytest.raises(pn.InputError, match=f"{message}its model_input is not of tokens alone .an image"):
                got(provider.start(Client(), [one], step=0))


def _key(one: Any) -> bytes:
    from penalties.training.references.memory import key_of

    return key_of(0, one)


class TestSaving:
    @given(
        lists=st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=4), max_size=5),
        candidates=st.sampled_from([None, 1, 3]),
    )
    def test_what_was_saved_is_known(
        self, tmp_path_factory: pytest.TempPathFactory, lists: Any, candidates: Any
    ) -> None:
        path = tmp_path_factory.mktemp("saved") / "initial.npz"
        data = [datum(tokens, candidates) for tokens in lists]
        provider, client = references.initial(), Client()
        provider.prepare(client, data)
        provider.save(path)
        loaded = references.initial()
        loaded.load(path)
        other = Client()
        other.trained = 5.0
        same(got(loaded.start(other, data, step=9)), [truth(one) for one in data])
        assert other.count == 0

    def test_a_run_that_goes_on_takes_no_new_data(self, tmp_path: Path) -> None:
        provider, client = references.initial(), Client()
        provider.prepare(client, BATCH[:1])
        provider.save(tmp_path / "initial.npz")
        loaded = references.initial()
        loaded.load(tmp_path / "initial.npz")
        with pytest.raises(pn.InputError, match="datum 1: is new"):
            got(loaded.start(client, BATCH, step=9))
        with pytest.raises(pn.InputError, match="datum 0: is new"):
            loaded.prepare(client, BATCH[1:])
        resettable = references.initial()
        resettable.load(tmp_path / "initial.npz")
        same(got(resettable.start(Resettable(), BATCH, step=9)), [truth(one) for one in BATCH])

    def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "initial.npz"
        provider = references.initial()
        provider.prepare(Client(), BATCH)
        provider.save(path)
        before = path.read_bytes()

        def full(*_: Any, **__: Any) -> None:
            raise OSError("no space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            provider.save(path)
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["initial.npz"]

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"something else"])
    def test_other_files_are_refused(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "initial.npz"
        path.write_bytes(content)
        with pytest.raises(pn.InputError, match="initial: .*initial.npz is no file that save wrote"):
            references.initial().load(path)

    def test_a_file_with_too_little_in_it(self, tmp_path: Path) -> None:
        path = tmp_path / "initial.npz"
        keys, shapes = np.zeros((1, 16), np.uint8), np.array([[3, 0]])
        np.savez(path, version=1, keys=keys, shapes=shapes, values=np.zeros(2, np.float32))
        provider = references.initial()
        with pytest.raises(pn.InputError, match="is no file that save wrote .ValueError"):
            provider.load(path)
        assert len(provider) == 0

    def test_everybody_may_read_it_who_may_read_the_folder(self, tmp_path: Path) -> None:
        references.initial().save(tmp_path / "initial.npz")
        (tmp_path / "plain").touch()
        assert (tmp_path / "initial.npz").stat().st_mode == (tmp_path / "plain").stat().st_mode

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(pn.InputError, match="is no file that save wrote .FileNotFoundError"):
            references.initial().load(tmp_path / "nothing.npz")

    def test_another_version(self, tmp_path: Path) -> None:
        path = tmp_path / "initial.npz"
        np.savez(path, version=9, keys=np.zeros((0, 16), np.uint8), shapes=np.zeros((0, 2)), values=np.zeros(0))
        with pytest.raises(pn.InputError, match="has version 9; this library reads 1"):
            references.initial().load(path)

    def test_pickles_are_not_read(self, tmp_path: Path) -> None:
        path = tmp_path / "initial.npz"
        np.savez(path, version=np.array([object()], dtype=object), allow_pickle=True)
        with pytest.raises(pn.InputError, match="is no file that save wrote"):
            references.initial().load(path)


class TestTeacher:
    def test_is_asked_at_each_step(self) -> None:
        teacher, student = Client(), Client()
        provider = references.client(teacher)
        for step in range(2):
            got(provider.start(student, BATCH, step=step))
        assert (teacher.count, student.count) == (6, 0)

    def test_is_asked_once_for_each_datum_where_it_is_cached(self) -> None:
        teacher, student = Client(), Client()
        provider = references.client(teacher, cache=True)
        got(provider.start(student, BATCH[:1], step=0))
        same(got(provider.start(student, BATCH, step=1)), [truth(one) for one in BATCH])
        assert (teacher.count, student.count) == (3, 0)

    def test_what_it_remembers_is_known_to_the_next(self, tmp_path: Path) -> None:
        provider = references.client(Client(), cache=True)
        got(provider.start(None, BATCH, step=0))
        assert len(provider) == 3
        provider.save(tmp_path / "teacher.npz")
        teacher = Client()
        loaded = references.client(teacher, cache=True)
        loaded.load(tmp_path / "teacher.npz")
        same(got(loaded.start(None, BATCH, step=1)), [truth(one) for one in BATCH])
        assert (len(loaded), teacher.count) == (3, 0)

    def test_one_that_remembers_nothing_loads_nothing(self, tmp_path: Path) -> None:
        provider = references.client(Client())
        got(provider.start(None, BATCH, step=0))
        assert len(provider) == 0
        provider.save(tmp_path / "teacher.npz")
        with pytest.raises(pn.OptionError, match="client: cache=False; expected True: one that remembers nothing"):
            provider.load(tmp_path / "teacher.npz")

    def test_a_teacher_that_takes_its_time_to_take_the_data(self) -> None:
        teacher, go = Client(), threading.Event()
        plain = teacher.forward

        def forward(data: Any, loss_fn: str) -> Any:
            assert go.wait(WAIT)
            return plain(data, loss_fn)

        teacher.forward = forward  # type: ignore[method-assign]
        futures = [references.client(teacher, cache=cache).start(None, BATCH, step=0) for cache in (False, True)]
        assert not any(future.done() for future in futures)
        go.set()
        for future in futures:
            same(got(future), [truth(one) for one in BATCH])

    def test_a_client_is_needed(self) -> None:
        with pytest.raises(pn.OptionError, match="client: teacher=.*; expected a client, with a method forward"):
            references.client(object())
        with pytest.raises(pn.OptionError, match="client: cache="):
            references.client(Client(), cache="yes")  # type: ignore[arg-type]

    def test_shows_what_it_is(self) -> None:
        assert repr(references.initial()) == "initial()"
        assert repr(references.perturbed(0.2)) == "perturbed(token_dropout=0.2, seed=0, replacement=0)"
        assert repr(references.client(Client())) == "client(Client)"
        assert repr(references.client(Client(), cache=True)) == "client(Client, cache=True)"


class TestPerturbed:
    def tokens(self, data: Any, *, step: Any = 0, **options: Any) -> list[list[int]]:
        client = Client()
        got(references.perturbed(**options).start(client, data, step=step))
        return [one.model_input.to_ints() for one in client.asked[0]]

    @given(
        lists=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=8), min_size=1, max_size=4),
        step=st.one_of(st.none(), st.integers(0, 5)),
        chance=st.floats(0, 1),
    )
    def test_some_tokens_but_the_first_are_replaced(self, lists: Any, step: Any, chance: float) -> None:
        found = self.tokens([datum(tokens) for tokens in lists], step=step, token_dropout=chance, replacement=0)
        for before, after in zip(lists, found, strict=True):
            assert (len(after), after[0]) == (len(before), before[0])
            assert all(new in (0, old) for old, new in zip(before, after, strict=True))

    def test_all_and_none(self) -> None:
        assert self.tokens([datum([1, 2, 3])], token_dropout=1.0, replacement=9) == [[1, 9, 9]]
        assert self.tokens([datum([1, 2, 3])], token_dropout=0.0) == [[1, 2, 3]]

    def test_as_often_as_was_asked(self) -> None:
        (found,) = self.tokens([datum([1] * 20001)], token_dropout=0.2)
        assert found.count(0) / 20000 == pytest.approx(0.2, abs=0.01)

    def test_draws_follow_seed_step_and_datum(self) -> None:
        data = [datum([1] * 50), datum([1] * 50)]
        first = self.tokens(data, token_dropout=0.5)
        assert first == self.tokens(data, token_dropout=0.5)
        assert first[0] != first[1]
        assert first != self.tokens(data, token_dropout=0.5, step=1)
        assert first != self.tokens(data, token_dropout=0.5, seed=1)
        without = self.tokens(data, token_dropout=0.5, step=None)
        assert without == self.tokens(data, token_dropout=0.5, step=None) != first
        # Of a datum, whatever stands beside it.
        assert self.tokens([data[0], datum([1])], token_dropout=0.5)[0] == first[0]

    def test_targets_stay_and_the_data_too(self) -> None:
        client = Client()
        one = datum([1, 2, 3])
        found = got(references.perturbed(token_dropout=1.0, replacement=9).start(client, [one], step=0))
        assert one.model_input.to_ints() == [1, 2, 3]
        changed = dataclasses.replace(one, model_input=ModelInput.from_ints([1, 9, 9]))
        same(found, [truth(changed)])

    def test_data_of_any_type(self) -> None:
        class Copied:
            """As an older SDK's."""

            def __init__(self, **fields: Any) -> None:
                vars(self).update(fields)

            def model_copy(self, update: dict[str, Any]) -> Any:
                return type(self)(**{**vars(self), **update})

        class Plain:
            def __init__(self, model_input: Any, loss_fn_inputs: Any) -> None:
                self.model_input, self.loss_fn_inputs = model_input, loss_fn_inputs

        for kind in (Copied, Plain):
            one = kind(model_input=ModelInput.from_ints([1, 2]), loss_fn_inputs=datum([1, 2]).loss_fn_inputs)
            client = Client()
            got(references.perturbed(token_dropout=1.0, replacement=9).start(client, [one], step=0))
            assert type(client.asked[0][0]) is kind
            assert client.asked[0][0].model_input.to_ints() == [1, 9]
        assert self.tokens([sdk_datum([1, 2])], token_dropout=1.0, replacement=9) == [[1, 9]]

    def test_a_client_without_forward(self) -> None:
        with pytest.raises(pn.InputError, match="perturbed: the client, object, has no method forward"):
            got(references.perturbed().start(object(), BATCH, step=0))

    @pytest.mark.parametrize(
        "options",
        [{"token_dropout": 1.5}, {"token_dropout": math.nan}, {"seed": -1}, {"seed": 0.5}, {"replacement": -1}],
    )
    def test_options(self, options: Any) -> None:
        with pytest.raises(pn.OptionError, match=f"perturbed: {next(iter(options))}="):
            references.perturbed(**options)

    def test_is_started_at_the_same_time_as_the_forward(self) -> None:
        client = Client()
        client.go.clear()
        own = client.forward(BATCH, "cross_entropy")
        future = references.perturbed().start(client, BATCH, step=0)
        assert len(client.asked) == 2
        client.go.set()
        own.result(WAIT)
        got(future)


class TestChecked:
    DATA = (datum([1, 2, 3]), datum([4]))

    @pytest.mark.parametrize(
        "make",
        [np.asarray, torch.tensor, list, TensorData, lambda x: sdk.TensorData.from_numpy(np.asarray(x, np.float32))],
    )
    def test_arrays_of_any_kind(self, make: Any) -> None:
        given = [make([-1.0, -2.0, -3.0]), make([-4.0])]
        same(references.checked("teacher", given, self.DATA), [np.array([-1.0, -2.0, -3.0]), np.array([-4.0])])

    def test_candidates(self) -> None:
        data, given = [datum([1, 2], 3)], [np.zeros((2, 3))]
        same(references.checked("teacher", given, data), [np.zeros((2, 3))])
        same(references.checked("teacher", np.zeros((1, 2, 3)), data), [np.zeros((2, 3))])

    @pytest.mark.parametrize("given", [[1, 0.5], np.array([1.0, 0.5]), torch.tensor([1.0, 0.5]), (True, 0.5)])
    def test_a_number_for_each_datum(self, given: Any) -> None:
        same(references.checked("reward", given, self.DATA), [np.array(1.0), np.array(0.5)])

    def test_arrays_are_copies(self) -> None:
        given = [np.zeros(3, np.float32), np.zeros(1, np.float32)]
        found = references.checked("teacher", given, self.DATA)
        found[0][:] = 1
        assert given[0].sum() == 0

    def test_memory_that_cannot_be_written_to(self) -> None:
        given = [np.zeros(3, np.float32), np.zeros(1, np.float32)]
        for array in given:
            array.setflags(write=False)
        assert all(array.flags.writeable for array in references.checked("teacher", given, self.DATA))

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (None, "got NoneType; expected a list with one array for each datum, or a provider"),
            ("initial", "got str; expected a list"),
            ({"data": []}, "got dict; expected a list"),
            (3.0, "got float; expected a list"),
            ([], "datum 0: there are 0 entries for 2 data; expected one for each"),
            ([np.zeros(3)], "datum 1: there are 1 entries for 2 data"),
            ([np.zeros(3)] * 3, "datum 2: there are 3 entries for 2 data"),
            ([np.zeros(3), None], r"datum 1: got None; expected an array of shape \(1,\)"),
            ([np.zeros(3), np.zeros(2)], r"datum 1: has shape \(2,\); expected \(1,\), as its target_tokens have"),
            ([np.zeros((3, 1)), np.zeros(1)], r"datum 0: has shape \(3, 1\); expected \(3,\)"),
            ([0.5, np.zeros(1)], r"datum 1: has shape \(1,\) and datum 0 \(\); expected one number for every datum"),
            ([np.zeros(3), 0.5], r"datum 1: has shape \(\) and datum 0 \(3,\)"),
            ([np.zeros(3), [math.nan]], "datum 1: holds nan; expected finite numbers"),
            ([[0.0, -math.inf, 0.0], [0.0]], "datum 0: holds inf; expected finite numbers"),
            ([np.zeros(3), [1e300]], "datum 1: holds inf; expected finite numbers"),
            ([np.zeros(3), ["high"]], "datum 1: is no array of numbers"),
            ([np.zeros(3), object()], "datum 1: is no array of numbers"),
            ([np.zeros(3), {"shape": [1]}], "datum 1: is no array of numbers"),
            ([[1.0, [2.0], 3.0], [1.0]], "datum 0: is no array of numbers"),
        ],
    )
    def test_refusals_name_the_reference_and_the_datum(self, given: Any, message: str) -> None:
        with pytest.raises(pn.InputError, match=f'reference "teacher": {message}'):
            references.checked("teacher", given, self.DATA)

    def test_data_are_checked_too(self) -> None:
        with pytest.raises(pn.InputError, match="datum 0: got int"):
            references.checked("teacher", [np.zeros(1)], [7])


class TestPromises:
    def test_who_cancels_first_is_obeyed(self) -> None:
        from penalties.training import futures

        began: list[int] = []
        kept: list[Any] = []

        class Held(threading.Thread):
            def start(self) -> None:
                kept.append(self)

        original = threading.Thread
        threading.Thread = Held  # type: ignore[misc]
        try:
            future = futures.in_thread(lambda: began.append(1))
        finally:
            threading.Thread = original  # type: ignore[misc]
        assert future.cancel()
        kept[0].run()
        assert not began

    def test_a_memory_without_lost(self) -> None:
        def fail() -> Any:
            raise ValueError("no")

        assert isinstance(Memory().ask([b"a"], lambda places: fail).exception(WAIT), ValueError)
