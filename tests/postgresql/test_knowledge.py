"""Facts in a PostgreSQL server that really runs, is slow, is stopped, and has hostile names in it."""

import threading
import time

import pytest
import torch

import penalties as pn
from penalties.terms.knowledge import Database, Knowledge, Rule, Table

from .cluster import PASSWORD, Cluster

HOSTILE = 'facts"; DROP TABLE kept; -- %s %(a)s :b \\ '
VALUES = ["'; DROP TABLE facts; --", "%s", "%(a)s", ":subjects", "", "\\", "\\'", "$$", '"', "ß\n\t☃", "x" * 10_000]
FACTS = Table("facts", "subject", "object")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.fixture(autouse=True)
def facts(cluster: Cluster) -> None:
    cluster.execute(
        "DROP SCHEMA public CASCADE",
        "CREATE SCHEMA public",
        "CREATE TABLE facts (subject text, object text)",
        "INSERT INTO facts VALUES ('Bern', 'Switzerland'), ('Bern', 'Europe'), ('Basel', NULL)",
    )


def fails(cluster: Cluster, table: Table, error: type[Exception], message: str, **options: object) -> str:
    with Database(cluster.url(), {"r": table}, **options) as base, pytest.raises(error, match=message) as caught:
        base.objects("r", ["Bern"])
    return str(caught.value)


def test_objects_are_the_rows_of_the_table(cluster: Cluster):
    with Database(cluster.url(), {"lies in": FACTS}) as base:
        found = base.objects("lies in", ["Bern", "Basel", *map(str, range(1200))])
    assert found == {"Bern": frozenset({"Switzerland", "Europe"})}


def test_a_schema_and_a_table_of_triples(cluster: Cluster):
    cluster.execute(
        "DROP SCHEMA IF EXISTS other CASCADE",
        "CREATE SCHEMA other",
        "CREATE TABLE other.triples (s bigint, r text, o bigint)",
        "INSERT INTO other.triples VALUES (1, 'next', 2), (1, 'before', 0)",
    )
    tables = {r: Table("triples", "s", "o", where={"r": r}, schema="other") for r in ("next", "before")}
    with Database(cluster.url(), tables) as base:
        assert base.objects("next", [1, 2]) == {1: frozenset({2})}
        assert base.objects("before", [1]) == {1: frozenset({0})}


def test_values_are_never_part_of_the_query(cluster: Cluster):
    cluster.execute("CREATE TABLE hostile (a text, b text)")
    with Database(cluster.url(), {"r": Table("hostile", "a", "b")}) as base:
        assert base.objects("r", VALUES) == {}
    for value in VALUES:
        with Database(cluster.url(), {"r": Table("facts", "object", "subject", where={"subject": value})}) as base:
            assert base.objects("r", VALUES) == {}
    assert cluster.execute("SELECT count(*) FROM facts") == [[(3,)]]


def test_names_that_look_like_sql_are_names(cluster: Cluster):
    name, column = quoted(HOSTILE), quoted(HOSTILE[:40] + "column")
    cluster.execute(
        "CREATE TABLE kept (a int)",
        f"CREATE TABLE {name} ({column} int, o int)",
        f"INSERT INTO {name} VALUES (1, 2)",
    )
    table = Table(HOSTILE, HOSTILE[:40] + "column", "o", where={"o": 2})
    with Database(cluster.url(), {HOSTILE: table}) as base:
        assert base.objects(HOSTILE, [1]) == {1: frozenset({2})}
    assert cluster.execute("SELECT count(*) FROM kept") == [[(0,)]]


@pytest.mark.parametrize(
    "table",
    [
        Table(HOSTILE, "subject", "object"),
        Table("facts", "subject", "object FROM facts; DROP TABLE facts; --"),
        Table("facts", "subject", "object", where={"1=1 OR subject": 1}),
        Table("facts", "subject", "object", schema='public"."facts; DROP TABLE facts; --'),
        Table("pg_sleep(60)", "subject", "object"),
    ],
)
def test_names_that_do_not_exist_are_an_error_and_nothing_is_run(cluster: Cluster, table: Table):
    fails(cluster, table, pn.OptionError, "expected a")
    assert cluster.execute("SELECT count(*) FROM facts") == [[(3,)]]


def test_what_is_missing_is_named_with_what_is_there(cluster: Cluster):
    fails(cluster, Table("fact", "s", "o"), pn.OptionError, 'table="fact"; expected a table or view: "facts"; did you')
    fails(cluster, Table("facts", "subjekt", "object"), pn.OptionError, 'column="subjekt"; expected .*did you mean s')


