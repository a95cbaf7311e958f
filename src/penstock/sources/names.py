"""Names that choose rows: `chat.jsonl@[:1000]`, `folder:train[:10%]`.  A file of exactly that name comes first.

| written | means |
|---|---|
| `place@[a:b]`, `place@[a:b:c]` | rows of any place, as Python slices a list; also percent, without a step |
| `place@[split=train, test_size=0.1, seed=0]` | one part of a random split, `train` or `test`: as `source.train_test_split` |
| `path[a:b]`, `path[a%:b%]` | the same for a path that exists, as `datasets` writes it |
| `folder:split`, `folder:split[a:b]` | a split of a data set folder, or some rows of it; the same as `split=` |
| `data-{000..099}.tar`, `{train,test}.jsonl` | several files, as a shell and webdataset write them |
| `hf://datasets/org/name:split[a:b]` | the same of a data set on the hub |

Percentages are rounded to the closest row, as in `datasets`.  An edge beyond the last row is the last row, as in Python.
"""

import re
from dataclasses import dataclass
from typing import Any

from penstock.errors import SourceError
from penstock.places.files import exists, is_folder, is_remote
from penstock.sources.formats import without_suffix

_NUMBER = r"-?[0-9][0-9_]*%?"
_CUT = rf"\[(?P<start>{_NUMBER})?:(?P<stop>{_NUMBER})?(?::(?P<step>-?[0-9][0-9_]*))?\]"
_SPLIT_NAME = r"\w+(?:\.\w+)*"

_AT = re.compile(rf"(?P<place>.+)@{_CUT}", re.DOTALL)
_RANDOM = re.compile(
    r"(?P<place>.+)@\[split=(?P<part>train|test), ?test_size=(?P<size>[0-9]+(?:\.[0-9]+)?), ?seed=(?P<seed>-?[0-9]+)\]",
    re.DOTALL,
)
_AT_ANYTHING = re.compile(r".+@\[[^\]/]*\]", re.DOTALL)
_BEHIND = re.compile(rf"(?P<place>.+?){_CUT}", re.DOTALL)
_OF_FOLDER = re.compile(rf"(?P<place>.+):(?P<split>{_SPLIT_NAME})", re.DOTALL)
_BRACES = re.compile(
    r"\{(?:(?P<first>[0-9]{1,18})\.\.(?P<last>[0-9]{1,18})|(?P<words>[^{}]*,[^{}]*))\}"
)
_MOST_EXPANDED = 1_000_000  # names
_OF_HUB = re.compile(
    rf"(?P<place>hf://datasets/[^/@:]+/[^/@:\[]+(?:@[^/@:\[]+)?):(?P<split>{_SPLIT_NAME})(?:{_CUT})?"
)
_SPLIT = re.compile(rf"(?P<split>{_SPLIT_NAME})(?:{_CUT})?")


@dataclass(frozen=True, slots=True)
class Cut:
    """Some rows of a place, before it is known how many there are."""

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
        """Return the slice of a place with `num_rows` rows."""
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

    def choose(self, source: Any) -> Any:
        """Return these rows of a source."""
        return source[self.of(len(source))]


@dataclass(frozen=True, slots=True)
class RandomPart:
    """One part of a random split: the other part has exactly the other rows."""

    part: str  # train or test
    test_size: int | float  # a number of rows, or a share
    seed: int

    def __str__(self) -> str:
        """As it is written in a name."""
        return f"[split={self.part}, test_size={self.test_size}, seed={self.seed}]"

    def choose(self, source: Any) -> Any:
        """Return these rows of a source."""
        train, test = source.train_test_split(test_size=self.test_size, seed=self.seed)
        return train if self.part == "train" else test


@dataclass(frozen=True, slots=True)
class Split:
    """One split of a data set, or some rows of it."""

    name: str
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class Name:
    """The parts of a name."""

    place: str
    splits: tuple[Split, ...] = ()  # none: all there is
    cuts: tuple[Cut | RandomPart, ...] = ()  # applied in this order


def read_name(text: str, *, split: str | None = None) -> Name:
    """Parse a name; `split` is what the user gave beside it."""
    name = _read(text)
    if split is None:
        return name
    if name.splits:
        raise SourceError(
            f"{text}: the name chooses a split, and split={split!r} does too; leave one of them out"
        )
    return Name(name.place, read_split(split), name.cuts)


