"""Preference pairs, KTO answers, judged steps and prompts: ids, masks and batches are those of trl 1.16, row by row."""

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import penstock as ps
from penstock.errors import TemplateError
from penstock.templates import open_template, open_tokenizer
from penstock.testing import check_template
from penstock.types import PROMPT_CUT, Record, Samples

Row = Record
SPECIAL = [
    "<|endoftext|>",
    "<pad>",
    "<s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<｜end▁of▁sentence｜>",
    "<|END_RESPONSE|>",
    "<|END_OF_TURN_TOKEN|>",
]
# ChatML; thinking tags that only the last turn has; BOS in the template; "model" as the role's name; an end of text after the turns
CHATS = ("qwen2_5", "qwen3", "llama3", "gemma3", "phi3", "deepseekv3", "glm4moe", "lfm2", "cohere2")
WITH_TOOLS = ("qwen2_5", "qwen3", "glm4moe")
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find a dog.",
        "parameters": {"type": "object", "properties": {}},
    },
}
BATCH, PAD = 4, 1


def make_tokenizer(folder: Path, chat: str | None, *, adds_bos: bool = False) -> Path:
    """A byte-level vocabulary of a few hundred ids, with a chat template of trl's wheel."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(
        ["the fox runs over the lazy dog user assistant system\n\n"] * 50, trainer
    )
    if adds_bos:
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 2)]
        )
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    named = {"eos_token": "<|endoftext|>", "pad_token": "<pad>", "bos_token": "<s>"}
    config: Row = {
        **named,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 10_000,
    }
    if chat is not None:
        found = importlib.util.find_spec("trl")
        assert found is not None and found.origin is not None
        config["chat_template"] = (
            Path(found.origin).parent / "chat_templates" / f"{chat}.jinja"
        ).read_text()
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


class Writer:
    """Random rows."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def words(self, most: int = 8) -> str:
        words = ["fox", "dog", "runs", " the", "lazy\n", "Grüße", "你好", "over", "12"]
        return " ".join(self._random.choices(words, k=self._random.randint(1, most)))

    def say(self, role: str) -> Row:
        return {"role": role, "content": self.words()}

    def prompt(self, *, system: bool = False) -> list[Row]:
        turns = [self.say("system")] if system else []
        for _ in range(self._random.randrange(3)):
            turns += [self.say("user"), self.say("assistant")]
        return [*turns, self.say("user")]

    def messages(self, **options: Any) -> Row:
        return {
            "prompt": self.prompt(**options),
            "chosen": [self.say("assistant")],
            "rejected": [self.say("assistant")],
        }

    def long_answers(self) -> Row:
        more = [self.say("assistant"), self.say("user"), self.say("assistant")]
        return {"prompt": self.prompt(), "chosen": more, "rejected": [self.say("assistant")]}

    def implicit(self) -> Row:
        row = self.messages()
        return {side: [*row["prompt"], *row[side]] for side in ("chosen", "rejected")}

    def text(self) -> Row:
        return {"prompt": self.words(), "chosen": f" {self.words()}", "rejected": self.words()}

    def implicit_text(self) -> Row:
        shared = self.words()
        return {"chosen": f"{shared} a{self.words()}", "rejected": f"{shared} {self.words()}"}

    def judged(self, row: Row) -> Row:
        return {
            "prompt": row["prompt"],
            "completion": row["chosen"],
            "label": self._random.random() < 0.5,
        }


def chat_rows(chat: str) -> dict[str, list[Row]]:
    write = Writer(len(chat))
    has_system = chat != "gemma3"
    rows = {
        "messages": [write.messages(system=has_system and row % 2 == 0) for row in range(13)],
        "long answers": [write.long_answers() for _ in range(5)],
        "implicit": [write.implicit() for _ in range(7)],
    }
    if chat in WITH_TOOLS:
        rows["tools"] = [{**write.messages(), "tools": [TOOL]} for _ in range(4)]
        rows["tools as JSON"] = [
            {**write.messages(), "tools": json.dumps([TOOL])} for _ in range(4)
        ]
    if chat == "qwen3":
        given = {"enable_thinking": False}
        rows["variables"] = [{**write.messages(), "chat_template_kwargs": given} for _ in range(4)]
    return rows


