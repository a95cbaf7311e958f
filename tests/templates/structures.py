# ruff: noqa: E501 (templates are easier to read in long lines)
"""Chat templates of odd structure, each with a twin that says by itself what of each message is trained.

A template is written once, with `«m»` where the trained part of message `m` begins and `»` where it ends.  Without these marks it is
the template under test.  With marks that print the message's number, rendered by plain jinja2, it is the truth.  As `{% generation %}` tags they
make the tagged variant.  Nothing here asks the code under test.
"""

import json
import re
from functools import cache, lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from transformers.utils.chat_template_utils import _compile_jinja_template  # type: ignore[attr-defined]

from tests.templates.families import FAMILIES

from .conversations import (
    CALLS,
    RESULTS,
    SHAPES,
    TOOL,
    A,
    Messages,
    Q,
    assistant,
    call,
    expected_text,
    result,
    system,
    transformers_tokenizer,
    user,
)

# What a message says, without anything around it.
BODY = (
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content or [] %}{{ p.text }}{% endfor %}{% endif %}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
)
TURN = "<|im_start|>{{ m.role }}\n«m»" + BODY + "<|im_end|>»\n"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

STRUCTURES = {
    "plain": "{% for m in messages %}" + TURN + "{% endfor %}" + PROMPT,
    "macro": "{% macro show(m) %}"
    + TURN
    + "{% endmacro %}{% for m in messages %}{{ show(m) }}{% endfor %}"
    + PROMPT,
    "macro of content": "{% macro say(m) %}"
    + BODY
    + "{% endmacro %}{% for m in messages %}<|im_start|>{{ m.role }}\n«m»{{ say(m) | trim }}<|im_end|>»\n{% endfor %}"
    + PROMPT,
    "set block": "{% for m in messages %}{% set body %}"
    + TURN
    + "{% endset %}{{ body }}{% endfor %}"
    + PROMPT,
    "call block": "{% macro frame(m) %}<|im_start|>{{ m.role }}\n«m»{{ caller() }}<|im_end|>»\n{% endmacro %}"
    "{% for m in messages %}{% call frame(m) %}" + BODY + "{% endcall %}{% endfor %}" + PROMPT,
    "filter block": "{% filter trim %}{% for m in messages %}"
    + TURN
    + "{% endfor %}{% endfilter %}"
    + PROMPT,
    "namespace text": "{% set ns = namespace(text='') %}{% for m in messages %}{% set body %}"
    + TURN
    + "{% endset %}{% set ns.text = ns.text ~ body %}{% endfor %}{{ ns.text }}"
    + PROMPT,
    "namespace of the last user": "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n«m»"
    "{% if m.reasoning_content and loop.index0 > ns.last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{% if m.content is string %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>»\n{% endfor %}"
    + PROMPT,
    "indices": "{% for i in range(messages | length) %}{% set m = messages[i] %}"
    + TURN
    + "{% endfor %}"
    + PROMPT,
    "indices without a name": "{% for i in range(messages | length) %}<|im_start|>{{ messages[i].role }}\n«messages[i]»"
    "{{ messages[i].content }}<|im_end|>»\n{% endfor %}" + PROMPT,
    "reversed": PROMPT + "{% for m in messages | reverse %}" + TURN + "{% endfor %}",
    "reversed by slice": "{% for m in messages[::-1] %}" + TURN + "{% endfor %}",
    "outside": "{% if messages | length > 1 %}{% set m = messages[0] %}"
    + TURN
    + "{% set m = messages[1] %}"
    + TURN
    + "{% endif %}{% for m in messages[2:] %}"
    + TURN
    + "{% endfor %}"
    + PROMPT,
    "system outside": "{% if messages[0].role == 'system' %}{% set m = messages[0] %}<<SYS>>\n«m»{{ m.content }}<|eot_id|>»\n"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}"
    + TURN
    + "{% endfor %}"
    + PROMPT,
    "last outside": "{% for m in messages[:-1] %}"
    + TURN
    + "{% endfor %}{% set m = messages[-1] %}"
    + TURN
    + PROMPT,
    "merged": "{% for m in messages %}{% if loop.first or loop.previtem.role != m.role %}<|im_start|>{{ m.role }}\n{% endif %}«m»"
    + BODY
    + "{% if loop.last or loop.nextitem.role != m.role %}<|im_end|>»\n{% else %}» {% endif %}{% endfor %}"
    + PROMPT,
    "thinking header": "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}«m»"
    + BODY
    + "<|im_end|>»\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}",
    "thinking prompt": "{% for m in messages %}<|im_start|>{{ m.role }}\n«m»"
    + BODY
    + "<|im_end|>»\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}",
    "several ends": "{% for m in messages %}<|im_start|>{{ m.role }}\n«m»"
    + BODY
    + "\n[done]<|im_end|><|eot_id|>»\n\n{% endfor %}"
    + PROMPT,
    "end without a token": "{% for m in messages %}[{{ m.role }}] «m»"
    + BODY
    + " [/{{ m.role }}]»\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}",
    # Only the last answer has an end of its own; what ends the others is printed by the next message, and counted as missing.
    "end after the loop": "{% for m in messages %}{% if not loop.first %}»<|eot_id|>\n{% endif %}<|im_start|>{{ m.role }}\n«m»"
    + BODY
    + "{% endfor %}<|im_end|>»{% if add_generation_prompt %}\n<|im_start|>assistant\n{% endif %}",
    "header before": "<|im_start|>{% for m in messages %}{{ m.role if loop.first }}\n«m»"
    + BODY
    + "<|im_end|>»\n{% if loop.nextitem is defined %}<|im_start|>{{ loop.nextitem.role }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "header of the user": "{% for m in messages %}{% if m.role == 'user' %}<|user|>«m»"
    + BODY
    + "<|eot_id|>»<|assistant|>{% elif m.role == 'assistant' %}«m»"
    + BODY
    + "<|im_end|>»{% else %}<|system|>«m»"
    + BODY
    + "<|eot_id|>»{% endif %}{% endfor %}",
    "results ahead": "{% for m in messages %}{% if m.role != 'tool' %}"
    + TURN
    + "{% if m.tool_calls %}{% for n in messages[loop.index:] if n.role == 'tool' %}{% set m = n %}<|im_start|>tool\n«m»{{ m.content }}<|im_end|>»\n"
    "{% endfor %}{% endif %}{% endif %}{% endfor %}" + PROMPT,
    "results ahead by index": "{% for m in messages %}{% if m.role != 'tool' %}"
    + TURN
    + "{% set ns = namespace(go=true) %}{% for k in range(loop.index, messages | length) %}{% set r = messages[k] %}"
    "{% if r.role != 'tool' %}{% set ns.go = false %}{% endif %}{% if ns.go %}<|im_start|>tool\n«r»{{ r.content }}<|im_end|>»\n{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}" + PROMPT,
    "told not to think": "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.previtem is defined and loop.previtem.content is string and '/no_think' in loop.previtem.content %}"
    "<think></think>{% endif %}«m»"
    + BODY
    + "<|im_end|>»\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if messages[-1].content is string and '/no_think' in messages[-1].content %}<think></think>{% endif %}{% endif %}",
    "answers told by users": "{% for m in messages %}{% if m.role == 'user' %}<|user|>«m»{{ m.content }}<|eot_id|>»"
    "{% if loop.nextitem is defined %}{% set n = loop.nextitem %}<|assistant|>«n»{{ n.content }}<|im_end|>»{% endif %}{% endif %}{% endfor %}",
    "pairs": "{% for q, a in messages | batch(2) %}<|user|>«q»{{ q.content }}<|eot_id|>»<|assistant|>«a»{{ a.content }}<|im_end|>»{% endfor %}",
    "groups": "{% for pair in messages | batch(2) %}{% for m in pair %}"
    + TURN
    + "{% endfor %}{% endfor %}"
    + PROMPT,
    "recursive": "{% for m in messages recursive %}" + TURN + "{% endfor %}" + PROMPT,
    "selected": "{% for m in messages | selectattr('role', 'ne', 'system') | list %}"
    + TURN
    + "{% endfor %}"
    + PROMPT,
    "continue and break": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
    + TURN
    + "{% if m.content == 'Fin.' %}{% break %}{% endif %}{% endfor %}"
    + PROMPT,
    "loop in a loop": "{% for m in messages %}<|im_start|>{{ m.role }}\n«m»{% for other in messages %}{% if other is sameas m %}"
    "{{ m.content }}{% endif %}{% endfor %}<|im_end|>»\n{% endfor %}" + PROMPT,
    "with": "{% for m in messages %}{% with role = m.role %}<|im_start|>{{ role }}\n{% endwith %}«m»"
    + BODY
    + "<|im_end|>»\n{% endfor %}[all]"
    + PROMPT,
    "labels": "{% for m in messages %}"
    + TURN
    + "{% endfor %}",  # a header that no generation prompt tells of
    "looks back": "{% for m in messages %}{% if not loop.first %}{% set before = messages[loop.index0 - 1] %}{% endif %}"
    + TURN
    + "{% endfor %}"
    + PROMPT,
    "asks": "{% for m in messages %}<|im_start|>{{ m.role }}\n«m»{% if m.content is string and '?' in m.content %}(asked) {% endif %}"
    + BODY
    + "<|im_end|>»\n{% endfor %}"
    + PROMPT,
    # As Gemma 4: the token that opens a result ends the call, and is printed by the call only where nothing follows it.
    "opens the result": "{% for m in messages %}{% if m.role == 'tool' %}<|eot_id|>{% if loop.previtem.tool_calls %}»{% endif %}"
    "«m»{{ m.content }}<|im_end|>»\n{% else %}{% if loop.previtem is defined and loop.previtem.tool_calls %}»{% endif %}"
    "<|im_start|>{{ m.role }}\n«m»"
    + BODY
    + "{% if not m.tool_calls %}<|im_end|>»\n{% elif loop.last %}<|eot_id|>»{% endif %}{% endif %}{% endfor %}"
    + PROMPT,
    # The generation prompt depends on what messages say, so nothing is learned, and the last answer is printed below all.
    "answer below": "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if not (loop.last and m.role == 'assistant') %}«m»"
    + BODY
    + "<|im_end|>»{% else %}<|im_end|>{% endif %}\n{% endfor %}"
    "{% set m = messages[-1] %}{% if m.role == 'assistant' %}«m»" + BODY + "»{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if messages[-1].content == '/x' %}x{% endif %}{% endif %}",
    # What is learned from made-up words does not hold for an answer with a dot.
    "answer with a dot below": "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if loop.last and m.role == 'assistant' and "
    "m.content is string and '.' in m.content %}<|im_end|>{% else %}«m»"
    + BODY
    + "<|im_end|>»{% endif %}\n{% endfor %}{% set m = messages[-1] %}{% if m.role == 'assistant' and m.content is string and '.' in m.content %}«m»"
    + BODY
    + "»{% endif %}"
    + PROMPT,
    "brackets": "<|bos|>{% for m in messages %}{% if m.role == 'user' %}[INST] «m»{{ m.content }}[/INST]»"
    "{% elif m.tool_calls %}«m»[TOOL_CALLS] {% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}</s>»"
    "{% elif m.role == 'assistant' %}«m» {{ m.content }}</s>»{% elif m.role == 'tool' %}[RESULT]«m»{{ m.content }}[/RESULT]»"
    "{% else %}<<SYS>>«m»{{ m.content }}<</SYS>>»{% endif %}{% endfor %}",
    "answers without a header": "{% set ns = namespace(after=false) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.after = false %}"
    "<|user|>«m»{{ m.content }}»{% elif m.role == 'assistant' %}{% if not ns.after %}<|assistant|>{% endif %}«m»{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<|tool_call|>{{ c.function.name }}\n{{ c.function.arguments | tojson }}{% endfor %}<|eos|>»"
    "{% set ns.after = false %}{% elif m.role == 'tool' %}<|output|>«m»{{ m.content }}<|/output|>»{% set ns.after = true %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and not ns.after %}<|assistant|>{% endif %}",
}
STRUCTURES.update(FAMILIES)
# In these, marks stand in captures or in one branch of a condition, where generation tags cannot stand.
UNTAGGED = frozenset(
    (
        "macro",
        "set block",
        "call block",
        "filter block",
        "namespace text",
        "merged",
        "end after the loop",
        "recursive",
        "opens the result",
    )
)

