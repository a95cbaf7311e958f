"""What reports say about columns whose values the core only carries, such as the images of samples.

A plugin of the group `reports` has the name of its column and is a `ColumnReport`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from penstock import plugins
from penstock.report.text import TextBlock
from penstock.store import Sample, Store
from penstock.types import Samples, Source, Template


class ColumnReport(Protocol):
    """Says what the values of one column hold.  A value is that of one sample, as bytes."""

    def lines(self, value: bytes) -> tuple[str, ...]:
        """Return one line for each thing that the value holds."""
        ...

    def spans(self, value: bytes) -> Sequence[tuple[int, int]]:
        """Return the ranges of tokens that stand for these things."""
        ...

    def content_key(self, value: bytes, template: Template, source: Source, row: int) -> bytes:
        """Return what, with the tokens, makes two samples equal; `row` of the source is the sample's record."""
        ...

    def count(self, stores: Mapping[str, Store]) -> Sequence[Any]:
        """Return dataclasses of numbers about the column in these stores."""
        ...

    def table(self, numbers: Sequence[Any]) -> list[TextBlock]:
        """Lay out what `count` returned; nothing if it is empty."""
        ...


def column_reports() -> Iterator[tuple[str, ColumnReport]]:
    """Yield the name of each column with a report, and its report."""
    return plugins.every("reports")


def reported_values(sample: Sample) -> Iterator[tuple[str, ColumnReport, bytes]]:
    """Yield name, report and value of each reported column in which a sample has something."""
    if not len(sample):
        return
    for name in plugins.names("reports"):
        value = sample.columns.get(name)
        if value is not None and value.size:
            report: ColumnReport = plugins.load("reports", name)
            yield name, report, value.tobytes()


def reported_parts(encoded: Samples, number: int) -> dict[str, bytes]:
    """Return the values that one of some encoded samples has in reported columns, by column."""
    values = {}
    for name in plugins.names("reports"):
        column = encoded.columns.get(name)
        if column is None or column.offsets is None:
            continue
        first, last = column.offsets[number : number + 2].tolist()
        if last > first:
            values[name] = column.values[first:last].tobytes()
    return values


def content_key(values: Mapping[str, bytes], template: Template, source: Source, row: int) -> bytes:
    """Return what, with the tokens, makes two samples equal."""
    key = b""
    for name, value in values.items():
        report: ColumnReport = plugins.load("reports", name)
        key += report.content_key(value, template, source, row)
    return key
