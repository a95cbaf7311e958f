"""Are folders and objects of `datasets` read as `datasets` itself reads them?  It writes every file here; only the tests import it."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.cache import Cache
from penstock.errors import BadRecord, SourceError
from penstock.sources import open_source
from penstock.sources.bad import BadRows
from penstock.sources.hf import (
    hf_iterable,
    is_hf_folder,
    is_hf_iterable,
    pick_split,
)
from penstock.testing import check_source

os.environ["HF_HUB_OFFLINE"] = "1"  # read when datasets is imported
datasets = pytest.importorskip(
    "datasets", reason="the extra penstock[dev] brings datasets, whose files are read here"
)

ROWS = [
    {
        "id": number,
        "text": None if number % 7 == 3 else f"text {number} ü",
        "label": number % 2,
        "messages": [{"role": "user", "content": "x" * number}] * (number % 3),
        "tools": {"name": f"tool {number}", **({"extra": [1, {"n": None}]} if number % 2 else {})},
        "grid": [[number, 1], [2, 3]],
    }
    for number in range(25)
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.fixture
def dataset() -> Any:
    features = datasets.Features(
        {
            "id": datasets.Value("int64"),
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "messages": datasets.List(
                {"role": datasets.Value("string"), "content": datasets.Value("large_string")}
            ),
            "tools": datasets.Json(),
            "grid": datasets.Array2D((2, 2), "int32"),
        }
    )
    return datasets.Dataset.from_list(ROWS, features=features)


def test_a_saved_data_set_is_read_as_datasets_reads_it(
    dataset: Any, tmp_path: Path, cache: Cache
) -> None:
    for num_shards in (1, 3):
        folder = tmp_path / str(num_shards)
        dataset.save_to_disk(folder, num_shards=num_shards)
        expected = list(datasets.load_from_disk(folder))
        assert expected == ROWS
        assert is_hf_folder(str(folder)) and not is_hf_folder(str(tmp_path))
        source = open_source([str(folder)], cache=cache)
        check_source(source, expected=expected, max_pickle=3000)
        assert len(source.files) == num_shards and source.name == str(num_shards)
        assert source.locate(24).file == source.files[-1]
        assert source.describe().format == "hf"
    assert open_source([str(tmp_path / "1")], cache=cache).digest(0, 25) == source.digest(0, 25)


def test_a_folder_is_read_without_datasets(dataset: Any, tmp_path: Path) -> None:
    """In a process that has never imported it, with the same values and the same digest: its types are then unknown to Arrow."""
    dataset.save_to_disk(tmp_path / "d")
    script = (
        "import json, sys\nfrom penstock.cache import Cache\nfrom penstock.sources import open_source\n"
        "source = open_source([sys.argv[1]], cache=Cache.temporary())\n"
        "print(json.dumps([list(source), source.digest(0, 25), sorted(sys.modules)]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "d")],
        capture_output=True,
        text=True,
        check=True,
    )
    records, digest, modules = json.loads(result.stdout)
    assert records == ROWS
    assert digest == open_source([str(tmp_path / "d")], cache=Cache(tmp_path / "cache")).digest(
        0, 25
    )
    assert not {"datasets", "torch", "pandas", "pyarrow.dataset"} & set(modules)


def test_splits_are_chosen_by_name(dataset: Any, tmp_path: Path, cache: Cache) -> None:
    splits = datasets.DatasetDict(
        {"train": dataset.select(range(20)), "test": dataset.select(range(20, 25))}
    )
    splits.save_to_disk(tmp_path / "d")
    assert is_hf_folder(str(tmp_path / "d"))
    train = open_source([str(tmp_path / "d")], cache=cache, split="train")
    test = open_source([str(tmp_path / "d")], cache=cache, split="test")
    assert list(train) == ROWS[:20] and list(test) == ROWS[20:] and test[-1] == ROWS[-1]
    for split, reason in ((None, "none was chosen"), ("val", "'val' is none of them")):
        with pytest.raises(
            SourceError,
            match=rf"d: it holds the splits train, test and {reason}; choose with split=",
        ):
            open_source([str(tmp_path / "d")], cache=cache, split=split)
    alone = open_source([str(tmp_path / "d" / "test")], cache=cache)
    assert list(alone) == ROWS[20:]
    with pytest.raises(
        SourceError, match="split 'val' asked for, but it holds one dataset without splits"
    ):
        open_source([str(tmp_path / "d" / "test")], cache=cache, split="val")


def load_cached(tmp_path: Path, **options: Any) -> Any:
    rows = [{"id": number, "text": "x" * number} for number in range(40)]
    for name, part in (("a", rows[:30]), ("b", rows[30:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    files = {"train": str(tmp_path / "a.jsonl"), "val": str(tmp_path / "b.jsonl")}
    return datasets.load_dataset(
        "json", data_files=files, cache_dir=str(tmp_path / "hf"), **options
    )


def test_the_cache_of_load_dataset_is_read(tmp_path: Path, cache: Cache) -> None:
    loaded = load_cached(tmp_path)
    folder = Path(loaded["train"].cache_files[0]["filename"]).parent
    loaded["train"].map(lambda row: {"more": row["id"]})  # leaves cache-….arrow in the same folder
    loaded["train"].shuffle(seed=1).flatten_indices()
    assert len(list(folder.glob("cache-*.arrow"))) >= 2 and is_hf_folder(str(folder))
    for split in ("train", "val"):
        source = open_source([str(folder)], cache=cache, split=split)
        check_source(source, expected=list(loaded[split]))
    with pytest.raises(SourceError, match="it holds the splits train, val and none was chosen"):
        open_source([str(folder)], cache=cache)
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"]["val"]["num_examples"] = 11
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(SourceError, match=r"10 records, but dataset_info\.json says 11"):
        open_source([str(folder)], cache=cache, split="val")


def test_a_cache_of_several_files_is_read_in_order_and_only_whole(
    tmp_path: Path, cache: Cache
) -> None:
    written = subprocess.run(
        [sys.executable, "-c", WRITE_CACHE_OF_THREE_FILES, str(tmp_path / "hf")],
        capture_output=True,
        text=True,
    )
    assert written.returncode == 0, written.stderr
    names = sorted((tmp_path / "hf").glob("generator/*/0.0.0/*.arrow"))
    assert len(names) == 3 and names[0].name.endswith("-00000-of-00003.arrow")
    source = open_source([str(names[0].parent)], cache=cache)
    assert list(source) == [{"n": number} for number in range(60)]
    names[1].unlink()
    with pytest.raises(SourceError, match="split 'train' has 2 files whose names say 3"):
        open_source([str(names[0].parent)], cache=cache)


# `num_proc=` of datasets forks.  A child of a process that has threads, as a test process that started a server, may never end:
# so a process of its own writes the cache, and its children are spawned.
WRITE_CACHE_OF_THREE_FILES = """
import sys
import datasets
import multiprocess

