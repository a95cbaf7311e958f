"""The token that ends a turn is trained; where nothing ends one, it is counted and said."""

import json
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import TemplateError
from penstock.sources import ListSource
from penstock.templates import ChatTemplate, Reader, open_tokenizer
from penstock.templates.chat.headers import Ends
from penstock.types import PARTIAL, UNENDED

from .conversations import TOOL, A, Q, assistant, call, chat, result, transformers_tokenizer
from .structures import source
from .test_chat_odd import turns

# As GLM has it: nothing closes a turn, the next one's first token does.
GLM = (
    "{% for m in messages %}{% if m.role == 'user' %}<|user|>\n{{ m.content }}"
    "{% elif m.role == 'assistant' %}<|assistant|>\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{% else %}<|observation|>\n{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
CALL = assistant("", tool_calls=[call("add", {"a": 1})])
TALK = [Q, CALL, result("1"), A, Q, A]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose generation_config.json lists more ends than the eos_token."""
    place = tmp_path_factory.mktemp("glm")
    made = transformers_tokenizer()
    made.save_pretrained(place)
    ids = [
        made.convert_tokens_to_ids(token) for token in ("<|eos|>", "<|user|>", "<|observation|>")
    ]
    (place / "generation_config.json").write_text(
        json.dumps({"eos_token_id": ids, "temperature": 0.6})
    )
    return place


def opened(folder: Path) -> ChatTemplate:
    return ChatTemplate(open_tokenizer(folder), reader=Reader(), chat_template=GLM)


def test_the_next_turns_first_token_ends_a_turn_where_generation_stops_at_it(folder: Path) -> None:
    template = opened(folder)
    assert template.tokenizer.stop_tokens == {"<|eos|>", "<|user|>", "<|observation|>"}
    samples = template.encode([{"messages": TALK, "tools": [TOOL]}])
    called = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|observation|>'
    assert turns(template, samples, 0) == [called, A["content"] + "<|user|>", A["content"]]
    assert samples.notes[UNENDED] == {0: 1}  # nothing follows the last one
    assert UNENDED not in template.encode([{"messages": TALK[:-1]}]).notes


def test_without_the_rule_no_turn_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ends, "token_at", lambda self, text, place, among: None)
    template = opened(folder)
    samples = template.encode([{"messages": TALK, "tools": [TOOL]}])
    assert samples.notes[UNENDED] == {0: 2} and turns(template, samples, 0)[1] == A["content"]


def test_ends_are_part_of_what_a_store_is_named_by(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    transformers_tokenizer().save_pretrained(other)
    assert open_tokenizer(other).stop_tokens == {"<|eos|>"}
    assert opened(folder).identity() != opened(other).identity()
    (other / "generation_config.json").write_text('{"eos_token_id": 3}')
    assert len(open_tokenizer(other).stop_tokens) == 2
    (other / "generation_config.json").write_text('{"eos_token_id": ["<|user|>"]}')
    with pytest.raises(
        TemplateError,
        match=r"generation_config.json: eos_token_id is .*expected an id or a list of ids",
    ):
        open_tokenizer(other)


def test_turns_that_nothing_ends_are_counted_in_every_row_and_said(
    tmp_path: Path, caplog: Any
) -> None:
    rows = [{"messages": [Q, A, Q, A]}] * 30
    samples = chat(GLM).encode(rows)  # this tokenizer has no such ends
    assert samples.notes[UNENDED] == dict.fromkeys(range(30), 2)
    tokenizer = transformers_tokenizer()
    options: dict[str, Any] = {
        "tokenizer": tokenizer,
        "template": "chat",
        "chat_template": GLM,
        "num_proc": 1,
    }
    penstock.prepare(ListSource(rows, name="talks"), **options, cache_dir=tmp_path, progress="none")
    assert (
        "no token is trained that ends 60 trained turns in 30 of 30 records: a model does not learn to stop there"
        in caplog.text
    )


def test_headers_in_part_are_counted() -> None:
    """The generation prompt closes an empty thought, which answers do not have."""
    rows = [{"messages": [Q, A]}] * 30
    assert chat(source("thinking prompt")).encode(rows).notes == {
        PARTIAL: dict.fromkeys(range(30), 1)
    }
    assert chat(source("thinking header")).encode(rows).notes == {}


def test_an_end_that_is_printed_only_before_another_message_is_trained() -> None:
    text = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if not loop.last %}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_end|>\n<|im_start|>assistant\n{% endif %}"
    )
    template = chat(text)
    samples = template.encode([{"messages": [Q, A, Q, A]}])
    assert turns(template, samples, 0) == [
        A["content"] + "<|im_end|>",
        A["content"],
    ] and samples.notes == {UNENDED: {0: 1}}
