"""How many tokens an image, a video or an audio clip becomes, by family of models.

Each family repeats the arithmetic of its processor in transformers from the processor's own settings, so that a size is enough and neither
transformers nor the pixels are needed.  Tests compare every formula with the processor itself.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from penstock.errors import MediaError
from penstock.types import Ints

Pieces = list[tuple[str, int]]  # (text, how many times): more than once only for one special token
Settings = dict[str, Any]
MOST_RATIO = 200  # of the longer to the shorter side, in Qwen's processors


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family of processors, with the settings of one of them."""

    version: ClassVar[int] = 1  # raise when the same size gives other tokens
    kinds: ClassVar[tuple[str, ...]] = ("image",)
    around: ClassVar[tuple[str, str]] = (
        "",
        "",
    )  # what chat templates print before and after a placeholder
    # Whether tokens of an image attend to each other: then batches have token_type_ids, which say where images are.
    images_attend_both_ways: ClassVar[bool] = False
    # Whether a position in a video stands for some time, which the model's config.json says; else for a moment.
    positions_count_seconds: ClassVar[bool] = False
    # Of the image processor's class, for settings that a folder leaves out.
    image_defaults: ClassVar[Settings] = {}
    video_defaults: ClassVar[Settings] = {}

    name: str
    has_video: bool = False  # whether the folder has settings of a video processor
    image: Settings = field(default_factory=dict)  # of the image processor, complete
    video: Settings = field(default_factory=dict)
    audio: Settings = field(default_factory=dict)  # of the feature extractor
    processor: Settings = field(default_factory=dict)  # of the processor around it
    tokens: Mapping[str, str] = field(default_factory=dict)  # named special tokens of the tokenizer
    is_count_chosen: bool = False  # num_frames is of video_options, not of the model's files

    def placeholder(self, kind: str) -> str:
        """What the chat template prints for one image, video or audio clip."""
        raise NotImplementedError

    def measure(self, height: int, width: int) -> tuple[int, ...]:
        """What the tokens of an image are counted from."""
        raise NotImplementedError

    def ask(self, image_processor: Any, height: int, width: int) -> tuple[int, ...]:
        """The same from transformers; by default, the image processor has no say."""
        return self.measure(height, width)

    def image_pieces(self, measured: tuple[int, ...]) -> Pieces:
        return [(self.placeholder("image"), measured[0])]

    def frames(self, size: tuple[int, ...], rate: float) -> Ints:
        """The numbers of the frames of a video that its tokens stand for.  `size` and `rate` as in MediaItem."""
        raise MediaError(f"the processor family {self.name!r} has no videos here; remove the video")

    def video_pieces(self, size: tuple[int, ...], rate: float) -> Pieces:
        raise MediaError(f"the processor family {self.name!r} has no videos here; remove the video")

    def audio_pieces(self, size: tuple[int, ...], rate: float) -> Pieces:
        raise MediaError(f"the processor family {self.name!r} has no audio; remove the audio clip")

    def around_of(self, kind: str) -> tuple[str, str]:
        """What chat templates print before and after a placeholder of this kind."""
        return self.around

    def problem(self) -> str | None:
        """Why this processor cannot be counted, if it cannot."""
        return (
            None
            if self.image.get("do_resize", True)
            else "do_resize is false, so images of any size reach the model"
        )

    def resized(self, height: int, width: int) -> tuple[int, int] | None:
        """The height and width that an image is resized to; None where every image gets the same size."""
        return None

    def token(self, name: str, usual: str) -> str:
        """A special token by the name that the tokenizer's files give it."""
        return self.tokens.get(name, usual)


