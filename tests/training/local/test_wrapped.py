"""Penalties with a running mean or scale around them read what they read without."""

from typing import Any

import pytest

import penalties as pn
from penalties.errors import InputError, OptionError
from penalties.training import forward_backward_custom, references
from tests.training.local.cases import WAIT, assert_close, data, gradients, tiny
from tests.training.local.one_pass import LOGITS, OVER_LOGPROBS, flags, reference

TERMS = [
    pn.Term(pn.entropy, weight=0.5, inputs={"p": "logits", "mask": "mask"}, options=LOGITS),
    pn.Term(pn.kl_divergence, weight=0.3, inputs={"p": "logits", "q": "first.logits"}, options=LOGITS),
    pn.Term(pn.kl_divergence, name="likeliest", inputs={"p": "logprobs.top", "q": "top"}),
    *OVER_LOGPROBS,
]


def trained(terms: list[pn.Term], limit: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    batch = data(5, 3, 4, weights=flags)
    first, top = references.initial(), references.initial(top_k=3)
    given = {"teacher": reference(batch), "first": first, "top": top}
    with tiny(micro_batch_tokens=limit) as client:
        passed = forward_backward_custom(client, batch, "cross_entropy", regularizers=terms, references=given)
        return passed.result(WAIT).metrics, gradients(client)


@pytest.mark.parametrize("limit", [None, 8])
def test_the_first_step_of_a_running_mean_is_that_of_the_term_itself(limit: int | None) -> None:
    plain, expected = trained(TERMS, limit)
    metrics, found = trained([pn.EMA(term) for term in TERMS], limit)
    names = [term.name for term in TERMS]
    assert [metrics[name] for name in names] == pytest.approx([plain[name] for name in names], rel=1e-5)
    assert_close(found, expected, 1e-5)


def test_a_wrapped_divergence_over_sampled_tokens_raises_as_any_other() -> None:
    batch = data(3, 2)
    wrapped = pn.Normalized(pn.Term(pn.kl_divergence, inputs=("logprobs", "teacher")))
    with tiny() as client, pytest.raises(InputError, match="kl_divergence needs full distributions"):
        forward_backward_custom(client, batch, None, regularizers=[wrapped], references={"teacher": reference(batch)})
    with tiny() as client, pytest.raises(OptionError, match="these are logits, not logprobs"):
        forward_backward_custom(client, batch, None, regularizers=[pn.EMA(pn.Term(pn.entropy, inputs="logits"))])
