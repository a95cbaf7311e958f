"""Does the command do what it says, end with the code it promises, and print nothing that steers a terminal?"""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.cli.main import cli
from penstock.cli.main import run as run_here
from penstock.store.build import SHARD_ROWS
from tests.policy import first_in_short_runs

from .conftest import Penstock

Write = Callable[..., Path]

RECORDS = [{"text": f"the quick brown fox {row} " * (row % 5 + 1)} for row in range(300)]


@pytest.fixture
def prepared(command: Penstock, write_jsonl: Write, tokenizer_path: Path) -> dict[str, object]:
    """A store, made by the command, as its JSON tells it."""
    result = command(
        "prepare", write_jsonl(RECORDS), "--tokenizer", tokenizer_path, "--num-proc", "1", "--json"
    )
    assert result.returncode == 0, result.stderr
    value: dict[str, object] = json.loads(result.stdout)
    return value


def test_prepare_says_what_it_made_and_where(
    command: Penstock, write_jsonl: Write, tokenizer_path: Path
) -> None:
    arguments = ("prepare", write_jsonl(RECORDS), "--tokenizer", tokenizer_path, "--num-proc", "1")
    first, second = command(*arguments), command(*arguments)
    assert first.returncode == 0 == second.returncode, first.stderr
    line = (
        r"[0-9a-f]{8}  data: 300 records → 300 samples, [\d,]+ tokens \([\d,]+ in the loss mask\)\n"
    )
    assert re.fullmatch(line, first.stdout) and second.stdout == first.stdout
    assert "detected template: text" in first.stderr and "/cache\n" in first.stderr
    assert "300 records" not in first.stderr, "the answer is not a note too"
    refreshed = command(
        *arguments, "--refresh", "--name", "renamed", "--set", "eos=false", "--template", "text"
    )
    assert refreshed.returncode == 0 and "renamed: 300 records" in refreshed.stdout
    assert refreshed.stdout[:8] != first.stdout[:8]


def test_prepare_for_scripts(prepared: dict[str, object], tmp_path: Path) -> None:
    assert prepared["rows"] == prepared["samples"] == 300 and prepared["dropped"] == {}
    assert prepared["name"] == "data" and prepared["cache"] == str(tmp_path / "cache")


def test_a_whole_cache_is_verified_and_damage_ends_with_1(
    command: Penstock, prepared: dict[str, object], tmp_path: Path
) -> None:
    store = str(prepared["store"])
    for arguments in (("--all",), (store,), (store[:6],), ("data",)):
        result = command("verify", *arguments)
        assert result.returncode == 0 and result.stdout.startswith(f"{store[:8]}: whole ("), (
            result.stderr
        )
    (path,) = (tmp_path / "cache" / "shards").rglob("*.arrow")
    path.write_bytes(path.read_bytes()[:-1])
    result = command("verify", "--all")
    assert (
        result.returncode == 1
        and "1 of 3 files are damaged or missing" in result.stdout
        and str(path) in result.stdout
    )
    result = command("verify", "--all", "--json")
    report, remembered = json.loads(result.stdout)
    assert result.returncode == 1 and not report["is_whole"] and len(report["problems"]) == 1
    assert remembered["is_whole"] and remembered["num_files"] > 0


def test_stores_are_listed_and_removed(
    command: Penstock, prepared: dict[str, object], tmp_path: Path
) -> None:
    store = str(prepared["store"])
    listed = command("cache", "ls")
    header, row = listed.stdout.splitlines()
    assert header.split("\t") == ["store", "data", "records", "tokens", "size", "last used", ""]
    assert row.split("\t")[:3] == [store[:8], "data", "300"]
    (info,) = json.loads(command("cache", "ls", "--json").stdout)["stores"]
    assert info["store"] == store and info["seen"]["places"] == [str(tmp_path / "data.jsonl")]
    refused = command("cache", "rm", "data")
    assert refused.returncode == 3 and "it was used 0 minutes ago" in refused.stderr
    removed = command("cache", "rm", "data", "--force")
    assert removed.returncode == 0 and removed.stdout.startswith(f"{store[:8]} removed, "), (
        removed.stderr
    )
    assert (
        command("cache", "ls").stdout == "" and store[:8] not in command("verify", "--all").stdout
    )
    missing = command("cache", "rm", store)
    assert missing.returncode == 3 and missing.stderr.startswith(
        f"penstock: '{store}': no such store in "
    )


