"""Files of every format, cut off or with changed bytes, are read or refused by name: no other error, no hang, no crash.

A11.  Each damage is drawn from a seed, so a failure can be repeated; PENSTOCK_SOAK draws many more.
"""

import inspect
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.cache import Cache
from penstock.errors import PenstockError
from penstock.sources import BadRows, open_source
from penstock.types import BadRow
from tests.contracts.test_sources import OF_SHAPES, Made, compressed
from tests.policy import SOAK

DAMAGES = 400 if SOAK else 12
MOST_SECONDS = 20  # of one damaged file; the slowest takes a tenth of a second

ROWS: list[dict[str, Any]] = [
    {
        "messages": [
            {"role": "user", "content": f"héllo {row}"},
            {"role": "assistant", "content": None},
        ],
        "when": None if row % 3 else 1_700_000_000_000_000_000 + row,
        "kind": f"k{row % 4}",
        "score": [float(row)] * (row % 3),
        "raw": bytes([row % 256]) * (row % 5),
    }
    for row in range(60)
]
SCHEMA = pa.schema(
    [
        ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("when", pa.timestamp("ns")),
        ("kind", pa.dictionary(pa.int32(), pa.string())),
        ("score", pa.list_(pa.float64())),
        ("raw", pa.binary()),
    ]
)


def nested_parquet(folder: Path) -> Made:
    table = pa.Table.from_pylist(ROWS, SCHEMA)
    pq.write_table(table, folder / "a.parquet", row_group_size=25, compression="zstd")
    return Made(folder / "a.parquet", ROWS)


def plain_parquet(folder: Path) -> Made:
    table = pa.Table.from_pylist(ROWS, SCHEMA)
    options = {"compression": "none", "use_dictionary": False, "data_page_size": 200}
    pq.write_table(table, folder / "a.parquet", row_group_size=25, **options)
    return Made(folder / "a.parquet", ROWS)


def arrow_file(folder: Path) -> Made:
    with pa.ipc.new_file(folder / "a.arrow", SCHEMA) as writer:
        writer.write_table(pa.Table.from_pylist(ROWS, SCHEMA), max_chunksize=25)
    return Made(folder / "a.arrow", ROWS)


def packed_stream(folder: Path) -> Made:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(folder / "a.arrow", SCHEMA, options=options) as writer:
        writer.write_table(pa.Table.from_pylist(ROWS, SCHEMA), max_chunksize=25)
    return Made(folder / "a.arrow", ROWS)


MAKERS: list[Callable[[Path], Made]] = [
    *OF_SHAPES.values(),
    compressed,
    nested_parquet,
    plain_parquet,
    arrow_file,
    packed_stream,
]


