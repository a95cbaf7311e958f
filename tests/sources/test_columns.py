"""Do lazy Parquet and Arrow sources give what pyarrow's full read gives, row by row, however the file is laid out?"""

import datetime
import decimal
import json
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.cache import Cache
from penstock.errors import BadRecord, SourceChanged, SourceError
from penstock.sources import RowAccess, arrow, columnar, open_source
from penstock.sources.bad import BadRows
from penstock.sources.columnar import ByteCache
from penstock.testing import check_source
from penstock.types import BadRow

MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("calls", pa.list_(pa.struct([("id", pa.int32())]))),
    ]
)
CELLS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), st.text(max_size=8)),
    "long": (pa.large_string(), st.text(max_size=8)),
    "word": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b", "ü", ""])),
    "int": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "unsigned": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float": (pa.float64(), st.floats(allow_nan=False)),
    "half": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "yes": (pa.bool_(), st.booleans()),
    "raw": (pa.binary(), st.binary(max_size=5)),
    "nothing": (pa.null(), st.none()),
    "date": (pa.date32(), st.dates()),
    "time": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(datetime.UTC))),
    "price": (pa.decimal128(20, 2), st.decimals(-1000, 1000, places=2)),
    "ids": (pa.list_(pa.int32()), st.lists(st.integers(-5, 5), max_size=4)),
    "pair": (
        pa.list_(pa.float32(), 2),
        st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2),
    ),
    "map": (
        pa.map_(pa.string(), pa.int8()),
        st.lists(st.tuples(st.text(max_size=2), st.integers(-9, 9)), max_size=3),
    ),
    "messages": (
        pa.list_(MESSAGE),
        st.lists(
            st.fixed_dictionaries(
                {
                    "role": st.sampled_from(["user", "tool"]),
                    "content": st.none() | st.text(max_size=6),
                },
                optional={
                    "calls": st.lists(st.fixed_dictionaries({"id": st.integers(0, 9)}), max_size=2)
                },
            ),
            max_size=3,
        ),
    ),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    names = draw(st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=5, unique=True))
    num_rows = draw(st.integers(0, 25))
    columns = {
        name: pa.array(
            draw(st.lists(st.none() | CELLS[name][1], min_size=num_rows, max_size=num_rows)),
            type=CELLS[name][0],
        )
        for name in names
    }
    return pa.table(columns)


def write_parquet(table: pa.Table, path: Path, rows: int) -> None:
    pq.write_table(
        table, path, row_group_size=max(rows, 1), data_page_size=64, dictionary_pagesize_limit=64
    )


def write_file(table: pa.Table, path: Path, rows: int) -> None:
    with pa.ipc.new_file(
        path, table.schema, options=pa.ipc.IpcWriteOptions(unify_dictionaries=True)
    ) as writer:
        writer.write_table(table, max_chunksize=max(rows, 1))


def write_stream(table: pa.Table, path: Path, rows: int) -> None:
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=max(rows, 1))


def write_packed(table: pa.Table, path: Path, rows: int) -> None:
    feather.write_feather(table, str(path), compression="zstd", chunksize=max(rows, 1))


KINDS: dict[str, tuple[str, Callable[[pa.Table, Path, int], None]]] = {
    "parquet": (".parquet", write_parquet),
    "file": (".arrow", write_file),
    "stream": (".arrow", write_stream),
    "feather": (".feather", write_packed),
}
every_kind = pytest.mark.parametrize("kind", list(KINDS))


def eager(kind: str, path: Path) -> list[Any]:
    """The oracle: pyarrow reads all."""
    if kind == "parquet":
        return pq.ParquetFile(path).read().to_pylist()  # type: ignore[no-any-return]
    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_stream(file) if kind == "stream" else pa.ipc.open_file(file)
        return reader.read_all().to_pylist()  # type: ignore[no-any-return]


def write(
    kind: str, folder: Path, parts: Sequence[pa.Table], rows: int = 7
) -> tuple[list[str], list[Any]]:
    """Files of one kind, and what pyarrow reads from them."""
    suffix, writer = KINDS[kind]
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"p-{number}{suffix}" for number in range(len(parts))]
    for path, table in zip(paths, parts, strict=True):
        writer(table, path, rows)
    return [str(path) for path in paths], [record for path in paths for record in eager(kind, path)]


