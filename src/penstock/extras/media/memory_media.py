"""Bytes and images of Pillow in records that are given as Python objects.

Such a record reads as if its images were files: bytes stay bytes, and an image becomes the bytes of a PNG file with its pixels.  In the
content that names a store, each is represented by a digest.
"""

import io
import sys
from typing import Any

from penstock.fingerprint import digest

_Place = list[str | int]  # the keys and list positions that lead to a value

# What PNG holds.  Other modes become RGB, as the loader would convert them.
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


def is_image(value: Any) -> bool:
    """Return whether a value is an image of Pillow, which is imported if there is one."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def media_value(value: Any) -> Any:
    """Return bytes and images as bytes, any other value as it is."""
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return _png(value) if is_image(value) else value


def take_media(record: Any) -> tuple[Any, list[tuple[_Place, str]]]:
    """Return a record with null in place of bytes and images, and where each was, with a digest of its content."""
    taken: list[tuple[_Place, str]] = []
    return _without_media(record, [], taken), taken


def _without_media(value: Any, place: _Place, taken: list[tuple[_Place, str]]) -> Any:
    if type(value) is dict:
        return {key: _without_media(inner, [*place, key], taken) for key, inner in value.items()}
    if type(value) is list:
        return [
            _without_media(inner, [*place, number], taken) for number, inner in enumerate(value)
        ]
    if isinstance(value, bytes | bytearray | memoryview):
        taken.append((place, digest(bytes(value))))
        return None
    if is_image(value):
        taken.append((place, _pixels_digest(value)))
        return None
    return value


def _upright(image: Any) -> Any:
    """Return an image as it is seen, in a mode that PNG holds: what its file would be read as."""
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(image)
    return upright if upright.mode in _PNG_MODES else upright.convert("RGB")


def _png(image: Any) -> bytes:
    file = io.BytesIO()
    _upright(image).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _pixels_digest(image: Any) -> str:
    """Return a digest of what is seen.  Not of the PNG: its bytes depend on the version of zlib."""
    upright = _upright(image)
    palette = upright.getpalette("RGBA") if upright.mode == "P" else None
    transparency = upright.info.get("transparency")
    shape = repr([upright.mode, upright.size, palette, transparency]).encode()
    return digest(shape + b"\0" + upright.tobytes())
