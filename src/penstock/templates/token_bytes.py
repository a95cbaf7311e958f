"""Which bytes of a text does each token cover?  A table of byte lengths per id and one cumulative sum: 35 to 300 M tokens/s.

A table exists where every byte of a text ends up in exactly one token: byte-level vocabularies, and those that write a
blank as "▁" and unknown bytes as <0xNN>.  Per text the lengths must add up to its bytes and the tokenizer's normalizer
must leave it as it is; where not, the offsets of `tokenizers` are asked for (characters, turned into bytes).
"""

import base64
import unicodedata
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from penstock.types import Bools, Ids, Ints

_UNSURE = 1 << 36  # longer than any text: a sum with such a token in it never fits
_LONGEST = 0xFFFF  # bytes of a token as kept in the cache; this long or longer is unsure
_PLANES = 0x20000  # marks that change their order live in the first two planes
_FEW = 1 << 14  # characters that are looked up one by one: the table of all takes 50 ms to make
_SPLITS = {"Split", "Digits", "Punctuation", "UnicodeScripts"}  # cut only, unless told to remove
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level_alphabet() -> frozenset[str]:
    """The character that stands for each byte in a byte-level vocabulary: itself where it can be printed, else one from 256 on."""
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    return frozenset(map(chr, printed)) | {chr(0x100 + number) for number in range(256 - len(printed))}


_ALPHABET = byte_level_alphabet()


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Texts made into tokens, flat: text i is `ids[offsets[i]:offsets[i + 1]]`.

    `starts` and `stops` give for every token the bytes it covers in the UTF-8 of its own text, non-decreasing within a
    text.  By the table they share no byte and leave none out (a token may hold part of a character).  By the reference,
    where the normalizer changes a text or a vocabulary has no table, they span whole characters: pieces of one
    character share its range, and what the tokenizer drops belongs to no token.  Either way a blank that the tokenizer
    puts before a text lies on the first character.
    """

    ids: Ids  # (num_tokens,)
    offsets: Ints  # (num_texts + 1,)
    starts: Ints  # (num_tokens,)
    stops: Ints  # (num_tokens,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteTable:
    """How many bytes the text of each id is long, and what may stand between the text and that."""

    lengths: Ints  # (vocab_size,)
    added: Bools  # (vocab_size,) ids that cut a text into segments
    nfc: bool  # the normalizer is NFC: a text must be normal already
    blank: str | None  # stands for a blank in the vocabulary; a text that holds it itself is miscounted
    prefix: Literal["never", "segment", "text"]  # where a blank may be put in front
    prefixed: Bools  # (vocab_size,) ids that begin with a blank


@dataclass(frozen=True, slots=True)
class _Frame:
    """What a tokenizer.json does to a text before its vocabulary is asked."""

    byte_level: bool = False
    nfc: bool = False
    prefix: Literal["never", "segment", "text"] = "never"
    blank: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a tokenizer.json says, without its vocabulary.  Steps are JSON values as in the file."""

    model: str  # BPE, Unigram …
    normalizer: Mapping[str, Any] | None
    pre_tokenizer: Mapping[str, Any] | None
    byte_fallback: bool
    affixes: bool  # or dropout: a token's text is not what it covers
    unknown: int | None  # the id in the model's own vocabulary for what it does not know


def byte_table(spec: Spec, vocab: Mapping[str, int], own: Iterable[str], added: Mapping[int, Any]) -> "ByteTable | str":
    """The table of a tokenizer.json, or why it has none.

    vocab: tokens and their ids, added ones too.  own: those of the byte-level alphabet and <0xNN> that are in the model's own
    vocabulary.  added: ids and their `tokenizers.AddedToken`.
    """
    if spec.model != "BPE":
        return f"a {spec.model} vocabulary does not tell how many bytes a token covers"
    if spec.affixes:
        return "affixes or dropout in the vocabulary"
    frame = _frame(spec)
    if isinstance(frame, str):
        return frame
    blank = "Ġ" if frame.byte_level else frame.blank
    whole = _ALPHABET.issubset(own) if frame.byte_level else spec.byte_fallback and set(BYTES).issubset(own)
    if not whole and spec.unknown is None:
        return "the vocabulary drops what it does not know"
    size = max([*vocab.values(), *added], default=-1) + 1
    lengths = np.full(size, _UNSURE, dtype=np.int64)
    prefixed = np.zeros(size, dtype=np.bool_)
    ids = np.fromiter(vocab.values(), dtype=np.int64, count=len(vocab))
    lengths[ids], first = _token_lengths(list(vocab), frame)
    if blank is not None:
        prefixed[ids] = first == ord(blank)
    if not frame.byte_level:
        lengths[[vocab[token] for token in BYTES if token in vocab]] = 1
    if spec.unknown is not None and not whole:
        lengths[spec.unknown] = _UNSURE
    is_added = np.zeros(size, dtype=np.bool_)
    for number, token in added.items():
        is_added[number] = True
        # one that takes blanks along, or is sought in changed text, may cover more or other bytes than it has
        plain = not (token.lstrip or token.rstrip or (token.normalized and frame.blank))
        lengths[number] = len(token.content.encode()) if plain else _UNSURE
    return ByteTable(
        lengths=lengths, added=is_added, nfc=frame.nfc, blank=frame.blank, prefix=frame.prefix, prefixed=prefixed
    )


