"""Find the chat template of a tokenizer, and try an untrusted one in a child process before this process renders with it.

The child (trial_child.py) compiles the template with both engines and renders the made-up conversations.  A template that crashes an
engine, hangs, or fills the memory ends the child, not the user's process, and is refused.  The verdict depends on the template's text
and is remembered; a refusal is not, as a loaded machine may be its cause.

The child takes as long to start as a small tokenizer takes to load.  Where both are needed, `trial_expected` lets it start first, so
that it imports its engines while this process loads the tokenizer.
"""

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cache import Cache
from penstock.errors import TemplateError
from penstock.templates.chat import kinds
from penstock.templates.conversation import Conversation
from penstock.templates.tokenizer.facts import package_version, recall, warn

if TYPE_CHECKING:  # both bring jinja2, which a cache hit does not need
    from penstock.templates.render import Renderer
    from penstock.templates.tokenizer.tokenizer import Tokenizer

CPU_SECONDS = 5  # the largest templates of the trl wheel take half a second
MEMORY = 768 << 20  # bytes
SECONDS = 60.0  # of wall time, as other processes may use the cores
_FOLDER = Path(__file__).parent
_PACKAGES = {
    "penstock": _FOLDER.parent,
    "penstock.templates": _FOLDER,
    "penstock.templates.chat": _FOLDER / "chat",
}

_TOOLS = "the built-in ChatML template has no form for tools; set chat_template to that of a model that knows them"

