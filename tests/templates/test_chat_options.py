"""Who is trained when?  `train_on`, a message's own word, reasoning; and what becomes of rows on which nothing can be trained."""

import copy
import pickle
from typing import Any

import pytest
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from penstock.errors import TemplateError
from penstock.templates import ChatTemplate, Reader, open_tokenizer
from penstock.templates.chat import choose
from penstock.templates.chat.options import ChatOptions
from penstock.templates.flags import MASK_FLAGS, MaskFlag
from penstock.templates.samples import runs

from .conversations import (
    CALLS,
    Q2,
    RESULTS,
    TOOL,
    A,
    Messages,
    Q,
    assistant,
    chat,
    system,
    tokenizer,
    transformers_tokenizer,
    user,
)

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TAGGED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}"
    "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TALK = [
    system("Be brief."),
    Q,
    assistant("One."),
    Q2,
    assistant("Two."),
    user("More?"),
    assistant("Three."),
]


def said(template: ChatTemplate, messages: Messages, **more: Any) -> list[str]:
    """What is trained, turn by turn, from the tokens."""
    samples = template.encode([{"messages": messages, **more}])
    return [template.decode(samples.input_ids[a:b]) for a, b in runs(samples.loss_mask)]


@pytest.mark.parametrize(
    "text", [CHATML, TAGGED, "qwen3", "llama3"], ids=["chatml", "tagged", "qwen3", "llama3"]
)
@pytest.mark.parametrize(
    ("train_on", "expected"),
    [
        ("assistant", ["One.", "Two.", "Three."]),
        ("last", ["Three."]),
        (["assistant"], ["One.", "Two.", "Three."]),
    ],
)
def test_assistant_and_last(text: str, train_on: Any, expected: list[str]) -> None:
    end = "<|eot_id|>" if text == "llama3" else "<|im_end|>"
    scaffold = (
        "<think>\n\n</think>\n\n" if text == "qwen3" else ""
    )  # which qwen3 puts before its last answer
    expected = [*(turn + end for turn in expected[:-1]), scaffold + expected[-1] + end]
    assert said(chat(text, train_on=train_on), TALK) == expected


def test_all_is_the_whole_text() -> None:
    template = chat(CHATML, train_on="all")
    samples = template.encode([{"messages": TALK}])
    assert samples.loss_mask.all()
    assert template.decode(samples.input_ids) == template.rendering({"messages": TALK}).text


@pytest.mark.parametrize("text", [CHATML, TAGGED], ids=["chatml", "tagged"])
def test_other_roles(text: str) -> None:
    if text is CHATML:
        assert said(chat(text, train_on=["user"]), TALK) == [
            Q["content"] + "<|im_end|>",
            Q2["content"] + "<|im_end|>",
            "More?<|im_end|>",
        ]
    both = said(chat(CHATML, train_on=["user", "assistant"]), TALK)
    assert [turn.removesuffix("<|im_end|>") for turn in both] == [
        message["content"] for message in TALK[1:]
    ]
    assert said(chat(text, train_on=[]), TALK) == []


def test_completion_is_what_follows_the_prompt() -> None:
    reader = Reader(shape="prompt_completion")
    template = ChatTemplate(tokenizer(), reader=reader, chat_template=CHATML, train_on="completion")
    samples = template.encode([{"prompt": TALK[:4], "completion": [TALK[4]]}])
    assert template.decode(samples.input_ids[samples.loss_mask]) == "Two.<|im_end|>"
    with pytest.raises(TemplateError, match="needs records with a prompt and a completion"):
        chat(CHATML, train_on="completion").encode([{"messages": TALK}])


@pytest.mark.parametrize("text", [CHATML, TAGGED], ids=["chatml", "tagged"])
@pytest.mark.parametrize("flag", MASK_FLAGS.values(), ids=MASK_FLAGS)
def test_a_message_can_say_no(text: str, flag: MaskFlag) -> None:
    """M5: a turn with `step_loss_mask: 0` (slime, miles) was trained."""
    talk = [Q, assistant("One.", **{flag.name: flag.excludes}), Q2, assistant("Two.")]
    assert said(chat(text), talk) == ["Two.<|im_end|>"]
    talk = [Q, assistant("One.", **{flag.name: 1 - flag.excludes}), Q2, assistant("Two.")]
    assert said(chat(text), talk) == ["One.<|im_end|>", "Two.<|im_end|>"]


