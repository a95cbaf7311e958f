"""Find where a trained turn begins, and learn its end-of-turn text.

A turn begins behind its header, which is what a generation prompt prints in that place.  The header is not the model's to write;
everything behind it is.  It is learned once for each kind of turn from made-up messages (kinds.py), and looked up.  Where made-up messages
do not tell, the messages before the turn are rendered with a generation prompt, and that rendering is compared with the whole.  What
cannot be proven is refused.  A turn ends with the tokens that close it, or at which generation stops.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.errors import TemplateError
from penstock.templates.chat.instrument import Attribution, PrintedRun
from penstock.templates.chat.kinds import (
    ANSWER,
    CALL,
    RESULT,
    SYSTEM,
    USER,
    Kind,
    Kinds,
    MadeUp,
    call_names,
    with_text,
)
from penstock.templates.chat.unproven import Unproven
from penstock.templates.conversation import Message

# (messages, add_generation_prompt=…) → attribution; raises TemplateError where the template refuses the messages
Render = Callable[..., Attribution]


class NotShown(Exception):
    """Made-up messages do not show a header: the template refuses them, or prints them in a way that tells nothing."""


@dataclass(frozen=True, slots=True)
class Header:
    """The text before a turn of some kind."""

    text: str
    # It is the beginning of the generation prompt, whose rest is thinking tags.
    is_partial: bool = False
    # What the next message prints first, but the turn itself if it is the last one.
    closing: str = ""
    # What the turn prints last, but only if another message follows.
    tail: str = field(default="", compare=False)


class Neighbours(NamedTuple):
    """What decides how a turn is printed: numbers of the kinds of four messages, -1 for none, and whether there are tools."""

    before_last: int
    before: int
    own: int
    behind: int
    has_tools: bool

    @property
    def kinds(self) -> list[int]:
        """The kinds of the messages that there are."""
        four = (self.before_last, self.before, self.own, self.behind)
        return [number for number in four if number >= 0]

    @property
    def num_before(self) -> int:
        """How many of these messages come before the turn."""
        return (self.before_last >= 0) + (self.before >= 0)


_ROUND = (USER, CALL, RESULT, ANSWER)
# What may come before the two messages under test.  A template accepts some of these; all accepted ones must give the same result.
LEADS: tuple[tuple[Kind, ...], ...] = (
    (),
    (USER,),
    (USER, ANSWER),
    (SYSTEM,),
    (SYSTEM, USER),
    (SYSTEM, USER, ANSWER),
    _ROUND[:3],
    _ROUND,
    (*_ROUND, USER),
)
_TAGS = re.compile(r"(?:\s|<[^<>\s]+>|\[[^\[\]\s]+\])*")
_OPENING = ("<think>", "<thinking>", "<reasoning>")
_CLOSING = ("</think>", "</thinking>", "</reasoning>")
_THINKING = re.compile("|".join(map(re.escape, (*_OPENING, *_CLOSING, "<|think|>"))))


@dataclass(frozen=True, slots=True)
class Example:
    """Made-up messages, as the template prints them, and the turn among them that is looked at."""

    made_up: MadeUp
    number: int  # of the turn
    whole: Attribution
    render: Render

    @property
    def is_assistant(self) -> bool:
        return bool(self.made_up.messages[self.number]["role"] == "assistant")

    @property
    def words(self) -> list[str]:
        """What the turn has to say."""
        return self.made_up.words[self.number]

    @property
    def before(self) -> list[Message]:
        return self.made_up.messages[: self.number]

    def require_words_in_place(self) -> None:
        """Raise Unproven if the turn's words are in another message's run, or another's words in its run."""
        for start, stop, printer in self.whole.runs:
            for owner, words in enumerate(self.made_up.words):
                if printer == owner or self.number not in (printer, owner):
                    continue
                if any(word in self.whole.text[start:stop] for word in words):
                    where = "among those of another message"
                    if printer < 0:
                        where = "outside its loops over the messages"
                    raise Unproven(
                        f"the chat template prints words of a message {where}, so the trained tokens are ambiguous"
                    )

    def require_words(self) -> None:
        """Raise Unproven if the turn has words and none are printed: with other words the rendering is the same."""
        message = self.made_up.messages[self.number]
        printed = self.whole.printed_by(self.number)
        has_words = any(word in repr(message.get("content")) for word in self.words)
        if not has_words or any(word in printed for word in (*self.words, *call_names(message))):
            return
        try:
            other = self.render(self.made_up.changed(other_word), add_generation_prompt=False)
        except TemplateError:
            return
        if other.printed_by(self.number) == printed:
            raise Unproven(
                "the chat template prints no text of a message; if it expects content as a list of parts, or as text, "
                "write the records in that form"
            )

    def first_word(self) -> int:
        """Where the text of the turn begins."""
        return _before_first_word(self.whole, self.number, self.words)


