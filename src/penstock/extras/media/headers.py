"""Read the size of an image, a video or an audio clip from its header, without decoding it.

What cannot be used is refused here, so that `prepare` finds it: files that are empty, of another type, cut off, or so large that decoding
them would fill the memory.
"""

import io
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from penstock.errors import MediaError
from penstock.extras.media.files import (
    IMAGE_FORMATS,
    explain,
    image_format_of,
    looks_like,
    open_audio,
    open_image,
    open_video,
)

MAX_IMAGE_PIXELS = 89_478_485  # from here on Pillow warns of a decompression bomb
# the tag of EXIF, and its values that swap height and width
_ORIENTATION = 0x0112
_TURNED = (5, 6, 7, 8)
_TAIL = 1 << 16  # bytes at the end that are searched for an end marker
# In the tail of a PNG: data behind the pixels that may hold an orientation.
_LATE = (b"eXIf", b"XML:com.adobe.xmp", b"Raw profile type exif")
_IEND = b"\0\0\0\0IEND\xae\x42\x60\x82"

Kind = Literal["image", "video", "audio"]


@dataclass(frozen=True, slots=True)
class FileHeader:
    """What a file says about itself: size and rate as in MediaItem."""

    size: tuple[int, ...]
    rate: float = 0.0


def read_header(
    kind: Kind, file: BinaryIO, *, max_image_pixels: int = MAX_IMAGE_PIXELS
) -> FileHeader:
    """Read the header of an open file.  Errors do not name the file: the caller knows its name."""
    start = file.read(64)
    if not start:
        raise MediaError(f"the file is empty, expected {_article(kind)}; copy it again")
    file.seek(0)
    readers: dict[str, Callable[[BinaryIO], FileHeader]] = {
        "image": lambda opened: _read_image(opened, start, max_image_pixels),
        "video": lambda opened: _read_video(opened, max_image_pixels),
        "audio": _read_audio,
    }
    return readers[kind](file)


def _article(kind: str) -> str:
    return {"image": "an image", "video": "a video", "audio": "an audio clip"}[kind]


# Images


def _read_image(file: BinaryIO, start: bytes, max_pixels: int) -> FileHeader:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MediaError("reading images needs Pillow; install penstock[vlm]") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd EXIF data is not an error
            with open_image(file) as image:
                tail = _tail(file)
                check_pixels(image.height, image.width, max_pixels)
                height, width = _upright(image, tail)
                if _may_be_cut(image, file, tail):
                    image.load()  # proves that it is whole, or raises OSError
    except Image.DecompressionBombError as error:
        raise MediaError(f"the image is too large: {error}; shrink it") from error
    except UnidentifiedImageError as error:
        if (image_format := image_format_of(start)) is not None:
            raise MediaError(
                f"the {image_format} image is damaged: its header cannot be read; copy it again, or remove it"
            ) from error
        raise MediaError(
            f"not an image of a format that Penstock opens ({', '.join(IMAGE_FORMATS)}): {looks_like(start)}; "
            f"convert or remove it"
        ) from error
    except MediaError:
        raise
    except Exception as error:  # Pillow's plugins raise errors of any type for damaged files
        raise MediaError(
            f"the image is broken or cut off ({explain(error)}); copy it again, or remove it"
        ) from error
    return FileHeader((height, width))


def _tail(file: BinaryIO) -> bytes:
    """The last bytes of a file; its position stays as it was."""
    place = file.tell()
    file.seek(max(0, file.seek(0, io.SEEK_END) - _TAIL))
    found = file.read(_TAIL)
    file.seek(place)
    return found


def _upright(image: Any, tail: bytes) -> tuple[int, int]:
    """Height and width of an image as it is seen, with the orientation of its EXIF or XMP data applied.

    Pillow turns TIFF itself.  It decodes a PNG to look for such data behind the pixels, so it is asked only if the tail holds some.
    """
    from PIL import Image

    if image.format == "TIFF":
        return image.height, image.width
    is_late = (
        image.format == "PNG" and "exif" not in image.info and any(word in tail for word in _LATE)
    )
    found = image.getexif() if is_late or image.format != "PNG" else Image.Image.getexif(image)
    turned = found.get(_ORIENTATION, 1) in _TURNED
    return (image.width, image.height) if turned else (image.height, image.width)


