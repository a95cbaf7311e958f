"""What the page asks for, as JSON values: the overview, records that pass filters, one sample, the run and its live state.

Nothing here writes, and nothing is prepared: of data that is not prepared, records are shown, and a sample is made of one record alone.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from penstock.errors import PenstockError, PlanError
from penstock.extras.media.chat_step import media_reader
from penstock.extras.media.files import looks_like
from penstock.extras.media.report import items_of
from penstock.extras.view.facts import Facts, Job, whole
from penstock.extras.view.losses import LossView
from penstock.extras.view.run import RunView
from penstock.extras.view.search import Search, TextIndex, chosen, fold, record_rows, record_strings
from penstock.extras.view.summary import identity, summary
from penstock.extras.view.thumbnails import Thumbnails
from penstock.loader import Loader
from penstock.loader.status import read_status, run_ids
from penstock.plan.settings import PlanSettings
from penstock.reasons import meaning
from penstock.report.numbers import plain, stores
from penstock.report.record import rendered_text, sample_tokens
from penstock.report.trace import trace_sample, unprepared
from penstock.store import Sample, Store
from penstock.store.counts import Counts
from penstock.templates.protocols import tokenizer_of
from penstock.types import Ints, Record, Source

_MOST_ROWS = 200  # of one answer
_MOST_TOKENS = 2_000  # of one answer
_MOST_TEXT = 200_000  # characters of one answer
_PREVIEW = 240  # characters
_BEFORE_HIT = 12  # characters shown before a hit of a search
_MOST_SEARCHED = 100_000  # characters of a record in which its line looks for the hit
_MOST_SEARCHES = 8  # kept
_SIDE = 480  # pixels of an image
# How files of sound and film begin that browsers play, and their types; other files are never sent.
_PLAYED = (
    (4, b"ftyp", "mp4"),
    (0, b"\x1aE\xdf\xa3", "webm"),
    (8, b"WAVE", "wav"),
    (0, b"fLaC", "flac"),
    (0, b"OggS", "ogg"),
    (0, b"ID3", "mpeg"),
    (0, b"\xff\xfb", "mpeg"),
    (0, b"\xff\xf3", "mpeg"),
    (0, b"\xff\xf2", "mpeg"),
)
_FILTERS_OF_LENGTH = ("length_from", "length_to")  # known at once
_FILTERS_OF_FACTS = (  # complete when all masks are read
    "targets_from",
    "targets_to",
    "share_from",
    "share_to",
    "reason",
    "media",
)
_FILTERS = (*_FILTERS_OF_LENGTH, *_FILTERS_OF_FACTS)


class ShownSet(Protocol):
    """A dataset of a recipe, opened; `recipe.run.OpenSet` is one."""

    @property
    def name(self) -> str: ...
    @property
    def rows(self) -> Source: ...
    def prepare_row(self, row: int) -> tuple[int, Store]: ...


@dataclass(frozen=True, slots=True)
class Clip:
    """A video or an audio clip of a sample, as it is in its file; `read` returns a part of its bytes."""

    media_type: str
    num_bytes: int
    read: Callable[[slice], bytes]


@dataclass(frozen=True, slots=True)
class _Progress:
    """Whether all that an answer needs is known, and the states that the page shows."""

    is_complete: bool
    states: dict[str, Any]

    def __or__(self, other: "_Progress") -> "_Progress":
        """Return the progress of both; of a state that both have, the other's."""
        return _Progress(self.is_complete and other.is_complete, self.states | other.states)


