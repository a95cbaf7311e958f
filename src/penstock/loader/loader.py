"""The Loader: follows the plan, reads the stores, delivers batches and counts them, pass after pass."""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import count, islice
from typing import Any

import numpy as np

from penstock.cache import Cache
from penstock.errors import PlanError
from penstock.extras.media.stage import MediaStage, open_media
from penstock.extras.remote.mirror import (
    Traffic,
    check_window,
    fit_window,
    is_mirrored,
    open_mirror,
    saved_window,
    steps_at_once,
)
from penstock.extras.trainers.guards import guard_trainers
from penstock.extras.trainers.sequences import (
    PAIRS,
    TOKENS,
    SequenceCollator,
    batch_kind,
    can_be_cut,
    check_sequences,
    check_tails,
)
from penstock.loader.batch import Batch, Metrics, Provenance, provenance
from penstock.loader.changes import Changing, make_plan
from penstock.loader.collate import call_users, in_turn, steps_together
from penstock.loader.columns import batch_columns
from penstock.loader.consistency import agree, find_board
from penstock.loader.layout import (
    LoaderSettings,
    as_jax,
    as_tensors,
    check_output,
    require_torch,
    split_options,
)
from penstock.loader.losses import refuse_losses
from penstock.loader.map_dataset import MapDataset, RowSampler
from penstock.loader.prefetch import growing, one_by_one, read_ahead, with_hints, without_skipped
from penstock.loader.records import idle_ranks, read_mixture
from penstock.loader.state import Cursor
from penstock.loader.status import count_rest, open_status, why_no_steps
from penstock.loader.stream import Stream
from penstock.loader.world import RankInfo, check_rank, find_rank
from penstock.plan.plan import NumberedStep
from penstock.plan.ranks import rank_shares
from penstock.plan.rows import Rows
from penstock.plan.settings import BALANCE, PlanSettings, tabled
from penstock.settings import OF_LOADER, accepts_old_names
from penstock.store import Store
from penstock.types import WEIGHTS

_log = logging.getLogger("penstock")

_MOST_STEPS = 32  # looked up together


class _Default(int):
    """The default of a parameter, told apart from the same number as an argument."""


_ONE_EPOCH = _Default(1)

_NUMBERS = (
    count()
)  # of this process's loaders that compare plans: all ranks make these in one order

_PUBLIC = {
    *(
        "as_dataset",
        "as_map_dataset",
        "batch_size",
        "change_mixture",
        "counters",
        "epochs",
        "explain",
        "finished",
        "form",
    ),
    *(
        "journal",
        "kind",
        "load_journal",
        "load_state_dict",
        "metrics",
        "per_epoch",
        "plan",
        "restart",
        "seek",
    ),
    *("sequence_length", "set_epoch", "state_dict", "steps_left", "stores", "world"),
}
_NO_ITEMS = (
    "a Loader delivers batches in order and has no items: iterate over it; for the Trainers use LoaderTrainer(loader=loader) of "
    "penstock.extras.trainers.hf_trainer or LoaderSFTTrainer(loader=loader) of penstock.extras.trainers.trl; for your own DataLoader "
    "DataLoader(loader.as_dataset(), batch_size=None)"
)


