"""The nouns that cross a border between rooms: record, samples, span, world; and the protocols of exchangeable parts."""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import orjson

if TYPE_CHECKING:
    from penstock.cache import Cache

Record = dict[str, Any]  # one row of the user's data, exactly as written

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.uint32]

# A piece of a sample in a row.  `source` counts the plan's sources, `sample` is the row number in that source.
SPAN = np.dtype([("source", "<i8"), ("sample", "<i8"), ("start", "<i8"), ("stop", "<i8")])

# How the plan learns lengths: (source number, sample ids) → one length per id; 0 means that nothing is there to train on.
Lengths = Callable[[int, Ints], Ints]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralSequences:
    """Of samples that are several sequences, such as pairs: max_length limits each of them."""

    count: int  # of a sample
    longest: Lengths  # the length of the longest one of each sample


# How the plan learns whether a piece is worth a row: (source number, sample ids, starts, stops) → whether tokens
# start + 1 … stop - 1 of each sample hold a trained one.  Nothing predicts the first token of a piece, so it is not a target.
# Asked only about pieces of samples that are cut: a store holds no sample without a target.
Targets = Callable[[int, Ints, Ints, Ints], Bools]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Who is asking: one data-parallel rank among `size`."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(
                f"rank {self.rank} of world size {self.size}: expected 0 <= rank < size"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The home of a record: which file, which line (from 1), which byte (from 0)."""

    file: str
    line: int
    byte: int = 0

    def __str__(self) -> str:
        """file:line, as editors take it; with the byte where a whole document is one line, so that the line says nothing."""
        inside = f" (byte {self.byte})" if self.line == 1 and self.byte else ""
        return f"{self.file}:{self.line}{inside}"


UNRENDERED = (
    "unrendered: "  # begins the name of a note: a field that the chat template does not print
)
UNENDED = "turns without an end"  # a note: turns behind which no token is trained that ends them
PARTIAL = "headers in part"  # a note: turns that begin with only a part of the generation prompt
# Begin the names of notes: conversations that end with a turn that nothing answers, which are kept, or lose that turn.
UNANSWERED = "unanswered: "
TRIMMED = "trimmed: "
PROMPT_CUT = (
    "prompts cut"  # a note: prompts whose last tokens the prompt with its answer does not have
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a sample besides `input_ids` and `loss_mask`.  A template declares it; store and loader carry it.

    per: "token" has one value for each token and is cut and padded with the tokens; "sample" has one value; "list" has any
    number of values, so a sample that has one is never cut.
    """

    name: str
    dtype: str  # of numpy: float32, int64, uint8 …
    per: Literal["token", "sample", "list"]
    fill: float = 0  # the value of padding, where `per` is "token"


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaItem:
    """An image, a video or an audio clip of a sample: where its bytes are, how large it is, and which tokens stand for it."""

    kind: Literal["image", "video", "audio"]
    number: (
        int  # which one of the record's media, counted from 0 in the order of their placeholders
    )
    place: (
        str | None
    )  # the path as the record writes it; None where the bytes are in the record itself
    start: int = 0  # its first byte in the file
    num_bytes: int  # how many bytes it has: others mean that the file was changed
    size: tuple[
        int, ...
    ]  # image: height, width as seen upright; video: frames, height, width; audio: samples
    span: tuple[
        int, int
    ]  # tokens start..stop of the sample, with the markers that the processor adds around them
    rate: float = 0.0  # video: frames per second; audio: samples per second of the file


