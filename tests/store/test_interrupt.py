"""Does Ctrl-C stop cleanly and say how to go on, and does the next run go on there?"""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import penstock as ps

SCRIPT = """
    import os, sys, time
    import penstock as ps
    from penstock.templates import TextTemplate, open_tokenizer

    class Slow(TextTemplate):
        def encode(self, records):
            records = list(records)
            if records[0]["row"] >= 300:
                os.write(1, b"slow\\n")  # one call: two processes write to one pipe
                time.sleep(100)
            return super().encode(records)

    data, tokenizer, num_proc, cache = sys.argv[1:]
    source = ps.concat([ps.open(f"{data}/{file}.jsonl") for file in range(6)])
    template = Slow(open_tokenizer(tokenizer))
    ps.prepare(source, template=template, num_proc=int(num_proc), cache=cache == "cache")
"""


def start(folder: Path, tokenizer: Path, num_proc: int, cache: str) -> "subprocess.Popen[str]":
    for file in range(6):
        lines = [
            json.dumps({"text": f"the fox {row}", "row": 100 * file + row}) + "\n"
            for row in range(100)
        ]
        (folder / f"{file}.jsonl").write_text("".join(lines))
    (folder / "tmp").mkdir(exist_ok=True)
    script = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(SCRIPT),
            str(folder),
            str(tokenizer),
            str(num_proc),
            cache,
        ],
        env={**os.environ, "PENSTOCK_CACHE": str(folder / "cache"), "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert script.stdout is not None
    for _ in range(num_proc):
        assert script.stdout.readline() == "slow\n"
    return script


@pytest.mark.timeout(120)
@pytest.mark.parametrize("num_proc", [1, 2])
def test_ctrl_c_says_how_to_go_on(
    tmp_path: Path, tokenizer_path: Path, num_proc: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = start(tmp_path, tokenizer_path, num_proc, "cache")
    os.killpg(script.pid, signal.SIGINT)
    _, err = script.communicate(timeout=60)
    assert script.returncode == -signal.SIGINT
    assert err.rstrip().endswith(
        "KeyboardInterrupt: 3 of 6 shards are finished and kept: run the same again to continue"
    ), err
    cache = tmp_path / "cache"
    kept = {path: path.stat().st_ino for path in cache.rglob("*.arrow")}
    assert (
        len(kept) == 3
        and not list(cache.rglob(".*.tmp"))
        and not list((cache / "claims").iterdir())
    )
    monkeypatch.setenv("PENSTOCK_CACHE", str(cache))
    store = ps.prepare(
        ps.concat([ps.open(tmp_path / f"{file}.jsonl") for file in range(6)]),
        tokenizer=tokenizer_path,
    )
    assert store.counts.samples == 600
    assert {path: path.stat().st_ino for path in kept} == kept  # not made again


@pytest.mark.timeout(120)
def test_without_a_cache_nothing_stays_after_ctrl_c_and_little_after_a_kill(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    script = start(tmp_path, tokenizer_path, 2, "no cache")
    os.killpg(script.pid, signal.SIGINT)
    script.communicate(timeout=60)
    assert list((tmp_path / "tmp").iterdir()) == []
    script = start(tmp_path, tokenizer_path, 2, "no cache")
    os.killpg(script.pid, signal.SIGKILL)
    script.communicate(timeout=60)
    (left,) = (tmp_path / "tmp").iterdir()
    assert re.fullmatch(r"penstock-[0-9a-f]{12}-\d+-\d+-\w+", left.name)
    script = start(tmp_path, tokenizer_path, 2, "no cache")  # the next one removes it
    os.killpg(script.pid, signal.SIGINT)
    script.communicate(timeout=60)
    assert list((tmp_path / "tmp").iterdir()) == []