def _token_lengths(tokens: list[str], frame: "_Frame") -> tuple[Ints, Ints]:
    """Bytes that the text of each token takes, and its first character (-1: none); all characters of a vocabulary at once."""
    text = "".join(tokens)
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    if frame.byte_level:  # a character is a byte
        known = np.zeros(0x100 + 256, dtype=np.bool_)
        known[[ord(character) for character in _ALPHABET]] = True
        sizes = np.where(known[np.minimum(codes, len(known) - 1)], 1, _UNSURE)
    else:
        sizes = _widths(codes)
        if frame.blank is not None:
            sizes[codes == ord(frame.blank)] = 1
    borders = _borders(sizes)
    counts = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
    stops = np.cumsum(counts)
    first = np.append(codes.astype(np.int64), -1)[np.where(counts > 0, stops - counts, -1)]
    return np.diff(borders[stops], prepend=0).clip(max=_UNSURE), first


def pack_table(table: "ByteTable") -> dict[str, Any]:
    """A table as a JSON value."""
    return {
        "lengths": _packed(np.minimum(table.lengths, _LONGEST).astype("<u2")),
        "added": _packed(np.packbits(table.added)),
        "prefixed": _packed(np.packbits(table.prefixed)),
        "size": len(table.lengths),
        "nfc": table.nfc,
        "blank": table.blank,
        "prefix": table.prefix,
    }


def unpack_table(value: Mapping[str, Any]) -> "ByteTable":
    size = value["size"]
    lengths = np.frombuffer(_unpacked(value["lengths"]), dtype="<u2").astype(np.int64)
    lengths[lengths == _LONGEST] = _UNSURE
    added, prefixed = (
        np.unpackbits(np.frombuffer(_unpacked(value[name]), np.uint8), count=size).astype(np.bool_)
        for name in ("added", "prefixed")
    )
    rest: dict[str, Any] = {name: value[name] for name in ("nfc", "blank", "prefix")}
    return ByteTable(lengths=lengths, added=added, prefixed=prefixed, **rest)


