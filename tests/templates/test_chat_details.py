"""Parts of turns: reasoning left out, spans inside a message, special tokens as text, options of a row, on templates of odd structure."""

import itertools
from typing import Any

import pytest

from penstock.errors import TemplateError
from penstock.templates import ChatTemplate, Reader

from .conversations import Q2, TOOL, A, Q, assistant, call, chat, expected_text, user
from .structures import ALL_SHAPES, source, truth
from .test_chat_odd import turns

RAW = source("plain")
END = "<|im_end|>"
STRUCTURES = (
    "plain",
    "macro",
    "set block",
    "indices",
    "header before",
    "several ends",
    "groups",
    "system outside",
)


def rows(template: str, records: list[dict[str, Any]], **options: Any) -> list[list[str] | str]:
    """What is trained of each record, or why it is dropped; behind rows that are verified."""
    opened = chat(template, on_refused="skip", **options)
    filler = [{"messages": [Q, A]}] * 20
    samples = opened.encode([*filler, *records])
    return [
        samples.dropped.get(20 + n) or turns(opened, samples, 20 + n) for n in range(len(records))
    ]


SPACES = ("", " ", "\n", "\n\n", " \n\t ")


@pytest.mark.parametrize(
    "name",
    ["raw", "qwen3", "qwen3_instruct_2507", "deepseek_r1_distill", "glm4moe", "nemotron_3_nano"],
)
def test_thoughts_inside_content_are_left_out_whatever_white_space_is_around_them(
    name: str,
) -> None:
    """No word of a thought is trained, and the whole answer is; or the row is refused."""
    text = RAW if name == "raw" else name
    made = list(itertools.product(SPACES, SPACES, SPACES))
    records = [
        {"messages": [Q, assistant(f"{a}<think>{b}Thoughtful.{b}</think>{c}The answer.")]}
        for a, b, c in made
    ]
    found = rows(text, records, train_reasoning=False)
    exact = 0
    for record, said in zip(records, found, strict=True):
        if said != "mask_unverified":
            joined = "".join(said)
            assert "Thoughtful" not in joined and joined.lstrip().startswith("The answer."), record
            exact += 1
    assert exact >= 100


@pytest.mark.parametrize("name", STRUCTURES)
def test_reasoning_fields_are_left_out(name: str) -> None:
    messages = [
        Q,
        assistant("One.", reasoning_content="Hm."),
        Q2,
        assistant("Hm.", reasoning_content="Hm."),
    ]
    end = "[done]<|im_end|><|eot_id|>" if name == "several ends" else END
    assert rows(source(name), [{"messages": messages}], train_reasoning=False) == [
        ["One." + end, "Hm." + end]
    ]


@pytest.mark.parametrize("name", STRUCTURES)
def test_spans_inside_a_message_are_trained_or_not_as_it_says(name: str) -> None:
    def detailed(content: str, *untrained: tuple[int, int]) -> dict[str, Any]:
        return assistant(
            content,
            train_detail=[
                {"begin_offset": a, "end_offset": b, "train": False} for a, b in untrained
            ],
        )

    end = "[done]<|im_end|><|eot_id|>" if name == "several ends" else END
    talk = [Q, detailed("abcdef", (0, 1), (4, 4)), Q2, detailed("ghi", (0, 2)), Q, A]
    assert rows(source(name), [{"messages": talk}]) == [["cd", "f" + end, end, A["content"] + end]]


def test_spans_inside_a_message_that_is_printed_otherwise_are_refused() -> None:
    trimmed = source("macro of content")
    detail = [{"begin_offset": 0, "end_offset": 1, "train": False}]
    records = [
        {"messages": [Q, assistant(words, train_detail=detail)]} for words in ("  ab", "abab", "ab")
    ]
    assert rows(trimmed, records) == ["mask_unverified", ["ab" + END], [END]]
    for wrong in (
        [{"begin_offset": 0, "end_offset": 9, "train": False}],
        [{"begin_offset": 1, "end_offset": 0, "train": True}],
        ["x"],
    ):
        with pytest.raises(TemplateError, match="train_detail has "):
            chat(trimmed).encode([{"messages": [Q, assistant("ab", train_detail=wrong)]}])


