"""Show the images, videos and audio clips of samples: one line each, tokens by kind, and which of them a processor shrinks."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.extras.media.chat_step import media_reader
from penstock.fingerprint import digest
from penstock.report.checks import Inspection, Verdict
from penstock.report.text import TextBlock, table, title
from penstock.store import Sample, Store
from penstock.types import MEDIA, MediaItem, Source, Template, unpack_media
from penstock.words import percent, size

_SHRUNK = 0.5  # share of its pixels below which an image counts as shrunk


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaNumbers:
    """Media of one kind in a store."""

    source: str
    kind: str
    count: int
    samples: int  # that have some
    tokens: int  # that stand for them, with the markers around them
    share: float  # of the store's tokens


def media_numbers(stores: Mapping[str, Store]) -> tuple[MediaNumbers, ...]:
    """Count the media of stores by kind."""
    return tuple(each for name, store in stores.items() for each in _numbers(name, store))


def _numbers(name: str, store: Store) -> Iterable[MediaNumbers]:
    if MEDIA not in store.columns:
        return
    count = Counter[str]()
    samples = Counter[str]()
    tokens = Counter[str]()
    for shard in range(store.num_shards):
        found = store.tokens(shard)
        for row in np.flatnonzero(np.diff(found.offsets)).tolist():
            items = unpack_media(found.column_of(MEDIA, row).data)
            samples.update({item.kind for item in items})
            for item in items:
                count[item.kind] += 1
                tokens[item.kind] += item.span[1] - item.span[0]
    for kind in sorted(count):
        yield MediaNumbers(
            source=name,
            kind=kind,
            count=count[kind],
            samples=samples[kind],
            tokens=tokens[kind],
            share=tokens[kind] / store.counts.tokens,
        )


def media_table(found: Sequence[MediaNumbers]) -> list[TextBlock]:
    """Show tokens by kind; nothing where there are no media."""
    columns = ["dataset", "kind", "#count", "#samples", "#tokens", "#of tokens"]
    rows = [
        [each.source, each.kind, each.count, each.samples, each.tokens, percent(each.share, 1)]
        for each in found
    ]
    return [title("media"), table(columns, rows)] if rows else []


def items_of(sample: Sample) -> list[MediaItem]:
    """The media items of a sample."""
    value = sample.columns.get(MEDIA.name)
    return [] if value is None or not len(sample) else unpack_media(value.data)


def media_line(item: MediaItem) -> str:
    """Say what and where an item is, how large, and which tokens stand for it."""
    place = (
        "in the record"
        if item.place is None
        else item.place + (f" (from byte {item.start:,})" if item.start else "")
    )
    first, last = item.span
    return f"{item.kind} {item.number}: {place}, {_measures(item)}, {size(item.num_bytes)}, tokens {first}–{last - 1}"


def _measures(item: MediaItem) -> str:
    if item.kind == "audio":
        return f"{item.size[0] / item.rate:.2f} s at {item.rate:,.0f} Hz"
    pixels = "{} × {} pixels (height × width)".format(*item.size[-2:])
    return (
        pixels
        if item.kind == "image"
        else f"{item.size[0]:,} frames at {item.rate:g} a second, {pixels}"
    )


def shrunk(
    items: Iterable[MediaItem], template: Template
) -> list[tuple[MediaItem, tuple[int, int]]]:
    """Images that the template's processor shrinks to less than half of their pixels, with the size that they get."""
    reader = media_reader(template)
    assert reader is not None, "nothing else makes media items"
    counts = reader.processor.counts
    images = [(item, counts.resized(*item.size)) for item in items if item.kind == "image"]
    return [
        (item, new)
        for item, new in images
        if new and new[0] * new[1] < _SHRUNK * item.size[0] * item.size[1]
    ]


def check_media(data: Inspection) -> Iterator[Verdict]:
    """How many tokens do images, videos and audio take, and which images does the processor shrink?  Only if there are some."""
    items_of_rows = [unpack_media(values.get(MEDIA.name, b"")) for values in data.encoded.reported]
    items = [item for items_of_row in items_of_rows for item in items_of_row]
    if not items:
        return
    by_kind = Counter(item.kind for item in items).most_common()
    kinds = ", ".join(f"{count:,} of kind {kind}" for kind, count in by_kind)
    tokens = sum(item.span[1] - item.span[0] for item in items)
    why = f"{kinds} in the checked records; their tokens are {percent(tokens, data.encoded.tokens)} of {data.encoded.tokens:,}"
    smaller = shrunk(items, data.template)
    if not smaller:
        yield data.verdict("media", "ok", why)
        return
    largest, new_size = max(smaller, key=lambda pair: pair[0].size[0] * pair[0].size[1])
    rows = [
        row
        for row, items_of_row in zip(data.encoded.rows, items_of_rows, strict=True)
        if shrunk(items_of_row, data.template)
    ]
    sizes = "from {:,} × {:,} to {:,} × {:,}".format(*largest.size, *new_size)
    lost = f"{len(smaller):,} of {len(items):,} are shrunk to less than half of their pixels, the largest {sizes}"
    why = f"{why}; {lost}; raise the limits in the processor's files to keep detail"
    yield data.verdict("media", "warn", why, rows)


class MediaReport:
    """What reports say about the column `media`, as `penstock.report.columns.ColumnReport` describes it."""

    def lines(self, value: bytes) -> tuple[str, ...]:
        """One line for each item: what and where it is, how large, and which tokens stand for it."""
        return tuple(media_line(item) for item in unpack_media(value))

    def spans(self, value: bytes) -> list[tuple[int, int]]:
        return [item.span for item in unpack_media(value)]

    def content_key(self, value: bytes, template: Template, source: Source, row: int) -> bytes:
        """Name the media of a row: by path, or by a digest of the bytes that the record holds."""
        reader = media_reader(template)
        assert reader is not None, "nothing else makes media items"
        names = []
        for item in unpack_media(value):
            name = item.place or digest(reader.bytes_of(item, lambda: source[row]))
            names.append((name, item.start))
        return repr(names).encode()

    def count(self, stores: Mapping[str, Store]) -> tuple[MediaNumbers, ...]:
        return media_numbers(stores)

    def table(self, numbers: Sequence[MediaNumbers]) -> list[TextBlock]:
        return media_table(numbers)


REPORT = MediaReport()
