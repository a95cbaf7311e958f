"""Open the engines behind a tokenizer.json when they are first needed, and remember what they told.

`tokenizers` is the reference.  It takes 0.4 to 1.7 s to load a large file, `fastokens` 1.4 to 4.8 s.  What most commands need to know
(ids of special tokens, size of the vocabulary, whether fastokens gives the same ids) is kept in the cache under the content of the
files, so that only processes that encode or decode load an engine.
"""

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.cache import Cache
from penstock.errors import TemplateError
from penstock.fingerprint import digest
from penstock.templates.facts import package_version, recall
from penstock.templates.token_bytes import (
    BYTES,
    ByteTable,
    Spec,
    byte_level_alphabet,
    byte_table,
    pack_table,
    unpack_table,
)
from penstock.templates.tokenizer_files import TokenizerFiles
from penstock.templates.tokenizer_probe import PROBE, added_probe
from penstock.types import Source

if TYPE_CHECKING:
    import fastokens
    import tokenizers

    from penstock.templates.special_text import SelectiveReference

_log = logging.getLogger("penstock")

_THREADS = "FASTOKENS_BPE_THREADS"

# Data from this size on is encoded by fastokens.  `tokenizers` encodes 2 to 3 MB/s, so below it loading fastokens (1.4 to 4.8 s for the
# vocabularies of today's models) takes about as long as it saves, or longer.
FAST_BYTES = 8 << 20
_PIECES = (
    16  # where no files tell the size, data is measured by how many pieces of a sixteenth of that it can be cut into
)


