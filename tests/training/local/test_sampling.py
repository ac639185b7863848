from typing import Any

import numpy as np
import pytest
import tinker
import torch

from penalties.errors import InputError, OptionError
from penalties.training.local import LocalTrainingClient
from penalties.training.types import AdamParams, Datum, ModelInput, SamplingParams
from tests.training.local.cases import WAIT, assert_close, data, logprobs, tiny

PROMPT = ModelInput.from_ints([72, 101, 108])


@pytest.fixture(scope="module")
def client() -> Any:
    with tiny() as made:
        yield made


def drawn(client: LocalTrainingClient, count: int = 1, prompt: Any = PROMPT, **options: Any) -> Any:
    return client.sample(prompt, count, SamplingParams(**options)).result(WAIT).sequences


def test_log_probabilities_are_those_of_a_forward(client: LocalTrainingClient) -> None:
    for sequence in drawn(client, 3, max_tokens=9, temperature=0.7, top_k=50, top_p=0.9, seed=1):
        tokens = [*PROMPT.to_ints(), *sequence.tokens]
        datum = Datum(ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:]})
        whole = logprobs(client.forward([datum]).result(WAIT))[0]
        assert_close(np.array(sequence.logprobs, np.float32), whole[2:], 1e-5)
        assert (len(sequence.tokens), sequence.stop_reason) == (9, "length")


def test_a_seed_draws_the_same_each_time(client: LocalTrainingClient) -> None:
    first = drawn(client, 4, seed=3)
    assert drawn(client, 4, seed=3) == first
    assert drawn(client, 4, seed=4) != first
    # Sequences of one call differ.
    assert len({tuple(one.tokens) for one in first}) == 4


def test_without_a_seed_each_draw_differs(client: LocalTrainingClient) -> None:
    assert drawn(client, max_tokens=8) != drawn(client, max_tokens=8)


def test_clients_of_one_seed_draw_the_same() -> None:
    state = torch.get_rng_state()
    with tiny(seed=2) as one, tiny(seed=2) as other:
        assert drawn(one, 2) == drawn(other, 2)
    assert torch.equal(torch.get_rng_state(), state)


def test_temperature_zero_takes_the_most_likely(client: LocalTrainingClient) -> None:
    tokens = PROMPT.to_ints()
    for _ in range(6):
        tokens.append(int(client.model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
    for sequence in drawn(client, 2, max_tokens=6, temperature=0.0):
        assert sequence.tokens == tokens[3:]
    assert drawn(client, max_tokens=6, top_k=1)[0].tokens == tokens[3:]
    assert drawn(client, max_tokens=6, top_p=1e-9)[0].tokens == tokens[3:]
    assert drawn(client, max_tokens=6, temperature=1e-30)[0].tokens == tokens[3:]


def probabilities(client: LocalTrainingClient) -> torch.Tensor:
    with torch.no_grad():
        return client.model(input_ids=torch.tensor([PROMPT.to_ints()])).logits[0, -1].softmax(-1)


def test_draws_follow_the_distribution(client: LocalTrainingClient) -> None:
    counts = np.bincount([one.tokens[0] for one in drawn(client, 4000, max_tokens=1, seed=5)], minlength=257)
    expected = 4000 * probabilities(client).numpy()
    # Pearson's statistic has a mean of 256 and a deviation of 23.
    assert ((counts - expected) ** 2 / expected).sum() < 256 + 5 * 23


def test_temperature_sharpens_the_distribution(client: LocalTrainingClient) -> None:
    cold = np.bincount([one.tokens[0] for one in drawn(client, 2000, max_tokens=1, seed=5, temperature=0.5)])
    sharp = probabilities(client) ** 2
    share = float(sharp.max() / sharp.sum())
    assert cold.max() / 2000 == pytest.approx(share, abs=5 * (share / 2000) ** 0.5)


def test_top_k_and_top_p_exclude_other_tokens(client: LocalTrainingClient) -> None:
    ordered, tokens = probabilities(client).sort(descending=True)
    few = {one.tokens[0] for one in drawn(client, 500, max_tokens=1, seed=1, top_k=3)}
    assert few == set(tokens[:3].tolist())
    enough = int((ordered.cumsum(0) < 0.2).sum()) + 1
    nucleus = {one.tokens[0] for one in drawn(client, 2000, max_tokens=1, seed=1, top_p=0.2)}
    assert nucleus == set(tokens[:enough].tolist())


def test_a_stop_token_ends_only_its_own_sequence(client: LocalTrainingClient) -> None:
    free = drawn(client, 3, max_tokens=8, seed=11)
    stop = free[1].tokens[3]
    assert all(stop not in one.tokens for one in (free[0], free[2]))
    stopped = drawn(client, 3, max_tokens=8, seed=11, stop=[stop])
    assert stopped[0] == free[0]
    assert stopped[2] == free[2]
    assert stopped[1].tokens == free[1].tokens[:4]
    assert stopped[1].logprobs == free[1].logprobs[:4]
    assert stopped[1].stop_reason == "stop"


def test_sampling_ends_when_all_have_ended(client: LocalTrainingClient) -> None:
    first = drawn(client, max_tokens=8, temperature=0.0)[0].tokens[0]
    for one in drawn(client, 2, max_tokens=2000, temperature=0.0, stop=[first]):
        assert (one.tokens, one.stop_reason) == ([first], "stop")


def test_a_text_ends_a_sequence() -> None:
    with LocalTrainingClient("tiny", device="cpu") as client:
        tokens = client.tokenizer.encode("say abcabc")
        batch = [Datum(ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:]})]
        for _ in range(25):
            client.forward_backward(batch, "cross_entropy")
            client.optim_step(AdamParams(1e-2)).result(WAIT)
        prompt = ModelInput.from_ints(client.tokenizer.encode("say "))
        options: dict[str, Any] = {"max_tokens": 6, "temperature": 0.0}
        assert client.tokenizer.decode(drawn(client, prompt=prompt, **options)[0].tokens) == "abcabc"
        for stop in ("bc", ["zz", "bc"], ["bc", 7]):
            (one,) = drawn(client, prompt=prompt, stop=stop, **options)
            assert (client.tokenizer.decode(one.tokens), one.stop_reason) == ("abc", "stop")


