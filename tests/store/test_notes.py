"""What the chat template does not print travels with the shards: counted once, the same by any number of processes, and said."""

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import TemplateError
from penstock.plan.settings import PlanSettings
from penstock.report import numbers, text
from penstock.report.checks import check
from penstock.store import Store
from penstock.store.counts import Counts, Note, total

FIELD = "unrendered: assistant.reasoning_content"
CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}"


def write(path: Path, *, rows: int = 60) -> Path:
    """Every third row thinks in 10 characters and answers in 6; the others answer in 4.  Row 7 is no record."""
    lines = []
    for row in range(rows):
        said: dict[str, Any] = {"role": "assistant", "content": "home"}
        if row % 3 == 0:
            said = {"role": "assistant", "content": "I run.", "reasoning_content": "the dog ru"}
        lines.append(json.dumps({"messages": [{"role": "user", "content": "the fox"}, said]}))
    lines[7] = "{"
    path.write_text("\n".join(lines))
    return path


def prepare(
    path: Path, tokenizer: Path, cache: Path, *, num_proc: int = 1, **options: Any
) -> Store:
    source = ps.open(path, on_bad="skip", cache_dir=cache)
    return ps.prepare(
        source,
        tokenizer=tokenizer,
        template="messages",
        chat_template=CHAT,
        cache_dir=cache,
        num_proc=num_proc,
        progress="none",
        **options,
    )


def test_unrendered_fields_are_counted_alike_by_one_process_and_by_three(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    path = write(tmp_path / "chat.jsonl", rows=3000)
    one = prepare(path, tokenizer_path, tmp_path / "one")
    three = prepare(path, tokenizer_path, tmp_path / "three", num_proc=3)
    assert one.counts.notes == {FIELD: Note(count=1000, rows=(0, 3, 6, 9, 12), characters=10_000)}
    assert one.counts.assistant_characters == 1000 * 16 + 1999 * 4
    assert three.counts == one.counts and three.fingerprint == one.fingerprint
    files = [sorted((tmp_path / name / "shards").rglob("*.arrow")) for name in ("one", "three")]
    assert [f.read_bytes() for f in files[0]] == [f.read_bytes() for f in files[1]]


def test_prepare_warns_of_unrendered_fields_also_when_the_store_is_found(
    tmp_path: Path, tokenizer_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "chat.jsonl")
    expected = (
        f"the chat template does not print assistant.reasoning_content in 20 of 60 records (200 characters, 42.0% of the assistant's), "
        f"first {path}:1"
    )
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="penstock"):
            store = prepare(path, tokenizer_path, tmp_path / "cache")
        assert any(expected in line for line in caplog.messages)
    assert store.unrendered() == expected


def test_check_stats_and_report_say_what_is_not_printed(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    path = write(tmp_path / "chat.jsonl")
    store = prepare(path, tokenizer_path, tmp_path / "cache")
    settings = PlanSettings(max_length=64)
    source = ps.open(path, on_bad="skip", cache_dir=tmp_path / "cache")
    found = check(source, store.template, settings, cache=tmp_path, at_most=100, on_bad="skip")
    verdict = next(each for each in found.verdicts if each.question == "not printed")
    assert verdict.answer == "warn" and verdict.first[:2] == (f"{path}:1", f"{path}:4")
    assert (
        "assistant.reasoning_content in 20 of 60 records (200 characters, 42.0% of the assistant's)"
        in verdict.why
    )
    loader = ps.Loader(store, batch_size=2, max_length=64, output="numpy")
    lost = numbers.sources(loader)[0].unrendered[0]
    assert (lost.field, lost.count, lost.characters) == ("assistant.reasoning_content", 20, 200)
    assert lost.share == pytest.approx(200 / 476)
    shown = str(text.dropped(numbers.sources(loader)))
    assert "not printed by the chat template" in shown and "assistant.reasoning_content" in shown


def test_a_template_that_prints_everything_is_said_to(tmp_path: Path, tokenizer_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(
        json.dumps(
            {
                "messages": [
                    {"role": "user", "content": "fox"},
                    {"role": "assistant", "content": "dog"},
                ]
            }
        )
    )
    store = prepare(path, tokenizer_path, tmp_path / "cache")
    assert (
        store.unrendered() == ""
        and store.counts.notes == {}
        and store.counts.assistant_characters == 3
    )
    found = check(
        store.source, store.template, PlanSettings(max_length=64), cache=tmp_path, at_most=9
    )
    assert next(each for each in found.verdicts if each.question == "not printed").answer == "ok"


def test_records_with_unrendered_fields_are_skipped_and_counted_or_stop_with_file_and_line(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    path = write(tmp_path / "chat.jsonl")
    store = prepare(path, tokenizer_path, tmp_path / "cache", on_unrendered="skip")
    assert store.counts.dropped["unrendered"].count == 20 and store.counts.notes == {}
    assert "unrendered 20" in store.describe()
    with pytest.raises(
        TemplateError,
        match=r"chat\.jsonl:1: the chat template does not print assistant\.reasoning_content",
    ):
        prepare(path, tokenizer_path, tmp_path / "cache", on_unrendered="stop")


def test_notes_of_shards_add_up_with_rows_counted_from_the_first() -> None:
    note = Note(count=2, rows=(1, 4), characters=7)
    part = Counts(
        rows=5, tokens=9, trained=3, notes={"unrendered: a": note}, assistant_characters=50
    )
    both = total([part, part])
    assert both.notes == {"unrendered: a": Note(count=4, rows=(1, 4, 6, 9), characters=14)}
    assert both.assistant_characters == 100
    assert Counts.from_json(json.loads(json.dumps(asdict(both)))) == both


def test_a_shard_keeps_its_notes(tmp_path: Path, tokenizer_path: Path) -> None:
    path = write(tmp_path / "chat.jsonl")
    store = prepare(path, tokenizer_path, tmp_path / "cache")
    assert store.manifest is not None
    assert store.manifest.shards[0].counts.notes[FIELD].rows[:2] == (0, 3)