@pytest.mark.parametrize("name", STRUCTURES)
def test_special_tokens_in_words_are_text_and_the_mask_covers_the_same_characters(
    name: str,
) -> None:
    talk = [
        user(f"Say {END}<|im_start|>assistant\nno"),
        assistant(f"{END} a {END}"),
        Q2,
        assistant(f"b{END}"),
    ]
    as_tokens = rows(source(name), [{"messages": talk}])
    as_text = rows(source(name), [{"messages": talk}], special_in_text="text")
    assert as_tokens == as_text != [[]]
    opened = chat(source(name), special_in_text="text")
    token = opened.tokenizer.token_id(END)
    plain = [user("Say no"), assistant("a"), Q2, assistant("b")]
    counts = [
        opened.encode([{"messages": some}]).input_ids.tolist().count(token)
        for some in (talk, plain)
    ]
    assert counts[0] == counts[1]
    assert rows(source(name), [{"messages": talk}], special_in_text="error") == ["template_refused"]


def test_options_of_a_row_decide_its_header() -> None:
    """The same conversation with and without an empty thought in the generation prompt."""
    text = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and not think %}<think></think>{% endif %}"
        "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
        "{% if not think %}<think></think>{% endif %}{% endif %}"
    )
    records = [
        {"messages": [Q, A], "chat_template_kwargs": {"think": think}}
        for think in (True, False, True, False)
    ]
    assert rows(text, records) == [[A["content"] + END]] * 4
    opened = chat(text)
    for record in records:
        assert opened.rendering(record).text == expected_text(
            text, [Q, A], **record["chat_template_kwargs"]
        )
    odd = "{% for m in messages %}{{ prefix }}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    kwargs = [
        {"messages": [Q, A], "chat_template_kwargs": {"prefix": prefix}}
        for prefix in ("", "x", "<|im_start|>")
    ]
    for said in rows(odd, kwargs):
        assert said in ("mask_unverified", [A["content"] + END])


def test_the_date_and_tools_in_a_prologue_do_not_move_the_mask() -> None:
    text = "{{ strftime_now('%d %B %Y') }}{% if tools %}{{ tools | tojson }}{% endif %}\n" + RAW
    for tools in (None, [TOOL]):
        record = {"messages": ALL_SHAPES["multi"][0], "tools": tools}
        known = truth("plain", record["messages"], tools)
        assert known is not None
        made = chat(text).rendering(record)
        shift = len(made.text) - len(known[0])
        assert made.text.startswith("26 July 2024") and made.text[shift:] == known[0]
        assert made.spans == [
            (a + shift, b + shift) for number in (1, 3, 5) for a, b in known[1][number]
        ]


_CALLS_PRINTED = "{% for call in m.tool_calls or [] %}[{{ call.function.name }}]{% endfor %}"
_NULL_TEMPLATES = {
    "prints null as a word": "{{ m.content }}" + _CALLS_PRINTED,
    "prints calls next to null": "{% if m.content is none %}"
    + _CALLS_PRINTED
    + "{% else %}{{ m.content }}{% endif %}",
}


@pytest.mark.parametrize("name", _NULL_TEMPLATES)
def test_a_content_of_null_is_left_out_unless_the_template_prints_calls_only_beside_it(
    name: str,
) -> None:
    text = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        + _NULL_TEMPLATES[name]
        + "<|im_end|>\n{% endfor %}"
    )
    text += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    called = assistant(None, tool_calls=[call("add", {"a": 1})])
    record = {"messages": [Q, called, Q2, A], "tools": [TOOL]}
    assert rows(text, [record]) == [["[add]" + END, A["content"] + END]]
    reader = Reader(shape="messages", nulls="keep")
    kept = (
        ChatTemplate(chat(text).tokenizer, reader=reader, chat_template=text).rendering(record).text
    )
    assert ("None[add]" in kept) == (name == "prints null as a word")
    assert record["messages"][1]["content"] is None  # the record is not changed
