"""Templates of odd structure × every shape of conversation × every selection: the mask is exactly the twin's, or the row is refused."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import pytest

from penstock.errors import TemplateError
from penstock.templates import ChatTemplate, Reader
from penstock.types import Samples
from tests.policy import SOAK
from tests.templates.families import FAMILIES

from .conversations import TODAY, A, Messages, Q, chat, encode_unverified, tokenizer
from .structures import (
    ALL_SHAPES,
    STRUCTURES,
    UNTAGGED,
    source,
    tagged,
    token_mask,
    truth,
    without_space,
)

EXACT, REFUSED, SKIPPED = "exact", "refused", "the template refuses it"
# Selection → train_on, and which of a conversation's messages are trained then.
SELECTIONS: dict[str, tuple[Any, Any]] = {
    "assistant": ("assistant", lambda messages: [m["role"] == "assistant" for m in messages]),
    "last": ("last", lambda messages: last(messages)),
    "users": (["user"], lambda messages: [m["role"] == "user" for m in messages]),
    "all but system": (
        ["user", "assistant", "tool"],
        lambda messages: [m["role"] in ("user", "assistant", "tool") for m in messages],
    ),
}


def last(messages: Messages) -> list[bool]:
    places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    return [place in places[-1:] for place in range(len(messages))]


@cache
def opened(name: str, selection: str, tags: bool = False, shape: str = "messages") -> ChatTemplate:
    train_on = SELECTIONS[selection][0] if selection in SELECTIONS else selection
    text = tagged(name) if tags else source(name)
    reader = Reader(shape=shape, tool_arguments="parse")  # type: ignore[arg-type]
    return ChatTemplate(
        tokenizer(),
        reader=reader,
        chat_template=text,
        today=TODAY,
        train_on=train_on,
        on_refused="skip",
    )


def warm(template: ChatTemplate) -> Callable[[list[dict[str, Any]]], Samples]:
    """Encodes behind the first rows of a batch, which are verified: takes every short way there is."""
    filler: dict[str, Any] = {"messages": [Q, A]}
    if template.train_on == "completion":
        filler |= {"prompt": [Q], "completion": [A]}
    return partial(encode_unverified, template, filler)


def judge(
    template: ChatTemplate,
    name: str,
    record: dict[str, Any],
    messages: Messages,
    chosen: list[bool],
) -> str:
    """Compare one row with the truth."""
    samples = warm(template)([record])
    known = truth(name, messages, record.get("tools"))
    if known is None:
        return (
            SKIPPED
            if samples.dropped[0] == "template_refused"
            else f"not refused: {samples.dropped}"
        )
    if samples.dropped.get(0) == "mask_unverified":
        return REFUSED
    text, spans = known
    wanted: list[tuple[int, int]] = []
    for number, yes in enumerate(chosen):
        tags = template.renderer.has_generation and messages[number]["role"] == "assistant"
        own = spans.get(number, []) if yes else []
        wanted += own if tags else without_space(text, own)
    ids, mask = token_mask(text, wanted)
    if not any(mask):
        return (
            EXACT
            if samples.dropped == {0: "nothing_to_train"}
            else f"trained: {trained(samples, template)}"
        )
    if samples.dropped:
        return f"dropped as {samples.dropped[0]}"
    if samples.input_ids.tolist() != ids:
        return f"another text: {template.decode(samples.input_ids)!r}"
    return EXACT if samples.loss_mask.tolist() == mask else f"trained: {trained(samples, template)}"


def trained(samples: Any, template: ChatTemplate) -> str:
    return repr(template.decode(samples.input_ids[samples.loss_mask]))


def rows(name: str, shape: str, tags: bool) -> Iterator[tuple[str, str]]:
    """(selection, verdict) of one conversation under every selection."""
    messages, tools = ALL_SHAPES[shape]
    for selection, (_, choose) in SELECTIONS.items():
        record = {"messages": messages, "tools": tools}
        if selection == "users" and tags:
            continue
        yield (
            selection,
            judge(opened(name, selection, tags), name, record, messages, choose(messages)),
        )
    dice = random.Random(f"{name} {shape}")
    for number in range(2):  # flags of messages
        flags = [dice.random() < 0.5 for _ in messages]
        flagged = [
            {**m, "train": flag} if m["role"] == "assistant" else m
            for m, flag in zip(messages, flags, strict=True)
        ]
        chosen = [
            m["role"] == "assistant" and flag for m, flag in zip(messages, flags, strict=True)
        ]
        record = {"messages": flagged, "tools": tools}
        yield (
            f"flags {number}",
            judge(opened(name, "assistant", tags), name, record, messages, chosen),
        )
    template = opened(name, "assistant", tags)
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    for turn, place in enumerate(turns):  # fan-out
        first = messages[: place + 1]
        record = {"messages": messages, "tools": tools, template.turn_key: turn}
        chosen = [number == place for number in range(len(first))]
        yield f"fan-out {turn}", judge(template, name, record, first, chosen)
    for place in turns[-1:]:  # completion: all behind the last message that is not the assistant's
        start = max((n for n in range(place) if messages[n]["role"] != "assistant"), default=-1) + 1
        record = {
            "prompt": messages[:start],
            "completion": messages[start : place + 1],
            "tools": tools,
        }
        if start and (tools is None):
            template = opened(name, "completion", tags, "prompt_completion")
            chosen = [
                m["role"] == "assistant" and n >= start for n, m in enumerate(messages[: place + 1])
            ]
            yield "completion", judge(template, name, record, messages[: place + 1], chosen)


# Structures of which some conversations are refused by name: at least so many verdicts are exact.  All others refuse nothing.
PARTLY = {
    # messages printed outside a loop over them, or by another message
    **dict.fromkeys(
        (
            "filter block",
            "namespace text",
            "indices without a name",
            "recursive",
            "answers told by users",
        ),
        30,
    ),
    "outside": 190,
    "last outside": 50,
    "answer below": 30,
    "answer with a dot below": 150,
    "pairs": 15,
    # what stands before a turn is not what a generation prompt prints there
    "reversed": 75,
    "end after the loop": 75,
    # consecutive answers, a message printed twice, tokens that may be the next one's, thoughts that are not printed
    "merged": 395,
    "results ahead": 360,
    "header of the user": 310,
    "told not to think": 355,
    "brackets": 355,
    "namespace of the last user": 345,
}
# Families.  Refused are: content in parts that is not printed next to calls, an answer before any question, and a user's turn behind
# which the label of an answer may stand.
PARTLY |= {
    "llama 3.1": 390,
    "command r": 394,
    "command r7b": 419,
    "glm 4": 417,
    "granite 3": 418,
    "chatglm 2": 322,
    "harmony": 418,
    "kimi k2": 419,
    "llama 2": 265,
    "mistral small": 417,
    "qwen coder": 405,
}
# Of these, only the template itself refuses conversations.
STRICT = {"gemma 2": 249, "zephyr": 382, "olmo 2": 382}


def shapes_for(name: str) -> list[str]:
    """The conversations that a structure is tried with: all in a soak; in `make test` a third, which differs between structures."""
    if SOAK:
        return list(ALL_SHAPES)
    return list(ALL_SHAPES)[list(STRUCTURES).index(name) % 3 :: 3]


def least(exact: int) -> int:
    """How many verdicts must be exact, if so many of all conversations are."""
    return exact if SOAK else exact // 5  # thirds differ


def counted(name: str, tags: bool = False) -> Counter[str]:
    counts: Counter[str] = Counter()
    for shape in shapes_for(name):
        for selection, verdict in rows(name, shape, tags):
            assert verdict in (EXACT, REFUSED, SKIPPED), (shape, selection, verdict)
            counts[verdict] += 1
    return counts


@pytest.mark.parametrize("name", STRUCTURES)
def test_masks_are_exact_or_refused_whatever_the_structure(name: str) -> None:
    counts = counted(name)
    assert counts[EXACT] >= least({**PARTLY, **STRICT}.get(name, 410)), counts
    assert name in PARTLY or not counts[REFUSED], counts


@pytest.mark.parametrize(
    "name", [name for name in STRUCTURES if name not in UNTAGGED and name not in FAMILIES]
)
def test_generation_tags_are_exact_or_refused_whatever_the_structure(name: str) -> None:
    counts = counted(name, tags=True)
    assert counts[EXACT] >= least(PARTLY.get(name, 360)), counts
    assert name in PARTLY or not counts[REFUSED], counts


@pytest.mark.parametrize("name", ["macro", "set block", "namespace text"])
def test_generation_tags_in_a_capture_are_refused_by_name(name: str) -> None:
    with pytest.raises(TemplateError, match="generation tag inside a macro or a set block"):
        opened(name, "assistant", tags=True)


def test_refusals_name_the_message_and_its_role() -> None:
    template = chat(source("last outside"))
    with pytest.raises(
        TemplateError,
        match=r"messages\[3\] \(assistant\): the chat template prints this message outside",
    ):
        template.encode([{"messages": [Q, A, Q, A]}])
