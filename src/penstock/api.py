"""How do the rooms work together?  The verbs that wire them: `open`, `prepare`, `load`; and the loader, which takes what they return.

Each verb imports the rooms that it needs when it is called: `open` on a file of JSON lines loads no pyarrow, no tokenizer and no
template engine.
"""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from penstock.cache import Cache
from penstock.errors import PlanError, RecipeError, TemplateError
from penstock.sources import BadRows, RowAccess, concat, is_source, open_source
from penstock.types import BadRow, Record, Source, Template

if TYPE_CHECKING:
    from penstock.loader import Loader
    from penstock.recipe import DataSet, Recipe
    from penstock.report.checks import Checked
    from penstock.store import Progress, Store
    from penstock.store.why import Why
    from penstock.templates import Detection

__all__ = ["Loader", "concat", "load", "open", "prepare"]

_log = logging.getLogger("penstock")

_LOOK = 200  # rows looked at to choose a template, spread over the source


def __getattr__(name: str) -> Any:
    if name != "Loader":
        raise AttributeError(f"module 'penstock.api' has no attribute {name!r}")
    from penstock.loader import Loader

    return Loader


def open(
    place: Any,
    *,
    shape: str | None = None,
    split: str | None = None,
    name: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    on_bad: str = "stop",
    max_bad: int | None = None,
    quarantine: str | os.PathLike[str] | None = None,
    **options: Any,
) -> RowAccess:
    """Records by number.  `place` is a path, a glob, a folder, a list of those, a list of dicts, a function that yields
    dicts, or a data set of `datasets`; rows can be chosen in the name: "chat.jsonl@[:1000]", "folder:train[:10%]".

    shape: what the files are, where their names do not tell.  split: of a data set folder.
    on_bad: at a row that cannot be read "stop", "skip" or "quarantine" (to a file); `max_bad` is how many may be met.
    options: the shape's own; one that it does not know is an error.
    """
    bad = BadRows(on_bad, max_bad=max_bad, quarantine=os.fspath(quarantine) if quarantine is not None else None)
    return open_source(place, cache=Cache(cache_dir), name=name, shape=shape, split=split, bad=bad, **options)


def prepare(
    place: Any,
    *,
    tokenizer: Any = None,
    template: str | Template = "auto",
    name: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    num_proc: int | None = None,
    refresh: bool = False,
    cache: bool = True,
    background: bool = False,
    fan_out: bool = False,
    progress: str | Callable[["Progress"], object] = "auto",
    **options: Any,
) -> "Store":
    """Records → samples on disk.  `place` is a source or what `open` takes; `options` are the template's own.

    num_proc: processes; None is the cores that this process may use, shared with the other ranks on this machine.
    refresh: make every shard anew.  cache=False: nothing stays on disk after the store is gone, and cache_dir is not used.
    background: return at once, and make the shards while they are used, in the order in which a loader asks for them.
    fan_out: make a sample of each trained turn, whose conversation ends there; for templates that forget earlier reasoning.
    progress: "auto" (a bar on a terminal, else a line every few seconds), "plain", "none", or a function of a Progress.
    """
    from penstock.engines import LocalEngine
    from penstock.report.progress import showing
    from penstock.store import build
    from penstock.store.seen import remember

    _refuse_misplaced(options)
    folder = Cache(cache_dir) if cache else Cache.temporary()
    source = _opened(place, folder, name, {}, options)
    made = _template(source, template, tokenizer, options, facts=folder if cache else None)
    source = _fanned_out(source, made) if fan_out else source
    engine = LocalEngine(num_proc, inline=not background)  # this process trains while shards are made
    with showing(progress) as show:
        store = build(
            source, made, engine=engine, cache=folder, refresh=refresh, background=background,
            progress=None if background and not callable(progress) else show,
        )  # fmt: skip
    if cache:
        remember(store)
    if lost := store.unrendered():
        _log.warning("%s: %s; on_unrendered: stop or skip ends this", store.name, lost)
    for odd in store.odd_turns():
        _log.warning("%s: %s", store.name, odd)
    return store


def why(
    place: Any,
    *,
    tokenizer: Any = None,
    template: str | Template = "auto",
    name: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    fan_out: bool = False,
    **options: Any,
) -> "Why":
    """Why `prepare` with the same arguments would not find its store: what differs from the nearest one in the cache."""
    from penstock.engines import LocalEngine
    from penstock.store.build import digest_shards
    from penstock.store.why import why as why_not

    folder = Cache(cache_dir)
    source = _opened(place, folder, name, {}, options)
    made = _template(source, template, tokenizer, options, facts=folder)
    source = _fanned_out(source, made) if fan_out else source
    borders, records = digest_shards(source, made, engine=LocalEngine(), cache=folder)
    return why_not(made.identity(), records, borders, folder)


def load(recipe: "str | os.PathLike[str] | Recipe", *, part: str = "train", **changes: Any) -> "Loader":
    """A loader from one file: opens, prepares and mixes what the recipe names.

    part: "train", or the name of an eval set ("eval" where there is one): one pass, in the order of the file, unless the recipe says
    otherwise.  changes: any key of a recipe, in place of what the file says; and what is each process's own: rank, world_size, mesh,
    collate, progress.
    """
    from penstock.loader import Loader

    found = read_recipe(recipe, **changes)
    options = _loader_options(found, part)
    return Loader(found.mixture(prepare_recipe(found, part=part), part), **options)


