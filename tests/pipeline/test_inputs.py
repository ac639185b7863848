"""How terms find their inputs, and the mistakes that would go unnoticed."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penalties as pn


class TestPaths:
    @pytest.mark.parametrize(
        ("path", "found"),
        [
            ("params.fc.weight", 1.0),
            ("params.fc.bias", 2.0),
            ("params.layers.0", 3.0),
            ("params.block.norm.scale", 5.0),
            ("params.block.norm.scale.raw", 6.0),
        ],
    )
    def test_keys_may_have_dots(self, library: Any, path: str, found: float) -> None:
        params = {
            "fc.weight": library.array([1.0]),
            "fc": {"weight": library.array([9.0]), "bias": library.array([2.0])},
            "layers": [library.array([3.0])],
            "block": {"norm.scale": library.array([5.0]), "norm": {"scale.raw": library.array([6.0])}},
        }
        if path.endswith("raw"):
            del params["block"]["norm.scale"]
        assert pn.Pipeline([pn.Term(pn.l1, inputs=path)])(params=params).read().total == found

    def test_parameters_of_a_model_by_name(self) -> None:
        torch = pytest.importorskip("torch")
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        pipeline = pn.Pipeline([pn.Term(pn.l2, inputs="params.1.weight")])
        out = pipeline.value_and_grad(params=dict(model.named_parameters()), wrt="params.1.weight")
        torch.testing.assert_close(out.gradient["params.1.weight"], 2 * model[1].weight)

    def test_a_parameter_dict(self) -> None:
        torch = pytest.importorskip("torch")
        params = torch.nn.ParameterDict({"scale": torch.ones(3)})
        assert pn.Pipeline([pn.Term(pn.l1, inputs="params.scale")])(params=params).read().total == 3.0

    @pytest.mark.parametrize(
        ("inputs", "path", "message"),
        [
            ({"params": 1}, "parms", r'no input is named "parms"; given: "params"; did you mean params\?'),
            ({"params": 1}, "other", 'no input is named "other"; given: "params"'),
            (
                {"params": {"fc": 1}},
                "parms.fc",
                r'no input is named "parms.fc"; given: "params"; did you mean params\?',
            ),
            ({"out": SimpleNamespace(logits=1)}, "out.lgits", r'no part "lgits"; .*; did you mean logits\?'),
            (
                {"params": {"fc.weight": 1}},
                "params.fc.wieght",
                r'no part "fc"; params holds .*did you mean fc.weight\?',
            ),
            (
                {"params": {"fc": {"bias": 1}}},
                "params.fc.bais",
                r'no part "bais"; .*; did you mean bias\?',
            ),
            ({"params": [1]}, "params.1", 'no part "1"; params holds 1 elements'),
            ({"params": {}}, "params.fc", 'no part "fc"; params holds nothing'),
            ({"params": 1.0}, "params.fc", 'no part "fc"; params holds a float'),
        ],
    )
    def test_a_path_that_leads_nowhere(self, inputs: Any, path: str, message: str) -> None:
        with pytest.raises(pn.InputError, match=message):
            pn.Pipeline([pn.Term(pn.l1, inputs=path)])(**inputs)

    def test_a_misspelt_name_in_wrt(self, autodiff: Any) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l1, inputs="student")])
        with pytest.raises(pn.InputError, match=r'no input is named "studnet"; .*; did you mean student\?'):
            pipeline.value_and_grad(student=autodiff.array([1.0]), wrt="studnet")


P = np.log(np.array([[0.5, 0.5], [0.9, 0.1]]))
Q = np.log(np.array([[0.5, 0.5], [0.1, 0.9]]))
MASK = np.array([1.0, 0.0])


class TestUnmapped:
    def test_a_mask_that_nobody_reads(self) -> None:
        with pytest.raises(pn.InputError) as caught:
            pn.Pipeline([pn.Term(pn.kl_divergence, name="kl")])(p=P, q=Q, mask=MASK)
        message = str(caught.value)
        assert message.startswith('kl: the call has an input "mask"')
        assert 'inputs={"p": "p", "q": "q", "mask": "mask"}' in message
        assert 'options={"mask": …}' in message

    def test_the_remedies_work(self) -> None:
        mapped = pn.Term(pn.kl_divergence, inputs={"p": "p", "q": "q", "mask": "mask"})
        assert pn.Pipeline([mapped])(p=P, q=Q, mask=MASK).read().total == 0.0
        unmasked = pn.Term(pn.kl_divergence, options={"mask": None})
        assert pn.Pipeline([mapped, unmasked.replace(name="all")])(p=P, q=Q, mask=MASK)["all"].value > 0.5
        plain = pn.Term(pn.kl_divergence)
        assert pn.Pipeline([mapped.replace(name="masked", inputs=dict(mapped.inputs, mask="kept")), plain])(
            p=P, q=Q, kept=MASK
        ).names == ("masked", "kl_divergence")

    @pytest.mark.parametrize("wrap", [pn.EMA, pn.Normalized, lambda term: pn.EMA(pn.Normalized(term))])
    def test_inside_a_wrapper(self, wrap: Any) -> None:
        with pytest.raises(pn.InputError, match='kl_estimate: the call has an input "mask"'):
            pn.Pipeline([wrap(pn.Term(pn.kl_estimate))])(logprobs=P, reference=Q, mask=P)

    def test_in_the_base(self) -> None:
        def fit(prediction: Any, scale: float = 1.0) -> Any:
            return scale * prediction.sum()

        with pytest.raises(pn.InputError, match='base_loss: the call has an input "scale"'):
            pn.Pipeline(["l1"], base=fit)(x=P, prediction=P, scale=P)

    def test_with_gradients(self, autodiff: Any) -> None:
        x = autodiff.array([-1.0])
        with pytest.raises(pn.InputError, match="the call has an input"):
            pn.Pipeline([pn.kl_estimate]).value_and_grad(logprobs=x, reference=x, mask=x, wrt="logprobs")

    def test_terms_that_are_off_do_not_count(self) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.kl_estimate, enabled=False), pn.Term(pn.l1, inputs="mask")])
        assert pipeline(logprobs=P, reference=Q, mask=MASK).read().total == 1.0
        with pytest.raises(pn.InputError, match="kl_estimate"):
            pipeline.enable("kl_estimate")(logprobs=P, reference=Q, mask=MASK)

    def test_what_a_term_has_to_say(self) -> None:
        assert pn.Term(pn.l1).unmapped == frozenset()
        assert pn.Term(pn.l2, options={"reduction": "mean"}).unmapped == {"center", "clip"}
        assert pn.Term(pn.kl_estimate).unmapped == {"mask"}
        assert pn.Term(pn.kl_estimate, inputs={"logprobs": "a", "reference": "b", "mask": "m"}).unmapped == frozenset()
        assert pn.Term(lambda x, state=None, step=None: x, name="own").unmapped == frozenset()

    def test_one_positional_input_has_no_name(self) -> None:
        assert pn.Pipeline([pn.Term(lambda x, input=2.0: x.sum(), name="own")])(np.ones(2)).read().total == 2.0
