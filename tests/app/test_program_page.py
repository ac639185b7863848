"""The page about the program says what the program says of itself."""

import re
import tomllib
from pathlib import Path

import pytest

from penalties.app.catalogue.entries import Entry, entries
from penalties.app.cli import COMMANDS
from penalties.app.config import find

PAGE = (Path(__file__).parents[2] / "docs" / "program.md").read_text()
TABLES = [entry for entry in entries() if entry.kind == "table" and entry.name != "references" and entry.values]
KINDS = [entry for entry in entries() if entry.kind in ("reference", "schedule", "sink")]


@pytest.mark.parametrize("table", [one for one in TABLES if one.name != "sinks"], ids=lambda one: one.name)
def test_every_key_of_a_table_is_there_with_its_default(table: Entry) -> None:
    (section,) = re.findall(rf"^### {table.name}\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", section, re.MULTILINE)
    defaults = {"": "must be given", "not set": "–"}
    wanted = [(one.name, defaults.get(one.default, f"`{one.default}`"), one.meaning) for one in table.values]
    assert rows[: len(wanted)] == wanted


@pytest.mark.parametrize("entry", KINDS, ids=lambda one: f"{one.kind}-{one.name}")
def test_every_kind_is_there_with_its_keys(entry: Entry) -> None:
    keys = ", ".join(f"`{one.name}`" for one in entry.values) or "–"
    assert f"| `{entry.name}` | {entry.summary} | {keys} |" in PAGE


def test_the_config_on_the_page_is_the_one_that_is_built_in() -> None:
    first = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
    assert tomllib.loads(first) == tomllib.loads(find(None).read_text())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_there(command: str) -> None:
    assert f"`penalties {command}" in PAGE
