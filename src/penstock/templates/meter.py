"""Count what one rendering of a chat template costs, and stop it at a limit.

Chat templates are programs of strangers.  Every operation of the sandbox that can make or read much (guards.py) asks the meter
before it runs: `spend` for time and `allocate` for memory.  No operation is therefore long or large by itself, and the clock is
looked at between any two of them.

Memory is what a rendering has made so far, live or not: Python does not tell when a string dies, and the sum is an upper bound.
Containers are weighed when they are made.  Lists that hold each other can be small in memory and endless when they are printed,
compared or hashed: `weigh` gives the cost of reading a value as a tree, and `MOST_DEPTH` bounds how deep it nests.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import jinja2

from penstock.errors import TemplateError

MOST_DEPTH = 256  # levels of a value; a record has at most half as many
NODE = 50  # units of work for one value of a container; a unit is about a nanosecond
TURN = 500  # for one turn of a loop, or one value of a filter that runs in Python
OBJECT = 64  # bytes that any new value takes
_REMEMBERED = 200  # bytes that remembering a weight takes
_CLOCK_EVERY = 1_000_000  # units of work between two looks at the clock
_MOST_AT_ONCE = 200_000_000  # units of one operation
_PER_INPUT_BYTE = 64  # bytes that a template may make for each byte of its conversation


class LimitExceeded(TemplateError):
    """A chat template is too large, runs too long, or makes too much text."""


class TooDeep(TemplateError):
    """Values or calls nest too deep.  This is found at once, so that one such record can be skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one conversation may cost.  The largest real ones take some ten milliseconds and a few megabytes."""

    seconds: float = 10.0  # of this thread's CPU time: other processes do not matter
    work: int = 10_000_000_000  # units; the same on every machine
    memory: int = 32 << 20  # bytes made, next to 64 for each byte of the conversation
    calls: int = 64  # macros, blocks and recursive loops inside each other


LIMITS = Limits()
MADE_UP = Limits(seconds=2.0, work=2_000_000_000)  # for made-up conversations, which are small


class Meter:
    """The cost of one rendering.  Not for two threads at once."""

    def __init__(self) -> None:
        self.limits = LIMITS
        self.calls = 0  # macros that are running inside each other
        self._given: Any = None
        # Weights of containers, by identity.  They keep the containers alive, so that no other takes an identity.
        self._weights: dict[int, _Weight] = {}
        self._begin()

    def start(self, given: Any, limits: Limits) -> None:
        """Begin a rendering.  given: the conversation; a large one may make more text."""
        self.limits = limits
        self._begin()
        self._given = given

    def end(self) -> None:
        """Let go of the values of a rendering."""
        self._given = None
        self._weights.clear()

    def _begin(self) -> None:
        self.calls = 0
        self._memory = self.limits.memory
        self._is_extended = False
        self._work = 0
        self._next_clock = _CLOCK_EVERY
        self._began = time.thread_time()
        self._weights.clear()

    def spend(self, work: int) -> None:
        """Ask for some time, in units of about a nanosecond."""
        self._work += work
        if self._work > self._next_clock:
            self._look_at_clock(work)

    def _look_at_clock(self, work: int) -> None:
        if work > _MOST_AT_ONCE or self._work > self.limits.work:
            self.stop("work in its loops and operations")
        self._next_clock = self._work + _CLOCK_EVERY
        if time.thread_time() - self._began > self.limits.seconds:
            self.stop(f"more than {self.limits.seconds:g} s of CPU time")

    def allocate(self, size: int) -> None:
        """Ask for memory, in bytes."""
        self._memory -= size
        if self._memory < 0:
            self._extend()

    def expect(self, size: int) -> None:
        """Ask whether so much memory is left, and take none of it."""
        self.allocate(size)
        self._memory += size

    def _extend(self) -> None:
        """Add what the conversation's own size allows.  Only large renderings pay for measuring it."""
        if not self._is_extended:
            self._is_extended = True
            self._memory += _PER_INPUT_BYTE * num_bytes(self._given)
        if self._memory < 0:
            self.stop(f"more than {self.limits.memory >> 20} MiB of text and lists")

    def make_text(self, text: str) -> None:
        """Ask for the memory of a string.  Written out, as templates ask this most often."""
        size = len(text)
        self._memory -= OBJECT + (size if text.isascii() else 4 * size)
        if self._memory < 0:
            self._extend()

    def stop(self, what: str) -> NoReturn:
        raise LimitExceeded(
            f"the chat template passes a limit for one conversation: {what}; a template that is written for chats stays far below; "
            f"choose another chat_template"
        )

    def weigh(self, value: Any) -> int:
        """Return the cost of reading a value as a tree; stop where it nests too deep."""
        if isinstance(value, str):
            return len(value)
        return self.weight_of(value).cost if isinstance(value, CONTAINERS) else NODE

    def depth_of(self, value: Any) -> int:
        if isinstance(value, Lazy):
            return value.depth
        return self.weight_of(value).depth if isinstance(value, CONTAINERS) else 0

    def weight_of(self, container: Any, levels: int = MOST_DEPTH) -> "_Weight":
        known = self._weights.get(id(container))
        if known is not None:
            return known
        if levels <= 0:
            raise TooDeep(_DEEP)
        self.spend(NODE * len(container))
        self.allocate(_REMEMBERED)
        cost = NODE
        depth = 0
        is_plain = True
        for value in _values_of(container):
            if isinstance(value, str):
                cost += len(value) + NODE
            elif isinstance(value, CONTAINERS):
                inner = self.weight_of(value, levels - 1)
                cost += inner.cost
                depth = max(depth, inner.depth)
                is_plain = is_plain and inner.is_plain
            elif isinstance(value, SCALARS):
                cost += NODE
            else:
                cost += NODE
                depth = max(depth, value.depth if isinstance(value, Lazy) else 0)
                is_plain = False
        if depth >= MOST_DEPTH:
            raise TooDeep(_DEEP)
        weight = _Weight(container, cost, depth + 1, is_plain)
        self._weights[id(container)] = weight
        return weight