LETTER = assistant("a")
WORDS = [call("assistant", {}), call("user", {"role": "assistant", "content": "tool"}, 1)]
MORE_SHAPES: dict[str, tuple[Messages, Any]] = {
    "letters": ([user("a"), LETTER, user("a"), assistant("<")], None),
    "blank": ([Q, assistant("  \n"), user("x"), assistant(" ")], None),
    "names of template words": (
        [Q, assistant("", tool_calls=WORDS), result("user"), result("1", number=1), A],
        [TOOL],
    ),
    "only reasoning": (
        [
            Q,
            assistant("", reasoning_content="Hm."),
            user("So?"),
            assistant("", reasoning_content="Ah."),
        ],
        None,
    ),
    "reasoning before an answer": (
        [Q, assistant("", reasoning_content="Hm."), A, user("So?"), A],
        None,
    ),
    "rounds": (
        [
            system("Go."),
            Q,
            *(
                part
                for n in range(3)
                for part in (assistant("", tool_calls=[call("add", {"a": n})]), result(str(n)))
            ),
            A,
            user("Again."),
            assistant("I try.", tool_calls=CALLS),
            *RESULTS,
            assistant("Done."),
        ],
        [TOOL],
    ),
    "calls without words": (
        [Q, assistant(None, tool_calls=[call("list_users", {})]), result("[]"), LETTER],
        [TOOL],
    ),
    "told": (
        [user("Why? /no_think"), A, user("Why not?"), assistant("So."), user("/no_think"), LETTER],
        None,
    ),
    "told late": ([user("Why?"), A, user("Why not? /no_think"), assistant("So.")], None),
    "result first": ([Q, assistant("", tool_calls=[CALLS[0]]), RESULTS[0], Q, A], [TOOL]),
    "thrice": ([Q, A, assistant("Two."), assistant("Three."), user("So?"), A], None),
    "system and assistant": ([system("Be."), assistant("Hello."), Q, A], None),
    "parts and calls": (
        [
            user([{"type": "text", "text": "Add."}]),
            assistant([{"type": "text", "text": "I add."}], tool_calls=[CALLS[0]]),
            RESULTS[0],
            A,
        ],
        [TOOL],
    ),
    "same calls": ([Q, *[assistant("", tool_calls=[CALLS[0]]), RESULTS[0]] * 2, A, Q, A], [TOOL]),
    "newlines": ([Q, assistant("\n\nx\n\n"), Q, assistant("x\n")], None),
}
ALL_SHAPES = {**SHAPES, **MORE_SHAPES}

