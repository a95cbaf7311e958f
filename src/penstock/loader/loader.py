"""Which batch comes next, and where are we?  Walks the plan, reads the stores, counts what was handed over."""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from inspect import signature
from itertools import count, islice
from typing import Any, NoReturn

import numpy as np

from penstock.cache import Cache
from penstock.errors import PlanError
from penstock.loader.agree import agree, find_board
from penstock.loader.batch import Batch, Provenance, homes
from penstock.loader.collate import Collator, Made, UsersCollator, in_turn, steps_together
from penstock.loader.form import NOT_INDEXED, BatchForm, require_torch
from penstock.loader.hints import with_hints
from penstock.loader.metrics import Metrics
from penstock.loader.prefetch import growing, one_by_one, read_ahead
from penstock.loader.records import RecordCollator, RecordStore, is_records
from penstock.loader.state import make_state, read_state
from penstock.loader.world import find_place
from penstock.plan.block import Rows
from penstock.plan.counters import NOTHING, Counters
from penstock.plan.plan import Plan, PlanSource, Position, Step
from penstock.plan.settings import PlanSettings, weights_as_text, whole_number
from penstock.plan.shard import rank_rows
from penstock.store import Store
from penstock.types import Ints

_log = logging.getLogger("penstock")

_TOKENS_AT_ONCE = 1 << 20  # of the steps that are looked up together, and
_MOST_STEPS = 32

_NUMBERS = count()  # of the loaders of this process: ranks make theirs in one order

Mixture = Mapping[str, Store | tuple[Store, float]]


