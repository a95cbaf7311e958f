"""Find the bytes of a text that each token covers, from a table of byte lengths per id: 35 to 300 M tokens/s.

A table exists where every byte of a text ends up in exactly one token: byte-level vocabularies, and those that write a blank as "▁" and
unknown bytes as <0xNN>.  For each text the lengths must add up to its bytes, and the normalizer must not change it.  Other texts get
the offsets of `tokenizers`, turned from characters into bytes.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Literal

import numpy as np

from penstock.types import Bools, Ids, Ints

Ranges = Sequence[tuple[int, int]]  # (start, stop) in bytes of one text, in order, without overlap

_UNSURE = 1 << 36  # longer than any text: a sum with such a token never fits
_PLANES = 0x20000  # marks that change their order are in the first two planes of Unicode
_SPLITS = {
    "Split",
    "Digits",
    "Punctuation",
    "UnicodeScripts",
}  # cut only, unless `behavior` is Removed
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Texts as tokens, flat: text i is `ids[offsets[i]:offsets[i + 1]]`.

    `starts` and `stops` give the bytes that each token covers in the UTF-8 of its own text, non-decreasing within a text.  From a table
    they share no byte and leave none out, and a token may cover part of a character.  From `tokenizers` they cover whole characters:
    the pieces of one character share its range, and what the tokenizer drops belongs to no token.  In both cases a blank that the
    tokenizer adds before a text covers the first character.
    """

    ids: Ids  # (num_tokens,)
    offsets: Ints  # (num_texts + 1,)
    starts: Ints  # (num_tokens,)
    stops: Ints  # (num_tokens,)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """What a tokenizer.json does to a text before it looks up tokens."""

    byte_level: bool
    nfc: bool  # a text must be in NFC already
    blank: str | None  # written for a blank in the vocabulary; a text that holds it is miscounted
    prefix: Literal["never", "segment", "text"]  # where a blank may be put in front


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteTable:
    """How many bytes of a text each id covers."""

    steps: _Steps
    lengths: Ints  # (vocab_size,)
    added: Bools  # (vocab_size,) ids that cut a text into segments
    prefixed: Bools  # (vocab_size,) ids that begin with a blank


@dataclass(frozen=True, slots=True)
class NoTable:
    """Why the bytes of the tokens of a vocabulary are not known from a table."""

    reason: str


def byte_level_alphabet() -> frozenset[str]:
    """The character for each byte in a byte-level vocabulary: itself where it can be printed, else one from 256 on."""
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    return frozenset(map(chr, printed)) | {
        chr(0x100 + number) for number in range(256 - len(printed))
    }


def byte_table(
    spec: Mapping[str, Any], added_ids: Mapping[str, int], vocab_size: int
) -> ByteTable | NoTable:
    """Return the table of a parsed tokenizer.json, or why it has none.  added_ids: the ids that added tokens have once it is loaded."""
    model = spec["model"]
    vocab = spec["model"]["vocab"]
    kind = model.get("type") or ("BPE" if "merges" in model else "unnamed")
    if kind != "BPE":
        return NoTable(f"a {kind} vocabulary does not tell how many bytes a token covers")
    if any(
        model.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix", "dropout")
    ):
        return NoTable("affixes or dropout in the vocabulary")
    steps = _read_steps(spec)
    if isinstance(steps, NoTable):
        return steps
    every_byte = (
        byte_level_alphabet()
        if steps.byte_level
        else _BYTES
        if model.get("byte_fallback")
        else {None}
    )
    knows_all = all(token in vocab for token in every_byte)
    unknown = vocab.get(model.get("unk_token"))
    if not knows_all and unknown is None:
        return NoTable("the vocabulary drops what it does not know")
    lengths = np.full(vocab_size, _UNSURE, dtype=np.int64)
    prefixed = np.zeros(vocab_size, dtype=np.bool_)
    is_added = np.zeros(vocab_size, dtype=np.bool_)
    ids = np.fromiter(vocab.values(), dtype=np.int64, count=len(vocab))
    lengths[ids], first = _token_lengths(list(vocab), steps)
    prefixed[ids] = first == ord("Ġ" if steps.byte_level else steps.blank or "\0")
    if not steps.byte_level:
        lengths[[vocab[token] for token in _BYTES if token in vocab]] = 1
    if not knows_all:
        lengths[unknown] = _UNSURE
    for token in spec.get("added_tokens") or ():
        number = added_ids[token["content"]]
        content = token["content"]
        is_added[number] = True
        # one that includes blanks around it, or is searched in normalized text, may cover other bytes than its own
        is_exact = not (
            token.get("lstrip") or token.get("rstrip") or (token.get("normalized") and steps.blank)
        )
        lengths[number] = len(content.encode()) if is_exact else _UNSURE
    return ByteTable(steps=steps, lengths=lengths, added=is_added, prefixed=prefixed)


