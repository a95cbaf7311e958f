"""Connect the rooms: `open` returns a source, `prepare` makes a store of it.  recipe/run.py does the same for a recipe.

Each function imports the rooms that it needs when it is called: `open` imports the sources and nothing else.  Parameters that are keys of
a recipe are annotated with their documentation; the pages about keys, commands and Python are made from it.
"""

import logging
import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, fields
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from penstock.cache import Cache, open_cache
from penstock.errors import BadRecord, SourceError, TemplateError
from penstock.settings import setting, taken, takes, with_plugin_options
from penstock.sources import BadRows, RowAccess, concat, interleave, is_source, open_source
from penstock.sources.bad import POLICIES
from penstock.sources.splits import Purpose
from penstock.types import AnyTemplate, BadRow, Engine, Record, Source, opened
from penstock.words import spread

if TYPE_CHECKING:
    from penstock.options import OpenOptions, PrepareOptions
    from penstock.store import Progress, Store
    from penstock.templates import Detection, Tokenizer

__all__ = ["concat", "interleave", "open", "prepare"]

_log = logging.getLogger("penstock")

_SAMPLED = 200  # rows that a template is detected from

_CACHE_DIR = "the cache: a folder, or a URL in a bucket; default: $PENSTOCK_CACHE, or the cache folder of the platform"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSettings:
    """Keyword arguments of `open` for every format."""

    format: str | None = setting(
        "file format, if file names do not show it: jsonl, json, csv, text, parquet, arrow, webdataset, megatron, token_bin, "
        "datatrove, mds, litdata, hf, pt, parquet_chunks, media_folder, sample_folder, yaml; of agent traces: agent_trace, claude_code, "
        "codex, pi, droid, hermes, atif, harmony, swe_smith, harbor",
        None,
        former="shape",
    )
    split: str | None = setting("split of a dataset folder, such as train or train[:10%]", None)
    config: str | None = setting("configuration of a dataset on the hub, if it has several", None)
    revision: str | None = setting(
        "branch, tag or commit of a dataset on the hub; default: main", None
    )
    data_files: str | list[Any] | dict[str, Any] | None = setting(
        "files of a dataset on the hub: patterns, or patterns by split", None
    )
    name: str | None = setting("name of the source; default: its file or folder", None)
    cache_dir: str | os.PathLike[str] | None = setting(_CACHE_DIR, None)
    on_bad: str = setting(
        "what to do with a record that cannot be read: stop, skip or quarantine",
        "stop",
        choices=POLICIES,
    )
    max_bad: int | None = setting("maximum number of bad records", None)
    quarantine: str | os.PathLike[str] | None = setting(
        "file that bad records are written to", None
    )
    filter: str | Callable[..., Any] | None = setting(
        "a function over records, as module:function; records for which it returns false are left out and counted",
        None,
    )
    filter_version: str | int | None = setting(
        "have the answers of the filter remembered; raise it when something changes that the function uses",
        None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareSettings:
    """Keyword arguments of `prepare` for every template."""

    tokenizer: Any = setting(
        "a folder, a tokenizer.json, a URL of one of these, or a name on the hub", None
    )
    template: str | AnyTemplate = setting(
        "how records become samples; auto detects it from the data", "auto"
    )
    name: str | None = setting("name of the store; default: that of its source", None)
    cache_dir: str | os.PathLike[str] | None = setting(_CACHE_DIR, None)
    num_proc: int | None = setting(
        "number of processes; default: all cores, shared with other local ranks", None
    )
    engine: str | Engine = setting(
        "what runs the work: local, ray, ray://host:port, or an Engine object", "local"
    )
    refresh: bool = setting("prepare every shard again", False)
    cache: bool = setting("false keeps no prepared shards on disk, whatever cache_dir is", True)
    background: bool = setting(
        "prepare shards while they are used; needs a small shuffle_window, or no shuffle", False
    )
    fan_out: bool = setting(
        "write one sample for each trained turn, which ends with that turn", False
    )
    progress: str | Callable[["Progress"], object] = setting(
        "auto (a bar or lines), plain, none, or a function", "auto"
    )


@takes("OpenOptions", former_parameters={"place": "path"})
def open(path: Any, **options: Unpack["OpenOptions"]) -> RowAccess:
    """Open records by number.

    path: a path, a URL (s3://, gs://, az://, http://, hf://), a glob, a folder, `org/name` of a dataset on the hub, a list of those, a
    list of dicts, a function that yields dicts, a table (pandas, polars, pyarrow), or a dataset of `datasets`.
    Records can be chosen in the name: "chat.jsonl@[:1000]".
    """
    of_format = with_plugin_options({**options})
    asked = OpenSettings(**taken(of_format, OpenSettings))
    quarantine = None if asked.quarantine is None else os.fspath(asked.quarantine)
    source = open_source(
        path,
        cache=open_cache(asked.cache_dir),
        name=asked.name,
        format=asked.format,
        split=asked.split,
        bad=BadRows(asked.on_bad, max_bad=asked.max_bad, quarantine=quarantine),
        config=asked.config,
        revision=asked.revision,
        data_files=asked.data_files,
        **of_format,
    )
    return filtered(source, asked.filter, asked.filter_version)


def filtered(
    source: RowAccess,
    keep: str | Callable[..., Any] | None,
    version: str | int | None,
    *,
    num_proc: int | None = 1,
    folder: Path | None = None,
) -> RowAccess:
    """Return the records that a filter keeps.  folder: where the module of a function may be, too."""
    if keep is None:
        if version is not None:
            raise SourceError(
                f"filter_version={version!r} belongs to a filter; pass filter=, or leave it out"
            )
        return source
    from penstock.sources.filter import read_function  # it imports the engines

    function = read_function(keep, folder) if isinstance(keep, str) else keep
    return source.filter(function, num_proc=num_proc, version=version)


@takes("PrepareOptions", former_parameters={"place": "path", "shape": "format"})
def prepare(path: Any, **options: Unpack["PrepareOptions"]) -> "Store":
    """Make samples of records, on disk.

    path: a source, or what `open` takes.
    """
    from penstock.engines import open_engine
    from penstock.report.progress import lines_shown, showing
    from penstock.sources.files import handle_dropped
    from penstock.store import build
    from penstock.store.inventory import save_origin

    of_template = with_plugin_options({**options})
    asked = PrepareSettings(**taken(of_template, PrepareSettings))
    _refuse_misplaced(of_template)
    cache = open_cache(asked.cache_dir) if asked.cache else Cache.temporary()
    facts = cache if asked.cache else None
    with lines_shown(asked.progress):
        source = open_for_prepare(path, cache, asked.name, {}, of_template)
        template = choose_template(
            source, asked.template, asked.tokenizer, of_template, facts=facts
        )
    if asked.fan_out:
        source = by_turns(source, template)
    # without background, this process waits while shards are made
    engine = open_engine(asked.engine, num_proc=asked.num_proc, inline=not asked.background)
    with showing(asked.progress) as show:
        store = build(
            source,
            template,
            engine=engine,
            cache=cache,
            refresh=asked.refresh,
            background=asked.background,
            progress=None if asked.background and not callable(asked.progress) else show,
        )
    if asked.cache:
        save_origin(store)
    if store.manifest is not None:
        handle_dropped(store)
    why_empty = store.why_empty()
    if why_empty is not None:
        _log.warning("%s: %s; look at the data with penstock check", store.name, why_empty)
    unrendered = store.unrendered()
    if unrendered:
        _log.warning(
            "%s: %s; to stop or skip such records, set on_unrendered", store.name, unrendered
        )
    for remark in store.odd_turns():
        _log.warning("%s: %s", store.name, remark)
    return store


def _refuse_misplaced(options: dict[str, Any]) -> None:
    """Arguments of `open` that were given to `prepare`."""
    of_open = [each.name for each in fields(OpenSettings)]
    for name in of_open:
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

    facts: the cache of facts about tokenizers and templates.  rows: how many records will be encoded, if not all; for few, fastokens is not
    loaded.  shared: options that several datasets share; those that this one does not take are left out.  skip_bad: detect the
    template without records that cannot be read, whatever on_bad says.
    """
    from penstock.templates import TemplateSpec, bytes_to_encode, fast_bytes, open_tokenizer
    from penstock.templates.protocols import ChoosesEngine
    from penstock.templates.registry import known_options, uses_chat

    if not isinstance(template, str):
        if options or tokenizer is not None:
            given = [*options, *(["tokenizer"] if tokenizer is not None else [])]
            raise TemplateError(
                f"a Template was given, so {', '.join(given)} has no effect; set it in the template"
            )
        if isinstance(template, ChoosesEngine):  # of ours; others name their own engine
            return template.with_engine(
                fast=bytes_to_encode(source) >= fast_bytes(template.vocab_size)
            )
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
    opened_tokenizer = None
    if tokenizer is not None:
        opened_tokenizer = open_tokenizer(
            tokenizer, num_bytes=bytes_to_encode(source, rows), cache=facts
        )
    if shared:  # by several datasets, whose templates may not have all of them
        is_chat = uses_chat(template, opened_tokenizer, options)
        names = known_options(template, chat=is_chat)
        options = {
            name: value for name, value in options.items() if name in names or name not in shared
        }
    completed = complete_options(source, template, opened_tokenizer, options)
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
    """The template that records look like.  Options that several datasets share help to choose, but do not rule one out."""
    from penstock.templates import detect

    try:
        return detect(rows, options)
    except TemplateError:
        options_not_shared = {name: value for name, value in options.items() if name not in shared}
        if options_not_shared == options:
            raise
        return detect(rows, options_not_shared)


def _sampled(source: Source, *, skip_bad: bool) -> list[Record]:
    """Records from all over the source.  The source's policy decides about records that cannot be read, unless they are skipped."""
    records: list[Record | BadRow] = []
    for row in _sampled_rows(source):
        with suppress(BadRecord) if skip_bad else nullcontext():
            records.append(source[row] if skip_bad else next(source.records(row, row + 1)))
    return [record for record in records if not isinstance(record, BadRow)]


def _nothing_to_detect(source: Source) -> SourceError:
    """The error for a template that is to be detected from no records."""
    files = ", ".join(getattr(source, "files", [])[:3]) or source.name
    if not len(source):
        return SourceError(f"{files}: there are no records; give data that has some")
    return SourceError(
        f"{files}: none of {len(source):,} records can be read, so no template can be detected; look at them with penstock check"
    )


def _sampled_rows(source: Source) -> Iterable[int]:
    """Records from all over the source; of a stream, the first ones."""
    if getattr(source, "is_stream", False):
        return takewhile(cast(Any, source).has_row, range(_SAMPLED))
    return spread(len(source), _SAMPLED)


def by_turns(source: Source, template: AnyTemplate) -> Source:
    """A source with one record for each trained turn."""
    from penstock.sources.views import FanOut
    from penstock.templates.protocols import HasTurns

    conversations = opened(template)
    if not isinstance(conversations, HasTurns):
        raise TemplateError(
            f"fan_out=True makes a sample of each turn, but {conversations!r} has no turns; leave it out"
        )
    return FanOut(source, conversations.num_turns, key=conversations.turn_key)
