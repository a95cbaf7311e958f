"""Hostile chat templates are refused by name in the user's process: in bounded time and memory, without a crash, without an escape."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.errors import TemplateError
from penstock.templates import sandbox
from penstock.templates.meter import LIMITS, LimitExceeded, TooDeep
from penstock.templates.render import Renderer
from penstock.templates.sandbox import check_source
from tests.policy import every_third_in_short_runs

from .conversations import TEMPLATES, A, Q, chat
from .hostile import (
    ALL,
    DAY,
    ESCAPES,
    HARMLESS,
    RUNS,
    SOURCES,
    SYNTAX,
    TRIGGER,
    VALUES,
    conversation,
    triggered,
)

ROOT = Path(__file__).parents[2]
SECONDS = 0.2  # the limit of these tests; 10 by default
GRACE = 1.5  # seconds of CPU: one operation, and compiling the template, on a slow machine
MEBIBYTES = 200
REFUSED = ("LimitExceeded", "TooDeep", "Refused", "TemplateError")


class Outcome(NamedTuple):
    kind: str  # of the error, or "rendered"
    text: str  # the error's message, or what was printed
    seconds: float


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, str], Outcome]:
    """What became of every hostile template, by name and trigger.  One process rendered them all, one after another."""
    command = [sys.executable, "-m", "tests.templates.hostile", str(SECONDS)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stdout[-300:], done.stderr[-2000:])
    lines = map(json.loads, done.stdout.splitlines())
    return {(name, when): Outcome(*rest) for name, when, *rest in lines}


def test_a1_there_are_a_hundred_hostile_templates_with_and_without_a_trigger(
    outcomes: dict[tuple[str, str], Outcome],
) -> None:
    """A1."""
    assert len({**RUNS, **VALUES}) >= 150 and len(ALL) >= 220
    assert {name for name, when in outcomes if when == "triggered"} >= {*RUNS, *VALUES, *ESCAPES}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_that_is_too_large_or_too_deep_is_refused_with_the_limit(
    name: str, outcomes: dict[tuple[str, str], Outcome]
) -> None:
    found = outcomes[name, "always"]
    assert found.kind == "LimitExceeded" and found.text.startswith("the chat template has ")
    assert "expected at most" in found.text


@pytest.mark.parametrize("name", SYNTAX)
def test_syntax_that_is_not_for_chat_templates_is_refused_when_it_is_compiled(
    name: str, outcomes: dict[tuple[str, str], Outcome]
) -> None:
    found = outcomes[name, "always"]
    assert found.kind == "TemplateError" and found.text.startswith("the chat template ")


@pytest.mark.parametrize("when", ["always", "triggered"])
@pytest.mark.parametrize("name", {**RUNS, **VALUES})
def test_a1_a_template_that_would_hang_crash_or_fill_the_memory_is_refused(
    name: str, when: str, outcomes: dict[tuple[str, str], Outcome]
) -> None:
    """A1: also where it waits for a word that no made-up conversation has."""
    found = outcomes[name, when]
    assert found.kind in REFUSED and found.text.startswith("the chat template "), found


@pytest.mark.parametrize("name", {**RUNS, **VALUES, **HARMLESS, **ESCAPES})
def test_a_template_that_waits_for_its_trigger_renders_other_conversations(
    name: str, outcomes: dict[tuple[str, str], Outcome]
) -> None:
    """Otherwise the tests above would pass because of a fault in these templates."""
    found = outcomes[name, "waiting"]
    if name not in ("block in itself", "loop of constant text in a block"):  # blocks are always run
        assert found.kind == "rendered" and "Hello, world!" in found.text, found


@pytest.mark.parametrize("when", ["always", "triggered"])
@pytest.mark.parametrize("name", {**HARMLESS, **ESCAPES})
def test_a1_no_template_reaches_python(
    name: str, when: str, outcomes: dict[tuple[str, str], Outcome]
) -> None:
    """A1: what is printed, or said in an error, is no object of Python and no address."""
    found = outcomes[name, when]
    for word in ("<class", "<function", "<built-in", "root:", "uid=", "0x", "mappingproxy", "<mod"):
        assert word not in found.text


def test_a1_no_template_takes_longer_than_the_limit(
    outcomes: dict[tuple[str, str], Outcome],
) -> None:
    """A1."""
    times = {key: found for key, found in outcomes.items() if key != ("grown", "")}
    slow = {key: found for key, found in times.items() if found.seconds > SECONDS + GRACE}
    assert slow == {}


def test_a1_no_template_fills_the_memory(outcomes: dict[tuple[str, str], Outcome]) -> None:
    """A1: the peak of the process that rendered all of them."""
    assert outcomes["grown", ""].seconds < MEBIBYTES


@pytest.mark.parametrize(
    "name", ["lists printed", "deep lists as JSON", "product", "percent of zeros"]
)
def test_a1_what_misbehaves_on_a_trigger_is_stopped_in_the_users_process(name: str) -> None:
    """A1: opened and used as a user does; a limit of time or memory is never skipped, as every row may pass it."""
    template = chat(triggered({**RUNS, **VALUES}[name]), on_refused="skip")
    records = [{"messages": [{"role": "user", "content": word}, A]} for word in ("Hi", TRIGGER)]
    assert template.encode(records[:1]).dropped == {}
    if name == "deep lists as JSON":
        assert template.encode(records).dropped == {1: "template_refused"}
    else:
        with pytest.raises(TemplateError, match="passes a limit for one conversation"):
            template.encode(records)


def test_a_template_that_always_misbehaves_is_refused_when_it_is_opened() -> None:
    with pytest.raises(LimitExceeded, match=r"more than 2 s of CPU time|work in its loops"):
        chat("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")


def test_a_large_conversation_may_make_more_text_than_a_small_one() -> None:
    """The memory of a rendering grows with its conversation: real ones of many megabytes pass."""
    text = "{% for m in messages %}{{ (m.content | trim) ~ m.content.upper() ~ m.content[1:] }}{% endfor %}"
    large = {"messages": [{"role": "user", "content": "word " * 4_000_000}]}
    assert len(Renderer(text, today=DAY).render(large)) > 50_000_000
    small = conversation("x" * 20)
    with pytest.raises(LimitExceeded, match="more than 32 MiB"):
        Renderer("{{ (messages[0].content * 999999) ~ 'a' }}", today=DAY).render(small)


def test_limits_are_those_of_the_rendering() -> None:
    endless = Renderer(
        "{% for a in range(99999) %}{% for b in range(999) %}{% endfor %}{% endfor %}", today=DAY
    )
    with pytest.raises(LimitExceeded, match="work in its loops"):
        endless.render(conversation("x"), replace(LIMITS, work=2_000_000))
    nested = Renderer(
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(20) }}", today=DAY
    )
    assert nested.render(conversation("x")) == ""
    with pytest.raises(TooDeep, match="more than 10 deep"):
        nested.render(conversation("x"), replace(LIMITS, calls=10))


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_limits_leave_real_templates_four_times_their_size(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("MOST_BYTES", "MOST_TOKENS", "MOST_IN_TAG", "MOST_BRACKETS", "MOST_BLOCKS"):
        monkeypatch.setattr(sandbox, limit, getattr(sandbox, limit) // 4)
    check_source(TEMPLATES[name])


@pytest.mark.parametrize("name", every_third_in_short_runs(sorted(TEMPLATES)))
def test_limits_leave_real_templates_ten_times_what_a_long_conversation_takes(name: str) -> None:
    renderer = Renderer(TEMPLATES[name], today=DAY)
    context = {
        "messages": [Q, A] * 500,
        "tools": None,
        "add_generation_prompt": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    tight = replace(LIMITS, memory=LIMITS.memory // 10, work=LIMITS.work // 10)
    try:
        renderer.render(context, tight)
    except LimitExceeded:
        raise
    except TemplateError:
        pass  # templates that take content in parts only


def test_blocks_that_are_closed_do_not_count_as_nested() -> None:
    check_source(
        "{% set x = 1 %}{% if x %}{% elif y %}{% endif %}{% set z %}{% endset %}{% macro f() %}{% endmacro %}"
        * 200
    )
    with pytest.raises(LimitExceeded, match="129 blocks inside each other"):
        check_source("{% if x %}" + "{% elif y %}" * 128 + "{% endif %}")
    with pytest.raises(TemplateError, match="is not Jinja: line 2"):
        check_source("a\n{{ 'b }}")


def test_a_for_tag_without_in_is_a_template_error_with_its_line() -> None:
    with pytest.raises(TemplateError, match="is not Jinja: line 2: a for tag without in"):
        Renderer("a\n{% for %}", DAY)


def test_a_refused_statement_is_named_once() -> None:
    with pytest.raises(TemplateError) as refused:
        Renderer("a\n{% include 'x' %}", DAY)
    assert str(refused.value) == (
        "the chat template cannot be compiled: line 2: Include is not for chat templates"
    )


def test_what_cannot_be_part_of_a_stores_key_is_refused_by_name() -> None:
    with pytest.raises(TemplateError, match="half of a surrogate pair"):
        chat("{{ messages }}\ud800")
    for value in (object(), float("nan")):
        with pytest.raises(
            TemplateError, match="chat_template_kwargs are given to the chat template as JSON"
        ):
            chat("{{ messages }}", chat_template_kwargs={"x": value})
    deep: list[object] = []
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(TemplateError, match="chat_template_kwargs nest more than 100 levels deep"):
        chat("{{ messages }}", chat_template_kwargs={"x": deep})
