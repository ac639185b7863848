"""The config of a run: TOML tables, checked as a whole, with every default filled in."""

from ..problems import ConfigError, DataError, Problem
from .config import Config
from .loading import DEMO, examine, find, load, load_again, load_tables

__all__ = [
    "DEMO",
    "Config",
    "ConfigError",
    "DataError",
    "Problem",
    "examine",
    "find",
    "load",
    "load_again",
    "load_tables",
]