MEDIA = Column(name="media", dtype="uint8", per="list")  # the media items of a sample, as JSON
SEQUENCE_LENGTHS = Column(
    name="sequence_lengths", dtype="int32", per="list"
)  # of a sample's sequences, end to end
DESIRABLE = Column(
    name="label", dtype="int8", per="sample"
)  # next to sequence_lengths: whether the answer is desirable
MARGIN = Column(
    name="margin", dtype="float32", per="sample"
)  # by how much the chosen answer should win
PROMPT_LENGTHS = Column(
    name="prompt_lengths", dtype="int32", per="list"
)  # of samples that are prompts, with nothing trained
STEP_LABELS = Column(
    name="step_labels", dtype="int8", per="token", fill=-100
)  # at the last token of each judged step
WEIGHTS = Column(name="weights", dtype="float32", per="token")  # of each token in the loss
# Labels that an objective gives itself: each stands at the token that it is the label of, and not one place later.
TARGETS = Column(name="labels", dtype="int64", per="token", fill=-100)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRule:
    """What store and loader do with a column besides carrying its values."""

    is_optional: bool = False  # samples of a store without the column have no values of it
    shard_rows: int | None = (
        None  # the most rows of a shard, where a row stands for much more than its tokens
    )
    needs_target: bool = True  # a sample without a trained token is dropped
    reserved: frozenset[str] = frozenset()  # arrays of a batch that are made of it
    is_content: bool = False  # tokens alone do not say whether two samples are equal
    # Why a store without the column cannot be in a batch with one that has it; "" if it can.
    missing: str = ""


_OTHER = ColumnRule()
COLUMN_RULES: Mapping[Column, ColumnRule] = {
    MEDIA: ColumnRule(
        is_optional=True,
        # an image makes thousands of tokens of a short record, and a process holds the tokens of a shard
        shard_rows=1 << 11,
        is_content=True,
        reserved=frozenset(
            (
                "pixel_values",
                "image_grid_thw",
                "pixel_values_videos",
                "video_grid_thw",
                "pixel_attention_mask",
                "image_sizes",
                "input_features",
                "feature_attention_mask",
                "token_type_ids",
            )
        ),
    ),
    PROMPT_LENGTHS: ColumnRule(needs_target=False),
    WEIGHTS: ColumnRule(
        missing="has no weights of tokens, and its tokens would count for nothing; prepare it with message_weights=True, too"
    ),
    STEP_LABELS: ColumnRule(
        missing="has no judged steps, and others of the mixture have; give them a Loader of their own"
    ),
}


def rule_of(column: Column) -> ColumnRule:
    """The rule of a column; columns of users have none but the usual one."""
    return COLUMN_RULES.get(column, _OTHER)


def row_sequences(columns: Iterable[Column]) -> int:
    """Return how many sequences a sample with these columns is, each of which max_length limits: 2 for a pair."""
    names = set(columns)
    return 2 if SEQUENCE_LENGTHS in names and DESIRABLE not in names else 1


def pack_media(items: Sequence[MediaItem]) -> bytes:
    """The value of the column `media` for one sample; nothing for a sample without media."""
    return orjson.dumps([asdict(item) for item in items]) if items else b""


def unpack_media(value: bytes | memoryview) -> list[MediaItem]:
    """The media items in a value of the column `media`."""
    found = orjson.loads(value) if len(value) else []
    return [
        MediaItem(**{**each, "size": tuple(each["size"]), "span": tuple(each["span"])})
        for each in found
    ]


@dataclass(frozen=True, slots=True)
class Values:
    """The values of one column for some samples, flat.  offsets: (num_records + 1,) where the column is per list, else None."""

    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.signedinteger[Any]] | None = None


