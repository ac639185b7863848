"""Mistakes that would train something else than was meant are found by `debug` and by `check`."""

import gc
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn

ENTROPY = pn.Pipeline([pn.Term(pn.entropy, inputs="logprobs")])
LOGITS = np.array([[2.0, -1.0, 0.5], [0.1, 0.2, 0.3]])
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)


def log_softmax(x: Any) -> Any:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


class TestNormalisation:
    @pytest.mark.parametrize(
        ("given", "named"),
        [(LOGITS, "logits"), (PROBABILITIES, "probabilities"), (log_softmax(LOGITS) - 1, "not sum to 1")],
    )
    def test_what_is_not_log_probabilities(self, library: Any, given: Any, named: str) -> None:
        given = library.array(given)
        with pn.debug(), pytest.raises(pn.CheckError, match=f"entropy: logprobs holds .*{named}"):
            ENTROPY(logprobs=given)
        with pytest.raises(pn.CheckError, match=named):
            ENTROPY(logprobs=given).check()

    def test_options_that_make_an_input_a_distribution(self, library: Any) -> None:
        given = {"a": library.array(PROBABILITIES), "b": library.array(log_softmax(LOGITS))}
        with pn.debug():
            pn.Pipeline([pn.consistency])(**given)
            with pytest.raises(pn.CheckError, match="consistency: a holds probabilities"):
                pn.Pipeline([pn.Term(pn.consistency, options={"metric": "kl"})])(**given)

    def test_an_array_in_a_mapping_that_is_still_there(self, library: Any) -> None:
        heads = {"policy": library.array(PROBABILITIES)}
        out = pn.Pipeline([pn.Term(pn.entropy, inputs="heads.policy")])(heads=heads)
        with pytest.raises(pn.CheckError, match=r"entropy: heads\.policy holds probabilities"):
            out.check()

    def test_log_probabilities_pass(self, library: Any) -> None:
        given = library.array(log_softmax(LOGITS))
        with pn.debug():
            out = ENTROPY(logprobs=given)
        assert out.check() is out

    def test_impossible_classes_pass(self, library: Any) -> None:
        given = library.array([[0.0, -np.inf]])
        with pn.debug():
            ENTROPY(logprobs=given)

    @pytest.mark.parametrize("options", [{"logits": True}, {"temperature": 2.0}])
    def test_a_penalty_that_normalises_takes_logits(self, library: Any, options: dict[str, Any]) -> None:
        given = library.array(LOGITS)
        with pn.debug():
            pn.Pipeline([pn.Term(pn.entropy, options=options)])(p=given)

    def test_padding_does_not_count(self, library: Any) -> None:
        rows = library.array(np.concatenate([log_softmax(LOGITS), LOGITS]))
        mask = library.array([1.0, 1.0, 0.0, 0.0])
        masked = pn.Pipeline([pn.Term(pn.entropy, inputs={"p": "p", "mask": "mask"})])
        with pn.debug():
            masked(p=rows, mask=mask)
            with pytest.raises(pn.CheckError, match="logits"):
                masked(p=rows, mask=mask + 1)

    def test_half_precision_passes(self) -> None:
        logits = torch.randn(8, 32_000, generator=torch.Generator().manual_seed(0))
        with pn.debug():
            ENTROPY(logprobs=logits.log_softmax(-1).bfloat16())


class TestInputs:
    def test_one_that_no_term_reads(self, library: Any) -> None:
        x = library.array([1.0])
        with pn.debug(), pytest.raises(pn.CheckError, match='no term reads the input "y"'):
            pn.Pipeline(["l1"])(x=x, y=x)
        with pytest.raises(pn.CheckError, match='"y"'):
            pn.Pipeline(["l1"])(x=x, y=x).check()

    def test_paths_and_disabled_terms_read(self, library: Any) -> None:
        x = library.array([1.0])
        pipeline = pn.Pipeline([pn.Term(pn.l1, inputs="heads.policy"), pn.Term(pn.l2, inputs="y")]).disable("l2")
        with pn.debug():
            pipeline(heads={"policy": x}, y=x).check()

    def test_nan_inside_a_nest(self, library: Any) -> None:
        nest = {"a": library.array([1.0]), "b": [library.array([np.nan])]}
        with pn.debug(), pytest.raises(pn.CheckError, match='the input "params" contains NaN'):
            pn.Pipeline([pn.Term(pn.l1, inputs="params")])(params=nest)

    def test_nan_as_a_plain_number(self, library: Any) -> None:
        pipeline = pn.Pipeline([pn.Term(lambda x, scale: x.sum() * scale, name="scaled")])
        with pn.debug(), pytest.raises(pn.CheckError, match='the input "scale" contains NaN'):
            pipeline(x=library.array([1.0]), scale=float("nan"))

    def test_every_finding_has_a_line(self, library: Any) -> None:
        with pn.debug(), pytest.raises(pn.CheckError) as caught:
            ENTROPY(logprobs=library.array(LOGITS), broken=library.array([np.nan]))
        assert len(caught.value.findings) == len(str(caught.value).splitlines()) == 3

    def test_whole_numbers_have_no_nan(self) -> None:
        labels = torch.tensor([1, 2])
        with pn.debug():
            pn.Pipeline([pn.Term(lambda x: x.sum().float(), name="own", differentiable=False)])(x=labels)


