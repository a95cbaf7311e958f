"""trl's trainers with a Loader: they work like `LoaderTrainer`, and do not tokenize, cut or pack the training data again."""

from penstock.extras.trainers.trl import (
    LoaderDPOTrainer,
    LoaderKTOTrainer,
    LoaderRewardTrainer,
    LoaderSFTTrainer,
)

__all__ = ["LoaderDPOTrainer", "LoaderKTOTrainer", "LoaderRewardTrainer", "LoaderSFTTrainer"]
