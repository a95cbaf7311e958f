"""Are the ids those of the reference, whichever engine gives them, and does the identity say what changes ids?"""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Reference
from tokenizers import models, pre_tokenizers, processors

from penstock.cache import Cache, memo
from penstock.errors import TemplateError
from penstock.templates import open_tokenizer
from penstock.templates.tokenizer import tokenizer as tokenizers
from penstock.templates.tokenizer.engines import PROBE

TEXTS = [
    "the quick brown fox",
    "",
    "Grüße 🙂 你好",
    "  two  spaces\n\nand lines  ",
    "x" * 5000,
    "<|endoftext|> inside",
]


def whitespace_words(folder: Path) -> Path:
    """A vocabulary that fastokens refuses, with a hole in its ids."""
    tokenizer = Reference(models.WordLevel({"a": 0, "b": 1, "[UNK]": 9}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_ids_are_those_of_the_reference(tokenizer_path: Path) -> None:
    tokenizer = open_tokenizer(tokenizer_path)
    reference = Reference.from_file(str(tokenizer_path / "tokenizer.json"))
    assert tokenizer.engine.startswith("fastokens "), tokenizer.reason
    ids, offsets = tokenizer.encode([*TEXTS, *PROBE])
    assert ids.dtype == np.uint32 and offsets.dtype == np.int64
    for number, text in enumerate([*TEXTS, *PROBE]):
        expected = reference.encode(text, add_special_tokens=False).ids
        assert ids[offsets[number] : offsets[number + 1]].tolist() == expected
    assert tokenizer.decode(ids[offsets[2] : offsets[3]]) == TEXTS[2]


def test_both_engines_give_the_same_arrays(tokenizer_path: Path) -> None:
    tokenizer = open_tokenizer(Reference.from_file(str(tokenizer_path / "tokenizer.json")))
    fast = tokenizer.encode(TEXTS)
    tokenizer._fast = None
    slow = tokenizer.encode(TEXTS)
    for one, other in zip(fast, slow, strict=True):
        assert one.dtype == other.dtype and one.tolist() == other.tolist()


def test_what_fastokens_refuses_falls_back_and_says_so(tmp_path: Path) -> None:
    tokenizer = open_tokenizer(whitespace_words(tmp_path))
    assert tokenizer.engine.startswith("tokenizers ") and "fastokens" in tokenizer.reason
    assert tokenizer.vocab_size == 10  # the largest id counts, not the number of words
    ids, offsets = tokenizer.encode(["a b c", "", "b"])
    assert ids.tolist() == [0, 1, 9, 1] and offsets.tolist() == [0, 3, 3, 4]


def test_padding_and_truncation_in_the_file_are_switched_off(
    tokenizer_path: Path, tmp_path: Path
) -> None:
    tokenizer = Reference.from_file(str(tokenizer_path / "tokenizer.json"))
    tokenizer.enable_padding(length=64)
    tokenizer.enable_truncation(3)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    plain, padded = open_tokenizer(tokenizer_path), open_tokenizer(tmp_path)
    assert padded.encode(TEXTS)[0].tolist() == plain.encode(TEXTS)[0].tolist()
    padded._fast = None
    assert padded.encode(TEXTS)[0].tolist() == plain.encode(TEXTS)[0].tolist()


def test_what_the_post_processor_puts_around_a_text_is_found(
    tokenizer_path: Path, tmp_path: Path
) -> None:
    tokenizer = Reference.from_file(str(tokenizer_path / "tokenizer.json"))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    start, stop = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", start), ("</s>", stop)]
    )
    opened = open_tokenizer(tokenizer)
    assert (opened.prefix, opened.suffix) == ((start,), (stop,))
    ids, _ = opened.encode(["the fox"])
    assert start not in ids and stop not in ids


def test_a_file_a_folder_and_an_object(tokenizer_path: Path) -> None:
    folder, file = (
        open_tokenizer(tokenizer_path),
        open_tokenizer(str(tokenizer_path / "tokenizer.json")),
    )
    assert folder is file  # loaded once
    assert open_tokenizer(folder) is folder
    assert folder.eos_id == 0
    handed_over = open_tokenizer(Reference.from_file(str(tokenizer_path / "tokenizer.json")))
    assert handed_over.eos_id is None and handed_over.vocab_size == folder.vocab_size


def test_the_identity_is_the_content_and_not_the_place(
    tokenizer_path: Path, tmp_path: Path
) -> None:
    shutil.copytree(tokenizer_path, tmp_path / "copy")
    original, copy = open_tokenizer(tokenizer_path), open_tokenizer(tmp_path / "copy")
    assert copy is not original and copy.identity() == original.identity()
    file = tmp_path / "copy" / "tokenizer.json"
    file.write_text(file.read_text().replace('"version": "1.0"', '"version":  "1.0"'))
    assert open_tokenizer(tmp_path / "copy").identity() == original.identity()  # only whitespace
    changed = file.read_text().replace('"add_prefix_space": false', '"add_prefix_space": true')
    assert changed != file.read_text()
    file.write_text(changed)
    assert open_tokenizer(tmp_path / "copy").identity() != original.identity()


def test_a_tokenizer_pickles_small_and_gives_the_same_ids(tokenizer_path: Path) -> None:
    tokenizer = open_tokenizer(tokenizer_path)
    assert len(pickle.dumps(tokenizer)) < 500
    assert (
        pickle.loads(pickle.dumps(tokenizer)).encode(TEXTS)[0].tolist()
        == tokenizer.encode(TEXTS)[0].tolist()
    )
    handed_over = open_tokenizer(Reference.from_file(str(tokenizer_path / "tokenizer.json")))
    assert pickle.loads(pickle.dumps(handed_over)).identity() == handed_over.identity()


def test_what_is_no_tokenizer_is_named(tmp_path: Path, tokenizer_path: Path) -> None:
    with pytest.raises(
        TemplateError, match=r"not/a/place: no tokenizer there, expected a tokenizer\.json"
    ):
        open_tokenizer("not/a/place")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TemplateError, match=r"tokenizer\.json: cannot read this tokenizer\.json"):
        open_tokenizer(tmp_path)
    shutil.copy(tokenizer_path / "tokenizer.json", tmp_path)
    with pytest.raises(TemplateError, match="token '<nope>' is not in the vocabulary"):
        open_tokenizer(tmp_path).token_id("<nope>")
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TemplateError, match=r"tokenizer_config\.json: not JSON"):
        open_tokenizer(tmp_path)


