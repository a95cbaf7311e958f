"""What the samples of a Loader are: a kind says which settings they take and how rows of them become arrays.

Tokens and plain records are in the core (tokens.py, records.py).  Other kinds are plugins of the group `kinds`: which one samples are
follows from the columns of their stores.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock import plugins
from penstock.loader.collate import Made
from penstock.loader.layout import BatchForm
from penstock.loader.run import Run
from penstock.plan.rows import Rows
from penstock.plan.settings import PlanSettings
from penstock.types import Column, Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """What the batches of a Loader are made with."""

    order: PlanSettings
    form: BatchForm
    columns: tuple[Column, ...]  # of the samples, besides tokens
    batch_size: int
    prefetch: int
    collate: Callable[..., Any] | None  # the user's
    objective: Objective | None = None  # changes samples; None: they stay as they are stored


class BatchMaker(Protocol):
    """Makes arrays of rows.  For one thread: it may reuse the memory of earlier batches."""

    def many(self, steps: Sequence[Rows]) -> Iterator[list[Made]]:
        """Yield the arrays of several steps, some at a time."""


class SampleKind(Protocol):
    """What samples are."""

    name: str
    row_sequences: int  # sequences of a row: 2 for pairs
    least_rows: (
        int  # that a rank can train: 2 where answers of a batch are compared with each other
    )
    has_tokens: bool
    usual_settings: Mapping[str, Any]  # of the order and the layout, where the user names none

    def matches(self, columns: Sequence[Column]) -> bool:
        """Whether samples with these columns are of this kind."""

    def can_be_cut(self, columns: Sequence[Column]) -> bool:
        """Whether overlong samples may be cut."""

    def check(self, settings: BatchSettings) -> None:
        """Refuse settings that these samples do not take."""

    def check_tail(self, run: Run, *, world_size: int) -> None:
        """Refuse a last step of the current pass that some rank could not train, or warn of it."""

    def steps_at_once(self, stores: Sequence[Any], settings: BatchSettings) -> int:
        """Return how many steps may be looked up together."""

    def maker(self, stores: Sequence[Any], settings: BatchSettings) -> BatchMaker:
        """Return what makes arrays of rows."""


def find_kind(stores: Sequence[Any], *, is_records: bool) -> SampleKind:
    """Return what the samples of these stores are."""
    from penstock.loader.records import RECORDS
    from penstock.loader.tokens import TOKENS

    if is_records:
        return RECORDS
    columns = list({column.name: column for store in stores for column in store.columns}.values())
    return kind_of_columns(columns) if columns else TOKENS


def kind_of_columns(columns: Sequence[Column]) -> SampleKind:
    """Return what samples of tokens with these columns are."""
    from penstock.loader.tokens import TOKENS

    kinds: list[SampleKind] = [kind for _, kind in plugins.every("kinds")] if columns else []
    return next((kind for kind in kinds if kind.matches(columns)), TOKENS)
