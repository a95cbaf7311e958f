"""Open a path, a URL, a glob, a folder, a list, a dataset or a stream as a source."""

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
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
from penstock.sources.hubs import DataFiles, Hub, hub_of, on_hub
from penstock.sources.memory import ListSource
from penstock.sources.names import Cut, Name, RandomPart, Split, expand, read_name, read_split
from penstock.sources.opener import NoOptions, OpenRequest
from penstock.sources.splits import (
    Purpose,
    choose_files,
    describe_choice,
    describe_glob,
    selects_everything,
    split_of,
)
from penstock.sources.stream import StreamOptions, StreamSource
from penstock.types import Source

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The arguments of `open_source`."""

    cache: Cache
    name: str | None = None
    format: Format | None = None
    split: str | None = None
    bad: BadRows = field(default_factory=BadRows)
    options: dict[str, Any] = field(default_factory=dict)  # the format's own
    defaults: dict[str, Any] = field(default_factory=dict)  # the same, for formats that take them
    config: str | None = None  # these three are of datasets on the hub
    revision: str | None = None
    data_files: DataFiles | None = None
    purpose: Purpose = "train"  # which files of a folder are used; see splits.py

    def options_of(self, what: str, options: type[Any] = NoOptions) -> Any:
        """Return the options of one format; raise SourceError for one that it does not have.  options: its dataclass."""
        names = [each.name for each in fields(options)]
        for option in self.options:
            if option not in names:
                from penstock.aliases import instead  # only for an error

                known = (*names, *_COMMON)
                hint = instead(option, self.options[option], known, function="open")
                raise SourceError(
                    f"unknown option {option!r}{hint}; {what} takes {', '.join(names) or 'none'}"
                )
        defaults = {name: value for name, value in self.defaults.items() if name in names}
        return options(**(defaults | self.options))

    def refuse_hub_options(self, what: str) -> None:
        """Raise SourceError if an option is given that only a dataset on the hub takes."""
        for name in ("config", "revision", "data_files"):
            value = getattr(self, name)
            if value is not None:
                raise SourceError(
                    f"{what}: {name}={value!r} is for datasets on the hub, such as org/name; leave it out"
                )


def open_source(
    place: object,
    *,
    cache: Cache,
    name: str | None = None,
    format: str | None = None,
    split: str | None = None,
    bad: BadRows | None = None,
    defaults: dict[str, Any] | None = None,
    config: str | None = None,
    revision: str | None = None,
    data_files: DataFiles | None = None,
    purpose: Purpose = "train",
    **options: Any,
) -> RowAccess:
    """Open files by path, URL, glob, folder or a list of those; a list of dicts; any iterable of dicts; a dataset of `datasets`.

    format: that of the files, if the names of files do not tell.
    split: of a dataset folder, or files that bear its name.
    options: the format's own.
    defaults: options for formats that take them; other formats ignore them.
    purpose: a folder that is opened for training leaves out files that are named as evaluation sets, and one that is opened for
    evaluation the others.
    """
    settings = Settings(
        cache=cache,
        name=name,
        format=format_named(format) if format else None,
        split=split,
        bad=bad or BadRows(),
        options=options,
        defaults=defaults or {},
        config=config,
        revision=revision,
        data_files=data_files,
        purpose=purpose,
    )
    paths = _paths(place)
    if paths:
        return _open_places(paths, settings)
    kind = type(place).__name__
    settings.refuse_hub_options(kind)
    if format is not None:
        raise SourceError(
            f"format={format!r} is for files, but a {kind} was given; leave format out"
        )
    if _is_of(place, "datasets"):
        splits = read_split(split) if split is not None else (None,)
        return _joined([_open_dataset(place, each, settings) for each in splits], name)
    if split is not None:
        raise SourceError(f"split={split!r}, but a {kind} has no splits; leave split out")
    return _open_records(place, settings)


def _paths(place: object) -> list[str]:
    """Return one or several paths as text; nothing for anything else."""
    if isinstance(place, str | os.PathLike):
        return [os.fspath(place)]
    if isinstance(place, Sequence) and all(isinstance(each, str | os.PathLike) for each in place):
        return [os.fspath(each) for each in place]
    return []


def _is_of(place: object, *packages: str) -> bool:
    """Return whether an object is of one of these packages.  By name: importing them takes long."""
    modules = [base.__module__.partition(".")[0] for base in type(place).__mro__]
    return any(package in modules for package in packages)


def _open_records(place: Any, settings: Settings) -> RowAccess:
    """Open a source, records in memory, or a stream of them."""
    if is_source(place):
        return _opened_before(place, settings)
    if _is_of(place, "pandas", "polars", "pyarrow"):
        from penstock.sources.hf import NullOptions  # these import pyarrow
        from penstock.sources.table import is_table, open_table

        if is_table(place):
            options = settings.options_of("a table", NullOptions)
            return open_table(place, options, name=settings.name, bad=settings.bad)
    if not isinstance(place, bytes | bytearray | memoryview | Mapping):
        if isinstance(place, Sequence):
            settings.options_of("a list of records")
            return ListSource(place, name=settings.name or "list")
        if isinstance(place, Iterable | Callable):
            options = settings.options_of("an iterable", StreamOptions)
            return StreamSource(place, options, cache=settings.cache, name=settings.name)
    raise SourceError(
        f"cannot open a {type(place).__name__} as a source; expected a path, a glob, a folder, a list of those, "
        f"a list of dicts, a function that yields dicts, a table of pandas, polars or pyarrow, or a dataset of `datasets`"
    )


def _opened_before(source: Source, settings: Settings) -> RowAccess:
    """Return a source that the user has opened, under the name that is asked for."""
    settings.options_of("a source that is open already")
    if settings.bad.on_bad != "stop":
        raise SourceError(
            f"on_bad={settings.bad.on_bad!r}, but the source is open already; pass it where the files are opened"
        )
    if isinstance(source, RowAccess) and settings.name in (None, source.name):
        return source
    return Concat([source], name=settings.name or source.name)


def _open_dataset(place: object, split: Split | None, settings: Settings) -> RowAccess:
    from penstock.sources import hf  # it imports pyarrow

    chosen = hf.pick_split(place, split.name if split else None)
    if not hf.is_hf_iterable(chosen):
        options = settings.options_of("a Dataset", hf.NullOptions)
        source = hf.open_dataset(chosen, options, name=settings.name, bad=settings.bad)
        return _cut(source, split)
    options = settings.options_of("an IterableDataset", hf.HfIterableOptions)
    records = hf.hf_iterable(chosen, nulls=options.nulls)
    stream_options = StreamOptions(version=options.spool_version())
    return _cut(
        StreamSource(records, stream_options, cache=settings.cache, name=settings.name), split
    )


def _open_places(places: list[str], settings: Settings) -> RowAccess:
    names = [
        read_name(on_hub(place, settings.revision) or place, split=settings.split)
        for place in places
    ]
    if all(hub_of(name.path) is None for name in names):
        settings.refuse_hub_options(places[0])
    elif settings.format is not None and settings.format.name == "hf":
        settings = replace(settings, format=None)  # other tools call a dataset on the hub so
    if all(
        not name.splits
        and not name.cuts
        and hub_of(name.path) is None
        and folder_format(name.path, settings.format) is None
        for name in names
    ):
        return _open_files(
            [path for name in names for path in _files_to_use(name.path, settings)], settings
        )
    return _joined([_open_name(name, settings) for name in names], settings.name)


def _open_name(name: Name, settings: Settings) -> RowAccess:
    source = _joined(
        [_open_split(name.path, split, settings) for split in name.splits or (None,)],
        settings.name,
    )
    for cut in name.cuts:
        source = _chosen(source, cut, f"{name.path}@{cut}")
    return source


def _open_split(place: str, split: Split | None, settings: Settings) -> RowAccess:
    """Open a split of a place, or all of it: a dataset on the hub, a folder that is one dataset, or files."""
    hub = hub_of(place)
    if hub is not None:
        source = _open_from_hub(hub, place, split, settings)
    else:
        format = folder_format(place, settings.format)
        if format is not None:
            source = _open_folder(format, place, split, settings)
        else:
            source = _open_files_of_split(place, split, settings)
    return _cut(source, split)


def _open_from_hub(hub: Hub, place: str, split: Split | None, settings: Settings) -> RowAccess:
    """Open the files that a dataset on the hub has for a split."""
    files = hub.files_of(
        place,
        split=split.name if split else None,
        config=settings.config,
        data_files=settings.data_files,
        data=data_files(find(f"{place.rstrip('/')}/**")),
    )
    if settings.name is None:
        name = place.partition("@")[0].rstrip("/").rpartition("/")[2]
        settings = replace(settings, name=name)
    return _open_files(files, settings)


def _open_folder(format: Format, place: str, split: Split | None, settings: Settings) -> RowAccess:
    """Open a folder that is one dataset; its format finds the split."""
    folder = str(Path(local(place)).absolute())
    return _open_format(format, [folder], settings, split=split.name if split else None)


def _open_files_of_split(place: str, split: Split | None, settings: Settings) -> RowAccess:
    """Open the files of a place whose names bear the split; without a split, those that serve the purpose."""
    if split is None:
        return _open_files(_files_to_use(place, settings), settings)
    files = _of_split(place, _data_files(place, settings.format), split)
    return _open_files(files, settings)


def _open_format(
    format: Format, paths: list[str], settings: Settings, *, split: str | None = None
) -> RowAccess:
    opener = format.load()
    request = OpenRequest(
        paths=paths,
        options=settings.options_of(format.name, opener.options),
        cache=settings.cache,
        name=settings.name,
        bad=settings.bad,
        split=split,
        defaults=settings.defaults,
        purpose=settings.purpose,
    )
    return opener.open(request)


def _open_files(paths: list[str], settings: Settings) -> RowAccess:
    format = settings.format or _shared_format(paths)
    refuse_other_content(paths, format.name)
    if settings.name is None:
        settings = replace(settings, name=_name_of_files(paths))
    return _open_format(format, paths, settings)


def _name_of_files(paths: list[str]) -> str:
    """Return the name of one file, or of the folder that several share."""
    if len(paths) == 1:
        return bare_name(paths[0])
    return Path(_common(paths)).name or "files"


def _shared_format(paths: list[str]) -> Format:
    """Return the format of these files; raise SourceError if they are not of one."""
    counts = Counter(format_of(path) for path in paths)
    most = max(counts, key=lambda each: counts[each])
    if len(counts) == 1:
        return most
    listed = ", ".join(sorted(f"{count} {each.name}" for each, count in counts.items()))
    folder = _common(paths)
    raise SourceError(
        f"{folder}: files of several formats ({listed}); name those of one format, such as '{folder}/*{most.suffixes[0]}'; "
        "in a recipe each format can be a separate dataset, in Python penstock.concat joins them"
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
            f"{place}: no data next to {_few(of_known_format)}; name such a file to open it, "
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
    """Return some records of a source; a name that chooses none is an error."""
    chosen: RowAccess = cut.choose(source)
    if not len(chosen):
        raise SourceError(
            f"{what} selects none of {len(source):,} records; select at least one record"
        )
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
