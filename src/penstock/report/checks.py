"""Check a data set of a recipe for problems: each question is answered ok, warn or fail, with what was counted.

`check` encodes rows spread over the data and keeps nothing.
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from penstock.extras.media.report import media_key, shrunk
from penstock.extras.trainers.pairs import JudgedTemplate
from penstock.extras.trainers.sequences import PAIRS, batch_kind
from penstock.fingerprint import digest
from penstock.loader.losses import Losses
from penstock.plan.settings import PlanSettings
from penstock.reasons import NOTHING_TO_TRAIN, OVERLONG, UNANSWERED_REASON
from penstock.report.flags import find_flags
from penstock.report.overlap import TRAIN, Overlaps
from penstock.report.sampling import by_message, encode_rows, read_rows
from penstock.sources import RowAccess
from penstock.store.counts import about_turns, unrendered
from penstock.store.shards import Schema
from penstock.templates import PromptCompletionTemplate, TextTemplate, opened_template
from penstock.templates.chat.choose import CHATML
from penstock.types import PROMPT_LENGTHS, Source, Template, columns_of
from penstock.words import percent, plural, size, spread

_SHORT_TEXT = (
    32  # tokens: where the median text is shorter, lines were probably taken for documents
)
_LOST = 0.01  # share of the trained tokens that may be lost without a warning
_DUPLICATES = 0.01  # share of the samples that may be repeated without a warning
_FLAG_ROWS = 10_000  # whose messages are searched for flags
_MOST_MESSAGES = 5  # kinds of refusal that are listed, the most common ones

Answer = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One question, its answer, and the reason; `first` are the first rows concerned, as file:line."""

    source: str
    question: str
    answer: Answer
    why: str
    share: float | None = None  # of the sampled rows
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
    max_dropped: float = 0.5,
    overlaps: Overlaps | None = None,
    part: str = TRAIN,
) -> Checked:
    """Answer every question about one data set.

    `cache` is where the store would be; `beside` are the data sets of the same mixture that use the chat template; `overlaps` knows the
    data sets that were checked before, and `part` says whether this one is trained on.
    """
    ask = _Questions(
        name or source.name, source, opened_template(template), settings, at_most, max_dropped
    )
    found = ask.found
    verdicts = chain(
        ask.rows(),
        ask.readable(on_bad),
        ask.accepted_by_template(),
        ask.chat_template(beside),
        ask.trained_tokens(),
        ask.message_flags(),
        ask.doubled_ends(),
        ask.rows_without_loss(),
        ask.not_printed(),
        ask.turns(),
        ask.media(),
        ask.too_long(),
        ask.dropped(),
        ask.model_length(),
        ask.text_length(),
        ask.duplicates(),
        ask.overlap(overlaps, part),
        ask.disk(cache),
        ask.removed_nulls(),
    )
    return Checked(
        source=ask.name,
        num_rows=found.num_rows,
        looked=found.looked,
        estimated_tokens=found.estimated_tokens,
        verdicts=tuple(
            each for each in verdicts if found.samples or each.answer != "ok"
        ),  # no samples: nothing is ok
    )