def text_rows() -> dict[str, list[Row]]:
    write = Writer(0)
    ended = [{**write.text(), "chosen": "done<|endoftext|>"} for _ in range(4)]
    prefix = [{"chosen": "the fox runs", "rejected": "the fox"}, {"chosen": "a", "rejected": "ab"}]
    return {
        "text": [
            *(write.text() for _ in range(12)),
            {"prompt": "a", "chosen": "b", "rejected": ""},
        ],
        "ended": ended,
        "implicit text": [*(write.implicit_text() for _ in range(9)), *prefix],
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Cases by name, each with what trl makes of it."""
    folder = tmp_path_factory.mktemp("pairs")
    cases: dict[str, Any] = {}

    def add(tokenizer: Path, name: str, rows: list[Row]) -> None:
        for kind in ("dpo", "reward"):
            cases[f"{tokenizer.name}: {name}: {kind}"] = {
                "tokenizer": str(tokenizer),
                "kind": kind,
                "rows": rows,
            }
        if all("prompt" in row for row in rows):
            judged = [{**row, **Writer(7).judged(row)} for row in rows]
            judged = [
                {key: row[key] for key in row if key not in ("chosen", "rejected")}
                for row in judged
            ]
            judged[0]["label"] = not judged[1]["label"]
            cases[f"{tokenizer.name}: {name}: kto"] = {
                "tokenizer": str(tokenizer),
                "kind": "kto",
                "rows": judged,
            }

    for chat in CHATS:
        tokenizer = make_tokenizer(folder / chat, chat)
        for name, rows in chat_rows(chat).items():
            add(tokenizer, name, rows)
    for name, rows in text_rows().items():
        add(
            folder / "plain" if name != "text" else make_tokenizer(folder / "plain", None),
            name,
            rows,
        )
        add(
            folder / "bos"
            if name != "text"
            else make_tokenizer(folder / "bos", None, adds_bos=True),
            name,
            rows,
        )
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [sys.executable, "-m", "tests.templates.trl_truth", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    truth = json.loads((folder / "truth.json").read_text())
    return {name: {**case, **truth[name]} for name, case in cases.items()}


def sequences(samples: Samples) -> list[list[tuple[list[int], int]]]:
    """For each sample its sequences, and how many tokens of each are not trained."""
    lengths = samples.columns["sequence_lengths"]
    assert lengths.offsets is not None
    made, place = [], 0
    for first, last in zip(lengths.offsets[:-1], lengths.offsets[1:], strict=True):
        own = []
        for size in lengths.values[first:last].tolist():
            mask = samples.loss_mask[place : place + size]
            prompt = int((~mask).sum())
            assert not mask[:prompt].any()
            own.append((samples.input_ids[place : place + size].tolist(), prompt))
            place += size
        made.append(own)
    return made


def test_ids_and_masks_are_those_of_trl(world: dict[str, Any]) -> None:
    num_rows = 0
    for name, case in world.items():
        template = open_template(
            "kto" if case["kind"] == "kto" else "preference", open_tokenizer(case["tokenizer"]), {}
        )
        made = sequences(template.encode(case["rows"]))
        for place, (row, found) in enumerate(zip(case["rows"], made, strict=True)):
            true, what = case["prepared"][place], (name, row)
            prompt = true.get("prompt_ids", [])
            answers = [
                true[key] for key in ("chosen_ids", "rejected_ids", "completion_ids") if key in true
            ]
            assert [ids for ids, _ in found] == [prompt + answer for answer in answers], what
            if case["kind"] != "reward":
                assert {length for _, length in found} == {len(prompt)}, what
            num_rows += 1
    assert num_rows > 500


def test_batches_are_those_of_trls_collators(world: dict[str, Any], tmp_path: Path) -> None:
    """Names, types, shapes and values; the last batch is as short as trl's."""
    for name, case in world.items():
        if case["kind"] == "reward" and "prompt" not in case["rows"][0]:
            continue  # the same ids as for dpo, which has a mask too
        store = ps.prepare(
            case["rows"], tokenizer=case["tokenizer"], cache_dir=tmp_path, num_proc=1
        )
        kind = {
            "batch_size": BATCH,
            "packing": "none",
            "shuffle": False,
            "pad_token_id": PAD,
            "output": "numpy",
        }
        loader = ps.Loader(
            store, **kind, max_length=10_000, last_step="pad" if case["kind"] != "kto" else "drop"
        )
        made = list(loader)
        true = case["batches"][: len(made)] if case["kind"] == "kto" else case["batches"]
        assert len(made) == len(true)
        for batch, expected in zip(made, true, strict=True):
            names = [
                each for each in batch if case["kind"] != "reward" or each != "completion_mask"
            ]
            assert sorted(names) == sorted(expected), name
            for each, (dtype, values) in expected.items():
                assert str(batch[each].dtype) == dtype and batch[each].tolist() == values, (
                    name,
                    each,
                )


def test_max_length_keeps_the_pairs_that_trl_keeps_whole(
    world: dict[str, Any], tmp_path: Path
) -> None:
    """It is the length of one sequence, as in trl: of both together, it dropped half of these."""
    num_dropped = 0
    for name, case in world.items():
        if case["kind"] == "kto":
            continue
        store = ps.prepare(
            case["rows"], tokenizer=case["tokenizer"], cache_dir=tmp_path, num_proc=1
        )
        options = {"batch_size": 1, "packing": "none", "shuffle": False, "output": "numpy"}
        loader = ps.Loader(store, max_length=case["limit"], max_dropped=1, **options)
        rows = [int(batch.rows.spans["sample"][0]) for batch in loader]
        assert rows == case["whole"], name
        counters = loader.counters
        dropped = len(case["rows"]) - len(rows)
        assert counters.samples_dropped.total() == dropped
        assert counters.tokens_in == counters.tokens_out + counters.tokens_dropped.total()
        assert counters.tokens_capacity == 2 * case["limit"] * len(rows)
        num_dropped += dropped
    assert num_dropped > 30


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("one") / "qwen2_5", "qwen2_5")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("one") / "plain", None)


