"""Say what a file is if its content is not what its name says: a Git LFS pointer, a web page, an archive, another format.

Some of these would be read without an error, as a text or a table of a few odd records.  Looked at are the first bytes of a few files
when they are opened: a folder in which one file is a pointer of Git LFS has nothing else.
"""

import re

import orjson

from penstock.errors import SourceError
from penstock.places.files import identify, is_remote, open_file
from penstock.sources.compressed import is_compressed
from penstock.words import spread

_HEAD = 1 << 16  # bytes
_MOST_FILES = 16  # files that are looked at
_GIT_LFS = b"version https://git-lfs.github.com/"
_WEB_PAGE = re.compile(
    rb"<(!doctype\s+html|html|head|body|\?xml[^>]*>\s*<(!doctype\s+)?html)\b", re.I
)
_PACKED = {  # first bytes → name and suffix
    b"\x1f\x8b": ("gzip", ".gz"),
    b"\x28\xb5\x2f\xfd": ("zstd", ".zst"),
    b"BZh": ("bzip2", ".bz2"),
    b"\xfd7zXZ\x00": ("xz", ".xz"),
}
_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
# Formats whose files begin in a way that tells them from the others.  Files of tokens may begin with any bytes.
_LOOKED_AT = ("jsonl", "json", "csv", "text", "parquet", "arrow")


def refuse_other_content(paths: list[str], format: str) -> None:
    """Raise SourceError for a file whose first bytes show that it is something else, and say what to do."""
    if format not in _LOOKED_AT:
        return
    most = 1 if is_remote(paths[0]) else _MOST_FILES  # each is a request
    for number in spread(len(paths), most):
        path = paths[number]
        known = identify(path)
        size = known.size
        if not size:
            continue
        head = open_file(known).read(0, min(size, _HEAD))
        why = other_content(head, path, format, is_whole=size <= _HEAD)
        if why is not None:
            raise SourceError(f"{path}: {why}")


def other_content(head: bytes, path: str, format: str, *, is_whole: bool) -> str | None:
    """Say what a file with these first bytes is, if it is not of this format; None if nothing speaks against it."""
    name = path.rpartition("/")[2]
    start = head.removeprefix(_BOM).lstrip(_SPACE)
    if head.startswith(_GIT_LFS):
        bytes_elsewhere = re.search(rb"^size (\d+)$", head, re.MULTILINE)
        size = f" of {int(bytes_elsewhere[1]):,} bytes" if bytes_elsewhere else ""
        return f"is a pointer of Git LFS to a file{size}, not the file; run `git lfs pull` in its repository"
    if format != "text" and _WEB_PAGE.match(start):
        return (
            "is a web page, not data: the download ended at a page for people, such as an error or a login; "
            "download the file itself again (on the hub, from /resolve/, not /blob/)"
        )
    if is_compressed(path):
        return None  # what follows is about the bytes inside
    for magic, (packing, suffix) in _PACKED.items():
        if head.startswith(magic):
            return f"is compressed with {packing}; rename it to {name}{suffix}, or unpack it"
    if head.startswith(b"PK\x03\x04"):
        return "is a ZIP archive; unpack it, and open the files in it"
    if head.startswith(b"PAR1") and format != "parquet":
        return "is a Parquet file; rename it so that it ends in .parquet, or pass format='parquet'"
    if head.startswith(b"ARROW1") and format != "arrow":
        return "is an Arrow file; rename it so that it ends in .arrow, or pass format='arrow'"
    if format == "jsonl" and _is_json_array(start, is_whole=is_whole):
        return (
            "is one JSON array, expected one object in each line; rename it so that it ends in .json, "
            "or pass format='json'"
        )
    return None


def _is_json_array(start: bytes, *, is_whole: bool) -> bool:
    """Return whether a file is one array of objects, and not lines of which the first is an array."""
    if not re.match(rb"\[\s*[{\]]", start):
        return False
    first, newline, rest = start.partition(b"\n")
    try:
        orjson.loads(first)
    except ValueError:
        return bool(newline) or not is_whole  # the array goes on behind its first line
    return not rest.strip(_SPACE)
