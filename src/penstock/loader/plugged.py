"""What plugs into a Loader because of its stores: columns, stages of columns, and supplies.  Made anew when the stores change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import PlanError
from penstock.loader.column_stages import OpenStage, stages_for
from penstock.loader.columns import batch_columns
from penstock.loader.kind import SampleKind, find_kind
from penstock.plan.settings import PlanSettings
from penstock.store.kept import MissingStore
from penstock.store.supply import Supply, find_supplies
from penstock.types import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugged:
    """The parts of a Loader that follow from its stores."""

    columns: tuple[Column, ...]
    stages: Mapping[str, OpenStage]  # by the name of their column
    supplies: Sequence[Supply]


def plug_in(
    kind: SampleKind,
    names: Sequence[str],
    stores: Sequence[Any],
    order: PlanSettings,
    settings: Mapping[str, Any],
) -> Plugged:
    """Return what these stores need; refuse stores whose samples one batch cannot hold.  settings: of the Loader and of the layout."""
    there = {
        name: store
        for name, store in zip(names, stores, strict=True)
        if not isinstance(store, MissingStore)
    }
    found = find_kind(list(there.values()), is_records=not kind.has_tokens)
    if found.name != kind.name:
        raise PlanError(f"this run has batches of {kind.name}, and the new mixture of {found.name}")
    columns: tuple[Column, ...] = ()
    if kind.has_tokens:
        columns = batch_columns(list(there), list(there.values()), order)
    stages = {
        stage.column.name: stage.open(names, stores, settings) for stage in stages_for(columns)
    }
    return Plugged(columns=columns, stages=stages, supplies=find_supplies(stores, settings))
