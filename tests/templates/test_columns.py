"""Columns of a function's samples: values per token, per sample and in lists, in the order of the records, and checked."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import TemplateError
from penstock.templates import Conversation, FunctionTemplate, Tokenizer, open_tokenizer
from penstock.templates.samples import join
from penstock.types import Column, Samples, Values, columns_of

WEIGHT = Column(name="weight", dtype="float32", per="token", fill=1)
REWARD = Column(name="reward", dtype="float64", per="sample")
LINKS = Column(name="links", dtype="int32", per="list")
COLUMNS = [WEIGHT, REWARD, LINKS]


@pytest.fixture(scope="module")
def tokenizer(tokenizer_path: Path) -> Tokenizer:
    return open_tokenizer(tokenizer_path)


def same(record: dict[str, Any]) -> Any:
    return record


def made(ids: list[int], mask: list[int] | None = None, **values: Any) -> dict[str, Any]:
    usual = {"weight": [0.5] * len(ids), "reward": 1, "links": []}
    return {
        "input_ids": ids,
        "loss_mask": [1] * len(ids) if mask is None else mask,
        **usual,
        **values,
    }


def test_values_follow_the_tokens_and_records_that_they_belong_to(tokenizer: Tokenizer) -> None:
    template = FunctionTemplate(same, tokenizer, version="1", columns=COLUMNS)
    assert columns_of(template) == tuple(COLUMNS)
    records = [
        made([1, 2, 3], weight=[1, 2, 3], reward=0.25, links=[7]),
        made([4, 5], mask=[0, 0], weight=[8, 9], reward=-1, links=[5, 6]),
        made([6, 7], weight=[4, 5], reward=2, links=np.array([], np.int64)),
    ]
    samples = template.encode(records)
    assert samples.dropped == {1: "nothing_to_train"} and samples.offsets.tolist() == [0, 3, 3, 5]
    weight, reward, links = (samples.columns[column.name] for column in COLUMNS)
    assert (
        weight.values.tolist() == [1, 2, 3, 4, 5] and weight.offsets is None
    )  # a dropped record has none per token
    assert reward.values.tolist() == [0.25, -1, 2] and reward.offsets is None
    assert (
        links.offsets is not None
        and links.offsets.tolist() == [0, 1, 3, 3]
        and links.values.tolist() == [7, 5, 6]
    )
    assert [samples.columns[column.name].values.dtype.name for column in COLUMNS] == [
        "float32",
        "float64",
        "int32",
    ]


def test_without_records_every_column_is_there_and_empty(tokenizer: Tokenizer) -> None:
    samples = FunctionTemplate(same, tokenizer, version="1", columns=COLUMNS).encode([])
    assert samples.columns.keys() == {"weight", "reward", "links"}
    assert samples.columns["links"].offsets is not None and samples.columns[
        "links"
    ].offsets.tolist() == [0]
    assert (
        samples.columns["weight"].values.dtype == np.float32
        and len(samples.columns["weight"].values) == 0
    )


def test_segments_and_conversations_have_values_per_sample_and_lists(tokenizer: Tokenizer) -> None:
    chat = {"chat_template": "{% for m in messages %}{{ m.content }}<|endoftext|>{% endfor %}"}
    template = FunctionTemplate(same, tokenizer, version="1", chat=chat, columns=[REWARD, LINKS])
    turns = [{"role": "user", "content": "the"}, {"role": "assistant", "content": "fox"}]
    segments = [{"text": "the", "label": False}, {"text": " fox", "label": True}]
    records = [
        {"segments": segments, "reward": 1, "links": [1]},
        {"conversation": Conversation(messages=turns), "reward": 2, "links": [2, 3]},
        {**made([1, 2]), "reward": 3, "links": []},
    ]
    samples = template.encode(records * 600)
    assert samples.dropped == {}
    assert samples.columns["reward"].values.tolist() == [1, 2, 3] * 600
    assert samples.columns["links"].values.tolist() == [1, 2, 3] * 600
    plain = FunctionTemplate(same, tokenizer, version="1", chat=chat).encode(records)
    assert (
        plain.columns == {}
        and plain.input_ids.tolist() == samples.input_ids[: len(plain.input_ids)].tolist()
    )


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"input_ids": [1, 2]},
            "returned for the column 'weight' no value, expected a dict with 'weight' next to input_ids",
        ),
        ([{"text": "a", "label": True}], "returned for the column 'weight' no value"),
        (
            made([1, 2], weight=[1.0]),
            r"'weight' '\[1.0\]', expected one value for each of its 2 tokens of float32",
        ),
        (made([1, 2], weight=0.5), "expected one value for each of its 2 tokens"),
        (made([1, 2], weight=["a", "b"]), "expected one value for each of its 2 tokens of float32"),
        (made([1, 2], reward=[1]), r"'reward' '\[1\]', expected one value of float64"),
        (made([1, 2], reward=None), "'reward' 'None', expected one value of float64"),
        (made([1, 2], reward="3"), "'reward' '3', expected one value of float64"),
        (made([1, 2], links=3), "'links' '3', expected a flat list of values of int32"),
        (made([1, 2], links=[[1], [2, 3]]), "expected a flat list of values of int32"),
        (made([1, 2], links=[1.5]), "expected a flat list of values of int32"),
        (made([1, 2], links=[1 << 31]), "expected a flat list of values of int32"),
        (made([1, 2], links=[1 << 70]), "expected a flat list of values of int32"),
        (
            {"segments": [], "weight": [], "reward": 1, "links": []},
            "no input_ids, which a column with one value per token",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_record(
    tokenizer: Tokenizer, record: Any, message: str
) -> None:
    answers = iter([made([1, 2]), record])
    template = FunctionTemplate(lambda _: next(answers), tokenizer, version="1", columns=COLUMNS)
    with pytest.raises(TemplateError, match=message) as caught:
        template.encode([{}, {}])
    assert caught.value.record == 1


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["weight"], r"columns\[0\] is 'weight', expected a Column"),
        (
            [WEIGHT, WEIGHT],
            r"columns\[1\] has the name 'weight', which is taken; choose another one",
        ),
        (
            [Column(name="labels", dtype="int8", per="token")],
            r"columns\[0\] has the name 'labels', which is taken",
        ),
        (
            [Column(name="a", dtype="str", per="sample")],
            "column 'a' has the dtype 'str', expected a numpy type of numbers",
        ),
        (
            [Column(name="a", dtype="float12", per="sample")],
            "column 'a' has the dtype 'float12', expected a numpy type",
        ),
        (
            [Column(name="a", dtype="int8", per="row")],
            "column 'a' has per='row', expected one of token, sample, list",
        ),  # type: ignore[arg-type]
    ],
)
def test_a_column_that_cannot_be_is_refused(
    tokenizer: Tokenizer, columns: Any, message: str
) -> None:
    with pytest.raises(TemplateError, match=message):
        FunctionTemplate(same, tokenizer, version="1", columns=columns)


def test_values_come_back_from_a_store_and_in_a_batch(tokenizer: Tokenizer, tmp_path: Path) -> None:
    template = FunctionTemplate(same, tokenizer, version="1", columns=COLUMNS)
    records = [
        made([1, 2, 3], weight=[1, 2, 3], reward=0.25, links=[7]),
        made([4, 5], weight=[8, 9], links=[]),
    ]
    store = ps.prepare(records, template=template, cache_dir=tmp_path)
    assert store[0].columns["weight"].tolist() == [1, 2, 3] and store[0].columns["reward"] == 0.25
    assert [store[row].columns["links"].tolist() for row in (0, 1)] == [[7], []]


def test_columns_are_part_of_the_identity_only_where_there_are_any(tokenizer: Tokenizer) -> None:
    plain = FunctionTemplate(same, tokenizer, version="1").identity()
    assert "columns" not in plain
    some = [
        FunctionTemplate(same, tokenizer, version="1", columns=c).identity()
        for c in (COLUMNS, COLUMNS[:1])
    ]
    assert some[0] != some[1] and all(
        {**one, "columns": None} == {**plain, "columns": None} for one in some
    )


BATCHES = st.lists(
    st.lists(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=4), max_size=4),
    max_size=3,
)


@settings(deadline=None)
@given(batches=BATCHES)
def test_joined_columns_equal_the_plain_loop(batches: list[list[list[tuple[bool, int]]]]) -> None:
    parts = []
    for batch in batches:
        tokens = [token for record in batch for token in record]
        values = np.array([value for _, value in tokens], np.float32)
        lengths = [len(record) for record in batch]
        columns = {
            "weight": Values(values),
            "reward": Values(np.array([sum(v for _, v in record) for record in batch], np.float64)),
            "links": Values(values.astype(np.int32), np.cumsum([0, *lengths])),
        }
        mask = np.array([trained for trained, _ in tokens], np.bool_)
        parts.append(
            Samples(
                input_ids=values.astype(np.uint32),
                loss_mask=mask,
                offsets=np.cumsum([0, *lengths]),
                columns=columns,
            )
        )
    samples = join(parts, columns=COLUMNS)
    records = [record for batch in batches for record in batch]
    kept = [record if any(trained for trained, _ in record[1:]) else [] for record in records]
    assert samples.columns["weight"].values.tolist() == [
        value for record in kept for _, value in record
    ]
    assert samples.input_ids.tolist() == samples.columns["weight"].values.tolist()
    assert samples.columns["reward"].values.tolist() == [
        sum(value for _, value in record) for record in records
    ]
    assert samples.columns["links"].values.tolist() == [
        value for record in records for _, value in record
    ]
    assert samples.columns["links"].offsets is not None
    assert np.diff(samples.columns["links"].offsets).tolist() == list(map(len, records))
