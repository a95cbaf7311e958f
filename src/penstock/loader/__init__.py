"""Batches, now, and again."""

from penstock.loader.loader import Batch, Loader

__all__ = ["Batch", "Loader"]
