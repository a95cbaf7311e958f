"""Which ids does a text have?  `tokenizers` is the reference; `fastokens` answers where it gives the same ids.

fastokens is 6 to 100 times faster and hands out one flat array; a probe at open decides, and the key names the engine.
"""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fastokens
import numpy as np
import numpy.typing as npt
import tokenizers

from penstock.errors import SourceError, TemplateError
from penstock.files import read
from penstock.fingerprint import digest
from penstock.types import Ids, Ints

# Scripts, code, digits, white space runs, emoji, combining marks: where pre-tokenizers differ if they differ at all.
PROBE = (
    "",
    "Hello, world! It's 12,345.67 o'clock; they're HERE'S.",
    "  two  spaces\t\ttabs\n\n\nlines\r\nand trailing   ",
    "def f(x):\n    return {'a': [x ** 2, None], \"b\": f'{x!r}'}  # comment\n",
    "Grüße aus Köln, señor; naïve café — “quoted” … Ω≈ç√∫",
    "你好，世界！今天天气很好。 こんにちは 안녕하세요",
    "Привет мир مرحبا بالعالم שלום नमस्ते สวัสดี",
    "🙂👩‍👩‍👧‍👦🇩🇪 e\u0301 \u00e9 \u2028 \u00a0 \ufeff \x00 \x7f",
    "https://example.org/a?b=1&c=%20#x <b>tag</b> <|endoftext|> </s> [INST] <s>",
    "1234567890 " * 8 + "a" * 300,
)


