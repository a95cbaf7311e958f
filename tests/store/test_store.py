"""Does a store give back every sample, is it never made twice, and is it never wrong?"""

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.cache import Cache
from penstock.engines import LocalEngine
from penstock.errors import SourceChanged, StoreError, TemplateError
from penstock.sources import ListSource, open_source
from penstock.store import Store, build
from penstock.store.shards import FORMAT_VERSION, Schema, check_samples
from penstock.store.work import MadeShard, MakeShard, ShardTask
from penstock.templates import TextTemplate, open_tokenizer
from penstock.types import Record, Samples, run_inline
from penstock.words import short_number

Write = Callable[..., Path]

RECORDS = [{"text": "the quick brown fox " * (row % 7), "row": row} for row in range(500)]


@pytest.fixture
def template(tokenizer_path: Path) -> TextTemplate:
    return TextTemplate(open_tokenizer(tokenizer_path))


class Count(LocalEngine):
    """The real engine, which also remembers which shards were made."""

    made: list[MadeShard]

    def run(self, work: Any, tasks: Any, **more: Any) -> Any:
        for result in super().run(work, tasks, **more):
            if result.is_new:
                self.made.append(result)
            yield result


def small(
    source: Any, template: Any, cache: Cache, *, num_proc: int = 1, refresh: bool = False
) -> tuple[Store, list[MadeShard]]:
    """A store of shards of 100 rows at most, and what was made for it."""
    engine = Count(num_proc)
    engine.made = []
    store = build(
        source,
        template,
        engine=engine,
        cache=cache,
        refresh=refresh,
        shard_bytes=10_000,
        shard_rows=100,
    )
    return store, engine.made


def expected_text(record: Record) -> str:
    return record["text"] + "<|endoftext|>" if record["text"] else ""


def contents(cache: Cache) -> dict[str, str]:
    published = [cache.root / "shards", cache.root / "stores"]
    files = [path for folder in published for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(cache.root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def test_every_record_is_a_sample_under_its_own_number(
    write_jsonl: Write, cache: Cache, template: TextTemplate
) -> None:
    source = open_source(write_jsonl(RECORDS), cache=cache)
    store, tasks = small(source, template, cache)
    assert len(store) == 500 and len(tasks) > 4
    assert [sample.text for sample in store] == [expected_text(record) for record in RECORDS]
    assert store[-1].row == 499 and store[17].where == source.locate(17)
    assert store[17].input_ids.dtype == np.uint16 and store[17].loss_mask.all()
    assert store[0].input_ids.size == 0 == len(store[0].loss_mask)
    with pytest.raises(IndexError, match="sample 500 of Store"):
        store[500]


def test_counts_name_what_was_dropped_and_where(
    write_jsonl: Write, cache: Cache, template: TextTemplate
) -> None:
    path = write_jsonl(RECORDS)
    store, _ = small(open_source(path, cache=cache), template, cache)
    empty = [row for row, record in enumerate(RECORDS) if not record["text"]]
    dropped = store.counts.dropped["nothing_to_train"]
    assert (dropped.count, dropped.rows) == (len(empty), tuple(empty[:5]))
    assert store.counts.tokens == store.counts.trained == sum(len(sample) for sample in store)
    assert store.counts.rows == 500 and store.counts.samples == 500 - len(empty)
    assert store.describe() == (
        f"500 records → 428 samples, {store.counts.tokens:,} tokens ({store.counts.tokens:,} in the loss mask); "
        f"72 dropped (14.4%): nothing_to_train 72 (first {path}:1)"
    )
    assert (
        repr(store)
        == f"Store('data', 428 samples of 500 records, {short_number(store.counts.tokens)} tokens, {store.fingerprint[:8]})"
    )


@pytest.mark.parametrize("whole", [True, False])
def test_lengths_are_gathered_in_any_order(
    cache: Cache, template: TextTemplate, whole: bool
) -> None:
    store, _ = small(ListSource(RECORDS), template, cache)
    expected = np.array([len(sample) for sample in store])
    if not whole:  # as an unfinished store reads them: from the shards
        store._manifest = None
    ids = np.random.Generator(np.random.PCG64(1)).integers(0, 500, 2000)
    for chosen in (ids, ids[:0], np.arange(500), np.array([499]), np.zeros(3, dtype=np.int64)):
        lengths = store.lengths_of(chosen)
        assert lengths.dtype == np.int64 and lengths.tolist() == expected[chosen].tolist()
    for outside in ([-1], [500], [3, 500]):
        with pytest.raises(IndexError):
            store.lengths_of(np.array(outside))


def test_shards_are_flat_views(cache: Cache, template: TextTemplate) -> None:
    store, _ = small(ListSource(RECORDS), template, cache)
    assert store.shard_sizes.sum() == 500 and len(store.shard_sizes) == store.num_shards
    assert store.shard_starts.tolist() == [0, *np.cumsum(store.shard_sizes).tolist()]
    shards, local = store.locate(np.arange(500))
    for row in (0, 1, 99, 100, 250, 499):
        tokens = store.tokens(int(shards[row]))
        assert not tokens.input_ids.flags.owndata and not tokens.input_ids.flags.writeable
        start, stop = tokens.offsets[local[row]], tokens.offsets[local[row] + 1]
        assert tokens.input_ids[start:stop].tolist() == store[row].input_ids.tolist()


class EveryThird:
    """A template of a user: ids are the row's numbers, every third token is trained."""

    vocab_size = 100_000

    def identity(self) -> dict[str, Any]:
        return {"template": "every_third"}

    def encode(self, records: Any) -> Samples:
        numbers = [record["ids"] for record in records]
        ids = np.array([number for part in numbers for number in part], dtype=np.uint32)
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in numbers])]).astype(np.int64)
        dropped = {row: "empty" for row, part in enumerate(numbers) if not part}
        return Samples(input_ids=ids, loss_mask=ids % 3 == 0, offsets=offsets, dropped=dropped)

    def decode(self, input_ids: Any) -> str:
        return " ".join(map(str, input_ids))


