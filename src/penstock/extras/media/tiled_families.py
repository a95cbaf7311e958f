"""How many tokens an image or an audio clip becomes, for the families besides Qwen-VL."""

import math
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from penstock.errors import MediaError
from penstock.extras.media.families import Family, Pieces, Qwen2VL, Settings
from penstock.extras.media.files import check_rate, resampled_length

_MOST_SIDE = 4096  # pixels, in Idefics3's image processor
# of Whisper's features: the longest clip, and samples per second
_SECONDS = 30
_SAMPLES = 16_000
_HOP = 160  # samples between two of these features


class Idefics3(Family):
    """Idefics3 and SmolVLM: rows of tiles, each with a marker, then the whole image."""

    image_defaults: ClassVar[Settings] = {
        "size": {"longest_edge": 4 * 364},
        "max_image_size": {"longest_edge": 364},
        "do_image_splitting": True,
    }
    fake = "<fake_token_around_image>"
    whole = "<global-img>"

    def placeholder(self, kind: str) -> str:
        return "<image>" if self.name == "idefics3" else self.token("image_token", "<image>")

    def problem(self) -> str | None:
        size = self.image["size"].get("longest_edge")
        tile = self.image["max_image_size"].get("longest_edge")
        if not size or not tile or size % tile or tile % 2:
            return f"size.longest_edge is {size}, expected a multiple of max_image_size.longest_edge, {tile}, which must be even"
        return super().problem()

    def measure(self, height: int, width: int) -> tuple[int, ...]:
        """Rows and columns of tiles; none where the image is not split."""
        if not self.image["do_image_splitting"]:
            return 0, 0
        tile = self.image["max_image_size"]["longest_edge"]
        height, width = self.resized(height, width)
        rows = math.ceil(height / tile)
        columns = math.ceil(width / tile)
        return (rows, columns) if rows > 1 or columns > 1 else (0, 0)

    def ask(self, image_processor: Any, height: int, width: int) -> tuple[int, ...]:
        return tuple(image_processor.get_number_of_image_patches(height, width, {})[1:])

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """The longest side becomes `longest_edge`, but not more than 4,096; the other side is even before that limit."""
        longest = self.image["size"]["longest_edge"]
        ratio = width / height
        if width >= height:
            width = longest
            height = int(longest / ratio)
            height += height % 2
        else:
            height = longest
            width = int(longest * ratio)
            width += width % 2
        height = max(height, 1)
        width = max(width, 1)
        ratio = width / height
        if width >= height and width > _MOST_SIDE:
            width = _MOST_SIDE
            height = int(_MOST_SIDE / ratio)
        elif height > width and height > _MOST_SIDE:
            height = _MOST_SIDE
            width = int(_MOST_SIDE * ratio)
        return max(height, 1), max(width, 1)

    def image_pieces(self, measured: tuple[int, ...]) -> Pieces:
        rows, columns = measured
        image = self.placeholder("image")
        fake, whole = self._markers()
        tokens = (image, int(self.processor.get("image_seq_len", 169)))
        pieces: Pieces = []
        for row in range(rows):
            for column in range(columns):
                pieces += [(f"{fake}<row_{row + 1}_col_{column + 1}>", 1), tokens]
            pieces.append(("\n", 1))
        return [*pieces, (f"{chr(10) if rows else ''}{fake}{whole}", 1), tokens, (fake, 1)]

    def _markers(self) -> tuple[str, str]:
        if self.name == "idefics3":
            return self.fake, self.whole
        return self.token("fake_image_token", self.fake), self.token(
            "global_image_token", self.whole
        )


class Gemma3(Family):
    """Gemma 3 without pan-and-scan, as its processor works by default: always the same number of tokens."""

    images_attend_both_ways = True

    def placeholder(self, kind: str) -> str:
        return self.token("boi_token", "<start_of_image>")

    def measure(self, height: int, width: int) -> tuple[int, ...]:
        return (int(self.processor.get("image_seq_length", 256)),)

    def image_pieces(self, measured: tuple[int, ...]) -> Pieces:
        image = self.token("image_token", "<image_soft_token>")
        end = self.token("eoi_token", "<end_of_image>")
        return [(f"\n\n{self.placeholder('image')}", 1), (image, measured[0]), (f"{end}\n\n", 1)]


