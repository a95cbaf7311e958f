"""Records that nest deep are read, or refused with file and line; none ends a run with a raw RecursionError."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import BadRecord, TemplateError
from penstock.templates.fields import read_json
from penstock.types import MOST_DEPTH, nests_too_deep

from .conversations import A, Q, assistant, chat, result


def nested(levels: int, *, dicts: bool = False) -> Any:
    """Lists inside each other, or lists of dicts."""
    value: Any = 1
    for _ in range(levels):
        value = [{"a": value}] if dicts else [value]
    return value


def json_text(value: Any) -> str:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        return json.dumps(value)
    finally:
        sys.setrecursionlimit(before)


def called(arguments: Any) -> list[dict[str, Any]]:
    call = {
        "type": "function",
        "id": "call00000",
        "function": {"name": "f", "arguments": arguments},
    }
    return [Q, assistant("", tool_calls=[call]), result("2"), A]


DEEP: dict[str, dict[str, Any]] = {
    "tools": {"messages": [Q, A], "tools": nested(1000)},
    "arguments": {"messages": called(nested(450, dicts=True))},
    "a field of a message": {"messages": [{**Q, "x": nested(450, dicts=True)}, A]},
    "content": {"messages": [{"role": "user", "content": nested(900)}, A]},
    "chat_template_kwargs": {"messages": [Q, A], "chat_template_kwargs": {"x": nested(900)}},
    "a field that no template reads": {"messages": [Q, A], "x": nested(450, dicts=True)},
}
DEEP_TEXT: dict[str, dict[str, Any]] = {
    "arguments": {"messages": called("[" * 2000 + "]" * 2000)},
    "arguments of 300": {"messages": called('{"a":' + "[" * 300 + "]" * 300 + "}")},
    "tools": {"messages": [Q, A], "tools": "[" * 1000 + "]" * 1000},
}


@pytest.fixture
def prepare(tmp_path: Path, tokenizer_path: Path) -> Any:
    def prepare(record: dict[str, Any], *, on_bad: str = "stop", **options: Any) -> Any:
        good = json.dumps({"messages": [Q, A]})
        path = tmp_path / "data.jsonl"
        path.write_text(f"{good}\n{json_text(record)}\n{good}\n")
        source = ps.open(path, on_bad=on_bad)
        return ps.prepare(
            source,
            tokenizer=tokenizer_path,
            template="messages",
            cache_dir=tmp_path / "cache",
            num_proc=1,
            progress="none",
            **options,
        )

    return prepare


@pytest.mark.parametrize("name", DEEP)
def test_a2_a_record_that_nests_too_deep_is_refused_by_line_or_skipped(
    name: str, prepare: Any
) -> None:
    """A2."""
    with pytest.raises(BadRecord, match=r"data\.jsonl:2: values nest more than 100 levels deep"):
        prepare(DEEP[name])
    store = prepare(DEEP[name], on_bad="skip")
    assert "3 records → 2 samples" in store.describe() and "too_deep 1" in store.describe()


@pytest.mark.parametrize("name", DEEP_TEXT)
def test_a2_json_text_in_a_record_that_nests_too_deep_is_refused_by_line_or_skipped(
    name: str, prepare: Any
) -> None:
    """A2: the record itself is flat, so the template refuses it."""
    with pytest.raises(TemplateError, match=r"data\.jsonl:2: .*nests more than 100 levels deep"):
        prepare(DEEP_TEXT[name])
    store = prepare(DEEP_TEXT[name], on_refused="skip")
    assert "3 records → 2 samples" in store.describe() and "template_refused 1" in store.describe()


@pytest.mark.parametrize("name", DEEP)
def test_a2_a_deep_record_in_memory_is_refused_by_its_row(
    name: str, tokenizer_path: Path, tmp_path: Path
) -> None:
    """A2."""
    records = [{"messages": [Q, A]}, DEEP[name]]
    with pytest.raises(BadRecord, match="list:2: record 1 holds values that nest more than 100"):
        ps.prepare(records, tokenizer=tokenizer_path, cache_dir=tmp_path, progress="none")


def test_a2_a_deep_record_of_a_function_is_skipped_or_named() -> None:
    """A2: sources do not see what `map` makes."""
    records = [{"messages": [Q, A]}, DEEP["arguments"]]
    samples = chat("qwen3", on_refused="skip").encode(records)
    assert samples.dropped == {1: "template_refused"}
    with pytest.raises(TemplateError, match="nests too deep") as caught:
        chat("qwen3").encode(records)
    assert caught.value.record == 1


def test_records_of_the_largest_depth_are_read(prepare: Any) -> None:
    levels = MOST_DEPTH - 6  # those around the arguments
    assert (
        "3 records → 3 samples"
        in prepare({"messages": [Q, A], "x": nested(MOST_DEPTH - 1)}).describe()
    )
    record = {"messages": called({"a": nested(levels - 1)})}
    assert not nests_too_deep(record)
    assert "[" * (levels - 1) in chat("qwen3").rendering(record).text


def test_depth_is_counted_in_levels() -> None:
    assert not nests_too_deep("text") and not nests_too_deep(nested(MOST_DEPTH))
    assert nests_too_deep(nested(MOST_DEPTH + 1)) and nests_too_deep(nested(100_000))
    assert nests_too_deep(nested(MOST_DEPTH // 2 + 1, dicts=True))
    assert read_json("[" * MOST_DEPTH + "]" * MOST_DEPTH, "x") == nested_empty(MOST_DEPTH)


def nested_empty(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value
