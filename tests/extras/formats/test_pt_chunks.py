"""Is a folder of .pt chunks read sample by sample, safely, and only as its metadata describes it?"""

import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.cache import Cache
from penstock.errors import SourceChanged, SourceError
from penstock.extras.formats.chunks import is_chunk_folder
from penstock.sources import open_source
from penstock.testing import check_source

torch = pytest.importorskip("torch", reason="the extra penstock[torch] is not installed")

WIDTH = 6


def columns(first: int, last: int) -> dict[str, Any]:
    rows = torch.arange(first, last)
    return {
        "item": rows[:, None] * 10 + torch.arange(WIDTH),
        "price": rows[:, None] / 7 + torch.arange(WIDTH, dtype=torch.float32),
    }


def numbers(first: int, last: int) -> list[Any]:
    rows = torch.arange(first, last)
    return [rows * 2, rows % 3, rows * 5, rows % WIDTH]


def record(row: int) -> dict[str, Any]:
    """What sample `row` must be, computed by numpy alone."""
    return {
        "item": np.arange(WIDTH) + row * 10,
        "price": np.float32(row) / np.float32(7) + np.arange(WIDTH, dtype=np.float32),
        "sequence_id": row * 2,
        "subsequence_id": row % 3,
        "start_item_position": row * 5,
        "left_pad_length": row % WIDTH,
    }


