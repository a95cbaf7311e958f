"""Harbor tasks: each is a folder with what an agent is asked to do, a sandbox and a verifier.

A record has the instruction as a message of the user, and what `task.toml` says.  It is a prompt for reinforcement learning; the
trajectories of agents on such tasks are ATIF.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from penstock.errors import SourceError
from penstock.extras.traces.secrets import without_secrets
from penstock.extras.traces.settings import TraceOptions
from penstock.places.files import identify, open_file
from penstock.places.place import File, FileId
from penstock.sources.files import Files
from penstock.sources.opener import Opener, OpenRequest, open_files
from penstock.sources.rows import FileReader, FileRecords
from penstock.types import BadRow, Record

TASK = "task.toml"
INSTRUCTION = "instruction.md"
_SEARCHED = ("messages", "instruction", "config", "metadata")  # for secrets
# Benchmarks mark their files against training on them by accident; agents do not get these lines.
_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)


class TaskRows(FileRecords):
    """One task: one record."""

    def __init__(self, file: File, options: TraceOptions) -> None:
        self.file = file
        self._options = options
        self.num_bytes = file.identity.size

    def __len__(self) -> int:
        return 1

    def record(self, row: int) -> Record | BadRow:
        self.file.check()
        task = Path(self.file.identity.path)
        try:
            config = _plain(tomllib.loads(self.file.read(0, self.num_bytes).decode()))
            text = (task.parent / INSTRUCTION).read_text(encoding="utf-8")
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            return BadRow(reason="bad_value", message=f"not readable: {error}")
        except FileNotFoundError:
            return BadRow(reason="bad_value", message=f"{INSTRUCTION} is missing next to it")
        lines = text.split("\n")
        canaries = 0
        while canaries < len(lines) and _CANARY.fullmatch(lines[canaries].strip()):
            canaries += 1
        instruction = "\n".join(lines[canaries:]).lstrip("\n")
        about = config.get("task") if isinstance(config.get("task"), dict) else {}
        record: Record = {
            "messages": [{"role": "user", "content": instruction}],
            "name": about.get("name") or task.parent.name,
            "instruction": instruction,
            "config": config,
            "metadata": config.get("metadata") or {},
            "location": task.parent.name,
            "harness": "harbor",
        }
        if canaries:
            record["left_out"] = {"canary line": canaries}
        return without_secrets(record, _SEARCHED, self._options, line=1)

    def records(self, first: int, last: int) -> Iterator[Record | BadRow]:
        for row in range(first, last):
            yield self.record(row)


class TaskReader(FileReader):
    """Opens tasks."""

    format = "harbor"

    def __init__(self, tasks: Sequence[Path], options: TraceOptions) -> None:
        self.options: TraceOptions = options
        self._tasks = tasks

    def open_rows(self, file: FileId) -> FileRecords:
        return TaskRows(open_file(file), self.options)

    def counts(self, files: Sequence[FileId]) -> list[int]:
        return [1] * len(files)

    def media(self) -> Iterator[FileId]:
        """The instructions belong to the records."""
        for task in self._tasks:
            instruction = task.parent / INSTRUCTION
            if instruction.is_file():
                yield identify(str(instruction))


def is_harbor_folder(folder: str) -> bool:
    """Whether a folder is a task, or holds tasks."""
    return next(_tasks(Path(folder)), None) is not None


def _tasks(folder: Path) -> Iterator[Path]:
    """Yield the task files of a folder: its own, or those of folders one or two levels below."""
    if (folder / TASK).is_file():
        yield folder / TASK
        return
    for pattern in (f"*/{TASK}", f"*/*/{TASK}"):
        yield from sorted(folder.glob(pattern))


def open_harbor(request: OpenRequest) -> Files:
    folder = request.folder("Harbor tasks")
    tasks = list(_tasks(folder))
    if not tasks:
        raise SourceError(f"{folder}: no {TASK} in it, nor in the folders below")
    return open_files(
        request.of_folder([str(task) for task in tasks]), TaskReader(tasks, request.options)
    )


def _plain(value: Any) -> Any:
    """Return values of TOML as values of JSON."""
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


HARBOR_TASKS = Opener(TraceOptions, open_harbor)
