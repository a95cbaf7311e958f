"""Which record of a stream is prompt number n: the stream is read while its prompts are given, and its end need not exist.

A prompt's ordinal is its place in the order of the stream, which is that of a Loader over it.  What the filter or max_length leave out
has an ordinal, too: it is found out when the prompt is about to be given, and is dropped under a reason of its own.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.extras.rl.order import OrderPlace, PromptOrder
from penstock.fingerprint import fingerprint
from penstock.loader.plans import stream_source
from penstock.plan.counters import Counters
from penstock.plan.plan import Plan
from penstock.plan.settings import PlanSettings
from penstock.plan.stream import StreamOrder
from penstock.sources.filter import RecordFilter
from penstock.store.sizes import SampleSizes
from penstock.types import Ints, Record

OVERLONG = "overlong"
BY_FILTER = "filter"
NO_SAMPLE = "no_sample"  # the template made none of the record


class StreamPromptOrder(PromptOrder):
    """The prompts of one stream, in the order of its windows.  They are given once: a stream is one epoch."""

    def _begin(
        self, names: Sequence[str], settings: PlanSettings, only: RecordFilter | None
    ) -> None:
        (store,) = self.stores
        settings = replace(settings, last_step="pad")  # of a plan; prompts are given one by one
        source = stream_source(names[0], store)
        if only is not None:
            source = replace(source, key=fingerprint([source.key, only.name, only.version]))
        self._only = only
        self._max_length = settings.max_length
        self._order = StreamOrder(source, settings)
        self.plan = Plan((source,), SampleSizes(self.stores).lengths, settings)
        self.dropped = Counters()
        if not self.reach(1):
            raise PlanError(f"there are no prompts: the stream {names[0]!r} has no records")

    def reach(self, stop: int) -> int:
        """Return `stop`, or the number of prompts if the stream ends before; reads no further than it must."""
        return self._order.reach(stop)

    def total(self, epochs: int) -> int:
        """Refuse: the number of prompts is known at the end only, and then the leases know it."""
        raise PlanError(
            f"the number of prompts of the stream {self.plan.sources[0].name!r} is not known before its end; read it to the end first "
            f"and shuffle all of it: len(source), and no shuffle_window"
        )

    def check_epochs(self, epochs: int | None) -> None:
        if epochs not in (None, 1):
            raise PlanError(
                f"epochs={epochs} needs the number of prompts in an epoch, and the end of a stream may never come; leave epochs out: its "
                f"prompts are given once"
            )

    def find(self, ordinals: Sequence[int]) -> OrderPlace:
        """Look up ordinals; neighbours are looked up together."""
        wanted = np.array(ordinals, np.int64)
        breaks = (np.flatnonzero(np.diff(wanted) != 1) + 1).tolist()
        rows: list[Ints] = [np.empty(0, np.int64)]
        for first, last in pairwise([0, *breaks, len(ordinals)]) if ordinals else ():
            rows.append(self._order.samples(int(wanted[first]), int(wanted[last - 1]) + 1))
        sources = np.zeros(wanted.size, np.int64)
        return OrderPlace([0] * wanted.size, sources, np.concatenate(rows))

    def why_left_out(self, row: int, record: Record, input_ids: Any) -> str | None:
        """Return why a prompt is not given: the name of a reason; None if it is given."""
        (source,) = self._sources
        if input_ids is not None and not len(input_ids):
            return NO_SAMPLE
        if input_ids is not None and len(input_ids) > self._max_length:
            if self.plan.settings.on_overlong == "error":
                raise PlanError(
                    f"{source.locate(row)}: the prompt has {len(input_ids):,} tokens, more than max_length={self._max_length}; raise it, "
                    f"or set on_overlong='drop'"
                )
            return OVERLONG
        if self._only is not None and not self._only.keeps(source, row, record):
            return BY_FILTER
        return None

    def journal(self, stop: int) -> list[Any]:
        """Return what the prompts before an ordinal have used of the stream: how many shards, and their digest."""
        num_shards = self._order.num_shards(stop)
        return [num_shards, self.plan.sources[0].digest_of(num_shards)]  # type: ignore[attr-defined]  # a StreamSource