def test_masks_and_wide_ids_come_back_bit_by_bit(cache: Cache) -> None:
    records = [{"ids": list(range(row, row + 4 + row % 11))} for row in range(99_000, 99_200)]
    store, _ = small(ListSource(records), EveryThird(), cache)
    for sample, record in zip(store, records, strict=True):
        assert sample.input_ids.dtype == np.uint32
        assert sample.input_ids.tolist() == record["ids"]
        assert sample.loss_mask.tolist() == [number % 3 == 0 for number in record["ids"]]
    assert store.counts.trained == sum(
        number % 3 == 0 for record in records for number in record["ids"]
    )
    tokens = store.tokens(0)
    bits = np.unpackbits(tokens.mask_bits, bitorder="little", count=len(tokens.input_ids)).astype(
        bool
    )
    for start, stop in ((0, 0), (3, 3), (0, len(bits)), (1, 9), (7, 8), (8, 30), (13, 14)):
        assert tokens.loss_mask(start, stop).tolist() == bits[start:stop].tolist()


@pytest.mark.parametrize("records", [[], [{"text": ""}], [{"text": ""}] * 300])
def test_a_store_of_nothing(cache: Cache, template: TextTemplate, records: list[Record]) -> None:
    for _ in range(2):
        store, _ = small(ListSource(records), template, cache)
        assert len(store) == len(records) and store.counts.tokens == 0 and store.counts.samples == 0
        assert store.lengths_of(np.arange(len(records))).tolist() == [0] * len(records)
        assert [sample.text for sample in store] == [""] * len(records)


def test_plain_pyarrow_reads_a_shard(cache: Cache, template: TextTemplate) -> None:
    store, _ = small(ListSource(RECORDS[:50]), template, cache)
    (path,) = (cache.root / "shards").rglob("*.arrow")
    with pa.memory_map(str(path)) as file:
        table = pa.ipc.open_file(file).read_all()
    assert table.schema.names == ["input_ids", "loss_mask", "row", "reason"]
    assert table.column("input_ids").to_pylist() == [sample.input_ids.tolist() for sample in store]
    assert table.column("loss_mask").to_pylist() == [sample.loss_mask.tolist() for sample in store]
    assert table.column("row").to_pylist() == list(range(50))


