"""A mould says what the dye says, for every template; and where a template does anything else, it says nothing."""

from typing import Any

import pytest

from penstock.templates.chat import ChatTemplate, _Known, _Run
from penstock.templates.masks import Rendering
from penstock.types import Record

from .conversations import TEMPLATES, A, Q, assistant, chat, system, user
from .test_chat_odd import each

WORDS = ["plain words", "  edges \n", "a <|im_end|> b", "<think>thought</think>said", 'quo"ted\\', "ünïcode 🙂", "x"]
_IN_PARTS = {"idefics3", "llava_next", "smolvlm"}  # print no content that is a string
ORDERS = (
    *([user, assistant], [system, user, assistant], [user, assistant, user, assistant], [assistant, user, assistant]),
    *([user, assistant, assistant], [user, user, assistant], [user, assistant, user]),
)


def both(template: ChatTemplate, record: Record) -> tuple[Rendering | None, Rendering]:
    """What the mould says, and what stitches or dye say."""
    conversation = template.reader(record, 0)
    context = template._context(conversation.messages, conversation)
    known: _Known = template._known(conversation, ("any", *(m["role"] for m in conversation.messages)))
    render = template.renderer.render
    return (
        template._moulded(known, context, render, _Run("stop")),
        template._trained_text(known.trained, context, render, check=True),
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_mould_says_what_the_dye_says(name: str) -> None:
    template = chat(TEMPLATES[name])
    num_told = 0
    for order in ORDERS:
        for shift in range(len(WORDS)):
            messages = [speaker(WORDS[(shift + place) % len(WORDS)]) for place, speaker in enumerate(order)]
            try:
                moulded, dyed = both(template, {"messages": messages})
            except ValueError:  # some templates refuse some orders
                continue
            if moulded is not None:
                num_told += 1
                assert (moulded.text, moulded.spans) == (dyed.text, dyed.spans), messages
    assert num_told or template.renderer.has_generation or name in _IN_PARTS


def test_words_that_do_not_come_out_as_they_went_in_are_not_in_their_mould() -> None:
    for content, says in (("m.content", True), ("m.content | trim", True), ("m.content | upper", False)):
        moulded, _ = both_or_none(each(content), [Q, A])
        assert (moulded is not None) == says, content
    again = "Last: {{ messages[-1].content }}\n" + each("m.content")
    assert both_or_none(again, [Q, A])[0] is None  # twice
    dropped = "{% for m in messages[-2:] %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    assert both_or_none(dropped, [Q, A, Q, A])[0] is None
    backwards = "{% for m in messages | reverse %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    assert both_or_none(backwards, [Q, A])[0] is None


def both_or_none(template: str, messages: list[dict[str, Any]]) -> tuple[Rendering | None, Rendering | None]:
    try:
        return both(chat(template), {"messages": messages})
    except ValueError:
        return None, None


def test_what_is_not_just_words_has_no_mould() -> None:
    template = chat(each("m.content"))
    run = _Run("stop")
    template._rendering({"messages": [Q, A]}, 0, run)
    assert [known.mould is not None for known in run.shapes.values()] == [True]
    for messages in ([Q, {**A, "name": "x"}], [Q, assistant(" ")], [Q, assistant("")]):
        run = _Run("stop")
        template._rendering({"messages": messages}, 0, run)
        assert not run.shapes


def test_many_misfits_end_the_trying() -> None:
    template = chat(each("m.content | upper if 'x' in m.content else m.content"), on_refused="skip")
    rows = [{"messages": [Q, assistant("x words")]} for _ in range(200)] + [{"messages": [Q, assistant("words")]}] * 3
    samples = template.encode(rows)
    assert len(samples.dropped) in (0, 200) and len(samples.offsets) == len(rows) + 1