_HALF = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """A tokenizer.json, opened.  Pickles as its path and digest where it came from a file."""

    def __init__(self, text: str, *, config: dict[str, Any] | None = None, path: str | None = None) -> None:
        self.path = path
        self.digest = digest(text.encode())
        self._text = text
        self._config = config or {}
        try:
            self._reference = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # tokenizers raises bare Exception
            raise TemplateError(f"{path or 'tokenizer'}: not a tokenizer.json that can be read: {error}") from error
        self._reference.no_padding()  # a file can carry both; a store wants samples whole
        self._reference.no_truncation()
        self.vocab_size = max(self._reference.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.prefix, self.suffix = self._around()
        self._fast, self.reason = self._open_fast()
        self.engine = f"{'fastokens' if self._fast else 'tokenizers'} " + version(
            "fastokens" if self._fast else "tokenizers"
        )

    @property
    def eos_id(self) -> int | None:
        """The end of a text, as tokenizer_config.json names it; None where it does not."""
        named = self._config.get("eos_token")
        content = named.get("content") if isinstance(named, dict) else named
        return None if content is None else self.token_id(content)

    def token_id(self, token: str) -> int:
        found = self._reference.token_to_id(token)
        if found is None:
            raise TemplateError(f"{self.path or 'tokenizer'}: token {token!r} is not in the vocabulary")
        return int(found)

    def encode(self, texts: Sequence[str]) -> tuple[Ids, Ints]:
        """Flat ids of all texts and their offsets, without what the post-processor puts around a text."""
        try:
            return self._encode(list(texts))
        except (UnicodeError, TypeError) as error:
            broken = [number for number, text in enumerate(texts) if _HALF.search(text)]
            if not broken:
                raise
            reason = "the text holds half of a surrogate pair, expected valid Unicode"
            raise TemplateError(reason, record=broken[0]) from error

    def decode(self, input_ids: npt.NDArray[np.unsignedinteger[Any]]) -> str:
        return str(self._reference.decode(input_ids.tolist(), skip_special_tokens=False))

    def identity(self) -> dict[str, Any]:
        return {"digest": self.digest, "engine": self.engine}

    def _encode(self, texts: list[str]) -> tuple[Ids, Ints]:
        if self._fast is not None:
            ids, offsets = self._fast.encode_batch_flat(texts)
            return np.frombuffer(ids, dtype="<u4"), np.frombuffer(offsets, dtype="<u8").astype(np.int64)
        encodings = self._reference.encode_batch_fast(texts, add_special_tokens=False)
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        np.cumsum([len(encoding) for encoding in encodings], out=offsets[1:])
        flat = np.empty(offsets[-1], dtype=np.uint32)
        for start, stop, encoding in zip(offsets[:-1], offsets[1:], encodings, strict=True):
            flat[start:stop] = encoding.ids
        return flat, offsets

    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids that the post-processor puts before and after a text, such as one BOS."""
        for text in ("a", "0", "."):
            bare = self._reference.encode(text, add_special_tokens=False).ids
            full = self._reference.encode(text, add_special_tokens=True).ids
            for start in range(len(full) - len(bare) + 1):
                if bare and full[start : start + len(bare)] == bare:
                    return tuple(full[:start]), tuple(full[start + len(bare) :])
        if self._reference.num_special_tokens_to_add(is_pair=False):
            raise TemplateError(
                f"{self.path or 'tokenizer'}: cannot tell which special tokens go before and after a text"
            )
        return (), ()

    def _open_fast(self) -> tuple[fastokens.Tokenizer | None, str]:
        """The fast engine, or why not."""
        try:
            fast = fastokens.Tokenizer.from_json_str(self._text)
            fast.no_padding()
            fast.no_truncation()
            for text in PROBE:
                # one by one: a batch would start threads, and a process with threads should not fork
                if list(fast.encode(text).ids) != self._reference.encode(text, add_special_tokens=False).ids:
                    return None, f"fastokens gives other ids for {text!r}"
        except Exception as error:  # whatever it refuses, the reference takes over
            return None, f"fastokens refuses this tokenizer: {error}"
        return fast, f"fastokens gives the same ids as tokenizers on {len(PROBE)} probe texts"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is not None:
            return _reopen, (self.path, self.digest)
        return _from_text, (self._text, json.dumps(self._config))

    def __repr__(self) -> str:
        return f"Tokenizer({self.path or 'object'!r}, {self.vocab_size:_} ids, {self.engine}, {self.digest[:8]})"


def open_tokenizer(given: Any) -> Tokenizer:
    """A tokenizer.json, a folder that holds one, or a `tokenizers.Tokenizer`."""
    if isinstance(given, Tokenizer):
        return given
    if isinstance(given, tokenizers.Tokenizer):
        return _from_text(given.to_str(), "{}")
    if backend := getattr(given, "backend_tokenizer", None):  # a fast tokenizer of transformers
        return _from_text(backend.to_str(), json.dumps({"eos_token": getattr(given, "eos_token", None)}))
    path = Path(given).expanduser().absolute()
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise TemplateError(
            f"{given}: no tokenizer there, expected a tokenizer.json or a folder that holds one "
            f"(names on a hub are not resolved yet: download the folder and give its path)"
        )
    return _open_file(str(file), digest(_read(file)))


@lru_cache(maxsize=4)
def _open_file(path: str, content: str) -> Tokenizer:
    """Once per process: loading takes seconds for the large ones."""
    text = _read(Path(path))
    if digest(text) != content:
        raise TemplateError(f"{path}: changed since the work began; run again")
    config = Path(path).with_name("tokenizer_config.json")
    try:
        parsed = json.loads(_read(config)) if config.is_file() else {}
    except ValueError as error:
        raise TemplateError(f"{config}: not JSON: {error}") from error
    return Tokenizer(text.decode(), config=parsed, path=path)


@lru_cache(maxsize=4)
def _from_text(text: str, config: str) -> Tokenizer:
    return Tokenizer(text, config=json.loads(config))


def _reopen(path: str, content: str) -> Tokenizer:
    return _open_file(path, content)


def _read(path: Path) -> bytes:
    try:
        return read(str(path))
    except SourceError as error:
        raise TemplateError(str(error)) from error
