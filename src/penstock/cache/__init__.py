"""A folder of derived files: each is complete, never changes, and is named by what it was made of."""

from penstock.cache.cache import Cache, Discarded, Entry, Fetch, default_root, parse_size
from penstock.cache.locks import Owner

__all__ = ["Cache", "Discarded", "Entry", "Fetch", "Owner", "default_root", "parse_size"]
