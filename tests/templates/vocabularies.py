"""Small vocabularies of every kind, texts that hurt them, and what `tokenizers` says about both."""

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Reference

from penstock.templates import Tokenizer, open_tokenizer
from penstock.templates.tokenizer.byte_offsets import Encoded

REAL = Path(os.environ.get("PENSTOCK_REAL_DATA", "real data")) / "tokenizers"

CORPUS = [
    "the quick brown fox jumps over the lazy dog and runs home, Grüße 你好 e\u0301\n  two\n\nhello"
] * 40
ASCII = "".join(map(chr, range(33, 127)))
SPECIAL = ["<s>", "</s>", "<|im_end|>"]
ADDED = ["<think>", "<tool>"]  # found in a text, but not special


def byte_level(*, nfc: bool = False, prefix: bool = False) -> Reference:
    made = Reference(models.BPE())
    if nfc:
        made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    made.post_processor = processors.ByteLevel(trim_offsets=True)  # must not show in the spans
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    made.add_tokens(ADDED)
    return made


def blank_level(
    *, normalizer: normalizers.Normalizer | None, pre: pre_tokenizers.PreTokenizer | None
) -> Reference:
    """As SentencePiece has it: blanks are ▁, unknown bytes <0xNN>."""
    made = Reference(models.BPE(unk_token="<unk>", fuse_unk=True))
    if normalizer is not None:
        made.normalizer = normalizer
    if pre is not None:
        made.pre_tokenizer = pre
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", *SPECIAL, *bytes_], show_progress=False
    )
    made.train_from_iterator(
        [*(text[:60] for text in CORPUS), ASCII], trainer
    )  # other letters stay unknown
    spec = json.loads(made.to_str())
    spec["model"]["byte_fallback"] = True
    spec["added_tokens"] = [
        token for token in spec["added_tokens"] if not token["content"].startswith("<0x")
    ]
    made = Reference.from_str(json.dumps(spec))
    made.add_tokens([AddedToken(token, normalized=False) for token in ADDED])
    return made


def llama_2() -> Reference:
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    return blank_level(normalizer=normalizers.Sequence(steps), pre=None)


def gemma() -> Reference:
    return blank_level(
        normalizer=normalizers.Replace(" ", "▁"),
        pre=pre_tokenizers.Split(" ", "merged_with_previous"),
    )


def metaspace(scheme: str) -> Reference:
    return blank_level(normalizer=None, pre=pre_tokenizers.Metaspace(prepend_scheme=scheme))


def stripping() -> Reference:
    """Special tokens that take the blanks next to them along, next to a blank put in front: the two cancel in a sum."""
    made = llama_2()
    made.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False)])
    return made


def holes() -> Reference:
    """Byte-level, with a hole in the ids: fastokens refuses it, the table does not mind."""
    made = json.loads(byte_level().to_str())
    last = max(made["model"]["vocab"], key=lambda token: made["model"]["vocab"][token])
    made["model"]["vocab"][last] += 100
    return Reference.from_str(json.dumps(made))


def dropping() -> Reference:
    """Without a word for what it does not know: those bytes belong to no token."""
    made = Reference(models.BPE())
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.train_from_iterator(
        [text[:60] for text in CORPUS],
        trainers.BpeTrainer(vocab_size=100, special_tokens=SPECIAL, show_progress=False),
    )
    return made


def removing() -> Reference:
    """Takes letters away and puts blanks in front: the two cancel in a sum."""
    steps = [
        pre_tokenizers.Split("q", "removed"),
        pre_tokenizers.Metaspace(prepend_scheme="always"),
    ]
    return blank_level(normalizer=None, pre=pre_tokenizers.Sequence(steps))


def cutting() -> Reference:
    """Like tiktoken's: what its pattern does not match would be removed, so a sum tells."""
    made = byte_level()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[a-z]+|[^a-z~]"), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return made


