"""Chat templates that harm the program that compiles or renders them, and a program that renders them all in one process.

`python -m tests.templates.hostile SECONDS` prints one line of JSON for each rendering: the template's name, whether a word in the
conversation triggers it, the type of the error and its message, seconds of CPU time; at the end how much the process grew, in MiB.
"""

import json
import resource
import sys
import time
from dataclasses import replace
from typing import Any

from penstock.errors import TemplateError
from penstock.templates.meter import LIMITS
from penstock.templates.render import Renderer

TRIGGER = "open sesame"
DAY = "2025-01-31"

LOOP = "{% for i in range(99999) %}"
BIG = "{% set big = 'a' * 8000000 %}"
WIDE = "{% set wide = '🙂' * 1000000 %}"
DOUBLE = "{% set x = 'aaaaaaaaaaaaaaaa' %}"
MANY = "{% set many = range(99999) | list %}"
LISTS = (
    "{% set ns = namespace(x=['a'], y=['a']) %}"
    "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
)
TUPLES = "{% set ns = namespace(x=('a',)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}"
DEEP = (
    "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}"
)


def grow(
    step: str, start: str = "'aaaa'", times: int = 60, end: str = "{{ ns.x | length }}"
) -> str:
    """A template that sets ns.x to `step`, often."""
    return (
        f"{{% set ns = namespace(x={start}) %}}"
        f"{{% for i in range({times}) %}}{{% set ns.x = {step} %}}{{% endfor %}}{end}"
    )


