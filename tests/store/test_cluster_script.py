"""The script of the guide, with a stand-in for srun that starts tasks on this machine: one task is killed, one starts late."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock as ps

SCRIPT = Path(__file__).parents[2] / "examples" / "prepare.slurm"

# Starts TASKS commands, the last of them late; as with --kill-on-bad-exit=0, the others go on when one fails.
SRUN = """#!/bin/bash
shift
for task in $(seq "$TASKS"); do
    if [ "$task" = "$TASKS" ]; then sleep 0.7; fi
    "$@" & echo $! >> "$PIDS"
done
wait
"""


@pytest.fixture
def recipe(tmp_path: Path, tokenizer_path: Path) -> Path:
    rows = [{"text": f"row {row} " + "the quick brown fox " * 300} for row in range(16_000)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"data: data.jsonl\ntokenizer: {tokenizer_path}\ntemplate: text\nbatch_size: 1\nnum_proc: 1\n"
    )
    return path


def environment(tmp_path: Path) -> dict[str, str]:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "srun").write_text(SRUN)
    (bin_folder / "penstock").write_text(f'#!/bin/bash\nexec {sys.executable} -m penstock "$@"\n')
    for program in bin_folder.iterdir():
        program.chmod(0o755)
    path = f"{bin_folder}:{os.environ['PATH']}"
    return {
        **os.environ,
        "PATH": path,
        "TASKS": "4",
        "PIDS": str(tmp_path / "pids"),
        "HOME": str(tmp_path),
    }


def test_tasks_without_a_coordinator_make_one_store_though_one_is_killed_and_one_is_late(
    recipe: Path, tmp_path: Path
) -> None:
    assert shutil.which("bash")
    cache, pids = tmp_path / "cache", tmp_path / "pids"
    job = subprocess.Popen(
        ["bash", str(SCRIPT), str(recipe), str(cache)],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 60
    while not claims(cache) and time.monotonic() < until:
        time.sleep(0.005)
    os.kill(int(pids.read_text().split()[0]), signal.SIGKILL)
    output, _ = job.communicate(timeout=240)
    assert job.returncode == 0
    assert re.search(r"^data: complete: 16,000 records in \d+ shards$", output, re.MULTILINE), (
        output
    )
    together = ps.load(recipe, cache_dir=cache, output="numpy").stores[0]
    alone = ps.load(recipe, cache_dir=tmp_path / "alone", output="numpy").stores[0]
    assert together.fingerprint == alone.fingerprint
    assert [path.read_bytes() for path in shards(cache)] == [
        path.read_bytes() for path in shards(tmp_path / "alone")
    ]


def claims(cache: Path) -> list[Path]:
    """Claims of rows and shards; not of the line index, and none that is half made."""
    found = (cache / "claims").glob("*")
    return [path for path in found if not path.name.startswith((".", "index-"))]


def shards(cache: Path) -> list[Path]:
    return sorted((cache / "shards").rglob("*.arrow"))


def test_the_status_says_what_is_made_and_who_is_at_work(recipe: Path, tmp_path: Path) -> None:
    def ask() -> dict[str, object]:
        command = [
            sys.executable,
            "-m",
            "penstock",
            "prepare",
            "--status",
            str(recipe),
            "--cache-dir",
            str(tmp_path / "c"),
            "--json",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        (found,) = json.loads(done.stdout)
        return dict(found)

    before = ask()
    assert before["shards"] == 0 and before["at_work"] == [] and not before["is_complete"]
    assert not (tmp_path / "c" / "shards").exists()  # it makes nothing
    command = [
        sys.executable,
        "-m",
        "penstock",
        "prepare",
        str(recipe),
        "--cache-dir",
        str(tmp_path / "c"),
    ]
    work = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while work.poll() is None:  # stop it while it holds a claim
        os.kill(work.pid, signal.SIGSTOP)
        if claims(tmp_path / "c"):
            break
        os.kill(work.pid, signal.SIGCONT)
        time.sleep(0.005)
    meanwhile = ask()
    assert f"process {work.pid} on " in str(meanwhile["at_work"]) and not meanwhile["is_complete"]
    os.kill(work.pid, signal.SIGCONT)
    assert work.wait(timeout=120) == 0
    after = ask()
    assert (
        after["is_complete"] and after["shards"] == after["num_shards"] and after["rows"] == 16_000
    )