def test_a_column_of_another_type_is_an_error(cluster: Cluster):
    cluster.execute("CREATE TABLE numbers (a int, b int)")
    fails(cluster, Table("numbers", "a", "b"), pn.ServiceError, "the types of the columns")


def test_a_view_that_writes_cannot(cluster: Cluster):
    cluster.execute(
        "CREATE TABLE log (a text)",
        "CREATE FUNCTION sneaky() RETURNS text LANGUAGE sql AS $$ INSERT INTO log VALUES ('was here') RETURNING a $$",
        "CREATE VIEW sly AS SELECT 'Bern' AS s, sneaky() AS o",
    )
    fails(cluster, Table("sly", "s", "o"), pn.ServiceError, "read-only transaction")
    assert cluster.execute("SELECT count(*) FROM log") == [[(0,)]]


def test_a_query_that_takes_too_long_is_ended(cluster: Cluster):
    cluster.execute("CREATE VIEW slow AS SELECT 'Bern' AS s, pg_sleep(60)::text AS o")
    began = time.monotonic()
    fails(cluster, Table("slow", "s", "o"), pn.ServiceError, "a query may take 0.3 s: raise timeout=", timeout=0.3)
    assert time.monotonic() - began < 10


def test_errors_never_have_the_password(cluster: Cluster):
    wrong = f"not the {PASSWORD}"
    for url in (
        cluster.url(wrong),
        cluster.url(name="none"),
        cluster.url().replace("127.0.0.1", "none.invalid"),
    ):
        with Database(url, {"r": FACTS}) as base, pytest.raises(pn.PenaltiesError) as caught:
            base.objects("r", ["Bern"])
        shown = f"{caught.value!r} {base!r} {caught.value.__cause__!r}"
        assert "hunter2" not in shown
    assert "owner:***@" in repr(base)


def test_a_connection_that_was_ended_is_opened_again(cluster: Cluster):
    with Database(cluster.url(), {"r": FACTS}) as base:
        assert base.objects("r", ["Bern"])
        cluster.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'owner' AND pid <> pg_backend_pid()"
        )
        assert base.objects("r", ["Bern"])


def test_a_connection_that_is_lost_during_a_query_is_an_error_and_the_next_query_works(cluster: Cluster):
    cluster.execute("CREATE VIEW slow AS SELECT 'Bern' AS s, pg_sleep(30)::text AS o")

    def end_it() -> None:
        ending = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%slow%' AND state = 'active' "
        )
        while not cluster.execute(ending + "AND pid <> pg_backend_pid()")[0]:
            time.sleep(0.05)

    other = threading.Thread(target=end_it)
    with Database(cluster.url(), {"slow": Table("slow", "s", "o"), "r": FACTS}) as base:
        assert base.objects("r", ["Bern"])
        other.start()
        with pytest.raises(pn.ServiceError, match="the connection was lost, and the next query opens another"):
            base.objects("slow", ["Bern"])
        other.join()
        assert base.objects("r", ["Bern"])


def test_a_server_that_is_stopped_is_an_error_until_it_runs_again(cluster: Cluster):
    with Database(cluster.url(), {"r": FACTS}) as base:
        assert base.objects("r", ["Bern"])
        cluster.stop()
        with pytest.raises(pn.ServiceError, match="refused.*; check that it runs"):
            base.objects("r", ["Bern"])
        cluster.start()
        assert base.objects("r", ["Bern"])


@pytest.mark.parametrize("runs", ["inline", "thread", "process"])
def test_a_term_trains_from_it_wherever_it_runs(cluster: Cluster, runs: str):
    facts = [("photo", "shows", "Bern"), ("photo", "shows", "Basel"), ("photo", "taken in", "Switzerland")]
    rule = Rule(("shows", "lies in"), "taken in")
    logits = torch.tensor([1.0, 0.5, -1.0], requires_grad=True)
    with Database(cluster.url(), {"lies in": FACTS}) as base, pn.Executor(max_workers=1) as executor:
        pipeline = pn.Pipeline([pn.Term(Knowledge(base, rules=[rule]), runs=runs, timeout=60)])
        values = []
        for _ in range(20):
            out = executor.run(pipeline, {"p": logits.sigmoid(), "facts": facts})
            logits.grad = None
            out.total.backward()
            with torch.no_grad():
                logits -= logits.grad
            values.append(out.total.item())
    # "Europe" is an object of Bern too, and the model gives it no probability.
    bern, _, switzerland = logits.sigmoid().tolist()
    assert values[-1] < values[0] / 2
    assert bern < 0.3 < switzerland
    assert out.metrics()["knowledge/hits"] == 2
