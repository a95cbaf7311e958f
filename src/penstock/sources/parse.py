"""JSON to values, exactly, and values to bytes: by orjson, or by json if orjson would round a long integer."""

import base64
import json
import math
from typing import Any

import numpy as np
import orjson

from penstock.sources.bad import NO_MEMORY, not_utf8
from penstock.types import MOST_DEPTH, BadRow, Record, nests_too_deep

# orjson turns integers beyond 64 bits into floats without an error.  Those have at least 19 digits in a row.
_DIGITS = bytes(ord("0") if byte in b"0123456789" else ord(" ") for byte in range(256))
_LONG = b"0" * 19
_STRIDE = 9  # 19 digits in a row cover two neighbouring multiples of 9
# bytes from which each way to search is the faster one
_SMALL = 128
_LARGE = 1 << 14
_BETWEEN = 2**53 + 1  # no float equals it
_SEPARATOR = b",%d," % _BETWEEN
_SPACE = b" \t\r\n"

# Dates and subclasses go through `_tagged`: orjson alone would give a date and its text the same bytes.
_OPTIONS = (
    orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
)


_LEAST_DEEP = 2 * MOST_DEPTH  # bytes of brackets that open and close, of what is not too deep yet
_TOO_DEEP = BadRow(
    reason="too_deep", message=f"values nest more than {MOST_DEPTH} levels deep, expected fewer"
)


def has_long_digits(raw: bytes) -> bool:
    """Return whether there are 19 digits in a row anywhere; fast, because it is called for every record."""
    num_bytes = len(raw)
    if num_bytes > _LARGE:
        is_digit = (
            np.frombuffer(raw, dtype=np.uint8)[::_STRIDE] - ord("0")
        ) < 10  # wraps below "0"
        if not (is_digit[1:] & is_digit[:-1]).any():
            return False
    elif num_bytes > _SMALL and raw[::_STRIDE].translate(_DIGITS).find(b"00") < 0:
        return False
    return (
        raw.translate(_DIGITS).find(_LONG) >= 0
    )  # `in` would first try it as a number, for twice the time


