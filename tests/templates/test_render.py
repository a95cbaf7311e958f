"""Rendering a conversation: whitespace, dates, JSON and generation tags; what is given cannot be changed."""

import json
import pickle
from pathlib import Path
from typing import Any

import jinja2.ext
import jinja2.sandbox
import pytest

from penstock.errors import TemplateError
from penstock.templates.chat.instrument import attribute
from penstock.templates.render import Renderer

from .conversations import TEMPLATES, A, Q, chat

DAY = "2025-01-31"
CONTEXT: dict[str, Any] = {
    "messages": [Q, A],
    "tools": None,
    "documents": None,
    "add_generation_prompt": False,
}

CHANGES = (
    "{{ messages.append(1) }}",
    "{{ messages.pop() }}",
    "{{ messages[0].update(role='x') }}",
    "{{ messages.clear() }}",
)


@pytest.mark.parametrize("text", CHANGES)
def test_what_is_given_cannot_be_changed(text: str) -> None:
    given = {"messages": [{"role": "user", "content": "a"}]}
    renderer = Renderer(text, today=DAY)
    with pytest.raises(TemplateError, match="unsafe"):
        renderer.render(given)
    assert given == {"messages": [{"role": "user", "content": "a"}]}


def test_objects_of_the_data_are_out_of_reach(tmp_path: Path) -> None:
    """An array in a record could write files; a template gets to see its name."""
    import numpy as np

    place = tmp_path / "written"
    text = "{{ messages[0].image.tofile('" + str(place) + "') }}{{ messages[0].content }}"
    record = {"messages": [{**Q, "image": np.arange(3)}, A]}
    for verify in ("first", "all"):
        assert chat(text, verify=verify, on_refused="skip").encode([record]).dropped[0] in (
            "template_refused",
            "nothing_to_train",
        )
    shown = (
        chat("{% for m in messages %}{{ m.content }}{{ m.image or '' }}{% endfor %}")
        .rendering(record)
        .text
    )
    assert shown == Q["content"] + "<ndarray>" + A["content"]
    assert not place.exists()


def test_the_clock_stands_still() -> None:
    dated = Renderer("{{ strftime_now('%d %b %Y') }}", today=DAY)
    assert dated.render(CONTEXT) == "31 Jan 2025"
    assert (
        chat("llama3_2").identity()
        != chat("llama3_2", chat_template_kwargs={"date_string": "x"}).identity()
    )


def test_generation_blocks_leave_marks_and_white_space_alone() -> None:
    text = "{% for m in messages %}\n  {%- generation %}\n  {{ m.content }}\n  {%- endgeneration %}\n{% endfor %}"
    plain = text.replace("generation %}", "if true %}").replace("endif true", "endif")
    marked = Renderer(text, today=DAY)
    assert marked.has_generation
    found = attribute(marked.render(CONTEXT))
    assert found.text == attribute(Renderer(plain, today=DAY).render(CONTEXT)).text
    assert [found.text[a:b].strip() for a, b in found.tagged] == [Q["content"], A["content"]]
    assert not Renderer("{# {% generation %} #}x", today=DAY).has_generation


def test_pickles_as_its_text() -> None:
    renderer = Renderer(TEMPLATES["qwen3"], today=DAY)
    again = pickle.loads(pickle.dumps(renderer))
    assert again.engine == renderer.engine
    assert again.render(CONTEXT) == renderer.render(CONTEXT)


def test_tojson_is_that_of_transformers() -> None:
    context = {"messages": [], "x": {"b": "<é'\"", "a": [1, None, True, 1.5, 10**20]}}
    for call, expected in (
        ("tojson", '{"b": "<é\'\\"", "a": [1, null, true, 1.5, 100000000000000000000]}'),
        (
            "tojson(ensure_ascii=True)",
            '{"b": "<\\u00e9\'\\"", "a": [1, null, true, 1.5, 100000000000000000000]}',
        ),
        (
            "tojson(separators=(',', ':'))",
            '{"b":"<é\'\\"","a":[1,null,true,1.5,100000000000000000000]}',
        ),
    ):
        assert Renderer("{{ x | " + call + " }}", today=DAY).render(context) == expected


