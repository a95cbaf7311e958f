"""Why a record, a sample or a piece of one does not reach a batch: one table of reasons, used for counting and for every report."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """What a reason means, for people, and what changes it."""

    meaning: str
    advice: str = ""
    in_plans: str = ""  # how the numbers of a plan call it, where they do not use its name
    decided_by: tuple[str, ...] = ()  # settings of a Loader that decide it


NOTHING_TO_TRAIN = "nothing_to_train"
OVERLONG = "overlong"
TRUNCATED = "truncated"
LAST_STEP = "last_step"
SKIPPED = "skipped"
BAD_MEDIA = "bad_media"
UNANSWERED_REASON = "unanswered"
EMPTY = "empty"  # samples that the store has already counted under a reason of their own

_FIX = 'fix the record, or pass on_bad="skip"'

REASONS: dict[str, Reason] = {
    # sources: rows that cannot be read
    "bad_json": Reason("not valid JSON", _FIX),
    "bad_member": Reason("a file of the sample cannot be read", _FIX),
    "bad_tar": Reason("the tar is damaged from here on", "make the tar again"),
    "bad_value": Reason("a value cannot be read", _FIX),
    "duplicate_key": Reason("a key appears twice in one object", _FIX),
    "not_an_object": Reason("not a JSON object", _FIX),
    "open_quote": Reason("a quoted field is not closed", _FIX),
    "split_sample": Reason(
        "the files of the sample are not neighbours in the tar", "sort the tar by name"
    ),
    "too_deep": Reason("dicts and lists nest too deep", _FIX),
    "too_long": Reason("the record is longer than the limit", _FIX),
    "wrong_width": Reason("another number of fields than the header", _FIX),
    # templates and plan
    BAD_MEDIA: Reason(
        "an image, video or audio is missing, broken or in no place", "fix the file or the record"
    ),
    UNANSWERED_REASON: Reason(
        "the conversation ends with a user turn or a tool result",
        "choose on_unanswered: trim or keep",
    ),
    NOTHING_TO_TRAIN: Reason(
        "no token to train on",
        "raise max_length, or check train_on",
        in_plans="pieces with nothing to train on",
        decided_by=("on_overlong", "max_length"),
    ),
    EMPTY: Reason("dropped when prepared"),
    OVERLONG: Reason(
        "longer than max_length",
        "raise max_length, or choose on_overlong: split or truncate (for documents, also packing: concat)",
        in_plans="too long",
        decided_by=("on_overlong", "max_length"),
    ),
    TRUNCATED: Reason(
        "cut at max_length",
        "raise max_length, or choose on_overlong: split",
        decided_by=("on_overlong", "max_length"),
    ),
    LAST_STEP: Reason(
        "in the last step of the epoch, which is not full",
        "choose last_step: pad",
        in_plans="in the last step",
        decided_by=("last_step",),
    ),
    SKIPPED: Reason(
        "in a step that skip_steps leaves out",
        "remove the step from skip_steps",
        decided_by=("skip_steps",),
    ),
}


def in_plans(reason: str) -> str:
    """How the numbers of a plan call a reason."""
    known = REASONS.get(reason)
    return known.in_plans if known is not None and known.in_plans else reason


def meaning(reason: str) -> str:
    """The meaning of a reason in words; a reason that a user's own template counts speaks for itself."""
    return REASONS[reason].meaning if reason in REASONS else reason.replace("_", " ")
