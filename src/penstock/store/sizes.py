"""What a plan asks about the samples of several stores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.types import Bools, Ints


class SizedSamples(Protocol):
    """Samples whose lengths are known: of a store, of a stream, or plain records."""

    def lengths_of(self, sample_ids: Ints) -> Ints:
        """Return the length of each of these samples; 0 means that nothing is there to train on."""

    def longest_of(self, sample_ids: Ints) -> Ints:
        """Return the length of the longest sequence of each of these samples."""

    def has_target(self, sample_ids: Ints, starts: Ints, stops: Ints) -> Bools:
        """Return whether tokens start + 1 … stop - 1 of each of these samples hold a trained one."""


@dataclass(frozen=True, slots=True)
class SampleSizes:
    """The samples of several stores, by the number of the store.  Can be pickled as its stores can, and so can its methods."""

    stores: Sequence[SizedSamples]

    def lengths(self, source: int, samples: Ints) -> Ints:
        """Return the lengths of samples: `Lengths` of penstock.types."""
        return self.stores[source].lengths_of(samples)

    def longest(self, source: int, samples: Ints) -> Ints:
        """Return the lengths of the longest sequences of samples, in the same way."""
        return self.stores[source].longest_of(samples)

    def has_target(self, source: int, samples: Ints, starts: Ints, stops: Ints) -> Bools:
        """Return whether pieces of samples are worth a row: `Targets` of penstock.types."""
        return self.stores[source].has_target(samples, starts, stops)
