"""Turn a batch's 4-D mask of True and False into what a model's attention takes.

sdpa takes such a mask as it is.  Eager attention adds the mask to its scores, so it needs numbers: 0 where a token may look, the lowest
number where it may not.  Layers with a sliding window need a mask of their own, because a model that is given a 4-D mask adds no window
to it.
"""

from typing import Any

import torch

FULL = "full_attention"
SLIDING = "sliding_attention"


def attention_of(model: Any) -> str | None:
    """Return the name of the model's attention implementation; None if it has none."""
    config: Any = getattr(model, "config", None)
    return getattr(config, "_attn_implementation", None)


def masks_for(model: Any, mask: torch.Tensor) -> Any:
    """Return a 4-D mask of True and False in the form that the model's attention takes.

    A dict by kind of layer if layers differ, as transformers itself makes them; the mask as it is for attention that is neither eager nor
    sdpa, and for kinds of layers that are not known here: the isolation check then decides.
    """
    attention = attention_of(model)
    if attention not in ("eager", "sdpa"):
        return mask
    config = model.config.get_text_config()
    window: Any = getattr(config, "sliding_window", None)
    default_kind = FULL if window is None else SLIDING
    kinds = set(getattr(config, "layer_types", None) or [default_kind])
    if not kinds <= {FULL, SLIDING} or (SLIDING in kinds and window is None):
        return mask
    masks = {}
    for kind in kinds:
        allowed = _within(mask, window) if kind == SLIDING else mask
        masks[kind] = _as_numbers(allowed, model.dtype) if attention == "eager" else allowed
    return masks if len(masks) > 1 else masks.popitem()[1]


def _within(mask: torch.Tensor, window: int) -> torch.Tensor:
    """Return the mask without tokens that are `window` or more places back."""
    places = torch.arange(mask.shape[-1], device=mask.device)
    return mask & (places[:, None] - places[None, :] < window)


def _as_numbers(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    numbers = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return numbers.masked_fill_(~mask, torch.finfo(dtype).min)
