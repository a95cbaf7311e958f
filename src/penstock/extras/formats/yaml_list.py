"""A YAML file that lists datasets.  Plain values only; an unknown key is an error with its line.

datasets:
  - path: chat/*.jsonl          # relative to this file; also a folder, a glob, chat.jsonl@[:1000]
    weight: 0.7                 # for a mixture
  - path: math
    format: parquet             # also called data_type
    split: train[:10%]
    name: math
    options: {columns: [text]}  # the format's own
"""

import logging
import os
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import SourceError
from penstock.places.files import read
from penstock.sources.base import RowAccess
from penstock.sources.concat import concat
from penstock.sources.formats import format_named
from penstock.sources.hubs import on_hub
from penstock.sources.open import open_source
from penstock.sources.opener import NoOptions, Opener, OpenRequest
from penstock.sources.yaml_lines import Keys, read_yaml
from penstock.words import did_you_mean

_log = logging.getLogger("penstock")

_OPENING: ContextVar[tuple[str, ...]] = ContextVar(
    "penstock_lists", default=()
)  # lists that are being opened

# Other tools' names of a key → ours.
_ALIASES: dict[str, str] = {
    **dict.fromkeys(("json_path", "data_path", "dataset_path"), "path"),
    **dict.fromkeys(("shape", "data_type", "dataset_format"), "format"),
    "dataset_name": "name",
    "kwargs": "options",
}
_KEYS = ("path", "format", "split", "weight", "name", "data_folder", "options")
_NOT_OPTIONS = ("place", "cache", "name", "format", "split", "bad", "defaults", "purpose")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEntry:
    """One dataset of a list."""

    path: str  # absolute, or a glob, or with a slice
    format: str | None = None
    split: str | None = None
    weight: float | None = None
    name: str | None = None
    data_folder: str | None = None  # absolute; where the images and sounds named in the records are
    options: dict[str, Any] = field(default_factory=dict)
    line: int = 0  # in the file that lists it


def read_list(path: str) -> list[DatasetEntry]:
    """Return the datasets that a file lists, in its order."""
    listed, lines = read_yaml(read(path), path, SourceError)
    at: Keys = ()
    if isinstance(listed, dict):
        for key in listed:
            if key != "datasets":
                hint = did_you_mean(key, ["datasets"])
                raise SourceError(
                    f"{path}:{lines[key,]}: unknown key {key!r}, expected datasets{hint}"
                )
        listed = listed.get("datasets")
        at = ("datasets",)
    if not isinstance(listed, list) or not listed:
        expected = "expected 'datasets:' with entries such as '- path: chat.jsonl'"
        raise SourceError(f"{path}: not a list of datasets, {expected}")
    return [_entry(path, value, (*at, place), lines) for place, value in enumerate(listed)]


def open_list(request: OpenRequest) -> RowAccess:
    """Open all datasets of a list as one source, one after the other."""
    paths = request.paths
    above = _OPENING.get()
    loop = set(above) & set(paths)
    if loop:
        raise SourceError(
            f"{loop.pop()}: lists itself, by way of {' → '.join(above)}; take one of them out"
        )
    token = _OPENING.set((*above, *paths))
    try:
        entries = [(path, entry) for path in paths for entry in read_list(path)]
        if any(entry.weight is not None for _, entry in entries):
            _log.warning("%s: weights are ignored: they take effect only in a mixture", paths[0])
        if any(entry.data_folder is not None for _, entry in entries):
            _log.warning(
                "%s: data_folder is ignored: a source returns records as written; list the datasets in a recipe, where "
                "data_folder is read as media_root",
                paths[0],
            )
        return concat([_open(path, entry, request) for path, entry in entries], name=request.name)
    finally:
        _OPENING.reset(token)


YAML = Opener(NoOptions, open_list)


def _open(path: str, entry: DatasetEntry, request: OpenRequest) -> RowAccess:
    try:
        return open_source(
            entry.path,
            cache=request.cache,
            name=entry.name,
            format=entry.format,
            split=entry.split,
            bad=request.bad,
            defaults=dict(request.defaults),
            purpose=request.purpose,
            **entry.options,
        )
    except SourceError as error:
        raise type(error)(f"{path}:{entry.line}: {error}") from error


def _entry(path: str, value: Any, at: Keys, lines: dict[Keys, int]) -> DatasetEntry:
    def fault(why: str, *key: str) -> SourceError:
        return SourceError(f"{path}:{lines.get((*at, *key), lines[at])}: {why}")

    if isinstance(value, str):
        value = {"path": value}
    if not isinstance(value, dict):
        raise fault("expected a dataset such as {path: chat.jsonl}")
    values: dict[str, Any] = {}
    written: dict[str, str] = {}  # our key → the key in the file
    for name, part in value.items():
        key = str(_ALIASES.get(name, name))
        if key not in _KEYS:
            hint = did_you_mean(key, [*_KEYS, *_ALIASES])
            raise fault(f"unknown key {key!r}, expected one of {', '.join(_KEYS)}{hint}", name)
        if key in written:
            raise fault(f"{key} is given twice (in line {lines[*at, written[key]]} too)", name)
        written[key] = name
        if part is not None:
            if why := _wrong(key, part):
                raise fault(why, name)
            values[key] = part
    if "path" not in values:
        raise fault("a dataset without path")
    if "weight" in values:
        values["weight"] = float(values["weight"])
    if "format" in values:
        values["format"] = format_named(values["format"]).name
    if "path" in values:
        values["path"] = on_hub(values["path"], folder=str(Path(path).parent)) or values["path"]
    for key in values.keys() & {"path", "data_folder"}:
        if "://" not in values[key]:
            values[key] = str(Path(path).parent / os.path.expanduser(values[key]))  # noqa: PTH111 - may be a glob
    return DatasetEntry(**values, line=lines[at])


def _wrong(key: str, value: Any) -> str | None:
    """Return what is wrong with a value, or None."""
    if key == "weight":
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return (
            None if is_number and value > 0 else f"weight is {value!r}, expected a number above 0"
        )
    if key == "options":
        if not isinstance(value, dict):
            return f"options is a {type(value).__name__}, expected a mapping"
        wrong = [option for option in value if option in _NOT_OPTIONS]
        return (
            f"{wrong[0]!r} is not an option of a shape; if it is a key, write it next to path"
            if wrong
            else None
        )
    if not isinstance(value, str) or (key == "path" and not value):
        return f"{key} is {str(value)[:100]!r} ({type(value).__name__}), expected text"
    if key == "format":
        try:
            format_named(value)
        except SourceError as error:
            return str(error)
    return None
