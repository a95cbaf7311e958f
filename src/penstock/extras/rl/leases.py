"""Which prompts are done, leased or to be given again: a pure state machine over ordinals.

An ordinal is the place of a prompt in the order of the whole run.  Each one is untaken, leased, returned or settled (done or dropped), and
becomes settled exactly once.  Settled ones are not kept: below `next`, an ordinal that is neither leased nor returned is settled.  No
clock is read here: the caller passes the time as `now`.
"""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.errors import LeaseError

NO_END = float("inf")  # of a lease that does not run out

# a reason is a name, not a sentence with numbers: the state counts each one
_MOST_REASONS = 16
_REASON_LENGTH = 40
_LISTED = 3  # of the reasons that an error names

Asked = tuple[int, int | None]  # an ordinal, and the number of its lease where that is known


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLease:
    """An ordinal in the hands of a worker.  `number` is never used again, so an old lease is known as such."""

    ordinal: int
    attempt: int  # how often the ordinal was given before
    number: int
    due: float  # when the ordinal may be given again
    worker: str | None = None
    note: Any = None  # of the last `back`


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """An ordinal to be given again, with the number of its next attempt."""

    attempt: int
    note: Any = None


@dataclass(slots=True)
class Leases:
    """All ordinals of a run.  `total` is None where the run has no end."""

    total: int | None
    next: int = 0  # the first ordinal that was never given
    done: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    leased: dict[int, PromptLease] = field(default_factory=dict)
    returned: dict[int, Returned] = field(default_factory=dict)
    _again: list[int] = field(
        default_factory=list
    )  # heap of returned and overdue ordinals; some may be neither by now
    _due: list[tuple[float, int]] = field(
        default_factory=list
    )  # heap of (due, ordinal); some leases have ended or were kept
    _number: int = 0

    @property
    def frontier(self) -> int:
        """Every ordinal below is done or dropped."""
        return min([*self.leased, *self.returned], default=self.next)

    @property
    def finished(self) -> bool:
        """Whether every ordinal is done or dropped."""
        return self.next == self.total and not self.leased and not self.returned

    # Giving

    def take(
        self, count: int, *, now: float, due: float = NO_END, worker: str | None = None
    ) -> list[PromptLease]:
        """Lease up to `count` ordinals: those to be given again first, the lowest first, then new ones."""
        while self._due and self._due[0][0] <= now:
            heapq.heappush(self._again, heapq.heappop(self._due)[1])
        given: list[PromptLease] = []
        while self._again and len(given) < count:
            ordinal = heapq.heappop(self._again)
            if (waiting := self._waiting(ordinal, now)) is not None:
                given.append(self._give(ordinal, waiting, due, worker))
        left = count - len(given)
        stop = self.next + left if self.total is None else min(self.next + left, self.total)
        for ordinal in range(self.next, stop):
            given.append(self._give(ordinal, Returned(attempt=0), due, worker))
        self.next = stop
        return given

    def _waiting(self, ordinal: int, now: float) -> Returned | None:
        """Return what to give again, or None if this ordinal is settled or in good hands."""
        if (returned := self.returned.pop(ordinal, None)) is not None:
            return returned
        lease = self.leased.get(ordinal)
        if lease is None or lease.due > now:
            return None
        return Returned(attempt=lease.attempt + 1, note=lease.note)

    def _give(self, ordinal: int, waiting: Returned, due: float, worker: str | None) -> PromptLease:
        self._number += 1
        lease = PromptLease(
            ordinal=ordinal,
            attempt=waiting.attempt,
            number=self._number,
            due=due,
            worker=worker,
            note=waiting.note,
        )
        self._set(lease)
        return lease

    def _set(self, lease: PromptLease) -> None:
        self.leased[lease.ordinal] = lease
        if lease.due < NO_END:
            heapq.heappush(self._due, (lease.due, lease.ordinal))

    # Acknowledging.  Each call checks all of its leases before it changes anything.

    def finish(self, asked: Sequence[Asked]) -> None:
        """Settle these leases as done."""
        for lease in self._held(asked, "done"):
            del self.leased[lease.ordinal]
            self.done += 1

    def drop(self, asked: Sequence[Asked], *, why: str) -> None:
        """Settle these leases as dropped for a reason."""
        self._check_reason(why)
        for lease in self._held(asked, "drop"):
            del self.leased[lease.ordinal]
            self.dropped[why] += 1

    def back(self, asked: Sequence[Asked], *, note: Any = None) -> None:
        """End these leases; their ordinals are given again, before new ones.  A note replaces the one before."""
        for lease in self._held(asked, "back"):
            del self.leased[lease.ordinal]
            self._return(lease.ordinal, lease.attempt + 1, lease.note if note is None else note)

    def back_from(self, worker: str) -> list[int]:
        """End all leases of a worker; return their ordinals."""
        lost = [
            (lease.ordinal, lease.number)
            for lease in self.leased.values()
            if lease.worker == worker
        ]
        self.back(lost)
        return [ordinal for ordinal, _ in lost]

    def keep(self, asked: Sequence[Asked], *, due: float = NO_END) -> list[bool]:
        """Return which of these leases hold, and move the time at which those run out, never to an earlier one.

        A lease that has run out holds until its ordinal is given to another worker.
        """
        holds = [self._problem(ordinal, number) is None for ordinal, number in asked]
        for (ordinal, _), is_held in zip(asked, holds, strict=True):
            if is_held:
                lease = self.leased[
                    ordinal
                ]  # a worker may renew what a trainer has accepted: never sooner than before
                self._set(replace(lease, due=max(lease.due, due)))
        return holds

    def _return(self, ordinal: int, attempt: int, note: Any) -> None:
        self.returned[ordinal] = Returned(attempt=attempt, note=note)
        heapq.heappush(self._again, ordinal)

    def _held(self, asked: Sequence[Asked], verb: str) -> list[PromptLease]:
        """Return these leases; raise if one of them does not hold, or is named twice."""
        problems = {
            ordinal: found for ordinal, number in asked if (found := self._problem(ordinal, number))
        }
        if problems:
            ordinal, found = next(iter(problems.items()))
            more = (
                f" (and {len(problems) - 1:,} more of {len(asked):,})" if len(problems) > 1 else ""
            )
            raise LeaseError(f"{verb}: prompt {ordinal} {found}{more}; nothing was changed")
        if len({ordinal for ordinal, _ in asked}) < len(asked):
            twice = next(
                ordinal
                for ordinal, times in Counter(each for each, _ in asked).items()
                if times > 1
            )
            raise LeaseError(
                f"{verb}: prompt {twice} is named twice, expected each once; nothing was changed"
            )
        return [self.leased[ordinal] for ordinal, _ in asked]

    def _problem(self, ordinal: int, number: int | None) -> str | None:
        """Say why a lease does not hold; None if it does.  Without a number, any lease of the ordinal is meant."""
        lease = self.leased.get(ordinal)
        if lease is None:
            if ordinal in self.returned:
                return "was given back and not taken since; its rollouts must not be trained"
            if 0 <= ordinal < self.next:
                return "is already done or dropped; its rollouts must not be trained again"
            return (
                f"was never taken: prompts 0 to {self.next - 1} were"
                if self.next
                else "was never taken: none was"
            )
        if number in (None, lease.number):
            return None
        to = "another worker" if lease.worker is None else repr(lease.worker)
        return f"was given again, to {to} as attempt {lease.attempt}, so this lease is over; only those rollouts count"

    def _check_reason(self, why: str) -> None:
        if not isinstance(why, str) or not 0 < len(why) <= _REASON_LENGTH:
            raise LeaseError(
                f"why is {why!r}, expected a short name of the reason, of 1 to {_REASON_LENGTH} characters"
            )
        if why not in self.dropped and len(self.dropped) >= _MOST_REASONS:
            raise LeaseError(
                f"why={why!r} would be reason number {len(self.dropped) + 1}, expected at most {_MOST_REASONS}: "
                f"{', '.join(list(self.dropped)[:_LISTED])} …; a reason is a name, without numbers that change"
            )

    # Saving

    def unsettled(self) -> dict[int, Returned]:
        """Return every ordinal that was given and is not settled, in order, as it is given again after a resume."""
        over = {
            n: Returned(attempt=lease.attempt + 1, note=lease.note)
            for n, lease in self.leased.items()
        }
        return dict(sorted((over | self.returned).items()))

    def restore(
        self, *, next: int, done: int, dropped: Mapping[str, int], unsettled: Mapping[int, Returned]
    ) -> None:
        """Go to a saved state: all leases end, and what was not settled then is given again first."""
        self.next = next
        self.done = done
        self.dropped = Counter(dropped)
        self.leased = {}
        self.returned = dict(unsettled)
        self._again = sorted(unsettled)
        self._due = []