_OPEN, _CLOSE = "\u27e6", "\u27e7"
_PLACE = re.compile("«([^»]*)»")


def _replaced(name: str, open_: str, close: str) -> str:
    """The template with something in place of its marks; `\\1` in `open_` is the message."""
    text = STRUCTURES[name]
    parts = _PLACE.split(text)  # text, message, text, message, …
    out = parts[0].replace("»", close)
    for message, rest in zip(parts[1::2], parts[2::2], strict=True):
        out += open_.replace("\\1", message) + rest.replace("»", close)
    return out


@cache
def source(name: str) -> str:
    return _replaced(name, "", "")


@cache
def tagged(name: str) -> str:
    return _replaced(name, "{%+ generation +%}", "{%+ endgeneration +%}")


@cache
def twin(name: str) -> Any:
    return _compile_jinja_template(_replaced(name, "{{ '" + _OPEN + "' ~ \\1.n ~ '|' }}", _CLOSE))


@cache
def special_tokens() -> dict[str, str]:
    return {name: str(token) for name, token in transformers_tokenizer().special_tokens_map.items()}


Truth = tuple[str, dict[int, list[tuple[int, int]]]]


def truth(name: str, messages: Messages, tools: Any) -> Truth | None:
    """The text, and message → its trained spans; None where the template refuses the conversation."""
    return _truth(name, json.dumps([messages, tools]))


