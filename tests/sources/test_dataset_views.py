"""Do views and iterators do what the methods of `datasets` of the same name do, where they are the same thing?"""

import json
import multiprocessing
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pyarrow
import pytest
import torch

import penstock as ps
from penstock.errors import BadRecord, SourceError
from penstock.sources import RowAccess
from penstock.testing import check_source

ROWS = [
    {"text": f"the fox {row}", "n": row * 7 % 10, "half": None if row % 6 == 5 else row % 4 / 2}
    for row in range(53)
]


@pytest.fixture
def source(tmp_path: Path) -> Any:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return ps.open(path, cache_dir=tmp_path / "cache")


@pytest.fixture(scope="module")
def theirs() -> Any:
    return datasets.Dataset.from_list(ROWS)


def words(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """A row for each word of each text whose number is even: n rows become m."""
    chosen = [
        (text, n) for text, n in zip(columns["text"], columns["n"], strict=True) if n % 2 == 0
    ]
    return {
        "n": [n for text, n in chosen for _ in text.split()],
        "word": [word for text, _ in chosen for word in text.split()],
    }


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_a_batched_map_makes_the_rows_that_datasets_makes(
    source: Any, theirs: Any, batch_size: int
) -> None:
    ours = source.map(words, batched=True, batch_size=batch_size)
    expected = theirs.map(
        words, batched=True, batch_size=batch_size, remove_columns=theirs.column_names
    ).to_list()
    assert list(ours) == expected and len(ours) == len(expected)
    check_source(ours, expected=expected)
    assert ours.records_at(np.array([5, 0, 70])) == [expected[5], expected[0], expected[70]]
    assert ours.locate(len(ours) - 1).file.endswith("a.jsonl")


@pytest.mark.parametrize("make", [np.array, torch.tensor, pyarrow.array, pandas.Series])
def test_a_batched_map_takes_the_arrays_of_other_libraries(source: Any, make: Any) -> None:
    made = source.map(lambda columns: {"n": make(columns["n"])}, batched=True, batch_size=10)
    assert list(made) == [{"n": row["n"]} for row in ROWS]
    assert all(type(record["n"]) is int for record in made)


def test_a_batched_map_gives_columns_of_arrays_as_rows(source: Any) -> None:
    made = source.map(
        lambda columns: {"n": np.array(columns["n"]), "pair": np.ones((len(columns["n"]), 2))},
        batched=True,
        batch_size=10,
    )
    assert made[3]["n"] == ROWS[3]["n"] and type(made[3]["n"]) is int
    assert made[11]["pair"].tolist() == [1, 1]
    made[0]["n"] = -1  # a record is its reader's own
    assert made[0]["n"] == ROWS[0]["n"]


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda columns: {"a": [1], "b": [1, 2]}, r"a.jsonl:1: .*'a' has 1, 'b' has 2"),
        (lambda columns: [1], r"returned a list, expected a dict with a list of values"),
        (lambda columns: {"a": "text"}, r"returned a str for the column 'a'"),
        (lambda columns: columns["absent"], r"raised KeyError: 'absent'"),
    ],
)
def test_what_a_batched_map_may_not_return_is_named(source: Any, fn: Any, message: str) -> None:
    with pytest.raises(BadRecord, match=message):
        list(source.map(fn, batched=True))


def test_a_batched_function_that_returns_other_lengths_is_refused(source: Any) -> None:
    calls = count()
    view = source.map(lambda columns: {"a": [0] * (1 + next(calls))}, batched=True)
    assert len(view) == 1
    with pytest.raises(BadRecord, match="returned 2 records, and 1 when it was called before"):
        view[0]


def test_a_batched_map_without_rows_cannot_be_prepared(source: Any, tokenizer_path: Path) -> None:
    empty = source.map(lambda columns: {}, batched=True)
    assert len(empty) == 0 and list(empty) == []
    with pytest.raises(SourceError, match="makes no record of 53 records"):
        ps.prepare(empty, tokenizer=tokenizer_path)


