"""Media are bytes from others: which decoders read them, which files they may name, and what errors show of them."""

import io
import json
import os
import socket
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

import penstock as ps
from penstock.errors import MediaError, PenstockError, TemplateError
from penstock.extras.media.chat_step import media_reader
from penstock.extras.media.decode import open_image
from penstock.extras.media.files import IMAGE_FORMATS, explain, looks_like
from penstock.extras.media.frames import read_frames, read_samples
from penstock.extras.media.headers import read_header
from penstock.extras.view.thumbnails import _small
from penstock.templates import open_template, open_tokenizer
from penstock.types import MediaItem
from tests.extras.media import processors
from tests.extras.media.test_media_video_audio import film
from tests.policy import SOAK

ANSWER = {"role": "assistant", "content": "Two dogs."}
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 40\n%%EndComments\nshowpage\n%%EOF\n"
PLAYLIST = (
    b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n"
)
CONCAT = b"ffconcat version 1.0\nfile /etc/hostname\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return processors.save(processors.qwen2_5_vl(), tmp_path_factory.mktemp("processor"))


def film_bytes(form: str = "mp4", codec: str = "mpeg4") -> bytes:
    file = io.BytesIO()
    film(file, frames=8, height=32, width=48, form=form, codec=codec)
    return file.getvalue()


def session_description(port: int) -> bytes:
    lines = ["v=0", "o=- 0 0 IN IP4 127.0.0.1", "s=x", "c=IN IP4 127.0.0.1", "t=0 0"]
    return "\n".join([*lines, f"m=video {port} RTP/AVP 96", "a=rtpmap:96 H264/90000", ""]).encode()


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.parametrize("data", [session_description(free_port()), PLAYLIST, CONCAT])
def test_a_video_that_names_an_address_or_another_file_is_refused_at_once(data: bytes) -> None:
    """A6: an SDP text of 130 bytes made FFmpeg bind the port that it names, and wait for 20 s."""
    began = time.monotonic()
    with pytest.raises(MediaError, match="not a video of a format that Penstock opens"):
        read_header("video", io.BytesIO(data))
    with pytest.raises(MediaError, match="not a video of a format that Penstock opens"):
        read_frames(data, (8, 32, 48), np.arange(8))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("form", "codec"),
    [
        ("mp4", "mpeg4"),
        ("mov", "mpeg4"),
        ("matroska", "mpeg4"),
        ("avi", "mpeg4"),
        ("mpegts", "mpeg2video"),
        ("mpeg", "mpeg2video"),
        ("flv", "flv1"),
    ],
)
def test_the_usual_containers_are_opened_by_their_first_bytes(form: str, codec: str) -> None:
    data = film_bytes(form, codec)
    header = read_header("video", io.BytesIO(data))
    assert header.size[1:] == (32, 48)
    assert len(read_frames(data, header.size, np.array([0, 3]))) == 2


def test_a_frame_of_too_many_pixels_is_refused_by_the_header() -> None:
    with pytest.raises(MediaError, match=r"32 × 48 pixels .* more than max_image_pixels=1,000"):
        read_header("video", io.BytesIO(film_bytes()), max_image_pixels=1_000)


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """The same with a few bytes changed, or without its end."""
    if rng.random() < 0.3:
        return data[: int(rng.integers(1, len(data)))]
    changed = np.frombuffer(data, np.uint8).copy()
    reach = len(data) if rng.random() < 0.5 else min(len(data), 600)
    places = rng.integers(0, reach, int(rng.integers(1, 9)))
    changed[places] = rng.integers(0, 256, len(places))
    return changed.tobytes()


def test_damaged_videos_raise_nothing_but_media_errors() -> None:
    """A6: damaged MP4 files raised UnicodeDecodeError and AttributeError."""
    rng = np.random.default_rng(6)
    forms = [("mp4", "mpeg4"), ("matroska", "mpeg4"), ("avi", "mpeg4"), ("mpegts", "mpeg2video")]
    opened = 0
    for form, codec in forms:
        data = film_bytes(form, codec)
        for _ in range(3000 if SOAK else 60):
            broken = damaged(data, rng)
            try:
                header = read_header("video", io.BytesIO(broken))
                read_frames(broken, header.size, np.array([0]))
                opened += 1
            except MediaError:
                pass
    assert opened  # most flips do no harm: the loop does reach the decoders


