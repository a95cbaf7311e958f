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
from penstock.places.files import find, has_folders, is_folder, is_remote, local
from penstock.sources.bad import BadRows
from penstock.sources.base import RowAccess
from penstock.sources.concat import Concat, concat, is_source
from penstock.sources.content import refuse_other_content
from penstock.sources.formats import (
    Format,
    bare_name,
    data_files,
    folder_format,
    format_named,
    format_of,
    is_data_file,
    suffix_of,
)
from penstock.sources.hubs import hub_of, on_hub
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
    "format",
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
    format: Format | None = None
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
    format: str | None = None,
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

    format: that of the files, if the names of files do not tell.  split: of a data set folder, or files that bear its name.  options: the
    format's own.  defaults: options for formats that take them; other formats ignore them.  purpose: a folder that is opened for
    training leaves out files that are named as evaluation sets, and one that is opened for evaluation the others.
    """
    settings = Settings(
        cache,
        name,
        format_named(format) if format else None,
        split,
        bad or BadRows(),
        options,
        defaults or {},
        config,
        revision,
        data_files,
        purpose,
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
    if format is not None:
        raise SourceError(
            f"format={format!r} is for files, but a {kind} was given; leave format out"
        )
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
    if all(hub_of(name.place) is None for name in names):
        settings.refuse_hub_options(places[0])
    elif settings.format is not None and settings.format.name == "hf":
        settings = replace(settings, format=None)  # other tools call a data set on the hub so
    if all(
        not name.splits
        and not name.cuts
        and hub_of(name.place) is None
        and folder_format(name.place, settings.format) is None
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


def _open_split(place: str, split: Split | None, settings: Settings) -> RowAccess:
    hub = hub_of(place)
    if hub is not None:
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
    format = folder_format(place, settings.format)
    if format is None:
        if split is None:
            return _open_files(_files_to_use(place, settings), settings)
        files = _of_split(place, _data_files(place, settings.format), split)
        return _cut(_open_files(files, settings), split)
    opener = format.load()
    options = settings.options_of(format.name, (*getattr(opener, "OPTIONS", ()), "split"))
    options |= {} if split is None else {"split": split.name}
    folder = str(Path(local(place)).absolute())
    source = opener([folder], cache=settings.cache, name=settings.name, bad=settings.bad, **options)
    return _cut(source.ordered(), split)


def _open_files(paths: list[str], settings: Settings) -> RowAccess:
    format = settings.format or _shared_format(paths)
    refuse_other_content(paths, format.name)
    opener = format.load()
    options = settings.options_of(format.name, getattr(opener, "OPTIONS", ()))
    if format.is_list:
        options["defaults"] = settings.defaults
        options["purpose"] = settings.purpose
    # one file: its own name; several: the folder they share
    name = settings.name or (
        bare_name(paths[0]) if len(paths) == 1 else Path(_common(paths)).name or "files"
    )
    source: RowAccess = opener(paths, cache=settings.cache, name=name, bad=settings.bad, **options)
    return source


def _shared_format(paths: list[str]) -> Format:
    """Return the format of these files; raise SourceError if they are not of one."""
    counts = Counter(format_of(path) for path in paths)
    most, _ = counts.most_common(1)[0]
    if len(counts) == 1:
        return most
    listed = ", ".join(sorted(f"{count} {each.name}" for each, count in counts.items()))
    folder = _common(paths)
    raise SourceError(
        f"{folder}: files of several formats ({listed}); name those of one format, such as '{folder}/*{most.suffixes[0]}'; "
        "in a recipe each format can be a separate data set, in Python penstock.concat joins them"
    )


def _files_to_use(place: str, settings: Settings) -> list[str]:
    """Return the files of a place that serve the purpose; those that are left out by their names are logged."""
    files = _data_files(place, settings.format)
    if not selects_everything(place, is_folder=is_folder(place)):
        if settings.purpose == "train" and (remark := describe_glob(place, files)):
            _log.warning("%s", remark)
        return files
    chosen = choose_files(place, files, settings.purpose)
    remark = describe_choice(place, chosen, settings.purpose)
    if remark is not None:
        _log.warning("%s", remark)
    return chosen.used


def _data_files(place: str, asked: Format | None) -> list[str]:
    """Return the files of a place.  From a folder or a glob of everything, those that are data; the others are logged."""
    paths = list(dict.fromkeys(path for each in expand(place) for path in find(each)))
    if not selects_everything(place, is_folder=is_folder(place)):
        return paths
    if is_folder(place) and not is_remote(place):
        _warn_of_unread_folders(place)
    if asked is None:
        data = data_files(paths) or _files_beside_data(place, paths)
    else:
        data = [path for path in paths if suffix_of(path) in asked.suffixes] or paths
    if len(data) < len(paths):
        left_out = sorted(set(paths) - set(data))
        _log.info("%s: not data, left out: %s", place, _few(left_out))
    return data


def _files_beside_data(place: str, paths: list[str]) -> list[str]:
    """Return the files of a known format in a folder without data, such as a README.md; refuse them if the data may be in its folders."""
    of_known_format = [path for path in paths if suffix_of(path)]
    if not of_known_format:
        format_of(paths[0])  # raises
    if has_folders(place):
        raise SourceError(
            f"{place}: no data beside {_few(of_known_format)}; name such a file to open it, "
            f"or write {place.rstrip('/')}/** for the files in the folders below"
        )
    return of_known_format


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
