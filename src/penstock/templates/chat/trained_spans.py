"""Find the character spans of a rendered chat that the model is trained on.

A trained turn is what its message printed (instrument.py), minus its header (headers.py), up to and with the token that ends it.
Whitespace behind that token is the template's own.  Where a template has `{% generation %}` tags, they say what of an assistant's
message is trained.  A turn whose words cannot be followed is refused by name.
"""

import re
from collections.abc import Sequence
from typing import Any

from penstock.errors import TemplateError
from penstock.templates.chat.chats import Chat
from penstock.templates.chat.headers import (
    Ends,
    Header,
    Headers,
    Neighbours,
    find_closing,
    find_start,
)
from penstock.templates.chat.instrument import Attribution, PrintedRun
from penstock.templates.chat.kinds import (
    REASONING,
    THINKING,
    THOUGHT_END,
    USER,
    MadeUp,
    call_names,
)
from penstock.templates.chat.unproven import Unproven
from penstock.templates.conversation import Message
from penstock.templates.flags import TRAIN_DETAIL
from penstock.templates.samples import Rendering, Spans, covered, runs
from penstock.templates.to_json import spellings

_SPACE = re.compile(r"\s*")


class SpanFinder:
    """Finds the trained spans of a template's conversations."""

    def __init__(
        self, headers: Headers, ends: Ends, *, learned: bool, tagged: bool, reasoning: bool
    ) -> None:
        """learned: whether made-up messages tell headers.  tagged: whether there are generation tags.  reasoning: whether it is trained."""
        self._headers = headers
        self._ends = ends
        self._learned = learned
        self._tagged = tagged
        self._reasoning = reasoning

    def find(self, chat: Chat, trained: Sequence[bool], *, check: bool = False) -> Rendering:
        """The rendering with its trained spans.  `check`: compare the learned headers with this conversation."""
        rendering = Rendering(chat.whole.text, [])
        for number, is_trained in enumerate(trained):
            if not is_trained:
                continue
            try:
                rendering.spans += self._message(chat, number, rendering, check=check)
            except Unproven as error:
                role = chat.messages[number].get("role")
                raise Unproven(f"messages[{number}] ({role}): {error}") from error
        rendering.spans.sort()
        return rendering

    def turn(self, chat: Chat, number: int) -> Spans:
        """The turn of a message, thoughts included, whether it is trained or not; [] if that is unknown."""
        runs_of_message = chat.whole.runs_of(number)
        if not runs_of_message:
            return []
        try:
            return self._turn(chat, number, runs_of_message, Rendering("", []), check=False)
        except Unproven:
            return []

    def _message(self, chat: Chat, number: int, rendering: Rendering, *, check: bool) -> Spans:
        """The trained spans of a message; counts in `rendering` what is odd about its turn."""
        message = chat.messages[number]
        runs_of_message = chat.whole.runs_of(number)
        if runs_of_message:
            spans = self._turn(chat, number, runs_of_message, rendering, check=check)
        elif _is_left_out(chat, number):
            return []
        elif message.get("role") == "assistant":
            raise Unproven(
                "the chat template prints this message outside its loops over the messages"
            )
        else:
            spans = self._outside(chat, number)
        if not self._reasoning and spans:
            start = self._behind_thought(chat, number, spans[0][0], spans[-1][1])
            spans = [(max(begin, start), end) for begin, end in spans if end > start]
        if TRAIN_DETAIL in message:
            spans = _detailed(chat.whole.text, message, spans)
        return spans

    def _turn(
        self, chat: Chat, number: int, own: list[PrintedRun], rendering: Rendering, *, check: bool
    ) -> Spans:
        """The turn of a message that is printed in its own runs."""
        message = chat.messages[number]
        text = chat.whole.text
        is_assistant = message.get("role") == "assistant"
        header = self._learned_header(chat, number, own[0])
        if self._tagged and is_assistant:
            return _within_tags(chat.whole, message, own)
        if is_assistant and (header is None or (check and number)):
            proven = self._proven_header(chat, number, own[0])
            if header is not None and proven != header:
                raise Unproven(
                    "the chat template prints other text around this turn than around other turns like it, so its boundaries cannot be "
                    "verified"
                )
            header = header or proven
        elif header is None:
            header = Header(text[own[0][0] : _only_place(text, message, own[:1])[0]])
        self._check_runs(text, message, own, header)
        rendering.num_partial += header.is_partial
        _check_words(chat, number, own, own[0][0] + len(header.text))
        return self._ended(chat, own, header, number, rendering)

    def _proven_header(self, chat: Chat, number: int, first: PrintedRun) -> Header:
        """The header of an answer, from renderings of this conversation itself."""
        before = chat.messages[:number]
        start, is_partial = find_start(chat.whole, number, before, chat.render, self._headers.main)
        closing, tail = find_closing(chat.whole, number, chat.messages, chat.render)
        if any(name and name in tail for name in call_names(chat.messages[number])):
            raise Unproven(
                "the chat template prints the calls of a message only where another message follows"
            )
        return Header(chat.whole.text[first[0] : start], is_partial, closing, tail)

    def _learned_header(self, chat: Chat, number: int, run: PrintedRun) -> Header | None:
        before_last, before, own, behind = (-1, -1, *chat.kinds, -1)[number : number + 4]
        around = Neighbours(before_last, before, own, behind, chat.tools)
        header = self._headers.learned(around)
        text = chat.whole.text
        # Without this, made-up messages show that words stand in their runs, but do not tell this header.
        if header is None or not self._learned or not text.startswith(header.text, run[0], run[1]):
            return None
        return header if text.startswith(header.closing, run[1]) else None

    def _check_runs(
        self, text: str, message: Message, own: list[PrintedRun], header: Header
    ) -> None:
        """Refuse messages that are printed more than once, and tokens that may belong to two messages."""
        repeats = [text.startswith(header.text, run[0], run[1]) for run in own[1:]]
        if header.text.strip() and any(repeats):
            raise Unproven("the chat template prints this message more than once")
        main = self._headers.main
        if message.get("role") == "assistant" or main is None or main.text:
            return
        # answers have no header of their own: it may stand behind this message
        start = own[-1][0] + len(header.text)
        stop = start + len(text[start : own[-1][1]].rstrip())
        words = _words(message)
        behind = text[start:stop].rpartition(words)[2] if words else text[start:stop]
        num_closing = self._ends.num_closing(text, start, stop)
        if num_closing > 1 or (behind and not num_closing):
            raise Unproven("the text after this message may be the header of the next one")

    def _ended(
        self, chat: Chat, own: list[PrintedRun], header: Header, number: int, rendering: Rendering
    ) -> Spans:
        """The spans of a turn from behind its header, up to and with what ends it."""
        text = chat.whole.text
        start = own[0][0] + len(header.text)
        spans: Spans = []
        for run in own:
            begin = max(run[0], start)
            stop = begin + len(text[begin : run[1]].rstrip())
            if header.closing and run is own[0]:
                stop = run[1] + len(header.closing)
            elif run is own[-1]:
                last = self._before_tail(text, begin, run[1], header.tail)
                end = self._end(chat, number, run, begin, last)
                rendering.num_unended += end is None
                stop = end or stop
            if stop > begin:
                spans.append((begin, stop))
        return spans

    def _before_tail(self, text: str, begin: int, stop: int, tail: str) -> int:
        """Where a run ends without what it prints for the next message: behind the first tokens of it where nothing else ends the turn."""
        if not text.endswith(tail, begin, stop):
            tail = ""
        last = begin + len(text[begin : stop - len(tail)].rstrip())
        if not tail or self._ends.closes(text, begin, last):
            return last
        place = _skip_space(text, stop - len(tail))
        end = last
        while place < stop and (token := self._ends.token_at(text, place, self._ends.added)):
            place += len(token)
            end = place
        return end

    def _end(self, chat: Chat, number: int, run: PrintedRun, begin: int, stop: int) -> int | None:
        """Where the turn ends that this run closes; None where no token ends it."""
        text = chat.whole.text
        ends = self._ends
        if ends.stops_at(text, begin, stop):
            return stop
        # a token such as "</tool_call>" closes a turn, but nothing stops there
        is_closed = ends.closes(text, begin, stop)
        following = next((other for other in chat.whole.runs if other[0] >= run[1]), None)
        is_assistant = chat.messages[number].get("role") == "assistant"
        if following is not None and (is_assistant or following[2] < 0):
            # the text behind may begin with the token that ends this turn; an empty answer is nothing but its own end
            place = min(_skip_space(text, run[1]), following[1])
            is_next_message = following[2] >= 0
            among = ends.stops if is_closed or is_next_message else ends.added
            token = ends.token_at(text, place, among)
            if token:
                return place + len(token)
        return stop if is_closed else None

    def _outside(self, chat: Chat, number: int) -> Spans:
        """A message that the template prints outside its loops, as many do with the first system message: its words, and a token behind.

        A made-up word in its place must stand there too: the words alone may be the template's own, or another message's.
        """
        whole = chat.whole
        try:
            word, other = chat.with_made_up(number)
        except TemplateError as error:
            raise Unproven(
                "the place where the chat template prints this message is ambiguous"
            ) from error
        if word not in other.text:
            return []  # the template does not print such messages
        start, stop = _only_place(whole.text, chat.messages[number], whole.runs_of(-1))
        if other.text.count(word) != 1 or not other.text.startswith(whole.text[:start] + word):
            raise Unproven("the place where the chat template prints this message is ambiguous")
        return [(start, stop + len(self._ends.token_at(whole.text, stop, self._ends.added)))]

    def _behind_thought(self, chat: Chat, number: int, begin: int, end: int) -> int:
        """Return where the turn continues after its reasoning and the closing tag."""
        message = chat.messages[number]
        text = chat.whole.text
        thought = next(
            (value for key in REASONING if isinstance(value := message.get(key), str)), ""
        ).strip()
        printed = text.find(thought, begin, end) if thought else -1
        after = printed + len(thought) if printed >= 0 else begin
        content = message.get("content")
        if isinstance(content, str) and THOUGHT_END in content:
            close = text.rfind(THOUGHT_END, after, end)
            if close >= 0 and not text.startswith(
                _words(message), _skip_space(text, close + len(THOUGHT_END))
            ):
                raise Unproven(
                    "the chat template changes an inline thought, so the thought cannot be left untrained"
                )
        else:
            answer = text.find(_words(message), after, end) if _words(message) else end
            close = text.rfind(THOUGHT_END, after, max(answer, after)) if answer >= 0 else -1
        if close >= 0:
            return _skip_space(text, close + len(THOUGHT_END))
        return begin if printed < 0 else after + self._after_thought(chat, after)

    def _after_thought(self, chat: Chat, place: int) -> int:
        """Where thoughts are closed by something else than `</think>`: the size of the text between made-up thoughts and answers."""
        made = MadeUp([USER, THINKING])
        thought, answer = made.words[1]
        try:
            text = chat.render(made.messages, add_generation_prompt=False).text
        except TemplateError:
            text = ""
        between = (
            text.partition(thought)[2].partition(answer)[0]
            if text.find(thought) < text.find(answer)
            else ""
        )
        if not between or not chat.whole.text.startswith(between, place):
            raise Unproven(
                "the end of a message's reasoning is ambiguous, so the reasoning cannot be left untrained"
            )
        return len(between)


