"""Conversations that are joined from pieces are, letter by letter and mask by mask, those that jinja2 renders."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest

from penstock.errors import TemplateError
from penstock.templates import ChatTemplate
from penstock.templates.chat import masks, pieces, proof, unknown, unrendered
from penstock.types import Samples
from tests.policy import SOAK

from .conversations import (
    CALLS,
    RESULTS,
    SHAPES,
    TEMPLATES,
    TOOL,
    WEATHER,
    A,
    Messages,
    Q,
    assistant,
    call,
    chat,
    expected_text,
    result,
    system,
    user,
)
from .families import FAMILIES

Row = dict[str, Any]
HEAD = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
TAIL = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

# In the style of five families, each with the decisions that it is known for.
STYLES = {
    "like qwen3": "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' and m.content is string and not"
    " (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n{% set content = m.content if m.content is string else '' %}"
    "{% set thought = '' %}{% if m.reasoning_content is string %}{% set thought = m.reasoning_content %}{% elif '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if m.role == 'assistant' and thought and loop.index0 > ns.last %}<think>\n{{ thought.strip('\n') }}\n</think>\n\n{% endif %}"
    "{{ content.lstrip('\n') if m.role == 'assistant' else content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}</tool_call>{% endfor %}"
    + TAIL,
    "like llama 3": "{% set system = '' %}{% if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}"
    "{% set messages = messages[1:] %}{% endif %}<|im_start|>system\n{{ system }}<|im_end|>\n"
    "{% for t in tools or [] %}{{ t | tojson(indent=4) }}{% endfor %}"
    + HEAD
    + "{{ m.content | trim }}{% for c in m.tool_calls or [] %}{{ c.function.name ~ ': ' ~ c.function.arguments | tojson }}{% endfor %}"
    + TAIL,
    "like mistral": "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% elif m.role == 'assistant' %}"
    " {{ m.content ~ '<|im_end|>' }}{% else %}{{ raise_exception('only two roles') }}{% endif %}{% endfor %}",
    "like deepseek": "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.system = ns.system + m.content + '\n' %}{% endif %}{% endfor %}{{ ns.system }}{% for m in messages %}"
    "{% if m.role == 'user' %}<|im_start|>user{{ m.content }}{% elif m.role == 'assistant' %}{% set c = m.content %}"
    "{% if c is string and '</think>' in c %}{% set c = c.split('</think>')[-1] %}{% endif %}<|im_start|>assistant{{ c }}<|im_end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}",
    "like mistral nemo": "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set loop_messages = messages[1:] %}"
    "{% else %}{% set loop_messages = messages %}{% endif %}{% for m in loop_messages %}{% if m.role == 'user' %}[INST]"
    "{% if loop.last and system is defined %}{{ system + '\n\n' }}{% endif %}{{ m.content }}[/INST]{% elif m.role == 'assistant' %}"
    "{{ m.content + '<|im_end|>' }}{% endif %}{% endfor %}",
    "like gemma": "{% macro words(c) %}{% if c is string %}{{ c | trim }}{% endif %}{% endmacro %}{% for m in messages %}"
    "{% set role = 'model' if m.role == 'assistant' else m.role %}{{ '<|im_start|>' + role + '\n' }}"
    "{% if m.role == 'assistant' %}{{ words(m.content) }}{% else %}{{ words(m.content) | replace('<x>', '') }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>model\n' }}{% endif %}",
    "like gemma 4": "{% macro strip(text) %}{% set ns = namespace(out='') %}{% for part in text.split('</x>') %}{% if '<x>' in part %}"
    "{% set ns.out = ns.out + part.split('<x>')[0] %}{% else %}{% set ns.out = ns.out + part %}{% endif %}{% endfor %}"
    "{{ ns.out | trim }}{% endmacro %}" + HEAD + "{{ strip(m.content or '') }}" + TAIL,
}
# A template may look at words in any of these ways.  Each is proven right or not proven.
HOSTILE = {
    "letters": "{% for letter in m.content %}{{ letter }}.{% endfor %}",
    "length": "{% if m.content | length > 12 %}long{% endif %}{{ m.content }}",
    "equal": "{% if m.content == 'stop' %}STOP{% else %}{{ m.content }}{% endif %}",
    "not equal": "{% if m.content != 'stop' %}{{ m.content }}{% endif %}",
    "in a list": "{% if m.content in ['stop', 'go'] %}!{% endif %}{{ m.content }}",
    "in a dict": "{{ {'stop': 'halt'}.get(m.content, m.content) }}",
    "in a text": "{% if m.content in 'do not stop now' %}!{% endif %}{{ m.content }}",
    "first letter": "{{ m.content[0] }}{{ m.content }}",
    "slice": "{{ m.content[1:-1] }}",
    "reversed": "{{ m.content | reverse }}{{ m.content }}",
    "upper": "{{ m.content | upper }}",
    "title": "{{ m.content.title() }}",
    "is lower": "{% if m.content is lower %}lower {% endif %}{{ m.content }}",
    "is string": "{% if m.content is string %}{{ m.content }}{% else %}none{% endif %}",
    "is mapping": "{% if m.content is mapping or m.content is none %}?{% endif %}{{ m.content }}",
    "counted": "{{ m.content.count('a') }}{{ m.content }}",
    "found": "{% if m.content.find('a') > 0 %}a{% endif %}{{ m.content }}",
    "joined and searched": "{% if 'ab' in 'a' + m.content %}!{% endif %}{{ m.content }}",
    "joined and stripped": "{{ (' -' ~ m.content ~ '- ') | trim }}",
    "stripped of letters": "{{ ((m.content.strip('stop') ~ ' b') | trim) }}",
    "is something left": "{% if m.content.strip('stop') %}{{ m.content }}{% else %}nothing{% endif %}",
    "begins": "{% if m.content.startswith('st') %}!{% endif %}{{ m.content }}",
    "ends": "{% if m.content.endswith('op') %}!{% endif %}{{ m.content }}",
    "joined and begins": "{% if ('<' ~ m.content).startswith('<st') %}!{% endif %}{{ m.content }}",
    "joined and ends": "{% if (m.content ~ '>').endswith('op>') %}!{% endif %}{{ m.content }}",
    "split": "{{ m.content.split('a')[-1] }}",
    "split at space": "{{ m.content.split() | join('+') }}",
    "lines": "{% for line in m.content.splitlines() %}{{ line }}|{% endfor %}",
    "replaced": "{{ m.content.replace('a', 'o') }}",
    "replaced by a filter": "{{ m.content | replace('\n', ' ') }}",
    "macro": "{% macro f(c) %}{{ c }}{% endmacro %}{{ f(m.content) | upper }}",
    "block": "{% set c %}{{ m.content }}{% endset %}{% if c | length > 12 %}long{% endif %}{{ c }}",
    "filter block": "{% filter upper %}{{ m.content }}{% endfilter %}",
    "call block": "{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}{{ m.content }}{% endcall %}",
    "chain of sets": "{% set a = m.content %}{% set b = a %}{% if b.startswith('st') %}{% set b = 'x' %}{% endif %}{{ b }}",
    "namespace": "{% set ns = namespace(c=m.content) %}{% if 'stop' in ns.c %}{% set ns.c = '!' %}{% endif %}{{ ns.c }}",
    "before": "{% if loop.previtem and loop.previtem.content == m.content %}same{% else %}{{ m.content }}{% endif %}",
    "before and after": "{{ loop.previtem.content if loop.previtem }}{{ loop.nextitem.content if loop.nextitem }}{{ m.content }}",
    "changed": "{% if loop.changed(m.content) %}{{ m.content }}{% endif %}",
    "equal messages": "{% if m == messages[0] %}first{% endif %}{{ m.content }}",
    "sorted": "{% for n in messages | sort(attribute='content') %}{{ n.content }}{% endfor %}",
    "unique": "{{ messages | map(attribute='content') | unique | list | length }}{{ m.content }}",
    "mapped": "{{ messages | map(attribute='content') | map('trim') | join(' ') }}",
    "selected": "{% for n in messages | selectattr('content', 'equalto', 'stop') %}!{% endfor %}{{ m.content }}",
    "printed list": "{{ [m.content] }}",
    "formatted": "{{ '%s' % m.content }}{{ '{}'.format(m.content) }}{{ '%5s' | format(m.content) }}",
    "repeated": "{{ m.content * 2 }}",
    "json": "{{ m.content | tojson }}{{ {'role': m.role, 'content': m.content} | tojson }}",
    "json of a message": "{{ m | tojson }}",
    "json searched": "{% if '\"' in m.content | tojson %}quoted{% endif %}",
    "number of a text": "{{ m.content | int }}{{ m.content }}",
    "default": "{{ m.content | default('nothing', true) }}{{ m.nothing | default(m.content) }}",
    "escaped": "{{ m.content | e }}",
    "refused": "{% if 'stop' in m.content %}{{ raise_exception('no') }}{% endif %}{{ m.content }}",
    "date": "{{ strftime_now('%Y') }}{{ m.content }}",
    "date of words": "{{ strftime_now(m.content) }}{{ m.content }}",
    "score": "{{ m.score }}{{ m.content }}",
    "is it a number": "{% if m.score > 1 %}high{% endif %}{{ m.content }}",
    "all fields": "{% for key, value in m.items() %}{{ key }}={{ value }};{% endfor %}",
    "unicode": "{% if m.content.isascii() %}ascii{% endif %}{{ m.content }}",
    "a mark": "\ufdd2\u0100{{ m.content }}",
    "an escaped mark": '{{ "\\ufdd2\\u0100" }}{{ m.content }}',
    "a computed mark": "{{ '%c%c' % (64978, 256) }}{{ m.content }}",
    "set block": "{% set c %}{{ m.content }}{% endset %}{% if c == 'stop' %}STOP{% endif %}{{ [c] | tojson }}",
    "recursive loop": "{% for x in [[m.content]] recursive %}{% if x is string %}{{ x }}{% elif loop(x) == 'stop' %}STOP{% else %}"
    "{{ loop(x) }}{% endif %}{% endfor %}",
    "nothing but whitespace": "{% if m.content | trim == '' %}empty{% endif %}{{ m.content }}",
    "begins like the first": "{% if m.content.startswith(messages[0].content) %}!{% endif %}{{ m.content }}",
    "place in a list": "{{ messages.index(m) }}{{ m.content }}",
    "counted texts": "{{ messages | selectattr('content', 'equalto', 'stop') | list | length }}{{ m.content }}",
    "counted by a namespace": "{% set ns = namespace(n=0) %}{% for n in messages if 'op' in n.content %}{% set ns.n = ns.n + 1 %}"
    "{% endfor %}{{ ns.n }}{{ m.content }}",
    "ends with a new line": "{% if m.content.endswith('\n') %}line{% endif %}{{ m.content }}",
    "sorted fields": "{% for key, value in m | dictsort(by='value') %}{{ key }}{{ value }}{% endfor %}",
    "not empty": "{% if not (m.content | length > 0 and m.content | count != 0 and m.content | length) %}nothing{% endif %}{{ m.content }}",
    "cut where": "{{ ('<' ~ m.content ~ '>')[2:-1] }}{{ (m.content ~ '>')[:-2] }}{{ (m.content ~ '>')[:0] }}",
    "ends cut": "{{ ('<<' ~ m.content ~ '>>')[1:-1] }}{{ ('<<' ~ m.content ~ '>')[1:] }}{{ ('<' ~ m.content ~ '>>')[:-2] }}",
    "every second letter": "{{ ('<<<' ~ m.content ~ '>>>')[::2] }}",
    "length of something": "{% if (m.content ~ '!') | length == 3 %}three{% endif %}{{ m.content }}",
    "two lengths": "{% if m.content | length == 2 or m.content | length == 4 %}even{% endif %}{{ m.content }}",
    "like mistral's calls": "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{% if m == users[-1] %}[TOOLS]{% endif %}{% for c in m.tool_calls or [] %}"
    "{% if c.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}"
    "{{ (c.function | tojson)[:-1] }}, {{ c.id }}}{% endfor %}{{ m.content }}",
    "next role": "{{ loop.nextitem.role if not loop.last }}{{ m.content }}",
}
CONTENTS = [
    *("stop", "go", "ab", "a", "o", " ", "\n", "\t x \n", " lead", "trail ", "\u00a0x\u2003", "\u200bx"),
    *("<think>", "</think>", "x</think>y", "<think>\nA\n</think>\n\nB", "<x>", "a<x>b</x>c", "</x>"),
    *("<|im_start|>", "<|im_end|>", "x <|im_end|>", "<tool_response>\nx\n</tool_response>", "</tool_call>"),
    *("{{ 7 * 7 }}", "{% raw %}", "{# x #}", "\\ \" ' < > &", "Grüße 👩‍👩‍👧 שלום", "a\r\nb\x85c\u2028d"),
    *("word " * 3000, "|", "%s %d", "None", "True", "0", "[INST]", "<|channel|>", "penstockaword"),
]  # fmt: skip
SELECTIONS: tuple[Any, ...] = ("assistant", "last", "all", ["user", "assistant"])
QUICK = [
    *("qwen3", "llama3", "gemma3", "deepseekv3", "gptoss", "gemma4_v2"),
    *STYLES,
]
EVERY = [*TEMPLATES, *STYLES]
NUM_DRAWN = 60 if SOAK else 5  # orders of a template; each with several contents


def text_of(name: str) -> str:
    return STYLES.get(name, name)


def draw_content(draw: random.Random, constants: list[str]) -> Any:
    chance = draw.random()
    if chance < 0.3:
        return f"Words {draw.randrange(100)}."
    content = draw.choice([*CONTENTS, *constants])
    if chance < 0.6:
        return content
    return draw.choice(["", None, content + "x", f"x{content}y", "x" + content, "x\n", "\n\nx"])


def draw_message(draw: random.Random, role: str, content: Callable[[], Any]) -> dict[str, Any]:
    message = {"role": role, "content": content()}
    if role == "tool":
        return {**message, "name": "add", "tool_call_id": "call00000"}
    if role != "assistant":
        return message
    if draw.random() < 0.3:
        message["reasoning_content"] = content()
    if draw.random() < 0.4:
        arguments = (
            {"a": draw.choice(CONTENTS), "b": draw.randrange(5)} if draw.random() < 0.8 else {}
        )
        calls = [
            call("add", arguments, number) for number in range(draw.choice((1, 1, 2, 3, 4, 5)))
        ]
        message["tool_calls"] = calls
    if draw.random() < 0.1:
        message["score"] = draw.choice((1, 0.5, True, None, "a", [], [1]))
    return message


ROLES = {
    "turns": ["user", "assistant"] * 2,
    "system": ["system", "user", "assistant"],
    "calls": ["user", "assistant", "tool", "assistant", "user", "assistant"],
}


def draw_rows(draw: random.Random, constants: list[str]) -> list[Row]:
    """Conversations of one order of kinds with harmless words, then of the same order with others."""
    roles = draw.choice(list(ROLES.values()))
    if draw.random() < 0.2:
        roles = [
            draw.choice(("system", "user", "assistant", "tool"))
            for _ in range(draw.randrange(1, 6))
        ]
    seed = draw.randrange(1 << 30)
    tools = draw.choice([None, None, [TOOL], [TOOL, WEATHER]])
    rows = []
    for number in range(8):
        shape = random.Random(seed)  # the same fields in all rows
        words = random.Random(draw.randrange(1 << 30))
        harmless = number < 3

        def content(words: random.Random = words, harmless: bool = harmless) -> Any:
            return f"Words {words.randrange(100)}." if harmless else draw_content(words, constants)

        messages = [draw_message(shape, role, content) for role in roles]
        rows.append({"messages": messages, "tools": tools})
    return rows


@contextmanager
def rendered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every conversation is rendered."""
    with monkeypatch.context() as patch:
        patch.setattr(masks.JoinedMasks, "find", lambda self, request: self._inner.find(request))
        yield


