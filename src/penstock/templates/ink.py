"""Which characters of a rendering did those write who are trained?  By dye, or by the template's `{% generation %}` tags."""

import re
from collections.abc import Callable, Collection
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from penstock.errors import TemplateError
from penstock.templates.colours import Change, changed_strings, coloured, is_hollow, marked, strings
from penstock.templates.dye import Dye, Palette, Undyed, Unverified, hollow_mark
from penstock.templates.masks import Rendering, Spans, covered, runs, tagged
from penstock.templates.messages import Message
from penstock.templates.probes import with_thoughts
from penstock.templates.reads import find_reads
from penstock.templates.render import CLOSE, OPEN, Renderer, outcome
from penstock.templates.stitches import Stitches
from penstock.templates.turns import learn_turns

Context = dict[str, Any]

_TAG = re.compile(r"<[^<>\s]{0,40}>")
_DISAGREE = "the template's generation tags and the dye disagree about what the assistant wrote"
Render = Callable[[Context], str]
Add = Callable[..., str]  # (text, author)


class Ink:
    """What is known of one template: what it reads, how its turns look.  `context` makes one of messages."""

    def __init__(
        self, renderer: Renderer, context: Callable[..., Context], special: Collection[str], *, reasoning: bool
    ) -> None:
        self._has_generation = renderer.has_generation
        self._reasoning = reasoning
        self.reads = find_reads(renderer.tree())
        self._palette = Palette(self.reads.needles, json=self.reads.json)
        self.turns = learn_turns(lambda messages, **o: self.plain(renderer.render, context(messages, **o)), special)
        self.forgets = any(
            first not in text and second in text
            for messages, first, second in with_thoughts()
            if (text := outcome(renderer.render, context(messages))) is not None
        )
        self._special = _any_of(special)
        others = tuple(needle for needle in self.reads.needles if not (self._special and self._special.search(needle)))
        self._outer_palette = Palette(others, json=self.reads.json)

    def plain(self, render: Render, context: Context) -> str:
        """The text alone."""
        return self._unmarked(render(context))

    def by_tags(self, render: Render, context: Context, trained: list[bool], *, check: bool) -> Rendering:
        rendering = tagged(render(context))
        num_bare = sum(self._is_bare(rendering.text, span) for span in rendering.spans)
        num_hollow = sum(yes and is_hollow(m) for m, yes in zip(context["messages"], trained, strict=True))
        if not any(trained) or not (check or num_bare > num_hollow):
            return rendering
        dyed = self._undyed(render, context, trained)
        inside = covered(len(rendering.text), rendering.spans)
        if dyed.text != rendering.text or not inside[dyed.places].all():
            raise Unverified(_DISAGREE + _hint(context["messages"]))
        silent = [span for span in runs(inside) if self._is_bare(dyed.text, span) and not _any_in(dyed, span)]
        if len(silent) > num_hollow:
            # The template leaves out what somebody said there: the model would learn to say nothing.
            return Rendering(dyed.text, [span for span in runs(inside) if span not in silent])
        return rendering

    def by_dye(self, render: Render, context: Context, trained: list[bool], *, check: bool) -> Rendering:
        """`check`: whether the text is compared with what the template makes of plain messages."""
        if not any(trained):
            return Rendering(self.plain(render, context), [])
        if self._has_generation and any(others := _others(context["messages"], trained)):
            return self._beside_tags(render, context, trained, others, check=check)
        return self._by_dye(render, context, trained, check=check, tags=self._has_generation)

    def _beside_tags(
        self, render: Render, context: Context, trained: list[bool], others: list[bool], *, check: bool
    ) -> Rendering:
        """Tags are around what an assistant wrote: whoever else is trained is found by dye."""
        found = self._by_dye(render, context, others, check=check, tags=False)
        rest = [yes and not other for yes, other in zip(trained, others, strict=True)]
        if not any(rest):
            return found
        tagged = self._by_dye(render, context, rest, check=check, tags=True)
        if tagged.text != found.text:
            raise Unverified("the chat template writes an assistant's words in another way if a user's are dyed")
        return Rendering(found.text, runs(covered(len(found.text), [*found.spans, *tagged.spans])))

    def _by_dye(self, render: Render, context: Context, trained: list[bool], *, check: bool, tags: bool) -> Rendering:
        rendered = self._stitched(render, context, trained)
        if rendered is None:
            hollow = _any_hollow(context["messages"], trained)
            if hollow and (found := self._with_hollow(render, context, trained)) is not None:
                return found
            rendered = self._dyed(render, context, trained, hollow=False)
        if (check or rendered.bold) and rendered.text != self.plain(render, context):
            raise Unverified(
                "the chat template changes what it is given, so what the assistant wrote cannot be told"
                + _hint(context["messages"])
            )
        made = Rendering(rendered.text, self._spans(render, context, rendered, tags=tags))
        self._check_pale(context["messages"], trained, made)
        return made

    def _check_pale(self, messages: list[Message], trained: list[bool], made: Rendering) -> None:
        """An answer without a letter that can be dyed is found by the thought before it; not if the template leaves that out."""
        for message, yes in zip(messages, trained, strict=True):
            if not yes or len(message) == 2 or message.get("tool_calls") or not isinstance(message.get("content"), str):
                continue
            said = message["content"].strip()
            if said and self._palette.letter(said) is None and not any(said in made.text[a:b] for a, b in made.spans):
                raise Unverified(
                    f"an answer holds nothing that can be dyed, and its thought is left out: {said[:20]!r}"
                )

    def words(self, render: Render, context: Context, text: str) -> Spans:
        """Where people's words stand in a rendering, if there are special tokens among them; else nowhere."""
        others = {name: context[name] for name in ("tools", "documents") if context.get(name)}
        said = "".join(strings(context["messages"], list(others.values())))  # as one: halves can meet
        if self._special is None or not self._special.search(said):
            return []
        dye = Dye(self._outer_palette)
        special = self._special

        def walk(change: Change) -> Context:
            messages = [coloured(m, change, name=change, keys=self.reads.held) for m in context["messages"]]
            outer = changed_strings(others, lambda text: change(text) if special.search(text) else text)
            return {**context, "messages": messages, **outer}

        walk(lambda text: dye.add(text, 0))
        rest = iter(dye.dyed())
        rendered = dye.undo(self._unmarked(render(walk(lambda text: next(rest)))), ordered=False)
        if rendered.text != text:
            raise Unverified("the chat template looks for a special token that a message holds")
        inside = np.zeros(len(text), np.bool_)
        inside[rendered.places] = True
        return runs(inside)

    def special_in(self, context: Context) -> str | None:
        """A special token that stands in people's words."""
        said = "".join(strings(context["messages"], [context.get("tools"), context.get("documents")]))
        found = self._special.search(said) if self._special else None
        return found[0] if found else None

    def _spans(self, render: Render, context: Context, rendered: Undyed, *, tags: bool) -> Spans:
        if tags and self._reasoning:
            spans = tagged(render(context)).spans
            if not covered(len(rendered.text), spans)[rendered.places].all():
                raise Unverified(_DISAGREE + _hint(context["messages"]))
            return [span for span in spans if _any_in(rendered, span)]

        def begins(low: int, high: int) -> int | None:
            return self._beginning(render, context, rendered.text, low, high)

        return self.turns.spans(rendered, whole=self._reasoning, begins=begins)

    def _beginning(self, render: Render, context: Context, text: str, low: int, high: int) -> int | None:
        """Where a turn begins that has no header, such as one that goes on after a tool's answer: where a generation prompt ends."""
        messages = context["messages"]
        for number, message in enumerate(messages):
            if message.get("role") == "assistant" and number:
                asked = {**context, "messages": messages[:number], "add_generation_prompt": True}
                before = outcome(lambda context: self.plain(render, context), asked)
                if before is not None and low < len(before) <= high and text.startswith(before):
                    return len(before)
        return None

    def _with_hollow(self, render: Render, context: Context, trained: list[bool]) -> Rendering | None:
        """An empty turn is trained to end; None where the template treats it as no other."""
        try:
            rendered = self._dyed(render, context, trained, hollow=True)
        except TemplateError:
            return None
        text, spans = rendered.text, self.turns.spans(rendered, whole=self._reasoning)
        for place in reversed(rendered.hollow):
            text = text[:place] + text[place + 1 :]
            spans = [(start - (start > place), stop - (stop > place)) for start, stop in spans]
        if self._has_generation or text != self.plain(render, context):
            return None
        return Rendering(text, [(start, stop) for start, stop in spans if start < stop])

    def _is_bare(self, text: str, span: tuple[int, int]) -> bool:
        """Whether nothing but special tokens, tags and white space stands there."""
        start, stop = span
        if stop - start > 100:
            return False
        inside = text[start:stop]
        return not _TAG.sub("", self._special.sub("", inside) if self._special else inside).strip()

    def _undyed(self, render: Render, context: Context, trained: list[bool]) -> Undyed:
        found = self._stitched(render, context, trained)
        return self._dyed(render, context, trained, hollow=False) if found is None else found

    def _dyed(self, render: Render, context: Context, trained: list[bool], *, hollow: bool) -> Undyed:
        dye, numbers = Dye(self._palette), count()
        ready = self._changed(context["messages"], trained, dye.add, dye.once, dye.mark)
        rest = iter(dye.dyed())
        for place, yes in enumerate(trained):
            if yes:
                ready[place] = self._coloured(ready[place], lambda text: next(rest), lambda text: text)
                if hollow and is_hollow(ready[place]):
                    mark = hollow_mark(next(numbers), alone=ready[place] == context["messages"][place])
                    ready[place]["content"] = mark + ready[place]["content"]
        return dye.undo(self._unmarked(render({**context, "messages": ready})))

    def _stitched(self, render: Render, context: Context, trained: list[bool]) -> Undyed | None:
        """The cheap way, where words come out as they went in."""
        sewn = Stitches(self._palette)
        ready = self._changed(context["messages"], trained, sewn.add, sewn.call, sewn.mark, argument=sewn.call)
        if sewn.is_blank and _any_hollow(context["messages"], trained):
            return None
        return sewn.undo(self._unmarked(render({**context, "messages": ready})))

    def _changed(
        self,
        messages: list[Message],
        trained: list[bool],
        add: Add,
        name: Add,
        mark: Change,
        argument: Add | None = None,
    ) -> list[Message]:
        argument = argument or add
        ready: list[Message] = []
        after_trained = False
        for author, (message, yes) in enumerate(zip(messages, trained, strict=True)):
            if yes:
                if len(message) == 2 and type(content := message["content"]) is str and self._reasoning:
                    ready.append({"role": message["role"], "content": add(content, author)})
                else:
                    by = {"author": author}
                    words, called = partial(add, **by), partial(argument, **by)
                    ready.append(self._coloured(message, words, partial(name, **by), called))
            else:
                ready.append(marked(message, mark) if after_trained else message)
            after_trained = yes
        return ready

    def _coloured(self, message: Message, change: Change, name: Change, argument: Change | None = None) -> Message:
        return coloured(message, change, name=name, argument=argument, reasoning=self._reasoning, keys=self.reads.held)

    def _unmarked(self, text: str) -> str:
        return text.replace(OPEN, "").replace(CLOSE, "") if self._has_generation else text


def _any_in(rendered: Undyed, span: tuple[int, int]) -> bool:
    low, high = np.searchsorted(rendered.places, span).tolist()
    return bool(low < high)


def _any_hollow(messages: list[Message], trained: list[bool]) -> bool:
    return any(yes and is_hollow(message) for message, yes in zip(messages, trained, strict=True))


def _others(messages: list[Message], trained: list[bool]) -> list[bool]:
    """Who is trained without being an assistant."""
    return [yes and message.get("role") != "assistant" for message, yes in zip(messages, trained, strict=True)]


def _hint(messages: list[Message]) -> str:
    in_parts = any(isinstance(message.get("content"), list) for message in messages)
    return " (content is a list, which it may not know: pass content_parts='text')" if in_parts else ""


def _any_of(tokens: Collection[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))) if tokens else None
