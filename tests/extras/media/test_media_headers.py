"""Sizes from headers: upright as Pillow shows them, and every file that cannot be used is refused with what it is."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from penstock.errors import MediaError
from penstock.extras.media.headers import MAX_IMAGE_PIXELS, read_header

FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "AVIF", "GIF", "BMP")
NOISE = np.random.default_rng(3).integers(0, 256, (40, 64, 3), np.uint8)


def encoded(form: str, *, height: int = 40, width: int = 64, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(NOISE[:height, :width]).save(file, form, **options)
    return file.getvalue()


def turned(form: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(form, exif=exif.tobytes() if form != "TIFF" else exif)


def header(data: bytes, kind: Any = "image", **options: Any) -> Any:
    return read_header(kind, io.BytesIO(data), **options)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_an_image_is_measured_as_it_is_seen(form: str, orientation: int) -> None:
    data = turned(form, orientation)
    with Image.open(io.BytesIO(data)) as image:
        seen = ImageOps.exif_transpose(image)
    assert header(data).size == (seen.height, seen.width)


@pytest.mark.parametrize("late", [False, True], ids=["before the pixels", "behind them"])
@pytest.mark.parametrize("kind", ["eXIf", "iTXt"])
def test_a_png_is_turned_by_exif_and_xmp_before_and_behind_its_pixels(
    kind: str, late: bool
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    note = b'XML:com.adobe.xmp\0\0\0\0\0<rdf:Description tiff:Orientation="6"/>'
    content = kind.encode() + (exif.tobytes().removeprefix(b"Exif\0\0") if kind == "eXIf" else note)
    chunk = struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))
    plain = encoded("PNG")
    place = plain.index(b"IEND" if late else b"IDAT") - 4
    data = plain[:place] + chunk + plain[place:]
    with Image.open(io.BytesIO(data)) as image:
        seen = ImageOps.exif_transpose(image)
    assert header(data).size == (seen.height, seen.width) == (64, 40)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "RGBA", "CMYK", "I;16"])
def test_every_format_and_mode_is_measured(form: str, mode: str) -> None:
    file = io.BytesIO()
    try:
        Image.new(mode, (31, 17)).save(file, form)
    except (OSError, ValueError, KeyError):  # this format cannot hold this mode
        return
    assert header(file.getvalue()).size == (17, 31)


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_is_cut_off_is_found_without_the_loader(form: str) -> None:
    data = encoded(form)
    for share in (0.3, 0.6, 0.9):
        cut = data[: int(len(data) * share)]
        try:
            with Image.open(io.BytesIO(cut)) as image:
                image.load()
        except Exception:
            with pytest.raises(
                MediaError, match=r"broken or cut off|not an image of a format that Penstock opens"
            ):
                header(cut)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF"])
def test_an_image_with_a_damaged_header_is_not_called_unknown(form: str) -> None:
    data = encoded(form)
    damaged = data[:10] + bytes(len(data) - 10)
    with pytest.raises(MediaError, match=rf"the {form} image is damaged|the image is broken"):
        header(damaged)


def test_a_file_without_its_end_marker_that_still_decodes_is_taken() -> None:
    """Only the pixels decide: some writers leave the end marker out, others write more behind it."""
    jpeg, png = encoded("JPEG"), encoded("PNG")
    taken = [jpeg + bytes(100), png + b"more", jpeg + b"\xff\xd9" * 3]
    for data in taken:
        assert header(data).size == (40, 64)
    with Image.open(io.BytesIO(jpeg[:-2])) as image:
        try:
            image.load()
        except OSError:
            with pytest.raises(MediaError):
                header(jpeg[:-2])
        else:
            assert header(jpeg[:-2]).size == (40, 64)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "the file is empty, expected an image"),
        (b"<!DOCTYPE html><html>404</html>", "HTML or XML text"),
        (b'{"error": 404}', "JSON text"),
        (b"version https://git-lfs.github.com/spec/v1\n", "run git lfs pull"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "WAV audio"),
        (b"\0\0\0\x18ftypmp42" + bytes(40), "an MP4"),
        (b"%PDF-1.7", "a PDF"),
        (b"<svg xmlns='x'/>", "an SVG drawing"),
        (bytes(range(1, 100)), "its first bytes are those of no format that Penstock knows"),
    ],
)
def test_a_file_of_another_type_is_named_by_what_it_looks_like(data: bytes, what: str) -> None:
    with pytest.raises(MediaError, match=what):
        header(data)


def png_header(height: int, width: int) -> bytes:
    """A small PNG that says it is huge."""
    data = bytearray(encoded("PNG"))
    data[16:24] = struct.pack(">II", width, height)
    crc = __import__("zlib").crc32(data[12:29])
    data[29:33] = struct.pack(">I", crc)
    return bytes(data)


def test_a_decompression_bomb_is_refused_by_its_header() -> None:
    with pytest.raises(
        MediaError,
        match=r"9,500 × 9,500 pixels \(height × width\), more than max_image_pixels=89,478,485",
    ):
        header(png_header(9_500, 9_500))
    assert header(png_header(9_500, 9_500), max_image_pixels=100_000_000).size == (9_500, 9_500)
    with pytest.raises(MediaError, match="too large"):
        header(png_header(20_000, 20_000), max_image_pixels=10**9)
    with pytest.raises(MediaError, match="max_image_pixels=1,000"):
        header(encoded("PNG"), max_image_pixels=1_000)
    assert MAX_IMAGE_PIXELS == Image.MAX_IMAGE_PIXELS


def test_an_image_without_pixels_is_refused() -> None:
    with pytest.raises(
        MediaError, match=r"broken or cut off|expected at least one|image is damaged"
    ):
        header(png_header(0, 10))


def test_bytes_that_are_damaged_never_raise_anything_else(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    for form in FORMATS:
        data = np.frombuffer(
            turned(form, 6) if form in ("JPEG", "PNG", "WEBP", "TIFF") else encoded(form), np.uint8
        )
        for _ in range(60):
            broken = data.copy()
            places = rng.integers(0, min(len(broken), 200), 3)
            broken[places] = rng.integers(0, 256, 3)
            try:
                found = header(broken.tobytes())
            except MediaError:
                continue
            assert len(found.size) == 2
