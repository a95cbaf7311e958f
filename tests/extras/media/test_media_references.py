"""Do the references that a store keeps lead to the right bytes, also after tars were written again or moved?"""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
from PIL import Image

import penstock as ps
from penstock.extras.media.chat_step import media_reader
from penstock.types import unpack_media
from tests.extras.media import processors


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    processors.qwen2_5_vl().save_pretrained(folder)
    return folder


def image(number: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (60, 60), (number, 2 * number, 0)).save(out, "PNG")
    return out.getvalue()


def write(path: Path, numbers: list[int]) -> None:
    with tarfile.open(path, "w") as tar:
        for number in numbers:
            turns = [
                {"role": "user", "content": "<image>?"},
                {"role": "assistant", "content": f"picture {number}"},
            ]
            text = json.dumps({"messages": turns, "number": number}).encode()
            for name, data in ((f"{number}.json", text), (f"{number}.png", image(number))):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def check(place: Any, model: Path, cache: Path) -> None:
    """Compare every image that the store refers to with the image of its record."""
    store = ps.prepare(place, tokenizer=model, template="messages", cache_dir=cache, num_proc=1)
    for row in range(len(store)):
        record = store.source[row]
        (item,) = unpack_media(store[row].columns["media"].data)
        reader: Any = media_reader(store.template)  # type: ignore[attr-defined]  # of chat templates
        assert reader.bytes_of(item, lambda record=record: record) == image(record["number"])


def test_references_follow_a_tar_that_was_written_anew(tmp_path: Path, model: Path) -> None:
    path, cache = tmp_path / "a.tar", tmp_path / "cache"
    for numbers in (
        [1, 2, 3],
        [7, 1, 2, 3],
        [3, 2, 1],
        [1, 2, 3],
    ):  # the same samples at other places
        write(path, numbers)
        check(path, model, cache)


def test_references_follow_tars_that_swap_their_names(tmp_path: Path, model: Path) -> None:
    first, second, cache = tmp_path / "a.tar", tmp_path / "b.tar", tmp_path / "cache"
    write(first, [1, 2])
    write(second, [3, 4])  # members of the same sizes at the same places
    check([first, second], model, cache)
    first.rename(tmp_path / "c.tar")
    second.rename(first)
    (tmp_path / "c.tar").rename(second)
    check([first, second], model, cache)
    check([second, first], model, cache)


def test_references_follow_a_folder_that_moves(tmp_path: Path, model: Path) -> None:
    cache = tmp_path / "cache"
    (tmp_path / "one").mkdir()
    write(tmp_path / "one" / "a.tar", [1, 2])
    check(tmp_path / "one", model, cache)
    (tmp_path / "one").rename(tmp_path / "two")
    check(tmp_path / "two", model, cache)
