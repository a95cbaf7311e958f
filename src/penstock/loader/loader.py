"""The loader: walks the plan, reads the stores, hands over batches and counts them, pass after pass."""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import cache
from inspect import signature
from itertools import count, islice
from typing import Any

import numpy as np

from penstock.cache import Cache
from penstock.errors import PlanError
from penstock.loader.agree import agree, find_board
from penstock.loader.arguments import read_mixture, split_options, steps_to_skip
from penstock.loader.batch import Batch, Provenance, homes
from penstock.loader.collate import Collator, Made, UsersCollator, in_turn, steps_together
from penstock.loader.form import require_torch
from penstock.loader.guards import refuse_prepare
from penstock.loader.hints import refuse_waiting, with_hints
from penstock.loader.metrics import Metrics
from penstock.loader.passes import Cursor
from penstock.loader.prefetch import growing, one_by_one, read_ahead
from penstock.loader.records import RecordCollator, RecordStore, steps_at_once
from penstock.loader.run import Run
from penstock.loader.world import find_place
from penstock.plan.block import Rows
from penstock.plan.counters import NOTHING, Counters
from penstock.plan.plan import Plan, PlanSource, Step
from penstock.plan.settings import whole_number
from penstock.plan.shard import rank_rows
from penstock.store import Store
from penstock.types import Bools, Ints

_log = logging.getLogger("penstock")

_TOKENS_AT_ONCE = 1 << 20  # of the steps that are looked up together, and
_MOST_STEPS = 32
_COUNTED_AT_ONCE = 1 << 20  # samples of an epoch whose drops are counted ahead, which takes less than a second

_NUMBERS = count()  # of this process's loaders that meet those of other ranks: all ranks make these in one order

_NOTHING_LEFT = (
    "nothing is left: the state that was loaded was taken at the end of a pass, at step %d; iterate again for the next pass, or give the "
    "Loader more epochs"
)

_NO_ITEMS = (
    "a Loader hands over batches in order and has no items: iterate over it; for the Trainers use LoaderTrainer(loader=loader) of "
    "penstock.integrations.hf_trainer or LoaderSFTTrainer(loader=loader) of penstock.integrations.trl; for a DataLoader of your own "
    "DataLoader(loader.as_dataset(), batch_size=None)"
)

Mixture = Mapping[str, Store | tuple[Store, float]]


