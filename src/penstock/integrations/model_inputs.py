"""Turn a batch into the keyword arguments of a transformers model's forward.

inputs = ModelInputs(model)
for batch in loader:
    loss = model(**inputs(batch)).loss
"""

import inspect
from collections.abc import Collection
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.loader import Batch
from penstock.types import WEIGHTS

# Penstock's name → the names that flash attention and the recurrent layers of hybrid models read.
_NAMES = {"cu_seqlens": ("cu_seq_lens_q", "cu_seq_lens_k"), "max_seqlen": ("max_length_q", "max_length_k")}

# Families with multimodal rotary positions whose text model finds packed samples only in position_ids of shape [4, rows, length]: row 0
# the positions in the sample, rows 1 to 3 time, height and width, which are equal for text.  A test compares this with transformers.
FOUR_POSITIONS = frozenset(
    {
        *(
            "cohere_compass",
            "cosmos3_edge",
            "ernie4_5_vl_moe",
            "glm4v",
            "glm4v_moe",
            "glm_image",
            "glm_ocr",
            "paddleocr_vl",
        ),
        *("qwen2_5_omni_thinker", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_omni_moe_thinker"),
        *("qwen3_vl", "qwen3_vl_moe", "qwen4_exp"),
    }
)


class Inputs(dict[str, Any]):
    """Keyword arguments of a forward, with their number of tokens, without padding, and of samples that begin in them."""

    tokens: int = 0
    samples: int = 0


class NamedInputs:
    """Takes these arrays of a batch and no others, for a trainer that passes on to the model what it does not know."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def __call__(self, batch: Batch) -> Inputs:
        return _counted(Inputs({name: batch[name] for name in self._names if name in batch}), batch)


class ModelInputs:
    """Turns a batch into keyword arguments of the model's forward; arrays that the forward does not take are left out.

    weights: whether the weights of tokens are passed on, to a loss of the user's own.
    """

    def __init__(self, model: Any, *, weights: bool = False) -> None:
        self._weights = weights
        parameters = inspect.signature(model.forward).parameters
        self.takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        self.taken = set(parameters)
        self._main = getattr(model, "main_input_name", None)
        self.four_positions = getattr(getattr(model, "config", None), "model_type", None) in FOUR_POSITIONS

    def takes(self, name: str) -> bool:
        return self.takes_all or name in self.taken

    def __call__(self, batch: Batch) -> Inputs:
        inputs = self.select(batch)
        if self._main == "input_ids" and not {"input_ids", "inputs_embeds"} & inputs.keys():
            raise PlanError(
                f"the batch has {', '.join(map(repr, batch)) or 'nothing'}, and the model needs input_ids: this Loader serves plain "
                f"records; give it a store that penstock.prepare made, or a collate= that returns input_ids and labels"
            )
        if self._weights and WEIGHTS.name in batch:
            inputs[WEIGHTS.name] = batch[WEIGHTS.name]
        return _counted(inputs, batch)

    def select(self, arrays: dict[str, Any]) -> Inputs:
        """Return the arrays that the forward takes, under its own names."""
        inputs = Inputs()
        for name, value in arrays.items():
            for taken in _NAMES.get(name, (name,)):
                if taken in self.taken or (self.takes_all and name != WEIGHTS.name):
                    inputs[taken] = value
        positions = inputs.get("position_ids")
        if self.four_positions and "cu_seqlens" in arrays and positions is not None and positions.ndim == 2:
            inputs["position_ids"] = positions[None].expand(4, -1, -1)
        return inputs


def _counted(inputs: Inputs, batch: Batch) -> Inputs:
    """The inputs, with their number of tokens and samples."""
    spans, ids = batch.rows.spans, inputs.get("input_ids")
    inputs.samples = int(np.count_nonzero(spans["start"] == 0))
    inputs.tokens = int((spans["stop"] - spans["start"]).sum())
    if "seq_idx" not in batch and ids is not None and inputs.tokens == len(spans):
        inputs.tokens = int(ids.numel())  # records, whose rows count as one token each
    return inputs
