"""The worker of the Ray engine.  It is sent by value, so that a node without Penstock, or with another release, can say so."""

from typing import Any

# What decides about the bytes of a store.  Versions of extras are compared where both sides have them: work that needs one fails without.
PACKAGES = (
    *("penstock", "numpy", "pyarrow", "orjson", "xxhash", "pyyaml"),
    *("tokenizers", "fastokens", "jinja2"),
)
EXTRAS = ("transformers", "pillow", "soundfile", "soxr", "av")


class Worker:
    """An actor.  Its methods import what they need."""

    @staticmethod
    def versions() -> dict[str, str]:
        """Return the versions of Python and the packages; of extras only where they are installed."""
        import platform
        from importlib import metadata

        found = {"python": platform.python_version()}
        for name in (*PACKAGES, *EXTRAS):
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                if name in PACKAGES:
                    found[name] = "none"
        return found

    def open(self, work: bytes, expected: dict[str, str]) -> tuple[str, str, str]:
        """Open the work if this process is like the one that sent it.  Return the node, what the work calls this process, and a problem."""
        import os
        import platform

        import ray

        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is one worker per core
        node = f"{platform.node()} ({ray.util.get_node_ip_address()})"
        found = self.versions()
        both = found.keys() & expected.keys()
        differing = [
            f"{name} {found[name]} (here {expected[name]})"
            for name in sorted(both)
            if found[name] != expected[name]
        ]
        if differing:
            advice = "a store must not depend on where it is made: install the same versions on all nodes"
            return node, "", f"its workers have {', '.join(differing)}; {advice}"
        self._work: Any = None
        problem = self._problem(lambda: setattr(self, "_work", ray.cloudpickle.loads(work)))
        return node, getattr(self._work, "process_name", str)(), problem

    def check(self, sign: str) -> str:
        """Have the work check whether this process sees the same files; return a problem."""
        return self._problem(lambda: self._work.check(sign))

    def _problem(self, do: Any) -> str:
        try:
            do()
        except Exception as error:
            advice = "all nodes must see the same data, tokenizer, code and cache"
            return f"{type(error).__name__}: {error}; {advice}"
        return ""

    def step(self, *task: Any) -> list[tuple[str, Any]]:
        """Begin a task, if one is given; return its notes since the last call, or its end, as soon as there is something."""
        import contextlib
        import queue
        import threading
        import time

        if task:
            self._items: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
            threading.Thread(target=self._do, args=task, daemon=True).start()
        found = [self._items.get()]
        until = time.monotonic() + 0.2  # a call for each note would cost more than a small shard
        with contextlib.suppress(queue.Empty):
            while found[-1][0] == "note":
                found.append(self._items.get(timeout=max(0.0, until - time.monotonic())))
        return found

    def _do(self, task: Any) -> None:
        from penstock.engines.pool import picklable
        from penstock.types import run_task

        try:
            answer = (
                "done",
                run_task(self._work, task, lambda _, note: self._items.put(("note", note))),
            )
        except BaseException as error:  # SystemExit too: this process decides nothing
            answer = ("error", picklable(error))
        self._items.put(answer)
