"""Where does a trained turn begin and end?  From behind its header to its end-of-turn token, on the one full rendering.

The dye says which characters the assistant wrote.  A turn is more than those: tags, white space and JSON punctuation between them, the
reasoning tags before them and the token that ends the turn are the model's to write, too.  The header is not: it is what a
generation prompt would have put there.  Both are learned from renderings of small probe conversations.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from penstock.errors import TemplateError
from penstock.templates.dye import Undyed

Render = Callable[..., str]  # (messages, add_generation_prompt=False) → text

_OPENING = re.compile(r"<[|｜]?[^\W\d][^<>\s\"]*>")  # a tag that closes nothing

_THOUGHT_END = "</think>"
# What is asked, answered and asked again in a probe; for templates that change some letters, or cut, in several ways.
_WORDS = (
    ("penstockasks", "penstockanswers", "penstockasksagain"),
    ("7305", "91824", "66173"),
    ("QZXJ", "VKWY", "JXQV"),
)


@dataclass(frozen=True, slots=True)
class TurnShape:
    """What a template puts around an assistant's turn."""

    prompt: str  # the generation prompt
    header: str  # as much of it as stands before a turn that is over; empty where a template has no such thing
    lead: str  # what follows the header, or the message before, in front of every answer
    ends: tuple[str, ...]  # what may end a turn

    def spans(
        self, rendered: Undyed, *, whole: bool = True, begins: Callable[[int, int], int | None] = lambda low, high: None
    ) -> list[tuple[int, int]]:
        """Character ranges that are trained: a turn is what one author wrote, with what stands in between.

        whole: from the header on, not just from where the answer begins.  begins: asked for the beginning of a turn
        between two places if it has no header, unlike others.
        """
        marks, text = rendered.marks, rendered.text
        followers = [first for first, _ in rendered.turns] + [len(text)]
        found, low = [], 0
        for (first, last), following in zip(rendered.turns, followers[1:], strict=True):
            before = bisect_left(marks, first)
            if before:
                low = max(low, marks[before - 1])
            start = self._start(text, low, first, whole=whole, begins=begins)
            limit = min(following, marks[before]) if before < len(marks) else following
            low = self._turn_end(text, last + 1, limit)
            found.append((start, low))
        return found

    def _start(self, text: str, low: int, first: int, *, whole: bool, begins: Callable[[int, int], int | None]) -> int:
        if whole and self.header == self.prompt and self.header and text.endswith(self.header, low, first):
            return first  # nearly always
        header = text.rfind(self.header, low, first) if self.header else -1
        if header >= 0:
            start = min(self._header_end(text, header), first)
        elif self.header and (beginning := begins(low, first)) is not None:
            start = beginning
        else:
            start = first - len(self.lead) if text.endswith(self.lead, low, first) else first
        if whole:
            return start
        thought = text.rfind(_THOUGHT_END, start, first)
        start = start if thought < 0 else thought + len(_THOUGHT_END)
        return start + len(text[start:first]) - len(text[start:first].lstrip())

    def _header_end(self, text: str, start: int) -> int:
        """Behind as much of the generation prompt as stands here."""
        end = start + len(self.header)
        if text.startswith(self.prompt, start):
            return start + len(self.prompt)
        for expected in self.prompt[len(self.header) :]:
            if not text.startswith(expected, end):
                break
            end += 1
        return end

    def _turn_end(self, text: str, start: int, limit: int) -> int:
        """Behind the first end-of-turn token before `limit`; where there is none, at the end of all, or at `start`."""
        if self.header and limit < len(text) and (header := text.find(self.header, start, limit)) >= 0:
            limit = header
        if len(self.ends) == 1 and (place := text.find(self.ends[0], start, limit)) >= 0:  # nearly always
            return place + len(self.ends[0])
        places = [(place, len(end)) for end in self.ends if (place := text.find(end, start, limit)) >= 0]
        if not places:
            return len(text.rstrip()) if limit == len(text) else start
        first = min(place for place, _ in places)
        return first + max(size for place, size in places if place == first)


def learn_turns(render: Render, special: Collection[str]) -> TurnShape:
    """The shape of a template's turns, from probes; `special` are the tokenizer's special tokens as text."""
    for as_content in (lambda text: text, lambda text: [{"type": "text", "text": text}]):
        for words in _WORDS:
            roles = zip(("user", "assistant", "user"), words, strict=True)
            probe = [{"role": role, "content": as_content(text)} for role, text in roles]
            if words[1] in _try(render, probe[:2]):
                return _learn(render, special, probe, words)
    return TurnShape(prompt="", header="", lead="", ends=())