def _within_tags(whole: Attribution, message: Message, own: list[PrintedRun]) -> Spans:
    """Return the parts of a message inside generation tags, and of the text that no message prints right after its last run."""
    behind = [run for run in whole.runs_of(-1) if run[0] == own[-1][1]]
    pieces = [(max(a, run[0]), min(b, run[1])) for a, b in whole.tagged for run in [*own, *behind]]
    spans = [(begin, end) for begin, end in pieces if begin < end]
    words = _words(message)
    is_inside = not words or any(words in whole.text[a:b] for a, b in spans)
    if not is_inside and any(words in whole.text[a:b] for a, b, _ in own):
        raise Unproven("the template's generation tags leave out the text of a message")
    return spans


def _words(message: Message) -> str:
    """What a message says last: its content, without an inline thought."""
    content = message.get("content")
    return content.rpartition(THOUGHT_END)[2].strip() if isinstance(content, str) else ""


def _check_words(chat: Chat, number: int, own: list[PrintedRun], start: int) -> None:
    """Refuse a turn whose text occurs only outside its runs, unless the rendering does not change with other words in its place."""
    text = chat.whole.text
    words = _words(chat.messages[number])
    if not words or words not in text:
        return
    turn = [text[max(start, run.start) : run.stop] for run in own]
    if any(spelling in part for spelling in spellings(words) for part in turn):
        return
    other = {**chat.messages[number], "content": MadeUp([USER]).words[0][0]}
    try:
        is_printed = (
            chat.render([*chat.messages[:number], other, *chat.messages[number + 1 :]]).text != text
        )
    except TemplateError:
        is_printed = True
    if is_printed:
        raise Unproven(
            "the text of a message is printed, but not in the place where the chat template prints this message"
        )