def encoded(template: ChatTemplate, rows: list[Row]) -> Any:
    try:
        samples: Samples = template.encode(rows)
    except TemplateError as error:
        return str(error)
    ids = samples.input_ids.tolist()
    return ids, samples.loss_mask.tolist(), samples.offsets.tolist(), samples.dropped, samples.notes


class Joins:
    """Counts the conversations that were joined."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        join = pieces.Pieces.join

        def counted(given: pieces.Pieces, values: Any) -> Any:
            found = join(given, values)
            self.count += found is not None
            return found

        patch.setattr(pieces.Pieces, "join", counted)


def constants_of(template: ChatTemplate) -> list[str]:
    prover = proof.Prover(template.renderer)
    found: set[str] = set()
    for messages, tools in SHAPES.values():
        request = template._chats.request(template.read({"messages": messages, "tools": tools}), [])
        kinds = [template._chats.kinds[number] for number in request.kinds]
        try:
            found.update(prover.prove(kinds, request.context).constants)
        except unknown.NotProven:
            continue
    return sorted(found)


@pytest.mark.parametrize("name", EVERY)
def test_joined_conversations_are_the_rendered_ones(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    joins = Joins(monkeypatch)
    draw = random.Random(name)
    is_quick = not SOAK and name not in QUICK
    selections = SELECTIONS if SOAK else SELECTIONS[: 1 if is_quick else 1 + len(name) % 3]
    for train_on in selections:
        template = chat(text_of(name), train_on=train_on, on_refused="skip", on_nothing="drop")
        constants = constants_of(template)
        for _ in range(1 if is_quick else NUM_DRAWN):
            rows = draw_rows(draw, constants)
            found = encoded(template, rows)
            with rendered(monkeypatch):
                assert found == encoded(template, rows), (train_on, rows)
    if name in STYLES:
        assert joins.count > 0


@pytest.mark.parametrize("name", STYLES)
def test_joined_text_is_that_of_transformers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    joins = Joins(monkeypatch)
    template = chat(STYLES[name], train_on="all", on_refused="skip")
    contents = [content for content in CONTENTS if len(content) < 1000 and content.strip()]
    for content in contents:
        messages: Messages = [user(content), assistant(f"{content}."), user("x"), A]
        samples = template.encode([{"messages": messages}] * 4)
        last = samples.input_ids[samples.offsets[3] : samples.offsets[4]]
        assert template.decode(last) == expected_text(STYLES[name], messages)
    assert joins.count > len(contents)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_that_looks_at_words_is_proven_right_or_not_proven(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = chat(HEAD + HOSTILE[name] + TAIL, on_refused="skip", on_missing_tokens="warn")
    rows: list[Row] = [{"messages": [Q, A]}] * 3
    rows += [{"messages": [user(content), assistant("So.")]} for content in CONTENTS]
    rows += [{"messages": [user("So."), assistant(content)]} for content in CONTENTS]
    rows += [{"messages": [Q, {**A, "score": score}]} for score in (1, 2, 2, 3, 0.5, True, None)]
    found = encoded(template, rows)
    with rendered(monkeypatch):
        assert found == encoded(template, rows)


PROVEN = {
    *("equal", "not equal", "in a list", "is string", "is mapping", "joined and stripped", "begins", "ends"),
    *("split", "replaced", "replaced by a filter", "chain of sets", "namespace", "all fields"),
    *("selected", "json", "json of a message", "default", "refused", "date", "score"),
    *("a mark", "an escaped mark", "a computed mark", "set block", "recursive loop", "next role"),
    *("nothing but whitespace", "counted texts", "counted by a namespace", "ends with a new line"),
    *("before", "changed", "equal messages", "place in a list", "not empty", "ends cut", "like mistral's calls"),
}  # fmt: skip


def test_which_of_them_are_proven() -> None:
    proven = set()
    for name, inside in HOSTILE.items():
        template = chat(HEAD + inside + TAIL, on_refused="skip", on_missing_tokens="warn")
        if template.why_rendered() is None:
            proven.add(name)
    assert proven == PROVEN


# Mutants: without a rule, a conversation comes out otherwise than jinja2 renders it.

Patch = pytest.MonkeyPatch
Text = unknown.UnknownText


def nothing_is_assumed(patch: Patch) -> None:
    patch.setattr(Text, "_assume_absent", lambda self, constant: None)


def constants_are_not_looked_for(patch: Patch) -> None:
    patch.setattr(pieces.Pieces, "_holds_constant", lambda self, values: False)


def nothing_completes_a_constant(patch: Patch) -> None:
    patch.setattr(unknown, "_may_complete", lambda literal, constant: False)


def letters_may_go(patch: Patch) -> None:
    patch.setattr(unknown, "_is_white_space", lambda characters: True)


def equal_to_nothing(patch: Patch) -> None:
    patch.setattr(Text, "__eq__", lambda self, other: False)


def ends_are_not_assumed(patch: Patch) -> None:
    patch.setattr(
        Text,
        "_has_end",
        lambda self, part, constant, has: isinstance(part, str) and has(part, constant),
    )


def nothing_is_stripped(patch: Patch) -> None:
    patch.setattr(unknown, "_strip_first", lambda parts, strip: None)


def nothing_is_split(patch: Patch) -> None:
    patch.setattr(Text, "split", lambda self, *args: [self])


def nothing_is_replaced(patch: Patch) -> None:
    patch.setattr(Text, "replaced", lambda self, *args: self)


def json_is_the_text(patch: Patch) -> None:
    patch.setattr(unknown.AsJson, "__call__", lambda self, value: f'"{value}"')


def filters_hand_on(patch: Patch) -> None:
    patch.setattr(proof._UnknownSandbox, "_filtered", lambda self, name, value, *args: value)


def every_test_says_no(patch: Patch) -> None:
    patch.setattr(proof._UnknownSandbox, "_tested", lambda self, name, value, *args: False)


def letters_are_undefined(patch: Patch) -> None:
    patch.setattr(
        proof._UnknownSandbox,
        "_attribute",
        lambda self, value, name: self.undefined(name=str(name)),
    )


def operators_hand_on(patch: Patch) -> None:
    usual = proof._UnknownSandbox.call_binop

    def handed(self: Any, context: Any, operator: str, left: Any, right: Any) -> Any:
        is_text = isinstance(left, Text) and operator != "+"
        return left if is_text else usual(self, context, operator, left, right)

    patch.setattr(proof._UnknownSandbox, "call_binop", handed)


def what_macros_print_is_known(patch: Patch) -> None:
    patch.setattr(unknown.Assumptions, "read", lambda self, value: value)


def numbers_are_seven(patch: Patch) -> None:
    patch.setitem(proof._EXACT, "int", 7)


def empty_arguments_are_one_text(patch: Patch) -> None:
    patch.setattr(proof, "ARGUMENTS", ())


def words_are_one_object(patch: Patch) -> None:
    patch.setattr(proof, "_HAND_ON", proof._HAND_ON | {"penstock_turns"})
    patch.setattr(unknown.Unknown, "__iter__", lambda self: iter([self]))


def nothing_is_compared(patch: Patch) -> None:
    patch.setattr(pieces.Pieces, "_is_comparable", lambda self, values: True)


def letters_are_cut(patch: Patch) -> None:
    patch.setattr(Text, "cut", lambda self, *args: self)


def lengths_are_zero(patch: Patch) -> None:
    patch.setattr(unknown.UnknownLength, "__gt__", lambda self, other: False)


def lengths_are_endless(patch: Patch) -> None:
    patch.setattr(unknown.UnknownLength, "__gt__", lambda self, other: True)


def a_text_has_every_length(patch: Patch) -> None:
    patch.setattr(Text, "has_length", lambda self, length: True)


def with_key(change: Callable[[masks.JoinedMasks, Any, Any], Any]) -> Callable[[Patch], None]:
    """Pieces are looked up by another key."""
    key = masks.JoinedMasks._key

    def apply(patch: Patch) -> None:
        patch.setattr(
            masks.JoinedMasks,
            "_key",
            lambda self, request: change(self, request, key(self, request)),
        )

    return apply


def kinds_of(self: masks.JoinedMasks, request: Any) -> list[str]:
    return [repr(self._chats.kinds[number]) for number in request.kinds]


roles_are_kinds = with_key(
    lambda self, request, key: (
        tuple(message["role"] for message in request.conversation.messages),
        *key[1:],
    )
)
long_lists_are_alike = with_key(
    lambda self, request, key: (
        tuple(kind.replace(", 'more'", "") for kind in kinds_of(self, request)),
        *key[1:],
    )
)
tools_are_like_each_other = with_key(
    lambda self, request, key: (*key[:2], "" if self._looks_into_tools else 1, key[3])
)
tools_are_json = with_key(
    lambda self, request, key: (
        *key[:2],
        orjson.dumps(request.conversation.tools) if self._looks_into_tools else key[2],
        key[3],
    )
)


def empty_tools_are_tools(patch: Patch) -> None:
    patch.setattr(masks.JoinedMasks, "_are_unknown", lambda self, tools: not self._looks_into_tools)


def neighbours_do_not_count(patch: Patch) -> None:
    patch.setattr(unrendered.Unrendered, "agrees", lambda self, *given: True)


def places_can_be_guessed(patch: Patch) -> None:
    patch.setattr(unknown.secrets, "token_hex", lambda size: "")


SAME: Row = {"messages": [user("So."), assistant("So.")]}
SO: Row = {"messages": [user("So."), assistant("So, so.")]}


def asked(content: str) -> Row:
    return {"messages": [user(content), assistant("So, so.")]}


def scored(score: Any) -> Row:
    return {"messages": [user("So."), assistant("So, so.", score=score)]}


def called(arguments: Any) -> Row:
    return {"messages": [Q, assistant("", tool_calls=[call("add", arguments)]), result("4"), A]}


def called_as(label: str) -> Row:
    made = {**call("add", {"a": 1}), "id": label}
    return {"messages": [Q, assistant("", tool_calls=[made]), result("4"), A]}


def offered(name: Any) -> Row:
    function = {**TOOL["function"], "name": name}  # type: ignore[dict-item]
    return {"messages": [Q, A], "tools": [{"type": "function", "function": function}]}


def with_system(content: str) -> Row:
    return {"messages": [system(content), user("So."), A, Q, assistant("a b")]}


def numbered(size: int) -> Row:
    return {"messages": [user("So."), assistant("So, so.", numbers=[1] * size)]}


def reversed_fields(row: Row) -> Row:
    return {"messages": [dict(reversed(message.items())) for message in row["messages"]]}


RAW_ARGUMENTS = (
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}"
)
SHORT = "{% if m.role != 'system' or messages | length < 5 %}{{ m.content }}{% endif %}"
LENGTH = "{{ m.content }}{{ m.numbers | length }}"
FILLED = "{% for t in tools or [] if t %}{{ t | tojson }}{% endfor %}{{ m.content }}"
NAMES = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{{ m.content }}"
NINE = (
    "{{ m.content }}{% for c in m.tool_calls or [] %}{% if c.id | length == 9 %}nine{% endif %}"
    "{% if c.id | length == 5 %}five{% endif %}{% endfor %}"
)
# rule → (mutant, inside of the loop, rows to learn from, a row that comes out otherwise)
MUTANTS: dict[str, tuple[Callable[[Patch], None], str, Row, Row]] = {
    "a constant in words is assumed absent": (nothing_is_assumed, HOSTILE["namespace"], SO, asked("stop")),
    "what is assumed is looked at": (constants_are_not_looked_for, HOSTILE["namespace"], SO, asked("stop")),
    "words may complete a constant": (nothing_completes_a_constant, HOSTILE["joined and searched"], SO, asked("bc")),
    "stripped words may be empty": (letters_may_go, HOSTILE["is something left"], SO, asked("stop")),
    "words may be equal to a constant": (equal_to_nothing, HOSTILE["equal"], SO, asked("stop")),
    "two texts are not compared": (equal_to_nothing, HOSTILE["before"], SO, {"messages": [Q, {**A, "content": Q["content"]}]}),
    "words may begin with a constant": (ends_are_not_assumed, HOSTILE["begins"], SO, asked("stop")),
    "words may end with a constant": (ends_are_not_assumed, HOSTILE["ends"], SO, asked("stop")),
    "words may complete a beginning": (ends_are_not_assumed, HOSTILE["joined and begins"], SO, asked("stop")),
    "words may complete an end": (ends_are_not_assumed, HOSTILE["joined and ends"], SO, asked("stop")),
    "texts that are taken for different ones are compared": (nothing_is_compared, HOSTILE["before"], SO, SAME),
    "a length that is assumed is measured": (nothing_is_compared, NINE, called_as("call00000"), called_as("five5")),
    "a text has one length": (a_text_has_every_length, NINE, called_as("call00000"), called_as("call00001")),
    "no text is empty": (lengths_are_zero, HOSTILE["not empty"], SO, asked("stop")),
    "a length is more than nothing, and that is all": (lengths_are_endless, HOSTILE["length"], SO, asked("stop")),
    "words are not cut": (letters_are_cut, HOSTILE["cut where"], SO, asked("stop")),
    "whitespace is stripped": (nothing_is_stripped, "{{ m.content | trim }}", SO, asked(" stop ")),
    "words without letters let strip go on": (letters_may_go, HOSTILE["stripped of letters"], SO, asked("stop")),
    "words are split": (nothing_is_split, HOSTILE["split"], SO, asked("bad")),
    "words are replaced": (nothing_is_replaced, HOSTILE["replaced"], SO, asked("bad")),
    "JSON is escaped": (json_is_the_text, HOSTILE["json"], SO, asked('a "b"')),
    "a filter without a rule ends the proof": (filters_hand_on, HOSTILE["upper"], SO, asked("bad")),
    "a test without a rule ends the proof": (every_test_says_no, HOSTILE["is lower"], SO, asked("bad")),
    "a letter has no rule": (letters_are_undefined, HOSTILE["first letter"], SO, asked("bad")),
    "an operator without a rule ends the proof": (operators_hand_on, HOSTILE["repeated"], SO, asked("bad")),
    "what a macro prints stays unknown": (what_macros_print_is_known, HOSTILE["recursive loop"], SO, asked("stop")),
    "numbers are unknown": (numbers_are_seven, HOSTILE["score"], scored(7), scored(8)),
    "empty arguments are many texts": (empty_arguments_are_one_text, RAW_ARGUMENTS, called("{}"), called(" {} ")),
    "words are not looped over": (words_are_one_object, "{{ m.content }}" + HOSTILE["letters"], SO, asked("bad")),
    "tools that are looked into count": (tools_are_like_each_other, NAMES, offered("a"), offered("b")),
    "tools count by their values, not their JSON": (tools_are_json, NAMES, offered(None), offered(float("nan"))),
    "an empty tool is false": (empty_tools_are_tools, FILLED, offered("a"), {"messages": [Q, A], "tools": [{}]}),
    "fields have an order": (roles_are_kinds, HOSTILE["all fields"], SO, reversed_fields(SO)),
    "a list has a length": (long_lists_are_alike, LENGTH, numbered(8), numbered(9)),
    "words that are not printed may occur by chance": (neighbours_do_not_count, SHORT, with_system("So, so."), with_system("b")),
    "a template may print what marks words": (places_can_be_guessed, HOSTILE["an escaped mark"], SO, SO),
}  # fmt: skip


def comes_out_as_rendered(inside: str, first: Row, second: Row, monkeypatch: Patch) -> bool:
    """Without the comparison with jinja2's own rendering, which would find the mistake in first rows."""
    options: dict[str, Any] = {"on_refused": "skip", "on_missing_tokens": "warn", "train_on": "all"}
    template = chat(HEAD + inside + TAIL, arguments="as_is", **options)
    rows = [*([first] * 4), second, second]
    with monkeypatch.context() as patch:

        def find(self: masks.JoinedMasks, request: Any) -> Any:
            found = self._pieces(request)
            joined = None if found is None else self._joined(found, request)
            return joined or self._inner.find(request)

        patch.setattr(masks.JoinedMasks, "find", find)
        found = encoded(template, rows)
    with rendered(monkeypatch):
        return bool(found == encoded(template, rows))