def longest_sequences(
    columns: Mapping[str, Values], offsets: npt.NDArray[np.signedinteger[Any]]
) -> npt.NDArray[np.int32]:
    """Return the length of each sample's longest sequence; 0 for a sample that was dropped.

    columns: of these samples.  offsets: where the tokens of each sample begin, and the last ones end.
    """
    lengths = columns[SEQUENCE_LENGTHS.name]
    assert lengths.offsets is not None
    starts = lengths.offsets[:-1]
    longest = np.zeros(len(starts), np.int32)
    has_values = np.diff(lengths.offsets) > 0
    if has_values.any():
        longest[has_values] = np.maximum.reduceat(lengths.values, starts[has_values])
    longest[np.diff(offsets) == 0] = 0
    return longest


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Records made into tokens, flat: sample i is `input_ids[offsets[i]:offsets[i + 1]]`; a dropped record has no tokens."""

    input_ids: Ids  # (num_tokens,)
    loss_mask: Bools  # (num_tokens,) True where a token is trained
    offsets: Ints  # (num_records + 1,)
    dropped: dict[int, str] = field(default_factory=dict)  # record number in this batch → reason
    notes: dict[str, dict[int, int]] = field(
        default_factory=dict
    )  # what was noticed → record number → characters
    assistant_characters: int = 0  # in the records, rendered or not
    columns: dict[str, Values] = field(
        default_factory=dict
    )  # as the template declares them; a dropped record has no values per token

    def num_targets(self) -> Ints:
        """Targets of each sample: its trained tokens, without its first token, which nothing predicts."""
        running = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.loss_mask, dtype=np.int64)))
        starts = self.offsets[:-1]
        stops = self.offsets[1:]
        return np.asarray(running[stops] - running[np.minimum(starts + 1, stops)], np.int64)


def join_notes(
    parts: Iterable[tuple[int, Mapping[str, Mapping[int, int]]]],
) -> dict[str, dict[int, int]]:
    """Notes of parts that stand one after another; each part comes with the number of its first record."""
    joined: dict[str, dict[int, int]] = {}
    for first, notes in parts:
        for name, rows in notes.items():
            joined.setdefault(name, {}).update(
                {first + row: characters for row, characters in rows.items()}
            )
    return joined


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """Takes the place of a record that cannot be read, so that record numbers never shift."""

    reason: str  # short, for counting: bad_json, not_an_object …
    message: str  # long, for people, with the row's place once its source has added it


MOST_DEPTH = (
    100  # levels of dicts and lists in a record; what walks over records does so by recursion
)


def nests_too_deep(value: Any) -> bool:
    """Return whether dicts and lists nest more than MOST_DEPTH levels."""
    level = [value] if isinstance(value, dict | list | tuple) else []
    for _ in range(MOST_DEPTH):
        if not level:
            return False
        level = [
            inner
            for container in level
            for inner in (container.values() if isinstance(container, dict) else container)
            if isinstance(inner, dict | list | tuple)
        ]
    return bool(level)


@dataclass(frozen=True, slots=True)
class RemovedNulls:
    """How many null members of structs were removed from some records, because Arrow's schema may have added them."""

    columns: Counter[str] = field(default_factory=Counter)  # column → null members removed
    rows: int = 0  # rows with at least one

    def __add__(self, other: "RemovedNulls") -> "RemovedNulls":
        return RemovedNulls(self.columns + other.columns, self.rows + other.rows)


class Objective(Protocol):
    """Changes samples on their way into rows, in each pass over their source again.

    What it makes depends on the seed, the source, the sample and the pass, and on nothing else: every rank, every resume and every thread
    gets the same.  `source` counts the sources of the plan; `samples` and `passes` have one entry for each sample.
    """

    columns: tuple[Column, ...]  # that it adds to batches, besides ids and loss mask

    def lengths(self, source: int, samples: Ints, passes: Ints) -> Ints:
        """Return the length that each sample gets; 0 for a sample that has no tokens."""
        ...

    def has_target(
        self, source: int, samples: Ints, passes: Ints, starts: Ints, stops: Ints
    ) -> Bools:
        """Return whether tokens start + 1 … stop - 1 of each changed sample hold a trained one; asked about pieces of cut samples."""
        ...

    def change(self, source: int, samples: Ints, passes: Ints) -> Samples:
        """Return the changed samples, with values of `columns`."""
        ...


