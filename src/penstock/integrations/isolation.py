"""Check that a model computes a sample in a packed row as it computes the sample alone; refuse to train where it does not.

The check takes the first row of the plan that holds two samples, cuts them short, and compares logits: the row against each sample alone.
It leaves the model's mode, the random state, the loader and its counters as they were.
"""

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from itertools import islice
from typing import Any

import numpy as np
import torch

from penstock.errors import PlanError
from penstock.integrations.model_inputs import Inputs, ModelInputs
from penstock.loader import Loader
from penstock.loader.collate import PADDING, Collator, UsersCollator
from penstock.loader.records import RecordStore
from penstock.loader.torch import as_tensors
from penstock.plan.block import Rows
from penstock.plan.plan import Position

_log = logging.getLogger("penstock")

_STEPS_SEARCHED = 64  # for a row with two samples
_SAMPLES, _TOKENS = 2, 16  # compared, and of each of them
_PADDING = 8  # places after them in the row
_LARGEST_PAD_TO = 256

# Largest relative difference (root mean square over all logits) that rounding explains.
_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}
_ROUNDING_BELOW_16_BITS = 1e-1
_MIXED = {"bf16": torch.bfloat16, "fp16": torch.float16}
_TIMES_NOISE = 5  # what the same sample differs by in a batch of two may be exceeded by so much
_SAME_SHAPE = 20  # times less than that, where only the tokens of another sample change
_EXPERTS = re.compile(r"(moe_)?(num|n)_(\w+_)?experts\w*")  # in a config

_ALONE, _OTHER = "those of the sample alone", "those behind another first sample"

OFF = "isolation_check=False turns this check off"


def check_isolation(
    model: Any, loader: Loader, *, precision: str | None = None, given: dict[str, Any] | None = None
) -> None:
    """Refuse a model that lets samples of a packed row see each other.

    precision: of automatic mixed precision ("bf16", "fp16", …), where the model runs under it.  given: the keyword arguments of a real
    training forward, where the training loop is the user's own; the row is then passed under the same names.
    """
    row = find_row(loader)
    if row is None:
        return
    with _undisturbed(model):
        try:
            differences, passed = _compare(model, loader, row, precision, given)
        except Exception as error:
            # A model may need inputs that only a real batch has; training itself says so if that is an error.
            _log.warning("the isolation check could not run (%s: %s); %s", type(error).__name__, error, OFF)
            return
    for difference in differences:
        if not difference.relative <= difference.tolerance:  # also where the row's logits are not numbers
            source, sample, _, _ = row[difference.place].tolist()
            where = str(loader.stores[source].source.where(sample))
            advice = _advice(model, loader, passed, own_loop=given is not None)
            raise PlanError(f"{_words(model, where, difference)}. {advice}; {OFF}")


def check_at_first_step(module: torch.nn.Module, loader: Loader, *, precision: str | None = None) -> None:
    """Check every transformers model in `module` at its first training forward, with the inputs that the user's own loop passes."""
    if any(_is_compiled(each) for each in module.modules()):
        _log.warning("the isolation check does not run: the model is compiled")
        return
    for model in _transformers_models(module):
        _check_once(model, loader, precision)


