"""How do arrays become tensors?  Without copying, pinned on request.  Here and in workers.py alone, the loader imports torch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from penstock.errors import PlanError


def as_tensors(arrays: dict[str, Any], *, pin_memory: bool) -> dict[str, Any]:
    """Arrays as tensors that share their memory; plain numbers stay."""
    out = {}
    for name, value in arrays.items():
        if isinstance(value, np.ndarray):
            tensor = torch.from_numpy(value)
            out[name] = pin(tensor) if pin_memory else tensor
        else:
            out[name] = value
    return out


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in memory that a device can fetch by itself."""
    if not torch.accelerator.is_available():
        raise PlanError("pin_memory is for the way to a device, and torch finds none here; leave it out")
    return tensor.pin_memory()


def document_mask(documents: torch.Tensor) -> Callable[..., torch.Tensor]:
    """A mask function for flex attention: causal, and within one sample.  `documents` is a batch's seq_idx."""

    def mask(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (documents[batch, query] == documents[batch, key]) & (query >= key)

    return mask
