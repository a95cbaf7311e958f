"""Check a dataset of a recipe for problems: each question is answered ok, warn or fail, with what was counted.

`check` encodes records spread over the data and keeps nothing.  A question is a function of an `Inspection`; plugins of the group `checks`
are asked, too.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from penstock import plugins
from penstock.fingerprint import digest
from penstock.loader.losses import Losses
from penstock.plan.settings import PlanSettings
from penstock.reasons import NOTHING_TO_TRAIN, OVERLONG, UNANSWERED_REASON
from penstock.report.columns import content_key
from penstock.report.flags import find_flags
from penstock.report.overlap import TRAIN, Overlaps
from penstock.report.sampling import EncodedRows, by_message, encode_rows, read_rows
from penstock.sources import RowAccess, record_unit
from penstock.store.counts import about_turns, unrendered
from penstock.store.shards import Schema
from penstock.templates import PromptCompletionTemplate, TextTemplate
from penstock.templates.chat.choose import chat_template_words
from penstock.templates.protocols import (
    DescribesItself,
    EndsTurns,
    JoinsChats,
    UsesChatTemplate,
    tokenizer_of,
)
from penstock.types import (
    DESIRABLE,
    SEQUENCE_LENGTHS,
    AnyTemplate,
    Source,
    Template,
    columns_of,
    opened,
    rule_of,
)
from penstock.words import percent, plural, size, spread

# Tokens: where the median text is shorter, lines were probably taken for documents.
_SHORT_TEXT = 32
_LOST = 0.01  # share of the trained tokens that may be lost without a warning
_DUPLICATES = 0.01  # share of the samples that may be repeated without a warning
_FLAG_ROWS = 10_000  # whose messages are searched for flags
_MOST_MESSAGES = 5  # kinds of refusal that are listed, the most common ones

Answer = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One question, its answer, and the reason; `first` are the first records concerned, as file:line."""

    source: str
    question: str
    answer: Answer
    why: str
    share: float | None = None  # of the sampled rows
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """All verdicts about a dataset."""

    source: str
    num_rows: int
    looked: int
    estimated_tokens: int
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What questions are asked about: one dataset, and some of its records encoded."""

    name: str
    source: Source
    template: Any  # opened; which abilities it has differs
    settings: PlanSettings
    encoded: EncodedRows
    on_bad: str  # what the recipe does with rows that cannot be read
    max_dropped: float
    chat_sets: Sequence[str]  # datasets of the same mixture that use the chat template
    part: str  # of the recipe
    overlaps: Overlaps | None
    cache: Path  # where the store would be

    @property
    def rows_word(self) -> str:
        return "records" if self.encoded.is_whole else "sampled records"

    @property
    def is_pair(self) -> bool:
        columns = columns_of(self.template)
        return SEQUENCE_LENGTHS in columns and DESIRABLE not in columns

    @property
    def tokenizer(self) -> Any:
        return tokenizer_of(self.template)

    def verdict(
        self,
        question: str,
        answer: Answer,
        why: str,
        rows: Sequence[int] | None = None,
        count: int | None = None,
    ) -> Verdict:
        """Return a verdict about `rows`, or about `count` records of which they are the first."""
        if count is None and rows is not None:
            count = len(rows)
        share = None
        if count is not None and self.encoded.looked:
            share = count / self.encoded.looked
        first = tuple(str(self.source.locate(row)) for row in (rows or ())[:5])
        return Verdict(
            source=self.name, question=question, answer=answer, why=why, share=share, first=first
        )

    def of_rows(self, count: int) -> str:
        """Say how many of the records these are."""
        looked = self.encoded.looked
        if not looked:
            return "no records"
        return f"{count:,} of {looked:,} {self.rows_word} ({percent(count, looked)})"


# What a plugin of the group `checks` is, too.
Question = Callable[[Inspection], Iterator[Verdict]]


def check(
    source: Source,
    template: AnyTemplate,
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
    """Answer every question about one dataset.

    `cache` is where the store would be; `beside` are the datasets of the same mixture that use the chat template; `overlaps` knows the
    datasets that were checked before, and `part` says whether this one is trained on.
    """
    opened_template = opened(template)
    inspection = Inspection(
        name=name or source.name,
        source=source,
        template=opened_template,
        settings=settings,
        encoded=encode_rows(source, opened_template, at_most=at_most),
        on_bad=on_bad,
        max_dropped=max_dropped,
        chat_sets=beside,
        part=part,
        overlaps=overlaps,
        cache=cache,
    )
    verdicts = [verdict for question in questions() for verdict in question(inspection)]
    encoded = inspection.encoded
    if not encoded.samples:  # then nothing is ok
        verdicts = [verdict for verdict in verdicts if verdict.answer != "ok"]
    return Checked(
        source=inspection.name,
        num_rows=encoded.num_rows,
        looked=encoded.looked,
        estimated_tokens=encoded.estimated_tokens,
        verdicts=tuple(verdicts),
    )


def questions() -> list[Question]:
    """Return all questions, in the order in which they are asked: records, tokens, what plugins ask, losses, the whole set."""
    return [
        ask_rows,
        ask_filters,
        ask_readable,
        ask_template,
        ask_chat_template,
        ask_trained_tokens,
        ask_message_flags,
        ask_doubled_ends,
        ask_rows_without_loss,
        ask_not_printed,
        ask_turns,
        *(question for _, question in plugins.every("checks")),
        ask_too_long,
        ask_dropped,
        ask_model_length,
        ask_text_length,
        ask_duplicates,
        ask_overlap,
        ask_disk,
        ask_removed_nulls,
    ]


def ask_rows(data: Inspection) -> Iterator[Verdict]:
    """Are there records, and do they give samples?"""
    encoded = data.encoded
    if not encoded.num_rows:
        yield data.verdict("records", "fail", "there are no records")
        return
    if not encoded.samples:
        why = f"none of {encoded.looked:,} sampled records gives a sample"
        yield data.verdict("records", "fail", why)
        return
    checked = f"{encoded.looked:,} of them, spread over the data, were checked"
    if encoded.is_whole:
        checked = "all were checked"
    yield data.verdict("records", "ok", f"{plural(encoded.num_rows, 'record')}; {checked}")


def ask_filters(data: Inspection) -> Iterator[Verdict]:
    """Which records do filters leave out?"""
    left_out = data.source.left_out() if isinstance(data.source, RowAccess) else []
    for filtered in left_out:
        yield data.verdict("filter", "ok", str(filtered))


def ask_readable(data: Inspection) -> Iterator[Verdict]:
    """Can all records be read?"""
    encoded = data.encoded
    if not encoded.bad:
        why = f"{encoded.looked:,} of {encoded.num_rows:,} records read: all fine"
        yield data.verdict("bad records", "ok", why)
        return
    answer: Answer = "warn"
    consequence = "they are skipped and counted"
    if data.on_bad == "stop":
        answer = "fail"
        consequence = "the first stops the run; fix it, or set on_bad: skip"
    first_message = encoded.bad[0][1]
    why = f"{data.of_rows(len(encoded.bad))} cannot be read; {consequence}: {first_message}"
    yield data.verdict("bad records", answer, why, [row for row, _ in encoded.bad])


def ask_template(data: Inspection) -> Iterator[Verdict]:
    """Does the template take all records?"""
    if not data.encoded.refused:
        yield data.verdict("template", "ok", template_words(data.template))
    what = "give an error in the template; the first stops the run"
    yield from _by_message(data, "template", "fail", what, data.encoded.refused)


def _by_message(
    data: Inspection, question: str, answer: Answer, what: str, refused: list[tuple[int, str]]
) -> Iterator[Verdict]:
    """Yield a verdict for each of the most common messages, and one for the others."""
    groups = by_message(refused)
    for message, rows in groups[:_MOST_MESSAGES]:
        yield data.verdict(question, answer, f"{data.of_rows(len(rows))} {what}: {message}", rows)
    others = groups[_MOST_MESSAGES:]
    if others:
        rows = [row for _, rows_of_message in others for row in rows_of_message]
        why = f"{data.of_rows(len(rows))} are refused for {len(others):,} other reasons"
        yield data.verdict(question, answer, why, rows)


def ask_chat_template(data: Inspection) -> Iterator[Verdict]:
    """Do all datasets of the mixture use the chat template, or none?  Both would teach two formats for the same thing."""
    if uses_chat_template(data.template):
        why = f"used: {chat_template_words(data.template.chat_template, data.tokenizer)}"
        if isinstance(data.template, JoinsChats):
            because = data.template.why_rendered()
            joined = "plain chats are joined from pieces, which is proven to give the same"
            why += f"; {joined if because is None else f'each chat is rendered: {because}'}"
        yield data.verdict("chat template", "ok", why)
        return
    has_two_sides = isinstance(data.template, PromptCompletionTemplate)
    if data.chat_sets and has_two_sides:
        use = "use" if len(data.chat_sets) > 1 else "uses"
        why = (
            f"not used: prompt and answer are plain text, but {', '.join(data.chat_sets)} of the same mixture {use} the chat template; "
            "the model would learn both formats; set chat: true for this dataset to render all of them alike"
        )
        yield data.verdict("chat template", "warn", why)
        return
    why = "not used: records are plain text or tokens"
    if has_two_sides and has_chat_template(data.template):
        why += "; set chat: true to use it"
    yield data.verdict("chat template", "ok", why)


def ask_trained_tokens(data: Inspection) -> Iterator[Verdict]:
    """What is trained, and what is refused if the recipe skips such records?"""
    yield from _by_message(data, "refused", "warn", "are skipped", data.encoded.skipped)
    template = data.template
    remark = template.how_turns_end() if isinstance(template, EndsTurns) else None
    if remark is not None:
        yield data.verdict("trained tokens", "warn", remark)
        return
    trained = int(data.encoded.trained.sum())
    tokens = data.encoded.tokens
    why = f"{trained:,} of {tokens:,} tokens in the checked records are trained on ({percent(trained, tokens)})"
    yield data.verdict("trained tokens", "ok", why)


def ask_message_flags(data: Inspection) -> Iterator[Verdict]:
    """Which flags of messages decide what is trained, and which keys look like flags and are not read?"""
    if not uses_chat_template(data.template):
        return
    searched = spread(data.encoded.num_rows, min(data.encoded.looked, _FLAG_ROWS))
    rows, records, _ = read_rows(data.source, searched)
    flags = find_flags(rows, records, used=data.template.chat_template)
    for is_problem, why, concerned in flags.sentences(len(records)):
        yield data.verdict("message flags", "warn" if is_problem else "ok", why, concerned)
    if flags.read and not data.template.reads_flags:
        names = ", ".join(flags.read)
        why = f"{names} of messages have no effect: this template trains whole answers"
        yield data.verdict("message flags", "warn", why)


def ask_doubled_ends(data: Inspection) -> Iterator[Verdict]:
    """Do records have a second BOS or EOS?  Then a template and a tokenizer both add one."""
    if data.tokenizer is None:
        yield data.verdict("BOS and EOS", "ok", "no tokenizer, so none were added")
        return
    bos = data.encoded.doubled(data.tokenizer.bos_id, at_end=False)
    eos = data.encoded.doubled(data.tokenizer.eos_id, at_end=True)
    problems = []
    if bos:
        problems.append(f"{data.of_rows(bos)} have two BOS")
    if eos:
        problems.append(f"{data.of_rows(eos)} have two EOS")
    if problems:
        why = f"{', '.join(problems)}; set bos: false or eos: false, or fix the chat template"
        yield data.verdict("BOS and EOS", "warn", why)
    else:
        yield data.verdict("BOS and EOS", "ok", "no duplicated BOS or EOS")


def ask_rows_without_loss(data: Inspection) -> Iterator[Verdict]:
    """Which records have nothing to train on?"""
    question = "records without loss"
    rows = data.encoded.dropped.get(NOTHING_TO_TRAIN, [])
    if rows:
        why = f"{data.of_rows(len(rows))} have no tokens to train on and are dropped"
        answer: Answer = "fail" if len(rows) == data.encoded.looked else "warn"
        yield data.verdict(question, answer, why, rows)
    elif not all(rule_of(column).needs_target for column in columns_of(data.template)):
        why = "records are prompts to generate from: nothing is trained"
        yield data.verdict(question, "ok", why)
    else:
        yield data.verdict(question, "ok", "every checked record has tokens to train on")


def ask_not_printed(data: Inspection) -> Iterator[Verdict]:
    """Does the chat template print all fields?  What it does not print is not trained; only for conversations."""
    if not uses_chat_template(data.template):
        return
    encoded = data.encoded
    skipped = encoded.dropped.get("unrendered", [])
    if skipped:
        why = f"{data.of_rows(len(skipped))} are skipped: the chat template does not print all of their fields"
        yield data.verdict("not printed", "warn", why, skipped)
        return
    lost = unrendered(encoded.notes, assistant_characters=encoded.assistant_characters)
    if lost:
        fields = "; ".join(field.describe(encoded.looked) for field in lost)
        most_rows = max(field.count for field in lost)
        why = f"the chat template does not print {fields}"
        yield data.verdict("not printed", "warn", why, lost[0].rows, most_rows)
    else:
        why = "the chat template prints every field of the messages"
        yield data.verdict("not printed", "ok", why)


def ask_turns(data: Inspection) -> Iterator[Verdict]:
    """Which trained turns does no token end, or have only a part of their header; which turns does nothing answer?"""
    unanswered = data.encoded.dropped.get(UNANSWERED_REASON, [])
    if unanswered:
        why = (
            f"{data.of_rows(len(unanswered))} end with a user turn or a tool result and are dropped"
        )
        yield data.verdict("turns", "warn", why, unanswered)
    for sentence, note in about_turns(data.encoded.notes, num_rows=data.encoded.looked):
        yield data.verdict("turns", "warn", sentence, note.rows, note.count)


def ask_too_long(data: Inspection) -> Iterator[Verdict]:
    """Which samples are longer than max_length, and what is lost of them?"""
    settings = data.settings
    lengths = data.encoded.longest
    over = np.flatnonzero(lengths > settings.capacity)
    limit = f"{settings.max_length:,}"
    each = " (of each sequence of a pair)" if data.is_pair else ""
    if not over.size or settings.method.cuts:
        longest = int(lengths.max(initial=0))
        why = f"the longest checked sample has {longest:,} tokens, max_length is {limit}{each}"
        if over.size:
            why += f"; packing: {settings.packing} cuts samples at row ends and loses nothing"
        yield data.verdict("too long", "ok", why)
        return
    what, lost_share = _fate_of_overlong(data, over)
    answer: Answer = "ok"
    if settings.on_overlong == "error":
        answer = "fail"
    elif lost_share > _LOST:
        answer = "warn"
    why = f"{data.of_rows(over.size)} are longer than max_length {limit}{each}; {what}"
    yield data.verdict("too long", answer, why, [data.encoded.rows[place] for place in over])


def _fate_of_overlong(data: Inspection, over: Any) -> tuple[str, float]:
    """Say what happens to samples that are too long; return it with the share of the trained tokens that is lost."""
    on_overlong = data.settings.on_overlong
    if on_overlong == "error":
        return "the first stops the run", 0.0
    if on_overlong == "split":
        return "they are split into pieces, which loses nothing", 0.0
    kept = data.settings.capacity if on_overlong == "truncate" else 0
    lengths = data.encoded.lengths
    lost = int((lengths[over] - kept).sum())
    lost_trained = 0
    for place in over.tolist():
        _, loss_mask = data.encoded.samples[place]
        lost_trained += int(np.count_nonzero(loss_mask[max(kept, 1) :]))
    trained = int(data.encoded.trained.sum())
    shares = f"{percent(lost, lengths.sum())} of the tokens and {percent(lost_trained, trained)} of the trained tokens"
    lost_share = lost_trained / trained if trained else 0.0
    if on_overlong == "drop":
        return f"they are dropped, with {shares}", lost_share
    return f"they are cut, which loses {shares}", lost_share


def ask_dropped(data: Inspection) -> Iterator[Verdict]:
    """Which share of the records and of the tokens is lost for any reason?  More than `max_dropped` fails."""
    looked = data.encoded.looked
    losses = _losses(data)
    count = sum(losses.dropped.values())
    if not looked or not count:
        yield data.verdict("dropped", "ok", f"none of {looked:,} {data.rows_word} is dropped")
        return
    reasons = ", ".join(f"{reason} {number:,}" for reason, number in losses.dropped.items())
    tokens = ""
    if losses.tokens_dropped:
        tokens = f", with {percent(losses.tokens_dropped, losses.tokens)} of the tokens"
    why = f"{data.of_rows(count)} are dropped{tokens} ({reasons})"
    if losses.share <= data.max_dropped:
        yield data.verdict("dropped", "ok", why, count=count)
        return
    why += f"; max_dropped: {data.max_dropped:g} allows less, so a Loader refuses to train; "
    advice = losses.advice()
    if advice:
        why += f"{advice}; "
    why += "or set max_dropped"
    yield data.verdict("dropped", "fail", why, count=count)


def _losses(data: Inspection) -> Losses:
    """Count what of the sampled records would never reach a batch, as a Loader counts it."""
    encoded = data.encoded
    settings = data.settings
    dropped = {reason: len(rows) for reason, rows in encoded.dropped.items() if rows}
    if encoded.bad:
        dropped["unreadable"] = len(encoded.bad)
    lengths = encoded.lengths
    tokens_dropped = 0
    if settings.on_overlong == "drop" and not settings.method.cuts:
        over = encoded.longest > settings.capacity
        tokens_dropped = int(lengths[over].sum())
        if over.any():
            dropped[OVERLONG] = int(np.count_nonzero(over))
    return Losses(
        records=encoded.looked,
        dropped=dropped,
        tokens=int(lengths.sum()),
        tokens_dropped=tokens_dropped,
    )


def ask_model_length(data: Inspection) -> Iterator[Verdict]:
    """Is max_length within the model's length?  Longer records fail, or train positions that the model has never seen."""
    question = "model length"
    limit = getattr(data.tokenizer, "model_max_length", None)
    length = data.settings.max_length
    if limit is None:
        why = "the tokenizer does not say how long a sequence the model takes"
        yield data.verdict(question, "ok", why)
        return
    if length <= limit:
        why = f"max_length {length:,} is within model_max_length {limit:,}"
        yield data.verdict(question, "ok", why)
        return
    why = f"max_length {length:,} is more than the tokenizer's model_max_length, {limit:,}; set max_length: {limit}"
    yield data.verdict(question, "warn", why)


