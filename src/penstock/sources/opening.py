"""What does the user mean by this?  A path, a glob, a folder, a list, a data set or a stream becomes a source, or an error says why not."""

import difflib
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.files import find, has_folders, is_file, is_folder, local
from penstock.sources.bad import BadRows
from penstock.sources.concat import Concat, concat, is_source
from penstock.sources.memory import ListSource
from penstock.sources.names import Cut, Name, Split, read_name, read_split
from penstock.sources.shapes import SHAPES, Shape
from penstock.sources.view import RowAccess
from penstock.types import Record

_log = logging.getLogger("penstock")

_SHAPE_OF = {suffix: name for name, shape in SHAPES.items() for suffix in shape.suffixes}
_MOST_DOTS = max(suffix.count(".") for suffix in _SHAPE_OF)
_COMMON = ("shape", "split", "name", "cache_dir", "on_bad", "max_bad", "quarantine")
# What lies beside data without being data.  A list of data sets is opened by its own name only.
_BESIDE = re.compile(r"(readme|licen[cs]e|notice|changelog)(\.\w+)?|dataset_infos?\.json|.*\.ya?ml", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Wish:
    """How the user wants it opened."""

    cache: Cache
    name: str | None = None
    shape: str | None = None
    split: str | None = None
    bad: BadRows | None = None
    options: dict[str, Any] = field(default_factory=dict)  # the shape's own
    defaults: dict[str, Any] = field(default_factory=dict)  # the same, where a shape knows them

    def options_of(self, what: str, known: tuple[str, ...]) -> dict[str, Any]:
        """The options for one shape; one that it does not know is an error."""
        _check_options(what, known, self.options)
        return {name: value for name, value in self.defaults.items() if name in known} | self.options


def open_source(
    place: Any,
    *,
    cache: Cache,
    name: str | None = None,
    shape: str | None = None,
    split: str | None = None,
    bad: BadRows | None = None,
    defaults: dict[str, Any] | None = None,
    **options: Any,
) -> RowAccess:
    """Records by number, from whatever holds them.  `options` are the shape's own; one that it does not know is an error.

    defaults: options for shapes that know them; others leave them alone.
    """
    wish = Wish(cache, name, shape, split, bad or BadRows(), options, defaults or {})
    if shape is not None and shape not in SHAPES:
        raise SourceError(f"shape is {shape!r}, expected one of {', '.join(SHAPES)}{_nearest(shape, SHAPES)}")
    if isinstance(place, str | os.PathLike):
        return _open_places([os.fspath(place)], wish)
    if isinstance(place, Sequence) and place and all(isinstance(each, str | os.PathLike) for each in place):
        return _open_places([os.fspath(each) for each in place], wish)
    if shape is not None:
        raise SourceError(f"shape={shape!r} speaks of files, but a {type(place).__name__} was given; leave shape out")
    if _is_of_datasets(place):
        return _open_dataset(place, wish)
    if split is not None:
        raise SourceError(f"split={split!r}, but a {type(place).__name__} has no splits; leave split out")
    return _open_records(place, wish)


def _open_records(place: Any, wish: Wish) -> RowAccess:
    """What is no place: a source, records in memory, a stream of them."""
    if is_source(place):
        _check_options("a source that is open already", (), wish.options)
        if wish.bad is not None and wish.bad.on_bad != "stop":
            raise SourceError(
                f"on_bad={wish.bad.on_bad!r}, but the source is open already; pass it where the files are opened"
            )
        if isinstance(place, RowAccess) and wish.name in (None, place.name):
            return place
        return Concat([place], name=wish.name or place.name)
    if isinstance(place, Sequence) and not isinstance(place, bytes | bytearray | memoryview):
        _check_options("a list of records", (), wish.options)
        records: Sequence[Record] = place
        return ListSource(records, name=wish.name or "list")
    if isinstance(place, Iterable | Callable) and not isinstance(place, Mapping | bytes | bytearray | memoryview):
        return _open_stream(place, wish)
    raise SourceError(
        f"cannot open a {type(place).__name__} as a source; expected a path, a glob, a folder, a list of those, "
        f"a list of dicts, a function that yields dicts, or a data set of `datasets`"
    )


def _open_stream(make: Any, wish: Wish) -> RowAccess:
    from penstock.sources.spool import SpooledSource  # here, as few need it

    _check_options("an iterable", SpooledSource.OPTIONS, wish.options)
    return SpooledSource(make, cache=wish.cache, name=wish.name, bad=wish.bad, **wish.options)


def _is_of_datasets(place: Any) -> bool:
    """By name: importing `datasets`, or what reads it, takes long."""
    return any(base.__module__.partition(".")[0] == "datasets" for base in type(place).__mro__)


def _open_dataset(place: Any, wish: Wish) -> RowAccess:
    objects = import_module("penstock.sources.hf_objects")
    splits = read_split(wish.split) if wish.split is not None else ()

    def open_one(split: Split | None) -> RowAccess:
        chosen = objects.pick_split(place, split.name if split else None)
        if objects.is_hf_iterable(chosen):
            source = _open_iterable(chosen, objects.hf_iterable, wish)
        else:
            options = wish.options_of("a Dataset", objects.HfDatasetSource.OPTIONS)
            source = objects.open_hf(chosen, name=wish.name, bad=wish.bad, **options)
        return _cut(source, split)

    return _joined([open_one(split) for split in splits or (None,)], wish.name)


def _open_iterable(dataset: Any, rows_of: Callable[..., Any], wish: Wish) -> RowAccess:
    """An IterableDataset.  What is kept on disk of it depends on `nulls`, so that is part of its version."""
    options = wish.options_of("an IterableDataset", ("version", "nulls"))
    nulls = {"nulls": options.pop("nulls")} if "nulls" in options else {}
    if options.get("version") is not None and nulls.get("nulls") == "keep":
        options["version"] = f"{options['version']} nulls=keep"
    return _open_stream(rows_of(dataset, **nulls), replace(wish, options=options, defaults={}))


def _open_places(places: list[str], wish: Wish) -> RowAccess:
    names = [read_name(place, split=wish.split) for place in places]
    plain = all(not name.splits and not name.cuts and _folder_shape(name.place, wish.shape) is None for name in names)
    if plain:
        return _open_files([path for name in names for path in _data_files(name.place, wish.shape)], wish)
    return _joined([_open_name(name, wish) for name in names], wish.name)


def _open_name(name: Name, wish: Wish) -> RowAccess:
    source = _joined([_open_split(name.place, split, wish) for split in name.splits or (None,)], wish.name)
    for cut in name.cuts:
        source = _chosen(source, cut, f"{name.place}@{cut}")
    return source


def _open_split(place: str, split: Split | None, wish: Wish) -> RowAccess:
    shape = _folder_shape(place, wish.shape)
    if shape is None:
        return _cut(_open_files(_of_split(place, _data_files(place, wish.shape), split), wish), split)
    opener = _opener(SHAPES[shape])
    options = wish.options_of(shape, (*getattr(opener, "OPTIONS", ()), "split"))
    options |= {} if split is None else {"split": split.name}
    folder = str(Path(local(place)).absolute())
    return _cut(opener([folder], cache=wish.cache, name=wish.name, bad=wish.bad, **options), split)


def _open_files(paths: list[str], wish: Wish) -> RowAccess:
    shapes = Counter(wish.shape or _shape_of(path) for path in paths)
    if len(shapes) > 1:
        counts = ", ".join(f"{count} {shape}" for shape, count in sorted(shapes.items()))
        raise SourceError(
            f"{_common(paths)}: files of several shapes ({counts}); name those of one shape, such as "
            f"'{_common(paths)}/*{SHAPES[max(shapes, key=lambda shape: shapes[shape])].suffixes[0]}'; "
            "in a recipe each shape can be a data set of its own, in Python penstock.concat joins them"
        )
    (shape,) = shapes
    opener = _opener(SHAPES[shape])
    options = wish.options_of(shape, getattr(opener, "OPTIONS", ()))
    if SHAPES[shape].is_list:
        options["defaults"] = wish.defaults
    # one file: its own name; several: the folder they share
    name = wish.name or (bare_name(paths[0]) if len(paths) == 1 else Path(_common(paths)).name or "files")
    return opener(paths, cache=wish.cache, name=name, bad=wish.bad, **options)


def _opener(shape: Shape) -> Callable[..., RowAccess]:
    opener: Callable[..., RowAccess] = getattr(import_module(f"penstock.sources.{shape.module}"), shape.source)
    return opener


def _folder_shape(place: str, asked: str | None) -> str | None:
    """The shape of a folder that is one data set as a whole."""
    path = local(place)
    if not is_folder(place) or (asked is not None and not SHAPES[asked].folder):
        return None
    for name, shape in SHAPES.items():
        marked = asked is None and any(is_file(Path(path) / mark) for mark in shape.marks)
        if asked == name or (marked and getattr(import_module(f"penstock.sources.{shape.module}"), shape.folder)(path)):
            return name
    return None


def is_data_file(path: str) -> bool:
    """Whether a file of a folder holds records, as its name tells; a README beside them does not."""
    return _fitting(path) is not None and not _BESIDE.fullmatch(os.path.basename(path))  # noqa: PTH119 - Path takes ten times as long


def is_data_set_folder(place: str) -> bool:
    """Whether a folder is one data set as a whole, such as one that `datasets` saved."""
    return _folder_shape(place, None) is not None


def bare_name(path: str) -> str:
    """A file's name without the suffix of its shape."""
    name = Path(path).name
    longest, _ = _fitting(path) or ("", "")
    return name[: -len(longest)] if longest and len(longest) < len(name) else Path(path).stem


def _data_files(place: str, asked: str | None) -> list[str]:
    """Files of a place.  From a folder or a glob of everything, those that are data; what is left out is said."""
    paths = find(place)
    if not is_folder(place) and not re.search(r"\*\*?$", place):
        return paths
    if asked is not None:
        known = [path for path in paths if _suffix(path, SHAPES[asked].suffixes)] or paths
    else:
        known = [path for path in paths if is_data_file(path)]
    if not known:
        known = [path for path in paths if _fitting(path)]
        _shape_of((known or paths)[0])  # says what is known, where nothing is
        if has_folders(place):
            raise SourceError(
                f"{place}: no data beside {', '.join(_few(known))}; name such a file to open it, "
                f"or write {place.rstrip('/')}/** for what lies in the folders below"
            )
    if len(known) < len(paths):
        left = [Path(path).name for path in sorted(set(paths) - set(known))]
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        _log.info("%s: %d files are no data and are left out: %s%s", place, len(left), ", ".join(left[:3]), more)
    return known


def _of_split(place: str, paths: list[str], split: Split | None) -> list[str]:
    """Files whose name, or a folder above, is the split's.  What has no splits is called train, as `datasets` does."""
    if split is None:
        return paths
    root = _common(paths)
    word = re.compile(rf"(?<![a-z0-9]){re.escape(split.name)}(?![a-z0-9])", re.IGNORECASE)
    found = [path for path in paths if word.search(os.path.relpath(path, root))] if len(paths) > 1 else []
    if found or (len(paths) == 1 and word.search(Path(paths[0]).name)):
        return found or paths
    if split.name == "train" and not any(re.search(r"(?<![a-z])(test|valid|dev)", Path(path).name) for path in paths):
        return paths
    raise SourceError(
        f"{place}: no file is called after the split {split.name!r}; there are {', '.join(_few(paths))}; "
        f"leave split out to open all of them"
    )


def _cut(source: RowAccess, split: Split | None) -> RowAccess:
    if split is None or split.cut is None:
        return source
    return _chosen(source, split.cut, f"{source.name}: the split {split.name}{split.cut}")


def _chosen(source: RowAccess, cut: Cut, what: str) -> RowAccess:
    """Some rows of a source.  A name that chooses none is a mistake: nothing would be trained."""
    chosen = source[cut.of(len(source))]
    if not len(chosen):
        raise SourceError(f"{what} chooses none of {len(source):,} rows; choose at least one row")
    return chosen


def _joined(sources: list[RowAccess], name: str | None) -> RowAccess:
    return sources[0] if len(sources) == 1 else concat(sources, name=name)


def _shape_of(path: str) -> str:
    if (found := _fitting(path)) is not None:
        return found[1]
    if path.lower().endswith(".pt"):
        listed = Path(path).parent / "metadata.json"
        advice = (
            f"open the folder {listed.parent}"
            if is_file(listed)
            else "a folder of .pt chunks needs one that lists them"
        )
        raise SourceError(f"{listed}: {'lists chunks' if is_file(listed) else 'not found'}; {advice} ({path})")
    known = ", ".join(suffix for shape in SHAPES.values() for suffix in shape.suffixes if suffix.count(".") == 1)
    shapes = ", ".join(name for name, shape in SHAPES.items() if shape.suffixes)
    raise SourceError(
        f"{path}: unknown shape {Path(path).suffix!r}, expected one of {known}; or say what it is with shape= ({shapes})"
    )


def _fitting(path: str) -> tuple[str, str] | None:
    """The longest suffix of any shape that a path ends in, and that shape."""
    ending = os.path.basename(path).lower().rsplit(".", _MOST_DOTS)[1:]  # noqa: PTH119 - Path takes ten times as long
    for first in range(len(ending)):
        suffix = "." + ".".join(ending[first:])
        if suffix in _SHAPE_OF:
            return suffix, _SHAPE_OF[suffix]
    return None


def _suffix(path: str, suffixes: tuple[str, ...]) -> str:
    """The longest of these that a path ends in, or nothing."""
    return max((suffix for suffix in suffixes if path.lower().endswith(suffix)), key=len, default="")


def _common(paths: list[str]) -> str:
    return os.path.commonpath(paths) if len(paths) > 1 else str(Path(paths[0]).parent)


def _few(paths: list[str]) -> list[str]:
    names = [Path(path).name for path in paths[:5]]
    return [*names, f"{len(paths) - 5} more"] if len(paths) > 5 else names


def _check_options(what: str, known: tuple[str, ...], given: dict[str, Any]) -> None:
    for option in given:
        if option not in known:
            takes = f"{what} takes {', '.join(known)}" if known else f"{what} takes none"
            raise SourceError(f"unknown option {option!r}{_nearest(option, (*known, *_COMMON))}; {takes}")


def _nearest(word: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""
