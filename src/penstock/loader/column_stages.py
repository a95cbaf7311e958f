"""Columns that stand for more than their values, such as media: a plugin adds arrays to the batches of stores that have the column."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from penstock import plugins
from penstock.types import Column


class OpenStage(Protocol):
    """A stage of a column, for the stores of one Loader.  It may have more that other extras know."""

    def __call__(self, made: Iterator[Any]) -> Iterator[Any]:
        """Yield batches with the arrays of the column; a `Stage`, see stages.py."""

    def counts(self) -> Mapping[str, int]:
        """Count what it did that a user should see, by name; nothing if there was nothing."""


class ColumnStage(Protocol):
    """A plugin of the group `stages`, under the name of its column: adds to a batch what the column's values stand for."""

    column: Column
    arrays: frozenset[str]  # names of the arrays that it may add

    def open(
        self, names: Sequence[str], stores: Sequence[Any], settings: Mapping[str, Any]
    ) -> OpenStage:
        """Return the stage for stores of these names.

        settings: those of the Loader and of the layout by name, with the options that plugins declare, as far as they were given.
        """


def stages_for(columns: Sequence[Column]) -> list[ColumnStage]:
    """Return the stages of these columns."""
    names = plugins.names("stages")
    stages: list[ColumnStage] = [
        plugins.load("stages", column.name) for column in columns if column.name in names
    ]
    return [stage for stage in stages if stage.column in columns]
