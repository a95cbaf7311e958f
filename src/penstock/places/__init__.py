"""Bytes at a place: list, stat, read a range, create.  A place (a folder, a bucket) is not a format (JSONL)."""

from penstock.places.files import exists, find, identify, is_folder, open_file, open_place, read
from penstock.places.place import File, FileId, Place

__all__ = [
    "File",
    "FileId",
    "Place",
    "exists",
    "find",
    "identify",
    "is_folder",
    "open_file",
    "open_place",
    "read",
]
