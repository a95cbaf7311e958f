"""`show` marks turns, headers and ends of a conversation; `check` and `prepare` count what is odd about turns, with real templates."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.templates.conversations import transformers_tokenizer

from .test_recipe_commands import on_a_terminal

Write = Callable[..., Path]

PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    + PROMPT
)
# Nothing is printed behind a turn: the next one's first token ends it, if generation stops at that token.
ENDLESS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
# The generation prompt closes an empty thought, which turns do not have.
THINKING = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n\n</think>\n\n{% endif")
STRICT = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}"
)
# The last message is printed outside the loop, where it cannot be followed.
OUTSIDE = (
    STRICT
    + "{% for m in messages[:-1] %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    + "<|im_start|>{{ messages[-1].role }}\n{{ messages[-1].content }}<|im_end|>\n"
    + PROMPT
)
TALK = {
    "messages": [
        {"role": "user", "content": "Two and two?"},
        {"role": "assistant", "content": "Four."},
        {"role": "user", "content": "And one?"},
        {"role": "assistant", "content": "Five."},
    ]
}


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """A tokenizer with a chat template."""

    def make(chat_template: str, **generation: Any) -> Path:
        made = transformers_tokenizer()
        place = tmp_path / "tokenizer"
        made.save_pretrained(place)
        (place / "chat_template.jinja").write_text(chat_template)
        if generation:
            (place / "generation_config.json").write_text(json.dumps(generation))
        return place

    return make


def verdicts(out: str) -> dict[str, list[dict[str, Any]]]:
    """What `check --json` says, by question."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in json.loads(out)[0]["verdicts"]:
        found.setdefault(each["question"], []).append(each)
    return found


# show


def test_show_marks_each_turn_with_its_header_its_end_and_what_is_trained(
    here: Any, folder: Any, write_jsonl: Write
) -> None:
    data = write_jsonl([TALK], "talk.jsonl")
    code, out, _ = here(
        "show", data, "--tokenizer", folder(CHATML), "--train-on", "last", "--row", "0"
    )
    assert code == 0
    assert (
        "⟦trained⟧, ‹header›, «end of turn»\n"
        "[0 user] ‹<|im_start|>user\n›Two and two?«<|im_end|>»\n"
        "[1 assistant] ‹<|im_start|>assistant\n›Four.«<|im_end|>»\n"
        "[2 user] ‹<|im_start|>user\n›And one?«<|im_end|>»\n"
        "[3 assistant] ‹<|im_start|>assistant\n›⟦Five.«<|im_end|>»⟧\n"
    ) in out
    table = out[out.index("turns: tokens of each message") :].splitlines()
    assert table[1].split("\t") == ["message", "role", "tokens", "header", "body", "end", "trained"]
    rows = [line.split("\t") for line in table[2:6]]
    assert [row[:2] for row in rows] == [
        ["0", "user"],
        ["1", "assistant"],
        ["2", "user"],
        ["3", "assistant"],
    ]
    assert [row[5] for row in rows] == ["1"] * 4 and [row[6] for row in rows[:3]] == ["0"] * 3
    assert int(rows[3][6]) == int(rows[3][4]) + 1  # its body and its end


