"""The few pieces whose loss is highest above the mean of their source, with the loss of each of their tokens."""

import heapq
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.extras.losses.targets import Floats, PieceLosses, Targets
from penstock.types import Ints

_MOST_PIECES = 64
_MOST_TOKENS = 4_096  # of a piece
_PER_BATCH = 4  # pieces of a source and batch that are looked at, so that this takes no time
_MEMORY = 0.98  # how much of the mean of a source stays from one batch to the next


@dataclass(order=True, slots=True)
class _Piece:
    """One piece; pieces are compared by their excess."""

    excess: float
    number: int  # decides between equal ones
    step: int = field(compare=False)
    source: int = field(compare=False)
    sample: int = field(compare=False)
    tokens: Ints = field(compare=False)
    losses: Floats = field(compare=False)


class Outstanding:
    """Keeps the pieces of one rank that stand out most.  Of a sample that was trained several times, the last time counts."""

    def __init__(self) -> None:
        self._heap: list[_Piece] = []
        self._means: dict[int, float] = {}  # of a source, over the last batches
        self._number = 0
        self.has_news = False

    def add(
        self, step: int, spans: np.ndarray, targets: Targets, losses: Floats, pieces: PieceLosses
    ) -> None:
        """Look at the highest pieces of a batch."""
        means = pieces.losses / pieces.targets
        sources = spans["source"][pieces.spans]
        for source in np.unique(sources).tolist():
            own = np.flatnonzero(sources == source)
            of_batch = float(pieces.losses[own].sum() / pieces.targets[own].sum())
            before = self._means.get(source, of_batch)
            mean = _MEMORY * before + (1 - _MEMORY) * of_batch
            self._means[source] = mean
            highest = own[np.argsort(-means[own], kind="stable")[:_PER_BATCH]]
            for place in highest.tolist():
                span = int(pieces.spans[place])
                sample = int(spans["sample"][span])
                excess = float(means[place]) - mean
                self._forget(source, sample)
                if len(self._heap) < _MOST_PIECES or excess > self._heap[0].excess:
                    chosen = np.flatnonzero(targets.spans == span)[:_MOST_TOKENS]
                    tokens = targets.positions[chosen]
                    self._push(excess, step, source, sample, tokens, losses[chosen])

    def _push(
        self, excess: float, step: int, source: int, sample: int, tokens: Ints, losses: Floats
    ) -> None:
        self._number += 1
        piece = _Piece(excess, self._number, step, source, sample, tokens, losses)
        heapq.heappush(self._heap, piece)
        if len(self._heap) > _MOST_PIECES:
            heapq.heappop(self._heap)
        self.has_news = True

    def _forget(self, source: int, sample: int) -> None:
        kept = [each for each in self._heap if (each.source, each.sample) != (source, sample)]
        if len(kept) < len(self._heap):
            heapq.heapify(kept)
            self._heap = kept

    def columns(self) -> dict[str, Any]:
        """Return the rows of the table of tokens."""
        self.has_news = False
        sizes = [piece.tokens.size for piece in self._heap]
        return {
            "step": np.repeat([piece.step for piece in self._heap], sizes),
            "source": np.repeat([piece.source for piece in self._heap], sizes),
            "sample": np.repeat([piece.sample for piece in self._heap], sizes),
            "token": np.concatenate([piece.tokens for piece in self._heap]),
            "loss": np.concatenate([piece.losses for piece in self._heap]),
        }
