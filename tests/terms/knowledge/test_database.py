"""Facts in an SQLite file: real databases, and hostile names."""

import multiprocessing
import pickle
import re
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy

import penalties as pn
from penalties.terms.knowledge import Base, Database, Knowledge, Table
from penalties.terms.knowledge.engine import open_engine, parsed

HOSTILE = 'facts"; DROP TABLE kept; -- %s %(a)s :b ? \\ '
VALUES = ["'; DROP TABLE facts; --", "Robert'); --", "%s", ":subjects", "", "\\", "'", '"', "ß\n\t☃", "x" * 10_000]

FACTS = Table("facts", "subject", "object")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def write(path: Path, rows: Iterable[tuple[Any, Any]] = (("Bern", "Switzerland"), ("Bern", "Europe"))) -> str:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE facts (subject, object)")
        connection.executemany("INSERT INTO facts VALUES (?, ?)", rows)
    return f"sqlite:///{path}"


def execute(path: Path, *statements: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return [connection.execute(statement).fetchall() for statement in statements]


def fails(url: str, table: Table, subjects: list[Any], error: type[Exception], message: str, **options: Any) -> None:
    with Database(url, {"r": table}, **options) as base, pytest.raises(error, match=message):
        base.objects("r", subjects)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "facts.db"


def test_objects_are_the_rows_of_the_table(path: Path):
    with Database(write(path), {"lies in": FACTS}) as base:
        assert isinstance(base, Base)
        assert list(base.relations) == ["lies in"]
        assert base.objects("lies in", ["Bern", "Springfield"]) == {"Bern": frozenset({"Switzerland", "Europe"})}
        assert base.objects("lies in", []) == {}


def test_more_subjects_than_a_query_has_parameters(path: Path):
    with Database(write(path, ((n, n % 7) for n in range(70_000))), {"r": FACTS}) as base:
        found = base.objects("r", range(0, 70_000, 20))
    assert len(found) == 3500
    assert all(objects == {subject % 7} for subject, objects in found.items())


def test_a_table_of_triples_has_a_relation_for_each_value(path: Path):
    execute(
        path, "CREATE TABLE t (s, r, o)", "INSERT INTO t VALUES (1, 'next', 2), (1, 'before', 0), (1, 'next', NULL)"
    )
    tables = {name: Table("t", "s", "o", where={"r": name}) for name in ("next", "before")}
    with Database(f"sqlite:///{path}", tables) as base:
        assert base.objects("next", [1]) == {1: frozenset({2})}
        assert base.objects("before", [1, 2]) == {1: frozenset({0})}


def test_views_are_read_too(path: Path):
    url = write(path)
    execute(path, "CREATE VIEW lower AS SELECT lower(subject) AS s, lower(object) AS o FROM facts")
    with Database(url, {"r": Table("lower", "s", "o", schema="main")}) as base:
        assert base.objects("r", ["bern"]) == {"bern": frozenset({"switzerland", "europe"})}


@pytest.mark.parametrize(
    ("kind", "there", "asked"), [("TEXT", "7", 7), ("INTEGER", 7, "7"), ("TEXT COLLATE NOCASE", "Bern", "bern")]
)
def test_a_subject_that_only_the_database_takes_for_the_same_is_an_error(path: Path, kind: str, there: Any, asked: Any):
    execute(path, f"CREATE TABLE typed (s {kind}, o)")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO typed VALUES (?, 'x')", (there,))
    message = f"facts about the {type(there).__name__} {there}, which the database takes for a subject of another type"
    fails(f"sqlite:///{path}", Table("typed", "s", "o"), [asked, "Basel"], pn.ServiceError, message)
    with Database(f"sqlite:///{path}", {"r": Table("typed", "s", "o")}) as base:
        assert base.objects("r", [there]) == {there: frozenset({"x"})}


def test_values_are_never_part_of_the_query(path: Path):
    rows = [(value, value) for value in VALUES]
    with Database(write(path, rows), {"r": FACTS}) as base:
        assert base.objects("r", VALUES) == {value: frozenset({value}) for value in VALUES}
    assert execute(path, "SELECT count(*) FROM facts") == [[(len(VALUES),)]]


@pytest.mark.parametrize("value", VALUES)
def test_values_of_other_columns_are_never_part_of_the_query(path: Path, value: str):
    write(path, [(value, "a"), ("b", "c")])
    with Database(f"sqlite:///{path}", {"r": Table("facts", "object", "subject", where={"subject": value})}) as base:
        assert base.objects("r", ["a", "c"]) == {"a": frozenset({value})}


def test_names_that_look_like_sql_are_names(path: Path):
    name, column = quoted(HOSTILE), quoted(HOSTILE + "column")
    execute(path, "CREATE TABLE kept (a)", f"CREATE TABLE {name} ({column}, o)", f"INSERT INTO {name} VALUES (1, 2)")
    table = Table(HOSTILE, HOSTILE + "column", "o", where={HOSTILE + "column": 1})
    with Database(f"sqlite:///{path}", {HOSTILE: table}) as base:
        assert base.objects(HOSTILE, [1]) == {1: frozenset({2})}
    assert execute(path, "SELECT * FROM kept") == [[]]


@pytest.mark.parametrize(
    "table",
    [
        Table(HOSTILE, "subject", "object"),
        Table("facts", HOSTILE, "object"),
        Table("facts", "subject", "object FROM facts; --"),
        Table("facts", "subject", "object", where={"1=1 OR subject": 1}),
        Table("facts) --", "subject", "object"),
        Table("facts", "subject", "object", schema="main.facts; --"),
    ],
)
def test_names_that_do_not_exist_are_an_error_and_nothing_is_run(path: Path, table: Table):
    fails(write(path), table, ["Bern"], pn.PenaltiesError, ".")
    assert execute(path, "SELECT count(*) FROM facts") == [[(2,)]]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (Table("fact", "s", "o"), 'table="fact"; expected a table or view: "facts"; did you mean facts?'),
        (
            Table("facts", "subjekt", "object"),
            'column="subjekt"; expected a column of the table "facts": "subject"',
        ),
    ],
)
def test_what_is_missing_is_named_with_what_is_there(path: Path, table: Table, message: str):
    fails(write(path), table, ["Bern"], pn.OptionError, re.escape(message))