def read_split(text: str) -> tuple[Split, ...]:
    """Parse `train`, `train[:10%]`, `train+test[-500:]`."""
    splits = []
    for piece in text.split("+"):
        found = _SPLIT.fullmatch(piece.strip())
        if found is None or found["step"] is not None:
            raise SourceError(
                f"split is {text!r}, expected a name, a part of it such as 'train[:10%]' or 'train[1000:2000]', "
                f"or several joined by '+'"
            )
        splits.append(Split(found["split"], _cut(found, piece) if "[" in piece else None))
    return tuple(splits)


def expand(place: str) -> list[str]:
    """Return the names that braces stand for, in their order: `{000..099}` counts up with that many digits, `{a,b}` lists words."""
    if exists(place):
        return [place]
    if not is_remote(place):
        data_file = without_suffix(place)
        if data_file is not None:
            return [data_file]
    return _expand(place)


def _expand(place: str) -> list[str]:
    found = _BRACES.search(place)
    if found is None:
        return [place]
    if found["words"] is not None:
        words = found["words"].split(",")
    else:
        first = int(found["first"])
        last = int(found["last"])
        if not 0 <= last - first < _MOST_EXPANDED:
            raise SourceError(
                f"{place}: {found[0]} has {last - first + 1:,} numbers, expected 1 to {_MOST_EXPANDED:,}"
            )
        width = max(len(found["first"]), len(found["last"])) if found["first"][0] == "0" else 0
        words = [f"{number:0{width}}" for number in range(first, last + 1)]
    ends = _expand(place[found.end() :])
    if len(words) * len(ends) > _MOST_EXPANDED:
        raise SourceError(
            f"{place}: {len(words) * len(ends):,} names, expected at most {_MOST_EXPANDED:,}"
        )
    return [f"{place[: found.start()]}{word}{end}" for word in words for end in ends]


def _read(text: str) -> Name:
    is_url = is_remote(text)  # its names have no slices in them
    if is_url and (found := _OF_HUB.fullmatch(text)) and found["step"] is None:
        return Name(
            found["place"], (Split(found["split"], _cut(found, text) if "[" in text else None),)
        )
    if not (is_url and (_AT.fullmatch(text) or _RANDOM.fullmatch(text))) and exists(text):
        return Name(text)
    if found := _AT.fullmatch(text):
        inner = _read(found["place"])
        return Name(inner.place, inner.splits, (*inner.cuts, _cut(found, text)))
    if found := _RANDOM.fullmatch(text):
        inner = _read(found["place"])
        size = float(found["size"]) if "." in found["size"] else int(found["size"])
        part = RandomPart(found["part"], size, int(found["seed"]))
        return Name(inner.place, inner.splits, (*inner.cuts, part))
    if _AT_ANYTHING.fullmatch(text):
        raise SourceError(
            f"{text}: not a slice behind @, expected @[a:b] or @[a:b:c] with whole numbers, or "
            f"@[split=train, test_size=0.1, seed=0] for one part of a random split"
        )
    if (found := _BEHIND.fullmatch(text)) and found["step"] is None:
        place = found["place"]
        if exists(place):
            return Name(place, cuts=(_cut(found, text),))
        if (of := _OF_FOLDER.fullmatch(place)) and is_folder(of["place"]):
            return Name(of["place"], (Split(of["split"], _cut(found, text)),))
        if re.search(r"[*?]", place):
            raise SourceError(
                f"{text}: rows of a glob are written with an @: {place}@{text[len(place) :]}"
            )
    if (found := _OF_FOLDER.fullmatch(text)) and is_folder(found["place"]):
        return Name(found["place"], (Split(found["split"]),))
    return Name(text)


def _cut(found: re.Match[str], text: str) -> Cut:
    given = [edge for edge in (found["start"], found["stop"]) if edge is not None]
    percent = any(edge.endswith("%") for edge in given)
    edges = (found["start"], found["stop"], found["step"])
    start, stop, step = (None if edge is None else int(edge.rstrip("%")) for edge in edges)
    if percent and (step is not None or not all(edge.endswith("%") for edge in given)):
        raise SourceError(
            f"{text}: percent and row numbers in one slice, expected one kind and no step with percent"
        )
    if percent and max(abs(start or 0), abs(stop or 0)) > 100:
        raise SourceError(f"{text}: more than 100 %, expected -100 % to 100 %")
    if step == 0:
        raise SourceError(f"{text}: a step of 0, expected another number")
    return Cut(start, stop, step, percent)