def _only_place(text: str, message: Message, runs: list[PrintedRun]) -> tuple[int, int]:
    """Where a message that is not an assistant's is printed, if its content is in these runs exactly once."""
    content = message.get("content")
    for words in (content, _words(message)):  # as it is, or without whitespace around it
        if isinstance(words, str) and words:
            found = [place for run in runs for place in places(text, words, run[0], run[1])]
            if len(found) == 1:
                return found[0], found[0] + len(words)
    raise Unproven("the place where the chat template prints this message is ambiguous")


def places(text: str, words: str, start: int, stop: int) -> list[int]:
    """Return where words begin in text[start:stop]."""
    found = []
    place = text.find(words, start, stop)
    while place >= 0:
        found.append(place)
        place = text.find(words, place + 1, stop)
    return found


def _says_something(message: Message) -> bool:
    content = message.get("content")
    has_text = bool(content.strip()) if isinstance(content, str) else bool(content)
    return (
        has_text or bool(message.get("tool_calls")) or any(message.get(name) for name in REASONING)
    )


def _is_left_out(chat: Chat, number: int) -> bool:
    """Return whether a message without a run is not printed at all.  Other words in its place get their own run, or are not printed."""
    words = _words(chat.messages[number])
    if words in chat.whole.text if words else _says_something(chat.messages[number]):
        return False
    try:
        word, whole = chat.with_made_up(number)
    except TemplateError:
        return False
    return word not in whole.text or bool(whole.runs_of(number))


