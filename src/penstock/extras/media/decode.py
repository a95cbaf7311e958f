"""Images and videos of Qwen-VL → arrays, and what all families share.  Who opens an image decides how it looks: upright, without alpha.

An image is turned as its EXIF orientation says and converted to RGB, as transformers' `load_image` does it.  Pillow and numpy release
the GIL here, so threads decode side by side.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.errors import MediaError
from penstock.extras.media.files import Blank
from penstock.extras.media.files import open_image as open_image_file
from penstock.extras.media.frames import read_frames
from penstock.types import MEDIA, MediaItem, rule_of

Arrays = dict[str, npt.NDArray[Any]]

_ORIENTATION = 0x0112  # in EXIF

# Arrays that hold media.  A model that does not take them would train on placeholders without features, and say nothing.
MEDIA_ARRAYS = rule_of(MEDIA).reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The arrays of one image, video or audio clip, and how many placeholders the model replaces by its features."""

    kind: str
    arrays: Arrays
    placeholders: int
    # Placeholders by time, height and width, for rotary positions.
    grid: tuple[int, int, int] | None = None
    interval: float = 1.0  # positions between two moments of the grid
    is_blank: bool = False  # it stands for media that cannot be read


Take = Callable[
    [str, int, Any], npt.NDArray[Any]
]  # (name, how many values, dtype): memory of earlier batches, if some is free
Reserved = tuple[Arrays, list[npt.NDArray[Any] | None]]

# Settings of a video processor that must be those of the image processor.
_SHARED = (
    *(
        "patch_size",
        "merge_size",
        "temporal_patch_size",
        "image_mean",
        "image_std",
        "rescale_factor",
        "resample",
    ),
    *("do_resize", "do_rescale", "do_normalize"),
)


class Decoder(Protocol):
    """The media of one model family."""

    def num_bytes(self, item: MediaItem) -> int:
        """Return how many bytes the arrays of an item take, at most."""
        ...

    def reserve(self, items: Sequence[MediaItem], take: Take) -> Reserved:
        """Return arrays that hold all items of a step, if their sizes are known, and the part of each item."""
        ...

    def decode(self, item: MediaItem, data: bytes, out: npt.NDArray[Any] | None) -> Decoded:
        """Return the arrays of an item, without those that were reserved: their values are written to `out`."""
        ...

    def combine(self, rows: Sequence[Sequence[Decoded]]) -> Arrays:
        """Join the arrays of the media of each row, in the order of their placeholders."""
        ...


class WrongSize(Exception):
    """An image does not have the size that its header had when its tokens were counted."""