def texts(tokenizer: Path, template: str, row: Row, **options: Any) -> list[str]:
    """The sequences of a row as text."""
    opened = open_template(template, open_tokenizer(tokenizer), options)
    made = opened.encode([row])
    if "prompt_lengths" in made.columns:
        return [opened.decode(made.input_ids)]
    return [opened.decode(np.array(ids, np.uint32)) for ids, _ in sequences(made)[0]]


SAID = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
QUESTION = "<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
ASKED = f"<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.{QUESTION}"
SYSTEM = f"<|im_start|>system\nbe kind{QUESTION}"
END = "<|im_end|>\n"


@pytest.mark.parametrize(
    ("row", "asked"),
    [
        (
            {
                "conversations": [{"from": "human", "value": "hi"}],
                "chosen": {"from": "gpt", "value": "yes"},
                "rejected": {"from": "gpt", "value": "no"},
            },
            ASKED.format("hi"),
        ),
        ({"instruction": "hi", "input": "", "chosen": "yes", "rejected": "no"}, ASKED.format("hi")),
        (
            {"instruction": "hi", "input": "you", "chosen": "yes", "rejected": "no"},
            ASKED.format("hi\n\nyou"),
        ),
        (
            {"system": "be kind", "question": "hi", "chosen": "yes", "rejected": "no"},
            SYSTEM.format("hi"),
        ),
        (
            {
                "system": "be kind",
                "instruction": "hi",
                "chosen_response": "yes",
                "rejected_response": "no",
            },
            SYSTEM.format("hi"),
        ),
        (
            {
                "messages": [{"role": "user", "content": "hi"}],
                "chosen": {"role": "assistant", "content": "yes"},
                "rejected": {"role": "assistant", "content": "no"},
            },
            ASKED.format("hi"),
        ),
        (
            {
                "prompt": "hi",
                "chosen": [
                    {"role": "user", "content": "hi"},
                    {"role": "assistant", "content": "yes"},
                ],
                "rejected": [
                    {"role": "user", "content": "hi"},
                    {"role": "assistant", "content": "no"},
                ],
            },
            ASKED.format("hi"),
        ),
        (
            {
                "prompt": "hi",
                "chosen": [{"role": "assistant", "content": "yes"}],
                "rejected": [{"role": "assistant", "content": "no"}],
            },
            ASKED.format("hi"),
        ),
    ],
)
def test_pairs_of_other_tools_become_conversations(chatml: Path, row: Row, asked: str) -> None:
    assert texts(chatml, "preference", row) == [f"{asked}yes{END}", f"{asked}no{END}"]


