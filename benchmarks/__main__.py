"""Run the benchmarks, all or the named ones, and say which rows are over their limit: then the status is 1."""

import argparse
import importlib
import os
import platform
import sys
import time
from importlib.metadata import version

# Before any library starts its threads: one each, or the sides would compete for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

# The profiler reports every start and stop.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

# Run in this order: packing measures what returned memory costs, and the ones after it keep theirs.
BENCHMARKS = (
    "import_time",
    "cli_start",
    "telemetry",
    "ragged",
    "pipeline",
    "executor",
    "parallel",
    "places",
    "gradient_norms",
    "packing",
    "norms",
    "divergences",
    "orthogonality",
    "gradient_norms_jax",
    "representation",
    "term_memory",
    "local_client",
    "custom_loss",
    "custom_loss_sdk",
    "report",
    "program",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a fifth of the repetitions")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in BENCHMARKS:
            parser.error(f"no benchmark {name}; there are {', '.join(BENCHMARKS)}")

    from .harness import show

    versions = ", ".join(f"{library} {version(library)}" for library in ("numpy", "torch", "jax"))
    print(f"Python {platform.python_version()}, {versions}; {platform.machine()}, one thread")
    over: list[str] = []
    start = time.perf_counter()
    for name in BENCHMARKS:
        if arguments.names and name not in arguments.names:
            continue
        module = importlib.import_module(f"benchmarks.{name}")
        title = str(module.__doc__).splitlines()[0]
        print(f"\n{name}: {title}\n", flush=True)
        rows = module.run(0.2 if arguments.quick else 1.0)
        if rows:
            show(rows)
        over += [
            f"{name}, {row.case}: {row.ratio:#.3g} times, {row.more:+.1f} {row.unit}; {row.limit}"
            for row in rows
            if row.over
        ]
    print(f"\n{time.perf_counter() - start:.0f} s.")
    for line in over:
        print(f"over its limit: {line}")
    print(f"Rows over their limit: {len(over)}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
