"""A term, in whose module a config finds more: where the environment says so, the program trains the toy of the tests.

The toy needs no transformers: a command begins in three seconds instead of eight.
"""

import os
from typing import Any

from penalties.app.train import start
from tests.app.stand_ins import Backend

if "PENALTIES_TOY" in os.environ:
    start.connect = Backend


def drift(logprobs: Any) -> Any:
    return logprobs[0].mean() ** 2
