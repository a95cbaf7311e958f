"""Masked diffusion, as LLaDA and LMMS-Engine train it: tokens are replaced by a mask token, and the model says what stood there.

A sample draws a probability, or each block of its tokens does; then each of its trained tokens is masked with it.  Prompts are never
masked.  The label of a masked token stands at its own place, and the loss of a token with probability p counts 1 / p.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.extras.objectives.changed import (
    ChangedSample,
    ObjectiveOfStores,
    Stored,
    refuse_in_text,
    special_ids,
    tokenizers_of,
)
from penstock.extras.objectives.noise import draws_of
from penstock.extras.objectives.settings import MaskedDiffusionSettings
from penstock.loader.collate import IGNORE
from penstock.templates.tokenizer.tokenizer import Tokenizer
from penstock.types import TARGETS, Bools, Column, Ints

P_MASK = Column(name="p_mask", dtype="float32", per="token", fill=1.0)
LOSS_WEIGHTS = Column(name="loss_weights", dtype="float32", per="token")

# Names of mask tokens that tokenizer files do not call one.
_KNOWN_MASKS = ("<|mdm_mask|>", "<|mask|>", "[MASK]", "<mask>", "<|MASK|>")


class MaskedDiffusion(ObjectiveOfStores):
    """Masks tokens."""

    name = "masked_diffusion"
    columns: tuple[Column, ...] = (TARGETS, P_MASK, LOSS_WEIGHTS)

    def __init__(
        self,
        settings: MaskedDiffusionSettings,
        *,
        seed: int,
        names: Sequence[str],
        stores: Sequence[Any],
    ) -> None:
        super().__init__(seed=seed, names=names, stores=stores)
        self._settings = settings
        tokenizers = tokenizers_of(self.name, names, stores)
        self._special = [special_ids(tokenizer) for tokenizer in tokenizers]
        self._masks = [
            _mask_token(name, tokenizer, settings.mask_token)
            for name, tokenizer in zip(names, tokenizers, strict=True)
        ]

    def lengths(self, source: int, samples: Ints, passes: Ints) -> Ints:
        return self.stored_lengths(source, samples)

    def has_target(
        self, source: int, samples: Ints, passes: Ints, starts: Ints, stops: Ints
    ) -> Bools:
        """Whether a token of a piece may be masked: which ones are, is another matter."""
        found: Bools = self.stores[source].has_target(samples, starts, stops)
        return found

    def change_one(self, stored: Stored) -> ChangedSample:
        ids = stored.input_ids
        mask = self._masks[stored.store]
        refuse_in_text(self, stored, np.array([mask], np.uint32), "the mask token")
        can_be_masked = stored.loss_mask.copy()
        if not self._settings.mask_special:
            can_be_masked &= ~np.isin(ids, self._special[stored.store])
        probability = self._probabilities(stored)
        # the draws of tokens come after those of blocks, of which there are never more than tokens
        is_masked = can_be_masked & (draws_of(stored.key, ids.size, first=ids.size) < probability)
        masked = ids.copy()
        masked[is_masked] = mask
        columns = {
            TARGETS.name: np.where(is_masked, ids.astype(np.int64), IGNORE),
            P_MASK.name: probability.astype(np.float32),
            LOSS_WEIGHTS.name: (is_masked / probability).astype(np.float32),
        }
        return ChangedSample(masked, is_masked, columns)

    def _probabilities(self, stored: Stored) -> np.ndarray:
        """Return the probability with which each token is masked."""
        settings = self._settings
        num_tokens = stored.input_ids.size
        size = settings.block_size or num_tokens
        of_blocks = draws_of(stored.key, -(-num_tokens // size))
        spread = settings.p_max - settings.p_min
        return np.repeat(settings.p_min + spread * of_blocks, size)[:num_tokens]


def _mask_token(name: str, tokenizer: Tokenizer, wanted: str | None) -> int:
    """Return the id of the mask token; refuse a tokenizer that has none."""
    if wanted is None:
        named = tokenizer.special_tokens.get("mask_token")
        candidates = [named, *_KNOWN_MASKS]
        wanted = next((each for each in candidates if each in tokenizer.added_tokens), None)
    if wanted is None:
        raise PlanError(
            f"objective 'masked_diffusion' needs a mask token, and the tokenizer of {name!r} ({tokenizer.path or 'an object'}) names "
            f"none; name one of its added tokens, as mask_token: '<|mask|>', or add one and prepare again"
        )
    if wanted not in tokenizer.added_tokens:
        raise PlanError(
            f"objective 'masked_diffusion': {wanted!r} is not an added token of the tokenizer of {name!r} "
            f"({tokenizer.path or 'an object'}), so a text could hold it by chance; name another one, or add it and prepare again"
        )
    return int(tokenizer.added_tokens[wanted])


def make_masked_diffusion(
    settings: MaskedDiffusionSettings,
    *,
    seed: int,
    names: Sequence[str],
    stores: Sequence[Any],
    run: Any,
) -> MaskedDiffusion:
    return MaskedDiffusion(settings, seed=seed, names=names, stores=stores)
