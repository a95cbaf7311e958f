"""Run a recipe: open, prepare, check and load the datasets that it names."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from penstock.api import by_turns, choose_template, filtered, open_for_prepare, prepare
from penstock.cache import Cache, open_cache
from penstock.errors import PenstockError, PlanError, RecipeError
from penstock.loader.kind import kind_of_columns
from penstock.plan.settings import PlanSettings
from penstock.recipe.document import DataSet, location
from penstock.recipe.keys import keys
from penstock.recipe.recipe import TRAIN, Recipe
from penstock.settings import takes
from penstock.sources import concat
from penstock.sources.concat import as_rows
from penstock.sources.splits import Purpose
from penstock.templates.registry import RECORDS
from penstock.types import AnyTemplate, Column, Source, columns_of

if TYPE_CHECKING:
    from penstock.loader import Loader
    from penstock.options import RecipeOptions
    from penstock.report.checks import Checked
    from penstock.report.overlap import Overlaps
    from penstock.store import Store
    from penstock.store.counts import Counts
    from penstock.store.miss import Miss
    from penstock.store.overlap import Overlap
    from penstock.store.status import Status


@takes("RecipeOptions")
def load(
    recipe: str | os.PathLike[str] | Recipe,
    *,
    part: str = "train",
    **changes: Unpack["RecipeOptions"],
) -> "Loader":
    """Make a loader from one file: open, prepare and mix the datasets of a recipe.

    part: "train", or the name of an eval set ("eval" if there is only one).  An eval set is one pass in the order of its file, and
    overlong samples are cut, unless the recipe says otherwise.
    changes: any key of a recipe, in place of what the file says; and what differs between processes.
    """
    from penstock.loader import Loader

    changed = Recipe.read(recipe).changed(**changes)
    _loader_options(changed, part)  # what is missing there is said before anything is prepared
    prepared = serve_recipe(changed, part=part)
    loader = Loader(changed.mixture(prepared, part), **_loader_options(changed, part, prepared))
    if loader.world.rank == 0:
        _warn_of_overlap(changed, part, prepared)
    return loader


def _warn_of_overlap(recipe: Recipe, part: str, stores: "Mapping[str, Store | Source]") -> None:
    """Log a warning if eval sets share samples with the training data, as far as the cache has them already."""
    from penstock.report.progress import lines_shown
    from penstock.store.overlap import warn_of_overlap

    for other_part in recipe.parts[1:] if part == TRAIN else (TRAIN,):
        # the other part may be missing here, and then there is nothing to say about it
        with (
            contextlib.suppress(PenstockError),
            lines_shown(recipe.settings.get("progress", "auto")),
        ):
            others = prepared_stores(recipe, open_recipe(recipe, part=other_part))
            if others is None:
                continue
            trained, evaluated = (stores, others) if part == TRAIN else (others, stores)
            warn_of_overlap(evaluated, trained)


def recipe_overlaps(recipe: Recipe, stores: "Mapping[str, Store]") -> "list[Overlap]":
    """Compare the eval sets of a recipe, as far as the cache has them, with the stores that are trained on."""
    from penstock.store.overlap import find_overlaps

    overlaps: list[Overlap] = []
    for part in recipe.parts[1:]:
        with contextlib.suppress(PenstockError):
            evaluated = prepared_stores(recipe, open_recipe(recipe, part=part))
            overlaps += find_overlaps(evaluated or {}, stores)
    return overlaps


def prepared_counts(recipe: Recipe) -> "dict[str, Counts | None]":
    """What each part of a recipe contains, as far as the cache has it already; None for a part that is not prepared."""
    from penstock.store.counts import total

    found: dict[str, Counts | None] = {}
    for part in recipe.parts:
        found[part] = None
        with contextlib.suppress(PenstockError):
            opened = open_recipe(recipe, part=part, rows=1, skip_bad=True)
            stores = prepared_stores(recipe, opened)
            if stores is not None:
                found[part] = total([store.counts for store in stores.values()])
    return found


def load_prepared(
    recipe: Recipe, opened: "list[OpenSet]", *, part: str = "train", **changes: Any
) -> "Loader | None":
    """The loader that `load` makes, if all stores are in the cache already; else None.  No record is read and nothing is made."""
    from penstock.loader import Loader

    found = recipe.changed(**changes)
    stores = prepared_stores(found, opened)
    if stores is None:
        return None
    return Loader(found.mixture(stores, part), **_loader_options(found, part, stores))


def prepared_stores(recipe: Recipe, opened: "list[OpenSet]") -> "dict[str, Store] | None":
    """The stores of opened datasets by name, if all of them are in the cache already; else None."""
    from penstock.store.build import find

    if not recipe.run_options().get("cache", True):
        return None
    stores = {}
    cache = open_cache(recipe.settings.get("cache_dir"))
    for each in opened:
        store = find(
            each.rows, each.template_for_all, columns=columns_of(each.template), cache=cache
        )
        if store is None:
            return None
        stores[each.name] = store
    return stores


def _loader_options(
    found: Recipe, part: str, stores: "Mapping[str, Store | Source] | None" = None
) -> dict[str, Any]:
    """Keyword arguments of `Loader` for these stores; without them, as far as the recipe alone says."""
    columns = [column for store in (stores or {}).values() for column in _columns_in(store)]
    options = found.loader_options(part, can_be_cut=kind_of_columns(columns).can_be_cut(columns))
    if "batch_size" not in options:
        hint = "add 'batch_size: 8' (rows per rank), or pass it: load(…, batch_size=8)"
        raise RecipeError(f"{location(found.file)}no batch_size; {hint}")
    return options


def _columns_in(store: "Store | Source") -> tuple[Column, ...]:
    """The columns of a store; the records of a source have none."""
    return tuple(getattr(store, "columns", ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSet:
    """A dataset of a recipe, opened.  No tokenizer is loaded before a record is encoded or decoded."""

    name: str
    source: Source
    template: AnyTemplate
    fan_out: bool
    rows: Source  # those that become samples: with fan_out one for each trained turn

    def template_for_all(self) -> AnyTemplate:
        """The template with the engine that `prepare` uses for all records."""
        return choose_template(self.source, self.template, None, {}, facts=None)

    def prepare(self, first: int | None = None, **options: Any) -> "Store":
        """Prepare all records, or the first ones."""
        source = self.source if first is None else concat([self.source])[:first]
        return prepare(source, template=self.template, fan_out=self.fan_out, **options)

    def prepare_row(self, row: int) -> "tuple[int, Store]":
        """Prepare one record and keep it nowhere: its number, and a store that holds nothing else.  No other record is read."""
        num_rows = len(self.rows)
        if not -num_rows <= row < num_rows:
            raise PlanError(
                f"record {row} does not exist: {self.name!r} has {num_rows:,} records, counted from 0"
            )
        number = row % num_rows
        one = concat([self.rows])[number : number + 1]
        return number, prepare(
            one, template=self.template, num_proc=1, cache=False, progress="none"
        )


def open_recipe(
    recipe: Recipe, *, part: str = "train", rows: int | None = None, skip_bad: bool = False
) -> list[OpenSet]:
    """Open the datasets of one part.

    rows: how many records of each will be encoded, if not all; for few, fastokens is not loaded.
    skip_bad: records that cannot be read do not stop the choice of a template, whatever on_bad says.
    """
    return [_opened(recipe, data, rows, skip_bad=skip_bad) for data in recipe.part(part)]


def _opened(recipe: Recipe, data: DataSet, rows: int | None, *, skip_bad: bool) -> OpenSet:
    run = recipe.run_options()
    keeps = run.get("cache", True)
    folder = open_cache(run.get("cache_dir")) if keeps else Cache.temporary()
    with recipe.with_location(data):
        options = recipe.prepare_options(data)
        source = open_data(recipe, data, folder, options)
        fan_out = options.pop("fan_out", False)
        tokenizer = options.pop("tokenizer", None)
        template = options.pop("template", "auto")
        made = choose_template(
            source,
            template,
            tokenizer,
            options,
            facts=folder if keeps else None,
            rows=rows,
            shared=frozenset(recipe.settings) - frozenset(data.options),
            skip_bad=skip_bad,
        )
        turns = by_turns(source, made) if fan_out else source
        return OpenSet(name=data.name, source=source, template=made, fan_out=fan_out, rows=turns)


def opened_settings(recipe: Recipe, opened: list[OpenSet], *, part: str) -> PlanSettings:
    """The settings that decide the order of a part's records, with defaults that depend on what its samples are."""
    columns = [column for each in opened for column in columns_of(each.template)]
    return recipe.plan_settings(part, can_be_cut=kind_of_columns(columns).can_be_cut(columns))


