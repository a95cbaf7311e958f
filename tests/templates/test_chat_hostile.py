"""Conversations and templates on which something was once trained that should not be, or not trained that should, without a word."""

from typing import Any

import pytest
from tokenizers import AddedToken

from penstock.errors import TemplateError
from penstock.templates import ChatTemplate, Reader, open_tokenizer
from penstock.templates.chat.choose import CHATML

from .conversations import (
    A2,
    Q2,
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
    transformers_tokenizer,
    user,
)
from .test_chat_odd import each, turns

ENDS = "<|im_end|>"
# As Mistral has it: no generation prompt, no label before an answer.
BRACKETS = (
    "<|bos|>{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' }}"
    "{% elif m.tool_calls %}{{ '[TOOL_CALLS] ' }}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}{{ '</s>' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content + '</s>' }}{% else %}{{ '[RESULT]' + m.content + '[/RESULT]' }}"
    "{% endif %}{% endfor %}"
)
# A label before each answer that no generation prompt tells of.
LABELS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
)


def trained(
    template: str, messages: list[dict[str, Any]], tools: Any = None, **options: Any
) -> list[str]:
    opened = chat(template, **options)
    rows = [{"messages": messages, "tools": tools}] * 20  # verified at first, and then not
    samples = opened.encode(rows)
    assert not samples.dropped
    first, last = turns(opened, samples, 0), turns(opened, samples, 19)
    assert first == last
    return first


@pytest.mark.parametrize(
    "name", [CHATML, "qwen3_training", "qwen2_5_training"], ids=["built-in", "qwen3", "qwen2_5"]
)
def test_generation_tags_do_not_keep_other_roles_from_being_trained(name: str) -> None:
    said = [Q["content"] + ENDS, Q2["content"] + ENDS]
    assert trained(name, [system("Be brief."), Q, A, Q2, A2], train_on=["user"]) == said
    both = trained(name, [Q, A, Q2, A2], train_on=["user", "assistant"])
    assert both[::2] == said and [A["content"] in both[1], A2["content"] in both[3], len(both)] == [
        True,
        True,
        4,
    ]
    own = trained(name, [{**Q, "train": True}, A, Q2, {**A2, "train": False}])
    assert own[0] == said[0] and A["content"] in own[1] and len(own) == 2
    assert trained(name, [system("Be brief."), Q, A], train_on=["system"]) == ["Be brief." + ENDS]


@pytest.mark.parametrize(
    "arguments",
    [{"name": 5}, {"arguments": {}}, {"content": None}, {"role": [1, 2.5]}, {"name": " "}],
)
def test_a_call_is_trained_whose_arguments_have_no_names_but_those_the_template_knows(
    arguments: Any,
) -> None:
    calls = assistant("", tool_calls=[call("add", arguments)])
    for name in ("qwen2_5", "qwen3", "qwen3_5_think", BRACKETS):
        found = trained(name, [Q, calls, result("5"), A], [TOOL])
        assert len(found) == 2 and "add" in found[0], (name, found)


def test_a_call_in_brackets_is_trained_from_its_first_token() -> None:
    calls = assistant("", tool_calls=[call("weather", {"city": "Bern"})])
    found = trained(BRACKETS, [Q, calls, result("sun"), A], [WEATHER])
    assert found == [
        '[TOOL_CALLS] {"name": "weather", "arguments": {"city": "Bern"}}</s>',
        " The answer is 42.</s>",
    ]


@pytest.mark.parametrize("words", ["user", "assistant said so", "  two blanks", '"quoted"'])
def test_words_that_the_template_looks_for_are_trained_at_the_head_of_a_turn(words: str) -> None:
    named = [
        {**message, "name": "somebody"} for message in (Q, assistant(words), Q2, assistant(words))
    ]
    assert trained(BRACKETS, named) == [f" {words}</s>", f" {words}</s>"]
    assert trained(LABELS, named) == [words + ENDS, words + ENDS]


def test_a_label_without_a_generation_prompt_is_a_header() -> None:
    calls = assistant("", tool_calls=[call("weather", {"city": "Bern"})])
    found = trained(LABELS, [Q, calls, result("sun"), A])
    assert found[0].startswith('<tool_call>{"name": "weather"') and found[1] == A["content"] + ENDS


def test_plain_words_that_end_every_turn_are_trained() -> None:
    plain = (
        "{% for m in messages %}{{ '[' + m.role + '] ' + m.content + ' [/' + m.role + ']\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"
    )
    for messages in ([Q, A, Q2, A2], [{**m, "name": "x"} for m in (Q, A, Q2, A2)]):
        assert trained(plain, messages) == [
            A["content"] + " [/assistant]",
            A2["content"] + " [/assistant]",
        ]


