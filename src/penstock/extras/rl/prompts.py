"""Prompts for reinforcement learning, leased and acknowledged.

`take` leases prompts to a rollout worker.  `done` says that they were trained on, `drop` that they will not be, `back` that they must be
given again.  A lease ends in one of these ways, or runs out and the prompt is given again; so no prompt is lost.  The state holds the
ordinals that are not done, not the prompts: the order is a function of the data and the seed.
"""

import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt
import orjson

from penstock.errors import LeaseError, PlanError
from penstock.extras.rl.leases import NO_END, Asked, Leases, PromptLease
from penstock.extras.rl.order import open_order
from penstock.extras.rl.recipe import of_recipe
from penstock.extras.rl.settings import PromptSettings
from penstock.extras.rl.state import MOST_NOTE_BYTES, make_state, read_state
from penstock.extras.rl.stream_order import StreamPromptOrder
from penstock.extras.rl.template import PromptTemplate
from penstock.recipe.recipe import Recipe
from penstock.settings import taken, takes, whole_number
from penstock.sources.filter import RecordFilter
from penstock.store import Store
from penstock.types import Record, Where

if TYPE_CHECKING:
    from penstock.options import PromptOptions

_log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt in the hands of a worker."""

    ordinal: int  # its place in the order of the whole run
    epoch: int
    attempt: int  # how often it was given before
    lease: int  # tells this lease from an older one of the same prompt
    repeats: int  # rollouts that it should get
    source: str  # the name of its source
    row: int  # in that source
    record: Record
    input_ids: npt.NDArray[Any] | None = (
        None  # rendered by the template `prompt`; None for plain records
    )
    columns: dict[str, Any] = field(default_factory=dict)  # those that the template declares
    note: Any = None  # of the last `back`
    label: Any = None  # what the reward compares rollouts with: the record's value under reward_key
    find_where: Callable[[int], Where] = field(repr=False, compare=False)

    @property
    def where(self) -> Where:
        """File and line of the record."""
        return self.find_where(self.row)


def label_of(store: Any, record: Record) -> Any:
    """Return what the reward compares with, if the store's template names its column."""
    template = store.template if isinstance(store, Store) else None
    if not isinstance(template, PromptTemplate) or template.reward_key is None:
        return None
    template.check_reward(record)  # a store may have been made before the recipe had the key
    return record[template.reward_key]


Given = Prompt | int | Iterable[Prompt | int | Asked]  # ordinals mean whatever lease they have now


