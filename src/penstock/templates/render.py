"""What does a conversation look like as text?  The model's own chat template, in a sandbox; minijinja where it agrees with jinja2.

minijinja takes a quarter of jinja2's time.  It is used only while it renders probes and first rows as jinja2 does.
`{% generation %}` is no tag of either engine by itself: it becomes a filter block that puts marks around what it holds, so
that white space around it behaves as around any block tag.
"""

import datetime
import json
import re
import time
from importlib.metadata import version
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox
import minijinja

from penstock.errors import TemplateError

OPEN, CLOSE = "\ufdd0", "\ufdd1"  # noncharacters: around what a `{% generation %}` block held
_TAG = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
_FUEL = 50_000_000  # instructions of minijinja; a conversation takes some ten thousand
_SECONDS = 10.0  # for jinja2, which counts no instructions
_MOST_CHARACTERS = 1 << 28
# What a template raises by itself, or by doing to a value what the value cannot do.
_REFUSALS = (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError, ArithmeticError)


class Renderer:
    """A chat template, compiled once.  Pickles as its text."""

    def __init__(self, text: str, *, today: str, engine: str | None = None) -> None:
        """`today` is an ISO date: a template that prints the date must print the same one tomorrow."""
        self.text = text
        self.today = today
        self.has_generation = _TAG.search(re.sub(r"\{#.*?#\}", "", text, flags=re.DOTALL)) is not None
        self._moment = datetime.datetime.fromisoformat(today)
        self._source = _TAG.sub(_as_filter, text)
        self._reference: jinja2.Template | None = None
        self._fast: minijinja.Environment | None = None
        self.reason = "minijinja renders the probes as jinja2 does"
        if engine == "jinja2":
            self.reason = "asked for"
        elif fault := self._open_fast():
            self.reason = f"minijinja refuses this template: {fault}"

    @property
    def engine(self) -> str:
        name = "minijinja" if self._fast is not None else "jinja2"
        return f"{name} {version(name)}"

    def render(self, context: dict[str, Any]) -> str:
        """Text with OPEN and CLOSE around what generation blocks held."""
        if self._fast is None:
            return self.render_reference(context)
        try:
            text = self._fast.render_template("chat", **context)
        except (minijinja.TemplateError, *_REFUSALS) as error:
            raise TemplateError(f"the chat template refuses the conversation: {_reason(error)}") from error
        return _bounded(text)

    def render_reference(self, context: dict[str, Any]) -> str:
        """The same by jinja2."""
        template = self._open_reference()
        deadline = time.monotonic() + _SECONDS
        parts, size = [], 0
        try:
            _Sandbox.deadline = deadline
            for part in template.generate(**context):
                size += len(part)
                if size > _MOST_CHARACTERS or time.monotonic() > deadline:
                    _stop()
                parts.append(part)
        except TemplateError:
            raise
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            KeyError,
            AttributeError,
            IndexError,
            OverflowError,
        ) as error:
            raise TemplateError(f"the chat template refuses the conversation: {_reason(error)}") from error
        except RecursionError as error:
            raise TemplateError("the chat template recurses without end") from error
        return "".join(parts)

    def agrees(self, context: dict[str, Any]) -> bool:
        """Do both engines say the same of this conversation?  Both refusing it counts as the same."""
        outcomes = []
        for render in (self.render, self.render_reference):
            try:
                outcomes.append(render(context))
            except TemplateError:
                outcomes.append("")
        return outcomes[0] == outcomes[1]

    def fall_back(self, reason: str) -> None:
        """From now on jinja2."""
        if self._fast is not None:
            self._fast = None
            self.reason = reason

    def _open_fast(self) -> str | None:
        environment = minijinja.Environment(trim_blocks=True, lstrip_blocks=True, fuel=_FUEL, debug=False)
        environment.auto_escape_callback = lambda name: False
        environment.add_filter("tojson", _to_json)
        environment.add_filter("penstock_generation", _marked)
        environment.add_test("iterable", lambda value: isinstance(value, str | list | tuple | dict))  # None is not
        environment.add_global("raise_exception", _raise)
        environment.add_global("strftime_now", self._moment.strftime)
        try:
            environment.add_template("chat", self._source)
        except minijinja.TemplateError as error:
            self._open_reference()  # if neither takes it, the error is jinja2's, which people know
            return _reason(error)
        self._fast = environment
        return None

    def _open_reference(self) -> jinja2.Template:
        if self._reference is None:
            environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
            environment.filters["tojson"] = _to_json
            environment.filters["penstock_generation"] = _marked
            environment.globals["raise_exception"] = _raise
            environment.globals["strftime_now"] = self._moment.strftime
            try:
                self._reference = environment.from_string(self._source)
            except jinja2.TemplateSyntaxError as error:
                raise TemplateError(f"the chat template is not Jinja: line {error.lineno}: {error.message}") from error
        return self._reference

    def __reduce__(self) -> tuple[Any, ...]:
        engine = None if self._fast is not None else "jinja2"
        return _reopen, (self.text, self.today, engine, self.reason)


def _reopen(text: str, today: str, engine: str | None, reason: str) -> Renderer:
    renderer = Renderer(text, today=today, engine=engine)
    renderer.reason = reason
    return renderer


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """No attribute escapes, no changes to what it is given, and an end: every call a template makes looks at the clock."""

    deadline = 0.0

    def call(self, *args: Any, **kwargs: Any) -> Any:
        if time.monotonic() > _Sandbox.deadline:
            _stop()
        return super().call(*args, **kwargs)


def _stop() -> NoReturn:
    raise TemplateError(
        f"the chat template does not end: more than {_SECONDS:.0f} s or {_MOST_CHARACTERS:_} characters for one conversation"
    )


def _bounded(text: str) -> str:
    if len(text) > _MOST_CHARACTERS:
        _stop()
    return text


def _as_filter(match: re.Match[str]) -> str:
    left, ends, right = match.groups()
    return f"{{%{left} {'endfilter' if ends else 'filter penstock_generation'} {right}%}}"


def _marked(text: str) -> str:
    return f"{OPEN}{text}{CLOSE}"


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """As transformers has it: jinja's own would escape HTML characters."""
    separators = None if separators is None else tuple(separators)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _reason(error: BaseException) -> str:
    """The first line that says something; minijinja puts the raised exception behind its own."""
    cause = error.__cause__ or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return lines[0] if lines else type(cause).__name__
