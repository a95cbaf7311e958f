"""Show a record as indented JSON, whatever it holds.

Readers of Parquet, Arrow and `.pt` files, and functions of the user, give values that JSON has no form for: integers of
any size, NaN, bytes, dates, numpy arrays, keys that are not text.  Showing a record must not fail for any of them.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_MOST_BITS = 4_096  # of an integer that is written out; Python refuses to print very large ones
_MOST_BYTES = 32  # of a byte string that are shown
_MOST_VALUES = 2_000  # of an array or a list
_MOST_DEPTH = 60


def record_text(record: Any) -> str:
    """Indented JSON; values that JSON does not know are shown as text in angle brackets."""
    return json.dumps(_plain(record, 0), indent=2, ensure_ascii=False)


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if depth > _MOST_DEPTH:
        return f"<{type(value).__name__}, nested deeper than {_MOST_DEPTH} levels>"
    if isinstance(value, Mapping):
        return {_key(key): _plain(part, depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return _listed(value, depth)
    return _single(value, depth)


def _single(value: Any, depth: int) -> Any:
    if isinstance(value, np.generic):
        return _plain(value.item(), depth + 1) if not isinstance(value.item(), np.generic) else _shown(value)
    if isinstance(value, int):
        return value if value.bit_length() <= _MOST_BITS else f"<integer of {value.bit_length():,} bits>"
    if isinstance(value, float):
        return value if math.isfinite(value) else f"<{value}>"
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value[:_MOST_BYTES])
        return f"<{len(value):,} bytes: {raw.hex(' ')}{' …' if len(value) > _MOST_BYTES else ''}>"
    return f"<{_shown(value)}>"


def _listed(value: Any, depth: int) -> list[Any]:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return [_plain(value.item(), depth + 1)]
    parts = [_plain(part, depth + 1) for _, part in zip(range(_MOST_VALUES), value, strict=False)]
    return [*parts, f"<{len(value) - _MOST_VALUES:,} more values>"] if len(value) > _MOST_VALUES else parts


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(_plain(key, 0))


def _shown(value: Any) -> str:
    try:
        return f"{type(value).__name__} {value}"
    except Exception:  # an object of the user's, which need not know how to print itself
        return type(value).__name__
