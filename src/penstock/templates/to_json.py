"""JSON as transformers writes it for chat templates: jinja2's own filter would escape HTML characters."""

import json
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

_usual_json = json.JSONEncoder(ensure_ascii=False).encode


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    if indent is None and separators is None and not ensure_ascii and not sort_keys:
        return _usual_json(value)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=None if separators is None else tuple(separators),
        sort_keys=sort_keys,
    )


def spellings(words: str) -> tuple[str, str, str]:
    """How templates may print words: as they are, or as a part of JSON."""
    return words, encode_basestring(words)[1:-1], encode_basestring_ascii(words)[1:-1]
