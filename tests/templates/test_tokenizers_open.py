"""Is a tokenizer found wherever people keep one, with its special tokens and chat templates, and missed with advice?"""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fastokens
import pytest
from tokenizers import Tokenizer as Reference
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from penstock.cache import Cache
from penstock.cache import memo as memos
from penstock.errors import TemplateError
from penstock.templates import open_tokenizer
from penstock.templates.tokenizer import tokenizer as tokenizers


@pytest.fixture
def folder(tokenizer_path: Path, tmp_path: Path) -> Path:
    """A tokenizer.json with <s> and </s>, alone."""
    reference = Reference.from_file(str(tokenizer_path / "tokenizer.json"))
    reference.add_special_tokens(["<s>", "</s>", "<img>"])
    reference.add_tokens(["<think>"])
    (tmp_path / "model").mkdir()
    reference.save(str(tmp_path / "model" / "tokenizer.json"))
    return tmp_path / "model"


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def test_alone_a_tokenizer_names_nothing(folder: Path) -> None:
    tokenizer = open_tokenizer(folder)
    assert (tokenizer.special_tokens, tokenizer.chat_templates) == ({}, {})
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (None, None, None)
    chatml = {"<|im_start|>", "<|im_end|>"}
    assert tokenizer.special_added == {"<|endoftext|>", "<s>", "</s>", "<img>"} | chatml
    assert tokenizer.added_tokens["<think>"] == tokenizer.token_id("<think>")
    assert "6 of 7 added tokens" in tokenizer.describe() and "no template" in tokenizer.describe()


def test_special_tokens_in_every_form(folder: Path) -> None:
    config = {
        "bos_token": {"content": "<s>", "lstrip": False, "__type": "AddedToken"},
        "eos_token": "</s>",
        "pad_token": None,
        "additional_special_tokens": ["<img>", {"content": "<s>"}],
        "extra_special_tokens": {"image_token": "<img>"},
        "model_max_length": 1024,
    }
    write(folder, "tokenizer_config.json", config)
    tokenizer = open_tokenizer(folder)
    assert tokenizer.special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "image_token": "<img>",
    }
    assert {"<img>", "<s>"} <= tokenizer.special_added
    assert (tokenizer.bos_id, tokenizer.eos_id) == (
        tokenizer.token_id("<s>"),
        tokenizer.token_id("</s>"),
    )
    write(folder, "tokenizer_config.json", {"extra_special_tokens": ["<img>"]})
    assert "<img>" in open_tokenizer(folder).special_added


def test_the_elder_map_speaks_for_elder_configs_and_fills_gaps(folder: Path) -> None:
    write(
        folder,
        "special_tokens_map.json",
        {"eos_token": {"content": "</s>"}, "pad_token": "<img>", "unk_token": "<s>"},
    )
    assert open_tokenizer(folder).special_tokens == {
        "eos_token": "</s>",
        "pad_token": "<img>",
        "unk_token": "<s>",
    }
    config: dict[str, Any] = {"eos_token": "<|endoftext|>", "pad_token": None}
    write(folder, "tokenizer_config.json", config)
    assert open_tokenizer(folder).special_tokens == {
        "eos_token": "</s>",
        "pad_token": "<img>",
        "unk_token": "<s>",
    }
    write(folder, "tokenizer_config.json", config | {"added_tokens_decoder": {}})
    assert open_tokenizer(folder).special_tokens == {
        "eos_token": "<|endoftext|>",
        "unk_token": "<s>",
    }


FLAGS = {
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "single_word": False,
    "special": True,
}
BESIDE: dict[
    str, tuple[str, Any]
] = {  # what stands next to a tokenizer.json → a file and its content
    "an eos that it lacks": ("tokenizer_config.json", {"eos_token": "<new>"}),
    "an eos with flags": (
        "tokenizer_config.json",
        {"eos_token": {"__type": "AddedToken", **FLAGS, "content": "<new>", "rstrip": True}},
    ),
    "an eos that is a word": ("tokenizer_config.json", {"eos_token": "the"}),
    "an elder map": ("special_tokens_map.json", {"eos_token": "<new>"}),
    "a list": ("tokenizer_config.json", {"additional_special_tokens": ["<new>", "<newer>"]}),
    "names of the model's own": (
        "tokenizer_config.json",
        {"extra_special_tokens": {"x_token": "<new>"}},
    ),
    "a token": (
        "tokenizer_config.json",
        {"added_tokens_decoder": {"9000": {**FLAGS, "content": "<new>"}}},
    ),
    "another flag": (
        "tokenizer_config.json",
        {"added_tokens_decoder": {"1": {**FLAGS, "content": "<s>", "rstrip": True}}},
    ),
    "no longer special": (
        "tokenizer_config.json",
        {
            "added_tokens_decoder": {
                "1": {**FLAGS, "content": "<s>", "special": False, "lstrip": True}
            }
        },
    ),
    "an elder list": ("added_tokens.json", {"<new>": 9000, "<s>": 1}),
}


