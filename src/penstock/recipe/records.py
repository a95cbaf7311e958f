"""Choose what one record of a plain text file is: a line, a paragraph, or the whole file.

Every record becomes a document with its own end-of-text token, so the choice decides what a model learns to stop after.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.report.look import read, spread
from penstock.sources import RowAccess

CHOICES = ("line", "paragraph", "file")
_SAMPLED = 400  # records measured for each choice
_MOST_CHARACTERS = 200_000  # of a record that are made into tokens; a longer one is estimated from them
_MOST_READ = 20_000_000  # characters of all records that are measured for one choice
CHARACTERS = 4  # per token, where no tokenizer says better
_LONG_LINE = 128  # tokens: a line of this length is a document rather than a line of one
_SEVERAL = 1.5  # a paragraph of more than so many lines is more than a line
_SHORT_FILE = 32_768  # tokens: among several files, one of up to this length is a document

Count = Callable[[Sequence[str]], Sequence[int]]  # texts → tokens of each


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordChoice:
    """What a record is, and the median tokens per record of every choice."""

    chosen: str
    medians: dict[str, int]

    @property
    def why(self) -> str:
        listed = ", ".join(f"{name} {tokens:,}" for name, tokens in self.medians.items())
        return f"one record per {self.chosen} (option record); median tokens per record: {listed}"


def choose_record(open_as: Callable[[str], RowAccess], count: Count, *, num_files: int) -> RecordChoice:
    """Measure every choice and take the one that fits how the text is written."""
    sources = {name: open_as(name) for name in CHOICES}
    medians = {name: _median(source, count) for name, source in sources.items()}
    has_blank_lines = len(sources["paragraph"]) > len(sources["file"])
    return RecordChoice(chosen=_chosen(medians, num_files, has_blank_lines), medians=medians)


def _chosen(medians: dict[str, int], num_files: int, has_blank_lines: bool) -> str:
    if medians["line"] >= _LONG_LINE:
        return "line"
    if num_files > 1 and medians["file"] <= _SHORT_FILE:
        return "file"
    return "paragraph" if has_blank_lines and medians["paragraph"] > _SEVERAL * medians["line"] else "line"


def _median(source: RowAccess, count: Count) -> int:
    texts: list[str] = []
    for row in spread(len(source), _SAMPLED):
        _, records, _ = read(source, [row])  # one by one: files may be large
        texts += [record["text"] for record in records]
        if sum(map(len, texts)) > _MOST_READ:
            break
    if not texts:  # too long to be read at all
        return (source.num_bytes or 0) // max(len(source), 1) // CHARACTERS
    counted = count([text[:_MOST_CHARACTERS] for text in texts])
    sizes = [
        tokens * len(text) // _MOST_CHARACTERS if len(text) > _MOST_CHARACTERS else tokens
        for text, tokens in zip(texts, counted, strict=True)
    ]
    return int(np.median(sizes))
