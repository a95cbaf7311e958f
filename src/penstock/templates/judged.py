"""Read records with a prompt and judged answers, under the names that trl, LLaMA-Factory and axolotl use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import TemplateError
from penstock.templates.fields import kind, one_key, value_under
from penstock.types import Record

MESSAGES = ("messages", "conversations", "conversation")  # a list of messages
QUESTION = ("instruction", "question", "query", "problem")  # a user's question, not a text to continue
PROMPT = ("prompt", *MESSAGES, *QUESTION)
CHOSEN = ("chosen", "chosen_response")
REJECTED = ("rejected", "rejected_response")
COMPLETION = ("completion", "response", "output", "answer")
LABELS = ("label", "kto_tag")

Side = str | list[Any]  # a text, or messages


@dataclass(frozen=True, slots=True)
class Sides:
    """A prompt and its answers.  is_question: the prompt is a user's question, not a text to continue."""

    prompt: Side
    answers: tuple[Side, ...] = ()
    is_question: bool = False

    @property
    def has_messages(self) -> bool:
        return any(not isinstance(side, str) for side in (self.prompt, *self.answers))


def read_side(record: Record, key: str, option: str) -> Side:
    """The text or the messages under a key; one message becomes a list."""
    value = value_under(record, key, option, expected="text or messages")
    if isinstance(value, dict):
        return [value]
    if isinstance(value, str | list):
        return value
    raise TemplateError(f"key {key!r} is {kind(value)}, expected text or messages; name the key with {option}=")


def read_prompt(record: Record, given: str | None) -> Sides | None:
    """The prompt of a record, without answers; None where the record has none."""
    key = given or one_key(record, PROMPT)
    if key is None or (given is None and record.get(key) is None):
        return None
    prompt = read_side(record, key, "input_key")
    if key == "instruction" and isinstance(prompt, str):
        prompt = _with_input(prompt, record)
    return Sides(prompt, is_question=key in QUESTION)


def require_prompt(record: Record, given: str | None) -> Sides:
    if (found := read_prompt(record, given)) is None:
        raise TemplateError(f"no prompt among {sorted(map(str, record))}; name its key with input_key=")
    return found


def _with_input(instruction: str, record: Record) -> Side:
    """An instruction with its input and earlier turns, as Alpaca writes them."""
    question = "\n\n".join(part for part in (instruction, record.get("input")) if isinstance(part, str) and part)
    turns = []
    for place, turn in enumerate(record.get("history") or ()):
        if not isinstance(turn, list | tuple) or len(turn) != 2 or not all(isinstance(side, str) for side in turn):
            raise TemplateError(f"history[{place}] is {str(turn)[:60]!r}, expected [question, answer]")
        turns += [{"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}]
    return [*turns, {"role": "user", "content": question}] if turns else question


def read_pair(record: Record, keys: Mapping[str, str | None]) -> Sides:
    """A prompt with a chosen and a rejected answer.  Without a prompt, it is what both answers begin with, as trl has it."""
    chosen = read_side(record, keys["chosen_key"] or one_key(record, CHOSEN) or "chosen", "chosen_key")
    rejected = read_side(record, keys["rejected_key"] or one_key(record, REJECTED) or "rejected", "rejected_key")
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise TemplateError("one of chosen and rejected is text, the other is messages; write both in the same form")
    found = read_prompt(record, keys["input_key"])
    # answers of several messages hold the prompt that stands beside them as text
    repeats = found is not None and isinstance(found.prompt, str) and isinstance(chosen, list) and len(chosen) > 1
    if found is None or repeats:
        return _implicit(chosen, rejected)
    return Sides(found.prompt, (chosen, rejected), found.is_question)


def _implicit(chosen: Side, rejected: Side) -> Sides:
    """Split off what both begin with, as trl's `extract_prompt`: an answer that is all of the other one keeps its last part."""
    shared = min(len(chosen), len(rejected))
    if not shared:
        raise TemplateError("chosen or rejected is empty, and there is no prompt; fix the record")
    same = next((i for i in range(shared) if chosen[i] != rejected[i]), None)
    if same is None:
        same = shared - 1
    elif same and chosen[same - 1] == " ":
        same -= 1  # the space belongs to the answer
    return Sides(chosen[:same], (chosen[same:], rejected[same:]))


def read_judged(record: Record, keys: Mapping[str, str | None]) -> Sides:
    """A prompt and one answer; of a conversation alone, the last message is the answer."""
    found = require_prompt(record, keys["input_key"])
    key = keys["output_key"] or one_key(record, COMPLETION)
    if key is None and isinstance(found.prompt, list) and len(found.prompt) > 1:
        return Sides(found.prompt[:-1], (found.prompt[-1:],))
    answer = read_side(record, key or "completion", "output_key")
    return Sides(found.prompt, (answer,), found.is_question)


def read_label(record: Record, given: str | None) -> bool:
    """Whether the answer is desirable."""
    key = given or one_key(record, LABELS) or "label"
    return as_label(value_under(record, key, "desirable_key", expected="true or false"), f"key {key!r}")


def as_label(value: Any, what: str) -> bool:
    if isinstance(value, bool) or (type(value) is int and value in (0, 1)):
        return bool(value)
    raise TemplateError(f"{what} is {value!r}, expected true or false")


def read_margin(record: Record, key: str) -> float:
    value = value_under(record, key, "margin_key", expected="a number")
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
        raise TemplateError(f"key {key!r} is {value!r}, expected a finite number; name the key with margin_key=")
    return float(value)


def read_open_prompt(record: Record, given: str | None) -> Sides:
    """A prompt to generate from.  Of a conversation, the last answer is left out: it is to be generated."""
    found = require_prompt(record, given)
    prompt = found.prompt
    if isinstance(prompt, list) and _role(prompt[-1:]) in ("assistant", "gpt"):
        key = given or one_key(record, PROMPT)
        if key not in MESSAGES or len(prompt) == 1:
            raise TemplateError(
                f"key {key!r} ends with a message of the assistant, expected a prompt to answer; remove this message"
            )
        prompt = prompt[:-1]
    return Sides(prompt, (), found.is_question)


def _role(last: list[Any]) -> Any:
    return last[0].get("role", last[0].get("from")) if last and isinstance(last[0], dict) else None
