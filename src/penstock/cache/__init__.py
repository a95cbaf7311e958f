"""Where derived files live: a folder whose files are whole, never change, and are named by what they are made of."""

from penstock.cache.cache import Cache, Discarded, Entry
from penstock.cache.owner import Owner
from penstock.cache.settings import default_root, parse_size

__all__ = ["Cache", "Discarded", "Entry", "Owner", "default_root", "parse_size"]
