"""Check that a model computes a sample in a packed row as it computes the sample alone; refuse to train if it does not.

    check_isolation(model, loader)                    # in a loop of your own, before its first step

The check takes the first row of the plan that holds two samples, cuts them short, and compares logits: the row against each sample alone,
and against the row with another first sample.  It leaves the model's mode, the random state, the loader and its counters as they were.
"""

import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from itertools import islice
from typing import Any

import numpy as np
import torch

from penstock.errors import NotIsolated
from penstock.extras.media.decode import MEDIA_ARRAYS
from penstock.extras.media.stage import MediaStage, media_stage_of
from penstock.extras.trainers.batch_stage import cuts_rows
from penstock.extras.trainers.masks import attention_of
from penstock.extras.trainers.model_checks import check_vocabulary, embedding_rows
from penstock.extras.trainers.model_inputs import Inputs, ModelInputs
from penstock.extras.trainers.wrapped import bare_model, compute_types, runnable_model, wrapper_of
from penstock.loader import Loader
from penstock.loader.batch import media_of
from penstock.loader.collate import PADDING, Collator, call_users
from penstock.loader.layout import BatchForm, as_tensors
from penstock.plan.plan import Position
from penstock.plan.ranks import rank_rows, rank_shares
from penstock.plan.rows import Rows
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

_RECURRENT = re.compile(r"Mamba|Delta(Net|Rule)|Recurrent|Rwkv|RWKV|LinearAttention|ShortConv|SSM")
_BORDERS = ("seq_idx", "cu_seq_lens_q")  # by which recurrent layers know where samples begin

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

    @property
    def is_equal(self) -> bool:
        """Whether rounding explains the difference; never if the row's logits are not numbers."""
        return self.relative <= self.tolerance

    def describe(self) -> str:
        largest = float((self.found.double() - self.expected.double()).abs().max())
        return (
            f"has logits that differ by up to {largest:.3g} from {self.against} ({self.relative:.2%} of their spread; "
            f"rounding explains {self.tolerance:.2%})"
        )


def check_isolation(
    model: Any,
    loader: Loader,
    *,
    precision: str | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> bool:
    """Raise NotIsolated if the model lets samples of a packed row see each other.

    Compares the logits of one row of the loader with those of the same samples alone: five forward passes without gradients, of 16 tokens
    for each of two samples.  Weights, random states and the loader stay as they were.  Call it on every rank.

    model: as it is trained, also wrapped (DDP, FSDP, torch.compile, PEFT).
    precision: of automatic mixed precision ("bf16", "fp16", …), if the model is trained under it.
    inputs: the keyword arguments that your loop passes to the model, if they are not `ModelInputs(model)(batch)`.

    Returns whether a row was compared.  False: no row holds two samples, so there is nothing to keep apart; or the model cannot be
    compared, and a warning says why.
    """
    row = find_row(loader)
    if row is None:
        return False
    if cuts_rows(loader):
        raise _cannot_run(
            "the Loader cuts rows for context parallelism, and the attention of such a model exchanges parts with other ranks; compare "
            "it with a Loader without context_split"
        )
    if inputs is None:  # else another model of the user's loop may have a vocabulary of its own
        check_vocabulary(
            model, loader
        )  # here it has a name; inside of the model it is an IndexError
    runnable = runnable_model(model)
    try:
        with _undisturbed(runnable):
            comparisons, passed = _compare(runnable, loader, row, precision, inputs)
    except Exception as error:
        # A model may need inputs that only a real batch has; training itself says so if that is an error.
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, _CannotCompare):
            reason = str(error)
        # where samples do see each other more often: a warning would be lost among many
        wrapper = wrapper_of(model)
        recurrent = _recurrent_layers(model)
        if wrapper:
            raise _cannot_run(f"the model is {wrapper}, and {reason}") from error
        if recurrent:
            raise _cannot_run(f"its layers are {' and '.join(recurrent)}, and {reason}") from error
        _log.warning("the isolation check could not run: %s; %s", reason, OFF)
        return False
    for comparison in comparisons:
        if not comparison.is_equal:
            source, sample, _, _ = row[comparison.sample].tolist()
            where = loader.stores[source].source.locate(sample)
            advice = _advice(runnable, loader, row, passed, precision, own_loop=inputs is not None)
            raise NotIsolated(
                f"{_described(model)} does not keep the samples of a row apart: sample {comparison.sample + 1} of a row ({where}) "
                f"{comparison.describe()}. {advice}; {OFF}"
            )
    return True


