"""The server goes when whoever started it goes, however that happens."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from .server import ROOT

STARTER = """
import sys
from pathlib import Path
from tests.skyrl.server import running
with running(Path(sys.argv[1]), Path(sys.argv[2])):
    pass
"""


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("ending", [psutil.Process.kill, psutil.Process.terminate], ids=["killed", "terminated"])
def test_nothing_stays_behind_a_starter_that_ends(server, tmp_path: Path, ending) -> None:
    command = [sys.executable, "-c", STARTER, str(server.model), str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT) as starter:
        family = psutil.Process(starter.pid)
        end = time.monotonic() + 60
        while len(found := family.children(recursive=True)) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        ending(family)
    assert len(found) == 2
    end = time.monotonic() + 20
    while not all(map(gone, found)) and time.monotonic() < end:
        time.sleep(0.1)
    assert all(map(gone, found))
