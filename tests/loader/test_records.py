"""Plain records: bad rows are left out and counted, nothing is digested twice, and many rows are read together."""

import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

import penstock as ps
from penstock.errors import BadRecord, PlanError, PlanMismatch
from penstock.sources import file_source, jsonl
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
    with pytest.raises(BadRecord, match="this is bad row number 20 and max_bad is 19"):
        prepare(on_bad="skip", max_bad=19)


def test_a_source_of_bad_rows_alone_says_so(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text("no\n" * 5)
    with pytest.raises(
        PlanError,
        match=r"the run has no step: all 5 samples are empty \(5 rows → 0 records; 5 dropped \(100.0%\): bad_json 5",
    ):
        list(Loader(open_source(path), batch_size=2))


def test_more_bad_rows_than_allowed_stop_the_run_before_it_begins(path):
    for _ in range(2):
        with pytest.raises(BadRecord, match="this is bad row number 4 and max_bad is 3"):
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
    digest, records = file_source.FilesSource.digest, jsonl.JsonlPart.records
    monkeypatch.setattr(
        file_source.FilesSource, "digest", lambda *a: digested.append(a) or digest(*a)
    )
    monkeypatch.setattr(jsonl.JsonlPart, "records", lambda *a: read.append(a) or records(*a))
    again = Loader(open_source(path), batch_size=4)
    assert again.plan.fingerprint == first.plan.fingerprint and not digested and not read
    path.write_text(path.read_text().replace('{"n": 5}', '{"n": 6}'))
    other = Loader(open_source(path), batch_size=4)
    assert other.plan.fingerprint != first.plan.fingerprint and digested and read


def test_rows_read_together_are_those_read_one_by_one(path, tmp_path):
    torch = pytest.importorskip("torch")
    folder = tmp_path / "chunks"
    folder.mkdir()
    rng = np.random.default_rng(0)
    entries = []
    for number, samples in enumerate((7, 1, 12)):
        sequences = {
            "a": torch.from_numpy(rng.integers(0, 9, (samples, 5))),
            "b": torch.rand(samples, 2, 3),
        }
        half = {"c": torch.rand(samples, 4).bfloat16(), "d": torch.rand(4, samples).T}
        torch.save(({**sequences, **half}, torch.arange(samples)), folder / f"{number}.pt")
        entries.append({"path": f"{number}.pt", "samples": samples})
    (folder / "metadata.json").write_text(json.dumps({"total_samples": 20, "batch_files": entries}))
    good = open_source(path).filter(lambda record: record["n"] % 2)
    good = good.select([row for row in range(len(good)) if good.where(row).line - 1 not in BAD])
    chunks = ps.open(str(folder))
    for source in (
        chunks,
        chunks[18:1:-3],
        chunks.map(lambda r: {**r, "e": r["a"] + 1}),
        good,
        ps.concat([good, good]),
    ):
        rows = rng.integers(0, len(source), 40)
        for record, row in zip(source.records_at(rows), rows.tolist(), strict=True):
            alone = source[row]
            assert record.keys() == alone.keys()
            for key, value in record.items():
                assert type(value) is type(alone[key]) and np.array_equal(value, alone[key])
                assert getattr(value, "dtype", None) == getattr(alone[key], "dtype", None)
        assert source.records_at(np.zeros(0, np.int64)) == []
    one, two = chunks.records_at(np.array([3, 3]))
    one["a"][:] = -1
    assert (two["a"] >= 0).all() and (chunks[3]["a"] >= 0).all()


def test_the_digest_of_chunks_says_what_rows_hold_and_not_how_they_were_cut(tmp_path):
    torch = pytest.importorskip("torch")

    def make(
        name: str, cuts: list[int], change: int | None = None, dtype=torch.int64, second="b", more=0
    ) -> str:
        folder = tmp_path / name
        folder.mkdir()
        values = torch.arange(40, dtype=dtype).reshape(10, 4)
        if change is not None:
            values[change, 2] += 1
        entries = []
        for number, (start, stop) in enumerate(zip([0, *cuts], [*cuts, 10], strict=True)):
            torch.save(
                {"a": values[start:stop].clone(), second: values[start:stop, 0] + more},
                folder / f"{number}.pt",
            )
            entries.append({"path": f"{number}.pt", "samples": stop - start})
        (folder / "metadata.json").write_text(
            json.dumps({"total_samples": 10, "batch_files": entries})
        )
        return ps.open(str(folder)).digest(0, 10)

    assert make("one", []) == make("three", [3, 8])
    others = [make(f"row{row}", [5], change=row) for row in (0, 9)] + [
        make("narrow", [], dtype=torch.int32)
    ]
    others += [make("renamed", [], second="c"), make("other second", [], more=1)]
    assert len({make("again", [5]), *others}) == 6


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
