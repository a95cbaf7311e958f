"""What stands before and after a text?  Exactly one BOS where one is wanted, and EOS as the recipe says."""

from dataclasses import dataclass

import numpy as np

from penstock.errors import TemplateError
from penstock.templates.samples import Tokens, count_trained
from penstock.templates.tokenizers import Tokenizer
from penstock.types import Bools, Ids, Ints


@dataclass(frozen=True, slots=True)
class Ends:
    """Ids put around every text that does not have them already.  A text without tokens stays without."""

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()

    def around(self, bare: Tokens, *, train_prefix: bool) -> Tokens:
        """The suffix is trained where the last token before it is: who writes the end of a text also ends it."""
        lengths = bare.lengths
        is_there = lengths > 0
        before = np.where(is_there & ~_begin_with(bare, self.prefix), len(self.prefix), 0)
        after = np.where(is_there & ~_end_with(bare, self.suffix), len(self.suffix), 0)
        if not before.any() and not after.any():
            return bare
        whole_lengths = lengths + before + after
        stops = np.cumsum(whole_lengths)
        starts = stops - whole_lengths
        ids = np.empty(int(whole_lengths.sum()), np.uint32)
        mask = np.empty(len(ids), np.bool_)
        is_bare = np.ones(len(ids), np.bool_)
        begins, ends = starts[before > 0], stops[after > 0]
        last = bare.mask[np.cumsum(lengths)[after > 0] - 1]
        for place, token in enumerate(self.prefix):
            ids[begins + place], mask[begins + place], is_bare[begins + place] = token, train_prefix, False
        for place, token in enumerate(reversed(self.suffix), 1):
            ids[ends - place], mask[ends - place], is_bare[ends - place] = token, last, False
        ids[is_bare], mask[is_bare] = bare.ids, bare.mask
        return Tokens(ids=ids, mask=mask, lengths=whole_lengths)


def find_ends(tokenizer: Tokenizer, *, bos: bool | str | None, eos: bool | str | None) -> Ends:
    """None: as the tokenizer has it.  True: it must have one.  False: none.  A string: that token."""
    prefix = () if bos is False else (tokenizer.token_id(bos),) if isinstance(bos, str) else tokenizer.prefix
    if bos is True and not prefix:
        if tokenizer.bos_id is None:
            raise TemplateError(
                f"{tokenizer!r} names no bos_token (in tokenizer_config.json beside it); "
                f"pass bos='<the token>', or bos=False for texts without a beginning"
            )
        prefix = (tokenizer.bos_id,)
    end = tokenizer.token_id(eos) if isinstance(eos, str) else None if eos is False else tokenizer.eos_id
    if eos is True and end is None:
        raise TemplateError(
            f"{tokenizer!r} names no eos_token (in tokenizer_config.json beside it); "
            f"pass eos='<the token>', or eos=False for texts without an end"
        )
    suffix = tokenizer.suffix
    if end is not None and suffix[-1:] != (end,):
        suffix = (*suffix, end)
    return Ends(prefix, suffix)


def _begin_with(bare: Tokens, prefix: tuple[int, ...]) -> Bools:
    starts = np.cumsum(bare.lengths) - bare.lengths
    return _match(bare.ids, starts, bare.lengths, prefix)


def _end_with(bare: Tokens, suffix: tuple[int, ...]) -> Bools:
    return _match(bare.ids, np.cumsum(bare.lengths) - len(suffix), bare.lengths, suffix)


def _match(ids: Ids, places: Ints, lengths: Ints, wanted: tuple[int, ...]) -> Bools:
    """Where the ids at a place are the wanted ones."""
    found = lengths >= max(len(wanted), 1)
    for step, token in enumerate(wanted):
        found[found] = ids[places[found] + step] == token
    return found


def only_ends(bare: Tokens) -> Bools:
    """Texts of which no token of their own is trained: an end alone is nothing to learn."""
    return np.asarray(count_trained(bare.mask, bare.lengths) == 0, np.bool_)