def word_piece() -> Reference:
    made = Reference(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]", *SPECIAL], show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def unigram() -> Reference:
    made = Reference(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


VOCABULARIES: dict[str, Callable[[], Reference]] = {
    "byte level": byte_level,
    "byte level, NFC": lambda: byte_level(nfc=True),
    "byte level, blank in front": lambda: byte_level(prefix=True),
    "llama 2": llama_2,
    "gemma": gemma,
    "metaspace, always": lambda: metaspace("always"),
    "metaspace, first": lambda: metaspace("first"),
    "metaspace, never": lambda: metaspace("never"),
    "stripping": stripping,
    "holes": holes,
    "dropping": dropping,
    "removing": removing,
    "cutting": cutting,
    "word piece": word_piece,
    "unigram": unigram,
}
FAST = {
    "byte level",
    "byte level, NFC",
    "byte level, blank in front",
    "llama 2",
    "gemma",
    "stripping",
    "cutting",
}
NO_TABLE = {"dropping", "removing", "word piece", "unigram"}


@cache
def both(name: str) -> tuple[Tokenizer, Reference]:
    """The tokenizer under test and an oracle that no code of ours has touched, but for trimmed offsets."""
    made = (
        VOCABULARIES[name]()
        if name in VOCABULARIES
        else Reference.from_file(str(REAL / name / "tokenizer.json"))
    )
    oracle = Reference.from_str(made.to_str())
    oracle.no_padding()
    oracle.no_truncation()
    oracle.post_processor = None
    return open_tokenizer(made), oracle


def real(name: str) -> object:
    absent = pytest.mark.skipif(not (REAL / name).is_dir(), reason="PENSTOCK_REAL_DATA is not set")
    return pytest.param(name, marks=absent)


FOUND = sorted(path.name for path in REAL.iterdir()) if REAL.is_dir() else ["gpt2"]
EVERY = [*VOCABULARIES, *map(real, FOUND)]

PIECES = st.one_of(
    st.sampled_from(
        [
            *SPECIAL,
            *ADDED,
            "<mask>",
            "[UNK]",
            "<unk>",
            "<0x41>",
            "▁",
            "Ġ",
            " ",
            "  ",
            "\n\n",
            "\t ",
            "\u00a0",
            "the",
            " quick",
            "hello",
            "é",
            "e\u0301",
            "\u0301",
            "q\u0307\u0323",
            "\u1100\u1161",
            "Å",
            "\u212b",
            "ﬁ",
            "🙂",
            "👩‍👩‍👧‍👦",
            "你好",
            "\U000f0041",
            "\u0897\u0301",
            "\x00",
            "’s",
            "1234",
        ]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
)
# hypothesis reads constants in our sources, so it knows the marks of special_text: their refusal has its own test
TEXT = st.lists(PIECES, max_size=8).map("".join).filter(lambda text: "\ufdd0\ufdd5" not in text)


def whole_characters(text: str, start: int, stop: int) -> tuple[int, int]:
    """Bytes widened to whole characters, which is all that `tokenizers` tells."""
    data = text.encode()
    while start < len(data) and data[start] & 0xC0 == 0x80:
        start -= 1
    while stop < len(data) and data[stop] & 0xC0 == 0x80:
        stop += 1
    return start, stop


def told(encoded: Encoded, number: int, text: str) -> list[tuple[int, tuple[int, int]]]:
    """(id, span) of each token of one text."""
    where = slice(encoded.offsets[number], encoded.offsets[number + 1])
    rows = zip(
        encoded.ids[where].tolist(),
        encoded.starts[where].tolist(),
        encoded.stops[where].tolist(),
        strict=True,
    )
    return [(token, whole_characters(text, start, stop)) for token, start, stop in rows]


def expected(oracle: Reference, text: str) -> list[tuple[int, tuple[int, int]]]:
    encoding = oracle.encode(text, add_special_tokens=False)
    spans = [
        (len(text[:start].encode()), len(text[:stop].encode())) for start, stop in encoding.offsets
    ]
    return list(zip(encoding.ids, spans, strict=True))