def test_a_cache_is_pruned_by_size_and_by_age(
    command: Penstock, prepared: dict[str, object]
) -> None:
    assert command("cache", "prune").returncode == 2
    kept = command("cache", "prune", "--older-than", "30d", "--max-bytes", "1G")
    assert kept.returncode == 0 and kept.stdout.startswith(
        "0 files removed (0 B), 0 stores among them; "
    ), kept.stderr
    recent = json.loads(command("cache", "prune", "--json", PENSTOCK_CACHE_MAX="0").stdout)
    assert recent["stores"] == [] and recent["num_recent"] > 0
    cache = Path(str(prepared["cache"]))
    for path in cache.rglob("*"):
        os.utime(path, (1, 1))
    pruned = json.loads(command("cache", "prune", "--json", PENSTOCK_CACHE_MAX="0").stdout)
    assert pruned["stores"] == [prepared["store"]] and pruned["num_left"] == 0


def test_why_names_what_differs(
    command: Penstock, prepared: dict[str, object], write_jsonl: Write, tokenizer_path: Path
) -> None:
    path = write_jsonl(RECORDS)
    hit = command("cache", "why", path, "--tokenizer", tokenizer_path)
    assert (
        hit.stdout == f"{str(prepared['store'])[:8]} is complete in the cache: this is a hit\n"
    ), hit.stderr
    other = command("cache", "why", path, "--tokenizer", tokenizer_path, "--set", "eos=false")
    assert (
        other.returncode == 0
        and "data: the same" in other.stdout
        and "template, suffix: [0] → []" in other.stdout
    )
    longer = command(
        "cache", "why", write_jsonl([*RECORDS, {"text": "more"}]), "--tokenizer", tokenizer_path
    )
    assert "data: 300 records → 301" in longer.stdout
    value = json.loads(
        command("cache", "why", path, "--tokenizer", tokenizer_path, "--json").stdout
    )
    assert value["num_rows"] == [300, 301] and not value["is_hit"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["prepare"], "Missing argument"),
        (["prepare", "x", "--num-proc", "0"], "num-proc"),
        (["prepare", "x", "--set", "novalue"], "'novalue': expected KEY=VALUE"),
        (["prepare", "x", "--chat-template", "missing"], "missing"),
        (["verify"], "name one or more stores, or give --all"),
        (["verify", "x", "--all"], "name one or more stores, or give --all"),
        (
            ["cache", "prune", "--older-than", "soon"],
            "'soon': expected a duration such as 90m, 12h, 30d or 4w",
        ),
        (["cache", "ls", "--nonsense"], "No such option"),
        (["cache", "ls", "--nonsense"], "(see penstock cache ls --help)"),
        (["plan"], "(see penstock plan --help)"),
        (["nonsense"], "(see penstock --help)"),
    ],
)
def test_what_is_not_understood_ends_with_2_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert run_here(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and reason in captured.err, (
        captured.err
    )


def test_a_group_without_a_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(["cache"]) == 2
    assert "Commands:" in capsys.readouterr().err


def test_without_arguments_it_shows_five_commands_that_exist(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_here([]) == 0
    shown = re.findall(r"^  penstock (\w+)", capsys.readouterr().out, flags=re.MULTILINE)
    assert len(shown) == 5 and set(shown) <= set(cli.commands)


def test_help_is_plain_and_names_the_exit_codes(command: Penstock) -> None:
    for arguments in (("--help",), ("prepare", "--help"), ("cache", "prune", "--help")):
        result = command(*arguments)
        assert result.returncode == 0 and "\x1b" not in result.stdout and "╭" not in result.stdout
    assert "130 interrupted" in " ".join(command("--help").stdout.split())
    assert command("--version").stdout == f"penstock {penstock.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ["prepare", "missing.jsonl", "--tokenizer", "x"],
            "missing.jsonl: nothing found, expected a file",
        ),
        (["verify", "abcdef"], "'abcdef': no such store in "),
        (["cache", "prune", "--max-bytes", "lots"], "'lots' is not a size"),
    ],
)
def test_what_the_data_or_settings_are_at_fault_for_ends_with_3_in_one_line(
    command: Penstock, arguments: list[str], reason: str
) -> None:
    result = command(*arguments)
    assert result.returncode == 3 and result.stderr.count("\n") == 1 and reason in result.stderr, (
        result.stderr
    )