class TestState:
    def test_state_that_is_not_passed_in_again(self, library: Any) -> None:
        x = library.array([1.0, 2.0])
        pipeline = pn.Pipeline([pn.EMA(pn.Term(pn.l1, name=f"lost_{library.name}"), decay=0.5)])
        with pn.debug():
            out = pipeline(x)
            pipeline(x, state=out.state)
            pipeline(x, state={})
            with pytest.raises(pn.CheckError, match="takes state"):
                pipeline(x)

    def test_other_weights_at_each_step_are_the_same_run(self, library: Any) -> None:
        x = library.array([1.0, 2.0])
        pipeline = pn.Pipeline([pn.EMA(pn.Term(pn.l1, name=f"moved_{library.name}"))])
        with pn.debug():
            pipeline(x)
            with pytest.raises(pn.CheckError, match="takes state"):
                pipeline.with_weights({pipeline.names[0]: 0.5})(x)


class TestScope:
    def test_off_by_default_and_after_the_block(self, library: Any) -> None:
        given = library.array(LOGITS)
        ENTROPY(logprobs=given)
        with pn.debug():
            pass
        ENTROPY(logprobs=given)

    def test_by_the_environment(self, library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        given = library.array(LOGITS)
        monkeypatch.setenv("PENALTIES_DEBUG", "1")
        with pytest.raises(pn.CheckError):
            ENTROPY(logprobs=given)
        with pn.debug(False):
            ENTROPY(logprobs=given)

    def test_nothing_is_checked_while_tracing(self) -> None:
        with pn.debug():
            compiled = torch.compile(lambda p: ENTROPY.total(logprobs=p), fullgraph=True, backend="aot_eager")
            compiled(torch.as_tensor(LOGITS))

    def test_an_output_does_not_keep_its_inputs_alive(self) -> None:
        import weakref

        x = torch.ones(3)
        seen = weakref.ref(x)
        out = pn.Pipeline(["l1"])(x=x)
        del x
        gc.collect()
        assert seen() is None
        assert out.check() is out

    def test_a_check_error_survives_pickling(self) -> None:
        import pickle

        error = pickle.loads(pickle.dumps(pn.CheckError(["one", "two"])))
        assert error.findings == ["one", "two"]


class TestWrapped:
    def test_a_running_mean_of_a_divergence(self, library: Any) -> None:
        pipeline = pn.Pipeline([pn.EMA(pn.Term(pn.entropy, name=f"mean_{library.name}"))])
        with pn.debug(), pytest.raises(pn.CheckError, match="holds logits"):
            pipeline(p=library.array(LOGITS))


class TestLoops:
    def test_what_a_training_step_offers_need_not_be_read(self) -> None:
        model = torch.nn.Linear(2, 1)
        step = pn.train_step(
            model,
            torch.nn.functional.mse_loss,
            pn.Pipeline([pn.Term(pn.l2, inputs="prediction")]),
            torch.optim.SGD(model.parameters(), lr=0.1),
        )
        with pn.debug():
            step(torch.ones(3, 2), torch.ones(3, 1))


def test_flags_do_not_stand_in_for_inputs(library: Any) -> None:
    logits = library.array(LOGITS)
    pipeline = pn.Pipeline([pn.Term(pn.entropy, inputs="logprobs"), pn.Term(pn.l2, inputs="logits")])
    pipeline(logits=logits, logprobs=library.array(log_softmax(LOGITS)))
    with pytest.raises(pn.InputError, match="mask"):
        pipeline(logits=logits, logprobs=logits, mask=library.array([1.0, 0.0]))