def ask_text_length(data: Inspection) -> Iterator[Verdict]:
    """Are texts long enough?  Every text ends with EOS; if each line became a text, a model learns to stop after a line."""
    if not isinstance(data.template, TextTemplate) or not data.encoded.samples:
        return
    median = int(np.median(data.encoded.lengths))
    if median >= _SHORT_TEXT:
        why = f"half of the checked texts have {median:,} tokens or more"
        yield data.verdict("text length", "ok", why)
        return
    advice = {
        "line": "if lines of a longer text became documents, set options: {record: paragraph} or {record: file}",
        "paragraph": "if paragraphs of a longer text became documents, set options: {record: file}",
    }.get(record_unit(data.source), "join records that belong to one text")
    ends = ", and each ends with EOS" if data.template.identity()["suffix"] else ""
    why = f"half of the checked texts have {median:,} tokens or fewer{ends}; {advice}"
    yield data.verdict("text length", "warn", why)


def ask_duplicates(data: Inspection) -> Iterator[Verdict]:
    """Which records have the same tokens, and the same content next to them, as an earlier record?"""
    encoded = data.encoded
    seen: set[str] = set()
    repeated = []
    for (ids, _), row, values in zip(encoded.samples, encoded.rows, encoded.reported, strict=True):
        key = np.ascontiguousarray(ids).tobytes()
        key += content_key(values, data.template, data.source, row)
        name = digest(key)
        if name in seen:
            repeated.append(row)
        seen.add(name)
    if not repeated:
        why = f"no duplicates in the {encoded.looked:,} {data.rows_word}"
        yield data.verdict("duplicates", "ok", why, repeated)
        return
    answer: Answer = "warn" if len(repeated) > _DUPLICATES * len(encoded.samples) else "ok"
    why = f"{data.of_rows(len(repeated))} repeat an earlier one"
    yield data.verdict("duplicates", answer, why, repeated)


