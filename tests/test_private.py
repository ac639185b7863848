"""No module of ours uses a private interface of another library, or knows an error of ours by its words."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent.parent / "src" / "penalties"

# Documented in spite of their names.
PUBLIC = {"_asdict", "_exit", "_fields", "_make", "_replace"}


def parsed() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCES.rglob("*.py"))}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in PUBLIC


def has_private_part(module: str) -> bool:
    return any(is_private(part) for part in module.split("."))


def defined(tree: ast.Module) -> Iterator[str]:
    """Private names that a module of ours gives to something of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__slots__" for target in node.targets
        ):
            yield from (str(part.value) for part in ast.walk(node.value) if isinstance(part, ast.Constant))


def imported(tree: ast.Module) -> set[str]:
    """Names that stand for other libraries and what is in them."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def uses(tree: ast.Module, inherited: set[str]) -> Iterator[tuple[int, str]]:
    """Where a module reaches into another library: by a private name that is neither its own nor its parents'."""
    ours = {*defined(tree), *(arg.arg for arg in ast.walk(tree) if isinstance(arg, ast.arg))}
    libraries = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            known = ours | inherited if root(node.value) in ("self", "cls") else ours
            if root(node.value) in libraries or node.attr not in known:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if has_private_part(alias.name))
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ((node.lineno, name) for name in names if has_private_part(name))
        elif isinstance(node, ast.Call):
            yield from called(node, ours)
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value).startswith("vars("):
            name = node.slice.value if isinstance(node.slice, ast.Constant) else ""
            if is_private(str(name)) and name not in ours:
                yield node.lineno, ast.unparse(node)


def called(node: ast.Call, ours: set[str]) -> Iterator[tuple[int, str]]:
    """Private names that a call has as strings, or as names of arguments."""
    strings = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    name = ast.unparse(node.func)
    if name in ("getattr", "setattr", "hasattr", "delattr"):
        yield from ((node.lineno, ast.unparse(node)) for text in strings if is_private(text) and text not in ours)
    if name.endswith("import_module") or name == "__import__":
        yield from ((node.lineno, text) for text in strings if has_private_part(text) and not text.startswith("."))
    for keyword in node.keywords:
        if keyword.arg is not None and is_private(keyword.arg) and keyword.arg not in ours:
            yield node.lineno, f"{name}({keyword.arg}=…)"


def test_only_public_interfaces_are_used() -> None:
    trees = parsed()
    ours = {name for tree in trees.values() for name in defined(tree)}
    found = [
        f"{path.relative_to(SOURCES)}:{line}: {what}" for path, tree in trees.items() for line, what in uses(tree, ours)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch._C._set_grad_enabled(True)",
        "def f():\n    import torch\n    torch._dynamo.reset()",
        "import jax._src.core",
        "from jax._src import core",
        "from asyncio import tasks\ntasks.current_task()._log_destroy_pending = False",
        "from multiprocessing import forkserver\nvars(forkserver)['_forkserver']",
        "import importlib\nimportlib.import_module('torch._inductor')",
        "getattr(object(), '_fd')",
        "import ray\nray.init(_temp_dir='here')",
        "def f(task):\n    task._coro.close()",
    ],
)
def test_private_interfaces_are_found(code: str) -> None:
    assert list(uses(ast.parse(code), {"_coro", "_fd"}))


def test_our_own_names_and_documented_ones_are_not() -> None:
    code = "import os\nclass A:\n    def f(self, other):\n        self._x = other._x\n        os._exit(0)\n"
    tree = ast.parse(code)
    assert not list(uses(tree, set(defined(tree))))


def texts(tree: ast.AST) -> Iterator[str]:
    """The strings in a module, those between the values of an f-string each by itself."""
    yield from (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def looked_for(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Texts that a module looks for in the words of an error: `"…" in str(error)`, or in its message."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            left, right = node.left, ast.unparse(node.comparators[0])
            if isinstance(left, ast.Constant) and isinstance(left.value, str) and re.search(r"error\b", right):
                yield node.lineno, left.value


def test_no_error_of_ours_is_known_by_its_words() -> None:
    trees = parsed()
    ours = [text for tree in trees.values() for text in texts(tree)]
    found = [
        f"{path.relative_to(SOURCES)}:{line}: {text}"
        for path, tree in trees.items()
        for line, text in looked_for(tree)
        if sum(text in one for one in ours) > 1
    ]
    assert not found, "\n".join(found)


def test_a_text_that_is_looked_for_is_found() -> None:
    assert list(looked_for(ast.parse('if "the gradient is" in str(error):\n    pass'))) == [(1, "the gradient is")]