def load_prepared(recipe: "Recipe", opened: "list[OpenSet]", *, part: str = "train", **changes: Any) -> "Loader | None":
    """The loader that `load` gives, where all stores are in the cache already; else None.  No record is read and nothing is made."""
    from penstock.loader import Loader
    from penstock.store.build import find

    found = read_recipe(recipe, **changes)
    if not found.run_options().get("cache", True):
        return None
    stores, cache = {}, Cache(found.settings.get("cache_dir"))
    for each in opened:
        store = find(each.source, each.as_prepared, cache=cache)
        if store is None:
            return None
        stores[each.name] = store
    return Loader(found.mixture(stores, part), **_loader_options(found, part))


def _loader_options(found: "Recipe", part: str) -> dict[str, Any]:
    options = found.loader_options(part)
    if "batch_size" not in options:
        place = f"{found.file}: " if found.file else ""
        raise RecipeError(
            f"{place}no batch_size; add 'batch_size: 8' (rows per rank), or pass it: load(…, batch_size=8)"
        )
    return options


def read_recipe(recipe: "str | os.PathLike[str] | Recipe", **changes: Any) -> "Recipe":
    """The recipe in a file, with other settings."""
    from penstock.recipe import Recipe  # here: it reads the signatures above

    found = Recipe.read(recipe)
    return found.changed(**changes) if changes else found


def prepare_recipe(recipe: "Recipe", *, part: str = "train") -> "dict[str, Store]":
    """The stores of one part of a recipe, by the names of its data sets."""
    options = {**recipe.run_options(), **{k: v for k, v in recipe.settings.items() if k == "progress"}}
    made = {}
    for data in recipe.part(part):
        source, template, fan_out = parts(recipe, data)
        made[data.name] = prepare(source, template=template, fan_out=fan_out, **options)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSet:
    """A data set of a recipe, opened to look at some rows.  `as_prepared` gives the template with the engine that `prepare` uses."""

    name: str
    source: Source
    template: Template
    as_prepared: Callable[[], Template]


def open_recipe(recipe: "Recipe", *, part: str = "train") -> list[OpenSet]:
    """The data sets of one part, to look at single rows; no engine is loaded before a row is encoded or decoded."""
    opened = []
    for data in recipe.part(part):
        source, template, fan_out = parts(recipe, data, rows=1)
        rows = _fanned_out(source, template) if fan_out else source
        as_prepared = partial(_template, source, template, None, {}, facts=None)
        opened.append(OpenSet(name=data.name, source=rows, template=template, as_prepared=as_prepared))
    return opened


def prepare_row(opened: OpenSet, row: int) -> "tuple[int, Store]":
    """One row, prepared alone and kept nowhere: its number, and a store that holds nothing else.  No other row is read."""
    num_rows = len(opened.source)
    if not -num_rows <= row < num_rows:
        raise PlanError(f"row {row} of {opened.name!r}: it has {num_rows:,} rows, counted from 0")
    number = row % num_rows
    one = concat([opened.source])[number : number + 1]
    return number, prepare(one, template=opened.template, num_proc=1, cache=False, progress="none")


def why_recipe(recipe: "Recipe", *, part: str = "train") -> "dict[str, Why]":
    """Why the stores of a recipe would not be found, by the names of its data sets."""
    answers = {}
    for data in recipe.part(part):
        source, template, fan_out = parts(recipe, data)
        answers[data.name] = why(source, template=template, fan_out=fan_out, cache_dir=recipe.settings.get("cache_dir"))
    return answers


def check_recipe(recipe: "Recipe", *, part: str = "train", rows: int = 2000) -> "Iterator[Checked]":
    """Check each data set of a part on rows spread over it (0: on all of them); nothing is prepared."""
    from penstock.report.checks import check, uses_chat_template

    settings = recipe.plan_settings(part)
    opened = [(data, *parts(recipe, data, rows=rows or None, skip_bad=True)) for data in recipe.part(part)]
    chats = [data.name for data, _, template, _ in opened if uses_chat_template(template)]
    for data, found, template, fan_out in opened:
        source = _fanned_out(found, template) if fan_out else found
        yield check(
            source, template, settings, cache=Cache(recipe.settings.get("cache_dir")).root, at_most=rows or len(source),
            name=data.name, on_bad=recipe.open_options(data).get("on_bad", "stop"), beside=chats,
        )  # fmt: skip


def prepare_anew(recipe: "Recipe", *, part: str = "train", rows: int) -> "list[Store]":
    """The first rows of each data set, prepared without a cache: to see how fast that is."""
    stores = []
    for data in recipe.part(part):
        source, template, fan_out = parts(recipe, data)
        first = concat([source])[:rows]
        num_proc = recipe.settings.get("num_proc")
        stores.append(
            prepare(first, template=template, fan_out=fan_out, num_proc=num_proc, cache=False, progress="none")
        )
    return stores


