"""Labels for multi-token prediction: for each token, also the labels of tokens after the next one."""

from typing import Any

import numpy as np

from penstock.loader.collate import IGNORE
from penstock.types import WEIGHTS

FUTURE_LABELS = "future_labels"
FUTURE_WEIGHTS = "future_weights"


def add_future_labels(arrays: dict[str, Any], *, depth: int, is_shifted: bool) -> None:
    """Add the labels, and the weights if there are any, of `depth` tokens after the next one: (rows, depth, length).

    They follow `labels`: future_labels[:, 0] holds what `labels` holds one place further on, future_labels[:, 1] two places, and so on.
    So a model that shifts labels shifts these, too.  A label of another document than the token that predicts it is -100.

    is_shifted: whether `labels` are shifted already.
    """
    documents = arrays["seq_idx"]
    predicts = np.ones(documents.shape, np.bool_)
    if not is_shifted:  # the token before predicts a label: at the first place of a document, that is another document's
        predicts[:, 0] = False
        predicts[:, 1:] = documents[:, 1:] == documents[:, :-1]
    further = _Further(documents, predicts, depth)
    arrays[FUTURE_LABELS] = further.of(arrays["labels"], fill=IGNORE)
    if WEIGHTS.name in arrays:
        arrays[FUTURE_WEIGHTS] = further.of(arrays[WEIGHTS.name], fill=0)


class _Further:
    """Moves values by 1 … depth places within documents."""

    def __init__(self, documents: np.ndarray, predicts: np.ndarray, depth: int) -> None:
        self._documents = documents
        self._predicts = predicts
        self._depth = depth

    def of(self, values: np.ndarray, *, fill: int) -> np.ndarray:
        num_rows, length = values.shape
        moved = np.full((num_rows, self._depth, length), fill, values.dtype)
        for distance in range(1, min(self._depth, length - 1) + 1):
            same = self._documents[:, distance:] == self._documents[:, :-distance]
            same &= self._predicts[:, :-distance]
            chosen = moved[:, distance - 1, :-distance]
            chosen[same] = values[:, distance:][same]
        return moved
