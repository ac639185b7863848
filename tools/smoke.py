"""Try what was built as somebody would who installs it: `python tools/smoke.py dist`.

The wheel holds every file of the package. In a new environment, away from this folder, it works with nothing but NumPy
and says what its commands need; with `[cli]` they answer; with `[train,cli]` it trains, and writes a report.
"""

import os
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"


def main() -> None:
    (wheel,) = Path(sys.argv[1]).resolve().glob("*.whl")
    check_contents(wheel)
    with tempfile.TemporaryDirectory(prefix="penalties-") as folder:
        trial = Trial(Path(folder))

        trial.install(str(wheel))
        trial.says("6.0", "python", "-c", "import numpy, penalties; print(penalties.l1(numpy.array([1.0, -2.0, 3.0])))")
        trial.says('pip install "penalties[cli]"', "penalties", "version", status=2)

        trial.install(f"{wheel}[cli]")
        trial.says("penalties 0.", "penalties", "version")
        trial.says("kl_estimate", "penalties", "list")
        trial.says('pip install "penalties[train]"', "penalties", "check", status=2)
        trial.says('pip install "penalties[train]"', "penalties", "train", status=2)

        # First, alone: whatever depends on it then looks for no other.
        trial.install("torch")
        trial.install(f"{wheel}[train,cli]")
        trial.says("demo: ok", "penalties", "check")
        trial.says("report: ", "penalties", "train", "--set", "train.steps=3")
        page = Path(folder, "runs", "demo", "report.html").read_text()
        if "uPlot" not in page or "kl" not in page:
            sys.exit("the report has no charts")
    print(f"{wheel.name} works")


def check_contents(wheel: Path) -> None:
    """Every file of the package is in the wheel, and nothing else is."""
    wanted = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    if wanted != found:
        sys.exit(f"{wheel.name}: missing {sorted(wanted - found)}, not of the package {sorted(found - wanted)}")
    print(f"{wheel.name} holds all {len(wanted)} files of the package", flush=True)


class Trial:
    """An environment with nothing in it but what is installed here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "environment" / ("Scripts" if os.name == "nt" else "bin")
        # Nothing that is set for this folder may stand in for what is installed there.
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        venv.create(folder / "environment", with_pip=True)

    def install(self, what: str) -> None:
        constraints = str(ROOT / "constraints.txt")
        self.says("", "python", "-m", "pip", "install", "--quiet", "--constraint", constraints, what)

    def says(self, expected: str, program: str, *arguments: str, status: int = 0) -> None:
        """Run a program of the environment, which has to end with this status and say this."""
        start = time.perf_counter()
        shown = " ".join([program, *arguments]).replace(f"{ROOT}{os.sep}", "")
        result = subprocess.run(
            [str(self.bin / program), *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if result.returncode != status or expected not in result.stdout:
            sys.exit(f"{shown}\nended with {result.returncode}, expected {status} and {expected!r}:\n{result.stdout}")
        print(f"{time.perf_counter() - start:5.1f} s  {shown}", flush=True)


if __name__ == "__main__":
    main()
