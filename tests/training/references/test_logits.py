"""Full logits of references: exact divergences from the initial model or a teacher, on the local client."""

from pathlib import Path
from typing import Any

import pytest
import torch

import penalties as pn
from penalties.errors import InputError, OptionError
from penalties.training import AdamParams, Datum, LocalTrainingClient, ModelInput, forward_backward_custom, references
from penalties.training.local.tiny import ByteTokenizer
from penalties.training.objective import objective_of
from penalties.training.references import check_vocabulary
from tests.training.references.cases import Client

DATA = [
    Datum(ModelInput.from_ints([1, 2, 3, 4]), {"target_tokens": [2, 3, 4, 5], "weights": [0.0, 1.0, 1.0, 1.0]}),
    Datum(ModelInput.from_ints([9, 8]), {"target_tokens": [8, 7], "weights": [0.0, 1.0]}),
]
INPUTS = {"p": "logits", "q": "first.logits", "mask": "mask"}


def term(**more: Any) -> pn.Term:
    return pn.Term(pn.kl_divergence, **({"name": "kl", "inputs": INPUTS, "options": {"logits": True}} | more))


def trained(seed: int = 0) -> LocalTrainingClient:
    """A client that is no longer at its beginning."""
    client = LocalTrainingClient("tiny", seed=seed)
    for _ in range(3):
        client.forward_backward(DATA, "cross_entropy")
        client.optim_step(AdamParams(learning_rate=0.05)).result()
    return client


def rows(client: LocalTrainingClient, *, initial: bool = False) -> torch.Tensor:
    """The log-probabilities over all tokens at the positions that count."""
    graph = client.forward_with_graph(DATA, ["logits"], evaluate=True, initial=initial).result()
    return graph.packed["logits"].log_softmax(-1)[[1, 2, 3, 5]]


def divergence(p: torch.Tensor, q: torch.Tensor) -> float:
    return float((p.exp() * (p - q)).sum(-1).mean())


@pytest.mark.parametrize("measured", [False, True])
def test_the_divergence_from_the_initial_model_is_exact(measured: bool) -> None:
    with trained() as client, LocalTrainingClient("tiny") as untouched:
        expected = divergence(rows(client), rows(untouched))
        torch.testing.assert_close(rows(client, initial=True), rows(untouched))
        found = forward_backward_custom(
            client,
            DATA,
            None,
            regularizers=[term()],
            references={"first": references.initial()},
            track_grad_norms="parameters" if measured else False,
        ).result()
    assert expected > 0.1
    assert found.custom_loss["kl"].value == pytest.approx(expected, rel=1e-5)


def test_its_gradient_is_that_of_the_formula() -> None:
    with trained() as client, LocalTrainingClient("tiny") as untouched:
        q = rows(untouched)
        graph = client.forward_with_graph(DATA, ["logits"]).result()
        p = graph.packed["logits"].log_softmax(-1)[[1, 2, 3, 5]]
        value = (p.exp() * (p - q)).sum(-1).mean()
        parameters = client.parameters()
        expected = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
        forward_backward_custom(
            client, DATA, None, regularizers=[term()], references={"first": references.initial()}
        ).result()
        for one, slope in zip(parameters.values(), expected, strict=True):
            torch.testing.assert_close(
                one.grad, torch.zeros_like(one) if slope is None else slope, rtol=1e-4, atol=1e-6
            )


@pytest.mark.parametrize("options", [{"direction": "reverse"}, {"direction": "forward"}])
def test_a_teacher_is_compared_with_in_both_directions(options: dict[str, Any]) -> None:
    with trained() as client, LocalTrainingClient("tiny", seed=5) as teacher:
        pair = rows(client), rows(teacher)
        expected = divergence(*(pair[::-1] if options["direction"] == "reverse" else pair))
        found = forward_backward_custom(
            client,
            DATA,
            None,
            regularizers=[term(options={"logits": True, **options})],
            references={"first": references.client(teacher)},
        ).result()
    assert found.custom_loss["kl"].value == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def padded(tmp_path: Path) -> str:
    """A model with the tokens of the built-in one, and seven more outputs, which stand for none."""
    with LocalTrainingClient("tiny", adapter="none", seed=5) as client:
        client.model.resize_token_embeddings(264)
        client.model.save_pretrained(tmp_path)
        client.tokenizer.save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("measured", [False, True])
