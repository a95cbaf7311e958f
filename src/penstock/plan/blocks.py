"""The blocks of every epoch: which samples each of them holds, and the rows that they become.  Composes shuffle, mix and pack."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.errors import PlanError
from penstock.plan.block import BlockSamples, HasTarget, Rows, count_block, count_samples, delivered_tokens, pack_block
from penstock.plan.counters import Counters
from penstock.plan.mix import Clock, Concatenation, Shares, WeightedMix
from penstock.plan.settings import PlanSettings
from penstock.plan.shuffle import SourceOrder
from penstock.types import Bools, Ints, Lengths, Targets


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSource:
    """What the plan knows of a source: names, counts and a key; never bytes."""

    name: str
    key: str  # the store's fingerprint
    shard_sizes: Ints  # samples per shard

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", str.__str__(self.name))  # a subclass of str prints, and so seeds, differently

    @property
    def num_samples(self) -> int:
        return int(self.shard_sizes.sum())


class Blocks:
    """Blocks by epoch and number.  `shares` says of which samples a block is made; None past the epoch's end."""

    def __init__(
        self, sources: Sequence[PlanSource], lengths: Lengths, settings: PlanSettings, targets: Targets | None
    ) -> None:
        self._names = names = tuple(source.name for source in sources)
        if len(set(names)) < len(names):
            raise PlanError(f"sources {list(names)} do not have distinct names; names seed each source's shuffle")
        self._settings = settings
        self._lengths = lengths
        self._has_target = None if targets is None else _of_several_sources(targets)
        self.orders = [
            SourceOrder(
                source.name,
                source.shard_sizes,
                seed=settings.seed,
                shuffle=settings.shuffle,
                borders=settings.window_borders(len(source.shard_sizes)),
            )
            for source in sources
        ]
        self._mix = self._make_mix()
        self.shares = self._mix.shares

    def pack(self, epoch: int, number: int) -> tuple[Rows, Counters] | None:
        """A block's rows in order, and what became of its samples and tokens; None past the epoch's end."""
        if (shares := self.shares(epoch, number)) is None:
            return None
        return pack_block(
            self._samples(shares),
            self._settings,
            names=self._names,
            epoch=epoch,
            number=number,
            has_target=self._has_target,
        )

    def num_rows(self, epoch: int, number: int) -> int | None:
        """Rows that a block becomes; None past the epoch's end."""
        if (shares := self.shares(epoch, number)) is None:
            return None
        return count_block(self._samples(shares), self._settings, names=self._names, has_target=self._has_target)

    def count_dropped(self, epoch: int) -> Counters:
        """What is dropped and cut of an epoch's samples.  Packs nothing, so it is several times faster than packing."""
        counters, number = Counters(), 0
        while (shares := self.shares(epoch, number)) is not None:
            block = self._samples(shares)
            counters += count_samples(block, self._settings, names=self._names, has_target=self._has_target)
            number += 1
        return counters

    def samples_taken(self, epoch: int) -> tuple[int, ...]:
        """Samples of each source that an epoch takes, delivered or dropped; more than the source has where it repeats."""
        if (first := self.shares(epoch, 0)) is None:
            return (0,) * len(self.orders)
        last, number = first, 1
        while (shares := self.shares(epoch, number)) is not None:
            last, number = shares, number + 1
        return tuple(stop - start for start, stop in zip(first.starts, last.stops, strict=True))

    def shards(self, epoch: int, number: int) -> list[tuple[int, int]] | None:
        """(source, shard) pairs that a block needs, in the order in which a background builder should make them; None past the end."""
        if (shares := self.shares(epoch, number)) is None:
            return None
        return [
            (source, int(shard))
            for source, order in enumerate(self.orders)
            for shard in order.shards(shares.starts[source], shares.stops[source])
        ]

    def _make_mix(self) -> Concatenation | WeightedMix:
        settings, weights = self._settings, self._settings.exact_weights()
        if weights is None:
            num_samples = [order.num_samples for order in self.orders]
            return Concatenation(num_samples, block=settings.block, ramp=settings.is_local)
        if len(weights) != len(self.orders):
            raise PlanError(f"{len(weights)} weights for {len(self.orders)} sources")
        for order in self.orders:
            if not order.num_samples:
                raise PlanError(
                    f"source {order.name!r} has a weight but no samples, so its share cannot be given; leave it out"
                )
        by_tokens = settings.mix_by == "tokens"
        clocks = [Clock(order, self._contribution(n, by_tokens=by_tokens)) for n, order in enumerate(self.orders)]
        return WeightedMix(
            clocks,
            weights,
            by_tokens=by_tokens,
            block=settings.block,
            ramp=settings.is_local,
            stop=settings.stop or "first",
        )

    def _contribution(self, source: int, *, by_tokens: bool) -> Callable[[Ints], Ints]:
        def contributed(samples: Ints) -> Ints:
            block = BlockSamples(np.full(samples.size, source), samples, self._asked(source, samples))
            tokens = delivered_tokens(block, self._settings, self._has_target)
            return tokens if by_tokens else (tokens > 0).astype(np.int64)

        return contributed

    def _asked(self, source: int, samples: Ints) -> Ints:
        lengths = np.asarray(self._lengths(source, samples))
        assert lengths.shape == samples.shape and lengths.dtype.kind in "iu", "one whole number for every sample"
        return lengths.astype(np.int64, copy=False)

    def _samples(self, shares: Shares) -> BlockSamples:
        samples = [order.samples(a, b) for order, a, b in zip(self.orders, shares.starts, shares.stops, strict=True)]
        lengths = [self._asked(source, ids) for source, ids in enumerate(samples) if ids.size]
        counts = [ids.size for ids in samples]
        sources = np.repeat(np.arange(len(samples), dtype=np.int64), counts)
        if not lengths:
            return BlockSamples(sources, np.empty(0, np.int64), np.empty(0, np.int64))
        block = BlockSamples(sources, np.concatenate(samples), np.concatenate(lengths))
        if len(lengths) == 1:
            return block
        # Spread each source evenly over the block: also a short run of samples then holds the sources in their shares.
        turn = np.concatenate([(np.arange(count) + 0.5) / count for count in counts if count])
        order = np.argsort(turn, kind="stable")
        return BlockSamples(block.sources[order], block.samples[order], block.lengths[order])


def _of_several_sources(targets: Targets) -> HasTarget:
    def has_target(sources: Ints, samples: Ints, starts: Ints, stops: Ints) -> Bools:
        found = np.empty(samples.size, np.bool_)
        for number in np.unique(sources).tolist():
            here = np.flatnonzero(sources == number)
            found[here] = targets(number, samples[here], starts[here], stops[here])
        return found

    return has_target