def test_making_and_reading_a_store_imports_no_pandas(tmp_path: Path) -> None:
    """`pyarrow.array` does, where there is one: a third of a second in every worker."""
    script = (
        "import sys\nfrom tests.store.shelves import make, records\nfrom penstock.cache import Cache\n"
        "store = make(records(50), Cache(sys.argv[1]))\nassert len(store[20]) == 23\nprint('pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    made = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert made.stdout == "False\n"


def test_the_second_time_nothing_is_made(
    write_jsonl: Write, cache: Cache, template: TextTemplate, tmp_path: Path
) -> None:
    path = write_jsonl(RECORDS)
    first, tasks = small(open_source(path, cache=cache), template, cache)
    assert tasks
    moved = tmp_path / "elsewhere" / "other.jsonl"
    moved.parent.mkdir()
    shutil.move(path, moved)
    os.utime(moved, ns=(1, 1))
    again, tasks = small(open_source(moved, cache=cache), template, cache)
    assert tasks == [] and again.fingerprint == first.fingerprint and again.name == "other"
    assert again[17].where.file == str(moved)


def test_appending_makes_only_the_last_shard_again(
    write_jsonl: Write, cache: Cache, template: TextTemplate
) -> None:
    before, tasks = small(open_source(write_jsonl(RECORDS), cache=cache), template, cache)
    after, new = small(
        open_source(write_jsonl([*RECORDS, {"text": "more"}]), cache=cache), template, cache
    )
    assert (
        len(new) == 1
        and len(tasks) == before.num_shards
        and after.fingerprint != before.fingerprint
    )
    assert after[500].text == "more<|endoftext|>"


def test_any_change_of_records_or_template_is_another_store(
    cache: Cache, tokenizer_path: Path
) -> None:
    tokenizer = open_tokenizer(tokenizer_path)
    stores = [
        small(ListSource(records), chosen, cache)[0].fingerprint
        for records, chosen in (
            (RECORDS, TextTemplate(tokenizer)),
            (RECORDS, TextTemplate(tokenizer, eos=False)),
            (RECORDS[:-1], TextTemplate(tokenizer)),
            (RECORDS[::-1], TextTemplate(tokenizer)),
            ([*RECORDS[:-1], {**RECORDS[-1], "row": -1}], TextTemplate(tokenizer)),
        )
    ]
    assert len(set(stores)) == len(stores)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_the_number_of_processes_leaves_no_trace(
    write_jsonl: Write, tmp_path: Path, template: TextTemplate, start_method: str
) -> None:
    path = write_jsonl(RECORDS)
    found = []
    for num_proc in (1, 2, 3):
        cache = Cache(tmp_path / f"cache-{start_method}-{num_proc}")
        engine = LocalEngine(num_proc, start_method=start_method)
        source = open_source(path, cache=cache)
        build(source, template, engine=engine, cache=cache, shard_bytes=10_000, shard_rows=100)
        found.append(contents(cache))
    assert found[0] == found[1] == found[2] and len(found[0]) > 5


def test_equal_ranges_are_one_shard(cache: Cache, template: TextTemplate) -> None:
    store, tasks = small(ListSource([{"text": "the same"}] * 400), template, cache)
    assert store.num_shards == 4 and len(tasks) == 1
    assert store[399].text == "the same<|endoftext|>"


def test_refresh_makes_everything_again(cache: Cache, template: TextTemplate) -> None:
    store, tasks = small(ListSource(RECORDS), template, cache)
    before = contents(cache)
    again, more = small(ListSource(RECORDS), template, cache, refresh=True)
    assert (
        len(more) == len(tasks)
        and contents(cache) == before
        and again.fingerprint == store.fingerprint
    )


def test_an_interrupted_build_goes_on_where_it_stopped(
    cache: Cache, template: TextTemplate
) -> None:
    broken = [*RECORDS[:350], {"text": None}, *RECORDS[351:]]
    with pytest.raises(TemplateError, match=r"^list:351: key 'text' is null"):
        small(ListSource(broken), template, cache)
    assert not (cache.root / "stores").exists()  # nothing promises what is not there
    done = len(list((cache.root / "shards").rglob("*.arrow")))
    store, tasks = small(ListSource(RECORDS), template, cache)
    assert done >= 3 and len(tasks) == store.num_shards - done


@pytest.mark.parametrize("damage", ["missing", "empty", "short", "zero tail", "zero head", "text"])
def test_a_damaged_shard_is_noticed_and_made_again(
    cache: Cache, template: TextTemplate, damage: str
) -> None:
    store, _ = small(ListSource(RECORDS), template, cache)
    before = contents(cache)
    path = sorted((cache.root / "shards").rglob("*.arrow"))[0]
    whole = path.read_bytes()
    half = len(whole) // 2
    path.unlink()
    damaged = {
        "empty": b"",
        "short": whole[:half],
        "zero tail": whole[:half] + bytes(len(whole) - half),
        "zero head": bytes(half) + whole[half:],
        "text": b"not an arrow file",
    }
    if damage != "missing":
        path.write_bytes(damaged[damage])
    fresh = pickle.loads(pickle.dumps(store))
    shard = [key[:2] + "/" + key for key in store._keys].index(f"{path.parent.name}/{path.stem}")
    with pytest.raises(StoreError, match=r"No such file|damaged|cannot be read"):
        fresh.tokens(shard)
    again, tasks = small(ListSource(RECORDS), template, cache, refresh=damage.startswith("zero"))
    assert tasks and contents(cache) == before
    assert [sample.text for sample in again] == [expected_text(record) for record in RECORDS]


def test_a_manifest_promises_only_what_it_names(cache: Cache, template: TextTemplate) -> None:
    small(ListSource(RECORDS), template, cache)
    (path,) = (cache.root / "stores").rglob("*.json")
    value = json.loads(path.read_text())
    assert [part["counts"]["rows"] for part in value["shards"]] and str(
        cache.root
    ) not in path.read_text()
    for text, reason in (
        ("{", "damaged"),
        ("{}", "damaged"),
        (json.dumps({**value, "format": 99}), f"format 99, expected {FORMAT_VERSION}"),
        (json.dumps({**value, "shards": value["shards"][1:]}), "lists other shards"),
        (
            json.dumps({**value, "shards": [{**value["shards"][0], "key": "../../etc"}]}),
            "is not a shard key",
        ),
    ):
        path.write_text(text)
        with pytest.raises(StoreError, match=reason):
            small(ListSource(RECORDS), template, cache)
    _, tasks = small(ListSource(RECORDS), template, cache, refresh=True)
    assert tasks and json.loads(path.read_text()) == value


def test_lost_lengths_are_made_again(cache: Cache, template: TextTemplate) -> None:
    before, _ = small(ListSource(RECORDS), template, cache)
    (path,) = (cache.root / "stores").rglob("*.lengths")
    path.write_bytes(b"x")
    with pytest.raises(StoreError, match=r"1 bytes, expected 2016"):
        before.lengths_of(np.arange(3))
    store, tasks = small(ListSource(RECORDS), template, cache)
    assert tasks == [] and store.lengths_of(np.arange(500)).tolist() == [
        len(sample) for sample in store
    ]


def test_a_source_that_changes_under_the_work_is_refused(
    write_jsonl: Write, cache: Cache, template: TextTemplate
) -> None:
    records = [dict(record) for record in RECORDS]
    source = ListSource(records)
    task = ShardTask(shard=0, start=0, stop=50, digest=source.digest(0, 50))
    records[3]["text"] = "changed"
    with pytest.raises(
        SourceChanged, match=r"list:1: records 0\.\.50 changed while they were tokenized"
    ):
        list(run_inline(MakeShard(source, template, cache), [task]))
    assert not cache.root.joinpath("shards").exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"input_ids": np.array([1, 400], dtype=np.uint32)},
            "id 400, expected ids below its vocab_size 400",
        ),
        ({"loss_mask": np.ones(1, dtype=bool)}, "2 ids and a loss mask of 1"),
        ({"offsets": np.array([0, 1])}, "1 samples for 2 records"),
        ({"offsets": np.array([0, 3, 2])}, "offsets that do not rise from 0"),
        ({"offsets": np.array([0, 2, 2])}, "record 1 no tokens and no reason"),
        ({"dropped": {0: "why"}}, "record 0 no tokens and no reason, or tokens and a reason"),
    ],
)
def test_a_template_is_held_to_its_word(change: dict[str, Any], reason: str) -> None:
    samples = {
        "input_ids": np.array([1, 2], dtype=np.uint32),
        "loss_mask": np.ones(2, dtype=bool),
        "offsets": np.array([0, 1, 2]),
    }
    check_samples(Samples(**samples), 2, Schema(400))
    with pytest.raises(StoreError, match=reason):
        check_samples(Samples(**{**samples, **change}), 2, Schema(400))


