"""Are token files of Megatron, datatrove, nanoGPT, llm.c and OLMo, and folders of MDS and litdata, read exactly or refused by name?"""

import io
import json
import pickle
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.cache import Cache
from penstock.errors import BadRecord, SourceChanged, SourceError
from penstock.sources import RowAccess, open_source
from penstock.testing import check_source
from tests.extras.formats import token_files

FOREIGN = Path(__file__).parent / "foreign"
EXPECTED = json.loads((FOREIGN / "expected.json").read_text())
ROWS = [[5, 6, 0], [7, 0], [8, 9, 10, 11, 0]]
RELAXED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def ids(source: RowAccess, key: str = "input_ids") -> list[list[int]]:
    return [record[key].tolist() for record in source]


def refused(place: Path, cache: Cache, **options: Any) -> str:
    with pytest.raises(SourceError) as caught:
        list(open_source(place, cache=cache, **options))
    return str(caught.value)


# Files that the tools themselves wrote (foreign/make.py).


def test_megatron_core_s_files_are_read_by_sequence_and_by_document(cache: Cache) -> None:
    for name in ("docs", "sentences"):
        for sample in ("sequence", "document"):
            source = open_source(FOREIGN / "megatron" / name, cache=cache, sample=sample)
            check_source(source)
            assert ids(source) == EXPECTED[f"megatron/{name}"][f"{sample}s"]
    assert (
        ids(open_source(FOREIGN / "megatron" / "docs.idx", cache=cache))
        == EXPECTED["megatron/docs"]["documents"]
    )
    message = refused(FOREIGN / "megatron" / "sentences.bin", cache)
    assert message.endswith(
        "12 documents; say what a sample is with the option sample: sequence or document"
    )


def test_datatrove_s_files_are_read_with_their_loss_masks(cache: Cache) -> None:
    for name in ("plain", "loss"):
        source = open_source(FOREIGN / "datatrove" / f"{name}.ds", cache=cache)
        check_source(source)
        assert ids(source) == EXPECTED[f"datatrove/{name}"]["documents"]
    assert ids(source, "loss_mask") == EXPECTED["datatrove/loss"]["masks"]


@pytest.mark.parametrize("name", ["tokens", "zstd", "gz", "bz2", "br", "snappy"])
def test_mosaicml_streaming_s_shards_are_read_plain_and_compressed(name: str, cache: Cache) -> None:
    source = open_source(FOREIGN / "mds" / name, cache=cache)
    check_source(source)
    assert [[record["tokens"].tolist(), record["source"]] for record in source] == EXPECTED[
        f"mds/{name}"
    ]


def test_every_safe_encoding_of_mds_is_read(cache: Cache) -> None:
    found = open_source(FOREIGN / "mds" / "types", cache=cache)[0]
    record = {name.removeprefix("c "): value for name, value in found.items()}
    pil = pytest.importorskip("PIL.Image")
    for name in ("pil", "png"):
        image = pil.open(io.BytesIO(record.pop(name)["bytes"]))
        assert np.array_equal(np.asarray(image), np.arange(36).reshape(4, 3, 3))
    assert pil.open(io.BytesIO(record.pop("jpeg")["bytes"])).size == (3, 4)
    assert [each["bytes"][:4] for each in record.pop("list[png]")] == [b"\x89PNG"] * 2
    assert [each["bytes"][:11] for each in record.pop("list[pil]")] == [b"P6 3 4 255\n"]
    assert [each["bytes"] for each in record.pop("jpeg_array")] == [b"\xff\xd8a", b"\xff\xd8bc"]
    arrays = {
        name: record.pop(name) for name in ("ndarray", "ndarray:float32", "ndarray:uint8:2,2")
    }
    assert (
        arrays["ndarray"].tolist() == [[0, 1, 2], [3, 4, 5]] and arrays["ndarray"].dtype == np.int16
    )
    assert arrays["ndarray:float32"].tolist() == [1.0] * 300 and arrays[
        "ndarray:uint8:2,2"
    ].tolist() == [
        [1, 2],
        [3, 4],
    ]
    plain = {"bytes": b"\x00\xff", "str": "Text ü", "int": -5, "str_int": 10**30, "str_float": 0.1}
    plain |= {"str_decimal": Decimal("1.50"), "json": {"a": [1, None]}}
    assert (
        record == {**plain, **{name: 3 for name in record if name not in plain}}
        and len(record) == 18
    )


