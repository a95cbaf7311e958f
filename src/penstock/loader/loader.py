"""The Loader: batches of a run, pass after pass."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, Unpack

from penstock.errors import PlanError
from penstock.loader.batch import Batch, Metrics, Provenance, provenance
from penstock.loader.collate import steps_together
from penstock.loader.column_stages import OpenStage
from penstock.loader.consistency import RanksAgree
from penstock.loader.counting import Counting
from penstock.loader.kind import BatchMaker, BatchSettings, find_kind
from penstock.loader.layout import LoaderSettings, check_layout, require_torch, split_options
from penstock.loader.losses import refuse_losses
from penstock.loader.map_dataset import MapDataset, RowSampler
from penstock.loader.observe import Observer, observers_of_plugins
from penstock.loader.pipeline import Delivery, Pipeline
from penstock.loader.plans import plan_of_tables
from penstock.loader.plugged import Plugged, plug_in
from penstock.loader.run import CheckedMixture, Loop, Phase, Run
from penstock.loader.stages import Stage, output_stage, users_stage
from penstock.loader.state import window_of_state
from penstock.loader.status import StatusObserver
from penstock.loader.stream import Stream
from penstock.loader.world import check_rank, find_rank
from penstock.plan.counters import Counters
from penstock.plan.plan import Plan, Step
from penstock.plan.settings import BALANCE, PlanSettings, tabled
from penstock.settings import OF_LOADER, taken, takes, with_plugin_options
from penstock.sources.concat import as_rows
from penstock.store import Store
from penstock.store.records import read_stores
from penstock.store.supply import Supply
from penstock.types import WEIGHTS, Column, World

if TYPE_CHECKING:
    from penstock.options import LoaderOptions

_log = logging.getLogger("penstock")

_MOST_STEPS = 32  # looked up together


_NO_ITEMS = (
    "a Loader delivers batches in order and has no items: iterate over it; for the Trainers use LoaderTrainer(loader=loader) of "
    "penstock.extras.trainers.hf_trainer or LoaderSFTTrainer(loader=loader) of penstock.extras.trainers.trl; for your own DataLoader "
    "DataLoader(loader.as_dataset(), batch_size=None)"
)


class Loader:
    """Batches of one or several stores.  `batch_size` is rows per rank; a step is batch_size × world_size rows.

    One loop over a loader is a pass: `epochs` epochs.  A loop that was broken off continues with the next loop; a loop over a loader that
    has finished its pass is the next pass.
    """

    @takes("LoaderOptions", old_names=OF_LOADER)
    def __init__(
        self,
        stores: Store | Mapping[str, Store | tuple[Store, float]] | Sequence[Store],
        **options: Unpack["LoaderOptions"],
    ) -> None:
        """Load batches of a store, of stores by name, or of stores by name with weights: {"chat": (chat, 0.7), "math": (math, 0.3)}."""
        of_batches = with_plugin_options({**options})
        if "batch_size" not in of_batches:
            raise TypeError("Loader needs batch_size=, the number of rows per rank and step")
        # whether these were left at their defaults; a trainer has defaults of its own, and an evaluation should drop nothing
        self.has_default_epochs = "epochs" not in of_batches
        self.has_default_on_overlong = "on_overlong" not in of_batches
        self.settings = settings = LoaderSettings(**taken(of_batches, LoaderSettings))
        given = read_stores(stores, as_rows)
        self.sample_kind = find_kind(given.stores, is_records=given.is_records)
        tables = [] if given.weights is None else tabled(given.weights, ramps=settings.interpolate)
        if not self.has_tokens:  # a record is a sample of length 1
            of_batches = {"packing": "none", **of_batches, "max_length": 1}
        weights = tables[0][1] if tables else None
        order, self.form = split_options(weights, of_batches)
        check_layout(order, self.form, has_tokens=self.has_tokens, per_epoch=settings.per_epoch)
        self._traffic_before: dict[str, float] = {}
        self._plugged = self._plug_in(given.names, given.stores, order)
        self.rank_info = find_rank(
            settings.rank,
            settings.world_size,
            model_parallel_size=settings.model_parallel_size,
            mesh=settings.mesh,
        )
        self._has_auto_window = order.shuffle_window == "auto"
        self._dataset = ""  # the method that returned this loader's rows as a dataset, which a change would not reach
        rows_per_step = settings.batch_size * self.world.size
        for supply in self.supplies:
            order = supply.check(order, rows_per_step=rows_per_step)
        plan = plan_of_tables(
            given.names,
            given.stores,
            order,
            tables,
            schedule=settings.schedule,
            rows_per_step=rows_per_step,
        )
        loop = Loop(
            epochs=settings.epochs,
            per_epoch=settings.per_epoch,
            skipped=frozenset(settings.skip_steps),
        )
        self.run = Run(
            plan=plan, stores=tuple(given.stores), rows_per_step=rows_per_step, loop=loop
        )
        refuse_losses(given.names, given.stores, order, settings.max_dropped)
        self._refuse_tail(self.run)
        self._metrics = Metrics(given.names, order.max_length, self._traffic)
        self._counting = Counting()
        self.observers: list[Observer] = [
            *observers_of_plugins(),
            RanksAgree(),
            self._metrics,
            self._counting,
            StatusObserver(),
        ]
        self._attach()

    def _attach(self) -> None:
        for observer in self.observers:
            observer.attach(self)

    # What plugs in

    def _plug_in(self, names: Sequence[str], stores: Sequence[Any], order: PlanSettings) -> Plugged:
        settings = {**asdict(self.form), **vars_of(self.settings)}
        plugged = plug_in(self.sample_kind, names, stores, order, settings)
        self.sample_kind.check(self._batch_settings(plugged, order))
        return plugged

    def _batch_settings(self, plugged: Plugged, order: PlanSettings) -> BatchSettings:
        return BatchSettings(
            order=order,
            form=self.form,
            columns=plugged.columns,
            batch_size=self.batch_size,
            prefetch=self.settings.prefetch,
            collate=self.collate,
        )

    def maker(self) -> BatchMaker:
        """Return what makes arrays of rows, for one thread: it reuses the memory of its earlier batches."""
        settings = self._batch_settings(self._plugged, self.plan.settings)
        return self.sample_kind.maker(self.stores, settings)

    def _pipeline(self) -> Pipeline:
        settings = self._batch_settings(self._plugged, self.plan.settings)
        limits = [
            supply.steps_at_once(settings.order, self.run.rows_per_step) for supply in self.supplies
        ]
        kinds_limit = self.sample_kind.steps_at_once(self.stores, settings)
        at_once = min(_MOST_STEPS, kinds_limit, *(limit for limit in limits if limit is not None))
        stages: list[Stage] = [*self.stages.values()]
        if self.collate is not None and self.has_tokens:
            stages.append(users_stage(self.collate))
        return Pipeline(
            world=self.world,
            open_maker=self.maker,
            stages=[*stages, output_stage(self.form)],
            supplies=self.supplies,
            at_once=max(1, at_once),
            together=max(
                1, min(at_once, steps_together(self.batch_size * settings.order.max_length))
            ),
        )

    def _traffic(self) -> dict[str, float]:
        """Return what was read of other machines since this loader was made."""
        traffic = dict(self._traffic_before)
        for supply in self.supplies:
            for name, number in supply.traffic().items():
                traffic[name] = traffic.get(name, 0) + number
        return traffic

    # Batches

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches after the current position; only delivered batches move the position.

        If the current pass has ended, the next one begins, except right after a state was loaded: then the loop delivers what is left
        of the pass that the state was taken in, which may be nothing.
        """
        check_rank(self.rank_info)
        before = self.run
        begun = before.begin_loop()
        if begun is not None and before.phase is Phase.OPEN and begun.cursor != before.cursor:
            self._tell_end(before)  # the last loop was broken off at its last step
        if begun is not None and begun.anchors != before.anchors:  # a new pass
            self.sample_kind.check_tail(begun, world_size=self.world.size)
        self.run = run = begun or before.ended()
        self._tell_begin()
        if begun is None:
            _log.warning(
                "no batch is left: the loaded state was saved at the end of a pass, at step %d; iterate again for the next pass, or "
                "give the Loader more epochs",
                run.cursor.step,
            )
            return
        is_changed = True
        while is_changed:  # again after a change of mixture: what was made ahead is of the old one
            is_changed = False
            with closing(self._pipeline().batches(run, prefetch=self.settings.prefetch)) as ahead:
                for batch, step in self._metrics.timed(ahead):
                    if self.run.lineage != run.lineage:
                        raise PlanError(
                            "this iteration has ended: you started a newer one or loaded a state; use the newer iterator",
                            code="iteration_ended",
                        )
                    self.run = run = run.after(step)
                    for observer in self.observers:
                        observer.step(run, step, batch)
                    yield batch.delivered
                    is_changed = self.run.plan is not run.plan and self.run.lineage == run.lineage
                    if is_changed:
                        break
            if is_changed:
                run = self.run
                self._tell_begin()
        if self.run.lineage != run.lineage:
            return
        if not run.cursor.has_begun:
            dropped, error = run.why_empty(can_cut=self.can_be_cut)
            self._counting.add(dropped, run)
            raise error
        self._tell_end(run)
        self.run = self.run.ended()

    def _tell_begin(self) -> None:
        for observer in self.observers:
            observer.begin(self.run)

    def _tell_end(self, run: Run) -> None:
        for observer in self.observers:
            observer.end(run)

    def batches_of_worker(self, run: Run, *, passed: int, every: int) -> Iterator[Delivery]:
        """Yield the batches that one of `every` workers of a DataLoader makes, one after another."""
        return self._pipeline().batches(run, prefetch=0, passed=passed, every=every)

    def stream(self) -> Stream:
        """Return an iterator of the remaining batches with `next` and this loader's state, for trainers that pull batches."""
        return Stream(self)

    def as_dataset(self) -> Any:
        """Return a torch IterableDataset of the remaining batches, for your own DataLoader (batch_size=None)."""
        require_torch("as_dataset", "iterate over the Loader itself")
        check_rank(self.rank_info)
        self._attach()  # to trainers that were imported after this Loader was made
        from penstock.loader.dataset import Steps

        self._dataset = "as_dataset"
        return Steps(self)

    def as_map_dataset(self) -> tuple[MapDataset, RowSampler]:
        """Return the rows by number, and a sampler of this rank's rows with a state, for trainers that index a dataset."""
        check_rank(self.rank_info)
        self._attach()  # to trainers that were imported after this Loader was made
        self._dataset = "as_map_dataset"
        return MapDataset(self), RowSampler(self)

    def __getitem__(self, index: Any) -> Any:
        """Refuse: a Loader is not a dataset of samples."""
        raise TypeError(_NO_ITEMS)

    def __next__(self) -> Any:
        raise TypeError(
            "a Loader is not an iterator: take one with batches = loader.stream(), and call next(batches)"
        )

    # Moves: each makes a new run, and is done when that is accepted

    def _move(self, run: Run) -> None:
        if run.plan is not self.plan:
            self._refuse_dataset()
            plugged = self._plug_in(run.names, run.stores, run.plan.settings)
            self._traffic_before = self._traffic()
            self._plugged = plugged
        self.run = run

    def _refuse_dataset(self) -> None:
        if self._dataset:
            raise PlanError(
                f"the mixture changes, and what {self._dataset}() returned would go on with the old one; load the state first, or "
                f"iterate over the Loader itself. To change: save a state, load it into a new Loader of the new mixture with "
                f"changes=True, and call {self._dataset}() of that one"
            )

    def _refuse_tail(self, run: Run) -> None:
        run.refuse_uneven()
        self.sample_kind.check_tail(run, world_size=self.world.size)

    def state_dict(self) -> dict[str, Any]:
        """How far all ranks together have come; small, plain JSON, the same on every rank."""
        return self.run.state()

    def load_state_dict(self, state: dict[str, Any], *, changes: bool = False) -> None:
        """Go to where `state` was taken, with any number of ranks and any batch size.

        The next loop delivers what is left of the pass in which it was taken: nothing, if that had ended.
        changes: if the state's run has another mixture, change it to this loader's from here on.
        """
        run = self._in_window_of(state).resumed(state, changes=changes)
        self.sample_kind.check_tail(run, world_size=self.world.size)
        self._move(run)

    def _in_window_of(self, state: Any) -> Run:
        """Return the run with the window of a state: where "auto" fits a mirror, the run keeps the window that it began with."""
        run = self.run
        saved = window_of_state(state) if self._has_auto_window else None
        if saved is None:
            return run
        order = run.plan.settings
        for supply in self.supplies:
            order = supply.check(order, rows_per_step=run.rows_per_step, saved=saved)
        same = order.shuffle_window == run.plan.settings.shuffle_window
        return (
            run
            if same
            else replace(run, plan=run.plan.changed(shuffle_window=order.shuffle_window))
        )

    def load_journal(self, state: dict[str, Any]) -> None:
        """Take over the mixtures of a state's run and go to its first step, to replay or explain it with this batch and world size."""
        self._move(self.run.replayed(state))

    def change_mixture(self, stores: Any, *, at: int | None = None) -> None:
        """Change the mixture from the next step on, or from step `at` on.  Call it on all ranks, with the same arguments.

        stores: as of Loader, all sources that the run has from then on.  A source of the same name goes on where it was, also after it
        was removed for a while; its store may have grown at its end.  Nothing that was delivered comes again before its time.  Where
        samples are cut (packing="concat", on_overlong="split") the change comes at the end of the block.
        """
        given = read_stores(stores, as_rows)
        if given.is_records == self.has_tokens:
            raise PlanError(
                "one run cannot hold records and tokens; change to stores of the same kind"
            )
        named = dict(zip(given.names, given.stores, strict=True))
        run = self.run.changed(CheckedMixture(stores=named, weights=given.weights), at)
        refuse_losses(given.names, given.stores, run.plan.settings, self.settings.max_dropped)
        self.sample_kind.check_tail(run, world_size=self.world.size)
        self._move(run)

    def seek(self, step: int) -> None:
        """Go to step `step` of the run, counted with this loader's batch and world size; the next iteration starts there.

        Up to the end of the current pass; `set_epoch` goes to a later one.
        """
        self.run = self.run.at_step(step)

    def restart(self) -> None:
        """Go back to the start of the current pass, for an evaluation that sees the same batches each time."""
        self.run = self.run.restarted()

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration with this epoch; a loader in the middle of it stays where it is.

        After a state of the end of this epoch was loaded, the next iteration delivers nothing.
        """
        self.run = self.run.at_epoch(epoch)

    # What users and extras read

    def __len__(self) -> int:
        """Steps of the current pass; after a resume, those before it and those that are left with this batch and world size.

        With per_epoch, steps of the current epoch.  A pass that has ended is current until the next one begins.
        """
        return self.run.steps_of_pass()

    def explain(self, step: int) -> Provenance:
        """Where every span of all ranks' rows at `step` comes from, without running to it."""
        return provenance(self.run.look_up(step).rows, self.stores)

    def look_up(self, step: int) -> Step:
        """Return what all ranks get at `step`: any step since this loader began, up to the end of the current pass."""
        return self.run.look_up(step)

    @property
    def finished(self) -> bool:
        """Whether the current loop has delivered its last step; the next loop then is the next pass.

        Also True after the state of a finished pass was loaded.  Then the first loop delivers nothing, since nothing is left of that
        pass, and the second is the next pass.
        """
        return self.run.is_over(self.run.cursor)

    @property
    def steps_left(self) -> int | None:
        """Steps that the current loop has still to deliver, without skipped ones; None if it is endless."""
        return self.run.steps_after(self.run.cursor)

    @property
    def counters(self) -> Counters:
        """What this loader has delivered so far, and what was dropped in the blocks that have begun."""
        return self._counting.counters(self.run.names)

    @property
    def metrics(self) -> Metrics:
        """What this rank was given so far, and how long it waited."""
        self._metrics.name_sources(self.run.names)
        return self._metrics

    @property
    def journal(self) -> list[dict[str, Any]]:
        """The mixtures of this run in order: how many rows come before each, and its sources with their weights."""
        return self.run.journal

    @property
    def plan(self) -> Plan:
        """Which rows come when."""
        return self.run.plan

    @property
    def stores(self) -> list[Any]:
        """The stores of all sources that the run has had."""
        return list(self.run.stores)

    @property
    def supplies(self) -> Sequence[Supply]:
        """What brings shards here in time."""
        return self._plugged.supplies

    @property
    def stages(self) -> Mapping[str, OpenStage]:
        """The stages of columns, such as media, by the name of their column."""
        return self._plugged.stages

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of samples, besides tokens."""
        return self._plugged.columns

    @property
    def kind(self) -> str:
        """What samples are: tokens, records, pairs, judged answers, prompts, judged steps."""
        return self.sample_kind.name

    @property
    def has_tokens(self) -> bool:
        """Whether batches hold tokens, not plain records."""
        return self.sample_kind.has_tokens

    @property
    def has_weights(self) -> bool:
        """Whether batches hold the weights of tokens."""
        return WEIGHTS in self.columns

    @property
    def can_be_cut(self) -> bool:
        """Whether overlong samples may be cut: tokens may be, several sequences and lists may not."""
        return self.sample_kind.can_be_cut(self.columns)

    @property
    def sequence_length(self) -> int:
        """Tokens that a sequence may have; a row of the plan holds both sequences of a pair."""
        return self.plan.settings.max_length // self.sample_kind.row_sequences

    @property
    def batch_size(self) -> int:
        """Rows per rank and step."""
        return self.settings.batch_size

    @property
    def epochs(self) -> int | None:
        """Epochs of a pass; None never ends."""
        return self.settings.epochs

    @property
    def per_epoch(self) -> bool:
        """Whether a loop ends with its epoch."""
        return self.settings.per_epoch

    @property
    def run_id(self) -> str | None:
        """The name of the run in the cache."""
        return self.settings.run_id

    @property
    def collate(self) -> Callable[..., Any] | None:
        """The user's function for batches."""
        return self.settings.collate

    @property
    def world(self) -> World:
        """Which data-parallel rank this is."""
        return self.rank_info.world

    @property
    def dealing(self) -> dict[str, Any]:
        """The values that decide which rows of a step each rank gets."""
        balance = {name: getattr(self.plan.settings, name) for name in BALANCE}
        return {"batch_size": self.batch_size, "world_size": self.world.size, **balance}

    def __dir__(self) -> list[str]:
        """The public names, for completion."""
        return [name for name in super().__dir__() if name[:2] == "__" or name[0] != "_"]

    def __repr__(self) -> str:
        return (
            f"Loader({', '.join(self.run.names)}; rank {self.world.rank} of {self.world.size}, {self.batch_size} rows of "
            f"{self.plan.settings.max_length}, at step {self.run.cursor.step}, plan {self.plan.fingerprint[:8]})"
        )


def vars_of(settings: LoaderSettings) -> dict[str, Any]:
    """The values of settings by name, without copies of what the user gave."""
    return {field.name: getattr(settings, field.name) for field in fields(settings)}
