"""Keyword arguments of `penstock.Loader` for stores in a bucket."""

from dataclasses import dataclass

from penstock.settings import Declared, check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """How much of a bucket this machine keeps."""

    mirror_bytes: int | None = setting(
        "for a cache in a bucket, the bytes of shards that this machine keeps; default: $PENSTOCK_MIRROR_BYTES, or 10 % of the free disk",
        None,
        choices=(None,),
        whole=True,
        least=1,
    )

    def __post_init__(self) -> None:
        check_settings(self)


SETTINGS = Declared(function="Loader", settings=MirrorSettings)