def test_show_as_json_says_of_every_token_whose_it_is(
    here: Any, folder: Any, write_jsonl: Write
) -> None:
    data = write_jsonl([TALK], "talk.jsonl")
    _, out, _ = here("show", data, "--tokenizer", folder(CHATML), "--row", "0", "--json")
    found = json.loads(out)
    said: dict[tuple[int, str], str] = {}
    for token in found["tokens"]:
        key = (token["message"], token["part"])
        said[key] = said.get(key, "") + token["text"]
        assert token["trained"] == (
            token["role"] == "assistant" and token["part"] in ("body", "end")
        )
    for number, message in enumerate(TALK["messages"]):
        assert said[number, "header"] == f"<|im_start|>{message['role']}\n"
        assert said[number, "body"] == message["content"] and said[number, "end"] == "<|im_end|>"
        assert said[number, "between"] == "\n"
    turns = found["turns"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user", "assistant"]
    for turn in turns:
        own = found["tokens"][turn["start"] : turn["stop"]]
        assert {token["message"] for token in own} == {turn["message"]}
        assert turn["trained"] == sum(token["trained"] for token in own)
        assert turn["header"] == sum(token["part"] == "header" for token in own)


def test_the_tokens_of_one_character_belong_to_one_part_of_a_turn(
    here: Any, folder: Any, write_jsonl: Write
) -> None:
    """A character of several tokens before the end of a turn: none of them is part of the end."""
    talk = {
        "messages": [
            {"role": "user", "content": "hello 你"},
            {"role": "assistant", "content": "你好"},
        ]
    }
    data = write_jsonl([talk], "talk.jsonl")
    _, out, _ = here("show", data, "--tokenizer", folder(CHATML), "--row", "0", "--json")
    assert [turn["end"] for turn in json.loads(out)["turns"]] == [1, 1]
    assert json.loads(out)["turns"][1]["body"] == len("你好".encode())


def test_show_on_a_terminal_has_colours_for_headers_and_ends_and_labels_for_turns(
    folder: Any, write_jsonl: Write, tmp_path: Path
) -> None:
    data = write_jsonl([TALK], "talk.jsonl")
    environment = {
        **os.environ,
        "PENSTOCK_CACHE": str(tmp_path / "cache"),
        "TERM": "xterm",
        "COLUMNS": "100",
    }
    command = [
        sys.executable,
        "-m",
        "penstock",
        "show",
        str(data),
        "--tokenizer",
        str(folder(CHATML)),
        "--row",
        "0",
    ]
    out = on_a_terminal(command, environment).replace(b"\r", b"").decode()
    styled = re.findall(r"\x1b\[([0-9;]+)m([^\x1b]*)\x1b\[0m", out)
    styles = {
        text: style for style, text in reversed(styled)
    }  # the first one counts: the words also head a table
    assert styles["[1 assistant] "] == "2"  # dim
    assert (
        len({styles[text] for text in ("header", "end of turn", "trained", "[1 assistant] ")}) == 4
    )
    body = next(style for style, text in styled if text == "Four.")
    assert body == styles["trained"] and (styles["header"], "<|im_start|>user") in styled
    assert [text for style, text in styled if style == styles["end of turn"]].count(
        "<|im_end|>"
    ) == 2  # of the users
    assert "⟦" not in out and "‹" not in out


def test_show_marks_turns_of_prepared_data_and_of_the_rows_of_a_step(
    here: Any, folder: Any, write_jsonl: Write
) -> None:
    data, tokenizer = write_jsonl([TALK] * 3, "talk.jsonl"), folder(CHATML)
    options = (data, "--tokenizer", tokenizer, "--max-length", "128", "--batch-size", "1")
    assert here("prepare", data, "--tokenizer", tokenizer)[0] == 0
    for asked in (("--row", "1"), ("--step", "0")):
        code, out, err = here("show", *options, *asked)
        assert code == 0, err
        assert "[1 assistant] ‹<|im_start|>assistant\n›⟦Four.«<|im_end|>»⟧\n" in out


def test_show_of_plain_text_has_no_turns(here: Any, folder: Any, write_jsonl: Write) -> None:
    data = write_jsonl([{"text": "the answer"}], "text.jsonl")
    _, out, _ = here("show", data, "--tokenizer", folder(CHATML), "--row", "0")
    assert "⟦trained⟧\n" in out and "turns:" not in out and "‹" not in out


def test_show_takes_all_for_the_body_where_a_header_cannot_be_told(
    here: Any, folder: Any, write_jsonl: Write
) -> None:
    """A conversation that is refused has no tokens; one of which other messages are trained is shown as far as it is known."""
    merged = (
        "{% for m in messages %}{% if loop.first or loop.previtem.role != m.role %}<|im_start|>{{ m.role }}\n{% endif %}{{ m.content }}"
        "{% if loop.last or loop.nextitem.role != m.role %}<|im_end|>\n{% else %} {% endif %}{% endfor %}"
        + PROMPT
    )
    messages = [
        TALK["messages"][0],
        {"role": "assistant", "content": "Well,", "train": False},
        *TALK["messages"][1:],
    ]
    data = write_jsonl([{"messages": messages}], "talk.jsonl")
    _, out, err = here(
        "show", data, "--tokenizer", folder(merged), "--train-on", "last", "--row", "0"
    )
    assert "[4 assistant] ‹<|im_start|>assistant\n›⟦Five.«<|im_end|>»⟧\n" in out, err
    assert "[2 assistant] Four.<|im_end|>\n" in out


# check and prepare


def test_check_counts_turns_calls_and_reasoning_that_the_template_does_not_print(
    here: Any, folder: Any, write_jsonl: Write
) -> None:
    """It prints the content of the last answer only: no reasoning, no calls, no earlier answers."""
    template = (
        "{% for m in messages %}{% if m.role != 'assistant' or loop.last %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
        "{% endif %}{% endfor %}" + PROMPT
    )
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": "twentytwo"}}}
    rows = [
        TALK,
        {
            "messages": [
                TALK["messages"][0],
                {"role": "assistant", "content": "Four.", "reasoning_content": "Count them."},
            ]
        },
        {
            "messages": [
                TALK["messages"][0],
                {"role": "assistant", "content": "Wait.", "tool_calls": [call]},
            ]
        },
    ]
    data, tokenizer = write_jsonl(rows, "talk.jsonl"), folder(template)
    _, out, _ = here("check", data, "--tokenizer", tokenizer, "--template", "messages", "--json")
    (said,) = verdicts(out)["not printed"]
    assert said["answer"] == "warn"
    for name, count in (
        ("assistant.content, earlier turns", "(5 characters"),
        ("assistant.reasoning_content", "(11 characters"),
        ("assistant.tool_calls", "(12 characters"),
    ):
        assert re.search(rf"{re.escape(name)} in 1 of 3 records {re.escape(count)}", said["why"]), (
            said["why"]
        )
    _, _, err = here(
        "prepare", data, "--tokenizer", tokenizer, "--template", "messages", "--num-proc", "1"
    )
    assert (
        "assistant.reasoning_content in 1 of 3 records (11 characters" in err
        and "talk.jsonl:2" in err
    )


def test_check_and_prepare_say_where_nothing_ends_a_turn(
    here: Any, folder: Any, write_jsonl: Write
) -> None:
    data, tokenizer = write_jsonl([TALK, TALK], "talk.jsonl"), folder(ENDLESS)
    said = "no token is trained that ends 4 trained turns in 2 of 2 records: a model does not learn to stop there"
    _, out, _ = here("check", data, "--tokenizer", tokenizer, "--json")
    (verdict,) = verdicts(out)["turns"]
    assert (verdict["answer"], verdict["why"]) == ("warn", said)
    assert verdict["first"][0].endswith("talk.jsonl:1") and verdict["share"] == 1.0
    _, out, _ = here("check", data, "--tokenizer", tokenizer)
    assert f"warn turns                {said} (first " in out
    _, _, err = here("prepare", data, "--tokenizer", tokenizer, "--num-proc", "1")
    assert f"{said} (first " in err and "talk.jsonl:1)" in err


def test_tokens_that_generation_config_lists_end_turns_in_check_and_prepare(
    here: Any, folder: Any, write_jsonl: Write
) -> None:
    """The next turn's first token is trained; the last turn, which nothing follows, is counted."""
    made = transformers_tokenizer()
    stops = [made.convert_tokens_to_ids(token) for token in ("<|eos|>", "<|user|>")]
    data, tokenizer = write_jsonl([TALK, TALK], "talk.jsonl"), folder(ENDLESS, eos_token_id=stops)
    said = "no token is trained that ends 2 trained turns in 2 of 2 records"
    _, out, _ = here("check", data, "--tokenizer", tokenizer, "--json")
    assert verdicts(out)["turns"][0]["why"].startswith(said)
    _, _, err = here("prepare", data, "--tokenizer", tokenizer, "--num-proc", "1")
    assert said in err
    _, out, _ = here("show", data, "--tokenizer", tokenizer, "--row", "0")
    assert "[1 assistant] ‹<|assistant|>›⟦Four.«<|user|>»⟧\n[2 user] And one?" in out


def test_the_eos_token_ends_a_turn_where_the_template_prints_it_behind_all_messages(
    here: Any, folder: Any, write_jsonl: Write
) -> None:
    template = ENDLESS.replace(
        "{% if add", "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}{% if add"
    )
    data, tokenizer = (
        write_jsonl([{"messages": TALK["messages"][:2]}], "talk.jsonl"),
        folder(template),
    )
    _, out, _ = here("check", data, "--tokenizer", tokenizer, "--json")
    assert "turns" not in verdicts(out)
    _, out, _ = here("show", data, "--tokenizer", tokenizer, "--row", "0")
    assert "[1 assistant] ‹<|assistant|>›⟦Four.«<|eos|>»⟧\n" in out


def test_check_and_prepare_count_headers_that_stand_there_in_part(
    here: Any, folder: Any, write_jsonl: Write
) -> None:
    data, tokenizer = (
        write_jsonl([TALK, {"messages": TALK["messages"][:2]}], "talk.jsonl"),
        folder(THINKING),
    )
    said = "3 trained turns in 2 of 2 records begin with only a part of the generation prompt, without its thinking tags"
    _, out, _ = here("check", data, "--tokenizer", tokenizer, "--json")
    (verdict,) = verdicts(out)["turns"]
    assert (verdict["answer"], verdict["why"]) == ("warn", said)
    _, _, err = here("prepare", data, "--tokenizer", tokenizer, "--num-proc", "1")
    assert said in err


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        ("m.content", "plain chats are joined from pieces"),
        ("m.content | upper", "each chat is rendered: line 2: it uses the filter 'upper'"),
    ],
)
def test_check_says_whether_chats_are_rendered(
    printed: str, why: str, here: Any, folder: Any, write_jsonl: Write
) -> None:
    data = write_jsonl([TALK], "talk.jsonl")
    tokenizer = folder(CHATML.replace("m.content", printed))
    _, out, _ = here("check", data, "--tokenizer", tokenizer, "--json")
    (verdict,) = verdicts(out)["chat template"]
    assert why in verdict["why"]


