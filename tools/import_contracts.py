"""A contract for import-linter: importing a module of ours loads the standard library and the core, nothing else.

import-linter's graph does not tell an import at module level from one inside a function, so this reads the source.
"""

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from importlinter import Contract, ContractCheck, fields, output


class LazyContract(Contract):
    allowed = fields.SetField(subfield=fields.StringField())
    exempt = fields.SetField(subfield=fields.StringField(), required=False)
    """Modules, as patterns, that nothing imports but functions that need what they import."""

    def check(self, graph, verbose):
        root = self.session_options["root_packages"][0]
        allowed = {*sys.stdlib_module_names, root, *self.allowed}
        found = []
        for path in sorted(Path("src", root).rglob("*.py")):
            module = ".".join(path.relative_to("src").with_suffix("").parts)
            if any(fnmatch(module, pattern) for pattern in self.exempt or ()):
                continue
            found += [f"{path}:{line} imports {name}" for line, name in imported(path) if name not in allowed]
        return ContractCheck(kept=not found, metadata={"found": found})

    def render_broken_contract(self, check):
        for place in check.metadata["found"]:
            output.print_error(f"{place} at module level; import it inside the function that needs it")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and top-level package of each import that runs when the module is imported."""
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.split(".")[0]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            pending.extend(node.orelse)
        else:
            pending.extend(ast.iter_child_nodes(node))
