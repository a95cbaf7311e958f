"""The tree of errors.  Every message says what failed, where, what was found and expected, and what to do.

    PenstockError
    ├── SourceError          a place or a record cannot be read
    │   ├── BadRecord        one row, by file and line
    │   └── SourceChanged    the file is no longer the one that was opened
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
"""


class PenstockError(ValueError):
    """The root of all errors that the data, the settings or the cache cause."""


class SourceError(PenstockError):
    """A place or a record cannot be read."""


class BadRecord(SourceError):
    """One row is not a record; the message begins with file:line."""


class SourceChanged(SourceError):
    """A file is no longer the one that was opened."""


class TemplateError(PenstockError):
    """A record cannot be made into a sample."""

    def __init__(self, message: str, *, record: int | None = None) -> None:
        super().__init__(message)
        self.record = (
            record  # which of the records handed over; the caller knows where that one came from
        )


class MediaError(TemplateError):
    """An image, a video or an audio clip of a record is missing, broken or not what the record says."""


class StoreError(PenstockError):
    """The cache cannot be written, or a file in it is damaged or missing."""


class PlanError(PenstockError):
    """Settings that contradict each other or the data."""


class Overlong(PlanError):
    """A sample is longer than `max_length`, and on_overlong is "error"."""


class UnevenTail(PlanError):
    """The rows of an epoch do not divide into full steps, and last_step is "error"."""


class PlanMismatch(PlanError):
    """A saved state belongs to another plan; the message lists what differs."""


class NotIsolated(PlanError):
    """A model lets the samples of a packed row see each other; the message says by how much, and what to change."""


class LeaseError(PenstockError):
    """A prompt is acknowledged or given back that is not leased, or not to this worker any more."""


class RecipeError(PenstockError):
    """A key or value of a recipe that is not known."""


class PluginError(PenstockError):
    """A plugin cannot be loaded, or two packages have one of the same name."""
