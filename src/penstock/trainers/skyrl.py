"""SkyRL's SFT trainer with a Loader."""

from penstock.extras.trainers.skyrl import LoaderBatches, LoaderSkyRLTrainer, examples_of

__all__ = ["LoaderBatches", "LoaderSkyRLTrainer", "examples_of"]
