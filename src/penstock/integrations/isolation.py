"""Check that a model computes a sample in a packed row as it computes the sample alone; refuse to train if it does not.

The check takes the first row of the plan that holds two samples, cuts them short, and compares logits: the row against each sample alone,
and against the row with another first sample.  It leaves the model's mode, the random state, the loader and its counters as they were.
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
from penstock.loader.batch import media_of
from penstock.loader.collate import PADDING, Collator, call_users
from penstock.loader.decode import MEDIA_ARRAYS
from penstock.loader.layout import as_tensors
from penstock.loader.media import MediaStage
from penstock.plan.block import Rows
from penstock.plan.plan import Position
from penstock.plan.ranks import rank_rows, rank_shares
from penstock.types import World

_log = logging.getLogger("penstock")

_STEPS_SEARCHED = 64  # for a row with two samples
# compared, and of each of them
_SAMPLES = 2
_TOKENS = 16
# a first image within so many tokens is compared, too, and tokens after it
_MEDIA_TOKENS = 2048
_AFTER_MEDIA = 4
_PADDING = 8  # places after them in the row
_LARGEST_PAD_TO = 256

# Largest relative difference (root mean square over all logits) that rounding explains.
_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}
_ROUNDING_BELOW_16_BITS = 1e-1
_MIXED = {"bf16": torch.bfloat16, "fp16": torch.float16}
_TIMES_NOISE = 5  # a difference may be so many times that of the same sample in a batch of two
_SAME_SHAPE = 20  # times less than rounding, if only the tokens of another sample change
_EXPERTS = re.compile(r"(moe_)?(num|n)_(\w+_)?experts\w*")  # in a config

OFF = "isolation_check=False turns this check off"


class _CannotCompare(Exception):
    """The model or the batch does not allow a comparison."""


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The logits of one sample of a row, and what they should be."""

    sample: int  # in the row, from 0
    against: str
    found: torch.Tensor  # (tokens, vocabulary)
    expected: torch.Tensor
    tolerance: float  # relative

    @property
    def relative(self) -> float:
        """Root mean square of the difference, as a share of the expected logits' own spread over the vocabulary."""
        found = self.found.double()
        expected = self.expected.double()
        scale = (expected - expected.mean(-1, keepdim=True)).square().mean().sqrt()
        return float((found - expected).square().mean().sqrt() / scale.clamp(min=1e-12))

    def describe(self) -> str:
        largest = float((self.found.double() - self.expected.double()).abs().max())
        return (
            f"has logits that differ by up to {largest:.3g} from {self.against} ({self.relative:.2%} of their spread; "
            f"rounding explains {self.tolerance:.2%})"
        )


def check_isolation(
    model: Any, loader: Loader, *, precision: str | None = None, given: dict[str, Any] | None = None
) -> None:
    """Refuse a model that lets samples of a packed row see each other.

    precision: of automatic mixed precision ("bf16", "fp16", …), if the model runs under it.  given: the keyword arguments of a real
    training forward, if the training loop is the user's own; the row is then passed under the same names.
    """
    row = find_row(loader)
    if row is None:
        return
    try:
        with _undisturbed(model):
            comparisons, passed = _compare(model, loader, row, precision, given)
    except _CannotCompare as error:
        _log.warning("the isolation check could not run: %s; %s", error, OFF)
        return
    except Exception as error:
        # A model may need inputs that only a real batch has; training itself says so if that is an error.
        _log.warning(
            "the isolation check could not run (%s: %s); %s", type(error).__name__, error, OFF
        )
        return
    for each in comparisons:
        if not each.relative <= each.tolerance:  # also if the row's logits are not numbers
            source, sample, _, _ = row[each.sample].tolist()
            where = loader.stores[source].source.where(sample)
            attention = _attention(model)
            name = type(model).__name__ + (
                f" (attn_implementation={attention!r})" if attention else ""
            )
            raise PlanError(
                f"{name} does not keep the samples of a row apart: sample {each.sample + 1} of a row ({where}) {each.describe()}. "
                f"{_advice(model, loader, passed, own_loop=given is not None)}; {OFF}"
            )


