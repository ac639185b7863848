"""Several sequences in a row: the results and gradients of one a row, and less padding."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties.errors import OptionError
from penalties.training import forward_backward_custom, references
from penalties.training.local import LocalTrainingClient
from penalties.training.local.batch import Batch, Row, batches
from penalties.training.local.layout import laid_out
from penalties.training.local.packing import packing_of
from tests.training.local.cases import WAIT, assert_close, data, gradients, logprobs, normal, stir, tiny
from tests.training.local.one_pass import LENGTHS, OVER_LOGITS, OVER_LOGPROBS, flags, numbers, reference
from tests.training.local.test_model import ARCHITECTURES, HEADS, saved


def rows(lengths: Sequence[int]) -> list[Row]:
    return [Row(np.full(length, index + 1), np.arange(length), {}) for index, length in enumerate(lengths)]


@pytest.mark.parametrize("packing", ["rows", "row"])
@pytest.mark.parametrize("seed", range(5))
def test_every_token_has_a_place_of_its_own_and_counts_from_the_start_of_its_sequence(packing: Any, seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 12, 9).tolist()
    batch = Batch(rows(lengths), packing)
    assert len(np.unique(batch.positions)) == sum(lengths)
    flat = batch.tokens.reshape(-1)[batch.positions]
    assert flat.tolist() == [index + 1 for index, length in enumerate(lengths) for _ in range(length)]
    assert batch.position_ids is not None
    counted = batch.position_ids.reshape(-1)[batch.positions]
    assert counted.tolist() == [place for length in lengths for place in range(length)]
    # No sequence goes on where another ends, padding included: that is what tells them apart.
    for line, tokens in zip(batch.position_ids, batch.tokens, strict=True):
        changes = np.flatnonzero(np.diff(tokens)) + 1
        assert not line[changes].any()
    assert batch.tokens.size == laid_out(lengths, packing).size
    assert batch.tokens.shape[1] == (max(lengths) if packing == "rows" else sum(lengths))


def test_rows_are_filled() -> None:
    assert laid_out([10, 5, 5, 7, 3], "rows") == (3, 10, [(0, 0), (2, 0), (2, 5), (1, 0), (1, 7)])
    assert not laid_out([4, 4, 4], "rows").packed
    assert Batch(rows([4, 4, 4]), "rows").position_ids is None


@pytest.mark.parametrize(
    ("lengths", "tokens", "expected"),
    [
        ((10, 5, 5, 7, 3), 30, [[10, 5, 5, 7, 3]]),
        ((10, 5, 5, 7, 3), 20, [[10, 5, 5], [7, 3]]),
        ((2, 2, 2, 9), 9, [[2, 2, 2], [9]]),
        ((12, 1), 9, [[12], [1]]),
    ],
)
def test_parts_count_what_is_packed(lengths: tuple[int, ...], tokens: int, expected: list[list[int]]) -> None:
    assert [batch.lengths for batch in batches(rows(lengths), None, tokens, "rows")] == expected


def passed(batch: Sequence[Any], loss: Any, terms: Sequence[Any], client: Any, **options: Any) -> Any:
    with client:
        found = forward_backward_custom(client, batch, loss, regularizers=list(terms), **options).result(WAIT)
        return numbers(found), gradients(client), logprobs(found)


@pytest.mark.parametrize("limits", [{}, {"micro_batch_tokens": 14}])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_losses_and_terms_are_those_of_one_sequence_a_row(implementation: str, limits: dict[str, int]) -> None:
    batch = data(*LENGTHS, weights=flags)
    spread = pn.Term(lambda flat_logprobs: flat_logprobs.std(), name="spread")
    for terms in ([*OVER_LOGPROBS, *OVER_LOGITS], [spread]):

        def run(terms: Sequence[Any], **options: Any) -> Any:
            client = tiny(**options)
            client.model.get_base_model().set_attn_implementation(implementation)
            given = {"teacher": reference(batch), "first": references.initial()}
            return passed(batch, "cross_entropy", terms, client, references=given)

        packed, plain = run(terms, packing=True, **limits), run(terms)
        assert packed[0] == pytest.approx(plain[0], rel=1e-4, abs=1e-5)
        assert_close(packed[1], plain[1], 1e-5)
        assert_close(packed[2], plain[2], 1e-5)


def test_losses_by_name_and_references_are_packed_too() -> None:
    batch = [*data(*LENGTHS, weights=normal), *data(4, 3, width=2, seed=3, weights=normal)]
    found: list[Any] = []
    for packing in (False, True):
        with tiny(packing=packing) as client:
            output = client.forward_backward(batch, "cross_entropy").result(WAIT)
            initial = client.forward_initial(batch).result(WAIT)
            found.append((logprobs(output), logprobs(initial), gradients(client), output.metrics["loss:sum"]))
    assert_close(found[1][:2], found[0][:2], 1e-5)
    assert_close(found[1][2], found[0][2], 1e-5)
    assert found[1][3] == pytest.approx(found[0][3], rel=1e-5)


def test_less_goes_through_the_model() -> None:
    seen: list[tuple[int, ...]] = []
    with tiny(packing=True) as client:
        batch = data(10, 5, 5, 7, 3)
        client.forward(batch).result(WAIT)
        embedding = client.model.get_base_model().get_input_embeddings()
        embedding.register_forward_pre_hook(lambda module, args: seen.append(tuple(args[0].shape)))
        client.forward(batch).result(WAIT)
    assert seen == [(3, 10)]


@pytest.mark.parametrize("kind", [name for name in ARCHITECTURES if name != "bloom"])
def test_models_of_a_folder(tmp_path: Path, kind: str) -> None:
    folder = saved(tmp_path, kind, **ARCHITECTURES[kind])
    batch = data(9, 3, 6, 2, weights=normal)
    found: list[Any] = []
    for packing in (False, True):
        with LocalTrainingClient(folder, rank=2, device="cpu", packing=packing) as client:
            stir(client)
            output = client.forward_backward(batch, "cross_entropy").result(WAIT)
            found.append((logprobs(output), gradients(client)))
    assert_close(found[1][0], found[0][0], 1e-5)
    assert_close(found[1][1], found[0][1], 1e-5)


MIXING: dict[str, tuple[str, dict[str, Any]]] = {
    # Its positions are distances, of its own making.
    "bloom": ("all-linear", {}),
    # Its state goes on from one sequence to the next.
    "mamba": ("x_proj", {"state_size": 4, "num_hidden_layers": 1, "expand": 1}),
}


@pytest.mark.parametrize("kind", MIXING)
def test_a_model_that_would_mix_sequences_raises(tmp_path: Path, kind: str) -> None:
    layers, options = MIXING[kind]
    folder = saved(tmp_path, kind, **options)
    with pytest.raises(OptionError, match="packing=True; expected False: in this model a sequence would see those"):
        LocalTrainingClient(
            folder, rank=2, device="cpu", packing=True, target_modules=layers if layers == "all-linear" else [layers]
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_that_ignores_positions_raises(tmp_path: Path, dtype: str) -> None:
    """Its attention would cross, in half precision as well."""
    with LocalTrainingClient(saved(tmp_path, "llama", **HEADS), device="cpu", dtype=dtype) as client:
        found: Any = client._model  # pyright: ignore[reportPrivateUsage]
        assert packing_of(found) == "rows"
        base = client.model.get_base_model()
        forward = base.forward
        base.forward = lambda position_ids=None, **given: forward(**given)
        with pytest.raises(OptionError, match="packing=True"):
            packing_of(found)


def test_a_model_that_packs_in_a_single_row_only_is_used_so(tmp_path: Path) -> None:
    with tiny() as client:
        found: Any = client._model  # pyright: ignore[reportPrivateUsage]
        base = client.model.get_base_model()
        forward = base.forward

        def flash(input_ids: Any, position_ids: Any = None, **given: Any) -> Any:
            """As FlashAttention: positions in several rows are not looked at."""
            return forward(input_ids, position_ids=position_ids if len(input_ids) == 1 else None, **given)

        base.forward = flash
        assert packing_of(found) == "row"


def test_the_trial_draws_nothing_and_leaves_the_model_as_it_was() -> None:
    state = torch.get_rng_state()
    with tiny() as client:
        before = torch.get_rng_state()
    torch.set_rng_state(state)
    with tiny(packing=True) as client:
        assert not any(module.training for module in client.model.modules())
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("packing", ["rows", 1, None])
def test_it_is_a_flag(packing: Any) -> None:
    with pytest.raises(OptionError, match="packing"):
        LocalTrainingClient("tiny", packing=packing)