def test_a_relation_that_has_no_table_is_an_error(path: Path):
    expected = 'relation="lies on"; expected "lies in"; did you mean lies in'
    with Database(write(path), {"lies in": FACTS}) as base, pytest.raises(pn.OptionError, match=expected):
        base.objects("lies on", ["Bern"])


def test_what_others_write_is_seen(path: Path):
    with Database(write(path), {"r": FACTS}) as base:
        base.objects("r", ["Bern"])
        execute(path, "INSERT INTO facts VALUES ('Bern', 'Earth')")
        assert base.objects("r", ["Bern"])["Bern"] == {"Switzerland", "Europe", "Earth"}


def test_its_connections_can_only_read(path: Path):
    engine = open_engine(parsed(write(path)), 1.0)
    with engine.connect() as connection, pytest.raises(sqlalchemy.exc.OperationalError, match="readonly database"):
        connection.execute(sqlalchemy.text("DELETE FROM facts"))
    engine.dispose()


def test_a_file_that_is_missing_is_not_made(tmp_path: Path):
    fails(f"sqlite:///{tmp_path}/none.db", FACTS, ["Bern"], pn.ServiceError, "none.db: there is no such file; check")
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_database_is_an_error(path: Path):
    path.write_bytes(b"no database at all, but long enough to look at" * 100)
    fails(f"sqlite:///{path}", FACTS, ["Bern"], pn.ServiceError, "not a database")


def test_a_query_that_takes_too_long_is_ended(path: Path):
    slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1e9) SELECT i AS s, i AS o FROM n"
    execute(path, f"CREATE VIEW slow AS {slow}", "CREATE TABLE facts AS SELECT 1 AS subject, 2 AS object")
    tables = {"slow": Table("slow", "s", "o"), "r": FACTS}
    with Database(f"sqlite:///{path}", tables, timeout=0.2) as base:
        with pytest.raises(pn.ServiceError, match=r"interrupted; a query may take 0.2 s: raise timeout="):
            base.objects("slow", [0])
        # The next query has its own time.
        assert base.objects("r", [1]) == {1: frozenset({2})}