def check_at_first_step(
    module: torch.nn.Module, loader: Loader, *, precision: str | None = None
) -> None:
    """Check every transformers model in `module` at its first training forward, with the inputs that the user's own loop passes."""
    if any(
        hasattr(each, "_orig_mod") or getattr(each, "_compiled_call_impl", None)
        for each in module.modules()
    ):
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
    """Yield the outermost ones; none if transformers is not imported."""
    transformers = sys.modules.get("transformers.modeling_utils")
    if transformers is not None and isinstance(module, transformers.PreTrainedModel):
        yield module
        return
    for child in module.children():
        yield from _transformers_models(child)


def find_row(loader: Loader) -> np.ndarray | None:
    """Return the spans of the first row, from the loader's position on, whose samples must be kept apart; None if there is none."""
    settings = loader.plan.settings
    form = loader.form
    is_packed = settings.method.is_packed or form.padding_free or form.attention_mask == "4d"
    if not loader.has_tokens or not is_packed or form.documents == "joined":
        return None
    least = 1 if form.attention_mask == "4d" else 2  # a mask can be wrong for one sample, too
    rows = islice(_rows(loader), _STEPS_SEARCHED * loader.batch_size * loader.world.size)
    return next((spans for spans in rows if len(spans) >= least), None)


def _rows(loader: Loader) -> Iterator[np.ndarray]:
    """Yield rows as a model sees them: if they are laid end to end, all rows of a rank are one."""
    state = loader.state_dict()
    ranks = loader.world.size
    here = Position(
        epoch=state["epoch"], block=state["block"], row=state["row"], rows=state["rows"]
    )
    for start in (here, Position()):  # from the start if nothing is left
        for step in loader.plan.steps(
            start=start, num_rows=loader.batch_size * ranks, epochs=start.epoch + 1
        ):
            if loader.form.padding_free:
                yield rank_rows(step.rows, World(rank=0, size=ranks), loader.plan.settings).spans
            else:
                yield from (step.rows[number] for number in range(step.rows.num_rows))


def _compare(
    model: Any, loader: Loader, row: np.ndarray, precision: str | None, given: dict[str, Any] | None
) -> tuple[list[_Comparison], Inputs]:
    """Return the comparisons of the row's samples, and the inputs that the row was passed with."""
    spans = row[:_SAMPLES].copy()
    if loader.media is not None and len(spans) > 1:
        # images of the two samples then have other places, so a model that looks in the wrong sample is found
        first = next(
            (
                item.span[0]
                for item in media_of(loader.stores[spans[1]["source"]], int(spans[1]["sample"]))
            ),
            2,
        )
        spans["start"][1] += first > spans["start"][1]
    spans["stop"] = [_end(loader, span) for span in spans]
    plain, arrays = _collate(loader, spans)
    inputs = ModelInputs(model)
    ids = plain["input_ids"]
    if "input_ids" not in arrays or not torch.equal(torch.as_tensor(arrays["input_ids"]), ids):
        raise _CannotCompare("collate= of the Loader changes input_ids")
    passed = (
        inputs.select(arrays) if given is None else _as_given(inputs.select(arrays), plain, given)
    )
    together = _logits(model, passed)
    if together is None or together.shape[:2] != ids.shape:
        raise _CannotCompare("the model returns no logits for each token")
    samples = [_place(plain["seq_idx"][0], number, span) for number, span in enumerate(spans)]
    no_cache = {"use_cache": False} if inputs.takes("use_cache") else {}
    each_alone = [
        Inputs(
            input_ids=ids[:, sample], **_media_alone(loader, spans[number : number + 1]), **no_cache
        )
        for number, sample in enumerate(samples)
    ]
    alone = [_logits(model, passed_alone)[0] for passed_alone in each_alone]
    if not all(bool(logits.isfinite().all()) for logits in alone):
        raise _CannotCompare("the model's logits are not finite")
    doubled = {
        name: torch.cat((value, value), dim=1 if name == "position_ids" else 0)
        for name, value in each_alone[-1].items()
        if torch.is_tensor(value)
    }
    twice = _logits(model, Inputs(doubled | no_cache))
    rounding = _rounding(model, together.dtype, precision)
    tolerance = max(rounding, _TIMES_NOISE * _Comparison(0, "", twice[1], alone[-1], 0.0).relative)
    found = [
        _Comparison(
            number, "those of the sample alone", together[0, sample], alone[number], tolerance
        )
        for number, sample in enumerate(samples)
    ]
    if (
        len(samples) > 1
    ):  # with another sample before it, all but a leak stays the same, to the last bit or nearly so
        passed["input_ids"] = _other_first(ids, samples, loader.media)
        other = _logits(model, passed)[0, samples[1]]
        tolerance = tolerance if _has_experts(model) else rounding / _SAME_SHAPE
        against = "those behind another first sample"
        found.append(_Comparison(1, against, other, together[0, samples[1]], tolerance))
    return found, passed


