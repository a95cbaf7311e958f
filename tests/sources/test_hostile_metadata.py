"""Parquet and Arrow files whose metadata lies, swaps bytes or names types that pyarrow cannot give to Python."""

import io
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.sources import open_source

# Opens a Parquet file once for each flipped bit of its footer, and counts what came of it.
FLIP_EVERY_BIT = """
import json, struct, sys
from collections import Counter
from pathlib import Path
from penstock.cache import Cache
from penstock.errors import PenstockError
from penstock.sources import open_source

path, cache, outcomes = Path(sys.argv[1]), Cache(sys.argv[2]), Counter()
whole = path.read_bytes()
first = len(whole) - 8 - struct.unpack("<I", whole[-8:-4])[0]
for bit in range(8 * first, 8 * len(whole)):
    data = bytearray(whole)
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    for options in ({}, {"columns": ["t"]}):
        try:
            list(open_source([str(path)], cache=cache, **options))
            outcomes["read"] += 1
        except PenstockError as error:
            outcomes["refused" if str(path) in str(error) or "names 't'" in str(error) else f"unnamed: {error}"] += 1
print(json.dumps(outcomes))
"""


@pytest.mark.soak
def test_no_flipped_bit_in_a_parquet_footer_ends_the_process(tmp_path: Path) -> None:
    """Twenty of them make pyarrow's accessor of column metadata call std::terminate."""
    path = tmp_path / "small.parquet"
    table = pa.table({"a": [1, 2, 3], "t": ["x", "y", "z"]})
    pq.write_table(table, path, compression="none", write_statistics=False, store_schema=False)
    command = [sys.executable, "-c", FLIP_EVERY_BIT, str(path), str(tmp_path / "cache")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr[-2000:]
    outcomes = json.loads(found.stdout)
    assert set(outcomes) <= {"read", "refused"} and outcomes["refused"] > 500, outcomes


def test_a_parquet_row_group_that_claims_to_be_a_bomb_is_refused_by_name(
    tmp_path: Path, cache: Cache
) -> None:
    path = tmp_path / "bomb.parquet"
    script = (  # in a process of its own, as it takes much memory
        "import sys, pyarrow as pa, pyarrow.parquet as pq\n"
        "table = pa.table({'text': ['x' * (1 << 20)] * 300})\n"
        "pq.write_table(table, sys.argv[1], compression='zstd', use_dictionary=False, data_page_size=1 << 20)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    assert path.stat().st_size < (300 << 20) / 1000
    with pytest.raises(
        SourceError,
        match=r"bomb\.parquet: a row group of .* bytes in a file of .*raise max_expansion",
    ):
        open_source(path, cache=cache)
    assert len(open_source(path, cache=cache, max_expansion=1_000_000)) == 300
    with pytest.raises(SourceError, match="max_expansion is 0, expected a number ≥ 1"):
        open_source(path, cache=cache, max_expansion=0)


def stream(table: pa.Table) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def big_endian(table: pa.Table) -> bytes:
    """The stream of a table of one batch as a big-endian machine writes it: its schema says so, and its numbers are swapped."""
    data = bytearray(stream(table))
    (size,) = struct.unpack_from("<I", data, 4)
    message = 8 + struct.unpack_from("<I", data, 8)[0]
    slots = message - struct.unpack_from("<i", data, message)[0]
    at = (
        message + struct.unpack_from("<H", data, slots + 4 + 2 * 2)[0]
    )  # the message's third field: the schema
    schema = at + struct.unpack_from("<I", data, at)[0]
    slots = schema - struct.unpack_from("<i", data, schema)[0]
    ones = (
        place
        for place in range(schema, 8 + size)
        if place % 2 == 0 and data[place : place + 2] == b"\x01\x00"
    )
    struct.pack_into(
        "<H", data, slots + 4, next(ones) - schema
    )  # its first field: the byte order, left out where it is 0
    body = len(data) - 8
    for column in reversed(table.columns):
        (chunk,) = column.chunks
        for buffer, kind in zip(reversed(chunk.buffers()), kinds(chunk.type), strict=False):
            if buffer is not None:
                start = data.rindex(buffer.to_pybytes(), 0, body)
                data[start : start + len(buffer)] = (
                    np.frombuffer(buffer, dtype=kind).byteswap().tobytes()
                )
                body = start
    return bytes(data)


def kinds(kind: Any) -> list[str]:
    """The types of a column's buffers, the last first."""
    return {"int32": ["<i4"], "int64": ["<i8"], "double": ["<f8"], "string": ["u1", "<i4"]}[
        str(kind)
    ]


@pytest.mark.parametrize("name", ["numbers", "text"])
def test_big_endian_arrow_files_give_the_numbers_that_were_written(
    tmp_path: Path, cache: Cache, name: str
) -> None:
    columns = {
        "numbers": {
            "i": pa.array([1, 2147483647, -129], pa.int32()),
            "d": [0.5, -587.995, 1e300],
            "l": [1, 2**40, -1],
        },
        "text": {"s": ["a", "bc", ""], "n": [1, 2, 3]},
    }[name]
    table = pa.table(columns)
    data = big_endian(table)
    assert data != stream(table)
    assert (
        pa.ipc.open_stream(data).read_all().to_pylist() == table.to_pylist()
    )  # pyarrow agrees that this is big-endian
    (tmp_path / "big.arrow").write_bytes(data)
    source = open_source(tmp_path / "big.arrow", cache=cache)
    assert list(source) == table.to_pylist() and source[1] == table.to_pylist()[1]


def interval(unit: int) -> bytes:
    """A stream with a column of intervals of another unit: months are 0, days and milliseconds 1."""
    data = stream(
        pa.table({"n": [1, 2], "i": pa.array([(1, 2, 3), (4, 5, 6)], pa.month_day_nano_interval())})
    )
    for at in range(len(data)):
        if data[at] == 2:
            changed = data[:at] + bytes([unit]) + data[at + 1 :]
            try:
                kinds = [str(field.type) for field in pa.ipc.open_stream(changed).schema]
            except (pa.ArrowException, OSError):
                continue
            if kinds == ["int64", ("month_interval", "day_time_interval")[unit]]:
                return changed
    raise AssertionError("pyarrow writes the unit elsewhere")


@pytest.mark.parametrize(("unit", "kind"), [(0, "month_interval"), (1, "day_time_interval")])
def test_interval_columns_that_python_cannot_hold_are_refused_by_name(
    tmp_path: Path, cache: Cache, unit: int, kind: str
) -> None:
    (tmp_path / "i.arrow").write_bytes(interval(unit))
    with pytest.raises(
        SourceError, match=rf"i\.arrow: column 'i' holds the Arrow type {kind}, which .* columns="
    ):
        open_source(tmp_path / "i.arrow", cache=cache)
    assert list(open_source(tmp_path / "i.arrow", cache=cache, columns=["n"])) == [
        {"n": 1},
        {"n": 2},
    ]


def every_array() -> dict[str, pa.Array]:
    ends = pa.array([2, 3], pa.int32())
    which, places = pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32())
    codes = pa.array([0, None, 0], pa.int8())
    return {
        "interval": pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
        "decimal256": pa.array([None, 1], pa.decimal256(60, 1)),
        "runs of structs": pa.RunEndEncodedArray.from_arrays(ends, pa.array([{"a": 1}, None])),
        "runs of times": pa.RunEndEncodedArray.from_arrays(
            ends, pa.array([1000, None], pa.timestamp("us"))
        ),
        "list views": pa.array([[1], None], pa.list_view(pa.int64())),
        "large list views": pa.array([["a"], None], pa.large_list_view(pa.string())),
        "dense union": pa.UnionArray.from_dense(which, places, [pa.array([1]), pa.array(["x"])]),
        "sparse union": pa.UnionArray.from_sparse(which, [pa.array([1, 2]), pa.array(["x", "y"])]),
        "dictionary of structs": pa.DictionaryArray.from_arrays(codes, pa.array([{"a": 1}])),
        "dictionary of lists": pa.DictionaryArray.from_arrays(codes, pa.array([[1]])),
        "half": pa.array([1.5, None], pa.float16()),
        "string views": pa.array(["a" * 20, None], pa.string_view()),
        "uuid": pa.ExtensionArray.from_storage(
            pa.uuid(), pa.array([b"a" * 16, None], pa.binary(16))
        ),
        "tensor": pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int32(), [2]),
            pa.array([[1, 2], None], pa.list_(pa.int32(), 2)),
        ),
        "opaque": pa.ExtensionArray.from_storage(
            pa.opaque(pa.binary(), "x", "y"), pa.array([b"a", None])
        ),
    }


@pytest.mark.parametrize("name", every_array())
def test_every_other_arrow_type_is_read_and_digested(
    tmp_path: Path, cache: Cache, name: str
) -> None:
    array = every_array()[name]
    (tmp_path / "a.arrow").write_bytes(stream(pa.table({"c": array})))
    source = open_source(tmp_path / "a.arrow", cache=cache)
    assert [record["c"] for record in source] == array.to_pylist()
    assert len(source.digest(0, len(source))) == 32
