"""Which flags of messages decide about their loss, and which keys of messages look like such flags and are not read."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from penstock.templates.flags import MASK_FLAGS, train_weight
from penstock.types import Record
from penstock.words import plural

# Keys that are read as something else, whatever their values are.
_KNOWN_KEYS = frozenset(
    ("role", "content", "from", "value", "name", "tool_calls", "tool_call_id", "function_call")
)
_LISTS_OF_MESSAGES = 4  # depth to which a record is searched for messages
_SEVERAL_ROWS = 2  # a key in one row only is not a flag
_SOUNDS_LIKE_A_MASK = re.compile(r"train|loss|mask|weight|learn|grad|ignore|supervis|label", re.I)


@dataclass(slots=True)
class FlaggedKey:
    """A key of messages with truth values: in which records, on how many messages with which value."""

    rows: list[int] = field(default_factory=list)
    values: Counter[str] = field(default_factory=Counter)
    excluded: int = 0  # messages that are not trained because of it
    is_flag: bool = True  # every value so far was true, false, 0, 1 or null

    def add(self, row: int, value: Any) -> None:
        if not self.rows or self.rows[-1] != row:
            self.rows.append(row)
        self.values[str(value).lower() if isinstance(value, bool) else str(value)] += 1


@dataclass(frozen=True, slots=True)
class MessageFlags:
    """What the messages of some records say about their loss."""

    read: dict[str, FlaggedKey]
    unread: dict[str, FlaggedKey]

    def sentences(self, num_rows: int) -> Iterator[tuple[bool, str, Sequence[int]]]:
        """Yield (whether it is a problem, what to say, the records) for every key."""
        for name, key in self.read.items():
            used_by = MASK_FLAGS[name].used_by
            excluded = plural(key.excluded, "message")
            where = f"{name} ({used_by}) in {len(key.rows):,} of {num_rows:,} records"
            yield False, f"{where} decides what is trained: {excluded} excluded", key.rows
        for name, key in self.unread.items():
            counts = ", ".join(f"{value} {n:,}" for value, n in key.values.most_common())
            where = f"messages have the key {name!r} in {len(key.rows):,} of {num_rows:,} records"
            why = (
                f"{where} (values: {counts}); it is not read: if it says which messages are trained, rename it to 'train' "
                f"(true or false), for example with source.map"
            )
            yield _SOUNDS_LIKE_A_MASK.search(name) is not None, why, key.rows


def find_flags(rows: Sequence[int], records: Sequence[Record], *, used: str) -> MessageFlags:
    """Find flags, and keys that look like flags, in the messages of records.

    used: the chat template's source; a key that it names is printed or tested by it, and is not a flag.
    """
    read: dict[str, FlaggedKey] = {}
    unread: dict[str, FlaggedKey] = {}
    for row, record in zip(rows, records, strict=True):
        for message in _messages(record):
            for name, value in message.items():
                if value is None or name in _KNOWN_KEYS:
                    continue
                table = read if name in MASK_FLAGS else unread
                key = table.setdefault(name, FlaggedKey())
                is_truth = isinstance(value, bool | int | float) and value in (0, 1)
                if table is read:
                    key.add(row, value)
                    if is_truth:
                        key.excluded += train_weight({name: value}, fractions=True) == 0
                elif is_truth:
                    key.add(row, value)
                else:
                    key.is_flag = False
    likely = {
        name: key
        for name, key in unread.items()
        if key.is_flag and len(key.rows) >= _SEVERAL_ROWS and name not in used
    }
    return MessageFlags(read, likely)


def _messages(value: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the messages of a record: dicts with a role in lists under its keys."""
    if depth > _LISTS_OF_MESSAGES:
        return
    if isinstance(value, str) and value.startswith("[{"):  # messages as JSON text
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if isinstance(value, list):
        for item in value:
            if isinstance(item, dict) and ("role" in item or "from" in item):
                yield item
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _messages(inner, depth + 1)
