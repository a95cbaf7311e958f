"""Conversations that are found by a layout get what attribution finds: a record gives the same row wherever it stands."""

from typing import Any

import numpy as np
import pytest

from penstock.errors import TemplateError
from penstock.templates.chat import layout, masks

from .conversations import CALLS, RESULTS, TOOL, A, Q, assistant, call, chat, result, user
from .structures import ALL_SHAPES, source

NUM_ROWS = 24  # the first 16 are attributed and compared with jinja2; later ones may take a layout
MANY = [call("add", {"a": number}, number) for number in range(5)]
ROWS: dict[str, dict[str, Any]] = {
    **{
        name: {"messages": messages, "tools": tools}
        for name, (messages, tools) in ALL_SHAPES.items()
    },
    "five calls": {
        "messages": [Q, assistant("", tool_calls=MANY), result("1"), A],
        "tools": [TOOL],
    },
    "ids are numbers": {
        "messages": [Q, assistant("", tool_calls=[{**CALLS[0], "id": 7}]), RESULTS[0], A]
    },
    "ends with a stop token": {
        "messages": [Q, assistant("So <|im_end|>"), user("Go on. <|im_end|>"), A]
    },
    "a field that is not printed": {"messages": [Q, {**A, "remark": "It took me five words."}]},
    "users are trained": {
        "messages": [{**Q, "train": True}, {**A, "content": Q["content"], "train": False}]
    },
}


@pytest.mark.parametrize(
    "name", ["qwen3", "qwen2_5", "gemma", "glm4moe", "filter block", "plain", "several ends"]
)
def test_a_repeated_record_gives_equal_rows(name: str) -> None:
    text = source(name) if name in ("filter block", "plain", "several ends") else name
    template = chat(text, on_refused="skip", on_nothing="drop")
    for shape, record in ROWS.items():
        samples = template.encode([record] * NUM_ROWS)
        rows = [
            (
                samples.input_ids[slice(*samples.offsets[row : row + 2])].tolist(),
                samples.loss_mask[slice(*samples.offsets[row : row + 2])].tolist(),
                samples.dropped.get(row),
                {note: found.get(row) for note, found in samples.notes.items()},
            )
            for row in range(NUM_ROWS)
        ]
        assert all(row == rows[0] for row in rows), shape
        assert samples.assistant_characters % NUM_ROWS == 0, shape


def test_tool_conversations_take_a_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[list[tuple[int, int]]] = []
    spans = layout.Layout.spans

    def noted(self: layout.Layout, text: str, strings: list[Any]) -> list[tuple[int, int]] | None:
        found = spans(self, text, strings)
        filled.extend([] if found is None else [found])
        return found

    monkeypatch.setattr(layout.Layout, "spans", noted)
    template = chat("qwen3")
    record = {"messages": [Q, assistant("", tool_calls=[CALLS[0]]), RESULTS[0], A], "tools": [TOOL]}
    samples = template.encode([record] * NUM_ROWS)
    # the first row is remembered, the next one learned from; in the first rows both ways are compared
    assert len(filled) == NUM_ROWS - 1
    masks = np.split(samples.loss_mask, samples.offsets[1:-1])
    assert all(mask.tolist() == masks[0].tolist() and mask.any() for mask in masks)


def test_without_the_rule_of_ends_rows_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks.LayoutMasks, "_ends_by_itself", lambda *args: True)
    samples = chat(source("filter block"), on_refused="skip").encode(
        [ROWS["users are trained"]] * NUM_ROWS
    )
    assert 0 < len(samples.dropped) < NUM_ROWS


def test_a_layout_that_gives_another_mask_is_found_in_the_first_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spans = layout.Layout.spans

    def shifted(self: layout.Layout, text: str, strings: list[Any]) -> list[tuple[int, int]] | None:
        found = spans(self, text, strings)
        return found and [(start + 1, stop) for start, stop in found]

    monkeypatch.setattr(layout.Layout, "spans", shifted)
    with pytest.raises(TemplateError, match="not those of made-up conversations of its kind"):
        chat("qwen3", on_refused="skip").encode([{"messages": [Q, A]}] * 3)


def test_a_template_that_prints_something_else_where_messages_are_marked_is_refused() -> None:
    """It replaces the function that marks messages."""
    text = (
        "{% macro penstock_set(a, b) %}seen{% endmacro %}"
        "{% for i in [0, 1] %}{% set m = messages[i] %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    template = chat(text, on_refused="skip", train_on="all")
    with pytest.raises(TemplateError, match="in another way when its messages are marked"):
        template.encode([{"messages": [Q, A]}])
