"""Counts of what happened to every sample and token, so that nothing is dropped, cut, repeated or padded silently."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock.notebook import shown_in_notebooks
from penstock.reasons import EMPTY, NOTHING_TO_TRAIN, TRUNCATED, find_reason
from penstock.words import percent, plural


@shown_in_notebooks
@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """`tokens_in == tokens_out + sum(tokens_dropped.values())`, and the same for samples.

    A token that two rows share counts once in `tokens_out`, and once more in `tokens_shared`.
    """

    samples_in: int = 0
    tokens_in: int = 0
    samples_out: int = 0
    tokens_out: int = 0
    samples_by_source: Counter[int] = field(default_factory=Counter)  # samples_out by source number
    samples_dropped: Counter[str] = field(
        default_factory=Counter
    )  # by reason, see penstock.reasons
    tokens_dropped: Counter[str] = field(default_factory=Counter)  # by reason
    samples_truncated: int = 0
    samples_split: int = 0
    pieces_dropped: int = 0  # pieces of split samples without a token to train on
    tokens_shared: int = 0  # first tokens of rows that are also the last of another row (overlap)
    rows: int = 0
    tokens_capacity: int = 0  # rows × max_length
    rows_padded: int = 0  # empty rows that fill the last step
    rows_repeated: int = 0

    @property
    def samples(self) -> int:
        """Samples that hold tokens: records without a sample are counted as `empty`."""
        return self.samples_in - self.samples_dropped[EMPTY]

    @property
    def fill(self) -> float:
        """Packing efficiency: the share of the rows' capacity that holds tokens; 0.0 without rows."""
        if not self.tokens_capacity:
            return 0.0
        return (self.tokens_out + self.tokens_shared) / self.tokens_capacity

    def dropped_words(self) -> str:
        """Describe what was dropped or cut, without the empty samples that the store has counted."""
        parts = [
            f"{plural(n, 'sample')} dropped ({percent(n, self.samples)}): {reason}"
            for reason, n in self.samples_dropped.items()
            if reason != EMPTY
        ]
        if self.samples_truncated:
            share = percent(self.samples_truncated, self.samples)
            parts.append(f"{plural(self.samples_truncated, 'sample')} cut ({share})")
        if self.pieces_dropped:
            parts.append(f"{plural(self.pieces_dropped, 'piece')} dropped: {NOTHING_TO_TRAIN}")
        return ", ".join(parts)

    def dropping_settings(self) -> list[str]:
        """Return the settings of a Loader that decide what `dropped_words` describes."""
        reasons = [reason for reason, n in self.samples_dropped.items() if n]
        if self.samples_truncated:
            reasons.append(TRUNCATED)
        if self.pieces_dropped:
            reasons.append(NOTHING_TO_TRAIN)
        known = [reason for reason in map(find_reason, reasons) if reason is not None]
        return list(dict.fromkeys(setting for reason in known for setting in reason.decided_by))

    def renumbered(self, numbers: Mapping[int, int]) -> "Counters":
        """Return these counters with other numbers of sources; a source without one is left out."""
        by_source = {
            numbers[source]: n for source, n in self.samples_by_source.items() if source in numbers
        }
        return replace(self, samples_by_source=Counter(by_source))

    def __add__(self, other: "Counters") -> "Counters":
        if self is NOTHING:
            return other
        if other is NOTHING:
            return self
        return Counters(
            **{name: getattr(self, name) + getattr(other, name) for name in Counters.__slots__}
        )


NOTHING = Counters()
