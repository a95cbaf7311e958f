"""Read records with a prompt and judged answers, under the names that trl, LLaMA-Factory and axolotl use."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import TemplateError
from penstock.templates.fields import (
    CALL,
    as_label,
    is_side,
    kind,
    one_key,
    read_history,
    role_names,
    value_under,
)
from penstock.types import Record, nests_too_deep

MESSAGES = ("messages", "conversations", "conversation")  # a list of messages
QUESTION = (
    "instruction",
    "question",
    "query",
    "problem",
)  # a user's question, not a text to continue
INPUT = "input"  # next to an instruction, or alone a user's question
PROMPT = ("prompt", *MESSAGES, *QUESTION)
CHOSEN = ("chosen", "chosen_response")
REJECTED = ("rejected", "rejected_response")
COMPLETION = ("completion", "response", "output", "answer")
LABELS = ("label", "kto_tag")

Side = str | list[Any]  # a text, or messages
_ROLES = role_names(None)
_LARGEST = 2.0**127  # of a margin: stores keep it as float32


@dataclass(frozen=True, slots=True)
class Sides:
    """A prompt and its answers.  key: where the record has the prompt; "" if it is what the answers begin with."""

    prompt: Side
    answers: tuple[Side, ...] = ()
    key: str = ""

    @property
    def is_question(self) -> bool:
        """Whether the prompt is a user's question, not a text to continue."""
        return self.key in (*QUESTION, INPUT)

    @property
    def has_messages(self) -> bool:
        return any(not isinstance(side, str) for side in (self.prompt, *self.answers))


def read_side(record: Record, key: str, option: str) -> Side:
    """The text or the messages under a key; one message becomes a list, and so does JSON text of messages."""
    value = value_under(record, key, option, expected="text or messages")
    if isinstance(value, dict):
        return [value]
    if isinstance(value, str):
        return _messages_in(value) or value
    if isinstance(value, list):
        for place, message in enumerate(value):
            if not isinstance(message, dict):
                raise TemplateError(
                    f"{key}[{place}] is {kind(message)}, expected a dict with role and content"
                )
        return value
    raise TemplateError(
        f"key {key!r} is {kind(value)}, expected text or messages; name the key with {option}="
    )


