"""What does the environment say about the cache?  Read once, where a Cache is made; arguments come before it.

PENSTOCK_CACHE               the folder
PENSTOCK_CACHE_MAX           how many bytes it may hold, such as 200G; what was not used for longest goes first
PENSTOCK_ALLOW_SHARED_CACHE  1: use a folder that others own or can write to
PENSTOCK_VERIFY              1: check the digest of a shard whenever it is opened
"""

import os
import re
import sys
from pathlib import Path

from penstock.errors import StoreError

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?\s*", flags=re.IGNORECASE)
_YES, _NO = {"1", "true", "yes", "on"}, {"", "0", "false", "no", "off"}


def default_root() -> Path:
    """PENSTOCK_CACHE, else the platform's folder for caches."""
    if given := os.environ.get("PENSTOCK_CACHE"):
        return Path(given).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "penstock"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def parse_size(text: str) -> int:
    """Bytes: "4096", "200G", "1.5 TiB"."""
    parts = _SIZE.fullmatch(text)
    if parts is None:
        raise StoreError(f"{text!r} is no size, expected a number of bytes such as 4096, 200G or 1.5TiB")
    return int(float(parts[1]) * _UNITS[parts[2].lower()])


def size_from_environment(variable: str) -> int | None:
    given = os.environ.get(variable, "").strip()
    return parse_size(given) if given else None


def flag_from_environment(variable: str) -> bool:
    given = os.environ.get(variable, "").strip().lower()
    if given not in _YES | _NO:
        raise StoreError(f"{variable} is {given!r}, expected 1 or 0")
    return given in _YES