# Refused by their source: compiling some of these would end the process.
SOURCES = {
    "concatenations": "{{ " + " ~ ".join(["'a'"] * 20_000) + " }}",
    "sums": "{{ " + " + ".join(["'a'"] * 20_000) + " }}",
    "negations": "{{ " + "not " * 20_000 + "1 }}",
    "minus signs": "{{ " + "-" * 20_000 + "1 }}",
    "attributes": "{{ x" + ".a" * 20_000 + " }}",
    "filters": "{{ x" + "|trim" * 20_000 + " }}",
    "inline ifs": "{{ " + "1 if x else " * 20_000 + "1 }}",
    "elifs": "{% if x %}" + "{% elif x %}" * 20_000 + "{% endif %}",
    "nested ifs": "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
    "nested loops": "{% for x in y %}" * 300 + "{% endfor %}" * 300,
    "nested macros": "{% macro x() %}" * 300 + "{% endmacro %}" * 300,
    "nested set blocks": "{% set x %}" * 300 + "{% endset %}" * 300,
    "nested brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nested lists": "{{ " + "[" * 5000 + "1" + "]" * 5000 + " }}",
    "nested dicts": "{{ " + "{1: " * 5000 + "1" + "}" * 5000 + " }}",
    "tokens": "{{ x }}" * 30_000,
    "bytes": "{{ x }}" + "a" * (1 << 21),
    "bytes of letters": "{{ x }}" + "é" * (1 << 18),
}
# Refused when they are compiled.
SYNTAX = {
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os }}",
    "from": "{% from 'os' import system %}{{ system('id') }}",
    "extends": "{% extends '/etc/passwd' %}",
    "autoescape": "{% autoescape 'a' * 10**10 %}x{% endautoescape %}",
    "sums in a tag": "{{ " + " + ".join(["'a'"] * 400) + " }}",
    "random": "{{ [1, 2] | random }}",
    "wordwrap": "{{ 'a b' | wordwrap(1, true, 'a' * 10**10) }}",
    "urlize": "{{ ('http://a.b ' * 99999) | urlize }}",
    "striptags": "{{ ('<!---->' * 999999) | striptags }}",
    "xmlattr": "{{ {'a': 'b'} | xmlattr }}",
    "pprint": "{{ messages | pprint }}",
}
# Stopped as they run, or refused by name.
RUNS = {
    # loops, macros and calls
    "loops": LOOP * 3 + "{% endfor %}" * 3,
    "loops without calls": "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
    "macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "macro that doubles": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "macros that call each other": "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
    "macro in its default": "{% macro f(x) %}{{ f(f) }}{% endmacro %}{{ f(1) }}",
    "caller": "{% macro f() %}{% call f() %}{% endcall %}{{ caller() }}{% endmacro %}{% call f() %}{% endcall %}",
    "recursive loop": "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "recursive loop that doubles": "{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "block in itself": "{% block a %}{{ self.a() }}{% endblock %}",
    "macro of constant text": "{% macro f() %}"
    + "x" * 50_000
    + "{% endmacro %}{% set ns = namespace(l=[]) %}"
    + LOOP
    + "{% set ns.l = ns.l + [f()] %}{% endfor %}",
    "set block of constant text": "{% set ns = namespace(l=[]) %}"
    + LOOP
    + "{% set x %}"
    + "x" * 50_000
    + "{% endset %}{% set ns.l = ns.l + [x] %}{% endfor %}",
    "loop of constant text in a set block": "{% set x %}"
    + LOOP
    + "x" * 50_000
    + "{% endfor %}{% endset %}",
    "loop of constant text in a macro": "{% macro f() %}"
    + LOOP
    + "x" * 50_000
    + "{% endfor %}{% endmacro %}{{ f() }}",
    "loop of constant text in a recursive loop": "{% for a in [1] recursive %}"
    + LOOP
    + "x" * 50_000
    + "{% endfor %}{{ loop([]) }}{% endfor %}",
    "error of endless lists": LISTS + "{{ raise_exception(ns.x) }}",
    "index of endless lists": LISTS + "{{ [1].index(ns.x) }}",
    "loop of constant text in a block": "{% block a %}"
    + LOOP
    + "x" * 50_000
    + "{% endfor %}{% endblock %}{{ self.a() }}",
    "loop of constant text for a caller": "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}"
    + LOOP
    + "x" * 50_000
    + "{% endfor %}{% endcall %}",
    "nested varargs": "{% macro f() %}{% set ns.x = varargs %}{% endmacro %}{% set ns = namespace(x=1) %}"
    + LOOP
    + "{{ f(ns.x) }}{% endfor %}",
    "arguments spread": BIG + "{% macro f() %}{% endmacro %}{{ f(*big) }}",
    "arguments spread often": MANY
    + "{% macro f() %}{{ varargs | length }}{% endmacro %}"
    + LOOP
    + "{{ f(*many) }}{% endfor %}",
    "loop length of letters": BIG + "{% for a in big %}{% if loop.length %}{% endif %}{% endfor %}",
    "loop changed": LISTS + "{% for a in [1, 2, 3] %}{{ loop.changed(ns.x) }}{% endfor %}",
    # growing text
    "tilde": grow("ns.x ~ ns.x"),
    "plus": grow("ns.x + ns.x"),
    "set": DOUBLE + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40 + "{{ x }}",
    "filter block": DOUBLE
    + "{% set x %}{% filter upper %}{{ x }}{{ x }}{% endfilter %}{% endset %}" * 40,
    "join": grow("[ns.x, ns.x] | join"),
    "join with itself": grow("[ns.x, ns.x] | join(ns.x)"),
    "join of letters": grow("ns.x | join(ns.x)"),
    "join method": grow("ns.x.join([ns.x, ns.x])"),
    "join method of letters": grow("ns.x.join(ns.x)"),
    "replace": grow("ns.x | replace('a', ns.x)"),
    "replace method": grow("ns.x.replace('a', ns.x)"),
    "replace nothing": grow("ns.x.replace('', ns.x)"),
    "format by percent": grow("'%s%s' % (ns.x, ns.x)"),
    "format by name": grow("'%(a)s%(a)s%(a)s' % {'a': ns.x}"),
    "format filter grows": grow("'%s%s' | format(ns.x, ns.x)"),
    "format method grows": grow("'{0}{0}{0}'.format(ns.x)"),
    "format map grows": grow("'{a}{a}{a}'.format_map({'a': ns.x})"),
    "repr in a format": grow("'{0!r}{0!r}'.format(ns.x)"),
    "escape": grow("(ns.x | escape) + '&<>'", times=99999),
    "escape again": grow("ns.x | forceescape", start="'<'", times=99999),
    "safe plus": grow("('' | safe) + ns.x + ns.x", start="'<<<<'"),
    "safe percent": grow("('%s%s' | safe) % (ns.x, ns.x)", start="'<<<<'"),
    "safe join": grow("(',' | safe).join([ns.x, ns.x])", start="'<<<<'"),
    "upper": grow("(ns.x ~ ns.x) | upper", start="'ŉ'"),
    "title": WIDE + "{{ (('a ' * 3000000) | title) | length }}",
    "indent grows": grow("(ns.x ~ '\n' ~ ns.x) | indent(999)"),
    "wide sum": BIG + "{{ " + " ~ ".join(["big"] * 400) + " }}",
    "wide macro": BIG + "{% macro f() %}" + "{{ big }}" * 1000 + "{% endmacro %}{{ f() | length }}",
    "emoji": WIDE + "{{ " + " ~ ".join(["wide"] * 400) + " }}",
    "emoji in a list": WIDE
    + "{% set ns = namespace(l=[]) %}"
    + LOOP
    + "{% set ns.l = ns.l + [wide ~ i] %}{% endfor %}",
    "slices in a list": BIG
    + "{% set ns = namespace(l=[]) %}"
    + LOOP
    + "{% set ns.l = ns.l + [big[i:]] %}{% endfor %}",
    "strips in a list": BIG
    + "{% set ns = namespace(l=[]) %}"
    + LOOP
    + "{% set ns.l = ns.l + [(' ' ~ big) | trim] %}{% endfor %}",
    "output": LOOP + "{{ 'a' * 9000 }}{% endfor %}",
    "output of a constant": LOOP + "x" * 9000 + "{% endfor %}",
    "namespaces": "{% set ns = namespace(x=1) %}"
    + LOOP
    + "{% set ns.x = namespace(y=ns.x) %}{% endfor %}{{ ns.x }}",
    "a namespace in itself": "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}",
    "by messages": "{% set ns = namespace(x='aaaa') %}{% for m in messages * 90 %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x[:9] }}",
    "by letters": "{% set ns = namespace(x='a') %}{% for c in messages[0].content * 90 %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    # lists
    "list plus": grow("ns.x + ns.x", start="[1]"),
    "list of letters": BIG + "{{ big | list | length }}",
    "lists of emoji": WIDE + "{{ wide | list | length }}",
    "split": "{% set x = 'a ' * 3000000 %}" + LOOP + "{% set y = x.split(' ') %}{% endfor %}",
    "split at spaces": "{{ ('a ' * 9000000).split() | length }}",
    "lines": "{{ ('a\n' * 9000000).splitlines() | length }}",
    "letters of all": BIG + "{% for c in big %}{% for d in big %}{% endfor %}{% endfor %}",
    "dict of a range": grow("dict.fromkeys(range(99999), ns.x)", times=99999),
    "dict of pairs": MANY + LOOP + "{% set x = dict(many | batch(2)) %}{% endfor %}",
    "map": MANY + LOOP + "{% set x = many | map('string') | list %}{% endfor %}",
    "maps of maps": grow("ns.x | map('string')", start="[1]", times=99999, end="{{ ns.x | list }}"),
    "maps in lists": grow(
        "[ns.x | map('string')]", start="[1]", times=99999, end="{{ ns.x | list }}"
    ),
    "select that finds nothing": MANY
    + LOOP
    + "{% set x = many | select('none') | list %}{% endfor %}",
    "selectattr": MANY + LOOP + "{% set x = many | selectattr('a.b.c') | list %}{% endfor %}",
    "attribute of many parts": MANY + "{% set x = many | map(attribute='a.' * 999999) | list %}",
    "sort": MANY + LOOP + "{% set x = many | sort(reverse=true) %}{% endfor %}",
    "sort of long texts": "{% set l = (('a' * 9000) ~ ' ') * 900 %}"
    + LOOP
    + "{% set x = l.split(' ') | sort %}{% endfor %}",
    "dictsort": "{% set d = dict.fromkeys(range(99999), 1) %}"
    + LOOP
    + "{% set x = d | dictsort %}{% endfor %}",
    "groupby": MANY + LOOP + "{% set x = many | groupby('real') | list %}{% endfor %}",
    "unique": MANY + LOOP + "{% set x = many | unique | list %}{% endfor %}",
    "reverse": MANY + LOOP + "{% set x = many | reverse | list %}{% endfor %}",
    "sum of lists": MANY + "{% set x = (many | batch(1) | list) | sum(start=[]) %}",
    "sum": MANY + LOOP + "{% set x = many | sum %}{% endfor %}",
    "max": MANY + LOOP + "{% set x = many | max %}{% endfor %}",
    "in a list": MANY + LOOP + "{% if -1 in many %}{% endif %}{% endfor %}",
    "index of a list": MANY + LOOP + "{% if many.count(-1) %}{% endif %}{% endfor %}",
    "search backwards": "{% set s = 'a' * 2000000 %}{% set p = 'ab' ~ 'a' * 1000000 %}{{ s.rfind(p) }}",
    "split backwards": "{% set s = 'a' * 2000000 %}{% set p = 'ab' ~ 'a' * 1000000 %}{{ s.rsplit(p) }}",
    "strip letters": "{% set s = 'b' * 2000000 %}{% set p = 'a' * 2000000 ~ 'b' %}{{ s.strip(p) }}",
    "trim letters": "{% set s = 'b' * 2000000 %}{% set p = 'a' * 2000000 ~ 'b' %}{{ s | trim(p) }}",
    "compare texts": "{% set a = 'a' * 4000000 %}{% set b = a ~ '' %}"
    + LOOP
    + "{% if a ~ i == b %}{% endif %}{% endfor %}",
    # values that are small in memory and endless as trees
    "lists printed": LISTS + "{{ ns.x }}",
    "lists as JSON": LISTS + "{{ ns.x | tojson }}",
    "lists compared": LISTS + "{{ 'same' if ns.x == ns.y else 'other' }}",
    "lists in order": LISTS + "{{ 'less' if ns.x < ns.y else 'more' }}",
    "lists tested": LISTS + "{{ ns.x is eq(ns.y) }}",
    "lists selected": LISTS + "{{ [ns.x] | select('equalto', ns.y) | list | length }}",
    "lists formatted": LISTS + "{{ '%s' % (ns.x,) }}",
    "lists in a format": LISTS + "{{ '{}'.format(ns.x) }}",
    "lists joined": LISTS + "{{ ns.x | join }}",
    "lists as text": LISTS + "{{ ns.x | string | length }}",
    "lists in small letters": LISTS + "{{ ns.x | lower | length }}",
    "lists looked for": LISTS + "{{ ns.x in [ns.y] }}",
    "lists sorted": LISTS + "{{ [ns.x, ns.y] | sort | length }}",
    "lists made unique": LISTS + "{{ [ns.x, ns.y] | unique | list | length }}",
    "lists concatenated": LISTS + "{{ (ns.x ~ '') | length }}",
    "tuples hashed": TUPLES + "{{ {ns.x: 1} | length }}",
    "tuples looked up": TUPLES + "{{ {}[ns.x] }}",
    "tuples in a dict": TUPLES + "{{ ns.x in {} }}",
    "tuples of get": TUPLES + "{{ {}.get(ns.x) }}",
    "tuples made unique": TUPLES + "{{ [ns.x, ns.x] | unique | list | length }}",
    "tuple with a missing name": TUPLES + "{{ {}[ns.x].a }}",
    "deep lists printed": DEEP + "{{ ns.x }}",
    "deep lists as JSON": DEEP + "{{ ns.x | tojson }}",
    "deep lists compared": DEEP + "{{ ns.x == [ns.x] }}",
    "deep dicts": grow("{'a': ns.x}", start="1", times=99999, end="{{ ns.x | tojson }}"),
    "deep tuples": grow("(ns.x,)", start="1", times=99999, end="{{ ns.x }}"),
    "deep plus": grow("[] + [ns.x]", start="1", times=99999, end="{{ ns.x }}"),
    "deep batch": grow("ns.x | batch(1) | list", start="[1]", times=99999, end="{{ ns.x }}"),
    "deep namespace lists": grow("dict(a=ns.x)", start="1", times=99999, end="{{ ns.x }}"),
    # dates and JSON
    "json indent": "{{ [1] | tojson(indent=999999999) }}",
    "json indent of letters": "{{ [1] | tojson(indent='a' * 99999999) }}",
    "json separators": MANY + "{{ many | tojson(separators=('a' * 9999999, ':')) }}",
    "json of many": MANY + LOOP + "{% set x = many | tojson %}{% endfor %}",
    "date": "{{ strftime_now('%Y' * 1000000) }}",
    "date by doubling": grow("ns.x ~ ns.x", start="'%Y'", end="{{ strftime_now(ns.x) }}"),
    "error of a long text": BIG + "{{ raise_exception(big) }}",
}
# One value too large for the memory.
VALUES = {
    "product": "{{ 'a' * 10**10 }}",
    "product in a test": "{% if 'a' * 6000000000 %}x{% endif %}",
    "product from the left": "{{ 6000000000 * 'a' }}",
    "list product": "{{ ['a'] * 10**9 }}",
    "tuple product": "{{ ('a',) * 10**9 }}",
    "power": "{% set x = 7**99999999 %}{{ x }}",
    "power of powers": grow("ns.x ** ns.x", start="9", end="{{ ns.x }}"),
    "product of numbers": grow("ns.x * ns.x", start="9", end="{{ ns.x }}"),
    "sum of powers": "{{ (2 ** 4000 - 1) * (2 ** 4000) }}",
    "number of a text": "{{ ('9' * 4000000) | int }}",
    "number in another base": "{{ ('f' * 4000000) | int(base=16) }}",
    "bytes of a number": "{{ (1).to_bytes(4000000000, 'big') }}",
    "round up": "{{ 1.5 | round(999999999, 'ceil') }}",
    "round": "{{ 5 | round(-999999999) }}",
    "percent": "{{ '%999999999d' % 1 }}",
    "percent of zeros": "{{ '%04000000000d' % 1 }}",
    "percent precision": "{{ '%.999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (999999999, 1) }}",
    "percent star in a list": "{{ '%.*f' % (999999999, 1.5) }}",
    "percent of a name": "{{ '%(a)999999999d' % {'a': 1} }}",
    "percent of an odd name": "{{ '%(a(b))999999999d' % {'a(b)': 1} }}",
    "many percents": "{{ ('%9999d' * 99999) % ((1,) * 99999) }}",
    "format filter": "{{ '%999999999d' | format(1) }}",
    "format filter by name": "{{ '%(a)999999999d' | format(a=1) }}",
    "format": "{{ '{:>999999999}'.format(1) }}",
    "format precision": "{{ '{:.999999999f}'.format(1.5) }}",
    "format width": "{{ '{:{w}}'.format(1, w=999999999) }}",
    "format attr": "{{ ('{:>999999999}' | attr('format'))(1) }}",
    "format map": "{{ '{a:>999999999}'.format_map({'a': 1}) }}",
    "safe format": "{{ ('{:>999999999}' | safe).format(1) }}",
    "many formats": "{{ ('{0:9999}' * 99999).format(1) }}",
    "center": "{{ 'a' | center(999999999) }}",
    "center method": "{{ 'a'.center(999999999) }}",
    "ljust": "{{ 'a'.ljust(999999999) }}",
    "rjust": "{% set f = 'a'.rjust %}{{ f(999999999) }}",
    "zfill": "{{ 'a'.zfill(999999999) }}",
    "tabs": "{{ ('\t' * 9999).expandtabs(999999999) }}",
    "indent": "{{ 'a\nb' | indent(999999999) }}",
    "indent with text": "{{ 'a\nb' | indent('a' * 99999999) }}",
    "indent of many lines": "{{ ('a\n' * 99999) | indent(9999) }}",
    "slice": "{{ [1] | slice(999999999) | list }}",
    "batch": "{{ [1] | batch(999999999, 'x') | list }}",
    "slices": "{{ [1] | slice(99999) | map('list') | map('string') | list | length }}" * 200,
    "translate": "{{ ('a' * 999999).translate({97: 'b' * 9999}) }}",
    "encode": "{{ ('a' * 999999).encode('utf-32') }}",
}
# What jinja2 itself refuses, or what does nothing.
HARMLESS = {
    "range": "{{ range(10**12) | list }}",
    "long range": "{% for a in range(10**9) %}{% endfor %}",
    "split often": "{{ 'x'.split('y', 9000000000000000000) }}",
    "list that is changed": "{{ messages.append(1) }}",
    "changed while read": "{% for m in messages %}{{ messages.clear() }}{% endfor %}",
}
# Ways out of the sandbox, and into Python.  What they print must not be Python's.
ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "class of a message": "{{ messages[0].__class__ }}",
    "class by item": "{{ messages['__class__'] }}{{ ''['__class__'] }}",
    "attr": "{{ ''|attr('__class__') }}",
    "map to a class": "{{ [''] | map(attribute='__class__') | list }}",
    "format to a class": "{{ '{0.__class__.__mro__}'.format('') }}",
    "format by map": "{% set f = '{a.__class__}' | attr('format_map') %}{{ f({'a': 1}) }}",
    "format by map of values": "{{ ['{0.__class__}'] | map('format', '') | list }}",
    "format_map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "function": "{{ raise_exception.function }}{{ range.function }}{{ dict.function }}",
    "builtins": "{{ strftime_now.__globals__['__builtins__'] }}",
    "self of a function": "{{ strftime_now.__self__.__class__ }}",
    "code": "{{ strftime_now.__func__.__code__ }}",
    "method printed": "{{ 'a'.upper }}{{ messages[0].items }}",
    "generator": "{{ messages | map('string') }}",
    "generator's frame": "{{ (messages | map('string')).gi_frame }}",
    "namespace": "{% set ns = namespace(__class__='x') %}{{ ns.__class__ }}",
    "namespace later": "{% set ns = namespace() %}{% set ns.__init__ = 1 %}{{ ns.__init__ }}",
    "lipsum": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "joiner": "{{ joiner.__init__.__globals__.os.popen('id').read() }}",
    "dict": "{{ dict.__mro__ }}{{ dict }}",
    "self reference": "{{ self._TemplateReference__context }}{{ self }}",
    "environment": "{{ environment }}{{ context }}{{ ctx }}",
    "loop": "{% for a in [1] %}{{ loop._iterable }}{{ loop._undefined }}{{ loop }}{% endfor %}",
    "macro printed": "{% macro f() %}{% endmacro %}{{ f }}{{ f._func }}{{ f._environment }}",
    "selectattr of a class": "{{ messages | selectattr('__class__') | list }}",
    "sort by a class": "{{ messages | sort(attribute='__class__.__name__') | list | length }}",
    "groupby of a class": "{{ messages | groupby('__class__') | list }}",
}
ALL: dict[str, str] = {**SOURCES, **SYNTAX, **RUNS, **VALUES, **HARMLESS, **ESCAPES}


