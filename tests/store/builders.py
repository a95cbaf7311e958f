"""Processes that prepare a store, to be killed, disturbed and raced.  Started, this file is a server that forks one builder per request:
a fork costs milliseconds where a new interpreter costs a second, and a builder's system calls begin with its own work.

What a builder makes of a record, it also writes to a log, a line per shard begun: the work that was done can be counted.
"""

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PUBLISHED = ("shards", "stores")
ROWS = 20  # of a file, and a shard is a file

# ---- in the server and its builders


def count_and_split(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The user's function: notes the first row of each shard in the log, now and then takes its time, may die."""
    if record["row"] == 0:
        log = os.open(os.environ["BUILDERS_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, f"{os.getpid()} {record['file']}\n".encode())
        os.close(log)
    time.sleep(float(os.environ["BUILDERS_PAUSE"]) / ROWS)
    if (record["file"], record["row"]) == (3, 11):
        die(os.environ.get("BUILDERS_DEATH", ""))
    return [{"text": record["text"], "label": True}]


def die(how: str) -> None:
    match how:
        case "exit":
            os._exit(9)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            import ctypes
            import faulthandler

            faulthandler.disable()
            ctypes.string_at(0)


def build(job: dict[str, Any]) -> None:
    import penstock as ps
    from penstock.templates import FunctionTemplate, open_tokenizer

    if job.get("no_flock"):
        import fcntl

        def refuse(*_: object) -> None:
            raise OSError(38, "Function not implemented")

        fcntl.flock = fcntl.lockf = refuse
    if job.get("timer"):
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, job["timer"], job["timer"])
    os.environ.update(
        BUILDERS_LOG=job["log"],
        BUILDERS_PAUSE=str(job["pause"]),
        BUILDERS_DEATH=job.get("death", ""),
    )
    files = sorted(Path(job["data"]).iterdir())
    source = ps.concat([ps.open(file, cache_dir=job["cache"]) for file in files], name="data")
    template = FunctionTemplate(count_and_split, open_tokenizer(job["tokenizer"]), version="1")
    store = ps.prepare(
        source, template=template, cache_dir=job["cache"], num_proc=job["num_proc"], progress="none"
    )
    print(store.fingerprint, flush=True)


def run(job: dict[str, Any]) -> int:
    """0, or 1 after one line about an error of ours, or 2 after the traceback of any other."""
    import traceback

    from penstock.errors import PenstockError

    try:
        build(job)
    except PenstockError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    except BaseException:
        traceback.print_exc()
        return 2
    return 0


def serve() -> None:
    """Requests on stdin, a line of JSON each: start a builder, open the gate for those that wait, wait for one."""
    # so that no builder has to; nothing is opened here, as threads would not survive a fork
    import fastokens  # noqa: F401
    import pyarrow.ipc  # noqa: F401
    import tokenizers  # noqa: F401

    import penstock.api
    import penstock.templates  # noqa: F401

    gate: tuple[int, int] | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: Any = None
        match request.pop("do"):
            case "gate":
                gate = os.pipe()
            case "start":
                answer = _fork(request, gate)
            case "go":
                assert gate is not None
                os.close(gate[0])
                os.close(gate[1])
                gate = None
            case "wait":
                answer = os.waitstatus_to_exitcode(os.waitpid(request["pid"], 0)[1])
        print(json.dumps(answer), flush=True)


def _fork(job: dict[str, Any], gate: tuple[int, int] | None) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 3
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        for number, name in ((1, "out"), (2, "err")):
            fd = os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(fd, number)
            os.close(fd)
        if gate is not None:
            os.close(gate[1])
            os.read(gate[0], 1)  # ends for all at once, when the server closes the other side
            os.close(gate[0])
        code = run(job)
    finally:
        with contextlib.suppress(Exception):
            import atexit

            atexit._run_exitfuncs()
            sys.stdout.flush()
        os._exit(code)


# ---- in the tests


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a builder ended."""

    status: int  # exit code, or minus the signal
    error: str


class Builder:
    """One process, and those it starts, under way."""

    def __init__(self, server: "Server", pid: int, err: Path) -> None:
        self.server, self.pid, self.err = server, pid, err

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def is_running(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"

    def wait(self) -> Outcome:
        status = self.server.ask(do="wait", pid=self.pid)
        return Outcome(status, self.err.read_text())


class Server:
    """Forks builders."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **request: Any) -> Any:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


class Yard:
    """Some data, a tokenizer, and as many caches as a test needs."""

    def __init__(
        self, server: Server, folder: Path, tokenizer: Path, *, num_files: int, pause: float = 0.0
    ) -> None:
        self.server, self.folder, self.tokenizer, self.pause = server, folder, tokenizer, pause
        self.num_files = num_files
        self.data = folder / "data"
        self.data.mkdir(parents=True)
        rng = random.Random(1)
        words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]
        for file in range(num_files):
            texts = [" ".join(rng.choices(words, k=rng.randrange(3, 30))) for _ in range(ROWS)]
            lines = [
                json.dumps({"text": text, "file": file, "row": row})
                for row, text in enumerate(texts)
            ]
            (self.data / f"{file:03}.jsonl").write_text("\n".join(lines) + "\n")
        self._number = 0

    def cache(self, name: str = "") -> "CacheFolder":
        self._number += 1
        return CacheFolder(self, self.folder / f"cache-{self._number}{name}")

    def start(self, root: Path, *, num_proc: int = 1, **more: Any) -> Builder:
        self._number += 1
        out, err = (self.folder / f"{self._number}.{kind}" for kind in ("out", "err"))
        log = root.with_name(root.name + ".log")
        places = {
            "data": self.data,
            "tokenizer": self.tokenizer,
            "cache": root,
            "log": log,
            "out": out,
            "err": err,
        }
        words = {name: str(place) for name, place in places.items()}
        pid = self.server.ask(do="start", **words, num_proc=num_proc, pause=self.pause, **more)
        return Builder(self.server, pid, err)


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """One cache, looked at from outside."""

    yard: Yard
    root: Path

    def start(self, **more: Any) -> Builder:
        return self.yard.start(self.root, **more)

    def prepare(self, **more: Any) -> Outcome:
        return self.start(**more).wait()

    def begun(self) -> list[int]:
        """Shards that were begun so far, by all processes together, one number for each time."""
        log = self.root.with_name(self.root.name + ".log")
        return (
            [int(line.split()[1]) for line in log.read_text().splitlines()] if log.exists() else []
        )

    def published(self) -> dict[str, str]:
        """Every file under a final name that holds samples or promises them, with the digest of its bytes."""
        files = [
            path
            for folder in PUBLISHED
            for path in (self.root / folder).rglob("*")
            if path.suffix in (".arrow", ".json", ".lengths") and not path.name.startswith(".")
        ]
        return {
            str(path.relative_to(self.root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        }

    def shards(self) -> dict[str, int]:
        return {
            path.name: path.stat().st_ino for path in (self.root / "shards").rglob("[!.]*.arrow")
        }

    def leftovers(self) -> list[str]:
        return [str(path.relative_to(self.root)) for path in self.root.rglob(".*.tmp")]

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


def verified(cache: CacheFolder) -> list[str]:
    """What `verify` has to say against the stores of a cache; it must find at least one."""
    from penstock.cache import Cache
    from penstock.store.verify import verify_all

    reports = list(verify_all(Cache(cache.root)))
    assert reports
    return [str(problem) for report in reports for problem in report.problems]


# ---- strace

STRACE = shutil.which("strace")
MUTATING = (
    *(
        "write",
        "pwrite64",
        "writev",
        "openat",
        "mkdir",
        "mkdirat",
        "rename",
        "renameat",
        "renameat2",
        "link",
        "linkat",
    ),
    *("symlink", "symlinkat"),
    *("unlink", "unlinkat", "fsync", "fdatasync", "ftruncate", "fchmod", "utimensat"),
)
_CALL = re.compile(r"^(?:\[pid\s+)?(\d+)\]?\s+([a-z0-9_]+)\((.*)$")


@dataclass(frozen=True, slots=True)
class Call:
    """The `number`-th call (from 1) of one name, by the process that builds."""

    name: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.name} {self.number}"


@contextlib.contextmanager
def traced(cache: CacheFolder, *options: str) -> Iterator[Builder]:
    """A builder that begins its work under strace."""
    assert STRACE
    cache.yard.server.ask(do="gate")
    builder = cache.start()
    trace = subprocess.Popen(
        [
            STRACE,
            "-f",
            "-y",
            "-qq",
            "-p",
            str(builder.pid),
            "-o",
            str(cache.root) + ".trace",
            *options,
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        status = Path(f"/proc/{builder.pid}/status")
        until = time.monotonic() + 30
        while "TracerPid:\t0\n" in status.read_text():
            assert trace.poll() is None and time.monotonic() < until, (
                trace.stderr and trace.stderr.read()
            )
            time.sleep(0.001)
        cache.yard.server.ask(do="go")
        yield builder
    finally:
        builder.kill()
        trace.wait(60)
        assert trace.stderr
        trace.stderr.close()


def mutating_calls(cache: CacheFolder) -> list[Call]:
    """What a build in one process asks of the kernel that changes something in its cache, in order."""
    with traced(cache, "-e", f"trace={','.join(MUTATING)}") as builder:
        outcome = builder.wait()
        assert outcome.status == 0, outcome.error
    calls: list[Call] = []
    counts: dict[str, int] = {}
    for line in Path(str(cache.root) + ".trace").read_text().splitlines():
        parts = _CALL.match(line)
        if parts is None or int(parts[1]) != builder.pid:
            continue
        name, text = parts[2], parts[3]
        counts[name] = counts.get(name, 0) + 1
        is_change = name != "openat" or "O_CREAT" in text
        if is_change and str(cache.root) + "/" in text.replace(f"{cache.root}>", f"{cache.root}/>"):
            calls.append(Call(name, counts[name], text))
    return calls


if __name__ == "__main__":
    serve()