def _token_lengths(tokens: list[str], steps: _Steps) -> tuple[Ints, Ints]:
    """Bytes that the text of each token takes, and its first character (-1 without one), for a whole vocabulary at once."""
    codes = np.frombuffer("".join(tokens).encode("utf-32-le", "surrogatepass"), dtype="<u4")
    if steps.byte_level:  # a character is a byte
        known = np.zeros(0x100 + 256, dtype=np.bool_)
        known[[ord(character) for character in byte_level_alphabet()]] = True
        sizes = np.where(known[np.minimum(codes, len(known) - 1)], 1, _UNSURE)
    else:
        sizes = _widths(codes)
        if steps.blank is not None:
            sizes[codes == ord(steps.blank)] = 1
    counts = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
    stops = np.cumsum(counts)
    first = np.append(codes.astype(np.int64), -1)[np.where(counts > 0, stops - counts, -1)]
    return np.diff(borders(sizes)[stops], prepend=0).clip(max=_UNSURE), first


def _read_steps(spec: Mapping[str, Any]) -> _Steps | NoTable:
    """Return what happens before the vocabulary, or why that leaves the bytes of tokens unknown."""
    byte_level = nfc = removes = False
    prefix: Literal["never", "segment", "text"] = "never"
    blanks: set[str] = set()
    for step in _flat(spec.get("normalizer"), "normalizers"):
        if step["type"] == "NFC":
            nfc = True
        elif step["type"] == "Prepend" and len(step["prepend"]) == 1:
            blanks.add(step["prepend"])
            prefix = "segment"
        elif (
            step["type"] == "Replace"
            and step["pattern"] == {"String": " "}
            and len(step["content"]) == 1
        ):
            blanks.add(step["content"])
        else:
            return NoTable(f"normalizer {step['type']}")
    for step in _flat(spec.get("pre_tokenizer"), "pretokenizers"):
        if step["type"] == "ByteLevel":
            byte_level = True
            prefix = "segment" if step.get("add_prefix_space", True) else prefix
        elif step["type"] == "Metaspace":
            blanks.add(step["replacement"])
            scheme = step.get(
                "prepend_scheme", "always" if step.get("add_prefix_space", True) else "never"
            )
            prefix = {"always": "segment", "first": "text"}.get(scheme, prefix)  # type: ignore[assignment]
        elif step["type"] not in _SPLITS:
            return NoTable(f"pre-tokenizer {step['type']}")
        removes |= step.get("behavior") == "Removed"
    if removes and prefix != "never":
        return NoTable("what is removed and what is put in front can cancel in a sum")
    if len(blanks) > 1 or (byte_level and blanks):
        return NoTable("several ways to write a blank")
    return _Steps(byte_level=byte_level, nfc=nfc, blank=next(iter(blanks), None), prefix=prefix)


