"""The engines of a tokenizer.json, opened when they are first needed, and the facts about them.

`tokenizers` is the reference and loads a large file in 0.4 to 1.7 s; `fastokens` takes 1.4 to 4.8 s.  What most commands need (ids of
special tokens, size of the vocabulary, whether fastokens gives the same ids) is kept in the cache under the content of the files, so only
processes that encode or decode load an engine.
"""

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from penstock.cache import open_cache
from penstock.cache.memo import warn
from penstock.errors import TemplateError
from penstock.fingerprint import Digest
from penstock.forks import computed_beside
from penstock.templates.tokenizer.byte_offsets import (
    ByteTable,
    Encoded,
    NoTable,
    Ranges,
    by_reference,
    byte_places,
    byte_table,
)
from penstock.templates.tokenizer.facts import package_version, recall
from penstock.templates.tokenizer.files import TokenizerFiles, read_files, with_added
from penstock.types import Source
from penstock.words import log_stage

if TYPE_CHECKING:
    import fastokens
    import tokenizers

_CHARACTERS_PER_SECOND = 3_500_000  # of a tokenizer.json that fastokens opens
_THREADS = "FASTOKENS_BPE_THREADS"
_MARK = "\ufdd0\ufdd5\ufddb"  # noncharacters, which no text uses
_WORD = re.compile(r"\w")
_LARGEST_ID = 2**32  # of what the engines take
_SURE_IDS = 1_000_000  # ids below are taken without a look at the number of tokens
_IDS_PER_TOKEN = 4  # gaps between ids are common, small ones
_MODEL = ',"model":{'  # in what `tokenizers` writes; a quote within a token is escaped
_LONG_NUMBER = re.compile(r":\s*\d{7}")  # a value of 1,000,000 or more

# From how much data on fastokens encodes.  What it loads in grows with the square of the vocabulary: 0.2 s for 50,000 tokens, 1.2 s for
# 150,000, 4 s for 260,000.  In 1.2 s `tokenizers` encodes 2 to 3 MB.
_FAST_BYTES = 3 << 20
_FAST_TOKENS = 150_000
_LEAST_FAST_BYTES = 1 << 20
SURELY_FAST_BYTES = 16 << 20  # enough for all vocabularies of models
_PIECE = (
    1 << 18
)  # data of unknown size is measured by how many pieces of so many bytes it can be cut into

# Texts on which the engines are compared: scripts, code, digits, whitespace, emoji, combining marks, where pre-tokenizers may differ.
PROBE = (
    "",
    "Hello, world! It's 12,345.67 o'clock; they're HERE'S. I'LL WE'VE ’s",
    "  two  spaces\t\ttabs\n\n\nlines\r\nand trailing   ",
    "\n \n  \n\t \r\n \u3000\u2003x \u00a0 y  z\x0b\x0c\x85.",
    "def f(x):\n    return {'a': [x ** 2, None], \"b\": f'{x!r}'}  # comment\n",
    '#include <map>\nint main(){for(int i=0;i<10;++i)printf("%d\\n",i);return 0;}//!?...===>>>',
    '{"key": [1, 2.5e-3, true, null], "väl": "\\u00e9\\n"}\n<div class="x">&amp;</div>\n\\frac{a}{b}^2 $x_1$',
    "Grüße aus Köln, señor; naïve café — “quoted” … Ω≈ç√∫ ﬁ ½ ² Ⅷ ﷺ İı ẞß",
    "你好，世界！今天天气很好。 こんにちは、ｶﾀｶﾅ 안녕하세요 1２３ ①",
    "Привет мир مرحبا بالعالم שָׁלוֹם नमस्ते हिन्दी สวัสดี ສະບາຍດີ ქართული Հայերեն አማርኛ தமிழ் ខ្មែរ မြန်မာ",
    "🙂👩‍👩‍👧‍👦🇩🇪👍🏽 e\u0301 \u00e9 \u1e9b\u0323 q\u0307\u0323 \u1100\u1161\u11a8 \u2028 \u00a0 \ufeff \x00 \x7f \u200b\u200d",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𓀀 𠀋 \ue000 \U000f0041 \U0010fffd \ufffd \u0378",
    "https://example.org/a?b=1&c=%20#x <b>tag</b> <|endoftext|> </s> [INST] <s> ▁ ▁▁x <0x0A> Ġ Ċ",
    "1234567890 " * 8 + "a" * 300 + " " * 70 + "-" * 70 + "\n" * 20,
)


