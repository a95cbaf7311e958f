"""Plain records: bad rows are left out and counted, nothing is digested twice, and many rows are read together."""

import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

import penstock as ps
from penstock.errors import BadRecord, PlanError, PlanMismatch
from penstock.sources import Files
from penstock.sources.text import TextRows
from penstock.testing import check_resume

from .arrays import Loader

BAD = {3: "{bad", 17: "[1]", 18: "{", 40: '"text"'}  # row → line
REASONS = Counter(bad_json=2, not_an_object=2)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text("".join(BAD.get(n, json.dumps({"n": n})) + "\n" for n in range(60)))
    return path


def open_source(path, on_bad="skip", **options):
    return ps.open(str(path), cache_dir=path.parent / "cache", on_bad=on_bad, **options)


def numbers(batches) -> list[int]:
    return [record["n"] for batch in batches for record in batch["records"]]


VIEWS = {
    "plain": (lambda source: source, lambda n: n, lambda n: True),
    "mapped": (
        lambda source: source.map(lambda r: {"n": 2 * r["n"]}),
        lambda n: 2 * n,
        lambda n: True,
    ),
    "filtered": (lambda source: source.filter(lambda r: r["n"] % 3), lambda n: n, lambda n: n % 3),
    "sliced": (lambda source: source[50:10:-1], lambda n: n, lambda n: 10 < n <= 50),
    "joined": (lambda source: ps.concat([source[:30], source[30:]]), lambda n: n, lambda n: True),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_bad_rows_of_plain_records_are_left_out_and_counted(path, view, shuffle, caplog):
    make, value, is_in = VIEWS[view]
    expected = [value(n) for n in range(60) if n not in BAD and is_in(n)]
    for _ in range(2):  # found, then remembered
        source = make(open_source(path))
        loader = Loader(source, batch_size=4, shuffle=shuffle)
        assert sorted(numbers(loader)) == expected
        assert len(loader) == -(-len(expected) // 4)
        left_out = [n for n in BAD if n > 10 and n <= 50] if view == "sliced" else BAD
        [store] = loader.stores
        assert store.dropped.total() == loader.counters.samples_dropped["empty"] == len(left_out)
        if view != "sliced":
            assert store.dropped == source.bad_counts == REASONS
            assert "2 dropped" not in caplog.text and "%): bad_json 2 (first " in caplog.text


def test_a_run_over_bad_rows_resumes_exactly_on_other_ranks(path):
    source = open_source(path).map(lambda record: {**record, "more": "x"})

    def make(rank: int, world_size: int) -> ps.Loader:
        return Loader(source, batch_size=3, rank=rank, world_size=world_size)

    check_resume(make, cuts=6)


def test_a_bad_row_is_in_the_quarantine_once_however_often_and_in_however_many_processes_it_is_met(
    path, tmp_path
):
    quarantine = tmp_path / "bad.jsonl"

    def quarantined() -> list[int]:
        return sorted(json.loads(line)["row"] for line in quarantine.read_text().splitlines())

    def again():
        return open_source(path, "quarantine", quarantine=quarantine)

    for number in range(3):  # the second time they are remembered; the third time the file is gone
        source = again()
        list(Loader(source, batch_size=4))
        assert source.bad_counts == REASONS and quarantined() == sorted(BAD)
        if number == 1:
            quarantine.unlink()
    assert len(list(again().records(0, 60))) == 60 and quarantined() == sorted(BAD)
    script = "import sys, penstock as ps; list(ps.open(sys.argv[1], on_bad='quarantine', quarantine=sys.argv[2], cache_dir=sys.argv[3]))"
    job = [sys.executable, "-c", script, path, quarantine, tmp_path / "cache"]
    quarantine.unlink()
    jobs = [subprocess.Popen(job) for _ in range(4)]
    assert [each.wait() for each in jobs] == [0] * 4 and quarantined() == sorted(BAD)
    whole = quarantine.read_bytes()
    quarantine.write_bytes(whole[:-5])  # as a writer that was killed leaves it
    list(again().records(0, 60))
    *entries, last = quarantine.read_bytes().splitlines()
    assert [*entries[:3], last] == whole.splitlines() and entries[3] == whole[:-5].splitlines()[-1]


def test_max_bad_and_the_quarantine_are_about_all_rows_of_a_store_that_was_prepared_before(
    tmp_path, tokenizer_path
):
    path, quarantine, cache_dir = tmp_path / "p.jsonl", tmp_path / "bad.jsonl", tmp_path / "cache"
    lines = [
        "{bad" if n % 3 == 0 else '{"text": ""}' if n % 3 == 1 else '{"text": "a fox"}'
        for n in range(60)
    ]
    path.write_text("\n".join(lines))

    def prepare(**options):
        source = ps.open(path, cache_dir=cache_dir, **options)
        ps.prepare(
            source, tokenizer=tokenizer_path, template="text", cache_dir=cache_dir, num_proc=1
        )
        return source.bad_counts

    prepare(on_bad="skip")
    for _ in range(2):
        assert prepare(on_bad="quarantine", quarantine=quarantine) == {"bad_json": 20}
        assert [json.loads(line)["row"] for line in quarantine.read_text().splitlines()] == list(
            range(0, 60, 3)
        )
    assert prepare(on_bad="skip", max_bad=20) == {"bad_json": 20}
    with pytest.raises(BadRecord, match="this is bad record number 20 and max_bad is 19"):
        prepare(on_bad="skip", max_bad=19)


def test_a_source_of_bad_rows_alone_says_so(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text("no\n" * 5)
    with pytest.raises(
        PlanError,
        match=r"the run has no step: all 5 samples are empty \(5 records → 0 kept; 5 dropped \(100.0%\): bad_json 5",
    ):
        list(Loader(open_source(path), batch_size=2))


def test_more_bad_rows_than_allowed_stop_the_run_before_it_begins(path):
    for _ in range(2):
        with pytest.raises(BadRecord, match="this is bad record number 4 and max_bad is 3"):
            Loader(open_source(path, max_bad=3), batch_size=4)
        Loader(open_source(path, max_bad=4), batch_size=4)


def test_the_default_stops_at_a_bad_row_when_it_is_reached(path):
    loader, seen = Loader(open_source(path, "stop"), batch_size=2, shuffle=False), []
    with pytest.raises(BadRecord, match=r"records\.jsonl:4:.*set on_bad to 'skip'"):
        for batch in loader:
            seen += numbers([batch])
    assert seen == [0, 1]  # up to the step of the bad row


def test_a_state_of_a_run_that_stopped_does_not_fit_one_that_leaves_rows_out(path):
    """Other rows have other places in the order: going on would lose some and repeat others."""
    state = Loader(open_source(path, "stop"), batch_size=2).state_dict()
    with pytest.raises(PlanMismatch, match="content of source 'data' "):
        Loader(open_source(path), batch_size=2).load_state_dict(state)


def test_a_function_that_fails_is_no_bad_row(path):
    def broken(record):
        return {"n": 1 // (record["n"] - 50)}

    with pytest.raises(BadRecord, match=r"the map function .*broken raised ZeroDivisionError"):
        Loader(open_source(path).map(broken), batch_size=4)


def test_a_loader_of_unchanged_files_reads_them_once(path, monkeypatch):
    first = Loader(open_source(path), batch_size=4)
    digested, read = [], []
    digest, records = Files.digest, TextRows.records
    monkeypatch.setattr(Files, "digest", lambda *a: digested.append(a) or digest(*a))
    monkeypatch.setattr(TextRows, "records", lambda *a: read.append(a) or records(*a))
    again = Loader(open_source(path), batch_size=4)
    assert again.plan.fingerprint == first.plan.fingerprint and not digested and not read
    path.write_text(path.read_text().replace('{"n": 5}', '{"n": 6}'))
    other = Loader(open_source(path), batch_size=4)
    assert other.plan.fingerprint != first.plan.fingerprint and digested and read


def test_rows_read_together_are_those_read_one_by_one(path):
    good = open_source(path).filter(lambda record: record["n"] % 2)
    good = good.select([row for row in range(len(good)) if good.locate(row).line - 1 not in BAD])
    rng = np.random.default_rng(0)
    for source in (good, good[18:1:-3], good.map(lambda r: {**r, "e": 1}), ps.concat([good, good])):
        rows = rng.integers(0, len(source), 40)
        assert source.records_at(rows) == [source[row] for row in rows.tolist()]
        assert source.records_at(np.zeros(0, np.int64)) == []


@pytest.mark.parametrize("prefetch", [0, 3])
def test_steps_read_together_are_made_one_by_one(path, prefetch):
    """A collate function, and the error of a row, come in their turn."""
    seen: list[int] = []

    def collate(records):
        seen.append(len(records))
        return {"records": records}

    source = open_source(path)
    loader = Loader(source, batch_size=4, collate=collate, prefetch=prefetch, shuffle=False)
    found = []
    for batch in loader:
        found += numbers([batch])
    assert found == [n for n in range(60) if n not in BAD] and seen == [4] * 14

    def fails_late(record):
        if record["n"] == 30 and is_reading:
            raise ValueError("not yet")
        return record

    is_reading, steps = False, []
    late = Loader(source.map(fails_late), batch_size=4, prefetch=prefetch, shuffle=False)
    is_reading = True
    with pytest.raises(BadRecord, match="not yet"):
        steps += (batch.step for batch in late)
    assert steps == list(range(27 // 4))  # 27 records come before the one that fails


# Ranks without a record, and what a batch of records is


def refuses_nothing(records):
    """A collate function as people write them: of no records there is no first one."""
    return {"n": np.array([record["n"] for record in records]), "first": records[0]["n"]}


def as_pair(records):
    return np.array([record["n"] for record in records]), len(records)


RANK = """
import json, sys
import torch.distributed as dist
import penstock as ps
from tests.loader.test_records import refuses_nothing

folder, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
source = ps.open(f"{folder}/n.jsonl", cache_dir=f"{folder}/cache-{rank}")
loader = ps.Loader(source, batch_size=4, output="numpy", collate=refuses_nothing)
seen = []
for batch in loader:
    if batch:
        seen.append(batch["n"].tolist())
    else:
        seen.append([])
        try:
            batch["n"]
        except ValueError as error:
            print(error, file=sys.stderr)
    dist.barrier()
print(json.dumps({"seen": seen, "length": len(loader)}))
"""


def test_a_rank_without_a_record_never_calls_collate(tmp_path):
    """Q2: with 9 records, 2 ranks and batches of 4, rank 1 called collate([]) in the last step and died alone."""
    (tmp_path / "n.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in range(9)))
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, tmp_path, str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [job.communicate() for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs
    found = [json.loads(out) for out, _ in outputs]
    assert [each["length"] for each in found] == [2, 2]
    assert [[len(batch) for batch in each["seen"]] for each in found] == [[4, 1], [4, 0]]
    assert sorted(n for each in found for batch in each["seen"] for n in batch) == list(range(9))
    assert "this rank has no record in step 1" in outputs[1][1]
    assert (
        "last_step='pad'" in outputs[1][1]
        and "choose last_step='drop' or last_step='repeat'" in outputs[1][1]
    )


def test_ranks_that_will_get_no_record_are_announced_when_the_loader_is_made(path, caplog):
    """Q2: a loop that does not expect an empty batch should not learn of it in the last step."""
    source = open_source(path)  # 56 records
    Loader(source, batch_size=5, rank=0, world_size=11)
    assert "the last step of an epoch has records for 1 of 11 ranks" in caplog.text
    caplog.clear()
    for last_step in ("drop", "repeat"):
        Loader(source, batch_size=5, rank=0, world_size=11, last_step=last_step)
    Loader(source, batch_size=5, rank=0, world_size=2)
    assert "the last step" not in caplog.text


def test_without_collate_a_rank_without_a_record_gets_the_keys_of_the_others(tmp_path):
    """Q2, its relative: without collate such a rank got a list where others had arrays."""
    source = ps.open([{"n": n} for n in range(9)]).map(
        lambda record: {"x": np.full(3, record["n"], np.int16), "n": record["n"]}
    )
    last = [list(Loader(source, batch_size=4, rank=rank, world_size=2))[-1] for rank in range(2)]
    assert [batch["x"].shape for batch in last] == [(1, 3), (0, 3)]
    assert {batch["x"].dtype for batch in last} == {np.dtype(np.int16)}
    plain = ps.open([{"n": n} for n in range(9)])
    empty = list(Loader(plain, batch_size=4, rank=1, world_size=2))[-1]
    assert empty == {"records": []}


def test_what_collate_returns_is_delivered():
    """Q3: a tuple arrived as {"batch": tuple}."""
    source = ps.open([{"n": n} for n in range(10)])

    def make():
        return Loader(source, batch_size=4, collate=as_pair)

    loader = make()
    batches = list(loader)
    assert [type(batch) for batch in batches] == [tuple] * 3
    assert sorted(n for numbers, _ in batches for n in numbers) == list(range(10))
    assert [count for _, count in batches] == [4, 4, 2] and loader.counters.samples_out == 10
    begun = make()
    first = next(iter(begun))
    resumed = make()
    resumed.load_state_dict(begun.state_dict())
    rest = list(resumed)
    assert [first[0].tolist(), *(numbers.tolist() for numbers, _ in rest)] == [
        numbers.tolist() for numbers, _ in batches
    ]


def test_what_collate_returns_comes_through_a_dataloader_and_a_stream():
    """Q3, its relatives: as_dataset() and stream() deliver the same."""
    torch_data = pytest.importorskip("torch.utils.data")
    source = ps.open([{"n": n} for n in range(10)])
    loader = Loader(source, batch_size=4, collate=as_pair)
    for batches in (
        torch_data.DataLoader(loader.as_dataset(), batch_size=None, collate_fn=lambda x: x),
        Loader(source, batch_size=4, collate=as_pair).stream(),
    ):
        assert [count for _, count in batches] == [4, 4, 2]


def test_arrays_and_the_numbers_beside_them_are_stacked():
    """Q3: a record of arrays and a label stayed a list."""
    source = ps.open([{"n": n} for n in range(6)]).map(
        lambda record: {
            "x": np.full(2, record["n"], np.float32),
            "label": record["n"] % 2,
            "weight": 0.5,
            "is_real": True,
        }
    )
    batch = next(iter(Loader(source, batch_size=3, shuffle=False)))
    assert batch["x"].tolist() == [[0, 0], [1, 1], [2, 2]] and batch["label"].tolist() == [0, 1, 0]
    kinds = {key: value.dtype.kind for key, value in batch.items()}
    assert kinds == {"x": "f", "label": "i", "weight": "f", "is_real": "b"}
    torch = pytest.importorskip("torch")
    batch = next(iter(ps.Loader(source, batch_size=3, shuffle=False)))
    assert {type(value) for value in batch.values()} == {torch.Tensor}
    words = source.map(lambda record: {**record, "text": "a"})
    assert list(next(iter(Loader(words, batch_size=3)))) == ["records"]


def test_lists_of_numbers_in_parquet_are_arrays_of_the_files_own_type(tmp_path):
    """Q3: they arrived as Python lists, and did not stack."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "ids": pa.array([[n, n + 1] for n in range(6)], pa.list_(pa.uint16())),
        "grid": pa.array([[[n], [n]] for n in range(6)], pa.list_(pa.list_(pa.float32(), 1))),
        "label": pa.array(range(6), pa.int64()),
    }
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    source = ps.open(tmp_path / "a.parquet", cache_dir=tmp_path / "cache")
    views = [source, source[:], source.filter(lambda record: True), ps.concat([source, source])]
    for view in views:
        batch = next(iter(Loader(view, batch_size=3, shuffle=False)))
        assert batch["ids"].tolist() == [[0, 1], [1, 2], [2, 3]] and batch["label"].dtype == int
        assert (batch["ids"].dtype, batch["grid"].dtype) == (np.uint16, np.float32)
        assert batch["grid"].shape == (3, 2, 1)
    given = []
    next(iter(Loader(source, batch_size=3, prefetch=0, collate=lambda rows: given.append(rows))))
    assert type(given[0][0]["ids"]) is list  # a collate function is given records as they are
    ragged = pa.table({"ids": pa.array([[1], [1, 2]], pa.list_(pa.int32()))})
    parquet.write_table(ragged, tmp_path / "b.parquet")
    with pytest.raises(PlanError, match=r"differ in keys, or in the shape of 'ids'.*pass collate="):
        list(Loader(ps.open(tmp_path / "b.parquet", cache_dir=tmp_path / "cache"), batch_size=2))