class Source(Protocol):
    """Record i of this place.  Never hears of rank, seed or epoch."""

    name: str

    def __len__(self) -> int: ...
    def __getitem__(self, row: int, /) -> Record: ...
    def records(self, start: int, stop: int) -> Iterator[Record | BadRow]:
        """Records start..stop in order; the fast way to read many.  A BadRow only where the user chose not to stop at one."""
        ...

    def locate(self, row: int) -> Where: ...
    def digest(self, start: int, stop: int) -> str:
        """Return a hash of the content of records start..stop, independent of their file's name."""
        ...

    def cuts(self, *, num_bytes: int, num_rows: int) -> Ints:
        """Record borders 0 = c0 < c1 < … = len, so that each range is about `num_bytes` and at most `num_rows` long."""
        ...


class Template(Protocol):
    """Turns a record into tokens and a loss mask.  Does not truncate, pad or shift: these depend on the model."""

    vocab_size: int

    def identity(self) -> dict[str, Any]:
        """Everything that changes tokens, as plain JSON values; becomes part of the store's key."""
        ...

    def encode(self, records: Iterable[Record]) -> Samples: ...
    def decode(self, input_ids: npt.NDArray[np.unsignedinteger[Any]]) -> str: ...


@runtime_checkable
class HasColumns(Protocol):
    """A template whose samples have columns besides input_ids and loss_mask."""

    columns: tuple[Column, ...]


@runtime_checkable
class UnopenedTemplate(Protocol):
    """A template that is known by its identity.  A process opens it, with tokenizer and chat template, when it has to encode."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def columns(self) -> tuple[Column, ...]: ...
    def identity(self) -> dict[str, Any]: ...
    def open(self) -> Template: ...


AnyTemplate = Template | UnopenedTemplate


def opened(template: AnyTemplate) -> Template:
    """The template, opened if it is not."""
    return template.open() if isinstance(template, UnopenedTemplate) else template


def columns_of(template: AnyTemplate) -> tuple[Column, ...]:
    """The columns that a template declares, besides input_ids and loss_mask; most declare none."""
    return tuple(template.columns) if isinstance(template, HasColumns) else ()


Task = TypeVar("Task")


OnNote = Callable[[Task, Any], object]
PAUSE = 0.05  # seconds until an engine asks again for a task, after None


@runtime_checkable
class Engine(Protocol):
    """Runs tasks and yields results as they finish.  Knows nothing of records, tokens or files."""

    def run(
        self,
        work: Callable[[Task], Any],
        tasks: Iterable[Task | None],
        *,
        on_note: OnNote[Task] | None = None,
    ) -> Iterator[Any]:
        """Take a task from `tasks` whenever there is room for one; None means that there is none now, ask again later.

        `work` may be a generator: it yields notes, which go to `on_note`, and returns the result.  It may have a method
        `describe(task, last_note)` for error messages.  An error of a task stops the rest and is raised here.
        """
        ...


@runtime_checkable
class WorkOnFiles(Protocol):
    """Work that reads a source and writes to a cache.  An engine that does it on other machines checks that they see the same files."""

    cache: "Cache | None"

    def __call__(self, task: Any, /) -> Any: ...

    def check(self) -> None:
        """Raise an error if this process reads other records or has another template than the one that sent the work."""
        ...

    def describe(self, task: Any, note: Any, /) -> str:
        """Describe a task whose process died; `note` is the last one."""
        ...


def run_task(work: Callable[[Task], Any], task: Task, on_note: OnNote[Task] | None = None) -> Any:
    """Do one task in this thread."""
    made = work(task)
    if not isinstance(made, Generator):
        return made
    while True:
        try:
            note = next(made)
        except StopIteration as end:
            return end.value
        if on_note is not None:
            on_note(task, note)


def run_inline(
    work: Callable[[Task], Any], tasks: Iterable[Task | None], on_note: OnNote[Task] | None = None
) -> Iterator[Any]:
    """Do all tasks in this thread, one after another."""
    for task in tasks:
        if task is None:
            time.sleep(PAUSE)
        else:
            yield run_task(work, task, on_note)
