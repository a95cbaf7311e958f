"""Media of families besides Qwen-VL → arrays, with the options that their processors pass; and which decoder a family has."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.errors import MediaError, PlanError
from penstock.extras.media.decode import (
    Arrays,
    Decoded,
    Decoder,
    Patches,
    Reserved,
    Take,
    concatenate,
    open_image,
)
from penstock.extras.media.frames import read_samples
from penstock.types import MediaItem

_BYTES_PER_TOKEN = 40_000  # Gemma 3 has the most: 896 × 896 pixels for 256 tokens


class _Unreserved:
    """Families whose arrays get memory of their own."""

    def num_bytes(self, item: MediaItem) -> int:
        return (item.span[1] - item.span[0]) * _BYTES_PER_TOKEN

    def reserve(self, items: Sequence[MediaItem], take: Take) -> Reserved:
        return {}, [None] * len(items)


class Tiles(_Unreserved):
    """LLaVA, Gemma 3 and InternVL: an image is one tile or several of one size; those of a batch stand end to end."""

    def __init__(self, processor: Any, tokens: int, **options: Any) -> None:
        """tokens: placeholders of one tile.  options: those that the family's processor passes."""
        self._processor = processor.image_processor
        self._tokens = tokens
        self._options = options

    def decode(self, item: MediaItem, data: bytes, out: Any = None) -> Decoded:
        found = self._processor(
            images=[open_image(data, item.size)], return_tensors="np", **self._options
        )
        pixels = found["pixel_values"]
        return Decoded(
            kind="image", arrays={"pixel_values": pixels}, placeholders=len(pixels) * self._tokens
        )

    def combine(self, rows: Sequence[Sequence[Decoded]]) -> Arrays:
        return concatenate(each for row in rows for each in row)