class Headers:
    """The headers of a template's turns, learned from made-up messages."""

    def __init__(self, render: Callable[[bool], Render], kinds: Kinds) -> None:
        """`render(tools)` gives a function that renders messages, with made-up tools or without."""
        self._render = render
        self._kinds = kinds
        self._outcomes: dict[Neighbours, Header | Unproven | None] = {}
        self.main: Header | None = None  # before an answer to a user
        answer = Neighbours(-1, kinds.number_of(USER), kinds.number_of(ANSWER), -1, False)
        header = self._outcome(answer)
        if isinstance(header, Header):
            self.main = header if header.text else self._label()

    def _label(self) -> Header:
        """The text before an answer if the template prints no generation prompt: a label is a header, whitespace is not."""
        example = self._example((USER, ANSWER), 1, has_tools=False)
        start = first_run(example.whole, 1).start
        label = example.whole.text[start : example.first_word()]
        label = _THINKING.split(label, maxsplit=1)[0]
        return Header(label if label.strip() else "")

    def learned(self, around: Neighbours) -> Header | None:
        """Return the header of such turns; None if made-up messages do not show it.  Raises Unproven if such turns are refused."""
        if around not in self._outcomes:
            self._outcomes[around] = self._outcome(around)
        outcome = self._outcomes[around]
        if isinstance(outcome, Unproven):
            raise Unproven(str(outcome))
        return outcome

    def _outcome(self, around: Neighbours) -> Header | Unproven | None:
        """The header; why such turns are refused; or None if made-up messages do not show the header."""
        try:
            return self._learn(around)
        except Unproven as refusal:
            return refusal

    def _learn(self, around: Neighbours) -> Header | None:
        leads = LEADS if around.before_last >= 0 else LEADS[:1]
        headers = []
        for lead in leads:
            with suppress(NotShown):
                headers.append(self._header_behind(lead, around))
        with_texts = self._with_text_around(around)
        if with_texts != around:
            for lead in leads:
                with suppress(NotShown):
                    self._example_behind(lead, with_texts).require_words_in_place()
        is_one = bool(headers) and all(header == headers[0] for header in headers)
        return headers[0] if is_one else None

    def _with_text_around(self, around: Neighbours) -> Neighbours:
        """Return the same surroundings with text in the turn and its neighbours, so that text of other messages shows."""

        def texts(number: int) -> int:
            return number if number < 0 else self._kinds.number_of(with_text(self._kinds[number]))

        return Neighbours(
            before_last=texts(around.before_last),
            before=texts(around.before),
            own=texts(around.own),
            behind=texts(around.behind),
            has_tools=around.has_tools,
        )

    def _example_behind(self, lead: Sequence[Kind], around: Neighbours) -> Example:
        kinds = [*lead, *(self._kinds[number] for number in around.kinds)]
        return self._example(kinds, len(lead) + around.num_before, has_tools=around.has_tools)

    def _example(self, kinds: Sequence[Kind], number: int, *, has_tools: bool) -> Example:
        """Made-up messages of these kinds; NotShown if the template refuses them."""
        made_up = MadeUp(kinds)
        render = self._render(has_tools)
        try:
            whole = render(made_up.messages, add_generation_prompt=False)
        except TemplateError as error:
            raise NotShown from error
        return Example(made_up, number, whole, render)

    def _header_behind(self, lead: Sequence[Kind], around: Neighbours) -> Header:
        """Return what the template prints around a turn between these neighbours, behind a lead."""
        example = self._example_behind(lead, around)
        example.require_words_in_place()
        example.require_words()
        is_partial = False
        try:
            if example.is_assistant:
                start, is_partial = self._answer_start(example)
            else:
                start = self._text_start(example, around)
        except Unproven as error:
            raise NotShown from error
        whole = example.whole
        number = example.number
        text = whole.text[first_run(whole, number).start : start]
        messages = example.made_up.messages
        closing, tail = find_closing(whole, number, messages, example.render, example.words)
        return Header(text, is_partial, closing, tail)

    def _answer_start(self, example: Example) -> tuple[int, bool]:
        """Where an answer begins behind its header, and whether that is only a part of the generation prompt."""
        whole = example.whole
        number = example.number
        try:
            return find_start(whole, number, example.before, example.render, self.main)
        except Unproven:
            if number or self.main is None or not self.main.text:
                raise
            # the first message of all prints something before its header, such as a system message of the template's own
            start = first_run(whole, number).start
            before = whole.text[start : example.first_word()]
            if before.count(self.main.text) != 1:
                raise
            return start + before.index(self.main.text) + len(self.main.text), False

    def _text_start(self, example: Example, around: Neighbours) -> int:
        """Return where the content of a message that is not an assistant's begins: behind the header of such a message of plain text."""
        run = first_run(example.whole, example.number)
        header = self._plain_text_header(around)
        if header is None:
            return example.first_word()
        if not example.whole.text.startswith(header.text, run.start, run.stop):
            raise Unproven(
                "the chat template prints another header before this message than before a message of plain text, so where its "
                "content begins cannot be verified"
            )
        return run.start + len(header.text)

    def _plain_text_header(self, around: Neighbours) -> Header | None:
        """Return the header of the same turn with plain text; None if the turn is plain text itself, or if that header is unknown."""
        kind = self._kinds[around.own]
        plain_text_number = self._kinds.number_of(with_text(kind))
        if plain_text_number == around.own:
            return None
        try:
            return self.learned(around._replace(own=plain_text_number))
        except Unproven:
            return None