def test_step_loss_mask_of_1_does_not_train_a_question() -> None:
    """M5: slime and miles write it into every message, and mean "as usual"."""
    talk = [{**Q, "step_loss_mask": 1}, assistant("One.", step_loss_mask=1)]
    assert said(chat(CHATML), talk) == ["One.<|im_end|>"]


def test_flags_that_would_have_no_effect_are_refused() -> None:
    """M5, its relatives: train_on="all" and parts of an untrained message ignored what messages say of themselves."""
    part = {"type": "text", "text": "One.", "train": False}
    detail = [{"begin_offset": 0, "end_offset": 1, "train": True}]
    refused = [
        ({"train_on": "all"}, assistant("One.", weight=0), "train_on='all' trains every token"),
        ({"train_on": "all"}, assistant("One.", train_detail=[]), "train_on='all' trains every"),
        ({}, assistant("One.", reasoning_content=[part]), "list of parts with flags of their own"),
        ({}, {**Q, "train_detail": detail}, "trains a part of a message that is not trained"),
        ({}, assistant([part, {"type": "image"}]), "flags of parts need a content of text parts"),
        ({}, assistant([part], train_detail=detail), "keep one of them"),
    ]
    for options, message, reason in refused:
        with pytest.raises(TemplateError, match=reason):
            said(chat(CHATML, **options), [Q, message, Q2, assistant("Two.")])
    assert said(chat(CHATML, train_on="all"), [Q, assistant("One.", weight=1)])


@pytest.mark.parametrize("key", ["text", "value", "content"])
def test_parts_of_a_message_can_say_no(key: str) -> None:
    """M5, its relatives: flags of content parts (axolotl) were ignored."""
    parts = [
        {"type": "text", key: "Hm.", "train": False},
        {"type": "text", key: " One."},
        {"type": "text", key: " Two.", "weight": 0},
    ]
    assert said(chat(CHATML), [Q, assistant(parts)]) == [" One.", "<|im_end|>"]


def test_a_message_can_say_yes() -> None:
    talk = [{**Q, "train": True}, assistant("One."), Q2, assistant("Two.", weight=1)]
    assert said(chat(CHATML, train_on="last"), talk) == [
        Q["content"] + "<|im_end|>",
        "Two.<|im_end|>",
    ]
    with pytest.raises(TemplateError, match=r"'weight' is 0\.5, expected true, false, 0 or 1"):
        said(chat(CHATML), [Q, assistant("One.", weight=0.5)])


def test_reasoning_can_be_left_out() -> None:
    thinks = [Q, assistant("<think>\nHm <b>.\n</think>\n\nOne.")]
    field = [Q, assistant("One.", reasoning_content="Hm <b>.")]
    for messages in (thinks, field):
        assert said(chat("qwen3"), messages) == ["<think>\nHm <b>.\n</think>\n\nOne.<|im_end|>"]
        assert said(chat("qwen3", train_reasoning=False), messages) == ["One.<|im_end|>"]
    quoted = [Q, assistant('"One."', reasoning_content="Hm.")]
    assert said(chat("qwen3", train_reasoning=False), quoted) == ['"One."<|im_end|>']


def test_reasoning_that_a_template_drops_is_not_trained() -> None:
    talk = [
        Q,
        assistant("One.", reasoning_content="First."),
        Q2,
        assistant("Two.", reasoning_content="Second."),
    ]
    assert said(chat("qwen3"), talk) == [
        "One.<|im_end|>",
        "<think>\nSecond.\n</think>\n\nTwo.<|im_end|>",
    ]


def test_calls_are_trained_with_their_names_and_not_their_results() -> None:
    talk = [Q, assistant("", tool_calls=CALLS), *RESULTS, A]
    first, last = said(chat("qwen3_instruct_2507"), talk, tools=[TOOL])
    assert first.startswith('<tool_call>\n{"name": "add"') and first.endswith(
        "</tool_call><|im_end|>"
    )
    assert first.count("<tool_call>") == 2 and '"name": "weather"' in first
    assert last == A["content"] + "<|im_end|>"