class RowsOfTiles(_Unreserved):
    """Idefics3 and SmolVLM: tiles by row of the batch, filled up with empty ones, and a mask of the pixels that count."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor.image_processor
        self._tokens = int(processor.counts.processor.get("image_seq_len", 169))

    def decode(self, item: MediaItem, data: bytes, out: Any = None) -> Decoded:
        found = self._processor(images=[[open_image(data, item.size)]], return_tensors="np")
        arrays = {name: found[name][0] for name in ("pixel_values", "pixel_attention_mask")}
        return Decoded(
            kind="image", arrays=arrays, placeholders=len(arrays["pixel_values"]) * self._tokens
        )

    def combine(self, rows: Sequence[Sequence[Decoded]]) -> Arrays:
        joined = [concatenate(row) for row in rows]
        first = next(each for each in joined if each)
        most = max(len(each["pixel_values"]) for each in joined if each)
        out = {
            name: np.zeros((len(rows), most, *array.shape[1:]), array.dtype)
            for name, array in first.items()
        }
        for number, each in enumerate(joined):
            for name, array in each.items():
                out[name][number, : len(array)] = array
        return out


class Padded(_Unreserved):
    """Pixtral: images of any size, filled up to the largest of the batch, and their sizes."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor.image_processor
        settings = processor.counts.processor
        self._patch = int(settings.get("patch_size", 16)) * int(
            settings.get("spatial_merge_size", 1)
        )

    def decode(self, item: MediaItem, data: bytes, out: Any = None) -> Decoded:
        image = open_image(data, item.size)
        found = self._processor(images=[image], patch_size=self._patch, return_tensors="np")
        arrays = {
            "pixel_values": found["pixel_values"],
            "image_sizes": np.asarray(found["image_sizes"], np.int64),
        }
        height, width = arrays["image_sizes"][0].tolist()
        return Decoded(
            kind="image",
            arrays=arrays,
            placeholders=(height // self._patch) * (width // self._patch),
        )

    def combine(self, rows: Sequence[Sequence[Decoded]]) -> Arrays:
        images = [each.arrays for row in rows for each in row]
        sizes = np.concatenate([each["image_sizes"] for each in images])
        first = images[0]["pixel_values"]
        pixels = np.zeros((len(images), first.shape[1], *sizes.max(axis=0).tolist()), first.dtype)
        for number, each in enumerate(images):
            _, _, height, width = each["pixel_values"].shape
            pixels[number, :, :height, :width] = each["pixel_values"][0]
        return {"pixel_values": pixels, "image_sizes": sizes}


class Clips(_Unreserved):
    """Qwen2-Audio: Whisper's features of each clip, filled up to the longest clip that the model takes."""

    def __init__(self, processor: Any) -> None:
        try:
            from transformers import AutoFeatureExtractor
        except ImportError as error:
            raise MediaError(
                f"{processor.folder}: the features of audio need transformers; install it"
            ) from error
        self._extractor = AutoFeatureExtractor.from_pretrained(processor.folder)
        # features of the longest clip, and their mask: every clip is filled up to it
        self._bytes = (
            4 * (int(self._extractor.feature_size) + 1) * int(self._extractor.nb_max_frames)
        )

    def num_bytes(self, item: MediaItem) -> int:
        return self._bytes

    def decode(self, item: MediaItem, data: bytes, out: Any = None) -> Decoded:
        rate = int(self._extractor.sampling_rate)
        samples = read_samples(data, item.size, item.rate, rate)
        options = {"return_attention_mask": True, "padding": "max_length", "return_tensors": "np"}
        found = self._extractor([samples], sampling_rate=rate, **options)
        mask = found["attention_mask"]
        frames = int(mask.sum())
        arrays = {"input_features": found["input_features"], "feature_attention_mask": mask}
        return Decoded(
            kind="audio", arrays=arrays, placeholders=((frames - 1) // 2 + 1 - 2) // 2 + 1
        )

    def combine(self, rows: Sequence[Sequence[Decoded]]) -> Arrays:
        return concatenate(each for row in rows for each in row)


class PatchesAndClips:
    """Qwen2.5-Omni: images as Qwen-VL has them, and clips as Qwen2-Audio."""

    def __init__(self, processor: Any) -> None:
        self._patches = Patches(processor)
        self._clips = Clips(processor)

    def _of(self, item: MediaItem) -> Patches | Clips:
        return self._clips if item.kind == "audio" else self._patches

    def num_bytes(self, item: MediaItem) -> int:
        return self._of(item).num_bytes(item)

    def reserve(self, items: Sequence[MediaItem], take: Take) -> Reserved:
        return self._patches.reserve(items, take)

    def decode(self, item: MediaItem, data: bytes, out: Any = None) -> Decoded:
        return self._of(item).decode(item, data, out)

    def combine(self, rows: Sequence[Sequence[Decoded]]) -> Arrays:
        return concatenate(each for row in rows for each in row)


def _llava(processor: Any) -> Tiles:
    return Tiles(processor, processor.counts.measure(1, 1)[0])


def _gemma3(processor: Any) -> Tiles:
    tokens = processor.counts.measure(1, 1)[0]
    return Tiles(processor, tokens, do_pan_and_scan=False, do_convert_rgb=True)


def _internvl(processor: Any) -> Tiles:
    tokens = int(processor.counts.processor.get("image_seq_length", 256))
    return Tiles(processor, tokens, crop_to_patches=True)


# What decodes the media of a family, by its name in family_table.py.
DECODERS: dict[str, Callable[[Any], Decoder]] = {
    "qwen2_vl": Patches,
    "qwen2_5_vl": Patches,
    "qwen3_vl": Patches,
    "idefics3": RowsOfTiles,
    "smolvlm": RowsOfTiles,
    "gemma3": _gemma3,
    "llava": _llava,
    "internvl": _internvl,
    "pixtral": Padded,
    "qwen2_audio": Clips,
    "qwen2_5_omni_thinker": PatchesAndClips,
}


def open_decoder(processor: Any) -> Decoder:
    """Return what decodes the media of this processor's family; refuse a family that the loader does not know."""
    make = DECODERS.get(processor.family)
    if make is None:
        raise PlanError(
            f"{processor!r}: this version of Penstock cannot decode the media of processor family {processor.family!r}; "
            f"it can decode {', '.join(sorted(DECODERS))}"
        )
    return make(processor)
