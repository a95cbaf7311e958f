"""Which recipe suits this data?  After a look at it: shape, template with its runner-up, lengths, a sensible max_length; as commented YAML.

Values that were found are written; what is left at its default stands in a comment, as the signatures have it.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.cache import Cache
from penstock.errors import BadRecord, TemplateError
from penstock.recipe.meaning import MEANING
from penstock.recipe.written import default_text, line
from penstock.report.escape import escape
from penstock.report.look import Look, look, read, spread
from penstock.report.numbers import Lengths, length_numbers, sensible_length
from penstock.report.text import count, size
from penstock.sources import RowAccess, open_source
from penstock.templates import Detection, detect, is_worth_fast, open_template, open_tokenizer
from penstock.types import Record

VARIABLE = "TOKENIZER"  # stands in a recipe for a tokenizer that nobody named

_DETECT_ROWS = 200
_TOKENS_PER_BATCH = 32_768
_CHARACTERS = 4  # per token, where no tokenizer says better
_SHOWN = ("packing", "overflow", "shuffle", "seed", "epochs", "tail", "output")
_TRAIN_ON = ("messages", "sharegpt", "alpaca")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A recipe as text, and what it was made of."""

    text: str
    name: str
    shape: str
    num_rows: int
    num_files: int
    num_bytes: int | None
    template: str
    runner_up: str | None
    why: str  # how the template was found
    options: dict[str, Any]  # of the template
    looked: int
    lengths: Lengths  # in tokens; estimated from characters without a tokenizer
    is_estimate: bool
    trained_share: float | None
    max_length: int
    kept_whole: float  # share of the samples that fit into max_length
    batch_size: int
    problems: list[str]  # rows that were looked at and gave no sample

    @property
    def findings(self) -> list[str]:
        on_disk = "" if self.num_bytes is None else f", {size(self.num_bytes)}"
        tokens = self.lengths
        how = "estimated from characters" if self.is_estimate else f"{count(self.looked, 'row')} looked at"
        trained = "" if self.trained_share is None else f"; {self.trained_share:.1%} of the tokens are trained"
        return [
            f"{self.name}: {self.shape or 'records'}, {count(self.num_rows, 'row')} in {count(self.num_files, 'file')}{on_disk}",
            self.why,
            f"tokens per sample: median {tokens.p50:,}, 99 % up to {tokens.p99:,}, longest {tokens.max:,} ({how}){trained}",
            f"max_length {self.max_length:,} takes {self.kept_whole:.1%} of the samples whole",
            *self.problems,
        ]


