"""Make other libraries treat a Loader as it needs, or refuse it, where they would accept it and do the wrong thing.

It imports none of them: it checks which of them the program has imported when a Loader is made.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from penstock.errors import PlanError
from penstock.extras.trainers.batch_stage import check_parts
from penstock.extras.trainers.parallelism import of_lightning, take_ranks
from penstock.loader import Batch, Loader
from penstock.loader.map_dataset import RowSampler
from penstock.loader.run import Run
from penstock.plan.counters import Counters
from penstock.plan.plan import NumberedStep, Plan
from penstock.reasons import OVERLONG

_log = logging.getLogger("penstock")
_GUARDED = "_knows_penstock_loaders"
_LOADER_MODULE = "use penstock.trainers.lightning: trainer.fit(model, datamodule=LoaderModule(loader, val_dataloaders=...))"


# A plan does not change, so every evaluation after the first one finds its counters here.
_COUNTED: WeakKeyDictionary[Plan, Counters] = WeakKeyDictionary()


class EvalBatches:
    """An evaluation Loader: every iteration begins at its first batch, also where the one before was left early."""

    def __init__(self, loader: Any) -> None:
        if loader.run.is_endless:
            raise PlanError(
                "an evaluation must have an end: the Loader has epochs=None, set epochs=1"
            )
        refuse_unasked_drops(loader)
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self._loader.restart()
        return iter(self._loader)


def count_evaluation(loader: Any) -> Counters | None:
    """Count the samples that one epoch of a Loader delivers, cuts and drops; None while a store is still being made."""
    plan = loader.plan
    if loader.has_tokens and any(store.manifest is None for store in loader.stores):
        return None
    if plan not in _COUNTED:
        _COUNTED[plan] = plan.blocks.count_dropped(0)
    return _COUNTED[plan]


def refuse_unasked_drops(loader: Any) -> None:
    """Refuse to evaluate on a part of the samples, unless the user asked for it: a loss over the short ones alone says little."""
    if "on_overlong" in loader.given:
        return
    counters = count_evaluation(loader)
    if counters is None:
        return
    dropped = counters.samples_dropped[OVERLONG]
    if dropped:
        ways = ["raise max_length"]
        if loader.parts.can_be_cut:
            ways.append("pass on_overlong='truncate' to cut them (or 'split'), which is counted")
        ways.append("pass on_overlong='drop' to leave them out on purpose")
        names = ", ".join(source.name for source in loader.plan.sources)
        raise PlanError(
            f"an evaluation should see every sample once, and {dropped:,} of {counters.samples:,} samples of {names} are longer than "
            f"max_length={loader.plan.settings.max_length:,}, so this Loader would drop them; in the evaluation Loader, "
            f"{', or '.join(ways)}"
        )


def expect_loader(given: Any, *, call: str) -> None:
    """Refuse anything that is not a Loader, and say how to make one.  call: what the user called."""
    if isinstance(given, Loader):
        return
    if isinstance(given, str | os.PathLike):
        raise PlanError(
            f"{call}: loader is the path {os.fspath(given)!r}, expected a Loader: loader=penstock.load({os.fspath(given)!r})"
        )
    kind = type(given).__name__
    raise PlanError(
        f"{call}: loader is a {kind}, expected a Loader: penstock.load('recipe.yaml'), or penstock.Loader(store, batch_size=…)"
    )


def refuse_the_same(loader: Loader | None, evaluated: Loader) -> None:
    """A Loader has one position: an evaluation would move the training run."""
    if evaluated is loader:
        raise PlanError(
            "one Loader cannot train and evaluate: an evaluation would move it to its start; make a second Loader"
        )


class TrainerGuards:
    """Guards trainers as soon as a Loader is made, and rows that are cut."""

    def __init__(self) -> None:
        self._loader: Loader | None = None

    def attach(self, loader: Loader) -> None:
        self._loader = loader
        guard_trainers()

    def begin(self, run: Run) -> None:
        """Refuse to cut rows that no other rank has the rest of."""
        assert self._loader is not None
        check_parts(self._loader)

    def step(self, run: Run, step: NumberedStep, batch: Batch) -> None:
        """Trainers are guarded already."""

    def end(self, run: Run) -> None:
        """Trainers stay guarded: other Loaders may be used."""


def guard_trainers() -> None:
    """Replace the methods of trainers that the program has imported, once."""
    guards: list[tuple[str, str, str, Callable[..., Any]]] = [
        ("accelerate", "Accelerator", "prepare", _prepare),
        ("accelerate", "Accelerator", "prepare_data_loader", _prepare_data_loader),
    ]
    for loops in ("lightning.pytorch.loops", "pytorch_lightning.loops"):
        guards += [
            (loops, name, "setup_data", _setup_evaluation)
            for name in ("_EvaluationLoop", "_PredictionLoop")
        ]
        guards.append((loops, "_FitLoop", "setup_data", _setup_fit))
    for fabric in ("lightning.fabric", "lightning_fabric"):
        samplers = f"{fabric}.utilities.distributed"
        guards.append((samplers, "_DatasetSamplerWrapper", "__init__", _divide_sampler))
    for module, name, method, guarded in guards:
        owner = getattr(sys.modules.get(module), name, None)
        mark = f"{_GUARDED}_in_{method}"
        if owner is not None and mark not in vars(owner):
            setattr(owner, method, _guarded(getattr(owner, method), guarded))
            setattr(owner, mark, True)


def _guarded(method: Any, guarded: Callable[..., Any]) -> Any:
    @wraps(method)
    def call(self: Any, *given: Any, **options: Any) -> Any:
        return guarded(method, self, *given, **options)

    return call


def _prepare(prepare: Any, accelerator: Any, *objects: Any, **options: Any) -> Any:
    """Accelerate returns unknown objects as they are.

    It would neither move the batches to its device nor save the loader's state, and a resumed run would begin with the first batch again.
    """
    if any(isinstance(each, Loader) for each in objects):
        raise PlanError(
            "accelerator.prepare(loader) would not save the Loader's state or move its batches; "
            "use penstock.trainers.accelerate: batches = attach(accelerator, loader)"
        )
    return prepare(accelerator, *objects, **options)


def _prepare_data_loader(prepare: Any, accelerator: Any, data_loader: Any, **options: Any) -> Any:
    """Accelerate divides the batches of a DataLoader among its ranks, also those that a Loader has divided already."""
    datasets = sys.modules.get("penstock.loader.dataset")  # imports torch
    dataset = getattr(data_loader, "dataset", None)
    if datasets is not None and isinstance(dataset, datasets.Steps):
        raise PlanError(
            "accelerator.prepare cannot prepare a DataLoader over loader.as_dataset(): it takes the batches apart; "
            "use penstock.trainers.accelerate: batches = attach(accelerator, loader)"
        )
    sampler = getattr(data_loader, "sampler", None)
    if isinstance(sampler, RowSampler) and accelerator.num_processes > 1:
        _refuse_second_division(sampler, "accelerator.prepare", "do not prepare the DataLoader")
    return prepare(accelerator, data_loader, **options)


def _divide_sampler(begin: Any, wrapper: Any, sampler: Any) -> None:
    """Lightning's Trainer and Fabric divide what a sampler of the user's yields among their ranks."""
    if isinstance(sampler, RowSampler):
        advice = "pass use_distributed_sampler=False to the Trainer or to fabric.setup_dataloaders"
        _refuse_second_division(sampler, "Lightning", advice)
    begin(wrapper, sampler)


def _refuse_second_division(sampler: RowSampler, divider: str, advice: str) -> None:
    world = sampler.world
    if world.size > 1:
        raise PlanError(
            f"{divider} would divide the rows among the ranks, and the sampler of as_map_dataset() gives each of {world.size} ranks its "
            f"own rows already, so rows would be lost; {advice}, or make the Loader with rank=0, world_size=1"
        )


def _setup_evaluation(setup: Any, loop: Any) -> None:
    """Lightning leaves a validation early (the sanity check, limit_val_batches): the next one must not go on from there."""
    setup(loop)
    if (found := loop._combined_loader) is not None:
        _take_ranks(loop.trainer, found.flattened)
        found.flattened = [
            EvalBatches(each) if isinstance(each, Loader) else each for each in found.flattened
        ]
        _refuse_shared(loop.trainer)


def _setup_fit(setup: Any, loop: Any) -> None:
    """Lightning does not load the state of a Loader from a checkpoint that was saved at the end of an epoch."""
    before = loop._combined_loader
    setup(loop)
    if (found := loop._combined_loader) is before:
        return
    _take_ranks(loop.trainer, found.flattened)
    if not any(isinstance(each, Loader) for each in found.flattened):
        return
    _refuse_shared(loop.trainer)
    if loop._combined_loader_states_to_load:
        raise PlanError(
            "the checkpoint was saved at the end of an epoch, and Lightning does not load a Loader's state from such a checkpoint: the "
            f"first epoch would be trained again; resume from one saved within an epoch, and from now on {_LOADER_MODULE}"
        )
    _log.warning(
        "Lightning was given a Loader to train on: a checkpoint saved at the end of an epoch cannot be resumed, and whether the "
        "model keeps packed samples apart is not checked; %s",
        _LOADER_MODULE,
    )


def _take_ranks(trainer: Any, batches: list[Any]) -> None:
    """Give Loaders the ranks that Lightning has started; refuse those that were told others."""
    for source in batches:
        loader = source._loader if isinstance(source, EvalBatches) else source
        if isinstance(loader, Loader):
            take_ranks(loader, of_lightning(trainer))


def _refuse_shared(trainer: Any) -> None:
    loops = trainer.fit_loop, trainer.fit_loop.epoch_loop.val_loop
    trained, evaluated = (getattr(loop._combined_loader, "flattened", ()) for loop in loops)
    for each in evaluated:
        for loader in trained:
            if isinstance(each, EvalBatches) and isinstance(loader, Loader):
                refuse_the_same(loader, each._loader)
