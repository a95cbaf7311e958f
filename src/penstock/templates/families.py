"""How many tokens an image, a video or an audio clip becomes, by family of models.

Each family repeats the arithmetic of its processor in transformers from the processor's own settings, so that a size is enough and neither
transformers nor the pixels are needed.  Tests compare every formula with the processor itself.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from penstock.errors import MediaError

Pieces = list[tuple[str, int]]  # (text, how many times): more than once only for one special token
Settings = dict[str, Any]
MOST_RATIO = 200  # of the longer to the shorter side, in Qwen's processors


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family of processors, with the settings of one of them."""

    version: ClassVar[int] = 1  # raise when the same size gives other tokens
    kinds: ClassVar[tuple[str, ...]] = ("image",)
    around: ClassVar[tuple[str, str]] = ("", "")  # what chat templates print before and after a placeholder
    image_defaults: ClassVar[Settings] = {}  # of the image processor's class, for settings that a folder leaves out
    video_defaults: ClassVar[Settings] = {}

    name: str
    image: Settings = field(default_factory=dict)  # of the image processor, complete
    video: Settings = field(default_factory=dict)
    processor: Settings = field(default_factory=dict)  # of the processor around it
    tokens: Mapping[str, str] = field(default_factory=dict)  # named special tokens of the tokenizer

    def placeholder(self, kind: str) -> str:
        """What the chat template prints for one image, video or audio clip."""
        raise NotImplementedError

    def measure(self, height: int, width: int) -> tuple[int, ...]:
        """What the tokens of an image are counted from; `ask` gets the same from transformers."""
        raise NotImplementedError

    def ask(self, image_processor: Any, height: int, width: int) -> tuple[int, ...]:
        raise NotImplementedError

    def image_pieces(self, measured: tuple[int, ...]) -> Pieces:
        raise NotImplementedError

    def video_pieces(self, size: tuple[int, ...], rate: float) -> Pieces:
        raise MediaError(f"the processor family {self.name!r} has no videos here; remove the video")

    def audio_pieces(self, size: tuple[int, ...], rate: float) -> Pieces:
        raise MediaError(f"the processor family {self.name!r} has no audio; remove the audio clip")

    def resized(self, height: int, width: int) -> tuple[int, int] | None:
        """The height and width that an image is resized to; None where every image gets the same size."""
        return None

    def token(self, name: str, usual: str) -> str:
        """A special token by the name that the tokenizer's files give it."""
        return self.tokens.get(name, usual)


def smart_resize(height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """The size that Qwen's image processors resize to: multiples of `factor`, with a limited number of pixels."""
    check_ratio(height, width)
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if new_height * new_width > max_pixels:
        scale = math.sqrt((height * width) / max_pixels)
        new_height = max(factor, math.floor(height / scale / factor) * factor)
        new_width = max(factor, math.floor(width / scale / factor) * factor)
    elif new_height * new_width < min_pixels:
        scale = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * scale / factor) * factor
        new_width = math.ceil(width * scale / factor) * factor
    return new_height, new_width


def check_ratio(height: int, width: int) -> None:
    if max(height, width) / min(height, width) > MOST_RATIO:
        raise MediaError(
            f"an image of {height} × {width} pixels (height × width) is longer than {MOST_RATIO} times its width, which the "
            f"processor refuses; cut the image"
        )


class Qwen2VL(Family):
    """Qwen2-VL and Qwen2.5-VL; Qwen3-VL differs in its settings and in videos."""

    kinds = ("image", "video")
    around = ("<|vision_start|>", "<|vision_end|>")
    image_defaults: ClassVar[Settings] = {
        "patch_size": 14,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
        "do_resize": True,
    }

    def placeholder(self, kind: str) -> str:
        return self.token(f"{kind}_token", f"<|{kind}_pad|>")

    def measure(self, height: int, width: int) -> tuple[int, ...]:
        new_height, new_width = self.resized(height, width)
        return ((new_height // self._factor) * (new_width // self._factor),)

    def ask(self, image_processor: Any, height: int, width: int) -> tuple[int, ...]:
        return (int(image_processor.get_number_of_image_patches(height, width, {})) // self.image["merge_size"] ** 2,)

    def image_pieces(self, measured: tuple[int, ...]) -> Pieces:
        return [(self.placeholder("image"), measured[0])]

    def resized(self, height: int, width: int) -> tuple[int, int]:
        return smart_resize(height, width, factor=self._factor, **_pixels(self.image))

    @property
    def _factor(self) -> int:
        return int(self.image["patch_size"] * self.image["merge_size"])


def _pixels(settings: Settings) -> dict[str, int]:
    """The limits of a Qwen processor; older files write them as min_pixels and max_pixels, which win."""
    size = settings["size"]
    return {
        "min_pixels": settings.get("min_pixels") or size["shortest_edge"],
        "max_pixels": settings.get("max_pixels") or size["longest_edge"],
    }


# By the name of the processor's class, as a folder's files write it.
PROCESSOR_CLASSES = {
    "Qwen2VLProcessor": "qwen2_vl",
    "Qwen2_5_VLProcessor": "qwen2_5_vl",
    "Qwen3VLProcessor": "qwen3_vl",
}
FAMILIES: dict[str, type[Family]] = {"qwen2_vl": Qwen2VL, "qwen2_5_vl": Qwen2VL, "qwen3_vl": Qwen2VL}
