"""The step of chat templates that reads images, videos and audio clips of records: its options, and when it is used."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from penstock.errors import MediaError, TemplateError
from penstock.extras.media.files import PackageMissing
from penstock.extras.media.headers import MAX_IMAGE_PIXELS
from penstock.extras.media.placeholders import Placer, count_repeats, with_repeats
from penstock.extras.media.processors import (
    NO_PROCESSOR,
    Processor,
    check_video_options,
    find_processor,
    transformers_version,
    unsupported,
)
from penstock.extras.media.reasons import BAD_MEDIA
from penstock.extras.media.template import MediaReader, collect, real_folder
from penstock.places.files import is_remote
from penstock.templates.chat.steps import ChatStep, HasSteps, Policy, RefuseMedia
from penstock.templates.conversation import Conversation, ReadsConversations
from penstock.templates.fields import check_choice
from penstock.templates.media_words import KINDS, mentions_media
from penstock.templates.samples import Rendering
from penstock.templates.tokenizer.byte_offsets import Encoded
from penstock.templates.tokenizer.tokenizer import Tokenizer
from penstock.types import MEDIA, Column, Record, Samples, Source, Template


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaOptions:
    """The options of chat templates that say how media are read."""

    processor: Annotated[
        str | None,
        "folder of the model's processor, for images, video and audio; else the tokenizer's folder, if a sampled record has media; or none",
    ] = None
    media_root: Annotated[
        str | None,
        "folder or URL that paths of images, video and audio are relative to; else the folder of the data",
    ] = None
    media_folders: Annotated[
        str | Sequence[str] | None,
        "more folders, or URLs, that media may be read from; else only media_root and the folders of the data; / allows every folder",
    ] = None
    on_media: Annotated[
        str,
        "what `prepare` does with a record whose image, video or audio is missing, broken or in no place: stop or skip; mask stops, too: "
        "on_broken_media decides what happens to media that break later",
    ] = "stop"
    multimodal_keys: Annotated[
        Mapping[str, str] | None,
        "columns that list media, by kind, such as {image: image_file}; else image or images, and so on",
    ] = None
    video_options: Annotated[
        Mapping[str, Any] | None,
        "which frames of a video are sampled, and their size, in place of the processor's files: fps or num_frames, min_frames, "
        "max_frames, min_pixels, max_pixels",
    ] = None
    max_image_pixels: Annotated[int, "larger images are refused, as decompression bombs"] = (
        MAX_IMAGE_PIXELS
    )

    def __post_init__(self) -> None:
        check_choice("on_media", self.on_media, ("stop", "skip", "mask"))
        for kind, column in (self.multimodal_keys or {}).items():
            check_choice("a kind in multimodal_keys", kind, KINDS)
            if not isinstance(column, str) or not column:
                raise TemplateError(
                    f"multimodal_keys has {column!r} for {kind}, expected the name of a column"
                )
        check_video_options(self.video_options or {})
        if self.on_media == "mask":  # before a record has tokens, there is nothing to mask
            object.__setattr__(self, "on_media", "stop")


class MediaStep:
    """Reads the media of records, and puts the tokens of a processor in the place of its placeholders."""

    columns: tuple[Column, ...] = (MEDIA,)

    def __init__(self, reader: MediaReader, tokenizer: Tokenizer, policy: Policy) -> None:
        self.reader = reader
        self._placer = Placer(reader, tokenizer)
        self._policy = policy

    def identity(self) -> dict[str, Any]:
        return {**self.reader.identity(), "on_media": self._policy.action}

    def read(self, record: Record, conversation: Conversation) -> Conversation:
        return collect(record, conversation, self.reader.columns)

    def place(
        self,
        record: Record,
        conversation: Conversation,
        rendering: Rendering,
        context: dict[str, Any],
    ) -> Rendering:
        return self._placer.place(rendering, conversation.media, context)

    def refuse(self, record: Record, conversation: Conversation, rendering: Rendering) -> None:
        if conversation.media:
            raise MediaError(
                "the record has media, which only templates of conversations take so far; remove them"
            )

    def expand(self, encoded: Encoded, batch: Sequence[Rendering]) -> Callable[[Samples], Samples]:
        repeats = count_repeats(encoded, batch)
        return lambda samples: with_repeats(samples, repeats, encoded, batch)

    def policy(self, error: TemplateError) -> Policy | None:
        if isinstance(error, PackageMissing):  # no record is to blame, so none is skipped for it
            return Policy()
        return self._policy if isinstance(error, MediaError) else None


class MediaStepMaker:
    """Opens the step if there is a processor that can be counted."""

    options = MediaOptions

    def complete(
        self,
        options: Mapping[str, Any],
        *,
        tokenizer: Tokenizer | None,
        source: Source,
        sample: Callable[[], list[Record]],
    ) -> dict[str, Any]:
        """The options with the folders of the data.

        A processor that only lies next to the tokenizer is not used if no sampled record has media: texts need none.  `media_root` is by
        default the folder of the source's first file, and media may also be read from the folders of its other files.  One folder has
        one name here, because it is part of the store's key: without `..` and links, and not relative to where we are.
        """
        root = options.get("media_root")
        folders = options.get("media_folders") or ()
        allowed = [folders] if isinstance(folders, str | os.PathLike) else [*folders]
        if tokenizer is not None and find_processor(options.get("processor"), tokenizer.path):
            has_media = bool(options.get("multimodal_keys")) or any(map(mentions_media, sample()))
            if options.get("processor") is None and not has_media:
                return {**options, "processor": NO_PROCESSOR}
            if root is None:
                root = _folder_of_first(source)
            allowed += _folders_of(source)
        if root is None:
            return dict(options)
        real_root = real_folder(root)
        real_folders = {real_folder(folder) for folder in allowed}
        outside = sorted(folder for folder in real_folders if not _is_below(folder, real_root))
        return {**options, "media_root": real_root, "media_folders": outside or None}

    def depends_on(self, tokenizer: Tokenizer, options: Mapping[str, Any]) -> Any:
        files = find_processor(options.get("processor"), tokenizer.path)
        return None if files is None else [files.content, files.folder, transformers_version()]

    def open(
        self, tokenizer: Tokenizer, reader: ReadsConversations, options: MediaOptions
    ) -> ChatStep:
        policy = Policy(option="on_media", action=options.on_media, reason=BAD_MEDIA)
        files = find_processor(options.processor, tokenizer.path)
        if files is None:
            is_chosen = options.processor == NO_PROCESSOR
            why = "no sampled record has any" if is_chosen else "no processor was found"
            hint = "set processor= to the folder with preprocessor_config.json"
            return RefuseMedia(f"{why}; {hint}", policy)
        if files.family is None:
            return RefuseMedia(f"{files.folder}: {unsupported(files)}", policy)
        try:
            processor = Processor(
                files,
                tokenizer.special_tokens,
                tokenizer.cache,
                video_options=options.video_options,
            )
        except TemplateError as error:
            if options.processor is not None or options.video_options:
                raise
            return RefuseMedia(str(error), policy)  # texts need none
        media_reader = MediaReader(
            processor,
            reader,
            root=options.media_root,
            folders=options.media_folders or (),
            max_image_pixels=options.max_image_pixels,
            columns=options.multimodal_keys,
        )
        return MediaStep(media_reader, tokenizer, policy)


def _folder_of_first(source: Source) -> str | Path:
    """The folder of a source's first file, on this machine or in a bucket; else the current folder."""
    first_file = source.locate(0).file
    if is_remote(first_file):
        return first_file.rpartition("/")[0]
    path = Path(first_file)
    return path.parent if path.is_file() else Path.cwd()


def _is_below(folder: str, root: str) -> bool:
    if is_remote(folder) or is_remote(root):
        return folder == root or folder.startswith(f"{root}/")
    return Path(folder).is_relative_to(root)


def _folders_of(source: Source) -> list[str]:
    """The folders of a source's files: both where each is named and, if that is a link, where it is."""
    local_files = [file for file in getattr(source, "files", ()) if not is_remote(file)]
    named = {os.path.dirname(os.path.realpath(file)) for file in local_files}  # noqa: PTH120
    real = {os.path.realpath(os.path.dirname(file)) for file in local_files}  # noqa: PTH120
    return sorted(named | real)


def media_reader(template: Template) -> MediaReader | None:
    """What reads the media of a template's records; None if nothing does."""
    step = template.steps.get("media") if isinstance(template, HasSteps) else None
    return step.reader if isinstance(step, MediaStep) else None


MEDIA_STEP = MediaStepMaker()
