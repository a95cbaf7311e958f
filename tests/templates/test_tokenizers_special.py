"""Do special tokens in a text become what was asked for, and nothing else changes?"""

import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference

from penstock.errors import TemplateError
from penstock.templates import open_tokenizer
from penstock.templates.tokenizer.byte_offsets import Ranges

from .vocabularies import ADDED, EVERY, SPECIAL, TEXT, VOCABULARIES, both, expected, told


@pytest.mark.parametrize(
    "name", [name for name in EVERY if name != "unigram"]
)  # which cannot spell them: below
@settings(max_examples=20, deadline=None)
@given(texts=st.lists(TEXT, max_size=4))
def test_special_tokens_can_be_text(name: str, texts: list[str]) -> None:
    tokenizer, oracle = both(name)
    oracle.encode_special_tokens = True
    try:
        encoded = tokenizer.encode_spans(texts, special="text")
        for number, text in enumerate(texts):
            assert told(encoded, number, text) == expected(oracle, text), text
    finally:
        oracle.encode_special_tokens = False
    ids, offsets = tokenizer.encode(texts, special="text")
    assert ids.tolist() == encoded.ids.tolist() and offsets.tolist() == encoded.offsets.tolist()


# ---- plain ranges: a user's words inside a rendered text ----


@st.composite
def written(draw: st.DrawFn) -> tuple[str, list[tuple[int, int]]]:
    """A rendered text and the byte ranges in it that a user wrote."""
    text, ranges = "", []
    for piece in draw(st.lists(st.tuples(TEXT, st.booleans()), max_size=6)):
        start = len(text.encode())
        text += piece[0]
        if piece[1]:
            ranges.append((start, len(text.encode())))
    return text, ranges


def neutral(text: str, ranges: Ranges) -> str:
    """The same text with letters of no token in place of special tokens that touch a range; as long in bytes."""
    at = 0
    while match := PATTERN.search(text, at):
        start, stop = len(text[: match.start()].encode()), len(text[: match.end()].encode())
        touches = any(first < stop and last > start and first < last for first, last in ranges)
        if match[0] in (*SPECIAL, "<mask>", "<unk>", "[UNK]") and touches:
            text = text[: match.start()] + "{" * len(match[0]) + text[match.end() :]
        at = match.end()
    return text


PATTERN = re.compile("|".join(map(re.escape, [*SPECIAL, *ADDED, "<mask>", "<unk>", "[UNK]"])))


SPELLING = sorted(
    VOCABULARIES.keys() - {"unigram"}
)  # those that can write a special token in letters


@pytest.mark.parametrize("name", SPELLING)
@settings(max_examples=40, deadline=None)
@given(rows=st.lists(written(), max_size=3))
@example(
    rows=[
        ("<s>a<s>b<s>", [(3, 8)]),
        ("<s>", []),
        ("<|im_end|><|im_end|>", [(0, 10)]),
        ("é<s>é", [(2, 3)]),
    ]
)
@example(rows=[("a  <mask>  b<mask> c", [(11, 18)]), ("<think><s></s>", [(7, 10)])])
def test_special_tokens_in_plain_ranges_are_text_and_all_others_stay(
    name: str, rows: list[tuple[str, list[tuple[int, int]]]]
) -> None:
    tokenizer, oracle = both(name)
    texts, plain = [text for text, _ in rows], [ranges for _, ranges in rows]
    encoded = tokenizer.encode_spans(texts, plain=plain)
    special = {oracle.token_to_id(token) for token in tokenizer.special_added - {"<unk>", "[UNK]"}}
    for number, (text, ranges) in enumerate(rows):
        blotted = neutral(text, ranges)
        told_special = [
            (token, span) for token, span in told(encoded, number, text) if token in special
        ]
        assert told_special == [
            (token, span) for token, span in expected(oracle, blotted) if token in special
        ]
        if blotted == text:
            assert told(encoded, number, text) == expected(oracle, text)


@pytest.mark.parametrize(
    "name", [name for name in SPELLING if name not in ("stripping", "metaspace, first")]
)
@pytest.mark.parametrize("words", ["say </s> and <|im_end|>!", "</s>", " <s><s> x", "é</s>🙂"])
def test_plain_words_are_encoded_as_they_would_be_without_special_tokens(
    name: str, words: str
) -> None:
    """There is no seam in them: the ids between two tokens that stay are those of the words alone, as text."""
    tokenizer, oracle = both(name)
    text = f"<|im_end|>{words}<s>"
    encoded = tokenizer.encode_spans([text], plain=[[(10, 10 + len(words.encode()))]])
    alone, _ = tokenizer.encode([words], special="text")
    first, last = oracle.token_to_id("<|im_end|>"), oracle.token_to_id("<s>")
    assert encoded.ids.tolist() == [first, *alone.tolist(), last]


def test_a_vocabulary_that_cannot_spell_a_special_token_says_so() -> None:
    tokenizer, _ = both("unigram")
    for encode in (
        lambda: tokenizer.encode(["the", "a <s> b"], special="text"),
        lambda: tokenizer.encode_spans(["the", "a <s> b"], special="text"),
        lambda: tokenizer.encode_spans(["the", "a <s> b"], plain=[[], [(0, 7)]]),
    ):
        with pytest.raises(
            TemplateError, match=r"special token '<s>' is in the text; this vocabulary"
        ) as caught:
            encode()
        assert caught.value.record == 1
    assert (
        tokenizer.encode(["the \u4e00"], special="text")[0].tolist()[-1]
        == tokenizer.added_tokens["<unk>"]
    )


