"""Which tokens and which loss mask does a conversation get?  Rendered once, whole, by its own chat template; encoded once.

What is trained is found on that one rendering, by dye (dye.py, turns.py) or by the template's `{% generation %}` tags, and
verified: the undyed text must equal the plain rendering.  A conversation whose marks cannot be verified is an event, never a guess.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import TemplateError
from penstock.templates.builtin import CHATML
from penstock.templates.dye import Dye, Undyed, has_private
from penstock.templates.messages import Conversation, Message, train_flag
from penstock.templates.render import CLOSE, OPEN, Renderer
from penstock.templates.tokenizers import Tokenizer
from penstock.templates.turns import TurnShape, learn_turns
from penstock.types import Record, Samples

_log = logging.getLogger("penstock")

_FIRST_ROWS = 16  # of every batch handed over: rendered by both engines, dyed and plain
_REASONING = ("reasoning_content", "thinking", "reasoning")  # the names that transformers treats as one
_BATCH = 512

Reader = Callable[[Record, int], Conversation]


class Unverified(TemplateError):
    """The dye did not come through a template unharmed."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """A conversation as text, and the character ranges that are trained."""

    text: str
    spans: list[tuple[int, int]]


@dataclass(slots=True)
class _Refusals:
    """What to do with a conversation that the template refuses or whose mask cannot be verified."""

    policy: str
    dropped: dict[int, str] = field(default_factory=dict)

    def met(self, number: int, error: TemplateError) -> None:
        if self.policy == "stop":
            hint = "mend the record, or pass on_refused='skip' (skips are counted)"
            raise TemplateError(f"{error}; {hint}", record=number) from error
        self.dropped[number] = "mask_unverified" if isinstance(error, Unverified) else "template_refused"


class ChatTemplate:
    """Conversations through a chat template.

    train_on: "assistant", "last" (the last assistant turn), "completion" (what follows the prompt), "all", or a list of roles.
    verify: "first" rows of every shard, or "all".  on_refused: "stop", or "skip" and count.
    """

    version = 1  # raise when the same record gives other tokens

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        reader: Any,
        chat_template: str | None = None,
        train_on: str | list[str] = "assistant",
        train_reasoning: bool = True,
        template_kwargs: dict[str, Any] | None = None,
        today: str = "2025-01-01",
        verify: str = "first",
        on_refused: str = "stop",
        special_in_text: str = "token",
    ) -> None:
        _choice("verify", verify, ("first", "all"))
        _choice("on_refused", on_refused, ("stop", "skip"))
        _choice("special_in_text", special_in_text, ("token", "text", "error"))
        if isinstance(train_on, str):
            _choice("train_on", train_on, ("assistant", "last", "completion", "all"))
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self.reader = reader
        self.train_on = train_on
        self.train_reasoning = train_reasoning
        self.template_kwargs = dict(template_kwargs or {})
        self.verify = verify
        self.on_refused = on_refused
        self.special_in_text = special_in_text
        self.renderer = Renderer(self._find_template(chat_template), today=today)
        special = tokenizer.special_added
        self.turns: TurnShape = learn_turns(lambda messages, **o: self._plain(self._context(messages, **o)), special)
        self.gentle = False
        self._probe()

    def _find_template(self, given: str | None) -> str:
        known = self.tokenizer.chat_templates
        if given is not None and given in known:
            return known[given]
        if given is not None:
            if "{" not in given:
                named = f"the tokenizer has {', '.join(sorted(known)) or 'none'}"
                raise TemplateError(f"chat_template {given!r} is neither a template nor the name of one; {named}")
            return given
        if "default" not in known:
            _log.warning(
                "%r has no chat template; the built-in ChatML one is used, pass chat_template= for another",
                self.tokenizer,
            )
            return CHATML
        return known["default"]

    def identity(self) -> dict[str, Any]:
        return {
            "template": "chat",
            "version": self.version,
            "chat_template": self.renderer.text,
            "engine": self.renderer.engine,
            "today": self.renderer.today,
            "reader": self.reader.identity(),
            "train_on": self.train_on,
            "train_reasoning": self.train_reasoning,
            "template_kwargs": self.template_kwargs,
            "on_refused": self.on_refused,
            "special_in_text": self.special_in_text,
            "special_tokens": self.tokenizer.special_tokens,
            "tokenizer": self.tokenizer.identity(),
        }

    def describe(self) -> str:
        """How this template renders and how it finds what is trained."""
        how = (
            "by its generation tags"
            if self.renderer.has_generation
            else "by dye" + (" (letters only)" if self.gentle else "")
        )
        ends = ", ".join(map(repr, self.turns.ends)) or "none found"
        return (
            f"rendered by {self.renderer.engine} ({self.renderer.reason}); trained characters found {how}; "
            f"header {self.turns.header!r}, end of turn {ends}"
        )

    def decode(self, input_ids: npt.NDArray[np.unsignedinteger[Any]]) -> str:
        return self.tokenizer.decode(input_ids)

    # Records → samples

    def encode(self, records: Iterable[Record]) -> Samples:
        refusals = _Refusals(self.on_refused)
        parts, batch, first = [], [], 0
        for number, record in enumerate(records):
            try:
                batch.append(self.rendering(record, number))
            except TemplateError as error:
                refusals.met(number, error)
                batch.append(Rendering("", []))
            if len(batch) == _BATCH:
                parts.append(self._encode(batch, first))
                batch, first = [], number + 1
        parts.append(self._encode(batch, first))
        return _joined(parts, refusals.dropped)

    def rendering(self, record: Record, number: int = 0) -> Rendering:
        """One record as text with its trained ranges: what `encode` makes tokens of."""
        conversation = self.reader(record, number)
        if not conversation.messages:
            return Rendering("", [])
        check = self.verify == "all" or number < _FIRST_ROWS
        context = self._context(_aliased(conversation.messages), conversation)
        if check and not self.renderer.agrees(context):
            self.renderer.fall_back("minijinja renders a row of this source in another way than jinja2")
        trained = self._trained(conversation)
        if self.train_on == "all":
            text = self._plain(context)
            return Rendering(text, [(0, len(text))])
        plainly = self.renderer.has_generation and self.train_on == "assistant" and self.train_reasoning
        if plainly and all(_flag(message) is None for message in conversation.messages):
            return self._by_tags(context, trained, check=check)
        return self._by_dye(context, trained, check=check)

    def _trained(self, conversation: Conversation) -> list[bool]:
        """Which messages are trained; a message's own word counts most."""
        messages = conversation.messages
        roles = self.train_on if isinstance(self.train_on, list) else ["assistant"]
        chosen = [message.get("role") in roles for message in messages]
        if self.train_on == "last":
            last = max((place for place, yes in enumerate(chosen) if yes), default=-1)
            chosen = [place == last for place in range(len(messages))]
        if self.train_on == "completion":
            start = conversation.prompt_length
            if start is None:
                raise TemplateError(
                    "train_on='completion' needs records with a prompt and a completion; choose 'assistant' or 'last'"
                )
            chosen = [yes and place >= start for place, yes in enumerate(chosen)]
        for place, message in enumerate(messages):
            if (flag := _flag(message)) is not None:
                chosen[place] = flag
        return chosen

    # One conversation → text and trained ranges

    def _context(
        self, messages: list[Message], conversation: Conversation | None = None, **options: Any
    ) -> dict[str, Any]:
        given = conversation or Conversation(messages=[])
        return {
            **self.tokenizer.special_tokens,
            **self.template_kwargs,
            **given.kwargs,
            "messages": messages,
            "tools": given.tools,
            "documents": given.documents,
            "add_generation_prompt": False,
            **options,
        }

    def _plain(self, context: dict[str, Any]) -> str:
        return self.renderer.render(context).replace(OPEN, "").replace(CLOSE, "")

    def _by_tags(self, context: dict[str, Any], trained: list[bool], *, check: bool) -> Rendering:
        tagged = _tagged(self.renderer.render(context))
        if check and any(trained):
            dyed = self._undyed(context, trained, Dye())
            if dyed.text != tagged.text or not _inside(dyed, tagged.spans):
                raise Unverified("the template's generation tags and the dye disagree about what the assistant wrote")
        return tagged

    def _by_dye(self, context: dict[str, Any], trained: list[bool], *, check: bool) -> Rendering:
        if not any(trained):
            return Rendering(self._plain(context), [])
        rendered = self._undyed(context, trained, Dye())
        if check and rendered.text != self._plain(context):
            raise Unverified("the chat template changes what it is given, so what the assistant wrote cannot be told")
        if self.renderer.has_generation:
            dyed = np.concatenate(([0], np.cumsum(rendered.dyed)))
            tagged = _tagged(self.renderer.render(context))
            spans = [(a, b) for a, b in tagged.spans if dyed[b] > dyed[a]]
            if self.train_reasoning:
                return Rendering(rendered.text, spans)
        return Rendering(rendered.text, self.turns.spans(rendered, whole=self.train_reasoning))

    def _undyed(self, context: dict[str, Any], trained: list[bool], dye: Dye) -> Undyed:
        messages = context["messages"]
        for message, yes in zip(messages, trained, strict=True):
            if yes:
                self._fields(message, lambda text, gentle: dye.add(text, gentle=gentle or self.gentle))
            elif _any_private(message):
                raise Unverified("a message holds private-use characters of the planes that the dye uses")
        rest = iter(dye.dyed())
        changed, after_trained = [], False
        for message, yes in zip(messages, trained, strict=True):
            if yes:
                changed.append(self._fields(message, lambda text, gentle: next(rest)))
            else:
                changed.append(_marked(message, dye) if after_trained else message)
            after_trained = yes
        rendered = self.renderer.render({**context, "messages": changed})
        return dye.undo(rendered.replace(OPEN, "").replace(CLOSE, ""))

    def _fields(self, message: Message, change: Callable[[str, bool], Any]) -> Message:
        """A copy of a message in which every trained string went through `change`, always in the same order."""
        content = message.get("content")
        if len(message) == 2 and type(content) is str and self.train_reasoning:  # by far the most common one
            return {"role": message["role"], "content": change(content, False)}
        new = dict(message)
        if isinstance(content, str):
            new["content"] = self._content(content, change)
        elif isinstance(content, list):
            new["content"] = [
                {**part, "text": self._content(part["text"], change)}
                if isinstance(part, dict) and isinstance(part.get("text"), str)
                else part
                for part in content
            ]
        for name in _REASONING:
            if isinstance(message.get(name), str) and self.train_reasoning:
                new[name] = change(message[name], False)
        if isinstance(message.get("tool_calls"), list):
            new["tool_calls"] = [_called(call, change) for call in message["tool_calls"]]
        return new

    def _content(self, text: str, change: Callable[[str, bool], Any]) -> Any:
        """Without its reasoning where that is not trained: what stands before `</think>` keeps its colour."""
        if self.train_reasoning or "</think>" not in text:
            return change(text, False)
        reasoning, tag, answer = text.rpartition("</think>")
        changed = change(answer, False)
        return f"{reasoning}{tag}{changed}" if isinstance(changed, str) else changed

    # What a template can do

    def _probe(self) -> None:
        """Choose the engine and the strength of the dye on small conversations; say what was found when the source is opened."""
        for context in _probes(self._context):
            if not self.renderer.agrees(context):
                self.renderer.fall_back("minijinja renders a probe in another way than jinja2")
                break
        for gentle in (False, True):
            self.gentle = gentle
            if all(self._comes_through(context) for context in _probes(self._context)):
                return
        self.gentle = False  # rows are verified one by one; those that fail are events

    def _comes_through(self, context: dict[str, Any]) -> bool:
        trained = [message["role"] == "assistant" for message in context["messages"]]
        try:
            plain = self._plain(context)
        except TemplateError:
            return True  # refused as it is: says nothing about the dye
        try:
            return self._undyed(context, trained, Dye()).text == plain
        except TemplateError:
            return False

    def _encode(self, batch: list[Rendering], first: int) -> Samples:
        texts = [rendering.text for rendering in batch]
        try:
            encoded = self.tokenizer.encode_spans(texts)
        except TemplateError as error:
            raise TemplateError(str(error), record=first + (error.record or 0)) from error
        num_tokens = len(encoded.ids)
        change = np.zeros(num_tokens + 1, np.int32)
        owners = [number for number, rendering in enumerate(batch) for _ in rendering.spans]
        if owners:
            begins, ends = _byte_spans(batch)
            # Token ranges relative to their text become increasing over the whole batch: one search finds all spans.
            sizes = np.array([len(text.encode()) + 1 for text in texts], np.int64)
            bases = np.concatenate(([0], np.cumsum(sizes)))[:-1]
            base = np.repeat(bases, np.diff(encoded.offsets))
            low = np.searchsorted(encoded.stops + base, begins + bases[owners], side="right")
            high = np.searchsorted(encoded.starts + base, ends + bases[owners], side="left")
            np.add.at(change, low, 1)
            np.add.at(change, np.maximum(high, low), -1)
        mask = np.cumsum(change[:-1]) > 0
        return Samples(input_ids=encoded.ids, loss_mask=mask, offsets=encoded.offsets)

    def __repr__(self) -> str:
        return f"ChatTemplate({self.renderer.engine}, train_on={self.train_on!r}, {self.tokenizer!r})"