def test_a_video_whose_metadata_is_not_utf8_is_read() -> None:
    """A6: the name of an encoder in Latin-1 was a UnicodeDecodeError."""
    data = film_bytes("mp4").replace(b"Lavf", b"La\xffv")
    assert read_header("video", io.BytesIO(data)).size == (8, 32, 48)


def test_damaged_audio_raises_nothing_but_media_errors() -> None:
    rng = np.random.default_rng(7)
    opened = 0
    for form in ("WAV", "FLAC", "OGG", "MP3", "AIFF", "CAF", "AU"):
        file = io.BytesIO()
        soundfile.write(file, rng.uniform(-0.5, 0.5, 4000), 16_000, format=form)
        for _ in range(3000 if SOAK else 40):
            broken = damaged(file.getvalue(), rng)
            try:
                header = read_header("audio", io.BytesIO(broken))
                if header.size[0] < 1 << 20:
                    read_samples(broken, header.size, header.rate, int(header.rate))
                opened += 1
            except MediaError:
                pass
    assert opened


@pytest.mark.parametrize("data", [b"MATLAB 5.0 MAT-file", b"Creative Voice File\x1a", b"\0" * 64])
def test_audio_of_an_unusual_format_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(MediaError, match="not audio of a format that Penstock opens"):
        read_header("audio", io.BytesIO(data.ljust(200, b"\0")))


