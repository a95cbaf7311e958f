"""What does this piece of JSON say, exactly?  orjson, and json where orjson would round a long integer."""

import json
from typing import Any

import numpy as np
import orjson

from penstock.sources.bad import NO_MEMORY, not_utf8
from penstock.types import BadRow, Record

# orjson turns integers beyond 64 bits into floats without a word.  Those have at least 19 digits in a row.
_LONG = 19
_DIGITS = bytes(ord("0") if byte in b"0123456789" else ord(" ") for byte in range(256))
_NEEDLE = b"0" * _LONG
_STRIDE = 9  # 19 digits in a row cover two neighbouring multiples of 9
_SMALL, _LARGE = 128, 1 << 14  # bytes from which each way to look is the faster one
_BETWEEN = 2**53 + 1  # no float equals it
_SEPARATOR = b",%d," % _BETWEEN
_SPACE = b" \t\r\n"


def has_long_digits(raw: bytes) -> bool:
    """Whether 19 digits stand in a row anywhere; cheap, because every record is asked."""
    if len(raw) > _LARGE:
        is_digit = (np.frombuffer(raw, dtype=np.uint8)[::_STRIDE] - ord("0")) < 10  # wraps below "0"
        if not (is_digit[1:] & is_digit[:-1]).any():
            return False
    elif len(raw) > _SMALL and raw[::_STRIDE].translate(_DIGITS).find(b"00") < 0:
        return False
    return raw.translate(_DIGITS).find(_NEEDLE) >= 0  # `in` would first try it as a number, for twice the time


def parse(raw: bytes | memoryview, *, exact: bool, unique_keys: bool = False) -> Record | BadRow:
    """One object, or why it is none.  `exact` where long digits were seen; `unique_keys` refuses a key given twice."""
    if not (exact or unique_keys):  # nearly always, so without a second call
        try:
            record = orjson.loads(raw)
        except json.JSONDecodeError:
            pass  # said below
        else:
            if type(record) is dict:
                return record
    record = parse_value(raw, exact=exact, unique_keys=unique_keys)
    if type(record) is dict or type(record) is BadRow:
        return record
    return BadRow(reason="not_an_object", message=f'the row is {_kind(record)}, expected an object like {{"text": …}}')


def parse_lines(raw: bytes, num_rows: int) -> list[Record] | None:
    """All lines at once, if each is one object and the last at most ends in a newline; else None, and `parse` can say more.

    They are parsed as one array, with a number between lines that stands nowhere in them.  A line that is not one whole
    value either does not parse, or swallows the number next to it, and then too few come back.
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
    return records if set(map(type, records)) == {dict} else None


def parse_value(raw: bytes | memoryview, *, exact: bool, unique_keys: bool = False) -> Any:
    """Any JSON value, or a BadRow."""
    try:
        value = orjson.loads(raw)
        if exact or unique_keys:  # orjson has checked what json is lax about: NaN, surrogates
            value = json.loads(str(raw, "utf-8"), object_pairs_hook=_unique if unique_keys else None)
    except json.JSONDecodeError as error:
        return short_of_memory(error) or _refused(bytes(raw), error)
    except _TwiceError as error:
        return BadRow(reason="duplicate_key", message=f"the key {error.args[0]!r} is given twice")
    except (RecursionError, ValueError) as error:  # ValueError: more digits than int() takes
        return BadRow(reason="bad_json", message=f"not readable: {error}")
    return value


def short_of_memory(error: json.JSONDecodeError) -> BadRow | None:
    """orjson says of a row that is too large for what is left of the memory that it is no JSON."""
    if not error.msg.startswith("Not enough memory"):
        return None
    return BadRow(reason=NO_MEMORY, message="there is not enough memory to parse the row")


class _TwiceError(Exception):
    """Not a ValueError, as those mean something else here."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _TwiceError(key)
        found[key] = value
    return found


def _refused(raw: bytes, error: json.JSONDecodeError) -> BadRow:
    """What orjson said, and what is behind it where that is easily seen."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as fault:
        return not_utf8(raw, fault, before="not JSON: ")
    hint = ""
    if text[error.pos :].startswith(("NaN", "Infinity")):
        hint = " (NaN and Infinity are no JSON; write null)"
    elif "\0" in text:
        hint = " (there are NUL bytes)"
    elif b"\r" in raw.strip(_SPACE):
        hint = r" (a carriage return alone ends no line; write \n)"
    return BadRow(reason="bad_json", message=f"not JSON: {error.msg} at character {error.pos}{hint}")


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names[type(value)]
