"""Is a conversation the text, and are its ids the ids, that transformers gives, for every template in the trl wheel?"""

import json
from typing import Any

import pytest

from penstock.errors import TemplateError
from penstock.templates import ChatTemplate
from tests.policy import every_third_in_short_runs

from .conversations import (
    CALLS,
    RESULTS,
    SHAPES,
    TEMPLATES,
    TOOL,
    A,
    Q,
    assistant,
    call,
    chat,
    expected_text,
    record,
    result,
    tokenizer,
    transformers_tokenizer,
)
from .conversations import rendered as reference

SILENT = ("idefics3", "smolvlm")  # print nothing of content that is text, which is refused


def text_of(template: ChatTemplate, given: dict[str, Any]) -> str | None:
    try:
        return template.rendering(given).text
    except TemplateError:
        return None


def test_the_wheel_has_its_templates() -> None:
    assert len(TEMPLATES) >= 72
    assert len(TEMPLATES) * len(SHAPES) >= 2376


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_and_ids_are_those_of_transformers(name: str) -> None:
    template = chat(name, train_on="all", on_refused="skip", verify="all")
    shapes = list(SHAPES)
    samples = template.encode([record(shape) for shape in shapes])
    num_equal = 0
    for number, shape in enumerate(shapes):
        expected = reference(name, shape)
        if expected is None:
            assert samples.dropped[number] == "template_refused", shape
            continue
        ids = samples.input_ids[samples.offsets[number] : samples.offsets[number + 1]].tolist()
        assert ids == transformers_tokenizer()(expected, add_special_tokens=False)["input_ids"], (
            shape
        )
        assert (
            template.decode(
                samples.input_ids[samples.offsets[number] : samples.offsets[number + 1]]
            )
            == expected
        )
        num_equal += 1
    assert num_equal >= (3 if name.startswith("llava") else 15)  # that one takes parts only


@pytest.mark.parametrize("name", every_third_in_short_runs(TEMPLATES))
def test_the_text_with_masks_is_the_plain_text(name: str) -> None:
    """The same text, or a refusal: of content that the template does not print, and of turns that it merges."""
    template = chat(name)
    events = set()
    for shape in SHAPES:
        expected = reference(name, shape)
        found = text_of(template, record(shape))
        if found != expected:
            assert found is None, shape
            events.add(shape)
    known = {"assistant_twice"} if name.startswith(("gemma4", "diffusion_gemma")) else set()
    known |= {"parts", "many_parts"} if name.startswith(("qwen3", "qwen3_instruct")) else set()
    assert events <= known or name.startswith(SILENT), events


@pytest.mark.parametrize("name", every_third_in_short_runs(TEMPLATES))
def test_every_spelling_of_tools_is_the_same_text(name: str) -> None:
    template = chat(name)
    messages = [Q, assistant("", tool_calls=[CALLS[0]]), RESULTS[0], A]
    listed = expected_text(name, messages, [TOOL])
    for spelling in ([TOOL], TOOL, json.dumps([TOOL]), json.dumps(TOOL), [json.dumps(TOOL)]):
        assert text_of(template, {"messages": messages, "tools": spelling}) == listed
    none = expected_text(name, [Q, A])
    if name.startswith(SILENT):
        none = None
    for spelling in (None, [], "", {}, float("nan")):
        assert text_of(template, {"messages": [Q, A], "tools": spelling}) == none


@pytest.mark.parametrize("name", every_third_in_short_runs(TEMPLATES))
def test_arguments_as_json_text(name: str) -> None:
    """Parsed by default, which is the text of a dict; handed on as they stand if asked for."""
    arguments = {"a": 2, "b": 'x "y" é\n'}
    given = [Q, assistant("", tool_calls=[call("add", json.dumps(arguments))]), result("4"), A]
    parsed = [Q, assistant("", tool_calls=[call("add", arguments)]), result("4"), A]
    record = {"messages": given, "tools": [TOOL]}
    assert text_of(chat(name), record) == expected_text(name, parsed, [TOOL])
    assert text_of(chat(name, arguments="as_is"), record) == expected_text(name, given, [TOOL])


def test_options_of_a_row_and_of_the_recipe_reach_the_template() -> None:
    messages = [Q, A]
    for thinking in (True, False):
        expected = expected_text("qwen3_5_think", messages, enable_thinking=thinking)
        assert (
            chat("qwen3_5_think", chat_template_kwargs={"enable_thinking": thinking})
            .rendering({"messages": messages})
            .text
            == expected
        )
        own = {"messages": messages, "chat_template_kwargs": {"enable_thinking": thinking}}
        assert chat("qwen3_5_think").rendering(own).text == expected


def test_documents_reach_the_template() -> None:
    text = "{% for d in documents or [] %}[{{ d.title }}]{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
    given = {
        "messages": [Q, A],
        "documents": [{"title": "one", "text": "1"}, {"title": "two", "text": "2"}],
    }
    assert chat(text).rendering(given).text == "[one][two]" + Q["content"] + A["content"]


def test_one_bos_where_the_template_writes_one() -> None:
    samples = chat("llama3").encode([record("multi")])
    assert samples.input_ids.tolist().count(tokenizer().bos_id) == 1