def prepare_recipe(recipe: Recipe, *, part: str = "train") -> "dict[str, Store]":
    """The stores of one part of a recipe, by the names of its datasets."""
    from penstock.engines import open_engine

    options = recipe.run_options() | {
        name: value for name, value in recipe.settings.items() if name == "progress"
    }
    named = options.pop("engine", "local")
    num_proc = options.pop("num_proc", None)
    # one for all datasets: it may start a cluster
    engine = open_engine(named, num_proc=num_proc, inline=not options.get("background", False))
    return {
        each.name: each.prepare(engine=engine, **options) for each in open_recipe(recipe, part=part)
    }


def recipe_status(recipe: Recipe, *, part: str = "train") -> "dict[str, Status]":
    """How far each dataset of one part is prepared, by this process or others on the same cache."""
    from penstock.store.status import status

    cache = open_cache(recipe.settings.get("cache_dir"))
    return {
        each.name: status(each.rows, each.template_for_all(), cache=cache)
        for each in open_recipe(recipe, part=part)
    }


def serve_recipe(recipe: Recipe, *, part: str = "train") -> "dict[str, Store | Source]":
    """The stores of one part of a recipe; of datasets with `template: records`, the sources themselves."""
    data = recipe.part(part)
    plain = [each for each in data if recipe.prepare_options(each).get("template") == RECORDS]
    if not plain:
        return {**prepare_recipe(recipe, part=part)}
    if len(plain) < len(data):
        other = next(each.name for each in data if each not in plain)
        raise RecipeError(
            f"{location(recipe.file, plain[0].line)}dataset {plain[0].name!r} has template: records, and {other!r} has another; one batch "
            f"cannot hold records and tokens: give all datasets template: records, or none"
        )
    keeps = recipe.run_options().get("cache", True)
    folder = open_cache(recipe.run_options().get("cache_dir")) if keeps else Cache.temporary()
    sources: dict[str, Store | Source] = {}
    for each in plain:
        with recipe.with_location(each):
            sources[each.name] = open_data(recipe, each, folder, {})
    return sources


