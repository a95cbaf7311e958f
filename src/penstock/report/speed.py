"""Measure tokens per second of preparation and of the loader, on the user's own recipe."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.loader import Loader
from penstock.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast something was.  `headroom`: this speed divided by what the model takes."""

    what: str
    tokens: int
    seconds: float
    model_tokens_per_second: float | None = None

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def headroom(self) -> float | None:
        taken = self.model_tokens_per_second
        return None if not taken else self.tokens_per_second / taken


def preparation(make: Callable[[], list[Store]], *, model: float | None = None) -> Speed:
    """`make` prepares part of the data, without the cache."""
    begun = time.perf_counter()
    stores = make()
    seconds = time.perf_counter() - begun
    return Speed(
        what="preparation",
        tokens=sum(store.counts.tokens for store in stores),
        seconds=seconds,
        model_tokens_per_second=model,
    )


def loading(loader: Loader, *, seconds: float, model: float | None = None) -> Speed:
    """Take batches as fast as they come, for `seconds` or until the run ends; the first, which opens files, is not counted."""
    batches = iter(loader)
    next(batches)
    tokens, begun = 0, time.perf_counter()
    for batch in batches:
        spans = batch.rows.spans
        tokens += int((spans["stop"] - spans["start"]).sum())
        if time.perf_counter() - begun > seconds:
            break
    taken = time.perf_counter() - begun
    return Speed(what="loader", tokens=tokens, seconds=taken, model_tokens_per_second=model)
