"""A PostgreSQL server of our own, on this machine: made, started and removed."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

PASSWORD = "hunter2 %@:/?#"


@dataclass(frozen=True)
class Cluster:
    """A running server."""

    folder: Path
    port: int

    def url(self, password: str = PASSWORD, name: str = "postgres") -> str:
        """For SQLAlchemy."""
        return f"postgresql+psycopg://owner:{quote(password, safe='')}@127.0.0.1:{self.port}/{name}"

    def execute(self, *statements: str) -> list[Any]:
        """As its owner; returns the rows of each statement."""
        found: list[Any] = []
        about = {"host": "127.0.0.1", "port": self.port, "user": "owner", "password": PASSWORD, "dbname": "postgres"}
        with psycopg.connect(**about, autocommit=True) as connection:
            for statement in statements:
                done = connection.execute(statement.encode())
                found.append(done.fetchall() if done.description else [])
        return found

    def stop(self) -> None:
        """At once, as in a power cut."""
        _control(self.folder, "stop", "--mode=immediate")

    def start(self) -> None:
        """On the same port."""
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        _control(self.folder, "start", "-l", str(self.folder / "log"), "-o", options)


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """A server whose files are in an empty folder."""
    if os.getuid() == 0:
        # PostgreSQL does not run as root.
        shutil.chown(folder, "nobody", "nogroup")
    (folder / "password").write_text(PASSWORD)
    (folder / "password").chmod(0o644)
    login = ["--username=owner", f"--pwfile={folder / 'password'}", "--auth=scram-sha-256"]
    _run("initdb", f"--pgdata={folder / 'data'}", "--no-sync", "--encoding=UTF8", *login)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        cluster = Cluster(folder, free.getsockname()[1])
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()


def _control(folder: Path, action: str, *arguments: str) -> None:
    _run("pg_ctl", action, f"--pgdata={folder / 'data'}", "--wait", *arguments)


def _run(program: str, *arguments: str) -> None:
    as_nobody: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
    # What pg_ctl starts would keep a pipe open.
    subprocess.run([_path(program), *arguments], check=True, stdout=subprocess.DEVNULL, cwd="/", **as_nobody)


def _path(program: str) -> str:
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))
    found = str(debian[-1]) if debian else shutil.which(program)
    if found is None:
        raise RuntimeError(f"these tests start {program}: apt-get install postgresql")
    return found
