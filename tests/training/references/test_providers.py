"""Providers: what they request, and when."""

import asyncio
import dataclasses
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinker import types as sdk

import penalties as pn
from penalties.training import Datum, ModelInput, references
from tests.training.references.cases import (
    BATCH,
    WAIT,
    Client,
    _changed,
    datum,
    got,
    same,
    sdk_datum,
    threads,
    truth,
)

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

    def test_a_forward_that_raises_names_the_provider(self, name: str) -> None:
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
            (lambda output: 7, "returned int; expected an output"),
            (
                lambda output: SimpleNamespace(loss_fn_outputs=output.loss_fn_outputs[1:]),
                "returned 2 outputs",
            ),
            (
                lambda output: _changed(output, {"elementwise_loss": 0}),
                "datum 1: its forward returned elementwise_loss; exp",
            ),
            (lambda output: _changed(output, {}), "datum 1: its forward returned nothing; expected logprobs"),
            (
                lambda output: _changed(output, {"logprobs": [1.0, 2.0]}),
                r"datum 1: .* of shape \(2,\); expected \(1,\)",
            ),
            (
                lambda output: _changed(output, {"logprobs": [math.nan]}),
                "datum 1: .*nan or inf in logprobs",
            ),
        ],
    )
    def test_a_wrong_answer_names_the_datum(self, name: str, change: Any, message: str) -> None:
        provider, client = self.made(name)
        client.change = change
        with pytest.raises(pn.InputError, match=f"{name.removeprefix('cached ')}: .*{message}"):
            got(provider.start(client, BATCH, step=0))

    def test_errors_about_data_are_raised_by_the_future(self, name: str) -> None:
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


class TestTeacher:
    def test_is_requested_at_each_step(self) -> None:
        teacher, student = Client(), Client()
        provider = references.client(teacher)
        for step in range(2):
            got(provider.start(student, BATCH, step=step))
        assert (teacher.count, student.count) == (6, 0)

    def test_is_requested_once_per_datum_if_cached(self) -> None:
        teacher, student = Client(), Client()
        provider = references.client(teacher, cache=True)
        got(provider.start(student, BATCH[:1], step=0))
        same(got(provider.start(student, BATCH, step=1)), [truth(one) for one in BATCH])
        assert (teacher.count, student.count) == (3, 0)

    def test_a_saved_cache_serves_the_next_instance(self, tmp_path: Path) -> None:
        provider = references.client(Client(), cache=True)
        got(provider.start(None, BATCH, step=0))
        assert len(provider) == 3
        provider.save(tmp_path / "teacher.npz")
        teacher = Client()
        loaded = references.client(teacher, cache=True)
        loaded.load(tmp_path / "teacher.npz")
        same(got(loaded.start(None, BATCH, step=1)), [truth(one) for one in BATCH])
        assert (len(loaded), teacher.count) == (3, 0)

    def test_a_checksum_is_that_of_the_first_data_however_many_follow(self, tmp_path: Path) -> None:
        provider, other = (references.client(Client(), cache=True) for _ in range(2))
        got(provider.start(None, BATCH[:2], step=0))
        first = provider.checksum(2)
        got(provider.start(None, BATCH, step=1))
        provider.save(tmp_path / "teacher.npz")
        other.load(tmp_path / "teacher.npz")
        assert provider.checksum(2) == other.checksum(2) == first
        assert len({first, other.checksum(1), other.checksum(3)}) == 3

    def test_one_that_remembers_nothing_loads_nothing(self, tmp_path: Path) -> None:
        provider = references.client(Client())
        got(provider.start(None, BATCH, step=0))
        assert len(provider) == 0
        provider.save(tmp_path / "teacher.npz")
        with pytest.raises(pn.OptionError, match="client: cache=False; expected True"):
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

    def test_tokens_are_dropped_at_the_given_rate(self) -> None:
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
