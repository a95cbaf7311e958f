"""Refuse what other libraries would accept of a Loader without doing what is expected of it.  None of them is imported for that."""

import sys
from functools import wraps
from typing import Any

from penstock.errors import PlanError

_REFUSES = "_refuses_penstock_loaders"


def refuse_prepare(loader_type: type) -> None:
    """Make `accelerator.prepare(loader)` an error, where the program has imported accelerate.

    Accelerate returns unknown objects as they are: it would neither move the batches to its device nor save the loader's state, and
    a resumed run would begin with the first batch again.
    """
    accelerator = getattr(sys.modules.get("accelerate"), "Accelerator", None)
    if accelerator is None or hasattr(accelerator, _REFUSES):
        return
    prepare = accelerator.prepare

    @wraps(prepare)
    def checked(self: Any, *objects: Any, **options: Any) -> Any:
        if any(isinstance(each, loader_type) for each in objects):
            raise PlanError(
                "accelerator.prepare(loader) would not save the Loader's state or move its batches; "
                "use penstock.integrations.accelerate: batches = attach(accelerator, loader)"
            )
        return prepare(self, *objects, **options)

    accelerator.prepare = checked
    setattr(accelerator, _REFUSES, True)