def bytes_to_encode(source: Source, rows: int | None = None) -> float:
    """About how many bytes of a source are encoded.  rows: how many rows, if not all."""
    if getattr(source, "is_stream", False):
        return math.inf  # how much there is, is known at its end only
    num_bytes: int | None = getattr(source, "num_bytes", None)  # only our own sources have it
    if not num_bytes:
        borders = source.cuts(num_bytes=_PIECE, num_rows=1 << 62)
        num_bytes = (len(borders) - 1) * _PIECE
    share = 1.0 if rows is None else min(1.0, rows / max(1, len(source)))
    return num_bytes * share


def fast_bytes(vocab_size: int) -> float:
    """From how many bytes of data on fastokens saves more than it takes to load.

    Depends on the vocabulary alone, not on how fast a machine is: the engine is part of a store's key, which all machines must agree on.
    """
    return max(_LEAST_FAST_BYTES, _FAST_BYTES * (vocab_size / _FAST_TOKENS) ** 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFacts:
    """What Penstock learns when it opens a tokenizer; JSON values only."""

    digest: str  # of tokenizer.json with all added tokens
    special_tokens: dict[str, str]
    chat_templates: dict[str, str]
    vocab_size: int  # the largest id, plus one
    prefix: list[int]  # ids that the post-processor puts before a text
    suffix: list[int]  # and after it
    added_tokens: dict[str, int]
    special_added: list[str]
    # That end generation: the eos_token, and those in generation_config.json.
    stop_tokens: list[str]
    unknown: list[Any] | None  # id and name of the token for unknown text
    model_max_length: int | None  # the longest sequence of the model, if the files say so
    # Whether the files next to tokenizer.json add tokens or change how one is found.
    is_changed: bool
    warning: str


class Engines:
    """The engines of one tokenizer, whose files are at `path` or in `packed` (JSON).  `content` is a digest of the files."""

    def __init__(
        self, path: str | None, content: str, packed: bytes, cache_root: str | None
    ) -> None:
        self.path = path
        self.content = content
        self.origin = (
            path,
            content,
            packed,
            cache_root,
        )  # what it takes to make these in another process
        self.cache = None if cache_root is None else open_cache(cache_root)
        self.where = path or "tokenizer"
        self.expects_fast = False  # whether fastokens will probably encode
        self._probe_ids: list[list[int]] | None = None  # of the reference, once they are known

    @cached_property
    def facts(self) -> TokenizerFacts:
        facts = TokenizerFacts(**self._recall("tokenizer", self._learn, "tokenizers"))
        if facts.warning:
            warn(f"{self.where}: {facts.warning}")
        return facts

    @cached_property
    def reference(self) -> "tokenizers.Tokenizer":
        """`tokenizers`; encodes and decodes."""
        opened, _, _ = self._opened
        opened.post_processor = None  # it could only trim offsets now
        return opened

    @cached_property
    def selective(self) -> "SelectiveReference":
        """A second reference, which encodes some special tokens as text: the switch is not safe between threads."""
        unknown = None if self.facts.unknown is None else self.facts.unknown[0]
        return SelectiveReference(_open_reference(self._json, self.where), unknown=unknown)

    @cached_property
    def verdict(self) -> tuple[bool, str]:
        """Whether fastokens gives the same ids as `tokenizers`, and why this is known."""
        same, reason = self._recall("engine", self._compare, "tokenizers", "fastokens")
        return same, reason

    @cached_property
    def fast(self) -> "fastokens.Tokenizer | None":
        """Return fastokens if it gives the same ids."""
        return self._any_fast if self.verdict[0] else None

    @cached_property
    def table(self) -> ByteTable | NoTable:
        """Return the bytes of every id, or the reason why they are unknown."""
        return byte_table(orjson.loads(self._json), self.facts.added_tokens, self.facts.vocab_size)

    def _recall(self, kind: str, compute: Callable[[], Any], *packages: str) -> Any:
        about = {"content": self.content, **{name: package_version(name) for name in packages}}
        return recall(kind, about=about, compute=compute, cache=self.cache)

    @cached_property
    def _files(self) -> TokenizerFiles:
        path, content, packed, _ = self.origin
        return (
            TokenizerFiles(**orjson.loads(packed))
            if path is None
            else read_files(Path(path), content)
        )

    @cached_property
    def _opened(self) -> "tuple[tokenizers.Tokenizer, str, str]":
        """The reference, its tokenizer.json with all added tokens, and a warning about those."""
        opened = _open_reference(self._files.text, self.where)
        added = with_added(opened, self._files)
        if added is None:
            return opened, self._files.text, ""
        return _open_reference(added[0], self.where), *added

    @property
    def _json(self) -> str:
        """tokenizer.json with all added tokens."""
        return self._opened[1] if self.facts.is_changed else self._files.text

    def _learn(self) -> dict[str, Any]:
        check_ids(self._files.text, self.where)
        learned = self._learn_beside_fast() if self.expects_fast else None
        if learned is not None:
            self._probe_ids = learned["probe_ids"]
            facts: dict[str, Any] = learned["facts"]
            return facts
        with rust_errors(self.where):
            return asdict(self._learn_facts())

    def _learn_beside_fast(self) -> Any:
        """Learn the facts and the ids of the probe texts in another process, while this one opens fastokens: each takes a second.

        None where that is not possible, or fails: then this process does it, and says what is wrong.
        """

        def learn() -> dict[str, Any]:
            facts = self._learn_facts()
            probe_ids = self._encode_probe(facts)
            return {"facts": asdict(facts), "probe_ids": probe_ids}

        with computed_beside(learn) as wait:
            if wait is None:
                return None
            with _refusals_ignored():
                self._any_fast = _open_fast(self._files.text)
            learned = wait()
        if learned is None or learned["facts"]["is_changed"]:
            self.__dict__.pop("_any_fast", None)  # it lacks the added tokens
        return learned

    def _learn_facts(self) -> TokenizerFacts:
        opened, text, warning = self._opened
        if getattr(opened.model, "dropout", None):
            raise TemplateError(
                f"{self.where}: the model has dropout {opened.model.dropout:g}, so that a text has other ids each time; set it to null"
            )
        prefix, suffix = _around(opened, self.where)
        for number in (*prefix, *suffix):
            if opened.id_to_token(number) is None:
                raise TemplateError(
                    f"{self.where}: the post-processor adds the id {number:_}, which is not in the vocabulary"
                )
        added = opened.get_added_tokens_decoder()
        unknown = _unknown_id(opened, text)
        listed = [
            token
            for number in self._files.stop_ids
            if number < _LARGEST_ID and (token := opened.id_to_token(number)) is not None
        ]
        if (eos := self._files.special_tokens.get("eos_token")) is not None:
            listed.append(eos)
        return TokenizerFacts(
            digest=content_key(opened, prefix, suffix),
            special_tokens=self._files.special_tokens,
            chat_templates=self._files.chat_templates,
            vocab_size=_vocab_size(opened),
            prefix=prefix,
            suffix=suffix,
            added_tokens={token.content: number for number, token in added.items()},
            special_added=[token.content for token in added.values() if token.special],
            stop_tokens=sorted(set(listed)),
            unknown=None if unknown is None else [unknown, opened.id_to_token(unknown)],
            model_max_length=self._files.model_max_length,
            is_changed=text is not self._files.text,
            warning=warning,
        )

    @cached_property
    def _any_fast(self) -> "fastokens.Tokenizer":
        """fastokens, whether it gives the same ids or not; opened once."""
        return _open_fast(self._json)

    def _encode_probe(self, facts: TokenizerFacts) -> list[list[int]]:
        """The ids of the probe texts, by the reference."""
        encodings = [
            self.reference.encode(text, add_special_tokens=False) for text in _probe_texts(facts)
        ]
        return [encoding.ids for encoding in encodings]

    def _compare(self) -> tuple[bool, str]:
        """Encode probe texts with both engines."""
        texts = _probe_texts(self.facts)
        try:
            expected = self._probe_ids or self._encode_probe(self.facts)
            for text, ids in zip(texts, expected, strict=True):
                if list(self._any_fast.encode(text).ids) != ids:  # a batch may start threads
                    del self._any_fast
                    return False, f"fastokens gives other ids for {text!r}"
        except BaseException as error:  # whatever it refuses, the reference takes over
            if not _is_refusal(error):
                raise
            return False, f"fastokens refuses this tokenizer: {error}"
        return True, f"fastokens gives the same ids as tokenizers on {len(texts)} probe texts"


@contextmanager
def rust_errors(where: str, what: str = "the tokenizer fails") -> Iterator[None]:
    """Name the errors of an engine that is written in Rust: a bare Exception, or a panic, which Python does not take for an Exception."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and not _is_panic(error):
            raise
        raise TemplateError(f"{where}: {what}: {error}") from error


@contextmanager
def _refusals_ignored() -> Iterator[None]:
    """Go on behind the block if an engine refuses a tokenizer."""
    try:
        yield
    except BaseException as error:
        if not _is_refusal(error):
            raise


def _is_refusal(error: BaseException) -> bool:
    """Whether an engine refuses a tokenizer or a text."""
    return isinstance(error, Exception) or _is_panic(error)


def _is_panic(error: BaseException) -> bool:
    return type(error).__name__ == "PanicException"


def check_ids(text: str, where: str) -> None:
    """Refuse a tokenizer.json with ids far above its number of tokens: engines and models make a row for each id below."""
    if _LONG_NUMBER.search(text) is None:
        return
    try:
        spec = orjson.loads(text)
    except orjson.JSONDecodeError:
        return  # the engine says what is wrong with it
    model = spec.get("model") if isinstance(spec, dict) else None
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids: dict[str, Any] = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    added = spec.get("added_tokens") if isinstance(spec, dict) else None
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict):
            ids[str(token.get("content"))] = token.get("id")
    largest = max(_SURE_IDS, _IDS_PER_TOKEN * len(ids))
    for token, number in ids.items():
        if isinstance(number, int) and number >= largest:
            raise TemplateError(
                f"{where}: the token {token[:80]!r} has the id {number:_}, expected less than {largest:_} in a vocabulary of "
                f"{len(ids):_} tokens: engines and models make a row for each id"
            )


def content_key(opened: "tokenizers.Tokenizer", prefix: list[int], suffix: list[int]) -> str:
    """Return a digest of what decides the ids: the same for a folder, its tokenizer.json, and objects of tokenizers or transformers.

    `tokenizers` writes every tokenizer in one form, whatever the file looked like.  What changes no id is left out: padding and
    truncation, which are switched off here; offsets that are trimmed; and the options of a byte-level decoder.  Of the post-processor
    only the ids that it adds count, `prefix` and `suffix`.  transformers builds some tokenizers again and sets these to other values
    than the file.
    """
    head, _, model = opened.to_str().partition(_MODEL)  # most of it; nothing in it is left out
    parts = orjson.loads(head + "}")
    parts.pop("padding", None)
    parts.pop("truncation", None)
    parts.pop("post_processor", None)
    rest = _without_unused(parts)
    content = Digest()
    content.update(model.encode())
    content.update(orjson.dumps([rest, prefix, suffix], option=orjson.OPT_SORT_KEYS))
    return content.hexdigest()


def _without_unused(value: Any, *, is_decoder: bool = False) -> Any:
    if isinstance(value, list):
        return [_without_unused(part, is_decoder=is_decoder) for part in value]
    if not isinstance(value, dict):
        return value
    if is_decoder and value.get("type") == "ByteLevel":
        return {"type": "ByteLevel"}
    return {
        name: _without_unused(part, is_decoder=is_decoder or name == "decoder")
        for name, part in value.items()
        if name != "trim_offsets" or "type" not in value
    }


def _open_reference(text: str, where: str) -> "tokenizers.Tokenizer":
    """`tokenizers` with this tokenizer.json."""
    import tokenizers

    with rust_errors(where, "cannot read this tokenizer.json"):
        opened = tokenizers.Tokenizer.from_str(text)
    opened.no_padding()  # a file can set both, but a store keeps samples whole
    opened.no_truncation()
    return opened


def _open_fast(text: str) -> "fastokens.Tokenizer":
    """`fastokens` with this tokenizer.json."""
    import fastokens

    log_stage("opening the tokenizer", seconds=len(text) / _CHARACTERS_PER_SECOND)
    with _one_thread():
        fast = fastokens.Tokenizer.from_json_str(text)
        fast.no_padding()
        fast.no_truncation()
        fast.encode("a")  # reads the number of threads
    return fast


def _vocab_size(opened: "tokenizers.Tokenizer") -> int:
    """The largest id, plus one: the number of tokens, unless there are gaps between ids."""
    size = opened.get_vocab_size(with_added_tokens=True)
    if None in map(opened.id_to_token, range(size)):
        return max(opened.get_vocab(with_added_tokens=True).values()) + 1
    return size


def _around(opened: "tokenizers.Tokenizer", where: str) -> tuple[list[int], list[int]]:
    """Ids that the post-processor puts before and after a text, such as one BOS."""
    for text in ("a", "0", "."):
        bare = opened.encode(text, add_special_tokens=False).ids
        full = opened.encode(text, add_special_tokens=True).ids
        for start in range(len(full) - len(bare) + 1):
            if bare and full[start : start + len(bare)] == bare:
                return full[:start], full[start + len(bare) :]
    if opened.num_special_tokens_to_add(is_pair=False):
        raise TemplateError(f"{where}: cannot tell which special tokens go before and after a text")
    return [], []


def _unknown_id(opened: "tokenizers.Tokenizer", text: str) -> int | None:
    """The id for unknown text.  It is often a special token, which then need not be in the text."""
    if type(opened.model).__name__ == "Unigram":
        found: int | None = orjson.loads(text)["model"].get("unk_id")  # the object does not have it
        return found
    unknown = getattr(opened.model, "unk_token", None)
    return opened.token_to_id(unknown) if unknown else None


@contextmanager
def _one_thread() -> Iterator[None]:
    """Make fastokens use one thread, unless the user has set a number.  It reads the number at its first text."""
    if _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        os.environ.pop(_THREADS, None)


def _probe_texts(facts: TokenizerFacts) -> list[str]:
    """The texts on which the engines of a tokenizer are compared."""
    return [*PROBE, *_probe_added(sorted(facts.added_tokens))]


def _probe_added(added: list[str]) -> list[str]:
    """Texts around added tokens: between words, between blanks, doubled, cut short; the first and last of many."""
    chosen = added if len(added) <= 40 else [*added[:30], *added[-10:]]
    texts = [
        f"word{token}word {token} \n{token}{token}\t{token[:-1]} {token.upper()}"
        for token in chosen
    ]
    return [*texts, "".join(chosen), " ".join(chosen)]


class SelectiveReference:
    """`tokenizers` with some special tokens as text.  Slow, and used only for texts that need it.

    Every special token gets a twin that no text can hold: its content behind noncharacters, an added token that is not special.  The
    engine takes special tokens for text, and those that stay tokens are written as their twins, which cut the text, include blanks and ask
    for word borders just as the originals do.
    """

    def __init__(self, engine: "tokenizers.Tokenizer", *, unknown: int | None) -> None:
        engine.post_processor = None
        engine.encode_special_tokens = True
        added = engine.get_added_tokens_decoder()
        self._ids = {token.content: number for number, token in added.items() if token.special}
        self._single = {token.content for token in added.values() if token.single_word}
        longest_first = sorted((token.content for token in added.values()), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        engine.add_tokens([_twin(token) for token in added.values() if token.special])
        self._engine = engine
        self._special = np.array(
            [number for number in self._ids.values() if number != unknown], dtype=np.uint32
        )

    def encode(self, texts: Sequence[str], record: int, plain: Ranges | None) -> Encoded:
        """Encode one of the texts; special tokens that touch a range of `plain` are text, all of them if that is None."""
        text = texts[record]
        kept = [] if plain is None else self._kept(text, plain)
        if kept and _MARK in text:
            reason = "the text holds the noncharacters U+FDD0 U+FDD5 U+FDDB next to a special token; remove them"
            raise TemplateError(reason, record=record)
        borders = [0, *(start for start, _ in kept), len(text)]
        marked = _MARK.join(text[start:stop] for start, stop in pairwise(borders))
        encoding = self._engine.encode(marked, add_special_tokens=False)
        is_twin = np.array(
            [bool(kept) and _MARK in token for token in encoding.tokens], dtype=np.bool_
        )
        assert is_twin.sum() == len(kept), (text, kept)
        mark_places = np.array(borders[1:-1], dtype=np.int64) + len(_MARK) * np.arange(
            len(kept)
        )  # in the marked text
        chars = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        chars -= len(_MARK) * np.searchsorted(mark_places, chars, side="left")
        encoded = by_reference([text], [SimpleNamespace(ids=encoding.ids, offsets=chars)])
        if (leaked := np.isin(encoded.ids, self._special) & ~is_twin).any():
            token = self._engine.id_to_token(int(encoded.ids[leaked][0]))
            reason = f"special token {token!r} is in the text; this vocabulary can encode it only as one token"
            raise TemplateError(
                f"{reason}; choose special_in_text='token' to encode it as one", record=record
            )
        encoded.ids[is_twin] = [self._ids[text[start:stop]] for start, stop in kept]
        return encoded

    def _kept(self, text: str, plain: Ranges) -> list[tuple[int, int]]:
        """Special tokens that touch no range, as (start, stop) in characters."""
        places = byte_places(text)
        starts, stops = (np.searchsorted(places, [pair[side] for pair in plain]) for side in (0, 1))
        kept = []
        at = 0
        while match := self._pattern.search(text, at):
            start, stop = match.span()
            at = stop
            if match[0] not in self._ids or (
                match[0] in self._single and _is_inside_word(text, start, stop)
            ):
                continue
            if ((starts < stop) & (stops > start) & (starts < stops)).any():
                at = start + 1  # text after all: another token may begin within it
            else:
                kept.append((start, stop))
        return kept


def _twin(token: "tokenizers.AddedToken") -> "tokenizers.AddedToken":
    import tokenizers

    flags = {name: getattr(token, name) for name in ("single_word", "lstrip", "rstrip")}
    return tokenizers.AddedToken(_MARK + token.content, **flags, normalized=False, special=False)


def _is_inside_word(text: str, start: int, stop: int) -> bool:
    """Whether a letter is directly before or after."""
    return bool(_WORD.match(text[start - 1 : start]) or _WORD.match(text[stop : stop + 1]))
