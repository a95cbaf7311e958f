"""Reasoning, calls, parts and messages that a chat template does not print are found, field by field, and counted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import TemplateError
from penstock.types import UNRENDERED
from tests.policy import every_third_in_short_runs

from .conversations import (
    A2,
    CALLS,
    Q2,
    RESULTS,
    TEMPLATES,
    TOOL,
    WEATHER,
    A,
    Q,
    assistant,
    call,
    chat,
    result,
    system,
    user,
)

HEAD, END = "{% for m in messages %}<|im_start|>{{ m.role }}\n", "<|im_end|>\n{% endfor %}"
# As Qwen2.5 has it: content and calls, no reasoning.
PLAIN = (
    HEAD
    + "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}"
    + END
)
# As Qwen3 has it: reasoning of what comes after the last question, as a field or inline.
LATE = """{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{%- set content = m.content if m.content is string else '' %}
{%- set thought = m.reasoning_content or '' %}
{%- if '</think>' in content %}
{%- set thought = content.split('</think>')[0].split('<think>')[-1] %}
{%- set content = content.split('</think>')[-1] %}
{%- endif %}
{{- '<|im_start|>' + m.role + '\n' }}
{%- if thought and loop.index0 > ns.last %}{{- '<think>' + thought.strip() + '</think>' }}{%- endif %}
{{- content.strip() + '<|im_end|>\n' }}{%- endfor %}"""
# As DeepSeek-V3 has it: calls only where the content is null, arguments as text, and no tools.
NULL = """{%- for m in messages %}
{%- if m.content is none %}
{%- for c in m.tool_calls %}{{- '<call>' + c.function.name + ' ' + c.function.arguments }}{%- endfor %}{{- '<|eos|>' }}
{%- else %}{{- '<|' + m.role + '|>' + m.content + '<|eos|>' }}{%- endif %}{%- endfor %}"""
LOUD = HEAD + "{{ m.content.upper() if m.role == 'user' else m.content }}" + END
NO_SYSTEM = (
    HEAD.replace("in messages", "in messages if m.role not in ('system', 'tool')")
    + "{{ m.content }}"
    + END
)
TEXT_PARTS = (
    HEAD + "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endif %}" + END
)


def lost(template: str, messages: list[dict[str, Any]], **more: Any) -> dict[str, int]:
    """Field → characters, of one record; the same behind other records."""
    options = {key: more.pop(key) for key in ("arguments", "on_refused", "verify") if key in more}
    opened = chat(template, **options)
    record = {"messages": messages, **more}
    samples = opened.encode([record])
    assert not samples.dropped
    again = chat(template, **options).encode([{"messages": [Q, A, Q2, A2]}] * 20 + [record])
    found = {name: rows[0] for name, rows in samples.notes.items() if name.startswith(UNRENDERED)}
    behind = {name: rows for name, rows in again.notes.items() if name.startswith(UNRENDERED)}
    assert found == {name: rows[20] for name, rows in behind.items()}
    return {name.removeprefix(UNRENDERED): size for name, size in found.items()}


def thinks(
    content: Any, thought: str, name: str = "reasoning_content", **more: Any
) -> dict[str, Any]:
    return assistant(content, **{name: thought}, **more)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_that_no_template_prints_is_counted_under_the_name_that_the_record_has(
    name: str,
) -> None:
    messages = [Q, thinks("Four.", "Let me add.", name), Q2, thinks("Six.", "x", name)]
    assert lost(PLAIN, messages) == {f"assistant.{name}, earlier turns": 11, f"assistant.{name}": 1}


def test_reasoning_of_earlier_turns_is_counted_as_that() -> None:
    messages = [Q, thinks("Four.", "Let me add."), Q2, thinks("Six.", "And again.")]
    assert lost(LATE, messages) == {"assistant.reasoning_content, earlier turns": 11}
    inline = [
        Q,
        assistant("<think>\nLet me add.\n</think>\n\nFour."),
        Q2,
        assistant("<think>\nAgain.\n</think>\n\nSix."),
    ]
    assert lost(LATE, inline) == {"assistant.content <think>, earlier turns": 11}
    assert lost(PLAIN, inline) == {}


def test_a_short_thought_that_occurs_elsewhere_by_chance_is_not_taken_for_printed() -> None:
    assert lost(LATE, [Q, thinks("The answer", "answer"), Q2, A2]) == {
        "assistant.reasoning_content, earlier turns": 6
    }
    assert lost(LATE, [Q, A, Q2, thinks("The answer", "answer")]) == {}


def test_calls_beside_a_content_are_counted_where_the_template_prints_calls_alone() -> None:
    calls = [call("add", {"a": "Bern", "b": "two"})]
    told = result("add gave Bern and two")
    assert lost(NULL, [Q, {**assistant(""), "tool_calls": calls}, told, A], arguments="text") == {
        "assistant.tool_calls": len("add" + '{"a": "Bern", "b": "two"}')
    }
    assert (
        lost(NULL, [Q, {**assistant(None), "tool_calls": calls}, told, A], arguments="text") == {}
    )


@pytest.mark.parametrize("name", ["qwen3", "qwen2_5", "qwen3_5_think", PLAIN])
def test_calls_that_are_printed_as_json_are_not_counted(name: str) -> None:
    messages = [Q, assistant("Let me see.", tool_calls=CALLS), *RESULTS, A]
    expected = {"tools": 0} if name == PLAIN else {}
    assert lost(name, messages, tools=[TOOL, WEATHER]) == expected


def test_names_of_calls_that_are_not_printed_are_counted_even_if_a_result_repeats_them() -> None:
    nameless = PLAIN.replace("c.function", "c.function.arguments")
    assert nameless != PLAIN
    assert lost(
        nameless, [Q, assistant("", tool_calls=[call("add", {"a": 1})]), result("add"), A]
    ) == {"assistant.tool_calls": 3}


def test_a_second_call_that_is_not_printed_is_counted() -> None:
    first = PLAIN.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]")
    one, two = assistant("I ask.", tool_calls=CALLS[:1]), assistant("I ask.", tool_calls=CALLS)
    assert "assistant.tool_calls" not in lost(first, [Q, one, RESULTS[0], A])
    assert lost(first, [Q, two, *RESULTS, A]) == {
        "assistant.tool_calls": len("addweather" + 'Zürich "West"\n')
    }


@pytest.mark.extra("media")
def test_messages_parts_and_tools_that_are_left_out_are_counted() -> None:
    assert lost(NO_SYSTEM, [system("Be brief."), Q, A]) == {"system.content": 9}
    told = assistant("I ask.", tool_calls=CALLS[:1])
    assert lost(NO_SYSTEM, [Q, told, result("I ask."), A], tools=[TOOL]) == {
        "assistant.tool_calls": 3,
        "tool.content": 6,
        "tools": 0,
    }
    picture = user([{"type": "text", "text": "What is this?"}, {"type": "image", "image": "a.png"}])
    assert lost(TEXT_PARTS, [picture, A]) == {"user.content[image]": 0}
    printed = TEXT_PARTS.replace(
        "{% if p.type == 'text' %}", "{% if p.type == 'image' %}<|image|>{% else %}"
    )
    with pytest.raises(
        TemplateError,
        match=r"the record has media \(image\), and no processor was found; set processor=",
    ):
        lost(printed, [picture, A])
    assert lost(LATE, [picture, A]) == {"user.content": 13, "user.content[image]": 0}


def test_parts_without_words_are_nothing_to_print() -> None:
    blank = [{"type": "text", "text": words} for words in ("", "  \n")]
    assert lost(TEXT_PARTS, [user(blank), A]) == {}
    assert lost(TEXT_PARTS, [user([*blank, {"type": "text", "text": "So?"}]), A]) == {}


def test_words_that_a_template_rewrites_count_as_printed() -> None:
    assert lost(LOUD, [Q, A, Q2, A2]) == {}
    quoted = PLAIN.replace("{{ m.content }}", "{{ m.content | tojson }}")
    assert lost(quoted, [user('a "b"\n\\ é'), assistant('c "d"\n')]) == {}
    assert (
        lost(
            "{% for m in messages %}{{ m.role }}: {{ m.content.strip() }}\n{% endfor %}",
            [user("  a b \n"), A],
        )
        == {}
    )


def test_lines_that_are_cut_out_of_a_content_are_counted_alone() -> None:
    first = PLAIN.replace("{{ m.content }}", "{{ m.content.split('<cut>')[0] }}")
    assert lost(first, [Q, assistant("This stays\n<cut>\nand this goes"), Q2, A2]) == {
        "assistant.content, earlier turns": len("<cut>") + len("and this goes")
    }


def test_text_of_the_assistant_under_other_names_is_counted_and_labels_are_not() -> None:
    said = assistant(
        "Four.",
        tool_plan="First I add, then I answer.",
        id="msg_1",
        created="2024-01-01 10:00",
        name="bot",
    )
    assert lost(PLAIN, [Q, said]) == {"assistant.tool_plan": 27}
    assert lost(PLAIN, [{**Q, "note": "some words of whoever made the data"}, A]) == {}


def test_a_template_gets_no_objects_when_a_conversation_is_rendered_again(tmp_path: Path) -> None:
    """An array in a record could write files; rendering again with made-up words must not hand it over either."""
    place = tmp_path / "written"
    text = (
        LATE
        + "{{ messages[0].image.tofile('"
        + str(place)
        + "') or '' if messages[0].image is defined and messages[0].image.tofile else '' }}"
    )
    messages = [{**Q, "image": np.arange(3)}, thinks("The answer", "answer"), Q2, A2]
    samples = chat(text, on_refused="skip").encode([{"messages": messages}])
    assert not place.exists()
    assert samples.dropped or samples.notes == {
        UNRENDERED + "assistant.reasoning_content, earlier turns": {0: 6}
    }


def test_the_assistants_characters_are_counted_printed_or_not() -> None:
    plain = [{"messages": [Q, assistant("12345"), Q2, assistant("123")]}]
    assert chat(PLAIN).encode(plain * 3).assistant_characters == 24
    samples = chat(PLAIN).encode(
        [{"messages": [Q, thinks("12345", "1234567890", tool_calls=CALLS[:1]), RESULTS[0], A]}]
    )
    assert samples.assistant_characters == 5 + 10 + len("add") + len(A["content"])


@pytest.mark.parametrize("name", every_third_in_short_runs(sorted(TEMPLATES)))
def test_plain_conversations_are_printed_whole_by_the_templates_of_trl(name: str) -> None:
    opened = chat(name, on_refused="skip")
    only_parts = name.partition("_")[0] in (
        "idefics3",
        "smolvlm",
    )  # they print parts, and nothing of a string
    if only_parts:
        opened = chat(name, train_on="all")
    samples = opened.encode([{"messages": [Q, A, Q2, A2]}, {"messages": [{**Q, "name": "x"}, A]}])
    if only_parts:
        assert Q["content"] not in opened.rendering({"messages": [Q, A]}).text
        assert samples.notes[UNRENDERED + "user.content"] == {
            0: len(Q["content"] + Q2["content"]),
            1: len(Q["content"]),
        }
    else:
        assert not any(note.startswith(UNRENDERED) for note in samples.notes)
        assert name.startswith("llava_next") == bool(samples.dropped)  # refuses strings


def test_a_refusal_counts_no_characters_of_tools_that_are_not_printed() -> None:
    with pytest.raises(TemplateError, match=r"the chat template does not print tools; choose"):
        chat(PLAIN, on_unrendered="stop").encode([{"messages": [Q, A], "tools": [TOOL]}])


def test_on_unrendered_stops_or_skips_by_name() -> None:
    rows = [
        {"messages": [Q, A]},
        {"messages": [Q, thinks("Four.", "Let me add.")]},
        {"messages": [Q, A2]},
    ]
    with pytest.raises(
        TemplateError,
        match=r"does not print assistant\.reasoning_content \(11 characters\).*'warn'.*'skip'",
    ) as stopped:
        chat(PLAIN, on_unrendered="stop").encode(rows)
    assert stopped.value.record == 1
    samples = chat(PLAIN, on_unrendered="skip").encode(rows)
    assert samples.dropped == {1: "unrendered"} and samples.notes == {}
    assert samples.assistant_characters == len(A["content"]) + len(A2["content"])
    with pytest.raises(TemplateError, match="on_unrendered='never' is not known"):
        chat(PLAIN, on_unrendered="never")
    keys = [str(chat(PLAIN, on_unrendered=choice).identity()) for choice in ("warn", "skip")]
    assert keys[0] != keys[1]