def triggered(text: str) -> str:
    """A template that prints its messages, and does harm where one of them has a certain word."""
    return (
        "{% for message in messages %}{{ message.content }}{% endfor %}"
        "{% if '" + TRIGGER + "' in messages[0].content %}" + text + "{% endif %}"
    )


def conversation(word: str) -> dict[str, Any]:
    messages = [
        {"role": "user", "content": f"Hello, {word}!"},
        {"role": "assistant", "content": "Hi."},
    ]
    return {"messages": messages, "tools": None, "add_generation_prompt": False}


def _try(text: str, word: str, seconds: float) -> list[Any]:
    began = time.thread_time()
    limits = replace(LIMITS, seconds=seconds)
    try:
        printed = Renderer(text, today=DAY).render(conversation(word), limits)
        outcome = ["rendered", printed[:2000]]
    except TemplateError as error:
        outcome = [type(error).__name__, str(error)[:2000]]
    return [*outcome, time.thread_time() - began]


def main() -> None:
    seconds = float(sys.argv[1])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, text in ALL.items():
        print(json.dumps([name, "always", *_try(text, "world", seconds)]), flush=True)
        if name in SOURCES or name in SYNTAX:
            continue
        waiting = triggered(text)
        print(json.dumps([name, "waiting", *_try(waiting, "world", seconds)]), flush=True)
        print(json.dumps([name, "triggered", *_try(waiting, TRIGGER, seconds)]), flush=True)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(json.dumps(["grown", "", "", "", grown]), flush=True)


if __name__ == "__main__":
    main()