@pytest.mark.parametrize("name", ["word piece", "unigram"])
def test_an_unknown_word_is_no_special_token_in_the_text(name: str) -> None:
    tokenizer, _ = both(name)
    unknown = "[UNK]" if name == "word piece" else "<unk>"
    ids, _ = tokenizer.encode(["the \u4e00"], special="error")
    assert tokenizer.token_id(unknown) in ids
    with pytest.raises(TemplateError, match=re.escape(f"special token '{unknown}' is in")):
        tokenizer.encode([f"the {unknown}"], special="error")


def test_metaspace_first_puts_no_blank_into_the_middle() -> None:
    tokenizer, _ = both("metaspace, first")
    encoded = tokenizer.encode_spans(["<s>hello</s>hello"], plain=[[(3, 17)]])
    tokens = [tokenizer._reference.id_to_token(int(token)) for token in encoded.ids]
    assert tokens[0] == "<s>" and not any("▁" in token for token in tokens)


def test_a_special_token_in_text_can_be_an_error() -> None:
    tokenizer, _ = both("byte level")
    texts = ["hello", "the <think> fox", "a <s> b</s>"]
    with pytest.raises(
        TemplateError, match=r"special token '<s>' is in the text; choose special_in_text='token'"
    ) as caught:
        tokenizer.encode(texts, special="error")
    assert caught.value.record == 2
    with pytest.raises(TemplateError, match="special token '<s>'"):
        tokenizer.encode_spans(texts, special="error")
    with pytest.raises(TemplateError, match="special token '</s>'") as caught:
        tokenizer.encode_spans(texts, special="error", plain=[[(0, 5)], [(0, 15)], [(5, 11)]])
    assert caught.value.record == 2
    allowed = tokenizer.encode_spans(
        texts, special="error", plain=[[(0, 5)], [(0, 15)], [(0, 2), (5, 7)]]
    )
    assert allowed.ids.tolist() == tokenizer.encode(texts)[0].tolist()


def test_half_of_a_pair_is_named_wherever_it_comes() -> None:
    tokenizer, _ = both("byte level")
    for encode in (tokenizer.encode, tokenizer.encode_spans):
        with pytest.raises(TemplateError, match="half of a surrogate pair") as caught:
            encode(["a", "b\ud800"])
        assert caught.value.record == 1


def test_the_noncharacters_that_mark_tokens_are_refused_only_where_it_would_matter() -> None:
    tokenizer, _ = both("byte level")
    text = "a\ufdd0\ufdd5\ufddb<s>"
    assert (
        tokenizer.encode_spans([text], plain=[[(0, 3)]]).ids.tolist()
        == tokenizer.encode([text])[0].tolist()
    )
    as_text = tokenizer.encode([text], special="text")[0].tolist()
    assert tokenizer.encode_spans([text], plain=[[(0, 13)]]).ids.tolist() == as_text
    with pytest.raises(TemplateError, match=r"U\+FDD0") as caught:
        tokenizer.encode_spans(
            ["b", f"{text}</s>"], plain=[[], [(0, 13)]]
        )  # one is text, the other stays a token
    assert caught.value.record == 1


def test_a_token_within_one_that_is_text_is_found() -> None:
    reference = VOCABULARIES["byte level"]()
    reference.add_special_tokens(["<a><b>", "<b>"])
    tokenizer = open_tokenizer(reference)
    encoded = tokenizer.encode_spans(["<a><b>"], plain=[[(0, 3)]])  # "<b>" is the template's
    alone, _ = tokenizer.encode(["<a>"])
    assert encoded.ids.tolist() == [*alone.tolist(), tokenizer.token_id("<b>")]
    assert (encoded.starts[-1], encoded.stops[-1]) == (3, 6)


def test_fastokens_is_used_for_what_it_does_right() -> None:
    """A special token with letters that the vocabulary lacks: as text fastokens takes it for a word, tokenizers spells it."""
    spec = json.loads(VOCABULARIES["gemma"]().to_str())
    spec["model"]["vocab"]["ⓢⓣⓞⓟ"] = number = len(spec["model"]["vocab"])
    special = [token for token in spec["added_tokens"] if token["special"]]
    spec["added_tokens"] = [*special, special[0] | {"id": number, "content": "ⓢⓣⓞⓟ"}]
    oracle = Reference.from_str(json.dumps(spec))
    tokenizer = open_tokenizer(oracle)
    assert tokenizer.engine.startswith("fastokens")
    assert tokenizer.encode(["the ⓢⓣⓞⓟ"])[0][-1] == number
    ids, _ = tokenizer.encode(["the ⓢⓣⓞⓟ"], special="text")
    oracle.encode_special_tokens = True
    assert (
        ids.tolist() == oracle.encode("the ⓢⓣⓞⓟ", add_special_tokens=False).ids
        and number not in ids
    )
