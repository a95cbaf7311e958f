"""The options of a Loader and the layout of its batches, each as one frozen value, checked once; arrays as tensors.

torch is imported only by the functions that need it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.plan.settings import PlanSettings, weights_as_text
from penstock.settings import check_settings, setting, shown, whole_number

_NARROW = {
    "int64": np.int32,
    "uint64": np.uint32,
    "float64": np.float32,
}  # jax has 32 bits by default


_LARGEST_BUDGET = 10**15  # of epochs, steps or tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """How a Loader runs: none of it decides which rows come in which order."""

    batch_size: int = setting("rows per rank and step", whole=True, least=1)
    epochs: float | None = setting(
        "number of passes over the data, also a part of one, such as 0.5 or 2.5: so much of the rows of the last epoch; null never ends",
        1,
    )
    max_steps: int | None = setting(
        "end after so many steps, steps that skip_steps names among them",
        None,
        choices=(None,),
        whole=True,
        least=1,
    )
    max_tokens: int | None = setting(
        "end before the row with which all ranks together would have more than so many tokens, counted along the order, without padding",
        None,
        choices=(None,),
        whole=True,
        least=1,
    )
    tokens_per_step: int | None = setting(
        "with packing: none, tokens of a step of all ranks at most, with their padding: a step takes as many rows as fit, and batch_size "
        "is the most that a rank gets",
        None,
        choices=(None,),
        whole=True,
        least=1,
    )
    rank: int | None = setting("which rank this is", None)
    world_size: int | None = setting("how many ranks there are", None)
    model_parallel_size: int = setting(
        "number of neighbouring ranks that get the same rows",
        1,
        whole=True,
        least=1,
        former="replicas",
    )
    mesh: Any = setting(
        "a device mesh with named dimensions, instead of ranks: dp, dp_replicate, dp_shard and the like get different rows, ranks that "
        "differ only in tp, cp, sp or pp the same; or its data-parallel dimension, as mesh['dp']",
        None,
    )
    run_id: str | None = setting(
        "the name of the run in the cache: penstock view shows it there",
        None,
    )
    prefetch: int = setting(
        "number of steps that a thread prepares ahead; a few more if steps are small",
        2,
        whole=True,
        least=0,
    )
    max_dropped: float = setting(
        "the share of a dataset's records, or of its tokens, that may never reach a batch: records that give no sample, and samples "
        "that max_length drops; above it the Loader refuses and `check` fails; 1 allows everything",
        0.5,
    )
    per_epoch: bool = setting(
        "end each iteration with its epoch, for trainers that loop over epochs",
        False,
        choices=(True, False),
    )
    skip_steps: Iterable[int] = setting("numbers of steps to skip", (), former="skip")
    schedule: str | None = setting(
        "unit of the points in a table of weights: steps (the default) or tokens (a row counts as max_length)",
        None,
        choices=(None, "steps", "tokens"),
    )
    interpolate: bool = setting(
        "change weights between two points of a table in 16 equal stages instead of at once",
        False,
        choices=(True, False),
        former="anneal",
    )
    collate: Callable[..., Any] | None = setting(
        "for plain records, makes a batch of a list of them; for tokens, is given the arrays of a batch and its rows (their spans say "
        "source, sample, start, stop) and returns the arrays to deliver",
        None,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        object.__setattr__(self, "epochs", _number_of_epochs(self.epochs))
        self._check_budget()
        share = self.max_dropped
        if not 0 <= share <= 1:
            raise PlanError(f"max_dropped is {share!r}, expected a share from 0 to 1, such as 0.5")
        object.__setattr__(
            self,
            "skip_steps",
            frozenset(
                whole_number("a step in skip_steps", step, least=0) for step in self.skip_steps
            ),
        )

    @property
    def whole_epochs(self) -> int | None:
        """The epochs of a pass, of which the last may be cut."""
        return None if self.epochs is None else math.ceil(self.epochs)

    @property
    def share_of_last_epoch(self) -> Fraction | None:
        """How much of its last epoch a pass has; None for all of it."""
        if self.epochs is None or self.epochs == math.ceil(self.epochs):
            return None
        return Fraction(repr(self.epochs)) % 1

    def _check_budget(self) -> None:
        for name in ("epochs", "max_steps", "max_tokens", "tokens_per_step"):
            value = getattr(self, name)
            if value is not None and value > _LARGEST_BUDGET:
                raise PlanError(
                    f"{name} is {shown(value)}, more than any run can have, expected at most {_LARGEST_BUDGET:,}; for no limit, write null "
                    f"(None in Python)"
                )
        given = {
            "epochs": None if self.share_of_last_epoch is None else self.epochs,
            "max_steps": self.max_steps,
            "max_tokens": self.max_tokens,
        }
        for name, value in given.items():
            if value is not None and self.per_epoch:
                raise PlanError(
                    f"{name}={value} ends a run within an epoch, and per_epoch ends each iteration with its epoch; choose one"
                )


def _number_of_epochs(epochs: Any) -> int | float | None:
    """Return a number of epochs as an int, or as a float if the last one is cut; refuse anything else."""
    number = None
    with suppress(TypeError, ValueError, OverflowError):
        number = None if isinstance(epochs, bool | str) else float(epochs)
    if epochs is not None and (number is None or not math.isfinite(number) or number < 0):
        raise PlanError(f"epochs is {shown(epochs)}, expected a number ≥ 0, or null")
    if number is None or epochs is None:
        return None
    return int(epochs) if number.is_integer() else number


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchForm:
    """How rows become arrays.  Nothing here changes which tokens a step holds, so it may change when a run resumes."""

    output: str = setting(
        "torch, numpy, or jax (int32 arrays; `segment_ids` instead of `seq_idx`; `cu_seqlens` only with max_segments)",
        "torch",
        choices=("numpy", "torch", "jax"),
    )
    padding_free: bool = setting("deliver one flat row of all tokens", False, choices=(True, False))
    padding: str = setting(
        "length of unpacked rows: the longest sample of the batch, or max_length",
        "longest",
        choices=("longest", "max_length"),
    )
    pad_side: str = setting(
        "side of the padding: right or left", "right", choices=("right", "left")
    )
    pad_to_multiple_of: int = setting(
        "pad the length of rows to a multiple of this", 1, whole=True, least=1, former="pad_to"
    )
    pad_token_id: int = setting("token id of padding", 0, whole=True, least=0, former="pad_id")
    labels: str = setting(
        "labels as they are (unshifted), or moved by one for models that do not shift",
        "unshifted",
        choices=("unshifted", "shifted"),
    )
    max_segments: int | None = setting(
        "maximum number of samples and paddings per batch; `cu_seqlens` then always has max_segments + 1 values, the last one repeated",
        None,
        choices=(None,),
        whole=True,
        least=1,
    )
    attention_mask: str = setting(
        "auto (a plain mask for unpacked rows), none, or 4d (block-diagonal and causal)",
        "auto",
        choices=("auto", "none", "4d"),
    )
    documents: str = setting(
        "apart: attention, positions and targets stay inside a document (sample); joined, with packing: concat: they run through the row",
        "apart",
        choices=("apart", "joined"),
    )
    pin_memory: bool = setting("put tensors into pinned memory", False, choices=(True, False))
    use_cache: bool | None = setting(
        "batches with several samples in a row carry `use_cache=False`: with a cache, models of transformers ignore where positions "
        "restart; null leaves it out, for models that do not take it",
        False,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.use_cache not in (False, None):
            raise PlanError(
                f"use_cache is {self.use_cache!r}, expected False or None: with a cache, packed samples attend to each other"
            )
        if self.pin_memory and self.output != "torch":
            raise PlanError("pin_memory is for output='torch'; numpy arrays cannot be pinned")
        if self.padding_free and self.attention_mask == "4d":
            raise PlanError(
                "a 4-D mask of one flat row would need (number of tokens)² values; use cu_seqlens instead"
            )
        if self.documents == "joined" and self.attention_mask == "4d":
            raise PlanError(
                "attention_mask='4d' keeps documents apart, and documents='joined' joins them; choose one"
            )
        if self.padding_free and self.pad_side == "left":
            raise PlanError("padding_free rows have no padding to put on the left")


def _hint(name: str, value: Any) -> str:
    """What to write in place of an option that is not known."""
    from penstock.aliases import instead  # only for an error
    from penstock.options import LoaderOptions

    known = LoaderOptions.__annotations__
    if name in known:
        return "; it belongs to an extra which this installation does not have: install the whole package"
    hint = instead(name, value, known, function="Loader")
    return hint or "; help(penstock.Loader) lists them"


def split_options(
    weights: Sequence[Any] | None, options: Mapping[str, Any]
) -> tuple[PlanSettings, BatchForm]:
    """Return the settings of the order and those of the layout; refuse any other option."""
    of_plan, of_form = ({each.name for each in fields(kind)} for kind in (PlanSettings, BatchForm))
    if "weights" in options:
        raise PlanError("pass each weight with its store: Loader({'name': (store, weight), …})")
    for name in options.keys() & {"workers", "num_workers"}:
        raise PlanError(
            f"Loader has no option {name!r}: a thread reads ahead (prefetch=); where collate is slow, use torch's own processes: "
            "DataLoader(loader.as_dataset(), batch_size=None, num_workers=N)"
        )
    for name in options.keys() - of_plan - of_form:
        raise PlanError(f"Loader has no option {name!r}{_hint(name, options[name])}")
    order, form = (
        {name: options[name] for name in options.keys() & known} for known in (of_plan, of_form)
    )
    settings = PlanSettings(weights=weights_as_text(weights), **order)
    layout = BatchForm(**form)
    if layout.documents == "joined" and (not settings.method.cuts or settings.align > 1):
        other = (
            f"align={settings.align}" if settings.method.cuts else f"packing={settings.packing!r}"
        )
        raise PlanError(
            f"documents='joined' lets attention run from one document into the next, which is for a stream of text: packing='concat' "
            f"without align; {other} is something else. Leave documents out"
        )
    if layout.max_segments is not None and not (settings.method.is_packed or layout.padding_free):
        raise PlanError(
            f"max_segments={layout.max_segments} has no effect with packing={settings.packing!r}: these batches have no cu_seqlens; leave "
            f"it out"
        )
    return settings, layout


def require_torch(option: str, instead: str) -> None:
    """Refuse an option that needs torch if torch is not installed."""
    if find_spec("torch") is None:
        raise PlanError(
            f"{option} needs torch, which is not installed: pip install 'penstock[torch]', or {instead}",
            code="no_torch",
        )


def check_output(form: BatchForm) -> None:
    """Refuse an output whose package is missing."""
    if form.output == "torch":
        require_torch("output='torch', the default,", "pass output='numpy'")
    if form.output == "jax" and find_spec("jax") is None:
        raise PlanError(
            "output='jax' needs jax, which is not installed: pip install jax, or pass output='numpy'"
        )


def check_layout(
    order: PlanSettings, form: BatchForm, *, has_tokens: bool, per_epoch: bool
) -> None:
    """Refuse a layout whose package is missing, and loops that contradict the order."""
    if has_tokens:
        check_output(form)
    if per_epoch and order.last_step == "wrap":
        raise PlanError(
            "last_step='wrap' continues into the next epoch, but per_epoch stops at the end of each epoch; choose one"
        )


def as_tensors(arrays: dict[str, Any], *, pin_memory: bool) -> dict[str, Any]:
    """Return arrays as tensors that share their memory, pinned on request; plain numbers stay."""
    import torch

    out = {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for name, value in arrays.items()
    }
    return pin(out) if pin_memory else out


def as_jax(arrays: dict[str, Any], *, fixed_borders: bool) -> dict[str, Any]:
    """Return copies on jax's default device.  `cu_seqlens` stays only if its shape is the same in every batch."""
    import jax.numpy as jnp

    varying = {"max_seqlen"} if fixed_borders else {"max_seqlen", "cu_seqlens"}
    out = {name: value for name, value in arrays.items() if name not in varying}
    for name, value in out.items():
        if isinstance(value, np.ndarray):
            narrow = value.astype(_NARROW.get(value.dtype.name, value.dtype))
            if value.dtype.kind in "iu" and not np.array_equal(narrow, value):
                raise PlanError(
                    f"array {name!r} holds {value.dtype} values that do not fit into {narrow.dtype}, the integers of jax; declare the "
                    f"column with smaller values, or pass output='numpy'"
                )
            out[name] = jnp.array(narrow)
    if "seq_idx" in out:
        out["segment_ids"] = out.pop("seq_idx") + 1  # a segment is counted from 1
    return out


def pin(values: dict[str, Any]) -> dict[str, Any]:
    """Return tensors as copies in memory that a device can read by itself."""
    import torch

    if not torch.accelerator.is_available():
        raise PlanError(
            "pin_memory needs a device such as a GPU, and torch finds none; leave it out"
        )
    return {
        name: value.pin_memory() if torch.is_tensor(value) else value
        for name, value in values.items()
    }