@pytest.mark.parametrize("beside", BESIDE)
def test_tokens_that_only_files_beside_it_know_are_those_of_transformers(
    folder: Path, beside: str
) -> None:
    alone = open_tokenizer(folder).digest
    write(folder, *BESIDE[beside])
    theirs, ours = PreTrainedTokenizerFast.from_pretrained(folder), open_tokenizer(folder)
    text = "the <new>  word <newer> <s>  and <think> of the </s> day"
    expected = theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.encode([text])[0].tolist() == expected
    assert ours.vocab_size == len(theirs)
    assert pickle.loads(pickle.dumps(ours)).digest == ours.digest
    assert ours.digest != alone


def test_a_token_that_a_model_may_have_no_row_for_is_said_aloud(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alone = open_tokenizer(folder).digest
    write(folder, "tokenizer_config.json", {"eos_token": "</s>", "added_tokens_decoder": {}})
    assert open_tokenizer(folder).digest == alone and not caplog.messages
    write(folder, "tokenizer_config.json", {"eos_token": "<new>"})
    size = open_tokenizer(folder).vocab_size
    assert (
        f"add 1 tokens that it lacks (among '<new>'), with ids up to {size - 1}"
        in caplog.messages[0]
    )
    write(folder, "tokenizer_config.json", {"added_tokens_decoder": {"x": 1}})
    with pytest.raises(
        TemplateError, match=r"tokenizer\.json: added tokens next to it are not \{id"
    ):
        open_tokenizer(folder)


def test_configs_as_python_and_windows_write_them(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_bytes(
        b'\xef\xbb\xbf{"model_max_length": Infinity, "eos_token": "</s>", "x": NaN}'
    )
    assert open_tokenizer(folder).special_tokens == {"eos_token": "</s>"}


def test_a_pointer_in_place_of_the_file_is_named(folder: Path) -> None:
    write(
        folder,
        "tokenizer.json",
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    )
    with pytest.raises(
        TemplateError,
        match=r"tokenizer\.json: is a pointer of Git LFS, not the file; run `git lfs pull`",
    ):
        open_tokenizer(folder)


def test_chat_templates_in_every_form(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"chat_template": "{{ one }}"})
    assert open_tokenizer(folder).chat_templates == {"default": "{{ one }}"}
    named = [
        {"name": "default", "template": "{{ a }}"},
        {"name": "tool_use", "template": "{{ b }}"},
    ]
    write(folder, "tokenizer_config.json", {"chat_template": named})
    assert open_tokenizer(folder).chat_templates == {"default": "{{ a }}", "tool_use": "{{ b }}"}
    write(folder, "chat_template.jinja", "{{ file }}\n")
    assert open_tokenizer(folder).chat_templates == {
        "default": "{{ file }}\n"
    }  # the file speaks before the config
    write(folder, "additional_chat_templates/rag.jinja", "{{ rag }}")
    assert open_tokenizer(folder).chat_templates == {"default": "{{ file }}\n", "rag": "{{ rag }}"}
    assert "chat      default, rag" in open_tokenizer(folder).describe()


@pytest.mark.parametrize("given", [7, ["{{ a }}"], [{"name": "a"}], {"a": None}])
def test_a_chat_template_of_no_known_form_is_named(folder: Path, given: Any) -> None:
    write(folder, "tokenizer_config.json", {"chat_template": given})
    with pytest.raises(
        TemplateError,
        match=r"tokenizer_config\.json: chat_template is .*, expected a string or a list",
    ):
        open_tokenizer(folder)


def test_a_broken_file_beside_it_is_named(folder: Path) -> None:
    write(folder, "tokenizer_config.json", [])
    with pytest.raises(
        TemplateError, match=r"tokenizer_config\.json: is a list, expected an object"
    ):
        open_tokenizer(folder)
    write(folder, "tokenizer_config.json", {})
    (folder / "chat_template.jinja").write_bytes(b"ab\xff")
    with pytest.raises(TemplateError, match=r"chat_template\.jinja: not UTF-8 at byte 2"):
        open_tokenizer(folder)


@pytest.mark.parametrize("name", ["tokenizer.model", "spiece.model", "tekken.json", "vocab.json"])
def test_other_forms_of_tokenizers_get_advice(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(
        TemplateError, match=rf"holds {name} but no tokenizer\.json.*save_pretrained"
    ):
        open_tokenizer(tmp_path)


def test_a_folder_without_any_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        TemplateError, match=r"no tokenizer there, expected a tokenizer\.json in this folder"
    ):
        open_tokenizer(tmp_path)
    with pytest.raises(TemplateError, match="tokenizer is a int, expected a path"):
        open_tokenizer(7)
    for absent in (tmp_path / "no", "folder/tokenizer.json", Path("org/name")):
        with pytest.raises(TemplateError, match="no tokenizer there"):
            open_tokenizer(absent)


class Handed:
    """What a fast tokenizer of transformers shows of itself."""

    def __init__(self, folder: Path) -> None:
        self.backend_tokenizer = Reference.from_file(str(folder / "tokenizer.json"))
        self.chat_template: Any = {"default": "{{ a }}", "rag": "{{ b }}"}
        self.special_tokens_map = {
            "bos_token": "<s>",
            "eos_token": "</s>",
            "additional_special_tokens": ["<img>"],
        }


def test_an_object_of_transformers_is_taken_as_it_is(folder: Path) -> None:
    handed = Handed(folder)
    tokenizer = open_tokenizer(handed)
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.chat_templates == {"default": "{{ a }}", "rag": "{{ b }}"}
    assert (
        open_tokenizer(handed) is tokenizer and pickle.loads(pickle.dumps(tokenizer)) is tokenizer
    )  # loaded once
    handed.backend_tokenizer.add_special_tokens(["<new>"])
    assert "<new>" in open_tokenizer(handed).special_added


def test_a_real_object_of_transformers_says_what_its_folder_says(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write(
        folder,
        "tokenizer_config.json",
        {"eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"},
    )
    write(folder, "chat_template.jinja", "{{ file }}")
    handed = open_tokenizer(transformers.AutoTokenizer.from_pretrained(str(folder)))
    kept = open_tokenizer(folder)
    assert (
        handed.special_tokens == kept.special_tokens
        and handed.chat_templates == kept.chat_templates
    )
    assert handed.encode(["the fox</s>"])[0].tolist() == kept.encode(["the fox</s>"])[0].tolist()


def as_in_a_fresh_process() -> None:
    tokenizers._open.cache_clear()
    tokenizers._engines.cache_clear()
    memos._kept.clear()


def test_what_stands_beside_it_may_not_change_before_a_worker_opens_it(folder: Path) -> None:
    write(folder, "chat_template.jinja", "{{ a }}")
    sent = pickle.dumps(open_tokenizer(folder))
    assert len(sent) < 500
    as_in_a_fresh_process()
    assert pickle.loads(sent).chat_templates == {"default": "{{ a }}"}
    as_in_a_fresh_process()
    write(folder, "chat_template.jinja", "{{ b }}")
    with pytest.raises(TemplateError, match="changed since the work began"):
        pickle.loads(sent)


# ---- names on the hub ----


@pytest.fixture
def hub(folder: Path, tmp_path: Path) -> Path:
    """A cache as huggingface_hub lays it out: snapshots of links into blobs."""
    home = tmp_path / "hub" / "models--org--name"
    for commit, eos in (("c0ffee", "</s>"), ("beef", "<s>")):
        snapshot = home / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (home / "blobs").mkdir(exist_ok=True)
        shutil.copy(folder / "tokenizer.json", home / "blobs" / f"{commit}1")
        (home / "blobs" / f"{commit}2").write_text(json.dumps({"eos_token": eos}))
        (snapshot / "tokenizer.json").symlink_to(f"../../blobs/{commit}1")
        (snapshot / "tokenizer_config.json").symlink_to(f"../../blobs/{commit}2")
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("c0ffee")
    (home / "refs" / "v2").write_text("beef\n")
    return tmp_path / "hub"


def test_a_hub_name_is_found_in_the_cache(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    assert open_tokenizer("org/name").special_tokens == {"eos_token": "</s>"}
    assert open_tokenizer("org/name@v2").special_tokens == {"eos_token": "<s>"}
    assert open_tokenizer("org/name@beef").special_tokens == {"eos_token": "<s>"}
    assert pickle.loads(pickle.dumps(open_tokenizer("org/name"))) is open_tokenizer("org/name")


@pytest.mark.parametrize("variable", ["HF_HOME", "XDG_CACHE_HOME"])
def test_the_cache_is_where_huggingface_hub_has_it(
    hub: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    if variable == "XDG_CACHE_HOME":
        (hub.parent / "huggingface").mkdir()
        hub.rename(hub.parent / "huggingface" / "hub")
    monkeypatch.setenv(variable, str(hub.parent))
    assert open_tokenizer("org/name").eos_id == open_tokenizer("org/name").token_id("</s>")


def run(code: str, *arguments: str, **environment: str) -> str:
    """In a process of its own: what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout


ASK = """
from penstock.errors import TemplateError
from penstock.templates import open_tokenizer
try:
    open_tokenizer("org/absent")
except TemplateError as error:
    print(error)
"""


def test_a_name_that_is_nowhere_gets_advice(hub: Path) -> None:
    pytest.importorskip("huggingface_hub")
    said = run(ASK, HF_HUB_CACHE=str(hub), HF_HUB_OFFLINE="1")
    assert (
        f"tokenizer 'org/absent' not found: no such local path, and revision 'main' is not in the Hugging Face cache {hub}"
        in said
    )
    assert (
        "the Hub did not give it (" in said
        and "hf download org/absent" in said
        and "pass the path" in said
    )


def test_without_huggingface_hub_the_extra_is_named(hub: Path) -> None:
    said = run("import sys; sys.modules['huggingface_hub'] = None\n" + ASK, HF_HUB_CACHE=str(hub))
    assert "pip install 'penstock[hf]'" in said and "hf download org/absent" in said


# ---- threads ----

COUNT = """
import os, sys
before = dict(os.environ)
from penstock.templates import open_tokenizer
threads = len(os.listdir("/proc/self/task"))
for path in sys.argv[1:]:
    tokenizer = open_tokenizer(path)
    tokenizer.encode_spans(["the fox " * 1000] * 200)
    tokenizer._fast = None  # the reference
    tokenizer.encode_spans(["the fox " * 100] * 50)
print(len(os.listdir("/proc/self/task")) - threads, os.environ == before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_no_engine_starts_threads_unless_the_user_says_so(
    tokenizer_path: Path, folder: Path
) -> None:
    places = (str(tokenizer_path), str(folder))
    alone = {"OPENBLAS_NUM_THREADS": "1"}  # numpy's thread ends when the process forks
    assert run(COUNT, *places, **alone) == "0 True\n"
    assert run(COUNT, *places, **alone, FASTOKENS_BPE_THREADS="2") == "1 True\n"


# ---- opening the engines ----


def test_fastokens_is_opened_once_and_only_if_the_data_is_worth_it(
    tokenizer_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    class Counting:
        @staticmethod
        def from_json_str(text: str) -> Any:
            opened.append(len(text))
            return tokenizer(text)

    tokenizer = fastokens.Tokenizer.from_json_str
    monkeypatch.setattr(fastokens, "Tokenizer", Counting)
    for name, num_bytes, count in (("large", 1e9, 1), ("small", 1000, 0)):
        opened.clear()
        folder = shutil.copytree(tokenizer_path, tmp_path / name)
        (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": len(name)}))
        found = open_tokenizer(folder, num_bytes=num_bytes)
        found.encode(["before the engine is asked for its name"])
        assert found.engine and len(opened) == count, name


@pytest.mark.parametrize("changed", [False, True])
def test_facts_learned_in_another_process_are_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    if changed:
        write(folder, "added_tokens.json", {"<new>": 500})
    here = open_tokenizer(folder, fast=True, cache=Cache(tmp_path / "one"))
    facts = (here.digest, here.engine, here.reason, here.added_tokens, here.vocab_size)
    ids = here.encode(["a <new> fox"])[0].tolist()
    monkeypatch.setattr("penstock.forks._is_allowed", False)
    alone = open_tokenizer(folder, fast=True, cache=Cache(tmp_path / "other"))
    assert (
        alone.digest,
        alone.engine,
        alone.reason,
        alone.added_tokens,
        alone.vocab_size,
    ) == facts
    assert alone.encode(["a <new> fox"])[0].tolist() == ids
    assert ("<new>" in alone.added_tokens) == changed


@pytest.mark.parametrize("ids", [{"a": 0, "b": 1, "c": 2}, {"a": 0, "b": 5, "c": 9}])
def test_the_largest_id_is_found_with_and_without_gaps_between_ids(
    ids: dict[str, int], tmp_path: Path
) -> None:
    made = Reference(models.WordLevel(ids, unk_token="a"))
    made.add_special_tokens(["<s>", "a"])
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = open_tokenizer(tmp_path)
    assert tokenizer.vocab_size == max(made.get_vocab().values()) + 1
