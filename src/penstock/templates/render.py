"""Render a conversation as text with the model's own chat template: in jinja2's sandbox, or in minijinja where both agree.

minijinja takes a quarter of jinja2's time.  It is used only where it renders the made-up conversations as jinja2 does.  A template that
was not written here is first tried in a child process (trial.py).  Both engines get the instrumented template (chat/instrument.py), so that
a rendering holds marks which say who printed what.
"""

import copy
import datetime
import json
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.nodes as nodes

from penstock.errors import TemplateError
from penstock.templates import sandbox
from penstock.templates.chat.instrument import LOOP_FUNCTION, SET_FUNCTION, Marker, instrument
from penstock.templates.sandbox import LimitExceeded, Sandbox, needs_jinja2

if TYPE_CHECKING:
    import minijinja

_FUEL = 20_000_000  # instructions of minijinja; a conversation takes some ten thousand
_MOST_FORMAT = 100  # characters of a date's format
_MOST_INDENT = 64  # characters of an indent or a separator of JSON
_usual_json = json.JSONEncoder(ensure_ascii=False).encode
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
        engine: str = "jinja2",
        reason: str = "not compared with minijinja",
        *,
        wraps_text: bool = False,
    ) -> None:
        """`reason`: why this engine.  `today` is an ISO date: a template that prints the date must print the same one tomorrow."""
        self.text = text
        self.today = today
        self.reason = reason
        self.wraps_text = (
            wraps_text  # whether the template is given every content as a list of parts
        )
        self._moment = datetime.datetime.fromisoformat(today)
        self._instrumented = instrument(text)
        self.has_generation = self._instrumented.has_generation
        self._marker = Marker()
        self._sandbox: Sandbox | None = None
        self._reference: jinja2.Template | None = None
        self._fast: minijinja.Environment | None = None
        if engine == "minijinja":
            self._fast = self._open_fast()
        else:
            self._open_reference()

    @property
    def is_fast(self) -> bool:
        return self._fast is not None

    @property
    def engine(self) -> str:
        from penstock.templates.tokenizer.facts import (
            package_version,
        )  # the child process of a trial does without

        name = "minijinja" if self._fast is not None else "jinja2"
        return f"{name} {package_version(name)}"

    def tree(self) -> nodes.Template:
        """The template as jinja2 reads it."""
        self._open_reference()
        assert self._sandbox is not None
        return self._sandbox.parse(self._instrumented.source)

    def try_fast(self, contexts: Iterable[dict[str, Any]]) -> None:
        """Render all of these with both engines; use minijinja if it renders them as jinja2 does."""
        import minijinja

        contexts = list(contexts)
        expected = [outcome(self.render_reference, context) for context in contexts]
        try:
            self._fast = self._open_fast()
        except minijinja.TemplateError as error:
            self.reason = f"minijinja refuses this template: {_reason(error)}"
            return
        # copies: minijinja lets a template change what it is given
        same = [
            outcome(self._render_fast, copy.deepcopy(context)) for context in contexts
        ] == expected
        if (why := needs_jinja2(self.tree())) is not None:
            self._fast = None
            self.reason = f"{why} is left to jinja2"
        elif same:
            self.reason = "minijinja renders the made-up conversations as jinja2 does"
        else:
            self._fast = None
            self.reason = "minijinja renders a made-up conversation in another way"

    def render(self, context: dict[str, Any]) -> str:
        """Text with marks."""
        if self._fast is None:
            return self.render_reference(context)
        try:
            return self._render_fast(context)
        except LimitExceeded:
            raise
        except (
            TemplateError
        ):  # it lacks some of jinja2's methods: whether to refuse is for jinja2 to say
            return self.render_reference(context)

    def render_plain(self, context: dict[str, Any]) -> str:
        """Text without marks, by minijinja; a TemplateError where it refuses."""
        return self._render_fast(context, "plain")

    def _render_fast(self, context: dict[str, Any], source: str = "chat") -> str:
        import minijinja

        assert self._fast is not None
        context = self._given(context)
        context = self._marker.start(context) if source == "chat" else context
        try:
            text = self._fast.render_template(source, **context)
        except (minijinja.TemplateError, *_REFUSALS) as error:
            if "out of fuel" in str(error):
                sandbox.stop()
            raise _refusal(error) from error
        except BaseException as error:
            if type(error).__name__ == "PanicException":  # Rust's own; no Exception to Python
                raise _refusal(error) from error
            raise
        if len(text) > sandbox.MOST_CHARACTERS:
            sandbox.stop()
        return text

    def render_reference(self, context: dict[str, Any]) -> str:
        """The same by jinja2."""
        template = self._open_reference()
        assert self._sandbox is not None
        self._sandbox.start()
        deadline = time.monotonic() + sandbox.SECONDS
        context = self._marker.start(self._given(context))
        parts = []
        size = 0
        try:
            for part in template.generate(**context):
                size += len(part)
                if size > sandbox.MOST_CHARACTERS or time.monotonic() > deadline:
                    sandbox.stop()
                parts.append(part)
        except TemplateError:
            raise
        except _REFUSALS as error:
            raise _refusal(error) from error
        except (RecursionError, MemoryError) as error:
            raise LimitExceeded(
                "the chat template nests calls or values too deeply, or fills the memory"
            ) from error
        return "".join(parts)

    def needs_parts(self, given: dict[str, Any]) -> bool:
        """Whether the template prints the words of a content in parts, and not those of a content that is text.

        Templates of some vision-language models are written so.  given: what every conversation has beside its messages.
        """
        word = "penstockword"
        shown = []
        for content in (word, [{"type": "text", "text": word}]):
            context = {
                **given,
                "messages": [{"role": "user", "content": content}],
                "add_generation_prompt": False,
            }
            shown.append(word in (outcome(self.render_reference, context) or ""))
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

    def _open_fast(self) -> "minijinja.Environment":
        import minijinja

        environment = minijinja.Environment(keep_trailing_newline=True, fuel=_FUEL, debug=False)
        environment.auto_escape_callback = lambda name: False
        environment.add_filter("tojson", _to_json)
        environment.add_test(
            "iterable", lambda value: isinstance(value, str | list | tuple | dict)
        )  # None is not
        environment.add_test(
            "sequence", lambda value: isinstance(value, str | list | tuple | dict)
        )  # text is one
        for name, function in self._globals().items():
            environment.add_global(name, function)
        environment.add_template("chat", self._instrumented.source)
        environment.add_template("plain", self._instrumented.plain)
        return environment

    def _open_reference(self) -> jinja2.Template:
        if self._reference is None:
            environment = Sandbox()
            environment.filters["tojson"] = _to_json
            environment.globals |= self._globals()
            try:
                self._reference = environment.from_string(self._instrumented.source)
            except jinja2.TemplateSyntaxError as error:
                raise TemplateError(
                    f"the chat template is not Jinja: line {error.lineno}: {error.message}"
                ) from error
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
            self._sandbox = environment
        return self._reference

    def _globals(self) -> dict[str, Callable[..., Any]]:
        """Functions that a template may call."""
        marks = {LOOP_FUNCTION: self._marker.loop, SET_FUNCTION: self._marker.set}
        return {"raise_exception": sandbox.raise_exception, "strftime_now": self._now, **marks}

    def _now(self, format: str) -> str:
        if len(format) > _MOST_FORMAT:
            sandbox.stop()
        return self._moment.strftime(format)

    def __reduce__(self) -> tuple[Any, ...]:
        engine = "jinja2" if self._fast is None else "minijinja"
        return partial(Renderer, wraps_text=self.wraps_text), (
            self.text,
            self.today,
            engine,
            self.reason,
        )


def outcome(render: Callable[[dict[str, Any]], str], context: dict[str, Any]) -> str | None:
    """A rendering, or None where the template refuses the conversation; passing a limit is an error."""
    try:
        return render(context)
    except LimitExceeded:
        raise
    except TemplateError:
        return None


def _refusal(error: BaseException) -> TemplateError:
    return TemplateError(f"the chat template refuses the conversation: {_reason(error)}")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as transformers writes it: jinja's own filter would escape HTML characters."""
    if indent is None and separators is None and not ensure_ascii and not sort_keys:
        return _usual_json(value)
    separators = None if separators is None else tuple(separators)
    for width in (indent, *(separators or ())):
        if (
            len(width) if isinstance(width, str) else width if isinstance(width, int) else 0
        ) > _MOST_INDENT:
            sandbox.stop()
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _reason(error: BaseException) -> str:
    """Return the first informative line of an error; minijinja puts the raised exception after its own."""
    cause = error.__cause__ or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return lines[0] if lines else type(cause).__name__