class Viewer:
    """Everything that the page can ask about one part of a recipe."""

    def __init__(
        self,
        loader: Loader | None,
        opened: Sequence[ShownSet],
        *,
        settings: PlanSettings,
        title: str = "",
        recipe: str = "",
        command: str = "",
        skip: Sequence[int] = (),
        cache: Path | None = None,
        run_id: str | None = None,
        thumbnails: Thumbnails | None = None,
        part: str = "train",
        parts: Mapping[str, Counts | None] | None = None,
    ) -> None:
        """loader: None if the data is not prepared; `command` prepares it.  cache: where running jobs write their state.

        part, parts: which one of the recipe's parts is shown, and all of them: "train", and the evaluation sets; with what they contain,
        or None where that is not prepared.
        thumbnails: draws the pictures of all samples; else each sample has its own, which may be large.
        """
        self._loader = loader
        self._opened = list(opened)
        self._settings = settings
        self._about = {
            "title": title,
            "recipe": recipe,
            "command": command,
            "skip_steps": sorted(skip),
            "run_id": run_id,
            "part": part,
            "parts": [_part_numbers(name, counts) for name, counts in (parts or {}).items()],
        }
        # Templates need seconds for their first record, so a list of records does not wait for them; taken in this order.
        self._cache = cache
        self._templates = threading.Lock()
        self._lock = threading.Lock()
        self.stores: dict[str, Store] = {} if loader is None else stores(loader)
        self.names = list(self.stores) or [each.name for each in opened]
        self.sources = [store.source for store in self.stores.values()] or [
            each.rows for each in opened
        ]
        self.starts: Ints = np.cumsum([0, *map(len, self.sources)]).astype(np.int64)
        self.facts = None if loader is None else Facts(loader)
        self._run = (
            None
            if loader is None or self.facts is None
            else RunView(loader, self.facts, self._lock)
        )
        plan = None if loader is None else loader.plan.fingerprint
        self._losses = LossView(cache, self.names, self.starts, plan)
        self._own = threading.Lock()  # of the two tables below
        self._indexes: dict[str, TextIndex] = {}
        self._searches: OrderedDict[tuple[str, str], Search] = OrderedDict()
        self._thumbnails = thumbnails
        self._summary: Job[dict[str, Any]] | None = None  # begun when it is first asked for
        self._warm = Job(self._use_templates, len(self.stores))
        self._answers: dict[str, Callable[[Mapping[str, str]], dict[str, Any]]] = {
            "overview": self.overview,
            "rows": self.rows,
            "sample": self.sample,
            "positions": self.positions,
            "run": self._of_run("run"),
            "step": self._of_run("step"),
            "what_if": self._of_run("what_if"),
            "live": self.live,
            "losses": self.losses,
            "summary": self.summary,
        }

    def _use_templates(self, job: Job[bool]) -> bool:
        """Render one record of each store, so that the first one is not slow."""
        for store in self.stores.values():
            if store.lengths.any():
                with self._templates:
                    made = store[int((store.lengths > 0).argmax())]
                    with self._lock:
                        record = store.source[made.row]
                    sample_tokens(store, made, record, rendered_text(store, record))
        return True

    def answer(self, name: str, asked: Mapping[str, str]) -> dict[str, Any] | None:
        """Return what the page asks for; None if the name is unknown."""
        return None if name not in self._answers else self._answers[name](asked)

    def _of_run(self, name: str) -> Callable[[Mapping[str, str]], dict[str, Any]]:
        def call(asked: Mapping[str, str]) -> dict[str, Any]:
            if self._run is None:
                raise PlanError(
                    f"the data is not prepared, so its order is not known; run {self._about['command']}"
                )
            made: dict[str, Any] = getattr(self._run, name)(asked)
            return made

        return call

    def overview(self, asked: Mapping[str, str]) -> dict[str, Any]:
        """Return what the page needs before anything else."""
        facts = self.facts
        loader = self._loader
        sizes = np.diff(self.starts).tolist()
        found = {
            **self._about,
            "version": version("penstock"),
            "sources": [
                {"name": name, "rows": size} for name, size in zip(self.names, sizes, strict=True)
            ],
            "num_rows": int(self.starts[-1]),
            "settings": plain(self._settings),
            "prepared": loader is not None,
            "kind": None if loader is None else loader.kind,
        }
        if facts is None or loader is None:
            return found
        numbers = facts.job.result
        reason_counts = facts.reason_counts() if numbers else {}
        return {
            **found,
            "facts": facts.job.state,
            "reasons": reason_counts,
            "meanings": {reason: meaning(reason) for reason in reason_counts},
            "numbers": plain(numbers) if numbers else None,
            "media": bool(facts.media.any()),
            "batch_size": loader.batch_size,
            "world_size": loader.world.size,
            "epochs": loader.epochs,
            "plan": loader.plan.fingerprint,
            "identity": identity(loader),
        }

    def summary(self, asked: Mapping[str, str]) -> dict[str, Any]:
        """Return the numbers of the run on one screen, or how far they are."""
        loader = self._loader
        if loader is None:
            raise PlanError(
                f"the data is not prepared, so there are no numbers; run {self._about['command']}"
            )
        with self._own:
            if self._summary is None:
                self._summary = Job(lambda job: summary(loader, compare=False), 1)
        return self._summary.wait(0.2) or {"progress": self._summary.state}

    # Rows

    def rows(self, asked: Mapping[str, str]) -> dict[str, Any]:
        """Return some of the records that pass the filters, how many do, and how far a search has come."""
        progress = self._progress_of_facts(asked)  # first: facts come meanwhile
        passed = self._passed(asked)
        has_wanted_tools = None
        num_rows = int(self.starts[-1])
        if wanted := asked.get("tools"):
            index = self._index("record")
            is_complete, uses_tools = index.tools_so_far()
            has_wanted_tools = uses_tools if wanted == "yes" else ~uses_tools
            progress |= _Progress(is_complete, {"index": index.state})
        search = self._search(asked)
        if search is not None:
            progress |= self._advance(search, asked)
        matching = chosen(passed, search, has_wanted_tools)
        total = num_rows if matching is None else int(matching.size)
        first, last = _page(asked, total)
        numbers = range(first, last) if matching is None else matching[first:last].tolist()
        return {
            "total": total,
            "complete": progress.is_complete,
            "first": first,
            "rows": self.listed(numbers, asked.get("q", "")),
            **progress.states,
        }

    def _progress_of_facts(self, asked: Mapping[str, str]) -> _Progress:
        """Return how far the facts are that the filters need."""
        if self.facts is None or not any(asked.get(name) for name in _FILTERS_OF_FACTS):
            return _Progress(True, {})
        return _Progress(self.facts.is_complete, {"facts": self.facts.job.state})

    def _advance(self, search: Search, asked: Mapping[str, str]) -> _Progress:
        """Search on for a moment; return how far it has come."""
        search.advance()
        is_complete = search.is_complete
        index = self._index(asked.get("in", "record"))
        return _Progress(is_complete, {"index": index.state, "scanned": search.num_rows})

    def listed(self, rows: Iterable[int], wanted: str = "") -> list[dict[str, Any]]:
        """Return the lines of these records in the list.  wanted: what was searched for, which a line shows if the record has it."""
        with self._lock:
            return [self._row(row, wanted) for row in rows]

    def _passed(self, asked: Mapping[str, str]) -> Any:
        """Return which records pass the filters that need no reading; None if none is asked for."""
        passed = None
        if any(asked.get(name) for name in _FILTERS):
            if self.facts is None:
                raise PlanError(
                    f"the data is not prepared, so its lengths are not known; run {self._about['command']}"
                )
            passed = self.facts.matching(asked)
        if name := asked.get("source"):
            if name not in self.names:
                raise PlanError(
                    f"unknown dataset {name!r}, expected one of {', '.join(self.names)}"
                )
            start, stop = self.starts[self.names.index(name) :][:2]
            own = np.zeros(int(self.starts[-1]), np.bool_)
            own[start:stop] = True if passed is None else passed[start:stop]
            passed = own
        return passed

    def _search(self, asked: Mapping[str, str]) -> Search | None:
        wanted = asked.get("q", "")
        place = asked.get("in", "record")
        if not fold(wanted):
            return None
        index = self._index(place)
        with self._own:
            if (place, wanted) not in self._searches:
                self._searches[place, wanted] = Search(index, wanted)
                while len(self._searches) > _MOST_SEARCHES:
                    self._searches.popitem(last=False)
            return self._searches[place, wanted]

    def _index(self, place: str) -> TextIndex:
        """Return the index of records, or of rendered text; it is begun when it is first asked for."""
        if place not in ("record", "rendered") or (place == "rendered" and not self.stores):
            raise PlanError(
                f"cannot search in {place!r}, expected record, or rendered if the data is prepared"
            )
        with self._own:
            if place not in self._indexes:
                read, lock = (
                    (self._read_records, self._lock)
                    if place == "record"
                    else (self._read_rendered, self._templates)
                )
                self._indexes[place] = TextIndex(read, int(self.starts[-1]), lock)
            return self._indexes[place]

    def _place(self, row: int) -> tuple[int, int]:
        """Return (source, record in it) of a record of all sources."""
        source = int(np.searchsorted(self.starts, row, side="right")) - 1
        return source, row - int(self.starts[source])

    def _read_records(self, start: int, stop: int) -> Any:
        while start < stop:
            source, row = self._place(start)
            last = min(stop - start + row, len(self.sources[source]))
            yield from record_rows(self.sources[source], row, last)
            start += last - row

    def _read_rendered(self, start: int, stop: int) -> Any:
        found = list(self.stores.values())
        for row in range(start, stop):
            source, own = self._place(row)
            with self._lock:
                record = found[source].source[own] if found[source].lengths[own] else {}
            yield rendered(found[source], found[source][own], record), False

    def _row(self, row: int, wanted: str) -> dict[str, Any]:
        source, own = self._place(row)
        made: dict[str, Any] = {"row": row, "source": source, "own": own}
        try:
            strings = record_strings(self.sources[source][own])
            made["text"] = _preview(strings, wanted)
        except PenstockError as error:
            made["text"] = str(error)[:_PREVIEW]
            made["bad"] = True
        if self.facts is not None:
            made["length"] = int(self.facts.lengths[row])
            if self.facts.has(row):
                made |= {
                    "targets": int(self.facts.targets[row]),
                    "reason": self.facts.reason_of(row),
                }
        return made

    # One sample

    def sample(self, asked: Mapping[str, str]) -> dict[str, Any]:
        """Return one record, raw, rendered and as tokens from `from` on; its positions are asked for separately."""
        row, source, own = self._asked_row(asked)
        first = whole(asked.get("from", "0"), "from")
        name = self.names[source]
        shown = (slice(first, first + _MOST_TOKENS),)
        with self._templates, self._lock:
            if not self.stores:
                number_of_row, store = self._opened[source].prepare_row(own)
                made = store[0]
                found = unprepared(store, self._settings, number_of_row, name)
            else:
                store = self.stores[name]
                made = store[own]
                found = trace_sample(store, made, name, (), "", shown)
            pictures = plain((self._thumbnails or Thumbnails(_SIDE)).of(store, made))
            text = found.rendered if found.rendered is not None else rendered(store, made, {})
            special = special_ids(store)
        tokens = found.tokens if self.stores else found.tokens[shown[0]]
        return {
            "row": row,
            "own": own,
            "source": source,
            "where": found.where,
            "raw": found.raw[:_MOST_TEXT],
            "raw_size": len(found.raw),
            "rendered": text[:_MOST_TEXT],
            "rendered_size": len(text),
            "is_chat": found.rendered is not None,
            "length": len(made),
            "targets": found.trained,
            "outcome": found.outcome,
            "reason": self.facts.reason_of(row)
            if self.facts is not None and self.facts.has(row)
            else "",
            "first": first,
            "tokens": [
                [each.id, each.text, each.trained, each.message, each.role, each.part]
                for each in tokens
            ],
            "special": sorted({each.id for each in tokens} & special),
            "sequences": list(found.sequences),
            "pictures": [
                {**each, "kind": item.kind}
                for each, item in zip(pictures, items_of(made), strict=True)
            ],
            "losses": self._losses.of_sample(self._run_id(asked), name, own),
        }

    def _run_id(self, asked: Mapping[str, str]) -> str | None:
        """Return the run that is asked about: the one that is named, or that of the recipe."""
        name = asked.get("run_id") or self._about["run_id"]
        return None if name is None else str(name)

    def losses(self, asked: Mapping[str, str]) -> dict[str, Any]:
        """Return the losses that a run has recorded, and the names of all runs in the cache."""
        runs = [] if self._cache is None else run_ids(self._cache)
        run_id = self._run_id(asked)
        rows = self._rows_per_step_of_job(run_id)
        return {"runs": runs, "rows_per_step": rows, **self._losses.answer(asked, run_id)}

    def _rows_per_step_of_job(self, run_id: str | None) -> int | None:
        """Return the rows of a step of a job of this plan, all ranks together; None if it has not written them."""
        if self._cache is None or self._loader is None or not run_id:
            return None
        plan = self._loader.plan.fingerprint
        states = [state for state in read_status(self._cache, run_id) if state["plan"] == plan]
        if not states:
            return None
        newest = max(states, key=lambda state: float(state["written"]))
        return int(newest["world_size"]) * int(newest["batch_size"])

    def _asked_row(self, asked: Mapping[str, str]) -> tuple[int, int, int]:
        """Return the record of a request: its number, its source and its record there."""
        row = whole(asked.get("row", "0"), "row")
        if row >= self.starts[-1]:
            raise PlanError(
                f"record {row:,} does not exist: there are {int(self.starts[-1]):,}, counted from 0"
            )
        return row, *self._place(row)

    def clip(self, asked: Mapping[str, str]) -> Clip:
        """Return a video or an audio clip of a sample, to be played."""
        row, source, own = self._asked_row(asked)
        place = whole(asked["number"], "number")
        with self._templates, self._lock:
            store = (
                self.stores[self.names[source]]
                if self.stores
                else self._opened[source].prepare_row(own)[1]
            )
            made = store[own if self.stores else 0]
        if place >= len(items := items_of(made)) or (kind := items[place].kind) == "image":
            raise PlanError(f"record {row:,} has no video or audio clip {place}")
        reader = media_reader(store.template)
        assert reader is not None, "a sample with media was made with a reader of them"

        def read(part: slice) -> bytes:
            with self._templates, self._lock:
                return reader.bytes_of(items[place], lambda: store.source[made.row], part)

        start = read(slice(16))
        for at, magic, ending in _PLAYED:
            if start[at:].startswith(magic):
                return Clip(f"{kind}/{ending}", items[place].num_bytes, read)
        raise PlanError(f"{kind} {place} is not a file that browsers play: {looks_like(start)}")

    def positions(self, asked: Mapping[str, str]) -> dict[str, Any]:
        """Return every step of an epoch in which a record is trained."""
        if self._run is None:
            raise PlanError(
                f"the data is not prepared, so its order is not known; run {self._about['command']}"
            )
        _, source, own = self._asked_row(asked)
        return self._run.positions(asked, source, own, self.stores[self.names[source]])

    # A running job

    def live(self, asked: Mapping[str, str]) -> dict[str, Any]:
        """Return what a running job has last written about itself, by rank; and the names of all runs in the cache."""
        name = self._run_id(asked)
        if self._cache is None:
            return {"runs": [], "run_id": name, "ranks": []}
        found = read_status(self._cache, name) if name else []
        # after a restart with fewer ranks, the files of the others are still there
        newest = {
            each["plan"]: each["world_size"]
            for each in sorted(found, key=lambda each: each["written"])
        }
        ranks = [each for each in found if each["rank"] < newest[each["plan"]]]
        plan = None if self._loader is None else self._loader.plan.fingerprint
        return {
            "runs": run_ids(self._cache),
            "run_id": name,
            "ranks": ranks,
            "plan": plan,
            "steps": self._steps_of_job([rank for rank in ranks if rank["plan"] == plan]),
            "now": time.time(),
        }

    def _steps_of_job(self, ranks: Sequence[Mapping[str, Any]]) -> int | None:
        """Return how many steps a running job has that has the plan that is shown."""
        if self._run is None or not ranks:
            return None
        first = ranks[0]
        return self._run.steps_of_job(first["world_size"] * first["batch_size"], first["epochs"])


