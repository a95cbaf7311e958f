"""The formats of files: by their names, and of folders that are one dataset as a whole.

A new format needs one line in this table; that of another package is an entry point of the group "formats".  The line tells files of
the format from others and imports nothing: the code that reads them is imported when the first such file is opened.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import plugins
from penstock.errors import PluginError, SourceError
from penstock.places.files import is_file, is_folder, is_remote, local
from penstock.words import did_you_mean

if TYPE_CHECKING:
    from penstock.sources.opener import Opener


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # each is one object
class Format:
    """What tells the files of a format from others.

    code: "module:name" of its Opener (opener.py).
    suffixes: how names of its files end; they may have several parts (`.jsonl.gz`), and the longest that fits decides.
    index: the suffix of a file of the same name that must be next to it, such as `.idx`; a dataset may then be named without a suffix.
    is_unsure: other files have such names, too; in a folder they count if it has no other data.
    part_of: suffix → the suffix of a file of this format, of which such a file next to it is a part and not data itself.
    folder: "module:name" of a function that tells whether a folder as a whole has this format.
    marks: it is asked about folders that hold one of these files; None: about every folder.
    is_list: its files list other datasets; they are opened by name only.
    aliases: what other tools call it.
    not_read: suffix → why such a file cannot be opened by itself.
    """

    name: str
    code: str
    suffixes: tuple[str, ...] = ()
    index: str = ""
    is_unsure: bool = False
    part_of: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    marks: tuple[str, ...] | None = ()
    is_list: bool = False
    aliases: tuple[str, ...] = ()
    not_read: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> "Opener":
        """Import the code that opens files of this format."""
        opener: Opener = _load(self.code)
        return opener

    def is_data_set(self, folder: str) -> bool:
        """Return whether a local folder as a whole has this format."""
        if not self.folder:
            return False
        if self.marks is not None and not any(is_file(f"{folder}/{mark}") for mark in self.marks):
            return False
        return bool(_load(self.folder)(folder))


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def with_packed(*suffixes: str) -> tuple[str, ...]:
    """Return these suffixes, plain and compressed."""
    packings = ("", ".gz", ".zst", ".bz2", ".xz")
    return tuple(suffix + packing for suffix in suffixes for packing in packings)


_CORE = (
    Format(
        name="jsonl",
        code="penstock.sources.jsonl:JSONL",
        suffixes=with_packed(".jsonl", ".ndjson"),
        aliases=("ndjson",),
    ),
    Format(name="json", code="penstock.sources.json_document:JSON", suffixes=with_packed(".json")),
    Format(
        name="csv",
        code="penstock.sources.csv:CSV",
        suffixes=with_packed(".csv", ".tsv"),
        aliases=("tsv",),
    ),
    Format(
        name="text",
        code="penstock.sources.text:TEXT",
        suffixes=with_packed(".txt", ".text", ".md"),
        aliases=("txt",),
    ),
    Format(name="parquet", code="penstock.sources.parquet:PARQUET", suffixes=(".parquet",)),
    Format(
        name="arrow",
        code="penstock.sources.arrow:ARROW",
        suffixes=(".arrow", ".feather", ".ipc"),
    ),
    Format(
        name="hf",
        code="penstock.sources.hf:HF",
        folder="penstock.sources.hf:is_hf_folder",
        marks=("dataset_dict.json", "dataset_info.json", "state.json"),
        aliases=("hf_dataset", "huggingface"),
    ),
)

# Endings of files that people try, and what to do instead.
_NOT_READ = {
    **dict.fromkeys((".zip", ".7z", ".rar"), "is an archive; unpack it, and open the files in it"),
    **dict.fromkeys(
        (".gz", ".zst", ".bz2", ".xz"),
        "is compressed, and its name does not say what is in it; rename it so that it ends like .jsonl.gz",
    ),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "is a spreadsheet; save it as .csv"),
    **dict.fromkeys(
        (".pkl", ".pickle"),
        "is a pickle, which is never opened, because reading one can run code; save its records as .jsonl or .parquet",
    ),
    **dict.fromkeys(
        (".db", ".sqlite", ".sqlite3"), "is a database; export its records as .jsonl or .csv"
    ),
}
# Files next to data that are not data.
_BESIDE = re.compile(
    r"(readme|licen[cs]e|notice|changelog)(\.\w+)?|dataset_infos?\.json", re.IGNORECASE
)


@cache
def formats() -> dict[str, Format]:
    """Return all formats by name: those of the core, then those of plugins."""
    by_name = {each.name: each for each in _CORE}
    for name, plugin in plugins.every("formats"):
        if name in by_name or not isinstance(plugin, Format) or plugin.name != name:
            raise PluginError(
                f"the plugin {name!r} of penstock.formats is {plugin!r}, expected a Format of that name, "
                f"and none of the names {', '.join(by_name)}"
            )
        by_name[name] = plugin
    return by_name


def format_named(name: str) -> Format:
    """Return the format of this name, or that other tools call so; raise SourceError if there is none."""
    by_name = formats()
    for file_format in by_name.values():
        if name == file_format.name or name in file_format.aliases:
            return file_format
    hint = plugins.not_installed("formats", name) or did_you_mean(name, format_names())
    raise SourceError(f"format is {name!r}, expected one of {', '.join(by_name)}{hint}")


def format_names() -> list[str]:
    """Return the names of all formats, and what other tools call them."""
    known = formats()
    return [*known, *(alias for each in known.values() for alias in each.aliases)]


def suffix_of(path: str) -> str:
    """Return the longest suffix of any format that a path ends in, in lower case, or ""."""
    return _known_suffix(_ending(path))


def _ending(path: str) -> str:
    """Return the last parts of a file's name, as many as a suffix may have: `jsonl.gz` of `a/b.c.jsonl.gz`."""
    name = path.rpartition("/")[2]  # Path takes ten times as long, for every file of a folder
    return ".".join(name.lower().rsplit(".", _MOST_DOTS)[1:])


