"""What all objectives share: read samples of a store, change each of them, and put them together again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from penstock.errors import PlanError
from penstock.extras.objectives.noise import Noise
from penstock.plan.permutation import Words
from penstock.templates.tokenizer.tokenizer import Tokenizer
from penstock.types import Bools, Column, Ids, Ints, Samples, Values, columns_of

_NO_IDS = np.empty(0, np.uint32)
_NO_MASK = np.empty(0, np.bool_)


@dataclass(frozen=True, slots=True)
class ChangedSample:
    """A sample that an objective has made."""

    input_ids: Ids
    loss_mask: Bools
    columns: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stored:
    """A sample as the store has it, and the key of its random numbers."""

    store: int
    sample: int
    input_ids: Ids
    loss_mask: Bools
    key: np.uint64


class ObjectiveOfStores:
    """An objective over the stores of a run.  A subclass says what becomes of one sample."""

    name: ClassVar[str]
    columns: tuple[Column, ...] = ()

    def __init__(self, *, seed: int, names: Sequence[str], stores: Sequence[Any]) -> None:
        self.names = tuple(names)
        self.stores = tuple(stores)
        self.noise = Noise(seed, self.name, self.names)

    # What a subclass has

    def change_one(self, stored: Stored) -> ChangedSample:
        """Return what becomes of a sample, which has tokens."""
        raise NotImplementedError

    # The protocol `Objective`

    def lengths(self, source: int, samples: Ints, passes: Ints) -> Ints:
        """Return the length that each sample gets; by making it, where a subclass has no quicker way."""
        return np.array(
            [len(changed.input_ids) for changed in self._changed(source, samples, passes)], np.int64
        )

    def has_target(
        self, source: int, samples: Ints, passes: Ints, starts: Ints, stops: Ints
    ) -> Bools:
        wanted = np.stack((samples, passes))
        distinct, which = np.unique(wanted, axis=1, return_inverse=True)
        changed = self._changed(source, distinct[0].copy(), distinct[1].copy())
        pieces = zip(which.reshape(-1).tolist(), starts.tolist(), stops.tolist(), strict=True)
        has = [bool(changed[n].loss_mask[start + 1 : stop].any()) for n, start, stop in pieces]
        return np.array(has, np.bool_)

    def change(self, source: int, samples: Ints, passes: Ints) -> Samples:
        changed = self._changed(source, samples, passes)
        lengths = [len(each.input_ids) for each in changed]
        columns = self._of_samples(source, samples)
        for column in self.columns:
            empty = np.empty(0, column.dtype)
            values = [np.asarray(each.columns[column.name], column.dtype) for each in changed]
            columns[column.name] = Values(np.concatenate([empty, *values]))
        return Samples(
            input_ids=np.concatenate([_NO_IDS, *(each.input_ids for each in changed)]),
            loss_mask=np.concatenate([_NO_MASK, *(each.loss_mask for each in changed)]),
            offsets=np.cumsum([0, *lengths], dtype=np.int64),
            columns=columns,
        )

    def _of_samples(self, source: int, samples: Ints) -> dict[str, Values]:
        """Return the values of the store's own columns, which have one value for a sample and stay as they are."""
        store = self.stores[source]
        values = {}
        for column in store.columns:
            of_samples = [store[sample].columns[column.name] for sample in samples.tolist()]
            values[column.name] = Values(np.array(of_samples, column.dtype))
        return values

    def _changed(self, source: int, samples: Ints, passes: Ints) -> list[ChangedSample]:
        """Return the changed samples; those without tokens stay without."""
        keys = self.noise.keys(source, samples, passes)
        stored = read_samples(self.stores[source], source, samples, keys)
        return [self.change_one(each) if each.input_ids.size else _nothing(self) for each in stored]

    # For subclasses

    def stored_lengths(self, source: int, samples: Ints) -> Ints:
        lengths: Ints = self.stores[source].lengths_of(samples)
        return lengths

    def where(self, stored: Stored) -> str:
        """Return the place of a sample, for errors."""
        store = self.stores[stored.store]
        return f"{store.source.locate(stored.sample)}: "

    def refuse_untrained(self) -> None:
        """Refuse stores that hold tokens which are not trained: their samples are not plain text."""
        for name, store in zip(self.names, self.stores, strict=True):
            if getattr(store, "manifest", None) is None:
                continue  # its samples are looked at when they are made
            counts = store.counts
            if counts.trained != counts.tokens:
                raise PlanError(
                    f"objective {self.name!r} is for samples of which every token is trained, such as plain text, and {name!r} trains "
                    f"{counts.trained:,} of its {counts.tokens:,} tokens; give these samples a Loader of their own, without objective, or "
                    f"prepare them with template='text' or train_on='all'"
                )

    def refuse_untrained_sample(self, stored: Stored) -> None:
        if not stored.loss_mask.all():
            raise PlanError(
                f"{self.where(stored)}objective {self.name!r} is for samples of which every token is trained, and this one has others"
            )