def test_nothing_to_train_is_an_event() -> None:
    records = [
        {"messages": [Q]},
        {"messages": [Q, A]},
        {"messages": []},
        {"messages": [Q, {**A, "train": False}]},
    ]
    samples = chat(CHATML).encode(records)
    assert samples.dropped == {0: "nothing_to_train", 2: "nothing_to_train", 3: "nothing_to_train"}
    lengths = [int(b - a) for a, b in zip(samples.offsets, samples.offsets[1:], strict=False)]
    assert lengths[0] == lengths[2] == lengths[3] == 0 < lengths[1]
    with pytest.raises(TemplateError, match="no token of this record is trained") as caught:
        chat(CHATML, on_nothing="stop").encode(records)
    assert caught.value.record == 0


def test_refused_conversations_stop_or_are_counted() -> None:
    strict = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m.content }}{% endfor %}"
    records = [{"messages": [Q, A]}, {"messages": TALK}, {"messages": [Q, A]}]
    with pytest.raises(
        TemplateError,
        match=r"refuses the conversation: no system: this chat template does not know the role 'system' .*on_refused to 'skip'",
    ) as caught:
        chat(strict).encode(records)
    assert caught.value.record == 1
    samples = chat(strict, on_refused="skip").encode(records)
    assert samples.dropped == {1: "template_refused"}
    assert samples.offsets[1] == samples.offsets[2] > 0


def test_template_kwargs_that_have_no_effect_are_refused() -> None:
    with pytest.raises(
        TemplateError, match="add_generation_prompt, which has no effect: a training sample ends"
    ):
        chat(CHATML, chat_template_kwargs={"add_generation_prompt": True})
    for name in ("messages", "tools", "documents"):
        with pytest.raises(
            TemplateError, match=f"chat_template_kwargs has '{name}', which has no effect"
        ):
            chat(CHATML, chat_template_kwargs={name: []})
    assert chat(CHATML, chat_template_kwargs={"add_generation_prompt": False, "style": "short"})


def test_options_are_checked() -> None:
    for option, value in (
        ("verify", "some"),
        ("on_refused", "no"),
        ("train_on", "user"),
        ("special_in_text", "x"),
    ):
        with pytest.raises(
            TemplateError, match=f"{option}='{value}' is not known, expected one of"
        ):
            chat(CHATML, **{option: value})
    with pytest.raises(TemplateError, match="'tool_use' is neither a template nor the name of one"):
        chat("tool_use")
    with pytest.raises(TemplateError, match="not Jinja: line 2"):
        chat("{% for m in messages %}\n{% endif %}")


def test_roles_to_train_are_checked() -> None:
    for given, why in (
        (["asistant"], "'asistant', which is not a role: role_map= adds one"),
        (["gpt"], "'gpt', which is read as 'assistant': name that one"),
        ([1], "expected a word or a list of roles"),
        ({"user": True}, "expected a word or a list of roles"),
    ):
        with pytest.raises(TemplateError, match=why):
            chat(CHATML, train_on=given)
    assert chat(CHATML, train_on=("user",)).train_on == ["user"]
    with pytest.raises(
        TemplateError, match="role_map has 'bot' as 'user' and as 'tool'; keep one of them"
    ):
        Reader(role_map={"user": ["bot"], "tool": ["bot"]})
    reader = Reader(role_map={"narrator": "narrator"})
    assert ChatTemplate(
        tokenizer(), reader=reader, chat_template=CHATML, train_on=["narrator"]
    ).train_on == ["narrator"]


def test_a_tokenizer_with_a_template_for_tools_uses_it_where_there_are_tools() -> None:
    """As transformers does, which tokenizers with several templates (Hermes, Command R) count on."""
    plain = CHATML.replace("<|im_start|>", "<|start|>")
    theirs = copy.deepcopy(transformers_tokenizer())
    theirs.chat_template = {"default": plain, "tool_use": CHATML, "rag": "{{ 1 }}"}
    opened = open_tokenizer(theirs)
    template = ChatTemplate(opened, reader=Reader())
    records = [{"messages": [Q, A], "tools": tools} for tools in (None, [TOOL], [], [TOOL])] * 10
    samples = pickle.loads(pickle.dumps(template)).encode(records)
    for number, record in enumerate(records):
        expected = theirs.apply_chat_template(
            record["messages"], tools=record["tools"] or None, tokenize=False
        )
        assert (
            template.decode(samples.input_ids[slice(*samples.offsets[number : number + 2])])
            == expected
        )
    chosen = ChatTemplate(opened, reader=Reader(), chat_template="default")
    assert "for_tools" in template.identity() and "for_tools" not in chosen.identity()
    theirs.chat_template = {"tool_use": CHATML, "rag": "{{ 1 }}"}
    with pytest.raises(
        TemplateError,
        match="no chat template named 'default'; choose one with chat_template=: rag, tool_use",
    ):
        ChatTemplate(open_tokenizer(theirs), reader=Reader())