def test_calls_that_a_template_leaves_out_do_not_join_the_turns_around_them() -> None:
    calls = [assistant(text, tool_calls=[call("add", {"a": "one"})]) for text in ("I ask.", "")]
    found = trained(
        each("m.content").replace("for m in messages", "for m in messages if m.role != 'tool'"),
        [Q, calls[0], result("1"), calls[1], result("2"), A],
    )
    assert found == [
        "I ask." + ENDS,
        ENDS,
        A["content"] + ENDS,
    ]  # the call that is not printed is counted (test_unrendered.py)


def test_a_call_without_arguments_before_others_belongs_to_its_own_turn() -> None:
    calls = [call("add", {}), call("add", {"a": 2.5}, 1)]
    found = trained(
        "qwen2_5", [assistant("x"), assistant("", tool_calls=calls), assistant(""), Q, A], [TOOL]
    )
    whole = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "add", "arguments": {"a": 2.5}}'
    assert found[1] == whole + "\n</tool_call>" + ENDS


@pytest.mark.parametrize(
    "arguments", [{"Zed": "v", "alpha": "w"}, {"type": "v", "alpha": 1, "Beta": None}]
)
def test_arguments_in_the_order_of_their_names_need_no_event(arguments: Any) -> None:
    calls = assistant("", tool_calls=[call("add", arguments)])
    found = trained("gemma4", [Q, calls, result("5"), A], [TOOL])
    assert all(name in found[0] for name in arguments) and A["content"] in found[1]


def test_a_late_row_with_values_that_made_up_messages_do_not_have() -> None:
    for content in (
        "m.content[::-1] if 'x' not in m.content else m.content",
        "m.content.rsplit('x', 1)[0] if 'x' in m.content else m.content",
    ):
        opened = chat(each("m.content", rest=content))
        rows = [{"messages": [user("aba"), A]}] * 20 + [
            {"messages": [user(words), A]} for words in ("", "x", "xx ")
        ]
        samples = opened.encode(rows)
        assert not samples.dropped and len(turns(opened, samples, 22)) == 1


def test_a_header_that_takes_blanks_along_is_not_trained() -> None:
    """Special tokens that strip (Phi has them) cover the blanks with which an answer begins."""
    made = transformers_tokenizer().backend_tokenizer.from_str(
        transformers_tokenizer().backend_tokenizer.to_str()
    )
    made.add_special_tokens(
        [AddedToken(f"<|{who}|>", rstrip=True, normalized=False) for who in ("robot", "stop")]
    )
    made.add_special_tokens([AddedToken("<|hm|>", lstrip=True, normalized=False)])
    text = (
        "{% for m in messages %}{{ '<|robot|>\n' if m.role == 'assistant' else '<|user|>\n' }}{{ m.content }}"
        "<|stop|>\n{% endfor %}{% if add_generation_prompt %}{{ '<|robot|>\n' }}{% endif %}"
    )
    opened = ChatTemplate(open_tokenizer(made), reader=Reader(), chat_template=text)
    for words, expected in (
        ("  hello", "hello"),
        ("\n\nhello", "hello"),
        ("hello", "hello"),
        (" <|hm|> so", "<|hm|> so"),
    ):
        samples = opened.encode([{"messages": [Q, assistant(words), Q2, assistant(words)]}])
        assert turns(opened, samples, 0) == [expected + "<|stop|>"] * 2, words


def test_an_answer_of_one_sign_is_trained_though_its_thought_is_left_out() -> None:
    thinks = assistant('"', reasoning_content="A quote is asked for.")
    assert trained("qwen2_5", [Q, thinks, Q2, A2]) == ['"' + ENDS, A2["content"] + ENDS]
    assert trained("qwen2_5", [Q, assistant('"')]) == ['"' + ENDS]


def test_text_that_cannot_be_encoded_is_an_event_too() -> None:
    rows = [
        {"messages": [Q, assistant(word)]} for word in ("a", "half \ud800 a pair", "b", "\udfff")
    ]
    with pytest.raises(
        TemplateError, match=r"half of a surrogate pair.*on_refused to 'skip'"
    ) as refused:
        chat(TEMPLATES["qwen3"]).encode(rows)
    assert refused.value.record == 1
    samples = chat(TEMPLATES["qwen3"], on_refused="skip").encode(rows)
    assert samples.dropped == {1: "template_refused", 3: "template_refused"}
