"""Chromium without a window, driven over a pipe by the DevTools protocol."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = [
    "CHROMIUM",
    "DESKTOP",
    "PHONE",
    "Browser",
    "Tab",
    "assert_quiet",
    "browser",
    "in_browser",
    "inked",
    "plot",
    "press_button",
    "tip",
    "written",
]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DESKTOP, PHONE = 1160, 390

in_browser = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
]
"""The marks of tests that need it."""

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)


class Browser:
    """The protocol over two pipes: messages are JSON that ends with a zero."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._left = b""
        self._last = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(60)
            assert answer is not None, f"no answer to {method} in 60 s"
            if answer.get("id") == self._last:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def wait(self, method: str, session: str) -> None:
        """Until there was such an event."""
        end = time.monotonic() + 60
        while not any(one.get("method") == method and one.get("sessionId") == session for one in self.events):
            answer = self._receive(end - time.monotonic())
            assert answer is not None, f"no {method} in 60 s"
            self.events.append(answer)

    def _receive(self, timeout: float) -> dict[str, Any] | None:
        end = time.monotonic() + timeout
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return None
            piece = os.read(self._reading, 1 << 20)
            assert piece, "chromium has ended"
            self._left += piece
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)

    def open(
        self, page: Path | str, width: int, height: int = 900, *, dark: bool = False, phone: bool = False
    ) -> "Tab":
        """A tab that shows a file or an address, as on a screen of this size."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, target, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            tab.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        factor = 2 if phone else 1
        tab.size(width, height, factor, phone)
        tab.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        self.wait("Page.loadEventFired", session)
        return tab


class Tab:
    """One page."""

    def __init__(self, owner: Browser, target: str, session: str) -> None:
        self.owner, self.target, self.session = owner, target, session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.owner.call(method, self.session, **params)

    def size(self, width: int, height: int, factor: float = 1, phone: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=factor, mobile=phone
        )

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def events(self, *methods: str) -> list[dict[str, Any]]:
        """What happened in this tab so far."""
        self.run("0")
        return [one for one in self.owner.events if one.get("sessionId") == self.session and one["method"] in methods]

    def hover(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str, code: int = 0) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def drag(self, x: float, end: float, y: float) -> None:
        """With the mouse button down, from one place to another beside it."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
        for part in (0.3, 0.7, 1.0):
            self.call(
                "Input.dispatchMouseEvent", type="mouseMoved", x=x + part * (end - x), y=y, button="left", buttons=1
            )
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=end, y=y, button="left", clickCount=1)

    def double_click(self, x: float, y: float) -> None:
        for count in (1, 2):
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=count)

    def downloads(self, folder: Path) -> None:
        """From now on, files that the page saves go there."""
        self.owner.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def screenshot(self, path: Path) -> None:
        """What is on the screen, as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self.owner.call("Target.closeTarget", targetId=self.target)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a profile of its own, gone at the end with all its processes."""
    assert CHROMIUM is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # It reads from file 3 and writes to file 4; moved there by way of others, in case the pipes are these.
        high = f"a, b = (fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in ({to_read}, {from_write}))"
        start = f"import fcntl, os, sys; {high}; os.dup2(a, 3); os.dup2(b, 4); os.execv(sys.argv[1], sys.argv[1:])"
        flags = [*_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        command = [sys.executable, "-S", "-c", start, CHROMIUM, *flags]
        process = subprocess.Popen(
            command, pass_fds=(to_read, from_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(from_write)
        try:
            driver = Browser(from_read, to_write)
            yield driver
            with contextlib.suppress(AssertionError, OSError):
                driver.call("Browser.close")
            process.wait(30)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(to_write)
            os.close(from_read)


def assert_quiet(tab: Tab, page: Path) -> None:
    """No error, no warning, and no request but for the page itself; a file that is saved is none."""
    assert tab.events("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded") == []
    requests = [one["params"]["request"]["url"] for one in tab.events("Network.requestWillBeSent")]
    assert [url for url in requests if not url.startswith(("data:", "blob:"))] == [page.resolve().as_uri()]


def plot(tab: Tab, number: int = 0) -> list[float]:
    """Bring a chart to the middle of the screen and wait until it is drawn: left, top, width and height in its axes."""
    return tab.run(
        "(async () => {"
        f"const figure = document.querySelectorAll('.chart:not(.spark)')[{number}];"
        "figure.querySelector('.plot').scrollIntoView({block: 'center', behavior: 'instant'});"
        "const wait = () => new Promise((done) => setTimeout(done, 20));"
        "for (let time = 0; !figure.classList.contains('drawn') && time < 250; time += 1) await wait();"
        "const box = figure.querySelector('.u-over').getBoundingClientRect();"
        "return [box.left, box.top, box.width, box.height]; })()"
    )


def tip(tab: Tab, number: int = 0) -> dict[str, str] | None:
    """What the cursor of a chart says: where it is, and numbers by name; None where it says nothing."""
    return tab.run(
        f"(() => {{ const figure = document.querySelectorAll('.chart:not(.spark)')[{number}];"
        "const where = figure.querySelector('.where').textContent; if (!where) return null;"
        "const text = (row, tag) => row.querySelector(tag)?.textContent ?? '';"
        "const rows = [...figure.querySelectorAll('.legend button')].map((row) => ["
        "`${text(row, 'b')} ${text(row, 'span')}`.trim(), text(row, 'output')]).filter((row) => row[1]);"
        "return {...Object.fromEntries(rows), where}; })()"
    )


def press_button(tab: Tab, selector: str, number: int = 0) -> None:
    """Click an element of a chart."""
    tab.run(f"document.querySelectorAll('.chart:not(.spark)')[{number}].querySelector({selector!r}).click()")


def written(tab: Tab, number: int = 0) -> list[dict[str, Any]]:
    """The texts from left to right that a chart draws, each with its box on the canvas, in pixels."""
    return tab.run(
        f"(async () => {{ const chart = document.querySelectorAll('.chart:not(.spark)')[{number}];"
        "const canvas = chart.querySelector('canvas');"
        "const proto = CanvasRenderingContext2D.prototype; const usual = proto.fillText; const said = [];"
        "proto.fillText = function (text, x, y, ...rest) { const turned = this.getTransform();"
        "if (this.canvas === canvas && text && turned.b === 0) {"
        "const box = this.measureText(text); const at = turned.transformPoint({x, y});"
        "said.push({text, left: at.x - box.actualBoundingBoxLeft, right: at.x + box.actualBoundingBoxRight,"
        "top: at.y - box.actualBoundingBoxAscent, bottom: at.y + box.actualBoundingBoxDescent}); }"
        "return usual.call(this, text, x, y, ...rest); };"
        "dispatchEvent(new Event('beforeprint')); await new Promise((done) => setTimeout(done, 100));"
        "proto.fillText = usual; dispatchEvent(new Event('afterprint'));"
        "await new Promise((done) => setTimeout(done, 60)); return said; })()"
    )


def inked(tab: Tab, number: int = 0) -> str:
    """The picture of a chart, which changes with what is drawn."""
    return tab.run(
        f"document.querySelectorAll('.chart:not(.spark)')[{number}].querySelector('canvas').toDataURL('image/png')"
    )
