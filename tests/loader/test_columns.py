"""Columns of a template reach the batch: cut and padded with the tokens, one value per span, or lists with their offsets."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.cache import Cache
from penstock.engines import LocalEngine
from penstock.errors import PlanError
from penstock.sources import ListSource
from penstock.store import Store, build
from penstock.testing import check_resume
from penstock.types import Column, Record, Samples, Values

from .arrays import Loader

WEIGHT = Column(name="weight", dtype="float32", per="token", fill=-1.0)
KIND = Column(name="kind", dtype="uint16", per="token")
SCORE = Column(name="score", dtype="float16", per="sample")
MEDIA = Column(name="media", dtype="int32", per="list")
ALL = (WEIGHT, KIND, SCORE, MEDIA)


class Numbers:
    """A record's numbers are its ids; its columns are made of them."""

    vocab_size = 1000

    def __init__(self, *columns: Column) -> None:
        self.columns = columns

    def identity(self) -> dict[str, Any]:
        return {"template": "numbers"}

    def encode(self, records: Any) -> Samples:
        rows = [record["ids"] for record in records]
        ids = np.array([number for row in rows for number in row], np.uint32)
        media = [media_of(row) for row in rows]
        found = {
            "weight": Values((ids / 7).astype(np.float32)),
            "kind": Values((ids % 5).astype(np.uint16)),
            "score": Values(np.array([sum(row) % 100 for row in rows], np.float16)),
            "media": Values(
                np.array([each for part in media for each in part], np.int32),
                np.cumsum([0, *map(len, media)]),
            ),
        }
        return Samples(
            input_ids=ids,
            loss_mask=np.ones(ids.size, np.bool_),
            offsets=np.cumsum([0, *map(len, rows)]),
            dropped={row: "empty" for row, each in enumerate(rows) if not each},
            columns={column.name: found[column.name] for column in self.columns},
        )

    def decode(self, input_ids: Any) -> str:
        return " ".join(map(str, input_ids))


def media_of(ids: list[int]) -> list[int]:
    return [-number for number in ids[: len(ids) % 4]]


def records(count: int = 120) -> list[Record]:
    return [
        {"ids": [(row * 31 + place * 7) % 1000 for place in range(row % 11 and 2 + row % 29)]}
        for row in range(count)
    ]


def make(cache: Cache, *columns: Column, rows: list[Record] | None = None, **options: Any) -> Store:
    source = ListSource(records() if rows is None else rows)
    return build(
        source, Numbers(*columns), engine=LocalEngine(1), cache=cache, shard_rows=25, **options
    )


@pytest.fixture
def store(cache: Cache) -> Store:
    return make(cache, *ALL)


FORMS: list[dict[str, Any]] = [
    *(
        {},
        {"align": 4},
        {"pad_to_multiple_of": 64},
        {"pad_side": "left"},
        {"labels": "shifted"},
        {"packing": "first_fit"},
    ),
    *(
        {"packing": "none"},
        {"packing": "none", "pad_side": "left", "padding": "max_length"},
        {"packing": "group_4"},
    ),
    *(
        {"padding_free": True},
        {"padding_free": True, "pad_to_multiple_of": 16},
        {"max_length": 20},
        {"batch_size": 40},
    ),
]


def check(batch: Any, stores: list[Store], columns: tuple[Column, ...] = ALL) -> None:
    """Compare a batch with what its spans say and what the stores' samples hold."""
    real, spans = batch["seq_idx"] >= 0, batch.rows.spans.tolist()
    samples = [stores[source][sample].columns for source, sample, _, _ in spans]
    for column in columns:
        found = np.asarray(batch[column.name])
        if column.per == "token":
            assert found.shape == tuple(batch["input_ids"].shape) and found.dtype == column.dtype
            assert (found[~np.asarray(real)] == column.fill).all()
            place, borders = 0, np.asarray(batch["cu_seqlens"]) if "cu_seqlens" in batch else None
            flat, is_real = found.reshape(-1), np.asarray(real).reshape(-1)
            if borders is None:  # one sample in a row
                begins = [
                    int(np.flatnonzero(row)[0]) + r * row.size
                    for r, row in enumerate(np.asarray(real))
                    if row.any()
                ]
            else:
                begins = [int(border) for border in borders[:-1] if is_real[border]]
            for begin, (source, _, start, stop), sample in zip(begins, spans, samples, strict=True):
                missing = column not in stores[source].columns
                expected = (
                    np.full(stop - start, column.fill)
                    if missing
                    else sample[column.name][start:stop]
                )
                assert flat[begin : begin + stop - start].tolist() == expected.tolist()
                place = begin + stop - start
                while (
                    place < flat.size and is_real[place] and place not in begins
                ):  # what alignment adds
                    assert flat[place] == column.fill
                    place += 1
        elif column.per == "sample":
            assert (
                found.tolist() == [sample[column.name] for sample in samples]
                and found.dtype == column.dtype
            )
        else:
            offsets = np.asarray(batch[f"{column.name}_offsets"])
            assert len(offsets) == len(spans) + 1 and offsets[0] == 0 and offsets[-1] == len(found)
            parts = [found[low:high].tolist() for low, high in pairwise(offsets.tolist())]
            assert (
                parts == [sample[column.name].tolist() for sample in samples]
                and found.dtype == column.dtype
            )


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_batch_has_the_columns_of_its_samples(store: Store, form: dict[str, Any]) -> None:
    loader = Loader(store, **{"batch_size": 3, "max_length": 48, "max_dropped": 1, **form})
    batches = list(loader)
    assert len(batches) == len(loader)
    for batch in batches:
        check(batch, [store])


