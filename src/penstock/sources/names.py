"""Names that choose rows: `chat.jsonl@[:1000]`.  A file of exactly that name comes first.

| written | means |
|---|---|
| `path@[a:b]`, `path@[a:b:c]` | records of any path, as Python slices a list; also percent, without a step |
| `path@[split=train, test_size=0.1, seed=0]` | one part of a random split, `train` or `test`: as `source.train_test_split` |
| `path@[split=train, test_size=0.1, seed=0, by=content]` | also `by=content, columns=a+b` and `stratify_by=a` |
| `data-{000..099}.tar`, `{train,test}.jsonl` | several files, as a shell and webdataset write them |

`split=` next to a path names a split, or some records of it: `train`, `train[:10%]`, `train+test[-500:]`.

Percentages are rounded to the closest record, as in `datasets`.  An edge beyond the last record is the last record, as in Python.
"""

import re
from dataclasses import dataclass, replace

from penstock.errors import SourceError
from penstock.places.files import exists, is_remote
from penstock.sources.base import RowAccess
from penstock.sources.formats import without_suffix

_NUMBER = r"-?[0-9][0-9_]*%?"
_CUT = rf"\[(?P<start>{_NUMBER})?:(?P<stop>{_NUMBER})?(?::(?P<step>-?[0-9][0-9_]*))?\]"
_SPLIT_NAME = r"\w+(?:\.\w+)*"

_AT = re.compile(rf"(?P<path>.+)@{_CUT}", re.DOTALL)
_RANDOM = re.compile(
    r"(?P<path>.+)@\[split=(?P<part>train|test), ?test_size=(?P<size>[0-9]+(?:\.[0-9]+)?), ?seed=(?P<seed>-?[0-9]+)"
    r"(?:, ?by=(?P<by>content)(?:, ?columns=(?P<columns>[^],]+))?|, ?stratify_by=(?P<stratum>[^],]+))?\]",
    re.DOTALL,
)
_AT_ANYTHING = re.compile(r".+@\[[^\]/]*\]", re.DOTALL)
# What 0.2 read as rows or a split, and `datasets` writes so: path[a:b], folder:train[:10%].
_WITHOUT_AT = re.compile(
    rf"(?P<path>.+?)(?::(?P<split>{_SPLIT_NAME}))?(?P<slice>{_CUT})?", re.DOTALL
)
_BRACES = re.compile(
    r"\{(?:(?P<first>[0-9]{1,18})\.\.(?P<last>[0-9]{1,18})|(?P<words>[^{}]*,[^{}]*))\}"
)
_MOST_EXPANDED = 1_000_000  # names
_SPLIT = re.compile(rf"(?P<split>{_SPLIT_NAME})(?:{_CUT})?")


@dataclass(frozen=True, slots=True)
class Cut:
    """Some records of a path, before it is known how many there are."""

    start: int | None
    stop: int | None
    step: int | None = None
    percent: bool = False

    def __str__(self) -> str:
        """As it is written in a name."""
        sign = "%" if self.percent else ""
        edges = [f"{edge}{sign}" if edge is not None else "" for edge in (self.start, self.stop)]
        return f"[{':'.join([*edges, str(self.step)] if self.step is not None else edges)}]"

    def of(self, num_rows: int) -> slice:
        """Return the slice of a path with `num_rows` records."""
        if not self.percent:
            return slice(self.start, self.stop, self.step)
        edges = []
        for percent in (self.start, self.stop):
            rows = None if percent is None else round(percent * num_rows / 100)
            # the last 1 % of ten rows is an empty slice, where `datasets` gives all ten
            edges.append(
                num_rows + rows
                if percent is not None and rows is not None and percent < 0
                else rows
            )
        return slice(*edges)

    def choose(self, source: RowAccess) -> RowAccess:
        """Return these records of a source."""
        return source[self.of(len(source))]


@dataclass(frozen=True, slots=True)
class RandomPart:
    """One part of a random split: the other part has exactly the other records."""

    part: str  # train or test
    test_size: int | float  # a number of rows, or a share
    seed: int
    by_content: bool = False
    columns: tuple[str, ...] | None = None  # that decide, of the content
    stratify_by: str | None = None

    def __str__(self) -> str:
        """As it is written in a name."""
        more = ", by=content" if self.by_content else ""
        if self.columns is not None:
            more += f", columns={'+'.join(self.columns)}"
        if self.stratify_by is not None:
            more += f", stratify_by={self.stratify_by}"
        return f"[split={self.part}, test_size={self.test_size}, seed={self.seed}{more}]"

    def choose(self, source: RowAccess) -> RowAccess:
        """Return these records of a source."""
        train, test = source.train_test_split(
            test_size=self.test_size,
            seed=self.seed,
            by="content" if self.by_content else "row",
            columns=self.columns,
            stratify_by=self.stratify_by,
        )
        return train if self.part == "train" else test


