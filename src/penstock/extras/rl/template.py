"""Prompts to generate from: their record shape and their template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from penstock.errors import TemplateError
from penstock.extras.trainers.pairs import EncodedAnswers, JudgedTemplate, ReadRecord
from penstock.templates.fields import is_null, is_side
from penstock.templates.judged import Sides, read_open_prompt
from penstock.templates.samples import KEEP
from penstock.templates.shapes import BESIDE_TURNS, Fit, RecordShape
from penstock.types import PROMPT_LENGTHS, Record, Values


@dataclass(kw_only=True, eq=False, repr=False)
class PromptTemplate(JudgedTemplate):
    """A prompt ready for generation: rendered with the generation prompt.  Nothing of it is trained."""

    name = "prompt"
    columns = (PROMPT_LENGTHS,)
    policies = (KEEP,)
    on_nothing = KEEP
    loss_words = "nothing"

    reward_key: Annotated[
        str | None,
        "column with what the reward compares rollouts with: it makes no token, and workers get it as prompt.label",
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._keys.pop("reward_key")  # no token depends on it

    def _sides(self, record: Record) -> Sides:
        self.check_reward(record)
        return read_open_prompt(record, self.input_key)

    def check_reward(self, record: Record) -> None:
        """Refuse a record without the column that the reward needs."""
        if self.reward_key is not None and self.reward_key not in record:
            raise TemplateError(
                f"reward_key is {self.reward_key!r}, and the record has no such column; it has {', '.join(record)}"
            )

    def _is_kept(self, made: EncodedAnswers) -> bool:
        return True

    def _values(self, found: Sequence[ReadRecord], lengths: list[list[int]]) -> dict[str, Values]:
        [made] = super()._values(found, lengths).values()
        return {PROMPT_LENGTHS.name: made}


def _like_prompt(record: Record, options: Mapping[str, Any]) -> Fit | bool | None:
    key = options.get("input_key") or "prompt"
    if is_side(record.get(key)):
        return Fit(uses=(key, *BESIDE_TURNS))
    return False if is_null(record, key) else None


PROMPT = RecordShape(
    name="prompt",
    looks_like=_like_prompt,
    template=PromptTemplate,
    has_messages=True,
    is_packed=False,
    is_last_resort=True,
)
