"""Samples on disk."""

from penstock.store.build import build
from penstock.store.shards import ShardTokens
from penstock.store.store import Sample, Store
from penstock.store.work import Progress

__all__ = ["Progress", "Sample", "ShardTokens", "Store", "build"]
