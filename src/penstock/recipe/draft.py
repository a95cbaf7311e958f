"""Look at data and write a recipe for it: format, template, lengths in tokens, a max_length that loses next to nothing.

Values that were found are written; what is left at its default stands in a comment, as the signatures have it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.cache import Cache
from penstock.errors import BadRecord, SourceError, TemplateError
from penstock.recipe.build import data_set_name
from penstock.recipe.keys import keys
from penstock.recipe.recipe import Recipe
from penstock.recipe.records import CHARACTERS, RecordChoice, choose_record
from penstock.recipe.splits import find_splits, held_out_files, split_of, written
from penstock.report.look import Look, look, read, spread
from penstock.report.max_length import LostShare, lost_share, sensible_length
from penstock.report.numbers import Lengths, length_numbers
from penstock.report.text import count, size
from penstock.sources import BadRows, RowAccess, open_source
from penstock.templates import Detection, detect, open_template, open_tokenizer
from penstock.templates.registry import NAMES, known_options, uses_chat
from penstock.templates.tokenizers import Tokenizer
from penstock.types import Ints, Record

_DETECT_ROWS = 200
_TOKENS_PER_BATCH = 32_768
_MOST_NAMED = 6  # files named in one line


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalDraft:
    """An eval set that was found: files, rows, and what differs from the training data."""

    name: str
    path: str | list[str]
    num_rows: int
    files: list[str]
    own: dict[str, Any]  # keys of a recipe that are said of this set alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A recipe as text, and what it was made of."""

    text: str = ""
    name: str
    path: str | list[str]  # as it is written into the recipe
    shape: str
    num_rows: int
    files: list[str]
    num_bytes: int | None
    template: str
    runner_up: str | None
    why: str  # how the template was found
    options: dict[str, Any]  # of the template
    settings: dict[str, Any]  # everything else that the user gave or the data asks for
    looked: int
    unreadable: int  # of the rows looked at
    lengths: Lengths  # in tokens; estimated from characters without a tokenizer
    is_estimate: bool
    trained_share: float | None  # targets among the tokens
    max_length: int
    model_max_length: int | None
    lost: LostShare  # what max_length loses of the rows looked at
    batch_size: int
    notes: list[str]  # what was chosen among files, and why
    choices: list[str]  # what follows from the template
    problems: list[str]  # rows that were looked at and gave no sample
    eval_sets: list[EvalDraft]

    @property
    def findings(self) -> list[str]:
        on_disk = "" if self.num_bytes is None else f", {size(self.num_bytes)}"
        tokens = self.lengths
        sampled = f"{count(self.looked, 'row')} sampled" + (
            f", {self.unreadable:,} of them unreadable" if self.unreadable else ""
        )
        how = f"estimated from characters, {sampled}" if self.is_estimate else sampled
        trained = "" if self.trained_share is None else f"; {self.trained_share:.1%} of the tokens are trained on"
        return [
            f"{self.name}: {self.shape or 'records'}, {_rows_in(self.num_rows, self.files)}{on_disk}",
            *(f"eval set {each.name}: {_rows_in(each.num_rows, each.files)}" for each in self.eval_sets),
            *self.notes,
            self.why,
            *self.choices,
            f"tokens per sample: median {tokens.p50:,}, p99 {tokens.p99:,}, longest {tokens.max:,} ({how}){trained}",
            self._fits(),
            *self.problems,
        ]  # fmt: skip

    def _fits(self) -> str:
        if self.settings.get("packing") == "concat":
            return (
                f"max_length {self.max_length:,}, packing concat: texts are joined and cut into rows, nothing is lost"
            )
        what = {"truncate": "cut", "split": "split", "error": "an error"}.get(
            str(self.settings.get("overflow")), "dropped"
        )
        return f"max_length {self.max_length:,}: {self.lost.describe(what)}"


