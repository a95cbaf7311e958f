"""Images in a bucket: the same samples and batches as from a folder, read ahead, counted, confined, and masked when they are gone."""

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import MediaError
from tests.extras.media import vlm
from tests.extras.remote.conftest import Put
from tests.extras.remote.fault_proxy import FaultProxy

ROOT = "s3://bkt/pictures"
OPTIONS = {"batch_size": 2, "max_length": 512, "packing": "first_fit", "rank": 0, "world_size": 1}


@pytest.fixture
def data(tmp_path: Path, put: Put) -> Path:
    """A model's folder and data; the images are in the bucket alone, and a copy of all is in `local`."""
    vlm.make_data(tmp_path / "data", "qwen2_5_vl", count=12)
    shutil.copytree(tmp_path / "data", tmp_path / "local")
    for image in sorted((tmp_path / "data" / "images").iterdir()):
        put(f"pictures/images/{image.name}", image.read_bytes())
    shutil.rmtree(tmp_path / "data" / "images")
    return tmp_path / "data"


def arrays_of(batches: Any) -> list[dict[str, Any]]:
    return [{name: np.asarray(batch[name]) for name in batch.keys()} for batch in batches]  # noqa: SIM118


def test_media_of_a_bucket_give_the_batches_of_a_folder(data: Path, proxy: FaultProxy) -> None:
    local = vlm.prepare(data.parent / "local")
    remote = vlm.prepare(data, media_root=f"{ROOT}/", on_media="skip")
    assert len(remote) == len(local) == 12
    expected = arrays_of(ps.Loader(local, **OPTIONS))
    loader = ps.Loader(remote, **OPTIONS)
    found = arrays_of(loader)
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)
    files = list((data.parent / "local" / "images").iterdir())
    counted = loader.metrics.as_dict()["media"]
    assert counted["fetched"] == len(files) == 12
    assert counted["fetched_bytes"] == sum(file.stat().st_size for file in files)


def test_media_that_are_gone_are_masked_and_named(
    data: Path, put: Put, caplog: pytest.LogCaptureFixture
) -> None:
    store = vlm.prepare(data, media_root=ROOT)
    put("pictures/images/4-0.png", b"no longer a picture")
    loader = ps.Loader(store, **OPTIONS)
    with caplog.at_level(logging.WARNING, "penstock"):
        batches = list(loader)
    untrained = [row for batch in batches for row in batch["labels"].tolist()]
    assert len(untrained) and loader.metrics.as_dict()["media"]["masked"] == 1
    assert loader.metrics.as_dict()["media"]["untrained_samples"] == 1
    assert "s3://bkt/pictures/images/4-0.png" in caplog.text
    with pytest.raises(MediaError, match=r"images/4-0\.png"):
        list(ps.Loader(store, **OPTIONS, on_broken_media="stop"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "s3://bkt/secret/1.png",
            r"outside of the places that media may be read from \(s3://bkt/pictures",
        ),
        ("s3://bkt/pictures-2/1.png", "set media_folders to 's3://bkt/pictures-2'"),
        ("../secret/1.png", r"a URL with '\.\.'"),
        ("%2e%2e/secret/1.png", r"a URL with '\.\.'"),
        ("http://127.0.0.1:9/1.png", "outside of the places"),
        ("missing.png", r"s3://bkt/pictures/missing\.png"),
    ],
)
def test_records_do_not_choose_what_is_read(data: Path, put: Put, name: str, message: str) -> None:
    put("secret/1.png", (data.parent / "local" / "images" / "1-0.png").read_bytes())
    record = {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": name}]},
            {"role": "assistant", "content": "red"},
        ]
    }
    with pytest.raises(ValueError, match=message):
        ps.prepare(
            [record],
            tokenizer=data / "model",
            media_root=ROOT,
            cache_dir=data / "cache",
            num_proc=1,
        )


def test_media_folders_may_be_places(data: Path, put: Put) -> None:
    url = put("other/1.png", (data.parent / "local" / "images" / "1-0.png").read_bytes())
    record = {
        "messages": [
            {"role": "user", "content": [{"type": "image", "image": url}]},
            {"role": "assistant", "content": "red"},
        ]
    }
    store = ps.prepare(
        [record],
        tokenizer=data / "model",
        media_root=str(data),
        media_folders=["s3://bkt/other"],
        cache_dir=data / "cache",
        num_proc=1,
    )
    loader = ps.Loader(store, batch_size=1, max_length=512, rank=0, world_size=1)
    assert (
        "pixel_values" in next(iter(loader)) and loader.metrics.as_dict()["media"]["fetched"] == 1
    )
