"""The report of ten runs of 10 000 steps: the time to write it, and its size.

The plain side is what can hardly be avoided: parsing every line of the logs as JSON. The logs have four terms with
their gradient norms, cosines at every tenth step, and eight numbers of the client, as training writes them.
"""

import json
import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from penalties.app import report
from penalties.encoding import dumps
from penalties.pipeline.output import LossOutput, TermOutput

from .harness import Row, compare

_RUNS, _STEPS = 10, 10_000
_TERMS = ("kl", "entropy", "topology", "size")


def _record(step: int, noise: random.Random) -> dict[str, object]:
    def number(scale: float) -> float:
        return scale * (1 + 0.1 * noise.gauss(0, 1))

    fall = math.exp(-step / 3000)
    terms = [TermOutput(name, number(2 - fall), 0.1, number(1.0), duration=number(1e-3)) for name in _TERMS]
    base = TermOutput("base_loss", number(1 + 3 * fall), 1.0, number(0.5 + fall), duration=number(1e-3))
    out = LossOutput.of(terms, base=base, total_grad_norm=number(1.0))
    if step % 10 == 0:
        out = replace(out, cosines=[[noise.uniform(-1, 1) for _ in out.names] for _ in out.names])
    return {
        "kind": "step",
        "step": step,
        "time": "2026-11-15T18:00:00Z",
        "seconds": number(0.05),
        "tokens": 812,
        "learning_rate": 0.003 * fall,
        "loss": out.to_dict(),
        "durations": {term.name: term.duration for term in out.all},
        "errors": {},
        "metrics": {f"client:{place}": number(1.0) for place in range(8)},
    }


def _parse(folders: Sequence[Path]) -> None:
    for folder in folders:
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            json.loads(line)


def run(scale: float) -> list[Row]:
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place, f"run{number}") for number in range(_RUNS)]
        for seed, folder in enumerate(folders):
            noise = random.Random(seed)
            folder.mkdir()
            lines = (dumps(_record(step, noise)) + "\n" for step in range(_STEPS))
            (folder / "metrics.jsonl").write_text("".join(lines))
        page = Path(place, "report.html")

        def write() -> None:
            report.write(folders, page)

        case = f"{_RUNS} runs of {_STEPS} steps"
        time = compare(case, lambda: _parse(folders), write, seconds=30 * scale, unit="ms", most=3000.0)
        logs = sum((folder / "metrics.jsonl").stat().st_size for folder in folders) / 1e6
        size = page.stat().st_size / 1e6
        return [time, Row(f"{case}, size", "MB", [logs], [size], [logs], most=4.0)]
