"""Does the report draw the images of samples, small, bounded and made again, wherever the records keep them?"""

import base64
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("transformers")
from PIL import Image

import penstock as ps
from penstock.extras.view import thumbnails
from penstock.extras.view.export import Export
from penstock.extras.view.export import page as exported
from tests.extras.media import processors
from tests.extras.view.test_export import check_policy

COLOURS = ["red", "lime", "blue"]
HIDDEN = b"<script>alert(1)</script>"  # in the files, and never on a page


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    processors.qwen2_5_vl().save_pretrained(folder)
    return folder


def image(number: int) -> bytes:
    """A plain image: a JPEG that is stored on its side, a PNG with an empty half, a JPEG with a remark."""
    out = io.BytesIO()
    made = Image.new("RGB", (300, 200), COLOURS[number])
    if number == 0:
        exif = Image.Exif()
        exif[0x0112] = 6
        made.save(out, "JPEG", exif=exif)
    elif number == 1:
        made.putalpha(
            Image.linear_gradient("L").resize((300, 200)).point(lambda value: 255 * (value > 127))
        )
        made.save(out, "PNG")
    else:
        made.save(out, "JPEG", comment=HIDDEN)
    return out.getvalue()


def messages(number: int) -> list[dict[str, Any]]:
    question = "<image>\nWhat is in this picture?"
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": f"A house {number}."},
    ]


def written(folder: Path, shape: str) -> Path:
    folder.mkdir()
    if shape == "webdataset":
        with tarfile.open(folder / "data-000.tar", "w") as tar:
            for number in range(3):
                text = json.dumps({"messages": messages(number)}).encode()
                for name, data in ((f"{number}.jpg", image(number)), (f"{number}.json", text)):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        return folder / "data-{000..000}.tar"
    if shape == "parquet":
        rows = [
            {"messages": messages(n), "images": [{"bytes": image(n), "path": None}]}
            for n in range(3)
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")
        return folder / "a.parquet"
    for number in range(3):
        (folder / f"{number}.png").write_bytes(image(number))
        (folder / f"{number}.json").write_text(json.dumps({"messages": messages(number)}))
    if shape == "media_folder":
        lines = [
            json.dumps({"file_name": f"{number}.png", "messages": messages(number)})
            for number in range(3)
        ]
        (folder / "metadata.jsonl").write_text("\n".join(lines))
        for number in range(3):
            (folder / f"{number}.json").unlink()
    return folder


def opened(place: Path, model: Path, cache: Path) -> ps.Loader:
    store = ps.prepare(place, tokenizer=model, template="messages", cache_dir=cache, num_proc=1)
    assert store.counts.dropped == {}
    return ps.Loader(store, batch_size=1, max_length=512, output="numpy", rank=0, world_size=1)


def drawn(page: str) -> list[Image.Image]:
    found = re.findall(r'"data:image/jpeg;base64,([^"]*)"', page)
    return [Image.open(io.BytesIO(base64.b64decode(data))) for data in found]


@pytest.mark.parametrize("shape", ["webdataset", "parquet", "media_folder", "sample_folder"])
def test_the_images_of_samples_are_drawn_wherever_they_are(
    tmp_path: Path, model: Path, shape: str
) -> None:
    loader = opened(written(tmp_path / "data", shape), model, tmp_path / "cache")
    page = exported(loader, Export())
    check_policy(page)
    images = drawn(page)
    assert len(images) == 3
    sizes, middles = set(), set()
    for each in images:
        assert max(each.size) == thumbnails.SIDE and each.format == "JPEG" and not each.getexif()
        assert HIDDEN not in each.tobytes() and "comment" not in each.info
        sizes.add(each.size)
        red, green, blue = each.convert("RGB").resize((1, 1)).getpixel((0, 0))  # type: ignore[misc]
        middles.add((red > 100, green > 100, blue > 100))
    assert sizes == {(112, 75), (75, 112)}  # the first is upright
    assert middles == {
        (True, False, False),
        (True, True, True),
        (False, False, True),
    }  # half of the second is white
    assert '"text":"media"' in page
    assert "image 0: " in page and "200 \\u00d7 300 pixels (height \\u00d7 width)" in page
    assert exported(loader, Export()) == page


def test_an_image_that_is_gone_or_changed_is_named(tmp_path: Path, model: Path) -> None:
    folder = written(tmp_path / "data", "sample_folder")
    loader = opened(folder, model, tmp_path / "cache")
    (folder / "0.png").unlink()
    (folder / "1.png").write_bytes(image(1)[:-40] + bytes(40))
    page = exported(loader, Export())
    check_policy(page)
    assert len(drawn(page)) in (1, 2)  # Pillow may draw what is left of the second
    assert re.search(r"cannot be drawn: .*0\.png: nothing found", page)


def test_images_are_bounded_in_number_and_bytes(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = opened(written(tmp_path / "data", "webdataset"), model, tmp_path / "cache")
    monkeypatch.setattr(thumbnails, "_MOST_BYTES", 1)
    assert len(drawn(exported(loader, Export()))) == 1
    monkeypatch.setattr(thumbnails, "_MOST_READ", 10)
    page = exported(loader, Export())
    assert drawn(page) == []
    assert "more than 10" in page
