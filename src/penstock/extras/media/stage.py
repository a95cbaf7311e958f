"""The media of a batch: threads decode images for the next steps, and each step waits for its own.

Media are read in the order of their placeholders, row after row.  A file that cannot be read, or that is not what it was when it was
prepared, keeps its place: black pixels or silence stand for it, no token of its sample is trained, and it is named and counted.  So what a
step holds stays a function of its position.  With on_broken_media="stop" it is an error that names the record and the file.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from operator import itemgetter
from threading import Lock
from typing import Any

import numpy as np

from penstock.errors import MediaError, PenstockError, PlanError
from penstock.extras.media.chat_step import media_reader
from penstock.extras.media.decode import MEDIA_ARRAYS, Arrays, Decoded, Decoder, Take
from penstock.extras.media.files import BLANK, BrokenMedia, PackageMissing, explain
from penstock.extras.media.loader_families import open_decoder
from penstock.extras.media.rotary import FOUR_POSITIONS, ROWS, Grid, rotary_positions
from penstock.extras.media.settings import MediaBatchSettings
from penstock.loader import Loader
from penstock.loader.batch import has_media
from penstock.loader.collate import IGNORE, PADDING, Buffers
from penstock.loader.prefetch import refuse_fork
from penstock.loader.stages import Made, close
from penstock.places.files import is_remote
from penstock.plan.ranks import Share
from penstock.plan.rows import Rows
from penstock.settings import taken
from penstock.types import MEDIA, WEIGHTS, Ints, MediaItem, unpack_media

_log = logging.getLogger("penstock")

_REQUESTS_AT_ONCE = 16
_ENOUGH = 32  # media, before the share of those that cannot be read counts

_TYPICAL: dict[str, tuple[tuple[int, ...], float]] = {  # size and rate, as in MediaItem
    "image": ((448, 448), 0.0),
    "video": ((8, 448, 448), 2.0),
    "audio": ((160_000,), 16_000.0),
}

_GEMMA3 = (
    "Gemma 3 cannot train images in packed rows: transformers looks for the images of every sample where the first sample of the row "
    "has its own; set packing='none' and leave out padding_free"
)


class MediaStage:
    """Adds the media of its samples to a batch.  Decodes ahead: `threads` at a time, and at most `most_bytes` of arrays, or one step."""

    def __init__(
        self,
        names: Sequence[str],
        stores: Sequence[Any],
        *,
        pad_token_id: int,
        threads: int,
        most_bytes: int,
        steps: int,
        most_broken: float | None,
    ) -> None:
        """steps: decoded while the consumer works on an earlier one.

        most_broken: the share of media that may be masked because they cannot be read; None: the first one is an error.
        """
        self._most_broken = most_broken
        self._broken = BrokenCounts()
        self._fetched = Fetched()
        self._lock = Lock()  # of what was fetched: threads count at once
        self._steps = steps
        self._stores = stores
        self._threads = threads
        self._most_bytes = most_bytes
        self._readers = {
            number: _reader(name, store) for number, (name, store) in _with_media(names, stores)
        }
        first, *others = self._readers
        self.processor = self._readers[first].processor
        for other in others:
            if (found := self._readers[other].processor).identity() != self.processor.identity():
                raise PlanError(
                    f"stores {names[first]!r} and {names[other]!r} were prepared with different processors, {self.processor!r} and "
                    f"{found!r}; a batch is for one model: prepare them with one processor="
                )
        self.four_positions = self.processor.family in FOUR_POSITIONS
        self.token_ids = _token_ids(self.processor, stores[first].template.tokenizer)
        if pad_token_id in self.token_ids.values():
            raise PlanError(
                f"pad_token_id={pad_token_id} is the id of a media placeholder; set pad_token_id to the pad token of the tokenizer"
            )

    def __call__(self, made: Iterator[Made]) -> Iterator[Made]:
        """Yield steps with their media."""
        owner = os.getpid()
        waiting = deque[_Step]()
        error = None
        threads = self._threads
        if any(reader.is_remote for reader in self._readers.values()):
            threads = max(threads, _REQUESTS_AT_ONCE)  # they wait for answers most of the time
        pool = ThreadPoolExecutor(threads, thread_name_prefix="penstock-media")
        coming: _Step | None = None
        buffers = Buffers()  # of this thread
        try:
            while True:
                refuse_fork(owner)
                while error is None and len(waiting) <= self._steps:
                    try:
                        if coming is None:
                            step = next(made)
                            media = self._read(step.arrays, step.share.rows, buffers.take)
                            coming = _Step(step, media)
                    except BaseException as found:  # raised when its turn comes
                        error = found
                        break
                    if (
                        waiting
                        and sum(each.media.num_bytes for each in (*waiting, coming))
                        > self._most_bytes
                    ):
                        break
                    waiting.append(coming)
                    coming.begin(pool)
                    coming = None
                if not waiting:
                    if isinstance(error, StopIteration):
                        return
                    assert error is not None
                    raise error
                step_made, added = waiting.popleft().result()
                self._count(added)
                yield step_made
        finally:
            pool.shutdown(cancel_futures=True)
            close(made)

    def complete(self, arrays: dict[str, Any], share: Share) -> dict[str, Any]:
        """Return the arrays of one step with its media, decoded here."""
        step = self._read(arrays, share.rows, Buffers().take)
        added = step.add([job() for job in step.jobs])
        self._count(added)
        return added.arrays

    def _read(self, arrays: dict[str, Any], rows: Rows, take: Take) -> "_Media":
        """Read which media the spans of a step hold."""
        values = memoryview(arrays.pop(MEDIA.name))
        offsets = arrays.pop(f"{MEDIA.name}_offsets").tolist()
        items = []
        found = []
        num_bytes = 0
        for (source, sample, start, stop), (low, high) in zip(
            rows.spans.tolist(), pairwise(offsets), strict=True
        ):
            own = (
                [each for each in unpack_media(values[low:high]) if each.span[0] < stop]
                if high > low
                else []
            )
            items.append([_moved(each, start) for each in own])
            for each in own:
                if each.span[0] < start or each.span[1] > stop:
                    raise self._failure(
                        source, sample, each, f"tokens {start} to {stop} hold only a part of it"
                    )
                found.append((source, sample, each))
                num_bytes += self._decoder.num_bytes(each) + 3 * int(np.prod(each.size))
        reserved, places = (
            self._decoder.reserve([each for *_, each in found], take) if found else ({}, [])
        )
        jobs = [partial(self._decode, *each, out) for each, out in zip(found, places, strict=True)]
        add = partial(self._add, arrays, rows, items, reserved)
        return _Media(jobs=jobs, num_bytes=num_bytes, add=add)

    @cached_property
    def _decoder(self) -> Decoder:
        return open_decoder(self.processor)

    def __getstate__(self) -> dict[str, Any]:
        own = {name: value for name, value in self.__dict__.items() if name != "_decoder"}
        return {**own, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = Lock()

    def _decode(self, source: int, sample: int, item: MediaItem, out: Any) -> Decoded:
        try:
            data = self._bytes_of(source, sample, item)
            try:
                return self._decoder.decode(item, data, out)
            except (PenstockError, MemoryError):
                raise
            except (
                Exception
            ) as error:  # decoders raise OSError, SyntaxError, ValueError and their own
                raise BrokenMedia(
                    f"it cannot be decoded ({type(error).__name__}: {explain(error)}); repair the file, or remove the record, and prepare "
                    f"again with refresh=True"
                ) from error
        except BrokenMedia as error:
            failure = self._failure(source, sample, item, str(error))
            if self._most_broken is None:
                raise failure from error
            _log.warning("%s; its sample is not trained in this step", failure)
            return replace(self._decoder.decode(item, BLANK, out), is_blank=True)
        except PenstockError as error:
            raise self._failure(source, sample, item, str(error)) from error

    def _bytes_of(self, source: int, sample: int, item: MediaItem) -> bytes:
        store = self._stores[source]
        try:
            data: bytes = self._readers[source].bytes_of(item, lambda: store.source[sample])
        except (PackageMissing, BrokenMedia):
            raise
        except PenstockError as error:  # the file is gone, or has changed
            raise BrokenMedia(str(error)) from error
        if item.place is not None and is_remote(self._readers[source].path_of(item.place)):
            with self._lock:
                self._fetched.files += 1
                self._fetched.bytes += len(data)
        return data

    def _count(self, added: "_Added") -> None:
        """Count media that are delivered; refuse to go on when nearly all of them cannot be read."""
        counts = self._broken
        counts.add(added.counts)
        most = self._most_broken
        if most is None or counts.seen < _ENOUGH or counts.masked <= most * counts.seen:
            return
        raise MediaError(
            f"{counts.masked:,} of {counts.seen:,} images, videos and audio clips so far cannot be read, which is more than "
            f"max_dropped={most:g} allows; the log names each; is their folder there, and are they what they were?"
        )

    def counts(self) -> dict[str, int]:
        """Count media that were masked, the samples that they have kept from being trained, and what was fetched from elsewhere."""
        counts = self._broken
        numbers: dict[str, int] = {}
        if counts.masked:
            numbers |= {"masked": counts.masked, "untrained_samples": counts.untrained_samples}
        if self._fetched.files:
            numbers |= {"fetched": self._fetched.files, "fetched_bytes": self._fetched.bytes}
        return numbers

    def _failure(self, source: int, sample: int, item: MediaItem, what: str) -> MediaError:
        name = "in the record itself" if item.place is None else repr(item.place)
        return MediaError(
            f"{self._stores[source].source.locate(sample)}: {item.kind} {item.number}, {name}: {what}"
        )

    def _add(
        self,
        arrays: dict[str, Any],
        rows: Rows,
        items: list[list[MediaItem]],
        reserved: Arrays,
        decoded: list[Decoded],
    ) -> "_Added":
        """Return the arrays of a batch with its media, after comparing them with the placeholders."""
        spans = rows.spans
        ids, labels, positions = (
            arrays[name].reshape(-1) for name in ("input_ids", "labels", "position_ids")
        )
        weights = arrays[WEIGHTS.name].reshape(-1) if WEIGHTS.name in arrays else None
        real = arrays["seq_idx"].reshape(-1) != PADDING
        begins = np.flatnonzero((positions == 0) & real)  # of each span
        assert len(begins) == len(spans), "one segment for each span"
        three = np.repeat(positions[None], ROWS - 1, axis=0) if self.four_positions else None
        turns = iter(decoded)
        untrained = 0
        counts = BrokenCounts(seen=len(decoded), masked=sum(each.is_blank for each in decoded))
        by_span = []
        for number, found in enumerate(items):
            own = [next(turns) for _ in found]
            by_span.append(own)
            size = int(spans["stop"][number] - spans["start"][number])
            inside = slice(int(begins[number]), int(begins[number]) + size)
            grids = [
                grid
                for item, each in zip(found, own, strict=True)
                for grid in self._compare(spans[number], item, each, ids[inside])
            ]
            if grids and three is not None:
                three[:, inside] = rotary_positions(size, grids)
            if any(each.is_blank for each in own):
                untrained += int(np.count_nonzero(labels[inside] != IGNORE))
                labels[inside] = IGNORE
                if weights is not None:  # a mean with weights divides by their sum
                    weights[inside] = 0
                counts.untrained_samples += 1
        self._compare_all(ids, labels, spans, begins, by_span)
        if three is not None:
            shape = arrays["position_ids"].shape
            arrays["position_ids"] = np.concatenate((positions[None], three)).reshape(ROWS, *shape)
        borders = rows.starts.tolist()
        if len(arrays["input_ids"]) != rows.num_rows:  # one flat row
            borders = [0, len(by_span)]
        by_row = [
            [each for own in by_span[low:high] for each in own] for low, high in pairwise(borders)
        ]
        if self.processor.counts.images_attend_both_ways:
            refuse_packed(len(spans), len(arrays["input_ids"]), len(decoded))
            arrays["token_type_ids"] = (arrays["input_ids"] == self.token_ids["image"]).astype(
                np.int64
            )
        of_media = self._decoder.combine(by_row) if decoded else {}
        return _Added({**arrays, **reserved, **of_media}, untrained, counts)

    def _compare(self, span: Any, item: MediaItem, decoded: Decoded, ids: Ints) -> list[Grid]:
        """Refuse media whose features are not as many as their placeholders; return where their grids are."""
        start, stop = item.span
        places = start + np.flatnonzero(ids[start:stop] == self.token_ids[decoded.kind])
        if len(places) != decoded.placeholders:
            raise self._failure(
                int(span["source"]),
                int(span["sample"]),
                item,
                f"the sample has {len(places)} placeholders for it, but the processor makes {decoded.placeholders} features; prepare the "
                f"store again with the processor in {self.processor.folder}",
            )
        if decoded.grid is None:
            return []
        _, height, width = decoded.grid
        if places[-1] - places[0] == len(places) - 1:
            return [Grid(start=int(places[0]), shape=decoded.grid, interval=decoded.interval)]
        moments = places.reshape(-1, height * width)  # Qwen3-VL writes a time before each of them
        assert (moments[:, -1] - moments[:, 0] == height * width - 1).all(), (
            "placeholders of a moment stand together"
        )
        return [Grid(start=int(first), shape=(1, height, width)) for first in moments[:, 0]]

    def _compare_all(
        self, ids: Ints, labels: Ints, spans: np.ndarray, begins: Ints, by_span: list[list[Decoded]]
    ) -> None:
        """Refuse placeholders without media, and placeholders that are trained."""
        for kind, token in self.token_ids.items():
            expected = [
                sum(each.placeholders for each in own if each.kind == kind) for own in by_span
            ]
            is_placeholder = ids == token
            problem = ""
            if int(np.count_nonzero(is_placeholder)) != sum(expected):
                found = np.add.reduceat(is_placeholder, begins, dtype=np.int64)
                number = int(np.flatnonzero(found != expected)[0])
                problem = (
                    f"the sample has {found[number]} {kind} placeholders, but its media fill {expected[number]}; remove the placeholder "
                    f"from the text of the record"
                )
            elif (trained := np.flatnonzero(labels == token)).size:
                number = int(np.searchsorted(begins, trained[0], side="right")) - 1
                problem = f"a {kind} placeholder is trained; prepare the store again"
            if problem:
                source, sample, _, _ = spans[number].tolist()
                raise MediaError(f"{self._stores[source].source.locate(sample)}: {problem}")


def refuse_packed(spans: int, rows: int, media: int) -> None:
    """Refuse images of Gemma 3 in rows of several samples."""
    if media and spans > rows:
        raise PlanError(_GEMMA3)


def _with_media(
    names: Sequence[str], stores: Sequence[Any]
) -> Iterator[tuple[int, tuple[str, Any]]]:
    for number, (name, store) in enumerate(zip(names, stores, strict=True)):
        if has_media(store):
            yield number, (name, store)


def _reader(name: str, store: Any) -> Any:
    reader = media_reader(store.template)
    if reader is None:
        raise PlanError(
            f"store {name!r} has a column {MEDIA.name!r}, but its template has no processor to read media with; prepare it with "
            f"processor=, or rename the column of your own template"
        )
    return reader


def _token_ids(processor: Any, tokenizer: Any) -> dict[str, int]:
    """Return the id of the placeholder that is repeated for each kind of media; the model replaces it by features."""
    found = {}
    for kind in processor.kinds:
        with suppress(MediaError):  # a kind that the family cannot count yet, so no sample has any
            pieces = processor.expand(kind, *_TYPICAL[kind])
            usual = processor.placeholder(kind)
            repeated = (
                usual
                if any(text == usual for text, _ in pieces)
                else max(pieces, key=itemgetter(1))[0]
            )
            found[kind] = tokenizer.added_tokens[repeated]
    return found


def _moved(item: MediaItem, start: int) -> MediaItem:
    """Return the item with its tokens counted from `start`."""
    return item if start == 0 else replace(item, span=(item.span[0] - start, item.span[1] - start))


@dataclass(slots=True)
class Fetched:
    """Media that were read from other machines, also ahead of the step that was delivered last."""

    files: int = 0
    bytes: int = 0


@dataclass(slots=True)
class BrokenCounts:
    """What was decoded, and what of it could not be read."""

    seen: int = 0
    masked: int = 0
    untrained_samples: int = 0

    def add(self, other: "BrokenCounts") -> None:
        self.seen += other.seen
        self.masked += other.masked
        self.untrained_samples += other.untrained_samples


@dataclass(frozen=True, slots=True)
class _Added:
    """The arrays of a batch with its media."""

    arrays: dict[str, Any]
    untrained: (
        int  # tokens that have lost their label, because media of their sample cannot be read
    )
    counts: BrokenCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Media:
    """The media of a step that are still to be decoded."""

    jobs: Sequence[Callable[[], Decoded]]
    num_bytes: int
    add: Callable[[list[Decoded]], _Added]  # what was decoded → the arrays of the batch


class _Step:
    """A step whose media are being decoded.  The thread that decodes the last of them makes its arrays."""

    def __init__(self, step: Made, media: _Media) -> None:
        self.media = media
        self._step = step
        self._futures: list[Future[Decoded]] = []
        self._left = len(media.jobs)
        self._lock = Lock()
        self._added: Future[_Added] = Future()

    def begin(self, pool: ThreadPoolExecutor) -> None:
        self._futures = [pool.submit(job) for job in self.media.jobs]
        if not self._futures:
            pool.submit(self._finish)
        for each in self._futures:
            each.add_done_callback(self._count)

    def _count(self, _: Future[Decoded]) -> None:
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._finish()

    def _finish(self) -> None:
        try:
            self._added.set_result(self.media.add([each.result() for each in self._futures]))
        except BaseException as error:  # the consumer raises it
            self._added.set_exception(error)

    def result(self) -> "tuple[Made, _Added]":
        added = self._added.result()
        trained = self._step.trained - added.untrained
        return self._step._replace(arrays=added.arrays, trained=trained), added


class MediaColumn:
    """Plugs media into Loaders whose stores have the column."""

    column = MEDIA
    arrays = MEDIA_ARRAYS

    def open(
        self, names: Sequence[str], stores: Sequence[Any], settings: Mapping[str, Any]
    ) -> MediaStage:
        own = MediaBatchSettings(**taken({**settings}, MediaBatchSettings))
        return MediaStage(
            names,
            stores,
            pad_token_id=settings["pad_token_id"],
            threads=own.media_threads,
            most_bytes=own.media_bytes,
            steps=settings["prefetch"],
            most_broken=settings["max_dropped"] if own.on_broken_media == "mask" else None,
        )


MEDIA_COLUMN = MediaColumn()


def media_stage_of(loader: Loader) -> MediaStage | None:
    """Return the stage that adds media to the batches of a Loader; None if its stores have none."""
    stage = loader.parts.stages.get(MEDIA.name)
    return stage if isinstance(stage, MediaStage) else None