def plain_table(num_rows: int, start: int = 0) -> pa.Table:
    rows = range(start, start + num_rows)
    return pa.table(
        {
            "row": pa.array(rows, type=pa.int64()),
            "text": pa.array([f"row {row} " + "x" * (row % 50) for row in rows], type=pa.string()),
            "messages": pa.array(
                [[{"role": "user", "content": str(row)}] * (row % 3) for row in rows],
                type=pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])),
            ),
        }
    )


def no_sooner(*_: Any) -> int:
    return 3


@every_kind
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
@given(data=st.data())
def test_lazy_equals_eager(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    table = data.draw(tables())
    splits = sorted(data.draw(st.lists(st.integers(0, table.num_rows), max_size=2)))
    edges = [0, *splits, table.num_rows]
    parts = [table.slice(a, b - a).combine_chunks() for a, b in pairwise(edges)]
    folder = tmp_path_factory.mktemp("lazy")
    paths, expected = write(kind, folder, parts, data.draw(st.integers(1, 9)))
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):  # slices of three rows, so that groups are larger than slices
            patch.setattr("penstock.sources.parquet.slice_rows", no_sooner)
            patch.setattr(arrow, "slice_rows", no_sooner)
        budget = data.draw(st.sampled_from([0, 500, 64 << 20]))
        source = open_source(paths, cache=Cache(folder / "cache"), cache_bytes=budget, nulls="keep")
        check_source(source, expected=expected)


@every_kind
def test_where_is_the_row_in_its_file(kind: str, tmp_path: Path, cache: Cache) -> None:
    paths, expected = write(
        kind, tmp_path, [plain_table(10), plain_table(0), plain_table(5, 10)], rows=4
    )
    source = open_source(tmp_path / f"*{KINDS[kind][0]}", cache=cache)
    assert list(source) == expected and [record["row"] for record in source] == list(range(15))
    homes = [
        (source.locate(row).file, source.locate(row).line, source.locate(row).byte)
        for row in range(15)
    ]
    assert homes == [(paths[0], row + 1, 0) for row in range(10)] + [
        (paths[2], row + 1, 0) for row in range(5)
    ]


@every_kind
def test_the_digest_is_of_rows_and_not_of_layout(kind: str, tmp_path: Path, cache: Cache) -> None:
    table = plain_table(100)
    digests = set()
    for number, (rows, edges) in enumerate(
        [(100, [0, 100]), (7, [0, 100]), (13, [0, 40, 40, 100]), (1, [0, 99, 100])]
    ):
        parts = [table.slice(a, b - a) for a, b in pairwise(edges)]
        paths, _ = write(kind, tmp_path / str(number), parts, rows)
        source = open_source(paths, cache=cache)
        digests.add(
            tuple(source.digest(a, b) for a, b in ((0, 100), (0, 40), (39, 41), (40, 100), (7, 7)))
        )
    assert len(digests) == 1
    assert len({source.digest(row, row + 1) for row in range(100)}) == 100


def test_all_kinds_give_the_same_digest(tmp_path: Path, cache: Cache) -> None:
    digests = {
        open_source(write(kind, tmp_path / kind, [plain_table(50)])[0], cache=cache).digest(0, 50)
        for kind in KINDS
    }
    assert len(digests) == 1


@every_kind
def test_a_source_pickles_small_and_reads_the_same(kind: str, tmp_path: Path, cache: Cache) -> None:
    paths, expected = write(kind, tmp_path, [plain_table(5000)], rows=500)
    source = open_source(paths, cache=cache, columns=["row", "text"])
    assert source[4321] == {
        key: expected[4321][key] for key in ("row", "text")
    }  # what is decoded stays at home
    frozen = pickle.dumps(source)
    assert len(frozen) < 2000
    assert list(pickle.loads(frozen)) == list(source)