def test_a_template_pickles_and_says_the_same() -> None:
    for text in (CHATML, TAGGED, "qwen3"):
        template = chat(text)
        again = pickle.loads(pickle.dumps(template))
        records = [{"messages": TALK}]
        assert again.identity() == template.identity()
        assert (again.encode(records).loss_mask == template.encode(records).loss_mask).all()


def test_batches_of_any_size_give_the_same_samples() -> None:
    template = chat("qwen3")
    records = [
        {"messages": [Q, assistant(f"Answer {number} é" * (number % 7)), Q2, A]}
        for number in range(1200)
    ]
    whole = template.encode(records)
    parts = [template.encode(records[start : start + 100]) for start in range(0, 1200, 100)]
    assert whole.input_ids.tolist() == [
        number for part in parts for number in part.input_ids.tolist()
    ]
    assert whole.loss_mask.tolist() == [
        number for part in parts for number in part.loss_mask.tolist()
    ]


def test_no_template_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    template = ChatTemplate(tokenizer(), reader=Reader(shape="messages"))
    assert "the built-in ChatML template is used" in caplog.text
    assert said(template, [Q, A]) == [A["content"] + "<|im_end|>"]


def test_the_built_in_template_prints_words_thoughts_and_parts_and_refuses_tools() -> None:
    template = chat(choose.CHATML)
    question, start = (
        {"role": "user", "content": "hi"},
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    )
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for answer, printed in (
        ({"content": "yo"}, "yo<|im_end|>"),
        ({"content": parts}, "ab<|im_end|>"),
        ({"content": "x", "reasoning_content": "hm"}, "<think>\nhm\n</think>\n\nx<|im_end|>"),
        ({"content": None, "reasoning_content": "hm"}, "<think>\nhm\n</think>\n\n<|im_end|>"),
    ):
        made = template.rendering({"messages": [question, {"role": "assistant", **answer}]})
        assert made.text == f"{start}{printed}\n" and [made.text[a:b] for a, b in made.spans] == [
            printed
        ]
    calls = [{"name": "f", "arguments": {}}]
    for record in (
        {"messages": [question], "tools": [{"name": "f"}]},
        {"messages": [question, {"role": "assistant", "content": "", "tool_calls": calls}]},
    ):
        with pytest.raises(TemplateError, match="no form for tools; set chat_template"):
            template.rendering(record)


def test_an_end_of_turn_that_is_no_token_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """It is written like a special token: refused, unless the user accepts it as text."""
    foreign = "{% for m in messages %}[{{ m.role }}] {{ m.content }}<|nowhere|>\n{% endfor %}"
    with pytest.raises(
        TemplateError, match=r"prints '<\|nowhere\|>', which the tokenizer does not have"
    ):
        chat(foreign)
    template = chat(foreign, on_missing_tokens="warn")
    remark = template.how_turns_end()
    assert (
        remark is not None and "'<|nowhere|>', is" in remark and "add it to the tokenizer" in remark
    )
    assert remark in caplog.text
    assert chat(foreign, train_on="all", on_missing_tokens="warn").how_turns_end() is None


def test_n3_a_template_whose_special_tokens_the_tokenizer_lacks_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """N3: `<|im_end|>` would become several ordinary tokens that merge with the text before them."""
    bare = open_tokenizer(plain_tokenizer())
    with pytest.raises(
        TemplateError,
        match=r"the built-in ChatML template prints '<\|im_start\|>', '<\|im_end\|>', .*on_missing_tokens='warn'",
    ):
        ChatTemplate(bare, reader=Reader(shape="messages"))
    accepted = ChatTemplate(bare, reader=Reader(shape="messages"), on_missing_tokens="warn")
    assert "does not have as one token" in caplog.text
    assert accepted.encode([{"messages": [Q, A]}]).loss_mask.any()
    with pytest.raises(TemplateError, match="on_missing_tokens"):
        chat(CHATML, on_missing_tokens="skip")


