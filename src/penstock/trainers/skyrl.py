"""SkyRL's SFT trainer with a Loader."""

from penstock.extras.trainers.skyrl import LoaderBatches, LoaderSFTTrainer, examples_of

__all__ = ["LoaderBatches", "LoaderSFTTrainer", "examples_of"]
