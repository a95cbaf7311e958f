"""Turn texts into ids.  `tokenizers` is the reference; `fastokens` is used where it gives the same ids and the data is large.

fastokens encodes 6 to 100 times faster and returns one flat array, but takes seconds to load.  Which engine encodes is part of a
store's key, so the choice must not depend on the machine or the moment: it is a function of the size of the data (`fast=`), and of
whether the two engines agree on probe texts, which is remembered per content of the tokenizer's files.
Both run on one thread (unless FASTOKENS_BPE_THREADS says otherwise): two threads give ×1.2, two processes ×2, and a
process without threads can fork.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import orjson

from penstock.cache import Cache
from penstock.errors import TemplateError
from penstock.fingerprint import digest
from penstock.templates.hub import hub_folder, is_hub_name
from penstock.templates.special_text import Ranges, inside
from penstock.templates.token_bytes import ByteTable, Encoded, by_reference, by_table, splice
from penstock.templates.tokenizer_engines import Engines
from penstock.templates.tokenizer_files import (
    TokenizerFiles,
    chat_templates,
    content_digest,
    find_json,
    max_length,
    read_files,
    special_tokens,
)
from penstock.types import Ids, Ints

if TYPE_CHECKING:
    import fastokens
    import tokenizers

# What becomes of a special token that stands in a text: its id, its letters, or an error that names it.
SpecialInText = Literal["token", "text", "error"]

_HALF = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """A tokenizer.json.  Engines are opened when they are first needed.  Pickles as its path and digest where it came from a file."""

    def __init__(self, engines: Engines, *, path: str | None, content: str, fast: bool, packed: bytes = b"") -> None:
        """`fast`: use fastokens if it gives the same ids.  `packed`: the files, where they have no path."""
        facts = engines.facts
        self.path = path
        self.digest = facts.digest
        self.content = content  # a digest of all files that were read
        self.special_tokens = dict(facts.special_tokens)  # bos_token, eos_token … as a chat template is given them
        self.additional_special_tokens = list(facts.additional_special_tokens)
        self.chat_templates = dict(facts.chat_templates)  # "default" and named ones
        self.model_max_length = facts.model_max_length  # None where the files do not say
        self.vocab_size = facts.vocab_size
        self.prefix, self.suffix = tuple(facts.prefix), tuple(facts.suffix)
        self.added_tokens = dict(facts.added_tokens)
        self.special_added = frozenset(facts.special_added)
        self.stop_tokens = frozenset(facts.stop_tokens)  # at which generation stops
        self.wants_fast = fast
        self._engines, self._packed = engines, packed
        self._unknown: int | None = facts.unknown[0] if facts.unknown else None
        self._unknown_name: str = facts.unknown[1] if facts.unknown else ""
        self._is_special = np.zeros(self.vocab_size, dtype=np.bool_)
        self._is_special[[self.added_tokens[token] for token in self.special_added]] = True

    @property
    def cache(self) -> Cache | None:
        """Where facts about this tokenizer, and about its chat templates, are kept; None: nowhere."""
        return self._engines.cache

    @property
    def is_fast(self) -> bool:
        """Whether fastokens encodes.  Asking loads no engine, once the answer is in the cache."""
        return self.wants_fast and self._engines.verdict.same

    @property
    def engine(self) -> str:
        name = "fastokens" if self.is_fast else "tokenizers"
        return f"{name} {version(name)}"

    @property
    def reason(self) -> str:
        """Why this engine."""
        if not self.wants_fast:
            return "the data is too small for fastokens to be worth its loading time"
        return self._engines.verdict.reason

    @cached_property
    def _fast(self) -> "fastokens.Tokenizer | None":
        return self._engines.fast if self.wants_fast else None

    @property
    def _fast_splits(self) -> bool:
        """Whether fastokens also agrees where special tokens are text."""
        return self._engines.verdict.same_split

    @property
    def _reference(self) -> "tokenizers.Tokenizer":
        return self._engines.reference

    @cached_property
    def _table(self) -> ByteTable | None:
        table = self._engines.table
        return None if isinstance(table, str) else table

    @property
    def _no_table(self) -> str:
        """Why there is no table of byte lengths."""
        table = self._engines.table
        return table if isinstance(table, str) else ""

    @property
    def eos_id(self) -> int | None:
        """The end of a text, as the files name it; None where they do not."""
        return self._named_id("eos_token")

    @property
    def bos_id(self) -> int | None:
        return self._named_id("bos_token")

    @property
    def pad_id(self) -> int | None:
        return self._named_id("pad_token")

    def token_id(self, token: str) -> int:
        found = self.added_tokens.get(token)
        if found is None:
            found = self._reference.token_to_id(token)
        if found is None:
            raise TemplateError(f"{self.path or 'tokenizer'}: token {token!r} is not in the vocabulary")
        return int(found)

    def encode(self, texts: Sequence[str], *, special: SpecialInText = "token") -> tuple[Ids, Ints]:
        """Flat ids of all texts and their offsets, without what the post-processor puts around a text.

        `special` says what becomes of special tokens that stand in a text.  Added tokens that are not special
        (`special_added` lists those that are) are always found.
        """
        texts = list(texts)
        with _whole(texts):
            ids, offsets = self._encode(texts, split=special == "text")
        if special == "text":
            self._no_special(ids, offsets)
        elif special == "error" and len(marks := self._marks(texts, ids, offsets)):
            raise self._unwanted(int(marks[0]), ids, offsets)
        return ids, offsets

    def encode_spans(
        self, texts: Sequence[str], *, special: SpecialInText = "token", plain: Sequence[Ranges] | None = None
    ) -> Encoded:
        """Ids with the bytes of the text that each covers.

        `plain` gives for every text the byte ranges (start, stop), in order and without overlap, that are somebody
        else's words: special tokens that touch them are encoded as plain text (or refused, with special="error"), all
        others stay tokens.  There are no seams: a text with such a place is encoded as though that special token were
        not in the vocabulary there, so the words around it may merge with its letters as they would with any others,
        and everything between the special tokens that stay is encoded exactly as it would be otherwise.
        """
        texts = list(texts)
        with _whole(texts):
            encoded = self._spans(texts, split=special == "text" and plain is None)
            if plain is None and special == "text":
                self._no_special(encoded.ids, encoded.offsets)
            if plain is None and special != "error":
                return encoded
            marks = self._marks(texts, encoded.ids, encoded.offsets)
            if plain is not None:
                assert len(plain) == len(texts), (len(plain), len(texts))
                marks = inside(encoded, marks, plain)
            if special == "error" and len(marks):
                raise self._unwanted(int(marks[0]), encoded.ids, encoded.offsets)
            touched = np.unique(np.searchsorted(encoded.offsets, marks, side="right") - 1).tolist()
            if plain is None or not touched:
                return encoded
            return splice(
                encoded, {number: self._engines.selective.encode(texts, number, plain[number]) for number in touched}
            )

    def decode(self, input_ids: npt.NDArray[np.unsignedinteger[Any]]) -> str:
        return str(self._reference.decode(input_ids.tolist(), skip_special_tokens=False))

    def identity(self) -> dict[str, Any]:
        return {"digest": self.digest, "engine": self.engine}

    def describe(self) -> str:
        """Which engine and why, how offsets are found, which special tokens and chat templates there are."""
        special = ", ".join(f"{name} {token!r}" for name, token in self.special_tokens.items())
        offsets = f"from the reference engine ({self._no_table})" if self._no_table else "from a table of byte lengths"
        return "\n".join(
            (
                f"tokenizer {self.path or 'handed over as an object'}: {self.vocab_size:_} ids, {self.digest[:8]}",
                f"engine    {self.engine}: {self.reason}",
                f"offsets   {offsets}",
                f"special   {special or 'none named'}; {len(self.special_added)} of {len(self.added_tokens)} added tokens",
                f"chat      {', '.join(self.chat_templates) or 'no template'}",
            )
        )

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.token_id(token)

    def _encode(self, texts: list[str], *, split: bool) -> tuple[Ids, Ints]:
        if self._fast is not None and (self._fast_splits or not split):
            ids, offsets = self._fast.encode_batch_flat(texts, split_special_tokens=split)
            return np.frombuffer(ids, dtype="<u4"), np.frombuffer(offsets, dtype="<u8").astype(np.int64)
        encodings = self._ask(texts, split=split)
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        np.cumsum([len(encoding) for encoding in encodings], out=offsets[1:])
        flat = np.empty(offsets[-1], dtype=np.uint32)
        for start, stop, encoding in zip(offsets[:-1], offsets[1:], encodings, strict=True):
            flat[start:stop] = encoding.ids
        return flat, offsets

    def _ask(self, texts: list[str], *, split: bool) -> "list[tokenizers.Encoding]":
        """The reference, text by text: `encode_batch` starts threads, and then every fork prints a warning."""
        engine = self._engines.splitting if split else self._reference
        return [engine.encode(text, add_special_tokens=False) for text in texts]

    def _spans(self, texts: list[str], *, split: bool) -> Encoded:
        if self._table is None and self._fast is None:
            return by_reference(texts, self._ask(texts, split=split))
        ids, offsets = self._encode(texts, split=split)
        if self._table is None:
            starts, stops, unclear = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64), np.arange(len(texts))
        else:
            starts, stops, unclear = by_table(self._table, texts, ids, offsets)
        if len(unclear):
            asked = [texts[number] for number in unclear]
            answer = by_reference(asked, self._ask(asked, split=split))
            for place, number in enumerate(unclear.tolist()):
                whole, part = slice(*offsets[number : number + 2]), slice(*answer.offsets[place : place + 2])
                if not np.array_equal(ids[whole], answer.ids[part]):
                    raise TemplateError(
                        f"{self.engine} and tokenizers {version('tokenizers')} give other ids for {texts[number][:80]!r}; "
                        f"please report this text with the tokenizer",
                        record=number,
                    )
                starts[whole], stops[whole] = answer.starts[part], answer.stops[part]
        return Encoded(ids=ids, offsets=offsets, starts=starts, stops=stops)

    def _marks(self, texts: list[str], ids: Ids, offsets: Ints) -> Ints:
        """Places of special tokens that stand in a text.  The id for the unknown counts where its name is written out."""
        marks = np.flatnonzero(self._is_special.take(ids))
        if self._unknown is None or not (unknown := ids[marks] == self._unknown).any():
            return marks
        name = self._unknown_name
        owners = np.searchsorted(offsets, marks[unknown], side="right") - 1
        unknown[unknown] = [name not in texts[number] for number in owners.tolist()]
        written: Ints = marks[~unknown]
        return written

    def _no_special(self, ids: Ids, offsets: Ints) -> None:
        """Some vocabularies (Unigram) hold special tokens as words: then no way of encoding makes text of them."""
        marks = np.flatnonzero(self._is_special[ids] & (ids != (-1 if self._unknown is None else self._unknown)))
        if len(marks):
            raise self._unwanted(int(marks[0]), ids, offsets, "; this vocabulary has it as a word and cannot spell it")

    def _unwanted(self, mark: int, ids: Ids, offsets: Ints, more: str = "") -> TemplateError:
        token = self._reference.id_to_token(int(ids[mark]))
        return TemplateError(
            f"special token {token!r} stands in the text{more}; choose special_in_text='token' to let it be one"
            + ("" if more else ", or 'text' to encode its letters"),
            record=int(np.searchsorted(offsets, mark, side="right")) - 1,
        )

    def with_engine(self, *, fast: bool) -> "Tokenizer":
        """The same tokenizer; `fast` decides anew whether fastokens may encode."""
        if fast == self.wants_fast:
            return self
        return Tokenizer(self._engines, path=self.path, content=self.content, fast=fast, packed=self._packed)

    def __reduce__(self) -> tuple[Any, ...]:
        root = self._engines.cache_root
        if self.path is not None:
            return _open_file, (self.path, self.content, self.wants_fast, root)
        return _open_object, (self._packed, self.wants_fast, root)

    def __repr__(self) -> str:
        return f"Tokenizer({self.path or 'object'!r}, {self.vocab_size:_} ids, {self.engine}, {self.digest[:8]})"


def open_tokenizer(given: Any, *, fast: bool = True, cache: Cache | None = None) -> Tokenizer:
    """A tokenizer.json, a folder that holds one, a hub name, a `tokenizers.Tokenizer` or a fast one of transformers.

    fast: use fastokens if it gives the same ids.  cache: where facts about the tokenizer are kept.
    """
    root = None if cache is None else str(cache.root)
    if isinstance(given, Tokenizer):
        return given.with_engine(fast=fast)
    if backend := getattr(given, "backend_tokenizer", None):
        return _open_object(_from_transformers(given, backend), fast, root)
    if type(given).__module__.partition(".")[0] == "tokenizers" and hasattr(given, "to_str"):
        return _open_object(_pack(TokenizerFiles(text=given.to_str())), fast, root)
    if not isinstance(given, (str, os.PathLike)):
        raise TemplateError(f"tokenizer is a {type(given).__name__}, expected a path, a hub name or a fast tokenizer")
    place = Path(given).expanduser().absolute()
    if not place.exists():
        if not (isinstance(given, str) and is_hub_name(given)):
            raise TemplateError(f"{given}: no tokenizer there, expected a tokenizer.json or a folder that holds one")
        place = hub_folder(given)
    file = find_json(place)
    return _open_file(str(file), content_digest(file, cache), fast, root)


def _from_transformers(given: Any, backend: Any) -> bytes:
    """Its present state, changes made since loading included."""
    named, additional = special_tokens(given.special_tokens_map)
    files = TokenizerFiles(
        text=backend.to_str(),
        special_tokens=named,
        additional_special_tokens=additional,
        chat_templates=chat_templates(given.chat_template, type(given).__name__),
        model_max_length=max_length(getattr(given, "model_max_length", None)),
    )
    return _pack(files)


def _pack(files: TokenizerFiles) -> bytes:
    return orjson.dumps(files)


@lru_cache(maxsize=8)
def _open_file(path: str, content: str, fast: bool, root: str | None) -> Tokenizer:
    """Once per process: loading takes seconds for the large ones."""
    return Tokenizer(_engines_of_file(path, content, root), path=path, content=content, fast=fast)


@lru_cache(maxsize=8)
def _open_object(packed: bytes, fast: bool, root: str | None) -> Tokenizer:
    """`packed` is what is sent to a worker when there is no file to name."""
    engines = _engines_of_object(packed, root)
    return Tokenizer(engines, path=None, content=digest(packed), fast=fast, packed=packed)


@lru_cache(maxsize=4)
def _engines_of_file(path: str, content: str, root: str | None) -> Engines:
    return Engines(lambda: read_files(Path(path), content), content=content, path=path, cache_root=root)


@lru_cache(maxsize=4)
def _engines_of_object(packed: bytes, root: str | None) -> Engines:
    files = TokenizerFiles(**orjson.loads(packed))
    return Engines(lambda: files, content=f"object {digest(packed)}", path=None, cache_root=root)


@contextmanager
def _whole(texts: list[str]) -> Iterator[None]:
    """Names the text that no engine takes."""
    try:
        yield
    except (UnicodeError, TypeError) as error:
        broken = [number for number, text in enumerate(texts) if isinstance(text, str) and _HALF.search(text)]
        if not broken:
            raise
        reason = "the text holds half of a surrogate pair, expected valid Unicode"
        raise TemplateError(reason, record=broken[0]) from error
