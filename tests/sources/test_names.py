"""Does a name stand for the rows it says?  Slices as Python takes them, splits as `datasets` does, and real files first."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.cache import Cache
from penstock.errors import SourceError
from penstock.sources import open_source
from penstock.sources.names import Cut, Name, Split, read_name, read_split

ROWS = [{"row": row} for row in range(40)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "folder").mkdir()
    for split, rows in (("train", ROWS[:30]), ("test", ROWS[30:])):
        (tmp_path / "folder" / f"{split}-00000-of-00001.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(place: Any, **options: Any) -> list[int]:
    return [record["row"] for record in open_source(place, cache=Cache("cache"), **options)]


EDGE = st.one_of(st.none(), st.integers(-60, 60))


@given(start=EDGE, stop=EDGE, step=st.one_of(st.none(), st.integers(-5, 5).filter(bool)))
def test_what_stands_behind_at_slices_like_python(
    start: int | None, stop: int | None, step: int | None
) -> None:
    text = ":".join(
        "" if edge is None else str(edge)
        for edge in ([start, stop] if step is None else [start, stop, step])
    )
    name = read_name(f"no/such/place.jsonl@[{text}]")
    assert name == Name("no/such/place.jsonl", cuts=(Cut(start, stop, step),))
    assert list(range(40))[name.cuts[0].of(40)] == list(range(40))[slice(start, stop, step)]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("chat.jsonl@[3:6]", [3, 4, 5]),
        ("chat.jsonl@[-2:]", [38, 39]),
        ("chat.jsonl@[::-10]", [39, 29, 19, 9]),
        ("chat.jsonl@[:1_0]", list(range(10))),
        ("chat.jsonl@[10:20]@[1:3]", [11, 12]),
        ("chat.jsonl@[:5%]", [0, 1]),
        ("chat.jsonl@[95%:]", [38, 39]),
        ("chat.jsonl@[-5%:]", [38, 39]),
        ("chat.jsonl@[39:1000]", [39]),
        ("*.jsonl@[1:3]", [1, 2]),
        ("folder@[28:31]", [28, 29]),  # the test file is left out
        ("folder/*.jsonl@[29:31]", [19, 20]),  # test comes before train in the order of names
    ],
)
def test_rows_are_chosen_by_name(here: Path, place: str, expected: list[int]) -> None:
    assert rows(place) == expected
    assert rows(Path(place)) == expected
    assert rows([place]) == expected


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train[:2]", [0, 1]),
        ("test[-1:]", [39]),
        ("test[50%:]+train[:1]", [35, 36, 37, 38, 39, 0]),
        ("test", list(range(30, 40))),
    ],
)
def test_a_split_is_asked_for_beside_the_name(here: Path, split: str, expected: list[int]) -> None:
    assert rows("folder", split=split) == expected


def test_what_has_no_splits_is_train(here: Path) -> None:
    assert rows("chat.jsonl", split="train[:2]") == [0, 1]
    with pytest.raises(
        SourceError,
        match=r"chat\.jsonl: no file name contains the split 'test'; there are chat\.jsonl",
    ):
        rows("chat.jsonl", split="test")
    with pytest.raises(
        SourceError,
        match=r"folder: no file name contains the split 'dev'; there are test-0.*, train-0",
    ):
        rows("folder", split="dev")


def test_several_names_each_with_its_rows(here: Path) -> None:
    assert rows(["chat.jsonl@[:2]", "folder/test*@[:1]", "chat.jsonl@[39:]"]) == [0, 1, 30, 39]


@pytest.mark.parametrize(
    "name", ["chat.jsonl@[0:1]", "chat.jsonl[0:1]", "folder:train", "chat.jsonl[:10%]"]
)
def test_a_file_really_called_so_comes_first(here: Path, name: str) -> None:
    (here / name).write_text('{"row": 77}\n')
    assert rows(name, format="jsonl") == [77]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("chat.jsonl@[1:x]", r"not a slice behind @, expected @\[a:b\]"),
        ("chat.jsonl@[5]", "not a slice"),
        ("chat.jsonl@[]", "not a slice"),
        ("chat.jsonl@[0:5:0]", "a step of 0, expected another"),
        ("chat.jsonl@[:101%]", "more than 100 %"),
        ("chat.jsonl@[5:10%]", "percent and record numbers in one slice"),
        ("chat.jsonl@[:50%:2]", "no step with percent"),
        ("gone.jsonl@[0:5]", r"gone\.jsonl: nothing found"),
        ("gone.jsonl[0:5]", r"gone\.jsonl\[0:5\]: nothing found"),
    ],
)
def test_a_slice_that_is_none_is_named(here: Path, place: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        rows(place)


@pytest.mark.parametrize("split", ["", "train[", "train[::2]", "train[5]", "a b", "train+", "[:5]"])
def test_a_split_that_is_none_is_named(split: str) -> None:
    with pytest.raises(
        SourceError, match=r"^split is .*, expected a name, a part of it such as 'train\[:10%\]'"
    ):
        read_split(split)


@pytest.mark.parametrize(
    ("place", "advice"),
    [
        ("folder:train", "write folder and split='train'"),
        ("folder:train[:10%]", r"write folder and split='train\[:10%\]'"),
        ("folder[:2]", r"records are written with an @: folder@\[:2\]"),
        ("chat.jsonl[:10]", r"records are written with an @: chat\.jsonl@\[:10\]"),
        ("*.jsonl[:10]", r"records are written with an @: \*\.jsonl@\[:10\]"),
    ],
)
def test_what_was_written_in_another_way_says_how_it_is_written(
    here: Path, place: str, advice: str
) -> None:
    with pytest.raises(SourceError, match=advice):
        rows(place)


def theirs(start: int | None, stop: int | None, num_rows: int) -> range:
    """How `datasets` reads percent (closest rounding), written down from its documentation."""
    edges = [0 if start is None else start, 100 if stop is None else stop]
    absolute = [round(edge * num_rows / 100) for edge in edges]
    return range(num_rows)[slice(*(num_rows + rows if rows < 0 else rows for rows in absolute))]


@given(
    num_rows=st.integers(0, 10_000),
    start=st.one_of(st.none(), st.integers(0, 100)),
    stop=st.one_of(st.none(), st.integers(0, 100)),
)
def test_percent_are_rounded_to_the_closest_row(
    num_rows: int, start: int | None, stop: int | None
) -> None:
    assert range(num_rows)[Cut(start, stop, percent=True).of(num_rows)] == theirs(
        start, stop, num_rows
    )


def test_percent_agree_with_datasets() -> None:
    reader = pytest.importorskip("datasets.arrow_reader")
    for num_rows in (7, 99, 1000, 1234):  # of one row -50 % round to none, which they take for all
        for text in (
            "train[:10%]",
            "train[10%:20%]",
            "train[33%:]",
            "train[-50%:]",
            "train[-500:]",
            "train[5:70]",
        ):
            (absolute,) = reader.ReadInstruction.from_spec(text).to_absolute({"train": num_rows})
            (split,) = read_split(text)
            assert split.cut is not None
            ours = range(num_rows)[split.cut.of(num_rows)]
            assert (ours.start, ours.stop) == (absolute.from_, max(absolute.to, absolute.from_)), (
                text,
                num_rows,
            )


def test_hundred_pieces_hold_every_row_once() -> None:
    for num_rows in (5, 99, 1001):
        pieces = [
            range(num_rows)[Cut(edge, edge + 1, percent=True).of(num_rows)] for edge in range(100)
        ]
        assert [row for piece in pieces for row in piece] == list(range(num_rows))


def test_the_last_percent_of_few_rows_is_none(here: Path) -> None:
    with pytest.raises(SourceError, match=r"chat\.jsonl@\[-1%:\] selects none of 40 records"):
        rows("chat.jsonl@[-1%:]")
    assert rows("chat.jsonl@[:-1%]") == list(range(40))
    assert read_split("a.b[:1]+c") == (Split("a.b", Cut(None, 1)), Split("c"))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("@[100:50]", r"chat\.jsonl@\[100:50\] selects none of 10 records"),
        ("@[10:]", r"chat\.jsonl@\[10:\] selects none of 10 records"),
        ("@[5:2:2]", r"chat\.jsonl@\[5:2:2\] selects none of 10 records"),
        ("@[:1%]", r"chat\.jsonl@\[:1%\] selects none of 10 records"),
        ("@[:5]@[5:]", r"chat\.jsonl@\[5:\] selects none of 5 records"),
    ],
)
def test_a_name_that_chooses_no_rows_is_an_error_with_the_selection(
    tmp_path: Path, cache: Cache, written: str, said: str
) -> None:
    (tmp_path / "chat.jsonl").write_text("{}\n" * 10)
    with pytest.raises(SourceError, match=said):
        open_source(f"{tmp_path}/chat.jsonl{written}", cache=cache)


def test_a_split_that_chooses_no_rows_is_an_error_with_the_selection(
    tmp_path: Path, cache: Cache
) -> None:
    (tmp_path / "train.jsonl").write_text("{}\n" * 10)
    (tmp_path / "test.jsonl").write_text("{}\n" * 10)
    with pytest.raises(SourceError, match=r"the split train\[20:30\] selects none of 10 records"):
        open_source(tmp_path, cache=cache, split="train[20:30]+test")


def test_preparing_a_view_that_leaves_no_rows_is_an_error_with_the_view(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 10)
    source = ps.open(tmp_path / "a.jsonl", cache_dir=tmp_path / "cache")
    for view, said in (
        (source.filter(lambda record: False), r"filter\(.*lambda.*\)"),
        (source[5:5], r"\[5:5\]"),
    ):
        assert len(view) == 0  # a question, which may be asked
        with pytest.raises(SourceError, match=said + r" keeps none of 10 records"):
            ps.prepare(view, cache_dir=tmp_path / "cache")


def test_n11_one_part_of_a_random_split_has_a_name(here: Path) -> None:
    """N11: random splits of other tools could not be written in a recipe."""
    train = "chat.jsonl@[split=train, test_size=0.25, seed=7]"
    test = "chat.jsonl@[split=test, test_size=0.25, seed=7]"
    parts = ps.open("chat.jsonl").train_test_split(test_size=0.25, seed=7)
    assert rows(train) == [record["row"] for record in parts[0]] and len(rows(train)) == 30
    assert rows(test) == [record["row"] for record in parts[1]] and rows(test) != list(
        range(30, 40)
    )
    assert sorted(rows(train) + rows(test)) == list(range(40))
    assert rows(train.replace("seed=7", "seed=8")) != rows(train)
    assert len(rows("chat.jsonl@[:20]@[split=test,test_size=3,seed=-1]")) == 3
    assert str(read_name(train).cuts[0]) == "[split=train, test_size=0.25, seed=7]"
    assert rows("folder@[split=test, test_size=5, seed=0]", split="train")[-1] < 30
    for wrong in (
        "split=dev, test_size=1, seed=0",
        "split=test",
        "split=test, test_size=.5, seed=0",
    ):
        with pytest.raises(SourceError, match=r"not a slice behind @, expected .*test_size=0\.1"):
            rows(f"chat.jsonl@[{wrong}]")
    with pytest.raises(SourceError, match="test_size is 40 of 40 records, expected a share"):
        rows("chat.jsonl@[split=test, test_size=40, seed=0]")