def open_data(recipe: Recipe, data: DataSet, folder: Cache, options: dict[str, Any]) -> Source:
    """Open the source of a dataset; `options` are those of its template."""
    place = list(data.path) if isinstance(data.path, tuple) else data.path
    is_training_data = any(data is each for each in recipe.data)
    purpose: Purpose = "train" if is_training_data else "eval"
    of_source = recipe.open_options(data)
    keep = of_source.pop("filter", None)
    version = of_source.pop("filter_version", None)
    source = open_for_prepare(place, folder, data.name, of_source, options, purpose=purpose)
    return filtered(
        as_rows(source),
        keep,
        version,
        num_proc=recipe.run_options().get("num_proc"),
        folder=None if recipe.file is None else Path(recipe.file).absolute().parent,
    )


def why_recipe(recipe: Recipe, *, part: str = "train") -> "dict[str, Miss]":
    """Return, by dataset, why `prepare` would not find its store: how it differs from the most similar store in the cache."""
    from penstock.engines import LocalEngine
    from penstock.store.build import digest_shards
    from penstock.store.digests import rows_per_shard
    from penstock.store.miss import explain_miss
    from penstock.store.shards import template_identity

    cache = open_cache(recipe.settings.get("cache_dir"))
    misses = {}
    for data in open_recipe(recipe, part=part):
        template = data.template_for_all()
        borders, digests = digest_shards(
            data.rows,
            engine=LocalEngine(),
            cache=cache,
            shard_rows=rows_per_shard(columns_of(template)),
        )
        misses[data.name] = explain_miss(template_identity(template), digests, borders, cache)
    return misses


def check_recipe(
    recipe: Recipe, *, part: str = "train", rows: int = 2000, overlaps: "Overlaps | None" = None
) -> "Iterator[Checked]":
    """Check each dataset of a part on records spread over it (0: on all of them); nothing is prepared.

    overlaps: knows the datasets of parts that were checked before, to find records that they share.
    """
    from penstock.report.checks import check, uses_chat_template

    allowed = recipe.loader_options(part).get("max_dropped", keys()["max_dropped"].default)
    opened = open_recipe(recipe, part=part, rows=rows or None, skip_bad=True)
    settings = opened_settings(recipe, opened, part=part)
    chats = [each.name for each in opened if uses_chat_template(each.template)]
    for data, each in zip(recipe.part(part), opened, strict=True):
        yield check(
            each.rows,
            each.template,
            settings,
            cache=open_cache(recipe.settings.get("cache_dir")).root,
            at_most=rows or len(each.rows),
            name=each.name,
            on_bad=recipe.open_options(data).get("on_bad", "stop"),
            beside=chats,
            max_dropped=allowed,
            overlaps=overlaps,
            part=part,
        )
