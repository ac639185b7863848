"""The page of runs that go on, served on this machine: it is loaded again when a log has grown."""

import os
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, cast

from ...errors import PenaltiesError
from ..runs.disk import RunError
from .folders import TOGETHER, runs_in
from .page import make

__all__ = ["Watch"]

_HOST: Final = "127.0.0.1"
_PAUSE: Final = 0.5
"""Seconds between two looks at the logs."""
_QUIET: Final = 30
"""Looks without a change after which a word keeps the connection open, or finds that it is closed."""


class Watch(ThreadingHTTPServer):
    """A server of the page, for browsers on this machine alone."""

    daemon_threads = True

    def __init__(self, runs: Sequence[Path], port: int = 0) -> None:
        """Listen at a port, or at any free one for 0; the runs must be there."""
        self.runs: Sequence[Path] = runs
        self.stopping: threading.Event = threading.Event()
        make(runs)
        try:
            super().__init__((_HOST, port), _Handler)
        except OSError as error:
            raise RunError(f"port {port} cannot be used: {error.strerror}; choose another with --port", 2) from error

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{_HOST}:{self.server_port}/"

    def stamp(self) -> str:
        """What changes when a log has grown, a run has begun, or one of an ablation or a search has ended."""
        logs = [run if run.is_file() else run / "metrics.jsonl" for run in runs_in(self.runs)]
        # After the last line of the last log.
        outcomes = [folder / name for folder in self.runs for name in TOGETHER]
        found: list[str] = []
        for file in (*logs, *outcomes):
            try:
                about = os.stat(file)
            except OSError:
                continue
            found.append(f"{about.st_ino:x}-{about.st_size:x}")
        return ".".join(found) or "none"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that went away, as it does when a page is closed or loaded again."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        """Let every connection end."""
        self.stopping.set()
        super().server_close()


class _Handler(BaseHTTPRequestHandler):
    @property
    def _watch(self) -> Watch:
        return cast("Watch", self.server)

    def do_GET(self) -> None:
        """The page, or a word when it is no longer right."""
        # Another site may have its name point here: then it may not read the page.
        port = self._watch.server_port
        if self.headers.get("Host") not in (f"{_HOST}:{port}", f"localhost:{port}"):
            self._send(403, "text/plain", b"this page is for this machine")
            return
        path, _, since = self.path.partition("?")
        if path == "/":
            stamp = self._watch.stamp()
            try:
                page = make(self._watch.runs, watched=stamp).html.encode("utf-8", "backslashreplace")
            except PenaltiesError as error:
                self._send(500, "text/plain; charset=utf-8", str(error).encode("utf-8", "backslashreplace"))
                return
            self._send(200, "text/html; charset=utf-8", page)
        elif path == "/changes":
            self._changes(since)
        else:
            self._send(404, "text/plain", b"there is one page: /")

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def _changes(self, since: str) -> None:
        """A server-sent event as soon as the logs are not as they were."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        looks = 0
        while not self._watch.stopping.wait(_PAUSE):
            if self._watch.stamp() != since:
                self.wfile.write(b"data: changed\n\n")
                self.wfile.flush()
                return
            looks += 1
            if looks % _QUIET == 0:
                self.wfile.write(b": still here\n\n")
                self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing about requests."""
