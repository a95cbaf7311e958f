"""The child process of trial.py: render made-up conversations with an untrusted chat template, under limits of the operating system.

Run as a script.  Reads from standard input a line of JSON that says where modules are, imports the engines, and reads the request, which
is JSON too; writes a line "ready", and the verdict as one line of JSON.  Only the modules that render are imported: the packages' own
`__init__` files, which import much more, are passed over.
"""

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

_MOST_REASON = 400  # characters of a reason


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints does not end up in the verdict
    places = json.loads(sys.stdin.readline())
    sys.path[:] = places["path"]
    for name, folder in places["packages"].items():
        package = types.ModuleType(name)
        package.__path__ = [folder]
        sys.modules[name] = package
    from penstock.errors import TemplateError
    from penstock.templates.render import Renderer
    from penstock.templates.sandbox import LimitExceeded, check_source

    request = json.load(sys.stdin)
    _limit(request["cpu_seconds"], request["memory"])
    print("ready", file=answer, flush=True)
    try:
        check_source(request["text"])
        renderer = Renderer(request["text"], today=request["today"])
        renderer.try_fast(request["contexts"])
        engine = "minijinja" if renderer.is_fast else "jinja2"
        verdict: dict[str, Any] = {"engine": engine, "reason": renderer.reason}
    except TemplateError as error:
        verdict = {"refused": str(error)[:_MOST_REASON], "limit": isinstance(error, LimitExceeded)}
    except (MemoryError, RecursionError) as error:
        verdict = {
            "refused": f"the chat template cannot be compiled: {type(error).__name__}",
            "limit": True,
        }
    print(json.dumps(verdict), file=answer, flush=True)
    os._exit(0)  # taking apart what a hostile template built may crash, too


def _limit(cpu_seconds: int, memory: int) -> None:
    """Set hard limits, which cannot be raised again.  `memory`: bytes of address space, beyond those in use now."""
    try:
        import resource
    except ImportError:  # Windows: the parent's clock and the limits of the engines remain
        return
    limits = {"CPU": cpu_seconds, "CORE": 0, "FSIZE": 0, "NPROC": 0}
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limits["AS"] = pages * resource.getpagesize() + memory
    except OSError:  # not Linux; where the limit is of no effect, the clock remains
        limits["AS"] = memory + (1 << 30)
    for name, most in limits.items():
        number = getattr(resource, f"RLIMIT_{name}", None)
        if number is not None:
            hard = resource.getrlimit(number)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(number, (most, most))


if __name__ == "__main__":
    main()
