"""Bytes at a place: list, stat, read a range, create.  A place (a folder, a bucket) is not a format (JSONL)."""