def first_run(whole: Attribution, number: int) -> PrintedRun:
    runs = whole.runs_of(number)
    if not runs:
        raise Unproven(
            "the chat template prints this message outside its loops over the messages, or not at all"
        )
    return runs[0]


def find_start(
    whole: Attribution, number: int, before: Sequence[Message], render: Render, main: Header | None
) -> tuple[int, bool]:
    """Where the turn of an assistant's message begins, and whether its header is partial."""
    first = first_run(whole, number)
    try:
        prompted = render(before, add_generation_prompt=True) if before else None
    except TemplateError:
        prompted = None
    if (
        prompted is None
    ):  # the conversation begins with it, or the template refuses one that ends before it
        return _behind_main(whole, first, main)
    found = _behind_prompt(
        whole, first, prompted, lambda: render(before, add_generation_prompt=False)
    )
    if found is None and all(
        run.message < 0 for run in prompted.runs
    ):  # such as a system message outside the loops
        return _behind_main(whole, first, main)
    if found is None:
        raise Unproven("the text before a turn is not what a generation prompt prints there")
    start, partial = found
    if (
        start == first.start
        and main is not None
        and main.text
        and whole.text.startswith(main.text, start)
    ):
        start += len(
            main.text
        )  # no prompt is printed in this place, but the header is the usual one
    if start > first.stop:
        raise Unproven("a generation prompt prints more than the whole turn in its place")
    return start, partial