@pytest.mark.parametrize("rule", MUTANTS)
def test_without_the_rule_a_text_is_another_one(rule: str, monkeypatch: Patch) -> None:
    mutant, *case = MUTANTS[rule]
    assert comes_out_as_rendered(*case, monkeypatch)
    with monkeypatch.context() as patch:
        mutant(patch)
        assert not comes_out_as_rendered(*case, monkeypatch)


def test_a_difference_is_found_in_the_first_rows(monkeypatch: Patch) -> None:
    nothing_is_stripped(monkeypatch)
    template = chat(HEAD + "{{ m.content | trim }}" + TAIL, on_refused="skip")
    with pytest.raises(TemplateError, match="in another way than its syntax tree says"):
        template.encode([asked(" x ")] * 3)


def test_spans_that_differ_are_found_in_the_first_rows(monkeypatch: Patch) -> None:
    join = pieces.Pieces.join

    def shifted(self: pieces.Pieces, values: Any) -> Any:
        text, spans = join(self, values) or ("", [])
        return text, [(start + 1, stop) for start, stop in spans]

    monkeypatch.setattr(pieces.Pieces, "join", shifted)
    with pytest.raises(TemplateError, match="not those of made-up conversations of its kind"):
        chat("qwen3", on_refused="skip").encode([{"messages": [Q, A]}] * 3)


def test_tool_conversations_are_joined(monkeypatch: Patch) -> None:
    joins = Joins(monkeypatch)
    template = chat("qwen3")
    row = {"messages": [Q, assistant("", tool_calls=[CALLS[0]]), RESULTS[0], A], "tools": [TOOL]}
    samples = template.encode([row, *([{**row, "tools": [WEATHER]}] * 9)])
    assert (
        joins.count == 9 and not samples.dropped
    )  # the first one is remembered, the next one learned from


def test_a_template_says_whether_chats_are_joined() -> None:
    assert chat("qwen3").why_rendered() is None
    assert "joined" in repr(chat("qwen3"))
    why = chat(HEAD + HOSTILE["upper"] + TAIL).why_rendered()
    assert why is not None and "the filter 'upper'" in why


def test_plain_chats_of_well_known_families_are_joined() -> None:
    """Those that docs/concepts/templates.md names."""
    rendered_ones = {name for name in FAMILIES if chat(FAMILIES[name]).why_rendered() is not None}
    assert rendered_ones == {"harmony"}