def parts(
    recipe: "Recipe", data: "DataSet", *, rows: int | None = None, skip_bad: bool = False
) -> tuple[Source, Template, bool]:
    """What a data set of a recipe is made of: its source, its template, and whether each turn becomes a sample.

    rows: how many rows will be encoded, where that is not all of them: of few, fastokens is not loaded.
    skip_bad: rows that cannot be read do not stop the choice of a template, whatever on_bad says.
    """
    run = recipe.run_options()
    keeps = run.get("cache", True)
    folder = Cache(run.get("cache_dir")) if keeps else Cache.temporary()
    with recipe.blaming(data):
        place = list(data.path) if isinstance(data.path, tuple) else data.path
        options = recipe.prepare_options(data)
        source = _opened(place, folder, data.name, recipe.open_options(data), options)
        fan_out = options.pop("fan_out", False)
        tokenizer, template = options.pop("tokenizer", None), options.pop("template", "auto")
        shared = frozenset(recipe.settings) - frozenset(data.options)
        facts = folder if keeps else None
        made = _template(source, template, tokenizer, options, facts=facts, rows=rows, shared=shared, skip_bad=skip_bad)
        return source, made, fan_out


def _opened(
    place: Any, folder: Cache, name: str | None, options: dict[str, Any], template_options: dict[str, Any]
) -> Source:
    """A source for `prepare`.  `nulls` is an option of conversation templates and of columnar sources: what is said to the template
    also decides what the source removes, unless the source's own options say otherwise."""
    if is_source(place):
        if isinstance(place, RowAccess):
            place.refuse_empty()
        return cast(Source, place)
    bad = BadRows(**{key: options.pop(key) for key in ("on_bad", "max_bad", "quarantine") if key in options})
    nulls = template_options.get("nulls", "deep")
    defaults = {"nulls": "deep" if nulls == "deep" else "keep"}
    return cast(Source, open_source(place, cache=folder, name=name, bad=bad, defaults=defaults, **options))


def _template(
    source: Source,
    template: str | Template,
    tokenizer: Any,
    options: dict[str, Any],
    *,
    facts: Cache | None,
    rows: int | None = None,
    shared: frozenset[str] = frozenset(),
    skip_bad: bool = False,
) -> Template:
    """facts: where it is remembered what opening a tokenizer and a template told.  rows: how many are encoded, where not all are.
    shared: options that are given to several data sets; those that this one does not take are left out."""
    from penstock.templates import is_worth_fast, open_tokenizer, remembered_template
    from penstock.templates.registry import known_options, uses_chat

    if not isinstance(template, str):
        if options or tokenizer is not None:
            given = [*options, *(["tokenizer"] if tokenizer is not None else [])]
            raise TemplateError(f"a Template was given, so {', '.join(given)} has no use; set it in the template")
        with_engine = getattr(template, "with_engine", None)  # of ours; others name their own engine
        return template if with_engine is None else cast(Template, with_engine(fast=is_worth_fast(source)))
    if template == "auto":
        detection = _detected(_look(source, skip_bad=skip_bad), options, shared)
        _log.info("%s: %s", source.name, detection)
        template, options = detection.chosen, {**detection.options, **options}
    opened = None if tokenizer is None else open_tokenizer(tokenizer, fast=is_worth_fast(source, rows), cache=facts)
    known = known_options(template, chat=uses_chat(template, opened, options)) if shared else []
    return remembered_template(
        template, opened, {k: v for k, v in options.items() if k in known or k not in shared}, facts
    )


def _detected(rows: list[Record], options: dict[str, Any], shared: frozenset[str]) -> "Detection":
    """The template that rows look like.  Options that several data sets share help to choose, but do not rule one out."""
    from penstock.templates import detect

    try:
        return detect(rows, options)
    except TemplateError:
        own = {name: value for name, value in options.items() if name not in shared}
        if own == options:
            raise
        return detect(rows, own)


def _refuse_misplaced(options: dict[str, Any]) -> None:
    """Arguments of `open` that were given to `prepare`."""
    for name in ("shape", "split", "on_bad", "max_bad", "quarantine"):
        if name in options:
            raise TemplateError(f"{name}= belongs to open: prepare(penstock.open(…, {name}={options[name]!r}), …)")


def _fanned_out(source: Source, template: Template) -> Source:
    from penstock.sources.fanout import FanOut

    num_turns, key = getattr(template, "num_turns", None), getattr(template, "turn_key", None)
    if num_turns is None or key is None:
        raise TemplateError(f"fan_out=True makes a sample of each turn, but {template!r} knows no turns; leave it out")
    return FanOut(source, num_turns, key=key)


def _look(source: Source, *, skip_bad: bool = False) -> list[Record]:
    """Rows from all over the source; a row that cannot be read is left out, or an error, as the source's policy says."""
    from penstock.report import look

    if skip_bad:
        return look.read(source, look.spread(len(source), _LOOK))[1]
    found = [next(source.records(row, row + 1)) for row in look.spread(len(source), _LOOK)]
    return [record for record in found if not isinstance(record, BadRow)]
