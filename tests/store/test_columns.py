"""Does a store carry the columns that a template declares, and refuse what was not declared?"""

import json
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.cache import Cache
from penstock.engines import LocalEngine
from penstock.errors import StoreError
from penstock.sources import ListSource, open_source
from penstock.sources.bad import BadRows
from penstock.store import Store, build
from penstock.store.manifest import load, manifest_name
from penstock.store.miss import explain_miss
from penstock.store.shards import Schema, template_identity
from penstock.store.verify import verify
from penstock.types import Column, Record, Samples, Values

from .shelves import Numbers, records, shard_paths

WEIGHTS = Column(name="weights", dtype="float32", per="token", fill=1.0)
LABEL = Column(name="label", dtype="int8", per="sample")
MEDIA = Column(name="media", dtype="uint8", per="list")


class Weighted(Numbers):
    """Numbers with a weight for each token, a label for each sample and some bytes of media."""

    columns = (WEIGHTS, LABEL, MEDIA)

    def encode(self, rows: Any) -> Samples:
        rows = list(rows)
        made = super().encode(rows)
        media = [media_of(row) for row in rows]
        columns = {
            "weights": Values((made.input_ids / 7).astype(np.float32)),
            "label": Values(np.array([label_of(row) for row in rows], np.int8)),
            "media": Values(
                np.frombuffer(b"".join(media), np.uint8), np.cumsum([0, *map(len, media)])
            ),
        }
        return Samples(
            input_ids=made.input_ids,
            loss_mask=made.loss_mask,
            offsets=made.offsets,
            dropped=made.dropped,
            columns=columns,
        )


class Wrong(Weighted):
    """Gives other columns than it declares."""

    def __init__(self, **change: Values | None) -> None:
        super().__init__()
        self.change = change

    def encode(self, rows: Any) -> Samples:
        made = super().encode(rows)
        columns = {
            name: each for name, each in (made.columns | self.change).items() if each is not None
        }
        return Samples(
            input_ids=made.input_ids,
            loss_mask=made.loss_mask,
            offsets=made.offsets,
            dropped=made.dropped,
            columns=columns,
        )


def label_of(row: Record) -> int:
    return len(row["ids"]) % 5 - 2


def media_of(row: Record) -> bytes:
    return json.dumps(row["ids"][:2]).encode() if len(row["ids"]) % 3 == 0 else b""


def make(
    template: Any, cache: Cache, rows: list[Record] | None = None, num_proc: int = 1, **options: Any
) -> Store:
    source = ListSource(records(250) if rows is None else rows)
    return build(
        source, template, engine=LocalEngine(num_proc), cache=cache, shard_rows=100, **options
    )


def check(store: Store, rows: list[Record]) -> None:
    assert len(store) == len(rows)
    for sample, row in zip(store, rows, strict=True):
        assert sample.columns.keys() == {"weights", "label", "media"}
        weights, label, media = (sample.columns[name] for name in ("weights", "label", "media"))
        assert weights.dtype == np.float32 and label.dtype == np.int8 and media.dtype == np.uint8
        assert (
            weights.tolist() == (sample.input_ids.astype(np.uint32) / 7).astype(np.float32).tolist()
        )
        assert (label, media.tobytes()) == (label_of(row), media_of(row))


@pytest.mark.parametrize("num_proc", [1, 2])
def test_a_sample_has_the_columns_of_its_template(cache: Cache, num_proc: int) -> None:
    store = make(Weighted(), cache, num_proc=num_proc)
    check(store, records(250))
    assert store.columns == (WEIGHTS, LABEL, MEDIA)
    check(pickle.loads(pickle.dumps(store)), records(250))


def test_a_store_under_way_has_them_too(cache: Cache) -> None:
    store = make(Weighted(), cache, background=True)
    check(store, records(250))
    check(store.wait(), records(250))


def test_columns_are_views_of_the_file(cache: Cache) -> None:
    store = make(Weighted(), cache)
    tokens = store.tokens(1)
    for name in ("weights", "media"):
        values = tokens.columns[name].values
        assert not values.flags.writeable and np.shares_memory(store[101].columns[name], values)
    assert tokens.columns["weights"].offsets is None and tokens.columns["label"].offsets is None
    offsets = tokens.columns["media"].offsets
    assert (
        offsets is not None and len(offsets) == 101 and len(tokens.columns["label"].values) == 100
    )