def test_bad_rows_of_a_batch_stay_and_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"n": 1}\n{broken\n{"n": 2}\n')
    view = ps.open(path, on_bad="skip", cache_dir=tmp_path / "c").map(
        lambda columns: {"n": columns["n"] * 2}, batched=True
    )
    assert [record["n"] for record in view] == [1, 2, 1, 2]
    assert len(view) == 5 and sum(view.bad_counts.values()) == 1


def test_a_loader_leaves_out_the_bad_rows_of_a_batch_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"n": 1}\n{broken\n{"n": 2}\n')
    view = ps.open(path, on_bad="skip", cache_dir=tmp_path / "c").map(
        lambda columns: {"n": columns["n"] * 2}, batched=True
    )
    loader = ps.Loader(view, batch_size=1, shuffle=False, collate=lambda rows: rows[0])
    assert [batch["n"] for batch in loader] == [1, 2, 1, 2]


def test_a_column_that_few_records_have_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "rare.jsonl"
    path.write_text('{"a": 1}\n' * 1500 + '{"a": 1, "rare": 2}\n')
    source = ps.open(path, cache_dir=tmp_path / "c")
    assert source.remove("rare")[1500] == {"a": 1}
    assert source.rename({"rare": "b"})[1500] == {"a": 1, "b": 2}
    assert source.sort("rare")[0] == {"a": 1, "rare": 2}


def test_views_over_a_filter_do_not_search_its_rows_before_one_is_needed(source: Any) -> None:
    calls: list[int] = []

    def keep(record: dict[str, Any]) -> bool:
        calls.append(record["n"])
        return True

    kept = source.filter(keep)
    views = [kept.rename({"n": "m"}), kept.remove("n"), kept.sort("n"), ps.concat([kept, source])]
    views += [ps.interleave([kept, source]), *kept.train_test_split(by="content", columns=["n"])]
    assert all(repr(view) for view in views) and not calls
    assert len(views[0]) == 53 == len(calls)


# datasets 5.2 passes an argument that pyarrow 25 and later warn of
@pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")
def test_rename_remove_and_sort_are_those_of_datasets(source: Any, theirs: Any) -> None:
    renamed = source.rename({"text": "content", "half": "text"})
    expected = theirs.rename_columns({"text": "content", "half": "text"}).to_list()
    assert list(renamed) == expected and list(renamed[0]) == ["content", "n", "text"]
    check_source(renamed, expected=expected)
    removed = source.remove("n", "half")
    check_source(removed, expected=theirs.remove_columns(["n", "half"]).to_list())
    for columns, reverse in (
        (["n"], False),
        (["half"], True),
        (["half", "text"], False),
        (["half", "n"], [True, False]),
    ):
        ordered = source.sort(*columns, reverse=reverse)
        wanted = theirs.sort(columns, reverse=reverse).to_list()
        assert list(ordered) == wanted
    check_source(source.sort("half"), expected=theirs.sort("half").to_list())


def test_the_digest_of_a_view_says_what_is_done(source: Any) -> None:
    views = [
        source,
        source.rename({"n": "m"}),
        source.rename({"n": "k"}),
        source.remove("n"),
        source.remove("half"),
        source.remove("n", "half"),
        source.sort("n"),
        source.sort("n", reverse=True),
        source.shuffle(1),
        source.map(words, batched=True),
    ]
    digests = [view.digest(0, len(view)) for view in views]
    assert len(set(digests)) == len(views)
    assert source.remove("half", "n").digest(0, 53) == digests[5]  # a set of columns has no order


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda s: s.rename({"txt": "a"}),
            "rename: no column 'txt' in a.*did you mean 'text'.*there are text, n, half",
        ),
        (lambda s: s.rename({"text": "a", "n": "a"}), "two columns would be 'a'"),
        (lambda s: s.rename("text"), "expected {old name: new name}"),
        (lambda s: s.remove("m"), "remove: no column 'm'"),
        (lambda s: s.remove(), "expected names of columns"),
        (lambda s: s.sort("m"), "sort: no column 'm'"),
        (lambda s: s.rename({"n": "text"})[0], "a.jsonl:1: rename: the record has 'text' already"),
        (
            lambda s: s.map(lambda r: {"v": r["n"] if r["n"] else "none"}).sort("v")[0],
            r"sort: 'v' is a str in .*a.jsonl:1 and a number in .*a.jsonl:2",
        ),
        (lambda s: s.map(lambda r: {"v": [1]}).sort("v")[0], "'v' is a list in .*a.jsonl:1"),
        (lambda s: s.map(words, batched=True, batch_size=0), "batch_size is 0"),
        (lambda s: s.map(words, batch_size=7), "batch_size=7 needs batched=True"),
        (lambda s: s.map(words, batched="yes"), "batched is 'yes', expected True or False"),
        (lambda s: s.map("words"), "map: found 'words', expected a function of a record"),
        (lambda s: s.filter(None), "filter: found None, expected a function of a record"),
        (lambda s: s.sort("n", reverse=[True, 0]), r"reverse is \[True, 0\], expected True, False"),
        (lambda s: s.sort("text.part"), "for a key inside 'text', make a column of it with map"),
        (lambda s: s.shuffle(None), "shuffle: seed is None, expected a whole number"),
        (lambda s: s.train_test_split(seed=0.5), "train_test_split: seed is 0.5"),
    ],
)
def test_what_cannot_be_done_to_columns_is_refused(source: Any, make: Any, message: str) -> None:
    with pytest.raises((SourceError, BadRecord), match=message):
        make(source)