def _nothing(objective: ObjectiveOfStores) -> ChangedSample:
    columns = {column.name: np.empty(0, column.dtype) for column in objective.columns}
    return ChangedSample(_NO_IDS, _NO_MASK, columns)


def read_samples(store: Any, number: int, samples: Ints, keys: Words) -> list[Stored]:
    """Return samples of a store, with their keys.  number: of the store."""
    shards, local = store.locate(samples)
    store.want(dict.fromkeys(shards.tolist()))
    found: list[Stored | None] = [None] * samples.size
    order = np.argsort(shards, kind="stable")
    borders = np.flatnonzero(np.diff(shards[order], prepend=-1, append=-1))
    for first, last in pairwise(borders.tolist()):
        places = order[first:last]
        tokens = store.tokens(int(shards[places[0]]))
        starts = tokens.offsets[local[places]].tolist()
        stops = tokens.offsets[local[places] + 1].tolist()
        for place, start, stop in zip(places.tolist(), starts, stops, strict=True):
            found[place] = Stored(
                store=number,
                sample=int(samples[place]),
                input_ids=tokens.input_ids[start:stop].astype(np.uint32),
                loss_mask=tokens.loss_mask(start, stop),
                key=keys[place],
            )
    return [each for each in found if each is not None]


def tokenizers_of(objective: str, names: Sequence[str], stores: Sequence[Any]) -> list[Tokenizer]:
    """Return the tokenizer of each store; refuse stores whose template does not know it."""
    found = []
    for name, store in zip(names, stores, strict=True):
        template: Any = getattr(store, "template", None)
        tokenizer = getattr(template, "tokenizer", None)
        if not isinstance(tokenizer, Tokenizer):
            raise PlanError(
                f"objective {objective!r} needs the tokenizer of {name!r}, and its samples were made by {type(template).__name__}, which "
                f"has none"
            )
        if columns_of(template) and any(each.per == "list" for each in columns_of(template)):
            raise PlanError(
                f"objective {objective!r} cannot change the samples of {name!r}: they hold lists"
            )
        found.append(tokenizer)
    return found


def special_ids(tokenizer: Tokenizer) -> Ints:
    """Return the ids of special tokens."""
    ids = [tokenizer.added_tokens[token] for token in tokenizer.special_added]
    return np.array(sorted(ids), np.int64)


def ids_around_texts(tokenizer: Tokenizer) -> Ints:
    """Return the ids of special tokens that may stand around a text: the one for unknown text is text."""
    ids = special_ids(tokenizer)
    around: Ints = ids[ids != tokenizer.unknown_id]
    return around


def refuse_in_text(objective: ObjectiveOfStores, stored: Stored, tokens: Ids, what: str) -> None:
    """Refuse a sample that holds tokens of an objective: what they stand for would be unclear."""
    if np.isin(stored.input_ids, tokens).any():
        raise PlanError(
            f"{objective.where(stored)}the text holds {what} of objective {objective.name!r} as a token, so it would be unclear what it "
            f"stands for; prepare it with special_in_text='text', or leave the record out"
        )


def edges(ids: Ids, special: Ints) -> tuple[int, int]:
    """Return where the text of a sample begins and ends between special tokens such as BOS and EOS."""
    is_text = np.flatnonzero(~np.isin(ids, special))
    if not is_text.size:
        return 0, 0
    return int(is_text[0]), int(is_text[-1]) + 1
