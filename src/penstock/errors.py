"""The tree of errors.  Every message says what failed, where, what was found and expected, and what to do.

    PenstockError
    ├── SourceError          a place or a record cannot be read
    │   ├── BadRecord        one record, by file and line
    │   └── SourceChanged    the file changed after it was opened
    ├── TemplateError        a record cannot be made into a sample
    │   └── MediaError       an image, a video or an audio clip of a record cannot be used
    ├── StoreError           the cache cannot be written, or a file in it is damaged or missing
    ├── PlanError            settings that contradict each other or the data
    │   ├── Overlong         a sample longer than `max_length` under on_overlong="error"
    │   ├── UnevenTail       the last step is not full under last_step="error"
    │   ├── PlanMismatch     a saved state belongs to another plan
    │   └── NotIsolated      a model lets packed samples see each other
    ├── LeaseError           a prompt is acknowledged that is not leased
    ├── RecipeError          a key or value of a recipe that is not known
    └── PluginError          a plugin of another package cannot be loaded

All are `ValueError`s too, so that code that guards against bad input in general keeps working.

Each has a `code` that stays the same when a message is reworded: match it, not the text.  A class has one, and cases that
a program may want to tell apart have their own.
"""

import copy
from typing import Self


class PenstockError(ValueError):
    """The root of all errors that the data, the settings or the cache cause."""

    code: str = "penstock_error"

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    def at(self, location: str) -> Self:
        """Return the same error, with where it happened before its message."""
        located = copy.copy(self)
        located.args = (f"{location}{self}",)
        return located


class SourceError(PenstockError):
    """A place or a record cannot be read."""

    code = "source_error"


class BadRecord(SourceError):
    """One record cannot be read; the message begins with file:line."""

    code = "bad_record"


class SourceChanged(SourceError):
    """A file changed after it was opened."""

    code = "source_changed"


class TemplateError(PenstockError):
    """A record cannot be made into a sample."""

    code = "template_error"

    def __init__(
        self, message: str = "", *, record: int | None = None, code: str | None = None
    ) -> None:
        super().__init__(message, code=code)
        # Which of the records handed over; the caller knows where that one came from.
        self.record = record


class MediaError(TemplateError):
    """An image, a video or an audio clip of a record is missing, broken or not what the record says."""

    code = "media_error"


class StoreError(PenstockError):
    """The cache cannot be written, or a file in it is damaged or missing."""

    code = "store_error"


class PlanError(PenstockError):
    """Settings that contradict each other or the data."""

    code = "plan_error"


class Overlong(PlanError):
    """A sample is longer than `max_length`, and on_overlong is "error"."""

    code = "overlong"


class UnevenTail(PlanError):
    """The rows of an epoch do not divide into full steps, and last_step is "error"."""

    code = "uneven_tail"


class PlanMismatch(PlanError):
    """A saved state belongs to another plan; the message lists what differs."""

    code = "plan_mismatch"


class NotIsolated(PlanError):
    """A model lets the samples of a packed row see each other; the message says by how much, and what to change."""

    code = "not_isolated"


class LeaseError(PenstockError):
    """A prompt is acknowledged or given back that is not leased, or not to this worker any more."""

    code = "lease_error"


class RecipeError(PenstockError):
    """A key or value of a recipe that is not known."""

    code = "recipe_error"


class PluginError(PenstockError):
    """A plugin cannot be loaded, or two packages have one of the same name."""

    code = "plugin_error"