def _flat(step: Mapping[str, Any] | None, inside: str) -> list[Mapping[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, without nesting."""
    if step is None:
        return []
    return (
        [part for one in step[inside] for part in _flat(one, inside)]
        if step["type"] == "Sequence"
        else [step]
    )


def by_table(
    table: ByteTable, texts: Sequence[str], ids: Ids, offsets: Ints
) -> tuple[Encoded, Ints]:
    """The tokens with the bytes that they cover, and the numbers of the texts for which these are wrong."""
    expected = np.array([_num_bytes(text, table.steps) for text in texts], dtype=np.int64)
    lengths = table.lengths.take(ids)
    ends = borders(lengths)
    excess = ends[offsets[1:]] - ends[offsets[:-1]] - expected
    in_front: Bools | None = None
    if table.steps.prefix != "never" and excess.any():
        in_front = _in_front(table, ids, offsets, excess)
        lengths -= in_front
        ends = borders(lengths)
        excess = ends[offsets[1:]] - ends[offsets[:-1]] - expected
    starts = ends[:-1] - np.repeat(ends[offsets[:-1]], np.diff(offsets))
    stops = starts + lengths
    if in_front is not None:
        # a token that is only the blank in front has no byte of its own; it covers the first character, as in `tokenizers`
        for token in np.flatnonzero(in_front & (lengths == 0)).tolist():
            rest = texts[int(np.searchsorted(offsets, token, side="right")) - 1].encode()[
                int(starts[token]) :
            ]
            stops[token] += len(rest.decode(errors="ignore")[:1].encode())
    return Encoded(ids=ids, offsets=offsets, starts=starts, stops=stops), np.flatnonzero(excess)


def _in_front(table: ByteTable, ids: Ids, offsets: Ints, excess: Ints) -> Bools:
    """Tokens that begin with a blank which the text does not have.

    A segment gets at most one.  A text with as many bytes too many as segments got one in each; for any other number it is not known
    which segments did, and the text stays wrong.
    """
    first = np.zeros(
        len(ids) + 1, dtype=np.bool_
    )  # one more: texts without tokens at the end begin there
    first[offsets[:-1]] = True
    added = table.added[ids]
    begins = first[:-1] & ~added
    if table.steps.prefix == "segment":
        begins[1:] |= added[:-1] & ~added[1:]
    begins &= table.prefixed[ids]
    counted = borders(begins.astype(np.int64))
    num_begins = counted[offsets[1:]] - counted[offsets[:-1]]
    begins &= np.repeat((excess == num_begins) & (excess > 0), np.diff(offsets))
    return begins


def _num_bytes(text: str, steps: _Steps) -> int:
    """Bytes of a text in UTF-8; -1 if the vocabulary gets another text."""
    if text.isascii():
        return len(text)
    if steps.nfc and (not unicodedata.is_normalized("NFC", text) or _has_unassigned(text)):
        return -1
    return -1 if steps.blank is not None and steps.blank in text else len(text.encode())


def _has_unassigned(text: str) -> bool:
    """Return whether a character is newer than Python's Unicode tables, so that only the tokenizer may know its NFC order."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    return bool(_unassigned().take(codes, mode="clip").any())


@cache
def _unassigned() -> Bools:
    flags = [unicodedata.category(chr(code)) == "Cn" for code in range(_PLANES)]
    return np.array([*flags, False], dtype=np.bool_)  # the last entry is for all larger codes


def by_reference(texts: Sequence[str], encodings: Iterable[Any]) -> Encoded:
    """The tokens and offsets of `tokenizers`, from characters to bytes."""
    made = []
    for text, encoding in zip(texts, encodings, strict=True):
        chars = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        spans = chars if text.isascii() else byte_places(text)[chars]
        made.append((np.array(encoding.ids, dtype=np.uint32), spans[:, 0], spans[:, 1]))
    return _join(made)


def inside(encoded: Encoded, tokens: Ints, plain: Sequence[Ranges]) -> Ints:
    """Those of `tokens` (positions) whose bytes touch a range of their text."""
    flat = np.fromiter(chain.from_iterable(chain.from_iterable(plain)), dtype=np.int64).reshape(
        -1, 2
    )
    owner = (
        np.repeat(np.arange(len(plain)), [len(ranges) for ranges in plain]) << 40
    )  # longer than any text
    starts = flat[:, 0] + owner
    stops = flat[:, 1] + owner
    assert (starts <= stops).all() and (starts[1:] >= stops[:-1]).all(), (
        "ranges are not in order or overlap"
    )
    starts, stops = starts[starts < stops], stops[starts < stops]
    text = (np.searchsorted(encoded.offsets, tokens, side="right") - 1) << 40
    following = np.searchsorted(
        stops, encoded.starts[tokens] + text, side="right"
    )  # first range that ends behind it
    begins = np.append(starts, np.iinfo(np.int64).max)[following]
    return tokens[begins < encoded.stops[tokens] + text]


def splice(encoded: Encoded, others: Mapping[int, Encoded]) -> Encoded:
    """The same texts, some of them encoded in another way: `others` holds one text each."""
    made = []
    for number in range(len(encoded.offsets) - 1):
        one = others.get(number, encoded)
        text = slice(None) if number in others else slice(*encoded.offsets[number : number + 2])
        made.append((one.ids[text], one.starts[text], one.stops[text]))
    return _join(made)


def _join(texts: list[tuple[Ids, Ints, Ints]]) -> Encoded:
    """One text after another: (ids, starts, stops) each."""
    none = (np.zeros(0, np.uint32), np.zeros(0, np.int64), np.zeros(0, np.int64))
    ids, starts, stops = (np.concatenate(part) for part in zip(none, *texts, strict=True))
    lengths = np.array([len(text) for text, _, _ in texts], dtype=np.int64)
    return Encoded(ids=ids, offsets=borders(lengths), starts=starts, stops=stops)


def byte_places(text: str) -> Ints:
    """(num_chars + 1,) the byte of the UTF-8 at which each character begins, and the end."""
    return borders(_widths(np.frombuffer(text.encode("utf-32-le"), dtype="<u4")))


def _widths(codes: np.ndarray[Any, Any]) -> Ints:
    """Bytes of each character in UTF-8."""
    widths: Ints = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
    return widths


def borders(lengths: Sequence[int] | Ints | Bools) -> Ints:
    """(n + 1,) where each of n pieces begins, and the end."""
    made = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=made[1:])
    return made
