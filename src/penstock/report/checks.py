"""Is this recipe fit for this data?  Verdicts, before anybody spends money: each ok, a warning or a failure, with what was counted.

`check(source, template, …)` looks at rows from all over (see look.py) and keeps nothing.
"""

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from penstock.fingerprint import digest
from penstock.plan.settings import PlanSettings
from penstock.report.look import Look, doubled, look
from penstock.store.notes import about_turns, in_words, unrendered
from penstock.store.schema import id_dtype
from penstock.types import Source, Template

NOTHING = "nothing_to_train"
_UNVERIFIED = ("mask_unverified", "template_refused")

Answer = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One question, its answer, and why; `first` are places, as file:line."""

    source: str
    question: str
    answer: Answer
    why: str
    share: float | None = None  # of the rows looked at
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """All verdicts about a data set."""

    source: str
    num_rows: int
    looked: int
    estimated_tokens: int
    verdicts: tuple[Verdict, ...]


def check(
    source: Source,
    template: Template,
    settings: PlanSettings,
    *,
    cache: Path,
    at_most: int,
    name: str | None = None,
    on_bad: str = "stop",
) -> Checked:
    """Every question about one data set.  `cache` is where the store would lie."""
    found = look(source, template, at_most=at_most)
    asked = _Asked(name or source.name, source, template, found)
    verdicts = (
        asked.rows(),
        asked.readable(on_bad),
        asked.template_takes(),
        asked.mask(),
        asked.ends(),
        asked.trained(),
        *asked.unrendered(),
        *asked.turns(),
        asked.overlong(settings),
        asked.duplicates(),
        asked.disk(cache),
    )
    return Checked(
        source=asked.name,
        num_rows=found.num_rows,
        looked=found.looked,
        estimated_tokens=found.estimated_tokens,
        verdicts=verdicts
        if found.samples
        else tuple(each for each in verdicts if each.answer != "ok"),  # well without samples is not well
    )


class _Asked:
    """One data set under questions."""

    def __init__(self, name: str, source: Source, template: Template, found: Look) -> None:
        self.name, self._source, self._template, self._found = name, source, template, found

    def rows(self) -> Verdict:
        found = self._found
        if not found.num_rows:
            return self._say("rows", "fail", "the source is empty")
        if not found.samples:
            return self._say("rows", "fail", f"none of {found.looked:,} rows gives a sample")
        share = "all" if found.is_whole else f"{found.looked:,} spread over all"
        return self._say("rows", "ok", f"{found.num_rows:,} rows, looked at {share}")

    def readable(self, on_bad: str) -> Verdict:
        bad = self._found.bad
        if not bad:
            return self._say("bad rows", "ok", "every row can be read")
        stops = on_bad == "stop"
        more = "the first stops the run; mend it, or choose on_bad: skip" if stops else "they are left out and counted"
        why = f"{self._share(len(bad))} cannot be read; {more}: {bad[0][1]}"
        return self._say("bad rows", "fail" if stops else "warn", why, [row for row, _ in bad])

    def template_takes(self) -> Verdict:
        refused = self._found.refused
        if not refused:
            return self._say("template", "ok", repr(self._template))
        why = f"{self._share(len(refused))} do not fit the template, and the first stops the run: {refused[0][1]}"
        return self._say("template", "fail", why, [row for row, _ in refused])

    def mask(self) -> Verdict:
        rows = [row for reason in _UNVERIFIED for row in self._found.dropped.get(reason, [])]
        if rows:
            why = f"{self._share(len(rows))} are skipped: what is trained cannot be verified, or their template refuses them"
            return self._say("mask", "warn", why, rows)
        turns = getattr(self._template, "how_turns_end", None)
        if turns is not None and (remark := turns()):
            return self._say("mask", "warn", remark)
        trained = sum(int(np.count_nonzero(mask)) for _, mask in self._found.samples)
        share = trained / self._found.tokens if self._found.tokens else 0.0
        return self._say("mask", "ok", f"{share:.1%} of the tokens are trained")

    def ends(self) -> Verdict:
        """A second BOS or EOS is a template and a tokenizer that both add one."""
        tokenizer: Any = getattr(self._template, "tokenizer", None)
        if tokenizer is None:
            return self._say("BOS and EOS", "ok", "no tokenizer, so nothing was added")
        twice = {
            "BOS": doubled(self._found, tokenizer.bos_id, at_end=False),
            "EOS": doubled(self._found, tokenizer.eos_id, at_end=True),
        }
        parts = [f"{self._share(count)} have two {name}" for name, count in twice.items() if count]
        if parts:
            return self._say(
                "BOS and EOS", "warn", f"{', '.join(parts)}; set bos: false or eos: false, or mend the chat template"
            )
        return self._say("BOS and EOS", "ok", "none stands twice")

    def trained(self) -> Verdict:
        rows = self._found.dropped.get(NOTHING, [])
        if not rows:
            return self._say("nothing trained", "ok", "every sample has something to train on")
        answer: Answer = "fail" if len(rows) == self._found.looked else "warn"
        return self._say(
            "nothing trained", answer, f"{self._share(len(rows))} have nothing to train on and are left out", rows
        )

    def unrendered(self) -> tuple[Verdict, ...]:
        """Fields that the chat template does not print, so that nothing is trained on them; only where there is a chat template."""
        found = self._found
        if not hasattr(self._template, "on_unrendered"):
            return ()
        if skipped := found.dropped.get("unrendered", []):
            why = f"{self._share(len(skipped))} are skipped: the chat template does not print all of their fields"
            return (self._say("not printed", "warn", why, skipped),)
        lost = unrendered(found.notes, assistant_characters=found.assistant_characters)
        if not lost:
            return (self._say("not printed", "ok", "the chat template prints every field of the messages"),)
        why = f"the chat template does not print {'; '.join(in_words(each, num_rows=found.looked) for each in lost)}"
        first = tuple(str(self._source.where(row)) for row in lost[0].rows)
        share = max(each.count for each in lost) / found.looked
        said = Verdict(source=self.name, question="not printed", answer="warn", why=why, share=share, first=first)
        return (said,)

    def turns(self) -> list[Verdict]:
        """Trained turns that no token ends, or that have only a part of their header."""
        found = about_turns(self._found.notes, num_rows=self._found.looked)
        return [
            Verdict(
                source=self.name,
                question="turns",
                answer="warn",
                why=said,
                share=note.count / self._found.looked,
                first=tuple(str(self._source.where(row)) for row in note.rows),
            )
            for said, note in found
        ]

    def overlong(self, settings: PlanSettings) -> Verdict:
        lengths = self._found.lengths
        over = np.flatnonzero(lengths > settings.capacity)
        if settings.packing == "concat" or not over.size:
            longest = int(lengths.max()) if lengths.size else 0
            return self._say(
                "overlong", "ok", f"the longest sample has {longest:,} tokens, max_length is {settings.max_length:,}"
            )
        lost = (
            int((lengths[over] - (settings.capacity if settings.overflow == "truncate" else 0)).sum()) / lengths.sum()
        )
        what = {
            "drop": f"dropped with {lost:.1%} of the tokens",
            "truncate": f"cut, which loses {lost:.1%} of the tokens",
            "split": "split into several pieces",
            "error": "and the first stops the run",
        }[settings.overflow]
        share = over.size / lengths.size
        severe = settings.overflow == "error" or (settings.overflow == "drop" and share > 0.5)
        answer: Answer = "fail" if severe else "warn" if share > 0.01 and settings.overflow != "split" else "ok"
        why = f"{self._share(over.size)} are longer than max_length {settings.max_length:,}: {what}"
        return self._say("overlong", answer, why, self._found.rows[over].tolist())

    def duplicates(self) -> Verdict:
        seen: Counter[str] = Counter()
        again = []
        for row, (ids, _) in zip(self._found.rows.tolist(), self._found.samples, strict=True):
            name = digest(np.ascontiguousarray(ids).tobytes())
            if seen[name]:
                again.append(row)
            seen[name] += 1
        share = len(again) / len(self._found.samples) if self._found.samples else 0.0
        answer: Answer = "warn" if share > 0.01 else "ok"
        among = "" if self._found.is_whole else " among those looked at; of all there may be more"
        why = (
            f"{self._share(len(again))} repeat an earlier one{among}" if again else f"no sample repeats another{among}"
        )
        return self._say("duplicates", answer, why, again)

    def disk(self, cache: Path) -> Verdict:
        per_token = id_dtype(self._template.vocab_size).itemsize + 1 / 8
        need = int(self._found.estimated_tokens * per_token + 12 * self._found.num_rows)
        there = next((folder for folder in (cache, *cache.parents) if folder.exists()), Path("/"))
        free = shutil.disk_usage(there).free
        why = f"about {_size(need)} for {self._found.estimated_tokens:,} tokens; {_size(free)} are free"
        return self._say("disk", "fail" if need > free else "warn" if 2 * need > free else "ok", why)

    def _share(self, count: int) -> str:
        looked = self._found.looked
        return f"{count:,} of {looked:,} rows ({count / looked:.1%})" if looked else "no rows"

    def _say(self, question: str, answer: Answer, why: str, rows: list[int] | None = None) -> Verdict:
        first = tuple(str(self._source.where(row)) for row in (rows or [])[:5])
        share = len(rows) / self._found.looked if rows is not None and self._found.looked else None
        return Verdict(source=self.name, question=question, answer=answer, why=why, share=share, first=first)


def _size(number: int) -> str:
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"