def test_outputs_of_a_teacher_that_stand_for_no_token_are_left_out(padded: str, measured: bool) -> None:
    with trained() as client, LocalTrainingClient(padded, adapter="none") as teacher:
        graph = teacher.forward_with_graph(DATA, ["logits"], evaluate=True).result()
        tokens = graph.packed["logits"][:, :257].log_softmax(-1)[[1, 2, 3, 5]]
        expected = divergence(rows(client), tokens)
        found = forward_backward_custom(
            client,
            DATA,
            None,
            regularizers=[term()],
            references={"first": references.client(teacher)},
            track_grad_norms="parameters" if measured else False,
        ).result()
    assert found.custom_loss["kl"].value == pytest.approx(expected, rel=1e-5)


def test_your_own_function_gets_one_array_per_datum() -> None:
    seen: list[Any] = []

    def own(logits: Any, first: Any) -> Any:
        seen.extend(tuple(one.shape) for one in first)
        return sum((a - b).square().mean() for a, b in zip(logits, first, strict=True))

    with LocalTrainingClient("tiny") as client:
        reads = {"logits": "logits", "first": "first.logits"}
        found = forward_backward_custom(
            client,
            DATA,
            None,
            regularizers=[pn.Term(own, inputs=reads)],
            references={"first": references.initial()},
        ).result()
    assert seen == [(4, 257), (2, 257)]
    assert float(found.custom_loss["own"].value) == 0.0


class TestErrors:
    def test_a_server_has_no_logits(self) -> None:
        terms = [term(inputs={"p": "first.logits", "q": "first.logits"})]
        with pytest.raises(InputError, match='reads "first.logits", which is inside the model'):
            objective_of(None, terms, {"first": True}, None, candidates=None, local=False)

    def test_a_teacher_on_a_server_has_none(self) -> None:
        with (
            LocalTrainingClient("tiny") as client,
            pytest.raises(InputError, match="logits need a LocalTrainingClient"),
        ):
            references.client(Client()).logits(client, DATA)

    def test_a_teacher_with_fewer_outputs_is_one(self, padded: str) -> None:
        with (
            LocalTrainingClient(padded, adapter="none") as client,
            LocalTrainingClient("tiny") as teacher,
            pytest.raises(InputError, match="the teacher tiny has 257 logits at a position, and the model 264"),
        ):
            references.client(teacher).logits(client, DATA)

    @pytest.mark.parametrize("given", [references.perturbed(), [[0.0] * 4, [0.0] * 2]])
    def test_other_references_have_none(self, given: Any) -> None:
        with LocalTrainingClient("tiny") as client, pytest.raises(InputError, match='reference "first": has no logits'):
            forward_backward_custom(client, DATA, None, regularizers=[term()], references={"first": given})

    def test_logits_are_not_taken_for_log_probabilities(self) -> None:
        with LocalTrainingClient("tiny") as client, pytest.raises(OptionError, match="these are logits, not logprobs"):
            forward_backward_custom(
                client,
                DATA,
                None,
                regularizers=[term(options={}, inputs={"p": "first.logits", "q": "first.logits"})],
                references={"first": references.initial()},
            )


class TestVocabulary:
    def other(self, change: dict[str, int]) -> Any:
        """A tokenizer with other tokens."""

        class Other(ByteTokenizer):
            def get_vocab(self) -> dict[str, int]:
                known = {number: text for text, number in super().get_vocab().items()}
                known |= {number: text for text, number in change.items()}
                return {text: number for number, text in known.items()}

        return Other()

    def test_the_same_is_fine_and_so_is_none(self) -> None:
        check_vocabulary(ByteTokenizer(), ByteTokenizer(), "t")
        check_vocabulary(ByteTokenizer(), object(), "t")

    def test_another_token_is_an_error(self) -> None:
        with pytest.raises(
            InputError, match=r"the teacher t has another vocabulary.*token 65 is 'A', and 'word' there"
        ):
            check_vocabulary(ByteTokenizer(), self.other({"word": 65}), "t")

    def test_so_are_more_and_fewer(self) -> None:
        with pytest.raises(InputError, match="of 258 tokens rather than 257: the teacher has more tokens"):
            check_vocabulary(ByteTokenizer(), self.other({"word": 257}), "t")
        with pytest.raises(InputError, match="of 257 tokens rather than 258: token 257 is 'word', and absent there"):
            check_vocabulary(self.other({"word": 257}), ByteTokenizer(), "t")

    def test_a_teacher_is_checked_before_it_is_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with LocalTrainingClient("tiny") as client, LocalTrainingClient("tiny", seed=1) as teacher:
            monkeypatch.setattr(
                type(teacher),
                "tokenizer",
                property(lambda one: self.other({"word": 65}) if one is teacher else ByteTokenizer()),
            )
            given = references.client(teacher)
            with pytest.raises(InputError, match="another vocabulary"):
                given.start(client, DATA).result()
            with pytest.raises(InputError, match="another vocabulary"):
                given.logits(client, DATA)