def test_check_lists_refusals_by_name_with_their_counts_and_rows(
    here: Any, folder: Any, write_jsonl: Write
) -> None:
    told = {"messages": [{"role": "system", "content": "Be brief."}, *TALK["messages"]]}
    short = {"messages": TALK["messages"][:2]}
    data, tokenizer = write_jsonl([told, TALK, short, TALK], "talk.jsonl"), folder(OUTSIDE)
    code, out, _ = here("check", data, "--tokenizer", tokenizer, "--json")
    outside, system = verdicts(out)["template"]
    assert code == 1 and outside["answer"] == system["answer"] == "fail"
    assert outside["why"].startswith(
        "3 of 4 records (75.0%) give an error in the template; the first stops the run: "
    )
    assert (
        "the chat template prints this message outside its loops over the messages"
        in outside["why"]
    )
    assert [place.rpartition(":")[2] for place in outside["first"]] == ["2", "3", "4"]
    assert "no system messages" in system["why"] and system["first"][0].endswith("talk.jsonl:1")
    _, out, _ = here("check", data, "--tokenizer", tokenizer, "--set", "on_refused=skip", "--json")
    outside, system = verdicts(out)["refused"]
    assert outside["answer"] == system["answer"] == "warn"
    assert outside["why"].startswith(
        "3 of 4 records (75.0%) are skipped: messages[3] (assistant): the chat template prints"
    )
    assert (
        system["why"].startswith("1 of 4 records (25.0%) are skipped: ")
        and "no system messages" in system["why"]
    )
    assert system["first"][0].endswith("talk.jsonl:1") and outside["share"] == 0.75