def test_a_plain_prompt_stays_plain_unless_chat_is_asked_for(chatml: Path) -> None:
    row = {"prompt": "hi", "chosen": "yes", "rejected": "no"}
    assert texts(chatml, "preference", row) == ["hiyes<|endoftext|>", "hino<|endoftext|>"]
    assert texts(chatml, "preference", row, chat=True)[1] == f"{ASKED.format('hi')}no{END}"
    question = {"question": "hi", "chosen": "yes", "rejected": "no"}
    assert (
        texts(chatml, "preference", question, chat=False)[0] == "hi\nyes<|endoftext|>"
    )  # as query_response


@pytest.mark.parametrize(
    "row",
    [
        {
            "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "no"}],
            "label": False,
        },
        {
            "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "no"}],
            "kto_tag": False,
        },
        {"instruction": "hi", "input": "", "output": "no", "kto_tag": False},
        {"question": "hi", "completion": "no", "label": 0},
        {
            "prompt": [{"role": "user", "content": "hi"}],
            "completion": {"role": "assistant", "content": "no"},
            "label": False,
        },
    ],
)
def test_judged_answers_of_other_tools(chatml: Path, row: Row) -> None:
    assert texts(chatml, "kto", row) == [f"{ASKED.format('hi')}no{END}"]
    labels = [
        open_template("kto", open_tokenizer(chatml), {})
        .encode([{**row, key: yes}])
        .columns["label"]
        .values.tolist()
        for key in ("label", "kto_tag")
        if key in row
        for yes in (True, False)
    ]
    assert labels == [[1], [0]]


def test_a_prompt_is_rendered_with_the_generation_prompt_and_kept_though_nothing_is_trained(
    chatml: Path, cache: Any
) -> None:
    rows: list[Row] = [
        {"prompt": [{"role": "user", "content": "hi"}]},
        {
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "left out"},
            ]
        },
        {"question": "hi"},
        {"prompt": ""},
    ]
    store = ps.prepare(rows, tokenizer=chatml, template="prompt", cache_dir=cache.root, num_proc=1)
    assert [store[row].text for row in range(3)] == [ASKED.format("hi")] * 3
    assert not any(store[row].loss_mask.any() for row in range(3))
    assert (
        store.lengths.tolist()[3] == 0 and "nothing_to_train 1" in store.describe()
    )  # there is no prompt


def test_what_a_prompt_has_and_its_conversation_does_not_is_counted(tmp_path: Path) -> None:
    """Qwen3 without thinking: the generation prompt ends with empty thinking tags, which an earlier turn does not have."""
    tokenizer = make_tokenizer(tmp_path / "qwen3", "qwen3")
    write = Writer(1)
    rows = [
        {**write.long_answers(), "chat_template_kwargs": {"enable_thinking": False}}
        for _ in range(3)
    ]
    store = ps.prepare(
        [*rows, write.messages()], tokenizer=tokenizer, cache_dir=tmp_path / "cache", num_proc=1
    )
    made = open_template("preference", open_tokenizer(tokenizer), {}).encode(rows)
    assert sorted(made.notes[PROMPT_CUT]) == [0, 1, 2]
    assert any(
        "3 of 4 records the prompt alone ends with tokens" in said for said in store.odd_turns()
    )


