"""Is the pipe wide enough for this model?  Tokens per second of preparation and of the loader, measured on the user's own recipe."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.loader import Loader
from penstock.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast something went.  `appetite`: tokens per second that the model takes; `headroom` is how many models could be fed."""

    what: str
    tokens: int
    seconds: float
    appetite: float | None = None

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def headroom(self) -> float | None:
        return None if not self.appetite else self.tokens_per_second / self.appetite


def preparation(make: Callable[[], list[Store]], *, appetite: float | None = None) -> Speed:
    """`make` prepares part of the data anew."""
    begun = time.perf_counter()
    stores = make()
    seconds = time.perf_counter() - begun
    return Speed(
        what="preparation", tokens=sum(store.counts.tokens for store in stores), seconds=seconds, appetite=appetite
    )


def loading(loader: Loader, *, seconds: float, appetite: float | None = None) -> Speed:
    """Batches as fast as they come, for so long or until the run is over; the first is not counted, it opens files."""
    batches = iter(loader)
    next(batches)
    tokens, begun = 0, time.perf_counter()
    for batch in batches:
        spans = batch.rows.spans
        tokens += int((spans["stop"] - spans["start"]).sum())
        if time.perf_counter() - begun > seconds:
            break
    return Speed(what="loader", tokens=tokens, seconds=time.perf_counter() - begun, appetite=appetite)
