"""What does a transformers model take of a batch?  What its forward names; and the names its attention kernels have for ours."""

import inspect
from typing import Any

# Ours → what flash attention and the recurrent layers of hybrid models read.
_NAMES = {"cu_seqlens": ("cu_seq_lens_q", "cu_seq_lens_k"), "max_seqlen": ("max_length_q", "max_length_k")}


class ModelInputs:
    """A batch → the keyword arguments of the model's forward.  What a forward does not take is left out: the positions say it too."""

    def __init__(self, model: Any) -> None:
        parameters = inspect.signature(model.forward).parameters
        self._takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        self._taken = set(parameters)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        inputs: dict[str, Any] = {}
        for name, value in batch.items():
            for taken in _NAMES.get(name, (name,)):
                if self._takes_all or taken in self._taken:
                    inputs[taken] = value
        return inputs