@every_kind
def test_threads_read_what_one_reads(kind: str, tmp_path: Path, cache: Cache) -> None:
    paths, expected = write(kind, tmp_path, [plain_table(600), plain_table(400, 600)], rows=150)
    source = open_source(paths, cache=cache, cache_bytes=20_000)

    def read(seed: int) -> bool:
        chance = random.Random(seed)
        for _ in range(60):
            start = chance.randrange(1000)
            stop = min(1000, start + chance.choice([1, 1, 1, 40, 300]))
            assert source[start] == expected[start]
            assert list(source.records(start, stop)) == expected[start:stop]
        return True

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(8))) == [True] * 8


@every_kind
def test_columns_are_chosen_in_the_order_of_the_file(
    kind: str, tmp_path: Path, cache: Cache
) -> None:
    paths, expected = write(kind, tmp_path, [plain_table(20)])
    source = open_source(paths, cache=cache, columns=["text", "row"])
    assert [list(record.items()) for record in source] == [
        [("row", record["row"]), ("text", record["text"])] for record in expected
    ]
    with pytest.raises(
        SourceError, match=r"p-0\.\w+: columns names 'txt', expected one of row, text, messages"
    ):
        open_source(paths, cache=cache, columns=["txt"])
    for wrong in ("text", [], [1]):
        with pytest.raises(SourceError, match="expected a list of column names"):
            open_source(paths, cache=cache, columns=wrong)


def test_a_column_with_a_dot_is_not_a_field_of_another(tmp_path: Path, cache: Cache) -> None:
    table = pa.table({"a": [{"b": 1}, {"b": 2}], "a.b": [3, 4], "c": [5, 6]})
    paths, expected = write("parquet", tmp_path, [table])
    assert list(open_source(paths, cache=cache)) == expected
    assert list(open_source(paths, cache=cache, columns=["a"])) == [
        {"a": {"b": 1}},
        {"a": {"b": 2}},
    ]
    assert list(open_source(paths, cache=cache, columns=["a.b"])) == [{"a.b": 3}, {"a.b": 4}]


@every_kind
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"row": pa.array(["1"])}, r"column 'row' is int64 in .*p-0\.\w+ and string in .*p-1\.\w+"),
        (
            {"more": pa.array([1])},
            r"column 'more' is missing in .*p-0\.\w+ and int64 in .*p-1\.\w+",
        ),
        ({"text": None}, r"column 'text' is string in .*p-0\.\w+ and missing in .*p-1\.\w+"),
        (
            {"messages": pa.array([[{"role": "a", "content": 1}]])},
            r"column 'messages' is list<.*string.*> in .*p-0.* and list<.*int64.*> in .*p-1",
        ),
    ],
)
def test_files_of_other_schemas_are_refused(
    kind: str, changed: dict[str, Any], message: str, tmp_path: Path, cache: Cache
) -> None:
    table = plain_table(1)
    columns: dict[str, Any] = {name: table[name] for name in table.column_names} | changed
    other = pa.table({name: column for name, column in columns.items() if column is not None})
    paths, _ = write(kind, tmp_path, [table, other])
    with pytest.raises(SourceError, match=message) as caught:
        open_source(paths, cache=cache)
    assert "\n" not in str(caught.value)
    shared = next(name for name in ("row", "text", "messages") if name not in changed)
    assert len(open_source(paths, cache=cache, columns=[shared])) == 2


def test_columns_in_another_order_are_refused_and_other_layouts_of_the_same_values_are_not(
    tmp_path: Path, cache: Cache
) -> None:
    table = plain_table(3)
    paths, _ = write("parquet", tmp_path, [table, table.select(["text", "row", "messages"])])
    with pytest.raises(
        SourceError, match=r"columns are in another order: row, text, messages in .*p-0"
    ):
        open_source(paths, cache=cache)
    for number, kind in enumerate([pa.large_string(), pa.dictionary(pa.int32(), pa.string())]):
        paths, expected = write(
            "file",
            tmp_path / str(number),
            [table, table.set_column(1, "text", table["text"].cast(kind))],
        )
        assert list(open_source(paths, cache=cache)) == expected


