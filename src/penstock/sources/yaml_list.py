"""Which data sets does this file list, and how is each to be opened?  Plain values only; a key nobody knows is an error with its line.

datasets:
  - path: chat/*.jsonl          # relative to this file; also a folder, a glob, chat.jsonl@[:1000]
    weight: 0.7                 # for a mixture
  - path: math
    format: parquet             # also called shape or data_type
    split: train[:10%]
    name: math
    options: {columns: [text]}  # the shape's own
"""

import difflib
import logging
import math
import os
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.files import read
from penstock.sources.bad import BadRows
from penstock.sources.concat import concat
from penstock.sources.opening import open_source
from penstock.sources.shapes import SHAPES
from penstock.sources.view import RowAccess

_log = logging.getLogger("penstock")

_ABOVE: ContextVar[tuple[str, ...]] = ContextVar("penstock_lists", default=())  # lists that are being opened

_MAX_BYTES = 1 << 20
_MAX_ALIASES = 256
_MAX_DEPTH = 20

# What people call a key elsewhere → what it is called here.
_CALLED = {
    "json_path": "path",
    "data_path": "path",
    "dataset_path": "path",
    "format": "shape",
    "data_type": "shape",
    "dataset_format": "shape",
    "dataset_name": "name",
    "kwargs": "options",
}
_KEYS = ("path", "shape", "split", "weight", "name", "data_folder", "options")
_NO_OPTIONS = ("place", "cache", "name", "shape", "split", "bad", "defaults")
_SHAPES = {"hf_dataset": "hf", "huggingface": "hf", "txt": "text", "tsv": "csv", "ndjson": "jsonl", "yml": "yaml"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEntry:
    """One data set of a list."""

    path: str  # absolute, or a glob, or with a slice
    shape: str | None = None
    split: str | None = None
    weight: float | None = None
    name: str | None = None
    data_folder: str | None = None  # absolute; where pictures and sounds named in the records lie
    options: dict[str, Any] = field(default_factory=dict)
    line: int = 0  # in the file that lists it
    listed_in: str = field(default="", compare=False)

    def open(self, *, cache: Cache, bad: BadRows | None = None, defaults: dict[str, Any] | None = None) -> RowAccess:
        return open_source(
            self.path, cache=cache, name=self.name, shape=self.shape, split=self.split, bad=bad, defaults=defaults,
            **self.options,
        )  # fmt: skip


def read_list(path: str) -> list[DatasetEntry]:
    """The data sets that a file lists, in its order."""
    root = _compose(path)
    if isinstance(root, yaml.MappingNode):
        for key, value in root.value:
            if _key(path, key) != "datasets":
                raise _fault(
                    path, key, f"unknown key {key.value!r}, expected datasets{_nearest(key.value, ['datasets'])}"
                )
            root = value
    if not isinstance(root, yaml.SequenceNode) or not root.value:
        raise SourceError(
            f"{path}: no list of data sets, expected 'datasets:' with entries such as '- path: chat.jsonl'"
        )
    return [_entry(path, node) for node in root.value]


def open_list(
    paths: Sequence[str],
    *,
    cache: Cache,
    name: str | None = None,
    bad: BadRows | None = None,
    defaults: dict[str, Any] | None = None,
) -> RowAccess:
    """All data sets of a list as one source, one after the other."""
    entries = [entry for path in paths for entry in read_list(path)]
    if any(entry.weight is not None for entry in entries):
        _log.warning("%s: weights take effect in a mixture; opened as one source, every record counts once", paths[0])
    if any(entry.data_folder is not None for entry in entries):
        _log.warning("%s: records are given as written; data_folder is for who reads their media", paths[0])
    bad = bad or BadRows()
    above = _ABOVE.get()
    if loop := set(above) & set(paths):
        raise SourceError(f"{loop.pop()}: lists itself, by way of {' → '.join(above)}; take one of them out")
    token = _ABOVE.set((*above, *paths))
    try:
        return concat([_opened(entry, cache, bad, defaults) for entry in entries], name=name)
    finally:
        _ABOVE.reset(token)


def _opened(entry: DatasetEntry, cache: Cache, bad: BadRows, defaults: dict[str, Any] | None) -> RowAccess:
    try:
        return entry.open(cache=cache, bad=bad, defaults=defaults)
    except SourceError as error:
        raise type(error)(f"{entry.listed_in}:{entry.line}: {error}") from error


def _entry(path: str, node: yaml.Node) -> DatasetEntry:
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:str":
        _check(path, node, "path", node.value)
        return DatasetEntry(path=_absolute(path, node.value), line=_line(node), listed_in=path)
    if not isinstance(node, yaml.MappingNode):
        raise _fault(path, node, "expected a data set such as {path: chat.jsonl}")
    found: dict[str, Any] = {}
    nodes: dict[str, yaml.Node] = {}
    for key_node, value_node in _pairs(path, node):
        written = _key(path, key_node)
        key = _CALLED.get(written, written)
        if key not in _KEYS:
            known = [*_KEYS, *_CALLED]
            raise _fault(
                path, key_node, f"unknown key {key!r}, expected one of {', '.join(_KEYS)}{_nearest(key, known)}"
            )
        if key in found:
            raise _fault(path, key_node, f"{key} is given twice (in line {_line(nodes[key])} too)")
        found[key], nodes[key] = _value(path, value_node), key_node
    found = {key: value for key, value in found.items() if value is not None}
    if "path" not in found:
        raise _fault(path, node, "a data set without path")
    for key, value in found.items():
        _check(path, nodes[key], key, value)
    if "weight" in found:
        found["weight"] = float(found["weight"])
    if "shape" in found:
        found["shape"] = _SHAPES.get(found["shape"], found["shape"])
    for key in ("path", "data_folder"):
        if key in found:
            found[key] = _absolute(path, found[key])
    return DatasetEntry(**found, line=_line(node), listed_in=path)


def _check(path: str, node: yaml.Node, key: str, value: Any) -> None:
    if key == "weight":
        if not 0 < _number(value) < math.inf:
            raise _fault(path, node, f"weight is {value!r}, expected a number above 0")
    elif key == "options":
        if not isinstance(value, dict):
            raise _fault(path, node, f"options is a {type(value).__name__}, expected a mapping")
        for option in value:
            if not isinstance(option, str) or option in _NO_OPTIONS:
                raise _fault(path, node, f"{option!r} is no option of a shape; write it beside path, if it is a key")
    elif not isinstance(value, str) or (key == "path" and not value):
        raise _fault(path, node, f"{key} is {str(value)[:100]!r} ({type(value).__name__}), expected text")
    elif key == "shape" and value not in SHAPES and value not in _SHAPES:
        known = [*SHAPES, *_SHAPES]
        raise _fault(
            path, node, f"the shape {value!r} is not known, expected one of {', '.join(SHAPES)}{_nearest(value, known)}"
        )


def _key(path: str, node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _fault(path, node, "a list or mapping as a key, expected a word")
    return str(node.value)


def _number(value: Any) -> float:
    try:
        return math.nan if isinstance(value, bool) else float(value)  # YAML takes 1e-3 for text
    except (TypeError, ValueError):
        return math.nan


def _compose(path: str) -> yaml.Node | None:
    """The file as nodes, which know their lines.  Nothing in it is run, and no alias can blow it up."""
    raw = read(path)
    if len(raw) > _MAX_BYTES:
        raise SourceError(f"{path}: {len(raw):_} bytes, expected a list of data sets of at most {_MAX_BYTES:_}")
    try:
        _check_events(path, raw)
        root: yaml.Node | None = yaml.compose(raw, Loader=yaml.SafeLoader)
        return root
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else path
        raise SourceError(f"{place}: not YAML: {getattr(error, 'problem', None) or error}") from error


def _check_events(path: str, raw: bytes) -> None:
    """Aliases inside what an alias repeats grow by powers, so there are none; others are counted."""
    depth, aliases, anchored = 0, 0, [False]
    for event in yaml.parse(raw, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            aliases += 1
            if anchored[-1] or aliases > _MAX_ALIASES:
                raise SourceError(
                    f"{path}:{_line(event)}: an alias inside an anchor, or more than {_MAX_ALIASES} aliases; "
                    f"write the value out"
                )
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            anchored.append(anchored[-1] or event.anchor is not None)
            if depth > _MAX_DEPTH:
                raise SourceError(f"{path}:{_line(event)}: nested more than {_MAX_DEPTH} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
            anchored.pop()


def _value(path: str, node: yaml.Node) -> Any:
    """A node as a plain value."""
    try:
        return yaml.constructor.SafeConstructor().construct_document(node)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: 2024-13-45 looks like a date
        raise _fault(path, node, f"not a plain value: {getattr(error, 'problem', None) or error}") from error


def _pairs(path: str, node: yaml.MappingNode) -> list[tuple[yaml.Node, yaml.Node]]:
    """Keys and values; what `<<` brings along stands behind what is written out."""
    written = [pair for pair in node.value if pair[0].tag != "tag:yaml.org,2002:merge"]
    own = {_key(path, key) for key, _ in written}
    for key, value in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            if not isinstance(value, yaml.MappingNode):
                raise _fault(path, key, "<< brings one mapping along, expected such as '<<: *defaults'")
            written += [pair for pair in value.value if _key(path, pair[0]) not in own]
    return written


def _absolute(path: str, place: str) -> str:
    if "://" in place:
        return place  # elsewhere, which is not for us to say
    return str(Path(path).parent / os.path.expanduser(place))  # noqa: PTH111 - may be a glob


def _line(node: yaml.Node | yaml.Event) -> int:
    return node.start_mark.line + 1 if node.start_mark else 0


def _fault(path: str, node: yaml.Node, why: str) -> SourceError:
    return SourceError(f"{path}:{_line(node)}: {why}")


def _nearest(word: str, known: list[str]) -> str:
    found = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
