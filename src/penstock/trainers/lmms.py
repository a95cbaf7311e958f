"""A recipe as a dataset of LMMS-Engine."""

from penstock.extras.trainers.lmms import OneBatch, RecipeDataset, register, sample_rows

__all__ = ["OneBatch", "RecipeDataset", "register", "sample_rows"]