def test_views_enter_the_key_of_a_store(source: Any, tmp_path: Path, tokenizer_path: Path) -> None:
    def key(view: RowAccess) -> str:
        settings: Any = {"tokenizer": tokenizer_path, "template": "text", "num_proc": 1}
        return str(ps.prepare(view, cache_dir=tmp_path / "stores", **settings).fingerprint)

    text = source.remove("n", "half")
    keys = [key(view) for view in (text, text.shuffle(1), text.sort("text"), text[:9])]
    assert len(set(keys)) == 4 and key(source.remove("half", "n")) == keys[0]


# Splits


def test_a_split_by_content_never_divides_equal_records(tmp_path: Path) -> None:
    records = [{"user": row % 40, "text": f"text {row % 90}"} for row in range(1000)]
    source = ps.open(records)
    train, test = source.train_test_split(test_size=0.2, by="content", seed=5)
    texts = [{json.dumps(record) for record in part} for part in (train, test)]
    assert not texts[0] & texts[1] and len(train) + len(test) == 1000
    by_user = source.train_test_split(test_size=0.2, by="content", columns=["user"])
    users = [{record["user"] for record in part} for part in by_user]
    assert not users[0] & users[1] and users[0] | users[1] == set(range(40))
    grown = ps.open([*records, *({"user": 99, "text": f"new {row}"} for row in range(50))])
    _, later = grown.train_test_split(test_size=0.2, by="content", seed=5)
    assert list(later)[: len(test)] == list(test)  # no record changes sides
    check_source(train)
    sizes = [
        len(ps.open([{"n": n} for n in range(2000)]).train_test_split(by="content", seed=s)[1])
        for s in range(4)
    ]
    assert len(set(sizes)) > 1 and all(150 < size < 250 for size in sizes)


