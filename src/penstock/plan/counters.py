"""What happened to every sample and token?  Exact sums, so that nothing is dropped, cut, repeated or padded in silence."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Law: `tokens_in == tokens_out + sum(tokens_dropped.values())`, and samples likewise."""

    samples_in: int = 0
    tokens_in: int = 0
    samples_out: int = 0
    tokens_out: int = 0
    samples_by_source: Counter[int] = field(default_factory=Counter)  # of samples_out, by number of the source
    samples_dropped: Counter[str] = field(default_factory=Counter)  # by reason: empty, overlong, nothing_to_train, tail
    tokens_dropped: Counter[str] = field(
        default_factory=Counter
    )  # by reason: overlong, truncated, nothing_to_train, tail
    samples_truncated: int = 0
    samples_split: int = 0
    pieces_dropped: int = 0  # of samples that were split, because nothing in the piece is trained
    rows: int = 0
    tokens_capacity: int = 0  # rows × max_length
    rows_padded: int = 0  # empty rows that fill up a last step
    rows_repeated: int = 0

    @property
    def samples(self) -> int:
        """Of `samples_in`, those that hold tokens: a record that gave no sample is counted as `empty`."""
        return self.samples_in - self.samples_dropped["empty"]

    @property
    def fill(self) -> float:
        """Share of the rows' capacity that holds tokens; 0.0 when there are no rows."""
        return self.tokens_out / self.tokens_capacity if self.tokens_capacity else 0.0

    @property
    def tokens_padded(self) -> int:
        """Places in rows that hold no token; whole rows that fill up a step are counted in `rows_padded`."""
        return self.tokens_capacity - self.tokens_out

    def dropped_words(self) -> str:
        """What was dropped or cut, in words; samples that are empty in the store are left to the store's own counts."""
        parts = [f"{n:,} samples dropped: {reason}" for reason, n in self.samples_dropped.items() if reason != "empty"]
        parts += [f"{self.samples_truncated:,} samples cut"] if self.samples_truncated else []
        parts += [f"{self.pieces_dropped:,} pieces dropped: nothing_to_train"] if self.pieces_dropped else []
        return ", ".join(parts)

    def __add__(self, other: "Counters") -> "Counters":
        return Counters(**{name: getattr(self, name) + getattr(other, name) for name in Counters.__slots__})


NOTHING = Counters()  # of a step in which no block begins
