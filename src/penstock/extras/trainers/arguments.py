"""Arguments of the Trainer and of trl's configs that a Loader replaces.  A test compares the table with the installed versions.

An argument of the table that is not at its default and contradicts the Loader is refused, because it would have no effect.
"""

import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from operator import attrgetter
from typing import Any

from penstock.errors import PlanError
from penstock.loader import Loader

Agrees = Callable[
    [Any, Any, Any], bool
]  # (value, the Loader's value, args): whether they ask for the same


def _equal(value: Any, own: Any, args: Any) -> bool:
    return bool(value == own)


def _equal_or_none(value: Any, own: Any, args: Any) -> bool:
    return value is None or value == own


def _never(value: Any, own: Any, args: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Replaced:
    """An argument, the Loader's attribute in its place, what the Loader does instead, and when the two agree."""

    name: str
    own: str = ""  # "" if no attribute corresponds to it
    does: str = ""  # `{!r}` is the Loader's value; "" for an option of the Loader that decides
    agrees: Agrees = _equal


_TRAIN_ON = "the store holds what is trained; set train_on= of prepare"
_SHUFFLE = (
    "shuffle= and packing= of the Loader decide which samples are batched together; set them there"
)

_TRAINING = (
    # TrainingArguments
    Replaced("per_device_train_batch_size", "batch_size"),
    Replaced(
        "num_train_epochs",
        "epochs",
        agrees=lambda value, own, args: args.max_steps > 0 or value == own,
    ),
    Replaced(
        "auto_find_batch_size",
        "batch_size",
        "the Trainer cannot change the Loader's batch_size ({}); leave it out",
        _never,
    ),
    Replaced(
        "ignore_data_skip",
        "",
        "a resumed run continues at its saved state; start a new run to see the data again",
    ),
    Replaced("data_seed", "plan.settings.seed"),
    Replaced(
        "train_sampling_strategy",
        "plan.settings.shuffle",
        _SHUFFLE,
        lambda value, own, args: value == "sequential" and not own,
    ),
    Replaced("length_column_name", "", "the Loader knows the lengths of its samples; leave it out"),
    # SFTConfig
    Replaced("shuffle_dataset", "plan.settings.shuffle"),
    Replaced("packing", "plan.settings.packing"),
    Replaced("padding_free", "form.padding_free", agrees=_never),
    Replaced("assistant_only_loss", "", _TRAIN_ON),
    Replaced("completion_only_loss", "", _TRAIN_ON),
    # DPOConfig, KTOConfig
    Replaced(
        "precompute_ref_log_probs",
        "",
        "batches of the Loader have no log-probabilities of the reference model; leave it out",
    ),
    Replaced(
        "precompute_ref_batch_size",
        "",
        "batches of the Loader have no log-probabilities of the reference model; leave it out",
    ),
)

# These have their usual effect on an eval_dataset that is not a Loader.
_ALSO_EVALUATION = (
    # TrainingArguments
    Replaced(
        "dataloader_drop_last",
        "plan.settings.last_step",
        "last_step= of the Loader ({!r}) decides about the last step; set last_step='drop' there",
        lambda value, own, args: own == "drop",
    ),
    Replaced("dataloader_num_workers", "", "a thread of the Loader reads ahead; leave it out"),
    Replaced("dataloader_prefetch_factor", "settings.prefetch"),
    Replaced("dataloader_pin_memory", "form.pin_memory"),
    Replaced(
        "dataloader_persistent_workers",
        "",
        "the Loader has no workers; leave it out",
    ),
    Replaced("dataloader_multiprocessing_context", "", "the Loader has no workers; leave it out"),
    Replaced(
        "dataloader_in_order", "", "the Loader always keeps the order of its plan; leave it out"
    ),
    # SFTConfig
    Replaced(
        "max_length",
        "plan.settings.max_length",
        agrees=_equal_or_none,
    ),
    Replaced("truncation_mode", "plan.settings.on_overlong"),
    Replaced("packing_strategy", "plan.settings.packing"),
    Replaced("eval_packing", "", "packing= of the evaluation Loader decides; set it there"),
    Replaced("pad_to_multiple_of", "form.pad_to_multiple_of", agrees=_equal_or_none),
    Replaced("dataset_text_field", "", "prepare has read the records; set its template= and keys"),
    Replaced(
        "dataset_kwargs",
        "",
        "prepare has made the samples; leave it out",
        lambda value, own, args: set(value or {}) <= {"skip_prepare_dataset"},
    ),
    Replaced(
        "dataset_num_proc", "", "num_proc= of prepare is the number of processes; set it there"
    ),
    Replaced(
        "chat_template_path", "", "prepare has rendered the conversations; set its chat_template="
    ),
)

REPLACED = _TRAINING + _ALSO_EVALUATION

# Arguments with such a name that keep their usual effect.
USUAL = frozenset(
    {
        *(
            "batch_eval_metrics",
            "eval_accumulation_steps",
            "eval_do_concat_batches",
            "full_determinism",
        ),
        *("gradient_accumulation_steps", "include_num_input_tokens_seen", "pad_token", "seed"),
        "per_device_eval_batch_size",  # compared with evaluation Loaders below
    }
)


def check_arguments(
    args: Any, loader: Loader, *, eval_loaders: list[Loader], other_eval: bool
) -> None:
    """Refuse arguments that would have no effect.  other_eval: there is an eval_dataset that is not a Loader."""
    defaults = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(args)
    }
    for each in _TRAINING if other_eval else REPLACED:
        if each.name in defaults and (value := getattr(args, each.name)) != defaults[each.name]:
            own = attrgetter(each.own)(loader) if each.own else MISSING
            if not each.agrees(value, own, args):
                option = each.own.rpartition(".")[2].lstrip("_")
                does = each.does or f"{option}= of the Loader ({{!r}}) decides; set it there"
                raise _refusal(args, each.name, value, does.format(own))
    _check_epochs(args, loader)
    for name in ("split_batches", "dispatch_batches"):
        if value := getattr(getattr(args, "accelerator_config", None), name, None):
            rows = "every rank's Loader makes its own rows; leave it out"
            raise _refusal(args, f"accelerator_config.{name}", value, rows)
    name = "per_device_eval_batch_size"
    if (size := getattr(args, name)) != defaults[name] and any(
        size != each.batch_size for each in eval_loaders
    ):
        raise _refusal(
            args, name, size, "batch_size= of the evaluation Loader decides; set it there"
        )


