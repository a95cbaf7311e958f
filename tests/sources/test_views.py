"""Does a view give what the same steps on a plain list give, however views are stacked?"""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.cache import Cache
from penstock.errors import BadRecord, SourceError
from penstock.sources import BadRows, ListSource, RowAccess, open_source
from penstock.sources.views import Selection
from penstock.testing import check_source

Write = Callable[..., Path]
Pair = tuple[RowAccess, list[dict[str, Any]]]

RECORDS = [{"row": row, "text": "x" * (row * 7 % 40)} for row in range(60)]


def even(record: dict[str, Any]) -> bool:
    return record["row"] % 2 == 0


def shout(record: dict[str, Any]) -> dict[str, Any]:
    record["text"] = record[
        "text"
    ].upper()  # a record is the function's own: changing it changes nothing else
    return {**record, "longer": len(record["text"])}


def sliced(pair: Pair, chosen: slice) -> Pair:
    return pair[0][chosen], pair[1][chosen]


def selected(pair: Pair, places: list[float]) -> Pair:
    rows = [int(place * len(pair[1])) for place in places] if pair[1] else []
    rows = [row - len(pair[1]) if number % 3 == 0 else row for number, row in enumerate(rows)]
    return pair[0].select(rows), [pair[1][row] for row in rows]


def filtered(pair: Pair, _: None) -> Pair:
    return pair[0].filter(even), [record for record in pair[1] if even(record)]


def mapped(pair: Pair, _: None) -> Pair:
    return pair[0].map(shout), [shout(dict(record)) for record in pair[1]]


def doubled(pair: Pair, _: None) -> Pair:
    return ps.concat([pair[0], pair[0][::2]]), pair[1] + pair[1][::2]