class Loader(Run):
    """Batches of one or several stores.  `batch_size` is rows per rank; a step is batch_size × world_size rows.

    One loop over a loader is a pass: `epochs` epochs.  A loop that was broken off goes on with the next loop; a loop over a loader that has
    finished its pass is the next pass.
    """

    def __init__(
        self,
        stores: Store | Mixture | Sequence[Store],
        *,
        batch_size: int,
        max_length: int = 4096,
        epochs: int | None = 1,
        rank: int | None = None,
        world_size: int | None = None,
        replicas: int = 1,
        mesh: Any = None,
        run_id: str | None = None,
        prefetch: int = 2,
        workers: int = 0,
        per_epoch: bool = False,
        skip: Iterable[int] = (),
        collate: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        """`options` set the order (see PlanSettings: packing, overflow, shuffle, window, seed, tail, mix_by, stop, block, align,
        max_per_row) and the form of a batch (see BatchForm: output, padding_free, padding, pad_side, pad_to, pad_id, labels …).
        replicas: neighbouring ranks that share their rows.  mesh: the data-parallel dimension of a device mesh, instead of ranks.
        run_id: under this name, ranks without torch.distributed compare their plans through the cache folder.
        prefetch: steps made ahead by a thread while you are away; small ones are made several at once, so that it may be a few more.
        workers: processes of torch's DataLoader that make the batches, each `prefetch` steps ahead, for a slow `collate`; 0 is a thread.
        per_epoch: an iteration ends with its epoch, for trainers that loop over epochs themselves.  skip: steps passed over.
        collate: of plain records, makes a batch of a list of them; of tokens, is given the arrays of a batch and its rows (their
        spans say source, sample, start, stop) and returns the arrays to hand over.
        """
        names, self.stores, weights = read_mixture(stores)
        if records := isinstance(self.stores[0], RecordStore):
            max_length, options = 1, {"packing": "none", **options}
        settings, self.form = split_options(max_length, weights, options, _named())
        self._place = find_place(rank, world_size, replicas=replicas, mesh=mesh)
        self.world = self._place.world
        meets = len(self._place.members) > 1 and (run_id is not None or self._place.told != "arguments")
        self._run_id, self._number, self._loops = run_id, next(_NUMBERS) if meets else 0, 0
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        epochs = None if epochs is None else whole_number("epochs", epochs, least=0)
        super().__init__(epochs=epochs, per_epoch=per_epoch, skip=frozenset(steps_to_skip(skip)))
        self._prefetch = whole_number("prefetch", prefetch, least=0)
        self._workers = whole_number("workers", workers, least=0)
        sources = [
            PlanSource(name=name, key=store.fingerprint, shard_sizes=store.shard_sizes)
            for name, store in zip(names, self.stores, strict=True)
        ]
        refuse_waiting(self.stores, settings)
        self.plan = Plan(sources, self._lengths, settings, targets=None if records else self._targets)
        if self.form.output == "torch" and not records:
            require_torch("output='torch', the default,", "pass output='numpy'")
        if self._workers:
            require_torch(f"workers={self._workers}", "leave it out: a thread reads ahead")
        self._users_collate = collate
        refuse_prepare(Loader)
        if per_epoch and settings.tail == "wrap":
            raise PlanError(
                "tail='wrap' runs on into the next epoch, and per_epoch ends with one; choose one of the two"
            )
        self.metrics = Metrics(names, settings.max_length)
        self.counters = Counters()  # of the blocks begun so far: what was packed, dropped, cut
        self._refuse_uneven()

    def __iter__(self) -> Iterator[Batch]:
        """Batches from the current position on; only what is handed over moves the position.

        Where the pass under way has ended, the next one begins, except right after a state was loaded: then the loop hands over what
        is left of the pass that the state was taken in, which may be nothing.
        """
        self._walks += 1
        walk, is_left = self._walks, self._begin()
        self._agree()
        if not is_left:
            _log.warning(_NOTHING_LEFT, self._cursor.step)
            return
        ahead = self._ahead()
        try:
            for batch, step in self.metrics.timed(ahead):
                if walk != self._walks:
                    raise PlanError(
                        "this iteration is over: a newer one was begun, or a state was loaded; use that one"
                    )
                self._hand_over(batch, step)
                yield batch
        finally:
            ahead.close()
        if not self._cursor.has_begun:
            raise self._nothing()

    def _nothing(self) -> PlanError:
        """Why a pass has no step."""
        if self.epochs == 0:
            return PlanError("the run has no step: epochs is 0")
        passes, cursor = self._passes, self._cursor
        epochs = passes.loop_end(cursor) or cursor.position.epoch + 1
        if self.plan.num_steps(self._rows_per_step, epochs=epochs, start=cursor.position):
            return PlanError(f"nothing is left: skip= names every step of the run ({len(self._skip):,} of them)")
        self.counters = self.plan.count(cursor.position.epoch, self._rows_per_step)
        dropped = self.counters.dropped_words()
        advice = "raise max_length, or choose overflow='split' or 'truncate'; " if "overlong" in dropped else ""
        if not dropped and (empty := self.counters.samples_dropped["empty"]):
            dropped = f"all {empty:,} samples are empty ({'; '.join(store.describe() for store in self.stores)})"
        return PlanError(f"the run has no step: {dropped or 'there are no samples'}; {advice}look at loader.counters")

    def _hand_over(self, batch: Batch, step: Step) -> None:
        self._cursor = Cursor(position=step.after, step=batch.step + 1, pass_step=self._cursor.pass_step)
        self.metrics.add(batch.rows, batch.trained)
        if step.counters is not NOTHING:  # a block begins
            before, self.counters = self.counters.dropped_words(), self.counters + step.counters
            if not before and self.counters.dropped_words():
                _log.warning("%s; loader.counters counts on, overflow= and max_length= decide", self._all_dropped(step))
        if step.after.epoch > step.epoch:
            _log.info("epoch %d ends at step %d: %s", step.epoch, batch.step + 1, self.counters)

    def _all_dropped(self, step: Step) -> str:
        """What this epoch drops and cuts; of a large one, or of a store that is being made, what the first blocks do."""
        is_whole = not any(isinstance(store, Store) and store.manifest is None for store in self.stores)
        if is_whole and sum(source.num_samples for source in self.plan.sources) <= _COUNTED_AT_ONCE:
            counts = self.plan.blocks.count_dropped(step.epoch)
            return f"{counts.dropped_words()} (of {counts.samples:,} samples in epoch {step.epoch})"
        return f"{self.counters.dropped_words()} (of the first {self.counters.samples:,} samples)"

    def _agree(self) -> None:
        """All ranks are about to do the same, or this is where it ends."""
        self._loops += 1
        cache = getattr(self.stores[0], "cache", None) or Cache()
        exchange = f"{self._number}-{self._loops}"
        if board := find_board(self._place, run_id=self._run_id, root=cache.root, exchange=exchange):
            sizes = {"batch_size": self.batch_size, "world_size": self.world.size, "epochs": self.epochs}
            mine = {**self.state_dict(), **sizes, "per_epoch": self.per_epoch, "skip": sorted(self._skip)}
            del mine["check"]
            agree(mine, rank=self._place.rank, others=board[1], board=board[0])

    def _ahead(self) -> Generator[tuple[Batch, Step], None, None]:
        if not self._workers:
            at_once = min(self._most_at_once(), steps_together(self._tokens_per_batch))
            depth = -(-self._prefetch // at_once)
            return one_by_one(read_ahead(self._chunks(self._cursor), depth))
        from penstock.loader.workers import make_in_processes  # here, so that torch is imported only where it is wanted

        return make_in_processes(self, workers=self._workers, ahead=self._prefetch)

    def _batches(self, cursor: Cursor, *, passed: int, every: int) -> Iterator[tuple[Batch, Step]]:
        return one_by_one(self._chunks(cursor, passed=passed, every=every))

    def _chunks(
        self, cursor: Cursor, *, passed: int = 0, every: int = 1
    ) -> Generator[list[tuple[Batch, Step]], None, None]:
        """Yield every `every`-th batch of the loop from `cursor` on, starting with the one after `passed` of them.

        Small batches are made several at once; the first of all alone, so that it comes at once.
        """
        position = cursor.position
        walk = self.plan.walk(start=position, num_rows=self._rows_per_step, epochs=self._passes.loop_end(cursor))
        walk = with_hints(walk, self.plan, self.stores, position)
        kept = ((number, step) for number, step in enumerate(walk, start=cursor.step) if number not in self._skip)
        collate, most = self._make_collate(), self._most_at_once()
        for chunk in growing(islice(kept, passed, None, every), most):
            mine = [rank_rows(step.rows, self.world) for _, step in chunk]
            turns = zip(mine, chunk, strict=True)
            for made in in_turn(collate, mine):
                batches = [self._batch(found, *turn) for found, turn in zip(made, turns, strict=False)]
                made.clear()  # the consumer's alone now: what it lets go of can be used again
                yield batches

    def _batch(self, made: Made, rows: Rows, turn: tuple[int, Step]) -> tuple[Batch, Step]:
        (arrays, trained), (number, step) = made, turn
        return Batch(self._as_wished(arrays), rows, self.stores, number, trained), step

    def _most_at_once(self) -> int:
        """Steps looked up together.  A store under way is asked for no more than the next one, and so is a function of the user's."""
        if isinstance(self.stores[0], RecordStore):  # a collate function is called step by step all the same
            return min(_MOST_STEPS, steps_at_once(self.stores, self.batch_size)) if self._prefetch else 1
        if self._is_under_way or self._users_collate is not None:
            return 1
        return max(1, min(_MOST_STEPS, _TOKENS_AT_ONCE // self._tokens_per_batch))

    @property
    def _tokens_per_batch(self) -> int:
        return self.batch_size * self.plan.settings.max_length

    def _as_wished(self, arrays: dict[str, Any]) -> dict[str, Any]:
        if self.form.output == "numpy" or not any(isinstance(value, np.ndarray) for value in arrays.values()):
            return arrays
        return _as_tensors()(arrays, pin_memory=self.form.pin_memory)

    def __getitem__(self, index: Any) -> Any:
        """A Loader is not a data set of samples; whoever takes it for one learns what to do."""
        raise TypeError(_NO_ITEMS)

    def __next__(self) -> Any:
        raise TypeError("a Loader is not an iterator: take one with batches = iter(loader), and call next(batches)")

    def as_dataset(self) -> Any:
        """A torch IterableDataset of the batches from here on, for a DataLoader (batch_size=None) of your own."""
        require_torch("as_dataset", "iterate over the Loader itself")
        from penstock.loader.workers import Steps

        return Steps(self)

    def explain(self, step: int) -> Provenance:
        """Where every span of all ranks' rows at `step` comes from, without running to it."""
        return homes(self.look_up(step).rows, self.stores)

    def _make_collate(self) -> Collator | UsersCollator | RecordCollator:
        """For one pass, and the thread that makes it: a collator writes where its batches before are no longer needed."""
        if isinstance(self.stores[0], RecordStore):
            return RecordCollator(self.stores, self._users_collate)
        made, users = Collator(self.stores, self.plan.settings, self.form), self._users_collate
        return made if users is None else UsersCollator(made, users)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "plan": (self.plan.sources, self.plan.settings)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        sources, settings = state["plan"]
        targets = None if isinstance(self.stores[0], RecordStore) else self._targets
        self.plan = Plan(sources, self._lengths, settings, targets=targets)  # its caches are made again

    def _lengths(self, source: int, samples: Ints) -> Ints:
        lengths: Ints = self.stores[source].lengths_of(samples)
        return lengths

    def _targets(self, source: int, samples: Ints, starts: Ints, stops: Ints) -> Bools:
        found: Bools = self.stores[source].has_target(samples, starts, stops)
        return found

    def __repr__(self) -> str:
        names = ", ".join(source.name for source in self.plan.sources)
        return (
            f"Loader({names}; rank {self.world.rank} of {self.world.size}, {self.batch_size} rows of "
            f"{self.plan.settings.max_length}, at step {self._cursor.step}, plan {self.plan.fingerprint[:8]})"
        )


@cache
def _as_tensors() -> Callable[..., dict[str, Any]]:
    require_torch("output='torch', the default,", "pass output='numpy'")
    from penstock.loader.torch import as_tensors  # here, so that torch is imported only where tensors are wanted

    return as_tensors


@cache
def _named() -> set[str]:
    """Parameters that the Loader itself names."""
    return set(signature(Loader).parameters) - {"stores", "options"}
