"""What does this piece of JSON say, exactly?  orjson, and json where orjson would round a long integer."""

import json

import numpy as np
import orjson

from penstock.types import BadRow, Record

# orjson turns integers beyond 64 bits into floats without a word.  Those have at least 19 digits in a row.
_LONG = 19
_DIGITS = bytes(ord("0") if byte in b"0123456789" else ord(" ") for byte in range(256))
_NEEDLE = b"0" * _LONG
_STRIDE = 8  # 19 digits in a row cover two neighbouring multiples of 8
_SMALL = 4096


def has_long_digits(raw: bytes) -> bool:
    """Whether 19 digits stand in a row anywhere; cheap, because every record is asked."""
    if len(raw) > _SMALL:
        is_digit = (np.frombuffer(raw, dtype=np.uint8)[::_STRIDE] - ord("0")) < 10  # wraps below "0"
        if not (is_digit[1:] & is_digit[:-1]).any():
            return False
    return _NEEDLE in raw.translate(_DIGITS)


def parse(raw: bytes | memoryview, *, exact: bool) -> Record | BadRow:
    """One object, or why it is none.  `exact` where long digits were seen."""
    try:
        record = orjson.loads(raw)
        if exact:
            record = json.loads(str(raw, "utf-8"))  # orjson has checked what json is lax about: NaN, surrogates
    except json.JSONDecodeError as error:
        return BadRow(reason="bad_json", message=f"not JSON: {error.msg} at character {error.pos}")
    except (RecursionError, ValueError) as error:  # ValueError: more digits than int() takes
        return BadRow(reason="bad_json", message=f"not readable: {error}")
    if type(record) is not dict:
        return BadRow(
            reason="not_an_object", message=f'the row is {_kind(record)}, expected an object like {{"text": …}}'
        )
    return record


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names[type(value)]