def test_a_fault_of_ours_shows_where(command: Penstock, tmp_path: Path) -> None:
    """An installation that is broken: a module that everything needs fails as none should."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "numpy.py").write_text("raise RuntimeError('\\x1b[2Jgone')\n")
    result = command("cache", "ls", PYTHONPATH=str(broken))
    assert result.returncode == 70 and result.stdout == ""
    assert "Traceback" in result.stderr and "this is an error of Penstock itself" in result.stderr
    assert "\x1b" not in result.stderr and r"\x1b[2Jgone" in result.stderr


@pytest.mark.timeout(120)
@pytest.mark.parametrize("num_proc", first_in_short_runs([2, 1]))
def test_ctrl_c_says_how_far_it_came_and_the_same_command_goes_on(
    tmp_path: Path, tokenizer_path: Path, num_proc: int
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(f'{{"text": "the fox {row}"}}\n' for row in range(12 * SHARD_ROWS)))
    cache = tmp_path / "cache"
    words = ["prepare", str(data), "--tokenizer", str(tokenizer_path), "--num-proc", str(num_proc)]
    environment = {**os.environ, "PENSTOCK_CACHE": str(cache)}
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *words],
        env=environment,
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while len(kept := list(cache.glob("shards/*/[!.]*.arrow"))) < 2 and process.poll() is None:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers, too
    out, err = process.communicate()
    assert process.returncode == 130 and out == "" and "Traceback" not in err, err
    said = r"penstock: interrupted; (\d+) of (\d+) shards are finished and kept: run the same again to continue"
    last = re.fullmatch(said, err.splitlines()[-1])
    assert last is not None and int(last[1]) < int(last[2]) > 10, err
    before = {path: path.stat().st_ino for path in kept}
    result = subprocess.run(
        [sys.executable, "-m", "penstock", *words], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0 and f"{12 * SHARD_ROWS:,} records → " in result.stdout, (
        result.stderr
    )
    assert {path: path.stat().st_ino for path in before} == before  # not made again


def test_an_interrupt_before_any_work_ends_with_130(tmp_path: Path, tokenizer_path: Path) -> None:
    """A pipe in the place of a file: the command waits for a writer, and is interrupted."""
    template = tmp_path / "template"
    os.mkfifo(template)
    words = ["prepare", "x", "--tokenizer", str(tokenizer_path), "--chat-template", str(template)]
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *words], stderr=subprocess.PIPE, text=True
    )
    writer = os.open(template, os.O_WRONLY)  # returns when the command has opened it to read
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    os.close(writer)
    assert process.returncode == 130
    assert (
        err
        == "penstock: interrupted; what is finished is kept: run the same command again to continue\n"
    )


def test_a_reader_that_has_had_enough_is_no_fault(
    command: Penstock, prepared: dict[str, object], tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "cache", "ls"],
        cwd=tmp_path,
        env={**os.environ, "PENSTOCK_CACHE": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 0 and b"Traceback" not in errors and b"Exception" not in errors


HOSTILE = "\x1b]0;owned\x07\x9b2J\u202ex"


def test_nothing_in_names_data_or_errors_steers_the_terminal(
    tmp_path: Path, tokenizer_path: Path
) -> None:
    """On a terminal of its own, where there are colours and a bar: no other control characters than those."""
    data = tmp_path / f"{HOSTILE}.jsonl"
    data.write_text("".join(json.dumps({"text": f"the {HOSTILE} fox"}) + "\n" for _ in range(20)))
    bad = tmp_path / f"bad{HOSTILE}.jsonl"
    bad.write_text('{"text": 7}\n')
    environment = {
        **os.environ,
        "PENSTOCK_CACHE": str(tmp_path / "cache"),
        "TERM": "xterm-256color",
    }
    for arguments in (
        ["prepare", str(data), "--tokenizer", str(tokenizer_path), "--num-proc", "1"],
        [
            "prepare",
            str(bad),
            "--tokenizer",
            str(tokenizer_path),
            "--template",
            "text",
            "--num-proc",
            "1",
        ],
        ["prepare", str(tmp_path / HOSTILE), "--tokenizer", "x"],
        ["prepare", str(data), "--tokenizer", HOSTILE],
        ["cache", "ls"],
        ["cache", "ls", "--json"],
        ["cache", "why", f"{data}@[:5]", "--tokenizer", str(tokenizer_path)],
        ["cache", "rm", HOSTILE],
        [HOSTILE],
        ["verify", HOSTILE],
        ["verify", "--all"],
    ):
        output = on_a_terminal([sys.executable, "-m", "penstock", *arguments], environment)
        assert output
        rest = (
            re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", output).replace(b"\r", b"").decode()
        )  # colours, and those of a bar
        steering = {
            char
            for char in rest
            if (ord(char) < 32 and char != "\n") or 127 <= ord(char) < 160 or char == "\u202e"
        }
        assert steering == set(), (arguments, rest)


def on_a_terminal(command: list[str], environment: dict[str, str]) -> bytes:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], command, environment)
    output = b""
    while True:
        try:
            block = os.read(terminal, 1 << 16)
        except OSError:  # how Linux says that the other end is closed
            break
        if not block:
            break
        output += block
    os.waitpid(pid, 0)
    os.close(terminal)
    return output


def test_a_terminal_of_another_alphabet_is_no_reason_to_fail(
    command: Penstock, prepared: dict[str, object]
) -> None:
    result = command(
        "cache",
        "why",
        "data.jsonl@[:5]",
        "--tokenizer",
        "missing",
        PYTHONIOENCODING="ascii",
        LC_ALL="C",
    )
    assert result.returncode == 3 and result.stderr.isascii()
    listed = command("cache", "ls", PYTHONIOENCODING="latin-1")
    assert listed.returncode == 0


def test_importing_the_command_brings_nothing_heavy() -> None:
    script = (
        "import sys\nimport penstock.cli.main\n"
        "heavy = {'numpy', 'pyarrow', 'tokenizers', 'rich.table', 'torch', 'yaml', 'jinja2'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


def test_python_dash_m_and_the_script_are_the_same(tmp_path: Path) -> None:
    script = Path(sys.executable).parent / "penstock"
    if not script.exists():
        pytest.skip("the package is not installed with its script")
    result = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"penstock {penstock.__version__}\n"


def test_long_reads_and_checks_show_how_far_they_are(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    write_jsonl: Write,
    tokenizer_path: Path,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("penstock.words._PROGRESS_SECONDS", 0.0)
    data = write_jsonl(RECORDS * 5)  # larger than what is scanned without an index
    arguments = [
        "check",
        str(data),
        "--tokenizer",
        str(tokenizer_path),
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    monkeypatch.setattr("penstock.cli.screen._PROGRESS_SECONDS", 0.0)
    assert run_here(arguments) == 0
    said = capsys.readouterr().err
    assert re.search(rf"reading {re.escape(str(data))}: [\d.]+ kB of [\d.]+ kB \(100 %\)", said), (
        said
    )
    assert re.search(r"checking records of data: 1,024 of 1,500 \(68 %\)", said), said
    assert run_here([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert "reading" not in captured.err and json.loads(captured.out)


SILENT = """
import logging, sys, time
from penstock.cli import screen
from penstock.words import log_stage

