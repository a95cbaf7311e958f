"""The operations that a chat template may use: jinja2's own, each behind a question to the meter.

Operators, filters, tests and methods are looked up in tables here; what is in no table is refused.  Each entry first asks for the
time and the memory that the operation can take at most, then runs jinja2's or Python's own code, and then weighs the result.
What a template prints is therefore exactly what plain jinja2 prints, or it is refused.
"""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jinja2
import jinja2.filters
import jinja2.runtime
import jinja2.sandbox
import jinja2.tests
from jinja2.exceptions import SecurityError
from markupsafe import EscapeFormatter, Markup

from penstock.templates.meter import (
    CONTAINERS,
    NODE,
    OBJECT,
    SCALARS,
    TURN,
    Lazy,
    Meter,
    Turns,
    text_bytes,
)

Function = Callable[..., Any]

MOST_WIDTH = 10_000  # characters that a format, an indent or padding may add
MOST_BITS = 4_096  # of a whole number
_MOST_PARTS = 100_000  # lists that `slice` and `batch` may make, as jinja2's range
_MOST_NAME = 200  # characters of an attribute's path
_MOST_PRECISION = 100  # digits to round to
_FEW = 5  # texts that are joined before their size is known
_ESCAPED = 6  # characters that escaping makes of one
_WIDTHS = re.compile(r"[#0\- +]*(\d*)(?:\.(\d*))?")  # behind a `%` and its name

PLAIN: tuple[Any, ...] = (str, *SCALARS, *CONTAINERS)


