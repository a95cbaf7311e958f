"""Options of the formats in this folder."""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.settings import Declared, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFileSettings:
    """Options of files of tokens and of MDS.  None: the default of the format."""

    sample: str | None = setting("of Megatron: a record is one sequence, or one document", None)
    dtype: str | None = setting("of raw tokens: the type of the ids, if no header says it", None)
    eot: int | None = setting("of raw tokens: the id of the end-of-text token", None)
    eot_at: str | None = setting("of raw tokens: whether a text has it at its end or start", None)
    arrays: Mapping[str, str] | None = setting(
        "of MDS: types of the columns with the encoding bytes that hold arrays, such as {tokens: int64}",
        None,
    )


SETTINGS = Declared(function="open", settings=TokenFileSettings)