EDGE = st.one_of(st.none(), st.integers(-70, 70))
STEP = st.one_of(
    st.tuples(
        st.just(sliced), st.builds(slice, EDGE, EDGE, st.sampled_from([None, 1, 2, 3, -1, -2]))
    ),
    st.tuples(st.just(selected), st.lists(st.floats(0, 0.999), max_size=20)),
    st.tuples(st.sampled_from([filtered, mapped, doubled]), st.none()),
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
@given(num_files=st.integers(1, 3), steps=st.lists(STEP, max_size=4))
def test_views_are_lists_that_read_when_asked(
    tmp_path: Path, write_jsonl: Write, num_files: int, steps: Any
) -> None:
    folder = Path(os.urandom(8).hex())
    (tmp_path / folder).mkdir()
    width = -(-len(RECORDS) // num_files)
    for number in range(num_files):
        write_jsonl(RECORDS[number * width : (number + 1) * width], str(folder / f"{number}.jsonl"))
    pair: Pair = (open_source(tmp_path / folder, cache=Cache(tmp_path / "cache")), list(RECORDS))
    for step, given_ in steps:
        pair = step(pair, given_)
    check_source(pair[0], expected=pair[1])
    assert repr(pair[0])


def test_a_row_knows_its_home_through_every_view(write_jsonl: Write, cache: Cache) -> None:
    one = open_source(write_jsonl(RECORDS, "one.jsonl"), cache=cache)
    two = open_source(write_jsonl(RECORDS, "two.jsonl"), cache=cache)
    view = ps.concat([one[::-1], two.filter(even).map(shout)]).select([3, 62])[::-1]
    assert [Path(view.locate(row).file).name for row in (0, 1)] == ["two.jsonl", "one.jsonl"]
    assert [view.locate(row).line for row in (0, 1)] == [5, 57]
    assert view.locate(-1) == one.locate(56) and view.locate(-1).byte > 0


def test_neighbours_share_the_digest_of_their_source(write_jsonl: Write, cache: Cache) -> None:
    source = open_source(write_jsonl(RECORDS), cache=cache)
    expected = source.digest(10, 20)
    assert source.select(range(10, 20)).digest(0, 10) == expected
    assert source.select(list(range(10, 20))).digest(0, 10) == expected
    assert source.filter(lambda record: 10 <= record["row"] < 20).digest(0, 10) == expected
    assert ps.concat([source[:5], source[5:30]]).digest(10, 20) == expected
    assert source.select([10, 12]).digest(0, 2) == source[10:13:2].digest(0, 2)
    assert source.select([12, 10]).digest(0, 2) != source.select([10, 12]).digest(0, 2)


def test_the_digest_of_a_map_is_of_what_it_gives(write_jsonl: Write, cache: Cache) -> None:
    source = open_source(write_jsonl(RECORDS), cache=cache)
    one = source.map(lambda record: {"n": record["row"]})
    same = source.map(lambda record: {"n": record["row"] + 0})
    other = source.map(lambda record: {"n": float(record["row"])})
    assert one.digest(0, 60) == same.digest(0, 60) != other.digest(0, 60)
    assert one.digest(0, 60) == ListSource([{"n": row} for row in range(60)]).map(dict).digest(
        0, 60
    )


def test_a_function_that_raises_names_the_record(write_jsonl: Write, cache: Cache) -> None:
    path = write_jsonl(RECORDS)
    source = open_source(path, cache=cache)

    def inverse(record: dict[str, Any]) -> dict[str, Any]:
        return {"inverse": 1 / (record["row"] - 7)}

    for read in (
        lambda: source.map(inverse)[7],
        lambda: list(source.map(inverse)),
        lambda: source[::-1].map(inverse).digest(0, 60),
        lambda: len(source.filter(lambda record: inverse(record)["inverse"] > 0)),
    ):
        with pytest.raises(BadRecord) as caught:
            read()
        assert str(caught.value).startswith(f"{path}:8: the ")
        assert "raised ZeroDivisionError: " in str(caught.value) and isinstance(
            caught.value.__cause__, ZeroDivisionError
        )
    with pytest.raises(
        BadRecord,
        match=r"data\.jsonl:1: .*returned a NoneType, expected a dict; to leave records out",
    ):
        source.map(lambda record: None)[0]
    with pytest.raises(BadRecord, match=r"data\.jsonl:1: .*a object has no form as bytes"):
        source.map(lambda record: {"a": object()}).digest(0, 1)


def test_a_filter_looks_once_and_not_before_it_must(write_jsonl: Write, cache: Cache) -> None:
    seen: list[int] = []

    def look(record: dict[str, Any]) -> bool:
        seen.append(record["row"])
        return even(record)

    view = open_source(write_jsonl(RECORDS), cache=cache).filter(look)
    assert repr(view).endswith("look)") and seen == []
    assert len(view) == 30 and view[3] == RECORDS[6] and list(view[:2]) == [RECORDS[0], RECORDS[2]]
    assert seen == list(range(60)) and repr(view).endswith("look, 30 records)")


def test_bad_rows_stay_in_their_places_through_views(tmp_path: Path, cache: Cache) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"row": 0}\nbad\n{"row": 2}\n{"row": 3}\n[]\n')
    source = open_source(path, cache=cache, bad=BadRows("skip"))
    kept = source.filter(even)
    assert len(kept) == 4 and list(kept) == [
        {"row": 0},
        {"row": 2},
    ]  # what cannot be read cannot be judged
    made = ps.concat([kept.map(dict), source[::-1]])
    check_source(
        made,
        expected=[
            {"row": 0},
            None,
            {"row": 2},
            None,
            None,
            {"row": 3},
            {"row": 2},
            None,
            {"row": 0},
        ],
    )
    assert made.bad_counts == {
        "bad_json": 1,
        "not_an_object": 1,
    }  # each counted once, however often it was read
    with pytest.raises(BadRecord, match=r"a\.jsonl:2: "):
        kept[1]
    stopping = open_source(path, cache=cache)
    for read in (lambda: len(stopping.filter(even)), lambda: list(stopping.map(dict))):
        with pytest.raises(BadRecord, match=r"a\.jsonl:2: .*on_bad to 'skip'"):
            read()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([0, 60], "record 60 of .* expected -60 <= record < 60"),
        ([-61], "record -61"),
        (range(55, 61), "record 60"),
        ([0.5], "1-dimensional float64 values"),
        ([[1]], "2-dimensional int64 values"),
        ([True, False], "np.flatnonzero"),
        (["1"], "expected whole record numbers"),
    ],
)
def test_rows_that_are_none_are_refused(rows: Any, message: str) -> None:
    with pytest.raises((IndexError, SourceError), match=message):
        ListSource(RECORDS).select(rows)


def test_what_is_no_source_is_not_joined() -> None:
    with pytest.raises(
        SourceError, match=r"concat: found a str, expected sources; open it with penstock\.open"
    ):
        ps.concat(["a.jsonl"])
    with pytest.raises(SourceError, match="no sources given"):
        ps.concat([])