def test_judged_steps_end_with_a_separator_that_carries_the_label(plain: Path) -> None:
    """As trl's stepwise supervision: prompt, steps and separator are encoded apart."""
    tokenizer = open_tokenizer(plain)
    row = {"prompt": "the fox", "completions": ["runs over", " the dog"], "labels": [True, False]}
    for separator in ("\n", " ok"):
        made = open_template("stepwise", tokenizer, {"separator": separator}).encode([row])
        pieces = [
            tokenizer.encode([text])[0].tolist()
            for text in ("the fox", "runs over", separator, " the dog", separator)
        ]
        assert made.input_ids.tolist() == [token for piece in pieces for token in piece]
        labels = [-100] * made.input_ids.size
        labels[sum(map(len, pieces[:3])) - 1], labels[-1] = 1, 0
        assert made.columns["step_labels"].values.tolist() == labels
        assert made.loss_mask.tolist() == [label != -100 for label in labels]
    empty = open_template("stepwise", tokenizer, {}).encode(
        [{"prompt": "a", "completions": [], "labels": []}]
    )
    assert empty.dropped == {0: "nothing_to_train"}


@pytest.mark.parametrize(
    ("template", "row", "options", "said"),
    [
        (
            "preference",
            {"prompt": "a"},
            {},
            "key 'chosen' is missing among ['prompt'], expected text or messages",
        ),
        (
            "preference",
            {"prompt": "a", "chosen": "b", "rejected": None},
            {},
            "key 'rejected' is null, expected text or messages",
        ),
        (
            "preference",
            {"prompt": "a", "chosen": "b", "rejected": []},
            {},
            "one of chosen and rejected is text, the other is messages",
        ),
        (
            "preference",
            {"chosen": "", "rejected": "b"},
            {},
            "chosen or rejected is empty, and the record has no prompt",
        ),
        (
            "preference",
            {"prompt": "a", "chosen": "b", "rejected": "c", "system": "d"},
            {},
            "'system', which is not used with plain text",
        ),
        (
            "preference",
            {"prompt": "a", "chosen": "b", "rejected": "c", "tools": [TOOL]},
            {},
            "pass chat=True to render the text",
        ),
        (
            "preference",
            {"prompt": [{"role": "user", "content": "a"}], "chosen": "b", "rejected": "c"},
            {"chat": False},
            "leave chat= out",
        ),
        (
            "preference",
            {"prompt": "a", "chosen": "b", "rejected": "c", "margin": "x"},
            {"margin_key": "margin"},
            "key 'margin' is 'x', expected a finite number",
        ),
        (
            "preference",
            {"prompt": "a", "chosen": "<s>", "rejected": "c"},
            {"special_in_text": "error"},
            "special token '<s>' is in the text",
        ),
        (
            "preference",
            {"prompt": "a", "chosen": "\ud800", "rejected": "c"},
            {},
            "half of a surrogate pair",
        ),
        (
            "preference",
            {"prompt": None, "chosen": "b", "rejected": "c"},
            {},
            "'prompt' is null, and chosen and rejected begin differently",
        ),
        (
            "preference",
            {"prompt": "a", "chosen": ["b"], "rejected": ["c"]},
            {},
            "chosen[0] is str, expected a dict with role and content",
        ),
        (
            "preference",
            {"prompt": [], "chosen": "b", "rejected": "c"},
            {},
            "key 'prompt' is an empty list, expected the messages",
        ),
        (
            "preference",
            {"prompt": [SAID[0]], "chosen": SAID, "rejected": SAID},
            {},
            "begin with the messages of 'prompt'",
        ),
        (
            "preference",
            {"messages": SAID, "chosen": SAID[1], "rejected": SAID[1]},
            {},
            "ends with the assistant's message, and chosen",
        ),
        (
            "preference",
            {"prompt": "a", "chosen": SAID, "rejected": SAID[:0:-1]},
            {},
            "have no first message in common",
        ),
        (
            "kto",
            {"messages": SAID[::-1], "label": True},
            {},
            "ends with a message of 'user', expected the assistant's",
        ),
        (
            "kto",
            {"messages": SAID, "answer": "b", "label": True},
            {},
            "the assistant's message, and 'answer' would follow",
        ),
        (
            "preference",
            {"instruction": "a", "history": ["b"], "chosen": "b", "rejected": "c"},
            {},
            "history[0] is 'b', expected [question, answer]",
        ),
        (
            "kto",
            {"prompt": "a", "completion": "b", "label": "good"},
            {},
            "key 'label' is 'good', expected true or false",
        ),
        ("kto", {"prompt": "a", "completion": "b"}, {}, "key 'label' is missing"),
        (
            "kto",
            {"completion": "b", "label": True},
            {},
            "no prompt among ['completion', 'label']; name its key with input_key=",
        ),
        (
            "prompt",
            {"prompt": [{"role": "assistant", "content": "a"}]},
            {},
            "ends with a message of the assistant, expected a prompt to answer",
        ),
        ("prompt", {"text": "a"}, {}, "no prompt among ['text']"),
        (
            "stepwise",
            {"prompt": "a", "completions": ["b"], "labels": []},
            {},
            "1 steps and 0 labels, expected one label for each step",
        ),
        (
            "stepwise",
            {"prompt": "a", "completions": [1], "labels": [True]},
            {},
            "completions[0] is int, expected text",
        ),
        (
            "stepwise",
            {"prompt": "a", "completions": "b", "labels": [True]},
            {},
            "key 'completions' is str, expected a list",
        ),
        (
            "stepwise",
            {"prompt": "a", "completions": ["b"], "labels": [0.5]},
            {},
            "labels[0] is 0.5, expected true or false",
        ),
    ],
)
def test_a_row_that_cannot_be_read_is_refused_by_name_and_number(
    chatml: Path, template: str, row: Row, options: dict[str, Any], said: str
) -> None:
    good: dict[str, Row] = {
        "preference": {"prompt": "a", "chosen": "b", "rejected": "c", "margin": 1.5},
        "kto": {"prompt": "a", "completion": "b", "label": True},
        "prompt": {"prompt": "a"},
        "stepwise": {"prompt": "a", "completions": ["b"], "labels": [1]},
    }
    opened = open_template(template, open_tokenizer(chatml), options)
    with pytest.raises(TemplateError) as error:
        opened.encode([good[template], row])
    assert said in str(error.value) and error.value.record == 1
    if template != "stepwise":
        made = open_template(
            template, open_tokenizer(chatml), {**options, "on_refused": "skip"}
        ).encode([row, good[template]])
        assert made.dropped == {0: "template_refused"} and made.offsets[1] == 0 < made.offsets[2]


