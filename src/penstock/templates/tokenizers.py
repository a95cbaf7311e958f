"""Which ids does a text have?  `tokenizers` is the reference; `fastokens` answers where it gives the same ids.

fastokens is 6 to 100 times faster and hands out one flat array; a probe at open decides, and the key names the engine.
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
from typing import Any, Literal, cast

import fastokens
import numpy as np
import numpy.typing as npt
import orjson
import tokenizers

from penstock.errors import TemplateError
from penstock.fingerprint import digest
from penstock.templates.hub import hub_folder, is_hub_name
from penstock.templates.special_text import Ranges, SelectiveReference, inside
from penstock.templates.token_bytes import ByteTable, Encoded, by_reference, by_table, byte_table, splice
from penstock.templates.tokenizer_files import (
    TokenizerFiles,
    chat_templates,
    find_json,
    max_length,
    read_files,
    special_tokens,
    stamp,
)
from penstock.templates.tokenizer_probe import PROBE, added_probe
from penstock.types import Ids, Ints

# What becomes of a special token that stands in a text: its id, its letters, or an error that names it.
SpecialInText = Literal["token", "text", "error"]

_HALF = re.compile("[\ud800-\udfff]")
_THREADS = "FASTOKENS_BPE_THREADS"


class Tokenizer:
    """A tokenizer.json, opened.  Pickles as its path and digest where it came from a file."""

    def __init__(self, files: TokenizerFiles, *, content: str = "") -> None:
        self.path = files.path
        self.digest = digest(files.text.encode())
        self.special_tokens = dict(files.special_tokens)  # bos_token, eos_token … as a chat template is given them
        self.additional_special_tokens = files.additional_special_tokens
        self.chat_templates = dict(files.chat_templates)  # "default" and named ones
        self.model_max_length = files.model_max_length  # None where the files do not say
        self._files = files
        self._content = content  # stamp of all files read, for pickling
        self._reference = _open_reference(files)
        vocab = self._reference.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1
        self.prefix, self.suffix = self._around()
        self._reference.post_processor = None  # it could only trim offsets now
        added = self._reference.get_added_tokens_decoder()
        self.added_tokens = {token.content: number for number, token in added.items()}
        self.special_added = frozenset(token.content for token in added.values() if token.special)
        self._is_special = np.zeros(self.vocab_size, dtype=np.bool_)
        self._is_special[[number for number, token in added.items() if token.special]] = True
        spec = orjson.loads(files.text)
        self._unknown = _unknown_id(spec["model"], self._reference)
        table = byte_table(spec, self._reference.get_vocab(with_added_tokens=False), added)
        self._table = table if isinstance(table, ByteTable) else None
        self._no_table = "" if isinstance(table, ByteTable) else table
        self._fast_splits = True  # whether it also agrees where special tokens are text
        self._fast, self.reason = self._open_fast()
        self.engine = f"{'fastokens' if self._fast else 'tokenizers'} " + version(
            "fastokens" if self._fast else "tokenizers"
        )

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
            return splice(encoded, {number: self._selective.encode(texts, number, plain[number]) for number in touched})

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

    def _ask(self, texts: list[str], *, split: bool) -> list[tokenizers.Encoding]:
        """The reference, text by text: `encode_batch` starts threads, and then every fork prints a warning."""
        engine = self._splitting if split else self._reference
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

    @cached_property
    def _splitting(self) -> tokenizers.Tokenizer:
        """A second reference that takes special tokens for text; its own, as the switch is not safe between threads."""
        engine = _open_reference(self._files)
        engine.post_processor = None
        engine.encode_special_tokens = True
        return engine

    @cached_property
    def _selective(self) -> SelectiveReference:
        return SelectiveReference(_open_reference(self._files), unknown=self._unknown)

    def _marks(self, texts: list[str], ids: Ids, offsets: Ints) -> Ints:
        """Places of special tokens that stand in a text.  The id for the unknown counts where its name is written out."""
        marks = np.flatnonzero(self._is_special.take(ids))
        if self._unknown is None or not (unknown := ids[marks] == self._unknown).any():
            return marks
        name = self._reference.id_to_token(self._unknown)
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
            with _one_thread():
                fast = fastokens.Tokenizer.from_json_str(self._files.text)
                fast.no_padding()
                fast.no_truncation()
                if (text := self._differs(fast, split=False)) is not None:
                    return None, f"fastokens gives other ids for {text!r}"
                self._fast_splits = self._differs(fast, split=True) is None
        except Exception as error:  # whatever it refuses, the reference takes over
            return None, f"fastokens refuses this tokenizer: {error}"
        reason = f"fastokens gives the same ids as tokenizers on {len(self._probe)} probe texts"
        return fast, reason + (
            "" if self._fast_splits else "; not where special tokens are text, which tokenizers does"
        )

    @cached_property
    def _probe(self) -> list[str]:
        return [*PROBE, *added_probe(list(self.added_tokens))]

    def _differs(self, fast: fastokens.Tokenizer, *, split: bool) -> str | None:
        """The first probe text for which the engines disagree."""
        self._reference.encode_special_tokens = split
        try:
            for text in self._probe:  # one by one: a batch may start threads
                expected = self._reference.encode(text, add_special_tokens=False).ids
                if list(fast.encode(text, split_special_tokens=split).ids) != expected:
                    return text
        finally:
            self._reference.encode_special_tokens = False
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is not None:
            return _open_file, (self.path, self._content)
        return _open_object, (orjson.dumps(self._files),)

    def __repr__(self) -> str:
        return f"Tokenizer({self.path or 'object'!r}, {self.vocab_size:_} ids, {self.engine}, {self.digest[:8]})"


def open_tokenizer(given: Any) -> Tokenizer:
    """A tokenizer.json, a folder that holds one, a hub name, a `tokenizers.Tokenizer` or a fast one of transformers."""
    if isinstance(given, Tokenizer):
        return given
    if isinstance(given, tokenizers.Tokenizer):
        return _open_object(orjson.dumps(TokenizerFiles(text=given.to_str())))
    if backend := getattr(given, "backend_tokenizer", None):
        return _from_transformers(given, backend)
    if not isinstance(given, (str, os.PathLike)):
        raise TemplateError(f"tokenizer is a {type(given).__name__}, expected a path, a hub name or a fast tokenizer")
    place = Path(given).expanduser().absolute()
    if not place.exists():
        if not (isinstance(given, str) and is_hub_name(given)):
            raise TemplateError(f"{given}: no tokenizer there, expected a tokenizer.json or a folder that holds one")
        place = hub_folder(given)
    file = find_json(place)
    return _open_file(str(file), stamp(file))


def _from_transformers(given: Any, backend: Any) -> Tokenizer:
    """Its present state, changes made since loading included."""
    named, additional = special_tokens(given.special_tokens_map)
    files = TokenizerFiles(
        text=backend.to_str(),
        special_tokens=named,
        additional_special_tokens=additional,
        chat_templates=chat_templates(given.chat_template, type(given).__name__),
        model_max_length=max_length(getattr(given, "model_max_length", None)),
    )
    return _open_object(orjson.dumps(files))


@lru_cache(maxsize=4)
def _open_file(path: str, content: str) -> Tokenizer:
    """Once per process: loading takes seconds for the large ones."""
    if stamp(Path(path)) != content:
        raise TemplateError(f"{path}: changed since the work began; run again")
    return Tokenizer(read_files(Path(path)), content=content)


@lru_cache(maxsize=4)
def _open_object(packed: bytes) -> Tokenizer:
    """Once per process too; the bytes are what is sent to a worker when there is no file to name."""
    return Tokenizer(TokenizerFiles(**orjson.loads(packed)))


def _open_reference(files: TokenizerFiles) -> tokenizers.Tokenizer:
    try:
        opened = tokenizers.Tokenizer.from_str(files.text)
    except Exception as error:  # tokenizers raises bare Exception
        raise TemplateError(f"{files.path or 'tokenizer'}: not a tokenizer.json that can be read: {error}") from error
    opened.no_padding()  # a file can carry both; a store wants samples whole
    opened.no_truncation()
    return opened


def _unknown_id(model: dict[str, Any], reference: tokenizers.Tokenizer) -> int | None:
    """What the vocabulary says for what it does not know; often a special token, which then need not be in the text."""
    if model.get("type") == "Unigram":
        return cast("int | None", model.get("unk_id"))
    return reference.token_to_id(model["unk_token"]) if model.get("unk_token") else None


@contextmanager
def _one_thread() -> Iterator[None]:
    """fastokens reads the number of threads once, at its first text; what the user has set there is kept."""
    if _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        os.environ.pop(_THREADS, None)


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
