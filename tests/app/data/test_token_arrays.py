"""Lines that have numbers for each token of their completion."""

from pathlib import Path
from typing import Any

import pytest

from penalties.app.config import DataError
from penalties.app.data import Stream
from penalties.app.data.examples import Bad, example_of
from penalties.training.local.tiny import ByteTokenizer

from ..configs import CANDIDATES, SAMPLED, config

SAMPLING = '[train]\nloss = "importance_sampling"\nbatch_size = 2\n'
DISTILLING = '[references]\nteacher = { kind = "initial" }\n[train]\nloss = "reverse_kl"\nbatch_size = 2\n'
END = 256


def batch(folder: Path, text: str, data: Any, more: str = "") -> list[dict[str, Any]]:
    made = config(folder, f'{text}[data]\npath = "lines.jsonl"\nshuffle = false\n{more}', data=data)
    return [
        {"text": one.model_input.to_ints(), **{name: array.tolist() for name, array in one.loss_fn_inputs.items()}}
        for one in Stream(made, ByteTokenizer()).batch(0)
    ]


class TestSampled:
    def test_numbers_are_beside_the_tokens_of_the_completion(self, tmp_path: Path) -> None:
        whole, cut = batch(tmp_path, f'{SAMPLING}reduction = "sum"\n', SAMPLED)
        assert whole["target_tokens"] == [*b"ay:abc", END]
        assert whole["logprobs"] == [0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -0.5]
        assert whole["advantages"] == [0.0, 0.0, 0.0, 0.5, 0.5, 0.5, 0.5]
        assert whole["weights"] == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
        # There are no numbers for its end: it was cut, and does not end.
        assert cut["target_tokens"] == list(b"ay:de")
        assert cut["advantages"] == [0.0, 0.0, 0.0, 1.0, -2.0]

    def test_a_mean_is_over_the_learned_tokens_of_a_batch(self, tmp_path: Path) -> None:
        whole, cut = batch(tmp_path, SAMPLING, SAMPLED)
        assert whole["advantages"][3:] == pytest.approx([0.5 / 6] * 4)
        assert cut["advantages"][3:] == pytest.approx([1 / 6, -2 / 6])
        assert cut["weights"] == [0.0, 0.0, 0.0, 1.0, 1.0]

    def test_they_are_cut_with_the_text(self, tmp_path: Path) -> None:
        whole, cut = batch(tmp_path, SAMPLING, SAMPLED, "max_length = 6\n")
        assert whole["logprobs"] == [0.0, 0.0, 0.0, -1.0, -2.0]
        assert cut["logprobs"] == [0.0, 0.0, 0.0, -1.5, -2.5]

    def test_the_first_token_of_a_text_is_no_target(self, tmp_path: Path) -> None:
        data = [{"prompt": "", "completion": "abc", "logprobs": [-1.0, -2.0, -3.0], "advantage": 1}] * 2
        found = batch(tmp_path, SAMPLING, data)[0]
        assert found["target_tokens"] == list(b"bc")
        assert found["logprobs"] == [-2.0, -3.0]


class TestCandidates:
    def test_targets_are_those_of_the_line_and_the_prompt_does_not_count(self, tmp_path: Path) -> None:
        whole, cut = batch(tmp_path, DISTILLING, CANDIDATES, "mask_prompt = false\n")
        assert whole["target_tokens"] == [[97, 97], [121, 121], [58, 58], [97, 98], [98, 99], [256, 0]]
        assert whole["weights"] == [[0.0, 0.0]] * 3 + [[1.0, 1.0]] * 3
        assert cut["target_tokens"][3:] == [[99, 100]]

    def test_every_token_of_a_file_has_equally_many(self, tmp_path: Path) -> None:
        other = {"prompt": "say:", "completion": "c", "candidates": [[99, 100, 101]]}
        with pytest.raises(DataError) as caught:
            batch(tmp_path, DISTILLING, [*CANDIDATES, other])
        (problem,) = caught.value.problems
        assert str(problem) == "line 3: candidates has 3 tokens for each token; expected 2, as in the lines before"


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("importance_sampling", "prompt, completion, logprobs and advantage"),
        ("reverse_kl", "prompt, completion and candidates"),
    ],
)
def test_other_forms_of_lines_are_not_suggested(loss: str, expected: str) -> None:
    with pytest.raises(Bad) as raised:
        example_of({"messages": []}, loss)
    assert str(raised.value) == f'has no "prompt"; found messages; expected {expected}, for train.loss = "{loss}"'


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (SAMPLING, {"advantage": 1.0}, 'has no "logprobs", for train.loss = "importance_sampling"; found'),
        (SAMPLING, {"logprob": [1], "advantage": 1.0}, "did you mean logprob?"),
        (SAMPLING, {"logprobs": [-1.0]}, 'has no "advantage"'),
        (SAMPLING, {"logprobs": -1.0, "advantage": 1.0}, "logprobs is not a list with a number for each token"),
        (SAMPLING, {"logprobs": [], "advantage": 1.0}, "logprobs is not a list with a number"),
        (SAMPLING, {"logprobs": [-1.0, True], "advantage": 1.0}, "logprobs is not a list with a number"),
        (SAMPLING, {"logprobs": [-1.0, float("nan")], "advantage": 1.0}, "logprobs is not a list with a number"),
        (SAMPLING, {"logprobs": [-1.0, -1.0], "advantage": "x"}, "advantage is not a number or a list with a number"),
        (
            SAMPLING,
            {"logprobs": [-1.0, -1.0], "advantage": [1.0]},
            "length 2 and advantage has length 1; expected equal",
        ),
        (
            SAMPLING,
            {"logprobs": [-1.0] * 5, "advantage": 1.0},
            "logprobs has length 5; expected 2, the number of tokens of its completion, or 3 with the one that ends it",
        ),
        (DISTILLING, {"candidates": [1, 2]}, "candidates is not a list with tokens for each token"),
        (DISTILLING, {"candidates": [[1], [2, 3]]}, "candidates has 1 to 2 tokens for a token; expected equally many"),
        (DISTILLING, {"candidates": [[1], []]}, "candidates is not a list with tokens"),
        (DISTILLING, {"candidates": [[1], [-2]]}, "candidates is not a list with tokens"),
        (DISTILLING, {"candidates": [[1]]}, "candidates has length 1; expected 2, the number"),
    ],
)
def test_a_line_that_cannot_be_used_says_why(tmp_path: Path, text: str, line: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        batch(tmp_path, text, [{"prompt": "say:", "completion": "ab", **line}])
    assert message in str(caught.value.problems[0])


def test_without_an_end_the_tokens_alone_are_counted(tmp_path: Path) -> None:
    line = {"prompt": "say:", "completion": "ab", "logprobs": [-1.0] * 3, "advantage": 1.0}
    with pytest.raises(DataError, match="expected 2, the number of tokens of its completion$"):
        batch(tmp_path, SAMPLING, [line], "end_token = false\n")
