"""Find the character spans of a rendered chat that the model is trained on.

A trained turn is what its message printed (attribution.py), minus its header (headers.py), up to and with the token that ends it.
White space behind that token is the template's own.  Where a template has `{% generation %}` tags, they say what of an assistant's
message is trained.  A turn whose words cannot be followed is refused by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import TemplateError
from penstock.templates.chat.attribution import Attribution, Run
from penstock.templates.chat.headers import (
    Header,
    Headers,
    Render,
    Unproven,
    find_closing,
    find_start,
)
from penstock.templates.chat.kinds import REASONING, THOUGHT_END, MadeUp
from penstock.templates.chat.turn_ends import Ends
from penstock.templates.messages import Message

Spans = list[tuple[int, int]]

_DETAIL = "train_detail"  # axolotl's: spans of a message's content with a flag of their own


@dataclass(slots=True)
class Found:
    """The trained spans of one conversation, and what was noticed on the way."""

    spans: Spans = field(default_factory=list)
    num_partial: int = 0  # headers of which only a part stands there
    unended: list[int] = field(default_factory=list)  # messages behind which no token ends the turn


@dataclass(frozen=True, slots=True)
class Chat:
    """One conversation and its rendering."""

    messages: Sequence[Message]
    kinds: Sequence[int]  # numbers of their kinds
    tools: bool
    whole: Attribution
    render: Render  # of the first messages of this conversation

    def runs(self) -> dict[int, list[Run]]:
        """Message → what it printed."""
        found: dict[int, list[Run]] = {}
        for run in self.whole.runs:
            found.setdefault(run[2], []).append(run)
        return found


class SpanFinder:
    """Finds the trained spans of a template's conversations."""

    def __init__(self, headers: Headers, ends: Ends, *, learned: bool, tagged: bool, reasoning: bool) -> None:
        """learned: whether made-up messages tell headers.  tagged: whether there are generation tags.  reasoning: whether it is trained."""
        self._headers = headers
        self._ends = ends
        self._learned = learned
        self._tagged = tagged
        self._reasoning = reasoning

    @property
    def main_header(self) -> str | None:
        """What stands before an answer to a user."""
        return None if self._headers.main is None else self._headers.main.text

    def find(self, chat: Chat, trained: Sequence[bool], *, check: bool = False) -> Found:
        """`check`: hold what was learned against this very conversation."""
        found, runs = Found(), chat.runs()
        for number, chosen in enumerate(trained):
            if chosen:
                try:
                    found.spans += self._message(chat, number, runs.get(number, []), found, check=check)
                except Unproven as error:
                    role = chat.messages[number].get("role")
                    raise Unproven(f"messages[{number}] ({role}): {error}") from error
        found.spans.sort()
        return found

    def _message(self, chat: Chat, number: int, runs: list[Run], found: Found, *, check: bool) -> Spans:
        message = chat.messages[number]
        if runs:
            spans = self._turn(chat, number, runs, found, check=check)
        elif _is_left_out(chat, number):
            return []
        elif message.get("role") == "assistant":
            raise Unproven("the chat template prints this message outside its loops over the messages")
        else:
            spans = [self._outside(chat.whole, message)]
        if not self._reasoning:
            spans = self._without_thought(chat, number, spans)
        return spans if _DETAIL not in message else _detailed(chat.whole.text, message, spans)

    def _turn(self, chat: Chat, number: int, runs: list[Run], found: Found, *, check: bool) -> Spans:
        message = chat.messages[number]
        is_assistant = message.get("role") == "assistant"
        header = self._learned_header(chat, number, runs[0])
        if self._tagged and is_assistant:
            return _within_tags(chat.whole, message, runs)
        if is_assistant and (header is None or (check and number)):
            start, partial = find_start(chat.whole, number, chat.messages[:number], chat.render, self._headers.main)
            closing = find_closing(chat.whole, number, chat.messages, chat.render)
            proven = Header(chat.whole.text[runs[0][0] : start], partial, *closing)
            if header is not None and proven != header:
                raise Unproven("what stands around a turn is not what its kind has")
            header = header or proven
        elif header is None:
            header = Header(chat.whole.text[runs[0][0] : _only_place(chat.whole.text, message, runs[:1])[0]])
        self._check_runs(chat.whole.text, message, runs, header)
        found.num_partial += header.is_partial
        _check_words(chat.whole.text, message, runs, runs[0][0] + len(header.text))
        return self._ended(chat.whole, runs, header, number, found)

    def _check_runs(self, text: str, message: Message, runs: list[Run], header: Header) -> None:
        """Refuse what is printed more than once, and tokens of which it cannot be told whose they are."""
        if header.text.strip() and any(text.startswith(header.text, run[0], run[1]) for run in runs[1:]):
            raise Unproven("the chat template prints this message more than once")
        if message.get("role") != "assistant" and self.main_header == "":
            stop = runs[-1][0] + len(text[runs[-1][0] : runs[-1][1]].rstrip())
            if self._ends.num_closing(text, runs[-1][0] + len(header.text), stop) > 1:
                raise Unproven(
                    "several tokens stand behind this message, and it cannot be told which of them are its own"
                )

    def _learned_header(self, chat: Chat, number: int, run: Run) -> Header | None:
        kinds = chat.kinds
        before = (kinds[number - 2] if number > 1 else -1, kinds[number - 1] if number else -1)
        after = kinds[number + 1] if number + 1 < len(kinds) else -1
        header = self._headers.learned((*before, kinds[number], after, chat.tools))
        if isinstance(header, Unproven):
            raise Unproven(str(header))
        if not self._learned:
            return None  # made-up messages show that words stand in their runs, but do not tell this header
        fits = header is not None and chat.whole.text.startswith(header.text, run[0], run[1])
        return header if fits and header is not None and chat.whole.text.startswith(header.closing, run[1]) else None

    def _ended(self, whole: Attribution, runs: list[Run], header: Header, number: int, found: Found) -> Spans:
        text, start = whole.text, runs[0][0] + len(header.text)
        spans: Spans = []
        for run in runs:
            begin = max(run[0], start)
            stop = begin + len(text[begin : run[1]].rstrip())
            if header.closing and run is runs[0]:
                stop = run[1] + len(header.closing)
            elif run is runs[-1]:
                end = self._end(whole, run, begin, self._before_tail(text, begin, run[1], header.tail))
                if end is None:
                    found.unended.append(number)
                stop = end or stop
            if stop > begin:
                spans.append((begin, stop))
        return spans

    def _before_tail(self, text: str, begin: int, stop: int, tail: str) -> int:
        """Where a run ends without what it prints for the next message: behind the first tokens of it where nothing else ends the turn."""
        if not tail or not text.endswith(tail, begin, stop):
            return begin + len(text[begin:stop].rstrip())
        last = begin + len(text[begin : stop - len(tail)].rstrip())
        if self._ends.closes(text, begin, last):
            return last
        end = place = _skip_space(text, stop - len(tail))
        while place < stop and (token := self._ends.token_at(text, place, self._ends.added)):
            end = place = place + len(token)
        return end if end > stop - len(tail) else last

    def _outside(self, whole: Attribution, message: Message) -> tuple[int, int]:
        """A message that the template prints outside its loops, as many do with the first system message: its words, and a token behind."""
        start, stop = _only_place(whole.text, message, [run for run in whole.runs if run[2] < 0])
        token = self._ends.token_at(whole.text, stop, self._ends.added)
        return start, stop + len(token or "")

    def _end(self, whole: Attribution, run: Run, begin: int, stop: int) -> int | None:
        """Where the turn ends that this run closes; None where no token ends it."""
        text, ends = whole.text, self._ends
        if ends.stops_at(text, begin, stop):
            return stop
        closed = ends.closes(text, begin, stop)  # by a token such as "</tool_call>", at which nothing stops
        following = next((other for other in whole.runs if other[0] >= run[1]), None)
        if following is not None:
            place = run[1] + len(text[run[1] : following[1]]) - len(text[run[1] : following[1]].lstrip())
            token = ends.token_at(text, place, ends.stops if closed or following[2] >= 0 else ends.added)
            if token is not None:
                return place + len(token)
        return stop if closed else None

    def _without_thought(self, chat: Chat, number: int, spans: Spans) -> Spans:
        """Leave out reasoning, from the turn's beginning to behind the tag that closes it."""
        if not spans:
            return spans
        begin, end, text = spans[0][0], spans[-1][1], chat.whole.text
        message = chat.messages[number]
        thought = next((value for key in REASONING if isinstance(value := message.get(key), str)), "").strip()
        printed = text.find(thought, begin, end) if thought else -1
        after = printed + len(thought) if printed >= 0 else begin
        content = message.get("content")
        if isinstance(content, str) and THOUGHT_END in content:
            close = text.rfind(THOUGHT_END, after, end)
            answer = content.rpartition(THOUGHT_END)[2].strip()
            if close >= 0 and not text.startswith(answer, _skip_space(text, close + len(THOUGHT_END))):
                raise Unproven(
                    "an inline thought is printed in another way than it is written, so it cannot be left out"
                )
        else:
            said = content.strip() if isinstance(content, str) else ""
            answer_at = text.find(said, after, end) if said else end
            close = text.rfind(THOUGHT_END, after, max(answer_at, after)) if answer_at >= 0 else -1
        if close < 0:
            if printed >= 0:
                return self._behind_learned_thought(chat, number, spans, after)
            return spans
        start = _skip_space(text, close + len(THOUGHT_END))
        return [(max(a, start), b) for a, b in spans if b > start]

    def _behind_learned_thought(self, chat: Chat, number: int, spans: Spans, after: int) -> Spans:
        """Where thoughts are closed by something else than `</think>`: what stands between a made-up thought and a made-up answer."""
        made = MadeUp([("user", "text"), ("assistant", (("content", "text"), *((name, "text") for name in REASONING)))])
        between = None
        try:
            text = chat.render(made.messages, add_generation_prompt=False).text
            thought, answer = made.words[1][0], made.words[1][1]
            between = (
                text.partition(thought)[2].partition(answer)[0] if text.find(thought) < text.find(answer) else None
            )
        except TemplateError:
            pass
        if not between or not chat.whole.text.startswith(between, after):
            raise Unproven("it cannot be told where the reasoning of a message ends, so it cannot be left out")
        start = after + len(between)
        return [(max(a, start), b) for a, b in spans if b > start]


