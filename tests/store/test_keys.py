"""What gives a store another name, and what does not?  A table of changes: whatever can change a token must, and nothing else may."""

import json
import os
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import penstock as ps
from penstock.errors import PenstockError
from penstock.templates import FunctionTemplate, TextTemplate, open_tokenizer

CHAT = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
TURNS = [{"role": "user", "content": "the fox"}, {"role": "assistant", "content": "runs away"}]
OTHER = [{"from": "human", "value": "the dog"}, {"from": "gpt", "value": "jumps far"}]

# template → records that it reads whatever its options, and one change of options per row of the table
RECORDS: dict[str, list[dict[str, Any]]] = {
    "text": [{"text": f"the café fox {row}", "more": f"a dog {row}", "n": row} for row in range(3)],
    "segments": [{key: [{"text": "the fox", "label": True}] for key in ("segments", "more")}],
    "prompt_completion": [
        {"prompt": "the fox", "completion": " runs", "input": "a dog", "output": " jumps"}
    ],
    "query_response": [{"query": "the fox", "response": "runs", "q": "a dog", "a": "jumps"}],
    "pretokenized": [
        {"input_ids": [1, 2, 3], "labels": [1, 2, 3], "more": [1, 2, 3], "mine": [0, 1, 1]}
    ],
    "messages": [{"messages": TURNS, "more": TURNS, "tools": None}],
    "sharegpt": [{"conversations": OTHER}],
    "alpaca": [dict.fromkeys(("instruction", "input", "output", "x", "y", "z"), "the fox")],
}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "text": [
        {"key": "more"},
        {"bos": "<|im_start|>"},
        {"eos": False},
        {"eos": "<|im_end|>"},
        {"special_in_text": "text"},
        {"special_in_text": "error"},
    ],
    "segments": [
        {"key": "more"},
        {"bos": "<|im_start|>"},
        {"eos": "<|im_end|>"},
        {"special_in_text": "text"},
    ],
    "prompt_completion": [
        {"input_key": "input"},
        {"output_key": "output"},
        {"separator": "\n"},
        {"train_on": "all"},
        {"bos": "<|im_start|>"},
        {"eos": False},
        {"special_in_text": "text"},
        {"chat": True},
    ],
    "query_response": [
        {"input_key": "q"},
        {"output_key": "a"},
        {"chat": False},
        {"chat": False, "separator": " "},
        {"chat": False, "train_on": "all"},
    ],
    "pretokenized": [
        {"input_key": "more"},
        {"labels_key": "more"},
        {"mask_key": "mine"},
        {"ignore_index": 2},
        {"vocab_size": 999},
    ],
    "messages": [
        {"message_weights": True},
        {"messages_key": "more"},
        {"system_key": "more_system"},
        {"tool_key": "functions"},
        {"documents_key": "papers"},
        {"kwargs_key": "options"},
        {"role_map": {"user": ["user", "me"]}},
        {"tool_arguments": "text"},
        {"content_parts": "text"},
        {"nulls": "keep"},
        {"nulls": "deep"},
        {"chat_template": CHAT.replace("+ '\n' }}{%- endfor", "+ '\n\n' }}{%- endfor")},
        {"train_on": "all"},
        {"train_on": "last"},
        {"train_on": ["user"]},
        {"train_reasoning": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"today": "2026-02-03"},
        {
            "verify": "all"
        },  # what was looked at in part does not stand for what is to be looked at as a whole
        {"on_refused": "skip"},
        {"on_unrendered": "skip"},
        {"on_unanswered": "trim"},
        {"special_in_text": "text"},
    ],
    "sharegpt": [
        {"train_on": "all"},
        {"system_key": "rules"},
        {"role_map": {"user": ["human", "person"]}},
    ],
    "alpaca": [
        {"instruction_key": "x"},
        {"input_key": "y"},
        {"output_key": "z"},
        {"history_key": "before"},
        {"separator": "\n"},
    ],
}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over a lazy dog"] * 20, trainer)
    folder = tmp_path_factory.mktemp("vocabulary")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|endoftext|>", "chat_template": CHAT})
    )
    return folder


