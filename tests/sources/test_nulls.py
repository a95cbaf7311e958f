"""Null members that Arrow's schema adds to tools, calls and messages."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.recipe import Recipe
from penstock.recipe.run import check_recipe, open_recipe
from penstock.sources import concat, open_source

CALLS: list[dict[str, Any]] = [
    {"name": "book", "arguments": {"date": "2019-03-01", "seats": 2}},
    {"name": "fly", "arguments": {"origin_city": "Rome", "from": "A", "value": 3}},
    {"name": "ping", "arguments": {}},
]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": "book", "parameters": {"type": "object", "required": ["date"]}},
    },
    {
        "type": "function",
        "function": {
            "name": "fly",
            "parameters": {"properties": {"origin_city": {"type": "string"}}},
        },
    },
    {
        "type": "function",
        "function": {"name": "ping", "parameters": {"enum": ["a", None]}},
        "strict": True,
    },
]


def record(number: int) -> dict[str, Any]:
    """No two neighbours have the same keys inside tools, calls and messages."""
    call, tool = CALLS[number % 3], TOOLS[number % 3]
    return {
        "messages": [
            {"role": "user", "content": f"question {number}"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"type": "function", "function": call}],
            },
            {"role": "tool", "content": "done", "tool_call_id": f"c{number}"},
        ],
        "tools": [tool],
        "note": None if number % 2 else "a top-level column",
    }


TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content or m.tool_calls[0].function.name }}{{ eos_token }}{% endfor %}"
RECORDS = [record(number) for number in range(9)]


def parquet(folder: Path, records: list[dict[str, Any]] = RECORDS) -> Path:
    path = folder / "tools.parquet"
    pq.write_table(pa.Table.from_pylist(records), path)
    return path


def written(folder: Path, shape: str) -> Any:
    """The same records in each kind of columnar source."""
    table = pa.Table.from_pylist(RECORDS)
    if shape == "parquet":
        return parquet(folder)
    if shape == "arrow":
        feather.write_feather(table, folder / "tools.arrow", compression="uncompressed")
        return folder / "tools.arrow"
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset(table)
    if shape == "hf":
        dataset.save_to_disk(folder / "saved")
        return folder / "saved"
    return dataset.to_iterable_dataset() if shape == "iterable" else dataset


@pytest.mark.parametrize("shape", ["parquet", "arrow", "hf", "datasets", "iterable"])
def test_tool_calls_that_went_through_arrow_come_back_as_they_were_written(
    tmp_path: Path, cache: Cache, shape: str
) -> None:
    source = open_source(written(tmp_path, shape), cache=cache)
    assert list(source) == RECORDS
    assert [source[row] for row in range(9)] == RECORDS
    texts = [json.dumps(found) for found in source]
    assert texts == [json.dumps(expected) for expected in RECORDS]  # the order of keys, too


@pytest.mark.parametrize("shape", ["parquet", "arrow", "hf", "datasets", "iterable"])
def test_nulls_keep_gives_every_null_that_the_file_has(
    tmp_path: Path, cache: Cache, shape: str
) -> None:
    source = open_source(written(tmp_path, shape), cache=cache, nulls="keep")
    assert list(source) == pa.Table.from_pylist(RECORDS).to_pylist()
    assert "origin_city" in source[0]["messages"][1]["tool_calls"][0]["function"]["arguments"]


def test_only_tools_calls_and_messages_lose_null_members(tmp_path: Path, cache: Cache) -> None:
    rows = [
        {
            "image": {"bytes": b"x", "path": None},
            "meta": {"a": 1, "b": None},
            "tools": None,
            "text": None,
        },
        {
            "image": {"bytes": None, "path": "p"},
            "meta": {"a": None, "b": 2},
            "tools": [{"name": "f"}],
            "text": "t",
        },
    ]
    assert list(open_source(parquet(tmp_path, rows), cache=cache)) == rows


def test_null_content_of_a_message_stays_and_null_elements_of_lists_stay(
    tmp_path: Path, cache: Cache
) -> None:
    rows = [
        {
            "chat": [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"name": "f", "arguments": {"x": [1, None]}}],
                }
            ]
        },
        {"chat": [{"role": "user", "content": "hi"}, None]},
    ]
    assert list(open_source(parquet(tmp_path, rows), cache=cache)) == rows


def test_messages_inside_a_struct_keep_their_null_content(tmp_path: Path, cache: Cache) -> None:
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"name": "f", "arguments": {"x": 1}}],
    }
    rows = [
        {"data": {"messages": [message], "id": None}},
        {"data": {"messages": [{"role": "user", "content": "a"}], "id": 1}},
    ]
    assert list(open_source(parquet(tmp_path, rows), cache=cache)) == rows


def test_entries_of_a_map_stay(tmp_path: Path, cache: Cache) -> None:
    kind = pa.map_(pa.string(), pa.struct([("a", pa.int64()), ("b", pa.int64())]))
    table = pa.table(
        {"arguments": pa.array([[("x", None), ("y", {"a": 1, "b": None})]], type=kind)}
    )
    pq.write_table(table, tmp_path / "map.parquet")
    (found,) = open_source(tmp_path / "map.parquet", cache=cache)
    assert found == {"arguments": [("x", None), ("y", {"a": 1})]}


def test_json_lines_and_json_columns_are_never_touched(tmp_path: Path, cache: Cache) -> None:
    row = {"tools": [{"name": "f", "parameters": {"default": None}}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    assert list(open_source(tmp_path / "a.jsonl", cache=cache)) == [row]
    pq.write_table(pa.table({"tools": [json.dumps(row["tools"])]}), tmp_path / "a.parquet")
    assert list(open_source(tmp_path / "a.parquet", cache=cache, json_columns=["tools"])) == [row]


def test_a_wrong_value_of_nulls_is_named_and_lines_do_not_take_the_option(
    tmp_path: Path, cache: Cache
) -> None:
    with pytest.raises(SourceError, match="nulls is 'drop', expected one of deep, keep"):
        open_source(parquet(tmp_path), cache=cache, nulls="drop")
    (tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(SourceError, match="unknown option 'nulls'"):
        open_source(tmp_path / "a.jsonl", cache=cache, nulls="deep")


def test_what_nulls_removes_is_part_of_the_digest_and_of_the_stamp(
    tmp_path: Path, cache: Cache
) -> None:
    path = parquet(tmp_path)
    deep, keep = open_source(path, cache=cache), open_source(path, cache=cache, nulls="keep")
    assert deep.digest(0, 9) != keep.digest(0, 9)
    assert deep.stamp() != keep.stamp()


def test_a_source_counts_the_null_members_it_removes_through_every_view(
    tmp_path: Path, cache: Cache
) -> None:
    source = open_source(parquet(tmp_path), cache=cache)
    kept = pa.Table.from_pylist(RECORDS).to_pylist()
    expected = {
        column: [
            _num_nulls(stored[column]) - _num_nulls(now[column])
            for stored, now in zip(kept, source, strict=True)
        ]
        for column in ("messages", "tools")
    }
    whole = source.removed_nulls(range(9))
    assert dict(whole.columns) == {column: sum(counts) for column, counts in expected.items()}
    assert whole.rows == 9
    one = {column: counts[4] for column, counts in expected.items()}
    for view, row in (
        (source[3:], 1),
        (source.select([8, 4]), 1),
        (source.map(lambda record: record), 4),
        (concat([source[:2], source]), 6),
    ):
        assert dict(view.removed_nulls([row]).columns) == one
    assert (
        not open_source(tmp_path / "tools.parquet", cache=cache, nulls="keep")
        .removed_nulls(range(9))
        .columns
    )


def _num_nulls(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_num_nulls(inner) for inner in value.values())
    if isinstance(value, list):
        return sum(_num_nulls(inner) for inner in value)
    return int(value is None)


SAID = [
    ("", False),
    ("nulls: deep", False),
    ("nulls: drop", True),  # of messages alone
    ("nulls: keep", True),
]


@pytest.mark.parametrize(
    ("place", "said", "keeps"),
    [
        *(("tools.parquet", *each) for each in SAID),
        *(pytest.param("list.yaml", *each, marks=pytest.mark.extra("formats")) for each in SAID),
        ("tools.parquet", "nulls: keep\noptions: {nulls: deep}", False),
    ],
)
def test_what_a_recipe_says_of_nulls_reaches_the_source(
    tmp_path: Path, tokenizer_path: Path, place: str, said: str, keeps: bool
) -> None:
    parquet(tmp_path)
    (tmp_path / "list.yaml").write_text("datasets:\n  - path: tools.parquet\n")
    (tmp_path / "recipe.yaml").write_text(
        f"data: {place}\ntemplate: messages\ntokenizer: {tokenizer_path}\nmax_length: 64\nchat_template: '{TEMPLATE}'\n{said}\n"
    )
    recipe = Recipe.read(tmp_path / "recipe.yaml")
    (opened,) = open_recipe(recipe)
    assert (
        "origin_city" in opened.source[0]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    ) is keeps


def test_check_says_how_many_null_members_were_removed(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    parquet(tmp_path)
    text = f"data: tools.parquet\ntemplate: messages\ntokenizer: {tokenizer_path}\nmax_length: 64\nchat_template: '{TEMPLATE}'\n"
    (tmp_path / "recipe.yaml").write_text(text)
    (tmp_path / "keep.yaml").write_text(text + "nulls: keep\n")
    (checked,) = check_recipe(Recipe.read(tmp_path / "recipe.yaml"))
    (verdict,) = [verdict for verdict in checked.verdicts if verdict.question == "nulls"]
    assert "null members that Arrow's schema added in 9 of 9 records (" in verdict.why
    (kept,) = check_recipe(Recipe.read(tmp_path / "keep.yaml"))
    assert "nulls" not in [verdict.question for verdict in kept.verdicts]


def test_open_takes_nulls(tmp_path: Path) -> None:
    source = ps.open(parquet(tmp_path), cache_dir=tmp_path / "cache", nulls="keep")
    assert source.removed_nulls(range(9)).rows == 0
