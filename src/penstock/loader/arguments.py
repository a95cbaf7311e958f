"""What was given to a Loader: stores with names and weights, options of the order and of the form, steps to skip."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from penstock.errors import PlanError
from penstock.loader.form import BatchForm
from penstock.loader.records import RecordStore, is_records
from penstock.plan.settings import PlanSettings, weights_as_text, whole_number
from penstock.store import Store


def steps_to_skip(skip: Any) -> list[int]:
    """Steps to pass over.  What is not a step number is refused, since it would be ignored."""
    if isinstance(skip, str) or not isinstance(skip, Iterable):
        raise PlanError(f"skip is {skip!r}, expected steps, as skip=[41203] or skip=range(41200, 41210)")
    return [whole_number("a step in skip", step, least=0) for step in skip]


def split_options(
    max_length: int, weights: list[float] | None, options: dict[str, Any], named: set[str]
) -> tuple[PlanSettings, BatchForm]:
    """Options that set the order, and those that set the form.  Any other is refused; `named` are the Loader's own parameters."""
    order = {field.name for field in fields(PlanSettings)} - {"max_length", "weights"}
    form = {field.name for field in fields(BatchForm)}
    for name in options:
        if name == "weights":
            raise PlanError("weights go with their stores: Loader({'name': (store, weight), …})")
        if name not in order | form:
            known = {*order, *form, *named}
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(known))}"
            raise PlanError(f"Loader has no option {name!r}; {hint}")
    settings = PlanSettings(
        max_length=max_length,
        weights=weights_as_text(weights),
        **{name: value for name, value in options.items() if name in order},
    )
    return settings, BatchForm(**{name: value for name, value in options.items() if name in form})


def read_mixture(stores: Any) -> tuple[list[str], list[Any], list[float] | None]:
    """(names, stores, weights) of what was given: one store, a list of them, or a dict with or without weights."""
    weights: list[float] | None = None
    found: list[Any]
    if isinstance(stores, Store) or is_records(stores):
        names, found = ["data"], [stores]
    elif isinstance(stores, Mapping):
        names, found = [str(name) for name in stores], list(stores.values())
        weighted = [isinstance(value, tuple) and len(value) == 2 for value in found]
        if any(weighted) and not all(weighted):
            raise PlanError("a mixture needs a weight for all of its stores or for none")
        if any(weighted):
            found, weights = [store for store, _ in found], [weight for _, weight in found]
    else:
        found = list(stores) if isinstance(stores, Sequence) and not isinstance(stores, str) else [stores]
        names = [str(number) for number in range(len(found))]
    if found and all(is_records(value) for value in found):
        found = [RecordStore(source) for source in found]
    for value in found:
        if not isinstance(value, Store | RecordStore):
            raise PlanError(
                f"found a {type(value).__name__}, expected a Store from penstock.prepare, a list of them, "
                f"or a dict like {{'name': (store, weight)}}"
            )
    if not found:
        raise PlanError("no stores given; there is nothing to load")
    return names, found, weights
