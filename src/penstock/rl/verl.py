"""Prompts for verl (0.9 and its trainers v1): a dataset for its StatefulDataLoader."""

from penstock.extras.rl.verl import PromptsDataset

__all__ = ["PromptsDataset"]