with screen.library_log(logging.INFO):
    begun = time.monotonic()
    if len(sys.argv) > 1:
        log_stage(sys.argv[1], seconds=float(sys.argv[2]))
    while time.monotonic() - begun < 2.5:
        sum(range(1000))
    screen.say("answer")
    while time.monotonic() - begun < 4:
        sum(range(1000))
"""


def test_a_terminal_shows_the_seconds_of_work_that_says_nothing() -> None:
    """`plan`, `stats` and `trace` of a million samples said nothing for many seconds."""
    ours, theirs = pty.openpty()
    work = subprocess.Popen([sys.executable, "-c", SILENT], stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal ends with its process
        while piece := os.read(ours, 4096):
            shown += piece
    os.close(ours)
    assert work.communicate()[0] == b"answer\n" and work.returncode == 0
    lines = [line for line in shown.replace(b"\x1b[K", b"").split(b"\r") if line]
    assert set(lines) == {"working … (1 s)".encode(), "working … (2 s)".encode()}, (
        "no line after the answer"
    )
    assert shown.endswith(b"\r\x1b[K"), "the line is removed before the answer"


@pytest.mark.parametrize(("seconds", "said"), [("5", "packing …\n"), ("0.5", "")])
def test_a_log_has_a_line_for_a_long_stage_only(seconds: str, said: str) -> None:
    words = [sys.executable, "-c", SILENT, "packing", seconds]
    work = subprocess.run(words, capture_output=True, text=True, check=True)
    assert work.stderr == said


def run_redirected(tmp_path: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the output redirected as a shell does it."""
    return subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m penstock {line}'],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PENSTOCK_CACHE": str(tmp_path / "cache")},
    )


@pytest.mark.parametrize(
    "line", ["cache ls --json >&-", "cache ls 2>&-", "cache ls --json >&- 2>&-"]
)
def test_a_closed_output_does_not_change_what_a_command_does(tmp_path: Path, line: str) -> None:
    """A closed stdout was reported as an error of Penstock itself, a closed stderr as a failure."""
    done = run_redirected(tmp_path, line)
    assert done.returncode == 0
    assert "error" not in done.stderr