def test_a_locked_database_is_waited_for_and_then_an_error(path: Path):
    url = write(path)
    with closing(sqlite3.connect(path)) as other, Database(url, {"r": FACTS}, timeout=0.1) as base:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(pn.ServiceError, match="database is locked"):
            base.objects("r", ["Bern"])
        other.rollback()
        assert base.objects("r", ["Bern"])


def test_the_number_of_facts_is_bounded(path: Path):
    url, message = write(path, ((1, n) for n in range(11))), 'more than 10 facts of "r" about 1 subjects; raise most='
    fails(url, FACTS, [1], pn.ServiceError, message, most=10)


@pytest.mark.parametrize("value", [1.5, b"bytes"])
def test_what_is_no_name_is_an_error(path: Path, value: Any):
    message = "expected strings and whole numbers: read a view that casts"
    fails(write(path, [(1, value)]), FACTS, [1], pn.ServiceError, message)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://user:hunter2@host/name",
        "postgresql+pg8000://user:hunter2@host/name",
        "user:hunter2@host",
        "postgresql://user:hunter2@host:port/name",
        "nothing+at+all://user:hunter2@host",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?cache=shared&uri=true&key=hunter2",
        12,
    ],
)
def test_a_wrong_url_is_an_error_without_its_password(url: Any):
    with pytest.raises(pn.OptionError, match="Database: url=.*; expected") as caught:
        Database(url, {"r": FACTS})
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value)


@pytest.mark.parametrize(
    "options", [{"tables": {"r": "facts"}}, {"tables": FACTS}, {"timeout": 0}, {"timeout": "1"}, {"most": 0}]
)
def test_a_wrong_option_is_an_error(options: dict[str, Any]):
    with pytest.raises(pn.OptionError, match=f"Database: {next(iter(options))}="):
        Database(**{"url": "sqlite:///facts.db", "tables": {"r": FACTS}, **options})


@pytest.mark.parametrize(
    "arguments", [("", "s", "o"), ("t", 1, "o"), ("t", "s", None), ("t", "s", "o", {1: 2}), ("t", "s", "o", {}, "")]
)
def test_a_table_needs_names(arguments: Any):
    with pytest.raises(pn.OptionError, match="Table: "):
        Table(*arguments)


def test_it_travels_closed_and_opens_where_it_arrives(path: Path):
    with Database(write(path), {"r": FACTS}) as base:
        base.objects("r", ["Bern"])
        with pickle.loads(pickle.dumps(base)) as there:
            assert there.objects("r", ["Bern"]) == base.objects("r", ["Bern"])


def asked(base: Database, answers: Any) -> None:
    answers.put(sorted(base.objects("r", ["Bern"])["Bern"]))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_each_process_opens_it_itself(path: Path, method: str):
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    with Database(write(path), {"r": FACTS}) as base:
        base.objects("r", ["Bern"])
        process = context.Process(target=asked, args=(base, answers))
        process.start()
        assert answers.get(timeout=60) == ["Europe", "Switzerland"]
        process.join()
        assert base.objects("r", ["Bern"])


def test_threads_share_it(path: Path):
    found: list[Any] = []
    with Database(write(path, ((n, n) for n in range(100))), {"r": FACTS}) as base:
        work: Callable[[], None] = lambda: found.extend(base.objects("r", [n]) for n in range(100))
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 400
    assert all(objects == {subject} for one in found for subject, objects in one.items())


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(pn.MissingLibraryError, match=r'sqlalchemy: pip install "penalties\[knowledge\]"'):
        Database("sqlite:///facts.db", {"r": FACTS})


def test_in_a_term_an_error_is_the_terms(path: Path):
    with Database(f"sqlite:///{path}", {"r": FACTS}) as base:
        inputs = {"p": np.array([0.5]), "facts": [("a", "r", "b")]}
        skipped = pn.Pipeline([pn.Term(Knowledge(base, closed=["r"]), on_error="skip", differentiable=False)])
        with pn.Executor(sequential=True) as executor:
            out = executor.run(skipped, inputs)
        assert "ServiceError: the database sqlite:///" in str(out["knowledge"].error)