def test_n3_templates_in_plain_text_are_not_refused() -> None:
    """N3: Llama 2, Vicuna and Alpaca mark turns with words that are no special tokens, and Zephyr's own headers are text."""
    bare = open_tokenizer(plain_tokenizer())
    turns = (
        "{% for m in messages %}{{ '[INST] ' + m.content + ' [/INST]' if m.role == 'user' else ' ' + m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.role | upper + ': ' + m.content + '\n' }}{% endfor %}",
        "{% for m in messages %}{{ '### ' + m.role + ':\n' + m.content + '\n\n' }}{% endfor %}",
        "{% for m in messages %}{{ '<think></think>' + m.content + '<tool_call>' }}{% endfor %}",
    )
    for text in turns:
        ChatTemplate(bare, reader=Reader(shape="messages"), chat_template=text)
    zephyr = "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endfor %}"
    own = plain_tokenizer(chat_template=zephyr, eos_token="a")
    ChatTemplate(open_tokenizer(own), reader=Reader(shape="messages"))
    with pytest.raises(TemplateError, match=r"prints '<\|user\|>', '<\|assistant\|>'"):
        ChatTemplate(
            bare, reader=Reader(shape="messages"), chat_template=zephyr.replace(" + eos_token", "")
        )


def test_n3_an_end_of_turn_at_which_generation_does_not_stop_is_told() -> None:
    """N3: base models have another end token than their chat template."""
    remark = chat(CHATML).how_turns_end()
    assert remark is not None and remark.startswith(
        "a turn ends with '<|im_end|>', and generation stops at '<|eos|>': set '<|im_end|>' as the eos_token"
    )


def plain_tokenizer(**named: Any) -> PreTrainedTokenizerFast:
    """A tokenizer of single bytes, without added tokens."""
    letters = {letter: number for number, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    engine = Engine(models.BPE(vocab=letters, merges=[]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=engine, **named)


@pytest.mark.parametrize(
    ("part", "advice"),
    [
        (
            {"type": "image", "image": "a.png"},
            "a content part of type 'image'.*or remove the parts",
        ),
        ({"type": "text", "text": "What?"}, "a list of parts.*set content_parts='text'"),
    ],
)
def test_a_template_that_takes_only_text_says_so(part: dict[str, str], advice: str) -> None:
    messages = [{"role": "user", "content": [part]}, A]
    with pytest.raises(TemplateError, match=advice):
        chat("qwen2_5").rendering({"messages": messages})


def test_n17_a_template_without_tools_says_so() -> None:
    """N17: gemma-3 refuses a tool result with "roles must alternate"."""
    messages = [Q, {"role": "assistant", "content": "", "tool_calls": [ADD]}, RESULT, A]
    with pytest.raises(
        TemplateError,
        match=r"roles must alternate.*this chat template has no tools \(it knows the roles system, user, assistant\).*user turn",
    ):
        chat("gemma3").rendering({"messages": messages})
    with pytest.raises(
        TemplateError, match=r"does not know the role 'developer' \(it knows .*role_map="
    ):
        chat("gemma3").rendering({"messages": [{"role": "developer", "content": "x"}, Q, A]})


def test_n17_ids_that_a_template_of_mistral_refuses_are_named() -> None:
    """N17."""
    strict = (
        "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}{% if c.id | length != 9 %}"
        "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}"
        "{{ c.function.name }}{% endfor %}{% endif %}{{ m.role + m.content + '<|im_end|>' }}{% endfor %}"
    )
    messages = [
        Q,
        {"role": "assistant", "content": "", "tool_calls": [{**ADD, "id": "call_1"}]},
        RESULT,
        A,
    ]
    with pytest.raises(
        TemplateError, match=r"length 9!: the id of a tool call is 'call_1'.*9 letters or digits"
    ):
        chat(strict).rendering(
            {"messages": messages, "tools": [{"type": "function", "function": {"name": "add"}}]}
        )


ADD = {"type": "function", "id": "call00000", "function": {"name": "add", "arguments": {"a": 1}}}
RESULT = {"role": "tool", "name": "add", "tool_call_id": "call00000", "content": "2"}


def test_a_role_given_as_text_is_answered_with_a_list_of_roles() -> None:
    with pytest.raises(
        TemplateError,
        match=r"train_on='user' is not known.*, or a list of roles such as \['user'\]",
    ):
        ChatOptions(train_on="user")
