"""A record gives the same row wherever it stands: whether it is rendered, or joined because others of its kind came before it."""

from typing import Any

import pytest

from penstock.errors import TemplateError
from penstock.templates.chat import masks

from .conversations import CALLS, RESULTS, TOOL, A, Q, assistant, call, chat, result, user
from .structures import ALL_SHAPES, source

NUM_ROWS = 8  # the first ones are rendered, too; later ones may be joined
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


def test_without_the_rule_of_ends_rows_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = {"messages": [{**Q, "train": True}, {**A, "train": False}]}
    rows = [*([usual] * 4), *([ROWS["users are trained"]] * 4)]

    def num_dropped() -> int:
        return len(chat(source("namespace text"), on_refused="skip").encode(rows).dropped)

    assert num_dropped() == 4
    monkeypatch.setattr(masks.TurnsOfMadeUp, "_ends_by_itself", lambda *args: True)
    assert num_dropped() == 0


def test_a_template_that_prints_something_else_where_messages_are_marked_is_refused() -> None:
    """It replaces the function that marks messages."""
    text = (
        "{% macro penstock_set(a, b) %}seen{% endmacro %}"
        "{% for i in [0, 1] %}{% set m = messages[i] %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    template = chat(text, on_refused="skip", train_on="all")
    with pytest.raises(TemplateError, match="in another way when its messages are marked"):
        template.encode([{"messages": [Q, A]}])