def is_worth_fast(source: Source, rows: int | None = None) -> bool:
    """Whether a source holds so much data that fastokens is worth its loading time.

    A function of the data alone: the engine is part of a store's key.  The size of its files counts, or of what they hold, where that is
    more (compressed files) or all that is known (lists, views).
    rows: how many rows are encoded, where not all are; they count for their share of the data.
    """
    share = 1.0 if rows is None else min(1.0, rows / max(1, len(source)))
    if (getattr(source, "num_bytes", None) or 0) * share >= FAST_BYTES:  # our own sources tell
        return True
    borders = source.cuts(num_bytes=FAST_BYTES // _PIECES, num_rows=1 << 62)
    return (len(borders) - 1) * share >= _PIECES


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFacts:
    """What opening a tokenizer tells; JSON values only."""

    digest: str  # of tokenizer.json with all added tokens
    special_tokens: dict[str, str]
    additional_special_tokens: list[str]
    chat_templates: dict[str, str]
    vocab_size: int  # the largest id and one
    prefix: list[int]  # ids that the post-processor puts before a text, and after it
    suffix: list[int]
    added_tokens: dict[str, int]
    special_added: list[str]
    stop_tokens: list[str]  # at which generation stops: the eos_token, and what generation_config.json lists
    unknown: list[Any] | None  # id and name of what the vocabulary gives for what it does not know
    model_max_length: int | None  # the longest sequence that the model was made for, where the files say so
    is_changed: bool  # the files beside tokenizer.json add tokens, or say otherwise how one is found
    warning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether fastokens gives the same ids as `tokenizers`."""

    same: bool
    same_split: bool  # also where special tokens are text
    reason: str


class Engines:
    """The engines of one tokenizer.  `read` gives its files; `content` is a digest of them."""

    def __init__(
        self, read: Callable[[], TokenizerFiles], *, content: str, path: str | None, cache_root: str | None
    ) -> None:
        self._read, self._content, self.cache_root = read, content, cache_root
        self.cache = None if cache_root is None else Cache(cache_root)
        self.where = path or "tokenizer"
        self.facts = TokenizerFacts(**self._recall("tokenizer", lambda: asdict(self._learn()), "tokenizers"))
        if self.facts.warning:
            _log.warning("%s: %s", self.where, self.facts.warning)

    @cached_property
    def reference(self) -> "tokenizers.Tokenizer":
        opened, _, _ = self._opened
        opened.post_processor = None  # it could only trim offsets now
        return opened

    @cached_property
    def splitting(self) -> "tokenizers.Tokenizer":
        """A second reference that takes special tokens for text; its own, as the switch is not safe between threads."""
        engine = open_reference(self._json, self.where)
        engine.post_processor = None
        engine.encode_special_tokens = True
        return engine

    @cached_property
    def selective(self) -> "SelectiveReference":
        from penstock.templates.special_text import SelectiveReference

        unknown = None if self.facts.unknown is None else self.facts.unknown[0]
        return SelectiveReference(open_reference(self._json, self.where), unknown=unknown)

    @cached_property
    def verdict(self) -> Verdict:
        return Verdict(**self._recall("engine", lambda: asdict(self._compare()), "tokenizers", "fastokens"))

    @cached_property
    def fast(self) -> "fastokens.Tokenizer | None":
        """fastokens, where it gives the same ids."""
        return self._open_fast() if self.verdict.same else None

    @cached_property
    def table(self) -> ByteTable | str:
        """The bytes of every id, or why there is no such table."""
        value = self._recall("byte-table", lambda: self._packed_table(self._vocab()), "tokenizers")
        return value if isinstance(value, str) else unpack_table(value)

    def _recall(self, kind: str, compute: Callable[[], Any], *packages: str) -> Any:
        about = {"content": self._content, **{name: package_version(name) for name in packages}}
        return recall(kind, about=about, compute=compute, cache=self.cache)

    @cached_property
    def _files(self) -> TokenizerFiles:
        return self._read()

    @cached_property
    def _opened(self) -> "tuple[tokenizers.Tokenizer, str, str]":
        """The reference, its tokenizer.json with all added tokens, and a warning about those."""
        from penstock.templates.tokenizer_added import with_added

        opened = open_reference(self._files.text, self.where)
        added = with_added(opened, self._files)
        if added is None:
            return opened, self._files.text, ""
        return open_reference(added[0], self.where), *added

    @property
    def _json(self) -> str:
        """tokenizer.json with all added tokens."""
        return self._opened[1] if self.facts.is_changed else self._files.text

    def _learn(self) -> TokenizerFacts:
        opened, text, warning = self._opened
        prefix, suffix = _around(opened, self.where)
        vocab = self._vocab()
        added = opened.get_added_tokens_decoder()
        self._recall("byte-table", lambda: self._packed_table(vocab), "tokenizers")  # while the vocabulary is at hand
        unknown = _unknown_id(opened, text)
        eos = self._files.special_tokens.get("eos_token")
        listed = [token for number in self._files.stop_ids if (token := opened.id_to_token(number)) is not None]
        return TokenizerFacts(
            digest=digest(text.encode()),
            special_tokens=dict(self._files.special_tokens),
            additional_special_tokens=list(self._files.additional_special_tokens),
            chat_templates=dict(self._files.chat_templates),
            vocab_size=max(vocab.values(), default=-1) + 1,
            prefix=prefix,
            suffix=suffix,
            added_tokens={token.content: number for number, token in added.items()},
            special_added=[token.content for token in added.values() if token.special],
            stop_tokens=sorted({*listed, *([] if eos is None else [eos])}),
            unknown=None if unknown is None else [unknown, opened.id_to_token(unknown)],
            model_max_length=self._files.model_max_length,
            is_changed=text is not self._files.text,
            warning=warning,
        )

    def _vocab(self) -> dict[str, int]:
        return self._opened[0].get_vocab(with_added_tokens=True)

    def _packed_table(self, vocab: dict[str, int]) -> dict[str, Any] | str:
        opened = self._opened[0]
        model = opened.model
        own = [token for token in (*byte_level_alphabet(), *BYTES) if model.token_to_id(token) is not None]
        unknown = getattr(model, "unk_token", None)
        affixes = ("continuing_subword_prefix", "end_of_word_suffix", "dropout")
        spec = Spec(
            model=type(model).__name__,
            normalizer=_state(opened.normalizer),
            pre_tokenizer=_state(opened.pre_tokenizer),
            byte_fallback=bool(getattr(model, "byte_fallback", False)),
            affixes=any(getattr(model, name, None) for name in affixes),
            unknown=model.token_to_id(unknown) if unknown else None,
        )
        table = byte_table(spec, vocab, own, opened.get_added_tokens_decoder())
        return table if isinstance(table, str) else pack_table(table)

    # fastokens

    def _open_fast(self) -> "fastokens.Tokenizer":
        import fastokens

        with _one_thread():
            fast = fastokens.Tokenizer.from_json_str(self._json)
            fast.no_padding()
            fast.no_truncation()
            fast.encode("a")  # the first text: the number of threads is read here
        return fast

    def _compare(self) -> Verdict:
        """Encode probe texts with both engines."""
        probe = [*PROBE, *added_probe(list(self.facts.added_tokens))]
        try:
            fast = self._open_fast()
            if (text := self._differs(fast, probe, split=False)) is not None:
                return Verdict(same=False, same_split=False, reason=f"fastokens gives other ids for {text!r}")
            same_split = self._differs(fast, probe, split=True) is None
        except Exception as error:  # whatever it refuses, the reference takes over
            return Verdict(same=False, same_split=False, reason=f"fastokens refuses this tokenizer: {error}")
        reason = f"fastokens gives the same ids as tokenizers on {len(probe)} probe texts"
        more = "" if same_split else "; not where special tokens are text, which tokenizers does"
        self.fast = fast  # it is open now
        return Verdict(same=True, same_split=same_split, reason=reason + more)

    def _differs(self, fast: "fastokens.Tokenizer", probe: list[str], *, split: bool) -> str | None:
        """The first probe text for which the engines disagree."""
        self.reference.encode_special_tokens = split
        try:
            for text in probe:  # one by one: a batch may start threads
                expected = self.reference.encode(text, add_special_tokens=False).ids
                if list(fast.encode(text, split_special_tokens=split).ids) != expected:
                    return text
        finally:
            self.reference.encode_special_tokens = False
        return None


def open_reference(text: str, where: str) -> "tokenizers.Tokenizer":
    """`tokenizers` with this tokenizer.json."""
    import tokenizers

    try:
        opened = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises bare Exception
        raise TemplateError(f"{where}: not a tokenizer.json that can be read: {error}") from error
    opened.no_padding()  # a file can carry both; a store wants samples whole
    opened.no_truncation()
    return opened


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


def _state(step: Any) -> dict[str, Any] | None:
    """A normalizer or pre-tokenizer as tokenizer.json has it."""
    if step is None:
        return None
    state: dict[str, Any] = json.loads(step.__getstate__())
    return state


def _unknown_id(opened: "tokenizers.Tokenizer", text: str) -> int | None:
    """What the vocabulary gives for what it does not know; often a special token, which then need not be in the text."""
    if type(opened.model).__name__ == "Unigram":
        import orjson

        found: int | None = orjson.loads(text)["model"].get("unk_id")  # the object does not tell
        return found
    unknown = getattr(opened.model, "unk_token", None)
    return opened.token_to_id(unknown) if unknown else None


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
