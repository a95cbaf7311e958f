"""Which bytes stand for a record whose shape has no text of its own?  One form for equal values, whatever they were read from."""

import base64
import datetime
import decimal
import json
import math
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson

# What orjson would turn into a string by itself goes through `_tagged` instead: a date and its text must differ.
_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS


def record_bytes(value: Any) -> bytes:
    """JSON without spaces, keys in their own order (a chat template may print a dict as it stands); other types tagged."""
    try:
        text = orjson.dumps(value, _tagged, _OPTIONS)
        if b"null" not in text or _is_finite(value):  # orjson writes null for NaN and infinity, too
            return text
    except TypeError:  # integers beyond 64 bits, lone surrogates, keys that are not strings, NaN inside numpy
        pass
    return json.dumps(_plain(value), separators=(",", ":"), allow_nan=True).encode()


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(_is_finite, value))


def _tagged(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray):
        return {
            "$array": value.dtype.str,
            "shape": list(value.shape),
            "data": base64.b64encode(value.tobytes()).decode(),
        }
    if isinstance(value, np.generic):
        return {"$scalar": value.dtype.str, "data": base64.b64encode(value.tobytes()).decode()}
    if isinstance(value, tuple):
        return {"$tuple": list(value)}
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return {f"${type(value).__name__}": value.isoformat()}
    if isinstance(value, datetime.timedelta):
        return {"$timedelta": [value.days, value.seconds, value.microseconds]}
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return {f"${type(value).__name__}": str(value)}
    kinds: tuple[Callable[[Any], Any], ...] = (str, int, float, dict, list)
    for kind in kinds:
        if isinstance(value, kind):  # type: ignore[arg-type]  # a subclass: its value is what counts
            return kind(value)
    raise TypeError(f"a {type(value).__name__} has no form as bytes")


def _plain(value: Any) -> Any:
    """What `json` can write, with the same tags."""
    if isinstance(value, dict):
        if all(type(key) is str for key in value):
            return {key: _plain(inner) for key, inner in value.items()}
        return {"$pairs": [[_plain(key), _plain(inner)] for key, inner in value.items()]}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return _plain(_tagged(value))