def ask_overlap(data: Inspection) -> Iterator[Verdict]:
    """Which records does the set have twice, and which do the training sets have, too?"""
    if data.overlaps is None or not data.encoded.num_rows:
        return
    for shared in data.overlaps.compare(data.name, data.part, data.source, data.encoded):
        answer: Answer = "warn" if shared.is_problem else "ok"
        yield data.verdict(shared.question, answer, shared.why, shared.rows, shared.count)


def ask_disk(data: Inspection) -> Iterator[Verdict]:
    """Is there room for the store?"""
    tokens = data.encoded.estimated_tokens
    bytes_per_token = (
        Schema(data.template.vocab_size).id_dtype.itemsize + 1 / 8
    )  # and the loss mask
    need = int(tokens * bytes_per_token + 12 * data.encoded.num_rows)
    folders = (data.cache, *data.cache.parents)
    folder = next((folder for folder in folders if folder.exists()), Path("/"))
    free = shutil.disk_usage(folder).free
    answer: Answer = "ok"
    if need > free:
        answer = "fail"
    elif 2 * need > free:
        answer = "warn"
    why = f"the cache needs about {size(need)} for {tokens:,} tokens; {size(free)} are free"
    yield data.verdict("disk", answer, why)


def ask_removed_nulls(data: Inspection) -> Iterator[Verdict]:
    """What did a columnar source remove from the sampled records?  No verdict if it removed nothing."""
    if not isinstance(data.source, RowAccess):
        return
    looked = data.encoded.looked
    unread = {row for row, _ in data.encoded.bad}
    read = [row for row in spread(data.encoded.num_rows, looked) if row not in unread]
    removed = data.source.removed_nulls(read)
    if not removed.rows:
        return
    columns = ", ".join(f"{column} {count:,}" for column, count in removed.columns.most_common())
    why = (
        f"removed {removed.columns.total():,} null members that Arrow's schema added in {removed.rows:,} of "
        f"{looked:,} records ({columns}); set nulls: keep to train them"
    )
    yield data.verdict("nulls", "ok", why)


def template_words(template: Template) -> str:
    """Describe a template: what renders the records, and which tokens are trained."""
    return template.summary() if isinstance(template, DescribesItself) else repr(template)


def uses_chat_template(template: AnyTemplate) -> bool:
    template = opened(template)
    return isinstance(template, UsesChatTemplate) and template.chat_template is not None


def has_chat_template(template: Template) -> bool:
    tokenizer = tokenizer_of(template)
    return tokenizer is not None and bool(tokenizer.chat_templates)
