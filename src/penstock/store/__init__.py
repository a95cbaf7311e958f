"""Samples on disk."""

from penstock.store.build import build
from penstock.store.progress import Progress
from penstock.store.shards import ShardTokens
from penstock.store.store import Sample, Store

__all__ = ["Progress", "Sample", "ShardTokens", "Store", "build"]
