"""Stages change arrays on their way to the user: maker → columns such as media → the user's collate → output and pinning.

A stage takes an iterator and returns one.  Closing a stage closes its input.
"""

from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import numpy as np

from penstock.loader.collate import call_users
from penstock.loader.layout import BatchForm, as_jax, as_tensors
from penstock.plan.plan import NumberedStep
from penstock.plan.ranks import Share


class Made(NamedTuple):
    """The arrays of one step, on their way."""

    arrays: dict[str, Any]
    share: Share
    step: NumberedStep
    trained: int  # tokens with a label


Stage = Callable[[Iterator[Made]], Iterator[Made]]


def users_stage(collate: Callable[..., Any]) -> Stage:
    """Return the stage that gives arrays and rows to the user's function."""

    def stage(steps: Iterator[Made]) -> Iterator[Made]:
        try:
            for each in steps:
                arrays, trained = call_users(collate, each.arrays, each.trained, each.share.rows)
                yield Made(arrays, each.share, each.step, trained)
        finally:
            close(steps)

    return stage


def output_stage(form: BatchForm) -> Stage:
    """Return the stage that converts arrays to what `output` names: none for numpy, which they are."""
    if form.output == "numpy":
        return iter

    def stage(steps: Iterator[Made]) -> Iterator[Made]:
        try:
            for each in steps:
                yield Made(convert(each.arrays, form), each.share, each.step, each.trained)
        finally:
            close(steps)

    return stage


def convert(arrays: dict[str, Any], form: BatchForm) -> dict[str, Any]:
    """Return arrays in the form that `output` names."""
    # also what a user's collate made that is not a dict
    has_arrays = any(isinstance(value, np.ndarray) for value in arrays.values())
    if form.output == "numpy" or not has_arrays:
        return arrays
    if form.output == "jax":
        return as_jax(arrays, fixed_borders=form.max_segments is not None)
    return as_tensors(arrays, pin_memory=form.pin_memory)


def close(steps: Iterator[Any]) -> None:
    """Close the input of a stage, if it is a generator: what it holds, such as threads, ends with the stage."""
    if isinstance(steps, Generator):
        steps.close()
