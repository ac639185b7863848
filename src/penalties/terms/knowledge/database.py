"""A SQL database as a knowledge base."""

import os
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Self

from ...errors import OptionError, ServiceError, did_you_mean, said
from ...functional.options import POSITIVE, check_count, check_number
from ...pipeline.kinds import is_mapping
from ...training.libraries import library
from .base import Thing, is_thing
from .engine import address, open_engine, parsed
from .table import Table

__all__ = ["Database"]

_SUBJECTS: Final = 500
"""In one query: databases limit the number of parameters."""


class Database:
    """Facts in an SQLite file or in PostgreSQL, read by SQLAlchemy.

    It is opened at the first query, once in each process, and only read. Values are parameters of queries and never
    part of their text; names of tables and columns are looked up first, and quoted.

    - `url`: such as `"sqlite:///facts.db"` or `"postgresql+psycopg://user@host/name"`.
    - `tables`: where the facts of each relation are.
    - `timeout`: seconds that a query may take.
    - `most`: facts that the answer to one query may have.

    >>> import sqlite3, tempfile
    >>> from contextlib import closing
    >>> from penalties.terms.knowledge import Database, Table
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with closing(sqlite3.connect(f"{folder}/facts.db")) as connection, connection:
    ...         _ = connection.execute("CREATE TABLE capitals (city TEXT, country TEXT)")
    ...         _ = connection.execute("INSERT INTO capitals VALUES ('Bern', 'Switzerland')")
    ...     tables = {"capital of": Table("capitals", "city", "country")}
    ...     with Database(f"sqlite:///{folder}/facts.db", tables) as base:
    ...         print(base.objects("capital of", ["Bern", "Springfield"]))
    {'Bern': frozenset({'Switzerland'})}
    """

    def __init__(self, url: str, tables: Mapping[str, Table], *, timeout: float = 10.0, most: int = 100_000) -> None:
        """Check the options; nothing is opened yet."""
        self._url = parsed(url)
        if not is_mapping(tables) or not all(isinstance(table, Table) for table in tables.values()):
            raise OptionError("Database", "tables", tables, "a mapping from relations to Table(name, subject, object)")
        self._tables = dict(tables)
        expected = "seconds above 0"
        self._timeout = check_number("Database", "timeout", timeout, expected, low=POSITIVE)
        check_count("Database", "most", most, 1)
        self._most = most
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._engine: Any = None
        self._process = os.getpid()
        self._queries: dict[str, Any] = {}
        """By relation: the query for its facts, once its table was looked up."""

    @property
    def relations(self) -> Collection[str]:
        """The names of the relations that it has facts of."""
        return self._tables.keys()

    def objects(self, relation: str, subjects: Collection[Thing]) -> dict[Thing, frozenset[Thing]]:
        """For each of the subjects that the relation has facts about, its objects."""
        if relation not in self._tables:
            known = ", ".join(f'"{name}"' for name in self._tables)
            raise OptionError("Database", "relation", relation, known + did_you_mean(relation, self._tables))
        found: defaultdict[Thing, set[Thing]] = defaultdict(set)
        asked = list(dict.fromkeys(subjects))
        for start in range(0, len(asked), _SUBJECTS):
            for subject, object_ in self._facts(relation, asked[start : start + _SUBJECTS]):
                found[subject].add(object_)
        for subject in found.keys() - asked:
            # They would count as facts that nobody has.
            raise ServiceError(
                f'{self._here}: "{relation}" has facts about the {type(subject).__name__} {subject}, which the '
                "database takes for a subject of another type or spelling; ask for subjects as the column has them"
            )
        return {subject: frozenset(objects) for subject, objects in found.items()}

    def close(self) -> None:
        """Close the connections. The next query opens it again."""
        with self._lock:
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None

    def __enter__(self) -> Self:
        """Itself; nothing is opened yet."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the connections."""
        self.close()

    def __repr__(self) -> str:
        """Its address, without a password."""
        return f"Database({address(self._url)!r}, {self._tables!r})"

    def __getstate__(self) -> dict[str, Any]:
        """What it was made of: another process opens it itself."""
        return {"_url": self._url, "_tables": self._tables, "_timeout": self._timeout, "_most": self._most}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The same, not opened."""
        self.__dict__.update(state)
        self._forget()

    def _facts(self, relation: str, subjects: list[Thing]) -> list[tuple[Thing, Thing]]:
        with self._connection() as connection:
            query = self._query(relation, connection)
            rows = connection.execute(query, {"subjects": subjects}).all()
        if len(rows) > self._most:
            raise ServiceError(
                f'{self._here}: more than {self._most} facts of "{relation}" about {len(subjects)} subjects; '
                "raise most=, or ask about fewer"
            )
        for row in rows:
            for thing in row:
                if not is_thing(thing):
                    raise ServiceError(
                        f'{self._here}: "{relation}" has the {type(thing).__name__} {thing}; expected strings and '
                        "whole numbers: read a view that casts the column to text"
                    )
        return [tuple(row) for row in rows]

    def _query(self, relation: str, connection: Any) -> Any:
        """The query for the facts of a relation; raises where the table or a column is missing."""
        if relation in self._queries:
            return self._queries[relation]
        sqlalchemy = library("a knowledge base in SQL", "sqlalchemy", extra="knowledge")
        about = self._tables[relation]
        names = self._columns(sqlalchemy.inspect(connection), about)
        for name in about.columns:
            if name not in names:
                known = ", ".join(f'"{column}"' for column in names)
                expected = f'a column of the table "{about.name}": {known}{did_you_mean(name, names)}'
                raise OptionError(f'the table of "{relation}"', "column", name, expected)
        table = sqlalchemy.table(about.name, *map(sqlalchemy.column, dict.fromkeys(about.columns)), schema=about.schema)
        subject, object_ = table.c[about.subject], table.c[about.object]
        query = sqlalchemy.select(subject, object_).where(
            subject.in_(sqlalchemy.bindparam("subjects", expanding=True)),
            object_.is_not(None),
            *(table.c[column] == value for column, value in about.where.items()),
        )
        return self._queries.setdefault(relation, query.limit(self._most + 1))

    def _columns(self, inspector: Any, table: Table) -> list[str]:
        names = [*inspector.get_table_names(table.schema), *inspector.get_view_names(table.schema)]
        if table.name in names:
            return [column["name"] for column in inspector.get_columns(table.name, table.schema)]
        known = ", ".join(f'"{name}"' for name in sorted(names)) or "there is none"
        where = "" if table.schema is None else f' of the schema "{table.schema}"'
        expected = f"a table or view{where}: {known}{did_you_mean(table.name, names)}"
        raise OptionError(str(self._here), "table", table.name, expected)

    @property
    def _here(self) -> str:
        return f"the database {address(self._url)}"

    @contextmanager
    def _connection(self) -> Generator[Any]:
        """A connection for one query; whatever the database has to say becomes an error of ours."""
        sqlalchemy = library("a knowledge base in SQL", "sqlalchemy", extra="knowledge")
        try:
            with self._opened().connect() as connection:
                connection.info["deadline"] = time.monotonic() + self._timeout
                yield connection
        except sqlalchemy.exc.SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            first = said(cause).splitlines()[0]
            raise ServiceError(f"{self._here}: {first}; {self._remedy(error, first)}") from error

    def _remedy(self, error: Any, message: str) -> str:
        if "interrupt" in message or "statement timeout" in message:
            return f"a query may take {self._timeout:g} s: raise timeout=, or put an index on the column of subjects"
        if getattr(error, "connection_invalidated", False):
            return "the connection was lost, and the next query opens another"
        return "check that it runs, the address, the rights of the user, and the types of the columns"

    def _opened(self) -> Any:
        with self._lock:
            if self._process != os.getpid() and self._engine is not None:
                # Its connections belong to the process that this one was forked from.
                self._engine.dispose(close=False)
                self._engine = None
            if self._engine is None:
                self._engine = open_engine(self._url, self._timeout)
                self._process = os.getpid()
                weakref.finalize(self, self._engine.dispose)
            return self._engine
