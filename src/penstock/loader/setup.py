"""What a Loader is asked for, read and checked once: its stores, its settings, and the run that they begin."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import PlanError
from penstock.loader.batch_stages import PluginOptions, take_plugin_options
from penstock.loader.kind import SampleKind, find_kind
from penstock.loader.layout import BatchForm, LoaderSettings, check_layout, split_options
from penstock.loader.losses import refuse_losses
from penstock.loader.parts import Parts, plug_in
from penstock.loader.plans import plan_of_tables
from penstock.loader.run import CheckedMixture, Loop, Run
from penstock.loader.state import Cursor, window_of_state
from penstock.loader.world import RankInfo, find_rank
from penstock.plan.budget import Budget, StepTokens
from penstock.plan.settings import PlanSettings, tabled
from penstock.settings import taken, with_plugin_options
from penstock.sources.concat import as_rows
from penstock.store.records import NamedStores, read_stores
from penstock.types import World
from penstock.words import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a Loader begins with."""

    kind: SampleKind
    stores: NamedStores
    settings: LoaderSettings
    order: PlanSettings
    form: BatchForm
    tables: Sequence[tuple[int, list[str]]]  # weights at each point of the run
    of_plugins: PluginOptions
    given: frozenset[str]  # names of the options that were not left at their defaults

    def parts(self) -> Parts:
        """Return what the stores need."""
        return plug_in(
            self.kind,
            self.stores.names,
            self.stores.stores,
            self.order,
            settings=self.settings,
            form=self.form,
            of_plugins=self.of_plugins,
        )

    def parts_after(self, run: Run) -> Parts:
        """Return what the stores of a run need whose mixture has changed."""
        return plug_in(
            self.kind,
            run.names,
            run.stores,
            run.plan.settings,
            settings=self.settings,
            form=self.form,
            of_plugins=self.of_plugins,
        )

    def first_run(self, parts: Parts, world: World) -> Run:
        """Return the run at its first step; refuse an order that its supplies or its last step do not allow."""
        settings = self.settings
        rows_per_step = settings.batch_size * world.size
        order = self.order
        for supply in parts.supplies:
            order = supply.check(order, rows_per_step=rows_per_step)
        plan = plan_of_tables(
            self.stores.names,
            self.stores.stores,
            order,
            self.tables,
            schedule=settings.schedule,
            interpolate=settings.interpolate,
            rows_per_step=rows_per_step,
        )
        if plan.is_stream and settings.share_of_last_epoch is not None:
            raise PlanError(
                f"epochs={settings.epochs}: a part of an epoch needs to know how many rows it has, and a stream does not say so before its "
                f"end; pass max_tokens or max_steps"
            )
        plan = plan.with_budget(self.budget(order, world))
        loop = Loop(
            epochs=settings.whole_epochs,
            per_epoch=settings.per_epoch,
            skipped=frozenset(settings.skip_steps),
            max_steps=settings.max_steps,
        )
        stores = tuple(self.stores.stores)
        run = Run(plan=plan, stores=stores, rows_per_step=rows_per_step, loop=loop)
        refuse_losses(self.stores.names, stores, plan.settings, settings.max_dropped)
        run.refuse_uneven()
        self.check_tail(run)
        return run

    def budget(self, order: PlanSettings, world: World) -> Budget | None:
        """Return how far a pass follows the order; None for all of it.  Refuse budgets that this order cannot keep."""
        settings = self.settings
        share = settings.share_of_last_epoch
        step = None
        if settings.tokens_per_step is not None:
            step = self._step_tokens(settings.tokens_per_step, order, world)
        if settings.max_tokens is not None and not self.kind.has_tokens:
            raise PlanError(
                f"max_tokens={settings.max_tokens:,} counts tokens, and plain records have none; pass max_steps"
            )
        if settings.max_tokens is not None and order.last_step == "repeat":
            raise PlanError(
                f"max_tokens={settings.max_tokens:,} and last_step='repeat' contradict each other: repeated rows would exceed it; choose "
                f"last_step='pad' or 'drop'"
            )
        if settings.max_tokens is None and share is None and step is None:
            return None
        return Budget(
            tokens=settings.max_tokens, share=share, epochs=settings.whole_epochs, step=step
        )

    def _step_tokens(self, tokens: int, order: PlanSettings, world: World) -> StepTokens:
        """Return how many rows a step takes; refuse orders whose rows are full anyway."""
        asked = f"tokens_per_step={tokens:,}"
        if not self.kind.has_tokens:
            raise PlanError(f"{asked} counts tokens, and plain records have none; leave it out")
        if order.packing != "none":
            raise PlanError(
                f"{asked} is for rows of one sample, and packing={order.packing!r} fills rows up to max_length; leave it out, or set "
                f"packing='none'"
            )
        if order.last_step in ("repeat", "wrap"):
            raise PlanError(
                f"{asked} and last_step={order.last_step!r} contradict each other: a step ends where its tokens do; choose "
                f"last_step='pad' or 'drop'"
            )
        if self.settings.schedule != "tokens" and len(self.tables) > 1:
            raise PlanError(
                f"{asked} makes steps of different sizes, and the points in the table of weights are steps; set schedule='tokens'"
            )
        form = self.form
        count = self.kind.row_sequences
        rows = self.kind.least_rows * world.size
        pad_to = order.align
        if form.padding_free:
            tokens = tokens // form.pad_to_multiple_of * form.pad_to_multiple_of
        else:
            pad_to = math.lcm(order.align, form.pad_to_multiple_of)
        longest = -(-order.max_length // pad_to) * pad_to
        if tokens < longest * count * rows:
            raise PlanError(
                f"{asked} is less than {longest * count * rows:,}: all ranks together need at least {plural(rows, 'row')} of up to "
                f"{longest * count:,} tokens; raise it, or lower max_length"
            )
        return StepTokens(
            tokens=tokens,
            multiple=rows,
            is_padded=not form.padding_free,
            pad_to=pad_to * count,
            fixed=longest * count if form.padding == "max_length" else None,
        )

    def check_tail(self, run: Run) -> None:
        """Refuse a last step of the current pass that some rank could not train."""
        self.kind.check_tail(run, world_size=run.rows_per_step // self.settings.batch_size)

    # Moves of a run, with what only the settings of its Loader decide

    def begin_loop(self, run: Run) -> Run | None:
        """Return the run at the start of its next loop; None if a state was loaded and nothing is left of its pass."""
        begun = run.begin_loop()
        if begun is not None and begun.anchors != run.anchors:  # a new pass
            self.check_tail(begun)
        return begun

    def on_world(self, world: World, run: Run, parts: Parts) -> Run:
        """Return the run where it is, with the rows of another number of ranks."""
        moved = self.first_run(parts, world)  # whose steps of tokens are for these ranks
        if run.cursor != Cursor():
            moved = moved.resumed(run.state())
            moved.refuse_uneven()
            self.check_tail(moved)
        return replace(moved, lineage=run.lineage + 1)

    def resumed(self, state: Any, run: Run, parts: Parts, *, changes: bool) -> Run:
        """Return the run where a state was taken."""
        resumed = self._in_window_of(state, run, parts).resumed(state, changes=changes)
        self.check_tail(resumed)
        return resumed

    def _in_window_of(self, state: Any, run: Run, parts: Parts) -> Run:
        """Return the run with the window of a state: where "auto" fits a mirror, the run keeps the window that it began with."""
        saved = window_of_state(state) if self.order.shuffle_window == "auto" else None
        if saved is None:
            return run
        order = run.plan.settings
        for supply in parts.supplies:
            order = supply.check(order, rows_per_step=run.rows_per_step, saved=saved)
        if order.shuffle_window == run.plan.settings.shuffle_window:
            return run
        return replace(run, plan=run.plan.changed(shuffle_window=order.shuffle_window))

    def changed(self, run: Run, stores: Any, *, at: int | None) -> Run:
        """Return the run with other stores from step `at` on; refuse those that this run cannot go on with."""
        mixture = read_stores(stores, as_rows)
        if mixture.is_records == self.kind.has_tokens:
            raise PlanError(
                "one run cannot hold records and tokens; change to stores of the same kind"
            )
        by_name = dict(zip(mixture.names, mixture.stores, strict=True))
        changed = run.changed(CheckedMixture(stores=by_name, weights=mixture.weights), at)
        order = changed.plan.settings
        refuse_losses(mixture.names, mixture.stores, order, self.settings.max_dropped)
        self.check_tail(changed)
        return changed


def rank_of(settings: LoaderSettings) -> RankInfo:
    """Return which rank a Loader has."""
    return find_rank(
        settings.rank,
        settings.world_size,
        model_parallel_size=settings.model_parallel_size,
        mesh=settings.mesh,
    )


def _refuse_max_length(options: Mapping[str, Any]) -> None:
    """Refuse a length for plain records: it would cut nothing, and sequence_length of other tools, which is read as it, cuts steps."""
    if options.get("max_length") in (None, 1):
        return
    raise PlanError(
        f"max_length is {options['max_length']}, and plain records have no length in tokens, so it would cut nothing; leave it out. To "
        f"take the last steps of sequences: collate=penstock.sequences.SequenceBatches(inputs, length={options['max_length']})"
    )


def read_setup(stores: Any, options: Mapping[str, Any]) -> Setup:
    """Read the arguments of a Loader; refuse what is unknown, contradicts itself or has no effect."""
    left = with_plugin_options({**options})
    names_given = frozenset(left)
    if "batch_size" not in names_given:
        raise TypeError("Loader needs batch_size=, the number of rows per rank and step")
    settings = LoaderSettings(**taken(left, LoaderSettings))
    mixture = read_stores(stores, as_rows)
    kind = find_kind(mixture.stores, is_records=mixture.is_records)
    left = {**kind.usual_settings, **left}
    if not kind.has_tokens:  # a record is a sample of length 1
        _refuse_max_length(left)
        left["max_length"] = 1
    tables: Sequence[tuple[int, list[str]]] = ()
    if mixture.weights is not None:
        tables = tabled(mixture.weights, ramps=settings.interpolate)
    of_plugins = take_plugin_options(left, (PlanSettings, BatchForm))
    order, form = split_options(tables[0][1] if tables else None, left)
    check_layout(order, form, has_tokens=kind.has_tokens, per_epoch=settings.per_epoch)
    return Setup(
        kind=kind,
        stores=mixture,
        settings=settings,
        order=order,
        form=form,
        tables=tables,
        of_plugins=of_plugins,
        given=names_given,
    )