_MOST_DOTS = 3


@lru_cache  # thousands of files have one ending
def _known_suffix(ending: str) -> str:
    """Return the longest suffix at the end of a name.  Plugins are asked only about names that the core does not know."""
    for known in (_suffixes_of_core, _suffixes):
        suffix = f".{ending}"
        while len(suffix) > 1:
            if suffix in known():
                return suffix
            suffix = "." + suffix[1:].partition(".")[2]
    return ""


@cache
def _suffixes_of_core() -> dict[str, list[Format]]:
    return _by_suffix(_CORE)


@cache
def _suffixes() -> dict[str, list[Format]]:
    return _by_suffix(formats().values())


def _by_suffix(known: Collection[Format]) -> dict[str, list[Format]]:
    by_suffix: dict[str, list[Format]] = {}
    for each in known:
        for suffix in each.suffixes:
            by_suffix.setdefault(suffix, []).append(each)
    return by_suffix


def find_format(path: str, exists: Callable[[str], bool] = is_file) -> Format | None:
    """Return the format of a file, by its name; None if no format has such names.  `exists` tells which files are next to it."""
    suffix = suffix_of(path)
    if not suffix:
        return None
    candidates = _suffixes_of_core().get(suffix) or _suffixes()[suffix]
    for each in candidates:
        needs_index = each.index and suffix != each.index
        if not needs_index or exists(path[: -len(suffix)] + each.index):
            return each
    return None


def format_of(path: str) -> Format:
    """Return the format of a file, by its name; raise SourceError, which says what to do, if no format has such names."""
    found = find_format(path)
    if found is not None:
        return found
    ending = Path(path).suffix.lower()
    for each in formats().values():
        if ending in each.not_read:
            raise SourceError(f"{path}: {each.not_read[ending]}")
    if ending in _NOT_READ:
        raise SourceError(f"{path}: {_NOT_READ[ending]}")
    suffixes = ", ".join(suffix for suffix in _suffixes() if suffix.count(".") == 1)
    names = ", ".join(each.name for each in formats().values() if each.suffixes)
    raise SourceError(
        f"{path}: unknown format {Path(path).suffix!r}, expected one of {suffixes}; or say what it is with format= ({names})"
    )


def without_suffix(path: str) -> str | None:
    """Return the data file that `path` names without its suffix, such as `wiki.bin` for the `wiki` of Megatron; None if there is none."""
    for each in formats().values():
        if each.index and is_file(path + each.index):
            return path + each.suffixes[0]
    return None


def is_data_file(path: str) -> bool:
    """Return whether a file of a folder holds records, by its name; a README next to them does not."""
    found = find_format(path)
    return found is not None and not found.is_list and not _is_beside(path)


def _is_beside(path: str) -> bool:
    return _BESIDE.fullmatch(path.rpartition("/")[2]) is not None


def data_files(paths: list[str]) -> list[str]:
    """Return the files of a folder that hold records.  Those of an unsure format count if no other file does."""
    there = set(paths)
    sure: list[str] = []
    unsure: list[str] = []
    for path in paths:
        file_format = find_format(path, there.__contains__)
        if file_format is None or file_format.is_list or _is_beside(path) or _is_part(path, there):
            continue
        unsure.append(path)
        if not file_format.is_unsure:
            sure.append(path)
    return sure or unsure


def _is_part(path: str, there: Collection[str]) -> bool:
    """Return whether a file belongs to another one next to it, such as OLMo's borders of texts in a .csv.gz next to the .npy."""
    for each in formats().values():
        for suffix, whole in each.part_of.items():
            if path.endswith(suffix) and path.removesuffix(suffix) + whole in there:
                return True
    return False


def folder_format(place: str, asked: Format | None) -> Format | None:
    """Return the format of a folder that is one dataset as a whole; None for any other folder or file."""
    if not is_folder(place) or (asked is not None and not asked.folder):
        return None
    if is_remote(place):
        _refuse_remote_folder(place, asked)
        return None
    if asked is not None:
        return asked
    folder = local(place)
    return next((each for each in formats().values() if each.is_data_set(folder)), None)


def _refuse_remote_folder(place: str, asked: Format | None) -> None:
    """Raise SourceError for a remote folder that is one dataset as a whole: those are read from a local disk only."""
    advice = (
        f"which is read from a local disk only; download it, or name its files: {place}/*.arrow"
    )
    for mark in ("dataset_dict.json", "state.json"):
        if is_file(f"{place.rstrip('/')}/{mark}"):
            raise SourceError(f"{place}: has {mark}: a folder that `datasets` saved, {advice}")
    if asked is not None:
        raise SourceError(f"{place}: format={asked.name!r} is a folder, {advice}")


def is_data_set_folder(place: str) -> bool:
    """Return whether a folder is one dataset as a whole, such as one that `datasets` saved."""
    return folder_format(place, None) is not None


def bare_name(path: str) -> str:
    """Return a file's name without the suffix of its format."""
    name = Path(path).name
    suffix = suffix_of(path)
    return name[: -len(suffix)] if suffix and len(suffix) < len(name) else Path(path).stem
