"""Draw small copies of the images of samples: bounded in number and bytes, and made again as JPEG.

Nothing of the original file reaches the page but its pixels.  An image that cannot be drawn is named with the reason.
"""

import base64
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.errors import PenstockError
from penstock.extras.media.chat_step import media_reader
from penstock.extras.media.files import open_image
from penstock.extras.media.report import items_of, media_line
from penstock.store import Sample, Store
from penstock.types import MediaItem

SIDE = 112  # pixels of the longer side
_QUALITY = 70  # of JPEG
_EACH_SAMPLE = 4  # images drawn of one sample
_MOST_READ = 64 << 20  # bytes of one image
_MOST_BYTES = 500_000  # of all that are drawn on a page


@dataclass(frozen=True, slots=True)
class Picture:
    """One of a sample's media: its line, and a small copy of an image as a data URL."""

    line: str
    url: str | None = None
    width: int = 0
    height: int = 0
    problem: str = ""  # why an image is not drawn


class Thumbnails:
    """Draws the images of samples until the page has enough of them; `side` is that of the longer side, in pixels."""

    def __init__(self, side: int = SIDE) -> None:
        self._left = _MOST_BYTES
        self._side = side

    def of(self, store: Store, sample: Sample) -> tuple[Picture, ...]:
        """Return all media of a sample; its first images are drawn."""
        return tuple(self._pictures(store, sample))

    def _pictures(self, store: Store, sample: Sample) -> Iterator[Picture]:
        drawn = 0
        for item in items_of(sample):
            line = media_line(item)
            if item.kind != "image" or drawn >= _EACH_SAMPLE or self._left <= 0:
                yield Picture(line)
                continue
            drawn += 1
            try:
                raw, width, height = _small(self._bytes(store, sample, item), item, self._side)
            except Exception as error:  # decoders of Pillow raise whatever they do
                yield Picture(line, problem=f"cannot be drawn: {error}")
                continue
            self._left -= len(raw)
            url = f"data:image/jpeg;base64,{base64.b64encode(raw).decode()}"
            yield Picture(line, url, width, height)

    def _bytes(self, store: Store, sample: Sample, item: MediaItem) -> bytes:
        reader = media_reader(store.template)
        if reader is None:
            raise PenstockError("the template has no reader of media")
        if item.num_bytes > _MOST_READ:
            raise PenstockError(f"{item.num_bytes:,} bytes, more than {_MOST_READ:,}")
        return reader.bytes_of(item, lambda: store.source[sample.row])


def _small(data: bytes, item: MediaItem, side: int) -> tuple[bytes, int, int]:
    """Return a small JPEG, upright and on white, with its width and height."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise PenstockError("Pillow is not installed; pip install 'penstock[vlm]'") from error
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # the number of pixels was checked when the sample was prepared
        with open_image(io.BytesIO(data)) as image:
            if sorted(image.size) != sorted(item.size):
                raise PenstockError(
                    f"{image.height} × {image.width} pixels, and had {item.size[0]} × {item.size[1]}"
                )
            image.draft("RGB", (side * 2, side * 2))  # a JPEG is decoded at a smaller scale
            upright: Any = ImageOps.exif_transpose(image)
            upright.thumbnail((side, side))
            flat = Image.new("RGB", upright.size, "white")
            with_alpha = upright.convert("RGBA")
            flat.paste(with_alpha, mask=with_alpha.getchannel("A"))
            out = io.BytesIO()
            flat.save(out, "JPEG", quality=_QUALITY)
    return out.getvalue(), flat.width, flat.height
