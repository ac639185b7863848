"""The model before training: requested once, kept, saved and loaded."""

import gc
import os
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import penalties as pn
from penalties.training import Datum, ModelInput, references
from tests.training.references.cases import BATCH, WAIT, Client, Resettable, _key, datum, got, same, sdk_datum, truth


class TestInitial:
    def test_is_of_the_model_before_training(self) -> None:
        provider, client = references.initial(), Client()
        first = got(provider.start(client, BATCH, step=0))
        client.trained = 5.0
        same(got(provider.start(client, BATCH[::-1], step=1)), first[::-1])
        assert (client.count, len(provider)) == (3, 3)

    def test_is_keyed_by_tokens_and_targets(self) -> None:
        provider, client = references.initial(), Client()
        got(provider.start(client, [datum([1, 2], weights=[0.0, 1.0])], step=0))
        got(provider.start(client, [sdk_datum([1, 2], weights=[1.0, 1.0])], step=1))
        assert client.count == 1
        others = [datum([1, 3]), datum([1, 2, 3]), datum([1, 2], 1)]
        assert len({*map(_key, others), _key(datum([1, 2]))}) == 4

    @given(lists=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=2, max_size=6))
    def test_different_data_have_different_keys(self, lists: list[list[int]]) -> None:
        assert len({_key(datum(tokens)) for tokens in lists}) == len({tuple(tokens) for tokens in lists})

    def test_equal_data_are_requested_once(self) -> None:
        provider, client = references.initial(), Client()
        data = [BATCH[0], BATCH[1], BATCH[0]]
        same(got(provider.start(client, data, step=0)), [truth(one) for one in data])
        assert client.count == 2

    def test_a_new_datum_after_the_first_step_raises(self) -> None:
        provider, client = references.initial(), Client()
        got(provider.start(client, BATCH[:1], step=0))
        with pytest.raises(
            pn.InputError,
            match=r"initial: datum 1: is new, .* call prepare\(client, data\) with all",
        ):
            got(provider.start(client, BATCH[:2], step=1))
        with pytest.raises(pn.InputError, match="initial: datum 0: is new"):
            provider.prepare(client, BATCH[2:])
        same(got(provider.start(client, BATCH[:1], step=2)), [truth(BATCH[0])])
        assert client.count == 1

    def test_a_first_step_without_new_data_counts(self) -> None:
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

    def test_is_sent_before_start_returns(self) -> None:
        """Whatever trains the model next comes after it, however late somebody waits."""
        provider, client = references.initial(), Client()
        client.go.clear()
        future = provider.start(client, BATCH, step=0)
        client.trained = 5.0
        client.go.set()
        same(got(future), [truth(one) for one in BATCH])

    def test_a_failed_first_step_does_not_count(self) -> None:
        provider, client = references.initial(), Client()
        client.error = ConnectionError("gone")
        assert provider.start(client, BATCH[:1], step=0).exception(WAIT) is not None
        client.error = None
        same(got(provider.start(client, BATCH, step=0)), [truth(one) for one in BATCH])

    def test_a_partial_failure_names_the_data(self) -> None:
        provider, client = references.initial(), Resettable()
        got(provider.start(client, BATCH[1:2], step=0))
        client.error = ConnectionError("gone")
        with pytest.raises(pn.InputError, match="initial: its forward, requested for data 0, 2, raised"):
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

    def test_is_exact_at_any_time_with_forward_initial(self) -> None:
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

    def test_results_can_be_written_to(self) -> None:
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

    def test_images_raise(self) -> None:
        class Pictures(ModelInput):
            def to_ints(self) -> list[int]:
                raise ValueError("an image among the chunks")

        one = Datum(Pictures([]), {"target_tokens": [1]})
        for provider in (references.initial(), references.perturbed()):
            with pytest.raises(pn.InputError, match=r"datum 0: its model_input is not tokens alone \(an image"):
                got(provider.start(Client(), [one], step=0))


class TestSaving:
    @given(
        lists=st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=4), max_size=5),
        candidates=st.sampled_from([None, 1, 3]),
    )
    def test_a_loaded_cache_is_used(
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

    def test_a_resumed_run_raises_for_new_data(self, tmp_path: Path) -> None:
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
    def test_other_files_raise(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "initial.npz"
        path.write_bytes(content)
        with pytest.raises(pn.InputError, match="initial: .*initial.npz was not written by save"):
            references.initial().load(path)

    def test_a_file_with_too_little_in_it(self, tmp_path: Path) -> None:
        path = tmp_path / "initial.npz"
        keys, shapes = np.zeros((1, 16), np.uint8), np.array([[3, 0]])
        np.savez(path, version=1, keys=keys, shapes=shapes, values=np.zeros(2, np.float32))
        provider = references.initial()
        with pytest.raises(pn.InputError, match="was not written by save .ValueError"):
            provider.load(path)
        assert len(provider) == 0

    def test_everybody_may_read_it_who_may_read_the_folder(self, tmp_path: Path) -> None:
        references.initial().save(tmp_path / "initial.npz")
        (tmp_path / "plain").touch()
        assert (tmp_path / "initial.npz").stat().st_mode == (tmp_path / "plain").stat().st_mode

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(pn.InputError, match="was not written by save .FileNotFoundError"):
            references.initial().load(tmp_path / "nothing.npz")

    def test_another_version(self, tmp_path: Path) -> None:
        path = tmp_path / "initial.npz"
        np.savez(path, version=9, keys=np.zeros((0, 16), np.uint8), shapes=np.zeros((0, 2)), values=np.zeros(0))
        with pytest.raises(pn.InputError, match="has version 9"):
            references.initial().load(path)

    def test_pickles_are_not_read(self, tmp_path: Path) -> None:
        path = tmp_path / "initial.npz"
        np.savez(path, version=np.array([object()], dtype=object), allow_pickle=True)
        with pytest.raises(pn.InputError, match="was not written by save"):
            references.initial().load(path)