def _cannot_run(reason: str) -> NotIsolated:
    return NotIsolated(
        f"whether the model keeps the samples of a row apart cannot be checked: {reason}; to accept that they may see each other, pass "
        f"isolation_check=False, or set packing='none' in the Loader"
    )


def _described(model: Any) -> str:
    """Return the name of a model, with its attention."""
    bare = bare_model(model)
    attention = attention_of(bare)
    name = type(bare).__name__
    return f"{name} (attn_implementation={attention!r})" if attention else name


def check_at_first_step(
    module: torch.nn.Module, loader: Loader, *, precision: str | None = None
) -> None:
    """Check every transformers model in `module` at its first training forward, with the inputs that the user's own loop passes.

    A model that is compiled is checked before its compiled forward; one inside a compiled module cannot be reached, and is refused.
    """
    if isinstance(module, torch.nn.Module) and find_row(loader) is not None:
        _check_inside(module, loader, precision)


def _check_inside(module: torch.nn.Module, loader: Loader, precision: str | None) -> None:
    compiled = module._modules.get("_orig_mod")  # by torch.compile(module)
    model = module if compiled is None else compiled
    is_compiled = compiled is not None or is_compiled_in_place(module)
    if _is_transformers_model(model):
        _check_once(module, model, loader, precision)
        return
    if is_compiled and any(transformers_models(model)):
        raise _cannot_run(
            f"{type(model).__name__} is compiled as a whole, so the model inside cannot be looked at; compile the model itself, or call "
            f"check_isolation(model, loader) before you compile"
        )
    for child in model.children():
        _check_inside(child, loader, precision)


def is_compiled_in_place(module: torch.nn.Module) -> bool:
    """Whether module.compile() was called."""
    return getattr(module, "_compiled_call_impl", None) is not None


