"""Runs that go on, watched in a browser."""

import contextlib
import re
import socket
import struct
import threading
import time
import urllib.error
import urllib.request

import pytest

from penalties.app import cli
from penalties.app.report.watching import Watch
from penalties.app.runs.disk import RunError

from .browser import DESKTOP, Browser, in_browser, plot, press_button, tip
from .synthetic import small, write_run
from .test_charts_in_browser import choose, settle


@contextlib.contextmanager
def watching(*runs):
    with Watch(runs) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)


def fetched(address: str, host: str | None = None) -> str:
    request = urllib.request.Request(address, headers={} if host is None else {"Host": host})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read().decode()


@pytest.mark.slow
def test_the_page_is_served_to_this_machine_alone(tmp_path):
    with watching(small(tmp_path / "run", steps=9)) as server:
        page = fetched(server.address)
        assert "connect-src 'self'" in page
        assert re.search(r'<meta name="watched" content="[0-9a-f.-]+">', page)
        for path, host, status in (("", "evil.example", 403), ("other", None, 404)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                fetched(server.address + path, host)
            assert caught.value.code == status
            caught.value.close()
        with pytest.raises(
            RunError, match=rf"port {server.server_port} cannot be used: .*; choose another with --port"
        ):
            Watch([tmp_path / "run"], server.server_port)


@pytest.mark.slow
def test_a_change_is_told_at_once(tmp_path):
    folder = small(tmp_path / "run", steps=9)
    with watching(folder) as server:
        since = server.stamp()
        later = threading.Timer(0.3, lambda: (folder / "metrics.jsonl").write_text(""))
        later.start()
        start = time.monotonic()
        assert fetched(f"{server.address}changes?{since}") == "data: changed\n\n"
        assert time.monotonic() - start < 10
        later.join()


@pytest.mark.slow
def test_a_browser_that_goes_away_is_no_news(tmp_path, capfd):
    folder = small(tmp_path / "run", steps=9)
    with watching(folder) as server:
        for sent in (b"", b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % server.address[7:-1].encode()):
            with socket.create_connection(("127.0.0.1", server.server_port)) as one:
                # What is left to send or to receive is dropped: the other side finds the connection reset.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.sendall(sent)
        fetched(server.address)
    assert capfd.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ablation.json", "search.json"])
def test_the_end_of_a_run_in_an_ablation_or_a_search_is_a_change(tmp_path, name):
    small(tmp_path / "all-seed-0", steps=9)
    (tmp_path / name).write_text("{}")
    with watching(tmp_path) as server:
        before = server.stamp()
        (tmp_path / name).write_text('{"runs": []}')
        assert server.stamp() != before


def test_a_run_that_is_not_there_is_an_error(tmp_path, capsys):
    assert cli.main(["watch", str(tmp_path / "nothing")]) == 2
    assert "is not a folder" in capsys.readouterr().err


class TestInABrowser:
    pytestmark = in_browser

    def test_the_page_follows_the_log_and_keeps_what_was_chosen(self, driver: Browser, tmp_path):
        folder = write_run(tmp_path / "run", steps=20)
        with watching(folder) as server:
            tab = driver.open(server.address, DESKTOP)
            try:
                assert "20 steps" in tab.run("document.querySelector('.facts').textContent")
                plot(tab)
                tab.run("document.querySelector('.controls input[value=tokens]').click()")
                choose(tab, "log")
                press_button(tab, ".legend button", 0)
                write_run(tmp_path / "run", steps=30)
                end = time.monotonic() + 30
                while "30 steps" not in (tab.run("document.querySelector('.facts')?.textContent ?? ''") or ""):
                    assert time.monotonic() < end, "the page did not follow"
                    time.sleep(0.2)
                assert tab.run("document.querySelector('.controls input[value=tokens]').checked") is True
                plot(tab)
                assert tab.run("document.querySelector('.legend button').getAttribute('aria-pressed')") == "false"
                tab.run("document.querySelector('.menu summary').click()")
                settle(tab)
                pressed = "document.querySelector('.menu [aria-pressed=true]').textContent"
                assert tab.run(pressed) == "log"
                assert tab.events("Runtime.exceptionThrown", "Runtime.consoleAPICalled") == []
                requests = [one["params"]["request"]["url"] for one in tab.events("Network.requestWillBeSent")]
                assert all(url.startswith((server.address, "data:")) for url in requests)
            finally:
                tab.close()

    def test_the_page_waits_for_who_reads_a_chart_by_keys(self, driver: Browser, tmp_path):
        folder = write_run(tmp_path / "run", steps=20)
        with watching(folder) as server:
            tab = driver.open(server.address, DESKTOP)
            try:
                plot(tab)
                while tab.run("document.activeElement.className") != "plot":
                    tab.press("Tab", 9)
                tab.press("End")
                write_run(tmp_path / "run", steps=30)
                time.sleep(4)
                assert tip(tab)["where"] == "step 19"
                tab.press("Tab", 9)
                end = time.monotonic() + 30
                while "30 steps" not in (tab.run("document.querySelector('.facts')?.textContent ?? ''") or ""):
                    assert time.monotonic() < end, "the page did not follow"
                    time.sleep(0.2)
            finally:
                tab.close()