def test_messages_without_a_chat_template_are_refused_and_chat_gives_chatml(plain: Path) -> None:
    row = Writer(0).messages()
    with pytest.raises(
        TemplateError,
        match=r"and \S*tokenizer\.json has no chat template; pass chat_template=, or chat=True for ChatML",
    ):
        texts(plain, "preference", row)
    assert texts(plain, "preference", row, chat=True)[0].startswith("<|im_start|>")


def test_options_of_other_templates_are_refused(chatml: Path) -> None:
    tokenizer = open_tokenizer(chatml)
    for name, option in (
        ("preference", "train_on"),
        ("kto", "message_weights"),
        ("prompt", "on_nothing"),
        ("stepwise", "chat"),
    ):
        with pytest.raises(TemplateError, match=f"template '{name}' has no option {option}"):
            open_template(name, tokenizer, {option: "all"})
    with pytest.raises(
        TemplateError, match="eos=True has no effect: the separator ends each judged step"
    ):
        open_template("stepwise", tokenizer, {"eos": True})


def test_special_tokens_in_a_text_are_its_letters_if_asked_for(plain: Path, chatml: Path) -> None:
    tokenizer = open_tokenizer(plain)
    row = {"prompt": "<s>a", "chosen": "b", "rejected": "c"}
    made = open_template("preference", tokenizer, {"special_in_text": "text"}).encode([row])
    [(chosen, prompt), _] = sequences(made)[0]
    assert 2 not in chosen and chosen[-1] == tokenizer.eos_id and prompt > 2
    said = [{"role": "user", "content": "<s>"}]
    chat = {
        "prompt": said,
        "chosen": [{"role": "assistant", "content": "b"}],
        "rejected": [{"role": "assistant", "content": "<s>"}],
    }
    made = open_template("preference", open_tokenizer(chatml), {"special_in_text": "text"}).encode(
        [chat]
    )
    assert (
        2 not in made.input_ids.tolist()
        and 2 in open_template("preference", open_tokenizer(chatml), {}).encode([chat]).input_ids
    )


