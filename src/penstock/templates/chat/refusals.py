"""What happens to records that a chat template cannot take: an option decides whether they stop the work or are counted as dropped."""

from dataclasses import dataclass, field

from penstock.errors import MediaError, TemplateError
from penstock.reasons import BAD_MEDIA
from penstock.templates.chat.annotate import EnginesDiffer
from penstock.templates.chat.headers import Unproven
from penstock.templates.sandbox import LimitExceeded


class NotPrinted(TemplateError):
    """A record has fields that the chat template does not print."""

    def __init__(self, fields: dict[str, int], record: int | None = None) -> None:
        """fields: their names, with the characters of each that are not printed."""
        listed = ", ".join(name + (f" ({size:,} characters)" if size else "") for name, size in fields.items())
        super().__init__(
            f"the chat template does not print {listed}; choose a chat_template that does, remove what it does not print, or pass "
            f"on_unrendered='warn' (count such records) or 'skip' (leave them out and count them)",
            record=record,
        )


def explained(error: TemplateError, *, has_media: bool) -> TemplateError:
    """The error; of a conversation with media, it says that templates of text models do not take them."""
    if not has_media or type(error) is not TemplateError:
        return error
    why = "the record has media, which chat templates of text models do not take: choose the chat_template of the model"
    return TemplateError(f"{error}; {why}", record=error.record)


@dataclass(slots=True)
class Run:
    """The records handed to one encoder.  Nothing here changes their tokens."""

    on_refused: str
    on_unrendered: str = "warn"
    on_media: str = "stop"
    num_records: int = 0  # that were rendered
    dropped: dict[int, str] = field(default_factory=dict)

    def refused(self, number: int, error: TemplateError) -> None:
        """Count a record as dropped, or stop."""
        unprinted, final = isinstance(error, NotPrinted), isinstance(error, LimitExceeded | EnginesDiffer)
        media = isinstance(error, MediaError)
        if final or (self.on_unrendered if unprinted else self.on_media if media else self.on_refused) == "stop":
            hint = f"; fix the record, or set {'on_media' if media else 'on_refused'} to 'skip' (skips are counted)"
            kind = MediaError if media else TemplateError
            raise kind(f"{error}{'' if final or unprinted else hint}", record=number) from error
        if media:
            self.dropped[number] = BAD_MEDIA
            return
        unproven = isinstance(error, Unproven)
        self.dropped[number] = "unrendered" if unprinted else "mask_unverified" if unproven else "template_refused"
