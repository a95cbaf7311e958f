"""What does this YAML file say, and in which line?  Plain values only; words that readers of YAML take in two ways are refused.

Numbers are as in YAML 1.2, so 1e5 is a number and 12:30 is text.  `${VAR}` and `${VAR:-default}` stand for environment variables, `$${`
for the two characters themselves.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from penstock.errors import RecipeError

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 20
_MAX_ALIASES = 256
_MAX_DIGITS = 100

_VARIABLE = re.compile(r"\$(\$\{)|\$\{([^}]*)\}")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_WHOLE = re.compile(r"[-+]?\d[\d_]*|0x[0-9a-fA-F]+|0o[0-7]+")
_FRACTION = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?")
_BASE_8 = re.compile(r"[-+]?0[\d_]+")
_UNSURE = frozenset({"yes", "no", "on", "off"})
_NOT_FINITE = frozenset({".inf", "-.inf", "+.inf", ".nan"})
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "merge")
)


@dataclass(frozen=True, slots=True)
class Item:
    """A value and where it stands: a dict or list of Items, or a plain value.  Line 0: it came from Python."""

    value: Any
    line: int = 0

    def plain(self) -> Any:
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value


def from_python(value: Any) -> Item:
    """Keyword arguments take the same way as a file."""
    if isinstance(value, Mapping):
        return Item({key: from_python(part) for key, part in value.items()})
    if isinstance(value, list | tuple):
        return Item([from_python(part) for part in value])
    return Item(value)


def read_document(path: Path) -> Item:
    """The mapping in a file; the line of a mapping's value is that of its key."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror or error}; give the path of a recipe") from error
    if len(raw) > _MAX_BYTES:
        raise RecipeError(f"{path}: {len(raw):,} bytes, expected a recipe of at most {_MAX_BYTES:,}; is this data?")
    try:
        text = raw.decode("utf-8-sig")
        _check_events(path, text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: byte {error.start} is no UTF-8, expected a YAML file") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        line = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
        mark_up = next((mark for mark in ("${…}", "@[…]") if mark[:2] in line), None)
        hint = f"; inside {{ }} or [ ], put what holds {mark_up} in quotes" if mark_up else ""
        raise RecipeError(f"{place}: not YAML: {getattr(error, 'problem', None) or error}{hint}") from error
    if not isinstance(root, yaml.MappingNode):
        found = "nothing" if root is None else "a list" if isinstance(root, yaml.SequenceNode) else "one value"
        raise RecipeError(f"{path}:1: found {found}, expected keys such as 'data: chat.jsonl' and 'max_length: 4096'")
    return _item(path, root, line=1)


def is_recipe(name: str) -> bool:
    """Whether a place is a recipe rather than data: a YAML file, and not a bare list of data sets."""
    path = Path(name)
    if path.suffix.lower() not in (".yaml", ".yml"):
        return False
    try:
        if path.stat().st_size > _MAX_BYTES:
            return False
        root = yaml.compose(path.read_text(encoding="utf-8-sig"), Loader=yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return True  # whoever reads it says what is wrong
    return not isinstance(root, yaml.SequenceNode) and not (
        isinstance(root, yaml.MappingNode) and [getattr(key, "value", None) for key, _ in root.value] == ["datasets"]
    )


def _item(path: Path, node: yaml.Node, *, line: int) -> Item:
    if node.tag not in _PLAIN_TAGS:
        raise RecipeError(f"{path}:{line}: the tag {node.tag} is not known, expected plain values; leave it out")
    if isinstance(node, yaml.MappingNode):
        return Item(_mapping(path, node), line)
    if isinstance(node, yaml.SequenceNode):
        return Item([_item(path, part, line=_line(part)) for part in node.value], line)
    assert isinstance(node, yaml.ScalarNode)
    text = _with_variables(path, line, node.value)
    if node.style is not None or (node.tag.endswith(":str") and _WHOLE.fullmatch(node.value)):
        return Item(text, line)
    return Item(_scalar(path, line, text), line)


def _mapping(path: Path, node: yaml.MappingNode) -> dict[str, Item]:
    made: dict[str, Item] = {}
    merged: dict[str, Item] = {}
    for key, value in node.value:
        line = _line(key)
        if key.tag == "tag:yaml.org,2002:merge":
            if not isinstance(value, yaml.MappingNode):
                raise RecipeError(f"{path}:{line}: << takes one mapping, such as '<<: *defaults'")
            merged = {**merged, **_mapping(path, value)}
            continue
        if not isinstance(key, yaml.ScalarNode):
            raise RecipeError(f"{path}:{line}: a list or mapping as a key, expected a word")
        if key.value in made:
            raise RecipeError(
                f"{path}:{line}: {key.value} is given twice, in line {made[key.value].line} too; keep one"
            )
        made[key.value] = _item(path, value, line=line)
    return {**{key: item for key, item in merged.items() if key not in made}, **made}


def _scalar(path: Path, line: int, text: str) -> Any:
    """A word without quotes."""
    lower = text.lower()
    if lower in ("", "~", "null"):
        return None
    if lower in ("true", "false"):
        return lower == "true"
    if lower in _UNSURE:
        meant = "true" if lower in ("yes", "on") else "false"
        raise RecipeError(
            f"{path}:{line}: {text} is {meant} to some readers of YAML and a word to others; "
            f"write {meant}, or '{text}' in quotes for the word"
        )
    if _BASE_8.fullmatch(text):
        number = text.replace("_", "").lstrip("-+0") or "0"
        raise RecipeError(
            f"{path}:{line}: {text} counts in eights to some readers of YAML; write {number}, or '{text}' in quotes for text"
        )
    if _WHOLE.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            raise RecipeError(f"{path}:{line}: a whole number of {len(text):,} digits, expected at most {_MAX_DIGITS}")
        return int(text.replace("_", ""), 0)
    if lower in _NOT_FINITE:
        raise RecipeError(f"{path}:{line}: {text} is no number to work with, expected a finite one")
    if _FRACTION.fullmatch(text):
        fraction = float(text.replace("_", ""))
        if math.isfinite(fraction):
            return fraction
        raise RecipeError(f"{path}:{line}: {text} is too large a number, expected a finite one")
    return text


def is_word(text: str) -> bool:
    """Whether this text, without quotes, is read as text."""
    try:
        return isinstance(_scalar(Path(), 0, text), str)
    except RecipeError:
        return False


def _with_variables(path: Path, line: int, text: str) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        name = _NAME.fullmatch(match[2])
        if name is None:
            raise RecipeError(
                f"{path}:{line}: {match[0]} names no variable, expected ${{NAME}} or ${{NAME:-default}}; write $${{ for the letters"
            )
        if found := os.environ.get(name[1]):
            return found
        if name[2] is not None:
            return name[2]
        state = "is empty" if found == "" else "is not set"
        raise RecipeError(
            f"{path}:{line}: the environment variable {name[1]} {state}; set it, or give a default: ${{{name[1]}:-…}}"
        )

    return _VARIABLE.sub(value, text) if "$" in text else text


def _check_events(path: Path, text: str) -> None:
    """Aliases inside what an alias repeats grow by powers, so there are none; others are counted."""
    aliases, anchored = 0, [False]
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            aliases += 1
            if anchored[-1] or aliases > _MAX_ALIASES:
                raise RecipeError(f"{path}:{_line(event)}: aliases inside an anchor, or very many; write the value out")
        elif isinstance(event, yaml.CollectionStartEvent):
            anchored.append(anchored[-1] or event.anchor is not None)
            if len(anchored) > _MAX_DEPTH:
                raise RecipeError(f"{path}:{_line(event)}: nested more than {_MAX_DEPTH} deep, expected a flat recipe")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchored.pop()


def _line(node: yaml.Node | yaml.Event) -> int:
    return node.start_mark.line + 1 if node.start_mark else 0