def _check_once(model: Any, loader: Loader, precision: str | None) -> None:
    checked = False  # a copy of the model has this hook, too, and its own cannot be removed

    def check(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal checked
        given = {**dict(zip(signature(model.forward).parameters, args, strict=False)), **kwargs}
        if model.training and given.get("input_ids") is not None and not checked:
            checked = True
            handle.remove()
            check_isolation(model, loader, precision=precision, given=given)

    handle = model.register_forward_pre_hook(check, with_kwargs=True)


def _transformers_models(module: torch.nn.Module) -> Iterator[Any]:
    """The outermost ones; none where transformers is not imported."""
    transformers = sys.modules.get("transformers.modeling_utils")
    if transformers is not None and isinstance(module, transformers.PreTrainedModel):
        yield module
        return
    for child in module.children():
        yield from _transformers_models(child)


def _is_compiled(module: torch.nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Of one sample: its logits in the row, and what they should be."""

    place: int  # in the row, from 0
    against: str  # what its logits in the row are compared with
    largest: float
    relative: float
    tolerance: float


def find_row(loader: Loader) -> np.ndarray | None:
    """Spans of the first row, from the loader's position on, whose samples must be kept apart.  None where there is none."""
    if isinstance(loader.stores[0], RecordStore):
        return None
    settings, form = loader.plan.settings, loader.form
    packed = settings.packing != "none" and not settings.packing.startswith("group_")
    if not packed and not form.padding_free and form.attention_mask != "4d":
        return None
    least = 1 if form.attention_mask == "4d" else 2  # a mask can be wrong for one sample, too
    for spans in islice(_rows(loader), _STEPS_SEARCHED * loader.batch_size * loader.world.size):
        if len(spans) >= least:
            return spans
    return None


def _rows(loader: Loader) -> Iterator[np.ndarray]:
    """Rows as a model sees them: where they are laid end to end, all rows of a rank are one."""
    state, ranks = loader.state_dict(), loader.world.size
    here = Position(epoch=state["epoch"], block=state["block"], row=state["row"], rows=state["rows"])
    for start in (here, Position()):  # from the start where nothing is left
        for step in loader.plan.walk(start=start, num_rows=loader.batch_size * ranks, epochs=start.epoch + 1):
            rows = [step.rows[number] for number in range(step.rows.num_rows)]
            yield from [np.concatenate(rows[::ranks])] if loader.form.padding_free else rows


def _compare(
    model: Any, loader: Loader, row: np.ndarray, precision: str | None, given: dict[str, Any] | None
) -> tuple[list[Difference], Inputs]:
    """(what the row differs by, the inputs that it was passed with)"""
    spans = row[:_SAMPLES].copy()
    spans["stop"] = np.minimum(spans["stop"], spans["start"] + _TOKENS)
    plain, arrays = _collate(loader, spans)
    if not _same_tokens(plain, arrays):
        _log.warning("the isolation check could not run: collate= of the Loader changes input_ids; %s", OFF)
        return [], Inputs()
    inputs, device = ModelInputs(model), _device(model)
    row_inputs = inputs.select(arrays) if given is None else _as_given(inputs.select(arrays), plain, given)
    together = _logits(model, row_inputs, device)
    if together is None or together.shape[:2] != plain["input_ids"].shape:
        _log.warning("the isolation check could not run: the model returns no logits for each token; %s", OFF)
        return [], Inputs()
    no_cache = {"use_cache": False} if inputs.takes("use_cache") else {}
    samples, logits = _places(plain["seq_idx"][0], spans), []
    for sample in samples:
        ids = plain["input_ids"][:, sample]
        logits.append(_logits(model, Inputs(input_ids=ids, **no_cache), device)[0])
    if not all(bool(alone.isfinite().all()) for alone in logits):
        _log.warning("the isolation check could not run: the model's logits are not finite; %s", OFF)
        return [], row_inputs
    twice = _logits(model, Inputs(input_ids=ids.repeat(2, 1), **no_cache), device)
    rounding, noise = _rounding(model, together.dtype, precision), _TIMES_NOISE * _relative(twice[1], logits[-1])
    found = [
        _difference(place, _ALONE, together[0, sample], logits[place], max(rounding, noise))
        for place, sample in enumerate(samples)
    ]
    if len(samples) > 1:  # with another sample before it, all but a leak stays the same, to the last bit or nearly so
        row_inputs["input_ids"] = _other_first(plain["input_ids"], samples)
        other = _logits(model, row_inputs, device)
        tolerance = max(rounding, noise) if _has_experts(model) else rounding / _SAME_SHAPE
        found.append(_difference(1, _OTHER, other[0, samples[1]], together[0, samples[1]], tolerance))
    return found, row_inputs


def _difference(place: int, against: str, found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> Difference:
    return Difference(
        place=place,
        against=against,
        largest=float((found.double() - expected.double()).abs().max()),
        relative=_relative(found, expected),
        tolerance=tolerance,
    )


def _places(numbers: torch.Tensor, spans: np.ndarray) -> list[slice]:
    """Where each span lies in the row, without the padding that alignment adds to it."""
    firsts = [int((numbers == place).nonzero()[0]) for place in range(len(spans))]
    return [
        slice(first, first + size)
        for first, size in zip(firsts, (spans["stop"] - spans["start"]).tolist(), strict=True)
    ]


def _other_first(ids: torch.Tensor, samples: list[slice]) -> torch.Tensor:
    """The row with other tokens in place of its first sample: those of the second, so that no unknown token comes in."""
    first, second = ids[0, samples[0]], ids[0, samples[1]]
    other = second.repeat(-(-len(first) // len(second)))[: len(first)]
    ids = ids.clone()
    ids[0, samples[0]] = first.roll(1) if torch.equal(first, other) else other
    return ids


def _has_experts(model: Any) -> bool:
    """Whether tokens share experts: how many tokens an expert gets changes the rounding of all of them."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return text is not None and any(_EXPERTS.fullmatch(name) and value for name, value in vars(text).items())


def _collate(loader: Loader, spans: np.ndarray) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row of these spans, in the loader's form but no longer than needed: as it is, and as the user's collate= returns it."""
    settings = loader.plan.settings
    room = -(-(spans["stop"] - spans["start"]) // settings.align) * settings.align
    settings = replace(settings, max_length=int(room.sum()) + _PADDING)
    form = replace(loader.form, output="torch", pin_memory=False, pad_to=min(loader.form.pad_to, _LARGEST_PAD_TO))
    collate, rows = Collator(loader.stores, settings, form), Rows(spans, np.array([0, len(spans)]))
    plain = as_tensors(collate(rows)[0], pin_memory=False)
    if loader._users_collate is None:
        return plain, plain
    return plain, as_tensors(UsersCollator(collate, loader._users_collate)(rows)[0], pin_memory=False)


def _same_tokens(plain: dict[str, Any], arrays: dict[str, Any]) -> bool:
    ids = arrays.get("input_ids")
    return ids is not None and bool(torch.equal(torch.as_tensor(ids), plain["input_ids"]))


def _device(model: Any) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _as_given(inputs: Inputs, plain: dict[str, Any], given: dict[str, Any]) -> Inputs:
    """The inputs that the user's own loop passes too: its cache, its kind of positions, and a mask over padding if it passes one."""
    kept = Inputs({name: value for name, value in inputs.items() if name in given and name != "use_cache"})
    if "use_cache" in given:
        kept["use_cache"] = given["use_cache"]
    positions, mask = given.get("position_ids"), given.get("attention_mask")
    if positions is None or positions.ndim == 2:
        kept.pop("position_ids", None)
    if positions is not None and positions.ndim == 2:
        kept["position_ids"] = plain["position_ids"]
    if "attention_mask" not in inputs and mask is not None and mask.ndim == 2:
        kept["attention_mask"] = (plain["seq_idx"] != PADDING).to(mask.dtype)
    return kept


def _logits(model: Any, inputs: Inputs, device: torch.device) -> Any:
    """Logits of each token; None if the model returns none.  Without labels, so that no loss is computed."""
    moved = {name: value.to(device) if torch.is_tensor(value) else value for name, value in inputs.items()}
    moved.pop("labels", None)
    found: Any = getattr(model(**moved), "logits", None)
    return found.cpu() if torch.is_tensor(found) and found.ndim == 3 else None


def _relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the difference, as a share of the expected logits' own spread over the vocabulary."""
    found, expected = found.double(), expected.double()
    scale = (expected - expected.mean(-1, keepdim=True)).square().mean().sqrt()
    return float((found - expected).square().mean().sqrt() / scale.clamp(min=1e-12))


def _rounding(model: Any, dtype: torch.dtype, precision: str | None) -> float:
    """Of the coarsest type that the forward computes in."""
    kinds = {dtype, *(parameter.dtype for parameter in model.parameters())}  # of integers, where weights are quantized
    if torch.is_autocast_enabled(_device(model).type):
        kinds.add(torch.get_autocast_dtype(_device(model).type))
    rounding = [_ROUNDING.get(kind, _ROUNDING_BELOW_16_BITS) for kind in kinds]
    if precision not in (None, "no"):
        rounding.append(_ROUNDING[_MIXED[precision]] if precision in _MIXED else _ROUNDING_BELOW_16_BITS)
    if torch.get_float32_matmul_precision() != "highest":  # TF32 and its like keep ten bits
        rounding.append(_ROUNDING[torch.float16])
    return max(rounding)


@contextmanager
def _undisturbed(model: Any) -> Iterator[None]:
    """Without gradients, dropout and compiled graphs; afterwards all modules and random states are as before."""
    training = [(module, module.training) for module in model.modules()]
    device = _device(model)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            model.eval()
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                yield
        finally:
            for module, mode in training:
                module.training = mode


def _words(model: Any, where: str, difference: Difference) -> str:
    attention = _attention(model)
    named = f"{type(model).__name__} (attn_implementation={attention!r})" if attention else type(model).__name__
    return (
        f"{named} does not keep the samples of a row apart: sample {difference.place + 1} of a row ({where}) has logits that differ by up "
        f"to {difference.largest:.3g} from {difference.against} ({difference.relative:.2%} of their spread; rounding explains "
        f"{difference.tolerance:.2%})"
    )


def _attention(model: Any) -> str | None:
    return getattr(getattr(model, "config", None), "_attn_implementation", None)


def _advice(model: Any, loader: Loader, passed: dict[str, Any], *, own_loop: bool) -> str:
    """What to change, from what the row was passed with."""
    inputs, form, mask = ModelInputs(model), loader.form, passed.get("attention_mask")
    unpacked = "set packing='none' in the Loader" + (" and leave out padding_free" if form.padding_free else "")
    if mask is not None and mask.ndim == 4 and _attention(model) != "sdpa":
        return "A 4-D mask of True and False is for attn_implementation='sdpa': load the model with it, or leave out attention_mask='4d'"
    if (
        inputs.takes("position_ids")
        and own_loop
        and ("position_ids" not in passed or (mask is not None and mask.ndim == 2))
    ):
        return "Pass the batch's position_ids to the model, no attention mask, and use_cache=False"
    if inputs.four_positions and own_loop and passed["position_ids"].ndim == 2:
        return "This model finds packed samples in position_ids of shape [4, rows, length]: pass **ModelInputs(model)(batch)"
    if passed.get("use_cache") is not False and inputs.takes("use_cache"):
        how = "leave use_cache= out of the Loader" if form.use_cache is None else "pass use_cache=False to the model"
        return f"With a cache, transformers does not look at where positions restart: {how}"
    if "position_ids" not in inputs.taken:
        return f"Its forward names no position_ids: {unpacked}"
    if mask is not None and mask.ndim == 4:  # which holds for all layers, also for those with a sliding window
        return f"Leave out attention_mask='4d' in the Loader, or {unpacked}"
    if _attention(model) == "sdpa":
        return f"With sdpa this model does not look at where positions restart: load it with a flash attention, or {unpacked}"
    return f"Load the model with attn_implementation='sdpa' or a flash attention, or {unpacked}"
