"""Sequences that are not text: windows over long columns, ids and normalisation learnt from data, batches of inputs and targets."""

from penstock.extras.sequences.batches import SequenceBatch, SequenceBatches
from penstock.extras.sequences.curriculum import curriculum
from penstock.extras.sequences.encoding import Encoding, learn_encoding
from penstock.extras.sequences.windows import windows

__all__ = [
    "Encoding",
    "SequenceBatch",
    "SequenceBatches",
    "curriculum",
    "learn_encoding",
    "windows",
]
