"""Consistency with what is known: facts in a graph or a SQL database, and rules along paths.

>>> import numpy as np
>>> from penalties.terms.knowledge import Graph, Knowledge, Rule
>>> base = Graph([("Lyon", "lies in", "France"), ("Bern", "lies in", "Switzerland")])
>>> term = Knowledge(base, rules=[Rule(("shows", "lies in"), "taken in")])
>>> facts = [("photo", "shows", "Lyon"), ("photo", "shows", "Bern"), ("photo", "taken in", "Switzerland")]
>>> value, metrics = term(np.array([0.9, 0.1, 0.8]), facts)
>>> round(float(value), 6), float(metrics["violated"])
(0.92, 1.0)
"""

from .base import Base, Graph, Thing, Triple
from .database import Database
from .facts import Facts
from .rules import Rule
from .table import Table
from .term import Knowledge

__all__ = ["Base", "Database", "Facts", "Graph", "Knowledge", "Rule", "Table", "Thing", "Triple"]
