"""The values that a search may try, as the command line has them."""

import pytest

from penalties.app.runs.disk import RunError
from penalties.app.search import Range, range_of


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("kl.weight=log(1e-3,1)", "log", (0.001, 1.0)),
        ("kl.weight = uniform( -1 , 2.5 )", "uniform", (-1.0, 2.5)),
        ("train.batch_size=int(4,64)", "int", (4, 64)),
        ("model.rank=4, 8,16", "choice", (4, 8, 16)),
        ("kl.enabled=true,false", "choice", (True, False)),
        ("train.loss=cross_entropy,dft", "choice", ("cross_entropy", "dft")),
    ],
)
def test_a_range_is_read(text: str, kind: str, values: tuple[object, ...]) -> None:
    found = range_of(text)
    assert (found.kind, found.values) == (kind, values)
    assert range_of(str(found)) == found


def test_a_value_is_set_as_it_is() -> None:
    assert Range("a.b", "log", (0.1, 1.0)).setting(1e-05) == "a.b=1e-05"
    assert range_of("kl.enabled=true,false").ends == ["kl.enabled=true", "kl.enabled=false"]
    assert range_of("a.b=x,y").setting("x") == "a.b=x"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kl.weight", "expected a key and a range, such as kl.weight=log"),
        ("=log(1,2)", "expected a key and a range"),
        ("kl.weight=", "expected a key and a range"),
        ("kl.weight=lin(0,1)", "expected a key and a range"),
        ("kl.weight=log(0.1)", "expected a key and a range"),
        ("kl.weight=log(a,b)", "expected a key and a range"),
        ("kl.weight=int(0.5,2)", "expected a key and a range"),
        ("kl.weight=log(0,1)", r"expected log\(low,high\) with 0 < low < high"),
        ("kl.weight=uniform(1,1)", r"expected uniform\(low,high\) with low < high"),
        ("kl.weight=uniform(0,inf)", "with low < high"),
        ("kl.weight=1", "expected at least two different values"),
        ("kl.weight=1,1", "expected at least two different values"),
        ("kl.weight=1,,2", "expected at least two different values"),
    ],
)
def test_anything_else_is_an_error(text: str, told: str) -> None:
    with pytest.raises(RunError, match=f"--over {text.partition('(')[0]}.*{told}") as raised:
        range_of(text)
    assert raised.value.status == 2
