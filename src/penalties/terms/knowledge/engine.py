"""Opening a database for reading, with a limit on the time of each query."""

import math
import sqlite3
import time
from pathlib import Path
from typing import Any, Final

from ...errors import MissingLibraryError, OptionError, ServiceError
from ...training.libraries import library

__all__ = ["address", "open_engine", "parsed"]

_DRIVERS: Final = {"sqlite": ("pysqlite",), "postgresql": ("psycopg", "psycopg2")}
_EXPECTED: Final = 'a URL such as "sqlite:///facts.db" or "postgresql+psycopg://user:password@host/name"'
_INSTRUCTIONS: Final = 100_000
"""Of SQLite's machine, between two looks at the clock: about a millisecond."""


def parsed(url: Any) -> Any:
    """The URL, as SQLAlchemy has it; raises, without the password, for one of another kind."""
    sqlalchemy = library("a knowledge base in SQL", "sqlalchemy", extra="knowledge")
    shown = "a URL"
    try:
        found = sqlalchemy.make_url(url)
        shown = address(found)
        driver = found.get_driver_name()
    except (sqlalchemy.exc.ArgumentError, ModuleNotFoundError, ValueError):
        # The text is not shown: a password may be anywhere in it.
        raise OptionError("Database", "url", shown, _EXPECTED) from None
    backend = found.get_backend_name()
    if driver not in _DRIVERS.get(backend, ()):
        raise OptionError("Database", "url", shown, _EXPECTED)
    if backend == "sqlite" and (not found.database or ":memory:" in found.database):
        expected = "the path of a file: each connection to an in-memory database would see a different one; see Graph"
        raise OptionError("Database", "url", shown, expected)
    return found


def address(url: Any) -> str:
    """A URL without its password and without options, which may hold one too."""
    return url.set(query={}).render_as_string(hide_password=True)


def open_engine(url: Any, timeout: float) -> Any:
    """An engine whose connections only read, and whose queries end after `timeout` seconds."""
    sqlalchemy = library("a knowledge base in SQL", "sqlalchemy", extra="knowledge")
    sqlite = url.get_backend_name() == "sqlite"
    if sqlite and not Path(url.database).is_file():
        raise ServiceError(
            f"the database {address(url)}: there is no such file; check the path, which is relative to this process"
        )
    waiting = {"timeout": timeout} if sqlite else {"connect_timeout": max(2, math.ceil(timeout))}
    try:
        engine = sqlalchemy.create_engine(url, connect_args=waiting, pool_pre_ping=True, pool_timeout=timeout)
    except ModuleNotFoundError as error:
        raise MissingLibraryError("a knowledge base in PostgreSQL", f"{error.name}") from error

    def prepare(connection: Any, record: Any) -> None:
        if sqlite:
            _prepare_sqlite(connection, record.info)
        else:
            _prepare_postgresql(connection, timeout)

    sqlalchemy.event.listen(engine, "connect", prepare)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, info: dict[str, Any]) -> None:
    connection.execute("PRAGMA query_only = ON")
    # SQLite has no limit of its own for the time of a query.
    connection.set_progress_handler(lambda: time.monotonic() > info.get("deadline", math.inf), _INSTRUCTIONS)


def _prepare_postgresql(connection: Any, timeout: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
        cursor.execute("SELECT set_config('statement_timeout', %s, false)", (f"{math.ceil(timeout * 1000)}ms",))
    # What is set in a transaction that is rolled back is forgotten.
    connection.commit()
