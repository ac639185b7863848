"""Clients that several processes share."""
