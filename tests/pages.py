"""The code on a page of the documentation."""

import contextlib
import io
import re

from penalties.backends import double_precision

__all__ = ["PYTHON", "run"]

# Code, and what it prints where a ```text block follows directly.
PYTHON = re.compile(r"^```python\n(.*?)^```$(?:\n+```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


def run(page: str, text: str) -> None:
    """Run the blocks of a page in one namespace, in order, and compare what they print."""
    namespace: dict[str, object] = {"__name__": "__page__"}
    for block in PYTHON.finditer(text):
        code, printed = block.groups(default="")
        line = text.count("\n", 0, block.start(1))
        # Empty lines in front: a traceback then shows the line number in the page.
        program = compile("\n" * line + code, page, "exec")
        output = io.StringIO()
        # The other tests turn 64 bits on in JAX; a reader has not.
        with contextlib.redirect_stdout(output), double_precision(False):
            exec(program, namespace)
        assert output.getvalue() == printed, f"{page}:{line}"