def test_litdata_s_chunks_are_read(cache: Cache) -> None:
    for name in ("tokens", "dict", "zstd"):
        source = open_source(FOREIGN / "litdata" / name, cache=cache)
        check_source(source)
        assert ids(source) == EXPECTED["litdata"]
    assert [
        record["field_0"].tolist()
        for record in open_source(FOREIGN / "litdata" / "list", cache=cache)
    ] == EXPECTED["litdata"]
    record = source[7]
    assert (record["n"], record["x"], record["ok"], record["text"], record["raw"]) == (
        7,
        1.75,
        False,
        "Zeile 7 ü",
        b"\x07",
    )
    assert record["grid"].tolist() == [[7, 7], [7, 7]] and record["grid"].dtype == np.uint16
    assert record["matrix"].tolist() == [[7, 7], [7, 7]] and record["flat"].tolist() == [*range(7)]


def test_pickled_fields_are_refused_by_name(cache: Cache) -> None:
    assert "the column 'x' is pickled (pkl): reading it runs code" in refused(
        FOREIGN / "mds" / "pickled", cache
    )
    assert "the leaf 'x' is pickled (pickle): reading it runs code" in refused(
        FOREIGN / "litdata" / "pickled", cache
    )


def test_what_litdata_writes_in_other_ways_is_refused_by_name(cache: Cache) -> None:
    assert "compression_level is 'batch', expected whole chunks" in refused(
        FOREIGN / "litdata" / "framed", cache
    )
    assert "rows are a table of Arrow" in refused(FOREIGN / "litdata" / "arrow", cache)


# Files without a package that writes them.


def test_raw_ids_are_cut_behind_or_at_the_end_of_text(tmp_path: Path, cache: Cache) -> None:
    for name, kind, dtype in (("a.bin", "u2", "uint16"), ("b.npy", "u4", "uint32")):
        (tmp_path / name).write_bytes(token_files.ids_bytes([*ROWS, [1, 2]], kind))
        source = open_source(tmp_path / name, cache=cache, dtype=dtype, eot=0)
        check_source(source)
        assert ids(source) == [*ROWS, [1, 2]]
        assert ids(open_source(tmp_path / name, cache=cache, dtype=dtype, eot=0, eot_at="start"))[
            1
        ] == [0, 7]


@pytest.mark.parametrize("magic", [20240520, 20240801])
def test_files_of_llm_c_say_their_type_and_begin_texts_with_the_end_of_text(
    magic: int, tmp_path: Path, cache: Cache
) -> None:
    token_files.write_llm_c(tmp_path / "a.bin", [[0, 5, 6], [0, 7]], magic)
    source = open_source(tmp_path / "a.bin", cache=cache, eot=0)
    check_source(source)
    assert ids(source) == [[0, 5, 6], [0, 7]] and source.locate(1).byte == 1024 + 3 * (
        2 if magic == 20240520 else 4
    )
    assert "leave it out" in refused(tmp_path / "a.bin", cache, eot=0, dtype="int64")