@every_kind
def test_json_in_text_is_parsed_on_request(kind: str, tmp_path: Path, cache: Cache) -> None:
    cells = [
        '[{"role": "user", "x": null}]',
        None,
        '{"n": 123456789012345678901234567890}',
        '[{"role"',
        '"text"',
        "",
    ]
    paths, _ = write(
        kind,
        tmp_path,
        [pa.table({"n": range(6), "messages": pa.array(cells, type=pa.string())})],
        4,
    )
    assert [
        record["messages"] for record in open_source(paths, cache=cache)
    ] == cells  # as stored, unless asked for
    with pytest.raises(BadRecord, match=r"p-0\.\w+:4: column 'messages' is not JSON: .*record 3"):
        list(open_source(paths, cache=cache, json_columns=["messages"]))
    source = open_source(paths, cache=cache, json_columns=["messages"], bad=BadRows("skip"))
    parsed = [json.loads(cell) if cell else cell for cell in cells if cell not in ('[{"role"', "")]
    assert [record["messages"] for record in source] == parsed
    assert source.bad_counts == {"bad_json": 2} and source.bad.rows == [3, 5]
    with pytest.raises(BadRecord, match="record 5"):
        source[5]
    with pytest.raises(SourceError, match="column 'n' is int64, expected text that holds JSON"):
        open_source(paths, cache=cache, json_columns=["n"])
    with pytest.raises(
        SourceError, match="json_columns names 'messages', which columns leaves out"
    ):
        open_source(paths, cache=cache, columns=["n"], json_columns=["messages"])


def test_nanoseconds_become_python_times_or_a_bad_row(tmp_path: Path, cache: Cache) -> None:
    """pyarrow alone would give pandas' types here, or not, depending on what is installed."""
    stamps = pa.array([1_000, 1_001, None], type=pa.timestamp("ns", "UTC"))
    nested = pa.array(
        [[{"t": 5_000}], [], None], type=pa.list_(pa.struct([("t", pa.duration("ns"))]))
    )
    fixed = pa.array([[1_000], None, [3_000]], type=pa.list_(pa.time64("ns"), 1))
    mapped = pa.array([[("k", 1_000)], [], None], type=pa.map_(pa.string(), pa.timestamp("ns")))
    paths, _ = write(
        "file",
        tmp_path,
        [pa.table({"nested": nested, "fixed": fixed, "mapped": mapped, "at": stamps})],
        2,
    )
    source = open_source(paths, cache=cache, bad=BadRows("skip"))
    epoch = datetime.datetime(1970, 1, 1)
    first, last = list(source)
    assert first == {
        "nested": [{"t": datetime.timedelta(microseconds=5)}],
        "fixed": [datetime.time(microsecond=1)],
        "mapped": [("k", epoch.replace(microsecond=1))],
        "at": epoch.replace(microsecond=1, tzinfo=datetime.UTC),
    }
    assert (
        type(first["at"]) is datetime.datetime
        and type(first["nested"][0]["t"]) is datetime.timedelta
    )
    assert last == {
        "nested": None,
        "fixed": [datetime.time(microsecond=3)],
        "mapped": None,
        "at": None,
    }
    with pytest.raises(
        BadRecord, match=r"p-0\.arrow:2: column 'at' cannot be read: .*would lose data.*record 1"
    ):
        source[1]


class Celsius(pa.ExtensionType):
    """A type that only this process knows."""

    def __init__(self) -> None:
        super().__init__(pa.timestamp("ns"), "penstock.test.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: Any, serialized: bytes) -> "Celsius":
        return cls()


def test_an_extension_type_reads_the_same_whether_somebody_registered_it_or_not(
    tmp_path: Path, cache: Cache
) -> None:
    storage = pa.array([1_000, None], type=pa.timestamp("ns"))
    table = pa.table({"t": pa.ExtensionArray.from_storage(Celsius(), storage)})
    write_stream(table, tmp_path / "a.arrow", 5)
    expected = [{"t": datetime.datetime(1970, 1, 1, microsecond=1)}, {"t": None}]
    assert list(open_source([str(tmp_path / "a.arrow")], cache=cache)) == expected
    pa.register_extension_type(Celsius())
    try:
        source = open_source([str(tmp_path / "a.arrow")], cache=cache)
        assert list(source) == expected and type(source[0]["t"]) is datetime.datetime
    finally:
        pa.unregister_extension_type("penstock.test.celsius")


def bad_text() -> pa.Table:
    offsets, data = np.array([0, 1, 2, 3], dtype=np.int32), b"a\xffc"
    text = pa.StringArray.from_buffers(3, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data))
    return pa.table(
        {"row": [0, 1, 2], "text": text, "year": pa.array([0, 0, 10**13], type=pa.timestamp("s"))}
    )