def _behind_main(whole: Attribution, first: PrintedRun, main: Header | None) -> tuple[int, bool]:
    """Find the usual header at the beginning of the turn, or directly after a tag such as the BOS token."""
    if main is not None and main.text:
        place = whole.text.find(main.text, first.start, first.stop)
        if place >= 0 and _TAGS.fullmatch(whole.text, first.start, place):
            return place + len(main.text), False
        if (found := _before_thinking(whole.text, first, main.text)) is not None:
            return found
    raise Unproven(
        "the header of a turn cannot be found: the template renders nothing that ends right before the turn"
    )


def _behind_prompt(
    whole: Attribution,
    first: PrintedRun,
    prompted: Attribution,
    unprompted: Callable[[], Attribution],
) -> tuple[int, bool] | None:
    """Compare what is printed with a generation prompt, up to the turn, with the whole."""
    text = whole.text
    start = first.start
    epilogue = prompted.text
    if owned := [run for run in prompted.runs if run.message >= 0]:
        # the last message before the turn, and all that follows it, is in the whole as well
        last = owned[-1]
        tail = prompted.text[last.start :]
        epilogue = prompted.text[last.stop :]
        same = whole.runs_of(last.message)[len(prompted.runs_of(last.message)) - 1 :]
        if same and same[0].start < start and text.startswith(tail, same[0].start):
            return max(start, same[0].start + len(tail)), False
    if epilogue and text.startswith(epilogue, start):
        return start + len(epilogue), False
    try:
        bare = unprompted().text
    except TemplateError:
        return _before_thinking(text, first, epilogue)
    if not epilogue and bare == prompted.text:
        return start, False
    prompt = prompted.text[num_common(bare, prompted.text) :]
    if prompt and text.startswith(prompt, start):
        return start + len(prompt), False
    return _before_thinking(text, first, epilogue or prompt)


def _before_thinking(text: str, first: PrintedRun, epilogue: str) -> tuple[int, bool] | None:
    """The turn begins with the first part of the generation prompt; the rest of the prompt is thinking tags that the turn does not have."""
    common = num_common(text[first.start : first.stop], epilogue)
    opened = max(epilogue.rfind(tag, 0, common) for tag in _OPENING)
    if opened >= 0 and any(tag in epilogue[common:] for tag in _CLOSING):
        common = opened  # the prompt closes a thought, which the turn opens by itself
    for cut in (
        common,
        epilogue.rfind("<", 0, common),
    ):  # "<" is common to "<think>" and "<answer>"
        if cut > 0 and not _THINKING.sub("", epilogue[cut:]).strip():
            return first.start + cut, True
    return None


def num_common(a: str, b: str) -> int:
    """How many characters two texts have in common from the start."""
    size = min(len(a), len(b))
    return (
        size
        if a[:size] == b[:size]
        else next(place for place in range(size) if a[place] != b[place])
    )


def find_closing(
    whole: Attribution,
    number: int,
    messages: Sequence[Message],
    render: Render,
    words: Sequence[str] = (),
) -> tuple[str, str]:
    """Compare a turn that another message follows with the same turn as the last one: (closing, tail).

    Closing: what ends the turn but is printed by the message behind it.  Gemma 4 opens a tool's answer so, and the model learns to open it.
    Tail: what the turn prints only because another message follows, such as that message's header.
    """
    try:
        alone = (
            render(messages[: number + 1], add_generation_prompt=False)
            if number + 1 < len(messages)
            else None
        )
    except TemplateError:
        alone = None
    if alone is None or not alone.runs_of(number):
        return "", ""
    runs = [some.runs_of(number) for some in (whole, alone)]
    first, last = (
        some.text[own[0][0] : own[0][1]] for some, own in zip((whole, alone), runs, strict=True)
    )
    rest = last[len(first) :].rstrip() if last.startswith(first) else ""
    closing = rest if rest and whole.text.startswith(rest, runs[0][0][1]) else ""
    behind = []  # what each prints behind the last of these words
    for some, own in zip((whole, alone), runs, strict=True):
        text = some.text[own[-1][0] : own[-1][1]]
        behind.append(
            text[max((text.rfind(word) + len(word) for word in words if word in text), default=0) :]
        )
    tail = behind[0][len(behind[1]) :] if behind[0].startswith(behind[1]) else ""
    return closing, tail if tail.strip() else ""


