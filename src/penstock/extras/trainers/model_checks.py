"""Compare a model with the stores that it will be trained on, before the first step.

    check_model(model, loader)

Refused is what would end in an IndexError inside of the model: token ids, and learned positions, for which it has no embedding.
Warned of is what trains and is probably not meant: more positions than the model was made for, and other end and padding tokens than
the tokenizer's.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from penstock.errors import PlanError
from penstock.extras.trainers.wrapped import bare_model
from penstock.loader import Loader
from penstock.loader.batch import Batch
from penstock.store import Store
from penstock.templates.protocols import tokenizer_of
from penstock.templates.tokenizer.tokenizer import Tokenizer

_log = logging.getLogger("penstock")

_TOKENS_SEARCHED = 1 << 28  # for an id that the model does not have: less than a second
_OFFSETS = (0, 2)  # places that tables of learned positions have besides their positions

_OTHER_TOKENIZER = (
    "prepare the data with the tokenizer of this model, or let the model grow: "
    "model.resize_token_embeddings(len(tokenizer))"
)


def check_model(model: Any, loader: Loader) -> None:
    """Refuse a model with fewer token ids or learned positions than the loader's samples need; warn where end or padding tokens differ.

    The model may be wrapped (DDP, FSDP, torch.compile, PEFT).  Only configs and sizes are read, and token ids where the tokenizer has more
    of them than the model.
    """
    if not loader.has_tokens:
        return
    check_vocabulary(model, loader)
    bare = bare_model(model)
    _check_positions(bare, loader)
    digests = set()  # of tokenizers that were compared: many stores may have one
    for store in loader.stores:
        tokenizer = tokenizer_of(store.template)
        if tokenizer is not None and tokenizer.digest not in digests:
            digests.add(tokenizer.digest)
            _check_special_tokens(bare, tokenizer, store.name)


def check_only_model(models: Sequence[Any], loader: Loader) -> None:
    """Check the model of a user's own loop, if there is exactly one; of several, some may have other tokens than the loader's."""
    if len(models) == 1:
        check_model(models[0], loader)


def check_vocabulary(model: Any, loader: Loader) -> None:
    """Refuse a model with fewer embeddings than the loader's token ids need."""
    rows = embedding_rows(model)
    if rows is None or not loader.has_tokens:
        return
    name = type(bare_model(model)).__name__
    if loader.form.pad_token_id >= rows:
        raise PlanError(
            f"the Loader pads with pad_token_id={loader.form.pad_token_id}, and {name} has embeddings for the ids 0 to "
            f"{rows - 1:,} only; pass a "
            f"smaller pad_token_id to the Loader"
        )
    for store in loader.stores:
        if store.vocab_size <= rows or store.manifest is None:
            continue  # of a store that is still being made, ModelInputs checks each batch
        for shard, ids in _ids(store, _TOKENS_SEARCHED):
            if len(ids) and int(ids.max()) >= rows:
                token = int(ids[int(np.argmax(ids >= rows))])
                where = _where(store, shard, rows)
                raise PlanError(
                    f"store {store.name!r} has token id {token:,} ({where}), and {name} has embeddings for the ids 0 to {rows - 1:,} only "
                    f"(the tokenizer has {store.vocab_size:,} ids); {_OTHER_TOKENIZER}"
                )


def check_batch(name: str, rows: int | None, batch: Batch, ids: Any) -> None:
    """Refuse a batch with token ids for which a model has no embedding.

    Looks at tensors in this machine's memory only: those on a device would have to be waited for.
    """
    if rows is None or not torch.is_tensor(ids) or ids.device.type != "cpu" or not ids.numel():
        return
    largest = int(ids.max())
    if largest >= rows:
        raise PlanError(
            f"the batch of step {batch.step} has token id {largest:,}, and {name} has embeddings for the ids 0 to {rows - 1:,} only; "
            f"{_OTHER_TOKENIZER}"
        )


def embedding_rows(model: Any) -> int | None:
    """Return for how many token ids a model has an input embedding; None if that is not known."""
    bare = bare_model(model)
    config: Any = getattr(bare, "config", None)
    if hasattr(bare, "get_input_embeddings"):
        try:
            table = bare.get_input_embeddings()
        except (NotImplementedError, AttributeError):  # of a model that has no such table
            table = None
        weight: Any = getattr(table, "weight", None)
        if torch.is_tensor(weight) and weight.ndim == 2:  # a shard of it has one dimension
            return int(weight.shape[0])
    if hasattr(config, "get_text_config"):
        size = getattr(config.get_text_config(), "vocab_size", None)
        return size if isinstance(size, int) else None
    return None