class _Questions:
    """The questions about one data set; each yields its verdicts."""

    def __init__(
        self,
        name: str,
        source: Source,
        template: Any,
        settings: PlanSettings,
        at_most: int,
        max_dropped: float,
    ) -> None:
        self.name = name
        self._max_dropped = max_dropped
        self._source = source
        self._template = template
        self._settings = settings
        self._tokenizer: Any = getattr(template, "tokenizer", None)
        self.found = encode_rows(source, template, at_most=at_most)
        self._rows = "rows" if self.found.is_whole else "sampled rows"
        self._is_pair = batch_kind(columns_of(template)) == PAIRS

    def _say(
        self,
        question: str,
        answer: Answer,
        why: str,
        rows: Sequence[int] | None = None,
        count: int | None = None,
    ) -> Verdict:
        """Return a verdict about `rows`, or about `count` of which they are the first."""
        first = tuple(str(self._source.where(row)) for row in (rows or ())[:5])
        count = count if count is not None or rows is None else len(rows)
        share = count / self.found.looked if count is not None and self.found.looked else None
        return Verdict(
            source=self.name, question=question, answer=answer, why=why, share=share, first=first
        )

    def _of_rows(self, count: int) -> str:
        looked = self.found.looked
        return (
            f"{count:,} of {looked:,} {self._rows} ({percent(count, looked)})"
            if looked
            else "no rows"
        )

    def rows(self) -> Iterator[Verdict]:
        found = self.found
        if not found.num_rows:
            yield self._say("rows", "fail", "there are no rows")
        elif not found.samples:
            yield self._say("rows", "fail", f"none of {found.looked:,} sampled rows gives a sample")
        else:
            some = f"{found.looked:,} of them, spread over the data, were checked"
            checked = "all were checked" if found.is_whole else some
            yield self._say("rows", "ok", f"{plural(found.num_rows, 'row')}; {checked}")

    def readable(self, on_bad: str) -> Iterator[Verdict]:
        found = self.found
        bad = self.found.bad
        if not bad:
            yield self._say(
                "bad rows", "ok", f"{found.looked:,} of {found.num_rows:,} rows read: all fine"
            )
            return
        stops = on_bad == "stop"
        more = (
            "the first stops the run; fix it, or set on_bad: skip"
            if stops
            else "they are skipped and counted"
        )
        why = f"{self._of_rows(len(bad))} cannot be read; {more}: {bad[0][1]}"
        yield self._say("bad rows", "fail" if stops else "warn", why, [row for row, _ in bad])

    def accepted_by_template(self) -> Iterator[Verdict]:
        if not self.found.refused:
            yield self._say("template", "ok", template_words(self._template))
        what = "give an error in the template; the first stops the run"
        yield from self._by_message("template", "fail", what, self.found.refused)

    def _by_message(
        self, question: str, answer: Answer, what: str, refused: list[tuple[int, str]]
    ) -> Iterator[Verdict]:
        """Yield a verdict for each of the most common messages, and one for the others."""
        groups = by_message(refused)
        for message, rows in groups[:_MOST_MESSAGES]:
            yield self._say(question, answer, f"{self._of_rows(len(rows))} {what}: {message}", rows)
        if others := groups[_MOST_MESSAGES:]:
            rows = [row for _, some in others for row in some]
            why = f"{self._of_rows(len(rows))} are refused for {len(others):,} other reasons"
            yield self._say(question, answer, why, rows)

    def chat_template(self, beside: Sequence[str]) -> Iterator[Verdict]:
        """Rows with and without the chat template in one mixture teach two formats for the same thing."""
        has_two_sides = isinstance(self._template, PromptCompletionTemplate)
        if uses_chat_template(self._template):
            yield self._say("chat template", "ok", f"used: {_which_chat_template(self._template)}")
        elif beside and has_two_sides:
            others = (
                f"{', '.join(beside)} of the same mixture {'use' if len(beside) > 1 else 'uses'}"
            )
            why = (
                f"not used: prompt and answer are plain text, but {others} the chat template; "
                "the model would learn both formats; set chat: true for this data set to render all of them alike"
            )
            yield self._say("chat template", "warn", why)
        else:
            hint = (
                "; set chat: true to use it"
                if has_two_sides and has_chat_template(self._template)
                else ""
            )
            yield self._say("chat template", "ok", f"not used: rows are plain text or tokens{hint}")

    def trained_tokens(self) -> Iterator[Verdict]:
        """Say what is trained, and what is refused if the recipe skips such rows."""
        yield from self._by_message("refused", "warn", "are skipped", self.found.skipped)
        how_turns_end = getattr(self._template, "how_turns_end", None)
        if how_turns_end is not None and (remark := how_turns_end()):
            yield self._say("trained tokens", "warn", remark)
            return
        trained = int(self.found.trained.sum())
        tokens = self.found.tokens
        why = f"{trained:,} of {tokens:,} tokens in the checked rows are trained on ({percent(trained, tokens)})"
        yield self._say("trained tokens", "ok", why)

    def message_flags(self) -> Iterator[Verdict]:
        """Say which flags of messages decide what is trained, and which keys look like flags and are not read."""
        if not uses_chat_template(self._template):
            return
        rows, records, _ = read_rows(
            self._source, spread(self.found.num_rows, min(self.found.looked, _FLAG_ROWS))
        )
        flags = find_flags(rows, records, used=self._template.renderer.text)
        for is_problem, why, concerned in flags.sentences(len(records)):
            yield self._say("message flags", "warn" if is_problem else "ok", why, concerned)
        if flags.read and isinstance(self._template, JudgedTemplate):
            names = ", ".join(flags.read)
            why = f"{names} of messages have no effect: this template trains whole answers"
            yield self._say("message flags", "warn", why)

    def doubled_ends(self) -> Iterator[Verdict]:
        """A second BOS or EOS is a template and a tokenizer that both add one."""
        if self._tokenizer is None:
            yield self._say("BOS and EOS", "ok", "no tokenizer, so none were added")
            return
        bos = self.found.doubled(self._tokenizer.bos_id, at_end=False)
        eos = self.found.doubled(self._tokenizer.eos_id, at_end=True)
        parts = [
            f"{self._of_rows(count)} have two {name}"
            for name, count in (("BOS", bos), ("EOS", eos))
            if count
        ]
        why = f"{', '.join(parts)}; set bos: false or eos: false, or fix the chat template"
        yield self._say(
            "BOS and EOS", "warn" if parts else "ok", why if parts else "no duplicated BOS or EOS"
        )

    def rows_without_loss(self) -> Iterator[Verdict]:
        rows = self.found.dropped.get(NOTHING_TO_TRAIN, [])
        if not rows and PROMPT_LENGTHS in columns_of(self._template):
            yield self._say(
                "rows without loss", "ok", "rows are prompts to generate from: nothing is trained"
            )
            return
        if not rows:
            yield self._say("rows without loss", "ok", "every checked row has tokens to train on")
            return
        why = f"{self._of_rows(len(rows))} have no tokens to train on and are dropped"
        yield self._say(
            "rows without loss", "fail" if len(rows) == self.found.looked else "warn", why, rows
        )

    def not_printed(self) -> Iterator[Verdict]:
        """Check for fields that the chat template does not print, so that they are not trained; only for conversations."""
        found = self.found
        skipped = self.found.dropped.get("unrendered", [])
        lost = unrendered(found.notes, assistant_characters=found.assistant_characters)
        if not uses_chat_template(self._template):
            return
        if skipped:
            why = f"{self._of_rows(len(skipped))} are skipped: the chat template does not print all of their fields"
            yield self._say("not printed", "warn", why, skipped)
        elif lost:
            fields = "; ".join(each.describe(found.looked) for each in lost)
            why = f"the chat template does not print {fields}"
            most = max(each.count for each in lost)
            yield self._say("not printed", "warn", why, lost[0].rows, most)
        else:
            yield self._say(
                "not printed", "ok", "the chat template prints every field of the messages"
            )

    def turns(self) -> Iterator[Verdict]:
        """Trained turns that no token ends, or that have only a part of their header; turns that nothing answers."""
        if unanswered := self.found.dropped.get(UNANSWERED_REASON, []):
            why = f"{self._of_rows(len(unanswered))} end with a user turn or a tool result and are dropped"
            yield self._say("turns", "warn", why, unanswered)
        for said, note in about_turns(self.found.notes, num_rows=self.found.looked):
            yield self._say("turns", "warn", said, note.rows, note.count)

    def media(self) -> Iterator[Verdict]:
        """Say how many tokens images, videos and audio take, and which images the processor shrinks; only if there are some."""
        found = self.found
        items = [item for some in found.media for item in some]
        if not items:
            return
        kinds = ", ".join(
            f"{count:,} of kind {kind}"
            for kind, count in Counter(item.kind for item in items).most_common()
        )
        tokens = sum(item.span[1] - item.span[0] for item in items)
        why = f"{kinds} in the checked rows; their tokens are {percent(tokens, found.tokens)} of {found.tokens:,}"
        processor = self._template.media.processor
        if not (small := shrunk(items, processor)):
            yield self._say("media", "ok", why)
            return
        item, new = max(small, key=lambda one: one[0].size[0] * one[0].size[1])
        rows = [
            row
            for row, some in zip(found.rows, found.media, strict=True)
            if shrunk(some, processor)
        ]
        sizes = "from {:,} × {:,} to {:,} × {:,}".format(*item.size, *new)
        lost = f"{len(small):,} of {len(items):,} are shrunk to less than half of their pixels, the largest {sizes}"
        yield self._say(
            "media",
            "warn",
            f"{why}; {lost}; raise the limits in the processor's files to keep detail",
            rows,
        )

    def too_long(self) -> Iterator[Verdict]:
        settings = self._settings
        lengths = self.found.lengths
        trained = self.found.trained
        over = np.flatnonzero(lengths > settings.capacity)
        most = int(lengths.max(initial=0))
        limit = f"{settings.max_length:,}"
        both = " (a pair counts both sequences)" if self._is_pair else ""
        longest = f"the longest checked sample has {most:,} tokens, max_length is {limit}{both}"
        if not over.size or settings.packing == "concat":
            cuts = (
                "; packing: concat cuts samples at row ends and loses nothing" if over.size else ""
            )
            yield self._say("too long", "ok", longest + cuts)
            return
        kept = {"drop": 0, "truncate": settings.capacity}.get(
            settings.overflow, most
        )  # tokens of each long sample
        lost = int((lengths[over] - kept).clip(0).sum())
        lost_trained = sum(
            int(np.count_nonzero(self.found.samples[place][1][max(kept, 1) :])) for place in over
        )
        share_lost = f"{percent(lost, lengths.sum())} of the tokens and {percent(lost_trained, trained.sum())}"
        what = {
            "drop": f"they are dropped, with {share_lost} of the trained tokens",
            "truncate": f"they are cut, which loses {share_lost} of the trained tokens",
            "split": "they are split into pieces, which loses nothing",
            "error": "the first stops the run",
        }[settings.overflow]
        is_error = settings.overflow == "error"
        answer: Answer = (
            "fail" if is_error else "warn" if lost_trained > _LOST * int(trained.sum()) else "ok"
        )
        why = f"{self._of_rows(over.size)} are longer than max_length {limit}{both}; {what}"
        yield self._say("too long", answer, why, [self.found.rows[place] for place in over])

    def dropped(self) -> Iterator[Verdict]:
        """Say which share of the rows and of the tokens is lost for any reason; more than `max_dropped` fails."""
        found = self.found
        losses = self._losses()
        count = sum(losses.dropped.values())
        if not found.looked or not count:
            yield self._say("dropped", "ok", f"none of {found.looked:,} {self._rows} is dropped")
            return
        reasons = ", ".join(f"{reason} {number:,}" for reason, number in losses.dropped.items())
        tokens = f", with {percent(losses.tokens_dropped, losses.tokens)} of the tokens"
        why = f"{self._of_rows(count)} are dropped{tokens if losses.tokens_dropped else ''} ({reasons})"
        if losses.share <= self._max_dropped:
            yield self._say("dropped", "ok", why, count=count)
            return
        advice = losses.advice()
        why = (
            f"{why}; max_dropped: {self._max_dropped:g} allows less, so a Loader refuses to train; "
            f"{advice}{'; ' if advice else ''}or set max_dropped"
        )
        yield self._say("dropped", "fail", why, count=count)

    def _losses(self) -> Losses:
        """What of the looked-at rows would never reach a batch, as a Loader counts it."""
        found = self.found
        settings = self._settings
        dropped = {reason: len(rows) for reason, rows in found.dropped.items()}
        if found.bad:
            dropped["unreadable"] = len(found.bad)
        lengths = found.lengths
        tokens_dropped = 0
        if settings.overflow == "drop" and not settings.method.cuts:
            over = lengths > settings.capacity
            dropped[OVERLONG] = int(np.count_nonzero(over))
            tokens_dropped = int(lengths[over].sum())
        return Losses(
            records=found.looked,
            dropped={reason: count for reason, count in dropped.items() if count},
            tokens=int(lengths.sum()),
            tokens_dropped=tokens_dropped,
        )

    def model_length(self) -> Iterator[Verdict]:
        """Check that max_length is within the model's length: longer rows fail, or train positions that the model has never seen."""
        most = getattr(self._tokenizer, "model_max_length", None)
        length = self._settings.max_length
        longest = min(length, self.found.longest_sequence)  # pairs that are longer are dropped
        answer: Answer = "ok"
        if most is None:
            why = "the tokenizer does not say how long a sequence the model takes"
        elif length <= most:
            why = f"max_length {length:,} is within model_max_length {most:,}"
        elif self._is_pair and longest <= most:
            why = f"the longest checked sequence of a pair has {longest:,} tokens, model_max_length is {most:,}"
        else:
            answer = "warn"
            what = (
                f"the longest checked sequence of a pair, {longest:,} tokens,"
                if self._is_pair
                else f"max_length {length:,}"
            )
            why = f"{what} is more than the tokenizer's model_max_length, {most:,}; set max_length: {most}"
        yield self._say("model length", answer, why)

    def text_length(self) -> Iterator[Verdict]:
        """Every text ends with EOS; if each line became a text, a model learns to stop after a line."""
        if not isinstance(self._template, TextTemplate) or not self.found.samples:
            return
        median = int(np.median(self.found.lengths))
        if median >= _SHORT_TEXT:
            yield self._say(
                "text length", "ok", f"half of the checked texts have {median:,} tokens or more"
            )
            return
        advice = {
            "line": "if lines of a longer text became documents, set options: {record: paragraph} or {record: file}",
            "paragraph": "if paragraphs of a longer text became documents, set options: {record: file}",
        }.get(str(getattr(self._source, "record", None)), "join rows that belong to one text")
        ends = ", and each ends with EOS" if self._template.identity()["suffix"] else ""
        why = f"half of the checked texts have {median:,} tokens or fewer{ends}; {advice}"
        yield self._say("text length", "warn", why)

    def duplicates(self) -> Iterator[Verdict]:
        """Count rows whose tokens and media an earlier row has."""
        found = self.found
        digests = [
            digest(
                np.ascontiguousarray(ids).tobytes()
                + media_key(self._template, self._source, row, items)
            )
            for (ids, _), row, items in zip(found.samples, found.rows, found.media, strict=True)
        ]
        pairs = list(zip(digests, found.rows, strict=True))
        first = dict(reversed(pairs))
        again = [row for name, row in pairs if row != first[name]]
        answer: Answer = "warn" if len(again) > _DUPLICATES * len(self.found.samples) else "ok"
        why = f"{self._of_rows(len(again))} repeat an earlier one"
        yield self._say(
            "duplicates",
            answer,
            why if again else f"no duplicates in the {self.found.looked:,} {self._rows}",
            again,
        )

    def overlap(self, overlaps: Overlaps | None, part: str) -> Iterator[Verdict]:
        """Say which records the set has twice, and which the training sets have, too."""
        if overlaps is None or not self.found.num_rows:
            return
        for shared in overlaps.compare(self.name, part, self._source, self.found):
            answer: Answer = "warn" if shared.is_problem else "ok"
            yield self._say(shared.question, answer, shared.why, shared.rows, shared.count)

    def disk(self, cache: Path) -> Iterator[Verdict]:
        per_token = Schema(self._template.vocab_size).id_dtype.itemsize + 1 / 8
        need = int(self.found.estimated_tokens * per_token + 12 * self.found.num_rows)
        folder = next((folder for folder in (cache, *cache.parents) if folder.exists()), Path("/"))
        free = shutil.disk_usage(folder).free
        why = f"the cache needs about {size(need)} for {self.found.estimated_tokens:,} tokens; {size(free)} are free"
        yield self._say("disk", "fail" if need > free else "warn" if 2 * need > free else "ok", why)

    def removed_nulls(self) -> Iterator[Verdict]:
        """Say what a columnar source removed from the sampled rows; no verdict if it removed nothing."""
        if not isinstance(self._source, RowAccess):
            return
        unread = {row for row, _ in self.found.bad}
        read = [row for row in spread(self.found.num_rows, self.found.looked) if row not in unread]
        removed = self._source.removed_nulls(read)
        if removed.rows:
            columns = ", ".join(
                f"{column} {count:,}" for column, count in removed.columns.most_common()
            )
            why = (
                f"removed {removed.columns.total():,} null members that Arrow's schema added in {removed.rows:,} of "
                f"{self.found.looked:,} rows ({columns}); set nulls: keep to train them"
            )
            yield self._say("nulls", "ok", why)


