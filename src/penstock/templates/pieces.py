"""Which tokens are trained?  The pieces of a text are encoded together, so that no seam changes a token.

A token that holds any byte of a trained piece is trained: the model must write those bytes, and no other token has them.
"""

from collections.abc import Sequence

import numpy as np

from penstock.templates.ends import Ends, only_ends
from penstock.templates.samples import Tokens
from penstock.templates.tokenizers import SpecialInText, Tokenizer
from penstock.types import Bools, Ints

Piece = tuple[str, bool]  # text, is it trained?


def encode_pieces(
    tokenizer: Tokenizer, texts: Sequence[Sequence[Piece]], ends: Ends, *, special: SpecialInText = "token"
) -> Tokens:
    """Tokens of each text (a list of pieces) with its ends; a text of which nothing is trained has none."""
    encoded = tokenizer.encode_spans(["".join(text for text, _ in pieces) for pieces in texts], special=special)
    lengths = np.diff(encoded.offsets)
    mask = trained_tokens(texts, lengths, encoded.starts, encoded.stops)
    bare = Tokens(ids=encoded.ids, mask=mask, lengths=lengths)
    nothing = only_ends(bare)
    if nothing.any():
        kept = np.repeat(~nothing, lengths)
        bare = Tokens(ids=bare.ids[kept], mask=mask[kept], lengths=np.where(nothing, 0, lengths))
    return ends.around(bare, train_prefix=False)


def trained_tokens(texts: Sequence[Sequence[Piece]], lengths: Ints, starts: Ints, stops: Ints) -> Bools:
    """For each token, whether its bytes [start, stop) of its text touch a trained piece."""
    sizes = [[num_bytes(text) for text, _ in pieces] for pieces in texts]
    text_stops = np.cumsum([sum(some) for some in sizes], dtype=np.int64)
    text_starts = np.concatenate((np.zeros(1, np.int64), text_stops[:-1]))
    flat = [
        (size, is_trained)
        for some, pieces in zip(sizes, texts, strict=True)
        for size, (_, is_trained) in zip(some, pieces, strict=True)
        if size  # an empty piece has no bytes to touch
    ]
    if not flat:
        return np.zeros(len(starts), np.bool_)
    piece_stops = np.cumsum([size for size, _ in flat], dtype=np.int64)
    num_trained = np.concatenate((np.zeros(1, np.int64), np.cumsum([is_trained for _, is_trained in flat])))
    last_byte = np.repeat(text_stops, lengths) - 1
    # a token without bytes (a normalizer put it in) counts as the byte it stands before, or the last of its text
    first = np.minimum(starts + np.repeat(text_starts, lengths), last_byte)
    last = np.maximum(stops + np.repeat(text_starts, lengths) - 1, first)
    first_piece = np.searchsorted(piece_stops, first, side="right")
    last_piece = np.searchsorted(piece_stops, last, side="right")
    return np.asarray(num_trained[last_piece + 1] > num_trained[first_piece], np.bool_)


def num_bytes(text: str) -> int:
    """Length in UTF-8, without making a copy of what is plain ASCII."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
