"""check_term: the verdict, and wrong arguments."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties.testing import check_term
from tests.testing.cases import X, lambda_named, wrong_gradient


def test_a_failure_raises_with_the_table() -> None:
    with pytest.raises(AssertionError) as raised:
        check_term(wrong_gradient, np.array([1.0]), edges=(), compile=False)
    lines = str(raised.value).splitlines()
    assert lines[0] == "wrong_gradient: failed: gradient"
    assert lines[1].split() == ["check", "status", "detail"]
    assert [line.split()[0] for line in lines[2:]] == ["value", "gradient", "pickling", "compile", "state"]
    assert not check_term(wrong_gradient, np.array([1.0]), edges=(), raises=False)


def test_a_verdict_does_not_change() -> None:
    verdict = check_term("l1", X)
    with pytest.raises(AttributeError):
        verdict.term = "l2"
    assert replace(verdict, checks=()).ok


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"step": 0.0}, "check_term: step=0.0; expected a finite number above 0, or None"),
        ({"tolerance": -1}, "check_term: tolerance=-1; expected"),
        ({"kinks": 1}, "check_term: kinks=1; expected True or False"),
        ({"compile": "yes"}, 'check_term: compile="yes"; expected True or False'),
        ({"raises": None}, "check_term: raises=None; expected True or False"),
        (
            {"edges": ["zero"]},
            'check_term: edges="zero"; expected zeros, tiny, large, one_row, half, or {name: inputs}',
        ),
        ({"edges": "zeros"}, 'check_term: edges="zeros"; expected names of edges'),
        ({"edges": 3}, "check_term: edges=3; expected names of edges"),
        ({"wrt": 3}, "check_term: wrt=3; expected a name or names of inputs, or None"),
        ({"wrt": "n"}, 'check_term: wrt="n"; expected inputs that hold arrays of floats: x'),
    ],
)
def test_options_out_of_range_raise(options: dict[str, Any], said: str) -> None:
    term = lambda_named(lambda x, n: (x**n).sum())
    with pytest.raises(pn.OptionError) as raised:
        check_term(term, {"x": X, "n": np.array(2)}, **options)
    assert str(raised.value).startswith(said)


def test_missing_inputs_raise() -> None:
    with pytest.raises(pn.InputError, match='kl_divergence: no input is named "q"; given: "p"'):
        check_term("kl_divergence", {"p": X})
    with pytest.raises(pn.InputError, match="check_term: kl_divergence needs p, q; pass a mapping"):
        check_term("kl_divergence", X)
    with pytest.raises(pn.InputError, match='check_term: wrt names "y", which the term does not read; it reads x'):
        check_term("l1", X, wrt="y")
    with pytest.raises(pn.InputError, match="check_term: one needs no input"):
        check_term(pn.Term(lambda: 1.0, name="one", differentiable=False), X)
    with pytest.raises(pn.OptionError, match="expected one of .*l1"):
        check_term("l3", X)


def test_an_async_term_raises() -> None:
    async def later(x):
        return (x**2).sum()

    with pytest.raises(pn.OptionError, match="expected a term that is not async"):
        check_term(later, X)


def test_numpy_is_enough() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['jax'] = None\n"
        "import numpy as np, penalties as pn\n"
        "term = pn.Term(lambda x: pn.Evaluation((x[0]**2).sum(), gradient={'x': [2 * x[0]]}), name='term')\n"
        "print(pn.testing.check_term(term, [np.ones(3)]).ok, pn.testing.check_term('l1', np.ones((2, 2))).ok)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True True", done.stderr
