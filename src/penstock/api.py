"""Connect the rooms: `open` returns a source, `prepare` makes a store of it.  recipe/run.py does the same for a recipe.

Each function imports the rooms that it needs when it is called: `open` imports the sources and nothing else.  Parameters that are keys of
a recipe are annotated with their documentation; the pages about keys, commands and Python are made from it.
"""

import logging
import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any, cast

from penstock.cache import Cache, open_cache
from penstock.errors import BadRecord, SourceError, TemplateError
from penstock.settings import accepts_old_names
from penstock.sources import BadRows, RowAccess, concat, is_source, open_source
from penstock.sources.splits import Purpose
from penstock.types import AnyTemplate, BadRow, Engine, Record, Source, opened
from penstock.words import spread

if TYPE_CHECKING:
    from penstock.store import Progress, Store
    from penstock.templates import Detection, Tokenizer

__all__ = ["concat", "open", "prepare"]

_log = logging.getLogger("penstock")

_SAMPLED = 200  # rows that a template is detected from

_Progress = str | Callable[["Progress"], object]
_CacheDir = Annotated[
    str | os.PathLike[str] | None,
    "the cache: a folder, or a URL in a bucket; else PENSTOCK_CACHE, else the platform's folder",
]


@accepts_old_names("place", "shape")
def open(
    path: Any,
    *,
    format: Annotated[
        str | None,
        "file format, if file names do not show it: jsonl, json, csv, text, parquet, arrow, webdataset, megatron, token_bin, "
        "datatrove, mds, litdata, hf, pt, media_folder, sample_folder, yaml",
    ] = None,
    split: Annotated[str | None, "split of a data set folder, such as train or train[:10%]"] = None,
    config: Annotated[
        str | None, "configuration of a data set on the hub, if it has several"
    ] = None,
    revision: Annotated[
        str | None, "branch, tag or commit of a data set on the hub; else main"
    ] = None,
    data_files: Annotated[
        str | list[Any] | dict[str, Any] | None,
        "files of a data set on the hub: patterns, or patterns by split",
    ] = None,
    name: str | None = None,
    cache_dir: _CacheDir = None,
    on_bad: Annotated[
        str, "what to do with a row that cannot be read: stop, skip or quarantine"
    ] = "stop",
    max_bad: Annotated[int | None, "how many bad rows are allowed"] = None,
    quarantine: Annotated[
        str | os.PathLike[str] | None, "file that bad rows are written to"
    ] = None,
    **options: Any,
) -> RowAccess:
    """Open records by number.

    path: a path, a URL (s3://, gs://, az://, http://, hf://), a glob, a folder, `org/name` of a data set on the hub, a list of those, a
    list of dicts, a function that yields dicts, a table (pandas, polars, pyarrow), or a data set of `datasets`.
    Rows can be chosen in the name: "chat.jsonl@[:1000]".
    options: those of the file format, such as `record` of text; an unknown one is an error.
    """
    bad = BadRows(
        on_bad,
        max_bad=max_bad,
        quarantine=os.fspath(quarantine) if quarantine is not None else None,
    )
    hub: dict[str, Any] = {"config": config, "revision": revision, "data_files": data_files}
    return open_source(
        path,
        cache=open_cache(cache_dir),
        name=name,
        format=format,
        split=split,
        bad=bad,
        **hub,
        **options,
    )


@accepts_old_names("place", "shape", "template_kwargs")
def prepare(
    path: Any,
    *,
    tokenizer: Annotated[
        Any, "a folder, a tokenizer.json, a URL of one of these, or a name on the hub"
    ] = None,
    template: Annotated[
        str | AnyTemplate, "how records become samples; auto detects it from the data"
    ] = "auto",
    name: str | None = None,
    cache_dir: _CacheDir = None,
    num_proc: Annotated[
        int | None, "number of processes; else all cores, shared with other local ranks"
    ] = None,
    engine: Annotated[
        str | Engine, "what runs the work: local, ray, ray://host:port, or an Engine object"
    ] = "local",
    refresh: Annotated[bool, "prepare every shard again"] = False,
    cache: Annotated[bool, "false keeps no prepared shards on disk, whatever cache_dir is"] = True,
    background: Annotated[
        bool, "prepare shards while they are used; needs a small window, or no shuffle"
    ] = False,
    fan_out: Annotated[bool, "make one sample of each trained turn, ending with that turn"] = False,
    progress: Annotated[_Progress, "auto (a bar or lines), plain, none, or a function"] = "auto",
    **options: Any,
) -> "Store":
    """Make samples of records, on disk.

    path: a source, or what `open` takes.
    options: those of the template; an unknown one is an error.
    """
    from penstock.engines import open_engine
    from penstock.report.progress import showing
    from penstock.sources.files import handle_dropped
    from penstock.store import build
    from penstock.store.inventory import save_origin

    _refuse_misplaced(options)
    folder = open_cache(cache_dir) if cache else Cache.temporary()
    source = open_for_prepare(path, folder, name, {}, options)
    made = choose_template(source, template, tokenizer, options, facts=folder if cache else None)
    source = by_turns(source, made) if fan_out else source
    runner = open_engine(
        engine, num_proc=num_proc, inline=not background
    )  # this process trains while shards are made
    with showing(progress) as show:
        store = build(
            source,
            made,
            engine=runner,
            cache=folder,
            refresh=refresh,
            background=background,
            progress=None if background and not callable(progress) else show,
        )
    if cache:
        save_origin(store)
    if store.manifest is not None:
        handle_dropped(store)
    if lost := store.unrendered():
        _log.warning("%s: %s; to stop or skip such records, set on_unrendered", store.name, lost)
    for odd in store.odd_turns():
        _log.warning("%s: %s", store.name, odd)
    return store


