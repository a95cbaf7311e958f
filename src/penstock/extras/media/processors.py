"""A model's processor, as far as text is concerned: which placeholder stands for an image, and which tokens replace it.

A processor is opened from a folder.  Counting needs its settings alone (families.py).  Where transformers is installed, the formula is
compared once with the image processor of the folder; if they differ on any size, the image processor itself is asked.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

from penstock.cache import Cache
from penstock.errors import MediaError, TemplateError
from penstock.extras.media.families import Family, Pieces, Settings
from penstock.extras.media.family_table import FAMILIES, PROCESSOR_CLASSES
from penstock.places.files import is_remote, with_home
from penstock.templates.tokenizer.facts import package_version, recall
from penstock.templates.tokenizer.files import PROCESSOR_FILES, digest_of, parsed, snapshot
from penstock.types import Ints
from penstock.words import did_you_mean

_PROCESSOR, _IMAGE, _VIDEO, _MODEL = PROCESSOR_FILES
# Pixels, of sizes compared.
_SIDES = (1, 2, 13, 14, 27, 28, 29, 63, 100, 224, 333, 448, 640, 777, 1024, 1600, 2600, 4000)
_lock = Lock()


@dataclass(frozen=True, kw_only=True)
class ProcessorFiles:
    """What the files of a processor's folder say."""

    folder: str
    content: str  # a digest of the files
    processor_class: str
    processor: Settings
    image: Settings
    video: Settings
    audio: Settings
    model_type: str

    @property
    def family(self) -> str | None:
        """The family, by the processor's class, else by the model's type; None if it is not one that can be counted."""
        known = PROCESSOR_CLASSES.get(self.processor_class)
        return known or (self.model_type if self.model_type in FAMILIES else None)


def read_processor(folder: Path) -> ProcessorFiles | None:
    """Read the files of a processor's folder; None if it has none."""
    paths = [folder / name for name in (_PROCESSOR, _IMAGE, _VIDEO, _MODEL)]
    found = snapshot([path for path in paths if path.is_file()])
    if paths[0] not in found and paths[1] not in found:
        return None
    whole, image, video, model = (parsed(found, path) for path in paths)
    inner = {
        name: whole.pop(name, None) or {}
        for name in ("image_processor", "video_processor", "feature_extractor")
    }
    audio = inner["feature_extractor"] or image  # older folders have both in one file
    image = image or inner["image_processor"] or inner["feature_extractor"]
    return ProcessorFiles(
        folder=str(folder),
        content=digest_of(found),
        processor_class=str(whole.get("processor_class") or image.get("processor_class") or ""),
        processor=whole,
        image=image,
        video=video or inner["video_processor"],
        audio=audio,
        model_type=str(model.get("model_type", "")),
    )


NO_PROCESSOR = "none"  # for processor=: texts alone


def find_processor(given: str | None, tokenizer_path: str | None) -> ProcessorFiles | None:
    """The processor's files: in the folder that is given, else in the folder of the tokenizer, if that has some."""
    if given is None and tokenizer_path is not None:
        return read_processor(Path(tokenizer_path).parent)
    if given in (None, NO_PROCESSOR):
        return None
    folder = with_home(str(given)).absolute()
    if is_remote(str(given)):
        from penstock.cache.fetched import fetch_folder

        folder = fetch_folder(str(given).rstrip("/"), PROCESSOR_FILES)
    if (found := read_processor(folder)) is None:
        raise TemplateError(
            f"processor {given}: no processor found, expected a folder with {_IMAGE} or {_PROCESSOR}, as save_pretrained "
            f"of transformers writes it"
        )
    if found.family is None:
        raise TemplateError(f"processor {given}: {unsupported(found)}")
    return found


def unsupported(files: ProcessorFiles) -> str:
    """Why a processor cannot be used."""
    found = files.processor_class or files.model_type or "of no named class"
    return f"the processor is {found!r}, which Penstock cannot count; it can count {', '.join(PROCESSOR_CLASSES)}"


def transformers_version() -> str:
    """The version of transformers; "" if it is not installed."""
    return "" if find_spec("transformers") is None else package_version("transformers")


