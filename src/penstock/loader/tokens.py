"""Samples that are one sequence of tokens each: packed or padded rows."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from penstock.loader.collate import LOOKED_UP, Collator
from penstock.loader.kind import BatchSettings
from penstock.loader.run import Run
from penstock.types import Column


class Tokens:
    """The kind of samples that are one sequence."""

    name = "tokens"
    row_sequences = 1
    least_rows = 1
    has_tokens = True
    usual_settings: Mapping[str, Any] = MappingProxyType({})

    def matches(self, columns: Sequence[Column]) -> bool:
        """Whatever no other kind matches."""
        return True

    def can_be_cut(self, columns: Sequence[Column]) -> bool:
        """Lists cannot be cut."""
        return all(column.per != "list" for column in columns)

    def check(self, settings: BatchSettings) -> None:
        """All settings are for tokens."""

    def check_tail(self, run: Run, *, world_size: int) -> None:
        """Rows that pad a last step carry no loss."""

    def steps_at_once(self, stores: Sequence[Any], settings: BatchSettings) -> int:
        return LOOKED_UP // (settings.batch_size * settings.order.max_length)

    def maker(self, stores: Sequence[Any], settings: BatchSettings) -> Collator:
        return Collator(
            stores, settings.order, settings.form, settings.columns, objective=settings.objective
        )


TOKENS = Tokens()