def test_joined_sources_have_a_name_of_their_own() -> None:
    sources = [ListSource(RECORDS, name=name) for name in "abcd"]
    assert [ps.concat(sources[:number]).name for number in (1, 2, 3, 4)] == [
        "a",
        "a+b",
        "a+b+c",
        "a+3",
    ]
    assert ps.concat(sources, name="all").name == "all"
    assert (
        repr(ps.concat([ps.concat(sources[:2]), sources[2]]))
        == "Concat('a+b+c', 180 records, 3 sources)"
    )


@settings(deadline=None, max_examples=50)
@given(num_rows=st.integers(2, 300), share=st.floats(0.01, 0.99), seed=st.integers(-5, 2**70))
def test_a_split_is_disjoint_and_holds_everything(num_rows: int, share: float, seed: int) -> None:
    source = ListSource([{"row": row} for row in range(num_rows)])
    try:
        train, test = source.train_test_split(test_size=share, seed=seed)
    except SourceError:
        assert np.ceil(num_rows * share) >= num_rows  # nothing would be left to train on
        return
    rows = [[record["row"] for record in part] for part in (train, test)]
    assert sorted(rows[0] + rows[1]) == list(range(num_rows))
    assert rows == [sorted(rows[0]), sorted(rows[1])]
    assert 0 <= len(test) - num_rows * share < 1
    again = source.train_test_split(test_size=len(test), seed=seed)
    assert [list(part) for part in again] == [list(train), list(test)]


PINNED = [[48, 88, 319, 364, 663], [77, 376, 533, 631, 882], [21, 45, 365, 533, 830]]


def test_splits_are_pinned_and_seeds_differ() -> None:
    source = ListSource([{"row": row} for row in range(1000)])
    tests = [
        [record["row"] for record in source.train_test_split(test_size=5, seed=seed)[1]]
        for seed in range(3)
    ]
    assert tests == PINNED  # a new release must not move rows from train to test
    many = [
        {record["row"] for record in source.train_test_split(seed=seed)[1]} for seed in range(30)
    ]
    counts = np.bincount([row for rows in many for row in rows], minlength=1000)
    assert all(len(rows) == 100 for rows in many)
    # Each row is in the test part with chance 1/10, 30 times: a fair split leaves about 42 of 1000 out of all of them.
    assert 20 < int((counts == 0).sum()) < 70 and counts.max() < 15


@pytest.mark.parametrize("size", [0, 1.0, 0.0, -0.5, 60, -1, True, 2.5, "a half"])
def test_a_split_with_an_empty_part_is_refused(size: Any) -> None:
    with pytest.raises(SourceError, match=r"test_size is .* of 60 records, expected a share"):
        ListSource(RECORDS).train_test_split(test_size=size)


def test_views_pickle_as_numbers_not_as_records(write_jsonl: Write, cache: Cache) -> None:
    source = open_source(
        write_jsonl([{"row": row, "fill": "x" * 100} for row in range(20_000)]), cache=cache
    )
    train, test = source.train_test_split()
    kept = source.filter(even)
    assert len(kept) == 10_000
    views = [
        (source[5::3].map(shout_), 2000),
        (train, 4000),
        (test, 4000),
        (kept, 4000),
        (source.select([3, 1]), 2000),
    ]
    for view, limit in views:
        frozen = pickle.dumps(view)
        assert len(frozen) < limit, view
        assert list(pickle.loads(frozen)) == list(view)
    assert isinstance(train, Selection)


def shout_(record: dict[str, Any]) -> dict[str, Any]:
    return {"fill": record["fill"].upper()}


def test_cuts_of_a_selection_weigh_what_was_chosen(write_jsonl: Write, cache: Cache) -> None:
    source = open_source(
        write_jsonl([{"row": row, "fill": "x" * 80} for row in range(10_000)]), cache=cache
    )
    whole = source.cuts(num_bytes=10_000, num_rows=1 << 20)
    assert len(source.select(np.arange(10_000)).cuts(num_bytes=10_000, num_rows=1 << 20)) == len(
        whole
    )
    tenth = source.filter(lambda record: record["row"] % 10 == 0).cuts(
        num_bytes=10_000, num_rows=1 << 20
    )
    assert len(tenth) == pytest.approx(len(whole) / 10, rel=0.2)
    assert np.diff(source.select(np.arange(5000)).cuts(num_bytes=1 << 30, num_rows=64)).max() == 64