def test_values_that_python_cannot_hold_are_bad_rows(tmp_path: Path, cache: Cache) -> None:
    pq.write_table(bad_text(), tmp_path / "a.parquet")
    source = open_source([str(tmp_path / "a.parquet")], cache=cache, bad=BadRows("skip"))
    assert [record["row"] for record in source] == [0]
    assert source.bad_counts == {"bad_value": 2}
    for row, column in ((1, "text"), (2, "year")):
        with pytest.raises(
            BadRecord, match=rf"a\.parquet:{row + 1}: column '{column}' cannot be read"
        ):
            source[row]
    assert source.digest(1, 2) != source.digest(0, 1)


def test_text_that_is_not_utf_8_stops_an_arrow_batch(tmp_path: Path, cache: Cache) -> None:
    write_stream(bad_text(), tmp_path / "a.arrow", 5)
    source = open_source([str(tmp_path / "a.arrow")], cache=cache)
    for read in (lambda: source[0], lambda: list(source), lambda: source.digest(0, 1)):
        with pytest.raises(SourceError, match=r"a\.arrow: cannot be read as Arrow: .*UTF8"):
            read()


def test_two_columns_of_one_name_are_refused(tmp_path: Path, cache: Cache) -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    inner = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["b", "b"])
    for number, (table, name) in enumerate(
        [(twice, "'a'"), (pa.table({"a": [[1]], "c": inner}), r"'c\.b'")]
    ):
        write_stream(table, tmp_path / f"{number}.arrow", 5)
        with pytest.raises(SourceError, match=rf"{number}\.arrow: column {name} is there twice"):
            open_source([str(tmp_path / f"{number}.arrow")], cache=cache)


def test_dictionaries_that_grow_or_change_in_a_stream(tmp_path: Path, cache: Cache) -> None:
    for deltas in (True, False):
        path, expected = tmp_path / f"{deltas}.arrow", []
        words: list[str] = []
        schema = pa.schema(
            [
                ("w", pa.dictionary(pa.int8(), pa.string())),
                ("v", pa.dictionary(pa.int8(), pa.string())),
            ]
        )
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
        with pa.ipc.new_stream(path, schema, options=options) as writer:
            for number in range(6):
                words = [*words, f"w{number}"] if deltas else [f"{number}", f"x{number}"]
                indices = pa.array([len(words) - 1, 0, None], type=pa.int8())
                constant = pa.DictionaryArray.from_arrays(
                    pa.array([0, 0, 0], type=pa.int8()), pa.array(["same"])
                )
                batch = pa.record_batch(
                    [pa.DictionaryArray.from_arrays(indices, pa.array(words)), constant],
                    schema=schema,
                )
                writer.write_batch(batch)
                expected += [
                    {"w": words[-1], "v": "same"},
                    {"w": words[0], "v": "same"},
                    {"w": None, "v": "same"},
                ]
        source = open_source([str(path)], cache=cache)
        check_source(source, expected=expected)
        assert eager("stream", path) == expected
        assert [source[row] for row in reversed(range(18))] == expected[::-1]
        needed = [len(source._rows(0).dictionaries(batch)) for batch in range(6)]  # type: ignore[attr-defined]  # with those that were replaced it would be more
        assert needed == ([2, 3, 4, 5, 6, 7] if deltas else [2] * 6)


def test_a_dictionary_that_gives_up_half_way_comes_in_pieces(tmp_path: Path, cache: Cache) -> None:
    words = ["same"] * 50 + [f"word {number} " * 20 for number in range(200)]
    table = pa.table(
        {
            "w": pa.array(words).dictionary_encode(),
            "at": pa.array([1000] * 250, type=pa.timestamp("ns")),
        }
    )
    pq.write_table(
        table,
        tmp_path / "a.parquet",
        dictionary_pagesize_limit=512,
        data_page_size=256,
        write_batch_size=10,
    )
    source = open_source([str(tmp_path / "a.parquet")], cache=cache)
    assert [record["w"] for record in source] == words and source[200]["w"] == words[200]
    assert source[0]["at"] == datetime.datetime(1970, 1, 1, microsecond=1)