def check_pixels(height: int, width: int, most: int) -> None:
    """Refuse an image without pixels, or with so many that decoding it could fill the memory."""
    if height < 1 or width < 1:
        raise MediaError(
            f"the image has {height} × {width} pixels (height × width), expected at least one; remove it"
        )
    if height * width > most:
        raise MediaError(
            f"the image has {height:,} × {width:,} pixels (height × width), more than max_image_pixels={most:,}, so it may be a "
            f"decompression bomb; shrink it, or raise max_image_pixels"
        )


def _may_be_cut(image: Any, file: BinaryIO, tail: bytes) -> bool:
    """Whether the end of a file lacks what its format ends with.  Such a file may still be whole: decoding it decides."""
    place = file.tell()
    size = file.seek(0, io.SEEK_END)
    file.seek(place)
    if image.format in ("JPEG", "MPO"):
        return b"\xff\xd9" not in tail
    if image.format == "PNG":
        return _IEND not in tail
    if image.format == "GIF":
        return not tail.rstrip(b"\0").endswith(b"\x3b")
    if image.format in ("BMP", "AVIF"):
        end = _bmp_end(file) if image.format == "BMP" else _boxes_end(file, size)
        file.seek(place)
        return size < end
    return image.format == "TIFF" and _tiff_end(image) > size


def _bmp_end(file: BinaryIO) -> int:
    """The size of a BMP file by its own header."""
    file.seek(2)
    found: int = struct.unpack("<I", file.read(4))[0]
    return found


def _boxes_end(file: BinaryIO, size: int) -> int:
    """Where the last box of an AVIF file ends, by the sizes that the boxes have in their headers."""
    place = 0
    while place < size:
        file.seek(place)
        length, name = struct.unpack(">I4s", file.read(8).ljust(8, b"\0"))
        if length == 1 and name != b"\0\0\0\0":  # the real length follows as 64 bits
            length = int.from_bytes(file.read(8), "big")
        if length < 8:  # 0: to the end of the file
            return size
        place += length
    return place


def _tiff_end(image: Any) -> int:
    """Where the last strip or tile of a TIFF image ends."""
    tags = image.tag_v2
    ends = [0]
    for offsets, counts in ((273, 279), (324, 325)):
        pair = tags.get(offsets, ()), tags.get(counts, ())
        starts, sizes = (value if isinstance(value, tuple) else (value,) for value in pair)
        ends += [int(start) + int(size) for start, size in zip(starts, sizes, strict=False)]
    return max(ends)


# Audio and video


def _read_audio(file: BinaryIO) -> FileHeader:
    with open_audio(file) as clip:
        samples = int(clip.frames)
        rate = int(clip.samplerate)
    if samples < 1 or rate < 1:
        raise MediaError(
            f"the audio clip has {samples} samples at {rate} Hz, expected at least one; remove it"
        )
    return FileHeader((samples,), float(rate))


def _read_video(file: BinaryIO, max_pixels: int) -> FileHeader:
    with open_video(file) as container:
        if not container.streams.video:
            raise MediaError("the file has no video stream, expected a video; replace it")
        stream = container.streams.video[0]
        # some formats do not say how many frames they have: then packets are counted, still without decoding
        frames = stream.frames or sum(bool(packet.size) for packet in container.demux(stream))
        rate = float(stream.average_rate or 0)
        height = stream.height
        width = stream.width
    if min(frames, height, width, rate) <= 0:
        what = f"{frames} frames of {height} × {width} pixels at {rate} a second"
        raise MediaError(
            f"the video has {what}, expected at least one frame, one pixel and a rate above 0; remove it"
        )
    if height * width > max_pixels:
        raise MediaError(
            f"a frame of the video has {height:,} × {width:,} pixels (height × width), more than max_image_pixels={max_pixels:,}; "
            f"shrink it, or raise max_image_pixels"
        )
    return FileHeader((int(frames), int(height), int(width)), rate)