def test_samples_that_do_not_fit_together_are_not_published(cache: Cache) -> None:
    class Wrong(EveryThird):
        def encode(self, records: Any) -> Samples:
            return replace(super().encode(records), loss_mask=np.ones(1, dtype=bool))

    with pytest.raises(StoreError, match="4 ids and a loss mask of 1"):
        small(ListSource([{"ids": [1, 2, 3, 4]}]), Wrong(), cache)
    assert not (cache.root / "shards").exists()


def test_a_store_pickles_small(write_jsonl: Write, cache: Cache, template: TextTemplate) -> None:
    store, _ = small(open_source(write_jsonl(RECORDS), cache=cache), template, cache)
    store.lengths_of(np.arange(10)), store.tokens(0)
    copy = pickle.loads(pickle.dumps(store))
    assert len(pickle.dumps(store)) < 5000
    assert copy[17].text == store[17].text and copy.lengths.sum() == store.counts.tokens


def test_a_mapped_shard_keeps_no_file_open(cache: Cache) -> None:
    """Or a store of a thousand shards would end at the limit of open files."""
    store, _ = small(
        ListSource([{"ids": [1, 2, 3, row]} for row in range(500)]), EveryThird(), cache
    )
    shards = [store.tokens(shard) for shard in range(store.num_shards)]
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    targets = [str(link.readlink()) for link in links if link.is_symlink()]
    assert (
        len(shards) >= 5
        and targets
        and not [target for target in targets if target.endswith(".arrow")]
    )
