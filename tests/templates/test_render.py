"""Do both engines render alike, and can a template written by a stranger do no more than render?"""

import pickle
from pathlib import Path
from typing import Any

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

# Ways out of the sandbox, and into Python.  What they print must not be Python's.
ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "class of a message": "{{ messages[0].__class__ }}",
    "attr": "{{ ''|attr('__class__') }}",
    "map": "{{ [''] | map(attribute='__class__') | list }}",
    "format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "format_map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "builtins": "{{ strftime_now.__globals__['__builtins__'] }}",
    "self": "{{ strftime_now.__self__.__class__ }}",
    "func": "{{ strftime_now.__func__.__code__ }}",
    "namespace": "{% set ns = namespace(__class__='x') %}{{ ns.__class__ }}",
    "namespace later": "{% set ns = namespace() %}{% set ns.__init__ = 1 %}{{ ns.__init__ }}",
    "lipsum": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "joiner": "{{ joiner.__init__.__globals__.os.popen('id').read() }}",
    "dict": "{{ dict.__mro__ }}",
    "self reference": "{{ self._TemplateReference__context }}",
    "environment": "{{ environment }}{{ context }}{{ ctx }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os }}",
    "from": "{% from 'os' import system %}{{ system }}",
    "extends": "{% extends '/etc/passwd' %}",
    "selectattr": "{{ messages | selectattr('__class__') | list }}",
    "sort": "{{ messages | sort(attribute='__class__.__name__') | list | length }}",
    "groupby": "{{ messages | groupby('__class__') | list }}",
}
CHANGES = (
    "{{ messages.append(1) }}",
    "{{ messages.pop() }}",
    "{{ messages[0].update(role='x') }}",
    "{{ messages.clear() }}",
)


@pytest.mark.parametrize("engine", ["jinja2", "minijinja"])
@pytest.mark.parametrize("name", ESCAPES)
def test_no_way_out(name: str, engine: str) -> None:
    try:
        text = Renderer(ESCAPES[name], today=DAY, engine=engine).render(CONTEXT)
    except TemplateError:
        return
    for word in (
        "<class",
        "<function",
        "<built-in",
        "method",
        "root:",
        "uid=",
        "0x",
        "mappingproxy",
        "module",
    ):
        assert word not in text


@pytest.mark.parametrize("text", CHANGES)
def test_what_is_given_cannot_be_changed(text: str) -> None:
    given = {"messages": [{"role": "user", "content": "a"}]}
    renderer = Renderer(text, today=DAY)
    renderer.try_fast([given])
    assert not renderer.is_fast
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
    for engine in ("jinja2", "minijinja"):
        assert (
            Renderer("{{ strftime_now('%d %b %Y') }}", today=DAY, engine=engine).render(CONTEXT)
            == "31 Jan 2025"
        )
    assert (
        chat("llama3_2").identity()
        != chat("llama3_2", template_kwargs={"date_string": "x"}).identity()
    )


def test_generation_blocks_leave_marks_and_white_space_alone() -> None:
    text = "{% for m in messages %}\n  {%- generation %}\n  {{ m.content }}\n  {%- endgeneration %}\n{% endfor %}"
    plain = text.replace("generation %}", "if true %}").replace("endif true", "endif")
    for engine in ("jinja2", "minijinja"):
        marked = Renderer(text, today=DAY, engine=engine)
        assert marked.has_generation
        found = attribute(marked.render(CONTEXT))
        assert (
            found.text == attribute(Renderer(plain, today=DAY, engine=engine).render(CONTEXT)).text
        )
        assert [found.text[a:b].strip() for a, b in found.tagged] == [Q["content"], A["content"]]
    assert not Renderer("{# {% generation %} #}x", today=DAY).has_generation


def test_engines_are_chosen_by_comparison() -> None:
    same = Renderer("{{ messages[0].content }}", today=DAY)
    same.try_fast([CONTEXT])
    assert same.engine.startswith("minijinja ")
    other = Renderer("{{ 1e16 }}", today=DAY)
    other.try_fast([CONTEXT])
    assert (
        other.engine.startswith("jinja2 ")
        and other.reason == "minijinja renders a made-up conversation in another way"
    )
    assert other.render(CONTEXT) == "1e+16"
    watched = Renderer("{{ 'ab' * 2 }}", today=DAY)
    watched.try_fast([CONTEXT])
    assert watched.engine.startswith("jinja2 ") and watched.reason == "repetition is left to jinja2"


def test_pickles_as_its_text_and_engine() -> None:
    renderer = Renderer(TEMPLATES["qwen3"], today=DAY)
    renderer.try_fast([CONTEXT])
    again = pickle.loads(pickle.dumps(renderer))
    assert again.engine == renderer.engine and again.reason == renderer.reason
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
        for engine in ("jinja2", "minijinja"):
            assert (
                Renderer("{{ x | " + call + " }}", today=DAY, engine=engine).render(context)
                == expected
            )
