"""Held-out texts with the loss of each token: which ones, what is logged of them, and that they change nothing."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penalties.app.runs import Run
from penalties.app.train import Interrupted, train
from penalties.app.train.examples import Examples, pieces
from penalties.training import Datum, ModelInput
from penalties.training.batch import Batch
from penalties.training.local.tiny import ByteTokenizer

from ..data.tokenizers import tokenizer
from ..stand_ins import comparable, killing, records, toy_config, weights_of

toy = pytest.mark.usefixtures("backends")


def seen(*losses: list[float], count: int = 2, text: str | None = None) -> list[dict[str, Any]]:
    """The examples of texts whose tokens have these losses; NaN stands for one in the prompt."""
    found = Examples(count)
    for each in losses:
        tokens = list((text or "abcdefghijklmnopqrstuvwxyz" * 30).encode())[: len(each) + 1]
        weights = [0.0 if math.isnan(loss) else 1.0 for loss in each]
        datum = Datum(ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:], "weights": weights})
        found.add(Batch.of([datum]), [-np.array(each, np.float32)])
    return found.described(ByteTokenizer())


def which(found: list[dict[str, Any]], kind: str) -> list[int]:
    return [one["index"] for one in found if kind in one["kinds"]]


class TestWhich:
    def test_the_worst_the_best_and_the_first(self) -> None:
        found = seen([3.0], [5.0], [1.0], [9.0], [0.5], [4.0])
        assert [which(found, kind) for kind in ("worst", "best", "first")] == [[3, 1], [4, 2], [1, 0]]
        assert len(found) == 5

    @pytest.mark.parametrize("count", range(1, 5))
    def test_no_text_is_both_the_worst_and_the_best(self, count: int) -> None:
        found = seen(*[[1.0]] * count, count=2)
        assert sorted(which(found, "worst") + which(found, "best")) == list(range(count))
        assert len(found) == count

    def test_a_text_counts_by_the_mean_over_what_is_learned(self) -> None:
        (worst, best) = seen([math.nan, 2.0], [1.0, 1.0], count=1)
        assert (worst["index"], worst["loss"], best["loss"]) == (0, 2.0, 1.0)
        assert worst["tokens"] == [["a", None], ["b", None], ["c", 2.0]]
        assert (worst["before"], worst["after"]) == (0, 0)

    def test_a_text_without_anything_learned_is_none(self) -> None:
        assert [one["index"] for one in seen([math.nan], [1.0])] == [1]

    def test_what_is_not_finite_is_the_worst(self) -> None:
        found = Examples(1)
        data = [Datum(ModelInput.from_ints([1]), {"target_tokens": [97]})] * 3
        found.add(Batch.of(data), [np.array([-9.0]), np.array([math.nan]), np.array([-8.0])])
        assert which(found.described(ByteTokenizer()), "worst") == [1]


def test_long_texts_are_cut_around_what_is_learned() -> None:
    late = seen([math.nan] * 400 + [1.0] * 300, count=1)[0]
    assert (late["before"], len(late["tokens"]), late["after"]) == (351, 200, 150)
    assert [loss for _, loss in late["tokens"]].index(1.0) == 50
    short = seen([math.nan] * 400 + [1.0] * 10, count=1)[0]
    assert (short["before"], len(short["tokens"]), short["after"]) == (211, 200, 0)


def test_a_text_with_a_secret_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    assert seen([1.0] * 22, text="the token hf_0123456789") == []
    # Also where it is outside the part that would be shown.
    assert seen([1.0] * 300, text="a" * 250 + "hf_0123456789" + "b" * 38) == []


class TestPieces:
    def test_of_parts_of_a_character_are_what_the_tokenizer_says(self) -> None:
        class Named(ByteTokenizer):
            def convert_ids_to_tokens(self, token: int) -> str:
                return f"<{token:02X}>"

        assert pieces(Named(), list("né!".encode())) == ["n", "<C3>", "<A9>", "!"]
        assert pieces(ByteTokenizer(), list("né!".encode())) == ["n", "�", "�", "!"]

    def test_of_a_real_tokenizer_are_its_text(self) -> None:
        made = tokenizer()
        tokens = made.encode("two words, né", add_special_tokens=False)
        found = pieces(made, tokens)
        assert len(found) == len(tokens)
        assert "".join(found).startswith("two words, n")


@toy
class TestInARun:
    def test_each_evaluation_has_them(self, finished: Run) -> None:
        found = records(finished, "eval")
        assert [record["step"] for record in found] == [0, 3, 6]
        for record in found:
            examples = record["examples"]
            assert sorted(which(examples, "first")) == [0, 1]
            assert sorted(which(examples, "worst") + which(examples, "best")) == [0, 1, 2, 3]
            # Every text is there, and those of a batch have as many learned tokens.
            assert np.mean([one["loss"] for one in examples]) == pytest.approx(record["loss"]["base_loss"]["value"])
            for one in examples:
                losses = [loss for _, loss in one["tokens"] if loss is not None]
                assert np.mean(losses) == pytest.approx(one["loss"], abs=1e-4)
        (glass,) = [one for one in found[0]["examples"] if one["index"] == 0]
        assert "".join(piece for piece, _ in glass["tokens"]) == "glass ssalg<end>"
        assert [loss is None for _, loss in glass["tokens"]] == [True] * 6 + [False] * 6

    def test_they_can_be_turned_off_and_change_nothing(self, tmp_path: Path, finished: Run) -> None:
        run = train(toy_config(tmp_path, eval_examples=0), tmp_path / "run")
        assert weights_of(run.folder, 6) == weights_of(finished.folder, 6)
        others = [{key: one[key] for key in one if key != "examples"} for one in finished.records()]
        assert comparable(others) == comparable(list(run.records()))

    def test_their_number_may_change_when_a_run_is_resumed(self, tmp_path: Path) -> None:
        with pytest.raises(Interrupted):
            train(toy_config(tmp_path), tmp_path / "run", progress=killing(5))
        run = train(toy_config(tmp_path, eval_examples=1), tmp_path / "run", resume=True)
        assert [len(record["examples"]) for record in records(run, "eval")] == [4, 4, 2]