def test_a_tokenizer_that_changes_before_a_worker_opens_it_is_refused(
    tokenizer_path: Path, tmp_path: Path
) -> None:
    shutil.copytree(tokenizer_path, tmp_path / "copy")
    tokenizer = open_tokenizer(tmp_path / "copy")
    as_in_a_fresh_process()
    whitespace_words(tmp_path / "copy")
    with pytest.raises(TemplateError, match="changed since the work began"):
        pickle.loads(pickle.dumps(tokenizer))


def test_a_tokenizer_that_changes_before_its_engine_opens_is_refused(
    tokenizer_path: Path, tmp_path: Path, cache: Cache
) -> None:
    shutil.copytree(tokenizer_path, tmp_path / "copy")
    open_tokenizer(tmp_path / "copy", cache=cache)
    as_in_a_fresh_process()
    known = open_tokenizer(
        tmp_path / "copy", cache=cache
    )  # by what the cache knows: no file is parsed
    whitespace_words(tmp_path / "copy")
    with pytest.raises(TemplateError, match="changed since the work began"):
        known.decode(np.array([1, 2], np.uint32))


def as_in_a_fresh_process() -> None:
    tokenizers._open.cache_clear()
    tokenizers._engines.cache_clear()
    memo._kept.clear()


def test_a_tokenizer_in_an_unknown_home_folder_is_refused_by_name():
    """`~no-such-user` ended in a raw RuntimeError."""
    with pytest.raises(TemplateError, match=r"~no-such-user/tokenizer: no tokenizer there"):
        open_tokenizer("~no-such-user/tokenizer")
