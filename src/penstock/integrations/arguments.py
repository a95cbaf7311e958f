"""Which arguments of the Trainer and of trl's SFTConfig does a Loader replace?  One table; a test holds it to the installed versions.

An argument in the table that is not at its default and contradicts the Loader is refused: it would have no effect.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any

from penstock.errors import PlanError
from penstock.loader import Loader


def _never(value: Any, loader: Loader, args: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """An argument that the Loader replaces."""

    name: str
    does: str  # what the loader does instead, with its value, and what to do
    agrees: Callable[[Any, Loader, Any], bool] = _never  # whether a value asks for what the loader does anyway
    evaluation: bool = False  # it has its usual effect on an eval_dataset that is not a Loader


def _replaced(
    name: str, does: str, agrees: Callable[[Any, Loader, Any], bool] = _never, evaluation: bool = False
) -> Replaced:
    return Replaced(name=name, does=does, agrees=agrees, evaluation=evaluation)


_LEAVE = "leave it out"

REPLACED = (
    # TrainingArguments
    _replaced(
        "per_device_train_batch_size",
        "batch_size= of the Loader ({loader.batch_size}) is the number of rows per rank; set it there",
        lambda value, loader, args: value == loader.batch_size,
    ),
    _replaced(
        "num_train_epochs",
        "epochs= of the Loader ({loader.epochs}) counts; set it there only",
        lambda value, loader, args: args.max_steps > 0 or value == loader.epochs,
    ),
    _replaced(
        "auto_find_batch_size", "the Trainer cannot change the Loader's batch_size ({loader.batch_size}); leave it out"
    ),
    _replaced(
        "ignore_data_skip", "a resumed run goes on where its state was taken; start a new run to see the data again"
    ),
    _replaced(
        "data_seed",
        "seed= of the Loader ({loader.plan.settings.seed}) decides the order; set it there",
        lambda value, loader, args: value == loader.plan.settings.seed,
    ),
    _replaced(
        "dataloader_drop_last",
        "tail= of the Loader decides about the last step; set tail='drop' there",
        lambda value, loader, args: loader.plan.settings.tail == "drop",
        evaluation=True,
    ),
    _replaced(
        "dataloader_num_workers",
        "workers= of the Loader ({loader._workers}) is the number of processes; set it there",
        lambda value, loader, args: value == loader._workers,
        evaluation=True,
    ),
    _replaced(
        "dataloader_prefetch_factor",
        "prefetch= of the Loader ({loader._prefetch}) is the number of steps made ahead; set it there",
        lambda value, loader, args: value == loader._prefetch,
        evaluation=True,
    ),
    _replaced(
        "dataloader_pin_memory",
        "pin_memory= of the Loader decides; set it there",
        lambda value, loader, args: value == loader.form.pin_memory,
        evaluation=True,
    ),
    _replaced(
        "dataloader_persistent_workers",
        f"the Loader's workers live as long as the run anyway; {_LEAVE}",
        evaluation=True,
    ),
    _replaced("dataloader_multiprocessing_context", f"the Loader starts its own workers; {_LEAVE}", evaluation=True),
    _replaced("dataloader_in_order", f"the Loader's order is always that of its plan; {_LEAVE}", evaluation=True),
    _replaced(
        "train_sampling_strategy",
        "shuffle= and packing= of the Loader decide which samples are batched together; set them there",
        lambda value, loader, args: value == "sequential" and not loader.plan.settings.shuffle,
    ),
    _replaced("length_column_name", f"the Loader knows the lengths of its samples; {_LEAVE}"),
    # SFTConfig
    _replaced(
        "max_length",
        "max_length= of the Loader ({loader.plan.settings.max_length}) counts; set it there",
        lambda value, loader, args: value in (None, loader.plan.settings.max_length),
        evaluation=True,
    ),
    _replaced("truncation_mode", "overflow= of the Loader decides about long samples; set it there", evaluation=True),
    _replaced(
        "shuffle_dataset",
        "shuffle= of the Loader decides; set it there",
        lambda value, loader, args: value == loader.plan.settings.shuffle,
    ),
    _replaced("packing", "packing= of the Loader ({loader.plan.settings.packing!r}) decides; set it there"),
    _replaced(
        "packing_strategy",
        "packing= of the Loader ({loader.plan.settings.packing!r}) decides; set it there",
        evaluation=True,
    ),
    _replaced("eval_packing", "packing= of the evaluation Loader decides; set it there", evaluation=True),
    _replaced("padding_free", "padding_free= of the Loader ({loader.form.padding_free}) decides; set it there"),
    _replaced(
        "pad_to_multiple_of",
        "pad_to= of the Loader ({loader.form.pad_to}) decides; set it there",
        lambda value, loader, args: value in (None, loader.form.pad_to),
        evaluation=True,
    ),
    _replaced("assistant_only_loss", "the store holds what is trained; set train_on= of prepare"),
    _replaced("completion_only_loss", "the store holds what is trained; set train_on= of prepare"),
    _replaced("dataset_text_field", "prepare has read the records; set its template= and keys", evaluation=True),
    _replaced(
        "dataset_kwargs",
        f"prepare has made the samples; {_LEAVE}",
        lambda value, loader, args: set(value or {}) <= {"skip_prepare_dataset"},
        evaluation=True,
    ),
    _replaced("dataset_num_proc", "num_proc= of prepare is the number of processes; set it there", evaluation=True),
    _replaced("chat_template_path", "prepare has rendered the conversations; set its chat_template=", evaluation=True),
)

# Arguments with such a name that a Loader leaves alone: they have their usual effect.
USUAL = frozenset(
    {
        "batch_eval_metrics",
        "eval_accumulation_steps",
        "eval_do_concat_batches",
        "full_determinism",
        "gradient_accumulation_steps",
        "include_num_input_tokens_seen",
        "pad_token",
        "per_device_eval_batch_size",  # of evaluation Loaders, it is refused below
        "seed",
    }
)

_ACCELERATOR = {"split_batches": False, "dispatch_batches": None}  # of accelerator_config, with their defaults
_DATASETS = ("train_dataset", "formatting_func")


def check_arguments(args: Any, loader: Loader, *, eval_loaders: list[Loader], other_eval: bool) -> None:
    """Refuse arguments that would have no effect.  other_eval: there is an eval_dataset that is not a Loader."""
    defaults = {field.name: _default(field) for field in fields(args)}
    for argument in REPLACED:
        if argument.name not in defaults or (argument.evaluation and other_eval):
            continue
        value = getattr(args, argument.name)
        if value != defaults[argument.name] and not argument.agrees(value, loader, args):
            raise _refusal(args, argument.name, value, argument.does.format(loader=loader))
    for name, default in _ACCELERATOR.items():
        value = getattr(getattr(args, "accelerator_config", None), name, default)
        if value not in (default, False):
            raise _refusal(
                args, f"accelerator_config.{name}", value, f"every rank's Loader makes its own rows; {_LEAVE}"
            )
    size = args.per_device_eval_batch_size
    if size != defaults["per_device_eval_batch_size"] and any(size != each.batch_size for each in eval_loaders):
        raise _refusal(
            args, "per_device_eval_batch_size", size, "batch_size= of the evaluation Loader counts; set it there"
        )


def check_datasets(given: dict[str, Any], *, other_eval: bool) -> None:
    """Refuse what a Trainer would read its training data from, or make batches with."""
    names = [name for name in _DATASETS if given.get(name) is not None]
    if given.get("data_collator") is not None and not other_eval:
        names.append("data_collator")
    if names:
        raise PlanError(
            f"{' and '.join(names)} would have no effect: training batches come from the Loader; leave out {' and '.join(names)}"
            + (" (the Loader takes collate=)" if "data_collator" in names else "")
        )


def _refusal(args: Any, name: str, value: Any, does: str) -> PlanError:
    return PlanError(f"{type(args).__name__} has {name}={value!r}, which would have no effect: {does}")


def _default(field: Any) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()
