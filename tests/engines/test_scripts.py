"""Do workers live as their parent wishes?  Real scripts, real signals."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

METHODS = pytest.mark.parametrize("start_method", ["fork", "spawn"])

SLOW = """
    import os, sys, time
    from penstock.engines import LocalEngine

    for pid in LocalEngine(2, start_method=sys.argv[1]).run({work}, range(1000)):
        print(pid, flush=True)
"""

MODULE = """
import os, time

def slow(task):
    time.sleep(0.2)
    return os.getpid()

def busy(task):
    try:
        os.write(1, f"{os.getpid()}\\n".encode())  # one write: two workers share the pipe
        time.sleep(30)
    finally:
        os.write(1, b"tidy\\n")
"""


def start(folder: Path, text: str, *arguments: str) -> "subprocess.Popen[str]":
    (folder / "mine.py").write_text(MODULE)
    (folder / "script.py").write_text(textwrap.dedent(text))
    return subprocess.Popen(
        [sys.executable, str(folder / "script.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def gone(pids: set[int], seconds: float = 10) -> bool:
    until = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(alive, pids))


def read_pids(script: "subprocess.Popen[str]", count: int) -> set[int]:
    assert script.stdout is not None
    pids: set[int] = set()
    while len(pids) < count:
        pids.add(int(script.stdout.readline()))
    return pids


def imports(text: str) -> str:
    return "    import mine\n" + text


@METHODS
@pytest.mark.parametrize("work", ["mine.slow", "mine.busy"])
def test_workers_end_with_their_parent(tmp_path: Path, start_method: str, work: str) -> None:
    script = start(tmp_path, imports(SLOW.format(work=work)), start_method)
    workers = read_pids(script, 2)
    script.kill()
    assert gone(workers)
    script.communicate()


@METHODS
def test_ctrl_c_reaches_only_the_parent_who_ends_the_workers_tidily(
    tmp_path: Path, start_method: str
) -> None:
    script = start(tmp_path, imports(SLOW.format(work="mine.busy")), start_method)
    workers = read_pids(script, 2)
    os.killpg(script.pid, signal.SIGINT)  # as a terminal does: to the whole group
    out, err = script.communicate(timeout=20)
    assert script.returncode == -signal.SIGINT and gone(workers)
    assert err.count("KeyboardInterrupt") >= 1 and "Process" not in err and out.count("tidy") == 2


def test_sigterm_to_the_group_is_the_parents_to_answer(tmp_path: Path) -> None:
    text = """
        import signal, sys, mine
        from penstock.engines import LocalEngine
        signal.signal(signal.SIGTERM, lambda number, frame: print("later", flush=True))
        for pid in LocalEngine(2, start_method=sys.argv[1]).run(mine.slow, range(20)):
            print(pid, flush=True)
        print("done")
    """
    script = start(tmp_path, text, "fork")
    read_pids(script, 2)
    os.killpg(script.pid, signal.SIGTERM)
    out, err = script.communicate(timeout=30)
    assert script.returncode == 0 and "later" in out and out.endswith("done\n"), err


def test_spawn_needs_no_main_guard_and_does_not_run_the_script_again(tmp_path: Path) -> None:
    text = """
        import mine
        from penstock.engines import LocalEngine
        print("once")
        print(len(set(LocalEngine(2, start_method="spawn").run(mine.slow, range(10)))))
    """
    out, err = start(tmp_path, text).communicate(timeout=60)
    assert out == "once\n2\n" and err == ""


def test_what_a_script_defines_itself_cannot_be_spawned(tmp_path: Path) -> None:
    text = """
        import sys
        from penstock.engines import LocalEngine
        def own(task):
            return task
        print(sorted(LocalEngine(2, start_method="fork").run(own, range(10))))
        list(LocalEngine(2, start_method="spawn").run(own, range(10)))
    """
    out, err = start(tmp_path, text).communicate(timeout=60)
    assert out == f"{list(range(10))}\n"
    assert "StoreError: the work cannot be sent to a worker process: AttributeError" in err
    assert "move the functions and classes that it needs into a module" in err


@pytest.mark.parametrize("threads", ["", "4"])
@pytest.mark.timeout(120)
def test_tokenizers_that_were_used_before_do_not_block_a_fork(
    tmp_path: Path, tokenizer_path: Path, threads: str
) -> None:
    text = """
        import sys, tokenizers
        from penstock.engines import LocalEngine
        from penstock.templates import TextTemplate, open_tokenizer

        raw = tokenizers.Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
        raw.encode_batch(["the quick brown fox"] * 1000)  # its thread pool exists from here on
        template = TextTemplate(open_tokenizer(sys.argv[1]))
        template.encode([{"text": "the lazy dog"}] * 1000)

        def encode(task):
            raw.encode_batch(["the quick brown fox"] * 100)
            return len(template.encode([{"text": "the lazy dog"}] * 100).input_ids)

        for _ in range(10):
            assert len(set(LocalEngine(2).run(encode, range(20)))) == 1
        print("done")
    """
    environment = {"FASTOKENS_BPE_THREADS": threads} if threads else {}
    (tmp_path / "script.py").write_text(textwrap.dedent(text))
    command = [sys.executable, str(tmp_path / "script.py"), str(tokenizer_path)]
    result = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )
    assert result.stdout == "done\n" and result.stderr == ""