def _byte_spans(batch: list[Rendering]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Trained character ranges as byte ranges of each text's UTF-8."""
    begins: list[int] = []
    ends: list[int] = []
    for rendering in batch:
        if rendering.text.isascii():
            begins += [begin for begin, _ in rendering.spans]
            ends += [end for _, end in rendering.spans]
            continue
        place = size = 0
        for begin, end in rendering.spans:  # ascending, so each character is encoded once
            size += len(rendering.text[place:begin].encode())
            begins.append(size)
            size += len(rendering.text[begin:end].encode())
            ends.append(size)
            place = end
    return np.array(begins, np.int64), np.array(ends, np.int64)


def _joined(parts: list[Samples], refused: dict[int, str]) -> Samples:
    """Batches as one; samples with nothing to train on lose their tokens and get a reason."""
    ids = np.concatenate([part.input_ids for part in parts])
    mask = np.concatenate([part.loss_mask for part in parts])
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    trained = np.concatenate(([0], np.cumsum(mask)))
    barren = trained[offsets[1:]] == trained[offsets[:-1]]
    if barren.any():
        keep = np.repeat(~barren, lengths)
        ids, mask = ids[keep], mask[keep]
        offsets = np.concatenate(([0], np.cumsum(np.where(barren, 0, lengths))))
    dropped = dict.fromkeys(np.flatnonzero(barren).tolist(), "nothing_to_train") | refused
    return Samples(input_ids=ids, loss_mask=mask, offsets=offsets, dropped=dict(sorted(dropped.items())))


def _tagged(rendered: str) -> Rendering:
    """Text without marks, and what stood between them."""
    if OPEN not in rendered:
        return Rendering(rendered, [])
    texts, spans, size = [], [], 0
    for part in rendered.split(OPEN):
        inside, mark, outside = part.partition(CLOSE)
        texts += [inside, outside]
        if mark:
            spans.append((size, size + len(inside)))
        size += len(inside) + len(outside)
    return Rendering("".join(texts), spans)


def _inside(rendered: Undyed, spans: list[tuple[int, int]]) -> bool:
    """Does all of the dye lie in the tagged ranges?"""
    covered = np.zeros(len(rendered.text) + 1, np.bool_)
    for begin, end in spans:
        covered[begin:end] = True
    return bool(covered[:-1][rendered.dyed].all())


def _aliased(messages: list[Message]) -> list[Message]:
    """Reasoning under the names that templates look for, as transformers does it."""
    if all(len(message) == 2 or not any(name in message for name in _REASONING) for message in messages):
        return messages
    out = []
    for message in messages:
        reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
        out.append(message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning})
    return out


