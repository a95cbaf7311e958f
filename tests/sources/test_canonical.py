"""Do different values have different bytes, and equal ones the same?"""

import datetime
import decimal
from typing import Any

import numpy as np
import pytest

from penstock.sources.parse import record_bytes

VALUES: list[Any] = [
    *(
        None,
        float("nan"),
        float("inf"),
        -float("inf"),
        "null",
        "NaN",
        0,
        0.0,
        -0.0,
        False,
        True,
        1,
        1.0,
        "1",
    ),
    *(2**63, 2**64, 10**30, [], {}, [None], [[None]], [float("nan")]),
    *({"a": None}, {"a": float("nan")}, {"a": [1, {"b": float("inf")}]}, {"a": [1, {"b": None}]}),
    *({"a": 1, "b": 2}, {"b": 2, "a": 1}, {1: 2}, {"1": 2}, b"a", "a", "YQ==", "\ud800"),
    *(
        datetime.date(2020, 1, 1),
        "2020-01-01",
        datetime.datetime(2020, 1, 1),
        datetime.timedelta(1),
    ),
    *(
        decimal.Decimal("1.0"),
        decimal.Decimal("1.00"),
        np.float32(1),
        np.float64(1),
        np.array([1]),
        np.array([[1]]),
    ),
    *(np.array([1], dtype=np.int32), np.array([np.nan]), np.array([None], dtype="f4")),
]


def test_different_values_have_different_bytes() -> None:
    made = [record_bytes({"value": value}) for value in VALUES]
    assert len(set(made)) == len(made), [
        (one, other)
        for one, its in zip(VALUES, made, strict=True)
        for other, bytes_of in zip(VALUES, made, strict=True)
        if one is not other and its == bytes_of
    ]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_the_same_value_has_the_same_bytes(value: Any) -> None:
    assert record_bytes({"value": value, "n": None}) == record_bytes({"value": value, "n": None})