def write(folder: Path, chunks: list[Any], samples: list[int], **changes: Any) -> str:
    """A folder as sequifier lays it out; paths carry no order of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number, (chunk, count) in enumerate(zip(chunks, samples, strict=True)):
        torch.save(chunk, folder / f"split0-{number}.pt")
        files.append(
            {
                "path": f"split0-{number}.pt",
                "samples": count,
                "left_pad_length_histogram": {"0": count},
            }
        )
    metadata = {
        "total_samples": sum(samples),
        "batch_files": files,
        "stored_context_width": WIDTH,
    } | changes
    (folder / "metadata.json").write_text(json.dumps(metadata))
    return str(folder)


def write_tuples(folder: Path, *edges: int, **changes: Any) -> str:
    spans = list(pairwise(edges))
    return write(
        folder,
        [(columns(a, b), *numbers(a, b)) for a, b in spans],
        [b - a for a, b in spans],
        **changes,
    )


def test_a_record_is_one_sample(tmp_path: Path, cache: Cache) -> None:
    source = open_source([write_tuples(tmp_path / "d", 0, 10, 10, 25, 30)], cache=cache)
    assert len(source) == 30 and source.name == "d"
    check_source(source, expected=[record(row) for row in range(30)], max_pickle=2000)
    assert type(source[3]["sequence_id"]) is int and source[3]["item"].dtype == np.int64
    assert (Path(source.locate(10).file).name, source.locate(10).line) == (
        "split0-2.pt",
        1,
    )  # the second is empty


def test_the_digest_does_not_know_chunks(tmp_path: Path, cache: Cache) -> None:
    one = open_source([write_tuples(tmp_path / "a", 0, 30)], cache=cache)
    many = open_source([write_tuples(tmp_path / "b", 0, 1, 17, 30)], cache=cache)
    for start, stop in ((0, 30), (0, 17), (16, 18), (5, 5)):
        assert one.digest(start, stop) == many.digest(start, stop)
    assert len({one.digest(row, row + 1) for row in range(30)}) == 30


@pytest.mark.parametrize(
    "layout",
    [
        lambda: columns(0, 4),
        lambda: [columns(0, 4)],
        lambda: (columns(0, 4),),
        lambda: {
            "format": "sequifier_tensor_batch",
            "version": 3,
            "sequences": columns(0, 4),
            "metadata": {"m": None},
        },
    ],
)
def test_layouts_without_numbers_of_their_own(tmp_path: Path, cache: Cache, layout: Any) -> None:
    source = open_source([write(tmp_path, [layout()], [4])], cache=cache)
    expected = [{key: record(row)[key] for key in ("item", "price")} for row in range(4)]
    check_source(source, expected=expected)


def test_the_newer_layout_names_its_parts(tmp_path: Path, cache: Cache) -> None:
    keys = ("sequence_ids", "subsequence_ids", "start_item_positions", "left_pad_lengths")
    content = {
        "format": "sequifier_tensor_batch",
        "version": 3,
        "sequences": columns(0, 4),
        "metadata": {
            "depth_valid_masks": {"item": torch.ones(4, 2, dtype=torch.bool)},
            "sample_positions": None,
        },
        **dict(zip(keys, numbers(0, 4), strict=True)),
    }
    source = open_source([write(tmp_path, [content], [4])], cache=cache)
    mask = {"depth_valid_masks.item": np.ones(2, dtype=np.bool_)}
    expected = [record(row) for row in range(4)]
    assert list(source[2]) == ["item", "price", "depth_valid_masks.item", *list(record(0))[2:]]
    for row in range(4):
        np.testing.assert_equal(source[row], expected[row] | mask)


def test_older_chunks_keep_their_targets(tmp_path: Path, cache: Cache) -> None:
    content = (columns(0, 4), {"item": columns(1, 5)["item"]}, *numbers(0, 4)[:3])
    source = open_source([write(tmp_path, [content], [4])], cache=cache)
    assert list(source[0]) == [
        *("item", "price", "targets.item", "sequence_id", "subsequence_id"),
        "start_item_position",
    ]
    assert source[1]["targets.item"].tolist() == record(2)["item"].tolist()


def test_a_record_is_the_callers_own(tmp_path: Path, cache: Cache) -> None:
    source = open_source([write_tuples(tmp_path / "d", 0, 5)], cache=cache)
    source[2]["item"][:] = -1
    np.testing.assert_equal(source[2], record(2))
    assert source[2]["item"].flags.owndata


def test_narrow_floats_are_widened(tmp_path: Path, cache: Cache) -> None:
    values = torch.tensor([[1.5, -3.0], [0.1, 1e30]], dtype=torch.bfloat16)
    source = open_source(
        [write(tmp_path, [{"v": values, "s": values[:, 0].clone()}], [2])], cache=cache
    )
    assert source[1]["v"].dtype == np.float32 and source[1]["v"].tolist() == values[1].tolist()
    assert source[1]["s"] == values[1, 0].item() and type(source[1]["s"]) is float


def test_threads_read_what_one_reads(tmp_path: Path, cache: Cache) -> None:
    source = open_source([write_tuples(tmp_path / "d", 0, 40, 100)], cache=cache)

    def read(row: int) -> int:
        np.testing.assert_equal(source[row], record(row))
        return row

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(100))) == list(range(100))


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../outside.pt", "names the file '../outside.pt', expected one inside its folder"),
        ("a/../../outside.pt", "expected one inside its folder"),
        ("..\\outside.pt", "expected one inside its folder"),
        ("/etc/passwd", "names the file '/etc/passwd', expected one inside its folder"),
        ("C:\\x.pt", "expected one inside its folder"),
        (
            "link.pt",
            "names the file 'link.pt', a link that leads out of its folder to .*outside.pt",
        ),
        ("linked/outside.pt", "a link that leads out of its folder"),
        ("gone.pt", r"gone\.pt: missing, but .*metadata\.json names it"),
        ("a\0b.pt", "expected one inside its folder"),
        ("", "expected one inside its folder"),
        (None, "names the file None, expected one inside its folder"),
    ],
)
def test_a_chunk_outside_the_folder_is_refused(
    tmp_path: Path, cache: Cache, path: Any, reason: str
) -> None:
    folder = tmp_path / "d"
    write_tuples(folder, 0, 5, batch_files=[{"path": path, "samples": 5}])
    torch.save((columns(0, 5),), tmp_path / "outside.pt")
    (folder / "link.pt").symlink_to(tmp_path / "outside.pt")
    (folder / "linked").symlink_to(tmp_path)
    with pytest.raises(SourceError, match=reason) as caught:
        open_source([str(folder)], cache=cache)
    assert "\n" not in str(caught.value)


def test_a_link_inside_the_folder_is_followed(tmp_path: Path, cache: Cache) -> None:
    write_tuples(tmp_path / "d", 0, 5, batch_files=[{"path": "chunks/0.pt", "samples": 5}])
    (tmp_path / "d" / "chunks").mkdir()
    (tmp_path / "d" / "split0-0.pt").rename(tmp_path / "d" / "chunks" / "1.pt")
    (tmp_path / "d" / "chunks" / "0.pt").symlink_to("1.pt")
    assert len(list(open_source([str(tmp_path / "d")], cache=cache))) == 5


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"total_samples": 11}, "total_samples is 11, but its chunks hold 10"),
        ({"batch_files": []}, r"batch_files is \[\], expected a list of chunks"),
        ({"batch_files": "x"}, "batch_files is x, expected a list of chunks"),
        ({"batch_files": [{"path": "split0-0.pt"}]}, "expected {path, samples}"),
        ({"batch_files": [{"path": "split0-0.pt", "samples": -1}]}, "expected {path, samples}"),
        (
            {"batch_files": [{"path": "split0-0.pt", "samples": 5}] * 2},
            r"lists 'split0-0\.pt' twice",
        ),
        (
            {"batch_files": [{"path": "split0-0.pt", "samples": 5}], "total_samples": 5},
            r"split0-1\.pt: not listed in .*metadata\.json; list it there, or remove it",
        ),
        (
            {
                "batch_files": [
                    {"path": "split0-0.pt", "samples": 4},
                    {"path": "split0-1.pt", "samples": 6},
                ]
            },
            r"split0-0\.pt: column 'item' holds 5 samples, but metadata\.json says 4",
        ),
    ],
)
def test_metadata_that_is_not_one_with_the_folder_is_refused(
    tmp_path: Path, cache: Cache, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SourceError, match=reason):
        open_source(write_tuples(tmp_path / "d", 0, 5, 10, **changes), cache=cache, format="pt")


def test_a_later_chunk_is_held_to_the_metadata_when_it_is_read(
    tmp_path: Path, cache: Cache
) -> None:
    files = [{"path": "split0-0.pt", "samples": 5}, {"path": "split0-1.pt", "samples": 6}]
    source = open_source(
        [write_tuples(tmp_path / "d", 0, 5, 10, batch_files=files, total_samples=11)], cache=cache
    )
    np.testing.assert_equal(source[4], record(4))
    for read in (lambda: source[5], lambda: list(source), lambda: source.digest(0, 11)):
        with pytest.raises(
            SourceError,
            match=r"split0-1\.pt: column 'item' holds 5 samples, but metadata\.json says 6",
        ):
            read()


class Payload:
    """What a hostile chunk would run."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('the chunk ran code')",)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda: Payload(), "holds pickled code"),
        (lambda: ({"a": torch.zeros(5, 2)}, Payload()), "holds pickled code"),
        (lambda: torch.zeros(5, 2), "a Tensor without columns, expected a dict of tensors"),
        (dict, "a dict without columns"),
        (lambda: (), "a tuple without columns"),
        (lambda: 3, "a int without columns"),
        (lambda: {"a": 3}, "'a' is int, expected a tensor with a row per sample"),
        (lambda: {"a": torch.tensor(3)}, "'a' is a tensor without dimensions"),
        (lambda: ({"a": torch.zeros(5, 2)}, [1, 2]), "'sequence_id' is list, expected a tensor"),
        (
            lambda: ({"sequence_id": torch.zeros(5)}, torch.zeros(5)),
            "'sequence_id' is there twice, as a column and as a number",
        ),
        (lambda: {"a": torch.zeros(5, 2).to_sparse()}, "cannot be read as tensors"),
    ],
)
def test_a_chunk_of_something_else_is_refused_and_never_run(
    tmp_path: Path, cache: Cache, content: Any, reason: str
) -> None:
    folder = write(tmp_path / "d", [content()], [5])
    with pytest.raises(SourceError, match=rf"split0-0\.pt: {reason}") as caught:
        open_source([folder], cache=cache)
    assert "\n" not in str(caught.value)


