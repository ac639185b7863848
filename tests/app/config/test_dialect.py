"""`Pipeline.from_config` and the `[[term]]` tables of a config are one dialect."""

import inspect
import tomllib
from typing import Any, get_args

import pytest

from penalties.app.catalogue.entries import entries
from penalties.app.config.schedules import ScheduleTable
from penalties.app.config.tables import TermTable, WrapTable
from penalties.pipeline import schedules
from penalties.pipeline.config import KEYS
from penalties.pipeline.term import ARGUMENTS
from penalties.pipeline.wrappers import WRAPPERS

EXAMPLES = {entry.name: tomllib.loads(entry.example) for entry in entries() if entry.kind == "schedule"}


def by_kind(union: Any) -> dict[str, Any]:
    tables = get_args(get_args(union)[0])
    return {get_args(table.model_fields["kind"].annotation)[0]: table for table in tables}


def test_terms_have_the_same_keys_except_for_the_base_loss() -> None:
    assert {*TermTable.model_fields, "base"} == set(KEYS)


@pytest.mark.parametrize("key", [key for key in ARGUMENTS if key != "fn"])
def test_terms_have_the_same_defaults(key: str) -> None:
    assert TermTable.model_fields[key].default == ARGUMENTS[key]


@pytest.mark.parametrize("kind", by_kind(ScheduleTable))
def test_schedules_have_the_same_keys(kind: str) -> None:
    (term,) = EXAMPLES[kind]["term"]
    made = schedules.to_config(schedules.from_config(term["schedule"], steps=10))
    assert made.keys() == by_kind(ScheduleTable)[kind].model_fields.keys()


def test_wrappers_have_the_same_keys_and_defaults() -> None:
    tables = by_kind(WrapTable)
    assert tables.keys() == WRAPPERS.keys()
    for kind, table in tables.items():
        parameters = dict(list(inspect.signature(WRAPPERS[kind]).parameters.items())[1:])
        assert table.model_fields.keys() == {"kind", *parameters}
        for name, parameter in parameters.items():
            field = table.model_fields[name]
            assert field.is_required() == (parameter.default is parameter.empty)
            assert field.is_required() or field.default == parameter.default