def draft(
    place: str | list[str],
    *,
    output: Path,
    tokenizer: str | None,
    cache_dir: Any = None,
    rows: int = 1000,
    template: str | None = None,
    given: Mapping[str, Any] | None = None,
) -> Draft:
    """Look at the data and write a recipe that will be the file `output`.  `given` are keys of a recipe."""
    from penstock.recipe.layout import layout

    settings = dict(given or {})
    Recipe.of(place, **settings)  # refuses what a recipe does not take
    template = template or settings.pop("template", None)
    tokenizer = tokenizer or settings.pop("tokenizer", None)
    opened = None if tokenizer is None else open_tokenizer(tokenizer)
    cache = Cache(cache_dir or settings.get("cache_dir"))
    chosen = _Chosen(place, settings, cache, opened)
    source = chosen.source
    _, records, bad = read(source, spread(len(source), _DETECT_ROWS))
    if not len(source):
        raise TemplateError(f"{', '.join(source.files) or source.name}: no rows, so there is nothing to look at")
    if not records:
        raise BadRecord(f"none of {count(len(bad), 'sampled row')} can be read; the first: {bad[0][1]}")
    options = {key: settings.pop(key) for key in list(settings) if _is_of_template(key)}
    detection = _named(template, len(records)) if template else detect(records, options)
    options = _all_options(detection, options, opened)
    found = _looked(source, detection, options, opened, rows)
    problems = _problems(source, bad, len(records) + len(bad), found)
    if found is not None and not found.samples:
        raise TemplateError(f"{chosen.name}: none of the sampled rows gives a sample: {'; '.join(problems)}")
    if detection.chosen == "text":
        settings.setdefault("packing", "concat")
    lengths = _estimated(records) if found is None else found.lengths
    trained = lengths if found is None else found.trained
    limit = None if opened is None else opened.model_max_length
    is_cut = settings.get("packing") == "concat"
    max_length = settings.pop("max_length", None) or sensible_length(
        lengths, np.zeros_like(trained) if is_cut else trained, limit
    )
    made = Draft(
        name=chosen.name,
        path=chosen.path,
        shape=source.shape,
        num_rows=len(source),
        files=list(source.files),
        num_bytes=source.num_bytes,
        template=detection.chosen,
        runner_up=detection.runner_up,
        why=f"template: {template}, as you asked" if template else detection.why,
        options=options,
        settings=settings,
        looked=len(records) + len(bad) if found is None else found.looked,
        unreadable=len(bad) if found is None else len(found.bad),
        lengths=length_numbers(lengths),
        is_estimate=found is None,
        trained_share=None if found is None or not found.tokens else int(found.trained.sum()) / found.tokens,
        max_length=max_length,
        model_max_length=limit,
        lost=lost_share(lengths, trained, max_length),
        batch_size=settings.pop("batch_size", None) or max(1, min(8, _TOKENS_PER_BATCH // max_length)),
        notes=chosen.notes,
        choices=_chat_note(options, opened),
        problems=problems,
        eval_sets=chosen.eval_sets(detection.chosen, options, opened) if chosen.splits else [],
    )
    return replace(made, text=layout(made, output, tokenizer))


class _Chosen:
    """Which files are trained on, which are for evaluation, and what is one record of them."""

    def __init__(
        self, place: str | list[str], settings: dict[str, Any], cache: Cache, tokenizer: Tokenizer | None
    ) -> None:
        self._settings, self._cache = settings, cache
        self.splits = find_splits(place) if isinstance(place, str) and "split" not in settings else None
        self.notes: list[str] = []
        if self.splits is not None and not self.splits.train:
            listed = "; ".join(f"{name}: {_names(files)}" for name, files in self.splits.eval_sets.items())
            first = next(iter(self.splits.eval_sets.values()))
            raise SourceError(
                f"{place}: every file is named as one to evaluate on ({listed}), so none is left to train on; "
                f"to train on some of them, name the files: penstock init {_few_paths(first)}"
            )
        self.path: str | list[str] = written(self.splits.train) if self.splits else place
        self.name = data_set_name(self.path)
        self.source = self._open(self.path)
        self._note_files(place)
        if self.source.shape == "text" and "record" not in settings.get("options", {}):
            found = self._record(tokenizer)
            settings["options"] = {**settings.get("options", {}), "record": found.chosen}
            self.notes.append(found.why)
            self.source = self._open(self.path)

    def _open(self, path: str | list[str], **options: Any) -> RowAccess:
        given = {key: value for key, value in self._settings.items() if keys()[key].room == "open"}
        own = {**given.pop("options", {}), **options}
        bad = BadRows(**{key: given.pop(key) for key in ("on_bad", "max_bad", "quarantine") if key in given})
        given.pop("cache_dir", None)
        return open_source(path, cache=self._cache, name=self.name, bad=bad, **given, **own)

    def _record(self, tokenizer: Tokenizer | None) -> RecordChoice:
        def tokens(texts: Sequence[str]) -> Sequence[int]:
            if tokenizer is None:
                return [len(text) // CHARACTERS for text in texts]
            return list(np.diff(tokenizer.encode(texts)[1]).tolist())

        return choose_record(
            lambda record: self._open(self.path, record=record), tokens, num_files=len(self.source.files)
        )

    def _note_files(self, place: str | list[str]) -> None:
        if self.splits is not None:
            if self.splits.others:
                self.notes.append(
                    f"not used, because the name says neither train nor eval: {_names(self.splits.others)}"
                )
            return
        places = [place] if isinstance(place, str) else place
        held_out = held_out_files(places, self.source.files)
        if held_out:
            named = {os.path.basename(each.partition("@[")[0].rstrip("/")) for each in places}  # noqa: PTH119
            firsts = {each.partition("/")[0] for each in held_out}
            is_named = firsts <= named and None not in map(split_of, firsts)
            one = len(held_out) == 1
            why = (
                f"because you named {'it' if one else 'them'}"
                if is_named
                else "init keeps such files apart where it is given one folder"
            )
            self.notes.append(
                f"note: {_few(held_out)} {'looks' if one else 'look'} like data for evaluation; "
                f"{'it is' if one else 'they are'} trained on{' ' if is_named else ': '}{why}"
            )

    def eval_sets(self, template: str, options: dict[str, Any], tokenizer: Tokenizer | None) -> list[EvalDraft]:
        """The other splits; one whose rows have another format gets its own template."""
        assert self.splits is not None
        made = []
        for name, files in self.splits.eval_sets.items():
            own: dict[str, Any] = {}
            source = open_source(list(files), cache=self._cache)
            if source.shape != self.source.shape:
                own["options"] = {}
            elif self._settings.get("options"):
                source = self._open(list(files))
            _, records, _ = read(source, spread(len(source), _DETECT_ROWS))
            try:
                detection = detect(records, {}) if records else None
            except TemplateError as error:
                self.notes.append(f"eval set {name}: {error}")
                detection = None
            if detection is not None and detection.chosen != template:
                own |= {"template": detection.chosen, **_all_options(detection, {}, tokenizer)}
            path = written(files)
            made.append(EvalDraft(name=name, path=path, num_rows=len(source), files=list(files), own=own))
        return made


def _is_of_template(key: str) -> bool:
    return keys()[key].room == "template" and key not in ("tokenizer", "template", "fan_out")


def _all_options(detection: Detection, options: dict[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Options of the template, found and given; for two-sided rows, whether the chat template is used is written out."""
    made = {**detection.options, **options}
    if detection.chosen in NAMES and "chat" in known_options(detection.chosen, chat=None):
        made.setdefault("chat", uses_chat(detection.chosen, tokenizer, made))
    return made


def _chat_note(options: dict[str, Any], tokenizer: Tokenizer | None) -> list[str]:
    if "chat" not in options or tokenizer is None:
        return []
    if options["chat"]:
        return ["chat: true: both sides are rendered by the chat template; set chat: false for plain text"]
    other = "; set chat: true to render them with the chat template" if tokenizer.chat_templates else ""
    return [f"chat: false: both sides are plain text{other}"]


def _named(template: str, num_rows: int) -> Detection:
    """The user named the template."""
    return Detection(chosen=template, runner_up=None, scores={template: num_rows}, num_rows=num_rows)


def _looked(
    source: RowAccess, detection: Detection, options: dict[str, Any], tokenizer: Tokenizer | None, rows: int
) -> Look | None:
    """Rows as samples; None without a tokenizer."""
    if detection.chosen == "pretokenized" and tokenizer is None:
        options.setdefault("vocab_size", _largest(source, options.get("input_key", "input_ids"), rows) + 1)
    elif tokenizer is None:
        return None
    return look(source, open_template(detection.chosen, tokenizer, options), at_most=rows)


def _problems(source: RowAccess, bad: list[tuple[int, str]], looked: int, found: Look | None) -> list[str]:
    """What `penstock check` will say more about; a recipe is written all the same."""
    bad, looked = (bad, looked) if found is None else (found.bad, found.looked)
    of = f"of {looked:,} sampled rows"
    lines = [f"{len(bad):,} {of} cannot be read; fix them, or set on_bad: skip: {bad[0][1]}"] if bad else []
    if found is not None and found.refused:
        row, message = found.refused[0]
        lines.append(f"{len(found.refused):,} {of} give an error in the template: {source.where(row)}: {message}")
    dropped = found.dropped.items() if found is not None else ()
    lines += [f"{len(rows):,} {of} are dropped: {reason} (first: {source.where(rows[0])})" for reason, rows in dropped]
    return lines


def _largest(source: RowAccess, key: str, rows: int) -> int:
    return max((int(max(ids)) for row in spread(len(source), rows) if len(ids := source[row].get(key, ()))), default=0)


def _estimated(records: list[Record]) -> Ints:
    return np.array([max(_characters(record) // CHARACTERS, 1) for record in records], np.int64)


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_characters, parts))


def _names(files: Sequence[str]) -> str:
    return _few([os.path.basename(file.rstrip("/")) for file in files])  # noqa: PTH119


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _rows_in(num_rows: int, files: Sequence[str]) -> str:
    listed = f" ({_names(files)})" if files else ""
    return f"{count(num_rows, 'row')} in {count(len(files), 'file')}{listed}"


def _few_paths(files: Sequence[str]) -> str:
    return " ".join(files[:2]) + (" …" if len(files) > 2 else "")
