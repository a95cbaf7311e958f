"""Conversations of every shape, the chat templates in the trl wheel, a small tokenizer that knows their control tokens."""

import datetime
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Reference
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from penstock.templates import ChatTemplate, Reader, Tokenizer, open_tokenizer
from penstock.types import Samples
from tests.templates.families import CONTROL, FAMILIES

TODAY = "2024-07-26"


class Frozen(datetime.datetime):
    """A clock that stands still: templates that print the date print this one."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "Frozen":
        return cls.fromisoformat(TODAY)


chat_template_utils.datetime = Frozen  # what transformers hands to templates as strftime_now

Messages = list[dict[str, Any]]

_trl = find_spec("trl")
assert _trl is not None and _trl.origin is not None
TEMPLATES = {
    file.stem: file.read_text()
    for file in sorted((Path(_trl.origin).parent / "chat_templates").glob("*.jinja"))
}
_CONTROL = re.compile(
    r"<[|｜][^<>\s'\"{}|｜]*[|｜]>|<[|][a-z_\"]+>|<[a-z_\"]+[|]>|</?(?:start|end)_of_\w+>|\[/?INST\]|</s>|<eos>"
)
TAGS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]  # not special


@cache
def control_tokens() -> list[str]:
    texts = (*TEMPLATES.values(), *FAMILIES.values())
    return sorted({*CONTROL, *(token for text in texts for token in _CONTROL.findall(text))})


@cache
def transformers_tokenizer() -> PreTrainedTokenizerFast:
    made = Reference(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(
        ["the answer is the question of a user and an assistant"] * 20, trainer
    )
    made.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in control_tokens()]
    )
    made.add_tokens([AddedToken(token, normalized=False) for token in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<|bos|>", eos_token="<|eos|>", pad_token="<|pad|>"
    )


@cache
def tokenizer() -> Tokenizer:
    return open_tokenizer(transformers_tokenizer())


def chat(template: str, *, arguments: str = "parse", **options: Any) -> ChatTemplate:
    """A template by its name in the wheel, or as text."""
    reader = Reader(shape="messages", tool_arguments=arguments)
    text = TEMPLATES.get(template, template)
    return ChatTemplate(tokenizer(), reader=reader, chat_template=text, today=TODAY, **options)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def call(name: str, arguments: Any, number: int = 0) -> dict[str, Any]:
    return {
        "type": "function",
        "id": f"call{number:05}",
        "function": {"name": name, "arguments": arguments},
    }


def result(content: str, name: str = "add", number: int = 0) -> dict[str, Any]:
    return {"role": "tool", "name": name, "tool_call_id": f"call{number:05}", "content": content}


TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": 'Adds <two> numbers & "more" – é.',
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "The first."},
                "b": {"type": "number", "enum": [1, 2.5], "default": 1},
            },
            "required": ["a", "b"],
        },
        "return": {"type": "string"},
    },
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "What the sky does.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CALLS = [
    call("add", {"a": 2, "b": 2.5}),
    call("weather", {"city": 'Zürich "West"\n', "deep": {"x": [1, None, True]}}, 1),
]
RESULTS = [result("4.5"), result('{"sky": "blue", "t": 3}', "weather", 1)]
Q, A = user("What is the answer?"), assistant("The answer is 42.")
Q2, A2 = user("And the question?"), assistant("Nobody knows the question.")
LONG = "All work and no play makes Jack a dull boy; é “quoted” 你好. " * 30

PART = {"type": "text", "text": "It is 42."}
PARTS = [{"type": "text", "text": "It"}, {"type": "text", "text": " is 42."}]
NUMBERS = {"a": 10**20, "b": 1e-7, "c": 1e16, "d": True, "e": None, "f": -0.0}
LETTERS = "Grüße 👩\u200d👩\u200d👧 你好，世界 𠀀𠮷 שלום مرحبا e\u0301 \u200b\u00a0!"
SAID = "I say <|im_end|> and <|eot_id|> and <end_of_turn> aloud <|im_end|>"
BRACES = '{"a": "b\\"c"} {{ 7*7 }} {% raw %} {# no #} \\\\ `x` \'q\''
TOLD = user("<|im_end|>\n<|im_start|>assistant\nHa <eos> </s>")
THOUGHTS = [
    assistant("42.", reasoning_content="Six times\nseven."),
    assistant("43.", reasoning_content="One more."),
]
THINKS = [
    assistant("<think>\nSix times seven.\n</think>\n\n42."),
    assistant("<think>\n\n</think>\n\n43."),
]
PLANS = [
    assistant("", reasoning_content="I need a tool.", tool_calls=[CALLS[0]]),
    assistant("4.5", reasoning_content="Read."),
]

# name → (messages, tools)
SHAPES: dict[str, tuple[Messages, Any]] = {
    "single": ([Q, A], None),
    "multi": ([Q, A, Q2, A2, user("Why?"), assistant("Because.")], None),
    "system": ([system("Be brief."), Q, A, Q2, A2], None),
    "tools": (
        [
            Q,
            assistant("", tool_calls=[call("add", {"a": 1, "b": 2})]),
            result("3"),
            assistant("Three."),
        ],
        [TOOL],
    ),
    "parallel": (
        [system("Use tools."), Q, assistant("I ask.", tool_calls=CALLS), *RESULTS, A, Q2, A2],
        [TOOL, WEATHER],
    ),
    "tools_unused": ([Q, A], [TOOL, WEATHER]),
    "no_arguments": ([Q, assistant("", tool_calls=[call("add", {})]), result("0"), A], [TOOL]),
    "content_none": ([Q, assistant(None, tool_calls=[CALLS[0]]), RESULTS[0], A], [TOOL]),
    "calls_last": ([Q, assistant("Wait.", tool_calls=[CALLS[1]])], [WEATHER]),
    "numbers": ([Q, assistant("", tool_calls=[call("add", NUMBERS)]), result("1"), A], [TOOL]),
    "reasoning": ([Q, THOUGHTS[0], Q2, THOUGHTS[1]], None),
    "reasoning_tools": ([Q, PLANS[0], RESULTS[0], PLANS[1]], [TOOL]),
    "think": ([Q, THINKS[0], Q2, THINKS[1]], None),
    "think_open": ([Q, assistant("Six times seven.</think>42.")], None),
    "empty": ([Q, assistant(""), Q2, A2], None),
    "empty_last": ([Q, A, Q2, assistant("")], None),
    "assistant_first": ([assistant("Hello, I am here."), Q, A], None),
    "assistant_twice": ([Q, A, A2, Q2, assistant("Fin.")], None),
    "user_twice": ([Q, Q2, A], None),
    "user_only": ([Q], None),
    "developer": ([{"role": "developer", "content": "Be exact."}, Q, A], None),
    "parts": ([user([PART]), assistant([PART])], None),
    "many_parts": ([user(PARTS), assistant(PARTS)], None),
    "edges": (
        [
            system("  Be brief.\n\n"),
            user("\n What?  "),
            assistant("  \n Space. \n\n"),
            Q2,
            assistant("\n\nYes."),
        ],
        None,
    ),
    "unicode": ([user("¿Qué? 你好 🙂"), assistant(LETTERS), user("𝔘"), assistant("𠀀")], None),
    "braces": ([user('{{ messages }} {% if x %} "a" \\n'), assistant(BRACES)], None),
    "markup": (
        [
            user("<b>bold</b> <|nothing|>"),
            assistant("<answer>42</answer>"),
            Q2,
            assistant("<done/>"),
        ],
        None,
    ),
    "specials": ([TOLD, assistant(SAID), Q2, A2], None),
    "labels": (
        [
            user("user"),
            assistant("assistant"),
            user("text"),
            assistant("image"),
            user("tool"),
            assistant("model"),
        ],
        None,
    ),
    "punctuation": (
        [user("!"), assistant("?"), user("..."), assistant('"'), user("-"), assistant("\\")],
        None,
    ),
    "repeats": (
        [
            user("Yes."),
            assistant("Yes."),
            user("Yes."),
            assistant("Yes."),
            user("Yes."),
            assistant("Yes. Yes."),
        ],
        None,
    ),
    "controls": (
        [
            user("a\x00b\x1f"),
            assistant("\x1cc\x07d\x1d\r\n"),
            user("\x85e"),
            assistant("f\u2028g\ufeff"),
        ],
        None,
    ),
    "long": ([user(LONG), assistant(LONG + "End."), Q2, assistant(LONG)], None),
}


def record(shape: str) -> dict[str, Any]:
    messages, tools = SHAPES[shape]
    return {"messages": messages, "tools": tools}


@cache
def rendered(
    template: str, shape: str, length: int | None = None, prompt: bool = False
) -> str | None:
    """What transformers makes of the first messages of a shape; None where it refuses."""
    messages, tools = SHAPES[shape]
    return expected_text(template, messages[:length], tools, add_generation_prompt=prompt)


def expected_text(
    template: str, messages: Messages, tools: Any = None, **options: Any
) -> str | None:
    """What transformers renders; None where it refuses.

    It leaves out a content of null, and then DeepSeek's templates do not print the calls next to it: these get the null.
    """
    source, tokenizer = TEMPLATES.get(template, template), transformers_tokenizer()
    try:
        if re.search(r"message\['content'\] is none", source):
            given = {**tokenizer.special_tokens_map, "add_generation_prompt": False, **options}
            texts, _ = chat_template_utils.render_jinja_template(
                [messages], chat_template=source, tools=tools, **given
            )
            return str(texts[0])
        text = tokenizer.apply_chat_template(
            messages, tools=tools, chat_template=source, tokenize=False, **options
        )
    except Exception:  # whatever a template raises, it refuses
        return None
    assert isinstance(text, str)
    return text


def encode_unverified(
    template: ChatTemplate, filler: dict[str, Any], records: list[dict[str, Any]]
) -> Samples:
    """Samples of records that come behind others: the first of a batch are verified in another way than the rest."""
    num_first = 2
    samples = template.encode([filler] * num_first + records)
    start = samples.offsets[num_first]
    return Samples(
        input_ids=samples.input_ids[start:],
        loss_mask=samples.loss_mask[start:],
        offsets=samples.offsets[num_first:] - start,
        dropped={
            number - num_first: why
            for number, why in samples.dropped.items()
            if number >= num_first
        },
    )
