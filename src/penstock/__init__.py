"""Penstock: the pipe between a pile of raw records and a trainer."""

__version__ = "0.1.0"