def _packed(array: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(zlib.compress(array.tobytes(), 1)).decode()


def _unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def _parts(step: Mapping[str, Any] | None, inside: str) -> list[Mapping[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, nested sequences laid out."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [part for one in step[inside] for part in _parts(one, inside)]
    return [step]


def _frame(spec: Spec) -> _Frame | str:
    byte_level = nfc = removes = False
    prefix: Literal["never", "segment", "text"] = "never"
    blanks: set[str] = set()
    for step in _parts(spec.normalizer, "normalizers"):
        if step["type"] == "NFC":
            nfc = True
        elif step["type"] == "Prepend" and len(step["prepend"]) == 1:
            blanks.add(step["prepend"])
            prefix = "segment"
        elif step["type"] == "Replace" and step["pattern"] == {"String": " "} and len(step["content"]) == 1:
            blanks.add(step["content"])
        else:
            return f"normalizer {step['type']}"
    for step in _parts(spec.pre_tokenizer, "pretokenizers"):
        if step["type"] == "ByteLevel":
            byte_level = True
            prefix = "segment" if step.get("add_prefix_space", True) else prefix
        elif step["type"] == "Metaspace":
            blanks.add(step["replacement"])
            scheme = step.get("prepend_scheme", "always")
            prefix = {"always": "segment", "first": "text"}.get(scheme, prefix)  # type: ignore[assignment]
        elif step["type"] not in _SPLITS:
            return f"pre-tokenizer {step['type']}"
        removes |= step.get("behavior") == "Removed"
    if removes and prefix != "never":
        return "what is removed and what is put in front can cancel in a sum"
    if len(blanks) > 1 or (byte_level and blanks):
        return "several ways to write a blank"
    return _Frame(byte_level=byte_level, nfc=nfc, prefix=prefix, blank=next(iter(blanks), None))


def by_table(table: ByteTable, texts: Sequence[str], ids: Ids, offsets: Ints) -> tuple[Ints, Ints, Ints]:
    """Starts and stops of all tokens, and the numbers of the texts for which they do not hold."""
    expected = _num_bytes(texts, table)
    lengths = table.lengths.take(ids)
    borders = _borders(lengths)
    excess = borders[offsets[1:]] - borders[offsets[:-1]] - expected
    if table.prefix == "never" or not excess.any():
        starts = borders[:-1] - np.repeat(borders[offsets[:-1]], np.diff(offsets))
        lengths += starts
        return starts, lengths, np.flatnonzero(excess)
    in_front = _in_front(table, ids, offsets, excess)
    lengths -= in_front
    borders = _borders(lengths)
    excess = borders[offsets[1:]] - borders[offsets[:-1]] - expected
    starts = borders[:-1] - np.repeat(borders[offsets[:-1]], np.diff(offsets))
    stops = starts + lengths
    # nothing but the blank in front: it covers no byte, so it lies on the first character, as the reference has it
    for token in np.flatnonzero(in_front & (lengths == 0)).tolist():
        text = texts[int(np.searchsorted(offsets, token, side="right")) - 1]
        stops[token] += _width(text, int(starts[token]))
    return starts, stops, np.flatnonzero(excess)


def _borders(lengths: Ints) -> Ints:
    borders = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=borders[1:])
    return borders


def _in_front(table: ByteTable, ids: Ids, offsets: Ints, excess: Ints) -> Bools:
    """Tokens that begin with a blank which the text does not have.

    A segment gets at most one, so texts with as many bytes too many as segments got one each; any other number leaves
    open which segments those are, and the reference answers.
    """
    first = np.zeros(len(ids) + 1, dtype=np.bool_)  # one more: texts without tokens at the end begin there
    first[offsets[:-1]] = True
    added = table.added[ids]
    begins = first[:-1] & ~added
    if table.prefix == "segment":
        begins[1:] |= added[:-1] & ~added[1:]
    begins &= table.prefixed[ids]
    counted = _borders(begins.astype(np.int64))
    num_begins = counted[offsets[1:]] - counted[offsets[:-1]]
    begins &= np.repeat((excess == num_begins) & (excess > 0), np.diff(offsets))
    return begins


def _num_bytes(texts: Sequence[str], table: ByteTable) -> Ints:
    """Bytes of each text in UTF-8; -1 where the vocabulary sees another text."""
    num_bytes = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    others = [number for number, text in enumerate(texts) if not text.isascii()]
    young = (
        table.nfc and bool(others) and _is_young("".join([texts[number] for number in others]))
    )  # at once: it is never so
    for number in others:
        text = texts[number]
        normal = not table.nfc or (unicodedata.is_normalized("NFC", text) and not (young and _is_young(text)))
        seen = normal and (table.blank is None or table.blank not in text)
        num_bytes[number] = len(text.encode()) if seen else -1
    return num_bytes


def _is_young(text: str) -> bool:
    """Whether a character is younger than this Python's tables: its place in normal order only the tokenizer knows."""
    if len(text) <= _FEW:
        return any(ord(character) < _PLANES and unicodedata.category(character) == "Cn" for character in set(text))
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    return bool(_unassigned()[np.minimum(codes, _PLANES)].any())


@cache
def _unassigned() -> Bools:
    codes = [unicodedata.category(chr(code)) == "Cn" for code in range(_PLANES)]
    return np.array([*codes, False], dtype=np.bool_)  # the last stands for all that lies beyond


def _width(text: str, start: int) -> int:
    """Bytes of the character that begins at byte `start`."""
    if text.isascii():
        return 1
    first = text.encode()[start]
    return 1 + (first >= 0xC0) + (first >= 0xE0) + (first >= 0xF0)


def by_reference(texts: Sequence[str], encodings: Iterable[Any]) -> Encoded:
    """What `tokenizers` says, its character offsets turned into bytes."""
    ids, spans = [np.zeros(0, dtype=np.uint32)], [np.zeros((0, 2), dtype=np.int64)]
    for text, encoding in zip(texts, encodings, strict=True):
        ids.append(np.array(encoding.ids, dtype=np.uint32))
        chars = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        spans.append(chars if text.isascii() else byte_places(text)[chars])
    both = np.concatenate(spans)
    lengths = np.array([len(one) for one in ids], dtype=np.int64)  # the first is the empty one: offsets begin with 0
    return Encoded(ids=np.concatenate(ids), offsets=np.cumsum(lengths), starts=both[:, 0], stops=both[:, 1])


def byte_places(text: str) -> Ints:
    """(num_chars + 1,) at which byte of the UTF-8 each character begins, and the end."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    return _borders(_widths(codes))


def _widths(codes: np.ndarray[Any, Any]) -> Ints:
    """Bytes of each character in UTF-8."""
    widths: Ints = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
    return widths


def splice(encoded: Encoded, others: Mapping[int, Encoded]) -> Encoded:
    """The same texts, some of them encoded otherwise: `others` holds one text each."""
    pieces: list[tuple[Ids, Ints, Ints]] = []
    lengths = np.diff(encoded.offsets, prepend=0)
    done = 0
    for number, other in sorted(others.items()):
        start, stop = int(encoded.offsets[number]), int(encoded.offsets[number + 1])
        pieces.append((encoded.ids[done:start], encoded.starts[done:start], encoded.stops[done:start]))
        pieces.append((other.ids, other.starts, other.stops))
        lengths[number + 1] = len(other.ids)
        done = stop
    pieces.append((encoded.ids[done:], encoded.starts[done:], encoded.stops[done:]))
    ids, starts, stops = (np.concatenate(part) for part in zip(*pieces, strict=True))
    return Encoded(ids=ids, offsets=np.cumsum(lengths), starts=starts, stops=stops)
