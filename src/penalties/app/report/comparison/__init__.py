"""Comparison of several runs."""
