"""The formats of files: by their names, and of folders that are one data set as a whole.

A new format needs one line in SHAPES.  Its source is called as `source(paths, cache=, name=, bad=, **options)`, and its attribute
`OPTIONS` names the options that it takes.  Its module is imported when the first such file is opened.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.errors import SourceError
from penstock.places.files import is_file, is_folder, is_remote, local
from penstock.sources.samples import media_column


@dataclass(frozen=True, slots=True)
class Shape:
    """A format.  Suffixes may have several parts (`.jsonl.gz`); the longest that fits decides."""

    module: str
    source: str
    suffixes: tuple[str, ...] = ()
    folder: str = ""  # module.function that tells whether a folder as a whole has this format
    marks: (
        tuple[str, ...] | None
    ) = ()  # it is called for a folder that holds one of these files; None: for every one
    is_list: bool = False  # a list of other places: its source also takes `defaults=` for them

    def load(self) -> Callable[..., Any]:
        """Return the class or function that opens files of this format."""
        return _load(f"{self.module}.{self.source}")


def _load(name: str) -> Callable[..., Any]:
    module, _, attribute = name.rpartition(".")
    opener: Callable[..., Any] = getattr(import_module(module), attribute)
    return opener


def _packed(*suffixes: str) -> tuple[str, ...]:
    """Return these suffixes, plain and compressed."""
    return tuple(
        suffix + packing for suffix in suffixes for packing in ("", ".gz", ".zst", ".bz2", ".xz")
    )


_HF_MARKS = ("dataset_dict.json", "dataset_info.json", "state.json")
_CHUNK_MARKS = ("metadata.json",)
_INDEX_MARKS = ("index.json",)
METADATA_NAMES = ("metadata.jsonl", "metadata.csv", "metadata.parquet")

SHAPES = {
    "jsonl": Shape("penstock.sources.jsonl", "JsonlSource", _packed(".jsonl", ".ndjson")),
    "json": Shape("penstock.sources.jsonl", "JsonSource", _packed(".json")),
    "csv": Shape("penstock.sources.csv", "CsvSource", _packed(".csv", ".tsv")),
    "text": Shape("penstock.sources.text", "TextSource", _packed(".txt", ".text", ".md")),
    "parquet": Shape("penstock.sources.parquet", "ParquetSource", (".parquet",)),
    "arrow": Shape("penstock.sources.arrow", "ArrowSource", (".arrow", ".feather", ".ipc")),
    "webdataset": Shape(
        "penstock.extras.media.webdataset", "WebdatasetSource", (*_packed(".tar"), ".tgz")
    ),
    "megatron": Shape(
        "penstock.extras.formats.tokens", "MegatronSource", (".idx",)
    ),  # and .bin, if there is an .idx beside
    "token_bin": Shape("penstock.extras.formats.tokens", "TokenBinSource", (".bin", ".npy")),
    "datatrove": Shape("penstock.extras.formats.tokens", "DatatroveSource", (".ds",)),
    "mds": Shape(
        "penstock.extras.formats.mds",
        "MdsSource",
        folder="penstock.extras.formats.mds.is_mds_folder",
        marks=_INDEX_MARKS,
    ),
    "litdata": Shape(
        "penstock.extras.formats.litdata",
        "LitdataSource",
        folder="penstock.extras.formats.litdata.is_litdata_folder",
        marks=_INDEX_MARKS,
    ),
    "hf": Shape(
        "penstock.sources.hf",
        "HfFolderSource",
        folder="penstock.sources.hf.is_hf_folder",
        marks=_HF_MARKS,
    ),
    "parquet_chunks": Shape(
        "penstock.sources.parquet",
        "ParquetChunksSource",
        folder="penstock.extras.formats.pt_chunks.is_parquet_chunk_folder",
        marks=_CHUNK_MARKS,
    ),
    "pt": Shape(
        "penstock.extras.formats.pt_chunks",
        "PtChunksSource",
        folder="penstock.extras.formats.pt_chunks.is_chunk_folder",
        marks=_CHUNK_MARKS,
    ),
    "media_folder": Shape(
        "penstock.extras.media.media_folder",
        "MediaFolderSource",
        folder="penstock.extras.media.media_folder.is_media_folder",
        marks=METADATA_NAMES,
    ),
    "sample_folder": Shape(
        "penstock.extras.media.media_folder",
        "SampleFolderSource",
        folder="penstock.extras.media.media_folder.is_sample_folder",
        marks=None,
    ),
    "yaml": Shape(
        "penstock.extras.formats.yaml_list", "open_list", (".yaml", ".yml"), is_list=True
    ),
}
# What other tools call them.
SHAPE_ALIASES = {
    **dict.fromkeys(("hf_dataset", "huggingface"), "hf"),
    **dict.fromkeys(("imagefolder", "audiofolder", "videofolder"), "media_folder"),
    "wds": "webdataset",
    "txt": "text",
    "tsv": "csv",
    "ndjson": "jsonl",
    "yml": "yaml",
}
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
_SHAPE_OF = {suffix: name for name, shape in SHAPES.items() for suffix in shape.suffixes}
_MOST_DOTS = max(suffix.count(".") for suffix in _SHAPE_OF)
# Files beside data that are not data.  A list of data sets is opened by its own name only.
_BESIDE = re.compile(
    r"(readme|licen[cs]e|notice|changelog)(\.\w+)?|dataset_infos?\.json|.*\.ya?ml", re.IGNORECASE
)


def suffix_of(path: str) -> str:
    """Return the longest suffix of any format that a path ends in, in lower case, or ""."""
    return _known_suffix(".".join(_file_name(path).lower().rsplit(".", _MOST_DOTS)[1:]))


@lru_cache  # thousands of files have one ending
def _known_suffix(ending: str) -> str:
    while ending and f".{ending}" not in _SHAPE_OF:
        ending = ending.partition(".")[2]
    return f".{ending}" if ending else ""


def _file_name(path: str) -> str:
    return path.rpartition("/")[
        2
    ]  # asked of every file of a folder, and Path takes ten times as long


def shape_of(path: str) -> str:
    """Return the format of a file, by its name."""
    if suffix := suffix_of(path):
        is_megatron = suffix == ".bin" and is_file(f"{path[:-4]}.idx")
        return "megatron" if is_megatron else _SHAPE_OF[suffix]
    if path.lower().endswith(".pt"):
        local(path)  # chunks are read from a local disk only
        listed = Path(path).parent / "metadata.json"
        if is_file(listed):
            raise SourceError(f"{listed}: lists chunks; open the folder {listed.parent} ({path})")
        raise SourceError(
            f"{listed}: not found; a folder of .pt chunks needs one that lists them ({path})"
        )
    if kind := media_column(path):
        needed = f"a folder of {kind} needs a {METADATA_NAMES[0]} that names them, or a text of the same name beside each"
        raise SourceError(
            f"{path}: no records; {needed}; records that name it can be in any other file"
        )
    ending = Path(path).suffix.lower()
    if ending in _NOT_READ:
        raise SourceError(f"{path}: {_NOT_READ[ending]}")
    known = ", ".join(suffix for suffix in _SHAPE_OF if suffix.count(".") == 1)
    shapes = ", ".join(name for name, shape in SHAPES.items() if shape.suffixes)
    raise SourceError(
        f"{path}: unknown shape {Path(path).suffix!r}, expected one of {known}; or say what it is with shape= ({shapes})"
    )


def is_data_file(path: str) -> bool:
    """Return whether a file of a folder holds records, by its name; a README beside them does not."""
    return bool(suffix_of(path)) and not _BESIDE.fullmatch(_file_name(path))


def data_files(paths: list[str]) -> list[str]:
    """Return the files of a folder that hold records.

    .bin and .npy may be anything: they count if no other file does, or if the .idx of Megatron is beside.  OLMo has borders of texts in
    a .csv.gz beside the .npy.
    """
    there = set(paths)
    known = [
        path
        for path in paths
        if is_data_file(path) and not (path.endswith(".csv.gz") and f"{path[:-7]}.npy" in there)
    ]
    sure = [
        path
        for path in known
        if suffix_of(path) not in (".bin", ".npy") or f"{path[:-4]}.idx" in there
    ]
    return sure or known


def folder_shape(place: str, asked: str | None) -> str | None:
    """Return the format of a folder that is one data set as a whole; None for any other folder or file."""
    if not is_folder(place) or (asked is not None and not SHAPES[asked].folder):
        return None
    if is_remote(place):
        _refuse_remote_folder(place, asked)
        return None
    path = local(place)
    for name, shape in SHAPES.items():
        marks = shape.marks or ()
        marked = asked is None and (
            shape.marks is None or any(is_file(Path(path) / mark) for mark in marks)
        )
        if asked == name or (marked and _load(shape.folder)(path)):
            return name
    return None


def _refuse_remote_folder(place: str, asked: str | None) -> None:
    """Raise SourceError for a remote folder that is one data set as a whole: those are read from a local disk only."""
    marks = [
        mark
        for mark in ("dataset_dict.json", "state.json")
        if is_file(f"{place.rstrip('/')}/{mark}")
    ]
    if marks or asked is not None:
        what = (
            f"has {marks[0]}: a folder that `datasets` saved"
            if marks
            else f"shape={asked!r} is a folder"
        )
        raise SourceError(
            f"{place}: {what}, which is read from a local disk only; download it, or name its files: {place}/*.arrow"
        )


def is_data_set_folder(place: str) -> bool:
    """Return whether a folder is one data set as a whole, such as one that `datasets` saved."""
    return folder_shape(place, None) is not None


def bare_name(path: str) -> str:
    """Return a file's name without the suffix of its format."""
    name = Path(path).name
    suffix = suffix_of(path)
    return name[: -len(suffix)] if suffix and len(suffix) < len(name) else Path(path).stem