class Prompts:
    """Prompts for reinforcement learning: leased to rollout workers, acknowledged when trained, and never lost.

    prompts = ps.Prompts("recipe.yaml", repeats=8)      # template: prompt, or template: records
    prompts = ps.Prompts(ps.open("math.jsonl"))         # plain records

    They come in the order of a seed, epoch after epoch.  Threads may share it.
    """

    @takes("PromptOptions")
    def __init__(
        self,
        data: Any,
        *,
        clock: Callable[[], float] = time.monotonic,
        **options: Unpack["PromptOptions"],
    ) -> None:
        """Open the prompts of a recipe (its file or a Recipe), of a store or source, or of several: a list, or a dict with weights.

        Keyword arguments come before the keys of the recipe.  clock: seconds, by which leases run out.
        """
        order_options: dict[str, Any] = {**options}
        part = order_options.get("part", "train")
        if isinstance(data, str | os.PathLike | Recipe):
            data, of_keys = of_recipe(Recipe.read(data), part)
            if order_options.get("epochs") is None:  # then the recipe decides
                order_options.pop("epochs", None)
            order_options = {**of_keys, **order_options}
        elif part != "train":
            raise PlanError(f"part={part!r} is of a recipe, and these are records; leave it out")
        asked = PromptSettings(**taken(order_options, PromptSettings))
        self.repeats = asked.repeats
        self.epochs = asked.epochs
        only = None
        if asked.filter is not None:
            only = RecordFilter(asked.filter, version=asked.filter_version, num_proc=asked.num_proc)
        self._order = open_order(
            data, max_length=asked.max_length, settings=order_options, only=only
        )
        self._order.check_epochs(self.epochs)
        self.plan = self._order.plan
        self.stores = self._order.stores
        self.dropped_before = self._order.dropped
        self.filtered = self._order.filtered  # prompts that the filter leaves out, by source
        self._lease = asked.lease
        self._clock = clock
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._stream = self._order if isinstance(self._order, StreamPromptOrder) else None
        if only is not None and asked.filter_version is None and self._stream is None:
            _log.warning(
                "filter %s is called on every record at each start; give it a filter_version to have its answers remembered",
                only.name,
            )
        total = None
        if self.epochs is not None and self._stream is None:
            total = self._order.total(self.epochs)
        # from a random number on: a rollout that waited in a queue while the owner was restarted has another one
        self._leases = Leases(total, _number=int.from_bytes(os.urandom(5)))
        if text := self.dropped_before.dropped_words():
            _log.warning("%s (of %s prompts in an epoch)", text, f"{self.dropped_before.samples:,}")
        for name, count in self.filtered.items():
            _log.warning("%s: %s prompts left out by the filter", name, f"{count:,}")

    def _owned(self) -> threading.RLock:
        """Return the lock of all changes; a forked copy must not make any: it would give what its parent gives."""
        guard_against_fork(
            self._process, "share prompts with penstock.rl.serve, and connect in each process"
        )
        return self._lock

    # Leasing

    def take(self, count: int, *, to: str | None = None) -> list[Prompt]:
        """Lease up to `count` prompts to a worker: those to be given again first, then new ones.

        An empty list means that no prompt is free now; `finished` says whether one can become free.
        """
        count = whole_number("count", count, least=1)
        with self._owned():
            now = self._clock()
            due = NO_END if self._lease is None else now + self._lease
            taken: list[Prompt] = []
            try:
                while len(taken) < count:
                    missing = count - len(taken)
                    if self._stream is not None:
                        self._learn_end(self._stream, missing)
                    leases = self._leases.take(missing, now=now, due=due, worker=to)
                    if not leases:
                        break
                    taken += self._prompts_to_give(leases)
            except BaseException:  # a record that cannot be read: these prompts go back
                self._leases.back(as_asked(taken))
                raise
            return taken

    def _learn_end(self, stream: StreamPromptOrder, count: int) -> None:
        """Read a stream far enough for some more new prompts; at its end their number is known."""
        stop = self._leases.next + count
        num_prompts = stream.reach(stop)
        if num_prompts < stop:
            self._leases.total = num_prompts

    def _prompts_to_give(self, leases: list[PromptLease]) -> list[Prompt]:
        """Return the prompts of these leases.  Those that turn out to be left out are dropped, with their reason."""
        try:
            prompts = self._prompts(leases)
            reasons = [
                self._order.why_left_out(prompt.row, prompt.record, prompt.input_ids)
                for prompt in prompts
            ]
        except BaseException:
            self._leases.back([(lease.ordinal, lease.number) for lease in leases])
            raise
        for prompt, reason in zip(prompts, reasons, strict=True):
            if reason is not None:
                self._leases.drop(as_asked(prompt), why=reason)
        return [prompt for prompt, why in zip(prompts, reasons, strict=True) if why is None]

    def _prompts(self, leases: list[PromptLease]) -> list[Prompt]:
        place = self._order.find([lease.ordinal for lease in leases])
        read = zip(leases, self._order.records(place), self._order.samples(place), strict=True)
        return [
            Prompt(
                ordinal=lease.ordinal,
                epoch=place.epochs[at],
                attempt=lease.attempt,
                lease=lease.number,
                repeats=self.repeats,
                source=self.plan.sources[int(place.sources[at])].name,
                row=int(place.rows[at]),
                record=record,
                input_ids=input_ids,
                columns=columns,
                note=lease.note,
                label=label_of(self.stores[int(place.sources[at])], record),
                find_where=self.stores[int(place.sources[at])].source.locate,
            )
            for at, (lease, record, (input_ids, columns)) in enumerate(read)
        ]

    def accept(self, prompts: Given) -> list[int]:
        """Return the ordinals of those prompts whose rollouts may be trained on; their leases no longer run out.

        Call it before training.  A prompt that is missing in the answer was given to another worker, or is done: drop its rollouts.
        """
        with self._owned():
            asked = as_asked(prompts)
            return [
                ordinal
                for (ordinal, _), holds in zip(asked, self._leases.keep(asked), strict=True)
                if holds
            ]

    def renew(self, prompts: Given) -> list[int]:
        """Begin the lease time of these prompts again; return the ordinals of those that are still leased to this worker."""
        with self._owned():
            asked = as_asked(prompts)
            due = NO_END if self._lease is None else self._clock() + self._lease
            holds = self._leases.keep(asked, due=due)
            return [ordinal for (ordinal, _), is_held in zip(asked, holds, strict=True) if is_held]

    def done(self, prompts: Given) -> None:
        """Say that these prompts were trained on: at the optimizer step, not after generation.

        Takes prompts, or their ordinals.  All of them must be leased, or nothing is changed.
        """
        with self._owned():
            self._leases.finish(as_asked(prompts))

    def drop(self, prompts: Given, *, why: str) -> None:
        """Say that these prompts will not be trained on, and why: the name of a reason, which is counted."""
        with self._owned():
            self._leases.drop(as_asked(prompts), why=why)

    def back(self, prompts: Given, *, note: Any = None) -> None:
        """Give prompts back, to be given again before new ones.

        note: a small JSON value that comes with the prompt when it is given again: the path of a partial rollout, for one.
        """
        check_note(note)
        with self._owned():
            self._leases.back(as_asked(prompts), note=note)

    def back_from(self, worker: str) -> list[int]:
        """Give back all prompts of a worker that has died; return their ordinals."""
        with self._owned():
            return self._leases.back_from(worker)

    # Counting

    @property
    def finished(self) -> bool:
        """Whether all prompts of all epochs are done or dropped."""
        with self._lock:
            return self._leases.finished

    @property
    def counts(self) -> dict[str, Any]:
        """Prompts by what became of them: done, dropped (by reason), leased, returned; and the frontier: all below it are settled."""
        with self._lock:
            found = self._leases
            return {
                "done": found.done,
                "dropped": dict(found.dropped),
                "leased": len(found.leased),
                "returned": len(found.returned),
                "frontier": found.frontier,
                "next": found.next,
                "total": found.total,
            }

    @property
    def prompts_per_epoch(self) -> int:
        """The number of prompts in the first epoch; of a weighted mixture, later ones may differ a little."""
        return self._order.total(1)

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """A small JSON value: which prompts are not done.  Save it with the weights."""
        with self._lock:
            used = None if self._stream is None else self._stream.journal(self._leases.next)
            return make_state(self.plan, self._leases, used)

    def load_state_dict(self, state: Any) -> None:
        """Go to a saved state: all leases end, and every prompt that was not done then is given again first, in order."""
        with self._owned():
            saved = read_state(state, self.plan, total=self._leases.total)
            self._leases.restore(**saved)

    def __repr__(self) -> str:
        found = self.counts
        total = "no end" if found["total"] is None else f"{found['total']:,} in all"
        dropped = Counter(found["dropped"]).total()
        return (
            f"Prompts({', '.join(repr(each.name) for each in self.plan.sources)}, {total}, {found['done']:,} done, "
            f"{dropped:,} dropped, {found['leased']:,} leased, {self.plan.fingerprint[:8]})"
        )