class Llava(Family):
    """LLaVA 1.5 and its kin: every image is resized and cropped to one size."""

    image_defaults: ClassVar[Settings] = {
        "size": {"shortest_edge": 224},
        "crop_size": {"height": 224, "width": 224},
        "do_center_crop": True,
    }

    def placeholder(self, kind: str) -> str:
        return self.token("image_token", self.processor.get("image_token") or "<image>")

    def problem(self) -> str | None:
        if not isinstance(self.processor.get("patch_size"), int):
            return "processor_config.json has no patch_size, which the number of tokens depends on; add it"
        if _side_lengths(self.image) is None:
            return f"size is {self.image['size']} without a crop, so images may have any size"
        return super().problem()

    def measure(self, height: int, width: int) -> tuple[int, ...]:
        return self._count(_side_lengths(self.image))

    def ask(self, image_processor: Any, height: int, width: int) -> tuple[int, ...]:
        return self._count(_side_lengths(image_processor.to_dict()))

    def _count(self, sides: tuple[int, int] | None) -> tuple[int, ...]:
        if sides is None:
            return ()
        patch = self.processor["patch_size"]
        settings = self.processor
        number = (sides[0] // patch) * (sides[1] // patch) + int(
            settings.get("num_additional_image_tokens") or 0
        )
        return (number - (settings.get("vision_feature_select_strategy") == "default"),)


def _side_lengths(settings: Mapping[str, Any]) -> tuple[int, int] | None:
    """The height and width that every image gets; None if they differ."""
    size = settings.get("crop_size") if settings.get("do_center_crop") else settings.get("size")
    if isinstance(size, int):
        return size, size
    height = (size or {}).get("height")
    width = (size or {}).get("width")
    return None if height is None or width is None else (int(height), int(width))


class InternVL(Family):
    """InternVL: the arrangement of tiles with the closest ratio of sides, and a thumbnail if there is more than one."""

    image_defaults: ClassVar[Settings] = {
        "size": {"height": 384, "width": 384},
        "min_patches": 1,
        "max_patches": 12,
    }

    def placeholder(self, kind: str) -> str:
        return self.token("context_image_token", "<IMG_CONTEXT>")

    def measure(self, height: int, width: int) -> tuple[int, ...]:
        """The number of tiles, with the thumbnail.  The processor always splits images, whatever the image processor's files say."""
        least = self.image["min_patches"]
        most = self.image["max_patches"]
        size = self.image["size"]
        if most <= 1:
            return (1,)
        grids = [
            (w, h) for w in range(1, most + 1) for h in range(1, most + 1) if least <= w * h <= most
        ]
        best = (1, 1)
        closest = math.inf
        for grid in sorted(grids, key=lambda one: one[0] * one[1]):
            difference = abs(width / height - grid[0] / grid[1])
            # of equally close ones the largest, unless the image covers half of it or less
            fills = width * height > 0.5 * size["height"] * size["width"] * grid[0] * grid[1]
            if difference < closest or (difference == closest and fills):
                best = grid
                closest = difference
        tiles = best[0] * best[1]
        return (1 if tiles == 1 else tiles + 1,)

    def ask(self, image_processor: Any, height: int, width: int) -> tuple[int, ...]:
        return (
            int(
                image_processor.get_number_of_image_patches(
                    height, width, {"crop_to_patches": True}
                )
            ),
        )

    def image_pieces(self, measured: tuple[int, ...]) -> Pieces:
        start = self.token("start_image_token", "<img>")
        end = self.token("end_image_token", "</img>")
        number = int(self.processor.get("image_seq_length", 256)) * measured[0]
        return [(start, 1), (self.placeholder("image"), number), (end, 1)]