def parse(raw: bytes | memoryview, *, exact: bool, unique_keys: bool = False) -> Record | BadRow:
    """Parse one object, or return a BadRow.  exact: there are long digits.  unique_keys: refuse a key given twice."""
    if not (exact or unique_keys):  # nearly always, so without a second call
        try:
            record = orjson.loads(raw)
        except json.JSONDecodeError:
            pass  # `parse_value` says more
        else:
            if type(record) is dict:
                if len(raw) > _LEAST_DEEP and _may_be_deep(raw) and nests_too_deep(record):
                    return _TOO_DEEP
                return record
    record = parse_value(raw, exact=exact, unique_keys=unique_keys)
    if type(record) is dict or type(record) is BadRow:
        return record
    names = {
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    kind = names.get(type(record), "null")
    return BadRow(
        reason="not_an_object",
        message=f'the record is {kind}, expected an object like {{"text": …}}',
    )


def parse_lines(raw: bytes, num_rows: int) -> list[Record] | None:
    """Parse all lines at once if each is one object; else return None, and `parse` can say more.

    They are parsed as one array, with a number between lines that is nowhere in them.  A line that is not one whole value either does not
    parse, or swallows the number next to it, and then too few come back.
    """
    if _SEPARATOR[1:-1] in raw:
        return None
    try:
        values = orjson.loads(b"[%b]" % raw.removesuffix(b"\n").replace(b"\n", _SEPARATOR))
    except json.JSONDecodeError:
        return None
    records: list[Record] = values[::2]
    if len(values) != 2 * num_rows - 1 or values[1::2].count(_BETWEEN) != num_rows - 1:
        return None
    has_deep_lines = _may_be_deep(raw) and any(map(_may_be_deep, raw.split(b"\n")))
    if has_deep_lines and any(map(nests_too_deep, records)):
        return None
    return records if set(map(type, records)) == {dict} else None


def parse_value(raw: bytes | memoryview, *, exact: bool, unique_keys: bool = False) -> Any:
    """Parse any JSON value, or return a BadRow."""
    try:
        value = orjson.loads(raw)
        if exact or unique_keys:  # orjson has checked what json does not: NaN, surrogates
            value = json.loads(
                str(raw, "utf-8"), object_pairs_hook=_unique if unique_keys else None
            )
    except json.JSONDecodeError as error:
        return short_of_memory(error) or _refused(bytes(raw), error)
    except _TwiceError as error:
        return BadRow(reason="duplicate_key", message=f"the key {error.args[0]!r} is given twice")
    except (RecursionError, ValueError) as error:  # ValueError: more digits than int() takes
        return BadRow(reason="bad_json", message=f"not readable: {error}")
    return _TOO_DEEP if _may_be_deep(raw) and nests_too_deep(value) else value


def _may_be_deep(raw: bytes | memoryview) -> bool:
    """Return whether JSON has enough brackets to nest too deep; a fast test that few records do not pass."""
    text = bytes(raw)  # the same object where it is bytes already
    return text.count(b"[") + text.count(b"{") > MOST_DEPTH


def short_of_memory(error: json.JSONDecodeError) -> BadRow | None:
    """Return a BadRow if memory ran out, which orjson reports as invalid JSON."""
    if not error.msg.startswith("Not enough memory"):
        return None
    return BadRow(reason=NO_MEMORY, message="there is not enough memory to parse the record")


class _TwiceError(Exception):
    """Not a ValueError, as those are caught for another reason."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _TwiceError(key)
        found[key] = value
    return found


def _refused(raw: bytes, error: json.JSONDecodeError) -> BadRow:
    """Return orjson's message, with the likely cause if it is easy to see."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as fault:
        return not_utf8(raw, fault, before="not JSON: ")
    cut = _where_cut(text, error)
    if cut is not None:
        return BadRow(reason="bad_json", message=f"not JSON: the record is cut off: {cut}")
    hint = ""
    if text[error.pos :].startswith(("NaN", "Infinity")):
        hint = " (NaN and Infinity are not JSON; write null)"
    elif "\0" in text:
        hint = " (there are NUL bytes)"
    elif b"\r" in raw.strip(_SPACE):
        hint = r" (a carriage return alone does not end a line; write \n)"
    return BadRow(
        reason="bad_json", message=f"not JSON: {error.msg} at character {error.pos}{hint}"
    )


def _where_cut(text: str, error: json.JSONDecodeError) -> str | None:
    """Say where a record ends that is only the first part of a value; None if something else is wrong with it.

    Half a record is what a download or a writer that was stopped leaves behind.
    """
    row = text.rstrip(" \t\r\n")
    is_at_end = row[:1] in ("{", "[") and error.pos >= len(row)
    if not is_at_end:
        return None
    return f"it ends inside a value, after {len(row):,} characters; is the file complete?"


def record_bytes(value: Any) -> bytes:
    """Return the bytes that identify a record: JSON without spaces, keys in their order, other types tagged."""
    try:
        text = orjson.dumps(value, _tagged, _OPTIONS)
        if b"null" not in text or _is_finite(value):  # orjson writes null for NaN and infinity, too
            return text
    except (
        TypeError
    ):  # integers beyond 64 bits, lone surrogates, keys that are not strings, NaN inside numpy
        pass
    return json.dumps(_plain(value), separators=(",", ":"), allow_nan=True).encode()


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(_is_finite, value))


def _tagged(value: Any) -> Any:
    """Return a value that JSON does not have as a dict with its type."""
    import datetime  # here, so that sources without such values do not pay for these imports
    import decimal
    import uuid

    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray):
        data = base64.b64encode(value.tobytes()).decode()
        return {"$array": value.dtype.str, "shape": list(value.shape), "data": data}
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
    kinds: tuple[Any, ...] = (str, int, float, dict, list)
    for kind in kinds:
        if isinstance(value, kind):  # a subclass: only its value matters
            return kind(value)
    raise TypeError(f"a {type(value).__name__} has no form as bytes")


def _plain(value: Any) -> Any:
    """Return what `json` can write, with the same tags."""
    if isinstance(value, dict):
        if all(type(key) is str for key in value):
            return {key: _plain(inner) for key, inner in value.items()}
        return {"$pairs": [[_plain(key), _plain(inner)] for key, inner in value.items()]}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return _plain(_tagged(value))
