"""Sequences that are not text: numbers and categories over time."""

from penstock.extras.sequences import (
    Encoding,
    SequenceBatch,
    SequenceBatches,
    curriculum,
    learn_encoding,
    windows,
)

__all__ = [
    "Encoding",
    "SequenceBatch",
    "SequenceBatches",
    "curriculum",
    "learn_encoding",
    "windows",
]