@lru_cache(maxsize=1 << 16)
def _truth(name: str, conversation: str) -> Truth | None:
    messages, tools = json.loads(conversation)
    # as transformers gives them to a template
    given = [
        {key: value for key, value in message.items() if value is not None} for message in messages
    ]
    numbered = [{**message, "n": number} for number, message in enumerate(given)]
    try:
        marked = twin(name).render(
            messages=numbered, tools=tools, add_generation_prompt=False, **special_tokens()
        )
    except (jinja2.TemplateError, TypeError, KeyError, ValueError):
        return None
    text, spans = "", dict[int, list[tuple[int, int]]]()
    for piece in re.split(f"({_OPEN}[0-9]+[|][^{_CLOSE}]*{_CLOSE})", marked):
        if piece.startswith(_OPEN):
            number, _, said = piece[1:-1].partition("|")
            if said:
                spans.setdefault(int(number), []).append((len(text), len(text) + len(said)))
            piece = said
        text += piece.replace(_CLOSE, "")
    assert _OPEN not in text
    assert text == expected_text(source(name), messages, tools)
    return text, spans


def without_space(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Whitespace at the end of a turn is the template's own, unless its generation tags say otherwise."""
    return [(a, a + len(said)) for a, b in spans if (said := text[a:b].rstrip())]


def token_mask(text: str, spans: list[tuple[int, int]]) -> tuple[list[int], list[bool]]:
    """Ids and trained tokens by transformers' own offsets: a token that holds a trained character is trained."""
    ids, offsets = _encoded(text)
    return ids, [any(a < stop and start < b for start, stop in spans) for a, b in offsets]


@lru_cache(maxsize=1 << 12)
def _encoded(text: str) -> tuple[list[int], list[tuple[int, int]]]:
    encoded = transformers_tokenizer()(text, add_special_tokens=False, return_offsets_mapping=True)
    return encoded["input_ids"], encoded["offset_mapping"]
