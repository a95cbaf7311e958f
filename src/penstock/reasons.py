"""Why a record, a sample or a piece of one does not reach a batch: one table of reasons, used for counting and for every report.

Extras and other packages add theirs as plugins of the group `reasons`.  A reason without a description speaks for itself.
"""

from dataclasses import dataclass

from penstock import plugins


@dataclass(frozen=True, slots=True)
class Reason:
    """What a reason means, for people, and what changes it."""

    meaning: str
    advice: str = ""
    in_plans: str = ""  # how the numbers of a plan call it, where they do not use its name
    decided_by: tuple[str, ...] = ()  # settings of a Loader that decide it
    is_refusal: bool = False  # the template does not take the record


NOTHING_TO_TRAIN = "nothing_to_train"
OVERLONG = "overlong"
TRUNCATED = "truncated"
LAST_STEP = "last_step"
SKIPPED = "skipped"
UNANSWERED_REASON = "unanswered"
EMPTY = "empty"  # samples that the store has already counted under a reason of their own

_FIX = 'fix the record, or pass on_bad="skip"'

REASONS: dict[str, Reason] = {
    # sources: records that cannot be read
    "bad_json": Reason("not valid JSON", _FIX),
    "bad_utf8": Reason("not valid UTF-8", _FIX),
    "bad_value": Reason("a value cannot be read", _FIX),
    "duplicate_key": Reason("a key appears twice in one object", _FIX),
    "not_an_object": Reason("not a JSON object", _FIX),
    "open_quote": Reason("a quoted field is not closed", _FIX),
    "too_deep": Reason("dicts and lists nest too deep", _FIX),
    "too_long": Reason("the record is longer than the limit", _FIX),
    "wrong_width": Reason("another number of fields than the header", _FIX),
    # templates and plan
    "template_refused": Reason(
        "the chat template refuses the conversation", "fix the record", is_refusal=True
    ),
    "mask_unverified": Reason(
        "which tokens the answers are cannot be proven",
        "choose another chat_template",
        is_refusal=True,
    ),
    "unrendered": Reason(
        "the chat template does not print a part of the conversation",
        "choose a chat_template that does, or on_unrendered: warn",
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


def find_reason(name: str) -> Reason | None:
    """Return what is known of a reason; None if it has no description."""
    if name in REASONS:
        return REASONS[name]
    if name not in plugins.names("reasons"):
        return None
    added: Reason = plugins.load("reasons", name)
    return added


def in_plans(name: str) -> str:
    """How the numbers of a plan call a reason."""
    known = find_reason(name)
    return known.in_plans if known is not None and known.in_plans else name


def meaning(name: str) -> str:
    """The meaning of a reason in words; a reason that a user's own template counts speaks for itself."""
    known = find_reason(name)
    return known.meaning if known is not None else name.replace("_", " ")
