"""Check that a model computes a sample in a packed row as it computes the sample alone; refuse to train if it does not."""

from penstock.extras.trainers.isolation import (
    check_at_first_step,
    check_isolation,
    find_row,
    transformers_models,
)

__all__ = ["check_at_first_step", "check_isolation", "find_row", "transformers_models"]
