"""What is an error, and what it says."""

import sys
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties.training import Datum, LocalTrainingClient, ModelInput, forward_backward_custom
from tests.training.clients import RemoteClient, batch, datum
from tests.training.custom_loss.cases import assert_trained_alike, squared


class TestBadInput:
    @pytest.mark.parametrize("term", [pn.Term(pn.orthogonality, inputs="logprobs"), pn.Term(pn.output_magnitude)])
    def test_a_penalty_of_one_array_over_a_list_of_them(self, term: Any) -> None:
        message = f'{term.name}: reads "logprobs", a list with one array per datum; expected .*"flat_logprobs"'
        for one in (term, pn.EMA(term)):
            with pytest.raises(pn.InputError, match=message):
                forward_backward_custom(RemoteClient(), batch(2, 3), None, regularizers=[one])

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ([], "got no data; expected at least one datum"),
            ("text", "got data=str; expected a list of data"),
            ([3], "datum 0: got int; expected a datum"),
            ([datum(0, 2), Datum(ModelInput.from_ints([1]))], "datum 1: its loss_fn_inputs have no target_tokens"),
            (
                [datum(0, 2), datum(1, 2, 3)],
                r"datum 1: its target_tokens have shape \(2, 3\) and those of datum 0 \(2,\)",
            ),
            ([datum(0, 0)], r"datum 0: its target_tokens have shape \(0,\); expected at least one target"),
            ([datum(0, 2, weights=[1.0])], r"datum 0: its weights have shape \(1,\) and its target_tokens \(2,\)"),
            (
                [Datum(ModelInput.from_ints([1]), {"target_tokens": np.zeros((1, 1, 1), int)})],
                r"datum 0: its target_tokens have shape \(1, 1, 1\)",
            ),
        ],
    )
    def test_data(self, data: Any, message: str) -> None:
        client = RemoteClient()
        with pytest.raises(pn.InputError, match=message):
            forward_backward_custom(client, data, squared)
        assert client.calls == []

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"server": "other"}, 'server="other"; expected "sums", "averages" or "tinker"'),
            ({"executor": 3}, "executor=3; expected an Executor"),
            ({"track_grad_norms": "yes"}, 'track_grad_norms="yes"'),
            ({"cosines": 1}, "cosines=1"),
            ({"references": [1]}, "a dict from names"),
            ({"references": {1: []}}, "names that are strings"),
            ({"references": {"mask": [1.0]}}, "another name"),
            ({"references": {"step": [1.0]}}, "another name"),
            ({"references": {"": [1.0]}}, "another name"),
            ({"server": ["x"]}, "server="),
            ({"timeout": [1]}, "timeout="),
            ({"references": {"teacher": [np.zeros(2)]}}, "teacher.*datum 0"),
        ],
    )
    def test_options(self, arguments: Any, message: str) -> None:
        with pytest.raises(pn.PenaltiesError, match=message):
            forward_backward_custom(RemoteClient(), [datum(0, 3)], squared, **arguments)

    @pytest.mark.parametrize(
        ("targets", "message"),
        [
            ([[1], [2, 3]], "datum 0: its target_tokens: an array: .*expected rows of equal length"),
            ({"shape": [2]}, "datum 0: its target_tokens: an array: got no data; expected numbers"),
            ({"data": [1, 2], "dtype": "int64", "shape": [3]}, "as many numbers as the shape holds"),
        ],
    )
    def test_targets_of_other_clients(self, targets: Any, message: str) -> None:
        class Theirs:
            model_input = ModelInput.from_ints([1, 2])
            loss_fn_inputs = {"target_tokens": targets}  # noqa: RUF012

        with pytest.raises(pn.InputError, match=message):
            forward_backward_custom(RemoteClient(), [Theirs()], squared)

    def test_data_of_other_clients(self) -> None:
        class Theirs:
            def __init__(self, model_input: Any, loss_fn_inputs: Any) -> None:
                self.model_input, self.loss_fn_inputs = model_input, loss_fn_inputs

        data = [Theirs(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3]})]
        client = RemoteClient()
        forward_backward_custom(client, data, squared).result(60)
        assert_trained_alike(client, data, lambda lp: squared(data, lp)[0])

    def test_logits_need_the_option_logits(self) -> None:
        with pytest.raises(pn.PenaltiesError, match="these are logits"):
            pn.training.objective.objective_of(
                None, [pn.Term("entropy", inputs="logits")], {}, None, candidates=None, local=True
            )

    def test_a_gradient_too_large_to_be_sent(self) -> None:
        client = RemoteClient(averages=True)
        with pytest.raises(pn.NonFiniteError, match="datum 0: the gradient of the loss is too large") as raised:
            forward_backward_custom(
                client, batch(3, 2), lambda d, lp: 1e38 * (lp[0] - lp[0].detach()).sum(), server="averages"
            )
        assert raised.value.phase == "gradient"
        assert [name for name, _ in client.calls] == ["forward"]

    def test_a_client_that_lacks_a_method(self) -> None:
        class Sampler:
            def forward(self) -> None: ...

        with pytest.raises(pn.InputError, match="the client, Sampler, has no method forward_backward"):
            forward_backward_custom(Sampler(), batch(2), squared)

    @pytest.mark.parametrize("name", ["kl_divergence", "js_divergence", "entropy"])
    def test_a_divergence_of_sampled_tokens(self, name: str) -> None:
        inputs = "logprobs" if name == "entropy" else ("logprobs", "teacher")
        with pytest.raises(pn.InputError, match=f"{name} needs full distributions"):
            forward_backward_custom(
                RemoteClient(),
                [datum(0, 2)],
                None,
                regularizers=[pn.Term(name, inputs=inputs)],
                references={"teacher": [np.zeros(2)]},
            )

    @pytest.mark.parametrize(
        ("name", "remedies"),
        [
            (
                "kl_divergence",
                r'read logits and teacher\.logits with options=\{"logits": True\}, use kl_estimate for tokens that the '
                r"model sampled, or pass target_tokens of shape \(N, K\)",
            ),
            (
                "js_divergence",
                r'read logits and teacher\.logits with options=\{"logits": True\}, or pass target_tokens',
            ),
            ("entropy", r'read logits with options=\{"logits": True\}, use entropy_estimate for'),
        ],
    )
    def test_a_divergence_of_sampled_tokens_names_the_exact_one(self, name: str, remedies: str) -> None:
        inputs = "logprobs" if name == "entropy" else {"p": "logprobs", "q": "teacher", "mask": "mask"}
        with LocalTrainingClient("tiny", device="cpu") as client, pytest.raises(pn.InputError, match=remedies):
            forward_backward_custom(
                client,
                [datum(0, 2)],
                None,
                regularizers=[pn.Term(getattr(pn, name), inputs=inputs)],
                references={"teacher": [np.zeros(2)]},
            )

    @pytest.mark.parametrize("name", ["kl_estimate", "entropy_estimate"])
    def test_an_estimate_from_what_was_not_drawn(self, name: str) -> None:
        inputs = "logprobs" if name == "entropy_estimate" else ("logprobs", "teacher")
        with pytest.raises(pn.InputError, match="needs one sampled token per position"):
            forward_backward_custom(
                RemoteClient(),
                [datum(0, 2, 3)],
                None,
                regularizers=[pn.Term(name, inputs=inputs)],
                references={"teacher": [np.zeros((2, 3))]},
            )

    def test_candidates_on_a_server_that_averages(self) -> None:
        client = RemoteClient(averages=True)
        with pytest.raises(pn.InputError, match="datum 0: has 3 targets per position"):
            forward_backward_custom(client, [datum(0, 2, 3)], lambda d, lp: lp[0].sum(), server="averages")
        assert client.calls == []

    @pytest.mark.parametrize(
        ("outputs", "message"),
        [
            (None, "the client returned NoneType; expected an output"),
            ([], "the client returned 0 outputs for 2 data"),
            ([{"logprobs": [-1.0] * 3}, {}], "datum 1: the forward returned nothing; expected logprobs"),
            ([None, {}], "datum 0: the forward returned NoneType; expected logprobs"),
            ([{"logprobs": [[-1.0], [1.0, 2.0]]}, {}], "datum 0: the logprobs of the forward: an array"),
            ([{"logprobs": [-1.0]}, {}], r"datum 0: the forward returned logprobs of shape \(1,\); expected \(3,\)"),
            ([{"logprobs": [-1.0, np.nan, 0.0]}, {}], "datum 0: the forward returned nan in logprobs"),
            ([{"logprobs": [-1.0, -np.inf, 0.0]}, {}], "datum 0: the forward returned inf in logprobs"),
        ],
    )
    def test_forwards_that_went_wrong(self, outputs: Any, message: str) -> None:
        class Output:
            loss_fn_outputs = outputs

        client = RemoteClient()
        client._output = lambda *args: None if outputs is None else Output()  # type: ignore[method-assign]
        with pytest.raises(pn.PenaltiesError, match=message):
            forward_backward_custom(client, batch(3, 2), squared)
        assert [name for name, _ in client.calls] == ["forward"]

    def test_a_gradient_that_is_not_finite_is_not_sent(self) -> None:
        def steep(data: Any, logprobs: Any) -> Any:
            return sum((0 * one).abs().sqrt().sum() for one in logprobs[1:])

        client = RemoteClient()
        with pytest.raises(pn.NonFiniteError, match="datum 1: the gradient of the loss is nan; nothing") as raised:
            forward_backward_custom(client, batch(2, 2), steep)
        assert raised.value.phase == "gradient"
        assert [name for name, _ in client.calls] == ["forward"]

    def test_a_forward_that_fails_is_raised_as_it_is(self) -> None:
        client = RemoteClient()

        def fail() -> None:
            raise ConnectionError("the server is gone")

        client.delay = fail
        with pytest.raises(ConnectionError, match="the server is gone"):
            forward_backward_custom(client, batch(2), squared)

    def test_a_loss_that_fails_sends_nothing(self) -> None:
        client = RemoteClient()
        with pytest.raises(pn.TermError, match="base_loss: raised ZeroDivisionError"):
            forward_backward_custom(client, batch(2), lambda d, lp: 1 / 0)
        assert [name for name, _ in client.calls] == ["forward"]


def test_torch_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(pn.MissingLibraryError, match="torch"):
        forward_backward_custom(RemoteClient(), batch(2), squared)
