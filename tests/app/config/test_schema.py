"""The JSON Schema of a config: current, and of one mind with the checks."""

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from penalties.app.catalogue.entries import entries
from penalties.app.config import find
from penalties.app.config.options import SHIPPED, options_of
from penalties.app.config.schema import FILE, schema, written

from ..configs import write
from .test_problems import STRUCTURE

EXAMPLES = {(entry.kind, entry.name): entry.example for entry in entries() if entry.example}
VALIDATOR = jsonschema.Draft202012Validator(schema())


def valid(text: str) -> bool:
    raw = tomllib.loads(text)
    return VALIDATOR.is_valid({"data": {"path": "x"}, **raw})


def test_the_file_is_current() -> None:
    again = "run: penalties schema --out src/penalties/app/config/schema.json"
    assert FILE.read_text(encoding="utf-8") == written(), again


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(written()))


def test_the_demo_is_valid() -> None:
    assert valid(find(None).read_text())


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=map("-".join, EXAMPLES))
def test_examples_are_valid(example: str) -> None:
    assert valid(example)


# Names that are taken are none of its business, and JSON has neither nan nor inf.
IN_ITSELF = [
    text
    for text, where, _ in STRUCTURE
    if where not in ("references.a b", "references.mask") and not text.endswith(("nan", "inf"))
]


@pytest.mark.parametrize("text", IN_ITSELF)
def test_what_is_wrong_in_itself_is_wrong_by_the_schema_too(tmp_path: Path, text: str) -> None:
    raw = tomllib.loads(write(tmp_path, text).read_text())
    assert not VALIDATOR.is_valid(raw)


@pytest.mark.parametrize(
    "text",
    [
        '[[term]]\nfn = "l3"',
        '[train]\nloss = "nothing"',
        '[[term]]\nfn = "kl_estimate"\noptions = { estimator = "k9" }',
        '[[term]]\nfn = "kl_estimate"\noptions = { foo = 1 }',
    ],
)
def test_names_and_options_are_known_to_it(text: str) -> None:
    assert not valid(text)


def test_functions_of_ones_own_may_have_any_options() -> None:
    assert valid('[[term]]\nfn = "mine:term"\noptions = { foo = 1 }')
    assert valid('[train]\nloss = "mine:loss"\nloss_options = { foo = 1 }')


def test_every_key_says_what_it_is() -> None:
    def look(node: Any, place: str) -> None:
        for name, one in node.get("properties", {}).items():
            assert name == "kind" or "description" in one or "$ref" in one, f"{place}.{name}"

    made = schema()
    look(made, "config")
    for name, table in made["$defs"].items():
        assert table["description"]
        look(table, name)


def test_it_knows_no_null() -> None:
    assert "null" not in written()


@pytest.mark.parametrize("name", SHIPPED)
def test_options_of_functions_have_types_and_take_their_defaults(name: str) -> None:
    for option in options_of(SHIPPED[name]).values():
        assert option.allowed
        option.takes.validate_python(option.default)