def test_sampling_stops_at_the_models_end_token_by_default(client: LocalTrainingClient) -> None:
    theirs = tinker.SamplingParams(max_tokens=2000, seed=27, temperature=3.0)
    (ended,) = client.sample(PROMPT, 1, theirs).result(WAIT).sequences
    assert ended.tokens[-1] == client.tokenizer.eos_token_id
    assert ended.stop_reason == "stop"
    endless = tinker.SamplingParams(max_tokens=len(ended.tokens) + 2, seed=27, temperature=3.0, stop=[])
    (on,) = client.sample(PROMPT, 1, endless).result(WAIT).sequences
    assert on.tokens[: len(ended.tokens)] == ended.tokens
    assert on.stop_reason == "length"


def test_sequences_end_with_the_context(client: LocalTrainingClient) -> None:
    prompt = ModelInput.from_ints([1] * 2046)
    assert len(drawn(client, prompt=prompt, max_tokens=50)[0].tokens) == 3
    unlimited = client.sample(prompt, 1, tinker.SamplingParams(stop=[])).result(WAIT)
    assert len(unlimited.sequences[0].tokens) == 3


def test_defaults(client: LocalTrainingClient) -> None:
    (one,) = client.sample(PROMPT).result(WAIT).sequences
    assert len(one.tokens) == SamplingParams().max_tokens


def test_sampling_changes_neither_gradients_nor_passes(client: LocalTrainingClient) -> None:
    batch = data(4)
    before = client.forward_backward(batch, "cross_entropy").result(WAIT).metrics
    drawn(client, 2)
    assert client.forward_backward(batch, "cross_entropy").result(WAIT).metrics == before


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1, 2], 1, {}), InputError, "sample: the prompt is a list; expected a ModelInput of tokens"),
        ((ModelInput.from_ints([]), 1, {}), InputError, "sample: its model_input has no tokens"),
        ((ModelInput.from_ints([999]), 1, {}), InputError, "sample: its model_input: found 999"),
        ((ModelInput.from_ints([1] * 2049), 1, {}), InputError, "sample: its model_input has 2049 tokens"),
        ((PROMPT, 0, {}), OptionError, "num_samples=0; expected a whole number of at least 1"),
        ((PROMPT, 1, {"max_tokens": 0}), OptionError, "max_tokens=0"),
        ((PROMPT, 1, {"temperature": -1.0}), OptionError, "temperature=-1.0; expected a finite number of at least 0"),
        ((PROMPT, 1, {"temperature": float("nan")}), OptionError, "temperature=nan"),
        ((PROMPT, 1, {"top_k": 0}), OptionError, "top_k=0; expected a whole number of at least 1"),
        ((PROMPT, 1, {"top_p": 0.0}), OptionError, "top_p=0.0; expected a number above 0 and up to 1"),
        ((PROMPT, 1, {"top_p": 1.5}), OptionError, "top_p=1.5"),
        ((PROMPT, 1, {"seed": 0.5}), OptionError, "seed=0.5; expected a whole number or None"),
        ((PROMPT, 1, {"stop": [1.5]}), OptionError, "stop=1.5; expected tokens, or non-empty strings"),
        ((PROMPT, 1, {"stop": ""}), OptionError, 'stop=""'),
    ],
)
def test_options_are_checked(client: LocalTrainingClient, arguments: Any, error: Any, message: str) -> None:
    prompt, count, options = arguments
    with pytest.raises(error, match=message):
        client.sample(prompt, count, SamplingParams(**options))
