"""BPE dropout: merges of the vocabulary are left out at random, so that a word is cut into other tokens in each epoch.

A word begins as bytes.  In each turn every pair that could be merged is left out with probability `rate`, and of the others the one that
the vocabulary merges first is merged; a word is done when none is left.  The paper describes it so (Provilkov et al., 2020).  The dropout
of `tokenizers` draws again whenever it meets a pair that is gone, so the same rate leaves out fewer merges there.

Special tokens stay, and so do words of more than 256 bytes.  Tokens of a word are trained as the tokens were that it had before; a word
that was trained in part is cut where training begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.extras.objectives.changed import (
    ChangedSample,
    ObjectiveOfStores,
    Stored,
    read_samples,
    tokenizers_of,
)
from penstock.extras.objectives.settings import BpeDropoutSettings
from penstock.extras.objectives.token_bytes import TokenBytes, characters_of_bytes, read_bpe
from penstock.plan.permutation import Words, words_at
from penstock.templates.tokenizer.tokenizer import Tokenizer
from penstock.types import Bools, Ids, Ints

_LONGEST = 256  # bytes of a word that is cut again
_PLACES = 1 << 16  # more than a word has symbols: draws of a turn
_TOGETHER = 1 << 16  # tokens of samples that are cut together
_NO_KEYS = np.empty(0, np.uint64)
_NO_IDS = np.empty(0, np.uint32)
_NO_MASK = np.empty(0, np.bool_)


class BpeDropout(ObjectiveOfStores):
    """Cuts words into other tokens."""

    name = "bpe_dropout"

    def __init__(
        self,
        settings: BpeDropoutSettings,
        *,
        seed: int,
        names: Sequence[str],
        stores: Sequence[Any],
    ) -> None:
        super().__init__(seed=seed, names=names, stores=stores)
        self._rate = settings.rate
        tokenizers = tokenizers_of(self.name, names, stores)
        self._vocabularies = [
            Vocabulary.of(name, tokenizer)
            for name, tokenizer in zip(names, tokenizers, strict=True)
        ]

    def _changed(self, source: int, samples: Ints, passes: Ints) -> list[ChangedSample]:
        """Return the changed samples.  Words of many samples are cut together: for a few of them, most of the cost is numpy's per call."""
        changed: list[ChangedSample] = []
        lengths = self.stored_lengths(source, samples)
        group = np.cumsum(lengths) // _TOGETHER
        for number in np.unique(group).tolist():
            chosen = group == number
            keys = self.noise.keys(source, samples[chosen], passes[chosen])
            stored = read_samples(self.stores[source], source, samples[chosen], keys)
            changed += self._cut_anew(stored, self._vocabularies[source])
        return changed

    def _cut_anew(self, stored: Sequence[Stored], vocabulary: "Vocabulary") -> list[ChangedSample]:
        words: list[str] = []
        keys: list[Words] = []
        runs: list[_TokenRun] = []
        for number, sample in enumerate(stored):
            for place, (start, stop) in enumerate(_runs(sample, vocabulary)):
                ids = sample.input_ids[start:stop]
                of_run = vocabulary.words(ids) if self._rate else None
                is_trained = bool(sample.loss_mask[start])
                first = len(words)
                if of_run is not None:
                    words += of_run
                    key = words_at(sample.key, np.array([place], np.uint64))[0]
                    keys.append(words_at(key, np.arange(len(of_run), dtype=np.uint64)))
                runs.append(_TokenRun(number, is_trained, ids, first, len(words)))
        cut = vocabulary.merge(words, self._rate, np.concatenate([_NO_KEYS, *keys]))
        parts: list[list[Ids]] = [[_NO_IDS] for _ in stored]
        masks: list[list[Bools]] = [[_NO_MASK] for _ in stored]
        for run in runs:
            ids = run.ids if run.first == run.last else cut.tokens_of(run.first, run.last)
            parts[run.sample].append(ids)
            masks[run.sample].append(np.full(ids.size, run.is_trained))
        return [
            ChangedSample(np.concatenate(ids), np.concatenate(mask))
            for ids, mask in zip(parts, masks, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _TokenRun:
    """Tokens of a sample that are all trained or all not; words first..last, or none where the tokens stay as they are."""

    sample: int
    is_trained: bool
    ids: Ids
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class _Words:
    """Tokens of words, one word after the other."""

    ids: Ids
    starts: Ints  # where each word begins, and the last ends

    def tokens_of(self, first: int, last: int) -> Ids:
        """Return the tokens of words first..last."""
        return self.ids[self.starts[first] : self.starts[last]]


def _runs(stored: Stored, vocabulary: "Vocabulary") -> list[tuple[int, int]]:
    """Cut a sample into runs that are all trained or all not, with each added token alone."""
    is_added = vocabulary.token_bytes.is_added(stored.input_ids)
    mask = stored.loss_mask
    begins = (mask[1:] != mask[:-1]) | is_added[1:] | is_added[:-1]
    borders = [0, *(np.flatnonzero(begins) + 1).tolist(), mask.size]
    return list(pairwise(borders)) if mask.size else []


def pair_keys(lefts: Ints, rights: Ints, size: int) -> Ints:
    """Return one number for each pair of tokens of a vocabulary, so that pairs can be sorted and searched."""
    return lefts * size + rights


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The merges of a byte-level BPE vocabulary."""

    tokenizer: Tokenizer
    token_bytes: TokenBytes
    byte_ids: dict[str, int]  # of the characters that stand for bytes
    pairs: Ints  # the key of each merge's pair, ascending
    ranks: Ints  # of these pairs: the lowest is merged first
    merged: Ints  # the tokens that they become
    size: int

    @staticmethod
    def of(name: str, tokenizer: Tokenizer) -> "Vocabulary":
        """Return the merges of a tokenizer, sorted so that a pair is found by bisection.  name: of the dataset."""
        tokenizer_json = read_bpe("bpe_dropout", name, tokenizer)
        vocab = tokenizer_json["model"]["vocab"]
        lefts: list[int] = []
        rights: list[int] = []
        merged: list[int] = []
        for merge in tokenizer_json["model"]["merges"]:  # the first is merged first
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            lefts.append(vocab[left])
            rights.append(vocab[right])
            merged.append(vocab[left + right])
        size = tokenizer.vocab_size
        keys = pair_keys(np.array(lefts, np.int64), np.array(rights, np.int64), size)
        # The numbers of the merges, by ascending key.  The list of merges is in order of rank, so a merge's number is its rank.
        order = np.argsort(keys, kind="stable")
        return Vocabulary(
            tokenizer=tokenizer,
            token_bytes=TokenBytes(tokenizer, tokenizer_json),
            byte_ids={char: vocab[char] for char in characters_of_bytes() if char in vocab},
            pairs=keys[order],
            ranks=order.astype(np.int64),
            merged=np.array(merged, np.int64)[order],
            size=size,
        )

    def words(self, ids: Ids) -> list[str] | None:
        """Return the words of some tokens, in characters that stand for bytes; None for tokens that stay as they are."""
        if self.token_bytes.is_added(ids[:1])[0]:
            return None
        try:
            text = b"".join(self.token_bytes.of(ids)).decode()
        except UnicodeDecodeError:  # training begins inside a character
            return None
        found = self.tokenizer.reference.pre_tokenizer.pre_tokenize_str(text)
        return [word for word, _ in found]

    def merge(self, words: Sequence[str], rate: float, keys: Words) -> _Words:
        """Return the tokens of words, with merges left out at random.  keys: of the words."""
        chosen = [word if len(word) <= _LONGEST else "" for word in words]
        symbols = np.array([self.byte_ids[each] for word in chosen for each in word], np.int64)
        owners = np.repeat(np.arange(len(words)), [len(word) for word in chosen])
        done: list[tuple[Ints, Ints]] = []  # owners and tokens of finished words
        for number, word in enumerate(words):
            if len(word) > _LONGEST:
                done.append(self._as_usual(number, word))
        turn = 0
        while symbols.size:
            place, best = self._best_pairs(symbols, owners, rate, keys, turn)
            goes_on = np.zeros(len(words), np.bool_)
            goes_on[best] = True
            is_done = ~goes_on[owners]
            done.append((owners[is_done], symbols[is_done]))
            symbols, owners = self._merged_at(symbols, owners, place, ~is_done)
            turn += 1
        owners = np.concatenate([np.zeros(0, np.int64), *(each for each, _ in done)])
        tokens = np.concatenate([np.zeros(0, np.int64), *(each for _, each in done)])
        counts = np.bincount(owners, minlength=len(words))
        starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        return _Words(tokens[np.argsort(owners, kind="stable")].astype(np.uint32), starts)

    def _as_usual(self, number: int, word: str) -> tuple[Ints, Ints]:
        tokens = self.tokenizer.reference.model.tokenize(word)
        ids = np.array([token.id for token in tokens], np.int64)
        return np.full(ids.size, number), ids

    def _best_pairs(
        self, symbols: Ints, owners: Ints, rate: float, keys: Words, turn: int
    ) -> tuple[Ints, Ints]:
        """Return where the pair begins that each word merges in this turn, and which words they are."""
        pairs = pair_keys(symbols[:-1], symbols[1:], self.size)
        at = np.minimum(np.searchsorted(self.pairs, pairs), self.pairs.size - 1)
        is_pair = (self.pairs[at] == pairs) & (owners[:-1] == owners[1:])
        candidates = np.flatnonzero(is_pair)
        first = np.searchsorted(owners, owners[candidates])
        numbers = (turn * _PLACES + candidates - first).astype(np.uint64)
        draws = (words_at(keys[owners[candidates]], numbers) >> np.uint64(11)).astype(
            np.float64
        ) * 2.0**-53
        candidates = candidates[draws >= rate]
        ranks = self.ranks[at[candidates]]
        order = np.lexsort((candidates, ranks, owners[candidates]))
        best, begins = np.unique(owners[candidates][order], return_index=True)
        return candidates[order][begins], best

    def _merged_at(
        self, symbols: Ints, owners: Ints, places: Ints, is_left: np.ndarray
    ) -> tuple[Ints, Ints]:
        """Return the symbols of the words that go on, after the merges at these places."""
        pairs = pair_keys(symbols[places], symbols[places + 1], self.size)
        symbols = symbols.copy()
        symbols[places] = self.merged[np.searchsorted(self.pairs, pairs)]
        is_kept = is_left.copy()
        is_kept[places + 1] = False
        return symbols[is_kept], owners[is_kept]


def make_bpe_dropout(
    settings: BpeDropoutSettings,
    *,
    seed: int,
    names: Sequence[str],
    stores: Sequence[Any],
    run: Any,
) -> BpeDropout:
    return BpeDropout(settings, seed=seed, names=names, stores=stores)
