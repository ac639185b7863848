"""Run the benchmarks, all or the named ones, and print a table of each.

The exit status is 1 if a row is over its limit. With `--tiny` every benchmark runs once, to show that it still runs:
the figures then mean nothing, and limits are not checked.
"""

import argparse
import importlib
import importlib.util
import os
import platform
import sys
import time
from importlib.metadata import version

# Before any library starts its threads: one each, or the two sides would compete for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
# The profiler behind the rows on memory reports every start and stop.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TQDM_DISABLE", "1")

BENCHMARKS = (
    "program",
    "telemetry",
    "functions",
    "packing",
    "pipeline",
    "gradient_norms",
    "logits",
    "optimizers",
    "capture",
    "execution",
    "wrappers",
    "custom_loss",
    "train",
    "huggingface",
    "lightning",
    "sdk",
    "topology",
    "gpu",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)} (default: all)")
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", action="store_true", help="a fifth of the repetitions")
    effort.add_argument("--tiny", action="store_true", help="once, and without limits")
    arguments = parser.parse_args()
    for name in arguments.names:
        first, _, part = name.partition(".")
        if first not in BENCHMARKS or (part and importlib.util.find_spec(f"benchmarks.{name}") is None):
            parser.error(f"unknown benchmark {name!r}; expected {', '.join(BENCHMARKS)}, or a part, as gpu.sizes")
    scale = 0.0 if arguments.tiny else 0.2 if arguments.quick else 1.0

    from .harness import show

    versions = ", ".join(f"{library} {version(library)}" for library in ("numpy", "torch", "jax"))
    print(f"Python {platform.python_version()}, {versions}; {platform.machine()}, one thread")
    over: list[str] = []
    for name in arguments.names or BENCHMARKS:
        start = time.perf_counter()
        module = importlib.import_module(f"benchmarks.{name}")
        title, *_ = str(module.__doc__).splitlines()
        print(f"\n{name}: {title}\n", flush=True)
        rows = module.run(scale)
        show(rows, judged=not arguments.tiny)
        print(f"\n{time.perf_counter() - start:.0f} s", flush=True)
        over += [f"{name}, {row.case}: {row.ratio:#.3g} times, {row.more:+.1f} {row.unit}" for row in rows if row.over]
    if arguments.tiny:
        print("\nEvery benchmark ran.")
        return 0
    print(f"\n{len(over)} rows over their limit")
    for line in over:
        print(line)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