def _ids(store: Store, num_tokens: int) -> Iterator[tuple[int, Any]]:
    """Yield (shard, token ids) of a store's shards until there were `num_tokens`; of a store in a bucket the first shard only."""
    num_shards = min(1, store.num_shards) if store.cache.is_remote else store.num_shards
    for shard in range(num_shards):
        ids = store.tokens(shard).input_ids
        yield shard, ids
        num_tokens -= len(ids)
        if num_tokens <= 0:
            return


def _where(store: Store, shard: int, rows: int) -> str:
    """Return file and line of the first sample of a shard with an id that a model of so many embeddings does not have."""
    tokens = store.tokens(shard)
    place = int(np.argmax(tokens.input_ids >= rows))
    sample = int(np.searchsorted(tokens.offsets, place, side="right")) - 1
    return str(store.source.locate(int(store.shard_starts[shard]) + sample))


def _check_positions(bare: Any, loader: Loader) -> None:
    config: Any = getattr(bare, "config", None)
    if not hasattr(config, "get_text_config"):
        return
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(positions, int) or loader.plan.settings.max_length <= positions:
        return
    longest = _longest(loader)
    if longest <= positions:
        return
    name = type(bare).__name__
    found = f"samples have up to {longest:,} tokens, and {name} has max_position_embeddings={positions:,}"
    if _has_learned_positions(bare, positions):
        raise PlanError(
            f"{found}, which it has learned: it has no embedding for later ones; pass max_length={positions} to the Loader"
        )
    _log.warning(
        "%s: it was not made for later positions; pass max_length=%d to the Loader, or set its rope parameters",
        found,
        positions,
    )


def _longest(loader: Loader) -> int:
    """Return the length of the longest sequence that a batch can hold."""
    most = loader.plan.settings.max_length
    is_known = all(store.manifest is not None for store in loader.stores)
    if not is_known:
        return most
    settings = loader.plan.settings
    longest = 0
    for store in loader.stores:
        lengths = store.longest
        if settings.on_overlong == "drop" and not settings.method.cuts:
            lengths = lengths[lengths <= settings.capacity]
        longest = max(longest, int(lengths.max(initial=0)))
    return min(most, longest)


def _has_learned_positions(bare: Any, positions: int) -> bool:
    """Whether a table of positions is among the model's embeddings."""
    return any(
        isinstance(module, torch.nn.Embedding)
        and module is not bare.get_input_embeddings()
        and module.num_embeddings - positions in _OFFSETS
        for module in bare.modules()
    )


def _check_special_tokens(bare: Any, tokenizer: Tokenizer, store_name: str) -> None:
    """Warn if the model ends or pads with other tokens than the tokenizer of a store."""
    config: Any = getattr(bare, "config", None)
    if not hasattr(config, "get_text_config"):
        return
    config = config.get_text_config()
    generation: Any = getattr(bare, "generation_config", None)
    name = type(bare).__name__
    ends = _token_ids(generation, "eos_token_id") or _token_ids(config, "eos_token_id")
    eos = tokenizer.eos_id
    if ends and eos is not None and eos not in ends:
        _log.warning(
            "%s ends generation at eos_token_id %s, and the tokenizer of store %r has eos_token %r with id %d: a trained model may not "
            "stop there; set model.generation_config.eos_token_id and model.config.eos_token_id, or use the tokenizer of this model",
            name,
            " or ".join(map(str, sorted(ends))),
            store_name,
            tokenizer.special_tokens["eos_token"],
            eos,
        )
    pads = _token_ids(config, "pad_token_id")
    pad = tokenizer.pad_id
    if pads and pad is not None and pad not in pads:
        _log.warning(
            "%s has pad_token_id=%d in its config, and the tokenizer of store %r has pad_token %r with id %d; set "
            "model.config.pad_token_id",
            name,
            min(pads),
            store_name,
            tokenizer.special_tokens["pad_token"],
            pad,
        )


def _token_ids(config: Any, name: str) -> set[int]:
    """Return the ids that a config names: none, one or several."""
    value = getattr(config, name, None)
    if isinstance(value, int):
        return {value}
    return set(value) if isinstance(value, list | tuple) else set()
