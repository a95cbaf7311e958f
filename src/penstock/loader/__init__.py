"""Batches, now, and again."""

from penstock.loader.batch import Batch
from penstock.loader.loader import Loader

__all__ = ["Batch", "Loader"]