def _messages_in(text: str) -> list[Any] | None:
    """The messages of which a text is the JSON, as tables hold them; None for any other text."""
    if not text.lstrip().startswith("["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if nests_too_deep(found):
        return None
    return (
        found
        if all(isinstance(each, dict) and ("role" in each or "from" in each) for each in found)
        else None
    )


def read_prompt(record: Record, given: str | None) -> Sides | None:
    """The prompt of a record, without answers; None where the record has none."""
    key = given or one_key(record, PROMPT) or one_key(record, (INPUT,))
    if key is None or (given is None and record.get(key) is None):
        return None
    prompt = read_side(record, key, "input_key")
    if key == "instruction" and isinstance(prompt, str):
        prompt = _with_input(prompt, record)
    if not prompt and isinstance(prompt, list):
        raise TemplateError(
            f"key {key!r} is an empty list, expected the messages of a prompt; fix the record"
        )
    return Sides(prompt, key=key)


def require_prompt(record: Record, given: str | None) -> Sides:
    if (found := read_prompt(record, given)) is None:
        raise TemplateError(
            f"no prompt among {sorted(map(str, record))}; name its key with input_key="
        )
    return found


def _with_input(instruction: str, record: Record) -> Side:
    """An instruction with its input and earlier turns, as Alpaca writes them."""
    question = "\n\n".join(
        part for part in (instruction, record.get("input")) if isinstance(part, str) and part
    )
    turns = read_history(record, "history")
    return [*turns, {"role": "user", "content": question}] if turns else question


def read_pair(record: Record, keys: Mapping[str, str | None]) -> Sides:
    """A prompt with a chosen and a rejected answer.  Without a prompt, it is what both answers begin with, as trl has it."""
    chosen = read_side(
        record, keys["chosen_key"] or one_key(record, CHOSEN) or "chosen", "chosen_key"
    )
    rejected = read_side(
        record, keys["rejected_key"] or one_key(record, REJECTED) or "rejected", "rejected_key"
    )
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise TemplateError(
            "one of chosen and rejected is text, the other is messages; write both in the same form"
        )
    found = read_prompt(record, keys["input_key"])
    if found is None or _is_repeated(found, chosen):
        sides = _implicit(chosen, rejected)
        if not sides.prompt and (key := one_key(record, PROMPT)) is not None:
            raise TemplateError(
                f"key {key!r} is {kind(record[key])}, and chosen and rejected begin differently; fix the record"
            )
        return sides
    sides = Sides(found.prompt, (chosen, rejected), found.key)
    _check_border(sides, "chosen and rejected")
    return sides


def _is_repeated(found: Sides, chosen: Side) -> bool:
    """Whether the answers are whole conversations next to a prompt as text, or next to one of them under `messages`."""
    is_whole = isinstance(chosen, list) and len(chosen) > 1 and not _is_assistant(chosen[0])
    prompt = found.prompt
    return is_whole and (
        isinstance(prompt, str) or (found.key in MESSAGES and _is_assistant(prompt[-1]))
    )


def _check_border(sides: Sides, names: str) -> None:
    """Refuse messages that would stand twice, and an answer after the answer that a conversation ends with."""
    prompt = sides.prompt
    key = sides.key
    if isinstance(prompt, str):
        return
    if key in MESSAGES and _is_assistant(prompt[-1]):
        raise TemplateError(
            f"key {key!r} ends with the assistant's message, and {names} would follow it; remove one of them, or name the key of the "
            f"prompt with input_key="
        )
    if any(answer[: len(prompt)] == prompt for answer in sides.answers):
        raise TemplateError(
            f"{names} begin with the messages of {key!r}, which would stand twice; remove {key!r}"
        )


def _implicit(chosen: Side, rejected: Side) -> Sides:
    """Split off what both begin with, as trl's `extract_prompt`: an answer that is all of the other one keeps its last part."""
    shared = min(len(chosen), len(rejected))
    if not shared:
        raise TemplateError(
            "chosen or rejected is empty, and the record has no prompt; add a prompt, or remove the record"
        )
    same = next((i for i in range(shared) if chosen[i] != rejected[i]), None)
    if same is None:
        same = shared - 1
    elif same and chosen[same - 1] == " ":
        same -= 1  # the space belongs to the answer
    if not same and isinstance(chosen, list):
        raise TemplateError(
            "chosen and rejected have no first message in common, and the record has no prompt; add a prompt, or "
            "let both begin with the same messages"
        )
    return Sides(chosen[:same], (chosen[same:], rejected[same:]))


def read_judged(record: Record, keys: Mapping[str, str | None]) -> Sides:
    """A prompt and one answer; of a conversation alone, the last message is the answer."""
    found = require_prompt(record, keys["input_key"])
    key = keys["output_key"] or one_key(record, COMPLETION)
    if key is None and isinstance(found.prompt, list) and len(found.prompt) > 1:
        if _role(found.prompt[-1]) is not None and not _is_assistant(found.prompt[-1]):
            raise TemplateError(
                f"key {found.key!r} ends with a message of {_role(found.prompt[-1])!r}, expected the assistant's answer that is judged"
            )
        return Sides(found.prompt[:-1], (found.prompt[-1:],), found.key)
    key = key or "completion"
    sides = Sides(found.prompt, (read_side(record, key, "output_key"),), found.key)
    _check_border(sides, repr(key))
    return sides


def read_label(record: Record, given: str | None) -> bool:
    """Whether the answer is desirable."""
    key = given or one_key(record, LABELS) or "label"
    return as_label(
        value_under(record, key, "desirable_key", expected="true or false"), f"key {key!r}"
    )


def read_margin(record: Record, key: str) -> float:
    value = value_under(record, key, "margin_key", expected="a number")
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        raise TemplateError(
            f"key {key!r} is {value!r}, expected a finite number; name the key with margin_key="
        )
    return float(value)


def read_open_prompt(record: Record, given: str | None) -> Sides:
    """A prompt to generate from.  Of a conversation, the last answer is left out: it is to be generated."""
    found = require_prompt(record, given)
    prompt = found.prompt
    if isinstance(prompt, list) and _is_assistant(prompt[-1]):
        if found.key not in MESSAGES or len(prompt) == 1:
            raise TemplateError(
                f"key {found.key!r} ends with a message of the assistant, expected a prompt to answer; remove this message"
            )
        prompt = prompt[:-1]
    return Sides(prompt, (), found.key)


def _role(message: Any) -> str | None:
    """The role of a message under its usual names; None if it has none of them."""
    name = message.get("role", message.get("from")) if isinstance(message, dict) else None
    return _ROLES.get(name.strip().lower()) if isinstance(name, str) else None


def _is_assistant(message: Any) -> bool:
    return _role(message) in ("assistant", CALL)


def prompt_keys(record: Record, options: Mapping[str, Any]) -> list[str]:
    """Return the key of the prompt, if the record has one that holds text or messages; else nothing."""
    names = [options["input_key"]] if options.get("input_key") else [*PROMPT, INPUT]
    return [name for name in names if is_side(record.get(name))][:1]