def template_words(template: Template) -> str:
    """Describe a template: what renders the rows, and which tokens are trained."""
    if isinstance(template, PromptCompletionTemplate):
        return f"{template.usual}, plain text; loss on {'all tokens' if template.train_on == 'all' else 'the answer'}"
    if isinstance(template, TextTemplate):
        return f"text in {template.key!r}; loss on all tokens"
    if isinstance(template, JudgedTemplate):
        how = _which_chat_template(template) if uses_chat_template(template) else "plain text"
        return f"{template.name}, {how}; loss on {'nothing' if PROMPT_LENGTHS in template.columns else 'all of each answer'}"
    if not uses_chat_template(template):
        return repr(template)
    chat: Any = template
    turns = {
        "assistant": "assistant turns",
        "last": "the last assistant turn",
        "completion": "the answer",
    }
    own = chat.train_on
    loss = turns.get(own, "all tokens") if isinstance(own, str) else f"turns of {', '.join(own)}"
    return f"{getattr(chat.reader, 'shape', 'conversations')}, {_which_chat_template(chat)}; loss on {loss}"


def _which_chat_template(template: Any) -> str:
    tokenizer = template.tokenizer
    text = template.renderer.text
    if text in tokenizer.chat_templates.values():
        return f"chat template of {Path(tokenizer.path).parent.name if tokenizer.path else 'the tokenizer'}"
    return "the built-in ChatML template" if text == CHATML else "the chat_template of the recipe"


def uses_chat_template(template: Template) -> bool:
    return hasattr(template, "renderer")


def has_chat_template(template: Template) -> bool:
    return bool(getattr(getattr(template, "tokenizer", None), "chat_templates", None))
