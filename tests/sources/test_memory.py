"""Is a list of dicts a source like any other?"""

import json
from itertools import pairwise

import pytest

from penstock.cache import Cache
from penstock.errors import BadRecord
from penstock.sources import ListSource, open_source

RECORDS = [{"text": "x" * row, "row": row} for row in range(100)]


def test_a_list_of_dicts_is_a_source(cache: Cache) -> None:
    source = open_source(RECORDS, cache=cache)
    assert len(source) == 100 and list(source) == RECORDS and source[-1] == RECORDS[-1]
    assert list(source[10:20]) == RECORDS[10:20]
    assert list(source.records(5, 8)) == RECORDS[5:8]
    assert str(source.locate(3)) == "list:4"
    assert len(open_source([], cache=cache)) == 0
    assert open_source(source, cache=cache) is source


def test_cuts_hold_bytes_and_rows() -> None:
    source = ListSource(RECORDS)
    cuts = source.cuts(num_bytes=500, num_rows=20).tolist()
    assert cuts[0] == 0 and cuts[-1] == 100 and cuts == sorted(set(cuts))
    for start, stop in pairwise(cuts):
        assert stop - start <= 20
        assert sum(len(json.dumps(record)) for record in RECORDS[start : stop - 1]) <= 520
    assert ListSource([]).cuts(num_bytes=1, num_rows=1).tolist() == [0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([{"a": 1, "b": 2}], [{"b": 2, "a": 1}]),  # a template may print a dict as it stands
        ([{"a": 1}], [{"a": 1.0}]),
        ([{"a": 1}], [{"a": True}]),
        ([{"a": "1"}], [{"a": 1}]),
        ([{"a": None}], [{}]),
        ([{"a": 1}, {}], [{"a": 1}]),
    ],
)
def test_records_that_differ_have_other_digests(one: list[dict], other: list[dict]) -> None:
    assert ListSource(one).digest(0, len(one)) != ListSource(other).digest(0, len(other))
    assert ListSource(one).digest(0, len(one)) == ListSource(json.loads(json.dumps(one))).digest(
        0, len(one)
    )


@pytest.mark.parametrize(
    "value", [(1, 2), {1: 2}, float("nan"), float("inf"), {"x"}, {"deep": [object()]}]
)
def test_what_json_would_change_is_refused(value: object) -> None:
    with pytest.raises(BadRecord, match=r"^list:2: record 1 holds .*, expected plain JSON values"):
        ListSource([{}, {"a": value}]).digest(0, 2)


def test_a_row_that_is_no_dict_is_refused(cache: Cache) -> None:
    with pytest.raises(BadRecord, match="record 1 is a int, expected a dict"):
        open_source([{}, 3], cache=cache)