# flags of messages, and turns that nothing answers


def test_check_shows_flags_that_decide_and_keys_that_look_like_flags(
    here: Any, folder: Any, write_jsonl: Write
) -> None:
    """M5: `check` said ok to a flag that was ignored."""

    def talk(**more: Any) -> dict[str, Any]:
        first, second, *rest = TALK["messages"]
        return {"messages": [first, {**second, **more}, *rest]}

    rows = [
        talk(step_loss_mask=0, no_loss=True, is_edited=False, turn=7),
        talk(step_loss_mask=1, no_loss=False, is_edited=True, turn=1),
        talk(once=True),
        {"messages": json.dumps(talk(step_loss_mask=0)["messages"])},
    ]
    data = write_jsonl(rows, "talk.jsonl")
    _, out, err = here("check", data, "--tokenizer", folder(CHATML), "--json")
    said = [(each["answer"], each["why"]) for each in verdicts(out)["message flags"]]
    assert said[0] == (
        "ok",
        "step_loss_mask (slime, miles) in 3 of 4 records decides what is trained: 2 messages excluded",
    ), err
    assert said[1][0] == "warn" and said[1][1].startswith(
        "messages have the key 'no_loss' in 2 of 4 records (values: true 1, false 1); it is not read"
    )
    assert said[2][0] == "ok" and "'is_edited'" in said[2][1] and len(said) == 3


def test_check_prepare_and_stats_count_conversations_that_end_without_an_answer(
    here: Any, folder: Any, write_jsonl: Write
) -> None:
    """S1: conversations that end with a user turn, and trailing tool results, were kept without a word."""
    asked = {"messages": [*TALK["messages"], {"role": "user", "content": "And two?"}]}
    called = {"messages": [*TALK["messages"], {"role": "tool", "content": "7"}]}
    data, tokenizer = write_jsonl([asked, called, TALK], "talk.jsonl"), folder(CHATML)
    options = ["--tokenizer", tokenizer, "--template", "messages"]
    _, out, err = here("check", data, *options, "--json")
    tool, user = (each["why"] for each in verdicts(out)["turns"])
    assert user.startswith("1 of 3 records end with a user turn that nothing answers (1 message"), (
        err
    )
    assert tool.startswith("1 of 3 records end with a tool result that nothing answers (1 message")
    _, out, err = here("stats", data, *options, "--num-proc", "1")
    assert "1 of 3 records end with a user turn that nothing answers" in " ".join(out.split()), err
    drop = ["--set", "on_unanswered=drop"]
    _, out, err = here("check", data, *options, *drop, "--json")
    (dropped,) = verdicts(out)["turns"]
    assert dropped["why"].startswith("2 of 3 records (66.7%) end with a user turn or a tool result")
    _, out, err = here("stats", data, *options, *drop, "--num-proc", "1", "--json")
    assert json.loads(out)["sources"][0]["dropped"][0]["reason"] == "unanswered", err
    _, out, err = here("stats", data, *options, "--set", "on_unanswered=trim", "--num-proc", "1")
    assert "1 of 3 records ended with a tool result that nothing answers (1 message" in " ".join(
        out.split()
    )