# What plain jinja2 prints, the sandbox with limits prints: letter by letter, for every operation that a template may use.
EXPRESSIONS = (
    "1 + 2 * 3 ** 2 // 4 % 5 - 6 / 4",
    "'a' + 'b' ~ 1 ~ none ~ [1, 'x'] ~ {'a': 1.5}",
    "[1] + [2] + [3] * 2, (1,) * 2, 'ab' * 3, 3 * 'ab', 'ab' * -1",
    "'%(a)s|%(a)05d|%(b)-3s' % {'a': 1, 'b': 'x'}",
    "'%s %5d|%-5s|%.2f|%05d|%%|%r' % ('a', 1, 'b', 1.5, 7, 'q')",
    "'%*d' % (5, 1), '%s' % [1], '{:>5}|{0!r}|{a[k]}'.replace('{:>5}', '').format('x', a={'k': 2})",
    "'{:>5}|{:{w}}|{:.3f}'.format('x', 'y', 1.5, w=4), '{a}'.format_map({'a': 1})",
    "'<b>' | escape, ('<b>' | safe) + '<i>', ('%s' | safe) % '<', ('a,' | safe).join(['<', 'b'])",
    "words | join(', '), words | join, words | map('upper') | join('-'), messages | map(attribute='role') | join",
    "words | sort, words | sort(reverse=true, case_sensitive=true), messages | sort(attribute='role') | map(attribute='content') | list",
    "words | unique | list, words | reverse | list, 'abc' | reverse, words | batch(2, '-') | list, words | slice(2) | list",
    "messages | groupby('role') | map('first') | list, {'b': 1, 'A': 2} | dictsort, {'b': 1} | items | list",
    "words | select('in', ['b', 'C']) | list, [0, 1] | reject('odd') | list",
    "messages | selectattr('role', 'equalto', 'user') | list | length",
    "[3, 1, 2] | sum, [[1], [2]] | sum(start=[]), [3, 1] | max, words | min, 'abc' | first, words | last, words | length",
    "' a ' | trim, 'xax' | trim('x'), 'a b' | title, 'ab' | capitalize, 'AB' | lower, 'ab' | center(6), 'a\nb' | indent(2, true)",
    "'abcdef' | truncate(3, true, '..', 0), 'a b c' | wordcount, '3' | int, 'x' | int(7), '1.5' | float",
    "2.567 | round(1), 2.1 | round(0, 'ceil')",
    "'abc'[1:], 'abc'[::-1], words[-2:], words[0], {'a': 1}['a'], {'a': 1}.a, {}.missing is defined, 'abc' | list",
    "'a-b'.split('-'), 'a b  c'.split(), 'a-b-c'.rsplit('-', 1), 'a\nb'.splitlines(), 'abc'.replace('b', 'xx'), 'ab'.partition('a')",
    "'abc'.startswith('a'), 'abc'.endswith(('c', 'd')), 'abcb'.find('b'), 'abcb'.rfind('b'), ' a '.strip(), 'xax'.lstrip('x')",
    "'a'.zfill(3)",
    "'a'.ljust(3) ~ '|', 'a\tb'.expandtabs(4), 'aB'.swapcase(), 'ab'.title(), '12'.isdigit(), 'abc'.removeprefix('a'), 'b'.join('ac')",
    "{'a': 1}.items() | list, {'a': 1}.get('b', 2), {'a': 1}.keys() | list, [1, 2, 1].count(1), words.index('b'), dict(a=1, b=2)",
    "1 == 1.0, 'a' in 'abc', 'x' not in words, 1 < 2 < 3, [1, [2]] == [1, [2]], (1, 2) < (1, 3), 'role' in messages[0], none is none",
    "messages | tojson, {'a': ['é', 1]} | tojson(indent=2), range(3) | list, words | default('x')",
    "missing | default('x'), '' | default('y', true)",
    "(messages | map(attribute='role')) is iterable, 'yes' if (words | select('none')) else 'no', 'a' is string, 5 is divisibleby 5",
)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_limits_do_not_change_what_an_expression_prints(expression: str) -> None:
    context = {**CONTEXT, "words": ["b", "a", "C", "a"]}
    plain = jinja2.sandbox.ImmutableSandboxedEnvironment()
    plain.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    text = "{{ " + expression + " }}"
    assert Renderer(text, today=DAY).render(context) == plain.from_string(text).render(context)


STATEMENTS = (
    "{% for w in words %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{% endfor %}",
    "{% for w in words %}{{ loop.previtem }}{{ loop.cycle(1, 2) }}{% endfor %}",
    "{% for w in words if w != 'a' %}{{ loop.length }}{{ w }}{% else %}none{% endfor %}",
    "{% for w in words | map('upper') %}{{ loop.length }}{{ w }}{% endfor %}{% for a, b in {'x': 1}.items() %}{{ a }}{{ b }}{% endfor %}",
    "{% for t in [1, [2, [3]]] recursive %}{% if t is iterable %}[{{ loop(t) }}]{% else %}{{ t }}{% endif %}{% endfor %}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1) }}{{ f(*[1, 2, 3], **{'c': 4}) }}",
    "{% macro f() %}<{{ caller('x') }}>{% endmacro %}{% call(y) f() %}{{ y }}!{% endcall %}",
    "{% set x %}a{{ words }}b{% endset %}{{ x | length }}{{ x }}{% set y | upper %}abc{% endset %}{{ y }}",
    "{% filter upper %}abc{{ words[0] }}{% endfilter %}",
    "{% with a = 1 %}{{ a }}{% endwith %}{% block q %}in{{ words[0] }}{% endblock %}{{ self.q() }}",
    "{% set ns = namespace(x=0, l=[]) %}{% for w in words %}{% set ns.x = ns.x + 1 %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(l=[]) %}{% for w in words %}{% set ns.l = ns.l + [w] %}{% endfor %}{{ ns.l }}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in range(9) %}{{ loop.changed(i // 2) }}{% endfor %}",
)


@pytest.mark.parametrize("text", STATEMENTS)
def test_limits_do_not_change_what_a_statement_prints(text: str) -> None:
    context = {**CONTEXT, "words": ["b", "a", "C", "a"]}
    plain = jinja2.sandbox.ImmutableSandboxedEnvironment(extensions=[jinja2.ext.loopcontrols])
    rendered = attribute(Renderer(text, today=DAY).render(context)).text
    assert rendered == plain.from_string(text).render(context)