def damage(path: Path, chance: random.Random) -> str:
    """Change a file, and say how."""
    data = bytearray(path.read_bytes())
    if not data:
        return "nothing"
    how = chance.choice(["cut", "flip", "flip", "flip", "zeros", "numbers", "append"])
    # headers and footers are where readers take sizes from
    reach = chance.choice([len(data), min(64, len(data)), min(600, len(data))])
    place = chance.randrange(reach)
    if chance.random() < 0.5:
        place = len(data) - 1 - place
    if how == "cut":
        data = data[:place]
    elif how == "flip":
        for _ in range(chance.randint(1, 4)):
            near = min(len(data) - 1, place + chance.randrange(40))
            data[near] ^= 1 << chance.randrange(8)
    elif how == "zeros":
        stop = min(len(data), place + chance.randrange(1, 200))
        data[place:stop] = bytes(stop - place)
    elif how == "numbers":
        value = chance.choice(
            [b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\0\0\0\1"]
        )
        data[place : place + 4] = value
    else:
        data += bytes(chance.randrange(256) for _ in range(chance.randint(1, 50)))
    path.write_bytes(data)
    return f"{how} at {place} of {path.name}"


def use(place: Any, cache: Cache, options: dict[str, Any], chance: random.Random) -> None:
    """Read a source in every way that prepare and the commands do."""
    source = open_source(place, cache=cache, bad=BadRows("skip"), **options)
    rows = len(source)
    for record in source.records(0, rows):
        assert isinstance(record, dict | BadRow)
    if rows:
        source.digest(0, rows)
        source.cuts(num_bytes=1000, num_rows=50)
        chosen = np.array(sorted(chance.sample(range(rows), min(5, rows))))
        for row in chosen.tolist():
            source.locate(row)
            try:
                source[row]
            except PenstockError:
                continue
    source.describe()


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_damaged_file_is_read_or_refused_by_name(
    make: Callable[[Path], Made], tmp_path: Path
) -> None:
    """A11: raw errors came from arrow.py and values.py."""
    whole = tmp_path / "whole"
    whole.mkdir()
    made = make(whole)
    refused = 0
    for seed in range(DAMAGES):
        chance = random.Random(f"{make.__name__} {seed}")
        copy = tmp_path / f"copy{seed}"
        shutil.copytree(whole, copy)
        files = sorted(path for path in copy.rglob("*") if path.is_file())
        how = damage(chance.choice(files), chance)
        place = str(made.place).replace(str(whole), str(copy))
        began = time.monotonic()
        try:
            use(place, Cache(tmp_path / f"cache{seed}"), made.options, chance)
        except PenstockError as error:
            refused += 1
            assert str(error), f"seed {seed}: {how}: an error without words"
        except Exception as error:
            raise AssertionError(f"seed {seed}: {how}: {type(error).__name__}: {error}") from error
        assert time.monotonic() - began < MOST_SECONDS, f"seed {seed}: {how}"
        shutil.rmtree(copy)
        shutil.rmtree(tmp_path / f"cache{seed}", ignore_errors=True)


@pytest.mark.parametrize("make", [arrow_file, packed_stream])
def test_a_flipped_bit_in_the_headers_of_arrow_is_a_source_error(
    make: Callable[[Path], Made], tmp_path: Path
) -> None:
    """A11: offsets that lead out of a message's header raised struct.error."""
    made = make(tmp_path)
    data = made.place.read_bytes()
    place = tmp_path / "damaged.arrow"
    cache = Cache(tmp_path / "cache")
    first_batch = data.index(b"\xff\xff\xff\xff", 16)  # behind the schema: a message begins
    chosen = [*range(64), *range(first_batch, min(len(data), first_batch + 500))]
    for number, byte in enumerate(chosen):
        damaged = bytearray(data)
        damaged[byte] ^= 1 << (number % 8)
        place.write_bytes(damaged)
        try:
            list(open_source(place, cache=cache, bad=BadRows("skip")).records(0, 1))
        except PenstockError as error:
            assert str(place) in str(error)


def test_types_that_penstock_cannot_hold_are_named_with_their_file(tmp_path: Path) -> None:
    """A11: types that are nested too deep were a raw RecursionError of values.py."""
    deep = pa.int64()
    for _ in range(60):  # Arrow reads no more
        deep = pa.struct([("a", deep)])
    schema = pa.schema([("deep", deep)])
    with pa.ipc.new_stream(tmp_path / "a.arrow", schema) as writer:
        writer.write_batch(pa.record_batch([pa.nulls(3, deep)], schema))
    limit = sys.getrecursionlimit()
    depth = len(inspect.stack())
    sys.setrecursionlimit(depth + 110)
    try:
        with pytest.raises(PenstockError, match=r"a\.arrow: cannot be read as"):
            open_source(tmp_path / "a.arrow", cache=Cache(tmp_path / "cache"))[0]
    finally:
        sys.setrecursionlimit(limit)


def test_a_table_of_many_columns_is_opened_in_time_that_grows_with_them(tmp_path: Path) -> None:
    """A10: 40,000 columns took 18 seconds, because each name was counted in the list of all names."""
    names = [f"column {number}" for number in range(40_000)]
    (tmp_path / "a.csv").write_text(",".join(names) + "\n" + ",".join("1" * len(names)) + "\n1,2\n")
    began = time.monotonic()
    source = open_source(tmp_path / "a.csv", cache=Cache(tmp_path / "cache"), bad=BadRows("skip"))
    assert source[0] == dict.fromkeys(names, "1")
    [bad] = list(source.records(1, 2))
    assert time.monotonic() - began < 3
    assert isinstance(bad, BadRow) and len(bad.message) < 1000  # not all names, for every bad row
    (tmp_path / "b.csv").write_text(",".join([*names, names[-1]]) + "\n1\n")
    with pytest.raises(PenstockError, match="column 'column 39999' is named twice"):
        open_source(tmp_path / "b.csv", cache=Cache(tmp_path / "cache"))
    assert time.monotonic() - began < 6
    table = pa.table({name: [1] for name in names[:10_000]})
    for number in range(2):
        with pa.ipc.new_file(tmp_path / f"{number}.arrow", table.schema) as writer:
            writer.write_table(table)
    began = time.monotonic()
    arrow = open_source(tmp_path / "*.arrow", cache=Cache(tmp_path / "cache"))
    assert len(arrow) == 2 and len(arrow[1]) == 10_000
    assert time.monotonic() - began < 5