def _check_epochs(args: Any, loader: Loader) -> None:
    """Refuse two defaults that differ: the Trainer's is 3 epochs, the Loader's 1, and neither was asked for."""
    says = {"epochs", "max_steps", "max_tokens"} & loader.given
    if args.max_steps > 0 or says or args.num_train_epochs == loader.epochs:
        return
    raise PlanError(
        f"{type(args).__name__} has num_train_epochs={args.num_train_epochs:g}, and the Loader was given no epochs and would make "
        f"{loader.epochs}: the Loader counts epochs, so say there how many; pass epochs={math.ceil(args.num_train_epochs)} or "
        f"epochs={loader.epochs} to the Loader, or max_steps to {type(args).__name__}"
    )


def check_datasets(given: dict[str, Any], *, other_eval: bool) -> None:
    """Refuse what a Trainer would read its training data from, or make batches with."""
    names = ["train_dataset", "formatting_func"] + ([] if other_eval else ["data_collator"])
    if found := " and ".join(name for name in names if given.get(name) is not None):
        collate = " (the Loader takes collate=)" if "data_collator" in found else ""
        raise PlanError(
            f"{found} would have no effect: training batches come from the Loader; leave out {found}{collate}"
        )


def _refusal(args: Any, name: str, value: Any, does: str) -> PlanError:
    return PlanError(
        f"{type(args).__name__} has {name}={value!r}, which would have no effect: {does}",
        code="argument_without_effect",
    )
