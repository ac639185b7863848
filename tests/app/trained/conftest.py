"""Runs that tests share."""

from .runs import adapted, base, built_in

__all__ = ["adapted", "base", "built_in"]
