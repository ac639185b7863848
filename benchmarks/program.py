"""How soon the package and the program start, each in a fresh interpreter, and how long a large report takes.

With Chromium on the path, also how soon that report is seen.
"""

import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.app.report.browser import CHROMIUM, DESKTOP, Browser, browser

from .harness import Row, compare

TERMS = ("kl", "entropy", "topology", "size")


def run(scale: float) -> list[Row]:
    seconds = 10.0 * scale
    bare, numpy = _python("-c", "pass"), _python("-c", "import numpy")
    program = ("-m", "penalties")
    return [
        compare("import penalties", numpy, _python("-c", "import numpy, penalties"), **_ms(seconds, 100.0)),
        compare("import, first use", numpy, _python("-c", "import numpy, penalties; penalties.l1"), **_ms(seconds)),
        compare("penalties --help", bare, _python(*program, "--help"), **_ms(seconds, 150.0)),
        compare("penalties check, the demo", bare, _python(*program, "check", "-q", "--no-model"), **_ms(seconds)),
        *_report(scale),
        *_odd_reports(scale),
        _side_by_side(scale),
    ]


def _ms(seconds: float, most_more: float = math.inf) -> dict[str, object]:
    return {"seconds": seconds, "unit": "ms", "most_more": most_more}


def _python(*arguments: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def _report(scale: float) -> list[Row]:
    """A report of ten long runs: its time beside parsing the logs as JSON, its size beside theirs, and its opening."""
    runs, steps = (10, 10_000) if scale else (2, 100)
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place, f"run{number}") for number in range(runs)]
        for seed, folder in enumerate(folders):
            noise = random.Random(seed)
            folder.mkdir()
            lines = [json.dumps(_record(step, noise)) + "\n" for step in range(steps)]
            (folder / "metrics.jsonl").write_text("".join(lines))
        page = Path(place, "report.html")
        parse = "import json, sys; [json.loads(line) for name in sys.argv[1:] for line in open(name)]"
        case = f"a report of {runs} runs of {steps} steps"
        time = compare(
            case,
            _python("-c", parse, *(str(folder / "metrics.jsonl") for folder in folders)),
            _python("-m", "penalties", "report", *map(str, folders), "--out", str(page)),
            seconds=30.0 * scale,
            unit="ms",
            most=3000.0,
        )
        logs = [sum((folder / "metrics.jsonl").stat().st_size for folder in folders) / 1e6]
        size = Row(f"{case}, size", "MB", logs, [page.stat().st_size / 1e6], logs, most=4.0)
        return [time, size, *([_paint(case, page, scale)] if CHROMIUM else [])]


def _paint(case: str, page: Path, scale: float) -> Row:
    """How soon a page has its first paint with contents, beside a page of one word."""
    plain = page.with_name("plain.html")
    plain.write_text("<!DOCTYPE html><title>plain</title><p>plain")
    rounds = max(1, round(10 * scale))
    with browser() as driver:
        sides = list(
            zip(*([_painted(driver, one) for one in (plain, page, plain)] for _ in range(rounds)), strict=True)
        )
    return Row(f"{case}, first paint", "ms", *sides, most=500.0)


def _painted(driver: Browser, page: Path) -> float:
    tab = driver.open(page, DESKTOP)
    try:
        tab.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 60)))")
        return tab.run("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    finally:
        tab.close()


def _odd_reports(scale: float) -> list[Row]:
    """Reports of logs that no healthy run writes: lines that are no records, and failures of which no two are alike."""
    unreadable, failing = (300_000, 60_000) if scale else (300, 60)
    noise = random.Random(0)
    record = _record(0, noise)
    words = ("".join(noise.choices("abcdefghijklmnop", k=12)) for _ in range(failing))
    cases = {
        f"a report of {unreadable} unreadable lines": ("no record\n" for _ in range(unreadable)),
        f"a report of {failing} different failures": (
            json.dumps({**record, "step": step, "errors": {"late": word}}) + "\n" for step, word in enumerate(words)
        ),
    }
    rows: list[Row] = []
    for case, lines in cases.items():
        with tempfile.TemporaryDirectory() as place:
            log, page = Path(place, "metrics.jsonl"), Path(place, "report.html")
            log.write_text("".join(lines))
            read = _python("-c", "import sys; [line.split() for line in open(sys.argv[1])]", str(log))
            made = _python("-m", "penalties", "report", place, "--out", str(page))
            rows.append(compare(case, read, made, seconds=10.0 * scale, unit="ms", most=20_000.0))
    return rows


def _side_by_side(scale: float) -> Row:
    """An ablation of eight runs by two processes, beside one after the other: needs two free processors."""
    steps = 300 if scale else 1

    def seconds(*options: str) -> list[float]:
        with tempfile.TemporaryDirectory() as place:
            command = ("ablate", "--quiet", "--seeds", "2", "--set", f"train.steps={steps}", "--run", f"{place}/out")
            began = time.perf_counter()
            _python("-m", "penalties", *command, *options)()
            return [time.perf_counter() - began]

    plain, ours, again = seconds(), seconds("--jobs", "2"), seconds()
    return Row(f"8 runs of {steps} steps, --jobs 2", "s", plain, ours, again, most_ratio=1 / 1.7)


def _record(step: int, noise: random.Random) -> dict[str, object]:
    """A line of a log as training writes it: four terms with norms, and cosines at every tenth step."""

    def number(scale: float) -> float:
        return scale * (1 + 0.1 * noise.gauss(0, 1))

    def entry(value: float) -> dict[str, object]:
        norm = number(1.0)
        return {"value": value, "grad_norm": norm, "custom": {}}

    fall = math.exp(-step / 3000)
    terms = {
        name: {**entry(value), "weight": 0.1, "contribution": 0.1 * value, "grad_norm_weighted": number(0.1)}
        for name, value in zip(TERMS, (number(2 - fall) for _ in TERMS), strict=True)
    }
    base = number(1 + 3 * fall)
    total = sum(0.1 * number(2 - fall) for _ in TERMS)
    names = ("base_loss", *TERMS)
    loss: dict[str, object] = {
        "loss_total": base + total,
        "base_loss": entry(base),
        "regularizers": terms,
        "regularizer_total": total,
        "total_grad_norm": number(1.0),
    }
    if step % 10 == 0:
        loss["cosines"] = [[noise.uniform(-1, 1) for _ in names] for _ in names]
    return {
        "kind": "step",
        "step": step,
        "time": "2026-11-15T18:00:00Z",
        "seconds": number(0.05),
        "tokens": 812,
        "learning_rate": 0.003 * fall,
        "loss": loss,
        "durations": {name: number(1e-3) for name in names},
        "errors": {},
        "metrics": {f"client:{index}": number(1.0) for index in range(8)},
    }