def _within_tags(whole: Attribution, message: Message, runs: list[Run]) -> Spans:
    """What generation tags hold of a message, and of what is printed right behind its last run by no message."""
    last = runs[-1]
    behind = [run for run in whole.runs if run[0] == last[1] and run[2] < 0]
    spans: Spans = []
    for start, stop in whole.tagged:
        for run in [*runs, *behind]:
            begin, end = max(start, run[0]), min(stop, run[1])
            if begin < end:
                spans.append((begin, end))
    words = _words(message)
    inside = [whole.text[a:b] for a, b in spans]
    if (
        words
        and not any(words in text for text in inside)
        and any(words in whole.text[run[0] : run[1]] for run in runs)
    ):
        raise Unproven("the template's generation tags leave out what a message says")
    return spans


def _words(message: Message) -> str:
    """What a message says last: its content, without an inline thought."""
    content = message.get("content")
    return content.rpartition(THOUGHT_END)[2].strip() if isinstance(content, str) else ""


def _check_words(text: str, message: Message, runs: list[Run], start: int) -> None:
    """Refuse a turn whose words stand in the text, but not where its message printed."""
    words = _words(message)
    if words and not any(text.find(words, max(start, run[0]), run[1]) >= 0 for run in runs) and words in text:
        raise Unproven("the words of a message stand in the text, but not where the chat template prints the message")