def test_plain_pyarrow_reads_columns(cache: Cache) -> None:
    store = make(Weighted(), cache, records(50))
    with pa.memory_map(str(shard_paths(store)[0])) as file:
        table = pa.ipc.open_file(file).read_all()
    table.validate(full=True)
    assert table.schema.names == [
        "input_ids",
        "loss_mask",
        "row",
        "reason",
        "weights",
        "label",
        "media",
    ]
    kinds = [table.schema.field(name).type for name in ("weights", "label", "media")]
    assert kinds == [pa.list_(pa.float32()), pa.int8(), pa.list_(pa.uint8())]
    for name in ("weights", "label", "media"):
        assert table.column(name).to_pylist() == [sample.columns[name].tolist() for sample in store]


def test_the_number_of_processes_leaves_no_trace_in_columns(tmp_path: Path) -> None:
    found = []
    for num_proc in (1, 2):
        store = make(Weighted(), Cache(tmp_path / str(num_proc)), num_proc=num_proc)
        found.append((store.fingerprint, [path.read_bytes() for path in shard_paths(store)]))
    assert found[0] == found[1]


def test_columns_are_part_of_the_key_and_none_change_nothing(cache: Cache) -> None:
    class None_(Numbers):
        columns = ()

    class Renamed(Weighted):
        columns = (WEIGHTS, LABEL, Column(name="media", dtype="uint8", per="list", fill=3))

    class Ordered(Weighted):
        columns = (MEDIA, WEIGHTS, LABEL)

    plain, declared, *others = [
        make(each(), cache) for each in (Numbers, None_, Weighted, Renamed, Ordered)
    ]
    assert plain.fingerprint == declared.fingerprint and plain.columns == ()
    assert len({plain.fingerprint, *(store.fingerprint for store in others)}) == 4
    assert plain[7].columns == {}


def test_a_finished_store_knows_its_columns_without_its_template(cache: Cache) -> None:
    store = make(Weighted(), cache)
    manifest = load(store.fingerprint, cache)
    assert manifest is not None and manifest.schema.columns == (WEIGHTS, LABEL, MEDIA)


def test_a_manifest_with_wrong_columns_is_damaged(cache: Cache) -> None:
    store = make(Weighted(), cache)
    path = cache.path(manifest_name(store.fingerprint))
    value = json.loads(path.read_text())
    value["template"]["sample_columns"][0].pop("dtype")
    path.write_text(json.dumps(value, indent=1, sort_keys=True))
    with pytest.raises(StoreError, match="damaged"):
        load(store.fingerprint, cache)


def test_a_miss_names_changed_columns(cache: Cache) -> None:
    store = make(Numbers(), cache)
    source = ListSource(records(250))
    borders = store.shard_starts
    digests = [source.digest(int(start), int(stop)) for start, stop in pairwise(borders)]
    miss = explain_miss(template_identity(Weighted()), digests, borders, cache)
    assert [change.field for change in miss.template] == ["sample_columns"]


def test_every_byte_of_a_column_is_verified(cache: Cache) -> None:
    store = make(Weighted(), cache)
    path, tokens = shard_paths(store)[1], store.tokens(1)
    whole = path.read_bytes()
    media = tokens.columns["media"].offsets
    assert media is not None
    for part in (*(each.values for each in tokens.columns.values()), media):
        place = whole.index(part.tobytes()) + part.nbytes - 1
        path.unlink()
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert [problem.file for problem in verify(store).problems] == [
            str(path.relative_to(cache.root))
        ]
        checked = pickle.loads(pickle.dumps(store))
        checked.cache = Cache(cache.root, verify=True)
        with pytest.raises(StoreError, match="damaged"):
            checked.tokens(1)
    path.write_bytes(whole)
    assert verify(store).is_whole


def test_a_shard_with_other_columns_is_refused(cache: Cache) -> None:
    store = make(Weighted(), cache)
    store.schema = Schema(store.vocab_size, (WEIGHTS, LABEL))
    with pytest.raises(
        StoreError, match=r"columns .*media: list.*, expected .*label: int8.; pass refresh=True"
    ):
        store.tokens(0)


