"""One tokenizer has one key, however it is given (finding N16)."""

import json
from pathlib import Path

import tokenizers
from transformers import PreTrainedTokenizerFast

import penstock as ps
from penstock.templates import open_tokenizer


def test_an_object_and_its_folder_share_a_store(tokenizer_path: Path, tmp_path: Path) -> None:
    """N16: the same tokenizer as an object and as a folder was tokenized twice."""
    file = tokenizer_path / "tokenizer.json"
    loaded = tokenizers.Tokenizer.from_file(str(file))
    used = tokenizers.Tokenizer.from_file(str(file))
    used.enable_padding(length=8)
    used.enable_truncation(5)
    rewritten = tmp_path / "rewritten"
    rewritten.mkdir()
    (rewritten / "tokenizer.json").write_text(json.dumps(json.loads(file.read_text()), indent=7))
    (rewritten / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    wrapped = PreTrainedTokenizerFast(tokenizer_object=loaded, eos_token="<|endoftext|>")
    records = [{"text": "the quick brown fox"}, {"text": "jumps"}]
    stores = {
        ps.prepare(
            records,
            tokenizer=given,
            template="text",
            eos="<|endoftext|>",
            cache_dir=tmp_path / "cache",
        ).fingerprint
        for given in (tokenizer_path, file, rewritten, loaded, used, wrapped)
    }
    assert len(stores) == 1


def test_a_tokenizer_with_other_ids_has_another_key(tokenizer_path: Path) -> None:
    file = tokenizer_path / "tokenizer.json"
    loaded = tokenizers.Tokenizer.from_file(str(file))
    digest = open_tokenizer(tokenizer_path).digest
    assert open_tokenizer(loaded).digest == digest
    loaded.add_tokens(["brown"])
    assert open_tokenizer(loaded).digest != digest
    loaded = tokenizers.Tokenizer.from_file(str(file))
    loaded.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert open_tokenizer(loaded).digest != digest
    loaded = tokenizers.Tokenizer.from_file(str(file))
    loaded.normalizer = tokenizers.normalizers.Lowercase()
    assert open_tokenizer(loaded).digest != digest


def test_what_changes_no_id_changes_no_key(tokenizer_path: Path) -> None:
    """transformers builds some tokenizers again, with other offsets and another byte-level decoder than their file."""
    loaded = tokenizers.Tokenizer.from_file(str(tokenizer_path / "tokenizer.json"))
    loaded.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False, trim_offsets=False
    )
    loaded.decoder = tokenizers.decoders.ByteLevel(add_prefix_space=False, use_regex=False)
    assert open_tokenizer(loaded).digest == open_tokenizer(tokenizer_path).digest