class Loader:
    """Batches of one or several stores.  `batch_size` is rows per rank; a step is batch_size × world_size rows."""

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
        names, self.stores, weights = _mixture(stores)
        if records := isinstance(self.stores[0], RecordStore):
            max_length, options = 1, {"packing": "none", **options}
        settings, self.form = _settings(max_length, weights, options)
        self._place = find_place(rank, world_size, replicas=replicas, mesh=mesh)
        self.world = self._place.world
        self._run_id, self._number, self._passes = run_id, next(_NUMBERS), 0
        self.batch_size = whole_number("batch_size", batch_size, least=1)
        self.epochs = None if epochs is None else whole_number("epochs", epochs, least=0)
        self._prefetch = whole_number("prefetch", prefetch, least=0)
        self._workers = whole_number("workers", workers, least=0)
        sources = [
            PlanSource(name=name, key=store.fingerprint, shard_sizes=store.shard_sizes)
            for name, store in zip(names, self.stores, strict=True)
        ]
        self.plan = Plan(sources, self._lengths, settings)
        if self.form.output == "torch" and not records:
            require_torch("output='torch', the default,", "pass output='numpy'")
        if self._workers:
            require_torch(f"workers={self._workers}", "leave it out: a thread reads ahead")
        self._users_collate = collate
        if per_epoch and settings.tail == "wrap":
            raise PlanError(
                "tail='wrap' runs on into the next epoch, and per_epoch ends with one; choose one of the two"
            )
        self.per_epoch = per_epoch
        self._skip = frozenset(_steps(skip))
        self.metrics = Metrics(names, settings.max_length)
        self._position, self._step = Position(), 0
        self._start, self.first_step = Position(), 0  # where this loader began: at 0, or where a state was taken
        self._walks = 0  # iterations begun; an older one must not go on beside a newer
        self.counters = Counters()  # of the blocks begun so far: what was packed, dropped, cut
        self._refuse_uneven()

    @property
    def _rows_per_step(self) -> int:
        return self.batch_size * self.world.size

    def __getitem__(self, index: object, /) -> NoReturn:
        raise TypeError(NOT_INDEXED)

    def __len__(self) -> int:
        """Steps of the whole run; after a resume, those before it and those that are left with this batch and world size."""
        if self.epochs is None:
            raise TypeError("an endless loader (epochs=None) has no length")
        if self.per_epoch:  # steps of the epoch under way
            start = Position(epoch=min(self._position.epoch, max(self.epochs - 1, 0)))
            return self.plan.num_steps(self._rows_per_step, epochs=min(start.epoch + 1, self.epochs), start=start)
        left = self.plan.num_steps(self._rows_per_step, epochs=self.epochs, start=self._start)
        return self.first_step + left

    def __iter__(self) -> Iterator[Batch]:
        """Batches from the current position on; only what is handed over moves the position."""
        self._walks += 1
        walk, began = self._walks, self._step
        self._agree()
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
        if not self._step:
            raise self._nothing()
        if self._step == began:
            _log.warning(
                "nothing is left: the run ended at step %d; give the Loader more epochs, or seek(0)", self._step
            )

    def _nothing(self) -> PlanError:
        """Why a run has no step."""
        if self.epochs == 0:
            return PlanError("the run has no step: epochs is 0")
        epoch = self._position.epoch
        if self.epochs is not None and epoch >= self.epochs:
            return PlanError(
                f"epoch {epoch} is past the end of the run: epochs is {self.epochs}, counted from 0; give the Loader more epochs"
            )
        if self.plan.num_steps(self._rows_per_step, epochs=self.epochs or epoch + 1, start=self._position):
            return PlanError(f"nothing is left: skip= names every step of the run ({len(self._skip):,} of them)")
        self.counters = self.plan.count(0, self._rows_per_step)
        advice = "raise max_length, or choose overflow='split' or 'truncate'; " if "overlong" in self._dropped() else ""
        return PlanError(
            f"the run has no step: {self._dropped() or 'there are no samples'}; {advice}look at loader.counters"
        )

    def _hand_over(self, batch: Batch, step: Step) -> None:
        self._position, self._step = step.after, batch.step + 1
        self.metrics.add(batch.rows, batch.trained)
        if step.counters is not NOTHING:  # a block begins
            before, self.counters = self._dropped(), self.counters + step.counters
            if not before and (found := self._dropped()):
                so_far = f"{self.counters.samples_in:,} samples planned so far"
                _log.warning(
                    "%s among the %s; `penstock plan` counts a whole epoch; see overflow, max_length", found, so_far
                )
        if step.after.epoch > step.epoch:
            _log.info("epoch %d ends at step %d: %s", step.epoch, self._step, self.counters)

    def _dropped(self) -> str:
        """What the plan has dropped or cut, in words; samples that were empty in the store are the store's to report."""
        counts = self.counters
        parts = [f"{count:,} samples dropped: {reason}" for reason, count in counts.samples_dropped.items()]
        parts += [f"{counts.samples_truncated:,} samples cut"] if counts.samples_truncated else []
        return ", ".join(part for part in parts if not part.endswith("empty"))

    def _agree(self) -> None:
        """All ranks are about to do the same, or this is where it ends."""
        self._passes += 1
        cache = getattr(self.stores[0], "cache", None) or Cache()
        exchange = f"{self._number}-{self._passes}"
        if board := find_board(self._place, run_id=self._run_id, root=cache.root, exchange=exchange):
            sizes = {"batch_size": self.batch_size, "world_size": self.world.size, "epochs": self.epochs}
            mine = {**self.state_dict(), **sizes, "per_epoch": self.per_epoch, "skip": sorted(self._skip)}
            del mine["check"]
            agree(mine, rank=self._place.rank, others=board[1], board=board[0])

    def _ahead(self) -> Generator[tuple[Batch, Step], None, None]:
        if not self._workers:
            at_once = min(self._most_at_once(), steps_together(self._tokens_per_batch))
            depth = -(-self._prefetch // at_once)
            return one_by_one(read_ahead(self._chunks(self._position, self._step), depth))
        from penstock.loader.workers import make_in_processes  # here, so that torch is imported only where it is wanted

        return make_in_processes(self, workers=self._workers, ahead=self._prefetch)

    def _batches(self, position: Position, first: int, *, passed: int, every: int) -> Iterator[tuple[Batch, Step]]:
        return one_by_one(self._chunks(position, first, passed=passed, every=every))

    def _chunks(
        self, position: Position, first: int, *, passed: int = 0, every: int = 1
    ) -> Generator[list[tuple[Batch, Step]], None, None]:
        """Batches from `position`, step `first`, on: those after `passed` of them, then of `every` so many the last.

        Small ones are made several at once; the first of all alone, so that it comes at once.
        """
        epochs = position.epoch + 1 if self.per_epoch else self.epochs
        epochs = epochs if self.epochs is None or epochs is None else min(epochs, self.epochs)
        walk = self.plan.walk(start=position, num_rows=self._rows_per_step, epochs=epochs)
        walk = with_hints(walk, self.plan, self.stores, position)
        kept = ((number, step) for number, step in enumerate(walk, start=first) if number not in self._skip)
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
        under_way = any(not isinstance(store, Store) or store.manifest is None for store in self.stores)
        if under_way or self._users_collate is not None:
            return 1
        return max(1, min(_MOST_STEPS, _TOKENS_AT_ONCE // self._tokens_per_batch))

    @property
    def _tokens_per_batch(self) -> int:
        return self.batch_size * self.plan.settings.max_length

    def _as_wished(self, arrays: dict[str, Any]) -> dict[str, Any]:
        if self.form.output == "numpy" or not any(isinstance(value, np.ndarray) for value in arrays.values()):
            return arrays
        return _as_tensors()(arrays, pin_memory=self.form.pin_memory)

    def as_dataset(self) -> Any:
        """A torch IterableDataset of the batches from here on, for a DataLoader (batch_size=None) of your own."""
        require_torch("as_dataset", "iterate over the Loader itself")
        from penstock.loader.workers import Steps

        return Steps(self)

    def state_dict(self) -> dict[str, Any]:
        """How far all ranks together have come; small, plain JSON, the same on every rank."""
        return make_state(self.plan, self._position, self._step)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where `state` was taken; the next iteration goes on from there, under whatever ranks and batch size."""
        self._position, self._step = read_state(state, self.plan)
        self._start, self.first_step = self._position, self._step
        self._walks += 1
        self._refuse_uneven()

    def seek(self, step: int) -> None:
        """Go to step `step` of the run, counted with this loader's batch and world size; the next iteration starts there."""
        step = whole_number("step", step, least=0)
        if step < self.first_step:
            raise PlanError(f"cannot seek to step {step}: this loader resumed at step {self.first_step}")
        self._position = self.plan.seek(
            step - self.first_step, self._rows_per_step, epochs=self.epochs, start=self._start
        )
        self._step = step
        self._walks += 1

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch; a loader in the middle of it stays where it is."""
        epoch = whole_number("epoch", epoch, least=0)
        if self._position.epoch != epoch:
            self._position = Position(epoch=epoch, rows=self._position.rows)
            self._walks += 1

    def explain(self, step: int) -> Provenance:
        """Where every span of all ranks' rows at `step` comes from, without running to it."""
        step = whole_number("step", step, least=0)
        if step < self.first_step:
            raise PlanError(
                f"step {step} lies before step {self.first_step}, where this loader resumed, and steps may have had another "
                f"size then; ask a loader that starts where that run started"
            )
        position = self.plan.seek(step - self.first_step, self._rows_per_step, epochs=self.epochs, start=self._start)
        found = self.plan.step(position, self._rows_per_step, epochs=self.epochs)
        if found is None:
            raise PlanError(f"step {step} is past the end: the run has {len(self)} steps, counted from 0")
        return homes(found.rows, self.stores)

    def _refuse_uneven(self) -> None:
        """Under tail="error", say now what would fail at the epoch's end."""
        if self.plan.settings.tail == "error" and self.epochs is not None:
            self.plan.num_steps(self._rows_per_step, epochs=self.epochs, start=self._start)

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
        self.plan = Plan(sources, self._lengths, settings)  # its caches stay behind, and are made again

    def _lengths(self, source: int, samples: Ints) -> Ints:
        lengths: Ints = self.stores[source].lengths_of(samples)
        return lengths

    def __repr__(self) -> str:
        names = ", ".join(source.name for source in self.plan.sources)
        return (
            f"Loader({names}; rank {self.world.rank} of {self.world.size}, {self.batch_size} rows of "
            f"{self.plan.settings.max_length}, at step {self._step}, plan {self.plan.fingerprint[:8]})"
        )


@cache
def _as_tensors() -> Callable[..., dict[str, Any]]:
    require_torch("output='torch', the default,", "pass output='numpy'")
    from penstock.loader.torch import as_tensors  # here, so that torch is imported only where tensors are wanted

    return as_tensors


_NAMED = set(signature(Loader).parameters) - {"stores", "options"}


def _steps(skip: Any) -> list[int]:
    """Steps to pass over; what is no step would be passed over in silence."""
    if isinstance(skip, str) or not isinstance(skip, Iterable):
        raise PlanError(f"skip is {skip!r}, expected steps, as skip=[41203] or skip=range(41200, 41210)")
    return [whole_number("a step in skip", step, least=0) for step in skip]


def _settings(max_length: int, weights: list[float] | None, options: dict[str, Any]) -> tuple[PlanSettings, BatchForm]:
    """The options that set the order, and those that set the form; one that sets neither is refused."""
    order = {field.name for field in fields(PlanSettings)} - {"max_length", "weights"}
    form = {field.name for field in fields(BatchForm)}
    for name in options:
        if name == "weights":
            raise PlanError("weights go with their stores: Loader({'name': (store, weight), …})")
        if name not in order | form:
            known = {*order, *form, *_NAMED}
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(known))}"
            raise PlanError(f"Loader has no option {name!r}; {hint}")
    settings = PlanSettings(
        max_length=max_length,
        weights=weights_as_text(weights),
        **{name: value for name, value in options.items() if name in order},
    )
    return settings, BatchForm(**{name: value for name, value in options.items() if name in form})


def _mixture(stores: Any) -> tuple[list[str], list[Any], list[float] | None]:
    """(names, stores, weights) of what was given: one store, a list of them, or a dict with or without weights."""
    weights: list[float] | None = None
    found: list[Any]
    if isinstance(stores, Store) or is_records(stores):
        names, found = ["data"], [stores]
    elif isinstance(stores, Mapping):
        names, found = [str(name) for name in stores], list(stores.values())
        weighted = [isinstance(value, tuple) and len(value) == 2 for value in found]
        if any(weighted) and not all(weighted):
            raise PlanError("a mixture needs a weight for all of its stores or for none")
        if any(weighted):
            found, weights = [store for store, _ in found], [weight for _, weight in found]
    else:
        found = list(stores) if isinstance(stores, Sequence) and not isinstance(stores, str) else [stores]
        names = [str(number) for number in range(len(found))]
    if found and all(is_records(value) for value in found):
        found = [RecordStore(source) for source in found]
    for value in found:
        if not isinstance(value, Store | RecordStore):
            raise PlanError(
                f"found a {type(value).__name__}, expected a Store from penstock.prepare, a list of them, "
                f"or a dict like {{'name': (store, weight)}}"
            )
    if not found:
        raise PlanError("no stores given; there is nothing to load")
    return names, found, weights
