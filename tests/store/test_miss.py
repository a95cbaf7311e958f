"""Is the cause of a miss named, and only the cause?"""

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.cache import Cache
from penstock.engines import LocalEngine
from penstock.sources import ListSource, open_source
from penstock.store.build import build, digest_shards
from penstock.store.digests import RowRanges, stamp
from penstock.store.inventory import save_origin
from penstock.store.manifest import manifest_name
from penstock.store.miss import Miss, changes, explain_miss
from penstock.store.shards import shard_key
from penstock.types import Record

from .shelves import Numbers, make, records


def ask(rows: list[Record], cache: Cache, **options: Any) -> Miss:
    source = ListSource(rows)
    borders = source.cuts(num_bytes=1 << 20, num_rows=100)
    digests = [source.digest(int(start), int(stop)) for start, stop in pairwise(borders)]
    return explain_miss(Numbers(**options).identity(), digests, np.asarray(borders), cache)


@pytest.fixture
def cache(cache: Cache) -> Cache:
    save_origin(make(records(250), cache, name="wiki", eos=True))
    return cache


def test_a_hit_is_a_hit(cache: Cache) -> None:
    answer = ask(records(250), cache, eos=True)
    assert (
        answer.is_hit
        and answer.num_ready == 3
        and answer.lines == [f"{answer.store[:8]} is complete in the cache: this is a hit"]
    )


def test_another_template_over_the_same_data_names_the_field(cache: Cache) -> None:
    answer = ask(records(250), cache, eos=False, mask="all")
    assert [str(change) for change in answer.template] == [
        "options.eos: True → False",
        "options.mask: not there → 'all'",
    ]
    assert answer.rows == () and answer.seen is not None and answer.num_ready == 0
    assert answer.lines[1:] == [
        f"nearest: {answer.nearest[:8]} (wiki)" if answer.nearest else "",
        "template, options.eos: True → False",
        "template, options.mask: not there → 'all'",
        "data: the same",
    ]


def test_a_changed_row_names_its_shard(cache: Cache) -> None:
    changed = [*records(150), {"ids": [7]}, *records(250)[151:]]
    answer = ask(changed, cache, eos=True)
    assert answer.rows == ((100, 200),) and answer.num_ready == 2 and answer.template == ()
    assert answer.lines[-1] == "data: changed or new within records 100..200"


@pytest.mark.parametrize(
    ("num_rows", "rows"), [(260, ((200, 260),)), (400, ((200, 400),)), (201, ((200, 201),))]
)
def test_longer_and_shorter_data_say_so(
    cache: Cache, num_rows: int, rows: tuple[tuple[int, int], ...]
) -> None:
    answer = ask(records(num_rows), cache, eos=True)
    assert answer.rows == rows and answer.num_rows == (250, num_rows)
    assert f"data: 250 records → {num_rows}" in answer.lines


def test_fewer_rows_of_the_same_need_nothing_new(cache: Cache) -> None:
    answer = ask(records(200), cache, eos=True)
    assert answer.rows == () and answer.num_ready == answer.num_shards == 2
    assert (
        "only its manifest is missing" in answer.lines[1]
        or "data: 250 records → 200" in answer.lines
    )


def test_both_at_once(cache: Cache) -> None:
    answer = ask(records(300), cache, eos=False)
    assert answer.template and answer.rows == ((200, 300),)


def test_the_nearest_is_the_one_that_shares_most(cache: Cache) -> None:
    other = make(records(500, 1000), cache, eos=True)
    assert ask([*records(300, 1000), *records(10)], cache, eos=True).nearest == other.fingerprint


def test_other_data_with_the_same_template(cache: Cache) -> None:
    answer = ask(records(300, 5000), cache, eos=True)
    assert answer.nearest is not None and answer.lines[-1] == "data: no shard is shared"


def test_nothing_alike(cache: Cache) -> None:
    answer = ask(records(30, 5000), cache, other=1)
    assert (
        answer.nearest is None
        and answer.lines[-1] == "no other store shares its data or its template"
    )


def test_an_interrupted_store_says_how_far_it_came(cache: Cache) -> None:
    store = ask(records(250), cache, eos=True).store
    cache.path(manifest_name(store)).unlink()
    answer = ask(records(250), cache, eos=True)
    assert (
        not answer.is_hit
        and answer.num_ready == 3
        and "prepare will finish at once" in answer.lines[1]
    )


def test_a_damaged_manifest_does_not_stop_the_answer(cache: Cache) -> None:
    store = ask(records(250), cache, eos=True).store
    cache.path(manifest_name(store)).write_text("{")
    assert not ask(records(250), cache, eos=True).is_hit


def test_asking_why_reads_unchanged_files_once(tmp_path: Path, cache: Cache) -> None:
    """And what it read, `build` need not read again: both cut and digest alike."""
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records(250)))
    source = open_source(path, cache=cache)
    while stamp(source) is None:  # until the clock has moved on since the file was written
        time.sleep(0.005)
    cuts, first = digest_shards(
        source, engine=LocalEngine(2), cache=cache, shard_bytes=1 << 20, shard_rows=100
    )
    assert (
        RowRanges(source, cache, num_bytes=1 << 20, num_rows=100).recall() == first
        and len(first) == 3
    )
    assert first == [source.digest(start, stop) for start, stop in pairwise(cuts.tolist())]
    store = build(
        source, Numbers(), engine=LocalEngine(1), cache=cache, shard_bytes=1 << 20, shard_rows=100
    )
    assert store._keys == [shard_key(one, Numbers().identity()) for one in first]


def test_values_are_told_apart_by_type_and_shown_short() -> None:
    before = {"a": {"b": 1, "c": "x" * 500}, "d": 1, "e": [1]}
    after = {"a": {"b": 1, "c": "y"}, "d": True, "e": [1], "f": None}
    found = [str(change) for change in changes(before, after)]
    assert found[1:] == ["d: 1 → True", "f: not there → None"]
    assert found[0].startswith("a.c: 'xxx") and found[0].endswith("… (502 characters) → 'y'")
    assert changes(before, before) == []
