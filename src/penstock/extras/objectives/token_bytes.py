"""The bytes that each token of a byte-level vocabulary stands for."""

import json
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.templates.tokenizer.tokenizer import Tokenizer
from penstock.types import Bools, Ids


def read_bpe(objective: str, name: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return tokenizer.json; refuse any vocabulary but a byte-level BPE that takes texts as they are.  name: of the dataset."""
    written: dict[str, Any] = json.loads(tokenizer.reference.to_str())
    why = _why_not(written)
    if why:
        raise PlanError(
            f"objective {objective!r} needs a byte-level BPE vocabulary, as GPT-2, Llama 3 and Qwen have, and the tokenizer of {name!r} "
            f"({tokenizer.path or 'an object'}) {why}"
        )
    return written


def _why_not(written: dict[str, Any]) -> str:
    model = written["model"]
    if model.get("type", "BPE") != "BPE":
        return f"has a {model['type']} vocabulary"
    if model.get("dropout"):
        return "drops merges by itself"
    if any(model.get(key) for key in ("continuing_subword_prefix", "end_of_word_suffix")):
        return "has affixes"
    if _byte_level(written.get("pre_tokenizer")) is None:
        return "does not write texts as bytes"
    if _byte_level(written.get("pre_tokenizer")).get("add_prefix_space"):
        return "puts a blank before each text"
    if written.get("normalizer") not in (None, {"type": "NFC"}):
        return "changes texts before it encodes them"
    return ""


def _byte_level(step: Any) -> Any:
    """Return the step of a pre-tokenizer that writes bytes; None if there is none."""
    if not isinstance(step, dict):
        return None
    if step["type"] == "ByteLevel":
        return step
    for inner in step.get("pretokenizers", ()):
        if inner["type"] == "ByteLevel":
            return inner
    return None


def characters_of_bytes() -> list[str]:
    """Return the character that a byte-level vocabulary writes for each byte."""
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256))
    return [chr(byte) if byte in printed else chr(0x100 + next(others)) for byte in range(256)]


class TokenBytes:
    """Which bytes stand behind each id."""

    def __init__(self, tokenizer: Tokenizer, written: dict[str, Any]) -> None:
        byte_of = {character: byte for byte, character in enumerate(characters_of_bytes())}
        self._bytes = [b""] * tokenizer.vocab_size
        for token, number in written["model"]["vocab"].items():
            known = all(character in byte_of for character in token)
            self._bytes[number] = (
                bytes(byte_of[character] for character in token) if known else token.encode()
            )
        self._is_added = np.zeros(tokenizer.vocab_size, np.bool_)
        for token, number in tokenizer.added_tokens.items():
            self._bytes[number] = token.encode()
            self._is_added[number] = True

    def of(self, ids: Ids) -> list[bytes]:
        """Return the bytes of each token."""
        return [self._bytes[number] for number in ids.tolist()]

    def is_added(self, ids: Ids) -> Bools:
        """Return which tokens are found in a text before it is encoded, and cannot be cut."""
        added: Bools = self._is_added[ids]
        return added