def _part_numbers(name: str, counts: Counts | None) -> dict[str, Any]:
    if counts is None:
        return {"name": name, "rows": None}
    return {
        "name": name,
        "rows": counts.rows,
        "samples": counts.samples,
        "tokens": counts.tokens,
        "trained": counts.trained,
    }


def _preview(strings: Iterable[str], wanted: str) -> str:
    """Return how a record begins; or what is around the first place of what was searched for, if that is further on."""
    most = _MOST_SEARCHED if wanted else 4 * _PREVIEW
    text = " ".join(" ".join(islice(strings, most if wanted else 40))[:most].split())
    place = text.lower().find(wanted.lower()) if wanted else 0
    first = place - _BEFORE_HIT if place > 2 * _BEFORE_HIT else 0
    return f"…{text[first : first + _PREVIEW]}" if first else text[:_PREVIEW]


def rendered(store: Store, sample: Sample, record: Record) -> str:
    """Return the text that became tokens: as the chat template renders it, else as the tokens read; "" for a dropped record."""
    if not len(sample):
        return ""
    if record and (text := rendered_text(store, record)) is not None:
        return text
    try:
        return sample.text
    except PenstockError:  # a template without a tokenizer
        return " ".join(map(str, sample.input_ids.tolist()))


def special_ids(store: Store) -> frozenset[int]:
    """Return the ids of special tokens of a store's tokenizer."""
    tokenizer = tokenizer_of(store.template)
    if tokenizer is None:
        return frozenset()
    added = [tokenizer.added_tokens[name] for name in tokenizer.special_added]
    named = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id)
    return frozenset([*added, *(token for token in named if token is not None)])


def _page(asked: Mapping[str, str], total: int) -> tuple[int, int]:
    """Return the first of the records that are asked for, and the end: at most `_MOST_ROWS` records, none after the last."""
    first = whole(asked.get("first", "0"), "first")
    count = whole(asked.get("count", "50"), "count")
    return first, min(first + count, total, first + _MOST_ROWS)
