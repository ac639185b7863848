"""Reports of runs whose files are not as the program left them."""

from pathlib import Path
from typing import Any

import pytest

from penalties.app.report import make, records
from penalties.app.runs.disk import RunError


def test_a_line_that_cannot_be_read_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log may have hundreds of thousands of them."""

    def slow(line: str) -> Any:
        pytest.fail("parsed again")

    monkeypatch.setattr(records.json, "loads", slow)
    for line in ("no JSON", "[" * 3000, '{"kind": "step", "step": 1, "loss": {"loss_total": 1}'):
        with pytest.raises(ValueError, match="1 validation error"):
            records.parse(line)


@pytest.mark.parametrize(
    "config",
    [
        '{"term": 5}',
        '{"term": [5]}',
        '{"model": "tiny"}',
        '{"backend": []}',
        '{"train": 1}',
        "[]",
        '{"a": ' * 100_000,
        f'{{"a": {"[" * 900}{"]" * 900}}}',
        '{"a": "\\ud800"}',
    ],
)
def test_a_config_that_is_none_costs_only_itself(tmp_path: Path, config: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        '{"kind": "step", "step": 0, "loss": {"loss_total": 1.0, "regularizers": {"a\\ud800": {"value": 1.0}}}}\n'
    )
    (tmp_path / "config.json").write_text(config)
    report = make([tmp_path])
    report.save(tmp_path / "report.html")
    assert "a\\ud800" in (tmp_path / "report.html").read_text()


def test_the_folder_of_a_model_is_not_that_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(RunError, match="is not the folder of a run"):
        make([tmp_path])