def test_rows_that_are_dropped_keep_columns_in_step(tmp_path: Path, cache: Cache) -> None:
    """Bad rows, which the template never sees, and rows without a target, which the store drops."""
    rows = records(240)
    rows[17] = {"ids": [1, 2, 4]}  # nothing is trained
    lines = [json.dumps(row) for row in rows]
    lines[31] = "{"
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(lines) + "\n")
    source = open_source(path, cache=cache, bad=BadRows(on_bad="skip"))
    store = build(source, Weighted(), engine=LocalEngine(1), cache=cache, shard_rows=100)
    assert {reason: part.count for reason, part in store.counts.dropped.items()}["bad_json"] == 1
    assert len(store[17]) == 0 and len(store[17].columns["weights"]) == 0
    assert store[31].columns["label"] == 0 and len(store[31].columns["media"]) == 0
    for row in (16, 17, 18, 30, 32, 99, 239):
        assert store[row].columns["label"] == label_of(rows[row])
        assert store[row].columns["media"].tobytes() == media_of(rows[row])
        assert len(store[row].columns["weights"]) == len(store[row])
    assert verify(store).is_whole


def test_columns_reach_datasets(cache: Cache) -> None:
    pytest.importorskip("datasets")
    store = make(Weighted(), cache)
    found = store.to_hf()
    kept = [sample for sample in store if len(sample)]
    assert found.column_names == ["input_ids", "loss_mask", "weights", "label", "media"]
    for name in ("weights", "label", "media"):
        assert found[name][:] == [sample.columns[name].tolist() for sample in kept]


@pytest.mark.parametrize("rows", [[], [{"ids": []}], [{"ids": []}] * 300])
def test_a_store_of_nothing_has_columns(cache: Cache, rows: list[Record]) -> None:
    for _ in range(2):
        check(make(Weighted(), cache, rows), rows)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"weights": None}, "declares column 'weights', but gave no values"),
        ({"more": Values(np.zeros(2))}, "gave column 'more', which it does not declare"),
        (
            {"weights": Values(np.zeros(9))},
            "column 'weights' as float64 of 1 dimensions, expected float32",
        ),
        (
            {"label": Values(np.zeros((2, 2), np.int8))},
            "column 'label' as int8 of 2 dimensions, expected int8 of 1",
        ),
        (
            {"weights": Values(np.zeros(8, np.float32))},
            "column 'weights' with 8 values, expected 9: one per token",
        ),
        (
            {"label": Values(np.zeros(3, np.int8))},
            "column 'label' with 3 values, expected 2: one per sample",
        ),
        (
            {"label": Values(np.zeros(2, np.int8), np.array([0, 1, 2]))},
            "'label' with offsets .*only for a column per l",
        ),
        ({"media": Values(np.zeros(2, np.uint8))}, "column 'media' with offsets None"),
        (
            {"media": Values(np.zeros(2, np.uint8), np.array([0, 2]))},
            "'media' with offsets that do not rise from 0",
        ),
        (
            {"media": Values(np.zeros(2, np.uint8), np.array([0, 2, 1]))},
            "'media' with offsets that do not rise",
        ),
    ],
)
def test_a_template_is_held_to_its_columns(
    cache: Cache, change: dict[str, Values | None], reason: str
) -> None:
    with pytest.raises(StoreError, match=reason):
        make(
            Wrong(**change), cache, [{"ids": [1, 2, 3, 6]}, {"ids": [1, 2, 3, 6, 7]}] * 8
        )  # encoded two by two
    assert not (cache.root / "shards").exists()


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (
            [Column(name="row", dtype="int8", per="sample")],
            "Numbers declares column 'row': the name is taken",
        ),
        ([LABEL, LABEL], "Numbers declares column 'label': the name is taken"),
        (
            [Column(name="a", dtype="bool", per="token")],
            "column 'a' of dtype 'bool', expected one of int8, int16",
        ),
        (
            [Column(name="a", dtype="float", per="token")],
            "column 'a' of dtype 'float', expected one of",
        ),
        (
            [Column(name="a", dtype="int8", per="row")],
            "column 'a' per 'row', expected one of token, sample, list",
        ),  # type: ignore[arg-type]
    ],
)
def test_a_column_that_cannot_be_stored_is_refused(
    cache: Cache, columns: list[Column], reason: str
) -> None:
    template = Numbers()
    template.columns = columns  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match=reason):
        make(template, cache)