def test_what_is_decoded_is_bounded_in_bytes(tmp_path: Path, cache: Cache) -> None:
    path = str(tmp_path / "a.parquet")
    chance = random.Random(0)
    table = pa.table({"text": [chance.randbytes(500).hex() for _ in range(4000)]})
    pq.write_table(table, path, row_group_size=1000, use_dictionary=False)
    expected = table.to_pylist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columnar, "SLICE_BYTES", 20_000)
        source = open_source([path], cache=cache, cache_bytes=100_000)
        before = pa.total_allocated_bytes()
        for row in [0, 999, 3500, 1, 2500, 2501, 998, *range(0, 4000, 37)]:
            assert source[row] == expected[row]
            assert (
                source.reader.columns.decoded.num_bytes <= 100_000
                or len(source.reader.columns.decoded._kept) == 1
            )
            assert (
                pa.total_allocated_bytes() - before < 3_000_000
            )  # of 4 MB, with the readers' own buffers
        assert list(source) == expected


def test_the_byte_cache_drops_the_oldest_and_keeps_the_last() -> None:
    kept = ByteCache(100)
    for number in range(10):
        kept.put(number, str(number), 30)
        kept.get(0)
    assert [number for number in range(10) if kept.get(number)] == [0, 8, 9]
    kept.put("large", "large", 1000)
    assert kept.get("large") == "large" and kept.get(9) is None and kept.num_bytes == 1000
    kept.put("large", "less", 10)
    assert (
        kept.num_bytes == 10
        and kept.pop("large") == "less"
        and kept.num_bytes == 0
        and kept.pop("large") is None
    )


def test_groups_are_not_begun_again(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sources.parquet.slice_rows", no_sooner)
    paths, expected = write("parquet", tmp_path, [plain_table(300)], rows=300)
    begun: list[int] = []

    def opened(cache_bytes: int) -> RowAccess:
        begun.clear()
        source = open_source(paths, cache=cache, cache_bytes=cache_bytes)
        part = source._rows(0)
        real = part._read  # type: ignore[attr-defined]
        monkeypatch.setattr(part, "_read", lambda group: begun.append(group) or real(group))
        return source

    source = opened(64 << 20)
    found = [record for start in range(0, 300, 10) for record in source.records(start, start + 10)]
    assert found == expected and begun == [0]  # reading on continues
    for cache_bytes in (64 << 20, 1_000_000):  # the second is too small to keep a reader at hand
        source = opened(cache_bytes)
        assert [source[row] for row in (0, 299, 5, 150, 298)] == [
            expected[row] for row in (0, 299, 5, 150, 298)
        ]
        assert begun == [0]  # a group that fits is decoded whole


def test_a_page_that_is_not_its_checksum_is_refused(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"n": range(1000)}),
        path,
        write_page_checksum=True,
        use_dictionary=False,
        compression="none",
    )
    content = bytearray(path.read_bytes())
    content[4000] ^= 1  # a number, in the middle of the page
    path.write_bytes(content)
    source = open_source([str(path)], cache=cache)
    for read in (lambda: source[0], lambda: list(source)):
        with pytest.raises(SourceError, match=r"a\.parquet: cannot be read as Parquet: .*CRC"):
            read()