def _collate(loader: Loader, spans: np.ndarray) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make a row of these spans, in the loader's form but no longer than needed: as it is, and as the user's collate= returns it."""
    settings = loader.plan.settings
    room = -(-(spans["stop"] - spans["start"]) // settings.align) * settings.align
    settings = replace(settings, max_length=int(room.sum()) + _PADDING)
    form = replace(
        loader.form,
        output="torch",
        pin_memory=False,
        pad_to=min(loader.form.pad_to, _LARGEST_PAD_TO),
    )
    rows = Rows(spans, np.array([0, len(spans)]))

    def make(users: Any) -> dict[str, Any]:
        arrays, trained = Collator(loader.stores, settings, form, None, loader._columns)(rows)
        if loader.media is not None:
            arrays = loader.media.complete(
                arrays, rank_shares([rows], World(rank=0, size=1), settings)[0]
            )
        return arrays if users is None else call_users(users, arrays, trained, rows)[0]

    plain, given = (
        as_tensors(make(users), pin_memory=False) for users in (None, loader._users_collate)
    )
    return plain, given


def _end(loader: Loader, span: np.void) -> int:
    """Return where a span is cut: after a few tokens, or behind its first image, and never inside of one."""
    source, sample, start, stop = span.tolist()
    media = [] if loader.media is None else media_of(loader.stores[source], sample)
    end = start + _TOKENS
    if media and media[0].span[1] - start <= _MEDIA_TOKENS:
        end = max(end, media[0].span[1] + _AFTER_MEDIA)
    for first, last in (each.span for each in media):
        if first < end < last:
            end = first if first > start else last
    return min(end, stop)


def _media_alone(loader: Loader, spans: np.ndarray) -> dict[str, Any]:
    """Return the media of a sample alone; the model itself finds its rotary positions from the kinds of its tokens."""
    if loader.media is None:
        return {}
    plain, _ = _collate(loader, spans)
    found = {name: plain[name] for name in MEDIA_ARRAYS & plain.keys()}
    place = _place(plain["seq_idx"][0], 0, spans[0])
    if "token_type_ids" in found:
        found["token_type_ids"] = found["token_type_ids"][:, place]
    if "video_grid_thw" in found:  # whose positions depend on seconds, too
        found["position_ids"] = plain["position_ids"][..., place]
    elif found and loader.media.four_positions:
        ids = plain["input_ids"][:, place]
        found["mm_token_type_ids"] = torch.zeros_like(ids)
        for number, kind in enumerate(("image", "video"), start=1):
            found["mm_token_type_ids"][ids == loader.media.token_ids.get(kind, -1)] = number
    return found


def _place(numbers: torch.Tensor, number: int, span: Any) -> slice:
    """Return where a span lies in the row, without the padding that alignment adds to it."""
    first = int((numbers == number).nonzero()[0])
    return slice(first, first + int(span["stop"] - span["start"]))


def _other_first(ids: torch.Tensor, samples: list[slice], media: MediaStage | None) -> torch.Tensor:
    """Return the row with other tokens in place of its first sample: those of the second, so that no unknown token comes in.

    With media, the sample's own text moves by one token, and placeholders stay where they are.
    """
    first = ids[0, samples[0]]
    second = ids[0, samples[1]]
    if media is not None:
        moved = first.clone()
        ids = ids.clone()
        is_text = ~torch.isin(first, torch.tensor(list(media.token_ids.values())))
        moved[is_text] = first[is_text].roll(1)
        ids[0, samples[0]] = moved
        return ids
    other = second.repeat(-(-len(first) // len(second)))[: len(first)]
    ids = ids.clone()
    ids[0, samples[0]] = first.roll(1) if torch.equal(first, other) else other
    return ids


def _as_given(inputs: Inputs, plain: dict[str, Any], given: dict[str, Any]) -> Inputs:
    """Return the inputs that the user's own loop passes too: its cache, its kind of positions, and a mask over padding if it passes one."""
    kept = Inputs({name: value for name, value in inputs.items() if name in given})
    if "use_cache" in given:
        kept["use_cache"] = given["use_cache"]
    positions = given.get("position_ids")
    mask = given.get("attention_mask")
    if positions is None:
        kept.pop("position_ids", None)
    elif positions.ndim == 2:
        kept["position_ids"] = plain["position_ids"]
    if "attention_mask" not in inputs and mask is not None and mask.ndim == 2:
        kept["attention_mask"] = (plain["seq_idx"] != PADDING).to(mask.dtype)
    return kept