CHATML = (
    "{%- macro words(content) %}"
    "{%- if content is string %}{{- content }}"
    "{%- elif content is iterable %}{%- for part in content %}"
    "{%- if part.type != 'text' %}{{- raise_exception('the built-in ChatML template prints text only, not ' + part.type) }}"
    "{%- endif %}{{- part.text }}{%- endfor %}{%- endif %}"
    "{%- endmacro %}"
    "{%- if tools %}{{- raise_exception('" + _TOOLS + "') }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.tool_calls or message.role == 'tool' %}{{- raise_exception('"
    + _TOOLS
    + "') }}{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.role == 'assistant' %}"
    "{%- generation %}"
    "{%- if message.reasoning_content %}{{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{%- endif %}"
    "{{- words(message.content) + '<|im_end|>' }}{%- endgeneration %}{{- '\n' }}"
    "{%- else %}{{- words(message.content) + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


def find_templates(tokenizer: "Tokenizer", given: str | None) -> tuple[str, str | None]:
    """The text of the chat template; and of another one for tools, if the tokenizer has one and none was given.

    The one given or named, else the tokenizer's, else the built-in ChatML, the most common form.
    """
    known = tokenizer.chat_templates
    named = ", ".join(sorted(known)) or "none"
    if given is not None:
        if given not in known and "{" not in given:
            raise TemplateError(
                f"chat_template {given[:60]!r} is neither a template nor the name of one; the tokenizer has {named}"
            )
        return known.get(given, given), None
    if not known:
        which = tokenizer.path or "the tokenizer"
        warn(
            f"{which} has no chat template; the built-in ChatML template is used: set chat_template to another one"
        )
        return CHATML, None
    if "default" not in known:
        raise TemplateError(
            f"{tokenizer!r} has no chat template named 'default'; choose one with chat_template=: {named}"
        )
    return known["default"], known.get("tool_use")


def open_untrusted(
    text: str, *, today: str, contexts: list[dict[str, Any]], cache: Cache | None
) -> "Renderer":
    """Return a renderer of a template that passed its trial; raise a TemplateError where it does not."""
    from penstock.templates.render import Renderer
    from penstock.templates.sandbox import MOST_BYTES, LimitExceeded

    if len(text) > MOST_BYTES:  # before it is hashed or sent
        raise LimitExceeded(
            f"the chat template has {len(text):,} characters, expected at most {MOST_BYTES:,} bytes"
        )
    try:
        json.dumps([text, contexts], allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise TemplateError(
            "the chat template, or a value that it is given, holds half of a surrogate pair"
        ) from error
    except (TypeError, ValueError) as error:
        raise TemplateError(
            f"template_kwargs are given to the chat template as JSON, and cannot be: {error}"
        ) from error
    engines = {name: package_version(name) for name in ("jinja2", "minijinja")}
    about = {"text": text, "today": today, "contexts": contexts, "engines": engines}
    found = recall(
        "chat-template",
        about=about,
        compute=lambda: try_template(text, today, contexts),
        cache=cache,
    )
    return Renderer(text, today=today, engine=found["engine"], reason=found["reason"])


def try_template(text: str, today: str, contexts: list[dict[str, Any]]) -> dict[str, str]:
    """Return the engine to use and why: {"engine", "reason"}."""
    from penstock.templates.sandbox import MOST_CHARACTERS, LimitExceeded

    children = _early.get()
    child = children.pop() if children else Child()
    request = {
        "cpu_seconds": CPU_SECONDS,
        "memory": MEMORY,
        "text": text,
        "today": today,
        "contexts": contexts,
    }
    output, errors, code = child.ask(request)
    first, _, rest = output.partition("\n")
    if first != "ready":
        raise _cannot_start(f"it ended with {_ended(code)}: {errors.strip()[-300:]}")
    if code != 0 or not rest:
        raise LimitExceeded(
            f"the chat template is refused: {_ended(code)} while it rendered made-up conversations in a child process, with "
            f"{CPU_SECONDS} s of CPU time, {MEMORY >> 20} MiB of memory and {MOST_CHARACTERS:_} characters per conversation; "
            f"pass another chat_template="
        )
    verdict = json.loads(rest)
    if "refused" in verdict:
        raise (LimitExceeded if verdict["limit"] else TemplateError)(verdict["refused"])
    return {"engine": verdict["engine"], "reason": verdict["reason"]}


def _ended(code: int | None) -> str:
    if code is None:
        return f"it took longer than {SECONDS:.0f} s"
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return (
        "it used up its CPU time" if name in ("SIGXCPU", "SIGKILL") else f"it was ended by {name}"
    )


def _cannot_start(why: str) -> TemplateError:
    return TemplateError(
        f"Penstock tries a chat template in a child process before it uses it, and cannot start one: {why}; if this Python is embedded in "
        f"another program, name a Python interpreter with multiprocessing.set_executable()"
    )


class Child:
    """One run of trial_child.py."""

    def __init__(self) -> None:
        import subprocess  # most commands start no child

        spawn = sys.modules.get(
            "multiprocessing.spawn"
        )  # loaded where another interpreter was chosen
        executable = (spawn and spawn.get_executable()) or sys.executable
        executable = executable.decode() if isinstance(executable, bytes) else executable
        if not executable:
            raise _cannot_start("sys.executable is empty")
        command = [executable, "-I", str(_FOLDER / "trial_child.py")]
        pipe = subprocess.PIPE
        try:
            # unbuffered: closing the pipe of a child that has ended must not write again
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0
            )
        except OSError as error:
            raise _cannot_start(f"{executable}: {error.strerror}") from error
        path = [str(Path(entry).absolute()) if entry else str(Path.cwd()) for entry in sys.path]
        packages = {name: str(folder) for name, folder in _PACKAGES.items()}
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; its exit code says why
            self._process.stdin.write(
                json.dumps({"path": path, "packages": packages}).encode() + b"\n"
            )

    def ask(self, request: dict[str, Any]) -> tuple[str, str, int | None]:
        """Return the child's output, its errors and its exit code, None for one that ran out of time."""
        from subprocess import TimeoutExpired

        code: int | None = None
        with self._process as process:
            try:
                output, errors = process.communicate(json.dumps(request).encode(), timeout=SECONDS)
                code = process.returncode
            except TimeoutExpired:
                process.kill()
                output, errors = process.communicate()
            except BaseException:
                process.kill()
                raise
        return output.decode(errors="replace"), errors.decode(errors="replace"), code

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


_early: ContextVar[list[Child] | None] = ContextVar(
    "early", default=None
)  # None: no trial is expected


@contextlib.contextmanager
def trial_expected() -> Iterator[None]:
    """In this block `start_early` starts a child for the first trial; a child that was not used is stopped."""
    children: list[Child] = []
    before = _early.set(children)
    try:
        yield
    finally:
        _early.reset(before)
        for child in children:
            child.stop()


def start_early() -> None:
    """Start a child where a trial is expected, before work that takes long."""
    children = _early.get()
    if children == []:
        with contextlib.suppress(TemplateError):  # the trial itself reports this
            children.append(Child())


# Made-up conversations


def probes() -> list[Conversation]:
    """White space at edges, reasoning, quotes, tool calls; many messages, long ones, many calls.

    A template that doubles a text for each message, letter, tool or call makes more of the last three than any memory holds.
    """
    user = kinds.USER
    answer = kinds.ANSWER
    system = kinds.SYSTEM
    result = kinds.RESULT
    tool = kinds.TOOL
    orders: list[tuple[Sequence[kinds.Kind], Callable[[str], str], list[Any] | None]] = [
        ((user, answer), _odd_words, None),
        ((system, user, answer, user, answer), _odd_words, None),
        ((user, kinds.INLINE, user, kinds.INLINE), _odd_words, None),
        ((user, answer, user, kinds.THINKING), _odd_words, None),
        ((user, kinds.CALL, result, answer), _odd_words, [tool]),
        ((system, *(user, answer) * 64), _odd_words, None),
        ((user, answer), lambda word: f'{word}\nmakes Jack <dull>, "dull". ' * 40, None),
        ((user, kinds.CALLS, result, kinds.THINKING) * 16, _odd_words, [tool] * 64),
    ]
    return [
        Conversation(messages=kinds.MadeUp(order).changed(words), tools=tools)
        for order, words, tools in orders
    ]


def _odd_words(word: str) -> str:
    """Words between white space, with signs that engines may escape; names of tools stay names."""
    return word if "tool" in word else f' {word}\'s "4" – é 🙂. \n'