def smart_resize(
    height: int,
    width: int,
    *,
    factor: int,
    min_pixels: int,
    max_pixels: int,
    frames: int = 1,
    step: int = 1,
) -> tuple[int, int]:
    """The size that Qwen's processors resize to: multiples of `factor`, with a limited number of pixels in all frames.

    step: the limits are compared with a number of frames that is rounded to a multiple of this.
    """
    if max(height, width) / min(height, width) > MOST_RATIO:
        raise MediaError(
            f"it has {height} × {width} pixels (height × width): one side is more than {MOST_RATIO} times the other, which the "
            f"processor refuses; crop it"
        )
    new_height = round(height / factor) * factor
    new_width = round(width / factor) * factor
    pixels = round(frames / step) * step * new_height * new_width
    if pixels > max_pixels:
        scale = math.sqrt((frames * height * width) / max_pixels)
        new_height = max(factor, math.floor(height / scale / factor) * factor)
        new_width = max(factor, math.floor(width / scale / factor) * factor)
    elif pixels < min_pixels:
        scale = math.sqrt(min_pixels / (frames * height * width))
        new_height = math.ceil(height * scale / factor) * factor
        new_width = math.ceil(width * scale / factor) * factor
    return new_height, new_width


class Qwen2VL(Family):
    """Qwen2-VL."""

    kinds = ("image", "video")
    around = ("<|vision_start|>", "<|vision_end|>")
    image_defaults: ClassVar[Settings] = {
        "patch_size": 14,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    }
    video_defaults: ClassVar[Settings] = {
        **image_defaults,
        "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768},
        "min_frames": 4,
        "max_frames": 768,
        "max_video_tokens": 128_000,
    }

    def placeholder(self, kind: str) -> str:
        return self.token(f"{kind}_token", f"<|{kind}_pad|>")

    def problem(self) -> str | None:
        for settings in (self.image, self.video):
            if not all(_pixels(settings).values()):
                return f"size is {settings['size']}, expected shortest_edge and longest_edge"
        return super().problem()

    def measure(self, height: int, width: int) -> tuple[int, ...]:
        new_height, new_width = self.resized(height, width)
        factor = _factor(self.image)
        return ((new_height // factor) * (new_width // factor),)

    def ask(self, image_processor: Any, height: int, width: int) -> tuple[int, ...]:
        return (
            int(image_processor.get_number_of_image_patches(height, width, {}))
            // self.image["merge_size"] ** 2,
        )

    def resized(self, height: int, width: int) -> tuple[int, int]:
        return smart_resize(height, width, factor=_factor(self.image), **_pixels(self.image))

    def video_pieces(self, size: tuple[int, ...], rate: float) -> Pieces:
        times, per_time = self._video_grid(size, rate)
        return [(self.placeholder("video"), times * per_time)]

    def frames(self, size: tuple[int, ...], rate: float) -> Ints:
        """The numbers of the frames that the video processor samples, or all, if its settings sample none."""
        total = size[0]
        settings = self._video()
        step = settings["temporal_patch_size"]
        most = settings["max_frames"]
        if not settings.get("do_sample_frames"):
            return np.arange(total)
        if (wanted := settings.get("num_frames")) is not None:
            number = round(wanted / step) * step
            if self.is_count_chosen:  # a short video has fewer
                number = min(number, total // step * step)
        elif (per_second := settings.get("fps")) is not None:
            most = math.floor(min(most, total) / step) * step
            number = min(max(total / rate * per_second, settings["min_frames"]), most, total)
            number = math.floor(number / step) * step
        else:
            return np.arange(total)
        if not 0 < number <= total:
            raise MediaError(
                f"the video has {total} frames, but the processor samples {number}; remove it"
            )
        return np.arange(0, total, total / number).astype(np.float32).astype(np.int64)

    def video_resized(self, frames: int, height: int, width: int) -> tuple[int, int]:
        """The height and width that sampled frames are resized to."""
        settings = self._video()
        factor = _factor(settings)
        limits = _pixels(settings)
        if settings.get("cap_pixels_per_frame"):
            share = (
                int(settings["max_video_tokens"] * factor * factor * 0.9)
                * settings["temporal_patch_size"]
                // frames
            )
            limits["max_pixels"] = max(
                min(limits["max_pixels"], share), int(limits["min_pixels"] * 1.05)
            )
        return smart_resize(height, width, factor=factor, **limits)

    def _video_grid(self, size: tuple[int, ...], rate: float) -> tuple[int, int]:
        """How many temporal patches a video has, and how many tokens each."""
        number = len(self.frames(size, rate))
        height, width = self.video_resized(number, *size[1:])
        settings = self.video
        factor = _factor(settings)
        return -(-number // settings["temporal_patch_size"]), (height // factor) * (width // factor)

    def _video(self) -> Settings:
        """The settings of the video processor, which the folder must have: they decide which frames are sampled."""
        if not self.has_video:
            raise MediaError(
                "the processor's folder has no video_preprocessor_config.json, so it does not say which frames are sampled; "
                "add this file of the model"
            )
        return self.video


class Qwen2_5VL(Qwen2VL):
    """Qwen2.5-VL: the tokens of Qwen2-VL, other positions."""

    positions_count_seconds = True


class Qwen3VL(Qwen2VL):
    """Qwen3-VL: each temporal patch of a video begins with its time, and all frames share one limit of pixels."""

    image_defaults: ClassVar[Settings] = (
        Qwen2VL.image_defaults
    )  # of the class; the model's files have others
    video_defaults: ClassVar[Settings] = {
        "patch_size": 16,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768},
        "min_frames": 4,
        "max_frames": 768,
        "max_video_tokens": 768,
        "do_sample_frames": True,
        "fps": 2,
    }

    def frames(self, size: tuple[int, ...], rate: float) -> Ints:
        total = size[0]
        settings = self._video()
        if not settings.get("do_sample_frames"):
            return np.arange(total)
        per_second = settings.get("fps")
        if self.is_count_chosen:
            number = min(int(settings["num_frames"]), total)
        elif per_second is not None:  # num_frames of the settings does not count here
            number = min(
                max(int(total / rate * per_second), settings["min_frames"]),
                settings["max_frames"],
                total,
            )
        else:
            number = min(max(total, settings["min_frames"]), settings["max_frames"])
        return np.linspace(0, total - 1, number).round().astype(np.int64)

    def video_resized(self, frames: int, height: int, width: int) -> tuple[int, int]:
        settings = self._video()
        factor = _factor(settings)
        times = settings["temporal_patch_size"]
        limits = _pixels(settings)
        if frames < times:
            raise MediaError(
                f"the video has {frames} frames, but the processor needs {times}; remove it"
            )
        if settings.get("cap_pixels_per_frame"):
            cap = settings["max_video_tokens"] * factor * factor
            share = max(min(cap, limits["max_pixels"] // frames), int(limits["min_pixels"] * 1.05))
            limits["max_pixels"] = share * frames
        if height < factor or width < factor:
            scale = max(factor / height, factor / width)
            height = int(height * scale)
            width = int(width * scale)
        return smart_resize(height, width, factor=factor, frames=frames, step=times, **limits)

    def video_pieces(self, size: tuple[int, ...], rate: float) -> Pieces:
        times, per_time = self._video_grid(size, rate)
        start, end = (
            self.token(f"vision_{name}_token", f"<|vision_{name}|>") for name in ("start", "end")
        )
        step = self.video["temporal_patch_size"]
        seconds = (self.frames(size, rate) / rate).tolist()
        seconds += seconds[-1:] * (-len(seconds) % step)
        pieces: Pieces = []
        for place in range(0, times * step, step):
            moment = (seconds[place] + seconds[place + step - 1]) / 2
            pieces += [
                (f"<{moment:.1f} seconds>{start}", 1),
                (self.placeholder("video"), per_time),
                (end, 1),
            ]
        return pieces


def _factor(settings: Settings) -> int:
    return int(settings["patch_size"] * settings["merge_size"])


def _pixels(settings: Settings) -> dict[str, int]:
    """The limits of a Qwen processor; older files write them as min_pixels and max_pixels, which win."""
    size = settings["size"]
    return {
        "min_pixels": settings.get("min_pixels") or size.get("shortest_edge") or 0,
        "max_pixels": settings.get("max_pixels") or size.get("longest_edge") or 0,
    }
