"""Render a conversation as text with the model's own chat template, in jinja2's sandbox with limits (sandbox.py).

jinja2 gets the instrumented template (chat/instrument.py), so that a rendering holds marks which say who printed what.
"""

import datetime
from collections.abc import Callable
from functools import partial
from typing import Any

import jinja2
import jinja2.nodes as nodes

from penstock.errors import TemplateError
from penstock.templates import sandbox
from penstock.templates.chat.instrument import (
    LOOP_FUNCTION,
    SET_FUNCTION,
    Instrumented,
    Marker,
    instrument,
)
from penstock.templates.meter import (
    LIMITS,
    MADE_UP,
    NODE,
    LimitExceeded,
    Limits,
    TooDeep,
)
from penstock.templates.sandbox import Sandbox
from penstock.templates.to_json import to_json
from penstock.templates.tokenizer.facts import package_version

_MOST_REASON = 500  # characters of an error that a template raises
_MOST_FORMAT = 100  # characters of a date's format
_LARGEST_ESCAPE = 6  # letters that JSON makes of one
_MOST_INDENT = 64  # characters of an indent or a separator of JSON
# What a template raises by itself, or by doing to a value what the value cannot do.
_REFUSALS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    KeyError,
    AttributeError,
    IndexError,
    ArithmeticError,
)


class Renderer:
    """A chat template, compiled once.  Pickles as its text."""

    def __init__(
        self,
        text: str,
        today: str,
        *,
        wraps_text: bool = False,
        instrumented: Instrumented | None = None,
    ) -> None:
        """`today` is an ISO date: a template that prints the date must print the same one tomorrow.

        instrumented: the text with marks, if it has been read before.
        """
        self.text = text
        self.today = today
        self.wraps_text = (
            wraps_text  # whether the template is given every content as a list of parts
        )
        self._moment = datetime.datetime.fromisoformat(today)
        if instrumented is None:
            sandbox.check_source(text)
            instrumented = instrument(text)
        self.instrumented = instrumented
        self.has_generation = self.instrumented.has_generation
        self._marker = Marker()
        self._sandbox = self._open_sandbox()
        self._marked = self._compile(self.instrumented.source)
        self._plain: jinja2.Template | None = None  # compiled when it is first needed

    @property
    def engine(self) -> str:
        return f"jinja2 {package_version('jinja2')}"

    def tree(self) -> nodes.Template:
        """The template as jinja2 reads it."""
        return self._sandbox.parse(self.instrumented.source)

    def render(self, context: dict[str, Any], limits: Limits = LIMITS) -> str:
        """Text with marks."""
        context = self._marker.start(self._given(context))
        return self._run(self._marked, context, limits)

    def render_plain(self, context: dict[str, Any]) -> str:
        """Text without marks."""
        if self._plain is None:
            self._plain = self._compile(self.instrumented.plain)
        return self._run(self._plain, self._given(context), LIMITS)

    def _run(self, template: jinja2.Template, context: dict[str, Any], limits: Limits) -> str:
        meter = self._sandbox.meter
        meter.start(context, limits)
        make_text = meter.make_text
        parts = []
        try:
            for part in template.generate(**context):
                make_text(part)
                parts.append(part)
        except TemplateError:
            raise
        except _REFUSALS as error:
            raise _refusal(error) from error
        except RecursionError as error:
            raise TooDeep("the chat template nests calls or values too deeply") from error
        except MemoryError as error:
            raise LimitExceeded("the chat template fills the memory") from error
        finally:
            meter.end()
        return "".join(parts)

    def needs_parts(self, given: dict[str, Any]) -> bool:
        """Whether the template prints the words of a content in parts, and not those of a content that is text.

        Templates of some vision-language models are written so.  given: what every conversation has next to its messages.
        """
        word = "penstockword"
        shown = []
        for content in (word, [{"type": "text", "text": word}]):
            context = {
                **given,
                "messages": [{"role": "user", "content": content}],
                "add_generation_prompt": False,
            }
            rendered = outcome(partial(self.render, limits=MADE_UP), context)
            shown.append(word in (rendered or ""))
        return shown == [False, True]

    def _given(self, context: dict[str, Any]) -> dict[str, Any]:
        if not self.wraps_text:
            return context
        messages = [
            {**message, "content": [{"type": "text", "text": text}]}
            if isinstance(text := message.get("content"), str)
            else message
            for message in context["messages"]
        ]
        return {**context, "messages": messages}

    def _open_sandbox(self) -> Sandbox:
        """The environment, with the functions that a template may call."""
        environment = Sandbox()
        self._add_functions(environment)
        return environment

    def _add_functions(self, environment: Sandbox) -> None:
        environment.filters["tojson"] = self._to_json
        environment.add_function("strftime_now", self._now)
        environment.add_function(LOOP_FUNCTION, self._marker.loop)
        environment.add_function(SET_FUNCTION, self._marker.set)

    def _compile(self, source: str) -> jinja2.Template:
        try:
            return self._sandbox.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template is not Jinja: line {error.lineno}: {error.message}"
            ) from error
        except TemplateError:
            raise
        except (
            jinja2.TemplateError,
            SyntaxError,
            RecursionError,
            MemoryError,
            ValueError,
        ) as error:
            raise TemplateError(
                f"the chat template cannot be compiled: {_reason(error)}"
            ) from error

    def _now(self, format: str) -> str:
        if len(format) > _MOST_FORMAT:
            self._sandbox.meter.stop(f"a date's format of more than {_MOST_FORMAT} characters")
        return self._moment.strftime(format)

    @jinja2.pass_context
    def _to_json(
        self,
        context: Any,
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        """Return JSON as transformers writes it: jinja's own filter would escape HTML characters."""
        meter = self._sandbox.meter
        cost = meter.weigh(value)
        meter.spend(2 * cost)
        meter.expect(_LARGEST_ESCAPE * cost)
        if indent is not None or separators is not None:
            separators = None if separators is None else tuple(separators)
            widest = 0
            for width in (indent, *(separators or ())):
                size = (
                    len(width) if isinstance(width, str) else width if isinstance(width, int) else 0
                )
                widest = max(widest, size)
            if widest > _MOST_INDENT:
                meter.stop(f"an indent or a separator of more than {_MOST_INDENT} characters")
            # each value may begin a line, which is indented once for each level
            meter.expect(cost // NODE * widest * (1 + meter.depth_of(value)))
        text = to_json(value, ensure_ascii, indent, separators, sort_keys)
        meter.make_text(text)
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Renderer, wraps_text=self.wraps_text), (self.text, self.today)


def outcome(render: Callable[[dict[str, Any]], str], context: dict[str, Any]) -> str | None:
    """A rendering, or None where the template refuses the conversation; passing a limit is an error."""
    try:
        return render(context)
    except LimitExceeded:
        raise
    except TemplateError:
        return None


class Refused(TemplateError):
    """The chat template refuses a conversation, in its own words."""


def _refusal(error: BaseException) -> Refused:
    return Refused(f"the chat template refuses the conversation: {_reason(error)}")


def _reason(error: BaseException) -> str:
    """Return the first informative line of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:_MOST_REASON] if lines else type(error).__name__
