"""Compare a model with the stores that it will be trained on, before the first step."""

from penstock.extras.trainers.model_checks import (
    check_batch,
    check_model,
    check_only_model,
    check_vocabulary,
    embedding_rows,
)

__all__ = ["check_batch", "check_model", "check_only_model", "check_vocabulary", "embedding_rows"]
