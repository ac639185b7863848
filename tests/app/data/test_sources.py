"""Files of every form: the same examples, the same data, and what is wrong with them."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penalties.app.config import DataError
from penalties.app.data import Stream
from penalties.app.data.sources import count
from penalties.training.local.tiny import ByteTokenizer

from ..configs import LINES, config, lines, problems

BYTES = ByteTokenizer()
TEXT = '[data]\npath = "{}"\n{}[train]\nbatch_size = 2\n'


def parquet(path: Path, rows: list[Any]) -> str:
    import pyarrow as pa
    from pyarrow.parquet import write_table

    write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet").name


def folder(path: Path, rows: list[Any]) -> str:
    import datasets

    datasets.Dataset.from_list(rows).save_to_disk(path)
    return path.name


def jsonl(path: Path, rows: list[Any]) -> str:
    return lines(path.with_suffix(".jsonl"), rows).name


FORMS: dict[str, Callable[[Path, list[Any]], str]] = {"jsonl": jsonl, "parquet": parquet, "datasets": folder}
TABLES = {name: write for name, write in FORMS.items() if name != "jsonl"}


@pytest.fixture(autouse=True)
def _quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


def stream(place: Path, name: str, more: str = "") -> Stream:
    return Stream(config(place, TEXT.format(name, more)), BYTES)


@pytest.mark.parametrize("form", FORMS)
class TestEveryForm:
    def test_has_the_same_data(self, tmp_path: Path, form: str) -> None:
        found = stream(tmp_path, FORMS[form](tmp_path / "mine", LINES))
        plain = stream(tmp_path, "lines.jsonl")
        assert [found.batch(step) for step in range(6)] == [plain.batch(step) for step in range(6)]
        assert len(found) == len(plain) == count(str(tmp_path / FORMS[form](tmp_path / "again", LINES)))

    def test_may_hold_messages_and_text(self, tmp_path: Path, form: str) -> None:
        talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
        for key, rows in {"chat": [{"messages": talk}] * 2, "plain": [{"text": "some text"}] * 2}.items():
            assert len(stream(tmp_path, FORMS[form](tmp_path / key, rows)).batch(0)) == 2

    def test_has_a_fingerprint_of_its_contents(self, tmp_path: Path, form: str) -> None:
        first, again, other = (
            stream(tmp_path, FORMS[form](tmp_path / name, rows)).fingerprint
            for name, rows in (("a", LINES), ("b", LINES), ("c", LINES[1:]))
        )
        assert first == again != other

    def test_bad_ones_have_their_number(self, tmp_path: Path, form: str) -> None:
        name = FORMS[form](tmp_path / "mine", [*LINES, {"prompt": "a", "completion": ""}])
        unit = "line" if form == "jsonl" else "row"
        with pytest.raises(DataError, match=f"{unit} 6: completion is empty"):
            stream(tmp_path, name)
        assert len(stream(tmp_path, name, 'on_bad_line = "skip"\n')) == 5


@pytest.mark.parametrize("form", TABLES)
class TestTables:
    def test_columns_that_nobody_reads_are_left_out(self, tmp_path: Path, form: str) -> None:
        rows = [{**line, "score": 0.5} for line in LINES]
        assert len(stream(tmp_path, TABLES[form](tmp_path / "mine", rows))) == 5

    def test_columns_that_say_nothing_are_an_error(self, tmp_path: Path, form: str) -> None:
        name = TABLES[form](tmp_path / "mine", [{"question": "a", "answer": "b"}])
        with pytest.raises(DataError, match="has the columns question and answer; expected prompt, completion,"):
            stream(tmp_path, name)

    def test_an_empty_value_is_an_absent_key(self, tmp_path: Path, form: str) -> None:
        rows = [*LINES, {"prompt": "a", "completion": None}]
        with pytest.raises(DataError, match='row 6: has no "completion"'):
            stream(tmp_path, TABLES[form](tmp_path / "mine", rows))

    def test_a_file_that_changes_under_a_run_is_an_error(self, tmp_path: Path, form: str) -> None:
        made = stream(tmp_path, TABLES[form](tmp_path / "mine", LINES))
        (file,) = (tmp_path / "mine").glob("*.arrow") if form == "datasets" else [tmp_path / "mine.parquet"]
        os.utime(file, ns=(5, 5))
        assert len(made.batch(0)) == 2
        copy = tmp_path / "copy"
        copy.write_bytes(file.read_bytes()[:-1] + b"?")
        # Replaced, not written to: a mapped file must keep its pages.
        copy.replace(file)
        with pytest.raises(DataError, match="file: changed while the run was reading it"):
            made.batch(0)


class TestErrors:
    def test_what_is_not_parquet(self, tmp_path: Path) -> None:
        (tmp_path / "bad.parquet").write_text("nothing")
        with pytest.raises(DataError, match="cannot be read as Parquet"):
            stream(tmp_path, "bad.parquet")
        with pytest.raises(DataError, match="cannot be read as Parquet"):
            count(str(tmp_path / "bad.parquet"))

    def test_what_is_not_a_dataset(self, tmp_path: Path) -> None:
        (tmp_path / "bad").mkdir()
        assert "a folder written by save_to_disk of datasets" in problems(tmp_path, TEXT.format("bad", ""))["data.path"]
        (tmp_path / "bad" / "state.json").write_text("{")
        with pytest.raises(DataError, match="cannot be read as a dataset"):
            stream(tmp_path, "bad")

    def test_several_splits(self, tmp_path: Path) -> None:
        import datasets

        made = datasets.Dataset.from_list(LINES)
        datasets.DatasetDict({"train": made, "test": made}).save_to_disk(tmp_path / "both")
        with pytest.raises(DataError, match="has several splits; expected one: use both/train or both/test"):
            stream(tmp_path, "both")
        assert len(stream(tmp_path, "both/train")) == 5

    def test_a_library_that_is_missing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        name = parquet(tmp_path / "mine", LINES)
        monkeypatch.setattr("penalties.app.config.checks.find_spec", lambda name: None if name == "pyarrow" else name)
        said = problems(tmp_path, TEXT.format(name, ""))["data.path"]
        assert "pip install 'penalties[data]'" in said or 'pip install "penalties[data]"' in said


class TestText:
    def test_every_line_is_learned(self, tmp_path: Path) -> None:
        (tmp_path / "book.txt").write_bytes(b"Call me Ishmael.\r\n\n  Some years ago\n")
        made = stream(tmp_path, "book.txt", "shuffle = false\n")
        assert [BYTES.decode([*one.model_input.to_ints()]) for one in made.batch(0)] == [
            "Call me Ishmael.",
            "  Some years ago",
        ]
        assert all(min(one.loss_fn_inputs["weights"].tolist()) > 0 for one in made.batch(0))
        assert count(str(tmp_path / "book.txt")) == 2

    def test_so_is_the_text_of_json_lines(self, tmp_path: Path) -> None:
        made = stream(tmp_path, jsonl(tmp_path / "mine", [{"text": "abc"}]))
        assert made.batch(0)[0].model_input.to_ints() == [*b"abc"]
        assert made.batch(0)[0].loss_fn_inputs["target_tokens"].tolist() == [*b"bc", 256]

    def test_what_is_not_text_is_a_bad_line(self, tmp_path: Path) -> None:
        (tmp_path / "book.txt").write_bytes(b"a line\n\xff\xfe\n")
        with pytest.raises(DataError, match="line 2: is not UTF-8"):
            stream(tmp_path, "book.txt")

    def test_text_has_no_pairs(self, tmp_path: Path) -> None:
        (tmp_path / "book.txt").write_text("a line\n")
        dpo = '[references]\ninitial = { kind = "initial" }\n[data]\npath = "book.txt"\n[train]\nloss = "dpo"\n'
        with pytest.raises(DataError, match="line 1: is text; expected pairs"):
            Stream(config(tmp_path, dpo), BYTES)


class TestManyBadLines:
    def test_those_past_twenty_are_counted(self, tmp_path: Path) -> None:
        name = lines(tmp_path / "bad.jsonl", [*LINES, *["x"] * 50]).name
        with pytest.raises(DataError) as caught:
            stream(tmp_path, name)
        assert len(caught.value.problems) == 20
        assert caught.value.more == 30
        assert str(caught.value).splitlines()[-1] == "bad.jsonl: and 30 more"
        made = stream(tmp_path, name, 'on_bad_line = "skip"\n')
        assert (len(made.problems), made.bad, len(made)) == (20, 50, 5)

    def test_an_error_keeps_the_count_on_its_way_between_processes(self) -> None:
        import pickle

        error = DataError("a.jsonl", [], 7)
        assert pickle.loads(pickle.dumps(error)).more == 7


class TestLengths:
    def test_tokens_are_counted_and_what_is_cut(self, tmp_path: Path) -> None:
        rows = [{"prompt": "a", "completion": "b" * size} for size in (1, 2, 3, 18)]
        name = jsonl(tmp_path / "mine", rows)
        assert stream(tmp_path, name).lengths() == (4, 4, 20, 20, 0, 0.0)
        assert stream(tmp_path, name, "max_length = 10\n").lengths() == (4, 4, 20, 20, 1, pytest.approx(10 / 32))

    def test_of_very_many_lines_some_are_counted(self, tmp_path: Path) -> None:
        name = "many.jsonl"
        (tmp_path / name).write_text((json.dumps(LINES[0]) + "\n") * 30_000)
        assert stream(tmp_path, name).lengths().measured == 10_000
