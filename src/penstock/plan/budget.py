"""Where a pass ends before its data does: after so many tokens, or a part of its last epoch; and how many rows a step of tokens holds.

The order does not depend on a budget, which only says how far it is followed.  So a run may be continued with a larger one.  Tokens are
counted from the start of a pass along the order, whatever steps it is cut into: on any number of ranks the same rows are within a budget.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from penstock.errors import PlanError
from penstock.plan.rows import PackedBlock
from penstock.types import Ints

BlockNumber = tuple[int, int]  # epoch, block

_MOST_EMPTY_EPOCHS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTokens:
    """Steps of tokens instead of rows: each takes as many rows as fit."""

    tokens: int  # of a step of all ranks, at most
    multiple: int  # rows of a step are a multiple of this, so that all ranks get as many
    is_padded: bool  # every row counts as the longest row of its step
    pad_to: int = 1  # multiple to which a row is padded
    fixed: int | None = None  # tokens of every row, where all are padded to one length

    def num_rows(self, lengths: Ints) -> int:
        """Return how many of these rows, from the first on, make a step; at least `multiple`, or all if they are fewer."""
        if lengths.size < self.multiple:
            return lengths.size
        padded = self.padded(lengths)
        tokens = np.cumsum(padded)
        if self.is_padded:
            tokens = np.maximum.accumulate(padded) * np.arange(1, lengths.size + 1)
        fitting = int(np.searchsorted(tokens, self.tokens, side="right"))
        return max(fitting // self.multiple, 1) * self.multiple

    def padded(self, lengths: Ints) -> Ints:
        """Return the tokens that rows of these lengths take, each by itself."""
        if self.fixed is not None:
            return np.full_like(lengths, self.fixed)
        return -(-lengths // self.pad_to) * self.pad_to


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How far a pass follows the order."""

    tokens: int | None = None  # of a pass, at most
    share: Fraction | None = None  # of the rows of a pass's last epoch
    epochs: int | None = None  # of a pass; None: it goes on until the tokens are spent
    step: StepTokens | None = None


