"""Options of the sources in this folder."""

from dataclasses import dataclass

from penstock.settings import Declared, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFileSettings:
    """Options of sources whose samples are files.  None: the default of the format."""

    merge_json: bool | None = setting(
        "of WebDataset: members of the object in .json are fields of the record, else it is the field json",
        None,
    )


SETTINGS = Declared(function="open", settings=SampleFileSettings)
