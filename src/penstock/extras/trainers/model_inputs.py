"""Turn a batch into the keyword arguments of a transformers model's forward.

inputs = ModelInputs(model)
for batch in loader:
    loss = model(**inputs(batch)).loss

The model may be wrapped by DDP, FSDP, torch.compile, PEFT or Accelerate: the model inside is asked what it takes.
"""

import inspect
from collections.abc import Collection
from typing import Any

import numpy as np
import torch

from penstock.errors import PlanError
from penstock.extras.media.decode import MEDIA_ARRAYS, tokens_per_second
from penstock.extras.media.rotary import FOUR_POSITIONS, ROWS
from penstock.extras.media.stage import media_stage_of
from penstock.extras.trainers.future_labels import FUTURE_LABELS, FUTURE_WEIGHTS
from penstock.extras.trainers.masks import masks_for
from penstock.extras.trainers.model_checks import check_batch, embedding_rows
from penstock.extras.trainers.wrapped import bare_model
from penstock.loader import Batch, Loader
from penstock.types import WEIGHTS

# Penstock's name → the names that flash attention and the recurrent layers of hybrid models read.
_NAMES = {
    "cu_seqlens": ("cu_seq_lens_q", "cu_seq_lens_k"),
    "max_seqlen": ("max_length_q", "max_length_k"),
}


# Arrays for a loss, which only a forward that names them takes.
_OF_LOSSES = frozenset({WEIGHTS.name, FUTURE_LABELS, FUTURE_WEIGHTS})


class Inputs(dict[str, Any]):
    """Keyword arguments of a forward, with their number of tokens, without padding, and of samples that begin in them."""

    tokens: int = 0
    samples: int = 0
    batch: Batch | None = None  # that they were made of


class NamedInputs:
    """Takes these arrays of a batch and no others, for a trainer that passes on to the model what it does not know."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def __call__(self, batch: Batch) -> Inputs:
        return _counted(Inputs({name: batch[name] for name in self._names if name in batch}), batch)


class ModelInputs:
    """Turns a batch into keyword arguments of the model's forward; arrays that the forward does not take are left out.

    keep: names of arrays that are passed on in any case, for a loss of the user's own: labels, weights of tokens.
    """

    def __init__(self, model: Any, *, keep: Collection[str] = ()) -> None:
        bare = bare_model(model)
        parameters = inspect.signature(bare.forward).parameters
        self.takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        self.taken = set(parameters)
        self._bare = bare
        self._name = type(bare).__name__
        self._keep = frozenset(keep)
        self._main = getattr(bare, "main_input_name", None)
        self._embedding_rows = embedding_rows(model)
        config: Any = getattr(bare, "config", None)
        self.four_positions = getattr(config, "model_type", None) in FOUR_POSITIONS

    def takes(self, name: str) -> bool:
        return self.takes_all or name in self.taken

    def __call__(self, batch: Batch) -> Inputs:
        inputs = self.select(batch)
        if self._main == "input_ids" and not {"input_ids", "inputs_embeds"} & inputs.keys():
            raise PlanError(
                f"the batch has {', '.join(map(repr, batch)) or 'nothing'}, and the model needs input_ids: this Loader serves plain "
                f"records; give it a store that penstock.prepare made, or a collate= that returns input_ids and labels"
            )
        for name in self._keep & batch.keys():
            inputs[name] = batch[name]
        if FUTURE_LABELS in batch and FUTURE_LABELS not in inputs:
            raise PlanError(
                f"the batch has future_labels, and the forward of {self._name} does not take them, so no loss would use them; pass "
                f"keep=['future_labels'] to ModelInputs and compute the loss yourself, or leave future_labels out of the Loader"
            )
        check_batch(self._name, self._embedding_rows, batch, inputs.get("input_ids"))
        return _counted(inputs, batch)

    def select(self, arrays: dict[str, Any]) -> Inputs:
        """Return the arrays that the forward takes, under its own names; refuse media that it does not take."""
        if unknown := sorted((MEDIA_ARRAYS & arrays.keys()) - self.taken):
            raise PlanError(
                f"the batch holds media as {', '.join(unknown)}, and the forward of {self._name} does not take them: it would train on "
                f"placeholders alone; use the model that the store's processor belongs to"
            )
        inputs = Inputs()
        for name, value in arrays.items():
            for taken in _NAMES.get(name, (name,)):
                if taken in self.taken or (self.takes_all and name not in _OF_LOSSES):
                    inputs[taken] = value
        positions = inputs.get("position_ids")
        if positions is not None and positions.ndim == 3 and not self.four_positions:
            raise PlanError(
                f"the batch has position_ids of shape {list(positions.shape)}, for models with rotary positions of time, height and width, "
                f"and {self._name} is not known as one; use the model that the store's processor belongs to"
            )
        if (
            self.four_positions
            and "cu_seqlens" in arrays
            and positions is not None
            and positions.ndim == 2
        ):
            inputs["position_ids"] = positions[None].expand(ROWS, -1, -1)
        mask: Any = inputs.get("attention_mask")
        if torch.is_tensor(mask) and mask.ndim == 4 and mask.dtype == torch.bool:
            inputs["attention_mask"] = masks_for(self._bare, mask)
        return inputs


def _counted(inputs: Inputs, batch: Batch) -> Inputs:
    """The inputs, with their number of tokens and samples."""
    inputs.batch = batch
    spans = batch.rows.spans
    ids = inputs.get("input_ids")
    inputs.samples = int(np.count_nonzero(spans["start"] == 0))
    inputs.tokens = int((spans["stop"] - spans["start"]).sum())
    if "seq_idx" not in batch and ids is not None and inputs.tokens == len(spans):
        inputs.tokens = int(ids.numel())  # records, whose rows count as one token each
    return inputs


def inputs_for(model: Any, loader: Loader, *, keep: Collection[str] = ()) -> ModelInputs:
    """Return what turns the loader's batches into inputs of the model; refuse a model with other placeholders than the loader's media."""
    bare = bare_model(model)
    config = getattr(bare, "config", None)
    media = media_stage_of(loader)
    if media is None:
        return ModelInputs(model, keep=keep)
    for kind, token in media.token_ids.items():
        found = getattr(config, f"{kind}_token_id", None) or getattr(
            config, f"{kind}_token_index", None
        )
        if found is not None and found != token:
            raise PlanError(
                f"{type(bare).__name__} has {kind}_token_id={found} in its config, and the store's {kind} placeholders are {token}: the "
                f"store was prepared for another model; prepare it with the tokenizer and processor of this one"
            )
    name = "tokens_per_second"
    folder = media.processor.folder
    own = getattr(getattr(config, "vision_config", None), name, None)
    found = tokens_per_second(folder)
    if None not in (own, found) and own != found:
        raise PlanError(
            f"{type(bare).__name__} has {name}={own} in its vision_config, and config.json in {folder} says {found:g}: videos would have "
            f"the positions of another model; use the config.json of this one"
        )
    return ModelInputs(model, keep=keep)
