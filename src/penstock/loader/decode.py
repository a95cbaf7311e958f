"""Images → arrays, as the model's own image processor makes them.  Who opens an image decides how it looks: upright, without alpha.

An image is turned as its EXIF orientation says and converted to RGB, as transformers' `load_image` does it.  Pillow and numpy release
the GIL here, so threads decode side by side.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.errors import PlanError
from penstock.types import MediaItem

Arrays = dict[str, npt.NDArray[Any]]

# Arrays that hold media.  A model that does not take them would train on placeholders without features, and say nothing.
MEDIA_ARRAYS = frozenset({"pixel_values", "image_grid_thw"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The arrays of one image, and how many placeholders the model replaces by its features."""

    kind: str
    arrays: Arrays
    placeholders: int
    grid: tuple[int, int, int] | None = None  # placeholders by time, height and width, for rotary positions
    interval: float = 1.0  # positions between two moments of the grid


class Decoder(Protocol):
    """The media of one model family."""

    bytes_per_token: int  # of the arrays, for each placeholder, at most

    def decode(self, item: MediaItem, data: bytes) -> Decoded: ...

    def combine(self, rows: Sequence[Sequence[Decoded]]) -> Arrays:
        """Join the arrays of the media of each row, in the order of their placeholders."""
        ...


class WrongSize(Exception):
    """An image does not have the size that its header had when its tokens were counted."""


def open_image(data: bytes, size: tuple[int, ...]) -> Any:
    """Return the image upright, in RGB; it must have this height and width."""
    from PIL import Image, ImageOps

    with Image.open(BytesIO(data)) as opened:
        opened.load()
        image = ImageOps.exif_transpose(opened)
    if image.mode == "P":
        image.info.pop("transparency", None)  # alpha is dropped; Pillow would warn of it
    if (image.height, image.width) != tuple(size):
        raise WrongSize(
            f"it has {image.height} × {image.width} pixels (height × width), and its header said {size[0]} × {size[1]} when it was "
            f"prepared"
        )
    return image.convert("RGB")


class Plain:
    """Families whose images are one or more tiles of one size: pixel_values of all tiles, end to end."""

    def __init__(self, image_processor: Any, tokens_per_tile: int, bytes_per_token: int) -> None:
        self._processor, self._tokens = image_processor, tokens_per_tile
        self.bytes_per_token = bytes_per_token

    def decode(self, item: MediaItem, data: bytes) -> Decoded:
        found = self._processor(images=[open_image(data, item.size)], return_tensors="np")
        pixels = found["pixel_values"]
        return Decoded(kind="image", arrays={"pixel_values": pixels}, placeholders=len(pixels) * self._tokens)

    def combine(self, rows: Sequence[Sequence[Decoded]]) -> Arrays:
        return concatenate(each for row in rows for each in row)


class Patches:
    """Qwen-VL: pixel_values of all patches, end to end, and the grid of each image.

    Resizing is Pillow's.  What follows is a function of one byte, so its 256 results come from a table that the processor itself
    has filled: the same bits in a fraction of the time.  `is_exact` compares the two once; if they differ, the processor does it all.
    """

    def __init__(self, processor: Any) -> None:
        self._processor, self._resized = processor.image_processor, processor.counts.resized
        image_processor = self._processor
        self._patch, self._merge = int(image_processor.patch_size), int(image_processor.merge_size)
        self._times = int(image_processor.temporal_patch_size)
        self.bytes_per_token = 4 * 3 * self._times * (self._patch * self._merge) ** 2
        self._table = self._make_table() if processor.by_formula and self._is_known() else None
        if self._table is not None and not self._is_exact():
            self._table = None

    def decode(self, item: MediaItem, data: bytes) -> Decoded:
        pixels, grid = self._pixels(open_image(data, item.size))
        times, height, width = grid[0].tolist()
        merged = (times, height // self._merge, width // self._merge)
        arrays = {"pixel_values": pixels, "image_grid_thw": grid}
        return Decoded(kind="image", arrays=arrays, placeholders=merged[0] * merged[1] * merged[2], grid=merged)

    def combine(self, rows: Sequence[Sequence[Decoded]]) -> Arrays:
        return concatenate(each for row in rows for each in row)

    def _pixels(self, image: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        if self._table is None:
            found = self._processor(images=[image], return_tensors="np")
            return found["pixel_values"], found["image_grid_thw"]
        patch, merge = self._patch, self._merge
        height, width = self._resized(image.height, image.width)
        down, across = height // patch, width // patch
        values = np.asarray(image.resize((width, height), self._processor.resample))
        values = values.reshape(down // merge, merge, patch, across // merge, merge, patch, 3).transpose(
            0, 3, 1, 4, 6, 2, 5
        )
        values = np.ascontiguousarray(values).reshape(down * across, 3, patch * patch)
        out = np.empty((down * across, 3, self._times, patch * patch), np.float32)
        for channel in range(3):
            out[:, channel, 0] = np.take(self._table[channel], values[:, channel])
        out[:, :, 1:] = out[:, :, :1]  # an image is a video that stands still
        return out.reshape(down * across, -1), np.array([[1, down, across]], np.int64)

    def _is_known(self) -> bool:
        steps = ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb")
        own = type(self._processor).__name__ == "Qwen2VLImageProcessorPil"
        return own and all(getattr(self._processor, name, False) for name in steps)

    def _make_table(self) -> npt.NDArray[np.float32]:
        """Return what the processor makes of each byte: (3, 256)."""
        every = np.tile(np.arange(256, dtype=np.uint8), (3, 1, 1))
        scaled = self._processor.rescale(every, self._processor.rescale_factor)
        normal = self._processor.normalize(scaled, self._processor.image_mean, self._processor.image_std)
        return np.asarray(normal, np.float32).reshape(3, 256)

    def _is_exact(self) -> bool:
        from PIL import Image

        for height, width in ((67, 131), (4 * self._patch * self._merge, 3 * self._patch * self._merge)):
            noise = np.arange(height * width * 3, dtype=np.uint64) * np.uint64(2654435761) >> np.uint64(13)
            image = Image.fromarray(noise.astype(np.uint8).reshape(height, width, 3))
            expected = self._processor(images=[image], return_tensors="np")
            pixels, grid = self._pixels(image)
            same = np.array_equal(pixels, expected["pixel_values"]) and pixels.dtype == expected["pixel_values"].dtype
            if not (same and np.array_equal(grid, expected["image_grid_thw"])):
                return False
        return True


def concatenate(media: Iterable[Decoded]) -> Arrays:
    """Join arrays by name, end to end."""
    parts: dict[str, list[npt.NDArray[Any]]] = {}
    for each in media:
        for name, array in each.arrays.items():
            parts.setdefault(name, []).append(array)
    return {name: found[0] if len(found) == 1 else np.concatenate(found) for name, found in parts.items()}


def open_decoder(processor: Any) -> Decoder:
    """Return what decodes the media of this processor's family; refuse a family that the loader does not know."""
    if processor.family in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl"):
        return Patches(processor)
    raise PlanError(
        f"the store was prepared with a processor of the family {processor.family!r}, whose media the loader cannot decode yet; it "
        f"decodes those of qwen2_vl, qwen2_5_vl and qwen3_vl"
    )
