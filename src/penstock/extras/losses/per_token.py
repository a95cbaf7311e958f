"""The loss of each target, from what a model returns.  Nothing here has a gradient."""

from collections.abc import Mapping
from typing import Any

import torch

from penstock.errors import PlanError

# Logits that are looked at together.  A CPU is six times as fast on what fits into its cache.
_AT_ONCE_ON_CPU = 1 << 19
_AT_ONCE = 1 << 26


def target_losses(
    labels: torch.Tensor,
    places: torch.Tensor,
    *,
    is_shifted: bool,
    logits: torch.Tensor | None = None,
    per_token: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the cross-entropy of each target, on the device of `logits` or `per_token`.

    places: of the targets in `labels` as one flat row.  is_shifted: a label stands where it is predicted.
    per_token: losses of the shape of the labels, each where its label stands; or, of labels that are not shifted, without the first
    column, as most losses of causal models are.
    """
    if (logits is None) == (per_token is None):
        raise PlanError("LossBySource.add needs either logits= or per_token=, one of them")
    if per_token is not None:
        return _pick(per_token, labels, places, is_shifted)
    assert logits is not None
    if logits.shape[:-1] != labels.shape:
        raise PlanError(
            f"the logits have shape {list(logits.shape)}, expected {[*labels.shape, 'vocabulary']} as the labels of the batch have: pass "
            f"those of the whole batch, before they are cut or shifted"
        )
    predicting = places if is_shifted else places - 1
    flat = logits.detach().reshape(-1, logits.shape[-1])
    flat_labels = labels.reshape(-1).to(flat.device)
    room = _AT_ONCE_ON_CPU if flat.device.type == "cpu" else _AT_ONCE
    at_once = max(1, room // flat.shape[-1])
    parts = []
    for first in range(0, places.numel(), at_once):
        chosen = slice(first, first + at_once)
        some = flat.index_select(0, predicting[chosen].to(flat.device)).float()
        expected = flat_labels.index_select(0, places[chosen].to(flat.device))
        parts.append(torch.nn.functional.cross_entropy(some, expected, reduction="none"))
    return torch.cat(parts) if parts else flat.new_zeros(0, dtype=torch.float32)


def _pick(
    per_token: torch.Tensor, labels: torch.Tensor, places: torch.Tensor, is_shifted: bool
) -> torch.Tensor:
    """Return the values of targets."""
    values = per_token.detach()
    width = labels.shape[-1]
    if values.shape == labels.shape:
        return values.reshape(-1).index_select(0, places.to(values.device))
    if not is_shifted and values.shape == (*labels.shape[:-1], width - 1):
        row = torch.div(places, width, rounding_mode="floor")
        return values.reshape(-1).index_select(0, (places - row - 1).to(values.device))
    without_first = "" if is_shifted else f" or {[*labels.shape[:-1], width - 1]}"
    raise PlanError(
        f"per_token has shape {list(values.shape)}, expected that of the labels, {list(labels.shape)}{without_first}"
    )


def of_outputs(outputs: Any) -> dict[str, torch.Tensor]:
    """Return what `LossBySource.add` takes of a model's outputs; empty if they have none of it."""
    log_probs = _field(outputs, "log_probs")  # of trl's fused head: zero without a label
    if log_probs is not None:
        return {"per_token": -log_probs}
    logits = _field(outputs, "logits")
    return {} if logits is None else {"logits": logits}


def _field(outputs: Any, name: str) -> torch.Tensor | None:
    value = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
    return value if torch.is_tensor(value) else None
