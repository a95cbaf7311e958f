"""Megatron's parallel state, if the program has imported and initialised it; Megatron is not imported here."""

import sys
from typing import Any


def megatron_state() -> Any:
    """Return the module megatron.core.parallel_state; None if it is not initialised."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return None
    return state
