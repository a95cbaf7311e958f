"""Progress in notebooks: a bar in the output of the cell; nothing for short work."""

import os
import subprocess
import sys
import time
import types
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from penstock.report.progress import lines_shown, showing
from penstock.store.progress import Progress
from penstock.words import ProgressLog, log_stage

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What stands in the output of a cell, in place of a notebook: what was displayed first, then each update."""
    drawn: list[str] = []

    class Handle:
        def update(self, page: Any) -> None:
            drawn.append(page.data)

    def display(page: Any, *, display_id: bool) -> Handle:
        assert display_id
        drawn.append(page.data)
        return Handle()

    class Html:
        def __init__(self, data: str) -> None:
            self.data = data

    ipython = types.ModuleType("IPython")
    shown = types.ModuleType("IPython.display")
    vars(shown).update(display=display, HTML=Html)
    vars(ipython).update(get_ipython=lambda: types.SimpleNamespace(kernel=object()), display=shown)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    return drawn


def at(rows: int, *, is_done: bool = False) -> Progress:
    return Progress(
        name="<b>wiki",
        rows=rows,
        num_rows=1000,
        num_bytes=0,
        tokens=12345,
        shards=1,
        num_shards=2,
        seconds=1.0,
        rows_per_second=50.0,
        is_done=is_done,
    )


def while_drawn(show: Callable[[Progress], object], seconds: float) -> None:
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        show(at(500))
        time.sleep(0.02)


def test_a_notebook_gets_a_bar_within_a_second_and_its_end(cell: list[str]) -> None:
    with showing("auto") as show:
        assert show is not None
        while_drawn(show, 0.95)
        show(at(1000, is_done=True))
    assert len(cell) == 2, "a few drawings a second"
    assert '<progress max="1" value="0.5000"' in cell[0] and "500 of 1,000 records (50%)" in cell[0]
    assert "in all" in cell[-1] and "&lt;b&gt;wiki" in cell[-1] and "<b>" not in cell[-1]


def test_short_work_draws_nothing(cell: list[str]) -> None:
    with showing("auto") as show, lines_shown("auto"):
        assert show is not None
        show(at(1000, is_done=True))
        log_stage("opening the tokenizer", seconds=0.5)
    assert cell == []


def test_what_the_library_logs_about_its_progress_is_shown_and_removed(cell: list[str]) -> None:
    progress = ProgressLog("reading <i>.jsonl", 10)
    with lines_shown("auto"):
        log_stage("opening the tokenizer", seconds=5)
        time.sleep(0.85)
        progress(5)
    assert cell == ["opening the tokenizer …", "reading &lt;i&gt;.jsonl: 5 of 10 (50 %)", ""]
    with lines_shown("none"):
        log_stage("opening the tokenizer", seconds=5)
    assert len(cell) == 3


KERNEL = """
import nbformat, os, sys
from nbclient import NotebookClient
source = '''
import time
from penstock.words import ProgressLog
from penstock.report.progress import lines_shown
with lines_shown("auto"):
    progress = ProgressLog("reading", 10)
    time.sleep(0.9)
    progress(3)
    shown = 1
shown
'''
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
client = NotebookClient(notebook, timeout=120, kernel_name="python3")
heard = []
process = client.process_message
def listen(message, cell, number):
    heard.append((message["msg_type"], message["content"].get("data", {}).get("text/html")))
    return process(message, cell, number)
client.process_message = listen
client.execute(env={**os.environ})
drawn = [shown for shown in heard if "display_data" in shown[0]]
assert drawn == [("display_data", "reading: 3 of 10 (30 %)"), ("update_display_data", "")], heard
print("ok")
"""


@pytest.mark.skipif(
    find_spec("nbclient") is None or find_spec("ipykernel") is None,
    reason="no Jupyter here: nbclient and ipykernel are not installed",
)
def test_a_real_kernel_shows_it(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", KERNEL],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert done.stdout == "ok\n", done.stderr[-3000:]