class Loader(Changing):
    """Batches of one or several stores.  `batch_size` is rows per rank; a step is batch_size × world_size rows.

    One loop over a loader is a pass: `epochs` epochs.  A loop that was broken off continues with the next loop; a loop over a loader that
    has finished its pass is the next pass.
    """

    @accepts_old_names(*OF_LOADER)
    def __init__(
        self,
        stores: Store | Mapping[str, Store | tuple[Store, float]] | Sequence[Store],
        *,
        batch_size: int,
        max_length: int = 4096,
        epochs: int | None = _ONE_EPOCH,
        rank: int | None = None,
        world_size: int | None = None,
        model_parallel_size: int = 1,
        mesh: Any = None,
        run_id: str | None = None,
        prefetch: int = 2,
        media_threads: int = 4,
        media_bytes: int = 1 << 30,
        mirror_bytes: int | None = None,
        max_dropped: float = 0.5,
        per_epoch: bool = False,
        skip_steps: Iterable[int] = (),
        schedule: str | None = None,
        interpolate: bool = False,
        collate: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        """LoaderSettings documents these parameters; `options` set the order (PlanSettings) and the layout of a batch (BatchForm)."""
        asked = LoaderSettings(
            batch_size=batch_size,
            epochs=epochs,
            prefetch=prefetch,
            media_threads=media_threads,
            media_bytes=media_bytes,
            mirror_bytes=mirror_bytes,
            max_dropped=max_dropped,
            per_epoch=per_epoch,
            skip_steps=skip_steps,
            schedule=schedule,
            interpolate=interpolate,
        )
        super().__init__(
            epochs=asked.epochs, per_epoch=asked.per_epoch, skip=frozenset(asked.skip_steps)
        )
        self.batch_size = asked.batch_size
        # whether these were left at their defaults; a trainer has defaults of its own, and an evaluation should drop nothing
        self.has_default_epochs = epochs is _ONE_EPOCH
        self.has_default_overflow = "on_overlong" not in options
        self._prefetch = asked.prefetch
        self._users_collate = collate
        names, self.stores, given, self._collator = read_mixture(stores)
        tables = [] if given is None else tabled(given, ramps=asked.interpolate)
        if not self.has_tokens:  # a record is a sample of length 1
            max_length = 1
            options = {"packing": "none", **options}
        settings, self.form = split_options(tables[0][1] if tables else None, max_length, options)
        self._refuse(settings)
        self._columns = batch_columns(names, self.stores, settings)
        self.kind = batch_kind(
            self._columns
        )  # what samples are: tokens, pairs, judged answers, prompts, judged steps
        if self.kind != TOKENS:
            check_sequences(self.kind, self._columns, settings, self.form, asked.batch_size)
            self._collator = SequenceCollator
        self._asked = asked
        self._is_auto = settings.shuffle_window == "auto"
        self._open_media(names, self.stores)
        self._join_ranks(
            find_rank(rank, world_size, model_parallel_size=model_parallel_size, mesh=mesh), run_id
        )
        fitting = fit_window(settings, self.stores, asked.mirror_bytes, self._rows_per_step)
        self.plan = self._tabled_plan(names, fitting, tables, asked.schedule)
        self.metrics = Metrics(names, settings.max_length, Traffic(self.stores))
        refuse_losses(names, self.stores, settings, asked.max_dropped)
        self._refuse_uneven()
        self._status = open_status(
            self.stores[0].cache, run_id, self.rank_info.rank, self.plan.fingerprint
        )

    def _join_ranks(self, info: RankInfo, run_id: str | None) -> None:
        """Remember which rank this is, and how it compares its plan with other ranks."""
        guard_trainers()
        self.rank_info = info
        self.world = info.world
        compares = len(info.members) > 1 and (run_id is not None or info.origin != "arguments")
        self._run_id = run_id
        self._number = next(_NUMBERS) if compares else 0
        self._loops = 0

    def _refuse(self, settings: PlanSettings) -> None:
        """Refuse options that contradict each other, or that need a missing package or a finished store."""
        if self.has_tokens:
            check_output(self.form)
        if self.per_epoch and settings.last_step == "wrap":
            raise PlanError(
                "last_step='wrap' continues into the next epoch, but per_epoch stops at the end of each epoch; choose one"
            )
        incomplete = [store for store in self.stores if store.manifest is None]
        if (
            incomplete
            and not settings.is_local
            and getattr(incomplete[0].source, "is_stream", False)
        ):
            raise PlanError(
                f"{incomplete[0]!r}: "
                f"shuffle_window={settings.shuffle_window!r} shuffles the whole stream together, so the first batch would need its "
                f"end; pass shuffle_window=16 to shuffle 16 shards at a time, or shuffle=False, or read and make all of it first: "
                f"store.wait()"
            )
        if incomplete and not settings.is_local:
            raise PlanError(
                f"{incomplete[0]!r} is still being made in the background, and "
                f"shuffle_window={settings.shuffle_window!r} shuffles all of its "
                f"{incomplete[0].num_shards:,} shards together, so the first batch would need every one of them; "
                f"pass shuffle_window=16 to "
                f"shuffle 16 shards at a time, or shuffle=False, or wait for the whole store: store.wait()",
                code="background_needs_a_window",
            )

    @property
    def has_tokens(self) -> bool:
        """Whether batches hold tokens, not plain records."""
        return self._collator.has_tokens

    @property
    def has_weights(self) -> bool:
        """Whether batches hold the weights of tokens."""
        return WEIGHTS in self._columns

    @property
    def can_be_cut(self) -> bool:
        """Whether overlong samples may be cut: tokens may be, several sequences and lists may not."""
        return can_be_cut(self._columns)

    @property
    def dealing(self) -> dict[str, Any]:
        """The values that decide which rows of a step each rank gets."""
        balance = {name: getattr(self.plan.settings, name) for name in BALANCE}
        return {"batch_size": self.batch_size, "world_size": self.world.size, **balance}

    @property
    def sequence_length(self) -> int:
        """Tokens that a sequence may have; a row of the plan holds both sequences of a pair."""
        return self.plan.settings.max_length // (2 if self.kind == PAIRS else 1)

    def explain(self, step: int) -> Provenance:
        """Where every span of all ranks' rows at `step` comes from, without running to it."""
        return provenance(self.look_up(step).rows, self.stores)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches after the current position; only delivered batches move the position.

        If the current pass has ended, the next one begins, except right after a state was loaded: then the loop delivers what is left
        of the pass that the state was taken in, which may be nothing.
        """
        check_rank(self.rank_info)
        self._iterations += 1
        iteration = self._iterations
        is_left = self._begin()
        self._compare_ranks()
        if not is_left:
            _log.warning(
                "no batch is left: the loaded state was saved at the end of a pass, at step %d; iterate again for the next pass, or "
                "give the Loader more epochs",
                self._cursor.step,
            )
            return
        changes = -1
        while (
            changes != self._changes
        ):  # again after a change of mixture: what was made ahead is of the old one
            if changes >= 0:
                self._compare_ranks()
            changes = self._changes
            ahead = self._ahead()
            try:
                for batch, numbered in self.metrics.timed(ahead):
                    if iteration != self._iterations:
                        raise PlanError(
                            "this iteration has ended: you started a newer one or loaded a state; use the newer iterator",
                            code="iteration_ended",
                        )
                    self._deliver(batch, numbered)
                    yield batch.delivered
                    if changes != self._changes:
                        break
            finally:
                ahead.close()
        if not self._cursor.has_begun:
            dropped, error = why_no_steps(self, can_cut=can_be_cut(self._columns))
            self._counting.add(dropped, self.plan)
            raise error
        self._count_rest()
        self._write_status(finished=True)

    def _deliver(self, batch: Batch, numbered: NumberedStep) -> None:
        self._cursor = Cursor(
            position=numbered.step.after,
            step=numbered.number + 1,
            pass_step=self._cursor.pass_step,
        )
        self._is_open = True
        self.metrics.add(batch.share, batch.trained)
        self._counting.step(numbered, self.plan, is_complete=not self._is_incomplete)
        if self._status is not None and self._status.is_due:
            self._write_status()

    def _write_status(self, *, finished: bool = False) -> None:
        """Write where the run is, for penstock view."""
        if self._status is not None:
            sizes = {
                "world_size": self.world.size,
                "batch_size": self.batch_size,
                "epochs": self.epochs,
            }
            here = {
                "step": self._cursor.step,
                "epoch": self._cursor.position.epoch,
                "finished": finished,
            }
            self._status.write({**here, **sizes, "metrics": self.metrics.as_dict()})

    def _count_rest(self) -> None:
        """Count samples after the last step of the loop, which no batch holds."""
        self._is_open = False
        self._counting.add(count_rest(self), self.plan)

    def _compare_ranks(self) -> None:
        """Raise if the ranks are about to do different things."""
        self._loops += 1
        cache = self.stores[0].cache or Cache()
        exchange = f"{self._number}-{self._loops}"
        if board := find_board(
            self.rank_info, run_id=self._run_id, root=cache.root, exchange=exchange
        ):
            loops = {
                "epochs": self.epochs,
                "per_epoch": self.per_epoch,
                "skip_steps": sorted(self._skip),
                "check": "",
            }
            mine = {**self.state_dict(), **self.dealing, **loops}
            agree(mine, rank=self.rank_info.rank, others=board[1], board=board[0])

    def _ahead(self) -> Generator[tuple[Batch, NumberedStep], None, None]:
        tokens = self.batch_size * self.plan.settings.max_length
        depth = -(-self._prefetch // min(self._most_at_once(), steps_together(tokens)))
        made = one_by_one(read_ahead(self._chunks(self._cursor), depth))
        return self._with_media(made, self._prefetch)

    def _chunks(
        self, cursor: Cursor, *, passed: int = 0, every: int = 1
    ) -> Generator[list[tuple[Batch, NumberedStep]], None, None]:
        """Yield every `every`-th batch of the loop from `cursor` on, starting with the one after `passed` of them.

        Small batches are made several at once; the very first is made alone, so that it comes early.
        """
        start = cursor.position
        end = self.loop_end(cursor)
        steps = self.plan.steps(start=start, num_rows=self._rows_per_step, epochs=end)
        with open_mirror(self.plan, self.stores, start, end) or nullcontext() as mirror:
            hinted = with_hints(steps, self.plan, self.stores, start, mirror)
            kept = without_skipped(hinted, first=cursor.step, skip=self._skip)
            collate = self.make_collator()
            converted = self.convert if self.media is None else dict
            for chunk in growing(islice(kept, passed, None, every), self._most_at_once()):
                rows = [numbered.step.rows for numbered in chunk]
                mine = rank_shares(rows, self.world, self.plan.settings)
                turns = zip(mine, chunk, strict=True)
                for made in in_turn(collate, [share.rows for share in mine]):
                    batches = [
                        (
                            Batch(converted(arrays), share, self.stores, numbered.number, trained),
                            numbered,
                        )
                        for (arrays, trained), (share, numbered) in zip(made, turns, strict=False)
                    ]
                    made.clear()  # keep no reference: memory that the consumer releases can be used again
                    yield batches
                if mirror is not None:
                    mirror.release()

    def made_by_worker(
        self, cursor: Cursor, *, passed: int, every: int
    ) -> Generator[tuple[Batch, NumberedStep], None, None]:
        """Yield the batches that one of `every` workers makes, one after another."""
        return self._with_media(one_by_one(self._chunks(cursor, passed=passed, every=every)), 1)

    def _with_media(
        self, made: Generator[tuple[Batch, NumberedStep], None, None], steps: int
    ) -> Generator[tuple[Batch, NumberedStep], None, None]:
        """Decode the media of `steps` batches ahead, if the stores have any; only then are arrays complete and converted."""
        if self.media is None:
            return made
        users = self._users_collate

        def finish(arrays: dict[str, Any], rows: Rows, trained: int) -> tuple[dict[str, Any], int]:
            arrays, trained = (
                (arrays, trained) if users is None else call_users(users, arrays, trained, rows)
            )
            return self.convert(arrays), trained

        return self.media.ahead(made, steps=steps, finish=finish)

    def _most_at_once(self) -> int:
        """Return how many steps are looked up together: of a store that is being made one, of one in a bucket a small part of a block."""
        settings = self.plan.settings
        most = self._collator.steps_at_once(
            self.stores, self.batch_size, settings.max_length, self._users_collate, self._prefetch
        )
        if any(map(is_mirrored, self.stores)):
            most = min(most, steps_at_once(settings, self._rows_per_step))
        return 1 if self._is_incomplete else max(1, min(_MOST_STEPS, most))

    def make_collator(self) -> Any:
        """Return what makes arrays of rows, for one thread and one pass: it reuses the memory of its earlier batches."""
        users = self._users_collate if self.media is None else None
        return self._collator(self.stores, self.plan.settings, self.form, users, self._columns)

    def convert(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """Return arrays in the form that `output` names."""
        if self.form.output == "numpy" or not any(
            isinstance(value, np.ndarray) for value in arrays.values()
        ):  # also what a user's collate made that is not a dict
            return arrays
        if self.form.output == "jax":
            return as_jax(arrays, fixed_borders=self.form.max_segments is not None)
        return as_tensors(arrays, pin_memory=self.form.pin_memory)

    def __getitem__(self, index: Any) -> Any:
        """Refuse: a Loader is not a dataset of samples."""
        raise TypeError(_NO_ITEMS)

    def __next__(self) -> Any:
        raise TypeError(
            "a Loader is not an iterator: take one with batches = loader.stream(), and call next(batches)"
        )

    def stream(self) -> Stream:
        """Return an iterator of the remaining batches with `next` and this loader's state, for trainers that pull batches."""
        return Stream(self)

    def as_dataset(self) -> Any:
        """Return a torch IterableDataset of the remaining batches, for your own DataLoader (batch_size=None)."""
        require_torch("as_dataset", "iterate over the Loader itself")
        check_rank(self.rank_info)
        guard_trainers()  # those that were imported after this Loader was made
        from penstock.loader.dataset import Steps

        self._dataset = "as_dataset"
        return Steps(self)

    def as_map_dataset(self) -> tuple[MapDataset, RowSampler]:
        """Return the rows by number, and a sampler of this rank's rows with a state, for trainers that index a dataset."""
        check_rank(self.rank_info)
        guard_trainers()  # those that were imported after this Loader was made
        self._dataset = "as_map_dataset"
        return MapDataset(self), RowSampler(self)

    def _open_media(self, names: Sequence[str], stores: Sequence[Any]) -> None:
        self.media: MediaStage | None = open_media(names, stores, self._asked, self.form)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "plan": (self.plan.sources, self.plan.settings, self.plan.mixtures, self.plan.start),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        sources, *plan = state["plan"]
        self.plan = make_plan(
            [source.name for source in sources], self.stores, *plan
        )  # its caches are made again

    def _refuse_uneven(self) -> None:
        super()._refuse_uneven()
        anchor = self._anchors[-1]
        end = self.pass_end(self._anchors[-1])
        sizes = {"per_step": self._rows_per_step, "world_size": self.world.size}
        check_tails(
            self.kind, self.plan, anchor.position, end, is_incomplete=self._is_incomplete, **sizes
        )
        if self.has_tokens:
            return
        if idle := idle_ranks(self.stores, self.plan.settings, **sizes):
            _log.warning(
                "the last step of an epoch has records for %d of %d ranks: the others get an empty batch, so that all ranks take the "
                "same number of steps; test `if batch:` in your loop, or choose last_step='drop' or last_step='repeat'",
                self.world.size - idle,
                self.world.size,
            )

    def load_state_dict(self, state: dict[str, Any], *, changes: bool = False) -> None:
        """Go to where a state was taken, with any number of ranks and any batch size.

        Where shuffle_window="auto" was chosen by the size of a mirror, the run keeps the window that it began with.
        """
        window = saved_window(state, self.stores) if self._is_auto else None
        with self._all_or_nothing():
            if window not in (None, self.plan.settings.shuffle_window):
                self.plan = self.plan.changed(shuffle_window=window)
                check_window(self.plan.settings, self.stores, self._rows_per_step)
            super().load_state_dict(state, changes=changes)

    def __dir__(self) -> list[str]:
        """The public names, for completion; what other rooms use is left out."""
        return [name for name in super().__dir__() if name[:2] == "__" or name in _PUBLIC]

    def __repr__(self) -> str:
        names = ", ".join(source.name for source in self.plan.sources)
        return (
            f"Loader({names}; rank {self.world.rank} of {self.world.size}, {self.batch_size} rows of "
            f"{self.plan.settings.max_length}, at step {self._cursor.step}, plan {self.plan.fingerprint[:8]})"
        )