def test_a_full_disk_under_the_output_is_said_in_one_line(tmp_path: Path) -> None:
    """It was reported as an error of Penstock itself."""
    done = run_redirected(tmp_path, "cache ls --json > /dev/full")
    assert done.returncode == 3
    assert done.stderr == "penstock: the output cannot be written: No space left on device\n"


def test_an_error_ends_with_its_code_and_is_json_where_json_is_asked_for(
    command: Penstock,
) -> None:
    plain, as_json = command("check", "gone.jsonl"), command("check", "gone.jsonl", "--json")
    assert plain.returncode == as_json.returncode == 3
    assert plain.stderr.endswith(" [error: source_error]\n") and not plain.stdout
    error = json.loads(as_json.stdout)["error"]
    assert error["code"] == "source_error" and error["message"] in plain.stderr


COMMANDS = [*cli.list_commands(None), "cache ls", "cache rm", "cache prune", "cache why"]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "cache"])
def test_every_command_has_short_help_quiet_and_verbose_and_its_own_options_first(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here([*name.split(), "-h"]) == 0
    shown = capsys.readouterr().out
    assert "-h, --help" in shown and "-q, --quiet" in shown and "-v, --verbose" in shown
    sections = re.findall(r"^(Options|Keys of the recipe|General options):$", shown, re.MULTILINE)
    order = ["Options", "Keys of the recipe", "General options"]
    assert sections == [title for title in order if title in sections]
    general = shown.partition("General options:")[2]
    assert "--quiet" in general and "-o, --output" not in general
    if "-o," in shown:
        assert "-o, --output" in shown


def test_o_is_the_output_and_a_key_in_its_place_is_answered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_here(["check", "x.jsonl", "-o", "eos=false"]) == 2
    assert "for a key write --set eos=false" in capsys.readouterr().err
    assert run_here(["init", "x.jsonl", "-o", "max_length=512"]) == 2
    assert "for a key write --set max_length=512" in capsys.readouterr().err


def test_the_former_name_of_a_command_says_the_new_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_here(["resume", "-h"]) == 0
    assert "penstock resume is now called penstock state" in capsys.readouterr().err


def test_quiet_prints_the_answer_only(
    command: Penstock, write_jsonl: Write, tokenizer_path: Path
) -> None:
    arguments = ("prepare", write_jsonl(RECORDS), "--tokenizer", tokenizer_path, "--num-proc", "1")
    quiet, plain = command(*arguments, "-q"), command(*arguments)
    assert quiet.returncode == 0 and quiet.stderr == "" and quiet.stdout == plain.stdout
    assert plain.stderr


def test_check_says_how_many_records_it_looked_at(
    here: Any, write_jsonl: Write, tokenizer_path: Path
) -> None:
    arguments = ("check", write_jsonl(RECORDS), "--tokenizer", tokenizer_path, "--num-proc", "1")
    some = here(*arguments, "--records", "10")[1].splitlines()[0]
    assert some.endswith(" tokens; 10 of them checked"), some
    every = here(*arguments, "--records", "0")[1].splitlines()[0]
    assert every.endswith(" tokens"), every


@pytest.mark.extra("view")
def test_quiet_says_nothing_about_stages_and_progress(
    here: Any,
    monkeypatch: pytest.MonkeyPatch,
    write_jsonl: Write,
    tokenizer_path: Path,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("penstock.report.progress._FIRST_SECONDS", 0.0)
    monkeypatch.setattr("penstock.report.progress._LONG_SECONDS", 0.0)
    data = write_jsonl(RECORDS)
    options = (data, "--tokenizer", tokenizer_path, "--num-proc", "1")
    prepare = ("prepare", *options, "--refresh")
    report = ("report", *options, "-o", tmp_path / "page.html")
    for command in (prepare, report):
        assert here(*command)[2]
        code, _, errors = here(*command, "-q")
        assert (code, errors) == (0, "")


def test_advice_is_in_the_words_of_the_command_line(
    command: Penstock, tmp_path: Path, tokenizer_path: Path
) -> None:
    data = tmp_path / "bad.jsonl"
    data.write_text('{"text": "a"}\n{"text": \n')
    arguments = (data, "--tokenizer", tokenizer_path, "--template", "text", "--num-proc", "1")
    stopped = command("prepare", *arguments)
    assert stopped.returncode == 3
    assert "or pass --set on_bad=skip" in stopped.stderr and 'on_bad="' not in stopped.stderr
    assert command("prepare", *arguments, "--set", "on_bad=skip").returncode == 0