def _only_place(text: str, message: Message, runs: list[Run]) -> tuple[int, int]:
    """Where a message that is not an assistant's stands, if what it says stands in these runs just once."""
    content = message.get("content")
    for words in (content, _words(message)):  # as it is, or without white space around it
        if not isinstance(words, str) or not words:
            continue
        places = [place for run in runs for place in _places(text, words, run)]
        if len(places) == 1:
            return places[0], places[0] + len(words)
    raise Unproven("it cannot be told where the chat template prints what this message says")


def _says_something(message: Message) -> bool:
    content = message.get("content")
    has_text = bool(content.strip()) if isinstance(content, str) else bool(content)
    return has_text or bool(message.get("tool_calls")) or any(message.get(name) for name in REASONING)


def _is_left_out(chat: Chat, number: int) -> bool:
    """Whether a message without a run is not printed at all.  Words in its place would be, in a run of its own, or nowhere."""
    message, words = chat.messages[number], _words(chat.messages[number])
    if words in chat.whole.text if words else _says_something(message):
        return False
    made = MadeUp([(message.get("role"), "text")])
    try:
        whole = chat.render([*chat.messages[:number], *made.messages, *chat.messages[number + 1 :]])
    except TemplateError:
        return False
    return made.words[0][0] not in whole.text or any(run[2] == number for run in whole.runs)


def _places(text: str, words: str, run: Run) -> list[int]:
    """Where words stand in a run."""
    found, place = [], text.find(words, run[0], run[1])
    while place >= 0:
        found.append(place)
        place = text.find(words, place + 1, run[1])
    return found


def _skip_space(text: str, place: int) -> int:
    return len(text) - len(text[place:].lstrip())


def _detailed(text: str, message: Message, spans: Spans) -> Spans:
    """What a message says of parts of its own content: characters begin_offset to end_offset, both included, are trained or not."""
    content = message.get("content")
    inside = [
        (place, a, b)
        for a, b in spans
        if isinstance(content, str) and content and (place := text.find(content, a, b)) >= 0
    ]
    if len(inside) != 1 or not isinstance(content, str) or text.find(content, inside[0][0] + 1, inside[0][2]) >= 0:
        raise Unproven(f"{_DETAIL} needs a message whose content the chat template prints once, letter by letter")
    place = inside[0][0]
    flags = bytearray(b"\1" * len(content))
    for detail in message[_DETAIL]:
        begin, end, train = _offsets(detail, len(content))
        flags[begin : end + 1] = bytes([train]) * (end + 1 - begin)
    found: Spans = []
    for begin, end in spans:
        for character in range(begin, end):
            yes = not place <= character < place + len(content) or flags[character - place]
            if yes and found and found[-1][1] == character:
                found[-1] = (found[-1][0], character + 1)
            elif yes:
                found.append((character, character + 1))
    return found


def _offsets(detail: Any, size: int) -> tuple[int, int, bool]:
    expected = f"{{begin_offset, end_offset, train}} with 0 <= begin_offset <= end_offset < {size}"
    if not isinstance(detail, dict):
        raise TemplateError(f"{_DETAIL} has an entry that is {type(detail).__name__}, expected {expected}")
    begin, end, train = (detail.get(name) for name in ("begin_offset", "end_offset", "train"))
    if not (type(begin) is int and type(end) is int and isinstance(train, bool) and 0 <= begin <= end < size):
        raise TemplateError(f"{_DETAIL} has the entry {detail}, expected {expected}")
    return begin, end, train