def open_image(data: bytes, size: tuple[int, ...]) -> Any:
    """Return the image upright, in RGB; it must have this height and width.

    An alpha channel is dropped.  A single transparent colour stays in `info`, and processors that convert to RGB make it white.
    """
    from PIL import Image, ImageOps

    if isinstance(data, Blank):
        return Image.new("RGB", (size[1], size[0]))
    image: Any = open_image_file(BytesIO(data))
    if sorted(image.size) != sorted(size):
        # before decoding: a file that was replaced may be a decompression bomb
        raise _wrong_size(image, size)
    image.load()
    if image.getexif().get(_ORIENTATION, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        del image.info["transparency"]  # alpha of each colour is dropped; Pillow would warn of it
    if (image.height, image.width) != tuple(size):
        raise _wrong_size(image, size)
    image = image if image.mode == "RGB" else image.convert("RGB")  # no copy
    if not isinstance(image.info.get("transparency"), tuple):
        image.info.pop(
            "transparency", None
        )  # of a mode that has no such colour in RGB: transformers cannot convert it
    return image


def _wrong_size(image: Any, size: tuple[int, ...]) -> WrongSize:
    return WrongSize(
        f"it has {image.height} × {image.width} pixels (height × width), but its header said {size[0]} × {size[1]} when it was "
        f"prepared; restore the file, or prepare again with refresh=True"
    )


class Patches:
    """Qwen-VL: pixel_values of all patches, end to end, and the grid of each image or video.

    Resizing is Pillow's.  What follows is a function of one byte, so its 256 results come from a table that the processor itself
    has filled: the same bits in a fraction of the time.  `_is_exact` compares the two once; if they differ, the processor does it all.

    Frames of a video are resized and scaled as the image processor does it.  transformers' own video processor needs torchvision, whose
    resizing rounds otherwise.
    """

    def __init__(self, processor: Any) -> None:
        self._own = processor
        self._processor = processor.image_processor
        image_processor = self._processor
        self._patch = int(image_processor.patch_size)
        self._merge = int(image_processor.merge_size)
        self._times = int(image_processor.temporal_patch_size)
        self._bytes_per_token = 4 * 3 * self._times * (self._patch * self._merge) ** 2
        self.tokens_per_second = tokens_per_second(processor.folder)
        self._table = self._make_table() if processor.by_formula and self._is_known() else None
        if self._table is not None and not self._is_exact():
            self._table = None

    def num_bytes(self, item: MediaItem) -> int:
        return (item.span[1] - item.span[0]) * self._bytes_per_token

    def reserve(self, items: Sequence[MediaItem], take: Take) -> Reserved:
        images = [item for item in items if item.kind == "image"]
        if self._table is None or not images:
            return {}, [None] * len(items)
        sizes = [self._own.counts.resized(*item.size) for item in images]
        counts = [(height // self._patch) * (width // self._patch) for height, width in sizes]
        ends = np.cumsum([0, *counts]).tolist()
        values = 3 * self._times * self._patch**2
        whole = take("pixel_values", ends[-1] * values, np.float32).reshape(-1, values)
        turns = iter([whole[low:high] for low, high in pairwise(ends)])
        return {"pixel_values": whole}, [
            next(turns) if item.kind == "image" else None for item in items
        ]

    def decode(self, item: MediaItem, data: bytes, out: npt.NDArray[Any] | None) -> Decoded:
        if item.kind == "video":
            return self._decode_video(item, data)
        pixels, grid = self._pixels(open_image(data, item.size), out)
        own = {} if out is not None else {"pixel_values": pixels}
        return self._decoded("image", {**own, "image_grid_thw": grid}, grid)

    def _decode_video(self, item: MediaItem, data: bytes) -> Decoded:
        chosen = self._own.frames(item.size, item.rate)
        settings = self._own.counts.video
        given = [name for name in _SHARED if settings.get(name) is not None]
        other = [
            name
            for name in given
            if _plain(settings[name]) != _plain(getattr(self._processor, name))
        ]
        if self._table is None or other:
            raise MediaError(
                f"the loader resizes frames with the settings for images, but those for videos differ in "
                f"{', '.join(other) or 'their steps'}; make them equal in {self._own.folder}"
            )
        frames = read_frames(data, item.size, chosen)
        height, width = self._own.counts.video_resized(len(frames), *item.size[1:])
        resized = [
            np.asarray(frame.resize((width, height), self._processor.resample)) for frame in frames
        ]
        resized += resized[-1:] * (-len(resized) % self._times)  # as many as whole patches have
        moments = [
            self._patches(resized[place : place + self._times], self._table)
            for place in range(0, len(resized), self._times)
        ]
        grid = np.array([[len(moments), height // self._patch, width // self._patch]], np.int64)
        arrays: Arrays = {"pixel_values_videos": np.concatenate(moments), "video_grid_thw": grid}
        seconds = self._times / (len(chosen) / item.size[0] * item.rate)  # of one moment
        return self._decoded("video", arrays, grid, self._interval(seconds))

    def _interval(self, seconds: float) -> float:
        """Return how many positions a moment of a video takes."""
        if not self._own.counts.positions_count_seconds:
            return 1.0
        if self.tokens_per_second is None:
            raise MediaError(
                f"positions of videos depend on the model's vision_config.tokens_per_second, but no config.json in {self._own.folder} "
                f"has it; copy the model's config.json there"
            )
        return float(
            np.float32(seconds) * np.float32(self.tokens_per_second)
        )  # in 32 bits, as in transformers

    def _decoded(
        self, kind: str, arrays: Arrays, grid: npt.NDArray[Any], interval: float = 1.0
    ) -> Decoded:
        times, height, width = grid[0].tolist()
        merged = (times, height // self._merge, width // self._merge)
        return Decoded(
            kind=kind,
            arrays=arrays,
            placeholders=times * merged[1] * merged[2],
            grid=merged,
            interval=interval,
        )

    def combine(self, rows: Sequence[Sequence[Decoded]]) -> Arrays:
        return concatenate(each for row in rows for each in row)

    def _pixels(
        self, image: Any, out: npt.NDArray[Any] | None = None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        if self._table is None:
            found = self._processor(images=[image], return_tensors="np")
            return found["pixel_values"], found["image_grid_thw"]
        if "transparency" in image.info:
            from PIL import Image

            image = Image.fromarray(self._processor.convert_to_rgb(image))
        height, width = self._own.counts.resized(image.height, image.width)
        values = np.asarray(image.resize((width, height), self._processor.resample))
        grid = np.array([[1, height // self._patch, width // self._patch]], np.int64)
        return self._patches(
            [values] * self._times, self._table, out
        ), grid  # an image is a video that stands still

    def _patches(
        self,
        frames: Sequence[npt.NDArray[Any]],
        table: npt.NDArray[np.float32],
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return the patches of one moment: (patches, channels × frames × patch × patch).

        Strip by strip: what is between stays in the processor's cache, and no large memory is taken from the system and given back.
        """
        patch = self._patch
        merge = self._merge
        down, across = (side // patch for side in frames[0].shape[:2])
        # patches, and rows of pixels
        strip = merge * across
        high = merge * patch
        shape = (merge, patch, across // merge, merge, patch, 3)
        if out is None:
            out = np.empty((down * across, 3 * len(frames) * patch * patch), np.float32)
        found = out.reshape(down // merge, strip, 3, len(frames), patch * patch)
        for time, frame in enumerate(frames):
            if time and frame is frames[0]:
                found[:, :, :, time] = found[:, :, :, 0]
                continue
            for number, into in enumerate(found):
                values = (
                    frame[number * high : (number + 1) * high]
                    .reshape(shape)
                    .transpose(2, 0, 3, 5, 1, 4)
                )
                values = values.reshape(strip, 3, patch * patch)
                for channel in range(3):
                    into[:, channel, time] = np.take(table[channel], values[:, channel])
        return out

    def _is_known(self) -> bool:
        steps = ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb")
        own = type(self._processor).__name__ == "Qwen2VLImageProcessorPil"
        return own and all(getattr(self._processor, name, False) for name in steps)

    def _make_table(self) -> npt.NDArray[np.float32]:
        """Return what the processor makes of each byte: (3, 256)."""
        every = np.tile(np.arange(256, dtype=np.uint8), (3, 1, 1))
        scaled = self._processor.rescale(every, self._processor.rescale_factor)
        normal = self._processor.normalize(
            scaled, self._processor.image_mean, self._processor.image_std
        )
        return np.asarray(normal, np.float32).reshape(3, 256)

    def _is_exact(self) -> bool:
        from PIL import Image

        for height, width in (
            (67, 131),
            (4 * self._patch * self._merge, 3 * self._patch * self._merge),
        ):
            noise = np.arange(height * width * 3, dtype=np.uint64) * np.uint64(
                2654435761
            ) >> np.uint64(13)
            image = Image.fromarray(noise.astype(np.uint8).reshape(height, width, 3))
            expected = self._processor(images=[image], return_tensors="np")
            pixels, grid = self._pixels(image)
            same = (
                np.array_equal(pixels, expected["pixel_values"])
                and pixels.dtype == expected["pixel_values"].dtype
            )
            if not (same and np.array_equal(grid, expected["image_grid_thw"])):
                return False
        return True


def concatenate(media: Iterable[Decoded]) -> Arrays:
    """Join arrays by name, end to end."""
    parts: dict[str, list[npt.NDArray[Any]]] = {}
    for each in media:
        for name, array in each.arrays.items():
            parts.setdefault(name, []).append(array)
    return {
        name: found[0] if len(found) == 1 else np.concatenate(found)
        for name, found in parts.items()
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | list) else value


def tokens_per_second(folder: str) -> float | None:
    """Return what the model's config.json next to the processor says; None if there is none."""
    path = Path(folder) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    found = config.get("vision_config", {}).get("tokens_per_second")
    return None if found is None else float(found)
