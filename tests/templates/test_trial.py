"""Hostile chat templates are refused by name, in bounded time, and leave the user's process alone; real ones open."""

import json
import multiprocessing
import multiprocessing.spawn
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.cache import Cache
from penstock.errors import TemplateError
from penstock.templates import sandbox, trial
from penstock.templates.render import Renderer
from penstock.templates.sandbox import LimitExceeded, check_source
from penstock.templates.trial import open_untrusted, try_template

from .conversations import TEMPLATES, A, Q, chat
from .hostile import HARMLESS, RUNS, SOURCES, VALUES

DAY = "2025-01-31"
CONTEXTS: list[dict[str, Any]] = [
    {"messages": [Q, A], "tools": None, "add_generation_prompt": False}
]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def opened() -> dict[str, tuple[str, str]]:
    """What became of every hostile template, by name: the error's type and message.  A process of its own opened them all."""
    command = [sys.executable, "-m", "tests.templates.hostile"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=540, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {
        name: (kind, message) for name, kind, message in map(json.loads, done.stdout.splitlines())
    }


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_that_is_too_large_or_too_deep_is_refused_with_the_limit(
    name: str, opened: dict[str, tuple[str, str]]
) -> None:
    kind, message = opened[name]
    assert (
        kind == "LimitExceeded"
        and message.startswith("the chat template has ")
        and "expected at most" in message
    )


@pytest.mark.parametrize("name", {**RUNS, **VALUES})
def test_a_template_that_crashes_hangs_or_explodes_is_refused_by_name(
    name: str, opened: dict[str, tuple[str, str]]
) -> None:
    kind, message = opened[name]
    assert kind == "LimitExceeded" and message.startswith("the chat template ")


@pytest.mark.parametrize("name", HARMLESS)
def test_a_template_that_asks_for_what_engines_refuse_does_no_harm(
    name: str, opened: dict[str, tuple[str, str]]
) -> None:
    assert opened[name][0] in ("opened", "TemplateError")


def test_a_crash_of_an_engine_ends_the_child_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without limits on the source, minijinja overflows its stack on 20,000 concatenations."""
    child = (trial._FOLDER / "trial_child.py").read_text()
    assert "check_source(request" in child
    (tmp_path / "trial_child.py").write_text(
        child.replace("check_source(request", "(lambda text: None)(request")
    )
    packages = {"penstock": str(trial._FOLDER.parent), "penstock.templates": str(trial._FOLDER)}
    monkeypatch.setattr(trial, "_PACKAGES", packages)
    monkeypatch.setattr(trial, "_FOLDER", tmp_path)
    with pytest.raises(
        LimitExceeded, match="ended by SIGSEGV while it rendered made-up conversations"
    ):
        try_template(SOURCES["concatenations"], DAY, CONTEXTS)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_limits_leave_real_templates_four_times_their_size(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("MOST_BYTES", "MOST_TOKENS", "MOST_IN_TAG", "MOST_BRACKETS", "MOST_BLOCKS"):
        monkeypatch.setattr(sandbox, limit, getattr(sandbox, limit) // 4)
    check_source(TEMPLATES[name])


def test_every_template_of_trl_passes_its_trial() -> None:
    for text in TEMPLATES.values():
        assert try_template(text, DAY, CONTEXTS)["engine"] in ("jinja2", "minijinja")


def test_blocks_that_are_closed_do_not_count_as_nested() -> None:
    check_source(
        "{% set x = 1 %}{% if x %}{% elif y %}{% endif %}{% set z %}{% endset %}{% macro f() %}{% endmacro %}"
        * 200
    )
    with pytest.raises(LimitExceeded, match="129 blocks inside each other"):
        check_source("{% if x %}" + "{% elif y %}" * 128 + "{% endif %}")
    with pytest.raises(TemplateError, match="is not Jinja: line 2"):
        check_source("a\n{{ 'b }}")


def test_a_verdict_is_remembered_in_the_cache_and_a_refusal_is_not(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.templates.tokenizer import facts

    asked: list[str] = []

    def counted(text: str, *rest: Any) -> dict[str, str]:
        asked.append(text)
        return try_template(text, *rest)

    monkeypatch.setattr(trial, "try_template", counted)
    hostile, plain = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ messages[0].content }}"
    for _ in range(2):
        facts._kept.clear()  # as in another process
        made = open_untrusted(plain, today=DAY, contexts=CONTEXTS, cache=cache)
        assert made.is_fast and made.render(CONTEXTS[0]) == Q["content"]
        with pytest.raises(LimitExceeded):
            open_untrusted(hostile, today=DAY, contexts=CONTEXTS, cache=cache)
    assert asked == [plain, hostile, hostile]


def test_what_explodes_only_on_real_records_is_stopped_by_the_limits_of_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sandbox, "SECONDS", 0.3)
    monkeypatch.setattr("penstock.templates.render._FUEL", 500_000)
    late = "{% if messages | length > 200 %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}x"
    template = chat(late, on_refused="skip")
    with pytest.raises(
        TemplateError, match="passes a limit for one conversation"
    ):  # not skipped: every row may be such a one
        template.encode([{"messages": [Q, A] * 101}])
    for engine in ("jinja2", "minijinja"):
        with pytest.raises(LimitExceeded, match="passes a limit"):
            Renderer(late, today=DAY, engine=engine).render({"messages": [Q, A] * 101})


def test_a_python_that_cannot_be_started_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    before = multiprocessing.spawn.get_executable()
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no Python here >&2\nexit 7\n")
    broken.chmod(0o755)
    try:
        for executable, why in (
            (str(tmp_path / "none"), "No such file"),
            (str(broken), "exit code 7: no Python here"),
        ):
            multiprocessing.set_executable(executable)
            with pytest.raises(TemplateError, match=rf"cannot start one.*{why}.*set_executable"):
                try_template("{{ messages }}", DAY, CONTEXTS)
    finally:
        multiprocessing.set_executable(before)


def test_the_child_starts_without_the_environment_and_with_the_parents_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file beside the user's program does not take the place of a module, and PYTHONPATH does not reach the child."""
    (tmp_path / "jinja2.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert try_template("{{ messages }}", DAY, CONTEXTS)["engine"]


def test_what_cannot_be_handed_to_the_child_is_refused_by_name() -> None:
    with pytest.raises(TemplateError, match="half of a surrogate pair"):
        chat("{{ messages }}\ud800")
    for value in (object(), float("nan")):
        with pytest.raises(
            TemplateError, match="template_kwargs are given to the chat template as JSON"
        ):
            chat("{{ messages }}", template_kwargs={"x": value})


def test_opening_a_hostile_template_costs_this_process_no_memory(
    opened: dict[str, tuple[str, str]],
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in ("tilde", "wide macro", "product"):
        with pytest.raises(LimitExceeded):
            chat(RUNS.get(name) or VALUES[name])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 16  # KiB


def test_a_child_that_was_started_early_takes_the_first_trial_and_a_new_one_the_next() -> None:
    with trial.trial_expected():
        trial.start_early()
        (child,) = trial._early.get() or []
        with pytest.raises(LimitExceeded):
            try_template("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", DAY, CONTEXTS)
        assert child._process.returncode is not None, "it was asked"
        assert try_template("{{ messages }}", DAY, CONTEXTS)["engine"]


def test_a_child_without_a_trial_is_stopped_and_none_is_started_where_no_trial_is_expected() -> (
    None
):
    trial.start_early()
    assert trial._early.get() is None
    with trial.trial_expected():
        trial.start_early()
        trial.start_early()
        (child,) = trial._early.get() or []
    assert child._process.returncode == -signal.SIGKILL


def test_an_early_child_that_cannot_be_started_is_an_error_of_the_trial_only(
    tmp_path: Path,
) -> None:
    before = multiprocessing.spawn.get_executable()
    multiprocessing.set_executable(str(tmp_path / "none"))
    try:
        with trial.trial_expected():
            trial.start_early()
            with pytest.raises(TemplateError, match="cannot start one"):
                try_template("{{ messages }}", DAY, CONTEXTS)
    finally:
        multiprocessing.set_executable(before)


def test_a_child_that_ends_before_it_reads_gives_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What it did not read must not be written again when the pipe is closed: that was a BrokenPipeError."""
    ends = tmp_path / "python"
    ends.write_text("#!/bin/sh\nexit 3\n")
    ends.chmod(0o755)
    monkeypatch.setattr(multiprocessing.spawn, "get_executable", lambda: str(ends))
    start = subprocess.Popen

    def start_and_wait(*args: Any, **kwargs: Any) -> Any:
        process = start(*args, **kwargs)
        process.wait()
        return process

    monkeypatch.setattr(subprocess, "Popen", start_and_wait)
    assert trial.Child().ask({"text": "x"}) == ("", "", 3)