def _check_once(called: Any, model: Any, loader: Loader, precision: str | None) -> None:
    """Check at the first training call of a model, or of what torch.compile made of it."""
    checked = False  # a copy of the model has this hook, too, and its own cannot be removed
    parameters = list(signature(model.forward).parameters)

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether this call was the one to check."""
        nonlocal checked
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        is_first = model.training and given.get("input_ids") is not None and not checked
        if is_first:
            checked = True
            remove()
            check_isolation(called, loader, precision=precision, inputs=given)
        return is_first

    if is_compiled_in_place(called):  # its hooks would be compiled, too
        compiled_call = called._compiled_call_impl

        def remove() -> None:
            called._compiled_call_impl = compiled_call

        def call(*args: Any, **kwargs: Any) -> Any:
            check(args, kwargs)
            return compiled_call(*args, **kwargs)

        called._compiled_call_impl = call
        return

    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        check(args, kwargs)

    # before the hook of FSDP2, which gathers the weights for one forward
    handle = called.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
    remove = handle.remove


def transformers_models(module: torch.nn.Module) -> Iterator[Any]:
    """Yield the outermost ones; none if transformers is not imported."""
    if _is_transformers_model(module):
        yield module
        return
    for child in module.children():
        yield from transformers_models(child)


def _is_transformers_model(module: Any) -> bool:
    transformers = sys.modules.get("transformers.modeling_utils")
    return transformers is not None and isinstance(module, transformers.PreTrainedModel)


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
    model: Any,
    loader: Loader,
    row: np.ndarray,
    precision: str | None,
    given: Mapping[str, Any] | None,
    form: BatchForm | None = None,
) -> tuple[list[_Comparison], Inputs]:
    """Return the comparisons of the row's samples, and the inputs that the row was passed with.

    form: of the batch, in place of the loader's.
    """
    spans = row[:_SAMPLES].copy()
    if (
        loader.plan.objective is not None
    ):  # the samples as they are stored: this is about samples, not about their content
        spans["start"] = 0
        spans["stop"] = [len(loader.stores[span["source"]][int(span["sample"])]) for span in spans]
    if media_stage_of(loader) is not None and len(spans) > 1:
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
    plain, arrays = _collate(loader, spans, form)
    inputs = ModelInputs(model)
    ids = plain["input_ids"]
    if "input_ids" not in arrays or not torch.equal(torch.as_tensor(arrays["input_ids"]), ids):
        raise _CannotCompare("collate= of the Loader changes input_ids")
    rows = embedding_rows(model)
    if rows is not None and int(ids.max()) >= rows:
        raise _CannotCompare(
            f"the model has embeddings for {rows:,} ids, and the Loader has others"
        )
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
        passed["input_ids"] = _other_first(ids, samples, media_stage_of(loader))
        other = _logits(model, passed)[0, samples[1]]
        tolerance = tolerance if _has_experts(model) else rounding / _SAME_SHAPE
        against = "those behind another first sample"
        found.append(_Comparison(1, against, other, together[0, samples[1]], tolerance))
    return found, passed


def _collate(
    loader: Loader, spans: np.ndarray, form: BatchForm | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make a row of these spans, in the loader's form but no longer than needed: as it is, and as the user's collate= returns it."""
    settings = loader.plan.settings
    room = -(-(spans["stop"] - spans["start"]) // settings.align) * settings.align
    settings = replace(settings, max_length=int(room.sum()) + _PADDING)
    form = replace(
        form or loader.form,
        output="torch",
        pin_memory=False,
        pad_to_multiple_of=min(loader.form.pad_to_multiple_of, _LARGEST_PAD_TO),
    )
    rows = Rows(spans, np.array([0, len(spans)]))

    def make(users: Any) -> dict[str, Any]:
        arrays, trained = Collator(loader.stores, settings, form, loader.parts.columns)(rows)
        media = media_stage_of(loader)
        if media is not None:
            arrays = media.complete(arrays, rank_shares([rows], World(rank=0, size=1), settings)[0])
        return arrays if users is None else call_users(users, arrays, trained, rows)[0]

    plain, given = (
        as_tensors(make(users), pin_memory=False) for users in (None, loader.settings.collate)
    )
    return plain, given


def _end(loader: Loader, span: np.void) -> int:
    """Return where a span is cut: after a few tokens, or behind its first image, and never inside of one."""
    source, sample, start, stop = span.tolist()
    media = [] if media_stage_of(loader) is None else media_of(loader.stores[source], sample)
    end = start + _TOKENS
    if media and media[0].span[1] - start <= _MEDIA_TOKENS:
        end = max(end, media[0].span[1] + _AFTER_MEDIA)
    for first, last in (each.span for each in media):
        if first < end < last:
            end = first if first > start else last
    return min(end, stop)


def _media_alone(loader: Loader, spans: np.ndarray) -> dict[str, Any]:
    """Return the media of a sample alone; the model itself finds its rotary positions from the kinds of its tokens."""
    media = media_stage_of(loader)
    if media is None:
        return {}
    plain, _ = _collate(loader, spans)
    found = {name: plain[name] for name in MEDIA_ARRAYS & plain.keys()}
    place = _place(plain["seq_idx"][0], 0, spans[0])
    if "token_type_ids" in found:
        found["token_type_ids"] = found["token_type_ids"][:, place]
    # positions of videos depend on seconds, too, and models with audio find none without a mask
    needs_positions = "video_grid_thw" in found or "audio" in media.token_ids
    if found and media.four_positions and needs_positions:
        found["position_ids"] = plain["position_ids"][..., place]
    elif found and media.four_positions:
        ids = plain["input_ids"][:, place]
        found["mm_token_type_ids"] = torch.zeros_like(ids)
        for number, kind in enumerate(("image", "video"), start=1):
            found["mm_token_type_ids"][ids == media.token_ids.get(kind, -1)] = number
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


def _as_given(inputs: Inputs, plain: dict[str, Any], given: Mapping[str, Any]) -> Inputs:
    """Return the inputs that the user's own loop passes too: its cache, its kind of positions, and a mask over padding if it passes one."""
    kept = Inputs({name: value for name, value in inputs.items() if name in given})
    if "use_cache" in given:
        kept["use_cache"] = given["use_cache"]
    positions = given.get("position_ids")
    mask: Any = given.get("attention_mask")
    if positions is None:
        kept.pop("position_ids", None)
    elif positions.ndim == 2:
        kept["position_ids"] = plain["position_ids"]
    if torch.is_tensor(mask) and mask.ndim == 2 and "attention_mask" not in inputs:
        kept["attention_mask"] = (plain["seq_idx"] != PADDING).to(mask.dtype)
    if torch.is_tensor(mask) and mask.dtype == torch.bool and "attention_mask" in plain:
        kept["attention_mask"] = plain["attention_mask"]  # as the batch has it, not as ModelInputs
    return kept


def _logits(model: Any, inputs: Inputs) -> Any:
    """Return the logits of each token; None if the model returns none.  Without labels, so that no loss is computed."""
    device = _device(model)
    moved = {name: _moved(value, device) for name, value in inputs.items()}
    moved.pop("labels", None)
    found: Any = getattr(model(**moved), "logits", None)
    return found.cpu() if torch.is_tensor(found) and found.ndim == 3 else None


def _moved(value: Any, device: torch.device) -> Any:
    """Return a tensor, or the tensors of a dict, on a device; anything else as it is."""
    if isinstance(value, dict):
        return {name: _moved(inside, device) for name, inside in value.items()}
    return value.to(device) if torch.is_tensor(value) else value


def _device(model: Any) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _has_experts(model: Any) -> bool:
    """Whether tokens share experts: how many tokens an expert gets changes the rounding of all of them."""
    config: Any = getattr(bare_model(model), "config", None)
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
    kinds |= compute_types(model)
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


def _flash_implementations(model: Any) -> list[str]:
    """Return the flash attentions that a transformers model can be loaded with."""
    bare = bare_model(model)
    if not getattr(bare, "_supports_flash_attn", False):
        return []
    return getattr(bare, "_compatible_flash_implementations", None) or ["flash_attention_2"]


def _is_cured_by_a_mask(model: Any, loader: Loader, row: np.ndarray, precision: str | None) -> bool:
    """Whether the model keeps samples apart with attention_mask="4d"; tried, not assumed."""
    form = loader.form
    if form.padding_free or form.attention_mask == "4d":
        return False
    try:
        with _undisturbed(model):
            masked = replace(form, attention_mask="4d")
            comparisons, _ = _compare(model, loader, row, precision, None, masked)
    except Exception:  # a model that cannot run like this needs other advice
        return False
    return all(comparison.is_equal for comparison in comparisons)


def _recurrent_layers(model: Any) -> list[str]:
    """Return the names of the kinds of layers that carry a state through a row."""
    _, *layers = bare_model(model).modules()
    kinds = {type(layer).__name__ for layer in layers}
    return sorted(name for name in kinds if _RECURRENT.search(name))


def _advice_for_recurrent(
    layers: list[str], inputs: ModelInputs, passed: Mapping[str, Any], unpacked: str
) -> str:
    """Say whether the layers were told where samples begin, and what to do in either case."""
    carried = f"Its layers {' and '.join(layers)} carry a state from one sample into the next"
    takes = [name for name in _BORDERS if inputs.takes(name)]
    given = [name for name in takes if name in passed]
    if takes and not given:
        return (
            f"{carried}, and its forward was not given {' or '.join(takes)}, which say where samples begin: pass "
            f"**ModelInputs(model)(batch), or {unpacked}"
        )
    if not takes:
        return f"{carried}, and its forward takes no borders of samples: {unpacked}"
    return (
        f"{carried}, although its forward was given {' and '.join(given)}: only their kernels read these, such as those of "
        f"flash-linear-attention, causal-conv1d or mamba-ssm on a GPU; install these, or {unpacked}"
    )


def _advice(
    model: Any,
    loader: Loader,
    row: np.ndarray,
    passed: dict[str, Any],
    precision: str | None,
    *,
    own_loop: bool,
) -> str:
    """Say what to change, from what the row was passed with."""
    inputs = ModelInputs(model)
    form = loader.form
    mask: Any = passed.get("attention_mask")
    mask_dimensions = mask.ndim if torch.is_tensor(mask) else 0
    has_masks_of_its_own = isinstance(mask, dict) or mask_dimensions == 4
    unpacked = "set packing='none' in the Loader" + (
        " and leave out padding_free" if form.padding_free else ""
    )
    if own_loop and has_masks_of_its_own:
        return "Eager attention and sliding windows need other 4-D masks than the batch has: pass **ModelInputs(model)(batch)"
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
    recurrent = _recurrent_layers(model)
    if recurrent:
        return _advice_for_recurrent(recurrent, inputs, passed, unpacked)
    if "position_ids" not in inputs.taken:
        return f"Its forward names no position_ids: {unpacked}"
    if has_masks_of_its_own:
        return f"Leave out attention_mask='4d' in the Loader, or {unpacked}"
    ways = []
    if flash := _flash_implementations(model):
        ways.append(f"load it with attn_implementation={' or '.join(map(repr, flash))}")
    if _is_cured_by_a_mask(model, loader, row, precision):
        how = " and pass **ModelInputs(model)(batch)" if own_loop else ""
        ways.append(f"set attention_mask='4d' in the Loader{how}, which keeps them apart")
    ways.append(unpacked)
    attention = attention_of(bare_model(model)) or "its attention"
    return f"With {attention} this model ignores where positions restart: {', or '.join(ways)}"
