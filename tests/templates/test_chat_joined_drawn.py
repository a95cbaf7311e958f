"""Chat templates drawn from a grammar: what is joined is what is rendered, whatever a template does with the words of messages."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import TemplateError
from penstock.templates import ChatTemplate
from penstock.templates.chat import masks
from tests.policy import SOAK

from .conversations import chat
from .test_chat_joined import HEAD, TAIL

Row = dict[str, Any]

NUM_TEMPLATES = 100 if SOAK else 25
SEEDS = range(4 if SOAK else 1)
BEFORE = (
    "{% macro trimmed(t) %}{{ t | trim }}{% endmacro %}"
    "{% macro cut(t, at='q') %}{% if at in t %}{{ t.split(at)[0] }}{% else %}{{ t }}-{% endif %}{% endmacro %}"
    "{% macro around() %}<{{ caller() }}>{% endmacro %}"
    "{% set ns = namespace(text='A', count=0) %}{% set kept = 'V' %}{% set block = 'W' %}"
)
CONSTANTS = ["'stop'", "'op'", "' '", "'\\n'", "''", "'<x>'", "'a'", "m.role", "'\\u200b'", "none", "5", "'So.'", "'[INST]'"]  # fmt: skip
TEXTS = [
    *("m.content", "m['content']", "m.get('content', 'x')", "m.reasoning_content"),
    *("messages[0].content", "messages[-1].content", "ns.text", "kept", "block"),
    "(loop.previtem.content if loop.previtem else 'none')",
]
# In these, T is a text, K a constant, C a condition and S are statements.
OPERATIONS = [
    *("(T | trim)", "T.strip()", "T.strip(K)", "T.lstrip(K)", "T.rstrip('\\n')", "(T | replace(K, K))"),
    *("T.replace(K, K)", "T.split(K)[0]", "T.split(K)[-1]", "T.split(K, 1)[0]", "(T ~ K)", "(K ~ T)"),
    *("(T + T)", "('<' ~ T ~ '>')", "(T | string)", "(T | tojson)", "(T | default(K, true))", "(T or K)"),
    *("(T if C else T)", "(T and T)", "trimmed(T)", "cut(T, K)", "([T, T] | tojson)", "({'a': T} | tojson)"),
    *("([T, K] | first)", "dict(a=T).a", "namespace(a=T).a", "([T] | map('replace', K, K) | first)"),
    *("(messages | map(attribute='content') | map('trim') | list | last)", "(T | upper)", "T[:3]"),
    "(messages | selectattr('content', 'equalto', K) | map(attribute='content') | first | default('D'))",
]  # fmt: skip
CONDITIONS = [
    *("T", "not T", "K in T", "K not in T", "T == K", "T != K", "T in [K, K]", "T.startswith(K)", "T.endswith(K)"),
    *("T is string", "T is none", "T is defined", "T == T", "T.split(K) | length > 1", "[T] == [K]", "T is in [K]"),
    *("m == messages[0]", "m in messages[1:]", "loop.last", "m.role == 'user'", "ns.count > 1", "T is eq(K)"),
    *("(messages | selectattr('content', 'equalto', K) | list | length) > 0", "(T | length) > 3"),
    *("K in (messages | map(attribute='content') | list)", "K in T and K in T", "K in T or not T"),
    *("m.reasoning_content is defined", "m.flag is defined and m.flag", "loop.changed(T)", "T is sequence"),
]  # fmt: skip
STATEMENTS = [
    *("{{ T }}", "{{ T }}", "{{ m.content }}", "{% if C %}S{% else %}S{% endif %}", "{% if C %}S{% endif %}"),
    *("{% set kept = T %}", "{% set ns.text = T %}", "{% set ns.count = ns.count + (1 if C else 0) %}"),
    *("{% set block %}S{% endset %}", "{% set block | trim %}S{% endset %}", "{% filter trim %}S{% endfilter %}"),
    *("{% for n in messages if K in n.content %}{{ n.role }}{{ loop.index }}{% break %}{% endfor %}", "<|im_end|>"),
    *("{% for part in T.split(K) %}{{ part | trim }}|{% endfor %}", "{% call around() %}S{% endcall %}", " x "),
    *("{%- if C -%} \n y {%- endif -%}", "{% with z = T %}{{ z }}{% endwith %}", "[inst]"),
    "{% if C %}{{ raise_exception('no') }}{% endif %}",
]  # fmt: skip
WORDS = [
    *("stop", "xstop", "op", "s", " stop ", "a", "\nx", "x\n", "\u200b", "<x>", "x <x> y", "So.", "user", "a b"),
    *('"q"', "[INST]", "none", "5", " ", "", "A", "V", "<", "q", "sto", "x<|im_end|>", "\x00", "é\u2028"),
]  # fmt: skip


def drawn(draw: random.Random, forms: list[str], depth: int) -> str:
    """One of these forms, filled in."""
    text = draw.choice(forms)
    filled = []
    for letter in text:
        deeper = depth - 1
        if letter == "T" and deeper > 0:
            filled.append(drawn(draw, [*TEXTS, *OPERATIONS], deeper))
        elif letter == "T":
            filled.append(draw.choice(TEXTS))
        elif letter == "K":
            filled.append(draw.choice(CONSTANTS))
        elif letter == "C":
            filled.append(f"({drawn(draw, CONDITIONS if deeper > 0 else CONDITIONS[:9], deeper)})")
        elif letter == "S" and deeper > 0:
            filled.append(drawn(draw, STATEMENTS, deeper))
        elif letter == "S":
            filled.append("{{ m.content }}")
        else:
            filled.append(letter)
    return "".join(filled)


def drawn_row(draw: random.Random, number: int) -> Row:
    """A conversation of one of six kinds, with words that templates ask for."""
    messages = []
    for place in range(2 + number % 3):
        words = draw.choice(WORDS) if draw.random() < 0.6 else f"Words {draw.randrange(9)}."
        message = {"role": ("user", "assistant")[place % 2], "content": words}
        if number % 6 >= 3 and place % 2:
            message["reasoning_content"] = draw.choice(WORDS)
        if number % 6 == 5:
            message["flag"] = draw.choice([True, False, "", "a"])
        messages.append(message)
    return {"messages": messages}


def opened(draw: random.Random, train_on: str) -> Iterator[ChatTemplate]:
    for _ in range(NUM_TEMPLATES):
        statements = [drawn(draw, STATEMENTS, 4) for _ in range(draw.randrange(1, 4))]
        text = BEFORE + HEAD + "".join(statements) + TAIL
        try:
            yield chat(text, train_on=train_on, on_refused="skip", on_missing_tokens="warn")
        except TemplateError:
            continue  # it refuses every conversation


def rendering(template: ChatTemplate, row: Row) -> Any:
    try:
        found = template._rendering(row, 5)  # not one of the first records, which are compared
    except TemplateError as error:
        return str(error)
    counts = (found.unrendered, found.assistant_characters, found.num_partial, found.num_unended)
    return found.text, found.spans, counts


def find_joined(self: masks.JoinedMasks, request: Any) -> Any:
    """Without the comparison of the first conversation of each kind."""
    known = self._pieces(request) if request.is_usual else None
    joined = None if known is None else self._joined(known, request)
    return joined or self._inner.find(request)


@pytest.mark.parametrize("train_on", ["all", "assistant"])
@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_templates_are_joined_as_they_are_rendered(
    seed: int, train_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    rows = [drawn_row(draw, number % 6) for number in range(12)]
    num_joined = 0
    for template in opened(draw, train_on):
        rows = rows[:12] + [drawn_row(draw, number) for number in range(24)]
        joins = template._masks.joined
        if joins is None:
            continue
        with monkeypatch.context() as patch:
            patch.setattr(masks.JoinedMasks, "find", find_joined)
            joined = [rendering(template, row) for row in rows]
        num_joined += sum(pieces is not None for pieces in joins._known.values())
        with monkeypatch.context() as patch:
            patch.setattr(
                masks.JoinedMasks, "find", lambda self, request: self._inner.find(request)
            )
            assert joined == [rendering(template, row) for row in rows], template.chat_template
    assert num_joined > 0