def _before_first_word(whole: Attribution, number: int, words: list[str]) -> int:
    """Return where the text of a user, system or tool message begins."""
    first = first_run(whole, number)
    places = [
        place for word in words if (place := whole.text.find(word, first.start, first.stop)) >= 0
    ]
    if not places:
        raise Unproven("the chat template prints none of this message's words")
    return min(places)


def other_word(word: str) -> str:
    """Another word of the same length."""
    return "".join(chr((ord(letter) - ord("a") + 1) % 26 + ord("a")) for letter in word)


@dataclass(frozen=True, slots=True)
class Ends:
    """What ends a turn."""

    usual: str  # what the template prints behind an answer, whitespace aside; "" where it prints nothing
    added: frozenset[str]  # the tokenizer's added tokens
    stops: frozenset[str]  # tokens at which generation stops

    def closes(self, text: str, start: int, stop: int) -> bool:
        """Return whether text[start:stop] ends with an end-of-turn text."""
        return text.endswith(tuple(filter(None, (self.usual, *self.added))), start, stop)

    def stops_at(self, text: str, start: int, stop: int) -> bool:
        """Whether text[start:stop] ends with the usual end of a turn, or with a token at which generation stops."""
        return text.endswith(tuple(filter(None, (self.usual, *self.stops))), start, stop)

    def begin(self, text: str, start: int, stop: int) -> int:
        """Where the tokens begin that end text[start:stop]; `stop` where nothing does."""
        ends = (
            _ending(some, text, start, stop) for some in ((self.usual,), self.stops, self.added)
        )
        return stop - len(next(filter(None, ends), ""))

    def token_ending(self, text: str) -> str:
        """The longest added token that a text ends with; all of the text where there is none."""
        return _ending(self.added, text, 0, len(text)) or text

    def num_closing(self, text: str, start: int, stop: int) -> int:
        """How many added tokens text[start:stop] ends with."""
        count = 0
        while token := _ending(self.added, text, start, stop):
            count = count + 1
            stop = stop - len(token)
        return count

    def token_at(self, text: str, place: int, among: Collection[str]) -> str:
        """The longest of these tokens that begins here, or ""."""
        return max((token for token in among if text.startswith(token, place)), key=len, default="")


def _ending(ends: Iterable[str], text: str, start: int, stop: int) -> str:
    """The longest of these that text[start:stop] ends with, or ""."""
    return max((end for end in ends if text.endswith(end, start, stop)), key=len, default="")


def learn_ends(render: Render, added: Collection[str], stops: Collection[str]) -> Ends:
    """Learn the text after an answer that another message follows, else after the last one."""
    followed, last = (
        _printed_behind(render, kinds) for kinds in ((USER, ANSWER, USER), (USER, ANSWER))
    )
    # What is printed only where another message follows may be that one's header.
    usual = last if last and followed.startswith(last) else followed or last
    return Ends(usual, frozenset(added), frozenset(stops))


def _printed_behind(render: Render, kinds: Sequence[Kind]) -> str:
    """Return the common end of two answers with different words."""
    made = MadeUp(kinds)
    try:
        wholes = [
            render(some, add_generation_prompt=False)
            for some in (made.messages, made.changed(other_word))
        ]
    except TemplateError:
        return ""
    runs = [[whole.text[start:stop] for start, stop, _ in whole.runs_of(1)] for whole in wholes]
    if not all(runs):
        return ""
    a, b = (some[-1][::-1] for some in runs)
    return a[: num_common(a, b)][::-1].rstrip()
