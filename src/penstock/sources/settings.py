"""Options of file formats: what each means.  The Options of a format say which of them it takes, and their defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """Options of the formats of the core.  None: the default of the format."""

    max_row_bytes: int | None = setting("the largest record that is read, in bytes", None)
    max_expansion: int | None = setting(
        "how many times its size a compressed file may have when it is unpacked", None
    )
    unique_keys: bool | None = setting("refuse a JSON object that has a key twice", None)
    field: str | None = setting("of JSON: the key that the list of records is under", None)
    delimiter: str | None = setting("of CSV: what separates columns", None)
    names: Sequence[str] | None = setting("of CSV: the columns, if the file has no header", None)
    types: Mapping[str, str] | None = setting("of CSV: column → type of its values", None)
    quotes: bool | None = setting("of CSV: false makes a quote a character like any other", None)
    record: str | None = setting(
        "of text: line, paragraph, file, or the text that separates records", None
    )
    keep_blank: bool | None = setting(
        "of text: records of nothing but white space are records too", None
    )
    columns: Sequence[str] | None = setting("of Parquet and Arrow: the columns to read", None)
    json_columns: Sequence[str] | None = setting(
        "of Parquet and Arrow: columns that hold JSON as text", None
    )
    nulls: str | None = setting(
        "of Parquet and Arrow: deep removes the nulls that the schema added, keep leaves them", None
    )
    cache_bytes: int | None = setting(
        "of Parquet and Arrow: decoded bytes that are kept in memory", None
    )
    version: str | int | None = setting(
        "of an iterable: with it and a name, what was read of it is kept and found again", None
    )
    spool_bytes: int | None = setting(
        "of an iterable: an error when so many bytes of it are on disk", None
    )
