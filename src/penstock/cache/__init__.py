"""A folder of derived files: each is complete, never changes, and is named by what it was made of."""

from penstock.cache.cache import Cache, Entry, Fetch, default_root, open_cache, parse_size
from penstock.cache.owner import Owner

__all__ = ["Cache", "Entry", "Fetch", "Owner", "default_root", "open_cache", "parse_size"]