@dataclass(frozen=True, slots=True)
class Split:
    """One split of a dataset, or some records of it."""

    name: str
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class Name:
    """The parts of a name."""

    path: str
    splits: tuple[Split, ...] = ()  # none: all there is
    cuts: tuple[Cut | RandomPart, ...] = ()  # applied in this order


def read_name(text: str, *, split: str | None = None) -> Name:
    """Parse a name; `split` is what the user gave next to it."""
    name = _read(text)
    return name if split is None else replace(name, splits=read_split(split))


def read_split(text: str) -> tuple[Split, ...]:
    """Parse `train`, `train[:10%]`, `train+test[-500:]`."""
    splits = []
    for piece in text.split("+"):
        match = _SPLIT.fullmatch(piece.strip())
        if match is None or match["step"] is not None:
            raise SourceError(
                f"split is {text!r}, expected a name, a part of it such as 'train[:10%]' or 'train[1000:2000]', "
                f"or several joined by '+'"
            )
        splits.append(Split(match["split"], _cut(match, piece) if "[" in piece else None))
    return tuple(splits)


def expand(path: str) -> list[str]:
    """Return the names that braces stand for, in their order: `{000..099}` counts up with that many digits, `{a,b}` lists words."""
    if exists(path):
        return [path]
    if not is_remote(path):
        data_file = without_suffix(path)
        if data_file is not None:
            return [data_file]
    return _expand(path)


def _expand(path: str) -> list[str]:
    braces = _BRACES.search(path)
    if braces is None:
        return [path]
    if braces["words"] is not None:
        words = braces["words"].split(",")
    else:
        first = int(braces["first"])
        last = int(braces["last"])
        if not 0 <= last - first < _MOST_EXPANDED:
            raise SourceError(
                f"{path}: {braces[0]} has {last - first + 1:,} numbers, expected 1 to {_MOST_EXPANDED:,}"
            )
        width = max(len(braces["first"]), len(braces["last"])) if braces["first"][0] == "0" else 0
        words = [f"{number:0{width}}" for number in range(first, last + 1)]
    ends = _expand(path[braces.end() :])
    if len(words) * len(ends) > _MOST_EXPANDED:
        raise SourceError(
            f"{path}: {len(words) * len(ends):,} names, expected at most {_MOST_EXPANDED:,}"
        )
    return [f"{path[: braces.start()]}{word}{end}" for word in words for end in ends]


def _read(text: str) -> Name:
    is_url = is_remote(text)  # its names have no slices in them
    if not (is_url and (_AT.fullmatch(text) or _RANDOM.fullmatch(text))) and exists(text):
        return Name(text)
    rows = _AT.fullmatch(text)
    if rows is not None:
        inner = _read(rows["path"])
        return Name(inner.path, cuts=(*inner.cuts, _cut(rows, text)))
    part = _RANDOM.fullmatch(text)
    if part is not None:
        inner = _read(part["path"])
        size = float(part["size"]) if "." in part["size"] else int(part["size"])
        cut = RandomPart(
            part["part"],
            size,
            int(part["seed"]),
            by_content=part["by"] is not None,
            columns=tuple(part["columns"].split("+")) if part["columns"] else None,
            stratify_by=part["stratum"],
        )
        return Name(inner.path, cuts=(*inner.cuts, cut))
    if _AT_ANYTHING.fullmatch(text):
        raise SourceError(
            f"{text}: not a slice behind @, expected @[a:b] or @[a:b:c] with whole numbers, or "
            f"@[split=train, test_size=0.1, seed=0] for one part of a random split"
        )
    _refuse_without_at(text)
    return Name(text)


def _refuse_without_at(text: str) -> None:
    """Raise SourceError for what older versions read as records or a split of a path, and say how that is written."""
    parts = _WITHOUT_AT.fullmatch(text)
    if parts is None or not (parts["split"] or parts["slice"]):
        return
    path = parts["path"]
    if not (exists(path) or re.search(r"[*?]", path)):
        return
    rows = parts["slice"] or ""
    if parts["split"]:
        raise SourceError(
            f"{text}: a split is not part of a path; write {path} and split={parts['split'] + rows!r}"
        )
    raise SourceError(f"{text}: records are written with an @: {path}@{rows}")


def _cut(match: re.Match[str], text: str) -> Cut:
    edges_given = [edge for edge in (match["start"], match["stop"]) if edge is not None]
    percent = any(edge.endswith("%") for edge in edges_given)
    edges = (match["start"], match["stop"], match["step"])
    start, stop, step = (None if edge is None else int(edge.rstrip("%")) for edge in edges)
    if percent and (step is not None or not all(edge.endswith("%") for edge in edges_given)):
        raise SourceError(
            f"{text}: percent and record numbers in one slice, expected one kind and no step with percent"
        )
    if percent and max(abs(start or 0), abs(stop or 0)) > 100:
        raise SourceError(f"{text}: more than 100 %, expected -100 % to 100 %")
    if step == 0:
        raise SourceError(f"{text}: a step of 0, expected another number")
    return Cut(start, stop, step, percent)
