"""Encode texts.  `tokenizers` is the reference; `fastokens` is used for large data if it gives the same ids.

fastokens encodes 6 to 100 times faster, but takes seconds to load.  The engine is part of a store's key, so the choice depends only on
the size of the data (`fast=`) and on whether the engines agree on probe texts, which is remembered per content of the files.
Both run on one thread (unless FASTOKENS_BPE_THREADS is set): two threads give ×1.2, two processes ×2, and a process without
threads can fork.
"""

import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import orjson

from penstock.cache import Cache
from penstock.errors import TemplateError
from penstock.fingerprint import digest
from penstock.templates.tokenizer.byte_offsets import (
    ByteTable,
    Encoded,
    NoTable,
    Ranges,
    borders,
    by_reference,
    by_table,
    inside,
    splice,
)
from penstock.templates.tokenizer.engines import (
    SURELY_FAST_BYTES,
    Engines,
    fast_bytes,
    rust_errors,
)
from penstock.templates.tokenizer.facts import package_version
from penstock.templates.tokenizer.files import (
    TokenizerFiles,
    content_digest,
    find_tokenizer,
    from_transformers,
)
from penstock.types import Ids, Ints

if TYPE_CHECKING:
    import fastokens
    import tokenizers

# What a special token in a text becomes: its id, its letters, or an error that names it.
SpecialInText = Literal["token", "text", "error"]