def _skip_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _detailed(text: str, message: Message, spans: Spans) -> Spans:
    """Read `train_detail` of a message: characters begin_offset to end_offset of its content, both included, are trained or not."""
    content = message.get("content")
    content = content if isinstance(content, str) else ""
    found = [places(text, content, *span) for span in spans] if content else []
    if [len(some) for some in found if some] != [1]:
        raise Unproven(
            f"{TRAIN_DETAIL} needs a message whose content the chat template prints once, letter by letter"
        )
    place = max(found)[0]
    flags = covered(len(text), spans)
    for detail in message[TRAIN_DETAIL]:
        begin, end, train = _offsets(detail, len(content))
        flags[place + begin : place + end + 1] = train
    return runs(flags)


def _offsets(detail: Any, size: int) -> tuple[int, int, bool]:
    expected = f"{{begin_offset, end_offset, train}} with 0 <= begin_offset <= end_offset < {size}"
    if not isinstance(detail, dict):
        raise TemplateError(
            f"{TRAIN_DETAIL} has an entry that is {type(detail).__name__}, expected {expected}"
        )
    begin, end, train = (detail.get(name) for name in ("begin_offset", "end_offset", "train"))
    if not (
        type(begin) is int
        and type(end) is int
        and isinstance(train, bool)
        and 0 <= begin <= end < size
    ):
        raise TemplateError(f"{TRAIN_DETAIL} has the entry {detail}, expected {expected}")
    return begin, end, train