def check_note(note: Any) -> None:
    """Raise LeaseError if a note is not a small JSON value."""
    try:
        size = len(json.dumps(note, allow_nan=False))
        is_kept = orjson.loads(orjson.dumps(note)) == note
    except (TypeError, ValueError, RecursionError) as error:
        raise LeaseError(
            f"the note is not a JSON value: {error}; write a file and pass its path"
        ) from error
    if not is_kept:
        raise LeaseError(
            "the note is not a JSON value: JSON would change it, such as a tuple; pass lists and dicts"
        )
    if size > MOST_NOTE_BYTES:
        raise LeaseError(
            f"the note has {size:,} bytes, expected at most {MOST_NOTE_BYTES:,}; write a file and pass its path"
        )


def guard_against_fork(owner: int, advice: str) -> None:
    """Raise LeaseError in another process than the owner: two copies would hand out the same prompts."""
    if os.getpid() != owner:
        raise LeaseError(
            f"this process ({os.getpid()}) was forked from the one that opened the prompts ({owner}), and both would get the same "
            f"prompts; {advice}"
        )


def as_asked(given: Given) -> list[Asked]:
    """Return the ordinals that are meant, each with the number of its lease where that is given: of a Prompt, or as a pair."""
    many = [given] if isinstance(given, Prompt | int | np.integer) else list(given)
    return [_pair(each) for each in many]


def _pair(each: Any) -> Asked:
    if isinstance(each, Prompt):
        return each.ordinal, each.lease
    ordinal, lease = each if isinstance(each, tuple) else (each, None)
    return whole_number("ordinal", ordinal, least=None), lease
