"""Chat templates that harm the program that compiles or renders them, and a program that opens them all as a user would.

`python -m tests.templates.hostile` prints one line of JSON per template: its name, the type of the error, and the message.
"""

import json

from penstock.errors import TemplateError
from penstock.templates import trial

from .conversations import chat

DOUBLE = "{% set x = 'aaaaaaaaaaaaaaaa' %}"
LISTS = (
    "{% set ns = namespace(x=['a'], y=['a']) %}"
    "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
)
GROW = "{% set ns = namespace(x='a') %}{% for m in messages %}{% set ns.x = ns.x ~ ns.x %}{{ m.content }}{% endfor %}{{ ns.x[:9] }}"

# Refused by their source: compiling some of these ends the process.
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
# Refused as they run.
RUNS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops without calls": "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}",
    "macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "macro that doubles": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loop": "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "power": "{% set x = 7**99999999 %}{{ x }}",
    "tilde": "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "plus": "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
    "set": DOUBLE + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40 + "{{ x }}",
    "join": DOUBLE + "{% set x = [x, x] | join %}" * 40 + "{{ x }}",
    "join method": DOUBLE + "{% set x = x.join([x, x]) %}" * 40 + "{{ x }}",
    "replace": DOUBLE + "{% set x = x | replace('a', x) %}" * 6 + "{{ x }}",
    "replace method": DOUBLE + "{% set x = x.replace('a', x) %}" * 6 + "{{ x }}",
    "wide sum": "{% set x = 'a' * 20000000 %}{{ " + " ~ ".join(["x"] * 400) + " }}",
    "wide macro": "{% set x = 'a' * 20000000 %}{% macro f() %}"
    + "{{ x }}" * 1000
    + "{% endmacro %}{{ f() | length }}",
    "lists printed": LISTS + "{{ ns.x }}",
    "lists as JSON": LISTS + "{{ ns.x | tojson }}",
    "lists compared": LISTS + "{{ 'same' if ns.x == ns.y else 'other' }}",
    "lists in order": LISTS + "{{ 'less' if ns.x < ns.y else 'more' }}",
    "lists formatted": LISTS + "{{ '%s' % (ns.x,) }}",
    "lists in a format": LISTS + "{{ '{}'.format(ns.x) }}",
    "lists joined": LISTS + "{{ ns.x | join }}",
    "lists as text": LISTS + "{{ ns.x | string | length }}",
    "lists looked for": LISTS + "{{ ns.x in [ns.y] }}",
    "lists sorted": LISTS + "{{ [ns.x, ns.y] | sort | length }}",
    "lists made unique": LISTS + "{{ [ns.x, ns.y] | unique | list | length }}",
    "output": "{% for a in range(99999) %}{{ 'a' * 100000 }}{% endfor %}",
    "json indent": "{{ [1] | tojson(indent=999999999) }}",
    "date": "{{ strftime_now('%Y' * 1000000) }}",
    "date by doubling": "{% set ns = namespace(x='%Y') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
    "{{ strftime_now(ns.x) }}",
    "split": "{% set x = 'a ' * 30000000 %}{% for i in range(99999) %}{% set y = x.split(' ') %}{% endfor %}",
    "split by letters": "{% set x = ('a' * 100000000) | list %}{% set y = x + x %}{{ y | length }}",
    "by messages": GROW,
    "by letters": "{% for m in messages %}{% set ns = namespace(x='a') %}{% for c in m.content %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
    "{{ ns.x[:9] }}{% endfor %}",
    "by tools": "{% set ns = namespace(x='a') %}{% for t in tools or [] %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x[:9] }}",
}
# One value too large for the memory.
VALUES = {
    "product": "{{ 'a' * 10**10 }}",
    "list product": "{{ ['a'] * 10**9 }}",
    "percent": "{{ '%999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (999999999, 1) }}",
    "format filter": "{{ '%999999999d' | format(1) }}",
    "format": "{{ '{:>999999999}'.format(1) }}",
    "format width": "{{ '{:{w}}'.format(1, w=999999999) }}",
    "center": "{{ 'a' | center(999999999) }}",
    "center method": "{{ 'a'.center(999999999) }}",
    "zfill": "{{ 'a'.zfill(999999999) }}",
    "indent": "{{ 'a\nb' | indent(999999999) }}",
    "slice": "{{ [1] | slice(999999999) | list }}",
    "batch": "{{ [1] | batch(999999999, 'x') | list }}",
    "deep lists": "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}",
}
# What the engines do not do by themselves: these open, and every conversation is refused or rendered.
HARMLESS = {
    "range": "{{ range(10**12) | list }}",
    "long range": "{% for a in range(10**9) %}{% endfor %}",
    "split often": "{{ 'x'.split('y', 9000000000000000000) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os }}",
    "extends": "{% extends '/etc/passwd' %}",
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
}


def main() -> None:
    trial.CPU_SECONDS = 1
    for name, text in {**SOURCES, **RUNS, **VALUES, **HARMLESS}.items():
        found, message = "opened", ""
        try:
            chat(text)
        except TemplateError as error:
            found, message = type(error).__name__, str(error)
        print(json.dumps([name, found, message]), flush=True)


if __name__ == "__main__":
    main()