class Pixtral(Family):
    """Pixtral and Mistral 3: rows of patches, each with a break behind it."""

    image_defaults: ClassVar[Settings] = {"size": {"longest_edge": 1024}}

    def placeholder(self, kind: str) -> str:
        return str(self.processor.get("image_token") or "[IMG]")

    @property
    def _patch(self) -> int:
        return int(self.processor.get("patch_size", 16)) * int(
            self.processor.get("spatial_merge_size", 1)
        )

    def measure(self, height: int, width: int) -> tuple[int, ...]:
        new_height, new_width = self.resized(height, width)
        return new_height // self._patch, new_width // self._patch

    def resized(self, height: int, width: int) -> tuple[int, int]:
        longest = self.image["size"]["longest_edge"]
        ratio = max(height / longest, width / longest)
        if ratio > 1:
            height = math.floor(height / ratio)
            width = math.floor(width / ratio)
        return ((height - 1) // self._patch + 1) * self._patch, (
            (width - 1) // self._patch + 1
        ) * self._patch

    def ask(self, image_processor: Any, height: int, width: int) -> tuple[int, ...]:
        module = sys.modules[type(image_processor).__module__]
        blank = np.broadcast_to(
            np.zeros(1, np.uint8), (height, width, 3)
        )  # of which the function reads the shape
        longest = image_processor.size["longest_edge"]
        patch = self._patch
        size = module.get_resize_output_image_size(
            blank, (longest, longest), (patch, patch), "channels_last"
        )
        return size[0] // patch, size[1] // patch

    def image_pieces(self, measured: tuple[int, ...]) -> Pieces:
        rows, columns = measured
        if not rows or not columns:
            raise MediaError(
                "the image is so narrow that the processor would resize it to nothing; remove it"
            )
        row = [
            (self.placeholder("image"), columns),
            (self.processor.get("image_break_token") or "[IMG_BREAK]", 1),
        ]
        return [*(row * rows)[:-1], (self.processor.get("image_end_token") or "[IMG_END]", 1)]


class Qwen2Audio(Family):
    """Qwen2-Audio: Whisper's features, halved twice."""

    kinds = ("audio",)
    around = ("<|audio_bos|>", "<|audio_eos|>")

    def placeholder(self, kind: str) -> str:
        return self.token("audio_token", self.processor.get("audio_token") or "<|AUDIO|>")

    def problem(self) -> str | None:
        return _audio_problem(self.audio)

    def audio_pieces(self, size: tuple[int, ...], rate: float) -> Pieces:
        return [(self.placeholder("audio"), _audio_tokens(self.audio, size, rate))]


class Qwen2_5Omni(Qwen2VL):
    """Qwen2.5-Omni: images as Qwen2-VL has them, and audio as Qwen2-Audio.

    No video: its sound belongs between its frames, and the positions of both depend on arguments of the model.
    """

    kinds = ("image", "audio")

    def placeholder(self, kind: str) -> str:
        return self.token(f"{kind}_token", f"<|{kind.upper()}|>")

    def around_of(self, kind: str) -> tuple[str, str]:
        name = "audio" if kind == "audio" else "vision"
        before = self.token(f"{name}_bos_token", f"<|{name}_bos|>")
        after = self.token(f"{name}_eos_token", f"<|{name}_eos|>")
        return before, after

    def problem(self) -> str | None:
        return super().problem() or _audio_problem(self.audio)

    def audio_pieces(self, size: tuple[int, ...], rate: float) -> Pieces:
        return [(self.placeholder("audio"), _audio_tokens(self.audio, size, rate))]


def _audio_problem(settings: Settings) -> str | None:
    """Why Whisper's features with these settings cannot be counted, if they cannot."""
    hop = settings.get("hop_length", _HOP)
    rate = settings.get("sampling_rate", _SAMPLES)
    expected = (_HOP, _SAMPLES)
    if (hop, rate) == expected:
        return None
    return f"hop_length and sampling_rate are {hop} and {rate}, not {expected}"


def _audio_tokens(settings: Settings, size: tuple[int, ...], rate: float) -> int:
    """How many tokens a clip becomes."""
    check_rate(rate, _SAMPLES)
    samples = resampled_length(size[0], rate, _SAMPLES)  # as many as `resample` makes
    most = int(settings.get("chunk_length", _SECONDS)) * _SAMPLES
    if samples > most:
        raise MediaError(
            f"the audio clip is {samples / _SAMPLES:.1f} s long, but the processor cuts clips at {most // _SAMPLES} s; shorten it"
        )
    features = -(-samples // _HOP)
    tokens = ((features - 1) // 2 + 1 - 2) // 2 + 1
    if tokens < 1:
        raise MediaError(
            f"the audio clip has {samples} samples at 16 kHz, too few for one token; remove it"
        )
    return tokens