@pytest.mark.parametrize("test_size", [0.25, 30, 0.03])
def test_a_stratified_split_has_the_proportions_of_datasets(test_size: Any) -> None:
    labels = ["a"] * 70 + ["b"] * 29 + ["c"] * 21
    records = [{"label": label, "n": n} for n, label in enumerate(labels)]
    train, test = ps.open(records).train_test_split(
        test_size=test_size, stratify_by="label", seed=3
    )
    rows = sorted(record["n"] for part in (train, test) for record in part)
    assert rows == list(range(120))
    theirs = datasets.Dataset.from_list(records).cast_column(
        "label", datasets.ClassLabel(names=["a", "b", "c"])
    )
    parts = theirs.train_test_split(test_size=test_size, stratify_by_column="label", seed=3)
    assert len(test) == len(parts["test"])
    counts = [[record["label"] for record in test].count(label) for label in "abc"]
    found = list(parts["test"]["label"])
    assert max(abs(ours - found.count(number)) for number, ours in enumerate(counts)) <= 1
    assert min(counts) >= 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"by": "user"}, r"by is 'user'.*columns=\['user'\]"),
        ({"columns": ["n"]}, "columns= needs by='content'"),
        ({"by": "content", "test_size": 5}, "each record decides for itself"),
        ({"by": "content", "stratify_by": "n"}, "exclude each other"),
        ({"stratify_by": "m"}, "no column 'm'"),
        ({"test_size": 0}, "test_size is 0 of 53 records"),
    ],
)
def test_a_split_that_cannot_be_is_refused(source: Any, settings: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        source.train_test_split(**settings)


def test_a_value_of_one_row_cannot_be_stratified() -> None:
    source = ps.open([{"label": "a"}] * 9 + [{"label": "b"}])
    with pytest.raises(SourceError, match='value "b" is in one record only'):
        len(source.train_test_split(stratify_by="label")[0])
    many = ps.open([{"label": n // 2} for n in range(20)])
    with pytest.raises(SourceError, match="10 values, and 2 test records next to 18"):
        len(many.train_test_split(stratify_by="label")[0])


def test_a_name_says_how_rows_are_split(source: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for written, settings in {
        "by=content": {"by": "content"},
        "by=content, columns=n+half": {"by": "content", "columns": ["n", "half"]},
        "stratify_by=n": {"stratify_by": "n"},
    }.items():
        name = f"{path}@[split=test, test_size=0.4, seed=1, {written}]"
        named = ps.open(name, cache_dir=tmp_path / "cache")
        assert list(named) == list(source.train_test_split(test_size=0.4, seed=1, **settings)[1])


# Interleaving

PARTS = [[{"part": part, "n": n} for n in range(size)] for part, size in enumerate((3, 5, 9))]
STRATEGIES = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_turns_are_those_of_datasets(strategy: str) -> None:
    ours = ps.interleave([ps.open(part) for part in PARTS], stopping_strategy=strategy)
    theirs = datasets.interleave_datasets(
        [datasets.Dataset.from_list(part) for part in PARTS], stopping_strategy=strategy
    ).to_list()
    assert list(ours) == theirs == list(ours.iterate())
    check_source(ours, expected=theirs)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_drawn_turns_keep_the_order_of_each_source_and_end_as_in_datasets(strategy: str) -> None:
    sources = [ps.open(part) for part in PARTS]
    ours = ps.interleave(sources, weights=[0.5, 0.3, 0.2], seed=4, stopping_strategy=strategy)
    rows = list(ours)
    assert list(ours.iterate()) == rows
    for part, source in enumerate(PARTS):
        taken = [record["n"] for record in rows if record["part"] == part]
        assert taken == [n % len(source) for n in range(len(taken))]
    ends = {
        part: [row for row, r in enumerate(rows) if r == {"part": part, "n": len(PARTS[part]) - 1}]
        for part in range(3)
    }
    through = sorted(found[0] for found in ends.values() if found)
    if strategy == "first_exhausted":
        assert through == [len(rows) - 1]
    else:
        assert len(through) == 3 and through[-1] == len(rows) - 1
    other = ps.interleave(sources, weights=[0.5, 0.3, 0.2], seed=5, stopping_strategy=strategy)
    assert list(other) != rows


def test_drawn_turns_follow_the_weights() -> None:
    sources = [ps.open([{"part": part}] * 20_000) for part in range(3)]
    rows = ps.interleave(sources, weights=[6, 3, 1]).head(10_000)
    shares = np.bincount([record["part"] for record in rows]) / 10_000
    assert np.abs(shares - [0.6, 0.3, 0.1]).max() < 0.02


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": [1]}, "expected 3 numbers ≥ 0"),
        ({"weights": [1, -1, 1]}, "expected 3 numbers ≥ 0"),
        ({"weights": [1, 1, float("nan")]}, "expected 3 numbers ≥ 0"),
        ({"weights": [1, 1, 0], "stopping_strategy": "all_exhausted"}, "weight 0 is never drawn"),
        ({"weights": ["a", 1, 1]}, r"weights are \['a', 1, 1\], expected 3 numbers ≥ 0"),
        ({"weights": 3}, "weights are 3, expected 3 numbers ≥ 0"),
        ({"weights": [1, 1, 1], "seed": "x"}, "interleave: seed is 'x', expected a whole number"),
        ({"seed": 3}, "seed=3 has no effect without weights"),
        ({"stopping_strategy": "never"}, "stopping_strategy is 'never'"),
    ],
)
def test_interleaving_that_cannot_be_is_refused(settings: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        ps.interleave([ps.open(part) for part in PARTS], **settings)
    with pytest.raises(SourceError, match="interleave: found a str"):
        ps.interleave(["a.jsonl"])


# Iteration with a state


def numbers() -> Iterator[dict[str, Any]]:
    for n in range(60):
        yield {"n": n, "text": f"text {n}"}


def endless() -> Iterator[dict[str, Any]]:
    for n in count():
        yield {"n": n, "text": f"text {n}"}


def odd(record: dict[str, Any]) -> bool:
    return bool(record["n"] % 2)


def views(source: RowAccess) -> dict[str, RowAccess]:
    return {
        "whole": source,
        "slice": source[3:40:2],
        "shuffled": source.shuffle(2),
        "map": source.map(lambda record: {**record, "more": 1}),
        "batched": source.map(lambda c: {"n": c["n"] + c["n"][:2]}, batched=True, batch_size=7),
        "filter": source.filter(odd),
        "map of filter": source.filter(odd).map(lambda record: {**record, "more": 1}),
        "batches of filter": source.filter(odd).map(lambda c: c, batched=True, batch_size=4),
        "rename": source.rename({"n": "m"}),
        "concat": ps.concat([source.filter(odd), source[:5]]),
        "interleave": ps.interleave([source, source.filter(odd)]),
        "drawn": ps.interleave(
            [source, source[:4]], weights=[1, 2], seed=1, stopping_strategy="all_exhausted"
        ),
        "rest": ps.interleave(
            [source, source[:4]], stopping_strategy="all_exhausted_without_replacement"
        ),
    }


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_an_iteration_goes_on_where_its_state_says(kind: str) -> None:
    def made() -> dict[str, RowAccess]:
        return views(ps.open(list(numbers())) if kind == "list" else ps.open(numbers))

    for name, view in made().items():
        whole = list(view.iterate())
        assert whole == list(view), name
        for cut in (0, 1, 5, len(whole) - 1, len(whole)):
            rows = view.iterate()
            assert list(islice(rows, cut)) == whole[:cut]
            state = json.loads(json.dumps(rows.state_dict()))
            rest = list(rows)
            assert rows.state_dict() != state or cut == len(whole)
            other = made()[name].iterate()
            next(other)
            other.load_state_dict(state)
            assert other.state_dict() == state, name
            assert list(other) == whole[cut:] == rest, (name, cut)


def test_the_rest_is_what_datasets_gives(tmp_path: Path) -> None:
    theirs = datasets.Dataset.from_list(list(numbers())).to_iterable_dataset().filter(odd)
    ours = ps.open(list(numbers())).filter(odd).iterate()
    iterator = iter(theirs)
    assert [next(iterator) for _ in range(11)] == list(islice(ours, 11))
    theirs.load_state_dict(theirs.state_dict())
    again = ps.open(list(numbers())).filter(odd).iterate()
    again.load_state_dict(ours.state_dict())
    assert list(theirs) == list(again)


def test_a_stream_without_end_is_walked_through_views() -> None:
    stream = ps.open(endless)
    mixed = ps.interleave(
        [stream.filter(odd).map(lambda r: {"odd": r["n"]}), stream.remove("text")]
    )
    rows = mixed.iterate()
    first = list(islice(rows, 6))
    assert first == [{"odd": 1}, {"n": 0}, {"odd": 3}, {"n": 1}, {"odd": 5}, {"n": 2}]
    state = rows.state_dict()
    later = next(rows)
    rows.load_state_dict(state)
    assert next(rows) == later == {"odd": 7}
    assert stream.num_known < 300  # type: ignore[attr-defined]  # a stream


def test_a_state_of_other_data_is_refused_and_leaves_the_iterator() -> None:
    rows = ps.open(list(numbers())).iterate()
    list(islice(rows, 10))
    state = rows.state_dict()
    other = ps.open([{"n": -n} for n in range(60)]).iterate()
    next(other)
    with pytest.raises(SourceError, match="list:10: record 9 of list is not the record"):
        other.load_state_dict(state)
    assert next(other) == {"n": -1}
    with pytest.raises(SourceError, match="the source ends before it"):
        ps.open(list(numbers())[:9]).iterate().load_state_dict(state)
    with pytest.raises(SourceError, match="the source ends before it"):
        ps.open(list(numbers())[:4]).iterate().load_state_dict(state)
    with pytest.raises(SourceError, match=r"found \['row'\], expected the dict that state_dict"):
        rows.load_state_dict({"row": 3})
    with pytest.raises(SourceError, match="version 99"):
        rows.load_state_dict({**state, "version": 99})


def test_a_state_is_of_one_tree_of_views_with_its_arguments() -> None:
    source = ps.open(list(numbers()))
    parts = [source, source[:9]]
    trees = [
        source,
        source.filter(odd),
        source.map(odd),  # type: ignore[arg-type]  # never called
        source[::2],
        source.select([0, 1, 2]),
        source.sort("n"),
        source.sort("n", reverse=True),
        source.map(lambda c: c, batched=True, batch_size=7),
        source.map(lambda c: c, batched=True, batch_size=8),
        ps.concat(parts),
        ps.interleave(parts),
        ps.interleave(parts, weights=[1, 1], seed=1),
        ps.interleave(parts, weights=[1, 1], seed=2),
        *source.train_test_split(by="content"),
    ]
    states = [tree.iterate().state_dict() for tree in trees]
    for number, tree in enumerate(trees):
        for other, state in enumerate(states):
            if number == other:
                tree.iterate().load_state_dict(state)
                continue
            with pytest.raises(SourceError, match="the state was taken over other views than"):
                tree.iterate().load_state_dict(state)


def _rest(state: dict[str, Any], queue: Any) -> None:
    rows = ps.open(list(numbers())).filter(odd).iterate()
    rows.load_state_dict(state)
    queue.put([record["n"] for record in rows])


def test_a_state_goes_on_in_another_process() -> None:
    rows = ps.open(list(numbers())).filter(odd).iterate()
    list(islice(rows, 20))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_rest, args=(rows.state_dict(), queue))
    process.start()
    found = queue.get(timeout=60)
    process.join()
    assert found == list(range(41, 60, 2))