def test_a_chunk_that_is_cut_while_open_is_refused(tmp_path: Path, cache: Cache) -> None:
    source = open_source([write_tuples(tmp_path / "d", 0, 5000)], cache=cache)
    with (tmp_path / "d" / "split0-0.pt").open("r+b") as file:
        file.truncate(100)
    for read in (lambda: source[4999], lambda: list(source)):
        with pytest.raises(SourceChanged, match=r"split0-0\.pt: changed while open"):
            read()


def test_a_pickled_source_reads_on(tmp_path: Path, cache: Cache) -> None:
    source = open_source([write_tuples(tmp_path / "d", 0, 5)], cache=cache)
    np.testing.assert_equal(pickle.loads(pickle.dumps(source))[4], record(4))


def test_a_folder_is_known_by_its_metadata(tmp_path: Path, cache: Cache) -> None:
    folder = write_tuples(tmp_path / "d", 0, 5)
    assert is_chunk_folder(folder) and not is_chunk_folder(str(tmp_path))
    assert open_source(folder, cache=cache).format == "pt"
    for text in ("{", "[]", "{}", '{"batch_files": 3}'):
        (tmp_path / "d" / "metadata.json").write_text(text)
        assert not is_chunk_folder(folder)


def test_without_torch_the_extra_is_named(tmp_path: Path) -> None:
    folder = write_tuples(tmp_path / "d", 0, 5)
    script = (
        "import sys\nsys.modules['torch'] = None  # as if it were not installed\n"
        "from penstock.cache import Cache\nfrom penstock.errors import SourceError\n"
        "from penstock.sources import open_source\n"
        "try:\n    open_source([sys.argv[1]], cache=Cache.temporary())\n"
        "except SourceError as error:\n    print(error)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, folder], capture_output=True, text=True, check=True
    )
    assert "needs torch, which is not installed; pip install 'penstock[torch]'" in result.stdout


def test_a_folder_of_chunks_is_opened_without_pyarrow(tmp_path: Path) -> None:
    """It takes longer to import than a chunk takes to open."""
    folder = write_tuples(tmp_path / "d", 0, 5)
    script = (
        "import sys\nfrom penstock.cache import Cache\nfrom penstock.sources import open_source\n"
        "source = open_source(sys.argv[1], cache=Cache.temporary())\n"
        "print(len(source), 'pyarrow' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, folder], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["5", "False"]


def test_rows_read_together_are_those_read_one_by_one(tmp_path):
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
    chunks = ps.open(str(folder))
    for source in (chunks, chunks[18:1:-3], chunks.map(lambda r: {**r, "e": r["a"] + 1})):
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
