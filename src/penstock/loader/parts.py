"""What a Loader is put together of because of its stores: columns, stages of columns and supplies.  Made again when the stores change."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any

from penstock.errors import PlanError
from penstock.loader.batch_stages import PluginOptions
from penstock.loader.collate import steps_together
from penstock.loader.column_stages import OpenStage, stages_for
from penstock.loader.columns import batch_columns
from penstock.loader.kind import BatchMaker, BatchSettings, SampleKind, find_kind
from penstock.loader.layout import BatchForm, LoaderSettings
from penstock.loader.pipeline import Delivery, Pipeline
from penstock.loader.run import Run
from penstock.loader.stages import Stage, output_stage, users_stage
from penstock.loader.tokens import TOKENS
from penstock.plan.objectives import open_objective
from penstock.plan.settings import PlanSettings
from penstock.store.kept import MissingStore
from penstock.store.supply import Supply, find_supplies
from penstock.types import Column, Objective, World

_MOST_STEPS = 32  # looked up together


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What makes the batches of these stores."""

    kind: SampleKind
    settings: BatchSettings  # of the batches
    stages: Mapping[str, OpenStage]  # by the name of their column, or of their plugin
    supplies: Sequence[Supply]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of samples, besides tokens."""
        return self.settings.columns

    @property
    def can_be_cut(self) -> bool:
        """Whether overlong samples may be cut: tokens may be, several sequences and lists may not."""
        return self.kind.can_be_cut(self.columns)

    def open_maker(self, stores: Sequence[Any]) -> BatchMaker:
        """Return what makes arrays of rows, for one thread: it reuses the memory of its earlier batches."""
        return self.kind.maker(stores, self.settings)

    def batches(
        self, run: Run, world: World, added: Sequence[Stage]
    ) -> Generator[Delivery, None, None]:
        """Yield the batches of one rank from the run's cursor on, made ahead."""
        return self.pipeline(run, world, added).batches(run, prefetch=self.settings.prefetch)

    def pipeline(
        self,
        run: Run,
        world: World,
        added: Sequence[Stage] = (),
        *,
        form: BatchForm | None = None,
    ) -> Pipeline:
        """Return how the batches of one rank are made.

        added: stages before all others, so that they see rows as they were made.  form: of the arrays, if it is not the Loader's.
        """
        stages: list[Stage] = [*added, *self.stages.values()]
        if self.settings.collate is not None and self.kind.has_tokens:
            stages.append(users_stage(self.settings.collate))
        stages.append(output_stage(form or self.settings.form))
        at_once = self._steps_at_once(run)
        tokens_per_step = self.settings.batch_size * run.plan.settings.max_length
        return Pipeline(
            world=world,
            open_maker=partial(self.open_maker, run.stores),
            stages=stages,
            supplies=self.supplies,
            at_once=at_once,
            together=min(at_once, steps_together(tokens_per_step)),
        )

    def _steps_at_once(self, run: Run) -> int:
        """Return how many steps are looked up together: as many as the kind and all supplies allow."""
        if run.has_steps_of_tokens:
            return 1  # steps that are looked up together have equally many rows
        limits = [_MOST_STEPS, self.kind.steps_at_once(run.stores, self.settings)]
        for supply in self.supplies:
            limit = supply.steps_at_once(run.plan.settings, run.rows_per_step)
            if limit is not None:
                limits.append(limit)
        return max(1, min(limits))


def plug_in(
    kind: SampleKind,
    names: Sequence[str],
    stores: Sequence[Any],
    order: PlanSettings,
    *,
    settings: LoaderSettings,
    form: BatchForm,
    of_plugins: PluginOptions,
) -> Parts:
    """Return what these stores need; refuse stores whose samples one batch cannot hold."""
    present = {
        name: store
        for name, store in zip(names, stores, strict=True)
        if not isinstance(store, MissingStore)
    }
    other_kind = find_kind(list(present.values()), is_records=not kind.has_tokens)
    if other_kind.name != kind.name:
        raise PlanError(
            f"this run has batches of {kind.name}, and the new mixture of {other_kind.name}"
        )
    columns: tuple[Column, ...] = ()
    if any(store.columns for store in present.values()):
        columns = batch_columns(list(present), list(present.values()), order)
    if order.objective is not None and kind.name != TOKENS.name:
        raise PlanError(
            f"objective {_name_of(order)!r} changes samples that are one sequence of tokens, and these are {kind.name}; leave it out"
        )
    objective = open_objective(order, names, stores)
    if objective is not None:
        columns = _with_objective(objective, columns, order)
    of_batches = BatchSettings(
        order=order,
        form=form,
        columns=columns,
        objective=objective,
        batch_size=settings.batch_size,
        prefetch=settings.prefetch,
        collate=settings.collate,
    )
    kind.check(of_batches)
    # without copies of what the user gave
    by_name = {each.name: getattr(settings, each.name) for each in fields(settings)}
    by_name |= asdict(form)
    by_name |= of_plugins.others
    stages = {}
    if columns:
        stages = {
            stage.column.name: stage.open(names, stores, by_name) for stage in stages_for(columns)
        }
    for name, (plugin, its_settings) in of_plugins.stages.items():
        stage = plugin.open(
            its_settings, kind=kind, columns=columns, order=order, of_loader=by_name
        )
        if stage is not None:
            stages[name] = stage
    supplies = find_supplies(stores, by_name)
    return Parts(kind=kind, settings=of_batches, stages=stages, supplies=supplies)


def _with_objective(
    objective: Objective, columns: tuple[Column, ...], order: PlanSettings
) -> tuple[Column, ...]:
    """Return the columns of batches whose samples an objective changes; refuse samples that it cannot change."""
    name = _name_of(order)
    for column in columns:
        if column.per != "sample":
            raise PlanError(
                f"objective {name!r} moves tokens, and column {column.name!r} has its values per {column.per}: they would stand at "
                f"other tokens; leave the objective out, or prepare the store without the column"
            )
        if column.name in {each.name for each in objective.columns}:
            raise PlanError(
                f"column {column.name!r} has the name of an array of objective {name!r}; rename it in the template"
            )
    return (*columns, *objective.columns)


def _name_of(order: PlanSettings) -> str:
    return str(order.objective["name"]) if isinstance(order.objective, dict) else ""