def test_an_eps_file_never_starts_ghostscript(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A7: an EPS file as image passed prepare, and Pillow ran Ghostscript in the loader."""
    witness = tmp_path / "started"
    ghostscript = tmp_path / "gs"
    ghostscript.write_text(f"#!/bin/sh\necho $0 > {witness}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(MediaError, match="PostScript, which is a program and is not run"):
        read_header("image", io.BytesIO(EPS))
    with pytest.raises(Exception, match="cannot identify image file"):
        open_image(EPS, (40, 64))
    item = MediaItem(
        kind="image", number=0, place=None, span=(0, 1), size=(40, 64), num_bytes=len(EPS)
    )
    with pytest.raises(Exception, match="cannot identify image file"):
        _small(EPS, item, 32)
    assert not witness.exists()
    Image.preinit()
    Image.init()
    assert set(IMAGE_FORMATS) <= set(Image.OPEN)


def test_a_file_that_was_replaced_by_a_larger_image_is_refused_before_it_is_decoded() -> None:
    file = io.BytesIO()
    Image.new("1", (9_000, 9_000)).save(file, "PNG")
    began = time.monotonic()
    with pytest.raises(Exception, match="9000 × 9000 pixels"):
        open_image(file.getvalue(), (40, 64))
    assert time.monotonic() - began < 1


# Which files a record may name


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """data/inside.png, and an image outside of data/ that only links, `..`, `~` and absolute paths reach."""
    root = tmp_path / "data"
    (root / "below").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    Image.new("RGB", (40, 30), "red").save(root / "inside.png")
    Image.new("RGB", (40, 30), "red").save(root / "below" / "deep.png")
    Image.new("RGB", (40, 30), "red").save(outside / "secret.png")
    (outside / "secret.txt").write_text("password=hunter2")
    (root / "link.png").symlink_to(outside / "secret.png")
    (root / "folder").symlink_to(outside)
    (root / "within.png").symlink_to(root / "below" / "deep.png")
    monkeypatch.setenv("HOME", str(outside))
    return root


def record(place: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "<image>?"}, ANSWER], "images": [place]}


def outside_places(tree: Path) -> list[str]:
    secret = str(tree.parent / "outside" / "secret.png")
    return [
        "../outside/secret.png",
        "below/../../outside/secret.png",
        secret,
        f"file://{secret}",
        "~/secret.png",
        "link.png",
        "folder/secret.png",
        f"{tree}/../outside/secret.png",
        f"{tree}x/../outside/secret.png",
    ]


def test_a_record_names_no_file_outside_of_the_media_root(folder: Path, tree: Path) -> None:
    """A8: `..`, absolute paths, file://, ~ and links led out of media_root."""
    options = {"media_root": str(tree)}
    template = open_template("messages", open_tokenizer(folder, fast=False), options)
    for place in outside_places(tree):
        with pytest.raises(MediaError, match="outside of the folders that media may be read from"):
            template.encode([record(place)])
        item = MediaItem(
            kind="image",
            number=0,
            span=(0, 1),
            size=(30, 40),
            num_bytes=99,
            place=place.removeprefix("file://"),
        )
        with pytest.raises(MediaError, match="set media_folders to"):
            media_reader(template).bytes_of(item, dict)
    inside = ["inside.png", "below/../inside.png", "within.png", str(tree / "inside.png")]
    for place in [*inside, f"file://{tree}/below/deep.png"]:
        assert len(template.encode([record(place)]).input_ids)
    with pytest.raises(MediaError) as missing:  # not there, and inside: named as missing
        template.encode([record("nowhere.png")])
    assert "outside" not in str(missing.value)


def test_media_folders_widens_what_records_may_name(folder: Path, tree: Path) -> None:
    tokenizer = open_tokenizer(folder, fast=False)
    outside = str(tree.parent / "outside")
    for allowed in (outside, [outside], ["/"]):
        options = {"media_root": str(tree), "media_folders": allowed}
        template = open_template("messages", tokenizer, options)
        for place in outside_places(tree)[:-1]:
            assert len(template.encode([record(place)]).input_ids), place


def test_files_beside_the_data_are_read_also_with_another_media_root(
    folder: Path, tree: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    data = tree / "chat.jsonl"
    data.write_text(json.dumps(record(str(tree / "inside.png"))) + "\n")
    options: dict[str, Any] = {"tokenizer": folder, "num_proc": 1, "progress": "none"}
    store = ps.prepare(data, media_root=other, cache_dir=tmp_path / "cache", **options)
    assert len(store) == 1
    batch = next(iter(ps.Loader(store, batch_size=1, max_length=512, output="numpy")))
    assert len(batch["pixel_values"])
    data.write_text(json.dumps(record(str(tree.parent / "outside" / "secret.png"))) + "\n")
    with pytest.raises(TemplateError, match=r"secret.png is outside of the folders"):
        ps.prepare(data, media_root=other, cache_dir=tmp_path / "cache", **options)
    skipped = ps.prepare(
        data, media_root=other, on_media="skip", cache_dir=tmp_path / "c", **options
    )
    assert skipped.counts.dropped["bad_media"].count == 1
    widened = {"media_root": other, "on_media": "skip", "media_folders": tmp_path / "outside"}
    kept = ps.prepare(data, cache_dir=tmp_path / "c", **widened, **options)  # not the same store
    assert not kept.counts.dropped


def test_media_folders_of_a_recipe_are_relative_to_it(folder: Path, tree: Path) -> None:
    (tree / "chat.jsonl").write_text(json.dumps(record("../outside/secret.png")) + "\n")
    recipe = tree / "recipe.yaml"
    lines = ["data: chat.jsonl", f"tokenizer: {folder}", "max_length: 512", "batch_size: 1"]
    recipe.write_text("\n".join([*lines, "media_folders: [../outside]", "num_proc: 1", ""]))
    assert len(next(iter(ps.load(recipe, cache_dir=tree / "cache")))["pixel_values"])
    recipe.write_text("\n".join([*lines, "num_proc: 1", ""]))
    with pytest.raises(PenstockError, match="outside of the folders"):
        ps.load(recipe, cache_dir=tree / "cache")


def test_an_error_shows_nothing_of_what_a_file_holds(folder: Path, tree: Path) -> None:
    """A8: the error printed a file's first bytes."""
    tokenizer = open_tokenizer(folder, fast=False)
    template = open_template("messages", tokenizer, {"media_root": str(tree), "media_folders": "/"})
    places = [str(tree.parent / "outside" / "secret.txt")]
    inline = "data:image/png;base64," + b64encode(b"password=hunter2").decode()
    for place in [*places, inline]:
        with pytest.raises(MediaError) as caught:
            template.encode([record(place)])
        said = str(caught.value)
        assert "hunter2" not in said and "pass" not in said and b"pass".hex(" ") not in said, said
    assert "hunter" not in explain(SyntaxError(f"broken PNG file (chunk {b'hunter2'!r})"))
    assert "hunter" not in looks_like(b"hunter2")