@pytest.fixture
def name_of(tmp_path: Path, vocabulary: Path) -> Callable[..., str]:
    """The fingerprint of the store that these records make with these options."""

    def name_of(
        records: list[dict[str, Any]], *, tokenizer: Any = vocabulary, **options: Any
    ) -> str:
        path = tmp_path / "data.jsonl"
        path.write_text(
            "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        )
        store = ps.prepare(
            path,
            tokenizer=tokenizer,
            cache_dir=tmp_path / "cache",
            num_proc=1,
            progress="none",
            **options,
        )
        return store.fingerprint

    return name_of


def assert_all_differ(names: dict[str, str]) -> None:
    same = {a: b for a in names for b in names if a < b and names[a] == names[b]}
    assert not same, f"one name for two contents: {same}"


@pytest.mark.parametrize("template", OPTIONS)
def test_every_option_that_changes_tokens_is_in_the_name(
    name_of: Callable[..., str], template: str
) -> None:
    records = RECORDS[template]
    names = {"as it is": name_of(records, template=template)}
    for options in OPTIONS[template]:
        names[repr(options)] = name_of(records, template=template, **options)
    assert_all_differ(names)


def test_the_table_is_about_sixty_long() -> None:
    assert sum(map(len, OPTIONS.values())) >= 50


def test_every_option_stands_in_the_table() -> None:
    """A new option is not forgotten: it is in the table, or here among those that change no token of a finished store."""
    from penstock.templates import known_options

    silent = {"on_nothing"}  # stops or drops, which changes nothing that is kept
    silent |= {"on_missing_tokens"}  # stops or warns
    silent |= {
        "processor",
        "media_root",
        "media_folders",
        "multimodal_keys",
        "video_options",
        "on_media",
        "max_image_pixels",
    }  # with a processor: templates/test_media_prepare.py
    tried = {option for rows in OPTIONS.values() for row in rows for option in row} | silent
    known = {option for template in OPTIONS for option in known_options(template)}
    assert known - tried <= {"role_key", "content_key"}, known - tried


def test_every_change_of_records_is_in_the_name(name_of: Callable[..., str]) -> None:
    base = RECORDS["text"]
    first, second, third = base
    names = {
        what: name_of(records, template="text")
        for what, records in {
            "as it is": base,
            "one letter": [{**first, "text": "the café fox O"}, second, third],
            "the case of one letter": [{**first, "text": "The café fox 0"}, second, third],
            "a space at the end": [{**first, "text": first["text"] + " "}, second, third],
            "another normal form": [
                {**first, "text": unicodedata.normalize("NFD", first["text"])},
                second,
                third,
            ],
            "one byte of what is not read": [{**first, "n": 7}, second, third],
            "a number as text": [{**first, "n": "0"}, second, third],
            "a number as float": [{**first, "n": 0.0}, second, third],
            "a number as false": [{**first, "n": False}, second, third],
            "null": [{**first, "n": None}, second, third],
            "a key less": [{key: first[key] for key in ("text", "more")}, second, third],
            "a key more": [{**first, "new": 1}, second, third],
            "two rows swapped": [second, first, third],
            "backwards": [third, second, first],
            "a row less": [first, second],
            "the first row less": [second, third],
            "a row more": [first, second, third, {"text": "", "more": "", "n": 3}],
            "a row twice": [first, first, second, third],
            "a letter moved to the next row": [
                {**first, "text": first["text"] + "t"},
                {**second, "text": second["text"][1:]},
                third,
            ],
            "no row": [],
        }.items()
    }
    assert_all_differ(names)


def test_every_file_of_a_tokenizer_is_in_the_name(
    name_of: Callable[..., str], vocabulary: Path, tmp_path: Path
) -> None:
    names = {"as it is": name_of(RECORDS["messages"], template="messages")}

    def change(what: str, edit: Callable[[Path], object]) -> None:
        folder = tmp_path / what.replace(" ", "-")
        shutil.copytree(vocabulary, folder)
        edit(folder)
        names[what] = name_of(RECORDS["messages"], template="messages", tokenizer=folder)

    def settings(**values: Any) -> Callable[[Path], object]:
        path = "tokenizer_config.json"
        return lambda folder: (folder / path).write_text(
            json.dumps({**json.loads((folder / path).read_text()), **values})
        )

    def swap_merges(folder: Path) -> None:
        value = json.loads((folder / "tokenizer.json").read_text())
        merges = value["model"]["merges"]
        merges[0], merges[1] = merges[1], merges[0]
        (folder / "tokenizer.json").write_text(json.dumps(value))

    def one_byte(folder: Path) -> None:
        text = (folder / "tokenizer.json").read_text()
        assert '"add_prefix_space": false' in text or '"add_prefix_space":false' in text
        (folder / "tokenizer.json").write_text(
            text.replace('"use_regex": true', '"use_regex": false', 1)
        )

    change("order of two merges", swap_merges)
    change("one setting of tokenizer json", one_byte)
    change(
        "one byte of the chat template",
        settings(chat_template=CHAT.replace("+ '\n' }}{%- endfor", "+ '\r' }}{%- endfor")),
    )
    change("the end of a text", settings(eos_token="<|im_end|>"))
    change("a begin of a text", settings(bos_token="<|im_start|>"))
    change(
        "a template in a file",
        lambda folder: (folder / "chat_template.jinja").write_text("{{ '!' }}" + CHAT),
    )
    assert_all_differ(names)


def test_versions_are_in_the_name(
    name_of: Callable[..., str], vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(vocabulary, tmp_path / "copy")  # a tokenizer is opened once per process
    text, chat = RECORDS["text"], RECORDS["messages"]
    names = {"text": name_of(text, template="text"), "chat": name_of(chat, template="messages")}
    with monkeypatch.context() as world:
        world.setattr(
            "penstock.templates.tokenizer.tokenizer.package_version", lambda package: "99.0"
        )
        world.setattr("penstock.templates.spec.package_version", lambda package: "99.0")
        names["engine of text"] = name_of(text, template="text", tokenizer=copy)
        names["engine of chat"] = name_of(chat, template="messages", tokenizer=copy)
    with monkeypatch.context() as world:
        world.setattr("penstock.templates.render.package_version", lambda package: "99.0")
        world.setattr("penstock.templates.spec.package_version", lambda package: "99.0")
        names["renderer"] = name_of(chat, template="messages")
    with monkeypatch.context() as world:
        world.setattr(TextTemplate, "version", 99)
        world.setattr(
            "penstock.templates.tokenizer.facts.code_digest",
            lambda: "the code with another version",
        )
        names["template"] = name_of(text, template="text")
    with monkeypatch.context() as world:
        for module in [
            module for name, module in sys.modules.items() if name.startswith("penstock.store.")
        ]:
            if hasattr(module, "FORMAT_VERSION"):
                world.setattr(module, "FORMAT_VERSION", 99)
        names["format"] = name_of(text, template="text")
    assert_all_differ(names)


def as_is(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"text": record["text"], "label": True}]


def as_is_too(record: dict[str, Any]) -> list[dict[str, Any]]:
    return as_is(record)


def test_a_function_is_named_with_its_version(
    name_of: Callable[..., str], vocabulary: Path
) -> None:
    tokenizer = open_tokenizer(vocabulary)

    def named(function: Callable[[dict[str, Any]], Any], **options: Any) -> str:
        template = FunctionTemplate(function, tokenizer, **options)
        return name_of(RECORDS["text"], tokenizer=None, template=template)

    names = {
        "as it is": named(as_is, version="1"),
        "another version": named(as_is, version="2"),
        "another function": named(as_is_too, version="1"),
        "an end": named(as_is, version="1", eos=True),
        "a begin": named(as_is, version="1", bos="<|im_start|>"),
        "special tokens as text": named(as_is, version="1", special_in_text="text"),
        "with a chat template": named(as_is, version="1", chat={}),
    }
    assert_all_differ(names)


# What must leave the name alone


def test_where_things_lie_is_not_in_the_name(
    name_of: Callable[..., str], tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = RECORDS["text"]
    expected = name_of(records, template="text")
    path = tmp_path / "data.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    moved = tmp_path / "a folder with ünicode" / "other.json.jsonl"
    moved.parent.mkdir()
    shutil.copy(path, moved)
    parts = [tmp_path / f"part-{number}.jsonl" for number in range(3)]
    for part, line in zip(parts, lines, strict=True):
        part.write_text(line)
    link = tmp_path / "link.jsonl"
    link.symlink_to(path)
    elsewhere = tmp_path / "tokenizer elsewhere"
    shutil.copytree(vocabulary, elsewhere)

    def named(
        place: Any = path, cache: str = "cache", tokenizer: Path = vocabulary, **more: Any
    ) -> str:
        options = {"template": "text", "num_proc": 1, "progress": "none", **more}
        return ps.prepare(
            place, tokenizer=tokenizer, cache_dir=tmp_path / cache, **options
        ).fingerprint

    names = {
        "moved and renamed": named(moved),
        "through a link": named(link),
        "another cache": named(cache="another"),
        "several files": named(parts),
        "a glob": named(tmp_path / "part-*.jsonl"),
        "an open source": named(ps.open(path, cache_dir=tmp_path / "cache")),
        "a name given": named(name="mine"),
        "the tokenizer moved": named(tokenizer=elsewhere),
        "its file named": named(tokenizer=elsewhere / "tokenizer.json", eos="<|endoftext|>"),
        "two processes": named(num_proc=2),
        "made again": named(refresh=True),
        "a default given": named(key="text", special_in_text="token"),
        "options in another order": named(
            special_in_text="token", on_nothing="drop", key="text", template="text"
        ),
        "keeps nothing to train on": named(on_nothing="stop"),
        "found by itself": named(template="auto"),
    }
    os.utime(path, ns=(1, 1))
    names["touched"] = named()
    path.chmod(0o600)
    names["another mode"] = named()
    monkeypatch.chdir(tmp_path)
    names["by a relative path"] = named(Path("data.jsonl"))
    names["nothing kept"] = ps.prepare(
        path, tokenizer=vocabulary, template="text", cache=False, progress="none"
    ).fingerprint
    with monkeypatch.context() as world:
        world.setattr("platform.node", lambda: "elsewhere")
        names["another host"] = named(cache="of another host")
    before = os.umask(0o077)
    try:
        names["another umask"] = named(cache="of another umask")
    finally:
        os.umask(before)
    assert {what: name for what, name in names.items() if name != expected} == {} and len(
        names
    ) >= 20


SCRIPT = """
import sys
import penstock as ps
for template, options in (("text", dict(key="text", eos="<|im_end|>")), ("messages", dict(chat_template_kwargs=dict(a=1, b=2)))):
    store = ps.prepare(f"{template}.jsonl", tokenizer=sys.argv[1], template=template, cache=False, num_proc=1,
                       progress="none", **options)
    print(store.fingerprint)
"""


def test_the_environment_is_not_in_the_name(tmp_path: Path, vocabulary: Path) -> None:
    for template in ("text", "messages"):
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in RECORDS[template]]
        (tmp_path / f"{template}.jsonl").write_text("".join(lines), encoding="utf-8")
    worlds = (
        {"PYTHONHASHSEED": "0", "LC_ALL": "C", "TZ": "UTC"},
        {
            "PYTHONHASHSEED": "1",
            "LC_ALL": "C.UTF-8",
            "TZ": "Asia/Tokyo",
            "HOME": str(tmp_path),
            "USER": "nobody",
        },
        {
            "PYTHONHASHSEED": "2",
            "LC_ALL": "POSIX",
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
            "OMP_NUM_THREADS": "1",
        },
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(vocabulary)],
            cwd=tmp_path,
            env={**os.environ, **world},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for world in worlds
    ]
    answers = [process.communicate(timeout=120) for process in started]
    assert [error for _, error in answers] == [""] * len(worlds)
    assert len({text for text, _ in answers}) == 1 and len(set(answers[0][0].split())) == 2


def test_order_of_template_arguments_is_not_in_the_name(name_of: Callable[..., str]) -> None:
    chat = RECORDS["messages"]
    first = name_of(
        chat, template="messages", chat_template_kwargs={"a": 1, "b": 2}, today="2025-02-02"
    )
    assert (
        name_of(
            chat, today="2025-02-02", chat_template_kwargs={"b": 2, "a": 1}, template="messages"
        )
        == first
    )
    assert (
        name_of(chat, template="chat", chat_template_kwargs={"a": 1, "b": 2}, today="2025-02-02")
        == first
    )


def test_a_refused_option_makes_no_store(name_of: Callable[..., str], tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="has no option keys; did you mean 'key'"):
        name_of(RECORDS["text"], template="text", keys="more")
    assert not (tmp_path / "cache" / "stores").exists()