def _learn(render: Render, special: Collection[str], probe: list[Any], words: tuple[str, str, str]) -> TurnShape:
    question, answer, next_question = words
    asked, last, middle = _try(render, probe[:1]), _try(render, probe[:2]), _try(render, probe)
    prompt = _generation_prompt(asked, _try(render, probe[:1], add_generation_prompt=True), question)
    before, _, tail = last.partition(answer)
    inner_tail = middle.partition(answer)[2].partition(next_question)[0]
    # A turn that is over may have lost what only the last one has, such as an opened reasoning tag.
    before = middle.partition(answer)[0] or before
    header = _longest_prefix(prompt, before[max(before.find(question), 0) :])
    lead = before[len(asked) :] if not header and asked and before.startswith(asked) else ""
    if not prompt and asked and before.startswith(asked):
        # There is no generation prompt: a label before the answer stands in for one, or else what closes the question.
        prompt = header = lead if lead.strip() else _closing(asked.partition(question)[2])
    ends = _with_call_end(_enders(inner_tail, tail, special), render, probe[0], words, special)
    return TurnShape(
        prompt=prompt,
        header=header,
        lead=lead if lead.isspace() else "",
        ends=ends,
    )


def _closing(tail: str) -> str:
    """What stands behind a question; white space alone, or a letter or two, would be found anywhere."""
    return tail if len(tail.strip()) > 2 else ""


def _generation_prompt(without: str, with_prompt: str, question: str) -> str:
    common = _num_common(without, with_prompt)
    if common < len(without):  # something else stands in its place, such as an end of all; the two may begin alike
        common = max(with_prompt.rfind(">", 0, common) + 1, with_prompt.rfind("\n", 0, common) + 1)
    return with_prompt[common:] if common > with_prompt.find(question) else ""


def _num_common(a: str, b: str) -> int:
    """How many characters two texts have in common from the start."""
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _longest_prefix(prompt: str, text: str) -> str:
    """As much of the generation prompt as stands before an answer; a letter or two would be chance."""
    for size in range(len(prompt), 2, -1):
        if prompt[:size] in text:
            return prompt[:size]
    return ""


def _enders(inner: str, last: str, special: Collection[str]) -> tuple[str, ...]:
    """What ends a turn inside a conversation, and what ends the last one: special tokens that stand together behind an answer."""
    inner_run, last_run = _special_run(inner, special), _special_run(last, special)
    common = [a for a, b in zip(inner_run, last_run, strict=False) if a == b] if inner_run[:1] == last_run[:1] else []
    # Behind a turn inside, the next message's header follows at once: only what the last turn has, too, is the turn's own.
    inner_end = "".join(common) if common else "".join(inner_run[:1])
    ends = tuple(dict.fromkeys(end for end in (inner_end, "".join(last_run)) if end))
    # Without any such token: plain words that stand behind every answer.
    words = inner[: _num_common(inner, last)].rstrip()
    return ends or ((words,) if words else ())


def _with_call_end(
    ends: tuple[str, ...], render: Render, user: Any, words: tuple[str, str, str], special: Collection[str]
) -> tuple[str, ...]:
    """Some templates end a turn that calls a tool in a way of its own."""
    _, answer, again = words
    function = {"name": "penstocktool", "arguments": {"penstockkey": answer}}
    call = {"id": "penstock0", "type": "function", "function": function}
    tool = {
        "type": "function",
        "function": {"name": "penstocktool", "description": "", "parameters": {"type": "object"}},
    }
    calls = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "name": "penstocktool", "tool_call_id": "penstock0", "content": again}
    tail = _try(render, [user, calls, result], tools=[tool]).rpartition(answer)[2].partition(again)[0]
    last = _try(render, [user, calls], tools=[tool]).rpartition(answer)[2]
    found = [token for token in special if token in tail] or _OPENING.findall(tail)
    if not found or any(end in tail for end in ends):
        return ends
    own = tail[: _num_common(tail, last)]  # without what belongs to the result
    if any(token in own for token in found):
        return (*ends, max(found, key=lambda token: (own.rfind(token), len(token))))
    return (*ends, min(found, key=lambda token: (tail.find(token), -len(token))))


def _special_run(tail: str, special: Collection[str]) -> list[str]:
    """The special tokens at the head of a tail, up to other text; tags where the tokenizer knows none of them."""
    known = [token for token in special if token in tail]
    pattern = "|".join(re.escape(token) for token in sorted(known, key=len, reverse=True)) if known else r"<[^<>\s]+>"
    run: list[str] = []
    place = len(tail) - len(tail.lstrip())
    while match := re.compile(pattern).match(tail, place):
        run.append(match[0])
        place = match.end()
    if not run and (match := re.search(pattern, tail)):  # such as closing text before the token
        run.append(match[0])
    return run


def _try(render: Render, messages: list[dict[str, Any]], **options: Any) -> str:
    """A template may refuse a probe; then it teaches nothing."""
    try:
        return render(messages, **options)
    except TemplateError:
        return ""