def _refuse_misplaced(options: dict[str, Any]) -> None:
    """Arguments of `open` that were given to `prepare`."""
    for name in (
        "format",
        "split",
        "config",
        "revision",
        "data_files",
        "on_bad",
        "max_bad",
        "quarantine",
    ):
        if name in options:
            raise TemplateError(
                f"{name}= is an option of open: prepare(penstock.open(…, {name}={options[name]!r}), …)"
            )


def open_for_prepare(
    place: Any,
    folder: Cache,
    name: str | None,
    options: dict[str, Any],
    template_options: dict[str, Any],
    *,
    purpose: Purpose = "train",
) -> Source:
    """A source for `prepare`.  The template's option `nulls` also decides which nulls a columnar source removes, unless the source's own
    options say otherwise."""
    if is_source(place):
        if isinstance(place, RowAccess):
            place.refuse_empty()
        return cast(Source, place)
    bad = BadRows(
        **{key: options.pop(key) for key in ("on_bad", "max_bad", "quarantine") if key in options}
    )
    defaults = {"nulls": "deep" if template_options.get("nulls", "deep") == "deep" else "keep"}
    return cast(
        Source,
        open_source(
            place,
            cache=folder,
            name=name,
            bad=bad,
            defaults=defaults,
            purpose=purpose,
            **options,
        ),
    )


def choose_template(
    source: Source,
    template: str | AnyTemplate,
    tokenizer: Any,
    options: dict[str, Any],
    *,
    facts: Cache | None,
    rows: int | None = None,
    shared: frozenset[str] = frozenset(),
    skip_bad: bool = False,
) -> AnyTemplate:
    """The template for a source, by its name or detected.

    facts: the cache of facts about tokenizers and templates.  rows: how many rows will be encoded, if not all; for few, fastokens is not
    loaded.  shared: options that several data sets share; those that this one does not take are left out.  skip_bad: detect the
    template without rows that cannot be read, whatever on_bad says.
    """
    from penstock.templates import TemplateSpec, is_worth_fast, open_tokenizer
    from penstock.templates.protocols import ChoosesEngine
    from penstock.templates.registry import known_options, uses_chat

    if not isinstance(template, str):
        if options or tokenizer is not None:
            given = [*options, *(["tokenizer"] if tokenizer is not None else [])]
            raise TemplateError(
                f"a Template was given, so {', '.join(given)} has no effect; set it in the template"
            )
        if isinstance(template, ChoosesEngine):  # of ours; others name their own engine
            return template.with_engine(fast=is_worth_fast(source))
        return template
    if template == "auto":
        sampled = _sampled(source, skip_bad=skip_bad)
        if sampled:
            detection = _detected(sampled, options, shared)
            _log.info("%s: %s", source.name, detection)
            template = detection.chosen
            options = {**detection.options, **options}
        elif skip_bad:
            template = "text"  # any will do: the checks say that there is nothing to encode
        else:
            raise _nothing_to_detect(source)
    fast = is_worth_fast(source, rows)
    opened_tokenizer = (
        None if tokenizer is None else open_tokenizer(tokenizer, fast=fast, cache=facts)
    )
    known = (
        known_options(template, chat=uses_chat(template, opened_tokenizer, options))
        if shared
        else []
    )
    own = {name: value for name, value in options.items() if name in known or name not in shared}
    completed = complete_options(source, template, opened_tokenizer, own)
    return TemplateSpec(template, opened_tokenizer, completed, facts)


def complete_options(
    source: Source, name: str, tokenizer: "Tokenizer | None", options: dict[str, Any]
) -> dict[str, Any]:
    """The options of a template with those that follow from the data, such as the folder of media."""
    from penstock.templates import registry

    return registry.complete_options(
        name,
        tokenizer,
        options,
        source=source,
        sample=lambda: _sampled(source, skip_bad=True),
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


def _sampled(source: Source, *, skip_bad: bool) -> list[Record]:
    """Rows from all over the source.  The source's policy decides about rows that cannot be read, unless they are skipped."""
    found: list[Record | BadRow] = []
    for row in _sampled_rows(source):
        with suppress(BadRecord) if skip_bad else nullcontext():
            found.append(source[row] if skip_bad else next(source.records(row, row + 1)))
    return [record for record in found if not isinstance(record, BadRow)]


def _nothing_to_detect(source: Source) -> SourceError:
    """The error for a template that is to be detected from no rows."""
    files = ", ".join(getattr(source, "files", [])[:3]) or source.name
    if not len(source):
        return SourceError(f"{files}: there are no rows; give data that has some")
    return SourceError(
        f"{files}: none of {len(source):,} rows can be read, so no template can be detected; look at them with penstock check"
    )


def _sampled_rows(source: Source) -> Iterable[int]:
    """Rows from all over the source; of a stream, the first ones."""
    if getattr(source, "is_stream", False):
        return takewhile(cast(Any, source).has_row, range(_SAMPLED))
    return spread(len(source), _SAMPLED)


def by_turns(source: Source, template: AnyTemplate) -> Source:
    """A source with one row for each trained turn."""
    from penstock.sources.views import FanOut
    from penstock.templates.protocols import HasTurns

    conversations = opened(template)
    if not isinstance(conversations, HasTurns):
        raise TemplateError(
            f"fan_out=True makes a sample of each turn, but {conversations!r} has no turns; leave it out"
        )
    return FanOut(source, conversations.num_turns, key=conversations.turn_key)