_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """A tokenizer.json.  Opens engines when they are first needed.  Pickles as path and digest, if it has a path."""

    def __init__(self, engines: Engines, *, fast: bool) -> None:
        """`fast`: use fastokens if it gives the same ids."""
        facts = engines.facts
        self.path = engines.path  # of tokenizer.json; None for an object
        self.content = engines.content  # a digest of all files that were read
        self.digest = facts.digest
        self.special_tokens = (
            facts.special_tokens
        )  # bos_token, eos_token … as a chat template gets them
        self.chat_templates = facts.chat_templates  # "default" and named ones
        self.model_max_length = facts.model_max_length  # None if the files do not say
        self.vocab_size = facts.vocab_size
        self.prefix = tuple(facts.prefix)
        self.suffix = tuple(facts.suffix)
        self.added_tokens = facts.added_tokens
        self.special_added = frozenset(facts.special_added)
        self.stop_tokens = frozenset(facts.stop_tokens)  # that end generation
        self.wants_fast = fast
        self._engines = engines
        self._unknown: int = facts.unknown[0] if facts.unknown else -1
        self._unknown_name: str = facts.unknown[1] if facts.unknown else ""
        self._is_special = np.zeros(self.vocab_size, dtype=np.bool_)
        self._is_special[[self.added_tokens[token] for token in self.special_added]] = True

    @property
    def cache(self) -> Cache | None:
        """Where facts about this tokenizer and its chat templates are kept, if anywhere."""
        return self._engines.cache

    @property
    def engine(self) -> str:
        """The engine that encodes, with its version.  Loads none once the choice is in the cache."""
        name = "fastokens" if self.wants_fast and self._engines.verdict[0] else "tokenizers"
        return f"{name} {package_version(name)}"

    @property
    def reason(self) -> str:
        """Why this engine."""
        too_small = "the data is too small for fastokens to be worth its loading time"
        return self._engines.verdict[1] if self.wants_fast else too_small

    @cached_property
    def _fast(self) -> "fastokens.Tokenizer | None":
        return self._engines.fast if self.wants_fast else None

    @property
    def reference(self) -> "tokenizers.Tokenizer":
        """The tokenizer of the package `tokenizers`, for its vocabulary and its parts."""
        return self._engines.reference

    @property
    def _reference(self) -> "tokenizers.Tokenizer":
        return self._engines.reference

    @cached_property
    def _table(self) -> ByteTable | None:
        """For large data only: the offsets of `tokenizers` cost less than making the table."""
        if not self.wants_fast or isinstance(self._engines.table, NoTable):
            return None
        return self._engines.table

    @property
    def eos_id(self) -> int | None:
        return self._named_id("eos_token")

    @property
    def bos_id(self) -> int | None:
        return self._named_id("bos_token")

    @property
    def pad_id(self) -> int | None:
        return self._named_id("pad_token")

    @property
    def unknown_id(self) -> int | None:
        """The id for text that the vocabulary does not have."""
        return None if self._unknown < 0 else self._unknown

    def _named_id(self, name: str) -> int | None:
        """The id of a special token, if the files name it."""
        token = self.special_tokens.get(name)
        return None if token is None else self.token_id(token)

    def token_id(self, token: str) -> int:
        found = self.added_tokens.get(token)
        if found is None:
            found = self._reference.token_to_id(token)
        if found is None:
            raise TemplateError(
                f"{self.path or 'tokenizer'}: token {token!r} is not in the vocabulary"
            )
        return int(found)

    def encode(self, texts: Sequence[str], *, special: SpecialInText = "token") -> tuple[Ids, Ints]:
        """Return the ids of all texts, flat, and their offsets, without what the post-processor puts around a text.

        Added tokens that are not special (`special_added` lists those that are) are always found.
        """
        texts = list(texts)
        with _errors_named(texts):
            ids, offsets = self._encode(texts)
        if special != "token" and len(self._special_places(texts, ids, offsets)):
            encoded = self.encode_spans(texts, special=special)
            return encoded.ids, encoded.offsets
        return ids, offsets

    def encode_spans(
        self,
        texts: Sequence[str],
        *,
        special: SpecialInText = "token",
        plain: Sequence[Ranges] | None = None,
    ) -> Encoded:
        """Return the ids with the bytes of the text that each covers.

        `plain` has for every text the byte ranges (start, stop), in order and without overlap, in which special tokens are encoded as
        text (or refused, with special="error"); others stay tokens.  The text is encoded as if the vocabulary did not have those special
        tokens there: their letters may merge with the words around them.
        """
        texts = list(texts)
        with _errors_named(texts):
            encoded = self._spans(texts)
        if special == "token" and plain is None:
            return encoded
        found = self._special_places(texts, encoded.ids, encoded.offsets)
        if plain is not None:
            assert len(plain) == len(texts), (len(plain), len(texts))
            found = inside(encoded, found, plain)
        if not len(found):
            return encoded
        numbers = np.searchsorted(encoded.offsets, found, side="right") - 1
        if special == "error":
            token = self._reference.id_to_token(int(encoded.ids[found[0]]))
            raise special_found(token, "the text", record=int(numbers[0]))
        selective = self._engines.selective
        others = {
            number: selective.encode(texts, number, None if plain is None else plain[number])
            for number in np.unique(numbers).tolist()
        }
        return splice(encoded, others)

    def decode(self, input_ids: npt.NDArray[np.unsignedinteger[Any]]) -> str:
        with rust_errors(self.path or "the tokenizer", "cannot decode these ids"):
            return str(self._reference.decode(input_ids.tolist(), skip_special_tokens=False))

    def identity(self) -> dict[str, Any]:
        return {"digest": self.digest, "engine": self.engine}

    def describe(self) -> str:
        """Which engine and why, how offsets are found, which special tokens and chat templates there are."""
        name = self.path or "handed over as an object"
        offsets = "from a table of byte lengths"
        if isinstance(self._engines.table, NoTable):
            offsets = f"from the reference engine ({self._engines.table.reason})"
        special = ", ".join(f"{name} {token!r}" for name, token in self.special_tokens.items())
        num_special = f"{len(self.special_added)} of {len(self.added_tokens)} added tokens"
        lines = [
            f"tokenizer {name}: {self.vocab_size:,} ids, {self.digest[:8]}",
            f"engine    {self.engine}: {self.reason}",
            f"offsets   {offsets}",
            f"special   {special or 'none named'}; {num_special}",
            f"chat      {', '.join(self.chat_templates) or 'no template'}",
        ]
        return "\n".join(lines)

    def _encode(self, texts: list[str]) -> tuple[Ids, Ints]:
        if self._fast is not None:
            ids, offsets = self._fast.encode_batch_flat(texts)
            return np.frombuffer(ids, dtype="<u4"), np.frombuffer(offsets, dtype="<u8").astype(
                np.int64
            )
        encodings = self._ask_reference(texts)
        offsets = borders([len(encoding) for encoding in encodings])
        flat = np.empty(offsets[-1], dtype=np.uint32)
        for start, stop, encoding in zip(offsets[:-1], offsets[1:], encodings, strict=True):
            flat[start:stop] = encoding.ids
        return flat, offsets

    def _ask_reference(self, texts: list[str]) -> "list[tokenizers.Encoding]":
        """One text at a time: `encode_batch` starts threads, and then every fork prints a warning."""
        return [self._reference.encode(text, add_special_tokens=False) for text in texts]

    def _spans(self, texts: list[str]) -> Encoded:
        if self._table is None:
            return by_reference(texts, self._ask_reference(texts))
        encoded, wrong = by_table(self._table, texts, *self._encode(texts))
        others = {}
        for number in wrong.tolist():
            others[number] = other = by_reference(
                [texts[number]], self._ask_reference([texts[number]])
            )
            if not np.array_equal(
                encoded.ids[slice(*encoded.offsets[number : number + 2])], other.ids
            ):
                raise TemplateError(
                    f"{self.engine} and tokenizers {package_version('tokenizers')} give different ids for "
                    f"{texts[number][:80]!r}; please report this text with the tokenizer",
                    record=number,
                )
        return splice(encoded, others) if others else encoded

    def _special_places(self, texts: list[str], ids: Ids, offsets: Ints) -> Ints:
        """Positions of special tokens.  The id for unknown text counts only if its name is in the text."""
        places = np.flatnonzero(self._is_special.take(ids))
        unknown = ids[places] == self._unknown
        owners = np.searchsorted(offsets, places[unknown], side="right") - 1
        unknown[unknown] = [self._unknown_name not in texts[number] for number in owners.tolist()]
        written: Ints = places[~unknown]
        return written

    def with_engine(self, *, fast: bool) -> "Tokenizer":
        """The same tokenizer; `fast` decides whether fastokens may encode."""
        return self if fast == self.wants_fast else Tokenizer(self._engines, fast=fast)

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, (*self._engines.origin, self.wants_fast)

    def __repr__(self) -> str:
        return f"Tokenizer({self.path or 'object'!r}, {self.vocab_size:,} ids, {self.engine}, {self.digest[:8]})"


