"""Puts the `>>>` examples of docstrings into code fences: Markdown would read them as quotations."""

import re
from typing import Any

import griffe  # deptry: ignore[DEP003]

DOCTEST = re.compile(r"^>>>.*(?:\n(?!\s*$).*)*", re.MULTILINE)


class FenceDoctests(griffe.Extension):
    """Changes every docstring before it is rendered."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Wrap each example, up to the next empty line."""
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
