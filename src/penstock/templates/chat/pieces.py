"""Join the text of a conversation from pieces, where a proof says that the chat template would print exactly that.

Pieces hold what a template prints before, between and behind the words of messages of some kinds, in some order (proof.py), and where
among that the trained parts begin and end.  Both are learned once.  After that, such a conversation takes one join: nothing is rendered.
A conversation whose words break an assumption of the proof gets None, and is rendered as any other one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from penstock.templates.chat.proof import Proof
from penstock.templates.chat.unknown import NotProven, Slot
from penstock.templates.samples import Rendering, Spans

_LONGEST = (
    1 << 20
)  # characters of a text that is joined; a longer one may pass the limits of templates

Edge = tuple[int, int]  # a place among the parts: a literal part, and characters behind its start


@dataclass(eq=False, slots=True)
class Pieces:
    """The pieces of conversations whose messages are of some kinds."""

    parts: list[str]  # literal text at even places, "" for a slot at odd ones
    slots: list[tuple[int, Slot | None]]  # the number of its value; None: printed as it is
    proof: Proof
    num_values: int  # of the messages and tools; not all need be printed
    trained: list[tuple[Edge, Edge]]
    absent: frozenset[tuple[int, str]]  # message and field, where a field is not printed
    answers: list[int]  # the places of the assistant's messages
    num_tools: int  # how many of the values are tools
    num_partial: int  # trained turns after an incomplete generation prompt
    is_compared: bool = False  # whether a conversation was rendered, too, and was equal

    def join(self, values: Sequence[Any]) -> tuple[str, Spans] | None:
        """The text of a conversation with these texts and objects, and its trained spans; None where nothing is proven about them."""
        if len(values) != self.num_values:  # more calls than made-up messages have
            return None
        if self.proof.constants and self._holds_constant(values):
            return None
        if not self._is_comparable(values):
            return None
        parts = self.parts.copy()
        parts[1::2] = [
            values[number] if slot is None else slot.text(values[number])
            for number, slot in self.slots
        ]
        text = "".join(parts)
        if len(text) > _LONGEST:
            return None
        starts = [0, *accumulate(map(len, parts))]
        spans = [(starts[a] + begin, starts[b] + end) for (a, begin), (b, end) in self.trained]
        return text, spans

    def _is_comparable(self, values: Sequence[Any]) -> bool:
        return self.proof.is_comparable(values)

    def _holds_constant(self, values: Sequence[Any]) -> bool:
        # between texts: a character that templates do not look for, so that two texts do not form a constant
        texts = "\x00".join([value for value in values if type(value) is str])
        return any(constant in texts for constant in self.proof.constants)


def make_pieces(
    proof: Proof,
    values: Sequence[Any],
    mask: Rendering,
    *,
    absent: frozenset[tuple[int, str]],
    answers: list[int],
    num_tools: int,
) -> Pieces:
    """The pieces of a proof.  values: of made-up messages.  mask: theirs."""
    literals = proof.plain_literals()
    parts = [literals[0]]
    printed = [literals[0]]
    for slot, literal in zip(proof.slots, literals[1:], strict=True):
        parts += ["", literal]
        printed += [slot.text(values[slot.number]), literal]
    starts = [0, *accumulate(map(len, printed))]
    edges = []
    for begin, end in mask.spans:
        first = _edge(begin, starts)
        last = _edge(end, starts)
        if first is None or last is None:
            raise NotProven("a trained part begins or ends among words")
        edges.append((first, last))
    return Pieces(
        parts=parts,
        slots=[(slot.number, slot if slot.changes else None) for slot in proof.slots],
        proof=proof,
        num_values=len(values),
        trained=edges,
        absent=absent,
        answers=answers,
        num_tools=num_tools,
        num_partial=mask.num_partial,
    )


def _edge(place: int, starts: list[int]) -> Edge | None:
    """Return the literal part that contains a place and the offset in it; None if the place is inside a slot."""
    for part in range(0, len(starts) - 1, 2):
        if starts[part] <= place <= starts[part + 1]:
            return part, place - starts[part]
    return None


def has_pieces(kind: Any) -> bool:
    """Whether messages of a kind may be joined.  An inline thought, and content in parts, have rules of their own."""
    if not isinstance(kind, tuple):
        return bool(kind != "thought")
    what, inside = kind
    if what == "dict":
        return all(
            has_pieces(inner) and (key != "content" or inner[0] not in ("list", "tuple"))
            for key, inner in inside
        )
    return what not in ("list", "tuple") or all(map(has_pieces, inside))
