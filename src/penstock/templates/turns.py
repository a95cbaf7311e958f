"""Where does a trained turn begin and end?  From behind its header to its end-of-turn token, on the one full rendering.

The dye says which characters the assistant wrote.  A turn is more than those: tags, white space and JSON punctuation between them, the
reasoning tags before them and the token that ends the turn are the model's to write, too.  The header is not: it is what a
generation prompt would have put there.  Both are learned from renderings of small probe conversations.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import TemplateError
from penstock.templates.dye import Undyed

Render = Callable[..., str]  # (messages, add_generation_prompt=False) → text

_OPENING = re.compile(r"<[|｜]?[^\W\d][^<>\s\"]*>")  # a tag that closes nothing

_USER, _ANSWER, _AGAIN = "penstockasks", "penstockanswers", "penstockasksagain"


@dataclass(frozen=True, slots=True)
class TurnShape:
    """What a template puts around an assistant's turn."""

    prompt: str  # the generation prompt
    header: str  # as much of it as stands before a turn that is over; empty where a template has no such thing
    ends: tuple[str, ...]  # what may end a turn

    def spans(self, rendered: Undyed, *, whole: bool = True) -> list[tuple[int, int]]:
        """Character ranges that are trained.  `whole`: from the header on, not just from the first dyed character."""
        dyed = np.flatnonzero(rendered.dyed)
        if not dyed.size:
            return []
        text, found = rendered.text, []
        borders = self._borders(rendered)
        places = [place for place, _ in borders]
        edges = [*np.searchsorted(dyed, places).tolist(), dyed.size]
        for number, (place, is_header) in enumerate(borders):
            low, high = edges[number], edges[number + 1]
            if low == high:
                continue
            first, last = dyed.item(low), dyed.item(high - 1)
            limit = places[number + 1] if number + 1 < len(places) else len(text)
            start = min(self._header_end(text, place), first) if is_header and whole else first
            found.append((start, self._turn_end(text, last + 1, limit)))
        return found

    def _borders(self, rendered: Undyed) -> list[tuple[int, bool]]:
        """(place, is it a header) at which a new turn may begin, ascending, from 0 on."""
        borders = {0: False} | dict.fromkeys(rendered.marks, False)
        if self.header:
            place = rendered.text.find(self.header)
            while place >= 0:
                borders[place] = True
                place = rendered.text.find(self.header, place + len(self.header))
        return sorted(borders.items())

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
        """Behind the first end-of-turn token before `limit`; `start` where there is none."""
        if len(self.ends) == 1:  # nearly always
            place = text.find(self.ends[0], start, limit)
            return start if place < 0 else place + len(self.ends[0])
        places = [(place, len(end)) for end in self.ends if (place := text.find(end, start, limit)) >= 0]
        if not places:
            return start
        first = min(place for place, _ in places)
        return first + max(size for place, size in places if place == first)


def learn_turns(render: Render, special: Collection[str]) -> TurnShape:
    """The shape of a template's turns, from probes; `special` are the tokenizer's special tokens as text."""
    for as_content in (lambda text: text, lambda text: [{"type": "text", "text": text}]):
        user, answer, again = (
            {"role": role, "content": as_content(text)}
            for role, text in (("user", _USER), ("assistant", _ANSWER), ("user", _AGAIN))
        )
        middle, last = _try(render, [user, answer, again]), _try(render, [user, answer])
        if _ANSWER in last:
            prompt = _generation_prompt(render, user)
            before, _, tail = last.partition(_ANSWER)
            inner_tail = middle.partition(_ANSWER)[2].partition(_AGAIN)[0]
            # A turn that is over may have lost what only the last one has, such as an opened reasoning tag.
            before = middle.partition(_ANSWER)[0] or before
            header = _longest_prefix(prompt, before[max(before.find(_USER), 0) :])
            ends = _enders(inner_tail, tail, special)
            return TurnShape(prompt=prompt, header=header, ends=_with_call_end(ends, render, user, special))
    return TurnShape(prompt="", header="", ends=())


def _generation_prompt(render: Render, user: dict[str, Any]) -> str:
    without, with_prompt = _try(render, [user]), _try(render, [user], add_generation_prompt=True)
    return with_prompt[len(without) :] if with_prompt.startswith(without) else ""


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
    return tuple(dict.fromkeys(end for end in (inner_end, "".join(last_run)) if end))


def _with_call_end(ends: tuple[str, ...], render: Render, user: Any, special: Collection[str]) -> tuple[str, ...]:
    """Some templates end a turn that calls a tool in a way of its own."""
    function = {"name": "penstocktool", "arguments": {"penstockkey": _ANSWER}}
    call = {"id": "penstock0", "type": "function", "function": function}
    tool = {
        "type": "function",
        "function": {"name": "penstocktool", "description": "", "parameters": {"type": "object"}},
    }
    calls = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "name": "penstocktool", "tool_call_id": "penstock0", "content": _AGAIN}
    tail = _try(render, [user, calls, result], tools=[tool]).rpartition(_ANSWER)[2].partition(_AGAIN)[0]
    found = [token for token in special if token in tail] or _OPENING.findall(tail)
    if not found or any(end in tail for end in ends):
        return ends
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
