"""Do columns of images and audio, struct<bytes, path>, arrive as they were written, with nulls that still mean something?"""

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from penstock.cache import Cache
from penstock.sources import open_source
from penstock.testing import check_source

MEDIUM = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
SCHEMA = pa.schema(
    [("image", MEDIUM), ("images", pa.list_(MEDIUM)), ("audio", MEDIUM), ("text", pa.string())]
)


def png(side: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (side, side)).save(out, "PNG")
    return out.getvalue()


BOTH, INSIDE, BESIDE = (
    {"bytes": png(3), "path": "3.png"},
    {"bytes": png(4), "path": None},
    {"bytes": None, "path": "x.png"},
)
ROWS: list[dict[str, Any]] = [
    {"image": BOTH, "images": [INSIDE, BESIDE], "audio": None, "text": "<image>"},
    {"image": INSIDE, "images": [], "audio": BESIDE, "text": None},
    {"image": BESIDE, "images": None, "audio": {"bytes": b"", "path": ""}, "text": ""},
    {"image": None, "images": [None, {"bytes": None, "path": None}], "audio": BOTH, "text": "last"},
]


def written(folder: Path, shape: str) -> Any:
    table = pa.Table.from_pylist(ROWS, SCHEMA)
    if shape == "parquet":
        pq.write_table(table, folder / "a.parquet")
        return folder / "a.parquet"
    if shape == "arrow":
        with pa.ipc.new_file(folder / "a.arrow", SCHEMA) as writer:
            writer.write_table(table)
        return folder / "a.arrow"
    datasets = pytest.importorskip("datasets")
    if shape == "hf":
        datasets.Dataset(table).save_to_disk(
            folder / "saved"
        )  # with its own types it would read and embed x.png
        return folder / "saved"
    features = datasets.Features(
        image=datasets.Image(),
        images=[datasets.Image()],
        audio=datasets.Audio(),
        text=datasets.Value("string"),
    )
    return datasets.Dataset(table, datasets.DatasetInfo(features=features))


@pytest.mark.parametrize("nulls", ["deep", "keep"])
@pytest.mark.parametrize("shape", ["parquet", "arrow", "hf", "memory"])
def test_media_columns_arrive_as_they_were_written(
    tmp_path: Path, cache: Cache, shape: str, nulls: str
) -> None:
    source = open_source(written(tmp_path, shape), cache=cache, nulls=nulls)
    check_source(source, expected=ROWS)
    assert source.removed_nulls(range(len(ROWS))).rows == 0


@pytest.mark.parametrize("shape", ["parquet", "arrow"])
def test_in_the_parts_of_a_message_only_what_is_null_is_left_out(
    tmp_path: Path, cache: Cache, shape: str
) -> None:
    parts = [{"type": "image", "image": medium} for medium in (BOTH, INSIDE, BESIDE)]
    table = pa.table(
        {"messages": [[{"role": "user", "content": [*parts, {"type": "text", "text": "hi"}]}]]}
    )
    path = tmp_path / f"a.{shape}"
    if shape == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    expected = [
        {"type": "image", "image": {k: v for k, v in each.items() if v is not None}}
        for each in (BOTH, INSIDE, BESIDE)
    ]
    ((message,),) = [record["messages"] for record in open_source(path, cache=cache)]
    assert message["content"] == [*expected, {"type": "text", "text": "hi"}]


def test_another_image_is_another_digest(tmp_path: Path, cache: Cache) -> None:
    digests = set()
    for number, image in enumerate((png(3), png(4), None)):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(
            pa.Table.from_pylist(
                [{"image": {"bytes": image, "path": "a.png"}}], pa.schema([SCHEMA.field(0)])
            ),
            path,
        )
        digests.add(open_source(path, cache=cache).digest(0, 1))
    assert len(digests) == 3