class Guards:
    """Tables of bounded operations for one sandbox."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.filters = self._make_filters()
        self.tests = self._make_tests()
        self._text_methods = self._make_text_methods()
        self._binary: dict[str, Function] = {
            "+": self._add,
            "*": self._multiply,
            "%": self._modulo,
            "**": self._power,
        }

    # What every operation asks

    def read(self, value: Any) -> Any:
        """Ask for the time to read a value once."""
        self.meter.spend(self.meter.weigh(value))
        return value

    def made(self, value: Any, *origins: Any) -> Any:
        """Weigh a new value.  origins: what it was made of."""
        if isinstance(value, str):
            self.meter.make_text(value)
            return value
        if type(value) is int:
            self._check_bits(value.bit_length())
            return value
        if isinstance(value, CONTAINERS):
            if isinstance(value, dict | set):
                self.meter.allocate(4 * OBJECT + 100 * len(value))
            else:
                self.meter.allocate(OBJECT + 8 * len(value))
            self.meter.weigh(value)
            return value
        if isinstance(value, int):
            self._check_bits(value.bit_length())
            return value
        if isinstance(value, Lazy | Turns) or not hasattr(value, "__next__"):
            return value
        depth = 1 + max(map(self.meter.depth_of, origins), default=0)
        return Lazy(self.meter, value, depth)

    def _check_bits(self, bits: int) -> None:
        if bits > MOST_BITS:
            self.meter.stop(f"a whole number of more than {MOST_BITS} bits")

    def check_width(self, width: Any) -> int:
        """Return the characters that a width, given as a number or as text, can add."""
        size = len(width) if isinstance(width, str) else width if isinstance(width, int) else 0
        if size > MOST_WIDTH:
            self.meter.stop(f"a width of more than {MOST_WIDTH:_} characters")
        return max(size, 0)

    def _check_name(self, name: Any) -> None:
        if isinstance(name, str) and len(name) > _MOST_NAME:
            self.meter.stop(f"the name of an attribute of more than {_MOST_NAME} characters")

    def items(self, values: Iterable[Any]) -> list[Any]:
        """Return all values as a list."""
        if isinstance(values, str):
            self.meter.expect(100 * len(values))  # a letter may become an object of its own
        elif isinstance(values, CONTAINERS):
            self.meter.expect(8 * len(values))
        items = list(values)
        self.meter.spend(NODE * len(items))
        self.meter.allocate(OBJECT + 8 * len(items))
        return items

    def text_size(self, value: Any) -> int:
        """Return at most how many bytes a value takes as text."""
        if isinstance(value, str):
            return text_bytes(value)
        return 4 * self.meter.weigh(value)

    def _expect_text(self, value: Any, growth: int = 4) -> None:
        """Ask for the reading of a value as text, and for a new one that is up to `growth` times as large."""
        if not isinstance(value, str):
            self.printable(value)
        self.meter.spend(10 * self.meter.weigh(value))
        self.meter.expect(growth * self.text_size(value))

    # Printing

    def printable(self, value: Any) -> Any:
        """Return a value that is about to be printed.  Functions and other objects would print their address in memory."""
        if isinstance(value, str):
            self.meter.make_text(value)
            return value
        if isinstance(value, CONTAINERS):
            weight = self.meter.weight_of(value)
            self.meter.spend(2 * weight.cost)
            self.meter.allocate(2 * weight.cost)
            self.meter.expect(_ESCAPED * weight.cost)
            if weight.is_plain:
                return value
        elif isinstance(value, SCALARS):
            return value
        raise SecurityError(
            f"it prints a {type(value).__name__} that is or holds an object of Python, expected text, numbers or lists of them"
        )

    # Operators

    def binary(self, sign: str, left: Any, right: Any) -> Any:
        """Compute `left sign right`."""
        guarded = self._binary.get(sign)
        if guarded is not None:
            return guarded(left, right)
        if not isinstance(left, int | float):  # sets and views of dicts have a difference
            self.read(left)
            self.read(right)
        return self.made(_OPERATORS[sign](left, right), left, right)

    def _add(self, left: Any, right: Any) -> Any:
        if isinstance(left, str) and isinstance(right, str):
            escaped = isinstance(left, Markup) or isinstance(right, Markup)
            size = text_bytes(left) + text_bytes(right)
            self.meter.expect(_ESCAPED * size if escaped else size)
        elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
            self.meter.expect(8 * (len(left) + len(right)))
        return self.made(left + right, left, right)

    def _multiply(self, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            self._check_bits(left.bit_length() + right.bit_length())
            return left * right
        for value, times in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(value, str):
                self.meter.expect(text_bytes(value) * max(times, 1))
            elif isinstance(times, int) and isinstance(value, list | tuple):
                self.meter.expect(8 * len(value) * max(times, 1))
        return self.made(left * right, left, right)

    def _power(self, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            self._check_bits(left.bit_length() * max(right, 1))
        return self.made(left**right)

    def _modulo(self, left: Any, right: Any) -> Any:
        if isinstance(left, str):
            self._expect_percent(left, right)
        return self.made(left % right)

    def _expect_percent(self, form: str, values: Any) -> None:
        """Ask for the text that `form % values` makes."""
        self.meter.spend(100 * len(form))  # the search for widths is in Python
        starts = form.count("%")
        widest = 0
        for digits in _percent_widths(form):
            self.check_width(int(digits) if len(digits) < 10 else MOST_WIDTH + 1)
            widest = max(widest, int(digits))
        if "*" in form and starts:
            widest = MOST_WIDTH
            for value in values if isinstance(values, tuple) else (values,):
                self.check_width(value if isinstance(value, int) else None)
        growth = _ESCAPED if isinstance(form, Markup) else 2
        self._expect_text(form)
        for value in values if isinstance(values, tuple) else (values,):
            if not isinstance(value, str):
                self.printable(value)
        self.meter.spend(starts * self.meter.weigh(values))
        self.meter.expect(starts * (widest + growth * self.text_size(values)))

    def concatenate(self, values: list[Any]) -> str:
        """Compute `a ~ b ~ …`."""
        if len(values) < _FEW and all(type(value) is str for value in values):
            # at most a few times what is there already
            text = "".join(values)
            self.meter.make_text(text)
            return text
        self.meter.expect(sum(map(self.text_size, values)))
        for value in values:
            self.printable(value)
        text = jinja2.runtime.str_join(values)
        self.meter.make_text(text)
        return text

    def cut(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """Compute `value[start:stop:step]`."""
        part = value[start:stop:step]  # never larger than the value itself
        return part if part is value else self.made(part, value)

    # Filters

    def _make_filters(self) -> dict[str, Function]:
        """Return the filters of chat templates.  The others of jinja2 are for web pages."""
        own = jinja2.filters.FILTERS
        guarded: dict[str, Function] = {name: own[name] for name in _CHEAP_FILTERS}
        expectations: dict[str, Function] = {
            "batch": self._before_batch,
            "capitalize": self._before_text,
            "center": self._before_padding,
            "dictsort": self._before_sort,
            "e": self._before_escape,
            "escape": self._before_escape,
            "float": self._before_number,
            "forceescape": self._before_escape,
            "format": self._before_format,
            "groupby": self._before_sort,
            "indent": self._before_indent,
            "int": self._before_number,
            "items": self._before_values,
            "list": self._before_values,
            "lower": self._before_text,
            "map": self._before_map,
            "max": self._before_sort,
            "min": self._before_sort,
            "reject": self._before_select,
            "rejectattr": self._before_attribute,
            "replace": self._before_replace,
            "reverse": self._before_values,
            "round": self._before_round,
            "safe": self._before_text,
            "select": self._before_select,
            "selectattr": self._before_attribute,
            "slice": self._before_batch,
            "sort": self._before_sort,
            "string": self._before_text,
            "title": self._before_title,
            "trim": self._before_trim,
            "truncate": self._before_truncate,
            "unique": self._before_sort,
            "upper": self._before_text,
            "wordcount": self._before_text,
        }
        for name, before in expectations.items():
            guarded[name] = self._guard(own[name], before)
        guarded["join"] = self._with_items(own["join"], self._expect_joined)
        guarded["sum"] = self._with_items(own["sum"], self._expect_sum)
        return guarded

    def _guard(self, function: Function, before: Function) -> Function:
        """Return a filter or test that asks `before` it runs.  `before` may return what to read instead of the value."""
        call = with_context(function)

        @jinja2.pass_context
        def guarded(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            replaced = before(value, *args, **kwargs)
            given = value if replaced is None else replaced
            return self.made(call(context, given, *args, **kwargs), value)

        return guarded

    def _with_items(self, function: Function, expect: Function) -> Function:
        """Return a filter that reads its values into a list first, so that they can be weighed."""
        call = with_context(function)

        @jinja2.pass_context
        def guarded(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            items = self.items(value)
            expect(items, *args, **kwargs)
            return self.made(call(context, items, *args, **kwargs))

        return guarded

    def _before_text(self, value: Any, *args: Any) -> None:
        self._expect_text(value)

    def _before_title(self, value: Any) -> None:
        self._expect_text(value, growth=2 * OBJECT)  # each word becomes a string of its own

    def _before_escape(self, value: Any) -> None:
        self._expect_text(value, growth=_ESCAPED)

    def _before_number(self, value: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(value, str) and len(value) > MOST_BITS // 4:
            self.meter.stop(f"a number of more than {MOST_BITS // 4} digits")

    def _before_round(self, value: Any, precision: int = 0, method: str = "common") -> None:
        if isinstance(precision, int) and abs(precision) > _MOST_PRECISION:
            self.meter.stop(f"a number rounded to more than {_MOST_PRECISION} digits")

    def _before_padding(self, value: Any, width: Any = 80) -> None:
        self._expect_text(value)
        self.meter.expect(4 * self.check_width(width))

    def _before_indent(self, value: Any, width: Any = 4, *args: Any, **kwargs: Any) -> None:
        self._expect_text(value)
        text = value if isinstance(value, str) else ""
        lines = 2 + sum(map(text.count, _LINE_ENDS))
        self.meter.expect(lines * (4 * self.check_width(width) + 2 * OBJECT))

    def _before_truncate(self, value: Any, length: Any = 255, *args: Any, **kwargs: Any) -> None:
        self._expect_text(value)

    def _before_trim(self, value: Any, chars: str | None = None) -> None:
        self._expect_text(value, growth=1)
        if chars is not None:
            self.meter.spend(self.meter.weigh(value) * (1 + self.meter.weigh(chars) // 16))

    def _before_replace(self, value: Any, old: Any, new: Any, count: int | None = None) -> None:
        self._expect_text(value, growth=1)
        if isinstance(value, str):
            self._expect_replaced(value, old, new)
        else:
            size = self.meter.weigh(value)
            self.meter.expect(size * self.text_size(new))

    def _expect_replaced(self, text: str, old: Any, new: Any) -> None:
        times = text.count(old) if isinstance(old, str) else len(text) + 1
        growth = _ESCAPED if isinstance(text, Markup) else 1
        self.meter.spend(len(text) + self.meter.weigh(new) * times)
        self.meter.expect(growth * (4 * len(text) + times * self.text_size(new)))

    def _before_format(self, value: Any, *args: Any, **kwargs: Any) -> None:
        form = value if isinstance(value, str) else str(self.printable(value))
        self._expect_percent(form, kwargs or args)

    def _before_batch(self, value: Any, size: Any, fill_with: Any = None) -> Any:
        if isinstance(size, int) and size > _MOST_PARTS:
            self.meter.stop(f"`slice` or `batch` of more than {_MOST_PARTS:_}")
        self.meter.expect(8 * size if isinstance(size, int) else 0)
        return self._metered(value)

    def _before_values(self, value: Any, *args: Any) -> None:
        if isinstance(value, str):
            self.meter.spend(NODE * len(value))
            self.meter.expect(100 * len(value))
        elif isinstance(value, CONTAINERS):
            self.meter.spend(NODE * len(value))
            self.meter.expect(8 * len(value))

    def _before_map(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        self._check_name(kwargs.get("attribute"))
        return self._metered(value)

    def _before_select(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return self._metered(value)

    def _before_attribute(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        self._check_name(args[0] if args else None)
        return self._metered(value)

    def _metered(self, value: Any) -> Any:
        """Return values that ask the meter for each one: these filters may read many before they give one."""
        is_plain = isinstance(value, str | list | tuple | dict | Lazy | range)
        return Turns(self.meter, value) if is_plain else value

    def _before_sort(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        for name in (*args, *kwargs.values()):
            self._check_name(name)
        items = value if isinstance(value, dict) else self.items(value)
        comparisons = 1 + len(items).bit_length()
        cost = sum(map(self.meter.weigh, items)) if not isinstance(value, dict) else 0
        cost += self.meter.weigh(value) if isinstance(value, dict) else 0
        # With case_sensitive=False, each text is copied in small letters.
        self.meter.spend(TURN * len(items) + (cost + NODE * len(items)) * comparisons)
        self.meter.expect(4 * cost + 3 * OBJECT * len(items))
        return items

    def _expect_joined(
        self, items: list[Any], separator: Any = "", *args: Any, **kwargs: Any
    ) -> None:
        for name in (*args, kwargs.get("attribute")):
            self._check_name(name)
        separator = kwargs.get("d", separator)
        size = sum(map(self.text_size, items)) + len(items) * self.text_size(separator)
        for item in items:
            if not isinstance(item, str):
                self.printable(item)
        self.meter.spend(size)
        self.meter.expect(size)

    def _expect_sum(self, items: list[Any], attribute: Any = None, start: Any = 0) -> None:
        self._check_name(attribute)
        if not isinstance(start, int | float):  # lists: each addition copies all before it
            size = self.meter.weigh(start) + sum(map(self.meter.weigh, items))
            self.meter.spend(size * (1 + len(items)))
            self.meter.expect(2 * size)

    # Tests

    def _make_tests(self) -> dict[str, Function]:
        own: Mapping[str, Any] = jinja2.tests.TESTS
        guarded: dict[str, Function] = dict(own)
        for name in _COMPARING_TESTS:
            guarded[name] = self._guard(own[name], self._before_compare)
        return guarded

    def _before_compare(self, value: Any, *args: Any) -> None:
        self.read(value)
        for other in args:
            self.read(other)

    # Methods

    def method(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of a value."""
        owner = function.__self__
        name = function.__name__
        if isinstance(owner, str):
            before = self._text_methods.get(name)
            if before is not None:
                replaced = before(owner, *args, **kwargs)
                return self.made(function(*(args if replaced is None else replaced), **kwargs))
        elif name in _METHODS.get(type(owner), ()):
            if name in ("count", "index"):
                self.read(owner)
            for value in args:
                if not isinstance(value, str):
                    self.read(value)
            result = function(*args, **kwargs)
            return self.made(result) if name == "copy" else result
        raise SecurityError(
            f"the method {name} of {type(owner).__name__} is not for chat templates"
        )

    def _make_text_methods(self) -> dict[str, Function]:
        """Return what each method of text asks before it runs; it may return other arguments to use."""
        return {
            **dict.fromkeys(_LINEAR_METHODS, self.linear),
            **dict.fromkeys(_BACKWARD_METHODS, self._backward),
            **dict.fromkeys(("split", "splitlines"), self._split),
            **dict.fromkeys(("strip", "lstrip", "rstrip"), self._strip),
            **dict.fromkeys(("center", "ljust", "rjust", "zfill"), self._pad),
            "title": lambda text: self._expect_text(text),
            "rsplit": self._backward_split,
            "replace": self._replace,
            "join": self._join,
            "expandtabs": self._expand,
            "unescape": self.linear,
        }

    def linear(self, text: str, *args: Any) -> None:
        self.meter.spend(len(text))
        for value in args:
            self.read(value)

    def _strip(self, text: str, chars: str | None = None) -> None:
        self.meter.spend(len(text) if chars is None else len(text) * (1 + len(chars) // 16))

    def _backward(self, text: str, part: str = "", *args: Any) -> None:
        """Python searches backwards without skipping: letters of the text times letters of the part."""
        self.meter.spend(len(text) * (1 + len(part) // 8))

    def _split(self, text: str, separator: Any = None, *args: Any, **kwargs: Any) -> None:
        self.meter.spend(len(text))
        if isinstance(separator, str) and separator:
            parts = 1 + text.count(separator)
        else:
            parts = 1 + len(text) // 2 if separator is None and not args else 1 + len(text)
        if len(text) > OBJECT:
            self.meter.expect(parts * 2 * OBJECT + text_bytes(text))
            self.meter.allocate(parts * OBJECT)

    def _backward_split(self, text: str, separator: Any = None, *args: Any, **kwargs: Any) -> None:
        self._split(text, separator)
        self._backward(text, separator or "")

    def _pad(self, text: str, width: Any, *args: Any) -> None:
        self.meter.expect(4 * (self.check_width(width) + len(text)))

    def _expand(self, text: str, tabsize: int = 8) -> None:
        self.meter.expect(4 * (len(text) + text.count("\t") * self.check_width(tabsize)))

    def _replace(self, text: str, old: Any, new: Any, *args: Any, **kwargs: Any) -> None:
        self._expect_replaced(text, old, new)

    def _join(self, text: str, values: Iterable[Any]) -> tuple[list[Any]]:
        items = self.items(values)
        self._expect_joined(items, text)
        if isinstance(text, Markup):
            self.meter.expect(_ESCAPED * sum(map(self.text_size, items)))
        return (items,)


def _percent_widths(form: str) -> Iterator[str]:
    """Yield the widths and precisions, as digits, that stand in `form % …`."""
    percent = form.find("%")
    while percent >= 0:
        start = _skip_name(form, percent + 1)
        widths = _WIDTHS.match(form, start)
        assert widths is not None  # it also matches nothing
        for digits in widths.groups():
            if digits:
                yield digits
        end = widths.end()
        if form.startswith("%", end):  # this `%` ends the field: it begins no other
            end += 1
        percent = form.find("%", end)


def _skip_name(form: str, start: int) -> int:
    """Return the place behind the name in `%(name)s`, or `start` if no name stands there.  A name may hold brackets."""
    if not form.startswith("(", start):
        return start
    depth = 0
    for place in range(start, len(form)):
        if form[place] == "(":
            depth += 1
        elif form[place] == ")":
            depth -= 1
        if depth == 0:
            return place + 1
    return len(form)


class _Formatter(jinja2.sandbox.SandboxedFormatter):
    """`str.format` that asks before it makes each field."""

    def __init__(self, environment: Any, guards: Guards, **kwargs: Any) -> None:
        super().__init__(environment, **kwargs)
        self._guards = guards

    def format_field(self, value: Any, format_spec: str) -> Any:
        guards = self._guards
        for digits in re.findall(r"\d+", format_spec[: 2 * MOST_WIDTH]):
            guards.check_width(int(digits) if len(digits) < 10 else MOST_WIDTH + 1)
        guards.printable(value)
        return guards.made(super().format_field(value, format_spec))

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion is None:
            return value
        guards = self._guards
        guards.meter.expect(10 * guards.text_size(guards.printable(value)))
        return guards.made(super().convert_field(value, conversion))


class _EscapeFormatter(_Formatter, EscapeFormatter):
    """The same for text that was marked as safe for HTML."""


def formatted(environment: Any, guards: Guards, function: Any) -> Callable[..., str]:
    """Return `str.format` or `str.format_map` of a text, as a function with limits."""
    text = function.__self__
    takes_mapping = function.__name__ == "format_map"

    def format(*args: Any, **kwargs: Any) -> str:
        guards.linear(text)
        if isinstance(text, Markup):
            formatter: _Formatter = _EscapeFormatter(environment, guards, escape=text.escape)
        else:
            formatter = _Formatter(environment, guards)
        if takes_mapping:
            (kwargs,) = args
            args = ()
        result: str = type(text)(formatter.vformat(text, args, kwargs))
        return result

    return format


def make_dict(guards: Guards, /, *args: Any, **kwargs: Any) -> dict[Any, Any]:
    """The global `dict`."""
    if len(args) > 1:
        raise TypeError("dict takes at most one value and keywords")
    given = [args[0] if isinstance(args[0], Mapping) else guards.items(args[0])] if args else []
    for values in given:
        guards.read(values)
        guards.meter.expect(100 * len(values))
    result: dict[Any, Any] = guards.made(dict(*given, **kwargs))
    return result


def with_context(function: Function) -> Function:
    """Return a filter or test of jinja2 as a function that takes the context first."""
    takes = getattr(getattr(function, "jinja_pass_arg", None), "name", None)
    if takes == "context":
        return function
    if takes == "eval_context":
        return lambda context, *args, **kwargs: function(context.eval_ctx, *args, **kwargs)
    if takes == "environment":
        return lambda context, *args, **kwargs: function(context.environment, *args, **kwargs)
    return lambda context, *args, **kwargs: function(*args, **kwargs)


_OPERATORS: dict[str, Function] = {
    "-": operator.sub,
    "/": operator.truediv,
    "//": operator.floordiv,
}
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
# These take a time that does not depend on the value, and make nothing.
_CHEAP_FILTERS = ("abs", "attr", "count", "d", "default", "first", "last", "length")
_COMPARING_TESTS = (
    *("==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", ">=", "ge"),
    *("<", "lt", "lessthan", "<=", "le", "in", "lower", "upper"),
)
_LINEAR_METHODS = (
    *("capitalize", "casefold", "count", "endswith", "find", "index", "lower", "partition"),
    *("removeprefix", "removesuffix", "startswith", "swapcase", "upper"),
    *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower"),
    *("isnumeric", "isprintable", "isspace", "istitle", "isupper"),
)
_BACKWARD_METHODS = ("rfind", "rindex", "rpartition")
DICT_METHODS = ("get", "items", "keys", "values", "copy")
_METHODS: dict[type, tuple[str, ...]] = {
    list: ("count", "index", "copy"),
    tuple: ("count", "index"),
    dict: DICT_METHODS,
    range: ("count", "index"),
    int: ("bit_length", "is_integer"),
    float: ("is_integer",),
}
TEXT_METHODS = frozenset(
    (
        *_LINEAR_METHODS,
        *_BACKWARD_METHODS,
        *("split", "splitlines", "strip", "lstrip", "rstrip", "center", "ljust", "rjust", "zfill"),
        *("title", "rsplit", "replace", "join", "expandtabs"),
    )
)