def test_parquet_is_cut_between_row_groups(tmp_path: Path, cache: Cache) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(plain_table(1000), path, row_group_size=100)
    source = open_source([path], cache=cache)
    size = source._rows(0).num_bytes
    cuts = source.cuts(num_bytes=size // 4, num_rows=10**6).tolist()
    assert len(cuts) >= 4 and all(cut % 100 == 0 for cut in cuts)
    inside = source.cuts(num_bytes=size // 50, num_rows=10**6).tolist()
    assert len(inside) == pytest.approx(50, rel=0.3) and inside[-1] == 1000


@every_kind
def test_a_file_that_changes_while_open_is_refused(kind: str, tmp_path: Path, cache: Cache) -> None:
    paths, _ = write(kind, tmp_path, [plain_table(2000)], rows=100)
    source = open_source(paths, cache=cache)
    iterator = iter(source)
    next(iterator)
    with Path(paths[0]).open("r+b") as file:
        file.truncate(100)  # a map of it would end the process, were it looked at now
    reads: list[Callable[[], Any]] = [
        lambda: list(source),
        lambda: source.digest(0, 5),
        lambda: list(iterator),
    ]
    if kind != "parquet":
        reads.append(lambda: source[1999])
    for read in reads:
        with pytest.raises(SourceChanged, match="changed while open"):
            read()


@every_kind
def test_no_rows_are_no_error(kind: str, tmp_path: Path, cache: Cache) -> None:
    paths, _ = write(kind, tmp_path, [plain_table(0)])
    source = open_source(paths, cache=cache)
    check_source(source, expected=[])
    paths, expected = write(
        kind, tmp_path / "more", [plain_table(0), plain_table(3), plain_table(0)]
    )
    check_source(open_source(paths, cache=cache), expected=expected)


@pytest.mark.parametrize("version", [pa.ipc.MetadataVersion.V4, pa.ipc.MetadataVersion.V5])
def test_what_older_versions_of_arrow_wrote_is_read(
    tmp_path: Path, cache: Cache, version: Any
) -> None:
    table = plain_table(50).append_column("word", pa.array(["x", "y"] * 25).dictionary_encode())
    options = pa.ipc.IpcWriteOptions(use_legacy_format=True, metadata_version=version)
    for number, make in enumerate((pa.ipc.new_stream, pa.ipc.new_file)):
        path = tmp_path / f"{number}.arrow"
        with make(path, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=20)
        assert list(open_source([str(path)], cache=cache)) == table.to_pylist()


def test_rows_without_columns(tmp_path: Path, cache: Cache) -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, type=pa.struct([])))
    with pa.ipc.new_stream(tmp_path / "a.arrow", batch.schema) as writer:
        writer.write_batch(batch)
    check_source(open_source([str(tmp_path / "a.arrow")], cache=cache), expected=[{}, {}, {}])
    pq.write_table(pa.table({}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"a\.parquet: a Parquet file without columns"):
        open_source([str(tmp_path / "a.parquet")], cache=cache)


def test_parquet_brings_nothing_heavy_along(tmp_path: Path) -> None:
    write_parquet(plain_table(5), tmp_path / "a.parquet", 5)
    script = (
        "import sys\nfrom penstock.cache import Cache\nfrom penstock.sources import open_source\n"
        "assert len(list(open_source(sys.argv[1], cache=Cache.temporary()))) == 5\n"
        "print(sorted({'pyarrow.dataset', 'pandas', 'torch', 'datasets', 'pyarrow.parquet'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "a.parquet")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['pyarrow.parquet']"


def test_feather_of_version_1_is_named(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(100) + b"FEA1")
    with pytest.raises(SourceError, match=r"a\.feather: Feather version 1, expected version 2"):
        open_source([str(tmp_path / "a.feather")], cache=cache)


def test_decimals_survive(tmp_path: Path, cache: Cache) -> None:
    value = decimal.Decimal("12345678901234567890123456789.123456789")
    paths, _ = write(
        "parquet", tmp_path, [pa.table({"d": pa.array([value], type=pa.decimal128(38, 9))})]
    )
    assert open_source(paths, cache=cache)[0] == {"d": value}


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_,
        pa.large_list,
        lambda time: pa.list_(time, 1),
        lambda time: pa.map_(pa.string(), time),
    ],
)
def test_a_bad_time_in_a_list_spoils_no_other_row(
    kind: Callable[[Any], Any], tmp_path: Path, cache: Cache
) -> None:
    """A cast of a slice of lists includes the values next to the slice."""
    made = kind(pa.timestamp("ns"))
    cells: list[Any] = [[1000], [1], None, [2000]]
    if pa.types.is_map(made):
        cells = [cell and [("a", cell[0])] for cell in cells]
    table = pa.table({"when": pa.array(cells, made)})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as out:
        out.write(table)
    records = list(
        open_source(tmp_path / "a.arrow", cache=cache, bad=BadRows("skip")).records(0, 4)
    )
    assert [isinstance(record, BadRow) for record in records] == [False, True, False, False]
