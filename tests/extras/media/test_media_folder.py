"""Are folders of images read as `datasets` reads them, and is every file that cannot be used named?"""

import gc
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import penstock as ps
from penstock.cache import Cache
from penstock.errors import BadRecord, SourceError
from penstock.sources import BadRows, open_source
from penstock.testing import check_source

ROWS: list[dict[str, Any]] = [
    {"file_name": "0.png", "text": "one, two", "after_file_name": "below/2.jpg"},
    {"file_name": "1.PNG", "text": 'a "quoted" one', "after_file_name": "0.png"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    (folder / "below").mkdir(parents=True)
    for number, name in enumerate(("0.png", "1.PNG", "below/2.jpg")):
        Image.new("RGB", (4 + number, 3)).save(folder / name)
    return folder


def write_metadata(folder: Path, suffix: str, rows: list[dict[str, Any]]) -> Path:
    path = folder / f"metadata{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        cells = [
            list(rows[0]),
            *([str(value).replace('"', '""') for value in row.values()] for row in rows),
        ]
        path.write_text("".join(",".join(f'"{cell}"' for cell in line) + "\n" for line in cells))
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_a_folder_with_metadata_is_read_as_datasets_reads_it(
    folder: Path, cache: Cache, tmp_path: Path, suffix: str
) -> None:
    datasets = pytest.importorskip("datasets")
    write_metadata(folder, suffix, ROWS)
    with warnings.catch_warnings(
        action="ignore", category=ResourceWarning
    ):  # datasets leaves a .csv open
        loaded = datasets.load_dataset(
            "imagefolder", data_dir=str(folder), split="train", cache_dir=str(tmp_path / "hf")
        )
        gc.collect()  # here, not in a later test
    for column in ("image", "after"):
        loaded = loaded.cast_column(column, datasets.Image(decode=False))
    expected = [
        {
            name: {**value, "bytes": None} if isinstance(value, dict) else value
            for name, value in row.items()
        }
        for row in loaded
    ]
    source = open_source(folder, cache=cache)
    assert source.format == "media_folder"
    check_source(source)
    assert list(source) == expected
    assert source.locate(1).file == str(folder / f"metadata{suffix}")


def test_lists_of_files_and_other_kinds(folder: Path, cache: Cache) -> None:
    for name in ("a.wav", "b.mp4"):
        (folder / name).write_bytes(b"x")
    rows = [
        {"file_names": ["0.png", "1.PNG"]},
        {"file_name": "a.wav"},
        {"file_name": "b.mp4", "n": 1},
        {"file_names": []},
    ]
    write_metadata(folder, ".jsonl", rows)

    def at(name: str) -> dict[str, Any]:
        return {"bytes": None, "path": str(folder / name)}

    expected = [
        {"images": [at("0.png"), at("1.PNG")]},
        {"audio": at("a.wav")},
        {"video": at("b.mp4"), "n": 1},
    ]
    check_source(open_source(folder, cache=cache), expected=[*expected, {"images": []}])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"file_name": "../secret.png"}, "is not the name of a file inside the folder"),
        ({"file_name": "/etc/a.png"}, "is not the name of a file inside the folder"),
        ({"file_name": "file:///etc/a.png"}, "is not the name of a file inside the folder"),
        ({"file_name": 3}, "the file name 3 is not the name of a file"),
        ({"file_name": "gone.png"}, "the file 'gone.png' is missing in "),
        ({"file_name": "notes.doc"}, "is neither an image nor a video nor audio"),
        ({"file_names": "0.png"}, "'file_names' is '0.png', expected a list of names"),
        ({"file_names": ["0.png", "a.wav"]}, "names files of several kinds: audios, images"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_bad_row(
    folder: Path, cache: Cache, row: Any, message: str
) -> None:
    (folder / "a.wav").write_bytes(b"x")
    (folder.parent / "secret.png").write_bytes(b"x")
    path = write_metadata(folder, ".jsonl", [{"file_name": "0.png"}, row])
    with pytest.raises(BadRecord, match=f"{path}:2: .*{re.escape(message)}"):
        list(open_source(folder, cache=cache))
    source = open_source(folder, cache=cache, bad=BadRows(on_bad="skip"))
    assert len(list(source)) == 1
    assert source.bad_counts == {"bad_member": 1}
    source.digest(0, 2)


@pytest.mark.parametrize("layout", ["metadata", "pairs"])
def test_a_changed_image_is_a_changed_record(folder: Path, cache: Cache, layout: str) -> None:
    if layout == "metadata":
        write_metadata(folder, ".jsonl", ROWS)
    else:
        for name in ("0.txt", "1.txt"):
            (folder / name).write_text("text")
    source = open_source(folder, cache=cache)
    digests, stamp = [source.digest(row, row + 1) for row in range(2)], source.stamp()
    assert stamp is not None
    assert open_source(folder, cache=cache).stamp() == stamp
    raw = (folder / "1.PNG").read_bytes()
    times = (folder / "1.PNG").stat()
    (folder / "1.PNG").write_bytes(raw[:-1] + b"x")
    os.utime(
        folder / "1.PNG", ns=(times.st_atime_ns, times.st_mtime_ns)
    )  # size and time of the last write stay
    again = open_source(folder, cache=cache)
    assert again.stamp() != stamp
    assert [again.digest(0, 1) == digests[0], again.digest(1, 2) == digests[1]] == [True, False]


def test_files_of_one_name_are_a_sample(folder: Path, cache: Cache) -> None:
    (folder / "v1.0.jpg").write_bytes((folder / "below" / "2.jpg").read_bytes())
    (folder / "v1.0.json").write_text('{"messages": [], "n": 12345678901234567890123}')
    (folder / "0.txt").write_text("ein grünes Bild")
    (folder / "README.md").write_text("not a sample")

    def at(name: str) -> dict[str, Any]:
        return {"bytes": None, "path": str(folder / name)}

    source = open_source(folder, cache=cache)
    assert source.format == "sample_folder"
    expected: list[dict[str, Any]] = [
        {"__key__": "0", "png": at("0.png"), "txt": "ein grünes Bild", "images": [at("0.png")]},
        {"__key__": "1", "png": at("1.PNG"), "images": [at("1.PNG")]},
        {
            "__key__": "v1.0",
            "jpg": at("v1.0.jpg"),
            "messages": [],
            "n": 12345678901234567890123,
            "images": [at("v1.0.jpg")],
        },
    ]
    check_source(source, expected=expected)
    assert source.locate(2).file == str(folder / "v1.0.json")
    (folder / "0.TXT").write_text("again")
    with pytest.raises(SourceError, match=r"0\.txt: .*0\.TXT is the same field of the same sample"):
        open_source(folder, cache=cache, format="sample_folder")


def test_other_folders_are_opened_as_before(folder: Path, cache: Cache) -> None:
    (folder / "train.jsonl").write_text('{"image": "0.png"}\n')
    (folder / "0.txt").write_text("a text next to records of another file")
    with pytest.raises(SourceError, match=r"files of several formats \(1 jsonl, 1 text\)"):
        open_source(folder, cache=cache)
    (folder / "0.txt").unlink()
    assert list(open_source(folder, cache=cache)) == [{"image": "0.png"}]
    (folder / "train.jsonl").rename(folder / "metadata.jsonl")  # names no files
    assert list(open_source(folder, cache=cache)) == [{"image": "0.png"}]
    with pytest.raises(SourceError, match=r"metadata\.jsonl: no column 'file_name'"):
        open_source(folder, cache=cache, format="media_folder")
    with pytest.raises(
        SourceError,
        match=r"expected one of metadata\.jsonl, metadata\.csv, metadata\.parquet, found none",
    ):
        open_source(folder / "below", cache=cache, format="media_folder")


def test_a_folder_of_images_alone_says_what_is_missing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        SourceError,
        match=r"one of the images, not a dataset; pass its folder, with a metadata\.jsonl",
    ):
        ps.open(folder, cache_dir=tmp_path / "cache")
