import functools
import gc
import os
import signal
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu" if os.environ.get("PENALTIES_DEVICE", "cpu") == "cpu" else "")

import hypothesis
import jax
import pytest
import torch

from tests.libraries import DIFFERENTIABLE, LIBRARIES

hypothesis.settings.register_profile("seeded", derandomize=True, deadline=None, max_examples=30, database=None)
hypothesis.settings.load_profile("seeded")
torch.set_num_threads(1)
# Most of the time of a test on JAX goes into compiling each operation for each shape, and this halves it. XLA ends the
# process on a flag that it does not know, as other versions would.
if os.environ["JAX_PLATFORMS"] == "cpu" and (0, 10) <= jax.__version_info__ < (0, 11):
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")
# A shell starts what runs in its background with Ctrl-C ignored, and tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for `library` on every library, one that asks for `autodiff` on those with gradients."""
    for fixture, libraries in (("library", LIBRARIES), ("autodiff", DIFFERENTIABLE)):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, libraries, ids=lambda library: library.name)


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of garbage collections, which took a fifth of the time of tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_unconfigure() -> None:
    """Let the interpreter free everything when it ends: bindings of C++ report what is left."""
    gc.unfreeze()


@functools.cache
def _compiles(path: Path) -> bool:
    return "torch.compile" in path.read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _fresh_compiler(request: pytest.FixtureRequest) -> None:
    """Start each test of a file that compiles without the code of an earlier one, whose recompilations would count."""
    if _compiles(request.path):
        torch.compiler.reset()