def _logits(model: Any, inputs: Inputs) -> Any:
    """Return the logits of each token; None if the model returns none.  Without labels, so that no loss is computed."""
    device = _device(model)
    moved = {
        name: value.to(device) if torch.is_tensor(value) else value
        for name, value in inputs.items()
    }
    moved.pop("labels", None)
    found: Any = getattr(model(**moved), "logits", None)
    return found.cpu() if torch.is_tensor(found) and found.ndim == 3 else None


def _device(model: Any) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _has_experts(model: Any) -> bool:
    """Whether tokens share experts: how many tokens an expert gets changes the rounding of all of them."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return text is not None and any(
        _EXPERTS.fullmatch(name) and value for name, value in vars(text).items()
    )


def _rounding(model: Any, dtype: torch.dtype, precision: str | None) -> float:
    """Return the rounding of the coarsest type that the forward computes in."""
    kinds = {
        dtype,
        *(parameter.dtype for parameter in model.parameters()),
    }  # integers, if weights are quantized
    if torch.is_autocast_enabled(_device(model).type):
        kinds.add(torch.get_autocast_dtype(_device(model).type))
    if precision not in (None, "no"):
        kinds.add(_MIXED.get(precision, torch.int8))
    if torch.get_float32_matmul_precision() != "highest":  # TF32 and its like keep ten bits
        kinds.add(torch.float16)
    return max(_ROUNDING.get(kind, _ROUNDING_BELOW_16_BITS) for kind in kinds)


@contextmanager
def _undisturbed(model: Any) -> Iterator[None]:
    """Run without gradients, dropout and compiled graphs; afterwards all modules and random states are as before."""
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


def _attention(model: Any) -> str | None:
    return getattr(getattr(model, "config", None), "_attn_implementation", None)


def _advice(model: Any, loader: Loader, passed: dict[str, Any], *, own_loop: bool) -> str:
    """Say what to change, from what the row was passed with."""
    inputs = ModelInputs(model)
    form = loader.form
    mask = passed.get("attention_mask")
    mask_dimensions = 0 if mask is None else mask.ndim
    unpacked = "set packing='none' in the Loader" + (
        " and leave out padding_free" if form.padding_free else ""
    )
    if mask_dimensions == 4 and _attention(model) != "sdpa":
        return "A 4-D mask of True and False is for attn_implementation='sdpa': load the model with it, or leave out attention_mask='4d'"
    if (
        own_loop
        and inputs.takes("position_ids")
        and ("position_ids" not in passed or mask_dimensions == 2)
    ):
        return "Pass the batch's position_ids to the model, no attention mask, and use_cache=False"
    if own_loop and inputs.four_positions and passed["position_ids"].ndim == 2:
        return "This model finds packed samples in position_ids of shape [4, rows, length]: pass **ModelInputs(model)(batch)"
    if inputs.takes("use_cache") and passed.get("use_cache") is not False:
        how = (
            "leave use_cache= out of the Loader"
            if form.use_cache is None
            else "pass use_cache=False to the model"
        )
        return f"With a cache, transformers ignores where positions restart: {how}"
    if "position_ids" not in inputs.taken:
        return f"Its forward names no position_ids: {unpacked}"
    if mask_dimensions == 4:  # which holds for all layers, also for those with a sliding window
        return f"Leave out attention_mask='4d' in the Loader, or {unpacked}"
    if _attention(model) == "sdpa":
        return f"With sdpa this model ignores where positions restart: load it with a flash attention, or {unpacked}"
    return f"Load the model with attn_implementation='sdpa' or a flash attention, or {unpacked}"