@dataclass(frozen=True, slots=True)
class _Weight:
    container: Any
    cost: int  # of reading it as a tree, in units of work
    depth: int
    is_plain: bool  # whether it holds data only, no functions or other objects


class Lazy:
    """The values of a filter such as `map`, made when they are asked for; like a generator, true and without a length.

    Generators inside each other are taken apart by recursion in C: `depth` bounds how many there are.
    """

    __slots__ = ("_values", "depth")

    def __init__(self, meter: Meter, values: Iterator[Any], depth: int) -> None:
        if depth > MOST_DEPTH // 4:
            meter.stop("filters applied to each other's results without end")
        self.depth = depth
        self._values = _metered(meter, values)

    def __iter__(self) -> Iterator[Any]:
        return self._values

    def __next__(self) -> Any:
        return next(self._values)


class Turns:
    """The values of a `for` loop.  It has a length where they have one, so that `loop.length` makes no list of them."""

    __slots__ = ("_meter", "_values")

    def __init__(self, meter: Meter, values: Any) -> None:
        self._meter = meter
        self._values = values

    def __iter__(self) -> Iterator[Any]:
        spend = self._meter.spend
        for value in self._values:
            spend(TURN)
            yield value

    def __len__(self) -> int:
        return len(self._values)

    def __bool__(self) -> bool:
        return bool(self._values)


def _metered(meter: Meter, values: Iterator[Any]) -> Iterator[Any]:
    for value in values:
        meter.spend(TURN)
        if isinstance(value, CONTAINERS):
            meter.allocate(OBJECT + 8 * len(value))
            meter.weigh(value)
        elif isinstance(value, str):
            meter.make_text(value)
        yield value


_DEEP = f"the chat template makes or reads values that nest more than {MOST_DEPTH} deep"
_EMPTY: dict[Any, Any] = {}
_ITEMS: Any = type(_EMPTY.items())
_VIEWS: tuple[Any, ...] = (type(_EMPTY.keys()), type(_EMPTY.values()), _ITEMS)
SCALARS: tuple[Any, ...] = (int, float, type(None), jinja2.Undefined, complex, range)
CONTAINERS: tuple[Any, ...] = (list, tuple, dict, set, frozenset, *_VIEWS)


def _values_of(container: Any) -> Iterator[Any]:
    if isinstance(container, dict):
        return iter([*container, *container.values()])
    if isinstance(container, _ITEMS):  # its pairs are made while they are read
        return (part for pair in container for part in pair)
    return iter(container)


def text_bytes(text: str) -> int:
    """Return at least the bytes that a string takes."""
    return OBJECT + (len(text) if text.isascii() else 4 * len(text))


def num_bytes(value: Any) -> int:
    """Return about the bytes of plain data."""
    if isinstance(value, str):
        return text_bytes(value)
    if isinstance(value, dict):
        return OBJECT + sum(num_bytes(key) + num_bytes(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return OBJECT + sum(map(num_bytes, value))
    return OBJECT
