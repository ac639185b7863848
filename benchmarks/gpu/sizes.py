"""KL, Jensen-Shannon and entropy over logits of every size, against torch.compile: never slower by more than 5 %."""

import gc

import torch

from ..harness import Row
from .distributions import BACKWARD, ENTROPY, JS, KL, both, compiled
from .measuring import DEVICE, GPU, OURS, machine, measure, ratio_row, title

__all__ = ["run"]

COMPILED = "torch.compile"
MOST = 1.05
# Ours needs three arrays, torch.compile five.
LARGEST = 130e9 / 5


def run(scale: float) -> list[Row]:
    """From one row of few classes to what the memory holds."""
    title("kl + js + entropy, bfloat16 logits of many sizes; must: times torch.compile")
    terms = (KL, JS, ENTROPY)
    made: list[Row] = []
    counts, widths = ((1, 64, 4096, 65536), (1000, 32000, 128256, 262144)) if GPU else ((1, 3), (10,))
    for classes in widths:
        for rows in counts:
            if GPU and 2 * rows * classes > LARGEST:
                print(f"{rows} x {classes}: does not fit with torch.compile", flush=True)
                continue
            student, teacher = (torch.randn(rows, classes, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
            sides = both(terms, student, teacher)
            leaf = student.detach().requires_grad_()
            peer = {COMPILED: compiled(terms, leaf, teacher)} if GPU else {}
            case = f"{rows} x {classes}"
            found, _ = measure(case, machine().moving(3 * student.nbytes), {**peer, **sides})
            for name in (OURS, BACKWARD) if COMPILED in found else ():
                plain, ours = found[COMPILED].milliseconds, found[name].milliseconds
                row = ratio_row(f"{case}: {name}, against torch.compile", plain, ours, MOST)
                print(f"{row.case:<58} {row.ratio:.2f} {'MISSED' if row.over else 'met'}", flush=True)
                made.append(row)
            del student, teacher, leaf, sides, peer
            gc.collect()
            if GPU:
                torch.cuda.empty_cache()
    return made
