"""Keyword arguments of `penstock.Loader` for samples with media."""

from dataclasses import dataclass

from penstock.settings import Declared, check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaBatchSettings:
    """How the media of batches are decoded."""

    media_threads: int = setting("number of threads that decode images", 4, whole=True, least=1)
    media_bytes: int = setting(
        "maximum bytes of media that are decoded ahead; a step with more is decoded alone",
        1 << 30,
        whole=True,
        least=0,
    )
    on_broken_media: str = setting(
        "what to do with an image, video or audio clip that cannot be read when its batch is made: mask (it is named and counted, and no "
        "token of its sample is trained) or stop",
        "mask",
        choices=("mask", "stop"),
    )

    def __post_init__(self) -> None:
        check_settings(self)


SETTINGS = Declared(function="Loader", settings=MediaBatchSettings)