def _called(call: Any, change: Callable[[str, bool], Any]) -> Any:
    """A tool call: names and arguments end up inside JSON, so they are dyed gently."""
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return {**call, "function": _called(call["function"], change)}
    new = dict(call)
    given = next((key for key in ("arguments", "parameters") if call.get(key)), None)
    if given is not None:
        new[given] = _strings(call[given], change)
    elif isinstance(call.get("name"), str):
        # Only for want of arguments: templates repeat a call's name before its result, which nobody is to be trained on.
        new["name"] = change(call["name"], True)
    return new


def _strings(value: Any, change: Callable[[str, bool], Any]) -> Any:
    if isinstance(value, str):
        return change(value, True)
    if isinstance(value, dict):
        return {change(key, True): _strings(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_strings(inner, change) for inner in value]
    return value


def _marked(message: Message, dye: Dye) -> Message:
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": dye.mark(content)}
    if isinstance(content, list):
        parts, found = [], False
        for part in content:
            if not found and isinstance(part, dict) and isinstance(part.get("text"), str):
                part, found = {**part, "text": dye.mark(part["text"])}, True
            parts.append(part)
        return {**message, "content": parts}
    return message


def _flag(message: Message) -> bool | None:
    """What a message says of its own loss; one with just a role and content says nothing."""
    return None if len(message) == 2 else train_flag(message)


def _any_private(message: Message) -> bool:
    content = message.get("content")
    texts = (
        [content]
        if isinstance(content, str)
        else [part.get("text", "") for part in content or [] if isinstance(part, dict)]
    )
    return any(isinstance(text, str) and has_private(text) for text in texts)


def _probes(context: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    """Small conversations that templates treat differently: white space at edges, reasoning, quotes, tool calls."""
    user, again = {"role": "user", "content": "What is 2 + 2?"}, {"role": "user", "content": 'And "3" + 3?\n'}
    plain = {"role": "assistant", "content": ' It\'s "4" – é 🙂. \n'}
    thought = {"role": "assistant", "content": "<think>\nadd them\n</think>\n\nFour."}
    fields = {"role": "assistant", "content": "Six.", "reasoning_content": "add\nthem", "thinking": "add\nthem"}
    call = {
        "function": {"name": "add", "arguments": {"a": '2 "x"', "b": [2, None]}},
        "id": "call00001",
        "type": "function",
    }
    calls = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "name": "add", "tool_call_id": "call00001", "content": '{"sum": 4}'}
    tool = {
        "type": "function",
        "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
    }
    system = {"role": "system", "content": "Be brief."}
    conversations = [
        [user, plain],
        [system, user, plain, again, plain],
        [user, thought, again, thought],
        [user, plain, again, fields],
    ]
    out = [context(messages) for messages in conversations]
    return [*out, context([user, calls, result, plain], Conversation(messages=[], tools=[tool]))]


def _choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise TemplateError(f"{name}={value!r} is not known, expected one of {', '.join(map(repr, known))}")
