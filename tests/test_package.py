"""The package as a whole: what importing it loads, its names, its metadata, its layers."""

import importlib
import inspect
import pickle
import pkgutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import penalties as pn
from penalties import backends

ROOT = Path(__file__).parent.parent
OPTIONAL = (
    *("torch", "jax", "scipy", "optax", "pydantic", "click", "rich", "ray"),
    *("wandb", "mlflow", "tensorboardX", "opentelemetry", "safetensors", "matplotlib", "pyarrow", "datasets"),
    *("gudhi", "sklearn"),
)


def fresh(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_loads_nothing_optional() -> None:
    loaded = f"import sys; print([m for m in {OPTIONAL} if m in sys.modules])"
    assert fresh(f"import penalties; {loaded}") == "[]"
    assert fresh(f"from penalties import *; import numpy; l1(numpy.ones(2)); {loaded}") == "[]"


def test_importing_any_module_loads_nothing_optional() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    exempt = next(contract["exempt"] for contract in contracts if contract["type"] == "lazy")
    names = [module.name for module in pkgutil.walk_packages(pn.__path__, "penalties.")]
    names = [name for name in names if not any(fnmatch(name, pattern) for pattern in exempt)]
    assert {"penalties.backends.torch", "penalties.app.cli"} <= set(names)
    code = f"import importlib, sys; [importlib.import_module(n) for n in {names}]"
    assert fresh(f"{code}; print([m for m in {OPTIONAL} if m in sys.modules])") == "[]"


def test_numpy_works_where_torch_and_jax_are_missing() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['jax'] = None\n"
        "import numpy as np, penalties as pn\n"
        "print(float(pn.l1([np.ones(2)])), float(pn.orthogonality(np.eye(2), mode='spectral')))"
    )
    assert fresh(code) == "2.0 0.0"


@pytest.mark.slow
@pytest.mark.parametrize("first", ["penalties", "torch"])
def test_the_first_call_may_be_inside_torch_compile(first: str) -> None:
    second = {"penalties": "torch", "torch": "penalties"}[first]
    code = (
        f"import {first}\nimport {second}\n"
        "fn = torch.compile(lambda x: penalties.l1(x), fullgraph=True, backend='aot_eager')\n"
        "torch._dynamo.config.error_on_recompile = True\n"
        "fn(torch.ones(3)); import wave, mailbox; print(float(fn(torch.ones(3))))"
    )
    assert fresh(code) == "3.0"


def test_numpy_generators_are_seeds() -> None:
    x = np.random.default_rng(0).normal(size=(20, 3))
    draws = [pn.orthogonality(x, sample_size=5, seed=np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_every_public_name_is_there() -> None:
    assert set(pn.__all__) <= set(dir(pn))
    for name in pn.__all__:
        assert getattr(pn, name) is not None
    with pytest.raises(AttributeError, match="module 'penalties' has no attribute 'l3'"):
        _ = pn.l3


def test_functions_and_classes_pickle_by_name() -> None:
    modules = [name for name in pn.__all__ if inspect.ismodule(getattr(pn, name))]
    assert modules == ["gradients", "runs", "schedules", "telemetry", "terms", "testing", "training"]
    places = [pn, *(getattr(pn, name) for name in modules)]
    for thing in (getattr(place, name) for place in places for name in place.__all__ if name not in modules):
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert pickle.loads(pickle.dumps(thing)) is thing


def test_backends_have_the_same_operations() -> None:
    modules = [importlib.import_module(f"penalties.backends.{name}") for name in ("numpy", "torch", "jax")]
    operations = {name for name in vars(backends.Backend) if not name.startswith("_")}
    for module in modules:
        assert set(module.__all__) == operations
        assert all(hasattr(module, name) for name in operations)


def test_the_installed_version_is_the_declared_one() -> None:
    assert metadata.version("penalties") == pn.__version__ == "0.1.0"


def test_the_core_depends_on_numpy_alone_and_bounds_have_reasons() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    assert [d.split(">")[0] for d in project["dependencies"]] == ["numpy"]
    sinks = {"otel", "tensorboard", "mlflow", "wandb"}
    libraries = {"torch", "jax", "optax", "ray", "tinker"}
    trainers = {"train", "quantize", "huggingface", "lightning", "keras"}
    terms = {"topology", "logic", "knowledge", "validation", "judge"}
    others = {"process", "cli", "search", "data", "state", "cache", "plot", "all"}
    extras = others | terms | trainers | libraries | sinks
    assert set(project["optional-dependencies"]) == extras
    section = text[text.index("[project]") : text.index("[project.urls]")]
    for line in section.splitlines():
        if ">=" in line:
            assert "#" in line, f"a bound without its reason: {line}"


def test_the_constraints_pin_torch_first() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert pins[0].startswith("torch==")
    assert all("==" in pin for pin in pins)