def draft(
    place: str | list[str],
    *,
    output: Path,
    tokenizer: str | None,
    cache_dir: Any = None,
    rows: int = 1000,
    template: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Draft:
    """Look at the data and write a recipe that will be the file `output`."""
    source = open_source(place, cache=Cache(cache_dir))
    _, records, bad = read(source, spread(len(source), _DETECT_ROWS))
    if not len(source):
        raise TemplateError(f"{', '.join(source.files) or source.name}: no rows, so there is nothing to look at")
    if not records:
        raise BadRecord(f"none of {count(len(bad), 'row')} looked at can be read; the first: {bad[0][1]}")
    given = dict(options or {})
    detection = _named(template, len(records)) if template else detect(records, given)
    chosen = {**detection.options, **given}
    found = _looked(source, detection, chosen, tokenizer, rows)
    problems = _problems(source, bad, len(records) + len(bad), found)
    if found is not None and not found.samples:
        raise TemplateError(f"{source.name}: no row that was looked at gives a sample: {'; '.join(problems)}")
    sizes = _estimated(records) if found is None else found.lengths
    max_length = sensible_length(sizes)
    kept = float(np.mean(sizes <= max_length)) if sizes.size else 1.0
    trained = None if found is None or not found.tokens else _trained(found) / found.tokens
    made = Draft(
        text="",
        name=source.name,
        shape=source.shape,
        num_rows=len(source),
        num_files=len(source.files),
        num_bytes=source.num_bytes,
        template=detection.chosen,
        runner_up=detection.runner_up,
        why=f"template {template}, as told" if template else detection.why,
        options=chosen,
        looked=len(records) if found is None else found.looked,
        lengths=length_numbers(sizes),
        is_estimate=found is None,
        trained_share=trained,
        max_length=max_length,
        kept_whole=kept,
        batch_size=max(1, min(8, _TOKENS_PER_BATCH // max_length)),
        problems=problems,
    )
    return Draft(
        **{**{name: getattr(made, name) for name in made.__slots__}, "text": _text(made, place, output, tokenizer)}
    )


def _named(template: str, num_rows: int) -> Detection:
    """Nobody needs to guess."""
    return Detection(chosen=template, runner_up=None, scores={template: num_rows}, num_rows=num_rows)


def _looked(
    source: RowAccess, detection: Detection, options: dict[str, Any], tokenizer: str | None, rows: int
) -> Look | None:
    """Rows as samples; None without a tokenizer."""
    if detection.chosen == "pretokenized" and tokenizer is None:
        options["vocab_size"] = _largest(source, options.get("input_key", "input_ids"), rows) + 1
    elif tokenizer is None:
        return None
    opened = None if tokenizer is None else open_tokenizer(tokenizer, fast=is_worth_fast(source, rows))
    return look(source, open_template(detection.chosen, opened, options), at_most=rows)


def _problems(source: RowAccess, bad: list[tuple[int, str]], looked: int, found: Look | None) -> list[str]:
    """What `penstock check` will say more about; a recipe is written all the same."""
    bad, looked = (bad, looked) if found is None else (found.bad, found.looked)
    lines = (
        [f"{len(bad):,} of {looked:,} rows cannot be read; mend them, or set on_bad: skip: {bad[0][1]}"] if bad else []
    )
    if found is not None and found.refused:
        row, message = found.refused[0]
        lines.append(
            f"{len(found.refused):,} of {looked:,} rows do not fit the template: {source.where(row)}: {message}"
        )
    dropped = found.dropped.items() if found is not None else ()
    lines += [
        f"{len(rows):,} of {looked:,} rows are left out: {reason} ({source.where(rows[0])})" for reason, rows in dropped
    ]
    return lines


def _largest(source: RowAccess, key: str, rows: int) -> int:
    return max((int(max(ids)) for row in spread(len(source), rows) if len(ids := source[row].get(key, ()))), default=0)


def _estimated(records: list[Record]) -> Any:
    return np.array([max(_characters(record) // _CHARACTERS, 1) for record in records], np.int64)


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_characters, parts))


def _trained(found: Look) -> int:
    return sum(int(np.count_nonzero(mask)) for _, mask in found.samples)


def _text(made: Draft, place: str | list[str], output: Path, tokenizer: str | None) -> str:
    folder, name = output.parent, json.dumps(output.name, ensure_ascii=False)
    paths = [_relative(each, folder) for each in ([place] if isinstance(place, str) else place)]
    given = line("tokenizer", _relative(tokenizer, folder, must_exist=True)) if tokenizer is not None else None
    lines = [
        "# Written by `penstock init` after a look at the data:",
        *(f"#   {escape(finding)}" for finding in made.findings),
        "#",
        "# penstock check, show, stats, plan, prepare: each takes this file.  In Python: penstock.load(" + escape(name) + ")",
        "",
        line("data", paths[0] if len(paths) == 1 else paths),
        "# Several data sets, with weights and words of their own:",
        "#   data:",
        "#     chat: {path: chat.jsonl, weight: 0.7}",
        "#     math: {path: math.jsonl, weight: 0.3, template: alpaca}",
        "",
        *_tokenizer(made, given),
        f"{line('template', made.template)}  # `penstock show` shows a record as a sample",
        *(line(name, value) for name, value in made.options.items()),
        *([f"# train_on: assistant  # {MEANING['train_on']}"] if made.template in _TRAIN_ON else []),
        "",
        f"max_length: {made.max_length}  # {MEANING['max_length']}; `penstock stats` compares others",
        f"batch_size: {made.batch_size}  # {MEANING['batch_size']}",
        "",
        "# Left at their defaults:",
        *map(_default, _SHOWN),
        "",
        "# Sets to evaluate on: one pass each, in the order of the file.  penstock.load(" + escape(name) + ", part=\"held_out\")",
        "# eval:",
        "#   held_out: held_out.jsonl",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _tokenizer(made: Draft, given: str | None) -> list[str]:
    if given is not None:
        return [given]
    if made.template == "pretokenized":
        return ["# tokenizer: …  # only to read samples as text; vocab_size below is the largest id seen and one more"]
    return [
        f"tokenizer: ${{{VARIABLE}}}  # a folder, a tokenizer.json or a name on the hub; or set the variable {VARIABLE}"
    ]


def _default(name: str) -> str:
    return f"# {name}: {default_text(name)}  # {MEANING[name]}"


def _relative(place: str, folder: Path, *, must_exist: bool = False) -> str:
    """As a recipe in `folder` would name it."""
    if "://" in place or (must_exist and not Path(place).expanduser().exists()):
        return place  # elsewhere, or a name on the hub
    absolute = os.path.abspath(os.path.expanduser(place))  # noqa: PTH100, PTH111 - may be a glob
    home = os.path.abspath(folder)  # noqa: PTH100
    return os.path.relpath(absolute, home) if absolute.startswith(home + os.sep) else absolute