def open_tokenizer(
    given: Any,
    *,
    fast: bool | None = None,
    num_bytes: float = math.inf,
    cache: Cache | None = None,
) -> Tokenizer:
    """Open a tokenizer.json, a folder that holds one, a hub name, a `tokenizers.Tokenizer` or a fast one of transformers.

    fast: use fastokens if it gives the same ids; None: if it is worth its loading time.  num_bytes: about how much data will be encoded.
    cache: where facts about the tokenizer are kept.
    """
    expects_fast = num_bytes >= SURELY_FAST_BYTES if fast is None else fast
    tokenizer = _open_any(given, cache, fast=expects_fast)
    if fast is None:
        fast = num_bytes >= fast_bytes(tokenizer.vocab_size)
    return tokenizer.with_engine(fast=fast)


def _open_any(given: Any, cache: Cache | None, *, fast: bool) -> Tokenizer:
    if isinstance(given, Tokenizer):
        return given
    root = None if cache is None else cache.where
    files: TokenizerFiles | None = None
    if hasattr(given, "backend_tokenizer"):
        files = from_transformers(given)
    elif type(given).__module__.partition(".")[0] == "tokenizers" and hasattr(given, "to_str"):
        files = TokenizerFiles(text=given.to_str())
    if files is not None:
        packed = orjson.dumps(files)
        return _open(None, f"object {digest(packed)}", packed, root, fast)
    if not isinstance(given, (str, os.PathLike)):
        raise TemplateError(
            f"tokenizer is a {type(given).__name__}, expected a path, a hub name or a fast tokenizer"
        )
    file = find_tokenizer(given, cache)
    return _open(str(file), content_digest(file), b"", root, fast)


@lru_cache(maxsize=8)
def _open(path: str | None, content: str, packed: bytes, root: str | None, fast: bool) -> Tokenizer:
    """Once per process: large tokenizers take seconds to load."""
    engines = _engines(path, content, packed, root)
    engines.expects_fast = fast
    return Tokenizer(engines, fast=fast)


_engines = lru_cache(maxsize=4)(Engines)


def special_found(token: str | None, where: str, record: int | None = None) -> TemplateError:
    return TemplateError(
        f"special token {token!r} is in {where}; choose special_in_text='token' to encode it as one, or 'text' to encode its letters",
        record=record,
    )


@contextmanager
def _errors_named(texts: list[str]) -> Iterator[None]:
    """Name the text that the engines refuse, and what they raise."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, UnicodeError | TypeError):
            with rust_errors("the tokenizer", "fails on a text"):
                raise
        broken = [
            number
            for number, text in enumerate(texts)
            if isinstance(text, str) and _SURROGATE.search(text)
        ]
        if not broken:
            raise
        reason = "the text holds half of a surrogate pair, expected valid Unicode"
        raise TemplateError(reason, record=broken[0]) from error
