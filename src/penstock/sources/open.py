"""Open a path, a URL, a glob, a folder, a list, a data set or a stream as a source."""

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.extras.remote import hub_source as hub
from penstock.places.files import exists, find, has_folders, is_folder, is_remote, local
from penstock.sources.bad import BadRows
from penstock.sources.base import RowAccess
from penstock.sources.concat import Concat, concat, is_source
from penstock.sources.content import refuse_other_content
from penstock.sources.formats import (
    SHAPE_ALIASES,
    SHAPES,
    bare_name,
    data_files,
    folder_shape,
    is_data_file,
    shape_of,
    suffix_of,
)
from penstock.sources.memory import ListSource, SpooledSource
from penstock.sources.names import Cut, Name, RandomPart, Split, expand, read_name, read_split
from penstock.sources.splits import (
    Purpose,
    choose_files,
    describe_choice,
    describe_glob,
    selects_everything,
    split_of,
)
from penstock.words import did_you_mean

_log = logging.getLogger("penstock")

_MOST_LOOKED_AT = 1000  # entries of a folder, in search of data that is not read; one of pictures may hold millions
_COMMON = (
    "shape",
    "split",
    "config",
    "revision",
    "data_files",
    "name",
    "cache_dir",
    "on_bad",
    "max_bad",
    "quarantine",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of `open_source`."""

    cache: Cache
    name: str | None = None
    shape: str | None = None
    split: str | None = None
    bad: BadRows = field(default_factory=BadRows)
    options: dict[str, Any] = field(default_factory=dict)  # the format's own
    defaults: dict[str, Any] = field(default_factory=dict)  # the same, for formats that take them
    config: str | None = None  # these three are of data sets on the hub
    revision: str | None = None
    data_files: Any = None
    purpose: Purpose = "train"  # which files of a folder are used; see splits.py

    def options_of(self, what: str, known: Iterable[str] = ()) -> dict[str, Any]:
        """Return the options for one format; raise SourceError for an unknown one."""
        known = tuple(known)
        for option in self.options:
            if option not in known:
                hint = did_you_mean(option, (*known, *_COMMON))
                raise SourceError(
                    f"unknown option {option!r}{hint}; {what} takes {', '.join(known) or 'none'}"
                )
        return {
            name: value for name, value in self.defaults.items() if name in known
        } | self.options

    def refuse_hub_options(self, what: str) -> None:
        """Raise SourceError if an option is given that only a data set on the hub takes."""
        for name in ("config", "revision", "data_files"):
            if (value := getattr(self, name)) is not None:
                raise SourceError(
                    f"{what}: {name}={value!r} is for data sets on the hub, such as org/name; leave it out"
                )


def open_source(
    place: Any,
    *,
    cache: Cache,
    name: str | None = None,
    shape: str | None = None,
    split: str | None = None,
    bad: BadRows | None = None,
    defaults: dict[str, Any] | None = None,
    config: str | None = None,
    revision: str | None = None,
    data_files: Any = None,
    purpose: Purpose = "train",
    **options: Any,
) -> RowAccess:
    """Open files by path, URL, glob, folder or a list of those; a list of dicts; any iterable of dicts; a data set of `datasets`.

    shape: the format, if the names of files do not tell.  split: of a data set folder, or files that bear its name.  options: the
    format's own.  defaults: options for formats that take them; other formats ignore them.  purpose: a folder that is opened for
    training leaves out files that are named as evaluation sets, and one that is opened for evaluation the others.
    """
    shape = SHAPE_ALIASES.get(shape, shape) if shape else shape
    settings = Settings(
        cache,
        name,
        shape,
        split,
        bad or BadRows(),
        options,
        defaults or {},
        config,
        revision,
        data_files,
        purpose,
    )
    if shape is not None and shape not in SHAPES:
        raise SourceError(
            f"shape is {shape!r}, expected one of {', '.join(SHAPES)}{did_you_mean(shape, SHAPES)}"
        )
    if isinstance(place, str | os.PathLike):
        return _open_places([os.fspath(place)], settings)
    if (
        isinstance(place, Sequence)
        and place
        and all(isinstance(each, str | os.PathLike) for each in place)
    ):
        return _open_places([os.fspath(each) for each in place], settings)
    kind = type(place).__name__
    settings.refuse_hub_options(kind)
    if shape is not None:
        raise SourceError(f"shape={shape!r} is for files, but a {kind} was given; leave shape out")
    # by name: importing `datasets`, or the module that reads it, takes long
    if any(base.__module__.partition(".")[0] == "datasets" for base in type(place).__mro__):
        splits = read_split(split) if split is not None else (None,)
        return _joined([_open_dataset(place, each, settings) for each in splits], name)
    if split is not None:
        raise SourceError(f"split={split!r}, but a {kind} has no splits; leave split out")
    return _open_records(place, settings)


def _open_records(place: Any, settings: Settings) -> RowAccess:
    """Open a source, records in memory, or a stream of them."""
    if is_source(place):
        settings.options_of("a source that is open already")
        if settings.bad.on_bad != "stop":
            why = "the source is open already; pass it where the files are opened"
            raise SourceError(f"on_bad={settings.bad.on_bad!r}, but {why}")
        if isinstance(place, RowAccess) and settings.name in (None, place.name):
            return place
        return Concat([place], name=settings.name or place.name)
    if _may_be_table(place):
        from penstock.sources.table import TableSource, is_table  # it imports pyarrow

        if is_table(place):
            options = settings.options_of("a table", TableSource.OPTIONS)
            return TableSource(place, name=settings.name, bad=settings.bad, **options)
    if not isinstance(place, bytes | bytearray | memoryview | Mapping):
        if isinstance(place, Sequence):
            settings.options_of("a list of records")
            return ListSource(place, name=settings.name or "list")
        if isinstance(place, Iterable | Callable):
            return _open_stream(
                place, settings, settings.options_of("an iterable", SpooledSource.OPTIONS)
            )
    raise SourceError(
        f"cannot open a {type(place).__name__} as a source; expected a path, a glob, a folder, a list of those, "
        f"a list of dicts, a function that yields dicts, a table of pandas, polars or pyarrow, or a data set of `datasets`"
    )


def _may_be_table(place: object) -> bool:
    """Return whether this is of a package with tables."""
    return any(
        base.__module__.partition(".")[0] in ("pandas", "polars", "pyarrow")
        for base in type(place).__mro__
    )


def _open_stream(make: Any, settings: Settings, options: dict[str, Any]) -> RowAccess:
    return SpooledSource(
        make, cache=settings.cache, name=settings.name, bad=settings.bad, **options
    )


def _open_dataset(place: Any, split: Split | None, settings: Settings) -> RowAccess:
    from penstock.sources import hf  # it imports pyarrow

    chosen = hf.pick_split(place, split.name if split else None)
    if not hf.is_hf_iterable(chosen):
        options = settings.options_of("a Dataset", hf.HfDatasetSource.OPTIONS)
        return _cut(
            hf.HfDatasetSource(chosen, name=settings.name, bad=settings.bad, **options), split
        )
    options = settings.options_of("an IterableDataset", ("version", "nulls"))
    nulls = options.pop("nulls", "deep")
    if options.get("version") is not None and nulls == "keep":  # it changes what is spooled
        options["version"] = f"{options['version']} nulls=keep"
    return _cut(_open_stream(hf.hf_iterable(chosen, nulls=nulls), settings, options), split)


def _open_places(places: list[str], settings: Settings) -> RowAccess:
    names = [
        read_name(on_hub(place, settings.revision) or place, split=settings.split)
        for place in places
    ]
    if not any(hub.is_data_set(name.place) for name in names):
        settings.refuse_hub_options(places[0])
    elif settings.shape == "hf":  # as other tools call a data set on the hub
        settings = replace(settings, shape=None)
    if all(
        not name.splits
        and not name.cuts
        and not hub.is_data_set(name.place)
        and folder_shape(name.place, settings.shape) is None
        for name in names
    ):
        return _open_files(
            [path for name in names for path in _files_to_use(name.place, settings)], settings
        )
    return _joined([_open_name(name, settings) for name in names], settings.name)


def _open_name(name: Name, settings: Settings) -> RowAccess:
    source = _joined(
        [_open_split(name.place, split, settings) for split in name.splits or (None,)],
        settings.name,
    )
    for cut in name.cuts:
        source = _chosen(source, cut, f"{name.place}@{cut}")
    return source


def on_hub(place: str, revision: str | None = None, *, folder: str = "") -> str | None:
    """Return the URL of a name such as `org/name` that is no local path; None for any other place.

    A name whose first part is a local folder, or that ends like a file, is a local path that is missing.
    folder: what paths are relative to.
    """
    parts = re.fullmatch(r"(.*?)((?::\w+)?(?:@?\[[^\]/]*\])?)", place, re.DOTALL)
    named, ending = parts.groups() if parts else (place, "")
    if is_remote(named):
        is_whole = revision is not None and hub.is_data_set(named) and "@" not in named
        return f"{named.rstrip('/')}@{revision}{ending}" if is_whole else None
    beside = [os.path.join(folder, each) for each in (place, named)]  # noqa: PTH118
    if (
        suffix_of(named)
        or any(map(exists, beside))
        or is_folder(os.path.join(folder, named.partition("/")[0]))  # noqa: PTH118
    ):
        return None
    from penstock.extras.remote.hub import hub_url

    url = hub_url(named, revision)
    if url is None:
        return None
    _log.info("%s: no local file or folder of that name, so it is a data set on the hub", named)
    return url + ending


def _open_split(place: str, split: Split | None, settings: Settings) -> RowAccess:
    if hub.is_data_set(place):
        paths = find(f"{place.rstrip('/')}/**")
        data = data_files(paths)
        asked = {
            "config": settings.config,
            "data_files": settings.data_files,
            "split": split.name if split else None,
        }
        named = (
            settings
            if settings.name
            else replace(settings, name=place.partition("@")[0].rstrip("/").rpartition("/")[2])
        )
        return _cut(_open_files(hub.files_of(place, **asked, data=data), named), split)
    shape = folder_shape(place, settings.shape)
    if shape is None:
        if split is None:
            return _open_files(_files_to_use(place, settings), settings)
        files = _of_split(place, _data_files(place, settings.shape), split)
        return _cut(_open_files(files, settings), split)
    opener = SHAPES[shape].load()
    options = settings.options_of(shape, (*getattr(opener, "OPTIONS", ()), "split"))
    options |= {} if split is None else {"split": split.name}
    folder = str(Path(local(place)).absolute())
    source = opener([folder], cache=settings.cache, name=settings.name, bad=settings.bad, **options)
    return _cut(source.ordered(), split)


def _open_files(paths: list[str], settings: Settings) -> RowAccess:
    shapes = Counter(settings.shape or shape_of(path) for path in paths)
    if len(shapes) > 1:
        counts = ", ".join(f"{count} {shape}" for shape, count in sorted(shapes.items()))
        most = max(shapes, key=lambda shape: shapes[shape])
        raise SourceError(
            f"{_common(paths)}: files of several shapes ({counts}); name those of one shape, such as "
            f"'{_common(paths)}/*{SHAPES[most].suffixes[0]}'; "
            "in a recipe each shape can be a separate data set, in Python penstock.concat joins them"
        )
    refuse_other_content(paths, next(iter(shapes)))
    shape = SHAPES[next(iter(shapes))]
    opener = shape.load()
    options = settings.options_of(next(iter(shapes)), getattr(opener, "OPTIONS", ()))
    if shape.is_list:
        options["defaults"] = settings.defaults
        options["purpose"] = settings.purpose
    # one file: its own name; several: the folder they share
    name = settings.name or (
        bare_name(paths[0]) if len(paths) == 1 else Path(_common(paths)).name or "files"
    )
    source: RowAccess = opener(paths, cache=settings.cache, name=name, bad=settings.bad, **options)
    return source


def _files_to_use(place: str, settings: Settings) -> list[str]:
    """Return the files of a place that serve the purpose; those that are left out by their names are logged."""
    files = _data_files(place, settings.shape)
    if not selects_everything(place, is_folder=is_folder(place)):
        if settings.purpose == "train" and (remark := describe_glob(place, files)):
            _log.warning("%s", remark)
        return files
    chosen = choose_files(place, files, settings.purpose)
    remark = describe_choice(place, chosen, settings.purpose)
    if remark is not None:
        _log.warning("%s", remark)
    return chosen.used


def _data_files(place: str, asked: str | None) -> list[str]:
    """Return the files of a place.  From a folder or a glob of everything, those that are data; the others are logged."""
    paths = list(dict.fromkeys(path for each in expand(place) for path in find(each)))
    if not selects_everything(place, is_folder=is_folder(place)):
        return paths
    if is_folder(place) and not is_remote(place):
        _warn_of_unread_folders(place)
    known = data_files(paths)
    if asked is not None:
        known = [path for path in paths if suffix_of(path) in SHAPES[asked].suffixes] or paths
    if not known:
        known = [path for path in paths if suffix_of(path)]
        shape_of((known or paths)[0])  # raises where no file has a known format
        if has_folders(place):
            raise SourceError(
                f"{place}: no data beside {_few(known)}; name such a file to open it, "
                f"or write {place.rstrip('/')}/** for the files in the folders below"
            )
    if len(known) < len(paths):
        left = sorted(set(paths) - set(known))
        _log.info("%s: not data, left out: %s", place, _few(left))
    return known


def _warn_of_unread_folders(place: str) -> None:
    """Log the folders in a folder that hold data files: only the files directly in a folder are read."""
    unread = []
    for folder in islice(Path(local(place)).iterdir(), _MOST_LOOKED_AT):
        with suppress(OSError):  # a folder that is not read need not be readable
            if folder.name.startswith(".") or not folder.is_dir():
                continue
            first_files = islice(folder.iterdir(), _MOST_LOOKED_AT)
            if any(is_data_file(str(file)) for file in first_files):
                unread.append(folder.name)
    if unread:
        _log.warning(
            "%s: these folders in it hold data files and are not read: %s; name them, or write %s/** for all files below",
            place,
            _few(sorted(unread)),
            place.rstrip("/"),
        )


def _of_split(place: str, paths: list[str], split: Split) -> list[str]:
    """Return files whose name, or a folder above, is the split's.  Data without splits is called train, as `datasets` does."""
    root = _common(paths)
    word = re.compile(rf"(?<![a-z0-9]){re.escape(split.name)}(?![a-z0-9])", re.IGNORECASE)
    found = [path for path in paths if word.search(path[len(root) :])] if len(paths) > 1 else []
    if found or (len(paths) == 1 and word.search(Path(paths[0]).name)):
        return found or paths
    has_eval_files = any(split_of(path[len(root) :]) not in (None, "train") for path in paths)
    if split.name == "train" and not has_eval_files:
        return paths
    raise SourceError(
        f"{place}: no file name contains the split {split.name!r}; there are {_few(paths)}; "
        f"leave split out to open those that are not named as evaluation sets"
    )


def _cut(source: RowAccess, split: Split | None) -> RowAccess:
    if split is None or split.cut is None:
        return source
    return _chosen(source, split.cut, f"{source.name}: the split {split.name}{split.cut}")


def _chosen(source: RowAccess, cut: Cut | RandomPart, what: str) -> RowAccess:
    """Return some rows of a source; a name that chooses none is an error."""
    chosen: RowAccess = cut.choose(source)
    if not len(chosen):
        raise SourceError(f"{what} selects none of {len(source):,} rows; select at least one row")
    return chosen


def _joined(sources: list[RowAccess], name: str | None) -> RowAccess:
    return sources[0] if len(sources) == 1 else concat(sources, name=name)


def _common(paths: list[str]) -> str:
    # all paths between the first and the last in order share what these two share
    shared = (
        os.path.commonpath([min(paths), max(paths)])
        if len(paths) > 1
        else str(Path(paths[0]).parent)
    )
    return shared.replace(":/", "://", 1) if is_remote(paths[0]) else shared


def _few(paths: list[str]) -> str:
    names = [Path(path).name for path in paths[:5]]
    return ", ".join([*names, f"{len(paths) - 5} more"] if len(paths) > 5 else names)