class Processor:
    """The processor of one folder."""

    def __init__(
        self,
        files: ProcessorFiles,
        tokens: Mapping[str, str],
        cache: Cache | None = None,
        *,
        video_options: Mapping[str, Any] | None = None,
    ) -> None:
        """tokens: special tokens that the tokenizer names.  cache: where the comparison with transformers is kept.

        video_options: settings of videos in place of those of the files.
        """
        assert files.family is not None, files
        self.family: str = files.family
        self.folder = files.folder
        kind = FAMILIES[self.family]
        video = _complete(kind.video_defaults, files.video)
        if video_options:
            video = with_video_options(video, video_options)
        self.counts: Family = kind(
            name=self.family,
            image=_complete(kind.image_defaults, files.image),
            video=video,
            has_video=bool(files.video),
            audio=files.audio,
            is_count_chosen="num_frames" in (video_options or {}),
            processor=files.processor,
            tokens=dict(tokens),
        )
        self._classes = [files.processor_class, str(files.image.get("image_processor_type", ""))]
        if (problem := self.counts.problem()) is not None:
            raise TemplateError(
                f"{self.folder}: the settings of the processor are not supported: {problem}"
            )
        self.by_formula = self._is_proven(files, cache)

    def _is_proven(self, files: ProcessorFiles, cache: Cache | None) -> bool:
        """Whether the formula counts as the folder's own image processor does; True without transformers."""
        if "image" not in self.counts.kinds or not transformers_version():
            return True
        about = [self.family, files.content, transformers_version()]
        return bool(recall("processor", about=about, compute=self._compare, cache=cache))

    def _compare(self) -> bool:
        """Compare formula and image processor over a few hundred sizes."""
        return all(
            _answer(self.counts.measure, height, width)
            == _answer(self.counts.ask, self.image_processor, height, width)
            for height in _SIDES
            for width in _SIDES
        )

    def identity(self) -> dict[str, Any]:
        """Everything that changes tokens, and what pixels are made by, as plain JSON values."""
        counts = self.counts
        by = (
            f"formula {counts.version}"
            if self.by_formula
            else f"transformers {transformers_version()}"
        )
        return {
            "family": self.family,
            "classes": self._classes,
            "counted_by": by,
            "image": counts.image,
            "video": counts.video,
            # of families with audio alone, the settings of images are these
            **({"audio": counts.audio} if {"image", "audio"} <= set(counts.kinds) else {}),
            "processor": counts.processor,
        }

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.counts.kinds

    def placeholder(self, kind: str) -> str:
        """What the chat template prints for one image, video or audio clip."""
        return self.counts.placeholder(kind)

    def frames(self, size: tuple[int, ...], rate: float) -> Ints:
        """The numbers of the frames of a video that its tokens stand for.  `size` and `rate` as in MediaItem."""
        return self.counts.frames(size, rate)

    def expand(self, kind: str, size: tuple[int, ...], rate: float = 0.0) -> Pieces:
        """The pieces of text that replace a placeholder: (text, how many times).  `size` as in MediaItem."""
        if kind == "video":
            return self.counts.video_pieces(size, rate)
        if kind == "audio":
            return self.counts.audio_pieces(size, rate)
        height, width = size
        counts = self.counts
        measured = counts.measure(height, width) if self.by_formula else self._asked(height, width)
        return counts.image_pieces(measured)

    def _asked(self, height: int, width: int) -> tuple[int, ...]:
        try:
            return self.counts.ask(self.image_processor, height, width)
        except (ValueError, ZeroDivisionError) as error:
            raise MediaError(
                f"the processor refuses an image of {height} × {width} pixels: {error}"
            ) from error

    @cached_property
    def image_processor(self) -> Any:
        """The image processor of transformers, with the PIL back end."""
        with _lock:
            try:
                from transformers import AutoImageProcessor
            except ImportError as error:
                raise TemplateError(
                    f"{self.folder}: the image processor needs transformers and Pillow; install penstock[vlm]"
                ) from error
            try:
                return AutoImageProcessor.from_pretrained(self.folder, backend="pil")
            except Exception as error:  # of any type: the files are read by code of the model
                why = f"transformers cannot open the image processor: {error}"
                raise TemplateError(
                    f"{self.folder}: {why}; copy the processor's folder again"
                ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "image_processor"}

    def __repr__(self) -> str:
        return f"Processor({self.family}, {self.folder!r})"


VIDEO_OPTIONS = ("fps", "num_frames", "min_frames", "max_frames", "min_pixels", "max_pixels")


def check_video_options(options: Mapping[str, Any]) -> None:
    """Refuse options of videos that have no meaning, or two that exclude each other."""
    for name, value in options.items():
        if name not in VIDEO_OPTIONS:
            raise TemplateError(
                f"video_options has {name!r}{did_you_mean(name, VIDEO_OPTIONS)}; expected some of {', '.join(VIDEO_OPTIONS)}"
            )
        kinds = (int, float) if name == "fps" else (int,)
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
            what = "a number" if name == "fps" else "a whole number"
            raise TemplateError(
                f"video_options: {name} is {value!r}, expected {what} greater than 0"
            )
    if "fps" in options and "num_frames" in options:
        raise TemplateError(
            "video_options has fps and num_frames, which both say how many frames are sampled; write one of them"
        )


def with_video_options(settings: Settings, options: Mapping[str, Any]) -> Settings:
    """Return settings of a video processor with those of the user."""
    changed = dict(settings)
    if "fps" in options or "num_frames" in options:
        changed |= {"do_sample_frames": True, "fps": None, "num_frames": None}
    for name in ("fps", "num_frames", "min_frames", "max_frames"):
        if name in options:
            changed[name] = options[name]
    size = dict(changed.get("size") or {})
    for name, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
        if name in options:
            size[edge] = options[name]
            changed.pop(name, None)  # older files have both names
    changed["size"] = size
    if size.get("shortest_edge", 0) > size.get("longest_edge", math.inf):
        raise TemplateError(
            f"video_options: videos have at least {size['shortest_edge']:,} and at most {size['longest_edge']:,} pixels; set min_pixels "
            f"and max_pixels so that they fit together"
        )
    return changed


def _answer(count: Any, *given: Any) -> tuple[int, ...] | None:
    """A count, or None where the size is refused."""
    try:
        return tuple(count(*given))
    except (ValueError, ZeroDivisionError):  # MediaError is a ValueError
        return None


def _complete(defaults: Settings, given: Settings) -> Settings:
    """Settings with the defaults of their class; a null in a file is a setting left out."""
    return {**defaults, **{name: value for name, value in given.items() if value is not None}}
