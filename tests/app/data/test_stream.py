"""Data of a run: lines, their order, their tokens and masks, and what is wrong with them."""

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penalties.app.config import Config, DataError
from penalties.app.data import Stream, prompt_tokens
from penalties.training import Datum
from penalties.training.local.tiny import ByteTokenizer

from ..configs import LINES, PAIRS, config, lines

BYTES = ByteTokenizer()
DPO = '[references]\ninitial = { kind = "initial" }\n[train]\nloss = "dpo"\nbatch_size = 2\n'


class Beginning(ByteTokenizer):
    """A tokenizer that begins every text with a token, and ends it with another, as some do."""

    bos_token_id = 255

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        tokens = list(text.encode())
        return [255, *tokens, 256] if add_special_tokens else tokens


class Plain:
    """A tokenizer that says nothing about itself."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())


def stream(folder: Path, text: str = "", data: Sequence[Any] = LINES, tokenizer: Any = BYTES) -> Stream:
    return Stream(config(folder, text, data=data), tokenizer)


def text_of(datum: Datum) -> str:
    tokens = [*datum.model_input.to_ints(), int(datum.loss_fn_inputs["target_tokens"].to_numpy()[-1])]
    return BYTES.decode(tokens)


def weights_of(datum: Datum) -> list[float]:
    return datum.loss_fn_inputs["weights"].tolist()


def wrong(folder: Path, data: Sequence[Any], text: str = "", tokenizer: Any = BYTES) -> dict[str, str]:
    with pytest.raises(DataError) as caught:
        stream(folder, text, data, tokenizer)
    return dict(caught.value.problems)


class TestTokens:
    def test_a_prompt_is_read_and_its_completion_learned(self, tmp_path: Path) -> None:
        made = stream(tmp_path, "[train]\nbatch_size = 1\n", [{"prompt": "ab", "completion": "cde"}])
        (datum,) = made.batch(0)
        assert datum.model_input.to_ints() == [*b"abcde"]
        assert datum.loss_fn_inputs["target_tokens"].tolist() == [*b"bcde", 256]
        assert weights_of(datum) == [0.0, 0.25, 0.25, 0.25, 0.25]

    def test_a_sum_counts_every_token_as_one(self, tmp_path: Path) -> None:
        text = '[train]\nbatch_size = 1\nreduction = "sum"'
        (datum,) = stream(tmp_path, text, [{"prompt": "ab", "completion": "cde"}]).batch(0)
        assert weights_of(datum) == [0.0, 1.0, 1.0, 1.0, 1.0]

    def test_the_tokens_of_a_batch_that_count_have_one_together(self, tmp_path: Path) -> None:
        batch = stream(tmp_path, "[train]\nbatch_size = 5").batch(0)
        assert sum(sum(weights_of(datum)) for datum in batch) == pytest.approx(1.0, abs=1e-6)
        counted = {weight for datum in batch for weight in weights_of(datum)}
        assert len(counted) == 2
        assert 0.0 in counted

    def test_a_loss_of_ones_own_has_weights_of_one(self, tmp_path: Path) -> None:
        (first, *_) = stream(tmp_path, '[train]\nloss = "tests.app.config_terms:loss"').batch(0)
        assert set(weights_of(first)) == {0.0, 1.0}

    def test_the_prompt_is_learned_where_one_asks_for_it(self, tmp_path: Path) -> None:
        text = '[train]\nreduction = "sum"\n[data]\npath = "lines.jsonl"\nmask_prompt = false'
        assert set(weights_of(stream(tmp_path, text).batch(0)[0])) == {1.0}

    def test_the_end_of_a_text_may_be_left_out(self, tmp_path: Path) -> None:
        text = '[data]\npath = "lines.jsonl"\nend_token = false\nshuffle = false'
        assert text_of(stream(tmp_path, text).batch(0)[0]) == "say one: one"
        assert text_of(stream(tmp_path, '[data]\npath = "lines.jsonl"\nshuffle = false').batch(0)[0]).endswith(
            "one<end>"
        )

    def test_a_tokenizer_without_an_end_has_none(self, tmp_path: Path) -> None:
        (datum,) = stream(tmp_path, "[train]\nbatch_size = 1", LINES[:1], Plain()).batch(0)
        assert text_of(datum) == "say one: one"

    def test_a_text_begins_as_the_tokenizer_begins_it(self, tmp_path: Path) -> None:
        data = [{"prompt": "", "completion": "c"}]
        (datum,) = stream(tmp_path, "[train]\nbatch_size = 1", data, Beginning()).batch(0)
        assert datum.model_input.to_ints() == [255, *b"c"]
        assert datum.loss_fn_inputs["target_tokens"].tolist() == [*b"c", 256]
        assert weights_of(datum) == [0.5, 0.5]

    def test_a_completion_without_prompt_is_learned_from_its_second_token_on(self, tmp_path: Path) -> None:
        (datum,) = stream(tmp_path, "[train]\nbatch_size = 1", [{"prompt": "", "completion": "cd"}]).batch(0)
        assert datum.model_input.to_ints() == [*b"cd"]
        assert weights_of(datum) == [0.5, 0.5]

    def test_what_is_too_long_is_cut_at_its_end(self, tmp_path: Path) -> None:
        text = '[data]\npath = "lines.jsonl"\nmax_length = 4\n[train]\nbatch_size = 1'
        (datum,) = stream(tmp_path, text, [{"prompt": "ab", "completion": "cdefg"}]).batch(0)
        assert datum.model_input.to_ints() == [*b"abc"]
        assert datum.loss_fn_inputs["target_tokens"].tolist() == [*b"bcd"]
        assert weights_of(datum) == [0.0, 0.5, 0.5]

    def test_text_is_unicode(self, tmp_path: Path) -> None:
        (datum,) = stream(tmp_path, "[train]\nbatch_size = 1", [{"prompt": "né", "completion": "日本"}]).batch(0)
        assert text_of(datum) == "né日本<end>"


class TestPairs:
    def test_both_are_data_the_chosen_one_first(self, tmp_path: Path) -> None:
        text = DPO + '[data]\npath = "lines.jsonl"\nshuffle = false'
        batch = stream(tmp_path, text, PAIRS).batch(0)
        assert [text_of(datum) for datum in batch] == [
            *("say it: please<end>", "say it: now<end>", "good<end>", "bad<end>")
        ]
        assert weights_of(batch[1]) == [0.0] * 6 + [1.0] * 5
        assert weights_of(batch[3]) == [1.0] * 3

    def test_a_pair_is_one_line_of_a_batch(self, tmp_path: Path) -> None:
        made = stream(tmp_path, DPO, PAIRS * 3)
        assert len(made) == 6
        assert len(made.batch(0)) == 4


class TestOrder:
    def test_a_step_always_has_the_same_data(self, tmp_path: Path) -> None:
        first, second = stream(tmp_path, "[train]\nbatch_size = 2"), stream(tmp_path, "[train]\nbatch_size = 2")
        forward = [first.batch(step) for step in range(8)]
        backward = [second.batch(step) for step in reversed(range(8))]
        assert forward == backward[::-1]

    def test_every_pass_has_every_line_once(self, tmp_path: Path) -> None:
        made = stream(tmp_path, "[train]\nbatch_size = 2")
        seen = [text_of(datum) for step in range(10) for datum in made.batch(step)]
        passes = (
            list(itertools.batched(seen, 5))
            if hasattr(itertools, "batched")
            else [seen[i : i + 5] for i in range(0, 20, 5)]
        )
        assert all(set(one) == set(seen) and len(set(one)) == 5 for one in passes)
        assert len({tuple(one) for one in passes}) > 1

    def test_another_seed_is_another_order(self, tmp_path: Path) -> None:
        orders = {
            tuple(text_of(datum) for datum in stream(tmp_path, f"[train]\nbatch_size = 5\nseed = {seed}").batch(0))
            for seed in range(4)
        }
        assert len(orders) > 1

    def test_without_shuffling_it_is_that_of_the_file(self, tmp_path: Path) -> None:
        made = stream(tmp_path, '[data]\npath = "lines.jsonl"\nshuffle = false\n[train]\nbatch_size = 3')
        seen = [text_of(datum) for step in range(2) for datum in made.batch(step)]
        assert seen == [f"say {word}: {word}<end>" for word in ("one", "two", "three", "four", "five", "one")]

    def test_a_batch_may_be_larger_than_the_file(self, tmp_path: Path) -> None:
        assert len(stream(tmp_path, "[train]\nbatch_size = 12").batch(0)) == 12


class TestHeldOut:
    def held_out(self, folder: Path, count: int, **more: Any) -> Stream:
        lines(folder / "eval.jsonl", [{"prompt": "p", "completion": str(number)} for number in range(count)])
        return stream(folder, '[data]\npath = "lines.jsonl"\neval_path = "eval.jsonl"\n[train]\nbatch_size = 2', **more)

    def test_it_comes_in_order_and_once(self, tmp_path: Path) -> None:
        made = self.held_out(tmp_path, 5)
        for _ in range(2):
            batches = list(made.eval_batches())
            assert [len(batch) for batch in batches] == [2, 2, 1]
            assert [text_of(datum) for batch in batches for datum in batch] == [
                f"p{number}<end>" for number in range(5)
            ]

    def test_without_a_file_there_is_none(self, tmp_path: Path) -> None:
        assert list(stream(tmp_path).eval_batches()) == []

    def test_its_bad_lines_are_problems_too(self, tmp_path: Path) -> None:
        lines(tmp_path / "eval.jsonl", ["nonsense"])
        text = '[data]\npath = "lines.jsonl"\neval_path = "eval.jsonl"'
        with pytest.raises(DataError, match="eval.jsonl: line 1: is not JSON"):
            stream(tmp_path, text)

    def test_bad_lines_of_both_files_are_one_error(self, tmp_path: Path) -> None:
        lines(tmp_path / "eval.jsonl", [LINES[0], "nonsense"])
        found = wrong(tmp_path, ["x", LINES[0], "[]"], '[data]\npath = "lines.jsonl"\neval_path = "eval.jsonl"')
        assert list(found) == ["lines.jsonl: line 1", "lines.jsonl: line 3", "eval.jsonl: line 2"]

    def test_one_file_may_be_both_and_its_bad_lines_are_listed_once(self, tmp_path: Path) -> None:
        text = '[data]\npath = "lines.jsonl"\neval_path = "lines.jsonl"\n'
        assert list(wrong(tmp_path, ["x", LINES[0]], text)) == ["line 1"]
        made = stream(tmp_path, text + 'on_bad_line = "skip"', ["x", LINES[0]])
        assert [one.where for one in made.problems] == ["lines.jsonl: line 1"]
        assert [len(batch) for batch in made.eval_batches()] == [1]


BAD = [
    ("{", ["is not JSON", "column 2"]),
    ("nonsense", ["is not JSON"]),
    (b"\xff\xfe", ["is not UTF-8", "at byte 1"]),
    ("[" * 100_000, ["nested too deeply"]),
    ('{"prompt": "a", "completion": "b", "id": ' + "9" * 5000 + "}", ["a number with too many digits"]),
    ("[]", ["is a list", "an object with prompt and completion"]),
    ("5", ["is a number"]),
    ('"text"', ["is a string"]),
    ("null", ["is null"]),
    ("true", ["is true or false"]),
    ("{}", ['has no "prompt"', "found nothing"]),
    ({"prompt": "a", "completon": "b"}, ['has no "completion"', "prompt and completon", "did you mean completon?"]),
    ({"prompt": "a", "chosen": "b", "rejected": "c"}, ['has no "completion"', 'a pair is for train.loss = "dpo"']),
    ({"prompt": 5, "completion": "b"}, ["prompt is a number", "a string"]),
    ({"prompt": "a", "completion": None}, ["completion is null"]),
    ({"prompt": "a", "completion": {"x": 1}}, ["completion is an object"]),
    ({"prompt": "a", "completion": ""}, ["completion is empty"]),
    ('{"prompt": "a", "completion": "\\ud800"}', ["completion has half"]),
]


class TestBadLines:
    @pytest.mark.parametrize(("line", "says"), BAD)
    def test_they_say_what_is_wrong(self, tmp_path: Path, line: Any, says: list[str]) -> None:
        found = wrong(tmp_path, [*LINES, line])
        assert list(found) == ["line 6"]
        for part in says:
            assert part in found["line 6"]

    def test_all_of_them_are_found_with_their_numbers(self, tmp_path: Path) -> None:
        found = wrong(tmp_path, ["", LINES[0], "x", "   ", {"prompt": "a"}, LINES[1], "[]"])
        assert list(found) == ["line 3", "line 5", "line 7"]

    def test_they_may_be_left_out(self, tmp_path: Path) -> None:
        text = '[data]\npath = "lines.jsonl"\non_bad_line = "skip"\nshuffle = false\n[train]\nbatch_size = 2'
        made = stream(tmp_path, text, ["x", LINES[0], "[]", LINES[1]])
        assert [one.where for one in made.problems] == ["lines.jsonl: line 1", "lines.jsonl: line 3"]
        assert len(made) == 2
        assert [text_of(datum) for datum in made.batch(0)] == ["say one: one<end>", "say two: two<end>"]

    def test_a_file_without_a_good_line_is_an_error_all_the_same(self, tmp_path: Path) -> None:
        text = '[data]\npath = "lines.jsonl"\non_bad_line = "skip"'
        assert "all 2 are bad; the first: line 1: is not JSON" in wrong(tmp_path, ["x", "y"], text)["file"]
        assert wrong(tmp_path, [], text) == {"file": "no line can be used: there is none"}
        assert wrong(tmp_path, ["", " "]) == {"file": "no line can be used: there is none"}

    def test_pairs_have_their_own(self, tmp_path: Path) -> None:
        found = wrong(tmp_path, [*PAIRS, LINES[0], {"chosen": "a", "rejectd": "b"}], DPO)
        assert 'train.loss = "dpo" is for pairs' in found["line 3"]
        assert "did you mean rejectd?" in found["line 4"]

    def test_a_prompt_that_leaves_no_room(self, tmp_path: Path) -> None:
        text = '[data]\npath = "lines.jsonl"\nmax_length = 9'
        found = wrong(tmp_path, [{"prompt": "a" * 8, "completion": "b"}, {"prompt": "a" * 9, "completion": "b"}], text)
        assert list(found) == ["line 2"]
        assert "its prompt has 9 tokens, but data.max_length is 9" in found["line 2"]

    def test_tokens_are_counted_and_not_bytes(self, tmp_path: Path) -> None:
        class Words(Plain):
            def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
                return [len(word) for word in text.split()]

        text = '[data]\npath = "lines.jsonl"\nmax_length = 4'
        assert len(stream(tmp_path, text, LINES, Words())) == 5

    def test_one_token_alone_teaches_nothing(self, tmp_path: Path) -> None:
        data = [{"prompt": "", "completion": "b"}, {"prompt": "", "completion": "bc"}]
        text = '[data]\npath = "lines.jsonl"\nend_token = false'
        assert list(wrong(tmp_path, data, text)) == ["line 1"]
        assert len(stream(tmp_path, text, data, Beginning())) == 2
        assert len(stream(tmp_path, "", data)) == 2

    def test_a_line_that_the_model_cannot_read_is_a_bad_one(self, tmp_path: Path) -> None:
        data = [{"prompt": "a" * 5, "completion": "b" * count} for count in (5, 6, 20)]
        made = config(tmp_path, data=data)
        with pytest.raises(DataError) as caught:
            Stream(made, BYTES, limit=10)
        # The end of a text is its last token, which is learned and not read.
        assert dict(caught.value.problems) == {
            "line 2": "has 12 tokens, but the model reads at most 10; set data.max_length = 11 to cut it",
            "line 3": "has 26 tokens, but the model reads at most 10; set data.max_length = 11 to cut it",
        }
        assert len(Stream(made, BYTES, limit=25)) == 3

    def test_a_line_that_is_cut_can_be_read(self, tmp_path: Path) -> None:
        data = [{"prompt": "a" * 5, "completion": "b" * 20}]
        text = '[data]\npath = "lines.jsonl"\nmax_length = '
        cut = Stream(config(tmp_path, f"{text}11", data=data), BYTES, limit=10)
        assert {datum.model_input.length for datum in cut.batch(0)} == {10}
        with pytest.raises(DataError, match="set data.max_length = 11"):
            Stream(config(tmp_path, f"{text}12", data=data), BYTES, limit=10)

    def test_either_text_of_a_pair_may_be_too_long(self, tmp_path: Path) -> None:
        data = [{"chosen": "ab", "rejected": "a" * 30}, {"chosen": "a" * 30, "rejected": "ab"}, PAIRS[1]]
        made = config(tmp_path, DPO + '[data]\npath = "lines.jsonl"\non_bad_line = "skip"', data=data)
        found = Stream(made, BYTES, limit=12).problems
        assert [one.where for one in found] == ["lines.jsonl: line 1", "lines.jsonl: line 2"]

    def test_more_keys_do_no_harm(self, tmp_path: Path) -> None:
        assert len(stream(tmp_path, "", [{**LINES[0], "id": 5, "source": None}])) == 1

    def test_marks_and_line_ends_of_other_systems_do_no_harm(self, tmp_path: Path) -> None:
        data = [b"\xef\xbb\xbf" + b'{"prompt": "a", "completion": "b"}\r', b'{"prompt": "c", "completion": "d"}\r']
        assert len(stream(tmp_path, "", data)) == 2

    @pytest.mark.parametrize("end", [b"", b"\n", b"\r\n \n"])
    def test_a_mark_alone_is_an_empty_file(self, tmp_path: Path, end: bytes) -> None:
        made = config(tmp_path)
        Path(made.data.path).write_bytes(b"\xef\xbb\xbf" + end)
        with pytest.raises(DataError, match="file: no line can be used: there is none"):
            Stream(made, BYTES)


class TestFiles:
    def test_the_last_line_needs_no_end(self, tmp_path: Path) -> None:
        made = config(tmp_path)
        path = Path(made.data.path)
        path.write_bytes(path.read_bytes().rstrip(b"\n"))
        assert len(Stream(made, BYTES)) == 5

    def test_a_fingerprint_is_of_what_is_in_the_files(self, tmp_path: Path) -> None:
        first = stream(tmp_path).fingerprint
        assert stream(tmp_path).fingerprint == first
        assert stream(tmp_path, "", LINES[1:]).fingerprint != first
        lines(tmp_path / "eval.jsonl", LINES[:1])
        text = '[data]\npath = "lines.jsonl"\neval_path = "eval.jsonl"'
        assert stream(tmp_path, text).fingerprint.startswith(f"{first}-")

    @pytest.mark.parametrize("data", [["other"], [*LINES[1:], LINES[0]], LINES[:-1]])
    def test_a_file_that_changes_under_a_run_is_an_error(self, tmp_path: Path, data: Sequence[Any]) -> None:
        made = stream(tmp_path, '[data]\npath = "lines.jsonl"\nshuffle = false')
        lines(tmp_path / "lines.jsonl", data)
        os.utime(tmp_path / "lines.jsonl", ns=(5, 5))
        with pytest.raises(DataError, match="lines.jsonl: file: changed while the run was reading it"):
            made.batch(0)

    def test_a_file_that_is_written_again_as_it_was_is_the_same(self, tmp_path: Path) -> None:
        made = stream(tmp_path)
        before = made.batch(0)
        lines(tmp_path / "lines.jsonl", LINES)
        os.utime(tmp_path / "lines.jsonl", ns=(5, 5))
        assert made.batch(0) == before

    def test_a_change_that_leaves_no_other_trace_is_found_where_a_line_is_bad(self, tmp_path: Path) -> None:
        path = tmp_path / "lines.jsonl"
        made = stream(tmp_path, '[data]\npath = "lines.jsonl"\nshuffle = false')
        before = path.stat()
        path.write_bytes(b"x" * before.st_size)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(DataError, match="line 1: changed during the run: is not JSON"):
            made.batch(0)

    def test_only_the_beginnings_of_lines_are_kept(self, tmp_path: Path) -> None:
        """A megabyte of text takes kilobytes of memory."""
        import tracemalloc

        made = config(tmp_path, data=[{"prompt": "p" * 1000, "completion": "c"}] * 2000)
        tracemalloc.start()
        held = Stream(made, BYTES)
        kept, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(held) == 2000
        assert kept < 200_000
        assert peak < 500_000


class TestPrompts:
    def test_begin_as_the_data_do(self, tmp_path: Path) -> None:
        for tokenizer, before in ((BYTES, []), (Beginning(), [255]), (Plain(), [])):
            assert prompt_tokens(tokenizer, "ab") == [*before, 97, 98]
            datum = stream(tmp_path, data=[{"prompt": "ab", "completion": "c"}], tokenizer=tokenizer).batch(0)[0]
            assert datum.model_input.to_ints()[: len(before) + 2] == [*before, 97, 98]

    def test_of_held_out_lines(self, tmp_path: Path) -> None:
        assert stream(tmp_path).held_out(5) == []
        talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        lines(tmp_path / "eval.jsonl", [*LINES[:2], {"text": "no prompt"}, {"messages": talk}, LINES[2]])
        made = stream(tmp_path, '[data]\npath = "lines.jsonl"\neval_path = "eval.jsonl"')
        assert made.held_out(2) == [("say one:", " one"), ("say two:", " two")]
        assert made.held_out(4) == [*made.held_out(2), ((talk[0],), "b")]
        assert len(made.held_out(99)) == 4
        assert not made.chat
        assert stream(tmp_path, data=[{"messages": talk}, LINES[0]]).chat


def everything(made: Config) -> Iterator[Datum]:
    for step in range(made.train.steps):
        yield from Stream(made, BYTES).batch(step)


def test_data_have_the_types_that_clients_take(tmp_path: Path) -> None:
    for datum in everything(config(tmp_path, "[train]\nsteps = 2")):
        targets, weights = (datum.loss_fn_inputs[name].to_numpy() for name in ("target_tokens", "weights"))
        assert targets.dtype == np.int64
        assert weights.dtype == np.float32
        assert targets.shape == weights.shape == (datum.model_input.length,)