def test_borders_beside_a_memmap_of_olmo_are_used(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "p.npy").write_bytes(token_files.ids_bytes(ROWS, "u2"))
    token_files.write_borders(tmp_path / "p.csv.gz", ROWS)
    source = open_source(tmp_path / "p.npy", cache=cache, dtype="uint16")
    check_source(source)
    assert ids(source) == ROWS
    for wrong, said in (
        ([*ROWS[:2], [1]], "the last text ends at id 6"),
        ([*ROWS, [1]], "line 4 (byte "),
    ):
        token_files.write_borders(tmp_path / "p.csv.gz", wrong)
        assert said in refused(tmp_path / "p.npy", cache, dtype="uint16")


def test_what_nothing_tells_is_asked_for(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(token_files.ids_bytes(ROWS, "u2"))
    assert "set the option dtype: uint16 (nanoGPT) or uint32; if it is of Megatron" in refused(
        path, cache
    )
    assert "nothing says where samples begin" in refused(path, cache, dtype="uint16")
    assert "none of 10 ids (uint16) is 50256; check eot and dtype" in refused(
        path, cache, dtype="uint16", eot=50256
    )
    assert "20 bytes from byte 0 on are not a whole number of int64 values" in refused(
        path, cache, dtype="int64", eot=0
    )
    assert "dtype is 'u2', expected one of" in refused(path, cache, dtype="u2", eot=0)
    assert "eot is '0', expected the id" in refused(path, cache, dtype="uint16", eot="0")
    assert "eot_at is 'front'" in refused(path, cache, dtype="uint16", eot=0, eot_at="front")
    np.save(tmp_path / "b.npy", np.arange(4))
    assert "an array that np.save wrote, expected raw ids" in refused(
        tmp_path / "b.npy", cache, dtype="uint16", eot=0
    )
    (tmp_path / "a.ds").write_bytes(b"\0\0")
    assert "a.ds.index: nothing found, expected the ends of documents" in refused(
        tmp_path / "a.ds", cache
    )


def test_tokens_as_bytes_are_read_if_their_type_is_given(tmp_path: Path, cache: Cache) -> None:
    row = np.array([3, 4, 5], "<i8").tobytes()
    raw = token_files.chunk([struct.pack("<I", len(row)) + row])
    (tmp_path / "shard.00000.mds").write_bytes(raw)
    entry = {
        "column_names": ["tokens"],
        "column_encodings": ["bytes"],
        "column_sizes": [None],
        "samples": 1,
        "format": "mds",
        "version": 2,
        "compression": None,
        "zip_data": None,
        "raw_data": {"basename": "shard.00000.mds", "bytes": len(raw)},
    }
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    assert ids(open_source(tmp_path, cache=cache, arrays={"tokens": "int64"}), "tokens") == [
        [3, 4, 5]
    ]
    assert open_source(tmp_path, cache=cache)[0] == {"tokens": row}
    assert "arrays has ids: int64, expected one of the columns tokens" in refused(
        tmp_path, cache, arrays={"ids": "int64"}
    )


# Round trips, and what damage does.

MATRIX = st.lists(st.lists(st.integers(0, 200), max_size=6), max_size=8)


@RELAXED
@given(rows=MATRIX, kind=st.sampled_from(["u1", "u2", "i4", "i8"]))
def test_any_sequences_come_back_from_megatron_s_files(
    rows: list[list[int]], kind: str, new_folder: Callable[[], Path], cache: Cache
) -> None:
    folder = new_folder()
    token_files.write_megatron(folder / "a", rows, kind)
    assert ids(open_source(folder / "a", cache=cache)) == rows
    cut = len(rows) // 2
    token_files.write_megatron(folder / "b", rows, kind, documents=[0, cut, cut, len(rows)])
    documents = [[each for row in part for each in row] for part in (rows[:cut], [], rows[cut:])]
    assert ids(open_source(folder / "b", cache=cache, sample="document")) == documents


@RELAXED
@given(rows=MATRIX, kind=st.sampled_from(["u2", "u4"]))
def test_any_texts_come_back_from_datatrove_s_and_raw_files(
    rows: list[list[int]], kind: str, new_folder: Callable[[], Path], cache: Cache
) -> None:
    folder = new_folder()
    masks = [[value % 2 for value in row] for row in rows]
    token_files.write_datatrove(folder / "a.ds", rows, kind, masks)
    source = open_source(folder / "a.ds", cache=cache)
    assert ids(source) == rows and ids(source, "loss_mask") == masks
    ended = [[*row, 201] for row in rows]
    (folder / "a.bin").write_bytes(token_files.ids_bytes(ended, kind))
    assert (
        ids(open_source(folder / "a.bin", cache=cache, dtype=f"uint{8 * int(kind[1])}", eot=201))
        == ended
    )


@settings(RELAXED, max_examples=150)
@given(data=st.data())
def test_a_damaged_index_of_megatron_never_gives_other_rows(
    data: st.DataObject, new_folder: Callable[[], Path], cache: Cache
) -> None:
    folder = new_folder()
    token_files.write_megatron(folder / "a", ROWS)
    for name in ("a.idx", "a.bin"):
        raw = bytearray((folder / name).read_bytes())
        place = data.draw(st.integers(0, len(raw) - 1))
        if data.draw(st.booleans()) and name == "a.idx":
            raw[place] = data.draw(st.integers(0, 255))
        elif data.draw(st.booleans()):
            del raw[place:]
        (folder / name).write_bytes(raw)
    try:
        assert ids(open_source(folder / "a", cache=cache)) == ROWS
    except SourceError as error:
        assert "a.idx" in str(error) or "a.bin" in str(error)


DAMAGED = (
    "datatrove/loss.ds.index",
    "datatrove/loss.ds",
    "mds/types/shard.00000.mds",
    "mds/types/index.json",
    "mds/snappy/shard.00000.mds.snappy",
    "mds/br/shard.00001.mds.br",
    "litdata/dict/chunk-0-1.bin",
    "litdata/dict/index.json",
    "litdata/tokens/chunk-0-0.bin",
)


@settings(RELAXED, max_examples=150)
@given(data=st.data(), name=st.sampled_from(DAMAGED))
def test_damage_is_an_error_with_the_file_s_name_or_a_bad_row(
    data: st.DataObject, name: str, new_folder: Callable[[], Path], cache: Cache
) -> None:
    folder = new_folder()
    for file in (FOREIGN / name).parent.iterdir():
        raw = bytearray(file.read_bytes())
        if file.name == Path(name).name:
            place = data.draw(st.integers(0, len(raw) - 1))
            raw[place : place + 4] = data.draw(st.binary(max_size=8))
        (folder / file.name).write_bytes(raw)
    try:
        place = folder / "loss.ds" if name.startswith("datatrove") else folder
        for row in (source := open_source(place, cache=cache)).records(0, len(source)):
            assert isinstance(row, dict)
    except SourceError as error:
        assert str(folder) in str(error)


def test_each_lie_of_an_index_is_named_with_its_byte(tmp_path: Path, cache: Cache) -> None:
    token_files.write_megatron(tmp_path / "a", ROWS)
    good = (tmp_path / "a.idx").read_bytes()
    lies = [
        (0, b"X", "begins with b'XMIDIDX"),
        (9, b"\x02", "byte 9 says version 2, expected 1"),
        (17, b"\x07", "byte 17 says type 7 of ids"),
        (18, b"\xff" * 8, "18446744073709551615 sequences"),
        (26, b"\x05", "3 sequences and 5 edges of documents"),
        (34, struct.pack("<i", -3), "sequence 0 has -3 ids (byte 34)"),
        (34 + 12 + 8, struct.pack("<q", 4), "sequence 1 begins at byte 4 of"),
        (
            34 + 12 + 8,
            struct.pack("<q", 1 << 60),
            "(byte 54), expected 6: sequences must be back to back",
        ),
        (34 + 36, struct.pack("<q", 1), "documents begin at sequences [1, 1, 2]… (byte 70)"),
        (34 + 36 + 8, struct.pack("<q", -1), "a document begins at sequence -1 (byte 78)"),
        (34 + 36 + 8, struct.pack("<q", 9), "a document begins at sequence 9 (byte 78)"),
    ]
    for place, lie, said in lies:
        (tmp_path / "a.idx").write_bytes(good[:place] + lie + good[place + len(lie) :])
        assert said in refused(tmp_path / "a", cache), said
    (tmp_path / "a.idx").write_bytes(good + b"\0" * 3)
    assert "a multimodal index" in refused(tmp_path / "a", cache)
    (tmp_path / "a.idx").write_bytes(good)
    (tmp_path / "a.bin").write_bytes(b"\0" * 30)
    assert "30 bytes, but" in refused(tmp_path / "a", cache) and "describes 20" in refused(
        tmp_path / "a", cache
    )


def test_each_lie_of_a_chunk_is_named_with_its_byte(tmp_path: Path, cache: Cache) -> None:
    items = [token_files.litdata_item(struct.pack("<q", row)) for row in range(3)]
    token_files.write_litdata(tmp_path, [items], names=["n"], formats=["int"])
    path = tmp_path / "chunk-0-0.bin"
    good = path.read_bytes()
    lies = [
        (0, struct.pack("<I", 1 << 31), "byte 0 says 2147483648 rows, but"),
        (
            4,
            struct.pack("<I", 3),
            "byte 4 says that row 0 begins at byte 3, expected a number from 20 to",
        ),
        (
            12,
            struct.pack("<I", 21),
            "byte 12 says that row 2 begins at byte 21, expected a number from 32",
        ),
        (16, struct.pack("<I", 1 << 31), "byte 16 says that row 3 begins at byte 2147483648"),
        (16, struct.pack("<I", 50), "6 bytes behind the last row, from byte 50 on"),
        (20, struct.pack("<I", 1 << 31), "the field 'n' ends at byte 2147483652 of 12"),
        (
            20,
            struct.pack("<I", 4),
            "the field 'n' (int) cannot be read: 4 bytes are not int64 values",
        ),
    ]
    for place, lie, said in lies:
        path.write_bytes(good[:place] + lie + good[place + len(lie) :])
        assert said in refused(tmp_path, cache), said
    path.write_bytes(good[:10])
    assert "ends at byte 10, inside its index of 20 bytes" in refused(tmp_path, cache)


def test_descriptions_cannot_lead_out_of_their_folder_or_contradict_it(
    tmp_path: Path, cache: Cache
) -> None:
    token_files.write_mds(tmp_path / "m", [[(row, "a") for row in ROWS]])
    index = json.loads((tmp_path / "m" / "index.json").read_text())

    def with_entry(**changes: Any) -> str:
        changed = {**index, "shards": [{**index["shards"][0], **changes}]}
        (tmp_path / "m" / "index.json").write_text(json.dumps(changed))
        return refused(tmp_path / "m", cache)

    assert "expected one inside its folder" in with_entry(
        raw_data={"basename": "../x.mds", "bytes": 3}
    )
    assert "byte 0 says 3 rows, but" in with_entry(samples=4)
    assert "expected one of format mds" in with_entry(samples=-1)
    assert "expected one of format mds" in with_entry(column_sizes=[None])
    assert "has the unknown encoding 'secret'" in with_entry(column_encodings=["str", "secret"])
    assert "bytes, but" in with_entry(raw_data={**index["shards"][0]["raw_data"], "bytes": 7})
    (tmp_path / "m" / "index.json").write_text(json.dumps(index))
    (tmp_path / "m" / "shard.00009.mds").write_bytes(b"")
    assert "shard.00009.mds: not listed in" in refused(tmp_path / "m", cache)


def test_bad_rows_of_a_chunk_can_be_skipped(tmp_path: Path) -> None:
    items = [token_files.litdata_item(struct.pack("<q", 1)), token_files.litdata_item(b"abc")]
    token_files.write_litdata(tmp_path / "a", [items], names=["n"], formats=["int"])
    with pytest.raises(
        BadRecord, match=r"chunk-0-0.bin:2: the row cannot be read: the field 'n'.*byte 28"
    ):
        list(ps.open(tmp_path / "a", cache_dir=tmp_path / "c"))
    source = ps.open(tmp_path / "a", cache_dir=tmp_path / "c", on_bad="skip")
    assert list(source) == [{"n": 1}] and source.bad_counts == {"bad_value": 1}


def test_a_changed_index_is_noticed_although_the_ids_stay(tmp_path: Path, cache: Cache) -> None:
    token_files.write_megatron(tmp_path / "a", ROWS)
    source = open_source(tmp_path / "a", cache=cache)
    stamp = source.stamp()
    token_files.write_megatron(tmp_path / "b", [ROWS[0] + ROWS[1], ROWS[2]])
    (tmp_path / "b.idx").replace(tmp_path / "a.idx")
    with pytest.raises(SourceChanged, match=r"a\.idx: changed while open"):
        list(source)
    again = open_source(tmp_path / "a", cache=cache)
    assert ids(again) == [ROWS[0] + ROWS[1], ROWS[2]] and again.stamp() != stamp


def test_ids_of_every_format_make_the_same_store(tmp_path: Path, cache: Cache) -> None:
    token_files.write_megatron(tmp_path / "a", ROWS)
    token_files.write_datatrove(tmp_path / "a.ds", ROWS)
    (tmp_path / "raw.bin").write_bytes(token_files.ids_bytes(ROWS, "u2"))
    token_files.write_mds(tmp_path / "m", [[(row, "a") for row in ROWS]])
    options: dict[str, dict[str, Any]] = {
        "a.idx": {},
        "a.ds": {},
        "raw.bin": {"dtype": "uint16", "eot": 0},
        "m": {},
    }
    for name, chosen in options.items():
        source = ps.open(tmp_path / name, cache_dir=tmp_path / "c", **chosen)
        key = {"input_key": "tokens"} if name == "m" else {}
        store = ps.prepare(
            source,
            template="pretokenized",
            vocab_size=20,
            cache_dir=tmp_path / "c",
            progress="none",
            **key,
        )
        assert [sample.input_ids.tolist() for sample in store] == ROWS


def test_a_loss_mask_that_comes_later_is_noticed(tmp_path: Path, cache: Cache) -> None:
    token_files.write_datatrove(tmp_path / "a.ds", ROWS)
    source = pickle.dumps(open_source(tmp_path / "a.ds", cache=cache))
    (tmp_path / "a.ds.loss").write_bytes(bytes(10))
    with pytest.raises(
        SourceChanged, match=r"a\.ds\.loss: was not there when the source was opened"
    ):
        list(pickle.loads(source))


def test_folders_without_chunks_and_options_of_a_wrong_type_are_refused(
    tmp_path: Path, cache: Cache
) -> None:
    token_files.write_litdata(tmp_path / "l", [], names=["n"], formats=["int"])
    assert "chunks is [], expected a list of at least one chunk" in refused(tmp_path / "l", cache)
    token_files.write_mds(tmp_path / "m", [])
    assert "version 2 with 0 shards, expected version 2 and a list of at least one" in refused(
        tmp_path / "m", cache
    )
    token_files.write_mds(tmp_path / "n", [[(row, "a") for row in ROWS]])
    assert "arrays has tokens: ['int64']" in refused(
        tmp_path / "n", cache, arrays={"tokens": ["int64"]}
    )
    (tmp_path / "a.bin").write_bytes(token_files.ids_bytes(ROWS, "u2"))
    assert "dtype is ['uint16'], expected one of" in refused(
        tmp_path / "a.bin", cache, dtype=["uint16"], eot=0
    )
