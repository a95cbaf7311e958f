"""Fill in the middle: a text is cut at two places, and its middle comes last.

    prefix, suffix, middle   <PRE> prefix <SUF> suffix <MID> middle
    suffix, prefix, middle   <PRE> <SUF> suffix <MID> prefix middle

Special tokens around the text, such as BOS and EOS, stay where they are, so EOS comes after the middle.  All tokens are trained, as they
were, and the sentinels with them.  A sample that is rearranged has three tokens more than before, if it is cut between tokens.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.extras.objectives.changed import (
    ChangedSample,
    ObjectiveOfStores,
    Stored,
    edges,
    ids_around_texts,
    refuse_in_text,
    tokenizers_of,
)
from penstock.extras.objectives.characters import CharacterCuts
from penstock.extras.objectives.noise import draws, draws_of
from penstock.extras.objectives.settings import FimSettings
from penstock.templates.tokenizer.tokenizer import Tokenizer
from penstock.types import Bools, Ids, Ints

# The tokens before prefix, suffix and middle in the vocabularies of code models.
_KNOWN_SENTINELS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("[PREFIX]", "[SUFFIX]", "[MIDDLE]"),  # Codestral
    ("<PRE>", "<SUF>", "<MID>"),
)
_SENTINELS = 3

Parts = tuple[Ids, Ids, Ids]  # prefix, middle, suffix


class Fim(ObjectiveOfStores):
    """Fill in the middle."""

    name = "fim"

    def __init__(
        self, settings: FimSettings, *, seed: int, names: Sequence[str], stores: Sequence[Any]
    ) -> None:
        super().__init__(seed=seed, names=names, stores=stores)
        self._settings = settings
        self.refuse_untrained()
        tokenizers = tokenizers_of(self.name, names, stores)
        self._sentinels = [
            _sentinels(name, tokenizer, settings.sentinels)
            for name, tokenizer in zip(names, tokenizers, strict=True)
        ]
        self._special = [ids_around_texts(tokenizer) for tokenizer in tokenizers]
        self._cuts: list[CharacterCuts] = []
        if settings.level == "character":
            self._cuts = [
                CharacterCuts(name, tokenizer)
                for name, tokenizer in zip(names, tokenizers, strict=True)
            ]

    def lengths(self, source: int, samples: Ints, passes: Ints) -> Ints:
        is_rearranged = self._is_rearranged(source, samples, passes)
        lengths = self.stored_lengths(source, samples)
        chosen = is_rearranged & (lengths > 0)
        if not self._cuts:
            return lengths + _SENTINELS * chosen
        lengths = lengths.copy()
        lengths[chosen] = super().lengths(source, samples[chosen], passes[chosen])
        return lengths

    def _is_rearranged(self, source: int, samples: Ints, passes: Ints) -> Bools:
        keys = self.noise.keys(source, samples, passes)
        rearranged: Bools = draws(keys, 1)[:, 0] < self._settings.rate
        return rearranged

    def has_target(
        self, source: int, samples: Ints, passes: Ints, starts: Ints, stops: Ints
    ) -> Bools:
        has: Bools = stops - starts > 1  # every token is trained
        return has

    def change_one(self, stored: Stored) -> ChangedSample:
        """Return the sample with its middle last; a share of 1 - `rate` of the samples stays as it is.

        A sample has four draws in [0, 1): whether it is rearranged, in which order, and where its two cuts are (`_parts`).
        """
        self.refuse_untrained_sample(stored)
        draw_of_rate, draw_of_order = draws_of(stored.key, 2).tolist()
        if draw_of_rate >= self._settings.rate:
            return ChangedSample(stored.input_ids, stored.loss_mask)
        sentinels = self._sentinels[stored.store]
        refuse_in_text(self, stored, sentinels, "a sentinel")
        ids = stored.input_ids
        begin, end = edges(ids, self._special[stored.store])  # of the text between BOS and EOS
        prefix, middle, suffix = self._parts(stored, ids[begin:end])
        pre_token, suf_token, mid_token = np.split(sentinels, _SENTINELS)
        if draw_of_order < self._settings.spm_rate:
            pieces = [pre_token, suf_token, suffix, mid_token, prefix, middle]
        else:
            pieces = [pre_token, prefix, suf_token, suffix, mid_token, middle]
        rearranged = np.concatenate([ids[:begin], *pieces, ids[end:]])
        is_trained = np.ones(rearranged.size, np.bool_)
        return ChangedSample(rearranged, is_trained)

    def _parts(self, stored: Stored, text: Ids) -> Parts:
        """Cut the tokens of a text at two places, each of which is as likely as every other."""
        draws_of_cuts = draws_of(stored.key, 2, first=2)
        if self._cuts:
            return self._cuts[stored.store].cut(text, draws_of_cuts)
        first, second = sorted((draws_of_cuts * (text.size + 1)).astype(np.int64).tolist())
        return text[:first], text[first:second], text[second:]


def _sentinels(name: str, tokenizer: Tokenizer, wanted: Sequence[str] | None) -> Ids:
    """Return the ids of the three sentinels; refuse a tokenizer that does not have them."""
    known = tokenizer.added_tokens
    if wanted is None:
        wanted = next((each for each in _KNOWN_SENTINELS if known.keys() >= set(each)), None)
    if wanted is None:
        expected = "; ".join(", ".join(each) for each in _KNOWN_SENTINELS)
        raise PlanError(
            f"objective 'fim' needs three sentinel tokens, and the tokenizer of {name!r} ({tokenizer.path or 'an object'}) has none of "
            f"those whose names are known: {expected}; name yours, as sentinels: [<PRE>, <SUF>, <MID>], or add tokens to the tokenizer "
            f"and prepare again"
        )
    missing = [token for token in wanted if token not in known]
    if missing:
        raise PlanError(
            f"objective 'fim': sentinel {missing[0]!r} is not an added token of the tokenizer of {name!r} "
            f"({tokenizer.path or 'an object'}), so a text could hold it by chance; add it to the tokenizer and prepare again"
        )
    return np.array([known[token] for token in wanted], np.uint32)


def make_fim(
    settings: FimSettings, *, seed: int, names: Sequence[str], stores: Sequence[Any], run: Any
) -> Fim:
    return Fim(settings, seed=seed, names=names, stores=stores)
