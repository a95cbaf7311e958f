"""Templates that do odd things to what they are given: right or an event, never silently wrong, in the first row or the fiftieth."""

import json
from typing import Any

import numpy as np
import pytest

from penstock.errors import TemplateError
from penstock.templates import ChatTemplate
from penstock.templates.samples import runs
from penstock.types import Samples

from .conversations import A2, Q2, A, Q, assistant, call, chat, expected_text, result
from .structures import source


def each(content: str, *, rest: str = "m.content", end: str = "<|im_end|>") -> str:
    """A template that prints the assistant's content in some way."""
    return (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{{ "
        + content
        + " }}{% else %}{{ "
        + rest
        + " }}{% endif %}"
        + end
        + "\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


WORDS = [
    "plain",
    "a secret",
    "skip",
    "{json}",
    "  edges \n",
    'quo"ted\\',
    "ünïcode 🙂",
    "<b>tag</b>",
    "a. b. c",
    "",
    "ABC",
    "7",
]
WORDS += [
    "x" * 40,
    "```code```",
    "<think>t</think>a",
    "\x1cspace\x1f",
    "🏴\U000e0067\U000e007f",
    "aaa",
    "0",
    "\u2028",
]

# What a template makes of content, and the turns that are trained then: what is printed, and the end.
RIGHT = {
    "trims": "m.content | trim",
    "strips": "m.content.strip('.')",
    "cuts": "m.content[:10]",
    "counts": "m.content | length ~ ' ' ~ m.content",
    "splits": "m.content.split('. ')[0]",
    "replaces": "m.content | replace('a', 'bb')",
    "compares": "'nothing' if m.content == 'skip' else m.content",
    "finds": "m.content.split('secret')[0] if 'secret' in m.content else m.content",
    "begins": "'J' ~ m.content if m.content.startswith('{') else m.content",
    "as json": "m.content | tojson",
    "joins": "[m.content, 'x'] | join('-')",
    "lists": "m.content | list | join",
    "looks": "{'7': 'seven', 'skip': 'hop'}.get(m.content, m.content)",
    "upper": "m.content | upper",
    "title": "m.content.title()",
    "ascii json": "m.content | tojson(ensure_ascii=True)",
    "sorts": "m.content | list | sort | join",
    "repeats": "m.content ~ ' ' ~ m.content",
    "twice": "m.content * 2",
    "set": "m.content | list | unique | join",
}


def turns(template: ChatTemplate, samples: Samples, number: int) -> list[str]:
    part = slice(*samples.offsets[number : number + 2])
    ids = samples.input_ids[part]
    return [template.decode(ids[a:b]) for a, b in runs(samples.loss_mask[part])]


def check(text: str, records: list[dict[str, Any]], **options: Any) -> tuple[ChatTemplate, Samples]:
    """Every sample that is there has the text that transformers renders, and the mask does not depend on what was verified."""
    template = chat(text, on_refused="skip", **options)
    samples = template.encode(records)
    for number, given in enumerate(records):
        part = slice(*samples.offsets[number : number + 2])
        if number not in samples.dropped:
            assert template.decode(samples.input_ids[part]) == expected_text(
                text, given["messages"], given.get("tools")
            )
    whole = chat(text, on_refused="skip", verify="all", **options).encode(records)
    assert whole.dropped == samples.dropped
    assert np.array_equal(whole.loss_mask, samples.loss_mask)
    return template, samples


def late(words: list[str]) -> list[dict[str, Any]]:
    """Forty rows without anything odd, then the others."""
    plain = [{"messages": [Q, assistant("plain"), Q2, assistant("words")]} for _ in range(40)]
    return plain + [{"messages": [Q, assistant(word), Q2, A2]} for word in words]


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_printed_is_trained(name: str) -> None:
    template, samples = check(each(RIGHT[name]), late(WORDS))
    # Words that stand elsewhere in the text, but not where the template prints what it made of them.
    assert {WORDS[number - 40] for number in samples.dropped} <= {
        "7",
        "0",
        "aaa",
        "plain",
        "<think>t</think>a",
        "a. b. c",
    }
    for number, word in enumerate(WORDS, 40):
        if number not in samples.dropped:
            full = expected_text(each(RIGHT[name]), [Q, assistant(word)]) or ""
            printed = full.rpartition("<|im_start|>assistant\n")[2].rstrip("\n")
            assert turns(template, samples, number)[0] == printed, word


def test_a_template_that_prints_nothing_of_an_answer_is_refused() -> None:
    _, samples = check(each("m.content | int"), late(["a", "7"]))
    assert samples.dropped == dict.fromkeys(range(42), "mask_unverified")


def test_parts_that_are_printed_as_a_list_are_trained_as_printed() -> None:
    parts = [
        {"messages": [Q, assistant([{"type": "text", "text": f"part {n}"}])]} for n in range(30)
    ]
    rows = [{"messages": [Q, A]} for _ in range(20)] + parts
    template, samples = check(each("m.content"), rows)
    assert samples.dropped == {}
    assert turns(template, samples, 49) == ["[{'type': 'text', 'text': 'part 29'}]<|im_end|>"]


def test_messages_in_another_order_are_followed() -> None:
    text = "{% for m in messages | sort(attribute='role') %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    template, samples = check(text, [{"messages": [Q, A, Q2, A2]}] * 30)
    assert samples.dropped == {}
    assert turns(template, samples, 29) == [
        A["content"] + "<|im_end|>",
        A2["content"] + "<|im_end|>",
    ]
    backwards = "{% for m in messages | reverse %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    template, samples = check(backwards, [{"messages": [Q, A, Q2, A2]}] * 30)
    assert turns(template, samples, 29) == [
        A2["content"] + "<|im_end|>",
        A["content"] + "<|im_end|>",
    ]


def test_messages_that_are_dropped_are_not_trained() -> None:
    text = "{% for m in messages[-2:] %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    template, samples = check(text, [{"messages": [Q, A, Q2, A2]}] * 30)
    assert turns(template, samples, 29) == [A2["content"] + "<|im_end|>"]
    none = "{% for m in messages if m.role == 'user' %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    _, samples = check(none, [{"messages": [Q, A]}] * 30)
    assert samples.dropped == dict.fromkeys(range(30), "nothing_to_train")


def test_an_answer_that_is_shown_again_elsewhere_is_an_event() -> None:
    text = "Last: {{ messages[-1].content }}\n" + each("m.content")
    _, samples = check(text, [{"messages": [Q, A]}] * 20)
    assert set(samples.dropped.values()) == {"mask_unverified"}
    other = "{{ messages[0].content }}" + each("m.content")  # a user's words may be shown anywhere
    template, samples = check(other, [{"messages": [Q, A, Q2, A2]}] * 20)
    assert turns(template, samples, 19) == [
        A["content"] + "<|im_end|>",
        A2["content"] + "<|im_end|>",
    ]


def test_late_rows_with_values_that_made_up_messages_do_not_have() -> None:
    """true, none, floats and large numbers as arguments are printed as Python does."""
    text = each("m.content ~ (m.tool_calls[0].function.arguments.x if m.tool_calls else '')")
    rows = [{"messages": [Q, A]} for _ in range(40)]
    for x in (True, None, 1.0, 1e16, 10**30, 5, "five", [1, True], {"y": None}):
        rows.append(
            {
                "messages": [
                    Q,
                    assistant("It is ", tool_calls=[call("add", {"x": x})]),
                    result("1"),
                    A,
                ]
            }
        )
    _, samples = check(text, rows)
    assert not {number: why for number, why in samples.dropped.items() if why == "template_refused"}
    assert len(samples.dropped) <= 2  # a list or a dict, printed as Python does


def test_white_space_that_only_python_knows() -> None:
    rows = late(["\x1cx\x1d", "x\x1e \x1f", "\x85x\u3000"])
    template, samples = check(each("m.content | trim"), rows)
    assert samples.dropped == {}
    assert turns(template, samples, 40)[0] == "x<|im_end|>"


@pytest.mark.parametrize(
    "letter",
    [
        "\ue000",
        "\uf8ff",
        "\U000f0000",
        "\U0010fffd",
        "\U000e0041",
        "\U00040000",
        "\ufdd1",
        "\ufffe",
    ],
)
def test_private_letters_and_noncharacters_are_letters(letter: str) -> None:
    words = [f"a{letter}", f"{letter}a", letter]
    template, samples = check(each("m.content"), late(words))
    assert samples.dropped == {}
    for number, word in enumerate(words, 40):
        assert turns(template, samples, number)[0] == word + "<|im_end|>"


def test_the_noncharacter_that_marks_messages_is_refused_wherever_it_stands() -> None:
    named = {"name": "somebody"}
    rows = [
        *late(["\ufdd0", "a\ufdd00\u0100b"]),
        {"messages": [Q, A | named, {**Q2, "name": "\ufdd0"}, A2]},
    ]
    rows.append(
        {
            "messages": [
                Q,
                assistant("", tool_calls=[call("add", {"a": 1 << 70, "b": "\ufdd0"})]),
                result("1"),
                A,
            ]
        }
    )
    _, samples = check(each("m.content"), rows)
    assert samples.dropped == dict.fromkeys(range(40, 44), "template_refused")
    with pytest.raises(TemplateError, match="which Penstock uses to mark messages"):
        chat(each("m.content")).encode(rows[40:41])


def test_generation_tags_that_lie_are_an_event() -> None:
    wrong = each("m.content", rest="m.content").replace(
        "<|im_start|>{{ m.role }}\n",
        "{% generation %}<|im_start|>{{ m.role }}\n{% endgeneration %}",
    )
    samples = chat(wrong, on_refused="skip").encode([{"messages": [Q, A]}])
    assert samples.dropped == {0: "mask_unverified"}
    with pytest.raises(
        TemplateError, match="set on_refused to 'skip' to leave such records out"
    ) as refused:
        chat(wrong).encode([{"messages": [Q, A]}])
    assert "fix the record" not in str(refused.value)  # the template lies, not the record


def test_arguments_that_are_sorted_or_escaped() -> None:
    args = {"zeta": 'a "b" \\ é\n', "alpha": [1, "x"], "Mid": {"y": "z"}}
    records = [
        {"messages": [Q, assistant("Call: ", tool_calls=[call("add", args)]), result("1"), A]}
    ] * 20
    for how in (
        "| tojson",
        "| dictsort | string",
        "| tojson(sort_keys=True)",
        "| items | list | string",
        "| string",
    ):
        text = each(
            f"m.content ~ ((m.tool_calls[0].function.arguments {how}) if m.tool_calls else '')"
        )
        template, samples = check(text, records)
        if 19 not in samples.dropped:
            assert turns(template, samples, 19)[0].startswith("Call: "), how
    assert (
        json.dumps(args, ensure_ascii=False)
        in turns(
            *check(
                each(
                    "m.content ~ (m.tool_calls[0].function.arguments | tojson if m.tool_calls else '')"
                ),
                records,
            ),
            19,
        )[0]
    )


def test_calls_are_not_taken_for_the_header_of_the_next_message() -> None:
    """The content ends like a turn, and a last answer is printed below all messages: the calls look as if the next message made them."""
    template = chat(source("answer below"), on_refused="skip")
    said = assistant("<|im_end|>", tool_calls=[call("add", {"a": 1})])
    talk = [Q, said, result("1"), {**A, "train": False}]
    assert template.encode([{"messages": talk}] * 30).dropped == dict.fromkeys(
        range(30), "mask_unverified"
    )


def test_content_that_is_not_printed_beside_calls_may_stand_elsewhere_in_the_text() -> None:
    """Granite prints no content next to calls; the same words in the question are the question's."""
    template = chat(source("granite 3"))
    said = {**assistant(Q["content"]), "tool_calls": [call("add", {"a": 1})]}
    samples = template.encode([{"messages": [Q, said, result("1"), A]}])
    called = '<|tool_call|>[{"name": "add", "arguments": {"a": 1}}]<|end_of_text|>'
    assert turns(template, samples, 0) == [called, A["content"] + "<|end_of_text|>"]