multiprocess.set_start_method("spawn")

def numbers(shards):
    for shard in shards:
        for number in shard:
            yield {"n": number}

numbers_of_files = [list(range(20)), list(range(20, 40)), list(range(40, 60))]
dataset = datasets.Dataset.from_generator(
    numbers, gen_kwargs={"shards": numbers_of_files}, num_proc=3, cache_dir=sys.argv[1]
)
assert list(dataset["n"]) == list(range(60))
"""


def test_only_the_columns_of_its_format_are_shown(
    dataset: Any, tmp_path: Path, cache: Cache
) -> None:
    dataset.with_format("numpy", columns=["id", "text"]).save_to_disk(tmp_path / "d")
    assert list(datasets.load_from_disk(tmp_path / "d")[1]) == ["id", "text"]
    assert open_source([str(tmp_path / "d")], cache=cache)[1] == {"id": 1, "text": "text 1 ü"}
    assert open_source([str(tmp_path / "d")], cache=cache, columns=["label"])[1] == {"label": 1}
    dataset.with_format("numpy", columns=["id"], output_all_columns=True).save_to_disk(
        tmp_path / "all"
    )
    assert open_source([str(tmp_path / "all")], cache=cache)[1] == ROWS[1]


@pytest.mark.parametrize("key", ["_indices_files", "_indices_data_files"])
def test_a_folder_with_an_indices_mapping_keeps_its_order(
    dataset: Any, tmp_path: Path, cache: Cache, key: str
) -> None:
    """As old versions saved a shuffled dataset: all rows, and a file that says which come when."""
    folder = tmp_path / "d"
    dataset.save_to_disk(folder, num_shards=2)
    saved = datasets.load_from_disk(folder)
    rows = [*range(24, 3, -1), *range(5, 15)]
    shuffled = saved.select(rows, indices_cache_file_name=str(folder / "indices.arrow"))
    state = json.loads((folder / "state.json").read_text()) | {key: [{"filename": "indices.arrow"}]}
    (folder / "state.json").write_text(json.dumps(state))
    source = open_source(folder, cache=cache)
    assert list(shuffled) == [ROWS[row] for row in rows]
    check_source(source, expected=list(shuffled), max_pickle=3000)
    homes = [(source.locate(row).file, source.locate(row).line) for row in range(31)]
    assert homes == [(source.files[row >= 13], row + 1 - 13 * (row >= 13)) for row in rows]
    saved.select([0]).save_to_disk(tmp_path / "short")
    shutil.copy(
        tmp_path / "short" / "data-00000-of-00001.arrow", folder / "data-00001-of-00002.arrow"
    )
    with pytest.raises(
        SourceError, match=r"indices\.arrow: names the record 24, but the data has 14 records"
    ):
        open_source(folder, cache=cache)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (
            {"_data_files": [{"filename": "../other.arrow"}]},
            "names the file '../other.arrow', expected one inside",
        ),
        (
            {"_data_files": [{"filename": "/etc/passwd"}]},
            "names the file '/etc/passwd', expected one inside",
        ),
        ({"_data_files": [{"filename": "link.arrow"}]}, "a link that leads out of its folder"),
        (
            {"_data_files": [{"filename": "gone.arrow"}]},
            r"gone\.arrow: missing, but .*state\.json names it",
        ),
        ({"_data_files": [{"filename": 3}]}, "names the file 3, expected one inside"),
        ({"_data_files": ["x"]}, "not lists of objects"),
        ({"_data_files": []}, "names no data files"),
        ({}, "not lists of objects"),
    ],
)
def test_a_description_that_leads_elsewhere_is_refused(
    dataset: Any, tmp_path: Path, cache: Cache, state: dict[str, Any], reason: str
) -> None:
    dataset.save_to_disk(tmp_path / "d")
    (tmp_path / "other.arrow").write_bytes(
        (tmp_path / "d" / "data-00000-of-00001.arrow").read_bytes()
    )
    (tmp_path / "d" / "link.arrow").symlink_to(tmp_path / "other.arrow")
    (tmp_path / "d" / "state.json").write_text(json.dumps(state))
    with pytest.raises(SourceError, match=reason):
        open_source([str(tmp_path / "d")], cache=cache)


def test_a_description_that_is_no_json_is_refused(
    dataset: Any, tmp_path: Path, cache: Cache
) -> None:
    dataset.save_to_disk(tmp_path / "d")
    for text, reason in (
        ("{", "not JSON"),
        ("[]", "a JSON list, expected an object"),
        ("[" * 100_000, "not JSON"),
    ):
        (tmp_path / "d" / "state.json").write_text(text)
        with pytest.raises(SourceError, match=rf"state\.json: {reason}"):
            open_source([str(tmp_path / "d")], cache=cache)
    with pytest.raises(SourceError, match="not a folder of datasets"):
        open_source(tmp_path, cache=cache, format="hf")


def test_a_cut_file_in_a_folder_is_named(dataset: Any, tmp_path: Path, cache: Cache) -> None:
    dataset.save_to_disk(tmp_path / "d")
    path = tmp_path / "d" / "data-00000-of-00001.arrow"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(
        SourceError,
        match=r"data-00000-of-00001\.arrow: cannot be read as a whole Arrow file or stream",
    ):
        open_source([str(tmp_path / "d")], cache=cache)


def test_a_dataset_object_is_read_through_its_own_rows(
    dataset: Any, tmp_path: Path, cache: Cache
) -> None:
    dataset.save_to_disk(tmp_path / "d")
    stored = datasets.load_from_disk(tmp_path / "d")
    for given in (dataset, stored, dataset.with_format("torch"), stored.with_format("numpy")):
        assert not is_hf_iterable(given)
        check_source(open_source(given, cache=cache, name="d"), expected=ROWS)
    changed = (
        stored.filter(lambda row: row["id"] % 2, load_from_cache_file=False)
        .shuffle(seed=1)
        .select(range(9))
    )
    changed = changed.rename_column("text", "prompt").remove_columns(["grid"])
    check_source(open_source(changed, cache=cache), expected=list(changed))
    chosen = stored.with_format("numpy", columns=["id", "label"])
    assert list(open_source(chosen, cache=cache)) == [
        {"id": row["id"], "label": row["label"]} for row in ROWS
    ]
    source = open_source(stored, cache=cache)
    assert source.digest(3, 20) == open_source([str(tmp_path / "d")], cache=cache).digest(3, 20)
    assert source.files and source.locate(3).line == 4


def test_a_stored_dataset_pickles_as_its_files(tmp_path: Path, cache: Cache) -> None:
    rows = datasets.Dataset.from_dict({"text": ["x" * 100] * 10_000})
    rows.save_to_disk(tmp_path / "d")
    # keep_in_memory=False, as datasets may hold small ones in memory
    stored = datasets.load_from_disk(tmp_path / "d", keep_in_memory=False)
    frozen = pickle.dumps(open_source(stored, cache=cache, name="d"))
    assert len(frozen) < 20_000
    assert pickle.loads(frozen)[9_999] == {"text": "x" * 100}


def test_a_transform_is_applied(dataset: Any, cache: Cache) -> None:
    shown = dataset.with_transform(lambda rows: {"twice": [2 * number for number in rows["id"]]})
    assert list(open_source(shown, cache=cache)) == [{"twice": 2 * number} for number in range(25)]
    assert open_source(shown, cache=cache)[7] == {"twice": 14}


def test_a_bad_cell_of_an_object_follows_the_policy(cache: Cache) -> None:
    stamps = pa.table({"t": pa.array([0, 1, 2000], type=pa.timestamp("ns"))})
    given = datasets.Dataset(stamps)
    with pytest.raises(BadRecord, match=r"d:2: column 't' cannot be read: .*record 1"):
        list(open_source(given, cache=cache, name="d"))
    source = open_source(given, cache=cache, name="d", bad=BadRows("skip"))
    assert len(list(source)) == 2 and source.bad_counts == {"bad_value": 1}
    with pytest.raises(BadRecord, match="record 1"):
        source[1]


def test_splits_of_an_object(dataset: Any) -> None:
    both = datasets.DatasetDict({"train": dataset, "test": dataset.select([0])})
    assert len(pick_split(both, "test")) == 1
    for split, reason in ((None, "none was chosen"), ("val", "'val' is none of them")):
        with pytest.raises(
            SourceError, match=f"a DatasetDict: it holds the splits train, test and {reason}"
        ):
            pick_split(both, split)
    assert pick_split(datasets.DatasetDict({"train": dataset}), None) is dataset
    assert pick_split(dataset, None) is dataset
    with pytest.raises(
        SourceError, match="split 'train' asked for, but a Dataset is one split already"
    ):
        pick_split(dataset, "train")


def numbers(shards: list[list[int]]) -> Iterator[dict[str, int]]:
    for shard in shards:
        yield from ({"n": number} for number in shard)


def test_an_iterable_dataset_gives_plain_records_again_and_again(
    dataset: Any, cache: Cache
) -> None:
    streamed = dataset.to_iterable_dataset(num_shards=3)
    assert is_hf_iterable(streamed)
    records = hf_iterable(streamed.with_format("numpy"))
    assert list(records()) == list(records()) == ROWS
    assert type(next(iter(records()))["id"]) is int
    unknown = datasets.IterableDataset.from_generator(numbers, gen_kwargs={"shards": [[1, 2], [3]]})
    assert list(hf_iterable(unknown)()) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert list(open_source(streamed, cache=cache)) == ROWS


def test_images_stay_the_bytes_they_are(tmp_path: Path, cache: Cache) -> None:
    """Nothing decodes them: these are no images, and the library that could tell may not be installed."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [
        {
            "id": 1,
            "image": {"bytes": b"abc", "path": None},
            "more": [{"bytes": None, "path": "x.png"}],
        }
    ]
    schema = pa.schema([("id", pa.int64()), ("image", image), ("more", pa.list_(image))])
    features = datasets.Features(
        {
            "id": datasets.Value("int64"),
            "image": datasets.Image(),
            "more": datasets.List(datasets.Image()),
        }
    )
    info = datasets.DatasetInfo(features=features)
    given = datasets.Dataset(pa.Table.from_pylist(rows, schema=schema), info=info)
    assert list(open_source(given, cache=cache)) == rows
    assert list(hf_iterable(given.to_iterable_dataset())()) == rows
    given.select_columns(["id", "image"]).save_to_disk(tmp_path / "d")
    assert open_source([str(tmp_path / "d")], cache=cache)[0] == {
        "id": 1,
        "image": rows[0]["image"],
    }


def test_a_folder_opens_through_the_front_door(dataset: Any, tmp_path: Path, cache: Cache) -> None:
    dataset.save_to_disk(tmp_path / "d")
    source = open_source(tmp_path / "d", cache=cache)
    assert source.format == "hf" and list(source) == ROWS
    assert np.array_equal(source.cuts(num_bytes=1 << 30, num_rows=10), [0, 10, 20, 25])
