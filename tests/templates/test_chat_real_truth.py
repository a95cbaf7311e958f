"""Real tokenizers × real conversations × every selection: each row has exactly the mask of a hand-patched template, or is refused by name.

The truth is the tokenizer's own chat template with two marks put in by hand: one where the generation prompt of an assistant's turn
ends, one behind the token that ends the turn.  Plain jinja2 renders it, transformers' tokenizer gives the offsets.  Nothing here asks
the code under test.  Skipped without the data; with PENSTOCK_SOAK, every row is taken.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import jinja2
import pytest
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import _compile_jinja_template  # type: ignore[attr-defined]

from penstock.templates import ChatTemplate, Reader, open_tokenizer
from tests.policy import SOAK
from tests.templates.conversations import encode_unverified

Messages = list[dict[str, Any]]

REAL = Path(os.environ.get("PENSTOCK_REAL_DATA", "real data"))
STEP = 1 if SOAK else 7  # every so many rows of the large files

pytestmark = [
    pytest.mark.timeout(3600),  # thousands of real conversations, each rendered and encoded twice
    pytest.mark.skipif(
        not (REAL / "tokenizers" / "qwen3").exists() or not (REAL / "data").exists(),
        reason="PENSTOCK_REAL_DATA is not set",
    ),
]

OPEN, CLOSE, UNKNOWN = (
    "\u27e6",
    "\u27e7",
    "\u27ea",
)  # UNKNOWN opens a turn in which no prompt tells the header


@dataclass(frozen=True)
class Model:
    """How a template is patched, and how messages are written for it."""

    patches: dict[str, str]
    is_null: bool = False  # a call has null for content, and arguments as text


_DEEPSEEK_CALLS = (
    "{%- for tool in message['tool_calls']%}{%- if not ns.is_first %}{{'<｜Assistant｜>"
)
_DEEPSEEK_SAID = "+ message['content'] + '<｜end▁of▁sentence｜>'}}"
MODELS = {
    "qwen3": Model(
        {
            r"message.role + '\n<think>\n' + reasoning": rf"message.role + '\n{OPEN}<think>\n' + reasoning",
            r"message.role + '\n' + content }}": rf"message.role + '\n{OPEN}' + content }}}}",
            "        {%- endif %}\n        {{- '<|im_end|>\\n' }}": "        {%- endif %}\n        {{- '<|im_end|>"
            + CLOSE
            + "\\n' }}",
        }
    ),
    "mistral-nemo": Model(
        {
            '{{- "[TOOL_CALLS][" }}': f'{{{{- "{OPEN}[TOOL_CALLS][" }}}}',
            '{{- "]" + eos_token }}': f'{{{{- "]" + eos_token + "{CLOSE}" }}}}',
            '{{- message["content"] + eos_token}}': f'{{{{- "{OPEN}" + message["content"] + eos_token + "{CLOSE}" }}}}',
        }
    ),
    # The header is printed before the first call of a conversation only; later rounds have none.
    "deepseek-v3": Model(
        {
            _DEEPSEEK_CALLS: _DEEPSEEK_CALLS.replace(
                "{%- if not",
                "{%- if loop.first and ns.is_first %}{{ '" + UNKNOWN + "' }}{% endif %}{%- if not",
            )
            + OPEN,
            "{%- endfor %}{%- endif %}{%- if message['role'] == 'assistant' and": "{%- endfor %}{{ '"
            + CLOSE
            + "' }}{%- endif %}{%- if message['role'] == 'assistant' and",
            f"'<｜tool▁outputs▁end｜>' {_DEEPSEEK_SAID}": f"'<｜tool▁outputs▁end｜>{OPEN}' {_DEEPSEEK_SAID.replace('｜>', '｜>' + CLOSE)}",
            f"{{{{'<｜Assistant｜>' {_DEEPSEEK_SAID}": f"{{{{'<｜Assistant｜>{OPEN}' {_DEEPSEEK_SAID.replace('｜>', '｜>' + CLOSE)}",
        },
        is_null=True,
    ),
}


@cache
def theirs(name: str) -> Any:
    return AutoTokenizer.from_pretrained(str(REAL / "tokenizers" / name))


@cache
def patched(name: str) -> Any:
    text = theirs(name).chat_template
    for old, new in MODELS[name].patches.items():
        assert old in text, old
        text = text.replace(old, new)
    return _compile_jinja_template(text)


@cache
def opened(name: str, train_on: str) -> ChatTemplate:
    shape = "prompt_completion" if train_on == "completion" else "messages"
    reader = Reader(shape=shape, tool_arguments="as_is")
    tokenizer = open_tokenizer(REAL / "tokenizers" / name)
    return ChatTemplate(
        tokenizer, reader=reader, train_on=train_on, on_refused="skip", on_nothing="drop"
    )


# Conversations


def lines(path: str, step: int = 1) -> list[dict[str, Any]]:
    with (REAL / "data" / path).open() as file:
        return [json.loads(line) for line in islice(file, 0, None, step)]


def as_messages(record: dict[str, Any], reader: Reader) -> tuple[Messages, Any]:
    found = reader(record, 0)
    return found.messages, found.tools


@cache
def conversations(name: str) -> list[tuple[Messages, Any]]:
    if name == "chats":
        return [(row["messages"], None) for row in lines("sgd-dialogues/dev.jsonl", STEP)]
    if name == "tools":
        return [
            (row["messages"], row["tools"]) for row in lines("sgd-dialogues/dev.tools.jsonl", STEP)
        ]
    if name == "reasoning":
        return [
            as_messages(row, Reader(shape="messages"))
            for row in lines("llamafactory-demos/reason_tool_use_demo_50.jsonl")
        ]
    if name == "weights":
        return [
            as_messages(row, Reader(shape="messages"))
            for row in lines("llamafactory-demos/v1_sft_demo.jsonl")
        ]
    glaive = json.loads(
        (REAL / "data" / "llamafactory-demos" / "glaive_toolcall_en_demo.json").read_text()
    )
    return [as_messages(row, Reader(shape="sharegpt")) for row in glaive]


DATA = ("chats", "tools", "glaive", "reasoning", "weights")


def written_for(name: str, messages: Messages) -> Messages:
    """The same conversation as this template expects it: ids of nine letters, or null next to calls and arguments as text."""
    out = []
    for message in messages:
        made = {key: value for key, value in message.items() if key not in ("loss_weight", "train")}
        if calls := message.get("tool_calls"):
            made["tool_calls"] = [
                _call(call, number, as_text=MODELS[name].is_null)
                for number, call in enumerate(calls)
            ]
            if MODELS[name].is_null:
                made["content"] = None
        if message["role"] == "tool":
            made["tool_call_id"] = "call00000"
        out.append(made)
    return out


def _call(call: dict[str, Any], number: int, *, as_text: bool) -> dict[str, Any]:
    function = dict(call["function"])
    if as_text:
        function["arguments"] = json.dumps(function["arguments"])
    return {"id": f"call{number:05}", "type": "function", "function": function}


# Truth


Truth = tuple[list[int], list[tuple[int, int]], list[list[tuple[int, int]] | None]]


def truth(name: str, messages: Messages, tools: Any) -> Truth | None:
    """Ids, their places in the text, and the spans of each assistant message, None where unknown.  None where the template refuses."""
    tokenizer = theirs(name)
    given = {
        "messages": messages,
        "tools": tools,
        "add_generation_prompt": False,
        **tokenizer.special_tokens_map,
    }
    try:
        marked = patched(name).render(**given)
    except (jinja2.TemplateError, TypeError, KeyError):
        return None
    text, start, known = "", 0, False
    turns: list[list[tuple[int, int]] | None] = []
    for piece in _split(marked):
        if piece in (OPEN, UNKNOWN):
            start, known = len(text), piece == OPEN
        elif piece == CLOSE:
            stop = start + len(text[start:].rstrip())
            turns.append([(start, stop)] if known else None)
        else:
            text += piece
    # not by apply_chat_template: it leaves out a null content, and DeepSeek-V3 prints calls only next to one
    assert text == _compile_jinja_template(tokenizer.chat_template).render(**given)
    assert len(turns) == sum(message["role"] == "assistant" for message in messages)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return encoded["input_ids"], encoded["offset_mapping"], turns


def _split(marked: str) -> Iterator[str]:
    place = 0
    for at, letter in enumerate(marked):
        if letter in (OPEN, CLOSE, UNKNOWN):
            yield marked[place:at]
            yield letter
            place = at + 1
    yield marked[place:]


# Selections: train_on, and how a conversation becomes a record with the places of its trained messages

Selected = tuple[str, dict[str, Any], list[int]]


def selected(messages: Messages, tools: Any) -> Iterator[Selected]:
    places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    record = {"messages": messages, "tools": tools}
    yield "assistant", record, places
    yield "last", record, places[-1:]
    yield "all", record, places
    start = (
        max(
            (place for place, message in enumerate(messages) if message["role"] == "user"),
            default=-1,
        )
        + 1
    )
    behind = [place for place in places if place >= start]
    if start and behind:
        split = {"prompt": messages[:start], "completion": messages[start:], "tools": tools}
        yield "completion", split, behind
    flagged = [{**m, "train": False} if m.get("tool_calls") else m for m in messages]
    if flagged != messages:
        rest = [place for place in places if not messages[place].get("tool_calls")]
        yield "calls untrained", {"messages": flagged, "tools": tools}, rest


def verdict(name: str, found: Selected, messages: Messages, known: Truth | None) -> str:
    selection, record, places = found
    template = opened(name, "assistant" if selection == "calls untrained" else selection)
    samples = warm(template)([record])
    why = samples.dropped.get(0)
    if known is None:
        return "the template refuses it" if why == "template_refused" else f"not refused: {why}"
    ids, offsets, turns = known
    order = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    own = [turns[order.index(place)] for place in places]
    is_unknown = any(spans is None for spans in own) and selection != "all"
    if why == "mask_unverified":
        return "refused" if is_unknown else "refused without need"
    if is_unknown:
        return f"the header is unknown, but the row is not refused: {why}"
    spans = [span for some in own for span in some or []]
    mask = [
        selection == "all" or any(a < stop and start < b for start, stop in spans)
        for a, b in offsets
    ]
    if why is not None:
        return "exact" if why == "nothing_to_train" and not any(mask) else f"dropped: {why}"
    if samples.input_ids.tolist() != ids:
        return "other ids"
    return (
        "exact"
        if samples.loss_mask.tolist() == mask
        else f"wrong: {_wrong(template, samples, mask)}"
    )


def _wrong(template: ChatTemplate, samples: Any, mask: list[bool]) -> str:
    said = template.decode(samples.input_ids[samples.loss_mask])
    return f"{said[-300:]!r} instead of {template.decode(samples.input_ids[mask])[-300:]!r}"


def warm(template: ChatTemplate) -> Callable[[list[dict[str, Any]]], Any]:
    """Encodes behind the first rows of a batch, which are verified in another way than the others."""
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    filler = {"messages": talk, "prompt": talk[:1], "completion": talk[1:]}
    return partial(encode_unverified, template, filler)


def counted(name: str, data: str) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for messages, tools in conversations(data):
        messages = written_for(name, messages)
        known = truth(name, messages, tools)
        for found in selected(messages, tools):
            counts[found[0], verdict(name, found, messages, known)] += 1
    return counts


# Where some rows are refused by name: answers in a later round of calls, before which DeepSeek-V3 prints no header.
REFUSED = {("deepseek-v3", data) for data in ("tools", "glaive", "reasoning")}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", MODELS)
def test_every_row_has_the_mask_of_a_hand_patched_template_or_is_refused(
    name: str, data: str
) -> None:
    counts = counted(name, data)
    print(name, data, dict(counts))  # shown by pytest -s
    by_verdict: Counter[str] = Counter()
    for (_, said), number in counts.items():
        by_verdict[said] += number
    assert set(by_verdict) <= {"exact", "refused", "the template refuses it"}, (
        by_verdict.most_common(5)
    )
    assert by_verdict["exact"] and bool(by_verdict["refused"]) == ((name, data) in REFUSED), (
        by_verdict
    )