class BudgetCounter:
    """Counts how many rows of a block are within the budget of a plan."""

    def __init__(
        self,
        budget: Budget,
        pack: Callable[[int, int], PackedBlock | None],
        rows_before: Callable[[int], Ints],
    ) -> None:
        """rows_before: of an epoch, the rows before each of its blocks, and in all."""
        self._budget = budget
        self._pack = pack
        self._rows_before = rows_before
        # The thread that reads ahead counts, too: values here are replaced, never changed, and both threads would write equal ones.
        # By the first epoch of a pass: blocks in order, and the tokens of the pass before each.
        self._known: dict[int, tuple[list[BlockNumber], list[int]]] = {}
        # Of passes that only tokens end: the epochs in which they begin.
        self._begins: tuple[int, ...] = (0,)
        self.rows = lru_cache(maxsize=64)(self._find_rows)  # is asked at every step

    def _find_rows(self, epoch: int, number: int, num_rows: int) -> int:
        """Return how many of a block's rows are within the budget."""
        within = num_rows
        if self._budget.share is not None:
            within = min(within, self._rows_of_share(epoch, number))
        if self._budget.tokens is not None:
            within = min(within, self._rows_of_tokens(epoch, number, num_rows))
        return within

    def rows_of_epoch(self, epoch: int, first: int = 0) -> tuple[int, bool]:
        """Return how many rows of an epoch, from block `first` on, are within the budget, and whether it ends there."""
        before = self._rows_before(epoch)
        for number in range(first, before.size - 1):
            num_rows = int(before[number + 1] - before[number])
            within = self.rows(epoch, number, num_rows)
            if within < num_rows:
                return int(before[number] - before[first]) + within, True
        return int(before[-1] - before[first]), False

    def _rows_of_share(self, epoch: int, number: int) -> int:
        budget = self._budget
        assert budget.share is not None
        if budget.epochs is None or (epoch + 1) % budget.epochs:
            return 1 << 62
        before = self._rows_before(epoch)
        allowed = -(-budget.share.numerator * int(before[-1]) // budget.share.denominator)
        return max(0, allowed - int(before[number]))

    def _rows_of_tokens(self, epoch: int, number: int, num_rows: int) -> int:
        assert self._budget.tokens is not None
        left = self._budget.tokens - self._tokens_before(epoch, number)
        if left <= 0:
            return 0
        tokens = self._tokens_of(epoch, number)
        if tokens is None:
            return num_rows
        return int(np.searchsorted(np.cumsum(tokens[:num_rows]), left, side="right"))

    def _tokens_of(self, epoch: int, number: int) -> Ints | None:
        """Return the tokens of each row of a block; None past the end of its epoch."""
        packed = self._pack(epoch, number)
        return None if packed is None else row_tokens(packed)

    def _tokens_before(self, epoch: int, number: int) -> int:
        """Return the tokens of the pass before a block; more than the budget, if it is spent before."""
        return self._count_to(self.first_epoch(epoch), (epoch, number))

    def first_epoch(self, epoch: int) -> int:
        """Return the epoch in which the pass of an epoch begins."""
        if self._budget.epochs is not None:
            return epoch // self._budget.epochs * self._budget.epochs
        begins = self._begins_until(epoch)
        return begins[bisect_right(begins, epoch) - 1]

    def _begins_until(self, epoch: int) -> tuple[int, ...]:
        """Return the epochs in which passes begin, up to the first one after an epoch."""
        begins = self._begins
        while begins[-1] <= epoch:
            begins = (*begins, self._find_end(begins[-1]))
        self._begins = begins
        return begins

    def end_of_pass(self, epoch: int) -> int:
        """Return the epoch before which the pass of an epoch ends, where only the tokens end it."""
        begins = self._begins_until(epoch)
        return begins[bisect_right(begins, epoch)]

    def _find_end(self, first: int) -> int:
        """Return the epoch before which a pass ends that begins with an epoch."""
        assert self._budget.tokens is not None
        last = first
        empty = 0
        while True:
            before = self._count_to(first, (last, 0))
            after = self._count_to(first, (last + 1, 0))
            if after > self._budget.tokens:
                starts_spent = before >= self._budget.tokens and last > first
                return last if starts_spent else last + 1
            empty = 0 if after > before else empty + 1
            if empty >= _MOST_EMPTY_EPOCHS:
                raise PlanError(
                    f"{empty} epochs in a row gave no token, so max_tokens={self._budget.tokens:,} is never reached: every sample is "
                    f"empty or dropped; see the counters"
                )
            last += 1

    def _count_to(self, first: int, block: BlockNumber) -> int:
        """Return the tokens before a block of the pass that begins with epoch `first`; stop counting once the budget is exceeded."""
        assert self._budget.tokens is not None
        blocks, tokens = self._known.get(first, ([(first, 0)], [0]))
        if blocks[-1] < block and tokens[-1] <= self._budget.tokens:
            blocks = list(blocks)
            tokens = list(tokens)
        while blocks[-1] < block and tokens[-1] <= self._budget.tokens:
            epoch, number = blocks[-1]
            of_rows = self._tokens_of(epoch, number)
            following = (epoch + 1, 0) if of_rows is None else (epoch, number + 1)
            tokens.append(tokens[-1] + (0 if of_rows is None else int(of_rows.sum())))
            blocks.append(following)
        self._known[first] = (blocks, tokens)
        return tokens[bisect_right(blocks, block) - 1]


def row_tokens(packed: PackedBlock) -> Ints:
    """Return the tokens of each row of a block."""
    spans = packed.rows.spans
    running = np.concatenate(([0], np.cumsum(spans["stop"] - spans["start"])))
    tokens: Ints = np.diff(running[packed.rows.starts])
    return tokens
