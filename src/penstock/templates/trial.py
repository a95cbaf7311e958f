"""Try an untrusted chat template in a child process before this process renders anything with it.

The child (trial_child.py) compiles the template with both engines and renders the made-up conversations.  A template that crashes an
engine, hangs, or fills the memory takes the child down, not the user's process, and is refused by name.  What was found is a fact about
the template's text, and is remembered; a refusal is not, as a loaded machine may be its cause.
"""

import json
import multiprocessing.spawn
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from penstock.cache import Cache
from penstock.errors import TemplateError
from penstock.templates.facts import recall
from penstock.templates.render import Renderer
from penstock.templates.sandbox import MOST_BYTES, MOST_CHARACTERS, LimitExceeded

CPU_SECONDS = 5  # the largest templates of the trl wheel take half a second
SECONDS = 60.0  # by the clock, as other processes may have the cores
MEMORY = 768 << 20  # bytes
_FOLDER = Path(__file__).parent
_PACKAGES = {"penstock": _FOLDER.parent, "penstock.templates": _FOLDER, "penstock.templates.chat": _FOLDER / "chat"}


def open_untrusted(text: str, *, today: str, contexts: list[dict[str, Any]], cache: Cache | None) -> Renderer:
    """Return a renderer of a template that passed its trial; raise a TemplateError where it does not."""
    if len(text) > MOST_BYTES:  # so that no hash or pipe has to take it
        raise LimitExceeded(f"the chat template has {len(text):,} characters, expected at most {MOST_BYTES:,} bytes")
    try:
        json.dumps([text, contexts], allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise TemplateError("the chat template, or a value that it is given, holds half of a surrogate pair") from error
    except (TypeError, ValueError) as error:
        raise TemplateError(
            f"template_kwargs are given to the chat template as JSON, and cannot be: {error}"
        ) from error
    engines = {name: version(name) for name in ("jinja2", "minijinja")}
    about = {"text": text, "today": today, "contexts": contexts, "engines": engines}
    found = recall("chat-template", about=about, compute=lambda: try_template(text, today, contexts), cache=cache)
    renderer = Renderer(text, today=today, engine=found["engine"])
    renderer.reason = found["reason"]
    return renderer


def try_template(text: str, today: str, contexts: list[dict[str, Any]]) -> dict[str, str]:
    """Return the engine to use and why: {"engine", "reason"}."""
    path = [str(Path(entry).absolute()) if entry else str(Path.cwd()) for entry in sys.path]
    limits = {"cpu_seconds": CPU_SECONDS, "memory": MEMORY}
    request = {
        **limits,
        "path": path,
        "packages": {name: str(folder) for name, folder in _PACKAGES.items()},
        "text": text,
        "today": today,
        "contexts": contexts,
    }
    output, errors, code = _run(json.dumps(request))
    first, _, rest = output.partition("\n")
    if first != "ready":
        raise TemplateError(_cannot_start(f"it ended with {_ended(code)}: {errors.strip()[-300:]}"))
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


def _run(request: str) -> tuple[str, str, int | None]:
    """What the child wrote, and its exit code; None where it was stopped by the clock."""
    executable = multiprocessing.spawn.get_executable() or sys.executable
    if isinstance(executable, bytes):
        executable = executable.decode()
    if not executable:
        raise TemplateError(_cannot_start("sys.executable is empty"))
    command = [executable, "-I", str(_FOLDER / "trial_child.py")]
    pipe = subprocess.PIPE
    try:
        child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, encoding="utf-8")
    except OSError as error:
        raise TemplateError(_cannot_start(f"{executable}: {error.strerror}")) from error
    with child:
        try:
            output, errors = child.communicate(request, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            output, errors = child.communicate()
            return output, errors, None
        except BaseException:
            child.kill()
            raise
    return output, errors, child.returncode


def _cannot_start(why: str) -> str:
    return (
        f"a chat template is tried in a child process before it is used, and none can be started: {why}; if this Python is embedded in "
        f"another program, name a Python interpreter with multiprocessing.set_executable()"
    )


def _ended(code: int | None) -> str:
    if code is None:
        return f"it took longer than {SECONDS:.0f} s"
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return "it used up its CPU time" if name in ("SIGXCPU", "SIGKILL") else f"it was ended by {name}"
