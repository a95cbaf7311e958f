"""Read YAML as plain values, each with its line.  Nothing in it is run, ambiguous words are refused, and aliases cannot multiply it.

Numbers follow YAML 1.2: 1e5 is a number and 12:30 is text.  `${VAR}` and `${VAR:-default}` are environment variables; `$${` is `${`.
"""

import math
import os
import re
from functools import lru_cache
from typing import Any

import yaml

from penstock.errors import PenstockError

MAX_BYTES = 1 << 20
_MAX_DEPTH = 20
_MAX_VALUES = 100_000  # with those that aliases repeat
_MAX_DIGITS = 100
_DEEP = f"nested more than {_MAX_DEPTH} deep, expected a flat list or mapping"

_VARIABLE = re.compile(r"\$(\$\{)|\$\{([^}]*)\}")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_WHOLE = re.compile(r"[-+]?\d[\d_]*|0x[0-9a-fA-F]+|0o[0-7]+")
_FRACTION = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?")
_OCTAL = re.compile(r"[-+]?0[\d_]+")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_AMBIGUOUS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_NOT_FINITE = frozenset({".inf", "-.inf", "+.inf", ".nan"})
TAG = "tag:yaml.org,2002:"
_MERGE = f"{TAG}merge"
_PLAIN_TAGS = {
    TAG + name
    for name in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "merge")
}

Keys = tuple[str | int, ...]  # the way to a value: keys of mappings, and places in lists


def read_yaml(raw: bytes, path: object, error: type[PenstockError]) -> tuple[Any, dict[Keys, int]]:
    """The value of a YAML document, and the line of every value in it; of a value in a mapping, that of its key.

    `path` and `error` are for what is wrong: `error` is raised with path and line.
    """
    if len(raw) > MAX_BYTES:
        raise error(f"{path}: {len(raw):,} bytes, expected at most {MAX_BYTES:,}; is this data?")
    try:
        root = compose(raw)
    except UnicodeDecodeError as fault:
        raise error(f"{path}: byte {fault.start} is not UTF-8, expected a YAML file") from fault
    except RecursionError as fault:
        raise error(f"{path}: {_DEEP}") from fault
    except (yaml.YAMLError, ValueError) as fault:
        raise error(_not_yaml(path, raw, fault)) from fault
    reader = _Reader(path, error)
    return None if root is None else reader.read(root, 1), reader.lines


@lru_cache(maxsize=1)  # a command asks for the same file twice
def compose(raw: bytes) -> yaml.Node | None:
    """The root node of a document."""
    root: yaml.Node | None = yaml.compose(raw.decode("utf-8-sig"), Loader=yaml.SafeLoader)
    return root


def _not_yaml(path: object, raw: bytes, error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    lines = raw.decode("utf-8-sig").splitlines()
    line = lines[mark.line] if mark and mark.line < len(lines) else ""
    special = next((special for special in ("${…}", "@[…]") if special[:2] in line), None)
    hint = f"; inside {{ }} or [ ], put what holds {special} in quotes" if special else ""
    place = f"{path}:{mark.line + 1}" if mark else path
    return f"{place}: not YAML: {getattr(error, 'problem', None) or error}{hint}"


class _Reader:
    """Turns YAML nodes into plain values.  The number of values is limited, because nested aliases multiply them."""

    def __init__(self, path: object, error: type[PenstockError]) -> None:
        self._path = path
        self._error_class = error
        self._num_values = 0
        self.lines: dict[Keys, int] = {}

    def read(self, node: yaml.Node, line: int, keys: Keys = ()) -> Any:
        self.lines[keys] = line
        self._num_values += 1
        if len(keys) > _MAX_DEPTH:
            raise self._error(line, _DEEP)
        if self._num_values > _MAX_VALUES:
            repeated = f"more than {_MAX_VALUES:,} values; write out what the aliases repeat"
            raise self._error(self.lines[keys[:1]], repeated)
        if node.tag not in _PLAIN_TAGS:
            raise self._error(
                line, f"the tag {node.tag} is not known, expected plain values; leave it out"
            )
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, keys)
        if isinstance(node, yaml.SequenceNode):
            return [
                self.read(part, _line(part), (*keys, place))
                for place, part in enumerate(node.value)
            ]
        assert isinstance(node, yaml.ScalarNode)
        text = _VARIABLE.sub(lambda match: self._variable(match, line), node.value)
        if node.style is not None or (node.tag == f"{TAG}str" and _WHOLE.fullmatch(node.value)):
            return text
        try:
            return scalar(text)
        except ValueError as error:
            raise self._error(line, str(error)) from None

    def _mapping(self, node: yaml.MappingNode, keys: Keys) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        made: dict[str, Any] = {}
        for key, value in sorted(node.value, key=lambda pair: pair[0].tag != _MERGE):
            line = _line(key)
            if key.tag == _MERGE:
                if not isinstance(value, yaml.MappingNode):
                    raise self._error(line, "<< takes one mapping, such as '<<: *defaults'")
                merged |= self.read(
                    value, line, (*keys, key.value)
                )  # counts, as aliases multiply these, too
            elif not isinstance(key, yaml.ScalarNode):
                raise self._error(line, "a list or mapping as a key, expected a word")
            elif key.value in made:
                first = self.lines[*keys, key.value]
                raise self._error(
                    line, f"{key.value} is given twice, in line {first} too; keep one"
                )
            else:
                made[key.value] = self.read(value, line, (*keys, key.value))
        for name in merged.keys() - made.keys():
            self.lines[*keys, name] = self.lines[*keys, "<<", name]
        return {**{name: value for name, value in merged.items() if name not in made}, **made}

    def _variable(self, match: re.Match[str], line: int) -> str:
        if match[1]:
            return match[1]
        name = _NAME.fullmatch(match[2])
        if name is None:
            expected = "expected ${NAME} or ${NAME:-default}; write $${ for a literal ${"
            raise self._error(line, f"{match[0]} names no variable, {expected}")
        found = os.environ.get(name[1])
        if not found and name[2] is None:
            state = "is empty" if found == "" else "is not set"
            why = f"the environment variable {name[1]} {state}; set it, or give a default: ${{{name[1]}:-…}}"
            raise self._error(line, why)
        return found or name[2]

    def _error(self, line: int, why: str) -> PenstockError:
        return self._error_class(f"{self._path}:{line}: {why}")


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1 if node.start_mark else 0


def scalar(text: str) -> Any:
    """The value of an unquoted scalar; an error where YAML readers disagree about it."""
    lower = text.lower()
    if lower in _WORDS:
        return _WORDS[lower]
    if meant := _AMBIGUOUS.get(lower):
        raise ValueError(
            f"'{text}' is ambiguous in YAML: {meant} for some readers and text for others; write {meant}, or '{text}' in quotes for text"
        )
    if _OCTAL.fullmatch(text):
        number = text.replace("_", "").lstrip("-+0") or "0"
        raise ValueError(
            f"{text} is octal to some YAML readers; write {number}, or '{text}' in quotes for text"
        )
    if _WHOLE.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            raise ValueError(
                f"a whole number of {len(text):,} digits, expected at most {_MAX_DIGITS}"
            )
        return int(text.replace("_", ""), 0)
    if _FRACTION.fullmatch(text) and math.isfinite(fraction := float(text.replace("_", ""))):
        return fraction
    if lower in _NOT_FINITE or _FRACTION.fullmatch(text):
        raise ValueError(f"{text} is not a finite number")
    return text
