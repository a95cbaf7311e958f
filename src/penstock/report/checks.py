"""Check a recipe and its data for problems: each question is answered ok, warn or fail, with what was counted.

`check(source, template, …)` samples rows from all over the data (see look.py) and keeps nothing.
"""

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from penstock.fingerprint import digest
from penstock.plan.settings import PlanSettings
from penstock.report.look import Look, doubled, look, spread
from penstock.report.text import percent, size
from penstock.sources import RowAccess
from penstock.store.notes import about_turns, in_words, unrendered
from penstock.store.schema import id_dtype
from penstock.templates import PromptCompletionTemplate, TextTemplate, opened_template
from penstock.templates.builtin import CHATML
from penstock.types import Ints, Source, Template

NOTHING = "nothing_to_train"
_SHORT_TEXT = 32  # tokens: where the median text is shorter, lines were probably taken for documents
_LOST = 0.01  # share of the trained tokens that may be lost without a warning
_UNVERIFIED = ("mask_unverified", "template_refused")

Answer = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One question, its answer, and the reason; `first` are the first rows concerned, as file:line."""

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
    beside: Sequence[str] = (),
) -> Checked:
    """Every question about one data set.  `cache` is where the store would lie; `beside` are the data sets of the same
    mixture that use the chat template, where this one does not."""
    template = opened_template(template)
    found = look(source, template, at_most=at_most)
    asked = _Asked(name or source.name, source, template, found)
    verdicts = (
        asked.rows(),
        asked.readable(on_bad),
        asked.template_takes(),
        asked.chat_template(beside),
        asked.mask(),
        asked.ends(),
        asked.trained(),
        *asked.unrendered(),
        *asked.turns(),
        asked.overlong(settings),
        asked.model_length(settings),
        *asked.text_length(),
        asked.duplicates(),
        asked.disk(cache),
        *asked.removed_nulls(),
    )
    return Checked(
        source=asked.name,
        num_rows=found.num_rows,
        looked=found.looked,
        estimated_tokens=found.estimated_tokens,
        verdicts=verdicts
        if found.samples
        else tuple(each for each in verdicts if each.answer != "ok"),  # without samples, nothing was shown to be ok
    )


class _Asked:
    """One data set under questions."""

    def __init__(self, name: str, source: Source, template: Template, found: Look) -> None:
        self.name, self._source, self._template, self._found = name, source, template, found

    def rows(self) -> Verdict:
        found = self._found
        if not found.num_rows:
            return self._say("rows", "fail", "there are no rows")
        if not found.samples:
            return self._say("rows", "fail", f"none of {found.looked:,} sampled rows gives a sample")
        share = (
            "all were checked" if found.is_whole else f"{found.looked:,} of them, spread over the data, were checked"
        )
        return self._say("rows", "ok", f"{found.num_rows:,} rows; {share}")

    def readable(self, on_bad: str) -> Verdict:
        bad = self._found.bad
        if not bad:
            read = f"{self._found.looked:,} of {self._found.num_rows:,} rows read: all fine"
            return self._say("bad rows", "ok", read)
        stops = on_bad == "stop"
        more = "the first stops the run; fix it, or set on_bad: skip" if stops else "they are skipped and counted"
        why = f"{self._share(len(bad))} cannot be read; {more}: {bad[0][1]}"
        return self._say("bad rows", "fail" if stops else "warn", why, [row for row, _ in bad])

    def template_takes(self) -> Verdict:
        refused = self._found.refused
        if not refused:
            return self._say("template", "ok", template_words(self._template))
        why = f"{self._share(len(refused))} give an error in the template; the first stops the run: {refused[0][1]}"
        return self._say("template", "fail", why, [row for row, _ in refused])

    def chat_template(self, beside: Sequence[str]) -> Verdict:
        """Rows with and without the chat template in one mixture teach two formats for the same thing."""
        if uses_chat_template(self._template):
            return self._say("chat template", "ok", f"used: {_which_chat_template(self._template)}")
        if beside and is_two_sided(self._template):
            why = (
                f"not used: prompt and answer are plain text, but {', '.join(beside)} of the same mixture uses the chat template; "
                "the model would learn both formats; set chat: true for this data set to render all of them alike"
            )
            return self._say("chat template", "warn", why)
        hint = (
            "; set chat: true to use it" if is_two_sided(self._template) and has_chat_template(self._template) else ""
        )
        return self._say("chat template", "ok", f"not used: rows are plain text or tokens{hint}")

    def mask(self) -> Verdict:
        rows = [row for reason in _UNVERIFIED for row in self._found.dropped.get(reason, [])]
        if rows:
            why = f"{self._share(len(rows))} are skipped: which tokens to train cannot be verified, or the chat template refuses them"
            return self._say("trained tokens", "warn", why, rows)
        turns = getattr(self._template, "how_turns_end", None)
        if turns is not None and (remark := turns()):
            return self._say("trained tokens", "warn", remark)
        trained, tokens = int(self._found.trained.sum()), self._found.tokens
        why = f"{trained:,} of {tokens:,} tokens in the checked rows are trained on ({percent(trained, tokens)})"
        return self._say("trained tokens", "ok", why)

    def ends(self) -> Verdict:
        """A second BOS or EOS is a template and a tokenizer that both add one."""
        tokenizer: Any = getattr(self._template, "tokenizer", None)
        if tokenizer is None:
            return self._say("BOS and EOS", "ok", "no tokenizer, so none were added")
        twice = {
            "BOS": doubled(self._found, tokenizer.bos_id, at_end=False),
            "EOS": doubled(self._found, tokenizer.eos_id, at_end=True),
        }
        parts = [f"{self._share(count)} have two {name}" for name, count in twice.items() if count]
        if parts:
            return self._say(
                "BOS and EOS", "warn", f"{', '.join(parts)}; set bos: false or eos: false, or fix the chat template"
            )
        return self._say("BOS and EOS", "ok", "no duplicated BOS or EOS")

    def trained(self) -> Verdict:
        rows = self._found.dropped.get(NOTHING, [])
        if not rows:
            return self._say("rows without loss", "ok", "every checked row has tokens to train on")
        answer: Answer = "fail" if len(rows) == self._found.looked else "warn"
        return self._say(
            "rows without loss", answer, f"{self._share(len(rows))} have no tokens to train on and are dropped", rows
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
        longest = f"the longest checked sample has {int(lengths.max(initial=0)):,} tokens, max_length is {settings.max_length:,}"
        if not over.size:
            return self._say("too long", "ok", longest)
        if settings.packing == "concat":
            return self._say("too long", "ok", f"{longest}; packing: concat cuts samples at row ends and loses nothing")
        lost, lost_trained = self._lost(settings, over)
        of_trained = percent(lost_trained, self._found.trained.sum())
        share_lost = f"{percent(lost, lengths.sum())} of the tokens and {of_trained} of the trained tokens"
        what = {
            "drop": f"they are dropped, with {share_lost}",
            "truncate": f"they are cut, which loses {share_lost}",
            "split": "they are split into pieces, which loses nothing",
            "error": "the first stops the run",
        }[settings.overflow]
        severe = settings.overflow == "error" or (settings.overflow == "drop" and over.size > 0.5 * lengths.size)
        answer: Answer = "fail" if severe else "warn" if lost_trained > _LOST * int(self._found.trained.sum()) else "ok"
        why = f"{self._share(over.size)} are longer than max_length {settings.max_length:,}; {what}"
        return self._say("too long", answer, why, self._found.rows[over].tolist())

    def _lost(self, settings: PlanSettings, over: Ints) -> tuple[int, int]:
        """Tokens, and trained tokens, that the samples `over` lose."""
        if settings.overflow not in ("drop", "truncate"):
            return 0, 0
        kept = settings.capacity if settings.overflow == "truncate" else 0
        lengths, samples = self._found.lengths[over], [self._found.samples[place] for place in over.tolist()]
        return int((lengths - kept).sum()), sum(int(np.count_nonzero(mask[max(kept, 1) :])) for _, mask in samples)

    def model_length(self, settings: PlanSettings) -> Verdict:
        """Rows longer than the model was made for cannot be trained, or train positions that it does not know."""
        most: int | None = getattr(getattr(self._template, "tokenizer", None), "model_max_length", None)
        if most is None:
            return self._say("model length", "ok", "the tokenizer does not say how long a sequence the model takes")
        if settings.max_length <= most:
            return self._say(
                "model length", "ok", f"max_length {settings.max_length:,} is within model_max_length {most:,}"
            )
        why = f"max_length {settings.max_length:,} is more than the tokenizer's model_max_length, {most:,}; set max_length: {most}"
        return self._say("model length", "warn", why)

    def text_length(self) -> tuple[Verdict, ...]:
        """Every text ends with EOS; where each line became a text, a model learns to stop after a line."""
        if not isinstance(self._template, TextTemplate) or not self._found.samples:
            return ()
        median = int(np.median(self._found.lengths))
        if median >= _SHORT_TEXT:
            return (self._say("text length", "ok", f"half of the checked texts have {median:,} tokens or more"),)
        record = getattr(self._source, "record", None)
        advice = {
            "line": "if lines of a longer text became documents, set options: {record: paragraph} or {record: file}",
            "paragraph": "if paragraphs of a longer text became documents, set options: {record: file}",
        }.get(str(record), "join rows that belong to one text")
        ends = ", and each ends with EOS" if self._template.identity()["suffix"] else ""
        why = f"half of the checked texts have {median:,} tokens or fewer{ends}; {advice}"
        return (self._say("text length", "warn", why),)

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
        looked = self._found.looked
        none = f"no duplicates in the {looked:,} {'rows' if self._found.is_whole else 'sampled rows'}"
        why = f"{self._share(len(again))} repeat an earlier one" if again else none
        return self._say("duplicates", answer, why, again)

    def disk(self, cache: Path) -> Verdict:
        per_token = id_dtype(self._template.vocab_size).itemsize + 1 / 8
        need = int(self._found.estimated_tokens * per_token + 12 * self._found.num_rows)
        there = next((folder for folder in (cache, *cache.parents) if folder.exists()), Path("/"))
        free = shutil.disk_usage(there).free
        why = f"the cache needs about {size(need)} for {self._found.estimated_tokens:,} tokens; {size(free)} are free"
        return self._say("disk", "fail" if need > free else "warn" if 2 * need > free else "ok", why)

    def removed_nulls(self) -> list[Verdict]:
        """What a columnar source removed from the rows looked at; no verdict where it removed nothing."""
        if not isinstance(self._source, RowAccess):
            return []
        looked = spread(self._found.num_rows, self._found.looked)
        unread = {row for row, _ in self._found.bad}
        removed = self._source.removed_nulls([row for row in looked if row not in unread])
        if not removed.rows:
            return []
        columns = ", ".join(f"{column} {count:,}" for column, count in removed.columns.most_common())
        why = (
            f"removed {removed.columns.total():,} null members that Arrow's schema added in {removed.rows:,} of "
            f"{self._found.looked:,} rows ({columns}); set nulls: keep to train them"
        )
        return [self._say("nulls", "ok", why)]

    def _share(self, count: int) -> str:
        looked = self._found.looked
        rows = "rows" if self._found.is_whole else "sampled rows"
        return f"{count:,} of {looked:,} {rows} ({percent(count, looked)})" if looked else "no rows"

    def _say(self, question: str, answer: Answer, why: str, rows: list[int] | None = None) -> Verdict:
        first = tuple(str(self._source.where(row)) for row in (rows or [])[:5])
        share = len(rows) / self._found.looked if rows is not None and self._found.looked else None
        return Verdict(source=self.name, question=question, answer=answer, why=why, share=share, first=first)


def template_words(template: Template) -> str:
    """A template in words: what renders the rows, and which tokens are trained."""
    if isinstance(template, PromptCompletionTemplate):
        return f"{template.usual}, plain text; loss on {'all tokens' if template.train_on == 'all' else 'the answer'}"
    if isinstance(template, TextTemplate):
        return f"text in {template.key!r}; loss on all tokens"
    if not uses_chat_template(template):
        return repr(template)
    chat: Any = template
    turns = {
        "assistant": "assistant turns",
        "last": "the last assistant turn",
        "completion": "the answer",
        "all": "all tokens",
    }
    loss = turns.get(chat.train_on, "") if isinstance(chat.train_on, str) else f"turns of {', '.join(chat.train_on)}"
    return f"{getattr(chat.reader, 'shape', 'conversations')}, {_which_chat_template(chat)}; loss on {loss}"


def _which_chat_template(template: Any) -> str:
    tokenizer, text = template.tokenizer, template.renderer.text
    if text in tokenizer.chat_templates.values():
        name = Path(tokenizer.path).parent.name if tokenizer.path else "the tokenizer"
        return f"chat template of {name}"
    return "the built-in ChatML template" if text == CHATML else "the chat_template of the recipe"


def uses_chat_template(template: Template) -> bool:
    return hasattr(template, "renderer")


def is_two_sided(template: Template) -> bool:
    """Whether rows are a prompt and an answer, in plain text."""
    return isinstance(template, PromptCompletionTemplate)


def has_chat_template(template: Template) -> bool:
    return bool(getattr(getattr(template, "tokenizer", None), "chat_templates", None))