@pytest.mark.parametrize(
    "options",
    [{"on_overlong": "split"}, {"on_overlong": "truncate"}, {"packing": "concat"}],
    ids=str,
)
def test_columns_are_cut_with_the_tokens(cache: Cache, options: dict[str, Any]) -> None:
    store = make(cache, WEIGHT, KIND, SCORE)
    batches = list(Loader(store, batch_size=2, max_length=12, **options))
    assert any((batch.rows.spans["start"] > 0).any() for batch in batches) or options == {
        "on_overlong": "truncate"
    }
    for batch in batches:
        check(batch, [store], (WEIGHT, KIND, SCORE))


@pytest.mark.parametrize("options", [{"prefetch": 0}, {"prefetch": 4}], ids=str)
def test_threads_and_tensors_carry_them(store: Store, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    plain = Loader(store, batch_size=2, max_length=48)
    for batch, expected in zip(
        ps.Loader(store, batch_size=2, max_length=48, **options), plain, strict=True
    ):
        assert isinstance(batch["weight"], torch.Tensor) and batch["score"].dtype == torch.float16
        check(batch, [store])
        assert {
            name: np.asarray(value).tolist() for name, value in batch.items() if name != "use_cache"
        } == {name: np.asarray(value).tolist() for name, value in expected.items()}


def test_batches_that_are_held_do_not_change(store: Store) -> None:
    batches = list(Loader(store, batch_size=2, max_length=48))
    for batch in batches:
        check(batch, [store])
        batch["weight"][:] = 0  # writable, and not shared
    assert store[1].columns["weight"].any()


def test_a_run_with_columns_resumes_exactly_on_other_ranks(store: Store) -> None:
    def rows(batch: Any) -> list[Any]:
        """Each row as its spans, with the values of every column."""
        found, offsets = [], batch["media_offsets"]
        for r, (low, high) in enumerate(pairwise(batch.rows.starts)):
            media = batch["media"][offsets[low] : offsets[high]].tolist()
            values = (
                batch["weight"][r].tolist(),
                batch["kind"][r].tolist(),
                batch["score"][low:high].tolist(),
                media,
            )
            found.append((batch.rows[r].tolist(), *values) if high > low else ())
        return found

    def loader(rank: int, world_size: int) -> ps.Loader:
        return Loader(
            store, batch_size=2, max_length=48, rank=rank, world_size=world_size, epochs=2
        )

    check_resume(loader, cuts=5, passes=2, rows=rows)


def test_a_store_that_is_being_made_has_them_too(cache: Cache) -> None:
    under_way = make(cache, *ALL, background=True)
    for batch in Loader(under_way, batch_size=2, max_length=48, shuffle_window=1):
        check(batch, [under_way])


def test_a_rank_without_rows_in_the_last_step_has_empty_columns(store: Store) -> None:
    loaders = [
        Loader(store, batch_size=1, max_length=48, rank=rank, world_size=30) for rank in range(30)
    ]
    last = [list(loader)[-1] for loader in loaders]
    assert not all(len(batch.rows.spans) for batch in last)
    for batch in last:
        check(batch, [store])
        assert len(batch["score"]) == len(batch.rows.spans) and batch["score"].dtype == np.float16


def test_a_function_of_the_users_own_gets_them(store: Store) -> None:
    def collate(arrays: dict[str, Any], rows: Any) -> dict[str, Any]:
        return {"scores": arrays["score"], "spans": len(rows.spans), "labels": arrays["labels"]}

    for batch in Loader(store, batch_size=2, max_length=48, collate=collate):
        assert len(batch["scores"]) == batch["spans"] == len(batch.rows.spans)


def test_a_token_column_that_a_store_lacks_is_filled(cache: Cache) -> None:
    stores = [make(cache, WEIGHT, SCORE), make(cache, SCORE, rows=records(60)[::-1])]
    for batch in Loader(
        {"a": (stores[0], 0.5), "b": (stores[1], 0.5)}, batch_size=3, max_length=48, align=4
    ):
        check(batch, stores, (WEIGHT, SCORE))


def test_columns_that_cannot_stand_in_one_batch_are_refused_by_name(cache: Cache) -> None:
    def refuse(match: str, *stores: Store, **options: Any) -> None:
        named = {f"store {number}": store for number, store in enumerate(stores)}
        with pytest.raises(PlanError, match=match):
            Loader(named, batch_size=2, max_length=48, **options)

    plain, other = make(cache), replace(WEIGHT, fill=2.0)
    refuse(
        r"column 'weight' is Column\(.*fill=-1.0\) in one store and Column\(.*fill=2.0\)",
        make(cache, WEIGHT),
        make(cache, other),
    )
    refuse(
        "store 'store 1' has no column 'score', and only a column per token",
        make(cache, SCORE),
        plain,
    )
    refuse("store 'store 0' has no column 'media'.*per list", plain, make(cache, MEDIA))
    for options in ({"on_overlong": "split"}, {"on_overlong": "truncate"}, {"packing": "concat"}):
        refuse(r"cuts samples, and column 'media' is a list", make(cache, MEDIA), **options)


@pytest.mark.parametrize(
    "name", ["labels", "position_ids", "cu_seqlens", "use_cache", "media_offsets"]
)
def test_names_of_the_loaders_own_arrays_are_refused(cache: Cache, name: str) -> None:
    class Renamed(Numbers):
        def encode(self, records: Any) -> Samples:
            made = Numbers(WEIGHT, MEDIA).encode(records)
            return replace(
                made, columns={name: made.columns["weight"], "media": made.columns["media"]}
            )

    source = ListSource(records())
    store = build(
        source, Renamed(replace(WEIGHT, name=name), MEDIA), engine=LocalEngine(1), cache=cache
    )
    with pytest.raises(PlanError, match=f"column '{name}' has the name of an array"):
        Loader(store, batch_size=2, max_length=48)
