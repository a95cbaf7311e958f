"""A record's tokens and mask depend on that record alone: shuffled, split in any way, in one encoder or many, they are the same."""

import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.templates import ChatTemplate
from tests.policy import SOAK

from .conversations import A2, Q2, A, Q, assistant, chat, user
from .structures import ALL_SHAPES, source

NAMES = (
    "qwen3",
    "qwen3_training",
    "gemma4",
    "deepseek_r1_distill",
    "brackets",
    "told not to think",
    "thinking prompt",
)
ODD = [
    {"messages": [Q, assistant(words), Q2, A2]}
    for words in (
        "\x07",
        "\x1cx\x1f",
        "<think>",
        "<think>a</think>b",
        "a</think>",
        "\ufdd0",
        "\u2028",
        "{}",
        "a",
        "",
    )
]
RECORDS: list[dict[str, Any]] = [
    *({"messages": messages, "tools": tools} for messages, tools in ALL_SHAPES.values()),
    *ODD,
    *(
        {"messages": [user(f"{n}?"), assistant("plain"), Q2, A]} for n in range(30)
    ),  # enough for rows that are not verified
    {"messages": [Q, A], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [Q, A], "chat_template_kwargs": {"enable_thinking": True}},
]


def opened(name: str) -> ChatTemplate:
    text = source(name) if name in ("brackets", "told not to think", "thinking prompt") else name
    return chat(text, on_refused="skip")


Row = tuple[tuple[int, ...], tuple[bool, ...], str | None]


def rows_of(template: ChatTemplate, shards: list[list[list[int]]]) -> dict[int, Row]:
    """Record → ids, mask and reason, encoded in shards of several parts."""
    found: dict[int, Row] = {}
    for parts in shards:
        for part in parts:
            samples = template.encode([RECORDS[number] for number in part])
            for place, number in enumerate(part):
                row = slice(*samples.offsets[place : place + 2])
                mask = np.asarray(samples.loss_mask[row])
                found[number] = (
                    tuple(samples.input_ids[row].tolist()),
                    tuple(mask.tolist()),
                    samples.dropped.get(place),
                )
    return found


@cache
def alone(name: str) -> dict[int, Row]:
    """Every record in an encoder of its own."""
    template = opened(name)
    return rows_of(template, [[[number]] for number in range(len(RECORDS))])


@cache
def shared(name: str) -> ChatTemplate:
    return opened(name)  # what it has learned from one example stays for the next


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30 if SOAK else 4, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    num_shards=st.integers(1, 5),
    num_parts=st.integers(1, 4),
    fresh=st.booleans(),
)
def test_a_mask_does_not_depend_on_other_rows(
    name: str, seed: int, num_shards: int, num_parts: int, fresh: bool
) -> None:
    dice = random.Random(seed)
    order = list(range(len(RECORDS)))
    dice.shuffle(order)
    shards: list[list[list[int]]] = [[[] for _ in range(num_parts)] for _ in range(num_shards)]
    for place, number in enumerate(order):
        shards[place * num_shards // len(order)][dice.randrange(num_parts)].append(number)
    assert rows_of(opened(name) if fresh else shared(name), shards) == alone(name)
