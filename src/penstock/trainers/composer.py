"""Composer with a Loader: a DataLoader whose dataset Composer saves and loads with its checkpoints."""

from penstock.extras.trainers.composer import composer_dataloader

__all__ = ["composer_dataloader"]
