"""Images in lists of records: bytes, {"bytes", "path"} and images of Pillow become the batches that their files become."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import penstock as ps
from penstock.errors import BadRecord, PenstockError
from tests.extras.media import vlm

NOISE = np.random.default_rng(5).integers(0, 256, (44, 70, 3), np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory")
    vlm.processor_folder(folder / "model", "qwen2_5_vl")
    return folder


def picture(mode: str = "RGB") -> Any:
    return Image.fromarray(NOISE).convert(mode)


def encoded(image: Any, form: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def talk(image: Any) -> dict[str, Any]:
    parts = [{"type": "image", "image": image}, {"type": "text", "text": "What is it?"}]
    answer = {"role": "assistant", "content": "a dog"}
    return {"messages": [{"role": "user", "content": parts}, answer]}


def column(image: Any) -> dict[str, Any]:
    user = {"role": "user", "content": "<image>What is it?"}
    return {"messages": [user, {"role": "assistant", "content": "a dog"}], "images": [image]}


def first_batch(records: Any, folder: Path, cache: Path, **options: Any) -> tuple[Any, Any]:
    store = ps.prepare(
        records,
        tokenizer=folder / "model",
        cache_dir=cache,
        progress="none",
        **{"num_proc": 1, **options},
    )
    loader = ps.Loader(store, batch_size=1, max_length=256, packing="none", output="numpy")
    return store, next(iter(loader))


@pytest.mark.parametrize("shape", [talk, column])
def test_bytes_and_images_in_a_list_become_the_batch_of_their_file(
    folder: Path, tmp_path: Path, shape: Any
) -> None:
    """Media §3: the guide lists bytes, and a list of records refused them."""
    data = encoded(picture())
    (tmp_path / "a.png").write_bytes(data)
    lines = tmp_path / "chat.jsonl"
    lines.write_text(json.dumps(shape("a.png")) + "\n")
    _, expected = first_batch(lines, folder, tmp_path / "cache")
    values = [data, bytearray(data), memoryview(data), {"bytes": data, "path": "x.png"}, picture()]
    for value in values:
        store, batch = first_batch([shape(value)], folder, tmp_path / "cache")
        assert np.array_equal(batch["pixel_values"], expected["pixel_values"]), type(value)
        assert np.array_equal(batch["input_ids"], expected["input_ids"])
        assert store[0].columns["media"].size


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "HSV", "F", "I"])
def test_an_image_of_any_mode_is_what_its_own_conversion_to_rgb_is(
    folder: Path, tmp_path: Path, mode: str
) -> None:
    image = picture().convert("L").convert(mode) if mode in ("F", "I", "LA") else picture(mode)
    _, batch = first_batch([talk(image)], folder, tmp_path / "cache")
    _, expected = first_batch([talk(image.convert("RGB"))], folder, tmp_path / "cache")
    assert np.array_equal(batch["pixel_values"], expected["pixel_values"])


def test_a_photo_is_turned_as_its_file_would_be(folder: Path, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(picture(), exif=exif.tobytes())
    _, by_bytes = first_batch([talk(data)], folder, tmp_path / "cache")
    _, by_image = first_batch([talk(Image.open(io.BytesIO(data)))], folder, tmp_path / "cache")
    assert np.array_equal(by_bytes["pixel_values"], by_image["pixel_values"])
    assert np.array_equal(by_bytes["image_grid_thw"], by_image["image_grid_thw"])


def test_another_image_is_another_store_and_a_store_is_built_in_processes(
    folder: Path, tmp_path: Path
) -> None:
    records = [talk(picture()), talk(picture("L")), talk(encoded(picture()))]
    digests = {ps.open([record]).digest(0, 1) for record in records}
    assert len(digests) == 3
    changed = picture()
    changed.putpixel((0, 0), (1, 2, 3))
    assert ps.open([talk(changed)]).digest(0, 1) not in digests
    assert ps.open([talk(picture())]).digest(0, 1) in digests
    alone, _ = first_batch(records, folder, tmp_path / "a")
    together, _ = first_batch(records, folder, tmp_path / "b", num_proc=2)
    assert alone.fingerprint == together.fingerprint


def test_the_place_of_an_image_is_a_part_of_the_content() -> None:
    data = b"x"
    pairs = [[data, None], [None, data], [data, data], [None, None], [{"a": data}, None]]
    assert len({ps.open([{"images": pair}]).digest(0, 1) for pair in pairs}) == len(pairs)


def test_reading_a_list_leaves_the_images_of_the_user_alone() -> None:
    image = picture()
    source = ps.open([talk(image)])
    read = source[0]["messages"][0]["content"][0]["image"]
    assert isinstance(read, bytes) and np.array_equal(
        np.asarray(Image.open(io.BytesIO(read))), NOISE
    )
    assert np.array_equal(np.asarray(image), NOISE)


def test_arrays_and_streams_of_bytes_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="a ndarray"):
        first_batch([talk(NOISE)], folder, tmp_path / "cache")
    with pytest.raises(
        BadRecord, match=r"holds a bytes, expected plain JSON values; .* pass a list"
    ):
        list(ps.open(iter([talk(b"x")])))