@pytest.mark.parametrize("template", ["preference", "kto", "prompt", "stepwise"])
def test_each_template_keeps_the_contract(chatml: Path, template: str) -> None:
    write = Writer(3)
    rows: list[Row] = [{**write.messages(), "completion": "yes", "label": True} for _ in range(5)]
    if template == "stepwise":
        rows = [
            {"prompt": write.words(), "completions": [write.words()] * 2, "labels": [True, False]}
            for _ in range(5)
        ]
    check_template(open_template(template, open_tokenizer(chatml), {}), rows)


def test_fields_that_the_chat_template_does_not_print_are_counted(
    chatml: Path, tmp_path: Path
) -> None:
    row = Writer(0).messages()
    row["chosen"][0]["reasoning_content"] = "because"
    made = open_template("preference", open_tokenizer(chatml), {}).encode([row])
    assert made.notes == {"unrendered: assistant.reasoning_content": {0: len("because")}}
    with pytest.raises(TemplateError, match=r"does not print assistant\.reasoning_content"):
        open_template("preference", open_tokenizer(chatml), {"on_unrendered": "stop"}).encode([row])


def test_messages_after_a_question_as_text_are_its_answer(chatml: Path) -> None:
    """Several messages that begin with the assistant are an answer; those that begin with the user repeat the question."""
    later = [{"role": "user", "content": "and"}, {"role": "assistant", "content": "so"}]
    row: Row = {"prompt": "hi", "chosen": [{"role": "assistant", "content": "yes"}, *later]}
    row["rejected"] = [{"role": "assistant", "content": "no"}, *later]
    for text, said in zip(texts(chatml, "preference", row), ("yes", "no"), strict=True):
        assert text.startswith(f"{ASKED.format('hi')}{said}{END}")


def test_whole_conversations_hold_their_prompt(chatml: Path) -> None:
    """UltraFeedback has the question as text, and the chosen conversation once more as `messages`."""
    whole = {"chosen": SAID, "rejected": [SAID[0], {"role": "assistant", "content": "c"}]}
    expected = [f"{ASKED.format('a')}b{END}", f"{ASKED.format('a')}c{END}"]
    for more in (
        {},
        {"prompt": "a"},
        {"messages": SAID},
        {"prompt": "a", "prompt_id": "1", "messages": SAID, "score_chosen": 8.5},
    ):
        assert texts(chatml, "preference", {**whole, **more}) == expected


def test_an_input_alone_is_a_question(chatml: Path) -> None:
    row = {"input": "hi", "chosen": "yes", "rejected": "no"}
    assert texts(chatml, "preference", row) == [
        f"{ASKED.format('hi')}yes{END}",
        f"{ASKED.format('hi')}no{END}",
    ]
    assert (
        texts(chatml, "preference", {**row, "system": "be kind"})[0]
        == f"{SYSTEM.format('hi')}yes{END}"
    )
    assert texts(chatml, "kto", {"input": "hi", "output": "no", "label": True}) == [
        f"{ASKED.format('hi')}no{END}"
    ]


def test_json_text_of_messages_is_read_as_messages(chatml: Path) -> None:
    row = Writer(2).implicit()
    as_text = {side: json.dumps(row[side]) for side in row}
    assert texts(chatml, "preference", as_text) == texts(chatml, "preference", row)
    for other in ('[{"a": 1}]', "[1", "[" * 100_000):  # not messages
        listed = {"prompt": "hi", "chosen": other, "rejected": "no"}
        assert texts(chatml, "preference", listed)[0] == f"hi{other}<|endoftext|>"
