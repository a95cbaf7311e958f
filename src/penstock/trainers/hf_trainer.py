"""A Trainer of transformers that takes its batches from a Loader, as they are."""

from penstock.extras.trainers.hf_trainer import (
    FromLoader,
    LoaderTrainer,
    correct_rate,
    load_renamed,
    load_state,
    loaders_in,
    save_state,
)

__all__ = [
    "FromLoader",
    "LoaderTrainer",
    "correct_rate",
    "load_renamed",
    "load_state",
    "loaders_in",
    "save_state",
]
